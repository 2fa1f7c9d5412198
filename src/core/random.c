/* Owns the public random numbers. Element i of a stream uses words of counter i / 4 (uniform) or i
 * / 2 (normal), so any range gives the same values. */
#include "zero/random.h"

#include <math.h>
#include <stddef.h>

#include "core/rng.h"

/* (0, 1): 24 bits and a half, so that neither end is met and log() is finite. */
static double unit_open(uint32_t word)
{
    return ((double)(word >> 8) + 0.5) * 0x1p-24;
}

void zero_random_normal(uint64_t seed, uint64_t stream, uint64_t first, uint64_t count, float mean,
                        float stddev, float *values)
{
    for (uint64_t i = 0; i < count && values != NULL; i++) {
        const uint64_t index = first + i;
        const zi_philox_words words = zi_philox(seed, index / 2, stream);
        const double radius = sqrt(-2.0 * log(unit_open(words.word[0])));
        const double angle = 6.283185307179586 * unit_open(words.word[1]);
        const double normal = radius * (index % 2 == 0 ? cos(angle) : sin(angle));
        values[i] = mean + stddev * (float)normal;
    }
}

void zero_random_uniform(uint64_t seed, uint64_t stream, uint64_t first, uint64_t count, float low,
                         float high, float *values)
{
    for (uint64_t i = 0; i < count && values != NULL; i++) {
        const uint64_t index = first + i;
        const zi_philox_words words = zi_philox(seed, index / 4, stream);
        const float unit = (float)(words.word[index % 4] >> 8) * 0x1p-24f;
        const float value = low + (high - low) * unit;
        /* The sum may round up to the open end. */
        values[i] = value >= high && low < high ? nextafterf(high, low) : value;
    }
}
