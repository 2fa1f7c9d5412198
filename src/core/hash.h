/* 64-bit FNV-1a: fingerprints that ranks compare. Not for data of any size, nor against an
 * adversary. */
#ifndef ZI_CORE_HASH_H
#define ZI_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ZI_HASH_START UINT64_C(0xcbf29ce484222325)

static inline uint64_t zi_hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static inline uint64_t zi_hash_u64(uint64_t hash, uint64_t value)
{
    return zi_hash_bytes(hash, &value, sizeof value);
}

/* The final NUL is hashed too, so that neighbouring strings cannot flow together. */
static inline uint64_t zi_hash_text(uint64_t hash, const char *text)
{
    return zi_hash_bytes(hash, text, strlen(text) + 1);
}

#endif
