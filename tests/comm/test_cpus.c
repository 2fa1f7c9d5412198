/* Ranks' use of the CPUs they are bound to: how many threads they start, and whether they spin
 * where they wait. */
#include <sched.h>
#include <sys/prctl.h>

#include "comm/comm.h"
#include "core/host.h"
#include "engine/engine_internal.h"
#include "harness.h"
#include "zero/zero.h"

#define LONG_MS 60000
#define RANKS 2

/* The calling thread runs on the `count` CPUs from the `first`-th that it may run on. */
static void bind_to(uint32_t first, uint32_t count)
{
    cpu_set_t all;
    cpu_set_t some;
    uint32_t seen = 0;
    CPU_ZERO(&some);
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all)) {
            if (seen >= first && seen < first + count) {
                CPU_SET(cpu, &some);
            }
            seen++;
        }
    }
    CHECK_EQ(CPU_COUNT(&some), count);
    CHECK_EQ(sched_setaffinity(0, sizeof some, &some), 0);
}

static void need_cpus(uint32_t count)
{
    if (zi_cpu_affinity().cpus < count) {
        SKIP("needs a CPU for each rank");
    }
    if (zi_cpu_quota("").cpus < count) {
        SKIP("a cgroup's quota is below a CPU for each rank");
    }
}

/* Default threads of an engine on the world. */
static uint32_t engine_threads(zero_world *world)
{
    const zero_tensor_desc desc = {.name = "weight", .shape = {300}, .dims = 1};
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    uint32_t unit = 0;
    uint32_t tensor = 0;
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "unit"}, &unit, NULL));
    CHECK_OK(zero_tensor_add(model, unit, &desc, &tensor));
    CHECK_OK(zero_engine_create(world, model, NULL, &engine));
    const uint32_t threads = zi_pool_threads(engine->pool);
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    return threads;
}

typedef struct expected {
    uint32_t cpus;
    bool crowded;
} expected;

static zero_status check_world(zero_world *world, void *user)
{
    const expected *want = user;
    CHECK_EQ(zero_world_cpus(world), want->cpus);
    CHECK_EQ(world->comm->crowded, want->crowded);
    CHECK_EQ(engine_threads(world), want->cpus);
    return ZERO_OK;
}

/* Ranks that are processes, rank r bound by `bind`, else like all. */
static void check_processes(void (*bind)(uint32_t rank), expected want)
{
    pid_t children[RANKS];
    const char *port = test_text("%d", 20000 + (int)getpid() % 40000);
    fflush(NULL);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        children[rank] = fork();
        CHECK(children[rank] >= 0);
        if (children[rank] == 0) {
            zero_world *world = NULL;
            CHECK_EQ(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
            CHECK_EQ(setenv("RANK", rank == 0 ? "0" : "1", 1), 0);
            CHECK_EQ(setenv("WORLD_SIZE", "2", 1), 0);
            CHECK_EQ(setenv("LOCAL_RANK", rank == 0 ? "0" : "1", 1), 0);
            CHECK_EQ(setenv("LOCAL_WORLD_SIZE", "2", 1), 0);
            CHECK_EQ(setenv("MASTER_ADDR", "localhost", 1), 0);
            CHECK_EQ(setenv("MASTER_PORT", port, 1), 0);
            bind(rank);
            CHECK_OK(zero_world_create_launched(LONG_MS, &world));
            CHECK_OK(check_world(world, &want));
            zero_world_destroy(world);
            exit(0);
        }
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        int state = 0;
        CHECK(waitpid(children[rank], &state, 0) == children[rank]);
        CHECK_EQ(state, 0);
    }
}

static void bind_to_first(uint32_t rank)
{
    (void)rank;
    bind_to(0, 1);
}

static void bind_to_own(uint32_t rank)
{
    bind_to(rank, 1);
}

static void bind_to_both(uint32_t rank)
{
    (void)rank;
    bind_to(0, RANKS);
}

TEST(threads_on_one_cpu)
{
    expected want = {.cpus = 1, .crowded = true};
    bind_to(0, 1);
    CHECK_EQ(zero_world_cpus(NULL), 1);
    CHECK_OK(zero_world_run(RANKS, LONG_MS, check_world, &want));
}

TEST(threads_share_cpus)
{
    need_cpus(RANKS);
    expected want = {.cpus = 1, .crowded = false};
    bind_to(0, RANKS);
    CHECK_EQ(zero_world_cpus(NULL), RANKS);
    CHECK_OK(zero_world_run(RANKS, LONG_MS, check_world, &want));
    want = (expected){.cpus = 1, .crowded = true};
    CHECK_OK(zero_world_run(RANKS + 1, LONG_MS, check_world, &want));
}

TEST(a_rank_alone_has_all)
{
    zero_world *world = NULL;
    expected want = {.cpus = 1, .crowded = false};
    CHECK_OK(zero_world_create_self(&world));
    CHECK_EQ(zero_world_cpus(world), zi_cpu_count());
    CHECK_EQ(engine_threads(world), zi_cpu_count() < 256 ? zi_cpu_count() : 256);
    zero_world_destroy(world);
    bind_to(0, 1);
    CHECK_OK(zero_world_create_self(&world));
    CHECK_OK(check_world(world, &want));
    zero_world_destroy(world);
}

TEST(processes_on_one_cpu)
{
    check_processes(bind_to_first, (expected){.cpus = 1, .crowded = true});
}

/* As mpirun and Slurm bind them: what a rank sees is its own, and is not divided again. */
TEST(processes_on_cpus_of_their_own)
{
    need_cpus(RANKS);
    check_processes(bind_to_own, (expected){.cpus = 1, .crowded = false});
}

TEST(processes_share_cpus)
{
    need_cpus(RANKS);
    check_processes(bind_to_both, (expected){.cpus = 1, .crowded = false});
}
