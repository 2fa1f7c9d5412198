/* Owns stage3_vs_stage0 and traced_vs_untraced: an engine for each stage, and one of stage 3 with a
 * timeline, in every in-process rank, training the same network on the same batches in turn.
 * Invariant: a ratio is reported only when every engine had the same losses and ended with the same
 * parameters, to the bit, on every rank. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_block.h"

/* More than the spans of the steps that are measured at once. */
#define TRACE_EVENTS 65536
#define DEADLINE_MS 120000

/* A kind of measurement, and the other sides that it is against. */
typedef struct speed_kind {
    const char *metric;
    const char *name;
    zero_stage stage;
    uint32_t trace_events;
    uint32_t against;
} speed_kind;

/* The timeline's is behind the one that it is against, so the two take turns as a pair. */
static const speed_kind kinds[] = {
    {NULL, "stage 0", ZERO_STAGE_0, 0, 0},
    {"stage3_vs_stage0", "stage 1", ZERO_STAGE_1, 0, 0},
    {"stage3_vs_stage0", "stage 2", ZERO_STAGE_2, 0, 0},
    {"stage3_vs_stage0", "stage 3", ZERO_STAGE_3, 0, 0},
    {"traced_vs_untraced", "timeline, stage 3", ZERO_STAGE_3, TRACE_EVENTS, 3},
};
#define SIDES (sizeof kinds / sizeof kinds[0])

/* The result of an engine on one rank, compared between engines and ranks. */
typedef struct speed_trace {
    uint64_t loss_hash;  /* over the bits of all its losses; differs between ranks */
    uint64_t param_hash; /* over all parameters at the end */
    float first_loss;
    float last_loss;
    uint64_t steps;
} speed_trace;

/* The job that all ranks share. */
typedef struct speed_job {
    const bench_options *options;
    bench_report *report;
    block_shape shape;
    uint32_t ranks;
    uint32_t steps; /* of one measurement */
    int failed;     /* rank 0's verdict */
} speed_job;

/* One engine on one rank: a side of the measurement. */
typedef struct speed_side {
    zero_world *world;
    zero_engine *engine;
    block_net *net;
    const speed_job *job;
    speed_trace trace;
} speed_side;

static uint64_t mix_hash(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 29);
}

static uint64_t hash_floats(uint64_t hash, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        memcpy(&bits, values + i, sizeof bits);
        hash = mix_hash(hash, bits);
    }
    return hash;
}

static int train_step(speed_side *side)
{
    zero_step_params params = zero_step_params_init();
    params.hyper.adamw.lr = 1e-4f;
    params.hyper.adamw.weight_decay = 0.01f;
    params.max_norm = 1.0f;
    float loss = 0.0f;
    const int failed = block_micro_step(side->net, side->engine, &loss) ||
                       BENCH_TRY(zero_step(side->engine, &params, zero_stream_host()));
    side->trace.loss_hash = hash_floats(side->trace.loss_hash, &loss, 1);
    side->trace.last_loss = loss;
    if (side->trace.steps++ == 0) {
        side->trace.first_loss = loss;
    }
    return failed;
}

/* Seconds a step; the measurement ends when the last step's update is done on every rank. */
static double run_side(void *argument)
{
    speed_side *side = argument;
    uint64_t first = 0;
    zero_view view = {0};
    int failed = BENCH_TRY(zero_world_barrier(side->world));
    const double start = bench_now();
    for (uint32_t step = 0; step < side->job->steps && !failed; step++) {
        failed = train_step(side);
    }
    failed = failed ||
             BENCH_TRY(zero_shard_view(side->engine, 0, ZERO_ROLE_PARAM, &first, &view)) ||
             BENCH_TRY(zero_world_barrier(side->world));
    return failed ? -1.0 : (bench_now() - start) / side->job->steps;
}

static int hash_unit(zero_engine *engine, uint32_t unit, uint64_t *hash)
{
    const zero_stream host = zero_stream_host();
    const zero_unit_view *view = NULL;
    if (BENCH_TRY(zero_unit_acquire(engine, unit, ZERO_PASS_EVAL, host, &view))) {
        return 1;
    }
    for (uint32_t t = 0; t < view->tensor_count; t++) {
        *hash = hash_floats(*hash, view->params[t].data, view->params[t].count);
    }
    return BENCH_TRY(zero_unit_release(engine, unit, host));
}

static int make_sides(speed_job *job, zero_world *world, const zero_model *model, block_net *net,
                      speed_side *sides)
{
    int failed = 0;
    for (uint32_t i = 0; i < SIDES && !failed; i++) {
        zero_engine_options options = zero_engine_options_init();
        zero_tuning tuning = zero_tuning_init();
        tuning.trace_events = kinds[i].trace_events;
        options.tuning = &tuning;
        options.stage = kinds[i].stage;
        options.threads = job->options->threads != 0 ? job->options->threads : 1;
        sides[i] = (speed_side){.world = world, .job = job, .net = net};
        failed = BENCH_TRY(zero_engine_create(world, model, &options, &sides[i].engine)) ||
                 BENCH_TRY(zero_engine_fill(sides[i].engine, block_fill, NULL));
    }
    return failed;
}

/* The traces of every side of every rank, on every rank: traces[rank * SIDES + side]. */
static int gather_traces(speed_side *sides, const zero_model *model, speed_trace *traces)
{
    const uint32_t units = zero_model_unit_count(model);
    speed_trace own[SIDES];
    int failed = 0;
    for (uint32_t i = 0; i < SIDES; i++) {
        for (uint32_t unit = 0; unit < units && !failed; unit++) {
            failed = hash_unit(sides[i].engine, unit, &sides[i].trace.param_hash);
        }
        own[i] = sides[i].trace;
    }
    return failed || BENCH_TRY(zero_world_gather(sides[0].world, own, traces, sizeof own));
}

static int check_traces(const speed_trace *traces, uint32_t ranks)
{
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (uint32_t i = 0; i < SIDES; i++) {
            const speed_trace *trace = &traces[rank * SIDES + i];
            const speed_trace *base = &traces[rank * SIDES];
            if (trace->loss_hash != base->loss_hash) {
                return bench_fail("%s on rank %u: losses differ from stage 0's (last %.9g "
                                  "and %.9g)",
                                  kinds[i].name, rank, (double)trace->last_loss,
                                  (double)base->last_loss);
            }
            if (trace->param_hash != traces[0].param_hash) {
                return bench_fail("%s on rank %u: parameters differ from stage 0's after "
                                  "%" PRIu64 " steps",
                                  kinds[i].name, rank, trace->steps);
            }
            if (!(trace->last_loss < trace->first_loss)) {
                return bench_fail("%s on rank %u: loss went from %.9g to %.9g", kinds[i].name, rank,
                                  (double)trace->first_loss, (double)trace->last_loss);
            }
        }
    }
    return 0;
}

#define NAME_BYTES 128

/* True if a side's row is asked for; name: out, its case's. */
static bool wants_side(const speed_job *job, uint32_t side, char name[NAME_BYTES])
{
    (void)snprintf(name, NAME_BYTES, "%s, %u ranks, %u blocks of %u, %u tokens each",
                   kinds[side].name, job->ranks, job->shape.blocks, job->shape.width,
                   job->shape.tokens);
    return bench_wants(job->options, name);
}

static int add_rows(const speed_job *job, const bench_stat *stats)
{
    for (uint32_t i = 1; i < SIDES; i++) {
        char name[NAME_BYTES];
        if (wants_side(job, i, name) && bench_add_times(job->report, kinds[i].metric, name,
                                                        &stats[i], &stats[kinds[i].against]) != 0) {
            return 1;
        }
    }
    return 0;
}

static int measure(speed_job *job, speed_side *sides, const zero_model *model)
{
    bench_side runs[SIDES];
    bench_stat stats[SIDES];
    for (uint32_t i = 0; i < SIDES; i++) {
        runs[i] = (bench_side){run_side, &sides[i]};
    }
    if (bench_interleave(runs, SIDES, bench_long_repetitions(job->options), stats) != 0) {
        return 1;
    }
    speed_trace *traces = calloc((size_t)job->ranks * SIDES, sizeof *traces);
    if (traces == NULL) {
        return bench_fail("step: no memory left for what the engines came to");
    }
    const int failed = gather_traces(sides, model, traces);
    if (!failed && zero_world_rank(sides[0].world) == 0) {
        job->failed = check_traces(traces, job->ranks) || add_rows(job, stats);
    }
    free(traces);
    return failed;
}

static zero_status run_rank(zero_world *world, void *user)
{
    speed_job *job = user;
    speed_side sides[SIDES] = {{0}};
    zero_model *model = NULL;
    block_net *net = block_net_create(&job->shape, zero_world_rank(world));
    const int failed = (net == NULL && bench_fail("step: no memory left for a network")) ||
                       BENCH_TRY(zero_model_create(&model)) || block_describe(&job->shape, model) ||
                       make_sides(job, world, model, net, sides) || measure(job, sides, model);
    const zero_status status = bench_rank_status(failed);
    for (uint32_t i = 0; i < SIDES; i++) {
        zero_engine_destroy(sides[i].engine);
    }
    zero_model_destroy(model);
    block_net_destroy(net);
    return status;
}

int bench_stage_speed(const bench_options *options, bench_report *report)
{
    static const block_shape shapes[] = {{8, 512, 512}, {6, 256, 512}, {2, 32, 16}};
    static const uint32_t steps[] = {2, 2, 1};
    speed_job job = {.options = options,
                     .report = report,
                     .shape = shapes[options->scale],
                     .ranks = options->ranks != 0 ? options->ranks : 2,
                     .steps = steps[options->scale]};
    bool wanted = false;
    for (uint32_t i = 1; i < SIDES; i++) {
        char name[NAME_BYTES];
        wanted = wants_side(&job, i, name) || wanted;
    }
    if (!wanted) {
        return 0;
    }
    block_single_thread();
    if (zero_world_run(job.ranks, DEADLINE_MS, run_rank, &job) != ZERO_OK) {
        return bench_fail_zero("step");
    }
    return job.failed;
}
