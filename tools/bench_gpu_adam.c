/* Owns adamw_vs_copy, norm_extra and square_sum_vs_read: an optimizer step's kernels as the engine
 * puts them on the step stream; and the order of the kernels' measurements. Invariant: after every
 * launch that is timed the host makes the same step on the samples, so that the GPU's must have the
 * same bits at the end. */
#include <stdlib.h>
#include <string.h>

#include "bench_gpu.h"
#include "bench_gpu_rig.h"
#include "bench_gpu_step.h"
#include "kernels/cpu/cpu_kernels.h"

#define SEED 11
#define LIMIT_NORM 1.0

/* Types of one optimizer pass. */
typedef struct adam_case {
    const char *name;
    zero_dtype grad;
    zero_dtype param; /* F32: the master itself, no copy out */
    zero_dtype moment;
    bool alone; /* the narrow parameter has no master, and is rounded stochastically */
} adam_case;

static const adam_case cases[] = {
    {"f32 throughout, GPU", ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32, false},
    {"bf16 grad and copy, GPU", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, false},
    {"bf16 grad, copy and moments, GPU", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, false},
    {"bf16 throughout, no master, GPU", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, true},
};
#define CASE_COUNT (sizeof cases / sizeof cases[0])

/* The same step on the samples. */
typedef struct adam_host {
    zi_step_state state;
    zi_step_decision decision;
    zi_norm_sum norm; /* of the whole gradient, which no step changes */
    zi_segment segments[GPU_SAMPLES];
    zi_update_job job;
} adam_host;

enum { GRAD, MASTER, MOMENT1, MOMENT2, COPY, ARRAYS };

typedef struct adam_run {
    gpu_rig *rig;
    const adam_case *what;
    gpu_array arrays[ARRAYS];
    gpu_step step;
    zi_update_job job;
    adam_host host;
} adam_run;

static bool has_copy(const adam_case *what)
{
    return what->param != ZERO_DTYPE_F32;
}

static bool has_array(const adam_case *what, uint32_t k)
{
    return k == MASTER ? !what->alone : k != COPY || has_copy(what);
}

/* Bytes that an update reads and writes for one element. */
static size_t update_width(const adam_case *what)
{
    const size_t copy = has_copy(what) ? zero_dtype_bytes(what->param) : 0;
    const size_t param = what->alone ? 2 * copy : 2 * sizeof(float) + copy;
    return zero_dtype_bytes(what->grad) + param + 4 * zero_dtype_bytes(what->moment);
}

/* --- the GPU's step --------------------------------------------------------------------------- */

static int enqueue_update(void *argument)
{
    const adam_run *run = argument;
    const zi_kernels *kernels = &run->rig->kernels;
    return BENCH_TRY(kernels->ops->update(kernels->self, run->rig->stream, &run->job));
}

static int enqueue_squares(const adam_run *run, zi_norm_sum *sum)
{
    const gpu_rig *rig = run->rig;
    const zi_kernels *kernels = &rig->kernels;
    return BENCH_TRY(kernels->ops->square_sum(kernels->self, rig->stream, run->arrays[GRAD].data,
                                              run->what->grad, rig->count, sum));
}

/* As a step does: into a sum that was emptied before. */
static int enqueue_norm(const adam_run *run, zi_norm_sum *sum)
{
    const zi_device *device = &run->rig->device;
    return BENCH_TRY(device->ops->fill(device->self, run->rig->stream, sum, 0, sizeof *sum)) ||
           enqueue_squares(run, sum);
}

/* The kernel and nothing else: the sum grows and grows. */
static int enqueue_squares_alone(void *argument)
{
    const adam_run *run = argument;
    return enqueue_squares(run, &run->step.block->other);
}

static int enqueue_decision(const adam_run *run)
{
    const zi_kernels *kernels = &run->rig->kernels;
    return enqueue_norm(run, &run->step.block->message.squares) ||
           BENCH_TRY(kernels->ops->decide(kernels->self, run->rig->stream, &run->step.decide));
}

static int enqueue_step(void *argument)
{
    return enqueue_decision(argument) || enqueue_update(argument);
}

/* --- sides: the host makes the same step ------------------------------------------------------ */

static void follow_decide(adam_run *run)
{
    zi_step_decide(run->step.input, run->step.input->divisor, &run->host.norm, &run->host.state,
                   &run->host.decision);
}

static double time_update(void *argument)
{
    adam_run *run = argument;
    gpu_timed timed = gpu_rig_timed(run->rig, enqueue_update, run);
    const double seconds = gpu_timed_side(&timed);
    for (uint32_t i = 0; i < timed.times; i++) {
        zi_cpu_update(&run->host.job, NULL, 0, 1);
    }
    return seconds;
}

static double time_step(void *argument)
{
    adam_run *run = argument;
    gpu_timed timed = gpu_rig_timed(run->rig, enqueue_step, run);
    const double seconds = gpu_timed_side(&timed);
    for (uint32_t i = 0; i < timed.times; i++) {
        follow_decide(run);
        zi_cpu_update(&run->host.job, NULL, 0, 1);
    }
    return seconds;
}

/* --- a case ----------------------------------------------------------------------------------- */

/* The arrays as an update job has them; data: of the GPU or the samples. */
static zi_update_job make_job(const adam_run *run, void *const data[ARRAYS])
{
    return (zi_update_job){
        .grad = data[GRAD],
        .param = has_copy(run->what) ? data[COPY] : data[MASTER],
        .state[ZI_STATE_MASTER] = has_copy(run->what) ? data[MASTER] : NULL,
        .state[ZI_STATE_MOMENT1] = data[MOMENT1],
        .state[ZI_STATE_MOMENT2] = data[MOMENT2],
        .grad_dtype = run->what->grad,
        .param_dtype = run->what->param,
        .moment_dtype = run->what->moment,
        .seed = SEED,
        .optimizer = ZERO_OPTIMIZER_ADAMW,
    };
}

static int make_arrays(adam_run *run)
{
    const adam_case *what = run->what;
    gpu_rig *rig = run->rig;
    const zero_dtype dtypes[ARRAYS] = {what->grad, ZERO_DTYPE_F32, what->moment, what->moment,
                                       what->param};
    gpu_arrays_restart(rig);
    for (uint32_t k = 0; k < ARRAYS; k++) {
        if (!has_array(what, k)) {
            continue;
        }
        if (gpu_array_make(rig, dtypes[k], k, k == MOMENT2, &run->arrays[k]) != 0) {
            return 1;
        }
        if (k == GRAD) {
            /* The tile is still the gradient's; every other tile of it has the same squares. */
            zi_norm_sum one = {{0}, 0, 0};
            zi_cpu_square_sum(rig->tile, what->grad, rig->tile_count, &one);
            for (uint64_t tile = 0; tile < rig->count / rig->tile_count; tile++) {
                zi_norm_merge(&run->host.norm, &one);
            }
        }
    }
    return 0;
}

static void make_jobs(adam_run *run)
{
    void *data[ARRAYS];
    void *samples[ARRAYS];
    adam_host *host = &run->host;
    for (uint32_t k = 0; k < ARRAYS; k++) {
        data[k] = run->arrays[k].data;
        samples[k] = run->arrays[k].samples;
    }
    run->job = make_job(run, data);
    run->job.segments = &run->step.block->segments[0];
    run->job.segment_count = 1;
    run->job.count = run->rig->count;
    run->job.decision = &run->step.block->decision;
    host->job = make_job(run, samples);
    host->job.segments = host->segments;
    host->job.segment_count = GPU_SAMPLES;
    host->job.count = GPU_SAMPLE_ALL;
    host->job.decision = &host->decision;
    for (uint32_t i = 0; i < GPU_SAMPLES; i++) {
        host->segments[i] = (zi_segment){.offset = (uint64_t)i * GPU_SAMPLE_COUNT,
                                         .count = GPU_SAMPLE_COUNT,
                                         .tensor_first = gpu_sample_first(run->rig, i)};
    }
}

/* The state before the first step, on both sides, and its decision. */
static int start(adam_run *run)
{
    gpu_rig *rig = run->rig;
    const zero_adamw adamw = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f};
    if (gpu_step_open(&run->step, &rig->device, rig->clock.stream, adamw, LIMIT_NORM, &rig->count,
                      1) != 0) {
        return 1;
    }
    make_jobs(run);
    run->host.state = gpu_step_state();
    follow_decide(run);
    return enqueue_decision(run);
}

static int check_step(const adam_run *run)
{
    gpu_step_block block;
    if (enqueue_norm(run, &run->step.block->other) != 0 ||
        gpu_fetch(&block, run->step.block, sizeof block, run->rig->clock.stream) != 0) {
        return 1;
    }
    zi_norm_normalise(&block.other);
    if (memcmp(&block.other, &run->host.norm, sizeof block.other) != 0) {
        return bench_fail("gpu, %s: the sum of squares is %.17g instead of %.17g", run->what->name,
                          zi_norm_value(&block.other), zi_norm_value(&run->host.norm));
    }
    if (memcmp(&block.decision, &run->host.decision, sizeof block.decision) != 0) {
        return bench_fail("gpu, %s: decision of update %llu with norm %.17g instead of %llu with "
                          "%.17g",
                          run->what->name, (unsigned long long)block.decision.update,
                          block.decision.norm, (unsigned long long)run->host.decision.update,
                          run->host.decision.norm);
    }
    for (uint32_t k = MASTER; k < ARRAYS; k++) {
        if (has_array(run->what, k) &&
            gpu_array_check(run->rig, &run->arrays[k], run->what->name) != 0) {
            return 1;
        }
    }
    return 0;
}

static int measure(adam_run *run)
{
    gpu_rig *rig = run->rig;
    enum { DEVICE_COPY, UPDATE, STEP, SQUARES, HALF, SIDES };
    gpu_rig_copy_moves(rig, rig->count * update_width(run->what));
    gpu_copy half = rig->copy; /* as many bytes moved as square_sum reads */
    half.bytes = rig->count * zero_dtype_bytes(run->what->grad) / 2;
    gpu_timed copied = gpu_rig_timed(rig, gpu_copy_once, &rig->copy);
    gpu_timed squared = gpu_rig_timed(rig, enqueue_squares_alone, run);
    gpu_timed halved = gpu_rig_timed(rig, gpu_copy_once, &half);
    const bench_side sides[SIDES] = {[DEVICE_COPY] = {gpu_timed_side, &copied},
                                     [UPDATE] = {time_update, run},
                                     [STEP] = {time_step, run},
                                     [SQUARES] = {gpu_timed_side, &squared},
                                     [HALF] = {gpu_timed_side, &halved}};
    bench_stat stats[SIDES];
    if (bench_interleave(sides, SIDES, rig->options->repetitions, stats) != 0 ||
        check_step(run) != 0) {
        return 1;
    }
    const char *name = run->what->name;
    return bench_add_times(rig->report, "adamw_vs_copy", name, &stats[UPDATE],
                           &stats[DEVICE_COPY]) ||
           bench_add_times(rig->report, "norm_extra", name, &stats[STEP], &stats[UPDATE]) ||
           bench_add_times(rig->report, "square_sum_vs_read", name, &stats[SQUARES], &stats[HALF]);
}

static int run_case(adam_run *run)
{
    const int failed = make_arrays(run) || start(run) || measure(run);
    for (uint32_t k = 0; k < ARRAYS; k++) {
        gpu_array_drop(&run->arrays[k]);
    }
    gpu_step_close(&run->step);
    return failed;
}

static int run_cases(gpu_rig *rig)
{
    int failed = 0;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (!bench_wants(rig->options, cases[i].name)) {
            continue;
        }
        adam_run *run = calloc(1, sizeof *run);
        if (run == NULL) {
            return bench_fail("gpu: no memory left for a case");
        }
        run->rig = rig;
        run->what = &cases[i];
        failed |= run_case(run);
        free(run);
    }
    return failed;
}

/* A case that fails does not keep others from being measured. */
int bench_gpu_kernels(const bench_options *options, bench_report *report)
{
    gpu_rig rig;
    int failed = gpu_rig_open(&rig, options, report);
    if (!failed) {
        failed = run_cases(&rig);
        failed |= bench_gpu_fold(&rig);
    }
    gpu_rig_close(&rig);
    return failed;
}
