/* Squares of values that are in the first-level cache, as the loops of lanes.c add them. For
 * lanes.c only: what is inlined here is compiled for its instruction set. */
#ifndef ZI_KERNELS_CPU_SQUARE_ADDER_H
#define ZI_KERNELS_CPU_SQUARE_ADDER_H

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/elements.h"

/* Adds squares by chunks, whose totals are added many at a time. */
typedef struct square_adder {
    zi_norm_sum sum;
    uint64_t additions; /* since the sum was normalised */
    uint32_t waiting;
    double totals[ZI_CHUNK_TOTALS];
} square_adder;

static void add_waiting(square_adder *adder)
{
    zi_chunk_totals_add(&adder->sum, adder->totals, adder->waiting);
    adder->additions += adder->waiting;
    adder->waiting = 0;
    if (adder->additions >= ZI_NORM_ADDITIONS_MAX / 2) {
        zi_norm_normalise(&adder->sum);
        adder->additions = 0;
    }
}

/* Adds the squares of `count` values, and fills up the last chunk with zeros. */
ALWAYS_INLINE void add_squares(square_adder *adder, float *values, size_t count)
{
    for (size_t k = count; k % ZI_NORM_CHUNK != 0; k++) {
        values[k] = 0.0f;
    }
    for (size_t k = 0; k < count; k += ZI_NORM_CHUNK) {
        adder->totals[adder->waiting++] = zi_chunk_squares(values + k);
        if (adder->waiting == ZI_CHUNK_TOTALS) {
            add_waiting(adder);
        }
    }
}

/* Add what was added up to *sum. */
static void close_squares(square_adder *adder, zi_norm_sum *sum)
{
    add_waiting(adder);
    zi_norm_merge(sum, &adder->sum);
}

#endif
