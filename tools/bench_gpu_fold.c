/* Owns fold_vs_copy and cast_vs_copy: what reductions are made of. */
#include <string.h>

#include "bench_gpu.h"
#include "bench_gpu_rig.h"
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
} fold_run;

static int enqueue(void *argument)
{
    const fold_run *run = argument;
    const gpu_rig *rig = run->rig;
    const zi_kernels *kernels = &rig->kernels;
    const zero_status status =
        run->what->cast
            ? kernels->ops->cast(kernels->self, rig->stream, run->target.data, run->what->target,
                                 run->sources[0].data, run->what->source, rig->count)
            : kernels->ops->fold(kernels->self, rig->stream, &run->fold);
    return status == ZERO_OK ? 0 : bench_fail_zero(run->what->name);
}

static double time_fold(void *argument)
{
    const fold_run *run = argument;
    return gpu_clock_time(&run->rig->clock, enqueue, argument, run->rig->times);
}

/* What the host makes of the samples. */
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
    return 0;
}

static int measure(fold_run *run)
{
    gpu_rig *rig = run->rig;
    const fold_case *what = run->what;
    const bench_side sides[2] = {{gpu_copy_side, &rig->copy}, {time_fold, run}};
    bench_stat stats[2];
    gpu_rig_copy_moves(rig, rig->count * (what->source_count * zero_dtype_bytes(what->source) +
                                          zero_dtype_bytes(what->target)));
    if (bench_interleave(sides, 2, rig->options->repetitions, stats) != 0) {
        return 1;
    }
    follow(run);
    return gpu_array_check(rig, &run->target, what->name) ||
           bench_add_times(rig->report, what->metric, what->name, &stats[1], &stats[0]);
}

int bench_gpu_fold(gpu_rig *rig)
{
    int failed = 0;
    for (size_t i = 0; i < CASE_COUNT && !failed; i++) {
        if (!bench_wants(rig->options, cases[i].name)) {
            continue;
        }
        fold_run run = {.rig = rig, .what = &cases[i]};
        failed = make_arrays(&run) || measure(&run);
        for (uint32_t k = 0; k < SOURCES_MAX; k++) {
            gpu_array_drop(&run.sources[k]);
        }
        gpu_array_drop(&run.target);
    }
    return failed;
}
