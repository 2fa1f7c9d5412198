/* Owns the calibration of what ranks share: memory, copies, collectives and the CPUs. The ranks are
 * threads of this process, each with a GPU where there are any, and do the same at the same time,
 * so that a figure is what one of them gets while all are busy. Invariant: a time runs from the
 * first rank's start to the last one's end. */
#include <stdlib.h>
#include <string.h>

#include "bench_calibrate.h"
#include "calibrate_fit.h"
#include "comm/comm.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/thread.h"

#define DEADLINE_MS 120000
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
/* All ranks' buffers of one kind. */
#define BYTES_MAX (512 * MIB)
/* So much more with GPUs, whose caches hold 50 MB. */
#define GPU_TIMES 4
/* Sizes of a line, from 4 KiB on, each four times the one before. */
#define SIZES_MAX (CALIBRATE_POINTS_MAX / 2)
#define SIZE_MIN (4 * KIB)
/* Short transfers are repeated within a sample. */
#define CALLS_BYTES (4 * MIB)
#define CALLS_MIN 3
#define CALLS_MAX 256

typedef struct calibrate_rank {
    calibration *all; /* written by rank 0 alone */
    zero_world *world;
    zi_pool *pool; /* its share of the CPUs */
    bool gpu;
    zi_device own;           /* a GPU; zeroed: there is none */
    const zi_device *device; /* that, or the world's */
    zi_kernels kernels;      /* of a GPU */
    zi_group *group;         /* of all ranks, whose batches are on `batches` */
    zi_stream *batches;
    zi_stream *copies;
    zi_event *done;
    calibrate_product *product;
    const char *no_product; /* why there is none */
    size_t bytes;           /* of each buffer */
    unsigned char *source;  /* of the host, as `back` is */
    unsigned char *back;
    unsigned char *target; /* of the device */
    unsigned char *shared; /* that other ranks read */
} calibrate_rank;

/* The work that is timed, on every rank. 0, or 1 after bench_fail. */
typedef int (*calibrate_work)(calibrate_rank *rank, const void *argument);

/* Ranks are threads and read one clock. */
static int time_work(calibrate_rank *rank, calibrate_work work, const void *argument,
                     double *seconds)
{
    double own[2];
    double times[2 * CALIBRATE_RANKS_MAX];
    if (BENCH_TRY(zero_world_barrier(rank->world))) {
        return 1;
    }
    own[0] = bench_now();
    const int failed = work(rank, argument);
    own[1] = bench_now();
    if (failed || BENCH_TRY(zero_world_gather(rank->world, own, times, sizeof own))) {
        return 1;
    }
    for (uint32_t i = 0; i < zero_world_size(rank->world); i++) {
        own[0] = times[2 * i] < own[0] ? times[2 * i] : own[0];
        own[1] = times[2 * i + 1] > own[1] ? times[2 * i + 1] : own[1];
    }
    *seconds = own[1] - own[0];
    return 0;
}

/* Of what is short: a rank's median call, which does not count that it lost its CPU for a while;
 * the mean of all ranks. */
static int time_calls(calibrate_rank *rank, calibrate_work call, const void *argument,
                      uint32_t count, double *seconds)
{
    double own[CALLS_MAX];
    double medians[CALIBRATE_RANKS_MAX];
    int failed = BENCH_TRY(zero_world_barrier(rank->world));
    for (uint32_t i = 0; i < count && !failed; i++) {
        const double start = bench_now();
        failed = call(rank, argument);
        own[i] = bench_now() - start;
    }
    const double median = failed ? 0.0 : bench_stat_of(own, count).median;
    if (failed || BENCH_TRY(zero_world_gather(rank->world, &median, medians, sizeof median))) {
        return 1;
    }
    *seconds = 0.0;
    for (uint32_t i = 0; i < zero_world_size(rank->world); i++) {
        *seconds += medians[i] / zero_world_size(rank->world);
    }
    return 0;
}

static void add(const calibrate_rank *rank, const char *field, double value)
{
    if (zero_world_rank(rank->world) == 0) {
        calibrate_add(rank->all, field, value);
    }
}

static void miss(const calibrate_rank *rank, const char *field, const char *reason)
{
    if (zero_world_rank(rank->world) == 0) {
        calibrate_miss(rank->all, field, reason);
    }
}

/* ---- sizes of transfers ---- */

static uint32_t calls_of(const calibrate_rank *rank, size_t bytes)
{
    static const uint64_t most[] = {CALLS_MAX, CALLS_MAX / 4, 2 * CALLS_MIN};
    const uint64_t wanted = zi_max_u64(CALLS_MIN, CALLS_BYTES / bytes);
    return (uint32_t)zi_min_u64(most[rank->all->scale], wanted);
}

/* Of this many bytes at most. */
static uint32_t size_count(size_t bytes)
{
    uint32_t count = 0;
    while (count < SIZES_MAX && SIZE_MIN << (2 * count) <= bytes) {
        count++;
    }
    return count;
}

/* Until what is on the stream has run. */
static int await(const calibrate_rank *rank, zi_stream *stream)
{
    const zi_device *device = rank->device;
    return BENCH_TRY(device->ops->event_record(device->self, rank->done, stream)) ||
           BENCH_TRY(device->ops->event_wait(device->self, rank->done, NULL));
}

/* ---- memory ---- */

static void copy_share(void *argument, uint32_t share, uint32_t shares)
{
    const calibrate_rank *rank = argument;
    const size_t first = rank->bytes / shares * share;
    memcpy(rank->back + first, rank->source + first, rank->bytes / shares);
}

#define MEMORY_TIMES 4

static int copy_on_host(calibrate_rank *rank, const void *argument)
{
    (void)argument;
    for (uint32_t i = 0; i < MEMORY_TIMES; i++) {
        zi_pool_run(rank->pool, copy_share, rank);
    }
    return 0;
}

static int copy_on_gpu(calibrate_rank *rank, const void *argument)
{
    const zi_device *device = rank->device;
    int failed = 0;
    (void)argument;
    for (uint32_t i = 0; i < MEMORY_TIMES && !failed; i++) {
        failed = BENCH_TRY(
            device->ops->copy(device->self, rank->copies, rank->target, rank->shared, rank->bytes));
    }
    return failed || await(rank, rank->copies);
}

/* Bytes that are read, and as many that are written. */
static int measure_memory(calibrate_rank *rank)
{
    const double moved = 2.0 * MEMORY_TIMES * (double)rank->bytes;
    double host_s = 0.0;
    double gpu_s = 0.0;
    if (time_work(rank, copy_on_host, NULL, &host_s) != 0 ||
        (rank->gpu && time_work(rank, copy_on_gpu, NULL, &gpu_s) != 0)) {
        return 1;
    }
    add(rank, "host_bytes_per_s", moved / host_s * zero_world_size(rank->world));
    add(rank, "device_bytes_per_s", moved / (rank->gpu ? gpu_s : host_s));
    return 0;
}

/* ---- copies, on a stream as an engine's are ---- */

typedef struct copy_way {
    size_t bytes;
    bool to_device;
} copy_way;

static int copy_on_stream(calibrate_rank *rank, const void *argument)
{
    const copy_way *way = argument;
    const zi_device *device = rank->device;
    void *target = way->to_device ? rank->target : rank->back;
    const void *source = way->to_device ? rank->source : rank->target;
    return BENCH_TRY(device->ops->copy(device->self, rank->copies, target, source, way->bytes)) ||
           await(rank, rank->copies);
}

static int measure_copies(calibrate_rank *rank)
{
    calibrate_points points = {0};
    double latency = 0.0;
    double rate = 0.0;
    for (uint32_t i = 0; i < 2 * size_count(rank->bytes); i++) {
        const copy_way way = {SIZE_MIN << (2 * (i / 2)), i % 2 == 0};
        double *seconds = &points.seconds[points.count];
        if (time_calls(rank, copy_on_stream, &way, calls_of(rank, way.bytes), seconds) != 0) {
            return 1;
        }
        points.bytes[points.count++] = (double)way.bytes;
    }
    calibrate_fit(&points, &latency, &rate);
    add(rank, "host_link_bytes_per_s", rate);
    add(rank, "host_link_latency_ns", latency * 1e9);
    return 0;
}

/* ---- collectives ---- */

/* On the host stream it has run when submit returns. */
static int run_collective(calibrate_rank *rank, const void *argument)
{
    return BENCH_TRY(zi_group_submit(rank->group, rank->batches, argument, 1)) ||
           (rank->gpu && await(rank, rank->batches));
}

/* Of `bytes` in all: what is sent of a reduce-scatter, what is received of an all-gather. As in an
 * engine, shards and gradients are where the other ranks can read them. */
static zi_collective collective_of(const calibrate_rank *rank, zi_collective_kind kind,
                                   size_t bytes)
{
    return (zi_collective){.kind = kind,
                           .flags = kind == ZI_REDUCE_SCATTER ? ZI_COLLECTIVE_EXACT : 0,
                           .send_dtype = ZERO_DTYPE_F32,
                           .recv_dtype = ZERO_DTYPE_F32,
                           .count = bytes / sizeof(float) / zero_world_size(rank->world) / 64 * 64,
                           .send = rank->shared,
                           .recv = rank->target};
}

/* Every rank sends its number and 1. */
static int check_result(const calibrate_rank *rank, const zi_collective *job)
{
    const uint32_t size = zero_world_size(rank->world);
    const zi_device *device = rank->device;
    const float *got = (const float *)(const void *)rank->back;
    const bool gather = job->kind == ZI_ALL_GATHER;
    const size_t count = job->count * (gather ? size : 1);
    if (BENCH_TRY(device->ops->copy(device->self, rank->copies, rank->back, job->recv,
                                    count * sizeof *got)) ||
        await(rank, rank->copies) != 0) {
        return 1;
    }
    for (size_t i = 0; i < count; i += 61) {
        const double expected =
            gather ? (double)(i / job->count) + 1.0 : 0.5 * size * ((double)size + 1.0);
        if ((double)got[i] < expected || (double)got[i] > expected) {
            return bench_fail("calibrate: element %zu of a collective is %g instead of %g", i,
                              (double)got[i], expected);
        }
    }
    return 0;
}

/* A ring's terms, as plans count them: each rank sends the parts of all others, a step for each. */
static int measure_collectives(calibrate_rank *rank)
{
    static const zi_collective_kind kinds[] = {ZI_ALL_GATHER, ZI_REDUCE_SCATTER};
    const uint32_t steps = zero_world_size(rank->world) - 1;
    calibrate_points points = {0};
    double latency = 0.0;
    double rate = 0.0;
    for (uint32_t i = 0; i < 2 * size_count(rank->bytes); i++) {
        const size_t bytes = SIZE_MIN << (2 * (i / 2));
        const zi_collective job = collective_of(rank, kinds[i % 2], bytes);
        double seconds = 0.0;
        if (job.count == 0) {
            continue; /* more ranks than elements */
        }
        if (time_calls(rank, run_collective, &job, calls_of(rank, bytes), &seconds) != 0 ||
            check_result(rank, &job) != 0) {
            return 1;
        }
        points.bytes[points.count] = (double)(job.count * sizeof(float)) * steps;
        points.seconds[points.count++] = seconds;
    }
    calibrate_fit(&points, &latency, &rate);
    add(rank, "local_bytes_per_s", rate);
    add(rank, "local_latency_ns", latency * 1e9 / steps);
    return 0;
}

/* ---- matrix products ---- */

typedef struct product_share {
    const calibrate_product *product;
    calibrate_shape shape;
} product_share;

static void multiply_share(void *argument, uint32_t share, uint32_t shares)
{
    const product_share *own = argument;
    calibrate_product_run(own->product, own->shape, share, shares);
}

static int multiply(calibrate_rank *rank, const void *shape)
{
    product_share own = {rank->product, *(const calibrate_shape *)shape};
    if (own.shape == CALIBRATE_HEADS) {
        multiply_share(&own, 0, 1); /* too short to be worth a wake-up */
    } else {
        zi_pool_run(rank->pool, multiply_share, &own);
    }
    return 0;
}

static int measure_products(calibrate_rank *rank)
{
    static const calibrate_shape shapes[] = {CALIBRATE_SQUARE, CALIBRATE_BLOCK, CALIBRATE_HEADS};
    double rates[3] = {0.0, 0.0, 0.0};
    for (int i = 0; i < 3; i++) {
        double seconds = 0.0;
        if (time_work(rank, multiply, &shapes[i], &seconds) != 0) {
            return 1;
        }
        rates[i] = calibrate_product_flops(rank->product, shapes[i]) / seconds;
    }
    const double reached = rates[0] > rates[1] ? rates[0] : rates[1];
    add(rank, "device_flops", reached);
    add(rank, "device_permille", 1000.0 * rates[1] / reached);
    /* The savings of a causal mask may take it beyond what is counted. */
    add(rank, "attention_permille", 1000.0 * (rates[2] < reached ? rates[2] / reached : 1.0));
    return 0;
}

/* ---- all of it ---- */

typedef int (*calibrate_measure)(calibrate_rank *rank);

/* One unmeasured round, then as many as are wanted. */
static int repeat(calibrate_rank *rank, const char *name, calibrate_measure measure)
{
    calibration *all = rank->all;
    calibration *unused = calloc(1, sizeof *unused);
    const bool first = zero_world_rank(rank->world) == 0;
    int failed = unused == NULL && bench_fail("calibrate: no memory left");
    if (!failed) {
        unused->scale = all->scale;
    }
    if (first) {
        bench_progress_case(name);
    }
    for (uint32_t round = 0; round <= all->repetitions && !failed; round++) {
        if (first) {
            bench_progress_round(round, all->repetitions + 1);
        }
        rank->all = round == 0 ? unused : all;
        failed = measure(rank);
    }
    rank->all = all;
    free(unused);
    return failed;
}

static int issue(const calibrate_rank *rank)
{
    if (rank->group->submit_waits) {
        zi_device_issue_on_threads(&rank->own);
    }
    return 0;
}

/* A GPU's own device, kernels and group, as an engine makes them. */
static int open_gpu(calibrate_rank *rank)
{
    zero_world *world = rank->world;
    const zi_transport *transport = NULL;
    uint32_t members[CALIBRATE_RANKS_MAX];
    const zi_group_desc desc = {.kernels = &rank->kernels,
                                .members = members,
                                .size = zero_world_size(world),
                                .name = "calibrate"};
    for (uint32_t i = 0; i < desc.size; i++) {
        members[i] = i;
    }
    rank->device = &rank->own;
    return calibrate_gpu_use(zero_world_rank(world) % rank->all->gpus) ||
           BENCH_TRY(zi_transport_choose(world, ZERO_TRANSPORT_DEFAULT, &transport)) ||
           BENCH_TRY(zi_cuda_device_create(&rank->own)) ||
           BENCH_TRY(zi_cuda_kernels_create(&rank->own, &rank->kernels)) ||
           BENCH_TRY(transport->group_create(world, &desc, &rank->group)) || issue(rank) ||
           BENCH_TRY(rank->own.ops->stream_create(rank->own.self, "batches", &rank->batches));
}

static int open_cpu(calibrate_rank *rank)
{
    rank->device = &rank->world->device;
    rank->group = rank->world->coordination;
    return BENCH_TRY(
        rank->device->ops->stream_wrap(rank->device->self, zero_stream_host(), &rank->batches));
}

static int make_buffers(calibrate_rank *rank)
{
    const zi_device *device = rank->device;
    zi_comm *comm = rank->world->comm;
    void *memory[4] = {NULL};
    const int failed =
        BENCH_TRY(device->ops->host_alloc(device->self, rank->bytes, &memory[0])) ||
        BENCH_TRY(device->ops->host_alloc(device->self, rank->bytes, &memory[1])) ||
        BENCH_TRY(device->ops->memory_alloc(device->self, rank->bytes, &memory[2])) ||
        (rank->gpu ? BENCH_TRY(device->ops->memory_alloc(device->self, rank->bytes, &memory[3]))
                   : BENCH_TRY(comm->ops->memory_alloc(comm, rank->bytes, &memory[3])));
    rank->source = memory[0];
    rank->back = memory[1];
    rank->target = memory[2];
    rank->shared = memory[3];
    for (size_t i = 0; i < rank->bytes / sizeof(float) && !failed; i++) {
        ((float *)memory[0])[i] = (float)zero_world_rank(rank->world) + 1.0f;
    }
    return failed ||
           BENCH_TRY(device->ops->copy(device->self, rank->copies, rank->shared, rank->source,
                                       rank->bytes)) ||
           await(rank, rank->copies);
}

static int open_rank(calibrate_rank *rank)
{
    static const size_t sizes[] = {64 * MIB, 16 * MIB, MIB};
    rank->gpu = rank->all->gpus != 0;
    const size_t times = rank->gpu ? GPU_TIMES : 1;
    const size_t limit = BYTES_MAX / rank->all->ranks / ZI_PAGE_BYTES * ZI_PAGE_BYTES;
    rank->bytes = times * (size_t)zi_min_u64(sizes[rank->all->scale], limit);
    if (BENCH_TRY(zi_pool_create(zero_world_cpus(rank->world), &rank->pool)) ||
        (rank->gpu ? open_gpu(rank) : open_cpu(rank)) != 0 ||
        BENCH_TRY(rank->device->ops->stream_create(rank->device->self, "copies", &rank->copies)) ||
        BENCH_TRY(rank->device->ops->event_create(rank->device->self, &rank->done)) ||
        make_buffers(rank) != 0) {
        return 1;
    }
    rank->no_product = "products of GPUs are not measured; set it by hand";
    if (!rank->gpu) {
        rank->product = calibrate_product_create(rank->all, &rank->no_product);
    }
    return rank->product == NULL && rank->no_product == NULL
               ? bench_fail("calibrate: no memory left for matrices")
               : 0;
}

static void close_buffers(calibrate_rank *rank)
{
    const zi_device *device = rank->device;
    zi_comm *comm = rank->world->comm;
    if (rank->shared != NULL && rank->gpu) {
        device->ops->memory_free(device->self, rank->shared, rank->bytes);
    } else if (rank->shared != NULL) {
        comm->ops->memory_free(comm, rank->shared, rank->bytes);
    }
    if (rank->target != NULL) {
        device->ops->memory_free(device->self, rank->target, rank->bytes);
    }
    if (rank->back != NULL) {
        device->ops->host_free(device->self, rank->back, rank->bytes);
    }
    if (rank->source != NULL) {
        device->ops->host_free(device->self, rank->source, rank->bytes);
    }
}

/* Accepts what is half open. */
static void close_rank(calibrate_rank *rank)
{
    const zi_device *device = rank->device;
    calibrate_product_destroy(rank->product);
    if (device != NULL && device->ops != NULL) {
        device->ops->stream_destroy(device->self, rank->copies);
        if (rank->gpu) {
            device->ops->stream_destroy(device->self, rank->batches);
            zi_group_destroy(rank->group);
        }
        close_buffers(rank);
        device->ops->event_destroy(device->self, rank->done);
    }
    zi_kernels_destroy(&rank->kernels);
    zi_device_destroy(&rank->own);
    zi_pool_destroy(rank->pool);
}

static int measure_rank(calibrate_rank *rank)
{
    static const char one[] = "one rank has nothing to send; give --ranks";
    const bool alone = zero_world_size(rank->world) == 1;
    if (repeat(rank, "memory", measure_memory) != 0 ||
        repeat(rank, "copies", measure_copies) != 0 ||
        (!alone && repeat(rank, "collectives", measure_collectives) != 0)) {
        return 1;
    }
    if (alone) {
        miss(rank, "local_bytes_per_s", one);
        miss(rank, "local_latency_ns", one);
    }
    if (rank->product == NULL) {
        miss(rank, "device_flops", rank->no_product);
        miss(rank, "device_permille", rank->no_product);
        miss(rank, "attention_permille", rank->no_product);
        return 0;
    }
    return repeat(rank, "products", measure_products);
}

static zero_status run_rank(zero_world *world, void *user)
{
    calibrate_rank rank = {.all = user, .world = world};
    const int failed = open_rank(&rank) || measure_rank(&rank) ||
                       /* Nobody may still be reading. */
                       BENCH_TRY(zero_world_barrier(world));
    const zero_status status = bench_rank_status(failed);
    close_rank(&rank);
    return status;
}

int calibrate_ranks(calibration *all)
{
    return zero_world_run(all->ranks, DEADLINE_MS, run_rank, all) == ZERO_OK
               ? 0
               : bench_fail_zero("calibrate");
}
