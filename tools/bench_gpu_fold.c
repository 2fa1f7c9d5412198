/* Owns fold_vs_copy and cast_vs_copy, what reductions are made of, and of folds norm_extra and
 * fold_squares_vs_apart: what it costs that one adds the squares of what it stores. */
#include <string.h>

#include "bench_gpu_rig.h"
#include "core/memory.h"
#include "kernels/cpu/cpu_kernels.h"

#define SOURCES_MAX 8

/* A sum of arrays, or with cast a change of one's type. */
typedef struct fold_case {
    const char *metric;
    const char *name;
    uint32_t source_count;
    zero_dtype source;
    zero_dtype target;
    bool cast;
} fold_case;

static const fold_case cases[] = {
    {"fold_vs_copy", "4 sources of f32 to f32, GPU", 4, ZERO_DTYPE_F32, ZERO_DTYPE_F32, false},
    {"fold_vs_copy", "8 sources of bf16 to f32, GPU", 8, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, false},
    {"cast_vs_copy", "f32 to bf16, GPU", 1, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, true},
    {"cast_vs_copy", "bf16 to f32, GPU", 1, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, true},
};
#define CASE_COUNT (sizeof cases / sizeof cases[0])

typedef struct fold_run {
    gpu_rig *rig;
    const fold_case *what;
    gpu_array sources[SOURCES_MAX];
    gpu_array target;
    const void *source_data[SOURCES_MAX];
    zi_fold fold;
    zi_fold fused;     /* the same with squares */
    zi_norm_sum *sums; /* of the GPU: the fused one's, and those of what is read again */
} fold_run;

enum { FUSED, APART, SUMS };

static int enqueue_fold(void *argument)
{
    const fold_run *run = argument;
    const zi_kernels *kernels = &run->rig->kernels;
    return BENCH_TRY(kernels->ops->fold(kernels->self, run->rig->stream, &run->fold));
}

static int enqueue_cast(void *argument)
{
    const fold_run *run = argument;
    const zi_kernels *kernels = &run->rig->kernels;
    return BENCH_TRY(kernels->ops->cast(kernels->self, run->rig->stream, run->target.data,
                                        run->what->target, run->sources[0].data, run->what->source,
                                        run->rig->count));
}

static int enqueue_fused(void *argument)
{
    const fold_run *run = argument;
    const zi_kernels *kernels = &run->rig->kernels;
    return BENCH_TRY(kernels->ops->fold(kernels->self, run->rig->stream, &run->fused));
}

static int enqueue_squares(const fold_run *run)
{
    const zi_kernels *kernels = &run->rig->kernels;
    return BENCH_TRY(kernels->ops->square_sum(kernels->self, run->rig->stream, run->target.data,
                                              run->what->target, run->rig->count,
                                              &run->sums[APART]));
}

static int enqueue_apart(void *argument)
{
    return enqueue_fold(argument) || enqueue_squares(argument);
}

static int clear_sums(const fold_run *run)
{
    const zi_device *device = &run->rig->device;
    return BENCH_TRY(
        device->ops->fill(device->self, run->rig->stream, run->sums, 0, SUMS * sizeof *run->sums));
}

/* One fused fold has the bits of a sum of squares that reads what it stored. */
static int check_squares(fold_run *run)
{
    zi_norm_sum seen[SUMS];
    if (clear_sums(run) || enqueue_fused(run) || enqueue_squares(run) ||
        gpu_fetch(seen, run->sums, sizeof seen, run->rig->clock.stream)) {
        return 1;
    }
    zi_norm_normalise(&seen[FUSED]);
    zi_norm_normalise(&seen[APART]);
    return memcmp(&seen[FUSED], &seen[APART], sizeof seen[FUSED]) == 0
               ? 0
               : bench_fail("gpu, %s: the fold's squares come to %.17g instead of %.17g",
                            run->what->name, zi_norm_value(&seen[FUSED]),
                            zi_norm_value(&seen[APART]));
}

/* Compute what the host makes of the samples. */
static void follow(fold_run *run)
{
    const fold_case *what = run->what;
    if (what->cast) {
        zi_cpu_cast(run->target.samples, what->target, run->sources[0].samples, what->source,
                    GPU_SAMPLE_ALL);
        return;
    }
    const void *samples[SOURCES_MAX];
    for (uint32_t k = 0; k < what->source_count; k++) {
        samples[k] = run->sources[k].samples;
    }
    zi_fold fold = run->fold;
    fold.dst = run->target.samples;
    fold.sources = samples;
    fold.count = GPU_SAMPLE_ALL;
    zi_cpu_fold(&fold);
}

static int make_arrays(fold_run *run)
{
    const fold_case *what = run->what;
    gpu_arrays_restart(run->rig);
    for (uint32_t k = 0; k < what->source_count; k++) {
        if (gpu_array_make(run->rig, what->source, 100 + k, false, &run->sources[k]) != 0) {
            return 1;
        }
        run->source_data[k] = run->sources[k].data;
    }
    if (gpu_array_make(run->rig, what->target, 200, false, &run->target) != 0) {
        return 1;
    }
    run->fold = (zi_fold){.dst = run->target.data,
                          .sources = run->source_data,
                          .source_count = what->source_count,
                          .count = run->rig->count,
                          .dst_dtype = what->target,
                          .source_dtype = what->source};
    run->fused = run->fold;
    run->fused.squares = &run->sums[FUSED];
    return clear_sums(run);
}

static int measure(fold_run *run)
{
    gpu_rig *rig = run->rig;
    const fold_case *what = run->what;
    enum { COPY, FOLD, BOTH, ONE, SIDES };
    gpu_timed timed[SIDES] = {[COPY] = gpu_rig_timed(rig, gpu_copy_once, &rig->copy),
                              [FOLD] =
                                  gpu_rig_timed(rig, what->cast ? enqueue_cast : enqueue_fold, run),
                              [BOTH] = gpu_rig_timed(rig, enqueue_apart, run),
                              [ONE] = gpu_rig_timed(rig, enqueue_fused, run)};
    bench_side sides[SIDES];
    for (int i = 0; i < SIDES; i++) {
        sides[i] = (bench_side){gpu_timed_side, &timed[i]};
    }
    bench_stat stats[SIDES];
    gpu_rig_copy_moves(rig, rig->count * (what->source_count * zero_dtype_bytes(what->source) +
                                          zero_dtype_bytes(what->target)));
    if (bench_interleave(sides, what->cast ? BOTH : SIDES, rig->options->repetitions, stats) != 0) {
        return 1;
    }
    follow(run);
    if (gpu_array_check(rig, &run->target, what->name) != 0 ||
        bench_add_times(rig->report, what->metric, what->name, &stats[FOLD], &stats[COPY]) != 0) {
        return 1;
    }
    return !what->cast &&
           (check_squares(run) ||
            bench_add_times(rig->report, "norm_extra", what->name, &stats[ONE], &stats[FOLD]) ||
            bench_add_times(rig->report, "fold_squares_vs_apart", what->name, &stats[ONE],
                            &stats[BOTH]));
}

static int run_case(gpu_rig *rig, const fold_case *what, zi_norm_sum *sums)
{
    fold_run run = {.rig = rig, .what = what, .sums = sums};
    const int failed = make_arrays(&run) || measure(&run);
    for (uint32_t k = 0; k < SOURCES_MAX; k++) {
        gpu_array_drop(&run.sources[k]);
    }
    gpu_array_drop(&run.target);
    return failed;
}

int bench_gpu_fold(gpu_rig *rig)
{
    void *sums = NULL;
    if (rig->device.ops->memory_alloc(rig->device.self, ZI_PAGE_BYTES, &sums) != ZERO_OK) {
        return bench_fail_zero("gpu: memory for sums of squares");
    }
    int failed = 0;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (bench_wants(rig->options, cases[i].name)) {
            failed |= run_case(rig, &cases[i], sums);
        }
    }
    rig->device.ops->memory_free(rig->device.self, sums, ZI_PAGE_BYTES);
    return failed;
}
