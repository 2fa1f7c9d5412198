/* The random bits of stochastic rounding: a pure function of seed, tensor, element, update and
 * purpose, so that no sharding, thread split or ISA can show in them.
 *
 * A tensor is divided into blocks. One call of Philox4x32-10 gives a block two SplitMix sequences
 * of 32-bit words (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014):
 * for each a start and a step. Element i of the block takes word i of both sequences. Word i is
 * start + i step, mixed one to one, so every word is as uniform as the start is. Blocks, updates,
 * tensors and seeds have starts and steps of their own. docs/decisions/034 says why so. */
#ifndef ZI_KERNELS_MATH_ROUNDING_H
#define ZI_KERNELS_MATH_ROUNDING_H

#include <stdint.h>

#include "core/lane.h"
#include "core/rng.h"
#include "zero/dtype.h"

/* Elements that share one call of Philox. */
#define ZI_ROUNDING_BLOCK 4096

/* The purpose of a rounding: keeps the bits of one element's parameter and moments independent. */
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

/* A sequence of random words; the step is odd. */
typedef struct zi_rounding_sequence {
    uint32_t start;
    uint32_t step;
} zi_rounding_sequence;

/* Both sequences of a block. */
typedef struct zi_rounding_block {
    zi_rounding_sequence param;   /* the upper half of a word counts */
    zi_rounding_sequence moments; /* the lower half is of the first, the upper of the second */
} zi_rounding_block;

/* Of elements [ZI_ROUNDING_BLOCK block, ZI_ROUNDING_BLOCK (block + 1)) of the key's tensor, for
 * every purpose. */
ZI_LANE zi_rounding_block zi_rounding_block_of(zi_rounding_key key, uint64_t block)
{
    const zi_philox_words words =
        zi_philox(key.seed, block, (uint64_t)key.tensor | (key.update << 32));
    zi_rounding_block both;
    both.param.start = words.word[0];
    both.param.step = words.word[1] | 1;
    both.moments.start = words.word[2];
    both.moments.step = words.word[3] | 1;
    return both;
}

/* Word `index` of a sequence before it is mixed. */
ZI_LANE uint32_t zi_rounding_at(zi_rounding_sequence sequence, uint32_t index)
{
    return sequence.start + index * sequence.step;
}

/* A one-to-one mixing of 32 bits: each bit of x changes each bit of the result about half the time
 * (the constants of Wellons' "lowbias32"). */
ZI_LANE uint32_t zi_rounding_mix(uint32_t x)
{
    x = (x ^ x >> 16) * UINT32_C(0x7feb352d);
    x = (x ^ x >> 15) * UINT32_C(0x846ca68b);
    return x ^ x >> 16;
}

/* The word that values of a kind are rounded by. For states of 8 bits half of the mixing does: sums
 * of neighbours' roundings scatter as those of independent ones. dtype: a constant wherever this is
 * inlined; in place of codes of any kind I8. */
ZI_LANE uint32_t zi_rounding_mix_for(zero_dtype dtype, uint32_t x)
{
    if (dtype == ZERO_DTYPE_REMAINDER8 || dtype == ZERO_DTYPE_I8) {
        return (x ^ x >> 16) * UINT32_C(0x7feb352d);
    }
    return zi_rounding_mix(x);
}

/* The 16 bits for `purpose` in a mixed word of the purpose's sequence. */
ZI_LANE uint32_t zi_rounding_half(uint32_t word, zi_rounding_purpose purpose)
{
    return purpose == ZI_ROUNDING_MOMENT1 ? word & UINT32_C(0xffff) : word >> 16;
}

ZI_LANE zi_rounding_sequence zi_rounding_sequence_for(zi_rounding_block block,
                                                      zi_rounding_purpose purpose)
{
    return purpose == ZI_ROUNDING_PARAM ? block.param : block.moments;
}

/* The word that one element is rounded to dtype by for the key's purpose. */
ZI_LANE uint32_t zi_rounding_word(zi_rounding_key key, zero_dtype dtype, uint64_t element)
{
    const zi_rounding_block block = zi_rounding_block_of(key, element / ZI_ROUNDING_BLOCK);
    return zi_rounding_mix_for(dtype, zi_rounding_at(zi_rounding_sequence_for(block, key.purpose),
                                                     (uint32_t)(element % ZI_ROUNDING_BLOCK)));
}

/* The 16 bits of it. */
ZI_LANE uint32_t zi_rounding_bits(zi_rounding_key key, zero_dtype dtype, uint64_t element)
{
    return zi_rounding_half(zi_rounding_word(key, dtype, element), key.purpose);
}

#endif
