/* The random bits of stochastic rounding: a pure function of seed, tensor, element, update and
 * purpose, so that no sharding, thread split or ISA can show in them. */
#ifndef ZI_KERNELS_MATH_ROUNDING_H
#define ZI_KERNELS_MATH_ROUNDING_H

#include <stdint.h>

#include "core/lane.h"
#include "core/rng.h"

/* Elements that share one call of the generator. */
#define ZI_ROUNDING_BLOCK 8

/* What is rounded: keeps the bits of one element's parameter and moments independent. */
typedef enum zi_rounding_purpose {
    ZI_ROUNDING_PARAM = 0,
    ZI_ROUNDING_MOMENT1 = 1,
    ZI_ROUNDING_MOMENT2 = 2
} zi_rounding_purpose;

typedef struct zi_rounding_key {
    uint64_t seed;
    uint64_t update; /* number of the update, from 1; its lower 32 bits count */
    uint32_t tensor; /* index in the model */
    zi_rounding_purpose purpose;
} zi_rounding_key;

/* Counter of the generator for elements [8 block, 8 block + 8) of the tensor. A tensor has at most
 * 2^46 elements, so block fits below the purpose. */
typedef struct zi_rounding_counter {
    uint64_t low;
    uint64_t high;
} zi_rounding_counter;

ZI_LANE zi_rounding_counter zi_rounding_counter_of(zi_rounding_key key, uint64_t block)
{
    zi_rounding_counter counter;
    counter.low = block | ((uint64_t)key.purpose << 62);
    counter.high = (uint64_t)key.tensor | (key.update << 32);
    return counter;
}

/* The 16 bits of one element: half i % 8 of its block's words, the lower half of a word first. */
ZI_LANE uint32_t zi_rounding_bits(zi_rounding_key key, uint64_t element)
{
    const zi_rounding_counter counter = zi_rounding_counter_of(key, element / ZI_ROUNDING_BLOCK);
    const zi_philox_words words = zi_philox(key.seed, counter.low, counter.high);
    const uint32_t half = (uint32_t)(element % ZI_ROUNDING_BLOCK);
    return (words.word[half / 2] >> (16 * (half % 2))) & UINT32_C(0xffff);
}

#endif
