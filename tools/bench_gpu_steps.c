/* Owns stage3_vs_stage0 and hooks_vs_direct on a GPU. Two sides in every rank take turns, and all
 * ranks share one GPU: an engine at stage 3, and one at stage 0 or steps without an engine. Forward
 * and backward are left out or are copies inside the GPU's memory, so that what differs between the
 * sides is what the library does. Invariant: a ratio is reported only when both sides end with the
 * same parameters, to the bit, on every rank. */
#include <stdlib.h>

#include "bench_gpu.h"
#include "bench_gpu_steps.h"
#include "zero/cuda.h"
#include "zero/zero.h"

#define DEADLINE_MS 120000
#define HASHED_MAX ((size_t)1 << 20) /* elements of a tensor that are compared */

enum { REFERENCE, STAGE_3, SIDES };

/* The work that stands for forward and backward. */
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

/* The job that all ranks share. */
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
    const gpu_steps_memory *memory;
    uint64_t hash; /* over the parameters at the end */
} steps_side;

uint64_t gpu_steps_count(const gpu_steps_shape *shape, uint32_t unit)
{
    return unit == 0 ? shape->first_count : shape->count;
}

uint64_t gpu_steps_count_max(const gpu_steps_shape *shape)
{
    return shape->first_count > shape->count ? shape->first_count : shape->count;
}

void gpu_steps_fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t mixed = (first + i + tensor) * UINT64_C(0x9E3779B97F4A7C15);
        values[i] = (float)(int32_t)(mixed >> 40) * 0x1p-26f;
    }
}

int gpu_steps_compute(const gpu_steps_memory *memory, uint32_t times)
{
    int failed = 0;
    for (uint32_t i = 0; memory->traffic_bytes != 0 && i < times && !failed; i++) {
        failed = gpu_copy_inside(memory->traffic[1], memory->traffic[0], memory->traffic_bytes,
                                 memory->stream);
    }
    return failed;
}

static int forward(const steps_side *side, uint32_t unit)
{
    const zero_stream stream = zero_stream_cuda(side->memory->stream);
    return BENCH_TRY(zero_unit_acquire(side->engine, unit, ZERO_PASS_FORWARD, stream, NULL)) ||
           gpu_steps_compute(side->memory, 1) ||
           BENCH_TRY(zero_unit_release(side->engine, unit, stream));
}

/* With one micro-step and no shared tensors a gradient begins at zero, so that copying is adding.
 */
static int backward(const steps_side *side, uint32_t unit)
{
    const zero_stream stream = zero_stream_cuda(side->memory->stream);
    const zero_unit_view *view = NULL;
    if (BENCH_TRY(zero_unit_acquire(side->engine, unit, ZERO_PASS_BACKWARD, stream, &view))) {
        return 1;
    }
    const zero_view *grad = &view->grads[0];
    return gpu_steps_compute(side->memory, 2) ||
           gpu_copy_inside(grad->data, side->memory->grads,
                           grad->count * zero_dtype_bytes(grad->dtype), side->memory->stream) ||
           BENCH_TRY(zero_unit_release(side->engine, unit, stream));
}

zero_step_params gpu_steps_params(void)
{
    zero_step_params params = zero_step_params_init();
    params.hyper.adamw.weight_decay = 0.01f;
    params.max_norm = 1.0f;
    return params;
}

static int take_step(const steps_side *side)
{
    const zero_step_params params = gpu_steps_params();
    const zero_stream stream = zero_stream_cuda(side->memory->stream);
    const uint32_t units = side->job->shape->units;
    int failed = BENCH_TRY(zero_micro_begin(side->engine, ZERO_MICRO_LAST));
    for (uint32_t unit = 0; unit < units && !failed; unit++) {
        failed = forward(side, unit);
    }
    for (uint32_t unit = units; unit-- > 0 && !failed;) {
        failed = backward(side, unit);
    }
    return failed || BENCH_TRY(zero_micro_end(side->engine)) ||
           BENCH_TRY(zero_step(side->engine, &params, stream));
}

/* Seconds a step, by the host's clock: what counts ends on several streams of several ranks. */
static double run_side(void *argument)
{
    const steps_side *side = argument;
    uint64_t first = 0;
    zero_view view = {0};
    int failed = BENCH_TRY(zero_world_barrier(side->world));
    const double start = bench_now();
    for (uint32_t step = 0; step < side->job->shape->steps && !failed; step++) {
        failed = side->direct != NULL ? gpu_direct_step(side->direct) : take_step(side);
    }
    if (side->direct == NULL) {
        failed =
            failed || BENCH_TRY(zero_shard_view(side->engine, 0, ZERO_ROLE_PARAM, &first, &view));
    }
    failed = failed || GPU_TRY(cudaStreamSynchronize(side->memory->stream)) ||
             BENCH_TRY(zero_world_barrier(side->world));
    return failed ? -1.0 : (bench_now() - start) / side->job->shape->steps;
}

static uint64_t hash_values(uint64_t hash, const uint16_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ values[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return hash;
}

/* Of a unit's parameters at their start, through memory of the host. */
static int hash_unit(steps_side *side, uint32_t unit, uint16_t *values)
{
    const cudaStream_t stream = side->memory->stream;
    const uint64_t all = gpu_steps_count(side->job->shape, unit);
    const size_t count = all < HASHED_MAX ? all : HASHED_MAX;
    const zero_unit_view *view = NULL;
    int failed =
        side->direct == NULL && BENCH_TRY(zero_unit_acquire(side->engine, unit, ZERO_PASS_EVAL,
                                                            zero_stream_cuda(stream), &view));
    if (!failed) {
        const void *params =
            view != NULL ? view->params[0].data : gpu_direct_params(side->direct, unit);
        failed = gpu_fetch(values, params, count * sizeof *values, stream);
        side->hash = hash_values(side->hash, values, count);
    }
    return failed || (view != NULL &&
                      BENCH_TRY(zero_unit_release(side->engine, unit, zero_stream_cuda(stream))));
}

/* Every rank's hashes of both sides on rank 0, compared there. */
static int compare(steps_side *sides, steps_job *job)
{
    const char *reference = job->direct ? "without an engine" : "at stage 0";
    uint64_t own[SIDES] = {0};
    uint16_t *values = calloc(HASHED_MAX, sizeof *values);
    uint64_t *all = calloc((size_t)job->ranks * SIDES, sizeof *all);
    int failed = values != NULL && all != NULL ? 0 : bench_fail("gpu: no memory left for hashes");
    for (uint32_t i = 0; i < SIDES; i++) {
        for (uint32_t unit = 0; unit < job->shape->units && !failed; unit++) {
            failed = hash_unit(&sides[i], unit, values);
        }
        own[i] = sides[i].hash;
    }
    failed = failed || BENCH_TRY(zero_world_gather(sides[0].world, own, all, sizeof own));
    for (uint32_t i = 0; i < job->ranks * SIDES && !failed; i++) {
        if (all[i] != all[0] && zero_world_rank(sides[0].world) == 0) {
            job->failed =
                bench_fail("gpu: parameters of rank %u %s differ from those of rank 0 %s",
                           i / SIDES, i % SIDES == STAGE_3 ? "at stage 3" : reference, reference);
        }
    }
    free(values);
    free(all);
    return failed;
}

static void case_name(const steps_job *job, char *name, size_t name_bytes)
{
    static const char *const computes[] = {"no compute", "copies as compute",
                                           "long copies as compute"};
    (void)snprintf(name, name_bytes, "stage 3, %u rank%s on one GPU, %s, %s", job->ranks,
                   job->ranks == 1 ? "" : "s", job->shape->name, computes[job->compute]);
}

static int open_memory(const steps_job *job, uint32_t rank, gpu_steps_memory *memory)
{
    const size_t bytes = gpu_steps_count_max(job->shape) * zero_dtype_bytes(ZERO_DTYPE_BF16);
    const size_t factors[] = {[NO_COMPUTE] = 0, [COPIES] = 1, [LONG_COPIES] = LONG};
    const size_t traffic_bytes = job->shape->traffic_bytes * factors[job->compute];
    uint16_t *values = malloc(bytes);
    int failed = values != NULL ? 0 : bench_fail("gpu: no memory left for gradients");
    for (size_t i = 0; i < bytes / sizeof *values && !failed; i++) {
        /* bf16 of 2^-10 to 2^-9, either sign: 0x3a80 and up. */
        const uint64_t mixed = (i + 1 + rank * UINT64_C(977)) * UINT64_C(0x9E3779B97F4A7C15);
        values[i] = (uint16_t)(0x3a80u | (mixed >> 57) | (mixed >> 40 & 0x8000u));
    }
    failed = failed || gpu_stream_open(&memory->stream) ||
             GPU_TRY(cudaMalloc(&memory->grads, bytes)) ||
             gpu_upload(memory->grads, values, bytes, memory->stream);
    free(values);
    memory->traffic_bytes = traffic_bytes;
    if (failed || traffic_bytes == 0) {
        return failed;
    }
    return GPU_TRY(cudaMalloc(&memory->traffic[0], traffic_bytes)) ||
           GPU_TRY(cudaMalloc(&memory->traffic[1], traffic_bytes)) ||
           GPU_TRY(cudaMemsetAsync(memory->traffic[0], 0x5a, traffic_bytes, memory->stream)) ||
           GPU_TRY(cudaStreamSynchronize(memory->stream));
}

static void close_memory(gpu_steps_memory *memory)
{
    gpu_stream_close(memory->stream);
    (void)cudaFree(memory->grads);
    (void)cudaFree(memory->traffic[0]);
    (void)cudaFree(memory->traffic[1]);
}

static int open_engine(const steps_job *job, zero_world *world, const zero_model *model,
                       zero_stage stage, zero_engine **engine)
{
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    options.tuning = &tuning;
    options.stage = stage;
    options.device = ZERO_DEVICE_CUDA;
    /* Beside none, backward is to write where the sums are, as it would without an engine. */
    tuning.accum_dtype = job->direct ? ZERO_DTYPE_BF16 : ZERO_DTYPE_DEFAULT;
    return BENCH_TRY(zero_engine_create(world, model, &options, engine)) ||
           BENCH_TRY(zero_engine_fill(*engine, gpu_steps_fill, NULL));
}

static int make_sides(const steps_job *job, zero_world *world, steps_side *sides)
{
    const gpu_steps_shape *shape = job->shape;
    const zero_tensor_desc first = {
        .name = "embedding", .shape = {shape->first_count}, .dims = 1, .dtype = ZERO_DTYPE_BF16};
    const zero_tensor_desc other = {
        .name = "all", .shape = {shape->count}, .dims = 1, .dtype = ZERO_DTYPE_BF16};
    zero_model *model = NULL;
    uint32_t unit = 0;
    uint32_t tensor = 0;
    steps_side *reference = &sides[REFERENCE];
    const int failed =
        BENCH_TRY(zero_model_create(&model)) ||
        BENCH_TRY(zero_unit_add(
            model, &(zero_unit_desc){.name = first.name, .tensors = &first, .tensor_count = 1},
            &unit, &tensor)) ||
        BENCH_TRY(zero_unit_add(
            model,
            &(zero_unit_desc){
                .name = "block", .layers = shape->units - 1, .tensors = &other, .tensor_count = 1},
            &unit, &tensor)) ||
        (job->direct ? gpu_direct_create(shape, reference->memory, &reference->direct)
                     : open_engine(job, world, model, ZERO_STAGE_0, &reference->engine)) ||
        open_engine(job, world, model, ZERO_STAGE_3, &sides[STAGE_3].engine);
    zero_model_destroy(model);
    return failed;
}

/* Hooks of one rank wait for nothing on the host, and are not to be timed while they do. */
static int check_waits(const zero_engine *engine)
{
    zero_stats stats = zero_stats_init();
    if (BENCH_TRY(zero_engine_stats(engine, &stats))) {
        return 1;
    }
    return stats.acquire_wait_ns == 0 && stats.grad_wait_ns == 0
               ? 0
               : bench_fail("gpu: hooks waited on the host for %llu ns",
                            (unsigned long long)(stats.acquire_wait_ns + stats.grad_wait_ns));
}

static int measure(steps_job *job, steps_side *sides)
{
    const bench_side runs[SIDES] = {{run_side, &sides[0]}, {run_side, &sides[1]}};
    bench_stat stats[SIDES];
    if (bench_interleave(runs, SIDES, job->options->repetitions, stats) ||
        (job->direct && check_waits(sides[STAGE_3].engine)) || compare(sides, job)) {
        return 1;
    }
    if (zero_world_rank(sides[0].world) == 0 && !job->failed) {
        char name[128];
        case_name(job, name, sizeof name);
        job->failed =
            bench_add_times(job->report, job->direct ? "hooks_vs_direct" : "stage3_vs_stage0", name,
                            &stats[STAGE_3], &stats[REFERENCE]);
    }
    return 0;
}

static zero_status run_rank(zero_world *world, void *user)
{
    steps_job *job = user;
    gpu_steps_memory memory = {0};
    steps_side sides[SIDES];
    for (uint32_t i = 0; i < SIDES; i++) {
        sides[i] = (steps_side){.job = job, .world = world, .memory = &memory};
    }
    const int failed = open_memory(job, zero_world_rank(world), &memory) ||
                       make_sides(job, world, sides) || measure(job, sides);
    const zero_status status = bench_rank_status(failed);
    for (uint32_t i = 0; i < SIDES; i++) {
        zero_engine_destroy(sides[i].engine);
        gpu_direct_destroy(sides[i].direct);
    }
    close_memory(&memory);
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
