/* Owns the checksum of one block, compiled once for each set of instructions. xxhash is all in its
 * header, so that nothing of it is linked. */
#include <stddef.h>
#include <stdint.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define JOIN_(name, suffix) name##suffix
#define JOIN(name, suffix) JOIN_(name, suffix)

uint64_t JOIN(zi_checksum_block_, ZI_CHECKSUM_SUFFIX)(const void *block, size_t bytes);

uint64_t JOIN(zi_checksum_block_, ZI_CHECKSUM_SUFFIX)(const void *block, size_t bytes)
{
    return XXH3_64bits(block, bytes);
}
