/* Owns the comparison of simulated steps with live ones. The live ones are of the CPU's engine with
 * its threads, streams and events; only what takes time is replaced: products are sleeps, and
 * behind each real collective of few bytes its stream sleeps as long as the link would take, which
 * the rank's streams share. Live steps are never shorter; on a busy machine they are longer, so the
 * best of a few runs counts. */
#include "sim_rig.h"

#include <pthread.h>
#include <time.h>

#include "core/clock.h"
#include "engine/backend.h"

#define GROUPS_MAX 8
#define RUNS 8
#define LIVE_STEPS 4

/* A live step may be longer by so much: threads wake late, and other programs run. The first run
 * that is as near as PERCENT_GOOD is enough. */
#define PERCENT_MAX 5.0
#define PERCENT_GOOD 2.0

/* ---- a rank whose link is slow ---- */

typedef struct live_rank {
    pthread_mutex_t mutex;
    uint64_t free_ns; /* when the link is */
    uint64_t bytes_per_s;
    const zi_device *device;
    uint32_t group_count;
    struct {
        const zi_group *group;
        const zi_group_ops *real;
        zi_group_ops ops;
    } groups[GROUPS_MAX];
} live_rank;

static _Thread_local live_rank *rank_here;

static void sleep_until(uint64_t ns)
{
    const struct timespec end = {.tv_sec = (time_t)(ns / RIG_RATE),
                                 .tv_nsec = (long)(ns % RIG_RATE)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) != 0) {
    }
}

typedef struct transfer {
    live_rank *rank;
    uint64_t bytes;
} transfer;

static zero_status carry(void *argument)
{
    const transfer *work = argument;
    live_rank *rank = work->rank;
    (void)pthread_mutex_lock(&rank->mutex);
    const uint64_t now = zi_clock_ns();
    const uint64_t begin = rank->free_ns > now ? rank->free_ns : now;
    rank->free_ns = begin + work->bytes * RIG_RATE / rank->bytes_per_s;
    const uint64_t end = rank->free_ns;
    (void)pthread_mutex_unlock(&rank->mutex);
    sleep_until(end);
    return ZERO_OK;
}

/* Bytes that a ring moves into each rank. */
static uint64_t ring_bytes(const zi_group *group, const zi_collective *collective)
{
    const uint64_t bytes = collective->count * zero_dtype_bytes(collective->send_dtype);
    const uint64_t parts = collective->kind == ZI_ALL_REDUCE ? 2 * bytes / group->size : bytes;
    return parts * (group->size - 1);
}

static zero_status submit(zi_group *group, zi_stream *stream, const zi_collective *batch,
                          size_t batch_count)
{
    uint32_t at = 0;
    transfer work = {.rank = rank_here};
    while (rank_here->groups[at].group != group) {
        at++;
    }
    for (size_t i = 0; i < batch_count && batch[i].tag < ZI_TAG_NORM; i++) {
        work.bytes += ring_bytes(group, &batch[i]);
    }
    const zero_status status =
        rank_here->groups[at].real->submit(group, stream, batch, batch_count);
    const zi_device *device = rank_here->device;
    return status == ZERO_OK && work.bytes != 0
               ? device->ops->task(device->self, stream, carry, &work, sizeof work)
               : status;
}

static zero_status group_create(zero_world *world, const zi_group_desc *desc, zi_group **out)
{
    const zero_status status = zi_world_transport.group_create(world, desc, out);
    live_rank *rank = rank_here;
    rank->device = desc->kernels->device;
    if (status == ZERO_OK && desc->size > 1) {
        CHECK(rank->group_count < GROUPS_MAX);
        const uint32_t at = rank->group_count++;
        rank->groups[at].group = *out;
        rank->groups[at].real = (*out)->ops;
        rank->groups[at].ops = *(*out)->ops;
        rank->groups[at].ops.submit = submit;
        (*out)->ops = &rank->groups[at].ops;
    }
    return status;
}

static zero_status open_kernels(void *self, const zi_device *device, zi_pool *pool,
                                zi_kernels *kernels)
{
    (void)self;
    return zi_cpu_kernels_create(device, pool, kernels);
}

/* ---- live steps ---- */

typedef struct live_run {
    const sim_rig *rig;
    uint64_t step_ns; /* of the first rank */
} live_run;

static void pass(zero_engine *engine, uint32_t unit, zero_pass what, uint64_t ns)
{
    CHECK_OK(zero_unit_acquire(engine, unit, what, zero_stream_host(), NULL));
    sleep_until(zi_clock_ns() + ns);
    CHECK_OK(zero_unit_release(engine, unit, zero_stream_host()));
}

static void step(zero_engine *engine, const zi_sim_job *job)
{
    const uint32_t units = zero_model_unit_count(job->model);
    CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
    for (uint32_t u = 0; u < units; u++) {
        pass(engine, u, ZERO_PASS_FORWARD, job->forward_ns[u]);
    }
    for (uint32_t u = units; u-- > 0;) {
        pass(engine, u, ZERO_PASS_BACKWARD, job->backward_ns[u]);
    }
    CHECK_OK(zero_micro_end(engine));
    CHECK_OK(zero_step(engine, NULL, zero_stream_host()));
}

static zero_status train(zero_world *world, void *user)
{
    live_run *run = user;
    static zi_transport transport; /* every rank writes the same */
    live_rank rank = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                      .bytes_per_s = run->rig->cluster.local_bytes_per_s};
    zero_engine *engine = NULL;
    uint64_t begin = 0;
    rank_here = &rank;
    if (zero_world_rank(world) == 0) {
        transport = zi_world_transport;
        transport.group_create = group_create;
    }
    CHECK_OK(zero_world_barrier(world));
    const zi_backend live = {.can = {.host_memory = true},
                             .kernels_create = open_kernels,
                             .host_kernels_create = open_kernels,
                             .transport = &transport};
    CHECK_OK(zi_engine_create_with(world, run->rig->model, &run->rig->options, &live, &engine));
    for (int i = 0; i < ZI_SIM_WARM_STEPS + LIVE_STEPS; i++) {
        begin = i == ZI_SIM_WARM_STEPS ? zi_clock_ns() : begin;
        step(engine, &run->rig->job);
    }
    if (zero_world_rank(world) == 0) {
        run->step_ns = (zi_clock_ns() - begin) / LIVE_STEPS;
    }
    zero_step_result result = zero_step_result_init();
    CHECK_OK(zero_step_wait(engine, &result));
    zero_engine_destroy(engine);
    return ZERO_OK;
}

static void compare(sim_rig *rig, uint32_t world)
{
    double best = 1e9;
    rig->options.device = ZERO_DEVICE_CPU;
    rig->cluster.local_bytes_per_s = 8 * 1024 * 1024; /* 256 KiB take 31 ms */
    const double simulated = (double)rig_run(rig)->step_ns;
    for (int i = 0; i < RUNS && fabs(best) > PERCENT_GOOD; i++) {
        live_run run = {.rig = rig};
        CHECK_OK(zero_world_run(world, 0, train, &run));
        const double percent = 100.0 * ((double)run.step_ns / simulated - 1.0);
        printf("        live %8.3f ms, simulated %8.3f ms: %+.2f %%\n", (double)run.step_ns / 1e6,
               simulated / 1e6, percent);
        best = fabs(percent) < fabs(best) ? percent : best;
    }
    CHECK_NEAR(best, 0.0, PERCENT_MAX);
    rig_close(rig);
}

#define MS UINT64_C(1000000)

/* ns: of a pass. */
static void compare_stage(zero_stage stage, uint32_t world, uint64_t ns, bool prefetch)
{
    sim_rig rig;
    rig_open(&rig, 1, world, 7, 65536, ns);
    rig.options.stage = stage;
    rig.tuning.no_prefetch = !prefetch;
    compare(&rig, world);
}

TEST_CALL(two_ranks_that_hide_gathers, compare_stage(ZERO_STAGE_3, 2, 36 * MS, true));
TEST_CALL(two_ranks_without_prefetch, compare_stage(ZERO_STAGE_3, 2, 36 * MS, false));
TEST_CALL(two_ranks_bound_by_the_link, compare_stage(ZERO_STAGE_3, 2, 6 * MS, true));
TEST_CALL(two_ranks_at_stage_2, compare_stage(ZERO_STAGE_2, 2, 18 * MS, true));
TEST_CALL(four_ranks_that_hide_gathers, compare_stage(ZERO_STAGE_3, 4, 36 * MS, true));
TEST_CALL(four_ranks_without_prefetch, compare_stage(ZERO_STAGE_3, 4, 36 * MS, false));
TEST_CALL(four_ranks_bound_by_the_link, compare_stage(ZERO_STAGE_3, 4, 6 * MS, true));
