/* Owns the tests of plans beside the memory of the host and of cgroups: what ranks take together is
 * refused before any of it is taken, if it is a byte too much. The pools are made up (--wrap). */
#include "core/host.h"
#include "harness.h"
#include "mesh_threads.h"
#include "toy.h"

#define RANKS 3
#define USED 4096

/* The one that the calling rank has. limit 0: none. */
static _Thread_local zi_memory_pool made;

uint32_t __wrap_zi_memory_pools(const char *root, zi_memory_pool *pools);
uint32_t __real_zi_memory_pools(const char *root, zi_memory_pool *pools);

uint32_t __wrap_zi_memory_pools(const char *root, zi_memory_pool *pools)
{
    if (made.limit == 0) {
        return __real_zi_memory_pools(root, pools);
    }
    CHECK(root[0] == '\0');
    pools[0] = made;
    return 1;
}

/* Pool `id`, which has so many bytes left. */
static void make_pool(uint64_t id, uint64_t room)
{
    made = (zi_memory_pool){
        .id = id, .limit = room + USED, .used = USED, .source = "/sys/fs/cgroup/job/memory.max"};
}

static zero_status open_and_close(zero_world *world, const toy_run *run)
{
    zero_engine *engine = NULL;
    TOY_TRY(zero_engine_create(world, run->model->model, TOY_OPTIONS(run), &engine));
    zero_engine_destroy(engine);
    return ZERO_OK;
}

static uint64_t bytes_of(const toy_run *run, zero_world *world)
{
    return toy_planned(run, zero_world_size(world)).total_bytes;
}

static zero_status share_one_pool(zero_world *world, void *user)
{
    const toy_run *run = user;
    const uint64_t bytes = RANKS * bytes_of(run, world);
    char text[64];
    make_pool(7, bytes);
    CHECK_OK(open_and_close(world, run));
    make_pool(7, bytes - 1);
    (void)snprintf(text, sizeof text, "take %llu bytes: short by 1;", (unsigned long long)bytes);
    CHECK_FAILS(open_and_close(world, run), ZERO_ERR_OUT_OF_MEMORY, text);
    (void)snprintf(text, sizeof text, "memory.max allows %llu, %d in use;",
                   (unsigned long long)(bytes - 1 + USED), USED);
    CHECK_FAILS(open_and_close(world, run), ZERO_ERR_OUT_OF_MEMORY, text);
    CHECK_FAILS(open_and_close(world, run), ZERO_ERR_OUT_OF_MEMORY, "set tuning.host_overcommit");
    toy_run beyond = *run;
    beyond.tuning.host_overcommit = 1;
    CHECK_OK(open_and_close(world, &beyond));
    make_pool(7, bytes);
    return open_and_close(world, run);
}

TEST(ranks_of_one_pool_fit_to_the_byte)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, share_one_pool, &run));
}

/* The others do not wait for the one that is short: all are told, each what it can know. */
static zero_status be_short_on_one(zero_world *world, void *user)
{
    const toy_run *run = user;
    const bool last = zero_world_rank(world) == RANKS - 1;
    const uint64_t bytes = bytes_of(run, world);
    make_pool(zero_world_rank(world), bytes);
    CHECK_OK(open_and_close(world, run));
    make_pool(zero_world_rank(world), bytes - (last ? 5 : 0));
    CHECK_FAILS(open_and_close(world, run), ZERO_ERR_OUT_OF_MEMORY,
                last ? "short by 5; /sys/fs/cgroup/job/memory.max"
                     : "the host of rank 2, or its container, is short of 5 bytes");
    make_pool(1, 0);
    CHECK_FAILS(open_and_close(world, run), ZERO_ERR_OUT_OF_MEMORY, "short by");
    return ZERO_OK;
}

TEST(all_ranks_hear_of_one_that_is_short)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, be_short_on_one, &run));
}

/* Parts of a model on one host are in different worlds. */
static zero_status share_with_parts(const mesh_rank *at, void *user)
{
    toy_run run = *(const toy_run *)user;
    const uint64_t bytes = 4 * bytes_of(&run, at->world);
    run.options.model_parallel = at->parts;
    make_pool(7, bytes);
    CHECK_OK(open_and_close(at->world, &run));
    make_pool(7, bytes - 1);
    CHECK_FAILS(open_and_close(at->world, &run), ZERO_ERR_OUT_OF_MEMORY, "short by 1;");
    return ZERO_OK;
}

TEST(parts_of_a_model_are_added)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    CHECK_OK(run_mesh(2, 2, share_with_parts, &run));
}

/* Without a limit that is made up: this test's plan fits where it runs. */
TEST(nothing_limits_without_pools)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_self(&world));
    CHECK_OK(open_and_close(world, &run));
    zero_world_destroy(world);
}
