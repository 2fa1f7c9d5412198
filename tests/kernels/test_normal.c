/* Normal values: the functions they are made of beside libm's, and the same bits for every set of
 * instructions and however a range is asked for. */
#include "harness.h"

#include <math.h>

#include "kernels/cpu/lanes.h"
#include "kernels/math/normal.h"
#include "zero/random.h"

TEST(logarithms_are_as_exact_as_doubles)
{
    for (uint32_t i = 0; i < 1u << 24; i += i < 4096 || i > (1u << 24) - 4096 ? 1 : 1009) {
        const double x = zi_unit_open(i << 8);
        CHECK_NEAR(zi_log(x), log(x), fabs(log(x)) * 1e-15);
    }
    CHECK(zi_log(1.0) == 0.0);
    for (double x = 0x1p-1000; x < 0x1p1000; x *= 1.7) {
        CHECK_NEAR(zi_log(x), log(x), fabs(log(x)) * 1e-15);
    }
}

TEST(circles_are_as_exact_as_doubles)
{
    for (uint32_t i = 0; i < 1u << 24; i += 509) {
        const double turn = zi_unit_open(i << 8);
        const zi_circle at = zi_circle_at(turn);
        /* The angle itself is rounded, to 2^-51 at most. */
        CHECK_NEAR(at.cosine, cos(6.283185307179586 * turn), 8e-16);
        CHECK_NEAR(at.sine, sin(6.283185307179586 * turn), 8e-16);
    }
    for (int quarter = 0; quarter < 4; quarter++) {
        const zi_circle at = zi_circle_at(quarter / 4.0);
        CHECK(at.cosine == (quarter == 0) - (quarter == 2));
        CHECK(at.sine == (quarter == 1) - (quarter == 3));
    }
}

/* A run's initial parameters depend on these. */
TEST(known_answers)
{
    static const float expected[] = {0x1.d22fd4p-1f, -0x1.0c5382p+0f, 0x1.3584a4p+0f,
                                     -0x1.581c7cp+0f};
    float values[4];
    zero_random_normal(1, 2, (UINT64_C(1) << 33) + 1, 4, 0.0f, 1.0f, values);
    CHECK_BYTES(values, expected, sizeof expected);
}

/* Values of elements [first, first + count), each asked for alone. */
static void draw_alone(uint64_t first, uint32_t count, float *values)
{
    for (uint32_t i = 0; i < count; i++) {
        zero_random_normal(test_seed, 9, first + i, 1, 0.5f, 2.0f, &values[i]);
    }
}

TEST(the_same_bits_for_every_instruction_set_and_range)
{
    enum { MOST = 300 };
    const uint64_t first = (UINT64_C(1) << 33) - MOST / 2; /* the counter's upper word changes */
    float expected[MOST + 8];
    float drawn[MOST + 8];
    zi_cpu_lanes_select(0);
    draw_alone(first, MOST + 8, expected);
    for (uint32_t lanes = 0; lanes < zi_cpu_lanes_count(); lanes++) {
        zi_cpu_lanes_select(lanes);
        for (uint32_t count = 0; count <= MOST; count++) {
            const uint32_t from = count % 8;
            memset(drawn, 0, sizeof drawn);
            zero_random_normal(test_seed, 9, first + from, count, 0.5f, 2.0f, drawn);
            CHECK_BYTES(drawn, expected + from, count * sizeof(float));
            CHECK(drawn[count] == 0.0f); /* nothing is written behind them */
        }
    }
}
