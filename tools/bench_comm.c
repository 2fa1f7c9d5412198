/* Owns the measurement of collectives against the MPI library's own: the same ranks, buffers and
 * run, in turn. Invariant: both sides write buffers of their own, which must hold the same bits;
 * the values are small whole numbers, so that no order of addition can excuse a difference. */
#include <mpi.h>
#include <string.h>

#include "bench.h"
#include "comm/comm.h"
#include "core/memory.h"
#include "core/sizes.h"

#define METRIC_REDUCE "reduce_scatter_vs_mpi"
#define METRIC_GATHER "all_gather_vs_mpi"
#define MIB ((size_t)1 << 20)
#define CHECK_STRIDE ((size_t)4099)

static const uint32_t rank_counts[] = {2, 4};
static const size_t sizes_full[] = {16, 64, 256};
static const size_t sizes_quick[] = {64};
static const size_t sizes_tiny[] = {1};

/* One collective of one size, on all ranks. */
typedef struct comm_run {
    zero_world *world;
    zi_stream *host;
    zi_collective job; /* ours; count a rank */
    float *theirs;     /* what MPI receives */
    bool in_place;     /* each rank's part is in both receive buffers from the start */
    size_t send_count;
    size_t recv_count;
    int *shares; /* for MPI_Reduce_scatter; one a rank */
} comm_run;

/* Element `i` of rank `rank`'s send buffer. */
static float value_of(uint32_t rank, size_t i)
{
    return (float)((i * 7 + rank * 13) % 255) - 127.0f;
}

/* Seconds of the slowest rank since `start`; negative when `code` is none of success. */
static double slowest(double start, int code, const char *call)
{
    double seconds = bench_now() - start;
    if (code != MPI_SUCCESS) {
        (void)bench_fail("%s: MPI error %d", call, code);
        return -1.0;
    }
    double longest = 0.0;
    if (MPI_Allreduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD) != MPI_SUCCESS) {
        (void)bench_fail("MPI_Allreduce failed");
        return -1.0;
    }
    return longest;
}

/* All ranks start together. */
static double start_together(void)
{
    (void)MPI_Barrier(MPI_COMM_WORLD);
    return bench_now();
}

static double time_ours(void *argument)
{
    const comm_run *run = argument;
    const double start = start_together();
    if (zi_group_submit(run->world->control, run->host, &run->job, 1) != ZERO_OK) {
        (void)bench_fail_zero("the library's collective");
        return -1.0;
    }
    return slowest(start, MPI_SUCCESS, "");
}

static double time_block(void *argument)
{
    const comm_run *run = argument;
    const double start = start_together();
    const int code = MPI_Reduce_scatter_block(run->job.send, run->theirs, (int)run->job.count,
                                              MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return slowest(start, code, "MPI_Reduce_scatter_block");
}

static double time_shares(void *argument)
{
    const comm_run *run = argument;
    const double start = start_together();
    const int code = MPI_Reduce_scatter(run->job.send, run->theirs, run->shares, MPI_FLOAT, MPI_SUM,
                                        MPI_COMM_WORLD);
    return slowest(start, code, "MPI_Reduce_scatter");
}

static double time_gather(void *argument)
{
    const comm_run *run = argument;
    const double start = start_together();
    const void *send = run->in_place ? MPI_IN_PLACE : run->job.send;
    const int code = MPI_Allgather(send, (int)run->job.count, MPI_FLOAT, run->theirs,
                                   (int)run->job.count, MPI_FLOAT, MPI_COMM_WORLD);
    return slowest(start, code, "MPI_Allgather");
}

/* What element `i` of the receive buffers must be. */
static float expected(const comm_run *run, size_t i)
{
    const uint32_t size = zero_world_size(run->world);
    if (run->job.kind == ZI_ALL_GATHER) {
        return value_of((uint32_t)(i / run->job.count), i % run->job.count);
    }
    float sum = 0.0f;
    for (uint32_t rank = 0; rank < size; rank++) {
        sum += value_of(rank, zero_world_rank(run->world) * run->job.count + i);
    }
    return sum;
}

static int check_results(const comm_run *run)
{
    const float *ours = run->job.recv;
    if (memcmp(ours, run->theirs, run->recv_count * sizeof *ours) != 0) {
        return bench_fail("the library's result and MPI's differ");
    }
    for (size_t i = 0; i < run->recv_count; i += CHECK_STRIDE) {
        if (ours[i] < expected(run, i) || ours[i] > expected(run, i)) {
            return bench_fail("element %zu is %g instead of %g", i, (double)ours[i],
                              (double)expected(run, i));
        }
    }
    return 0;
}

/* This rank's values, and in place its part of MPI's buffer too. */
static void fill(comm_run *run)
{
    const uint32_t rank = zero_world_rank(run->world);
    float *send = run->theirs; /* never used: set below */
    memcpy(&send, &run->job.send, sizeof send);
    for (size_t i = 0; i < run->send_count; i++) {
        send[i] = value_of(rank, i);
        if (run->in_place) {
            run->theirs[rank * run->job.count + i] = send[i];
        }
    }
}

/* Measure one collective whose buffers are there. */
static int measure(comm_run *run, const bench_options *options, bench_report *report,
                   const char *metric, const char *name)
{
    const bool gather = run->job.kind == ZI_ALL_GATHER;
    const bench_side sides[3] = {
        {time_ours, run}, {gather ? time_gather : time_block, run}, {time_shares, run}};
    fill(run);
    bench_stat stats[3];
    if (bench_interleave(sides, gather ? 2 : 3, options->repetitions, stats) != 0 ||
        check_results(run) != 0) {
        return 1;
    }
    if (zero_world_rank(run->world) != 0) {
        return 0;
    }
    const bool block_wins = gather || stats[1].median <= stats[2].median;
    return bench_add_times(report, metric, name, &stats[0], &stats[block_wins ? 1 : 2]);
}

/* A collective to be measured. */
typedef struct comm_case {
    zi_collective_kind kind;
    bool in_place;
    const char *note; /* ends the case's name */
} comm_case;

static const comm_case cases[] = {
    {ZI_REDUCE_SCATTER, false, ""},      /* of gradients */
    {ZI_ALL_GATHER, false, ""},          /* of parameters, from a shard to a slot */
    {ZI_ALL_GATHER, true, ", in place"}, /* of parameters, after a step of stage 1 or 2 */
};

/* Memory as in an engine: shards and gradient slots are shared, the slots that units are gathered
 * to are not. Both sides receive in the same kind. */
static bool is_shared(const comm_case *kind, int buffer)
{
    return buffer == 0 || kind->kind != ZI_ALL_GATHER || kind->in_place;
}

/* One collective over a buffer of `bytes` in all: the whole send buffer of a reduce-scatter, the
 * whole receive buffer of an all-gather. */
static int run_case(zero_world *world, const comm_case *kind, size_t bytes,
                    const bench_options *options, bench_report *report)
{
    const uint32_t size = zero_world_size(world);
    const bool gather = kind->kind == ZI_ALL_GATHER;
    const char *metric = gather ? METRIC_GATHER : METRIC_REDUCE;
    char name[64];
    (void)snprintf(name, sizeof name, "%zu MiB, %u ranks%s", bytes / MIB, size, kind->note);
    if (!bench_wants(options, name)) {
        return 0;
    }
    comm_run run = {.world = world, .in_place = kind->in_place};
    const size_t count = bytes / sizeof(float) / size / 64 * 64;
    run.send_count = gather ? count : count * size;
    run.recv_count = gather ? count * size : count;
    run.job = (zi_collective){.kind = kind->kind,
                              .flags = gather ? 0 : ZI_COLLECTIVE_EXACT,
                              .send_dtype = ZERO_DTYPE_F32,
                              .recv_dtype = ZERO_DTYPE_F32,
                              .count = count};
    const zi_device_ops *device = world->device.ops;
    zi_comm *comm = world->comm;
    const size_t rooms[3] = {zi_align_up(run.send_count * sizeof(float), ZI_PAGE_BYTES),
                             zi_align_up(run.recv_count * sizeof(float), ZI_PAGE_BYTES),
                             zi_align_up(run.recv_count * sizeof(float), ZI_PAGE_BYTES)};
    void *buffers[3] = {NULL, NULL, NULL};
    int failed =
        device->stream_wrap(world->device.self, zero_stream_host(), &run.host) != ZERO_OK ||
        zi_calloc(size, sizeof *run.shares, (void **)&run.shares) != ZERO_OK;
    for (int i = 0; i < 3 && !failed; i++) {
        failed = (is_shared(kind, i)
                      ? comm->ops->memory_alloc(comm, rooms[i], &buffers[i])
                      : device->memory_alloc(world->device.self, rooms[i], &buffers[i])) != ZERO_OK;
    }
    if (failed) {
        (void)bench_fail_zero(name);
    } else {
        run.job.send = buffers[0];
        run.job.recv = buffers[1];
        if (kind->in_place) {
            run.job.send = (float *)buffers[1] + zero_world_rank(world) * count;
        }
        run.theirs = buffers[2];
        for (uint32_t i = 0; i < size; i++) {
            run.shares[i] = (int)count;
        }
        failed = measure(&run, options, report, metric, name);
    }
    zi_free(run.shares);
    /* Nobody may still be reading. */
    failed = failed || zero_world_barrier(world) != ZERO_OK;
    for (int i = 0; i < 3; i++) {
        if (buffers[i] != NULL && is_shared(kind, i)) {
            comm->ops->memory_free(comm, buffers[i], rooms[i]);
        } else if (buffers[i] != NULL) {
            device->memory_free(world->device.self, buffers[i], rooms[i]);
        }
    }
    return failed;
}

/* As one of the ranks: all sizes of both collectives. */
static int run_rank(const bench_options *options, bench_report *report)
{
    const size_t *sizes = sizes_full;
    size_t count = sizeof sizes_full / sizeof sizes_full[0];
    if (options->scale != BENCH_FULL) {
        sizes = options->scale == BENCH_QUICK ? sizes_quick : sizes_tiny;
        count = 1;
    }
    zero_world *world = NULL;
    if (zero_world_create_launched(0, &world) != ZERO_OK) {
        return bench_fail_zero("zero_world_create_launched");
    }
    int failed = 0;
    const size_t case_count = sizeof cases / sizeof cases[0];
    for (size_t i = 0; i < count * case_count && !failed; i++) {
        failed =
            run_case(world, &cases[i % case_count], sizes[i / case_count] * MIB, options, report);
    }
    if (!failed) {
        zero_world_destroy(world);
    }
    return failed;
}

int bench_comm(const bench_options *options, bench_report *report)
{
    if (options->as_rank) {
        return run_rank(options, report);
    }
    for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
        bool missing = false;
        const uint32_t ranks = options->ranks != 0 ? options->ranks : rank_counts[i];
        if (ranks == 1) {
            return bench_skip(report, METRIC_REDUCE, NULL, "one rank has nothing to send") ||
                   bench_skip(report, METRIC_GATHER, NULL, "one rank has nothing to send");
        }
        if (bench_spawn_ranks(options, "comm", ranks, report, &missing) != 0) {
            return 1;
        }
        if (missing) {
            return bench_skip(report, METRIC_REDUCE, NULL, "there is no mpirun") ||
                   bench_skip(report, METRIC_GATHER, NULL, "there is no mpirun");
        }
        if (options->ranks != 0) {
            break;
        }
    }
    return 0;
}
