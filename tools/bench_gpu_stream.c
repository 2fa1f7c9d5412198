/* Owns stream_vs_pinned: engines on a GPU with roles in host memory, against copies between memory
 * of the same kinds. Parameters go one way, to be used; masters and moments go both ways at once,
 * to be updated. Invariant: a ratio is reported only when the parameters that the engine handed out
 * are those that it was filled with. */
#include <math.h>
#include <string.h>

#include "bench_gpu.h"
#include "bench_gpu_pinned.h"
#include "bench_gpu_steps.h"
#include "zero/cuda.h"
#include "zero/zero.h"

#define CHECKED_MAX ((size_t)4096) /* elements at the start of a unit that are compared */

/* Units of one size, of bf16 parameters. */
typedef struct stream_case {
    const char *name;
    uint32_t units;
    uint32_t width; /* bytes of an element that move, each way */
    bool optimizer; /* masters and moments are in host memory, else parameters */
} stream_case;

static const stream_case cases[] = {
    {"parameters in host memory, forward, GPU", 12, 2, false},
    {"master and moments in host memory, update, GPU", 4, 12, true},
};
#define CASE_COUNT (sizeof cases / sizeof cases[0])

typedef struct stream_run {
    const stream_case *what;
    uint64_t unit_elements;
    cudaStream_t stream;
    zero_world *world;
    zero_engine *engine;
} stream_run;

static int open_engine(stream_run *run)
{
    const zero_tensor_desc desc = {
        .name = "all", .shape = {run->unit_elements}, .dims = 1, .dtype = ZERO_DTYPE_BF16};
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    options.tuning = &tuning;
    options.device = ZERO_DEVICE_CUDA;
    if (run->what->optimizer) {
        tuning.updater = ZERO_UPDATER_GPU;
        options.tier[ZERO_ROLE_MASTER] = ZERO_TIER_HOST;
        options.tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_HOST;
        options.tier[ZERO_ROLE_MOMENT2] = ZERO_TIER_HOST;
    } else {
        options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_HOST;
    }
    zero_model *model = NULL;
    uint32_t unit = 0;
    uint32_t tensor = 0;
    const int failed =
        BENCH_TRY(zero_world_create_self(&run->world)) || BENCH_TRY(zero_model_create(&model)) ||
        BENCH_TRY(zero_unit_add(
            model,
            &(zero_unit_desc){
                .name = "unit", .layers = run->what->units, .tensors = &desc, .tensor_count = 1},
            &unit, &tensor)) ||
        BENCH_TRY(zero_engine_create(run->world, model, &options, &run->engine)) ||
        BENCH_TRY(zero_engine_fill(run->engine, gpu_steps_fill, NULL));
    zero_model_destroy(model);
    return failed;
}

/* Every unit is acquired and released; *loads: how many had to come. */
static int forward(const stream_run *run, uint64_t *loads)
{
    const zero_stream stream = zero_stream_cuda(run->stream);
    zero_stats before = zero_stats_init();
    zero_stats after = zero_stats_init();
    int failed = BENCH_TRY(zero_engine_stats(run->engine, &before)) ||
                 BENCH_TRY(zero_micro_begin(run->engine, ZERO_MICRO_EARLIER));
    for (uint32_t unit = 0; unit < run->what->units && !failed; unit++) {
        failed = BENCH_TRY(zero_unit_acquire(run->engine, unit, ZERO_PASS_FORWARD, stream, NULL)) ||
                 BENCH_TRY(zero_unit_release(run->engine, unit, stream));
    }
    failed = failed || GPU_TRY(cudaStreamSynchronize(run->stream)) ||
             BENCH_TRY(zero_engine_stats(run->engine, &after)) ||
             BENCH_TRY(zero_micro_end(run->engine));
    *loads = after.gathers - before.gathers;
    return failed || (*loads == 0 && bench_fail("gpu, %s: no unit was loaded", run->what->name));
}

/* A step whose gradients are zero: it moves everything and changes no parameter. */
static int update(const stream_run *run)
{
    const zero_step_params params = zero_step_params_init();
    uint64_t first = 0;
    zero_view view = {0};
    return BENCH_TRY(zero_micro_begin(run->engine, ZERO_MICRO_LAST)) ||
           BENCH_TRY(zero_micro_end(run->engine)) ||
           BENCH_TRY(zero_step(run->engine, &params, zero_stream_cuda(run->stream))) ||
           BENCH_TRY(zero_shard_view(run->engine, 0, ZERO_ROLE_MASTER, &first, &view));
}

/* Seconds of moving every unit once. */
static double time_engine(void *argument)
{
    const stream_run *run = argument;
    uint64_t loads = run->what->units;
    const double start = bench_now();
    const int failed = run->what->optimizer ? update(run) : forward(run, &loads);
    return failed ? -1.0 : (bench_now() - start) * run->what->units / (double)loads;
}

/* A value rounded to bf16, which is the upper half of fp32 and has 8 bits of a number. */
static bool is_rounded(uint16_t half, float value)
{
    const uint32_t bits = (uint32_t)half << 16;
    float rounded = 0.0f;
    memcpy(&rounded, &bits, sizeof rounded);
    return fabsf(rounded - value) <= fabsf(value) * 0x1p-8f;
}

/* A unit's first parameters where forward finds them. */
static int check_unit(const stream_run *run, uint32_t unit)
{
    uint16_t seen[CHECKED_MAX];
    float filled[CHECKED_MAX];
    const zero_stream stream = zero_stream_cuda(run->stream);
    zero_view view = {0};
    if (BENCH_TRY(zero_unit_acquire(run->engine, unit, ZERO_PASS_EVAL, stream, NULL)) ||
        BENCH_TRY(zero_tensor_data(run->engine, unit, &view))) {
        return 1;
    }
    const size_t count = view.count < CHECKED_MAX ? view.count : CHECKED_MAX;
    if (gpu_fetch(seen, view.data, count * sizeof *seen, run->stream) != 0) {
        return 1;
    }
    gpu_steps_fill(NULL, unit, 0, count, filled);
    for (size_t i = 0; i < count; i++) {
        if (!is_rounded(seen[i], filled[i])) {
            return bench_fail("gpu, %s: element %zu of unit %u is not what it was filled with",
                              run->what->name, i, unit);
        }
    }
    return BENCH_TRY(zero_unit_release(run->engine, unit, stream));
}

static int measure(const bench_options *options, stream_run *run, gpu_pinned *pinned,
                   bench_report *report)
{
    const gpu_pinned_way way = run->what->optimizer ? GPU_PINNED_BOTH : GPU_PINNED_TO_GPU;
    const bench_side sides[] = {{time_engine, run}, gpu_pinned_side(pinned, way)};
    bench_stat stats[2];
    int failed = open_engine(run) || bench_interleave(sides, 2, options->repetitions, stats);
    for (uint32_t unit = 0; unit < run->what->units && !failed; unit++) {
        failed = check_unit(run, unit);
    }
    return failed ||
           bench_add_times(report, "stream_vs_pinned", run->what->name, &stats[0], &stats[1]);
}

static int run_case(const bench_options *options, const stream_case *what, gpu_pinned *pinned,
                    bench_report *report)
{
    stream_run run = {.what = what, .unit_elements = pinned->bytes / what->units / what->width};
    const int failed = gpu_stream_open(&run.stream) || measure(options, &run, pinned, report);
    zero_engine_destroy(run.engine);
    zero_world_destroy(run.world);
    gpu_stream_close(run.stream);
    return failed;
}

int bench_gpu_stream(const bench_options *options, bench_report *report)
{
    static const size_t bytes[] = {(size_t)768 << 20, (size_t)192 << 20, (size_t)24 << 10};
    gpu_pinned pinned;
    if (!bench_wants(options, cases[0].name) && !bench_wants(options, cases[1].name)) {
        return 0;
    }
    const int closed = gpu_pinned_open(&pinned, bytes[options->scale]);
    int failed = closed;
    for (size_t i = 0; i < CASE_COUNT && !closed; i++) {
        if (bench_wants(options, cases[i].name)) {
            failed |= run_case(options, &cases[i], &pinned, report);
        }
    }
    gpu_pinned_close(&pinned);
    return failed;
}
