/* Folds of packed granules, against arithmetic in double: scales, codes and values of every kind of
 * block, on every instruction set. */
#include <math.h>
#include <string.h>

#include "core/codec.h"
#include "kernels/math/packed.h"
#include "update_case.h"

static const zero_dtype numbers[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
static const zero_dtype kinds[] = {ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK};
#define NUMBERS 3
#define KINDS 2

enum { GRANULE = 256, GRANULES = 24, COUNT = GRANULES * GRANULE, SOURCES = 5 };

/* ---- the formats as arithmetic sees them ---- */

static double greatest_code(zero_dtype kind)
{
    return kind == ZERO_DTYPE_INT8_BLOCK ? 127.0 : 7.0;
}

static int random_bits(zero_dtype kind)
{
    return kind == ZERO_DTYPE_INT8_BLOCK ? 16 : 20;
}

/* The least bfloat16 that a magnitude is not beyond. */
static double scale_above(double most)
{
    int exponent = 0;
    if (!isfinite(most)) {
        return (double)NAN;
    }
    (void)frexp(most, &exponent);
    const double step = ldexp(1.0, exponent - 8);
    return most < 0x1p-119 ? 0.0 : fmin(ceil(most / step) * step, 0x1.fep127);
}

static uint16_t bits_of_scale(double scale)
{
    return isnan(scale) ? 0x7fc0 : (uint16_t)(zi_f32_bits((float)scale) >> 16);
}

static uint32_t word_of(uint64_t key, uint64_t index, float value)
{
    const zi_philox_words words = zi_philox(key, index / 4096, 0);
    const uint32_t at = words.word[0] + (uint32_t)(index % 4096) * (words.word[1] | 1);
    return zi_rounding_mix(at ^ zi_f32_bits(value));
}

/* Of a block that is not NaN. */
static int code_of(zero_dtype kind, float value, double scale, uint32_t word)
{
    const double whole = ldexp(1.0, random_bits(kind));
    const double gain = scale == 0.0 ? 0.0 : (double)(float)(greatest_code(kind) / scale);
    const double units = nearbyint(fabs((double)value) * gain * whole);
    const double most = greatest_code(kind) * whole;
    const double random = fmod((double)word, whole);
    const int code = (int)floor((fmin(units, most) + random) / whole);
    return value < 0.0f ? -code : code;
}

/* The transform of 32 values, in place. */
static void transform(float *values)
{
    for (int h = 1; h < 32; h *= 2) {
        for (int i = 0; i < 32; i++) {
            if ((i & h) == 0) {
                const float a = values[i];
                const float b = values[i + h];
                values[i] = a + b;
                values[i + h] = a - b;
            }
        }
    }
}

static void transform_granule(float *values)
{
    for (int i = 0; i < GRANULE; i += 32) {
        transform(values + i);
    }
}

static uint16_t scale_at(const uint8_t *granule, int block)
{
    uint16_t scale = 0;
    memcpy(&scale, granule + 2 * block, sizeof scale);
    return scale;
}

static int code_at(zero_dtype kind, const uint8_t *granule, int i)
{
    if (kind == ZERO_DTYPE_INT8_BLOCK) {
        return (int8_t)granule[4 + i];
    }
    const int half = granule[4 + i / 2] >> (i % 2 == 0 ? 0 : 4) & 15;
    return half < 8 ? half : half - 16;
}

static void put_code(uint8_t *granule, zero_dtype kind, int i, int code)
{
    if (kind == ZERO_DTYPE_INT8_BLOCK) {
        granule[4 + i] = (uint8_t)code;
        return;
    }
    const int shift = i % 2 == 0 ? 0 : 4;
    uint8_t *byte = &granule[4 + i / 2];
    *byte = (uint8_t)((*byte & ~(15 << shift)) | (code & 15) << shift);
}

static double block_scale(const float *values)
{
    double most = 0.0;
    for (int i = 0; i < 128; i++) {
        most = isfinite(values[i]) ? fmax(most, fabs((double)values[i])) : (double)INFINITY;
        if (!isfinite(most)) {
            break;
        }
    }
    return scale_above(most);
}

static void plain_encode(uint8_t *granule, zero_dtype kind, const float *sums, uint64_t key,
                         uint64_t first)
{
    float values[GRANULE];
    memcpy(values, sums, sizeof values);
    if (kind == ZERO_DTYPE_INT4_BLOCK) {
        transform_granule(values);
    }
    for (int block = 0; block < 2; block++) {
        const double scale = block_scale(values + 128 * block);
        const uint16_t bits = bits_of_scale(scale);
        memcpy(granule + 2 * block, &bits, sizeof bits);
        for (int i = 128 * block; i < 128 * (block + 1) && !isnan(scale); i++) {
            const uint32_t word = word_of(key, first + (uint64_t)i, values[i]);
            put_code(granule, kind, i, code_of(kind, values[i], scale, word));
        }
    }
}

static float plain_value(zero_dtype kind, const uint8_t *granule, int i)
{
    const double scale = (double)zi_f32_from_bf16(scale_at(granule, i / 128));
    const double step = (double)(float)(scale / greatest_code(kind));
    return (float)(code_at(kind, granule, i) * step);
}

static void *place(const void *base, zero_dtype dtype, size_t i)
{
    return (uint8_t *)(uintptr_t)base + zi_packed_bytes(dtype, i);
}

/* The meaning of zi_fold; dst holds the addend and receives the result. */
static void plain_fold(const zi_fold *fold, void *dst)
{
    for (size_t at = 0; at < fold->count; at += GRANULE) {
        float sums[GRANULE] = {0};
        for (int i = 0; i < GRANULE; i++) {
            for (uint32_t k = 0; k < fold->source_count; k++) {
                const void *source = fold->sources[k] == NULL
                                         ? NULL
                                         : place(fold->sources[k], fold->source_dtype, at);
                sums[i] += source == NULL ? 0.0f
                           : zi_dtype_is_packed(fold->source_dtype)
                               ? plain_value(fold->source_dtype, source, i)
                               : case_get(source, fold->source_dtype, (size_t)i);
            }
        }
        if (fold->source_dtype == ZERO_DTYPE_INT4_BLOCK) {
            transform_granule(sums);
        }
        for (int i = 0; i < GRANULE; i++) {
            sums[i] *= fold->source_dtype == ZERO_DTYPE_INT4_BLOCK ? 0x1p-5f : 1.0f;
            sums[i] *= fold->scale == 0.0f ? 1.0f : fold->scale;
        }
        if (zi_dtype_is_packed(fold->dst_dtype)) {
            plain_encode(place(dst, fold->dst_dtype, at), fold->dst_dtype, sums, fold->key,
                         fold->first + at);
            continue;
        }
        for (size_t i = 0; i < GRANULE; i++) {
            const float before = fold->accumulate ? case_get(dst, fold->dst_dtype, at + i) : 0.0f;
            case_put(dst, fold->dst_dtype, at + i, fold->accumulate ? before + sums[i] : sums[i]);
        }
    }
}

/* ---- arrays ---- */

/* Room for an array of any type, with a margin that must survive. */
typedef struct guarded {
    _Alignas(64) uint8_t bytes[(COUNT + GRANULE) * 4];
} guarded;

/* Each granule is of another kind: normal values; zeros of both signs; not finite in one block or
 * the other; subnormal; around 2^-119, below which blocks are zeros; of the greatest magnitudes; of
 * all magnitudes. */
static float wild_value(size_t i, float normal, uint64_t stream)
{
    const zi_philox_words words = zi_philox(test_seed, i, stream);
    const float sign = words.word[1] % 2 == 0 ? 1.0f : -1.0f;
    switch (i / GRANULE % 8) {
    case 1:
        return sign * 0.0f;
    case 2:
        return i % GRANULE == 77 ? (float)NAN : normal;
    case 3:
        return i % GRANULE == 200 ? sign * (float)INFINITY : normal;
    case 4:
        return sign * zi_f32_from_bits(words.word[0] % 0x900000u);
    case 5:
        return sign *
               zi_f32_from_bits(0x03c00000u + words.word[0] % (i % 2 == 0 ? 0x400000u : 0x100000u));
    case 6:
        return sign *
               zi_f32_from_bits(i % 7 == 0 ? 0x7f7fffffu : 0x7f000000u + words.word[0] % 0x7fffffu);
    case 7:
        return zi_f32_from_bits((words.word[0] & 0x807fffffu) | words.word[1] % 255 << 23);
    default:
        return normal;
    }
}

static void fill_numbers(guarded *array, zero_dtype dtype, uint64_t stream)
{
    static float normal[COUNT];
    memset(array, 0x5a, sizeof *array);
    zero_random_normal(test_seed, stream, 0, COUNT, 0.0f, 0.02f, normal);
    for (size_t i = 0; i < COUNT; i++) {
        case_put(array, dtype, i, wild_value(i, normal[i], stream));
    }
}

static zi_fold packed_fold(void *dst, zero_dtype to, const void *const *sources, zero_dtype from,
                           uint32_t source_count, size_t count)
{
    zi_fold fold = case_fold(dst, to, sources, from, source_count, count);
    fold.key = test_seed + 17;
    fold.first = 5 * (uint64_t)GRANULE;
    return fold;
}

/* Of any type; what is packed was made by the reference. */
static void fill_array(guarded *array, zero_dtype dtype, uint64_t stream)
{
    static guarded values;
    if (!zi_dtype_is_packed(dtype)) {
        fill_numbers(array, dtype, stream);
        return;
    }
    fill_numbers(&values, ZERO_DTYPE_F32, stream);
    const void *const sources[] = {&values};
    zi_fold fold = packed_fold(NULL, dtype, sources, ZERO_DTYPE_F32, 1, COUNT);
    fold.key = stream;
    memset(array, 0, sizeof *array);
    plain_fold(&fold, array);
}

/* ---- folds against the reference ---- */

/* The same scales, and codes but where they have no meaning; with nothing behind them. */
static void check_codes(zero_dtype kind, const guarded *got, const guarded *expected)
{
    const size_t bytes = zi_packed_granule_bytes(kind);
    for (size_t g = 0; g < GRANULES; g++) {
        const uint8_t *left = got->bytes + g * bytes;
        const uint8_t *right = expected->bytes + g * bytes;
        CHECK_BYTES(left, right, 4);
        for (int i = 0; i < GRANULE; i++) {
            CHECK(scale_at(left, i / 128) == 0x7fc0 ||
                  code_at(kind, left, i) == code_at(kind, right, i));
        }
    }
    const size_t end = GRANULES * bytes;
    CHECK_BYTES(got->bytes + end, expected->bytes + end, sizeof got->bytes - end);
}

static void check_result(const zi_fold *fold, const guarded *got, const guarded *expected)
{
    if (zi_dtype_is_packed(fold->dst_dtype)) {
        check_codes(fold->dst_dtype, got, expected);
    } else {
        case_same(got, expected, fold->dst_dtype, sizeof *got / zero_dtype_bytes(fold->dst_dtype));
    }
}

/* A part of a fold as a fold of its own. */
static void fold_part(const zi_fold *fold, uint32_t set, size_t begin, size_t end)
{
    const void *sources[SOURCES];
    zi_fold part = *fold;
    part.dst = place(fold->dst, fold->dst_dtype, begin);
    part.sources = sources;
    part.count = end - begin;
    part.first = fold->first + begin;
    for (uint32_t k = 0; k < fold->source_count; k++) {
        sources[k] =
            fold->sources[k] == NULL ? NULL : place(fold->sources[k], fold->source_dtype, begin);
    }
    zi_cpu_lanes_at(set)->fold(&part, 0, part.count, NULL);
}

/* Whole, in ranges, with squares where there are any, and cut into arrays: the same bits. */
static void check_ways(zi_fold fold, uint32_t set, const guarded *before, const guarded *expected)
{
    static guarded got;
    zi_norm_sum sum = {{0}, 0, 0};
    zi_norm_sum squares = {{0}, 0, 0};
    const bool squared = !zi_dtype_is_packed(fold.dst_dtype);
    const size_t cuts[] = {0, GRANULE, 8 * GRANULE, 15 * GRANULE, COUNT};
    fold.dst = &got;
    got = *before;
    for (size_t c = 4; c-- > 0;) {
        zi_cpu_lanes_at(set)->fold(&fold, cuts[c], cuts[c + 1], squared ? &sum : NULL);
    }
    check_result(&fold, &got, expected);
    if (squared) {
        zi_cpu_square_sum(&got, fold.dst_dtype, COUNT, &squares);
        CHECK_BYTES(&sum, &squares, sizeof sum);
    }
    got = *before;
    for (size_t c = 0; c < 4; c++) {
        fold_part(&fold, set, cuts[c], cuts[c + 1]);
    }
    check_result(&fold, &got, expected);
}

static void check_packed_fold(zi_fold fold, const guarded *before)
{
    static guarded expected;
    static guarded first;
    static guarded got;
    expected = *before;
    plain_fold(&fold, &expected);
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        got = *before;
        fold.dst = &got;
        zi_cpu_lanes_at(set)->fold(&fold, 0, COUNT, NULL);
        check_result(&fold, &got, &expected);
        first = set == 0 ? got : first;
        if (zi_dtype_is_packed(fold.dst_dtype)) {
            CHECK_BYTES(&got, &first, sizeof got); /* codes without a meaning too */
        }
        check_ways(fold, set, before, &expected);
    }
}

/* No source, one, and several with one that is absent. */
static void check_pair(zero_dtype to, zero_dtype from)
{
    static guarded sources[SOURCES];
    static guarded before;
    const void *list[SOURCES];
    for (uint32_t k = 0; k < SOURCES; k++) {
        fill_array(&sources[k], from, k + 1);
        list[k] = k == 1 ? NULL : &sources[k];
    }
    fill_array(&before, zi_dtype_is_packed(to) ? ZERO_DTYPE_F32 : to, 9);
    zi_fold fold = packed_fold(NULL, to, list, from, 0, COUNT);
    const uint32_t counts[] = {0, 1, 3, SOURCES};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        fold.source_count = counts[c];
        fold.scale = c % 2 == 0 ? 0.125f : 0.0f;
        fold.accumulate = 0;
        check_packed_fold(fold, &before);
        fold.accumulate = 1;
        if (!zi_dtype_is_packed(to)) {
            check_packed_fold(fold, &before);
        }
    }
}

TEST(numbers_to_granules)
{
    for (size_t i = 0; i < KINDS * NUMBERS; i++) {
        check_pair(kinds[i % KINDS], numbers[i / KINDS]);
    }
}

TEST(granules_to_granules)
{
    check_pair(ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT8_BLOCK);
    check_pair(ZERO_DTYPE_INT4_BLOCK, ZERO_DTYPE_INT8_BLOCK);
}

TEST(granules_to_numbers)
{
    for (size_t i = 0; i < KINDS * NUMBERS; i++) {
        check_pair(numbers[i / KINDS], kinds[i % KINDS]);
    }
}

/* In order, of one magnitude in a block; and of any, where a stride mixes them, all finite. */
TEST(every_bf16_value_becomes_a_code)
{
    enum { ALL = 65536 };
    static uint16_t values[ALL];
    static uint8_t got[ALL / GRANULE * 260];
    static uint8_t expected[ALL / GRANULE * 260];
    const void *const sources[] = {values};
    for (uint32_t form = 0; form < 2 * KINDS * zi_cpu_lanes_count(); form++) {
        const zero_dtype kind = kinds[form / 2 % KINDS];
        for (uint32_t i = 0; i < ALL; i++) {
            const uint16_t bits = (uint16_t)(form % 2 == 0 ? i : i * 40503u);
            const bool mixed = form % 2 == 1 && (bits & 0x7f80) == 0x7f80;
            values[i] = (uint16_t)(bits & (mixed ? 0xbfff : 0xffff));
        }
        zi_fold fold = packed_fold(got, kind, sources, ZERO_DTYPE_BF16, 1, ALL);
        memset(got, 0, sizeof got);
        memset(expected, 0, sizeof expected);
        zi_cpu_lanes_at(form / 2 / KINDS)->fold(&fold, 0, ALL, NULL);
        plain_fold(&fold, expected);
        const size_t bytes = zi_packed_granule_bytes(kind);
        for (size_t g = 0; g < ALL / GRANULE; g++) {
            CHECK_BYTES(got + g * bytes, expected + g * bytes, 4);
            for (int i = 0; i < GRANULE; i++) {
                CHECK(scale_at(got + g * bytes, i / 128) == 0x7fc0 ||
                      code_at(kind, got + g * bytes, i) == code_at(kind, expected + g * bytes, i));
            }
        }
    }
}

/* ---- one granule there and back ---- */

static void encode_granule(uint8_t *granule, zero_dtype kind, const float *values, uint64_t key,
                           uint64_t first)
{
    const void *const sources[] = {values};
    zi_fold fold = case_fold(granule, kind, sources, ZERO_DTYPE_F32, 1, GRANULE);
    fold.key = key;
    fold.first = first;
    zi_cpu_fold(&fold);
}

static void decode_granule(float *values, zero_dtype kind, const uint8_t *granule)
{
    const void *const sources[] = {granule};
    const zi_fold fold = case_fold(values, ZERO_DTYPE_F32, sources, kind, 1, GRANULE);
    zi_cpu_fold(&fold);
}

/* Each decoded value is one of two codes' (of 32 elements' in INT4, by 1/32 of each), with a
 * variance of a quarter of a step's square at most. The mean of KEYS of them is the value to within
 * 6 standard deviations, and what gain, step and code are rounded by. */
TEST(the_mean_over_keys_is_the_value)
{
    enum { KEYS = 4096 };
    for (int k = 0; k < KINDS; k++) {
        _Alignas(4) uint8_t granule[260];
        float values[GRANULE];
        float back[GRANULE];
        double mean[GRANULE] = {0};
        zero_random_normal(test_seed, 50, 0, GRANULE, 0.0f, 1e-3f, values);
        values[7] = 0.0f;
        values[133] = 1.0f; /* far greater than its neighbours */
        for (uint64_t key = 0; key < KEYS; key++) {
            encode_granule(granule, kinds[k], values, key, 0);
            decode_granule(back, kinds[k], granule);
            for (int i = 0; i < GRANULE; i++) {
                mean[i] += (double)back[i] / KEYS;
            }
        }
        for (int i = 0; i < GRANULE; i++) {
            const double step =
                (double)zi_f32_from_bf16(scale_at(granule, i / 128)) / greatest_code(kinds[k]);
            const double shares = kinds[k] == ZERO_DTYPE_INT4_BLOCK ? 1.0 / 32.0 : 1.0;
            const double deviation = step / 2.0 * sqrt(shares / KEYS);
            CHECK_NEAR(mean[i], values[i], 6.0 * deviation + step * 0x1p-16);
        }
        CHECK(kinds[k] == ZERO_DTYPE_INT4_BLOCK || mean[7] == 0.0);
    }
}

/* The sum of a granule's errors scatters as that of independent roundings: its variance is the sum
 * of theirs, f (1 - f) of a part f of a step, to within 6 deviations of its estimate. */
TEST(roundings_of_a_granule_are_independent)
{
    enum { KEYS = 4096 };
    _Alignas(4) uint8_t granule[260];
    float values[GRANULE];
    double squares = 0.0;
    double expected = 0.0;
    zero_random_normal(test_seed, 51, 0, GRANULE, 0.0f, 1.0f, values);
    for (uint64_t key = 0; key < KEYS; key++) {
        double sum = 0.0;
        encode_granule(granule, ZERO_DTYPE_INT8_BLOCK, values, key, 0);
        for (int i = 0; i < GRANULE; i++) {
            const double scale = (double)zi_f32_from_bf16(scale_at(granule, i / 128));
            const double steps = (double)values[i] / scale * 127.0;
            const double part = steps - floor(steps);
            sum += code_at(ZERO_DTYPE_INT8_BLOCK, granule, i) - steps;
            expected += key == 0 ? part * (1.0 - part) : 0.0;
        }
        squares += sum * sum / KEYS;
    }
    CHECK(expected > 20.0);
    CHECK_NEAR(squares, expected, 6.0 * sqrt(2.0 / KEYS) * expected);
}

static int differing(zero_dtype kind, const uint8_t *left, const uint8_t *right)
{
    int count = 0;
    for (int i = 0; i < GRANULE; i++) {
        count += code_at(kind, left, i) != code_at(kind, right, i);
    }
    return count;
}

TEST(keys_places_and_values_round_by_words_of_their_own)
{
    float values[GRANULE];
    float other[GRANULE];
    _Alignas(4) uint8_t codes[6][260];
    for (int i = 0; i < GRANULE; i++) {
        values[i] = i % 128 == 0 ? 1.0f : 0.5f / 127.0f; /* half a step */
        other[i] = i % 128 == 0 ? 1.0f : nextafterf(values[i], 1.0f);
    }
    encode_granule(codes[0], ZERO_DTYPE_INT8_BLOCK, values, 1, 0);
    encode_granule(codes[1], ZERO_DTYPE_INT8_BLOCK, values, 1, 0);
    encode_granule(codes[2], ZERO_DTYPE_INT8_BLOCK, values, 2, 0);
    encode_granule(codes[3], ZERO_DTYPE_INT8_BLOCK, values, 1, GRANULE);
    encode_granule(codes[4], ZERO_DTYPE_INT8_BLOCK, values, 1, ZI_ROUNDING_BLOCK);
    encode_granule(codes[5], ZERO_DTYPE_INT8_BLOCK, other, 1, 0);
    CHECK_EQ(differing(ZERO_DTYPE_INT8_BLOCK, codes[0], codes[1]), 0);
    /* Half of 254, with a deviation of 8. */
    for (int k = 2; k < 6; k++) {
        const int count = differing(ZERO_DTYPE_INT8_BLOCK, codes[0], codes[k]);
        CHECK(count > 127 - 48 && count < 127 + 48);
    }
    int ones = 0;
    for (int i = 0; i < GRANULE; i++) {
        ones += code_at(ZERO_DTYPE_INT8_BLOCK, codes[0], i) == 1;
    }
    CHECK(ones > 127 - 48 && ones < 127 + 48);
}

/* A value that is not finite makes its block NaN; so it stays whatever is added and however often
 * it is coded again. */
TEST(a_block_that_is_nan_never_becomes_finite)
{
    const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u, 0x7f800001u};
    for (int form = 0; form < KINDS * GRANULE; form++) {
        const int at = form / KINDS;
        const zero_dtype kind = kinds[form % KINDS];
        _Alignas(4) uint8_t granules[3][260];
        float values[GRANULE];
        float back[GRANULE];
        zero_random_normal(test_seed, (uint64_t)form, 0, GRANULE, 0.0f, 1.0f, values);
        encode_granule(granules[0], ZERO_DTYPE_INT8_BLOCK, values, 1, 0);
        values[at] = zi_f32_from_bits(bad[at % 5]);
        encode_granule(granules[1], ZERO_DTYPE_INT8_BLOCK, values, 1, 0);
        const void *const sources[] = {granules[0], granules[1]};
        const zi_fold again =
            case_fold(granules[2], kind, sources, ZERO_DTYPE_INT8_BLOCK, 2, GRANULE);
        zi_cpu_fold(&again);
        decode_granule(back, kind, granules[2]);
        for (int i = 0; i < GRANULE; i++) {
            CHECK_EQ(isnan(back[i]) != 0, i / 128 == at / 128);
        }
    }
}

/* Decoded values are within a step of those that were coded, and no scale is less than one of
 * these but the greatest bfloat16. */
TEST(no_value_is_beyond_the_greatest_code)
{
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        _Alignas(4) uint8_t granule[260];
        float values[GRANULE];
        float back[GRANULE];
        for (uint32_t i = 0; i < GRANULE; i++) {
            const uint32_t fraction = zi_philox(test_seed, i, exponent).word[0] & 0x807fffffu;
            values[i] = zi_f32_from_bits(fraction | exponent << 23);
        }
        encode_granule(granule, ZERO_DTYPE_INT8_BLOCK, values, exponent, 0);
        decode_granule(back, ZERO_DTYPE_INT8_BLOCK, granule);
        for (int i = 0; i < GRANULE; i++) {
            const double scale = (double)zi_f32_from_bf16(scale_at(granule, i / 128));
            const double error = fabs((double)back[i] - (double)values[i]);
            CHECK(error <= scale / 127.0 * (1.0 + 0x1p-12) + (scale == 0.0 ? 0x1p-119 : 0.0));
            CHECK(fabs((double)values[i]) <= scale || scale == 0.0 || scale == 0x1.fep127);
        }
    }
}
