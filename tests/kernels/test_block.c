/* Codes of blocks, against arithmetic in double: scales, codes and values of every kind of block,
 * on every instruction set. */
#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "kernels/cpu/lanes.h"
#include "kernels/math/block.h"
#include "update_case.h"

static const zero_dtype kinds[] = {ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK};
#define KINDS 2

/* ---- the formats as arithmetic sees them ---- */

static double value_of_e4m3(uint32_t code)
{
    const int exponent = (int)(code >> 3) & 15;
    const int fraction = (int)code & 7;
    const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
    if (exponent == 15 && fraction == 7) {
        return (double)NAN;
    }
    return exponent == 0 ? sign * ldexp(fraction, -9) : sign * ldexp(8.0 + fraction, exponent - 10);
}

/* The least exponent with which a magnitude is at most 448. */
static int exponent_of_block(double most)
{
    int exponent = -127;
    while (most > ldexp(448.0, exponent)) {
        exponent++;
    }
    return exponent;
}

/* The nearest number with `digits` bits behind the first, which is worth 2^least at least. */
static double nearest(double value, int digits, int least)
{
    int exponent = 0;
    (void)frexp(value, &exponent);
    const double step = ldexp(1.0, (exponent - 1 < least ? least : exponent - 1) - digits);
    return nearbyint(value / step) * step;
}

static double int8_scale(double most)
{
    return most < 0x1p-119 ? 0.0 : fmin(nearest(most, 7, -126), 0x1.fep127);
}

/* By which codes are multiplied. */
static double factor_of(zero_dtype kind, uint32_t scale)
{
    if (kind == ZERO_DTYPE_MXFP8) {
        return scale == 255 ? (double)NAN : ldexp(1.0, (int)scale - 127);
    }
    return (double)zi_f32_from_bf16((uint16_t)scale) / 127.0;
}

static double value_of(zero_dtype kind, uint32_t code, uint32_t scale)
{
    const double steps = kind == ZERO_DTYPE_MXFP8 ? value_of_e4m3(code) : (double)(int8_t)code;
    return steps * factor_of(kind, scale);
}

/* ---- arrays in codes ---- */

typedef struct coded {
    zero_dtype kind;
    size_t count;
    uint8_t *codes; /* with a byte behind them, as the scales have */
    uint8_t *scales;
    size_t scales_bytes;
} coded;

#define GUARD 0xa5

static coded encoded(zero_dtype kind, const void *source, zero_dtype dtype, size_t count)
{
    coded made = {.kind = kind, .count = count};
    made.scales_bytes = (size_t)zi_block_scales_bytes(kind, count);
    made.codes = malloc(count + 1);
    made.scales = malloc(made.scales_bytes + 1);
    CHECK(made.codes != NULL && made.scales != NULL);
    memset(made.codes, GUARD, count + 1);
    memset(made.scales, GUARD, made.scales_bytes + 1);
    zi_cpu_encode_blocks(made.codes, made.scales, kind, source, dtype, count);
    CHECK(made.codes[count] == GUARD && made.scales[made.scales_bytes] == GUARD);
    return made;
}

static uint32_t scale_of(const coded *c, size_t block)
{
    uint16_t wide = 0;
    memcpy(&wide, c->scales + block * zi_block_scale_bytes(c->kind), zi_block_scale_bytes(c->kind));
    return wide;
}

static float *decoded(const coded *c)
{
    float *values = malloc((c->count + 1) * sizeof *values);
    CHECK(values != NULL);
    values[c->count] = 7.0f;
    zi_cpu_decode_blocks(values, ZERO_DTYPE_F32, c->codes, c->scales, c->kind, c->count);
    CHECK_SAME(values[c->count], 7.0f);
    return values;
}

static void free_coded(coded *c)
{
    free(c->codes);
    free(c->scales);
}

static void check_equal(const coded *left, const coded *right)
{
    CHECK_BYTES(left->codes, right->codes, left->count);
    CHECK_BYTES(left->scales, right->scales, left->scales_bytes);
}

/* ---- a block against the reference ---- */

static void check_mxfp8(const float *values, const uint8_t *codes, uint32_t scale,
                        const float *back, size_t count, double most)
{
    const int exponent = exponent_of_block(most);
    CHECK_EQ(scale, exponent + 127);
    for (size_t i = 0; i < count; i++) {
        const double steps = ldexp((double)values[i], -exponent);
        const double wanted = nearest(steps, 3, -6);
        CHECK_SAME(value_of_e4m3(codes[i]), wanted);
        CHECK_EQ(codes[i] >> 7, signbit(values[i]) != 0);
        CHECK_SAME(back[i], (float)ldexp(wanted, exponent));
        const double bound = fmax(fabs(steps) * 0x1p-4, 0x1p-10);
        CHECK(fabs(wanted - steps) <= bound);
    }
}

static void check_int8(const float *values, const uint8_t *codes, uint32_t scale, const float *back,
                       size_t count, double most)
{
    const double whole = int8_scale(most);
    CHECK_SAME(zi_f32_from_bf16((uint16_t)scale), whole);
    for (size_t i = 0; i < count; i++) {
        const double code = (double)(int8_t)codes[i];
        if (whole == 0.0) {
            CHECK(codes[i] == 0 && back[i] == 0.0f);
            continue;
        }
        CHECK(fabs(code) <= 127.0);
        CHECK(fabs(code - 127.0 * (double)values[i] / whole) <= 0.5 + 0x1p-16);
        CHECK_NEAR(back[i], code * whole / 127.0, fabs((double)back[i]) * 0x1p-22);
        CHECK_NEAR(back[i], values[i], whole / 254.0 * (1.0 + 0x1p-13));
        CHECK(fabs((double)values[i]) < most || fabs(code) == 127.0);
    }
}

static void check_block(zero_dtype kind, const float *values, const uint8_t *codes, uint32_t scale,
                        const float *back, size_t count)
{
    double most = 0.0;
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        finite = finite && isfinite(values[i]);
        most = fmax(most, fabs((double)values[i]));
    }
    if (!finite) {
        CHECK_EQ(scale, kind == ZERO_DTYPE_MXFP8 ? 0xff : 0x7fc0);
        for (size_t i = 0; i < count; i++) {
            CHECK(isnan(back[i]));
            CHECK_EQ(codes[i],
                     kind == ZERO_DTYPE_MXFP8 ? 0x7f | (signbit(values[i]) ? 0x80 : 0) : 0);
        }
        return;
    }
    if (kind == ZERO_DTYPE_MXFP8) {
        check_mxfp8(values, codes, scale, back, count, most);
    } else {
        check_int8(values, codes, scale, back, count, most);
    }
}

/* MXFP8's greatest code may be rounded down to half of 448: then half the scale serves as well,
 * with the same values. */
static void check_again(const coded *first, const float *back)
{
    coded again = encoded(first->kind, back, ZERO_DTYPE_F32, first->count);
    float *values = decoded(&again);
    const size_t elements = zi_block_elements(first->kind);
    for (size_t i = 0; i < first->count; i++) {
        const uint32_t scale = scale_of(first, i / elements);
        const uint32_t other = scale_of(&again, i / elements);
        if (other == 0xff && scale == 120 + 127 && first->kind == ZERO_DTYPE_MXFP8) {
            continue; /* it has 2^128, which is infinite */
        }
        CHECK(other == scale || (first->kind == ZERO_DTYPE_MXFP8 && other + 1 == scale));
        /* The signs of NaN may differ. */
        CHECK(scale != other || first->codes[i] == again.codes[i] || isnan(back[i]));
        CHECK_SAME(values[i], back[i]);
    }
    coded third = encoded(first->kind, values, ZERO_DTYPE_F32, first->count);
    CHECK_BYTES(third.scales, again.scales, again.scales_bytes);
    free_coded(&third);
    free_coded(&again);
    free(values);
}

/* Both kinds of codes of an array, and what becomes of them. */
static void check_kind(zero_dtype kind, const float *values, size_t count)
{
    const size_t elements = zi_block_elements(kind);
    coded made = encoded(kind, values, ZERO_DTYPE_F32, count);
    float *back = decoded(&made);
    for (size_t i = 0; i < count; i += elements) {
        const size_t block = count - i < elements ? count - i : elements;
        check_block(kind, values + i, made.codes + i, scale_of(&made, i / elements), back + i,
                    block);
    }
    check_again(&made, back);
    free_coded(&made);
    free(back);
}

TEST(every_bf16_value)
{
    enum { COUNT = 65536 };
    /* In order, of one magnitude in a block; and of any, where a stride mixes them. */
    const uint32_t strides[] = {1, 40503};
    for (int s = 0; s < 2; s++) {
        float *values = malloc(COUNT * sizeof *values);
        uint16_t *narrow = malloc(COUNT * sizeof *narrow);
        CHECK(values != NULL && narrow != NULL);
        for (uint32_t i = 0; i < COUNT; i++) {
            uint16_t bits = (uint16_t)(i * strides[s]);
            bits &= s == 1 && (bits & 0x7f80) == 0x7f80 ? 0xbfff : 0xffff; /* finite */
            narrow[i] = bits;
            values[i] = zi_f32_from_bf16(bits);
        }
        for (int k = 0; k < KINDS; k++) {
            check_kind(kinds[k], values, COUNT);
            coded wide = encoded(kinds[k], values, ZERO_DTYPE_F32, COUNT);
            coded same = encoded(kinds[k], narrow, ZERO_DTYPE_BF16, COUNT);
            check_equal(&wide, &same);
            free_coded(&wide);
            free_coded(&same);
        }
        free(values);
        free(narrow);
    }
}

/* ---- around every tie ---- */

/* Half way between codes i and i + 1 of a block, in its scale. */
static double tie_of(zero_dtype kind, uint32_t i, double most)
{
    if (kind == ZERO_DTYPE_MXFP8) {
        return ldexp((value_of_e4m3(i) + value_of_e4m3(i + 1)) / 2.0, exponent_of_block(most));
    }
    return int8_scale(most) * (i + 0.5) / 127.0;
}

/* Fills `values` with whole blocks: each has its greatest magnitude and what lies around ties. */
static size_t fill_ties(float *values, zero_dtype kind, float most)
{
    const size_t elements = zi_block_elements(kind);
    size_t count = 0;
    for (uint32_t i = 0; i < 126; i++) {
        const float tie = (float)tie_of(kind, i, (double)most);
        const float around[] = {nextafterf(tie, 0.0f), tie, nextafterf(tie, most)};
        for (int side = 0; side < 3; side++) {
            if (count % elements == 0) {
                values[count++] = most;
            }
            const float value = fminf(around[side], most);
            values[count] = (count / 3 + i) % 2 == 0 ? value : -value;
            count++;
        }
    }
    for (; count % elements != 0; count++) {
        values[count] = -0.0f;
    }
    return count;
}

TEST(every_exponent_of_a_block_and_every_tie)
{
    const uint32_t fractions[] = {0, 1, 0x5fffff, 0x600000, 0x600001, 0x7f7fff, 0x7f8000, 0x7fffff};
    float values[1024];
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        for (size_t f = 0; f < sizeof fractions / sizeof fractions[0]; f++) {
            const float most = zi_f32_from_bits(exponent << 23 | fractions[f]);
            for (int k = 0; k < KINDS; k++) {
                check_kind(kinds[k], values, fill_ties(values, kinds[k], most));
            }
        }
    }
}

TEST(every_code_with_every_scale)
{
    uint8_t codes[256];
    float values[256];
    for (uint32_t i = 0; i < 256; i++) {
        codes[i] = (uint8_t)i;
    }
    for (uint32_t scale = 0; scale < 256; scale++) {
        uint8_t scales[256 / ZI_MXFP8_BLOCK];
        memset(scales, (int)scale, sizeof scales);
        zi_cpu_decode_blocks(values, ZERO_DTYPE_F32, codes, scales, ZERO_DTYPE_MXFP8, 256);
        for (uint32_t i = 0; i < 256; i++) {
            CHECK_SAME(values[i], (float)value_of(ZERO_DTYPE_MXFP8, i, scale));
            CHECK(isnan(values[i]) || (signbit(values[i]) != 0) == (i >= 128));
        }
    }
    for (uint32_t scale = 0; scale < 65536; scale += 5) {
        const uint16_t scales[] = {(uint16_t)scale, (uint16_t)scale};
        zi_cpu_decode_blocks(values, ZERO_DTYPE_F32, codes, scales, ZERO_DTYPE_INT8_BLOCK, 256);
        for (uint32_t i = 0; i < 256; i++) {
            const double wanted = value_of(ZERO_DTYPE_INT8_BLOCK, i, scale);
            if (isnan(wanted) || isinf(wanted)) {
                CHECK_SAME(values[i], wanted);
            } else if (fabs(wanted) < 0x1.fffffep127) { /* of a sane code: -128 may overflow */
                CHECK_NEAR(values[i], wanted, fabs(wanted) * 0x1p-22 + 0x1p-142);
            }
        }
    }
}

TEST(one_infinity_or_nan_is_its_whole_blocks)
{
    enum { COUNT = 3 * ZI_INT8_BLOCK };
    const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u, 0x7f800001u};
    float values[COUNT];
    for (size_t at = ZI_INT8_BLOCK; at < 2 * ZI_INT8_BLOCK; at++) {
        zero_random_normal(test_seed, at, 0, COUNT, 0.0f, 1.0f, values);
        values[at] = zi_f32_from_bits(bad[at % 5]);
        for (int k = 0; k < KINDS; k++) {
            check_kind(kinds[k], values, COUNT);
            coded made = encoded(kinds[k], values, ZERO_DTYPE_F32, COUNT);
            float *back = decoded(&made);
            const size_t elements = zi_block_elements(kinds[k]);
            for (size_t i = 0; i < COUNT; i++) {
                CHECK_EQ(isnan(back[i]) != 0, i / elements == at / elements);
            }
            free_coded(&made);
            free(back);
        }
    }
}

TEST(blocks_of_zeros)
{
    float values[ZI_INT8_BLOCK];
    for (size_t i = 0; i < ZI_INT8_BLOCK; i++) {
        values[i] = i % 3 == 0 ? -0.0f : 0.0f;
    }
    for (int k = 0; k < KINDS; k++) {
        coded made = encoded(kinds[k], values, ZERO_DTYPE_F32, ZI_INT8_BLOCK);
        float *back = decoded(&made);
        for (size_t i = 0; i < ZI_INT8_BLOCK; i++) {
            CHECK_EQ(scale_of(&made, i / zi_block_elements(kinds[k])), 0);
            CHECK_EQ(made.codes[i], kinds[k] == ZERO_DTYPE_MXFP8 && i % 3 == 0 ? 0x80 : 0);
            CHECK_SAME(back[i], 0.0f);
            CHECK(signbit(back[i]) == 0 || kinds[k] == ZERO_DTYPE_MXFP8);
        }
        free_coded(&made);
        free(back);
    }
}

/* Of any bits but of what is not finite, magnitudes near one another in a block or not. */
static void draw(float *values, size_t count, uint64_t stream)
{
    for (size_t i = 0; i < count; i++) {
        const zi_philox_words words = zi_philox(test_seed, i, stream);
        const uint32_t near = 60 + (uint32_t)(i / 96 * 7) % 180 - (words.word[1] % 24);
        const uint32_t any = words.word[1] % 255;
        const uint32_t exponent = i / 960 % 2 == 0 ? near : any;
        values[i] = zi_f32_from_bits((words.word[0] & 0x807fffffu) | exponent << 23);
    }
}

TEST(tails_of_every_length)
{
    enum { COUNT = 3 * ZI_INT8_BLOCK };
    float values[COUNT];
    draw(values, COUNT, 40);
    for (size_t count = 0; count <= COUNT; count++) {
        for (int k = 0; k < KINDS; k++) {
            check_kind(kinds[k], values, count);
        }
    }
}

TEST(random_values)
{
    enum { COUNT = 200003 };
    float *values = malloc(COUNT * sizeof *values);
    CHECK(values != NULL);
    draw(values, COUNT, 41);
    for (int k = 0; k < KINDS; k++) {
        check_kind(kinds[k], values, COUNT);
    }
    free(values);
}

/* ---- types and instruction sets ---- */

static const zero_dtype types[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};

/* Codes of a source, and what is decoded to its type, of which the type's rounding is known. */
static void check_type(zero_dtype kind, zero_dtype type, const void *source, size_t count,
                       void *back)
{
    float *wide = malloc(count * sizeof *wide);
    CHECK(wide != NULL);
    for (size_t i = 0; i < count; i++) {
        wide[i] = case_get(source, type, i);
    }
    coded narrow = encoded(kind, source, type, count);
    coded same = encoded(kind, wide, ZERO_DTYPE_F32, count);
    check_equal(&narrow, &same);
    float *values = decoded(&narrow);
    void *rounded = malloc(count * sizeof *wide);
    CHECK(rounded != NULL);
    for (size_t i = 0; i < count; i++) {
        case_put(rounded, type, i, values[i]);
    }
    zi_cpu_decode_blocks(back, type, narrow.codes, narrow.scales, kind, count);
    case_same(back, rounded, type, count);
    free_coded(&narrow);
    free_coded(&same);
    free(wide);
    free(values);
    free(rounded);
}

/* So many that stores are non-temporal where the arrays are aligned. */
#define LONG_COUNT (((size_t)1 << 18) + 77)

TEST(every_type_on_every_instruction_set_has_the_same_bits)
{
    const size_t room = LONG_COUNT * sizeof(float) + 128;
    unsigned char *source = aligned_alloc(64, room / 64 * 64 + 64);
    unsigned char *back = aligned_alloc(64, room / 64 * 64 + 64);
    uint8_t *codes = aligned_alloc(64, LONG_COUNT / 64 * 64 + 128);
    CHECK(source != NULL && back != NULL && codes != NULL);
    for (uint32_t isa = 0; isa < zi_cpu_lanes_count(); isa++) {
        for (int t = 0; t < 3; t++) {
            case_fill(source, types[t], LONG_COUNT, 42, true);
            for (int k = 0; k < KINDS; k++) {
                zi_cpu_lanes_select(0);
                coded first = encoded(kinds[k], source, types[t], LONG_COUNT);
                zi_cpu_lanes_select(isa);
                check_type(kinds[k], types[t], source, 5000, back);
                check_type(kinds[k], types[t], source, LONG_COUNT, back);
                uint8_t *scales = malloc(first.scales_bytes);
                CHECK(scales != NULL);
                for (size_t shift = 0; shift < 2; shift++) {
                    zi_cpu_encode_blocks(codes + shift, scales, kinds[k], source, types[t],
                                         LONG_COUNT);
                    CHECK_BYTES(codes + shift, first.codes, LONG_COUNT);
                    CHECK_BYTES(scales, first.scales, first.scales_bytes);
                }
                const size_t width = zero_dtype_bytes(types[t]);
                zi_cpu_decode_blocks(back + width, types[t], first.codes, first.scales, kinds[k],
                                     LONG_COUNT);
                zi_cpu_decode_blocks(source, types[t], first.codes, first.scales, kinds[k],
                                     LONG_COUNT);
                case_same(back + width, source, types[t], LONG_COUNT);
                case_fill(source, types[t], LONG_COUNT, 42, true);
                free(scales);
                free_coded(&first);
            }
        }
    }
    free(source);
    free(back);
    free(codes);
}

TEST(planes_are_padded_nowhere)
{
    CHECK_EQ(zi_block_scales_bytes(ZERO_DTYPE_MXFP8, 0), 0);
    CHECK_EQ(zi_block_scales_bytes(ZERO_DTYPE_MXFP8, 33), 2);
    CHECK_EQ(zi_block_scales_bytes(ZERO_DTYPE_INT8_BLOCK, 128), 2);
    CHECK_EQ(zi_block_scales_bytes(ZERO_DTYPE_INT8_BLOCK, 129), 4);
    CHECK_EQ(zi_block_scales_bytes(ZERO_DTYPE_MXFP8, UINT64_C(1) << 46), UINT64_C(1) << 41);
    for (int k = 0; k < KINDS; k++) {
        CHECK(zi_dtype_is_block(kinds[k]));
        CHECK_EQ(zero_dtype_bytes(kinds[k]), 1);
    }
    CHECK(!zi_dtype_is_block(ZERO_DTYPE_I8) && !zi_dtype_is_block(ZERO_DTYPE_BF16));
    CHECK(strcmp(zero_dtype_name(ZERO_DTYPE_MXFP8), "mxfp8") == 0);
    CHECK(strcmp(zero_dtype_name(ZERO_DTYPE_INT8_BLOCK), "int8") == 0);
}

/* A value that is alone in its block, as fp16 has it again. */
static float through_f16(float value, zero_dtype dtype)
{
    unsigned char code[1];
    unsigned char scale[2];
    uint16_t half = 0;
    zi_cpu_encode_blocks(code, scale, dtype, &value, ZERO_DTYPE_F32, 1);
    zi_cpu_decode_blocks(&half, ZERO_DTYPE_F16, code, scale, dtype, 1);
    return zi_f32_from_f16(half);
}

/* They are rounded to 65536. */
TEST(the_greatest_of_f16_become_infinite)
{
    CHECK_SAME(through_f16(63456.0f, ZERO_DTYPE_MXFP8), 61440.0f);
    CHECK_SAME(through_f16(63488.0f, ZERO_DTYPE_MXFP8), (float)INFINITY);
    CHECK_SAME(through_f16(65376.0f, ZERO_DTYPE_INT8_BLOCK), 65280.0f);
    CHECK_SAME(through_f16(65408.0f, ZERO_DTYPE_INT8_BLOCK), (float)INFINITY);
}
