/* The random bits of stochastic rounding: known answers, uniformity, and independence of elements,
 * updates, tensors, seeds and purposes.
 *
 * Bounds: a statistic is given six standard deviations of what true randomness would leave, which
 * it would miss once in 500 million times. Seeds are fixed, or the test's. */
#include "harness.h"

#include "kernels/math/convert.h"
#include "kernels/math/rounding.h"

#define SIGMAS 6.0

static const zi_rounding_purpose purposes[] = {ZI_ROUNDING_PARAM, ZI_ROUNDING_MOMENT1,
                                               ZI_ROUNDING_MOMENT2};

/* Types that are rounded by words which are mixed whole, and by half. */
static const zero_dtype mixings[] = {ZERO_DTYPE_BF16, ZERO_DTYPE_I8};

/* Stored results depend on these: a change here changes the bits of training. */
TEST(known_answers)
{
    CHECK_EQ(zi_rounding_mix(0), 0);
    CHECK_EQ(zi_rounding_mix(1), 0x688990c0u);
    const uint64_t seed = UINT64_C(0x0123456789abcdef);
    const zi_rounding_key param = {seed, 7, 3, ZI_ROUNDING_PARAM};
    CHECK_EQ(zi_rounding_word(param, ZERO_DTYPE_BF16, 0), 0xc0e45fc2u);
    CHECK_EQ(zi_rounding_word(param, ZERO_DTYPE_BF16, 4095), 0x90230ef0u);
    CHECK_EQ(zi_rounding_word(param, ZERO_DTYPE_F16, 4096), 0xa9f81becu);
    const zi_rounding_key first = {seed, 7, 3, ZI_ROUNDING_MOMENT1};
    CHECK_EQ(zi_rounding_word(first, ZERO_DTYPE_BF16, 0), 0x1532e880u);
    CHECK_EQ(zi_rounding_word(first, ZERO_DTYPE_BF16, (UINT64_C(1) << 45) + 5), 0x5660d52fu);
    const zi_rounding_key second = {seed, 7, 3, ZI_ROUNDING_MOMENT2};
    CHECK_EQ(zi_rounding_word(second, ZERO_DTYPE_BF16, 1), 0xdb572216u);
    const zi_rounding_key next = {seed, (UINT64_C(1) << 32) + 8, 3, ZI_ROUNDING_MOMENT1};
    CHECK_EQ(zi_rounding_word(next, ZERO_DTYPE_BF16, 0), 0x9bd330d6u);
    CHECK_EQ(zi_rounding_mix_for(ZERO_DTYPE_I8, 1), 0x7feb352du);
    CHECK_EQ(zi_rounding_word(param, ZERO_DTYPE_REMAINDER8, 4095), 0x8911abfau);
    CHECK_EQ(zi_rounding_word(first, ZERO_DTYPE_I8, 0), 0xda34353eu);
}

/* The moments share a word, and a parameter has another. */
TEST(each_purpose_has_a_half_of_its_own)
{
    zi_rounding_key key = {test_seed, 4, 2, ZI_ROUNDING_PARAM};
    for (uint64_t i = 0; i < 10000; i += 7) {
        key.purpose = ZI_ROUNDING_MOMENT1;
        const uint32_t moments = zi_rounding_word(key, ZERO_DTYPE_BF16, i);
        CHECK_EQ(zi_rounding_bits(key, ZERO_DTYPE_BF16, i), moments & 0xffff);
        key.purpose = ZI_ROUNDING_MOMENT2;
        CHECK_EQ(zi_rounding_word(key, ZERO_DTYPE_BF16, i), moments);
        CHECK_EQ(zi_rounding_bits(key, ZERO_DTYPE_BF16, i), moments >> 16);
        key.purpose = ZI_ROUNDING_PARAM;
        CHECK_EQ(zi_rounding_bits(key, ZERO_DTYPE_BF16, i),
                 zi_rounding_word(key, ZERO_DTYPE_BF16, i) >> 16);
    }
}

/* Undoes x ^= x >> shift. */
static uint32_t unshift(uint32_t x, int shift)
{
    uint32_t before = x;
    for (int known = shift; known < 32; known += shift) {
        before = x ^ before >> shift;
    }
    return before;
}

/* The odd number's inverse modulo 2^32. */
static uint32_t inverse(uint32_t odd)
{
    uint32_t result = odd;
    for (int i = 0; i < 5; i++) {
        result *= 2 - odd * result;
    }
    return result;
}

/* With an odd step this makes a block's words differ, and each as uniform as the start is. */
TEST(mixing_is_one_to_one)
{
    const uint32_t second = inverse(UINT32_C(0x846ca68b));
    const uint32_t first = inverse(UINT32_C(0x7feb352d));
    for (uint64_t x = 0; x <= UINT32_MAX; x += 4099) {
        uint32_t y = unshift(zi_rounding_mix((uint32_t)x), 16);
        y = unshift(y * second, 15);
        y = unshift(y * first, 16);
        CHECK_EQ(y, x);
    }
    const zi_rounding_key key = {test_seed, 1, 0, ZI_ROUNDING_PARAM};
    for (uint64_t block = 0; block < 1000; block++) {
        const zi_rounding_block both = zi_rounding_block_of(key, block);
        CHECK(both.param.step % 2 == 1 && both.moments.step % 2 == 1);
    }
}

/* ---- uniformity ---- */

/* In which direction draws follow each other. */
typedef enum direction { ELEMENTS, FAR_ELEMENTS, UPDATES, TENSORS, SEEDS, DIRECTIONS } direction;

static const char *const direction_names[DIRECTIONS] = {"elements", "elements 64 apart", "updates",
                                                        "tensors", "seeds"};

/* Draw `i` of a direction: 16 bits. */
static uint32_t draw(direction way, zero_dtype dtype, zi_rounding_purpose purpose, uint64_t i)
{
    zi_rounding_key key = {test_seed, 5, 11, purpose};
    uint64_t element = 77;
    if (way == ELEMENTS) {
        element += i;
    } else if (way == FAR_ELEMENTS) {
        element += 64 * i;
    } else if (way == UPDATES) {
        key.update += i;
    } else if (way == TENSORS) {
        key.tensor += (uint32_t)i;
    } else {
        key.seed += i;
    }
    return zi_rounding_bits(key, dtype, element);
}

#define BINS 256

/* Chi-square of equally likely bins: mean BINS - 1, variance twice that. */
static void check_bins(const uint64_t bins[BINS], uint64_t count, const char *what, int purpose)
{
    const double expected = (double)count / BINS;
    double chi = 0.0;
    for (size_t k = 0; k < BINS; k++) {
        const double apart = (double)bins[k] - expected;
        chi += apart * apart / expected;
    }
    if (fabs(chi - (BINS - 1)) > SIGMAS * sqrt(2.0 * (BINS - 1))) {
        TEST_FAIL("%s, purpose %d: chi-square %.1f of %d bins", what, purpose, chi, BINS);
    }
}

static void check_draws_are_uniform_in_every_direction(zero_dtype dtype)
{
    const uint64_t count = 1 << 18;
    for (int way = 0; way < DIRECTIONS; way++) {
        for (size_t k = 0; k < 3; k++) {
            uint64_t high[BINS] = {0};
            uint64_t low[BINS] = {0};
            uint64_t middle[BINS] = {0};
            double sum = 0.0;
            for (uint64_t i = 0; i < count; i++) {
                const uint32_t bits = draw((direction)way, dtype, purposes[k], i);
                high[bits >> 8]++;
                low[bits & 0xff]++;
                middle[(bits >> 4) & 0xff]++;
                sum += (double)bits;
            }
            check_bins(high, count, direction_names[way], (int)purposes[k]);
            check_bins(low, count, direction_names[way], (int)purposes[k]);
            check_bins(middle, count, direction_names[way], (int)purposes[k]);
            CHECK_NEAR(sum / (double)count, 32767.5, SIGMAS * 65536.0 / sqrt(12.0 * (double)count));
        }
    }
}

TEST(draws_are_uniform_in_every_direction)
{
    for (size_t i = 0; i < 2; i++) {
        check_draws_are_uniform_in_every_direction(mixings[i]);
    }
}

/* Pairs and triples of neighbours: a sequence whose words were not mixed would show here, its
 * second differences being 0. One that is mixed by half shows a little. */
TEST(neighbours_are_jointly_uniform)
{
    const uint64_t count = 1 << 18;
    for (int way = 0; way < DIRECTIONS; way++) {
        for (size_t k = 0; k < 3; k++) {
            uint64_t pairs[BINS] = {0};
            uint64_t differences[BINS] = {0};
            uint64_t bends[BINS] = {0};
            uint32_t before = draw((direction)way, ZERO_DTYPE_BF16, purposes[k], 0);
            uint32_t now = draw((direction)way, ZERO_DTYPE_BF16, purposes[k], 1);
            for (uint64_t i = 2; i < count + 2; i++) {
                const uint32_t next = draw((direction)way, ZERO_DTYPE_BF16, purposes[k], i);
                pairs[(now >> 12) << 4 | next >> 12]++;
                differences[((next - now) >> 8) & 0xff]++;
                bends[((next - 2 * now + before) >> 8) & 0xff]++;
                before = now;
                now = next;
            }
            check_bins(pairs, count, direction_names[way], (int)purposes[k]);
            check_bins(differences, count, direction_names[way], (int)purposes[k]);
            check_bins(bends, count, direction_names[way], (int)purposes[k]);
        }
    }
}

/* ---- independence ---- */

/* How often each bit of `left` equals each bit of `right`: half the time. */
static void count_equal_bits(uint64_t equal[32][32], uint32_t left, uint32_t right)
{
    for (int a = 0; a < 32; a++) {
        const uint32_t same = (left >> a & 1) != 0 ? right : ~right;
        for (int b = 0; b < 32; b++) {
            equal[a][b] += same >> b & 1;
        }
    }
}

static void check_equal_bits(uint64_t equal[32][32], uint64_t count, const char *what, uint64_t by)
{
    for (int a = 0; a < 32; a++) {
        for (int b = 0; b < 32; b++) {
            if (fabs((double)equal[a][b] - (double)count / 2) > SIGMAS * sqrt((double)count) / 2) {
                TEST_FAIL("%s %llu apart: bits %d and %d are equal in %llu of %llu", what,
                          (unsigned long long)by, a, b, (unsigned long long)equal[a][b],
                          (unsigned long long)count);
            }
        }
    }
}

/* All pairs of bits of the words of two elements of a block, over many blocks. */
TEST(no_bit_follows_another_elements)
{
    const uint64_t distances[] = {1, 2, 3, 4, 7, 8, 16, 32, 63, 64, 128, 1000, 1024, 2048};
    const zi_rounding_key key = {test_seed, 9, 1, ZI_ROUNDING_MOMENT1};
    const uint64_t blocks = 1 << 10;
    for (size_t d = 0; d < sizeof distances / sizeof distances[0]; d++) {
        uint64_t equal[32][32] = {{0}};
        uint64_t count = 0;
        for (uint64_t b = 0; b < blocks; b++) {
            const zi_rounding_sequence words = zi_rounding_block_of(key, b).moments;
            for (uint32_t i = 0; i < 32; i++, count++) {
                const uint32_t at = 61 * i;
                count_equal_bits(
                    equal, zi_rounding_mix(zi_rounding_at(words, at)),
                    zi_rounding_mix(zi_rounding_at(words, at + (uint32_t)distances[d])));
            }
        }
        check_equal_bits(equal, count, "elements", distances[d]);
    }
}

/* The same for neighbouring updates, tensors, seeds and blocks, and for a parameter and its
 * moments. */
TEST(no_bit_follows_another_keys)
{
    const zi_rounding_key key = {test_seed, 9, 1, ZI_ROUNDING_MOMENT1};
    const zi_rounding_key others[] = {{test_seed + 1, 9, 1, ZI_ROUNDING_MOMENT1},
                                      {test_seed, 10, 1, ZI_ROUNDING_MOMENT1},
                                      {test_seed, 9, 2, ZI_ROUNDING_MOMENT1},
                                      {test_seed, 9, 1, ZI_ROUNDING_MOMENT1},
                                      {test_seed, 9, 1, ZI_ROUNDING_PARAM}};
    const uint64_t beyond[] = {0, 0, 0, ZI_ROUNDING_BLOCK, 0};
    const uint64_t count = 1 << 15;
    for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
        uint64_t equal[32][32] = {{0}};
        for (uint64_t i = 0; i < count; i++) {
            count_equal_bits(equal, zi_rounding_word(key, ZERO_DTYPE_BF16, 37 * i),
                             zi_rounding_word(others[k], ZERO_DTYPE_BF16, 37 * i + beyond[k]));
        }
        check_equal_bits(equal, count, "key", k);
    }
}

/* Correlation of the random bits of two families over `count` elements. */
static double correlation(zi_rounding_key left, zi_rounding_key right, uint64_t shift,
                          uint64_t count)
{
    double product = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        const double a = (double)zi_rounding_bits(left, ZERO_DTYPE_BF16, i) - 32767.5;
        const double b = (double)zi_rounding_bits(right, ZERO_DTYPE_BF16, i + shift) - 32767.5;
        product += a * b;
    }
    return product / ((double)count * 65536.0 * 65536.0 / 12.0);
}

TEST(rounding_bits_do_not_correlate)
{
    const uint64_t count = 1 << 18;
    const double bound = SIGMAS / sqrt((double)count);
    const zi_rounding_key key = {test_seed, 7, 3, ZI_ROUNDING_PARAM};
    CHECK_NEAR(correlation(key, key, 0, count), 1.0, 0.01);
    const zi_rounding_key others[] = {{test_seed, 7, 3, ZI_ROUNDING_MOMENT1},
                                      {test_seed, 7, 3, ZI_ROUNDING_MOMENT2},
                                      {test_seed, 8, 3, ZI_ROUNDING_PARAM},
                                      {test_seed, 7, 4, ZI_ROUNDING_PARAM},
                                      {test_seed + 1, 7, 3, ZI_ROUNDING_PARAM}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        CHECK_NEAR(correlation(key, others[i], 0, count), 0.0, bound);
    }
    CHECK_NEAR(correlation(others[0], others[1], 0, count), 0.0, bound);
    const uint64_t shifts[] = {1, 2, 3, 4, 5, 8, 16, 64, 1024, 4095, 4096, 4097};
    for (size_t i = 0; i < sizeof shifts / sizeof shifts[0]; i++) {
        for (size_t k = 0; k < 2; k++) {
            CHECK_NEAR(correlation(others[k], others[k], shifts[i], count), 0.0, bound);
        }
    }
}

/* ---- what training sees ---- */

/* Sums over a block, whose words come of one start and one step, scatter as independent roundings
 * would: the mean square of a sum of n roundings is n times that of one, and their mean fourth
 * power, in units of that, near 3, what a normal value has. Words that are not mixed have 400. */
static void check_sums(zero_dtype dtype, zi_rounding_purpose purpose, uint32_t length)
{
    enum { SUMS = 1 << 14 };
    double squares = 0.0;
    double fourth = 0.0;
    for (uint64_t s = 0; s < SUMS; s++) {
        const zi_rounding_key key = {test_seed, s + 1, 6, purpose};
        const zi_rounding_sequence words = zi_rounding_block_of(key, s).moments;
        double sum = 0.0;
        for (uint32_t i = 0; i < length; i++) {
            const uint32_t word = zi_rounding_mix_for(dtype, zi_rounding_at(words, i));
            /* Goes up in 3 of 16 cases. */
            sum += zi_rounding_half(word, purpose) >= 13 << 12 ? 13.0 : -3.0;
        }
        const double square = sum * sum / (39.0 * length);
        squares += square / SUMS;
        fourth += square * square / SUMS;
    }
    /* The square of a nearly normal value scatters by sqrt(2), its fourth power by sqrt(96). */
    CHECK_NEAR(squares, 1.0, SIGMAS * 1.6 / sqrt((double)SUMS));
    if (length >= 64) {
        CHECK_NEAR(fourth, 3.0, SIGMAS * 10.0 / sqrt((double)SUMS));
    }
}

TEST(sums_of_neighbours_scatter_as_if_independent)
{
    const uint32_t lengths[] = {2, 8, 64, 512};
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        for (size_t i = 0; i < 2; i++) {
            check_sums(mixings[i], ZI_ROUNDING_MOMENT1, lengths[k]);
            check_sums(mixings[i], ZI_ROUNDING_MOMENT2, lengths[k]);
        }
    }
}

/* A moment that decays by a thousandth, a quarter of what bf16 resolves: rounded to nearest it
 * would stay for ever, here its mean follows. */
TEST(a_slow_average_keeps_its_mean)
{
    enum { COUNT = 4096, UPDATES_MADE = 500 };
    const float decay = 0.999f;
    static uint16_t moment[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        moment[i] = zi_bf16_from_f32(1.0f);
    }
    for (uint64_t update = 1; update <= UPDATES_MADE; update++) {
        const zi_rounding_key key = {test_seed, update, 1, ZI_ROUNDING_MOMENT2};
        const zi_rounding_sequence words = zi_rounding_block_of(key, 0).moments;
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t word = zi_rounding_mix(zi_rounding_at(words, i));
            moment[i] = zi_bf16_from_result_stochastic(zi_f32_from_bf16(moment[i]) * decay,
                                                       zi_rounding_half(word, ZI_ROUNDING_MOMENT2));
        }
    }
    double mean = 0.0;
    for (size_t i = 0; i < COUNT; i++) {
        mean += (double)zi_f32_from_bf16(moment[i]) / COUNT;
    }
    /* An update adds at most a quarter of the square of a step of the grid, 2^-8 below 1, to the
     * square of an element's error. */
    const double deviation = 0.5 * 0x1p-8 * sqrt((double)UPDATES_MADE) / sqrt((double)COUNT);
    CHECK_NEAR(mean, pow((double)decay, UPDATES_MADE), SIGMAS * deviation);
    CHECK_EQ(zi_bf16_from_f32(decay), zi_bf16_from_f32(1.0f));
}
