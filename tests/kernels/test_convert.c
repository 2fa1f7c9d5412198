/* Conversions between fp32, bfloat16 and binary16: every 16-bit value, fp32 values around every
 * rounding boundary, and stochastic rounding over every value of its random bits. */
#include "harness.h"

#include "kernels/math/convert.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The formats as arithmetic sees them: `digits` bits after the point, least normal 2^least. */
typedef struct format {
    int digits;
    int least;
    double largest;
} format;

static const format bf16_format = {7, -126, 0x1.fep127};
static const format f16_format = {10, -14, 65504.0};

/* Nearest value of the format, ties to even, in exact double arithmetic. */
static double nearest(format kind, double value)
{
    if (isnan(value) || isinf(value) || value == 0.0) {
        return value;
    }
    int exponent;
    (void)frexp(value, &exponent);
    exponent = exponent - 1 < kind.least ? kind.least : exponent - 1;
    const double step = ldexp(1.0, exponent - kind.digits);
    const double rounded = nearbyint(value / step) * step;
    return fabs(rounded) > kind.largest ? copysign((double)INFINITY, value) : rounded;
}

static double value_of_f16(uint16_t half)
{
    const int exponent = (half >> 10) & 31;
    const double fraction = half & 0x3ff;
    const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == 31) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    return exponent == 0 ? sign * ldexp(fraction, -24)
                         : sign * ldexp(1024.0 + fraction, exponent - 25);
}

static bool same_value(double left, double right)
{
    return (isnan(left) && isnan(right)) || (left == right && signbit(left) == signbit(right));
}

static void check_narrow(uint32_t bits)
{
    const float value = zi_f32_from_bits(bits);
    const double bf16 = (double)zi_f32_from_bf16(zi_bf16_from_f32(value));
    const double f16 = value_of_f16(zi_f16_from_f32(value));
    if (!same_value(bf16, nearest(bf16_format, (double)value))) {
        TEST_FAIL("%a (%08x) to bf16 gives %a", (double)value, bits, bf16);
    }
    if (!same_value(f16, nearest(f16_format, (double)value))) {
        TEST_FAIL("%a (%08x) to f16 gives %a", (double)value, bits, f16);
    }
}

TEST(every_16_bit_value_widens_and_comes_back)
{
    for (uint32_t half = 0; half < 65536; half++) {
        const float from_bf16 = zi_f32_from_bf16((uint16_t)half);
        const float from_f16 = zi_f32_from_f16((uint16_t)half);
        CHECK_EQ(zi_f32_bits(from_bf16), half << 16);
        CHECK(same_value((double)from_f16, value_of_f16((uint16_t)half)));
        CHECK_EQ(zi_bf16_from_f32(from_bf16), isnan(from_bf16) ? half | 0x40 : half);
        CHECK_EQ(zi_f16_from_f32(from_f16), isnan(from_f16) ? half | 0x200 : half);
    }
}

TEST(narrowing_rounds_to_nearest_even_everywhere)
{
    for (uint64_t bits = test_seed % 997; bits <= UINT32_MAX; bits += 997) {
        check_narrow((uint32_t)bits);
    }
    /* Around every value of both formats and every middle between two. */
    for (uint32_t half = 0; half < 65536; half++) {
        const uint32_t f16 = zi_f32_bits(zi_f32_from_f16((uint16_t)half));
        const uint32_t middles[] = {half << 16, (half << 16) + 0x8000, f16, f16 + 0x1000};
        for (size_t i = 0; i < sizeof middles / sizeof middles[0]; i++) {
            for (uint32_t near = 0; near < 5; near++) {
                check_narrow(middles[i] + near - 2);
            }
        }
    }
    /* Middles of the subnormal halves lie at other places of the fp32 fraction. */
    for (int k = 0; k < 1024; k++) {
        const uint32_t bits = zi_f32_bits((float)ldexp(k + 0.5, -24));
        for (uint32_t near = 0; near < 3; near++) {
            check_narrow(bits + near - 1);
            check_narrow((bits + near - 1) | 0x80000000u);
        }
    }
}

TEST(nan_stays_a_quiet_nan)
{
    for (uint32_t bits = 0x7f800001u; bits <= 0x7fffffffu; bits += 4099) {
        for (uint32_t sign = 0; sign < 2; sign++) {
            const float value = zi_f32_from_bits(bits | sign << 31);
            const uint16_t bf16 = zi_bf16_from_f32(value);
            const uint16_t f16 = zi_f16_from_f32(value);
            CHECK_EQ(bf16 & 0x7fc0, 0x7fc0);
            CHECK_EQ(f16 & 0x7e00, 0x7e00);
            CHECK_EQ(bf16 >> 15, sign);
            CHECK_EQ(f16 >> 15, sign);
            CHECK_EQ(zi_bf16_from_f32_stochastic(value, 0xffff), bf16);
            CHECK_EQ(zi_f16_from_f32_stochastic(value, 0xffff), f16);
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static uint16_t hardware_narrow(float value)
{
    return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set1_ps(value), 0), 0);
}

__attribute__((target("avx,f16c"))) static uint32_t hardware_widen(uint16_t half)
{
    return (uint32_t)_mm_extract_epi32(_mm_castps_si128(_mm_cvtph_ps(_mm_set1_epi16((short)half))),
                                       0);
}
#endif

TEST(f16_has_the_bits_of_the_hardware)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2")) {
        SKIP("this CPU has no conversion instructions");
    }
    for (uint32_t half = 0; half < 65536; half++) {
        CHECK_EQ(zi_f32_bits(zi_f32_from_f16((uint16_t)half)), hardware_widen((uint16_t)half));
    }
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 101) {
        const float value = zi_f32_from_bits((uint32_t)bits);
        if (zi_f16_from_f32(value) != hardware_narrow(value)) {
            TEST_FAIL("%08x: %04x, hardware %04x", (unsigned)bits, zi_f16_from_f32(value),
                      hardware_narrow(value));
        }
    }
#else
    SKIP("conversion instructions are compared on x86-64 only");
#endif
}

/* How many of the 65536 random values move `value` away from zero; all others must keep `low`. */
static uint32_t count_up(float value, uint16_t (*round)(float, uint32_t), uint16_t low)
{
    uint32_t up = 0;
    for (uint32_t random = 0; random < 65536; random++) {
        const uint16_t got = round(value, random);
        CHECK(got == low || got == low + 1);
        up += got != low;
    }
    return up;
}

TEST(stochastic_rounding_to_bf16_is_exactly_unbiased)
{
    const uint32_t cases[] = {0x3f800001u, 0x3f80ffffu, 0xc0490fdbu, 0x00000001u, 0x0000ffffu,
                              0x80012345u, 0x007fffffu, 0x7f7e8000u, 0x3f8a3d71u};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint32_t up = count_up(zi_f32_from_bits(cases[i]), zi_bf16_from_f32_stochastic,
                                     (uint16_t)(cases[i] >> 16));
        CHECK_EQ(up, cases[i] & 0xffff);
    }
}

TEST(stochastic_rounding_to_f16_is_unbiased)
{
    const float normal[] = {1.0001f, -3.14159f, 6.1037e-5f, 65503.0f, 1234.567f};
    for (size_t i = 0; i < sizeof normal / sizeof normal[0]; i++) {
        const uint32_t bits = zi_f32_bits(normal[i]);
        const uint16_t low = zi_f16_from_f32(zi_f32_from_bits(bits & ~0x1fffu));
        CHECK_EQ(count_up(normal[i], zi_f16_from_f32_stochastic, low), (bits & 0x1fff) * 8);
    }
    const double small[] = {0.25, 0.999, 1.5, 3.14159, 511.0001, 1022.75, 1.0 / 65536};
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        const float value = (float)ldexp(small[i], -24);
        const double fraction = ldexp((double)value, 24) - floor(ldexp((double)value, 24));
        const uint32_t up = count_up(value, zi_f16_from_f32_stochastic, (uint16_t)small[i]);
        CHECK_NEAR(up, fraction * 65536.0, 0.5);
    }
}

TEST(stochastic_rounding_leaves_exact_values_and_never_makes_infinities)
{
    for (uint32_t half = 0; half < 65536; half++) {
        const float from_bf16 = zi_f32_from_bf16((uint16_t)half);
        const float from_f16 = zi_f32_from_f16((uint16_t)half);
        for (uint32_t random = 0; random < 65536; random += 21845) {
            CHECK_EQ(zi_bf16_from_f32_stochastic(from_bf16, random),
                     isnan(from_bf16) ? half | 0x40 : half);
            CHECK_EQ(zi_f16_from_f32_stochastic(from_f16, random),
                     isnan(from_f16) ? half | 0x200 : half);
        }
    }
    CHECK_EQ(zi_bf16_from_f32_stochastic(zi_f32_from_bits(0x7f7fffffu), 0xffff), 0x7f7f);
    CHECK_EQ(zi_bf16_from_f32_stochastic(zi_f32_from_bits(0xff7fffffu), 0xffff), 0xff7f);
    CHECK_EQ(zi_f16_from_f32_stochastic(65535.99f, 0xffff), 0x7bff);
    CHECK_EQ(zi_f16_from_f32_stochastic(-65505.0f, 0xffff), 0xfbff);
    CHECK_EQ(zi_f16_from_f32_stochastic(65536.0f, 0), 0x7c00);
    CHECK_EQ(zi_f16_from_f32_stochastic(-1e30f, 0), 0xfc00);
}

/* Signalling NaN apart, what is for the results of arithmetic is what is for any value. */
TEST(results_are_rounded_like_any_value)
{
    for (uint64_t bits = test_seed % 1009; bits <= UINT32_MAX; bits += 1009) {
        const float value = zi_f32_quiet(zi_f32_from_bits((uint32_t)bits));
        CHECK_EQ(zi_bf16_from_result(value), zi_bf16_from_f32(value));
        for (uint32_t random = 0; random < 65536; random += 13107) {
            CHECK_EQ(zi_bf16_from_result_stochastic(value, random),
                     zi_bf16_from_f32_stochastic(value, random));
        }
    }
}

TEST(only_signalling_nan_are_made_quiet)
{
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 65521) {
        const float value = zi_f32_from_bits((uint32_t)bits);
        CHECK_EQ(zi_f32_bits(zi_f32_quiet(value)), isnan(value) ? bits | 0x400000 : bits);
    }
    CHECK_EQ(zi_f32_bits(zi_f32_quiet(zi_f32_from_bits(0x7f800001u))), 0x7fc00001u);
    CHECK_EQ(zi_f32_bits(zi_f32_quiet(zi_f32_from_bits(0xff80ffffu))), 0xffc0ffffu);
    CHECK_EQ(zi_f32_bits(zi_f32_quiet((float)INFINITY)), 0x7f800000u);
}
