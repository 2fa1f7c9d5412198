/* The sum of squares: its value, its independence of order and split, and what is not finite. */
#include "harness.h"

#include "core/rng.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/lanes.h"
#include "kernels/math/norm.h"
#include "zero/random.h"

static const zi_norm_sum none = {{0}, 0, 0};

/* Values of all magnitudes, subnormal ones included. */
static float wide_value(uint64_t index)
{
    const zi_philox_words words = zi_philox(test_seed, index, 0);
    const uint32_t exponent = words.word[1] % 255;
    return zi_f32_from_bits((words.word[0] & 0x807fffffu) | exponent << 23);
}

static float *wide_values(size_t count)
{
    float *values = malloc(count * sizeof *values);
    CHECK(values != NULL);
    for (size_t i = 0; i < count; i++) {
        values[i] = wide_value(i);
    }
    return values;
}

TEST(value_is_the_sum_of_squares)
{
    const size_t count = 100003;
    float *values = malloc(count * sizeof *values);
    CHECK(values != NULL);
    zero_random_normal(test_seed, 1, 0, count, 0.0f, 1.0f, values);
    long double exact = 0.0L;
    for (size_t i = 0; i < count; i++) {
        exact += (long double)values[i] * (long double)values[i];
    }
    zi_norm_sum sum = none;
    zi_cpu_square_sum(values, ZERO_DTYPE_F32, count, &sum);
    CHECK_NEAR(zi_norm_value(&sum) / (double)exact, 1.0, 1e-15);
    free(values);
}

TEST(extremes_are_exact)
{
    const float cases[] = {0x1p-149f, 0x1p-126f, 0x1.fffffep-64f, 1.0f, 3.0f, 0x1.fffffep127f};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zi_norm_sum sum = none;
        zi_cpu_square_sum(&cases[i], ZERO_DTYPE_F32, 1, &sum);
        CHECK_SAME(zi_norm_value(&sum), (double)cases[i] * (double)cases[i]);
    }
    float full[ZI_NORM_CHUNK];
    for (size_t i = 0; i < ZI_NORM_CHUNK; i++) {
        full[i] = -0x1p127f;
    }
    zi_norm_sum sum = none;
    zi_cpu_square_sum(full, ZERO_DTYPE_F32, ZI_NORM_CHUNK, &sum);
    CHECK_SAME(zi_norm_value(&sum), 0x1p260);
    CHECK_EQ(sum.infinite_chunks, 0);
    CHECK_SAME(zi_norm_value(&none), 0.0);
}

TEST(value_rounds_once)
{
    /* A half in the last place goes to even, and anything below it, however far, goes up. */
    zi_norm_sum sum = none;
    zi_norm_add(&sum, 1.0);
    zi_norm_add(&sum, 0x1p-53);
    CHECK_SAME(zi_norm_value(&sum), 1.0);
    zi_norm_add(&sum, 0x1p-298);
    CHECK_SAME(zi_norm_value(&sum), 1.0 + 0x1p-52);
    for (int exponent = -298; exponent <= 200; exponent++) {
        sum = none;
        zi_norm_add(&sum, ldexp(3.0, exponent));
        zi_norm_add(&sum, ldexp(1.0, exponent + 60));
        CHECK_SAME(zi_norm_value(&sum), ldexp(1.0, exponent + 60));
        zi_norm_add(&sum, ldexp(1.0, exponent + 7));
        CHECK_SAME(zi_norm_value(&sum), ldexp(0x1p60 + 256.0, exponent));
    }
}

TEST(order_does_not_show)
{
    enum { COUNT = 4096 };
    zi_norm_sum up = none;
    zi_norm_sum down = none;
    zi_norm_sum halves[2] = {none, none};
    for (uint64_t i = 0; i < COUNT; i++) {
        const double up_value = (double)wide_value(i);
        const double down_value = (double)wide_value(COUNT - 1 - i);
        zi_norm_add(&up, up_value * up_value);
        zi_norm_add(&down, down_value * down_value);
        zi_norm_add(&halves[i % 2], up_value * up_value);
    }
    zi_norm_merge(&halves[1], &halves[0]);
    zi_norm_normalise(&up);
    zi_norm_normalise(&down);
    CHECK_BYTES(&up, &down, sizeof up);
    CHECK_BYTES(&up, &halves[1], sizeof up);
    CHECK(zi_norm_value(&up) > 0.0);
}

/* Sum [first, count) in pieces of `piece` elements, merged from the last to the first. */
static zi_norm_sum in_pieces(const zi_cpu_lanes *lanes, const float *values, size_t count,
                             size_t piece)
{
    zi_norm_sum sum = none;
    for (size_t end = (count + piece - 1) / piece * piece; end > 0; end -= piece) {
        const size_t begin = end - piece;
        const size_t part = (end < count ? end : count) - begin;
        zi_norm_sum own = none;
        lanes->square_sum(values + begin, ZERO_DTYPE_F32, part, &own);
        zi_norm_merge(&sum, &own);
    }
    return sum;
}

/* Check that a number of totals come to the same at once and one after the other. */
static void check_totals(const double *totals, uint32_t count)
{
    zi_norm_sum at_once = none;
    zi_norm_sum in_turn = none;
    zi_chunk_totals_add(&at_once, totals, count);
    for (uint32_t i = 0; i < count; i++) {
        zi_norm_add(&in_turn, totals[i]);
    }
    zi_norm_normalise(&at_once);
    zi_norm_normalise(&in_turn);
    CHECK_BYTES(&at_once, &in_turn, sizeof at_once);
}

TEST(totals_are_added_at_once_as_in_turn)
{
    double totals[ZI_CHUNK_TOTALS] = {0};
    check_totals(totals, 0);
    /* All significands full, so that sums of their halves are the largest; the first total is up to
     * two powers of two outside the distance from the others that is added at once. */
    for (int distance = -18; distance <= 18; distance++) {
        for (int exponent = -240; exponent <= 240; exponent += 7) {
            for (uint32_t i = 0; i < ZI_CHUNK_TOTALS; i++) {
                totals[i] = ldexp(0x1.fffffffffffffp0, exponent + (i == 0 ? 0 : distance));
            }
            check_totals(totals, ZI_CHUNK_TOTALS);
            check_totals(totals, ZI_CHUNK_TOTALS / 2 + 1);
        }
    }
    /* Near the ends of what totals can be, and each special one first and last. */
    const double odd[] = {0.0,     0x1p-298,         0x1p-268,    0x1p-252,
                          0x1p262, (double)INFINITY, (double)NAN, -(double)NAN};
    for (size_t k = 0; k < sizeof odd / sizeof odd[0]; k++) {
        for (uint32_t i = 0; i < ZI_CHUNK_TOTALS; i++) {
            totals[i] = odd[k];
        }
        check_totals(totals, ZI_CHUNK_TOTALS);
        for (uint32_t i = 1; i < ZI_CHUNK_TOTALS; i++) {
            totals[i] = 1.0 + 0x1p-52 * i;
        }
        check_totals(totals, ZI_CHUNK_TOTALS);
        totals[ZI_CHUNK_TOTALS - 1] = odd[k];
        totals[0] = 1.5;
        check_totals(totals, ZI_CHUNK_TOTALS);
    }
}

TEST(no_split_and_no_instruction_set_shows)
{
    const size_t count = 70001;
    float *values = wide_values(count);
    const zi_norm_sum whole = in_pieces(zi_cpu_lanes_at(0), values, count, count);
    /* By hand, chunk by chunk, the last one filled up with zeros. */
    zi_norm_sum chunks = none;
    for (size_t i = 0; i < count; i += ZI_NORM_CHUNK) {
        float chunk[ZI_NORM_CHUNK] = {0};
        const size_t part = count - i < ZI_NORM_CHUNK ? count - i : ZI_NORM_CHUNK;
        memcpy(chunk, values + i, part * sizeof chunk[0]);
        zi_norm_add(&chunks, zi_norm_chunk(chunk));
    }
    zi_norm_normalise(&chunks);
    CHECK_BYTES(&whole, &chunks, sizeof whole);
    const size_t pieces[] = {64, 192, 512, 4096, 65536};
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
            const zi_norm_sum sum = in_pieces(zi_cpu_lanes_at(set), values, count, pieces[i]);
            CHECK_BYTES(&whole, &sum, sizeof whole);
        }
    }
    free(values);
}

TEST(low_precision_counts_as_its_fp32_value)
{
    enum { COUNT = 1000 };
    const zero_dtype types[] = {ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
    float values[COUNT];
    uint16_t narrow[COUNT];
    zero_random_normal(test_seed, 2, 0, COUNT, 0.0f, 3.0f, values);
    for (size_t t = 0; t < 2; t++) {
        zi_cpu_cast(narrow, types[t], values, ZERO_DTYPE_F32, COUNT);
        zi_cpu_cast(values, ZERO_DTYPE_F32, narrow, types[t], COUNT);
        zi_norm_sum wide = none;
        zi_cpu_square_sum(values, ZERO_DTYPE_F32, COUNT, &wide);
        for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
            zi_norm_sum sum = none;
            zi_cpu_lanes_at(set)->square_sum(narrow, types[t], COUNT, &sum);
            CHECK_BYTES(&wide, &sum, sizeof sum);
        }
    }
}

TEST(infinities_and_nan_are_counted_and_told_apart)
{
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        float values[256] = {0};
        zi_norm_sum sum = none;
        values[70] = -INFINITY;
        zi_cpu_lanes_at(set)->square_sum(values, ZERO_DTYPE_F32, 256, &sum);
        CHECK_EQ(sum.infinite_chunks, 1);
        CHECK_EQ(sum.nan_chunks, 0);
        CHECK_SAME(zi_norm_value(&sum), (double)INFINITY);
        values[71] = NAN;
        values[255] = INFINITY;
        zi_norm_sum both = none;
        zi_cpu_lanes_at(set)->square_sum(values, ZERO_DTYPE_F32, 256, &both);
        CHECK_EQ(both.infinite_chunks, 1);
        CHECK_EQ(both.nan_chunks, 1);
        zi_norm_merge(&sum, &both);
        CHECK_EQ(sum.infinite_chunks, 2);
        CHECK_EQ(sum.nan_chunks, 1);
        CHECK(isnan(zi_norm_value(&sum)));
    }
}

TEST(carries_wait_without_being_lost)
{
    /* Every bit of a limb's room: additions of all-ones mantissas without normalising. */
    zi_norm_sum sum = none;
    const double ones = 0x1.fffffffffffffp0;
    for (int i = 0; i < 1 << 20; i++) {
        zi_norm_add(&sum, ones);
    }
    CHECK_SAME(zi_norm_value(&sum), ones * 0x1p20);
    zi_norm_sum twice = sum;
    zi_norm_merge(&twice, &sum);
    CHECK_SAME(zi_norm_value(&twice), ones * 0x1p21);
}
