/** @file
 *  Random numbers that depend only on where they are used.
 *
 *  Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the
 *  element's index as the counter: any range of a tensor can be made anywhere, in any order, with
 *  the same values. */
#ifndef ZERO_RANDOM_H
#define ZERO_RANDOM_H

#include "zero/export.h"
#include <stdint.h>

ZERO_BEGIN

/** Normal values (Box-Muller) for elements [first, first + count) of stream `stream` under `seed`,
 *  the same bits on every machine.
 *  - values: out, host memory, count floats; NULL: nothing is done.
 *  - Threads: any. */
ZERO_API void zero_random_normal(uint64_t seed, uint64_t stream, uint64_t first, uint64_t count,
                                 float mean, float stddev, float *values);

/** Uniform values in [low, high) for the same range. */
ZERO_API void zero_random_uniform(uint64_t seed, uint64_t stream, uint64_t first, uint64_t count,
                                  float low, float high, float *values);

ZERO_END

#endif
