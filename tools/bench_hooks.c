/* Owns the measurement of hooks that have nothing to do: one rank, every unit where it is,
 * gradients that stay where backward wrote them. Invariant: a number is reported only when the
 * hooks handed out the right memory and nothing was allocated while they were timed. */
#include <stdlib.h>

#include "bench_target.h"
#include "zero/zero.h"

#define METRIC "hook_ns"
#define LIMIT_NS 100.0
#define TENSORS_PER_UNIT 12 /* as a block of a GPT-2 has */
#define TENSOR_ELEMENTS 64
#define READS 16 /* of every tensor in one visit of its unit */

typedef struct hooks_setup {
    const bench_target *target;
    zero_world *world;
    zero_model *model;
    zero_engine *engine;
} hooks_setup;

/* The value that every element of a tensor is filled with. */
static float tensor_value(uint32_t tensor)
{
    return (float)(tensor % 1000) * 0.5f;
}

static void fill_values(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    (void)first;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = tensor_value(tensor);
    }
}

static int set_up(hooks_setup *setup, zero_stage stage)
{
    char names[TENSORS_PER_UNIT][16];
    zero_tensor_desc descs[TENSORS_PER_UNIT];
    for (uint32_t t = 0; t < TENSORS_PER_UNIT; t++) {
        (void)snprintf(names[t], sizeof names[t], "tensor%u", t);
        descs[t] = (zero_tensor_desc){.name = names[t], .shape = {TENSOR_ELEMENTS}, .dims = 1};
    }
    zero_engine_options options = zero_engine_options_init();
    options.stage = stage;
    options.threads = 1;
    options.device = setup->target->device;
    uint32_t unit = 0;
    uint32_t tensor = 0;
    return BENCH_TRY(zero_world_create_self(&setup->world)) ||
           BENCH_TRY(zero_model_create(&setup->model)) ||
           BENCH_TRY(zero_unit_add(setup->model,
                                   &(zero_unit_desc){.name = "unit",
                                                     .layers = setup->target->hook_units,
                                                     .tensors = descs,
                                                     .tensor_count = TENSORS_PER_UNIT},
                                   &unit, &tensor)) ||
           BENCH_TRY(zero_engine_create(setup->world, setup->model, &options, &setup->engine)) ||
           BENCH_TRY(zero_engine_fill(setup->engine, fill_values, NULL));
}

static void tear_down(hooks_setup *setup)
{
    zero_engine_destroy(setup->engine);
    zero_model_destroy(setup->model);
    zero_world_destroy(setup->world);
}

/* One micro-step over all units, which backward visits from the last to the first; adds the time of
 * the hooks it is about to *seconds. 0, or 1 after bench_fail; so for all below. */
typedef int (*hooks_loop)(hooks_setup *setup, zero_pass pass, double *seconds);

/* In backward the same hooks acquire gradients too. */
static int loop_acquire(hooks_setup *setup, zero_pass pass, double *seconds)
{
    zero_engine *engine = setup->engine;
    const zero_stream here = setup->target->stream;
    const uint32_t units = setup->target->hook_units;
    int failed = BENCH_TRY(zero_micro_begin(engine, ZERO_MICRO_EARLIER));
    const double start = bench_now();
    for (uint32_t i = 0; i < units && !failed; i++) {
        const uint32_t unit = pass == ZERO_PASS_BACKWARD ? units - 1 - i : i;
        const zero_unit_view *view = NULL;
        failed = BENCH_TRY(zero_unit_acquire(engine, unit, pass, here, &view)) ||
                 BENCH_TRY(zero_unit_release(engine, unit, here));
    }
    *seconds += bench_now() - start;
    return failed || BENCH_TRY(zero_micro_end(engine));
}

/* Backward by the split calls. */
static int loop_split(hooks_setup *setup, zero_pass pass, double *seconds)
{
    zero_engine *engine = setup->engine;
    const zero_stream here = setup->target->stream;
    int failed = BENCH_TRY(zero_micro_begin(engine, ZERO_MICRO_EARLIER));
    const double start = bench_now();
    for (uint32_t unit = setup->target->hook_units; unit-- > 0 && !failed;) {
        failed = BENCH_TRY(zero_unit_params_acquire(engine, unit, pass, here)) ||
                 BENCH_TRY(zero_unit_grads_acquire(engine, unit, here)) ||
                 BENCH_TRY(zero_unit_grads_ready(engine, unit, here)) ||
                 BENCH_TRY(zero_unit_params_release(engine, unit, here));
    }
    *seconds += bench_now() - start;
    return failed || BENCH_TRY(zero_micro_end(engine));
}

/* Every tensor of a unit, READS times. */
static int read_tensors(zero_engine *engine, zero_pass pass, uint32_t unit)
{
    int failed = 0;
    for (uint32_t i = 0; i < READS && !failed; i++) {
        const uint32_t first = unit * TENSORS_PER_UNIT;
        for (uint32_t t = first; t < first + TENSORS_PER_UNIT && !failed; t++) {
            zero_view view = {0};
            failed = pass == ZERO_PASS_BACKWARD ? BENCH_TRY(zero_tensor_grad(engine, t, &view))
                                                : BENCH_TRY(zero_tensor_data(engine, t, &view));
        }
    }
    return failed;
}

/* Reading gradients in backward, else parameters. */
static int loop_read(hooks_setup *setup, zero_pass pass, double *seconds)
{
    zero_engine *engine = setup->engine;
    const zero_stream here = setup->target->stream;
    const uint32_t units = setup->target->hook_units;
    int failed = BENCH_TRY(zero_micro_begin(engine, ZERO_MICRO_EARLIER));
    for (uint32_t i = 0; i < units && !failed; i++) {
        const uint32_t unit = pass == ZERO_PASS_BACKWARD ? units - 1 - i : i;
        failed = BENCH_TRY(zero_unit_acquire(engine, unit, pass, here, NULL));
        const double start = bench_now();
        failed = failed || read_tensors(engine, pass, unit);
        *seconds += bench_now() - start;
        failed = failed || BENCH_TRY(zero_unit_release(engine, unit, here));
    }
    return failed || BENCH_TRY(zero_micro_end(engine));
}

typedef struct hooks_case {
    const char *name;
    zero_stage stage;
    hooks_loop loop;
    zero_pass pass;
    uint32_t calls; /* of one loop, for each unit */
} hooks_case;

static const hooks_case cases[] = {
    {"acquire and release, stage 0", ZERO_STAGE_0, loop_acquire, ZERO_PASS_FORWARD, 2},
    {"acquire and release, stage 3", ZERO_STAGE_3, loop_acquire, ZERO_PASS_FORWARD, 2},
    {"tensor_data, stage 0", ZERO_STAGE_0, loop_read, ZERO_PASS_FORWARD, READS *TENSORS_PER_UNIT},
    {"acquire and release in backward, stage 0", ZERO_STAGE_0, loop_acquire, ZERO_PASS_BACKWARD, 2},
    {"params_acquire, grads_acquire, grads_ready, params_release, stage 0", ZERO_STAGE_0,
     loop_split, ZERO_PASS_BACKWARD, 4},
    {"tensor_grad, stage 0", ZERO_STAGE_0, loop_read, ZERO_PASS_BACKWARD, READS *TENSORS_PER_UNIT},
};
#define CASE_COUNT (sizeof cases / sizeof cases[0])

/* The inputs of one measurement, and what it has seen. */
typedef struct hooks_side {
    hooks_setup *setup;
    const hooks_case *what;
    uint32_t calls;       /* of one loop */
    uint32_t loops;       /* of one measurement */
    uint32_t runs;        /* measurements so far */
    uint64_t allocations; /* in all but the first, which warms up */
} hooks_side;

static double run_side(void *argument)
{
    hooks_side *side = argument;
    double seconds = 0.0;
    const uint64_t before = bench_allocations();
    for (uint32_t i = 0; i < side->loops; i++) {
        /* A GPU's queue that is full makes the next call wait, which is not what is measured. */
        if (side->what->loop(side->setup, side->what->pass, &seconds) != 0 ||
            side->setup->target->wait(side->setup->target) != 0) {
            return -1.0;
        }
    }
    side->allocations += side->runs > 0 ? bench_allocations() - before : 0;
    side->runs++;
    return seconds / ((double)side->loops * side->calls);
}

/* All values of a tensor are what they were filled with. */
static int check_tensor(const hooks_setup *setup, uint32_t tensor, const zero_view *handed_out)
{
    zero_view view = {0};
    if (BENCH_TRY(zero_tensor_data(setup->engine, tensor, &view))) {
        return 1;
    }
    if (handed_out->data != view.data) {
        return bench_fail("hooks: tensor %u at %p in its unit's views, at %p by zero_tensor_data",
                          tensor, handed_out->data, view.data);
    }
    if (view.count != TENSOR_ELEMENTS || view.dtype != ZERO_DTYPE_F32) {
        return bench_fail("hooks: tensor %u has %zu elements of %s", tensor, view.count,
                          zero_dtype_name(view.dtype));
    }
    float values[TENSOR_ELEMENTS];
    if (setup->target->fetch(setup->target, values, view.data, sizeof values) != 0) {
        return 1;
    }
    for (size_t i = 0; i < view.count; i++) {
        if (values[i] != tensor_value(tensor)) {
            return bench_fail("hooks: element %zu of tensor %u is %g instead of %g", i, tensor,
                              (double)values[i], (double)tensor_value(tensor));
        }
    }
    return 0;
}

/* No gradient was written, so a step without decay leaves every parameter as it was filled. */
static int check_engine(hooks_setup *setup)
{
    zero_engine *engine = setup->engine;
    const zero_stream here = setup->target->stream;
    const zero_step_params params = zero_step_params_init();
    double seconds = 0.0;
    int failed = loop_acquire(setup, ZERO_PASS_BACKWARD, &seconds) ||
                 BENCH_TRY(zero_micro_begin(engine, ZERO_MICRO_LAST)) ||
                 BENCH_TRY(zero_micro_end(engine)) || BENCH_TRY(zero_step(engine, &params, here));
    for (uint32_t unit = 0; unit < setup->target->hook_units && !failed; unit++) {
        const zero_unit_view *view = NULL;
        failed = BENCH_TRY(zero_unit_acquire(engine, unit, ZERO_PASS_EVAL, here, &view));
        for (uint32_t t = 0; t < TENSORS_PER_UNIT && !failed; t++) {
            failed = check_tensor(setup, unit * TENSORS_PER_UNIT + t, &view->params[t]);
        }
        failed = failed || BENCH_TRY(zero_unit_release(engine, unit, here));
    }
    return failed;
}

static int measure(const bench_options *options, const hooks_case *what, const char *name,
                   hooks_setup *setup, bench_report *report)
{
    static const uint32_t shares[] = {1, 5, 250}; /* of the calls, by scale */
    hooks_side side = {.setup = setup, .what = what};
    side.calls = what->calls * setup->target->hook_units;
    side.loops = 1 + setup->target->hook_calls / shares[options->scale] / side.calls;
    const bench_side sides[] = {{run_side, &side}};
    bench_stat stat = {0};
    if (bench_interleave(sides, 1, options->repetitions, &stat) != 0 || check_engine(setup) != 0) {
        return 1;
    }
    if (side.allocations != 0) {
        return bench_fail("hooks, %s: %llu memory requests while the hooks ran", what->name,
                          (unsigned long long)side.allocations);
    }
    const bench_stat ns = {stat.median * 1e9, stat.min * 1e9, stat.max * 1e9, stat.repetitions};
    return bench_add(report, METRIC, name, "ns", &ns, LIMIT_NS);
}

int bench_hooks_at(const bench_target *target, const bench_options *options, bench_report *report)
{
    int failed = 0;
    for (size_t i = 0; i < CASE_COUNT && !failed; i++) {
        hooks_setup setup = {.target = target};
        char name[128];
        (void)snprintf(name, sizeof name, "%s%s", cases[i].name, target->suffix);
        if (!bench_wants(options, name)) {
            continue;
        }
        failed =
            set_up(&setup, cases[i].stage) || measure(options, &cases[i], name, &setup, report);
        tear_down(&setup);
    }
    return failed;
}
