/* Owns stage3_vs_stage0 on a GPU: two engines in every rank take turns, and all ranks share one
 * GPU. Forward and backward are left out or are copies inside the GPU's memory, so that what
 * differs between the sides is what the library does. Invariant: a ratio is reported only when both
 * stages end with the same parameters, to the bit, on every rank. */
#include <stdlib.h>
#include <string.h>

#include "bench_gpu.h"
#include "bench_gpu_clock.h"
#include "zero/cuda.h"
#include "zero/zero.h"

#define METRIC "stage3_vs_stage0"
#define DEADLINE_MS 120000
#define HASHED_MAX ((size_t)1 << 20) /* elements of a tensor that are compared */

enum { STAGE_0, STAGE_3, SIDES };

/* Units of one size after the first: GPT-2's blocks and its embedding. */
typedef struct steps_shape {
    const char *name;
    uint64_t first_count; /* elements */
    uint64_t count;
    uint32_t units;
    uint32_t steps;       /* of one measurement */
    size_t traffic_bytes; /* copied in a unit's forward, and twice in its backward */
} steps_shape;

static const steps_shape shapes[] = {
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
    const steps_shape *shape;
    uint32_t ranks;
    bool traffic; /* copies stand for forward and backward */
    int failed;   /* rank 0's verdict */
} steps_job;

/* What one rank has on the GPU beside its engines. */
typedef struct steps_room {
    cudaStream_t stream;
    unsigned char *grads; /* what backward makes of the largest unit; the rank's own */
    unsigned char *traffic[2];
} steps_room;

/* One stage on one rank. */
typedef struct steps_side {
    const steps_job *job;
    zero_world *world;
    zero_engine *engine;
    const steps_room *room;
    uint64_t hash; /* over the parameters at the end */
} steps_side;

static size_t grads_bytes(const steps_shape *shape)
{
    const uint64_t count = shape->first_count > shape->count ? shape->first_count : shape->count;
    return count * zero_dtype_bytes(ZERO_DTYPE_BF16);
}

static zero_status describe(const steps_shape *shape, zero_model *model)
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

static void fill_values(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t mixed = (first + i + tensor) * UINT64_C(0x9E3779B97F4A7C15);
        values[i] = (float)(int32_t)(mixed >> 40) * 0x1p-26f;
    }
}

/* A CUDA call within a rank: the bench says what failed, the world that something did. */
static zero_status cuda_status(cudaError_t code, const char *call)
{
    return bench_gpu_check(code, call) == 0 ? ZERO_OK : ZERO_DEVICE;
}

/* What forward (times 1) and backward (times 2) cost the GPU. */
static zero_status compute(const steps_side *side, uint32_t times)
{
    const steps_room *room = side->room;
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; side->job->traffic && i < times && status == ZERO_OK; i++) {
        status = cuda_status(cudaMemcpyAsync(room->traffic[1], room->traffic[0],
                                             side->job->shape->traffic_bytes,
                                             cudaMemcpyDeviceToDevice, room->stream),
                             "cudaMemcpyAsync");
    }
    return status;
}

static zero_status forward(const steps_side *side, uint32_t unit)
{
    const zero_stream stream = zero_stream_cuda(side->room->stream);
    zero_status status = zero_unit_acquire(side->engine, unit, ZERO_PASS_FORWARD, stream);
    if (status == ZERO_OK) {
        status = compute(side, 1);
    }
    return status == ZERO_OK ? zero_unit_release(side->engine, unit, stream) : status;
}

/* With one micro-step and no shared tensors a gradient begins at zero, so that copying is adding.
 */
static zero_status write_gradient(const steps_side *side, uint32_t unit)
{
    zero_view grad = {0};
    zero_status status = zero_tensor_grad(side->engine, unit, &grad);
    if (status == ZERO_OK) {
        status = cuda_status(cudaMemcpyAsync(grad.data, side->room->grads,
                                             grad.count * zero_dtype_bytes(grad.dtype),
                                             cudaMemcpyDeviceToDevice, side->room->stream),
                             "cudaMemcpyAsync");
    }
    return status;
}

static zero_status backward(const steps_side *side, uint32_t unit)
{
    const zero_stream stream = zero_stream_cuda(side->room->stream);
    zero_status status = zero_unit_acquire(side->engine, unit, ZERO_PASS_BACKWARD, stream);
    if (status == ZERO_OK) {
        status = zero_unit_grad_acquire(side->engine, unit, stream);
    }
    if (status == ZERO_OK) {
        status = compute(side, 2);
    }
    if (status == ZERO_OK) {
        status = write_gradient(side, unit);
    }
    if (status == ZERO_OK) {
        status = zero_unit_grad_ready(side->engine, unit, stream);
    }
    return status == ZERO_OK ? zero_unit_release(side->engine, unit, stream) : status;
}

static zero_status take_step(const steps_side *side)
{
    zero_step_params params = zero_step_params_init();
    params.adamw.weight_decay = 0.01f;
    params.max_norm = 1.0f;
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
        status = take_step(side);
    }
    if (status == ZERO_OK) {
        uint64_t first = 0;
        zero_view view = {0};
        status = zero_shard_view(side->engine, 0, ZERO_ROLE_PARAM, &first, &view);
    }
    if (status == ZERO_OK) {
        status = cuda_status(cudaStreamSynchronize(side->room->stream), "cudaStreamSynchronize");
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

/* Of one unit, through memory of the host. */
static zero_status hash_unit(steps_side *side, uint32_t unit, uint16_t *values)
{
    const zero_stream stream = zero_stream_cuda(side->room->stream);
    zero_view view = {0};
    zero_status status = zero_unit_acquire(side->engine, unit, ZERO_PASS_EVAL, stream);
    if (status == ZERO_OK) {
        status = zero_tensor_data(side->engine, unit, &view);
    }
    const size_t count = view.count < HASHED_MAX ? view.count : HASHED_MAX;
    if (status == ZERO_OK) {
        status = cuda_status(cudaMemcpyAsync(values, view.data, count * sizeof *values,
                                             cudaMemcpyDeviceToHost, side->room->stream),
                             "cudaMemcpyAsync");
    }
    if (status == ZERO_OK) {
        status = cuda_status(cudaStreamSynchronize(side->room->stream), "cudaStreamSynchronize");
    }
    if (status == ZERO_OK) {
        side->hash = hash_values(side->hash, values, count);
        status = zero_unit_release(side->engine, unit, stream);
    }
    return status;
}

/* Every rank's hashes of both stages on rank 0, compared there. */
static zero_status compare(steps_side *sides, steps_job *job)
{
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
            job->failed = bench_fail("gpu: parameters of rank %u at stage %u differ from those of "
                                     "rank 0 at stage 0",
                                     i / SIDES, i % SIDES == STAGE_3 ? 3 : 0);
        }
    }
    free(values);
    free(all);
    return status;
}

static int add_row(const steps_job *job, const char *name, const bench_stat *stats)
{
    return job->failed ||
           bench_add_times(job->report, METRIC, name, &stats[STAGE_3], &stats[STAGE_0]);
}

static void case_name(const steps_job *job, char *name, size_t name_bytes)
{
    (void)snprintf(name, name_bytes, "stage 3, %u rank%s on one GPU, %s, %s", job->ranks,
                   job->ranks == 1 ? "" : "s", job->shape->name,
                   job->traffic ? "copies as compute" : "no compute");
}

static zero_status open_room(const steps_job *job, uint32_t rank, steps_room *room)
{
    const size_t bytes = grads_bytes(job->shape);
    const size_t traffic_bytes = job->shape->traffic_bytes;
    uint16_t *values = malloc(bytes);
    zero_status status = values != NULL ? ZERO_OK : ZERO_OUT_OF_MEMORY;
    for (size_t i = 0; i < bytes / sizeof *values && status == ZERO_OK; i++) {
        /* bf16 of 2^-10 to 2^-9, either sign: 0x3a80 and up. */
        const uint64_t mixed = (i + 1 + rank * UINT64_C(977)) * UINT64_C(0x9E3779B97F4A7C15);
        values[i] = (uint16_t)(0x3a80u | (mixed >> 57) | (mixed >> 40 & 0x8000u));
    }
    if (status == ZERO_OK) {
        status = cuda_status(cudaStreamCreateWithFlags(&room->stream, cudaStreamNonBlocking),
                             "cudaStreamCreateWithFlags");
    }
    void *made[3] = {NULL, NULL, NULL};
    const size_t made_bytes[3] = {bytes, traffic_bytes, traffic_bytes};
    for (uint32_t i = 0; i < 3 && status == ZERO_OK; i++) {
        status = cuda_status(cudaMalloc(&made[i], made_bytes[i]), "cudaMalloc");
    }
    room->grads = made[0];
    room->traffic[0] = made[1];
    room->traffic[1] = made[2];
    if (status == ZERO_OK) {
        status = cuda_status(
            cudaMemcpyAsync(room->grads, values, bytes, cudaMemcpyHostToDevice, room->stream),
            "cudaMemcpyAsync");
    }
    if (status == ZERO_OK) {
        status = cuda_status(cudaMemsetAsync(room->traffic[0], 0x5a, traffic_bytes, room->stream),
                             "cudaMemsetAsync");
    }
    if (status == ZERO_OK) {
        status = cuda_status(cudaStreamSynchronize(room->stream), "cudaStreamSynchronize");
    }
    free(values);
    return status;
}

static void close_room(steps_room *room)
{
    if (room->stream != NULL) {
        (void)cudaStreamSynchronize(room->stream);
        (void)cudaStreamDestroy(room->stream);
    }
    (void)cudaFree(room->grads);
    (void)cudaFree(room->traffic[0]);
    (void)cudaFree(room->traffic[1]);
}

static zero_status make_engines(const steps_job *job, zero_world *world, steps_side *sides)
{
    static const zero_stage stages[SIDES] = {ZERO_STAGE_0, ZERO_STAGE_3};
    zero_model *model = NULL;
    zero_status status = zero_model_create(&model);
    if (status == ZERO_OK) {
        status = describe(job->shape, model);
    }
    for (uint32_t i = 0; i < SIDES && status == ZERO_OK; i++) {
        zero_engine_options options = zero_engine_options_init();
        options.stage = stages[i];
        options.device = ZERO_DEVICE_CUDA;
        status = zero_engine_create(world, model, &options, &sides[i].engine);
        if (status == ZERO_OK) {
            status = zero_engine_fill(sides[i].engine, fill_values, NULL);
        }
    }
    zero_model_destroy(model);
    return status;
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
    steps_room room = {0};
    steps_side sides[SIDES];
    for (uint32_t i = 0; i < SIDES; i++) {
        sides[i] = (steps_side){.job = job, .world = world, .room = &room};
    }
    zero_status status = open_room(job, zero_world_rank(world), &room);
    if (status == ZERO_OK) {
        status = make_engines(job, world, sides);
    }
    if (status == ZERO_OK) {
        status = measure(job, sides);
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        zero_engine_destroy(sides[i].engine);
    }
    close_room(&room);
    return status;
}

int bench_gpu_steps(const bench_options *options, bench_report *report)
{
    static const uint32_t ranks[] = {1, 2, 4};
    for (uint32_t i = 0; i < 2 * (sizeof ranks / sizeof ranks[0]); i++) {
        steps_job job = {.options = options,
                         .report = report,
                         .shape = &shapes[options->scale],
                         .ranks = ranks[i / 2],
                         .traffic = i % 2 == 1};
        char name[128];
        case_name(&job, name, sizeof name);
        if (!bench_wants(options, name) || (options->ranks != 0 && options->ranks != job.ranks)) {
            continue;
        }
        if (zero_world_run(job.ranks, DEADLINE_MS, run_rank, &job) != ZERO_OK) {
            return bench_fail_zero(name);
        }
        if (job.failed) {
            return 1;
        }
    }
    return 0;
}
