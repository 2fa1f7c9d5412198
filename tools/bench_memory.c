/* Owns peak_memory_vs_plan: engines of every stage and several types run steps in in-process ranks.
 * Two measures are held against the plan of one rank: the most bytes the library's allocator says a
 * rank ever held, and by how much grew what the system says is in use, per rank: resident pages of
 * the process, or memory of the GPU. */
#include <stdlib.h>
#include <string.h>

#include "memory_run.h"

#define METRIC "peak_memory_vs_plan"

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
    {"bf16 with 16-bit remainder, bf16 moments", ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16,
     ZERO_DTYPE_BF16},
    {"bf16 with 8-bit remainder, 8-bit moments", ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8,
     ZERO_DTYPE_I8},
    {"bf16 without master, bf16 moments", ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_BF16},
    {"f16 with f32 master", ZERO_DTYPE_F16, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
};
#define TYPES_COUNT (sizeof types / sizeof types[0])

typedef struct memory_job {
    const bench_target *target;
    uint32_t ranks;
    uint32_t units;
    uint32_t width;
    zero_stage stage;
    const memory_types *types;
    memory_rank *by_rank;
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
    return BENCH_TRY(zero_unit_add(
        model,
        &(zero_unit_desc){.name = name, .tensors = descs, .tensor_count = index % 3 == 0 ? 4 : 3},
        &unit, &tensor));
}

static int describe_model(const memory_job *job, zero_model **model)
{
    int failed = BENCH_TRY(zero_model_create(model));
    for (uint32_t i = 0; i < job->units && !failed; i++) {
        failed = describe_unit(job, *model, i);
    }
    return failed;
}

/* Engines of all ranks, and what they hold. */
static int run_job(const memory_job *job, memory_run *run)
{
    zero_model *model = NULL;
    zero_tuning tuning;
    zero_engine_options options = memory_run_options(job->target, &tuning);
    options.stage = job->stage;
    options.master_dtype = job->types->master;
    options.moment_dtype = job->types->moments;
    int failed = describe_model(job, &model);
    *run = (memory_run){.target = job->target,
                        .model = model,
                        .options = &options,
                        .ranks = job->ranks,
                        .by_rank = job->by_rank};
    failed = failed || memory_run_measure(run);
    zero_model_destroy(model);
    return failed;
}

/* The most that an allocator of a rank ever gave, or a rank's share of what is used more. */
static int measure(const memory_job *job, bench_report *report, bool used, const char *name)
{
    memory_run run;
    if (run_job(job, &run) != 0) {
        return 1;
    }
    if (used && run.used_bytes == 0) {
        return bench_skip(report, METRIC, name, "the system does not tell what is in use");
    }
    const double share = (double)run.used_bytes / job->ranks;
    bench_stat bytes = {share, share, share, 1};
    if (!used) {
        bytes = (bench_stat){.min = (double)job->by_rank[0].device_peak_bytes,
                             .repetitions = job->ranks};
        for (uint32_t rank = 0; rank < job->ranks; rank++) {
            const double peak = (double)job->by_rank[rank].device_peak_bytes;
            bytes.min = peak < bytes.min ? peak : bytes.min;
            bytes.max = peak > bytes.max ? peak : bytes.max;
        }
        bytes.median = bytes.max; /* the rank that held most counts */
    }
    return bench_add(report, METRIC, name, "bytes", &bytes, (double)run.planned.total_bytes);
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
                           job->types->name, job->target->suffix, used ? ", " : "",
                           used ? job->target->used : "");
            if (bench_wants(options, name) && measure(job, report, used, name) != 0) {
                return 1;
            }
        }
    }
    return 0;
}

int bench_peak_memory_at(const bench_target *target, const bench_options *options,
                         bench_report *report)
{
    memory_job job = {
        .target = target, .ranks = options->ranks != 0 ? options->ranks : 2, .units = 24};
    job.by_rank = calloc(job.ranks, sizeof *job.by_rank);
    if (job.by_rank == NULL) {
        return bench_fail("no memory left for the peaks of %u ranks", job.ranks);
    }
    const int failed = measure_all(options, &job, report);
    free(job.by_rank);
    return failed;
}
