/* Remainders of masters and 8-bit codes of moments: each value and its bits. */
#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "harness.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/math/code.h"
#include "kernels/math/remainder.h"

/* A stride that meets every pattern of lower bits soon, odd so that it meets all in the end. */
#define STRIDE 40503u

TEST(remainder16_is_exact)
{
    uint64_t ties = 0;
    for (uint64_t at = 0; at <= UINT32_MAX; at += STRIDE) {
        const float value = zi_f32_from_bits((uint32_t)at);
        const zi_split split = zi_split16(value);
        if (value != value) {
            CHECK(isnan(zi_f32_from_bf16((uint16_t)split.param)));
            CHECK(isnan(zi_join16(split.param, split.rest)));
            continue;
        }
        CHECK_EQ(zi_f32_bits(zi_join16(split.param, split.rest)), (uint32_t)at);
        const bool tie = (at & 0xffff) == 0x8000;
        CHECK(split.param == zi_bf16_from_f32(value) || tie);
        ties += tie;
    }
    CHECK(ties > 0);
    /* Of two that are equally near, the one away from zero. */
    CHECK_EQ(zi_split16(zi_f32_from_bits(0x3f808000)).param, 0x3f81);
    CHECK_EQ(zi_split16(zi_f32_from_bits(0xbf808000)).param, 0xbf81);
    CHECK_EQ(zi_split16(zi_f32_from_bits(0x7f7fffff)).param, 0x7f80);
    CHECK_EQ(zi_f32_bits(zi_join16(0x7f80, 0xffff)), 0x7f7fffff);
}

TEST(remainder8_is_a_float_of_24_bits)
{
    for (uint64_t at = 0; at <= UINT32_MAX; at += STRIDE) {
        const float value = zi_f32_from_bits((uint32_t)at);
        const zi_split split = zi_split8(value, ZI_SPLIT_NEAREST);
        const float back = zi_join8(split.param, split.rest);
        if (value != value) {
            CHECK(isnan(back));
            continue;
        }
        /* Exact where the lower 8 bits are zeros, else one of the two next to it. */
        const uint32_t down = (uint32_t)at & ~UINT32_C(0xff);
        const uint32_t bits = zi_f32_bits(back);
        CHECK(bits == down || (bits == down + 0x100 && (at & 0xff) >= 0x80));
        CHECK_EQ(zi_f32_bits(zi_join8(split.param, split.rest)) & 0xff, 0);
        const zi_split again = zi_split8(back, 0xffff);
        CHECK(again.param == split.param && again.rest == split.rest);
    }
    /* Goes up for as many of the random numbers as the part that does not fit says. */
    uint32_t ups = 0;
    for (uint32_t random = 0; random < 65536; random++) {
        const zi_split split = zi_split8(zi_f32_from_bits(0x3f800030), random);
        ups += zi_f32_bits(zi_join8(split.param, split.rest)) == 0x3f800100;
    }
    CHECK_EQ(ups, 0x30 * 256);
    /* The largest finite values stay finite. */
    const zi_split most = zi_split8(ZI_F32_FINITE_MAX, 0xffff);
    CHECK(isfinite(zi_join8(most.param, most.rest)));
}

TEST(a_parameter_that_others_set_to_zero_is_zero)
{
    for (uint32_t rest = 0; rest < 65536; rest++) {
        CHECK(fabsf(zi_join16(0, rest)) < 0x1p-126f);
        CHECK(fabsf(zi_join16(0x8000, rest)) < 0x1p-126f);
        CHECK(fabsf(zi_join8(0, rest)) < 0x1p-126f);
    }
}

static const zero_dtype kinds[] = {ZERO_DTYPE_I8, ZERO_DTYPE_COMPANDED8, ZERO_DTYPE_U8_ROOT};

TEST(scales_are_rounded_up)
{
    for (uint64_t at = 0; at < 0x7f800000u; at += STRIDE) {
        const float most = zi_f32_from_bits((uint32_t)at);
        const float scale = zi_f32_from_bf16(zi_code_scale((uint32_t)at));
        CHECK(scale >= most || at > 0x7f7f0000u);
        CHECK(scale <= most * (1.0f + 0x1p-7f) || at < 0x00800000u);
    }
    CHECK_EQ(zi_code_scale(0), 0);
    CHECK_EQ(zi_code_scale(0x7f800000), 0x7f7f);
    CHECK_EQ(zi_code_scale(0x7fc00000), 0x7f7f);
}

static float coded(zero_dtype kind, float value, uint16_t scale, uint32_t random)
{
    const uint8_t code =
        zi_code_of(kind, value, zi_code_measure(kind, value), zi_code_gain(kind, scale), random);
    return zi_code_value(kind, code, zi_code_step(kind, scale));
}

/* The step between codes at a value, in units of the block's greatest. */
static float step_at(zero_dtype kind, float value)
{
    if (kind == ZERO_DTYPE_U8_ROOT) {
        return (2.0f * sqrtf(value) + 1.0f / 255.0f) / 255.0f;
    }
    if (kind == ZERO_DTYPE_I8) {
        return 1.0f / 127.0f;
    }
    /* 32 steps in each power of two of 2 + 29.5 value. */
    return ldexpf(1.0f / 32.0f, ilogbf(2.0f + 29.5f * value)) / 29.5f;
}

TEST(codes_are_as_near_as_their_steps)
{
    for (uint32_t k = 0; k < 3; k++) {
        /* The gain of magnitudes ends at 2^-121: codes of what is smaller are too small. */
        for (uint32_t e = kinds[k] == ZERO_DTYPE_U8_ROOT ? 0 : 8; e < 254; e++) {
            const float most = ldexpf(1.37f, (int)e - 126);
            const uint16_t scale = zi_code_scale(zi_f32_bits(most));
            const float whole = zi_f32_from_bf16(scale); /* its step may be subnormal: 0x1p-133 */
            for (uint32_t i = 0; i <= 1000; i++) {
                const float value = most * ((float)i / 1000.0f);
                const float bound = whole * step_at(kinds[k], value / whole);
                const float back = coded(kinds[k], value, scale, zi_code_nearest(kinds[k]));
                const bool floored = kinds[k] == ZERO_DTYPE_U8_ROOT;
                CHECK(fabsf(back - value) <= bound * (floored ? 1.01f : 0.51f) + 0x1p-133f);
                CHECK(kinds[k] == ZERO_DTYPE_U8_ROOT ||
                      coded(kinds[k], -value, scale, zi_code_nearest(kinds[k])) == -back);
            }
        }
    }
}

TEST(codes_are_right_on_average)
{
    for (uint32_t k = 0; k < 3; k++) {
        const uint16_t scale = zi_code_scale(zi_f32_bits(1.0f));
        const float value = 0.3217f;
        const float gain = zi_code_gain(kinds[k], scale);
        const float measure = zi_code_measure(kinds[k], value);
        const uint32_t end = 2 * zi_code_nearest(kinds[k]);
        double sum = 0;
        for (uint32_t random = 0; random < end; random++) {
            const uint8_t code = zi_code_of(kinds[k], value, measure, gain, random);
            /* Of roots it is the code that is right, not its square. */
            sum += kinds[k] == ZERO_DTYPE_U8_ROOT ? (double)code
                                                  : (double)zi_code_steps(kinds[k], code);
        }
        CHECK(fabs(sum / end - (double)(measure * gain)) < 1e-3);
    }
}

TEST(a_second_moment_that_is_not_zero_stays_so)
{
    for (uint32_t bits = 1; bits < 0x7f800000u; bits += 99991) {
        const float value = zi_f32_from_bits(bits);
        const uint16_t own = zi_code_scale(bits);
        CHECK(coded(ZERO_DTYPE_U8_ROOT, value, own, 0) > 0.0f);
        CHECK(coded(ZERO_DTYPE_U8_ROOT, value, ZI_BF16_FINITE_MAX, 0) > 0.0f);
    }
}

TEST(blocks_of_zeros_and_what_is_not_finite)
{
    for (uint32_t k = 0; k < 3; k++) {
        const uint32_t most = zi_code_random(kinds[k], UINT32_MAX);
        CHECK_EQ(zi_f32_bits(coded(kinds[k], 0.0f, 0, most)), 0);
        CHECK_EQ(zi_f32_bits(coded(kinds[k], 0.0f, ZI_BF16_FINITE_MAX, most)), 0);
        CHECK(isfinite(coded(kinds[k], INFINITY, ZI_BF16_FINITE_MAX, most)));
        CHECK(isfinite(coded(kinds[k], NAN, 0x3f80, most)));
        CHECK(isfinite(coded(kinds[k], zi_f32_from_bits(UINT32_MAX), 0x3f80, most)));
        /* The least magnitude there is, alone in its block. */
        CHECK(coded(kinds[k], 0x1p-149f, zi_code_scale(1), zi_code_nearest(kinds[k])) <= 0x1p-133f);
    }
}

#define ARRAY_MOST 200
static const size_t array_counts[] = {0, 1, 31, 32, 33, 64, 100, ARRAY_MOST};

/* Fp32 of any bits, infinities and NaN among them. */
static void draw_values(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const zi_philox_words words = zi_philox(test_seed, i, 7);
        values[i] = i % 11 == 5 ? 0.0f : zi_f32_from_bits(words.word[0]);
    }
}

TEST(arrays_of_masters_are_split_and_joined_as_their_elements)
{
    float values[ARRAY_MOST];
    draw_values(values, ARRAY_MOST);
    for (size_t k = 0; k < sizeof array_counts / sizeof array_counts[0]; k++) {
        const size_t count = array_counts[k];
        for (size_t bytes = 1; bytes <= 2; bytes++) {
            const zero_dtype dtype = bytes == 1 ? ZERO_DTYPE_REMAINDER8 : ZERO_DTYPE_REMAINDER16;
            uint16_t param[ARRAY_MOST + 1] = {0};
            uint8_t rest[2 * ARRAY_MOST + 2] = {0};
            float back[ARRAY_MOST + 1] = {0};
            zi_cpu_split(param, rest, dtype, values, count);
            zi_cpu_join(back, param, rest, dtype, count);
            for (size_t i = 0; i < count; i++) {
                const zi_split split =
                    bytes == 1 ? zi_split8(values[i], ZI_SPLIT_NEAREST) : zi_split16(values[i]);
                uint16_t own = 0;
                memcpy(&own, rest + i * bytes, bytes);
                CHECK_EQ(param[i], split.param);
                CHECK_EQ(own, split.rest);
                const float joined = bytes == 1 ? zi_join8(split.param, split.rest)
                                                : zi_join16(split.param, split.rest);
                CHECK_EQ(zi_f32_bits(back[i]), zi_f32_bits(joined));
            }
            CHECK(param[count] == 0 && rest[count * bytes] == 0 && back[count] == 0.0f);
        }
    }
}

/* `count` codes of one block and its scale, against the functions of one value. */
static void check_block(zero_dtype kind, const float *values, const uint8_t *codes, uint16_t scale,
                        const float *back, size_t count)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t own = zi_code_magnitude(values[i]);
        most = own > most ? own : most;
    }
    CHECK_EQ(scale, zi_code_scale(most));
    for (size_t i = 0; i < count; i++) {
        const float measure = zi_code_measure(kind, values[i]);
        CHECK_EQ(codes[i], zi_code_of(kind, values[i], measure, zi_code_gain(kind, scale),
                                      zi_code_nearest(kind)));
        CHECK_SAME(back[i], zi_code_value(kind, codes[i], zi_code_step(kind, scale)));
    }
}

TEST(arrays_of_moments_are_encoded_by_blocks)
{
    float values[ARRAY_MOST];
    for (size_t t = 0; t < 3; t++) {
        draw_values(values, ARRAY_MOST);
        for (size_t i = 0; i < ARRAY_MOST; i++) {
            values[i] = kinds[t] == ZERO_DTYPE_U8_ROOT ? fabsf(values[i]) : values[i];
            /* One block is all zeros. */
            values[i] = i / ZERO_CODE_BLOCK == 1 ? 0.0f : values[i];
        }
        for (size_t k = 0; k < sizeof array_counts / sizeof array_counts[0]; k++) {
            const size_t count = array_counts[k];
            const size_t blocks = (count + ZERO_CODE_BLOCK - 1) / ZERO_CODE_BLOCK;
            uint8_t codes[ARRAY_MOST + 1];
            uint16_t scales[ARRAY_MOST / ZERO_CODE_BLOCK + 2];
            float back[ARRAY_MOST + 1] = {0};
            memset(codes, 0xa5, sizeof codes);
            memset(scales, 0xa5, sizeof scales);
            zi_cpu_encode(codes, scales, kinds[t], values, count);
            CHECK(codes[count] == 0xa5 && scales[blocks] == 0xa5a5);
            zi_cpu_decode(back, codes, scales, kinds[t], count);
            CHECK_SAME(back[count], 0.0f);
            for (size_t b = 0; b < blocks; b++) {
                const size_t i = b * ZERO_CODE_BLOCK;
                const size_t left = count - i;
                check_block(kinds[t], values + i, codes + i, scales[b], back + i,
                            left < ZERO_CODE_BLOCK ? left : ZERO_CODE_BLOCK);
            }
        }
    }
}
