/* The conformance cases over ranks that are threads of one process. */
#include "conformance_packed.h"

#include <math.h>

static const uint32_t worlds[] = {1, 2, 3, 4, 5, 8};
#define WORLDS (sizeof worlds / sizeof worlds[0])
#define LONG_MS 60000
#define MANY 300

static void run_everywhere(zero_rank_fn fn)
{
    for (size_t i = 0; i < WORLDS; i++) {
        CHECK_OK(zero_world_run(worlds[i], LONG_MS, fn, NULL));
    }
}

TEST_CALL(kinds, run_everywhere(case_kinds));

TEST(large)
{
    for (uint32_t size = 1; size <= 3; size++) {
        CHECK_OK(zero_world_run(size, LONG_MS, case_large, NULL));
    }
}

TEST_CALL(packed, run_everywhere(case_packed));
TEST_CALL(subgroups, run_everywhere(case_subgroups));
TEST_CALL(batches, run_everywhere(case_batches));
TEST_CALL(streams, run_everywhere(case_streams));
TEST_CALL(mismatch, run_everywhere(case_mismatch));

TEST(late)
{
    uint32_t deadline_ms = 500;
    CHECK_OK(zero_world_run(2, LONG_MS, case_late, &deadline_ms));
    CHECK_OK(zero_world_run(5, LONG_MS, case_late, &deadline_ms));
}

TEST_CALL(gather, run_everywhere(case_gather));
TEST_CALL(memory, run_everywhere(case_memory));

/* Of thirds, whose sum depends on its order. */
static zero_status take_mean(zero_world *world, void *user)
{
    const uint32_t size = zero_world_size(world);
    double mean = -1.0;
    double sum = 0.0;
    (void)user;
    for (uint32_t rank = 0; rank < size; rank++) {
        sum += 1.0 / (3.0 + rank);
    }
    CHECK_FAILS(zero_world_mean(world, 1.0, NULL), ZERO_ERR_INVALID_ARGUMENT, "mean is NULL");
    CHECK_OK(zero_world_mean(world, 1.0 / (3.0 + zero_world_rank(world)), &mean));
    CHECK(mean == sum / size);
    const bool last = zero_world_rank(world) == size - 1;
    CHECK_OK(zero_world_mean(world, last ? (double)NAN : 1.0, &mean));
    CHECK(mean != mean);
    return ZERO_OK;
}

TEST_CALL(mean, run_everywhere(take_mean));

TEST(abort)
{
    for (size_t i = 1; i < WORLDS; i++) {
        const char *words = test_text("rank %u: the disk is on fire", worlds[i] - 1);
        CHECK_FAILS(zero_world_run(worlds[i], LONG_MS, case_abort_at, NULL), ZERO_ERR_IO, words);
        CHECK_EQ(zero_last_error()->native, 5);
    }
}

/* A world of one from its own constructor. */
TEST(self)
{
    static const zero_rank_fn cases[] = {case_kinds,   case_large,  case_subgroups, case_batches,
                                         case_streams, case_gather, case_memory};
    zero_world *world = NULL;
    CHECK_FAILS(zero_world_create_self(NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_OK(zero_world_create_self(&world));
    CHECK_EQ(zero_world_size(world), 1);
    CHECK_EQ(zero_world_rank(world), 0);
    CHECK_EQ(zero_world_local_size(world), 1);
    CHECK(strcmp(zero_world_backend(world), "self") == 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(cases[i](world, NULL));
    }
    zero_world_destroy(world);
    zero_world_destroy(NULL);
}

static zero_status look_around(zero_world *world, void *user)
{
    uint32_t *seen = user;
    CHECK_EQ(zero_world_size(world), MANY);
    CHECK_EQ(zero_world_local_size(world), MANY);
    CHECK(strcmp(zero_world_backend(world), "local") == 0);
    seen[zero_world_rank(world)]++;
    return case_many(world, NULL);
}

TEST(many_ranks)
{
    uint32_t seen[MANY] = {0};
    CHECK_OK(zero_world_run(MANY, LONG_MS, look_around, seen));
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK_EQ(seen[i], 1);
    }
}
