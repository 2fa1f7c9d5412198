/* Philox4x32-10: a counter-based generator (Salmon et al. 2011). Pure; the same words on every
 * machine. */
#ifndef ZI_CORE_RNG_H
#define ZI_CORE_RNG_H

#include <stdint.h>

#include "core/lane.h"

typedef struct zi_philox_words {
    uint32_t word[4];
} zi_philox_words;

ZI_LANE zi_philox_words zi_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    zi_philox_words x = {{(uint32_t)counter_low, (uint32_t)(counter_low >> 32),
                          (uint32_t)counter_high, (uint32_t)(counter_high >> 32)}};
    uint32_t k0 = (uint32_t)key;
    uint32_t k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)x.word[0] * UINT64_C(0xD2511F53);
        const uint64_t p1 = (uint64_t)x.word[2] * UINT64_C(0xCD9E8D57);
        const uint32_t w1 = x.word[1];
        const uint32_t w3 = x.word[3];
        x.word[0] = (uint32_t)(p1 >> 32) ^ w1 ^ k0;
        x.word[1] = (uint32_t)p1;
        x.word[2] = (uint32_t)(p0 >> 32) ^ w3 ^ k1;
        x.word[3] = (uint32_t)p0;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    return x;
}

#endif
