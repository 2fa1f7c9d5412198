/* core: sizes, faults, random numbers, shared loops, errors, logs. */
#include "harness.h"

#include <stdatomic.h>

#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/sizes.h"
#include "core/table.h"
#include "core/thread.h"
#include "zero/log.h"
#include "zero/random.h"
#include "zero/version.h"

TEST(checked_sizes)
{
    uint64_t out = 0;
    CHECK(zi_mul_u64(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &out));
    CHECK_EQ(out, ((UINT64_C(1) << 32) - 1) << 32);
    CHECK(!zi_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
    CHECK(zi_add_u64(UINT64_MAX - 1, 1, &out));
    CHECK(!zi_add_u64(UINT64_MAX, 1, &out));
    CHECK_EQ(zi_align_up(0, 256), 0);
    CHECK_EQ(zi_align_up(1, 256), 256);
    CHECK_EQ(zi_align_up(256, 256), 256);
    CHECK_EQ(zi_div_up(UINT64_MAX, 2), (UINT64_C(1) << 63));
    CHECK_EQ(zi_div_up(0, 7), 0);
}

TEST(nth_fault_hits_once)
{
    CHECK(!zi_fault_hit(ZI_FAULT_ALLOC));
    zi_fault_arm(ZI_FAULT_ALLOC, 2);
    void *first = NULL;
    void *second = NULL;
    void *third = NULL;
    CHECK_OK(zi_calloc(1, 8, &first));
    CHECK_FAILS(zi_calloc(3, 8, &second), ZERO_ERR_OUT_OF_MEMORY, "3 x 8 bytes");
    CHECK(second == NULL);
    CHECK_OK(zi_calloc(1, 8, &third));
    CHECK_EQ(zi_fault_count(ZI_FAULT_ALLOC), 3);
    zi_fault_arm(ZI_FAULT_ALLOC, 0);
    zi_free(first);
    zi_free(third);
    zi_fault_arm(ZI_FAULT_ALLOC, 1);
    CHECK_FAILS(zi_pages_alloc(8192, &first), ZERO_ERR_OUT_OF_MEMORY, "8192 bytes");
    zi_fault_arm(ZI_FAULT_ALLOC, 0);
}

TEST(pages_are_zero_and_counted)
{
    const uint64_t before = zi_memory_calls();
    void *memory = NULL;
    CHECK_OK(zi_pages_alloc(3 * ZI_PAGE_BYTES, &memory));
    CHECK_EQ((uintptr_t)memory % ZI_PAGE_BYTES, 0);
    for (size_t i = 0; i < 3 * ZI_PAGE_BYTES; i++) {
        CHECK_EQ(((unsigned char *)memory)[i], 0);
    }
    zi_pages_free(memory, 3 * ZI_PAGE_BYTES);
    CHECK_OK(zi_pages_alloc(0, &memory));
    CHECK(memory == NULL);
    CHECK_EQ(zi_memory_calls(), before + 1);
}

/* Known answers of Random123's philox4x32-10: all-zero and all-one counter and key. */
TEST(philox_known_answers)
{
    const zi_philox_words zero = zi_philox(0, 0, 0);
    const uint32_t expected_zero[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    CHECK_BYTES(zero.word, expected_zero, sizeof expected_zero);
    const zi_philox_words ones = zi_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX);
    const uint32_t expected_ones[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    CHECK_BYTES(ones.word, expected_ones, sizeof expected_ones);
}

TEST(random_ranges_are_one_sequence)
{
    float whole[1000];
    float piece[1000];
    zero_random_normal(7, 3, 0, 1000, 0.5f, 2.0f, whole);
    for (uint64_t first = 0; first < 1000; first += 37) {
        const uint64_t count = first + 37 < 1000 ? 37 : 1000 - first;
        zero_random_normal(7, 3, first, count, 0.5f, 2.0f, piece);
        CHECK_BYTES(piece, whole + first, count * sizeof(float));
    }
    zero_random_uniform(7, 3, 0, 1000, -1.0f, 3.0f, whole);
    zero_random_uniform(7, 3, 501, 400, -1.0f, 3.0f, piece);
    CHECK_BYTES(piece, whole + 501, 400 * sizeof(float));
}

TEST(random_moments)
{
    enum { COUNT = 200000 };
    float *values = malloc(COUNT * sizeof *values);
    CHECK(values != NULL);
    double sum = 0.0;
    double squares = 0.0;
    zero_random_normal(test_seed, 1, 0, COUNT, 1.0f, 2.0f, values);
    for (int i = 0; i < COUNT; i++) {
        sum += (double)values[i];
        squares += ((double)values[i] - 1.0) * ((double)values[i] - 1.0);
    }
    /* Five standard errors of the mean and of the variance. */
    CHECK_NEAR(sum / COUNT, 1.0, 5.0 * 2.0 / sqrt(COUNT));
    CHECK_NEAR(squares / COUNT, 4.0, 5.0 * 4.0 * sqrt(2.0 / COUNT));
    zero_random_uniform(test_seed, 2, 0, COUNT, 2.0f, 4.0f, values);
    sum = 0.0;
    for (int i = 0; i < COUNT; i++) {
        CHECK(values[i] >= 2.0f && values[i] < 4.0f);
        sum += (double)values[i];
    }
    CHECK_NEAR(sum / COUNT, 3.0, 5.0 * (2.0 / sqrt(12.0)) / sqrt(COUNT));
    free(values);
}

typedef struct loop_state {
    atomic_uint shares[8];
    atomic_uint calls;
} loop_state;

static void count_share(void *argument, uint32_t share, uint32_t shares)
{
    loop_state *state = argument;
    CHECK(share < shares);
    atomic_fetch_add(&state->shares[share], 1);
    atomic_fetch_add(&state->calls, 1);
}

TEST(pool_runs_every_share_once)
{
    for (uint32_t threads = 1; threads <= 8; threads++) {
        zi_pool *pool = NULL;
        loop_state state = {0};
        CHECK_OK(zi_pool_create(threads, &pool));
        CHECK_EQ(zi_pool_threads(pool), threads);
        for (int round = 0; round < 50; round++) {
            zi_pool_run(pool, count_share, &state);
        }
        CHECK_EQ(atomic_load(&state.calls), 50 * threads);
        for (uint32_t share = 0; share < threads; share++) {
            CHECK_EQ(atomic_load(&state.shares[share]), 50);
        }
        zi_pool_destroy(pool);
    }
    loop_state alone = {0};
    zi_pool_run(NULL, count_share, &alone);
    CHECK_EQ(atomic_load(&alone.calls), 1);
    zi_pool_destroy(NULL);
}

TEST(pool_that_cannot_start_a_thread)
{
    for (uint64_t nth = 1; nth <= 3; nth++) {
        zi_pool *pool = NULL;
        zi_fault_arm(ZI_FAULT_THREAD, nth);
        CHECK_FAILS(zi_pool_create(4, &pool), ZERO_ERR_DEVICE, "cannot start a thread");
        zi_fault_arm(ZI_FAULT_THREAD, 0);
        CHECK(pool == NULL);
    }
}

static zero_status fail_with(int value)
{
    ZI_FAIL_NATIVE(ZERO_ERR_IO, 5, "value %d is wrong", value);
}

static zero_status pass_on(int value)
{
    ZI_TRY(fail_with(value));
    return ZERO_OK;
}

static bool is_value(const void *items, uint32_t item, const void *wanted)
{
    return ((const uint64_t *)items)[item] == *(const uint64_t *)wanted;
}

/* Values that share a hash with 99 others, and hashes that differ above their low half only. */
TEST(tables_find_what_was_added)
{
    enum { COUNT = 10000 };
    static uint64_t values[COUNT];
    zi_table table = {0};
    const uint64_t absent = COUNT;
    CHECK_EQ(zi_table_find(&table, 0, is_value, values, &absent), ZI_TABLE_NONE);
    CHECK_OK(zi_table_reserve(&table, 1));
    for (uint32_t i = 0; i < COUNT; i++) {
        values[i] = i;
        CHECK_OK(zi_table_reserve(&table, i + 1));
        zi_table_add(&table, (uint64_t)(i / 100) << 32, i);
    }
    const uint64_t calls = zi_memory_calls();
    CHECK_OK(zi_table_reserve(&table, COUNT));
    CHECK_EQ(zi_memory_calls(), calls);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_EQ(zi_table_find(&table, (uint64_t)(i / 100) << 32, is_value, values, &values[i]), i);
    }
    CHECK_EQ(zi_table_find(&table, 0, is_value, values, &absent), ZI_TABLE_NONE);
    zi_table_clear(&table);
    CHECK_EQ(zi_table_find(&table, 0, is_value, values, &values[0]), ZI_TABLE_NONE);
    zi_table_add(&table, 0, 3);
    CHECK_EQ(zi_table_find(&table, 0, is_value, values, &values[3]), 3);
    zi_table_free(&table);
}

TEST(errors_are_set_where_found)
{
    CHECK_FAILS(pass_on(42), ZERO_ERR_IO, "value 42 is wrong");
    const zero_error *error = zero_last_error();
    CHECK_EQ(error->status, ZERO_ERR_IO);
    CHECK_EQ(error->native, 5);
    CHECK(strcmp(error->file, "test_core.c") == 0);
    CHECK(error->line > 0);
    CHECK(strcmp(zero_status_name(ZERO_ERR_TIMEOUT), "TIMEOUT") == 0);
    CHECK(strcmp(zero_status_name((zero_status)99), "UNKNOWN") == 0);
    CHECK(strlen(zero_status_text(ZERO_ERR_MISMATCH)) > 0);
    CHECK(strcmp(zero_version(), ZERO_VERSION_TEXT) == 0);
}

static char logged[256];
static int logged_count;

static void keep(void *user, zero_log_level level, const char *message)
{
    CHECK(user == logged);
    CHECK(level != ZERO_LOG_DEBUG);
    logged_count++;
    strncpy(logged, message, sizeof logged - 1);
}

TEST(log_goes_to_the_callback_only)
{
    zi_log(ZERO_LOG_ERROR, "nobody listens");
    zero_log_set(keep, logged);
    zi_log(ZERO_LOG_WARN, "rank %d", 3);
    zi_log(ZERO_LOG_DEBUG, "too much");
    CHECK(strcmp(logged, "rank 3") == 0);
    CHECK_EQ(logged_count, 1);
    zero_log_set(NULL, NULL);
    zi_log(ZERO_LOG_ERROR, "nobody listens again");
    CHECK_EQ(logged_count, 1);
}
