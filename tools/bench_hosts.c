/* Owns the measurement of reduce-scatters between hosts: in two levels, all at once, and by MPI, in
 * turn; and the bytes that each rank sends to other hosts. Invariant: the values are small whole
 * numbers, so that all ways must give the same bits. */
#include "bench_hosts.h"

#include <mpi.h>
#include <string.h>

#include "comm/mpi/mpi_comm.h"
#include "comm/mpi/mpi_group.h"
#include "comm/world.h"
#include "core/memory.h"
#include "core/sizes.h"

#define MIB ((size_t)1 << 20)

/* Ways that a sum goes, by the flags that ask for them. */
static const uint32_t ways[] = {0, ZI_COLLECTIVE_EXACT, ZI_COLLECTIVE_NATIVE};
enum { LEVELS, ONCE, NATIVE, WAYS };

typedef struct host_run {
    zero_world *world;
    zi_stream *host;
    zi_collective job; /* without its way */
    size_t send_bytes;
    size_t recv_bytes;
    void *send;
    void *recv;
    uint64_t crossed[WAYS]; /* bytes that this rank has sent to other hosts; MPI's are not known */
} host_run;

typedef struct host_side {
    host_run *run;
    uint32_t way;
} host_side;

static int value_of(uint32_t rank, size_t i)
{
    return (int)((i * 7 + rank * 13) % 31) - 15;
}

/* The sum that this rank gets must be that of the ranks' values. */
static int check_sum(const host_run *run)
{
    const float *recv = run->recv;
    const uint32_t size = zero_world_size(run->world);
    for (size_t i = 0; i < run->job.count; i += 4099) {
        int sum = 0;
        for (uint32_t rank = 0; rank < size; rank++) {
            sum += value_of(rank, zero_world_rank(run->world) * run->job.count + i);
        }
        if (recv[i] < (float)sum || recv[i] > (float)sum) {
            return bench_fail("element %zu is %g instead of %d", i, (double)recv[i], sum);
        }
    }
    return 0;
}

/* Seconds until the last rank has its sum. */
static double run_way(void *argument)
{
    const host_side *side = argument;
    host_run *run = side->run;
    const zi_mpi_group *group = (const zi_mpi_group *)run->world->coordination;
    zi_collective job = run->job;
    job.flags = ways[side->way];
    memset(run->recv, 0, run->recv_bytes);
    (void)MPI_Barrier(MPI_COMM_WORLD);
    const uint64_t before = group->crossed_bytes;
    double seconds = -bench_now();
    if (BENCH_TRY(zi_group_submit(run->world->coordination, run->host, &job, 1))) {
        return -1.0;
    }
    seconds += bench_now();
    run->crossed[side->way] = group->crossed_bytes - before;
    if (check_sum(run) != 0 || MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX,
                                             MPI_COMM_WORLD) != MPI_SUCCESS) {
        return -1.0;
    }
    return seconds;
}

static int add_bytes(bench_report *report, const char *name, const host_run *run)
{
    const double mib = (double)MIB;
    double sent = (double)run->crossed[LEVELS] / mib;
    const bench_stat stat = bench_stat_of(&sent, 1);
    return bench_add(report, "host_bytes_vs_at_once", name, "MiB", &stat,
                     (double)run->crossed[ONCE] / mib);
}

static int measure(host_run *run, const bench_options *options, bench_report *report,
                   const char *name)
{
    const uint32_t count = run->job.send_dtype == ZERO_DTYPE_F32 ? WAYS : NATIVE; /* MPI's types */
    host_side list[WAYS];
    bench_side sides[WAYS];
    bench_stat stats[WAYS];
    for (uint32_t i = 0; i < count; i++) {
        list[i] = (host_side){run, i};
        sides[i] = (bench_side){run_way, &list[i]};
    }
    if (bench_interleave(sides, count, options->repetitions, stats) != 0) {
        return 1;
    }
    if (zero_world_rank(run->world) != 0) {
        return 0;
    }
    return bench_add_times(report, "host_levels_vs_at_once", name, &stats[LEVELS], &stats[ONCE]) ||
           add_bytes(report, name, run) ||
           (count > NATIVE &&
            bench_add_times(report, "host_levels_vs_mpi", name, &stats[LEVELS], &stats[NATIVE]));
}

static void fill(const host_run *run)
{
    const size_t count = run->job.count * zero_world_size(run->world);
    const uint32_t rank = zero_world_rank(run->world);
    for (size_t i = 0; i < count; i++) {
        const float value = (float)value_of(rank, i);
        uint32_t bits = 0;
        memcpy(&bits, &value, sizeof bits);
        if (run->job.send_dtype == ZERO_DTYPE_F32) {
            ((float *)run->send)[i] = value;
        } else {
            ((uint16_t *)run->send)[i] = (uint16_t)(bits >> 16); /* whole numbers: exactly bf16 */
        }
    }
}

/* A reduce-scatter of `bytes` of gradients on each rank. */
static int run_case(zero_world *world, zero_dtype dtype, size_t bytes, const bench_options *options,
                    bench_report *report)
{
    char name[64];
    zi_comm *comm = world->comm;
    (void)snprintf(name, sizeof name, "%zu MiB %s, %u hosts of %u", bytes / MIB,
                   zero_dtype_name(dtype), comm->size / comm->local_size, comm->local_size);
    if (!bench_wants(options, name)) {
        return 0;
    }
    const size_t count = bytes / comm->size / zero_dtype_bytes(dtype) / 64 * 64;
    host_run run = {.world = world,
                    .send_bytes = zi_align_up(bytes, ZI_PAGE_BYTES),
                    .recv_bytes = zi_align_up(count * sizeof(float), ZI_PAGE_BYTES)};
    int failed = BENCH_TRY(comm->ops->memory_alloc(comm, run.send_bytes, &run.send)) ||
                 BENCH_TRY(comm->ops->memory_alloc(comm, run.recv_bytes, &run.recv)) ||
                 BENCH_TRY(world->device.ops->stream_wrap(world->device.self, zero_stream_host(),
                                                          &run.host));
    if (!failed) {
        run.job = (zi_collective){.kind = ZI_REDUCE_SCATTER,
                                  .send_dtype = dtype,
                                  .recv_dtype = ZERO_DTYPE_F32,
                                  .count = count,
                                  .send = run.send,
                                  .recv = run.recv};
        fill(&run);
        failed = measure(&run, options, report, name);
    }
    failed = failed || BENCH_TRY(zero_world_barrier(world));
    comm->ops->memory_free(comm, run.recv, run.recv_bytes);
    comm->ops->memory_free(comm, run.send, run.send_bytes);
    return failed;
}

int bench_hosts(const zero_world *world, const bench_options *options, bench_report *report)
{
    static const size_t sizes[] = {16 * MIB, 64 * MIB};
    const uint32_t size = zero_world_size(world);
    const bool pretended = zero_world_local_size(world) == size;
    const zi_mpi_options how = {.ranks_per_host = pretended ? size / 2 : 0};
    const size_t size_count = options->scale == BENCH_FULL ? 2 : 1;
    zi_comm *comm = NULL;
    zero_world *own = NULL;
    if (size % 2 != 0 || size < 4) {
        return zero_world_rank(world) != 0 || options->ranks == 0
                   ? 0
                   : bench_skip(report, "host_levels_vs_at_once", NULL,
                                "that takes two hosts of two ranks; --ranks 4");
    }
    if (BENCH_TRY(zi_mpi_comm_create(MPI_Comm_c2f(MPI_COMM_WORLD), 0, &how, &comm)) ||
        BENCH_TRY(zi_world_create(comm, &own))) {
        return 1;
    }
    int failed = 0;
    for (size_t i = 0; i < 2 * size_count && !failed; i++) {
        const size_t bytes = options->scale == BENCH_TINY ? MIB : sizes[i / 2];
        failed =
            run_case(own, i % 2 == 0 ? ZERO_DTYPE_BF16 : ZERO_DTYPE_F32, bytes, options, report);
    }
    if (!failed) {
        zero_world_destroy(own);
    }
    return failed;
}
