/* Owns stage3_vs_stage0 and hooks_vs_direct on a GPU. Two sides in every rank take turns, and all
 * ranks share one GPU: an engine at stage 3, and one at stage 0 or steps without an engine. Forward
 * and backward are left out or are copies inside the GPU's memory, so that what differs between the
 * sides is what the library does. Invariant: a ratio is reported only when both sides end with the
 * same parameters, to the bit, on every rank. */
#include <stdlib.h>
#include <string.h>

#include "bench_gpu.h"
#include "bench_gpu_clock.h"
#include "bench_gpu_steps.h"
#include "zero/cuda.h"
#include "zero/zero.h"

#define DEADLINE_MS 120000
#define HASHED_MAX ((size_t)1 << 20) /* elements of a tensor that are compared */

enum { REFERENCE, STAGE_3, SIDES };

/* What stands for forward and backward. */
typedef enum steps_compute { NO_COMPUTE, COPIES, LONG_COPIES } steps_compute;

/* By so much they are longer: 39 GiB a step are 20 ms at the 4.3 TB/s of an H200, reckoned to be
 * less than a training step of 124 M parameters and 16 Ki tokens. */
#define LONG 8

static const gpu_steps_shape shapes[] = {
    [BENCH_FULL] = {"124 M parameters", 50257 * 768, 12 * 768 * 768 + 13 * 768, 13, 10,
                    (size_t)128 << 20},
    [BENCH_QUICK] = {"124 M parameters", 50257 * 768, 12 * 768 * 768 + 13 * 768, 13, 3,
                     (size_t)128 << 20},
    [BENCH_TINY] = {"20 K parameters", 5000, 3777, 5, 1, (size_t)16 << 10},
};

/* What all ranks share. */
typedef struct steps_job {
    const bench_options *options;
    bench_report *report;
    const gpu_steps_shape *shape;
    uint32_t ranks;
    steps_compute compute;
    bool direct; /* the reference has no engine */
    int failed;  /* rank 0's verdict */
} steps_job;

/* One side on one rank: an engine, or none. */
typedef struct steps_side {
    const steps_job *job;
    zero_world *world;
    zero_engine *engine;
    gpu_direct *direct;
    const gpu_steps_room *room;
    uint64_t hash; /* over the parameters at the end */
} steps_side;

static size_t grads_bytes(const gpu_steps_shape *shape)
{
    const uint64_t count = shape->first_count > shape->count ? shape->first_count : shape->count;
    return count * zero_dtype_bytes(ZERO_DTYPE_BF16);
}

static zero_status describe(const gpu_steps_shape *shape, zero_model *model)
{
    zero_status status = ZERO_OK;
    for (uint32_t u = 0; u < shape->units && status == ZERO_OK; u++) {
        char name[32];
        uint32_t unit = 0;
        uint32_t tensor = 0;
        (void)snprintf(name, sizeof name, "unit%u", u);
        const zero_tensor_desc desc = {.name = name,
                                       .shape = {u == 0 ? shape->first_count : shape->count},
                                       .dims = 1,
                                       .dtype = ZERO_DTYPE_BF16};
        status = zero_unit_add(model, name, &unit);
        if (status == ZERO_OK) {
            status = zero_tensor_add(model, unit, &desc, &tensor);
        }
    }
    return status;
}

void gpu_steps_fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t mixed = (first + i + tensor) * UINT64_C(0x9E3779B97F4A7C15);
        values[i] = (float)(int32_t)(mixed >> 40) * 0x1p-26f;
    }
}

zero_status gpu_steps_check(cudaError_t code, const char *call)
{
    return bench_gpu_check(code, call) == 0 ? ZERO_OK : ZERO_DEVICE;
}

zero_status gpu_steps_compute(const gpu_steps_room *room, uint32_t times)
{
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; room->traffic_bytes != 0 && i < times && status == ZERO_OK; i++) {
        status =
            gpu_steps_check(cudaMemcpyAsync(room->traffic[1], room->traffic[0], room->traffic_bytes,
                                            cudaMemcpyDeviceToDevice, room->stream),
                            "cudaMemcpyAsync");
    }
    return status;
}

static zero_status forward(const steps_side *side, uint32_t unit)
{
    const zero_stream stream = zero_stream_cuda(side->room->stream);
    zero_status status = zero_unit_acquire(side->engine, unit, ZERO_PASS_FORWARD, stream, NULL);
    if (status == ZERO_OK) {
        status = gpu_steps_compute(side->room, 1);
    }
    return status == ZERO_OK ? zero_unit_release(side->engine, unit, stream) : status;
}

/* With one micro-step and no shared tensors a gradient begins at zero, so that copying is adding.
 */
static zero_status write_gradient(const steps_side *side, const zero_view *grad)
{
    return gpu_steps_check(cudaMemcpyAsync(grad->data, side->room->grads,
                                           grad->count * zero_dtype_bytes(grad->dtype),
                                           cudaMemcpyDeviceToDevice, side->room->stream),
                           "cudaMemcpyAsync");
}

static zero_status backward(const steps_side *side, uint32_t unit)
{
    const zero_stream stream = zero_stream_cuda(side->room->stream);
    const zero_unit_view *view = NULL;
    zero_status status = zero_unit_acquire(side->engine, unit, ZERO_PASS_BACKWARD, stream, &view);
    if (status == ZERO_OK) {
        status = gpu_steps_compute(side->room, 2);
    }
    if (status == ZERO_OK) {
        status = write_gradient(side, &view->grads[0]);
    }
    return status == ZERO_OK ? zero_unit_release(side->engine, unit, stream) : status;
}

zero_step_params gpu_steps_params(void)
{
    zero_step_params params = zero_step_params_init();
    params.hyper.adamw.weight_decay = 0.01f;
    params.max_norm = 1.0f;
    return params;
}

static zero_status take_step(const steps_side *side)
{
    const zero_step_params params = gpu_steps_params();
    const uint32_t units = side->job->shape->units;
    zero_status status = zero_micro_begin(side->engine, 1);
    for (uint32_t unit = 0; unit < units && status == ZERO_OK; unit++) {
        status = forward(side, unit);
    }
    for (uint32_t unit = units; unit-- > 0 && status == ZERO_OK;) {
        status = backward(side, unit);
    }
    if (status == ZERO_OK) {
        status = zero_micro_end(side->engine);
    }
    const zero_stream stream = zero_stream_cuda(side->room->stream);
    return status == ZERO_OK ? zero_step(side->engine, &params, stream) : status;
}

/* Seconds a step, by the host's clock: what counts ends on several streams of several ranks. */
static double run_side(void *argument)
{
    const steps_side *side = argument;
    zero_status status = zero_world_barrier(side->world);
    const double start = bench_now();
    for (uint32_t step = 0; step < side->job->shape->steps && status == ZERO_OK; step++) {
        status = side->direct != NULL ? gpu_direct_step(side->direct) : take_step(side);
    }
    if (status == ZERO_OK && side->direct == NULL) {
        uint64_t first = 0;
        zero_view view = {0};
        status = zero_shard_view(side->engine, 0, ZERO_ROLE_PARAM, &first, &view);
    }
    if (status == ZERO_OK) {
        status =
            gpu_steps_check(cudaStreamSynchronize(side->room->stream), "cudaStreamSynchronize");
    }
    if (status == ZERO_OK) {
        status = zero_world_barrier(side->world);
    }
    if (status != ZERO_OK) {
        (void)bench_fail_zero("gpu: step");
        return -1.0;
    }
    return (bench_now() - start) / side->job->shape->steps;
}

static uint64_t hash_values(uint64_t hash, const uint16_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ values[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return hash;
}

/* Parameters from the GPU, through memory of the host. */
static zero_status hash_params(steps_side *side, const void *params, uint64_t all, uint16_t *values)
{
    const size_t count = all < HASHED_MAX ? all : HASHED_MAX;
    const cudaStream_t stream = side->room->stream;
    zero_status status = gpu_steps_check(
        cudaMemcpyAsync(values, params, count * sizeof *values, cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
    if (status == ZERO_OK) {
        status = gpu_steps_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    }
    if (status == ZERO_OK) {
        side->hash = hash_values(side->hash, values, count);
    }
    return status;
}

static zero_status hash_unit(steps_side *side, uint32_t unit, uint16_t *values)
{
    if (side->direct != NULL) {
        uint64_t count = 0;
        const void *params = gpu_direct_params(side->direct, unit, &count);
        return hash_params(side, params, count, values);
    }
    const zero_stream stream = zero_stream_cuda(side->room->stream);
    const zero_unit_view *view = NULL;
    zero_status status = zero_unit_acquire(side->engine, unit, ZERO_PASS_EVAL, stream, &view);
    if (status == ZERO_OK) {
        status = hash_params(side, view->params[0].data, view->params[0].count, values);
    }
    return status == ZERO_OK ? zero_unit_release(side->engine, unit, stream) : status;
}

/* Every rank's hashes of both sides on rank 0, compared there. */
static zero_status compare(steps_side *sides, steps_job *job)
{
    const char *reference = job->direct ? "without an engine" : "at stage 0";
    uint64_t own[SIDES] = {0};
    uint16_t *values = calloc(HASHED_MAX, sizeof *values);
    uint64_t *all = calloc((size_t)job->ranks * SIDES, sizeof *all);
    zero_status status = values != NULL && all != NULL ? ZERO_OK : ZERO_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < SIDES; i++) {
        for (uint32_t unit = 0; unit < job->shape->units && status == ZERO_OK; unit++) {
            status = hash_unit(&sides[i], unit, values);
        }
        own[i] = sides[i].hash;
    }
    if (status == ZERO_OK) {
        status = zero_world_gather(sides[0].world, own, all, sizeof own);
    }
    for (uint32_t i = 0; i < job->ranks * SIDES && status == ZERO_OK; i++) {
        if (all[i] != all[0] && zero_world_rank(sides[0].world) == 0) {
            job->failed =
                bench_fail("gpu: parameters of rank %u %s differ from those of rank 0 %s",
                           i / SIDES, i % SIDES == STAGE_3 ? "at stage 3" : reference, reference);
        }
    }
    free(values);
    free(all);
    return status;
}

static int add_row(const steps_job *job, const char *name, const bench_stat *stats)
{
    return job->failed ||
           bench_add_times(job->report, job->direct ? "hooks_vs_direct" : "stage3_vs_stage0", name,
                           &stats[STAGE_3], &stats[REFERENCE]);
}

static void case_name(const steps_job *job, char *name, size_t name_bytes)
{
    static const char *const computes[] = {"no compute", "copies as compute",
                                           "long copies as compute"};
    (void)snprintf(name, name_bytes, "stage 3, %u rank%s on one GPU, %s, %s", job->ranks,
                   job->ranks == 1 ? "" : "s", job->shape->name, computes[job->compute]);
}

static zero_status open_room(const steps_job *job, uint32_t rank, gpu_steps_room *room)
{
    const size_t bytes = grads_bytes(job->shape);
    const size_t factors[] = {[NO_COMPUTE] = 0, [COPIES] = 1, [LONG_COPIES] = LONG};
    const size_t traffic_bytes = job->shape->traffic_bytes * factors[job->compute];
    uint16_t *values = malloc(bytes);
    zero_status status = values != NULL ? ZERO_OK : ZERO_OUT_OF_MEMORY;
    for (size_t i = 0; i < bytes / sizeof *values && status == ZERO_OK; i++) {
        /* bf16 of 2^-10 to 2^-9, either sign: 0x3a80 and up. */
        const uint64_t mixed = (i + 1 + rank * UINT64_C(977)) * UINT64_C(0x9E3779B97F4A7C15);
        values[i] = (uint16_t)(0x3a80u | (mixed >> 57) | (mixed >> 40 & 0x8000u));
    }
    if (status == ZERO_OK) {
        status = gpu_steps_check(cudaStreamCreateWithFlags(&room->stream, cudaStreamNonBlocking),
                                 "cudaStreamCreateWithFlags");
    }
    void *made[3] = {NULL, NULL, NULL};
    const size_t made_bytes[3] = {bytes, traffic_bytes, traffic_bytes};
    for (uint32_t i = 0; i < 3 && made_bytes[i] != 0 && status == ZERO_OK; i++) {
        status = gpu_steps_check(cudaMalloc(&made[i], made_bytes[i]), "cudaMalloc");
    }
    room->grads = made[0];
    room->traffic[0] = made[1];
    room->traffic[1] = made[2];
    room->traffic_bytes = traffic_bytes;
    if (status == ZERO_OK) {
        status = gpu_steps_check(
            cudaMemcpyAsync(room->grads, values, bytes, cudaMemcpyHostToDevice, room->stream),
            "cudaMemcpyAsync");
    }
    if (status == ZERO_OK && traffic_bytes != 0) {
        status =
            gpu_steps_check(cudaMemsetAsync(room->traffic[0], 0x5a, traffic_bytes, room->stream),
                            "cudaMemsetAsync");
    }
    if (status == ZERO_OK) {
        status = gpu_steps_check(cudaStreamSynchronize(room->stream), "cudaStreamSynchronize");
    }
    free(values);
    return status;
}

static void close_room(gpu_steps_room *room)
{
    if (room->stream != NULL) {
        (void)cudaStreamSynchronize(room->stream);
        (void)cudaStreamDestroy(room->stream);
    }
    (void)cudaFree(room->grads);
    (void)cudaFree(room->traffic[0]);
    (void)cudaFree(room->traffic[1]);
}

static zero_status make_sides(const steps_job *job, zero_world *world, steps_side *sides)
{
    static const zero_stage stages[SIDES] = {ZERO_STAGE_0, ZERO_STAGE_3};
    zero_model *model = NULL;
    zero_status status = zero_model_create(&model);
    if (status == ZERO_OK) {
        status = describe(job->shape, model);
    }
    if (status == ZERO_OK && job->direct) {
        status = gpu_direct_create(job->shape, sides[REFERENCE].room, &sides[REFERENCE].direct);
    }
    for (uint32_t i = job->direct ? STAGE_3 : 0; i < SIDES && status == ZERO_OK; i++) {
        zero_engine_options options = zero_engine_options_init();
        zero_tuning tuning = zero_tuning_init();
        options.tuning = &tuning;
        options.stage = stages[i];
        options.device = ZERO_DEVICE_CUDA;
        /* Beside none, backward is to write where the sums are, as it would without an engine. */
        tuning.accum_dtype = job->direct ? ZERO_DTYPE_BF16 : ZERO_DTYPE_DEFAULT;
        status = zero_engine_create(world, model, &options, &sides[i].engine);
        if (status == ZERO_OK) {
            status = zero_engine_fill(sides[i].engine, gpu_steps_fill, NULL);
        }
    }
    zero_model_destroy(model);
    return status;
}

/* Hooks of one rank wait for nothing on the host, and are not to be timed while they do. */
static int check_waits(const zero_engine *engine)
{
    zero_stats stats = zero_stats_init();
    if (zero_engine_stats(engine, &stats) != ZERO_OK) {
        return bench_fail_zero("reading an engine's counters");
    }
    return stats.acquire_wait_ns == 0 && stats.grad_wait_ns == 0
               ? 0
               : bench_fail("gpu: hooks waited on the host for %llu ns",
                            (unsigned long long)(stats.acquire_wait_ns + stats.grad_wait_ns));
}

static zero_status measure(steps_job *job, steps_side *sides)
{
    bench_side runs[SIDES];
    bench_stat stats[SIDES];
    for (uint32_t i = 0; i < SIDES; i++) {
        runs[i] = (bench_side){run_side, &sides[i]};
    }
    if (bench_interleave(runs, SIDES, job->options->repetitions, stats) != 0) {
        return ZERO_STATE;
    }
    if (job->direct && check_waits(sides[STAGE_3].engine) != 0) {
        return ZERO_STATE;
    }
    const zero_status status = compare(sides, job);
    if (status == ZERO_OK && zero_world_rank(sides[0].world) == 0) {
        char name[128];
        case_name(job, name, sizeof name);
        job->failed = add_row(job, name, stats);
    }
    return status;
}

static zero_status run_rank(zero_world *world, void *user)
{
    steps_job *job = user;
    gpu_steps_room room = {0};
    steps_side sides[SIDES];
    for (uint32_t i = 0; i < SIDES; i++) {
        sides[i] = (steps_side){.job = job, .world = world, .room = &room};
    }
    zero_status status = open_room(job, zero_world_rank(world), &room);
    if (status == ZERO_OK) {
        status = make_sides(job, world, sides);
    }
    if (status == ZERO_OK) {
        status = measure(job, sides);
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        zero_engine_destroy(sides[i].engine);
        gpu_direct_destroy(sides[i].direct);
    }
    close_room(&room);
    return status;
}

static int run_job(const bench_options *options, bench_report *report, steps_job *job)
{
    job->options = options;
    job->report = report;
    job->shape = &shapes[options->scale];
    char name[128];
    case_name(job, name, sizeof name);
    if (!bench_wants(options, name) || (options->ranks != 0 && options->ranks != job->ranks)) {
        return 0;
    }
    if (zero_world_run(job->ranks, DEADLINE_MS, run_rank, job) != ZERO_OK) {
        return bench_fail_zero(name);
    }
    return job->failed;
}

int bench_gpu_steps(const bench_options *options, bench_report *report)
{
    static const uint32_t ranks[] = {1, 2, 4};
    steps_job hooks = {.ranks = 1, .compute = LONG_COPIES, .direct = true};
    int failed = run_job(options, report, &hooks);
    for (uint32_t i = 0; i < 2 * (sizeof ranks / sizeof ranks[0]); i++) {
        steps_job job = {.ranks = ranks[i / 2], .compute = i % 2 == 1 ? COPIES : NO_COMPUTE};
        failed |= run_job(options, report, &job);
    }
    return failed;
}
