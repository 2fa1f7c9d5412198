/* Owns the sum of granules, compiled once for each set of instructions. xxhash is all in its
 * header, so that nothing of it is linked. */
#include <stddef.h>
#include <stdint.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define JOIN_(name, suffix) name##suffix
#define JOIN(name, suffix) JOIN_(name, suffix)

uint64_t JOIN(zi_piece_granules_, ZI_PIECE_SUFFIX)(const unsigned char *data, size_t bytes,
                                                   uint64_t number, size_t granule_bytes);

/* The number keeps granules that changed places apart. An odd factor takes no two numbers to one,
 * and the rest is splitmix64's last steps, without which sums of near numbers would cancel out. */
static inline uint64_t mix(uint64_t hash, uint64_t number)
{
    uint64_t z = hash ^ (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t JOIN(zi_piece_granules_, ZI_PIECE_SUFFIX)(const unsigned char *data, size_t bytes,
                                                   uint64_t number, size_t granule_bytes)
{
    uint64_t sum = 0;
    for (; bytes >= granule_bytes; bytes -= granule_bytes) {
        sum += mix(XXH3_64bits(data, granule_bytes), number++);
        data += granule_bytes;
    }
    return bytes != 0 ? sum + mix(XXH3_64bits(data, bytes), number) : sum;
}
