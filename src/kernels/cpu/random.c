/* Owns the public random numbers. Element i of a stream uses words of counter i / 4 (uniform) or i
 * / 2 (normal), so any range gives the same values, on every machine. */
#include "zero/random.h"

#include <math.h>
#include <stddef.h>

#include "core/rng.h"
#include "kernels/cpu/lanes.h"

void zero_random_normal(uint64_t seed, uint64_t stream, uint64_t first, uint64_t count, float mean,
                        float stddev, float *values)
{
    const zi_cpu_lanes *lanes = zi_cpu_lanes_current();
    zi_lanes_normal normal = {
        .seed = seed, .stream = stream, .pairs = 1, .mean = mean, .stddev = stddev};
    float pair[2];
    uint64_t done = 0;
    if (values != NULL && count > 0 && first % 2 != 0) {
        normal.first = first - 1;
        normal.values = pair;
        lanes->normal(&normal);
        values[0] = pair[1];
        done = 1;
    }
    if (values != NULL && count - done > 1) {
        normal.first = first + done;
        normal.pairs = (count - done) / 2;
        normal.values = values + done;
        lanes->normal(&normal);
        done += 2 * normal.pairs;
    }
    if (values != NULL && done < count) {
        normal.first = first + done;
        normal.pairs = 1;
        normal.values = pair;
        lanes->normal(&normal);
        values[done] = pair[0];
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
