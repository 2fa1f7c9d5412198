/* Owns peak_memory_vs_plan: engines of every stage and several types run steps in in-process ranks.
 * Two measures are held against the plan of one rank: the most bytes the library's allocator says a
 * rank ever held, and by how much grew what the system says is in use, per rank: resident pages of
 * the process, or memory of the GPU. */
#include <stdlib.h>
#include <string.h>

#include "bench_place.h"
#include "zero/zero.h"

#define METRIC "peak_memory_vs_plan"
#define DEADLINE_MS 120000
#define STEPS 2

/* A choice of types. */
typedef struct memory_types {
    const char *name;
    zero_dtype param;
    zero_dtype master;
    zero_dtype moments;
} memory_types;

static const memory_types types[] = {
    {"f32", ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_DEFAULT},
    {"bf16 with f32 master", ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
    {"bf16 without master, bf16 moments", ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_BF16},
    {"f16 with f32 master", ZERO_DTYPE_F16, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
};
#define TYPES_COUNT (sizeof types / sizeof types[0])

typedef struct memory_job {
    const bench_place *place;
    uint32_t ranks;
    uint32_t units;
    uint32_t width;
    zero_stage stage;
    const memory_types *types;
    uint64_t *peak_bytes;   /* by rank: as the allocator counted */
    uint64_t planned_bytes; /* of one rank, from a plan made apart from the engines */
    uint64_t used_bytes;    /* by which what is in use grew */
} memory_job;

/* Units of several sizes, none of which divides evenly: a square matrix, a long one, a bias, and a
 * frozen tensor in every third unit. */
static int describe_unit(const memory_job *job, zero_model *model, uint32_t index)
{
    static const char *const names[] = {"square", "long", "bias", "frozen"};
    static const uint32_t flags[] = {ZERO_TENSOR_PLAIN, ZERO_TENSOR_PLAIN, ZERO_TENSOR_NO_DECAY,
                                     ZERO_TENSOR_FROZEN};
    const uint64_t width = job->width;
    const uint64_t extents[][2] = {
        {width, width + index}, {4 * width + 1, width}, {width, 1}, {width, 1}};
    zero_tensor_desc descs[4];
    char texts[4][64];
    uint32_t unit = 0;
    uint32_t tensor = 0;
    for (uint32_t t = 0; t < 4; t++) {
        (void)snprintf(texts[t], sizeof texts[t], "unit%u.%s", index, names[t]);
        descs[t] = (zero_tensor_desc){.name = texts[t],
                                      .shape = {extents[t][0], extents[t][1]},
                                      .dims = 2,
                                      .dtype = job->types->param,
                                      .flags = flags[t]};
    }
    char name[64];
    (void)snprintf(name, sizeof name, "unit%u", index);
    return BENCH_TRY(
        zero_model_add_unit(model, name, descs, index % 3 == 0 ? 4 : 3, &unit, &tensor));
}

static int describe_model(const memory_job *job, zero_model **model)
{
    int failed = BENCH_TRY(zero_model_create(model));
    for (uint32_t i = 0; i < job->units && !failed; i++) {
        failed = describe_unit(job, *model, i);
    }
    return failed;
}

static zero_engine_options make_options(const memory_job *job, zero_tuning *tuning)
{
    zero_engine_options options = zero_engine_options_init();
    *tuning = zero_tuning_init();
    options.tuning = tuning;
    options.stage = job->stage;
    options.master_dtype = job->types->master;
    options.moment_dtype = job->types->moments;
    options.threads = 1;
    options.device = job->place->device;
    if (options.device == ZERO_DEVICE_CUDA) {
        tuning->transport = ZERO_TRANSPORT_PEER; /* ranks are threads here; the plan cannot know */
    }
    return options;
}

/* One step in which every unit is used forward and backward and every gradient is zero. */
static int run_step(zero_engine *engine, uint32_t units)
{
    const zero_stream host = zero_stream_host();
    const zero_step_params params = zero_step_params_init();
    int failed = BENCH_TRY(zero_micro_begin(engine, 1));
    for (uint32_t i = 0; i < 2 * units && !failed; i++) {
        const bool forward = i < units;
        const zero_pass pass = forward ? ZERO_PASS_FORWARD : ZERO_PASS_BACKWARD;
        const uint32_t unit = forward ? i : 2 * units - 1 - i;
        failed = BENCH_TRY(zero_unit_acquire(engine, unit, pass, host, NULL)) ||
                 BENCH_TRY(zero_unit_release(engine, unit, host));
    }
    return failed || BENCH_TRY(zero_micro_end(engine)) ||
           BENCH_TRY(zero_step(engine, &params, host));
}

/* Rank 0 reads what is in use while all ranks wait before and after. */
static int read_used(const bench_place *place, zero_world *world, uint64_t *bytes)
{
    const int failed = BENCH_TRY(zero_world_barrier(world));
    if (zero_world_rank(world) == 0) {
        *bytes = place->used_bytes();
    }
    return failed || BENCH_TRY(zero_world_barrier(world));
}

static int run_engine(memory_job *job, zero_world *world, zero_engine *engine)
{
    zero_step_result result = zero_step_result_init();
    zero_stats stats = zero_stats_init();
    int failed = 0;
    for (uint32_t step = 0; step < STEPS && !failed; step++) {
        failed = run_step(engine, job->units);
    }
    failed = failed || BENCH_TRY(zero_step_wait(engine, &result)) ||
             BENCH_TRY(zero_engine_stats(engine, &stats));
    job->peak_bytes[zero_world_rank(world)] = stats.device_peak_bytes;
    return failed;
}

static zero_status run_rank(zero_world *world, void *user)
{
    memory_job *job = user;
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    uint64_t before = 0;
    uint64_t after = 0;
    zero_tuning tuning;
    const zero_engine_options options = make_options(job, &tuning);
    const int failed = describe_model(job, &model) || read_used(job->place, world, &before) ||
                       BENCH_TRY(zero_engine_create(world, model, &options, &engine)) ||
                       run_engine(job, world, engine) || read_used(job->place, world, &after);
    if (zero_world_rank(world) == 0) {
        job->used_bytes = after > before ? after - before : 0;
    }
    const zero_status status = bench_rank_status(failed);
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    return status;
}

/* The plan, made without ranks and without memory. */
static int make_plan(memory_job *job)
{
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    zero_tuning tuning;
    const zero_engine_options options = make_options(job, &tuning);
    zero_memory memory = zero_memory_init();
    const int failed = describe_model(job, &model) ||
                       BENCH_TRY(zero_plan_create(model, &options, job->ranks, &plan)) ||
                       BENCH_TRY(zero_plan_memory(plan, &memory));
    job->planned_bytes = memory.total_bytes;
    zero_plan_destroy(plan);
    zero_model_destroy(model);
    return failed;
}

/* The most that an allocator of a rank ever gave, or a rank's part of what is used more. */
static int measure(memory_job *job, bench_report *report, bool used, const char *name)
{
    memset(job->peak_bytes, 0, job->ranks * sizeof *job->peak_bytes);
    if (make_plan(job) != 0) {
        return 1;
    }
    if (zero_world_run(job->ranks, DEADLINE_MS, run_rank, job) != ZERO_OK) {
        return bench_fail_zero(name);
    }
    if (used && job->used_bytes == 0) {
        return bench_skip(report, METRIC, name, "the system does not tell what is in use");
    }
    const double share = (double)job->used_bytes / job->ranks;
    bench_stat bytes = {share, share, share, 1};
    if (!used) {
        bytes = (bench_stat){.min = (double)job->peak_bytes[0], .repetitions = job->ranks};
        for (uint32_t rank = 0; rank < job->ranks; rank++) {
            const double peak = (double)job->peak_bytes[rank];
            bytes.min = peak < bytes.min ? peak : bytes.min;
            bytes.max = peak > bytes.max ? peak : bytes.max;
        }
        bytes.median = bytes.max; /* the rank that held most counts */
    }
    return bench_add(report, METRIC, name, "bytes", &bytes, (double)job->planned_bytes);
}

static int measure_all(const bench_options *options, memory_job *job, bench_report *report)
{
    static const zero_stage stages[] = {ZERO_STAGE_0, ZERO_STAGE_1, ZERO_STAGE_2, ZERO_STAGE_3};
    static const uint32_t widths[] = {700, 350, 60}; /* of the models whose growth is counted */
    for (uint32_t s = 0; s < sizeof stages / sizeof stages[0]; s++) {
        for (size_t t = 0; t <= TYPES_COUNT; t++) {
            const bool used = t == TYPES_COUNT;
            char name[128];
            job->stage = stages[s];
            job->types = &types[used ? 0 : t];
            job->width = used ? widths[options->scale] : 61;
            (void)snprintf(name, sizeof name, "stage %u, %u ranks, %s%s%s%s", s, job->ranks,
                           job->types->name, job->place->suffix, used ? ", " : "",
                           used ? job->place->used : "");
            if (bench_wants(options, name) && measure(job, report, used, name) != 0) {
                return 1;
            }
        }
    }
    return 0;
}

int bench_peak_memory_at(const bench_place *place, const bench_options *options,
                         bench_report *report)
{
    memory_job job = {
        .place = place, .ranks = options->ranks != 0 ? options->ranks : 2, .units = 24};
    job.peak_bytes = calloc(job.ranks, sizeof *job.peak_bytes);
    if (job.peak_bytes == NULL) {
        return bench_fail("no memory left for the peaks of %u ranks", job.ranks);
    }
    const int failed = measure_all(options, &job, report);
    free(job.peak_bytes);
    return failed;
}
