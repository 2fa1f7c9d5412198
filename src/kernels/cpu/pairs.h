/* Two neighbouring elements at a time, where most are of 16 bits: both are in one word of 32, which
 * a shift and a mask take apart. Loops over words need no lanes moved between registers, as those
 * over elements of 16 bits do. For lanes.c only: what is inlined here is compiled for its
 * instruction set. */
#ifndef ZI_KERNELS_CPU_PAIRS_H
#define ZI_KERNELS_CPU_PAIRS_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/elements.h"

typedef struct pair_f32 {
    float first;
    float second;
} pair_f32;

typedef struct pair_words {
    uint32_t first;
    uint32_t second;
} pair_words;

/* Pair i of an array of 16-bit elements: the first element in the word's lower half. */
ALWAYS_INLINE uint32_t get_word(const void *base, size_t i)
{
    uint32_t word;
    memcpy(&word, (const unsigned char *)base + i * sizeof word, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = word << 16 | word >> 16;
#endif
    return word;
}

ALWAYS_INLINE void put_word(void *base, size_t i, uint32_t word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = word << 16 | word >> 16;
#endif
    memcpy((unsigned char *)base + i * sizeof word, &word, sizeof word);
}

ALWAYS_INLINE uint32_t pack_words(uint32_t first, uint32_t second)
{
    return first | second << 16;
}

ALWAYS_INLINE void put_words(void *base, size_t i, uint16_t first, uint16_t second)
{
    put_word(base, i, pack_words(first, second));
}

/* Bytes as words of two neighbours each, the first in the lower 8 bits, so that loops over them
 * have 32 bits everywhere. */
ALWAYS_INLINE void widen_bytes(uint32_t *restrict words, const void *restrict bytes, size_t pairs)
{
    for (size_t i = 0; i < pairs; i++) {
        uint16_t both;
        memcpy(&both, (const unsigned char *)bytes + i * sizeof both, sizeof both);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        both = (uint16_t)(both << 8 | both >> 8);
#endif
        words[i] = both;
    }
}

/* Back: of each word the lower 16 bits. */
ALWAYS_INLINE void narrow_bytes(void *restrict bytes, const uint32_t *restrict words, size_t pairs)
{
    for (size_t i = 0; i < pairs; i++) {
        uint16_t both = (uint16_t)words[i];
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        both = (uint16_t)(both << 8 | both >> 8);
#endif
        memcpy((unsigned char *)bytes + i * sizeof both, &both, sizeof both);
    }
}

/* Pair i as fp32. dtype: a constant wherever this is inlined, as in what follows. */
ALWAYS_INLINE pair_f32 get_pair(const void *base, zero_dtype dtype, size_t i)
{
    if (dtype == ZERO_DTYPE_F32) {
        return (pair_f32){((const float *)base)[2 * i], ((const float *)base)[2 * i + 1]};
    }
    const uint32_t word = get_word(base, i);
    const uint16_t first = (uint16_t)word;
    const uint16_t second = (uint16_t)(word >> 16);
    return dtype == ZERO_DTYPE_BF16 ? (pair_f32){zi_f32_from_bf16(first), zi_f32_from_bf16(second)}
                                    : (pair_f32){zi_f32_from_f16(first), zi_f32_from_f16(second)};
}

/* Store values that arithmetic has left; to F32 as they are. */
ALWAYS_INLINE void put_pair(void *base, zero_dtype dtype, size_t i, pair_f32 values)
{
    if (dtype == ZERO_DTYPE_F32) {
        ((float *)base)[2 * i] = values.first;
        ((float *)base)[2 * i + 1] = values.second;
    } else if (dtype == ZERO_DTYPE_BF16) {
        put_words(base, i, zi_bf16_from_result(values.first), zi_bf16_from_result(values.second));
    } else {
        put_words(base, i, zi_f16_from_f32(values.first), zi_f16_from_f32(values.second));
    }
}

/* The same, rounded stochastically by 16 random bits each. */
ALWAYS_INLINE void put_pair_random(void *base, zero_dtype dtype, size_t i, pair_f32 values,
                                   uint32_t random_first, uint32_t random_second)
{
    if (dtype == ZERO_DTYPE_BF16) {
        put_words(base, i, zi_bf16_from_result_stochastic(values.first, random_first),
                  zi_bf16_from_result_stochastic(values.second, random_second));
    } else {
        put_words(base, i, zi_f16_from_f32_stochastic(values.first, random_first),
                  zi_f16_from_f32_stochastic(values.second, random_second));
    }
}

#endif
