/* Owns the measurement of collectives against the MPI library's own, and against what the memory
 * allows: the same ranks, sizes and run, in turn. Invariant: both sides write buffers of their own,
 * which must hold the same bits; the values are small whole numbers, so that no order of addition
 * can excuse a difference. MPI's buffers are in pages as large as the kernel gives them, which
 * suits it best; ours are where an engine has them. */
#include <mpi.h>
#include <string.h>

#include "bench_hosts.h"
#include "core/memory.h"
#include "core/sizes.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define CHECK_STRIDE ((size_t)4099)
/* Of a side's one measurement: short collectives are called several times. */
#define CALLS_BYTES (16 * MIB)
#define CALLS_MAX 64
/* From so many bytes on, what the memory allows is measured: smaller buffers stay in caches. */
#define LIMIT_BYTES (16 * MIB)
/* From so many bytes on, bench_long_repetitions. */
#define LONG_BYTES (128 * MIB)

static const uint32_t rank_counts[] = {2, 4};
#define RANKS_MAX 256

/* Ways of a limit; the fastest counts. */
#define LIMITS 3
/* Between use and prefetch where it asks for memory ahead. */
#define AHEAD_BYTES 2048

enum { OUR_SEND, OUR_RECV, MPI_SEND, MPI_RECV, LIMIT_RECV, BUFFERS };

typedef struct comm_buffer {
    float *data;
    size_t bytes;
    bool shared; /* by all ranks, which map it */
} comm_buffer;

/* One collective of one size, on all ranks. MPI's receive buffer holds all of what is sent too, for
 * MPI_Allreduce. */
typedef struct comm_run {
    zero_world *world;
    zi_stream *host;
    zi_collective job; /* ours; count a rank */
    bool in_place;     /* each rank's shard is in both receive buffers from the start */
    uint32_t calls;    /* of one measurement */
    size_t send_count;
    size_t recv_count;
    comm_buffer buffers[BUFFERS];
    const float *mpi_got;            /* this rank's result of MPI's last form */
    const float *sources[RANKS_MAX]; /* by rank: what this rank reads of it, mapped here */
    int shares[RANKS_MAX];           /* for MPI_Reduce_scatter */
} comm_run;

/* Element `i` of rank `rank`'s send buffer. */
static float value_of(uint32_t rank, size_t i)
{
    return (float)((i * 7 + rank * 13) % 255) - 127.0f;
}

/* A call that stands for a collective: of a side, in one of its ways. 0, or 1 after bench_fail. */
typedef int (*comm_call)(comm_run *run, uint32_t way);

typedef struct comm_side {
    comm_run *run;
    comm_call call;
    uint32_t way;
} comm_side;

/* Seconds a call, from the first rank's start to the last one's end. The ranks are processes of one
 * host and read one clock. With more ranks than cores a rank may begin after another has ended: its
 * own time alone would leave out that it waited. */
static double time_calls(const comm_side *side)
{
    (void)MPI_Barrier(MPI_COMM_WORLD);
    double own[2] = {-bench_now(), 0.0};
    double all[2] = {0.0, 0.0};
    for (uint32_t call = 0; call < side->run->calls; call++) {
        if (side->call(side->run, side->way) != 0) {
            return -1.0;
        }
    }
    own[1] = bench_now();
    if (MPI_Allreduce(own, all, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD) != MPI_SUCCESS) {
        (void)bench_fail("MPI_Allreduce failed");
        return -1.0;
    }
    return (all[1] + all[0]) / side->run->calls;
}

/* Of a call that follows one of the same side: whatever another side has left in the caches to be
 * written back is charged to nobody. */
static double run_side(void *argument)
{
    const double first = time_calls(argument);
    return first < 0.0 ? first : time_calls(argument);
}

static int call_ours(comm_run *run, uint32_t way)
{
    (void)way;
    return zi_group_submit(run->world->coordination, run->host, &run->job, 1) == ZERO_OK
               ? 0
               : bench_fail_zero("the library's collective");
}

/* MPI's forms of a reduce-scatter. After MPI_Allreduce all of the sum is everywhere, and each rank
 * takes its part where it lies. */
static int call_mpi_reduce(comm_run *run, uint32_t form)
{
    const int count = (int)run->job.count;
    int code = MPI_SUCCESS;
    run->mpi_got = run->buffers[MPI_RECV].data;
    if (form == 0) {
        code = MPI_Reduce_scatter_block(run->buffers[MPI_SEND].data, run->buffers[MPI_RECV].data,
                                        count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (form == 1) {
        code = MPI_Reduce_scatter(run->buffers[MPI_SEND].data, run->buffers[MPI_RECV].data,
                                  run->shares, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else {
        code = MPI_Allreduce(run->buffers[MPI_SEND].data, run->buffers[MPI_RECV].data,
                             (int)run->send_count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        run->mpi_got += zero_world_rank(run->world) * run->job.count;
    }
    static const char *const names[] = {"MPI_Reduce_scatter_block", "MPI_Reduce_scatter",
                                        "MPI_Allreduce"};
    return code == MPI_SUCCESS ? 0 : bench_fail("%s: MPI error %d", names[form], code);
}

static int call_mpi_gather(comm_run *run, uint32_t form)
{
    const int count = (int)run->job.count;
    const void *send = run->in_place ? MPI_IN_PLACE : run->buffers[MPI_SEND].data;
    const int code = MPI_Allgather(send, count, MPI_FLOAT, run->buffers[MPI_RECV].data, count,
                                   MPI_FLOAT, MPI_COMM_WORLD);
    (void)form;
    run->mpi_got = run->buffers[MPI_RECV].data;
    return code == MPI_SUCCESS ? 0 : bench_fail("MPI_Allgather: MPI error %d", code);
}

/* The sum of the sources in their order, from +0 on. past_caches: how it is stored; ahead: bytes
 * between use and prefetch, 0: none. */
static inline void sum_lines(float *target, const float *const *sources, size_t source_count,
                             size_t count, bool past_caches, size_t ahead)
{
#if defined(__SSE2__)
    for (size_t i = 0; i < count; i += 16) {
        __m128 line[4] = {{0.0f}};
        for (size_t k = 0; k < source_count; k++) {
            const float *from = sources[k] + i;
            if (ahead != 0) {
                __builtin_prefetch((const void *)((uintptr_t)from + ahead), 0, 2);
            }
            for (int j = 0; j < 4; j++) {
                line[j] = _mm_add_ps(line[j], _mm_load_ps(from + 4 * j));
            }
        }
        for (int j = 0; j < 4 && past_caches; j++) {
            _mm_stream_ps(target + i + 4 * j, line[j]);
        }
        for (int j = 0; j < 4 && !past_caches; j++) {
            _mm_store_ps(target + i + 4 * j, line[j]);
        }
    }
    _mm_sfence();
#else
    for (size_t i = 0; i < count; i++) {
        float sum = 0.0f;
        for (size_t k = 0; k < source_count; k++) {
            sum += sources[k][i];
        }
        target[i] = sum;
    }
    (void)past_caches;
    (void)ahead;
#endif
}

static int call_limit_reduce(comm_run *run, uint32_t way)
{
    sum_lines(run->buffers[LIMIT_RECV].data, run->sources, zero_world_size(run->world),
              run->job.count, way < 2, way != 1 ? AHEAD_BYTES : 0);
    return 0;
}

static int call_limit_gather(comm_run *run, uint32_t way)
{
    const uint32_t size = zero_world_size(run->world);
    const uint32_t own = zero_world_rank(run->world);
    const size_t count = run->job.count;
    const zi_device *device = &run->world->device;
    for (uint32_t step = 1; step <= size - run->in_place; step++) {
        const uint32_t rank = (own + step) % size;
        float *target = run->buffers[LIMIT_RECV].data + rank * count;
        if (way == 0) {
            (void)device->ops->copy(device->self, run->host, target, run->sources[rank],
                                    count * sizeof *target);
        } else if (way == 1) {
            sum_lines(target, &run->sources[rank], 1, count, true, 0);
        } else {
            memcpy(target, run->sources[rank], count * sizeof *target);
        }
    }
    return 0;
}

/* The value that element `i` of the receive buffers must have. */
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

static int check_results(const comm_run *run, bool limited)
{
    const float *ours = run->job.recv;
    if (memcmp(ours, run->mpi_got, run->recv_count * sizeof *ours) != 0) {
        return bench_fail("the library's result and MPI's differ");
    }
    if (limited &&
        memcmp(ours, run->buffers[LIMIT_RECV].data, run->recv_count * sizeof *ours) != 0) {
        return bench_fail("the library's result and the limit's differ");
    }
    for (size_t i = 0; i < run->recv_count; i += CHECK_STRIDE) {
        if (ours[i] < expected(run, i) || ours[i] > expected(run, i)) {
            return bench_fail("element %zu is %g instead of %g", i, (double)ours[i],
                              (double)expected(run, i));
        }
    }
    return 0;
}

/* This rank's values, in what each side sends or holds from the start. */
static void fill(const comm_run *run)
{
    const uint32_t rank = zero_world_rank(run->world);
    const size_t begin = rank * run->job.count;
    float *ours = run->buffers[OUR_SEND].data;
    float *theirs = run->buffers[MPI_SEND].data;
    if (run->in_place) {
        ours = run->buffers[OUR_RECV].data + begin;
        theirs = run->buffers[MPI_RECV].data + begin;
    }
    for (size_t i = 0; i < run->send_count; i++) {
        ours[i] = theirs[i] = value_of(rank, i);
    }
    if (run->in_place) {
        memcpy(run->buffers[LIMIT_RECV].data + begin, ours, run->send_count * sizeof *ours);
    }
}

static const bench_stat *fastest(const bench_stat *stats, uint32_t count)
{
    const bench_stat *best = stats;
    for (uint32_t i = 1; i < count; i++) {
        best = stats[i].median < best->median ? &stats[i] : best;
    }
    return best;
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

/* The sides that a kind of collective is measured against: `forms` of MPI's, of which the fastest
 * counts. */
typedef struct comm_sides {
    const char *vs_mpi;
    const char *vs_limit;
    uint32_t forms;
    comm_call mpi;
    comm_call limit;
} comm_sides;

static const comm_sides reduce_sides = {"reduce_scatter_vs_mpi", "reduce_scatter_vs_limit", 3,
                                        call_mpi_reduce, call_limit_reduce};
static const comm_sides gather_sides = {"all_gather_vs_mpi", "all_gather_vs_limit", 1,
                                        call_mpi_gather, call_limit_gather};

/* Measure one collective whose buffers are there and filled. */
static int measure(comm_run *run, const bench_options *options, bench_report *report,
                   const char *name)
{
    const comm_sides *what = run->job.kind == ZI_ALL_GATHER ? &gather_sides : &reduce_sides;
    const size_t bytes = zi_max_u64(run->send_count, run->recv_count) * sizeof(float);
    const bool limited = bytes >= LIMIT_BYTES || options->scale == BENCH_TINY;
    const uint32_t repetitions =
        bytes >= LONG_BYTES ? bench_long_repetitions(options) : options->repetitions;
    const uint32_t count = 1 + what->forms + (limited ? LIMITS : 0);
    comm_side list[BENCH_SIDES_MAX] = {{run, call_ours, 0}};
    bench_side sides[BENCH_SIDES_MAX] = {{run_side, &list[0]}};
    bench_stat stats[BENCH_SIDES_MAX];
    for (uint32_t i = 1; i < count; i++) {
        const bool mpi = i <= what->forms;
        list[i] =
            (comm_side){run, mpi ? what->mpi : what->limit, mpi ? i - 1 : i - 1 - what->forms};
        sides[i] = (bench_side){run_side, &list[i]};
    }
    if (bench_interleave(sides, count, repetitions, stats) != 0 ||
        check_results(run, limited) != 0) {
        return 1;
    }
    if (zero_world_rank(run->world) != 0) {
        return 0;
    }
    if (bench_add_times(report, what->vs_mpi, name, &stats[0], fastest(&stats[1], what->forms)) !=
        0) {
        return 1;
    }
    return limited && bench_add_times(report, what->vs_limit, name, &stats[0],
                                      fastest(&stats[1 + what->forms], LIMITS)) != 0;
}

/* Memory as in an engine: shards and gradient slots are shared, the slots that units are gathered
 * to are not. The limit's is as ours, MPI's this rank's own. */
static void lay_out(comm_run *run, const comm_case *kind, size_t bytes)
{
    const uint32_t size = zero_world_size(run->world);
    const bool gather = kind->kind == ZI_ALL_GATHER;
    const size_t count = bytes / sizeof(float) / size / 64 * 64;
    run->in_place = kind->in_place;
    run->calls = (uint32_t)zi_min_u64(CALLS_MAX, zi_max_u64(1, CALLS_BYTES / bytes));
    run->send_count = gather ? count : count * size;
    run->recv_count = gather ? count * size : count;
    run->job = (zi_collective){.kind = kind->kind,
                               .flags = gather ? 0 : ZI_COLLECTIVE_EXACT,
                               .send_dtype = ZERO_DTYPE_F32,
                               .recv_dtype = ZERO_DTYPE_F32,
                               .count = count};
    for (int i = 0; i < BUFFERS; i++) {
        const bool receives = i == OUR_RECV || i == LIMIT_RECV;
        const bool sends = i == OUR_SEND || i == MPI_SEND || (i == MPI_RECV && !gather);
        const size_t elements = sends ? run->send_count : run->recv_count;
        run->buffers[i] =
            (comm_buffer){.bytes = zi_align_up(elements * sizeof(float), ZI_PAGE_BYTES),
                          .shared = i == OUR_SEND || (receives && (!gather || kind->in_place))};
    }
}

static int make_buffers(comm_run *run)
{
    const zi_device *device = &run->world->device;
    zi_comm *comm = run->world->comm;
    int failed = BENCH_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &run->host));
    for (int i = 0; i < BUFFERS && !failed; i++) {
        comm_buffer *buffer = &run->buffers[i];
        void *data = NULL;
        failed = buffer->shared
                     ? BENCH_TRY(comm->ops->memory_alloc(comm, buffer->bytes, &data))
                     : BENCH_TRY(device->ops->memory_alloc(device->self, buffer->bytes, &data));
        buffer->data = data;
    }
    return failed;
}

static void free_buffers(comm_run *run)
{
    zero_world *world = run->world;
    for (int i = 0; i < BUFFERS; i++) {
        const comm_buffer *buffer = &run->buffers[i];
        if (buffer->data != NULL && buffer->shared) {
            world->comm->ops->memory_free(world->comm, buffer->data, buffer->bytes);
        } else if (buffer->data != NULL) {
            world->device.ops->memory_free(world->device.self, buffer->data, buffer->bytes);
        }
    }
}

/* The parts of shared memory lie one after the other in every rank's mapping, by rank. */
static void set_pointers(comm_run *run)
{
    const uint32_t own = zero_world_rank(run->world);
    const size_t count = run->job.count;
    const comm_buffer *shared = &run->buffers[run->in_place ? OUR_RECV : OUR_SEND];
    const unsigned char *first = (const unsigned char *)shared->data - own * shared->bytes;
    run->job.recv = run->buffers[OUR_RECV].data;
    run->job.send =
        run->in_place ? run->buffers[OUR_RECV].data + own * count : run->buffers[OUR_SEND].data;
    for (uint32_t rank = 0; rank < zero_world_size(run->world); rank++) {
        const void *theirs = first + rank * shared->bytes;
        run->shares[rank] = (int)count;
        run->sources[rank] = theirs;
        if (run->in_place) {
            run->sources[rank] += rank * count;
        } else if (run->job.kind == ZI_REDUCE_SCATTER) {
            run->sources[rank] += own * count;
        }
    }
}

/* One collective over a buffer of `bytes` in all: the whole send buffer of a reduce-scatter, the
 * whole receive buffer of an all-gather. */
static int run_case(zero_world *world, const comm_case *kind, size_t bytes,
                    const bench_options *options, bench_report *report)
{
    char name[64];
    const bool whole = bytes >= MIB;
    (void)snprintf(name, sizeof name, "%zu %s, %u ranks%s", bytes / (whole ? MIB : KIB),
                   whole ? "MiB" : "KiB", zero_world_size(world), kind->note);
    if (!bench_wants(options, name)) {
        return 0;
    }
    comm_run run = {.world = world};
    lay_out(&run, kind, bytes);
    int failed = make_buffers(&run);
    if (!failed) {
        set_pointers(&run);
        fill(&run);
        failed = measure(&run, options, report, name);
    }
    /* Nobody may still be reading. */
    failed = failed || BENCH_TRY(zero_world_barrier(world));
    free_buffers(&run);
    return failed;
}

/* As one of the ranks: all sizes of both collectives. */
static int run_rank(const bench_options *options, bench_report *report)
{
    static const struct {
        size_t count;
        size_t sizes[5];
    } scales[] = {
        {5, {64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB}}, {2, {MIB, 64 * MIB}}, {1, {MIB}}};
    const size_t *sizes = scales[options->scale].sizes;
    const size_t case_count = sizeof cases / sizeof cases[0];
    zero_world *world = NULL;
    if (BENCH_TRY(zero_world_create_launched(0, &world))) {
        return 1;
    }
    const bool one_host = world->comm->local_size == world->comm->size;
    int failed = 0;
    if (world->comm->size > RANKS_MAX) {
        failed = bench_fail("%u ranks are more than %d", world->comm->size, RANKS_MAX);
    }
    const size_t count = one_host ? scales[options->scale].count * case_count : 0;
    for (size_t i = 0; i < count && !failed; i++) {
        failed = run_case(world, &cases[i % case_count], sizes[i / case_count], options, report);
    }
    failed = failed || bench_hosts(world, options, report);
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
            return bench_skip_comm(report, "one rank has nothing to send");
        }
        if (bench_spawn_ranks(options, "comm", ranks, report, &missing) != 0) {
            return 1;
        }
        if (missing) {
            return bench_skip_comm(report, "there is no mpirun");
        }
        if (options->ranks != 0) {
            break;
        }
    }
    return 0;
}
