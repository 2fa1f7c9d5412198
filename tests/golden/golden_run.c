/* Owns small runs whose files are kept for ever: `write` saves them with this release's library,
 * `read` loads one at any number of ranks and stage and prints its state to the bit. It is a
 * program of the public headers, as a user's is. Values depend on no rank.
 *
 * Usage: golden_run write NAME FOLDER
 *        golden_run read NAME CHECKPOINT RANKS STAGE DISK     (a directory; -: state in memory)
 *        golden_run list */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "zero/zero.h"

enum { UNITS = 3, TENSORS = 4, STEPS = 5, OVERFLOW_STEP = 2, COLUMNS = 11, ELEMENTS_MAX = 128 };

#define TRY(call)                     \
    if ((status = (call)) != ZERO_OK) \
    goto done

/* A run, as it was written. */
typedef struct golden {
    const char *name;
    uint32_t ranks;
    uint32_t parts; /* 0: the model is in one; else of it, and each is one rank */
    zero_stage stage;
    zero_dtype dtype;
    zero_dtype master;
    zero_dtype moments;
    bool mixed;   /* AdamW, Lion and SGD, by group */
    bool scaled;  /* a loss scale that changes, and a step that is skipped */
    bool weights; /* parameters alone */
    bool traced;  /* a timeline and last collectives instead of a checkpoint */
} golden;

#define F32 ZERO_DTYPE_F32
#define BF16 ZERO_DTYPE_BF16
static const golden runs[] = {
    {.name = "adamw-f32", .ranks = 3, .stage = ZERO_STAGE_3, .dtype = F32, .moments = F32},
    {.name = "mixed-bf16",
     .ranks = 2,
     .stage = ZERO_STAGE_1,
     .dtype = BF16,
     .moments = F32,
     .mixed = true,
     .scaled = true},
    {.name = "rounded-bf16",
     .ranks = 1,
     .stage = ZERO_STAGE_2,
     .dtype = BF16,
     .master = ZERO_DTYPE_NONE,
     .moments = BF16},
    {.name = "parts-bf16",
     .ranks = 2,
     .parts = 2,
     .stage = ZERO_STAGE_3,
     .dtype = BF16,
     .moments = F32},
    {.name = "small-bf16",
     .ranks = 3,
     .stage = ZERO_STAGE_3,
     .dtype = BF16,
     .master = ZERO_DTYPE_REMAINDER16,
     .moments = ZERO_DTYPE_I8,
     .mixed = true},
    {.name = "smaller-bf16",
     .ranks = 2,
     .stage = ZERO_STAGE_1,
     .dtype = BF16,
     .master = ZERO_DTYPE_REMAINDER8,
     .moments = ZERO_DTYPE_I8,
     .scaled = true},
    {.name = "weights-f16", .ranks = 2, .dtype = ZERO_DTYPE_F16, .moments = F32, .weights = true},
    {.name = "traced",
     .ranks = 2,
     .stage = ZERO_STAGE_3,
     .dtype = F32,
     .moments = F32,
     .traced = true},
};
#define RUNS (sizeof runs / sizeof runs[0])

/* A command, for all of its ranks. */
typedef struct golden_job {
    const golden *run;
    const char *path; /* to write to or to read from */
    uint32_t parts;   /* as in run; reading, 0 */
    zero_stage stage;
    const char *disk; /* NULL: all is in memory */
    bool write;
} golden_job;

/* One rank's part of the model. */
typedef struct golden_part {
    uint64_t first[UNITS * TENSORS]; /* element of the global tensor that is here the first */
    zero_model *model;
} golden_part;

/* ---- the model ---- */

static const zero_optimizer kinds[UNITS] = {ZERO_OPTIMIZER_ADAMW, ZERO_OPTIMIZER_LION,
                                            ZERO_OPTIMIZER_SGD};

/* A matrix, which parts of the model have some rows of, a vector, a tensor of fp32, and one that is
 * frozen, or empty. */
static zero_tensor_desc describe(const golden_job *job, uint32_t unit, uint32_t index,
                                 uint32_t number)
{
    const zero_tensor_desc descs[TENSORS] = {
        {"weight", {4 + 2 * unit, COLUMNS}, 2, job->run->dtype, .group = unit},
        {"bias", {7}, 1, job->run->dtype, ZERO_TENSOR_NO_DECAY, .group = unit},
        {"norm", {5 + unit}, 1, ZERO_DTYPE_F32, ZERO_TENSOR_NO_DECAY, .group = unit},
        {"table", {unit == 2 ? 0 : 3, 4}, 2, job->run->dtype, ZERO_TENSOR_FROZEN, .group = unit},
    };
    zero_tensor_desc desc = descs[index];
    if (job->parts > 1 && index == 0) {
        const uint64_t rows = desc.shape[0];
        memcpy(desc.global_shape, desc.shape, sizeof desc.shape);
        desc.box_first[0] = rows * number / job->parts;
        desc.shape[0] = rows * (number + 1) / job->parts - desc.box_first[0];
    } else if (job->parts > 1) {
        desc.replica = number;
    }
    return desc;
}

static zero_status make_part(const golden_job *job, uint32_t number, golden_part *made)
{
    char name[64];
    zero_status status = zero_model_create(&made->model);
    for (uint32_t u = 0, unit = 0, tensor = 0; u < UNITS && status == ZERO_OK; u++) {
        (void)snprintf(name, sizeof name, "layer.%" PRIu32, u);
        TRY(zero_unit_add(made->model, &(zero_unit_desc){.name = name}, &unit, NULL));
        for (uint32_t i = 0; i < TENSORS; i++) {
            zero_tensor_desc desc = describe(job, u, i, number);
            (void)snprintf(name, sizeof name, "layer.%" PRIu32 ".%s", u, desc.name);
            desc.name = name;
            TRY(zero_tensor_add(made->model, unit, &desc, &tensor));
            made->first[tensor] = desc.box_first[0] * COLUMNS;
        }
    }
done:
    return status;
}

static void fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    const golden_part *part = user;
    zero_random_normal(1, tensor, part->first[tensor] + first, count, 0, 0.5F, values);
}

/* ---- training ---- */

static void add_gradient(const golden_part *part, uint32_t tensor, uint64_t step, float scale,
                         float *grad)
{
    const uint64_t count = zero_model_tensor_count_of(part->model, tensor);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t element = part->first[tensor] + i;
        const uint64_t mixed = (element * 7 + tensor * 5 + step * 3) % 13;
        grad[i] += scale * (float)((int)mixed - 6) / 8;
    }
}

static zero_status pass(zero_engine *engine, const golden_part *part, zero_pass way, uint64_t step,
                        float scale)
{
    const zero_stream here = zero_stream_host();
    zero_status status = ZERO_OK;
    for (uint32_t k = 0; k < UNITS; k++) {
        const uint32_t unit = way == ZERO_PASS_FORWARD ? k : UNITS - 1 - k;
        const zero_unit_view *view = NULL;
        TRY(zero_unit_acquire(engine, unit, way, here, &view));
        for (uint32_t i = 0; way == ZERO_PASS_BACKWARD && i < TENSORS; i++) {
            if (view->grads[i].data != NULL) {
                add_gradient(part, unit * TENSORS + i, step, scale, view->grads[i].data);
            }
        }
        TRY(zero_unit_release(engine, unit, here));
    }
done:
    return status;
}

static void choose_numbers(const golden *run, zero_hyper *groups)
{
    for (uint32_t g = 0; g < UNITS; g++) {
        groups[g] = zero_hyper_init(run->mixed ? kinds[g] : ZERO_OPTIMIZER_ADAMW);
        if (groups[g].kind == ZERO_OPTIMIZER_LION) {
            groups[g].lion.lr = 0.01F;
        } else if (groups[g].kind == ZERO_OPTIMIZER_SGD) {
            groups[g].sgd.lr = 0.02F;
            groups[g].sgd.momentum = 0.75F;
        } else {
            groups[g].adamw.lr = 0.03F + 0.01F * (float)g;
            groups[g].adamw.beta1 = 0.8F + 0.05F * (float)g;
            groups[g].adamw.weight_decay = 0.1F;
        }
    }
}

static zero_status train(zero_engine *engine, const golden_job *job, const golden_part *part,
                         uint64_t step, const zero_step_params *params)
{
    zero_step_result result = zero_step_result_init();
    float scale = 1;
    zero_status status = zero_loss_scale(engine, &scale);
    if (job->run->scaled && step == OVERFLOW_STEP) {
        scale = INFINITY;
    }
    TRY(status);
    TRY(zero_micro_begin(engine, ZERO_MICRO_LAST));
    TRY(pass(engine, part, ZERO_PASS_FORWARD, step, scale));
    TRY(pass(engine, part, ZERO_PASS_BACKWARD, step, scale));
    TRY(zero_micro_end(engine));
    TRY(zero_step(engine, params, zero_stream_host()));
    TRY(zero_step_wait(engine, &result));
done:
    return status;
}

/* ---- write ---- */

static zero_status save(zero_engine *engine, const golden_job *job, const zero_step_params *params)
{
    static const char bytes[] = "golden";
    zero_save_options options = zero_save_options_init();
    options.directory = job->path;
    options.params = params;
    options.params_only = job->run->weights;
    options.user.data_position = 77;
    options.user.random_seed = UINT64_MAX;
    options.user.random_position = UINT64_C(1) << 60;
    options.user.bytes = bytes;
    options.user.bytes_count = sizeof bytes;
    return zero_save(engine, &options);
}

static zero_status write_timeline(zero_engine *engine, const golden_job *job, uint32_t rank)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/timeline.%" PRIu32 ".json", job->path, rank);
    return zero_engine_trace(engine, path);
}

/* A rank's last collectives, written while rank 0 waits for rank 1, which is late. */
typedef struct last_words {
    zero_engine *engine;
    char path[4096];
    zero_status status;
} last_words;

static void sleep_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void *write_collectives(void *user)
{
    last_words *words = user;
    sleep_ms(200);
    words->status = zero_engine_collectives_write(words->engine, words->path);
    return NULL;
}

static zero_status train_late(zero_engine *engine, const golden_job *job, const golden_part *part,
                              uint32_t rank, const zero_step_params *params)
{
    last_words words = {.engine = engine};
    pthread_t thread;
    (void)snprintf(words.path, sizeof words.path, "%s/collectives.%" PRIu32 ".json", job->path,
                   rank);
    if (rank != 0) {
        (void)write_collectives(&words);
        sleep_ms(300);
    } else if (pthread_create(&thread, NULL, write_collectives, &words) != 0) {
        return ZERO_ERR_DEVICE;
    }
    const zero_status status = train(engine, job, part, 2, params);
    if (rank == 0) {
        (void)pthread_join(thread, NULL);
    }
    return status == ZERO_OK ? words.status : status;
}

static zero_status write_run(zero_engine *engine, const golden_job *job, golden_part *part,
                             uint32_t rank)
{
    zero_hyper groups[UNITS];
    zero_step_params params = zero_step_params_init();
    zero_status status = ZERO_OK;
    choose_numbers(job->run, groups);
    params.groups = groups;
    params.group_count = UNITS;
    TRY(zero_engine_fill(engine, fill, part));
    for (uint64_t s = 0; s < (job->run->traced ? 2 : STEPS); s++) {
        TRY(train(engine, job, part, s, &params));
    }
    if (job->run->traced) {
        TRY(write_timeline(engine, job, rank));
        TRY(train_late(engine, job, part, rank, &params));
    } else {
        TRY(save(engine, job, &params));
    }
done:
    return status;
}

/* ---- read ---- */

static zero_status print_tensor(zero_engine *engine, const golden_part *part, uint32_t tensor,
                                zero_role role, bool prints)
{
    float values[ELEMENTS_MAX];
    const uint64_t count = zero_model_tensor_count_of(part->model, tensor);
    const zero_array array = {.data = values, .dtype = ZERO_DTYPE_F32};
    const zero_status status = zero_tensor_export(engine, tensor, role, &array);
    if (status == ZERO_ERR_INVALID_ARGUMENT) { /* it has no such role */
        return ZERO_OK;
    }
    if (status == ZERO_OK && prints) {
        printf("tensor %s %s", zero_model_tensor_name(part->model, tensor), zero_role_name(role));
        for (uint64_t i = 0; i < count; i++) {
            uint32_t bits = 0;
            memcpy(&bits, &values[i], sizeof bits);
            printf(" %08" PRIx32, bits);
        }
        printf("\n");
    }
    return status;
}

static void print_state(const zero_load_report *report, const zero_step_state *state)
{
    printf("load step %" PRIu64 " world %" PRIu32 " loaded %" PRIu32 "\n", report->step,
           report->world, report->loaded);
    printf("user %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n", report->data_position,
           report->random_seed, report->random_position,
           report->user_bytes_count != 0 ? (const char *)report->user_bytes : "-");
    printf("state updates %" PRIu64 " skipped %" PRIu64 " scale %g good %" PRIu32
           " overflows %" PRIu32 "\n",
           state->updates, state->skipped, (double)state->loss_scale, state->good_steps,
           state->overflows);
    for (uint32_t g = 0; g < UNITS; g++) {
        printf("carried %" PRIu32 " %.17g %.17g\n", g, state->carried[g][0], state->carried[g][1]);
    }
}

/* Then it trains on, so that what was loaded is whole. */
static zero_status read_run(zero_engine *engine, const golden_job *job, golden_part *part,
                            uint32_t rank)
{
    char user[16] = "";
    zero_hyper groups[UNITS];
    zero_step_params params = zero_step_params_init();
    zero_step_state state = zero_step_state_init();
    zero_load_options options = zero_load_options_init();
    zero_load_report report = zero_load_report_init();
    zero_status status = ZERO_OK;
    options.path = job->path;
    options.params_only = job->run->weights;
    report.user_bytes = user;
    report.user_room = sizeof user - 1;
    TRY(zero_load(engine, &options, &report));
    TRY(zero_step_state_get(engine, &state));
    if (rank == 0) {
        print_state(&report, &state);
    }
    for (uint32_t t = 0; t < zero_model_tensor_count(part->model); t++) {
        for (zero_role role = ZERO_ROLE_PARAM; role <= ZERO_ROLE_MOMENT2; role++) {
            if (role != ZERO_ROLE_GRAD) {
                TRY(print_tensor(engine, part, t, role, rank == 0));
            }
        }
    }
    choose_numbers(job->run, groups);
    params.groups = groups;
    params.group_count = UNITS;
    TRY(train(engine, job, part, STEPS, &params));
    TRY(zero_step_state_get(engine, &state));
    if (rank == 0) {
        printf("next %" PRIu64 "\n", state.updates + state.skipped);
    }
done:
    return status;
}

/* ---- ranks ---- */

static void set_options(const golden_job *job, zero_engine_options *options, zero_tuning *tuning)
{
    const golden *run = job->run;
    options->stage = job->stage;
    options->grad_dtype = ZERO_DTYPE_F32;
    options->master_dtype = run->master;
    options->moment_dtype = run->moments;
    options->seed = 7;
    options->loss_scale = run->scaled ? 64 : 0;
    options->tuning = tuning;
    tuning->loss_scale_window = run->scaled ? 2 : 0;
    tuning->trace_events = run->traced ? 4096 : 0;
    for (uint32_t g = 0; run->mixed && g < UNITS; g++) {
        options->group_optimizer[g] = kinds[g];
    }
    if (job->disk != NULL) {
        options->disk_path = job->disk;
        options->tier[ZERO_ROLE_MASTER] = ZERO_TIER_DISK;
        options->tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_DISK;
        options->tier[ZERO_ROLE_MOMENT2] = ZERO_TIER_DISK;
    }
}

/* With several parts the ranks hold one each: the model's world is theirs, and the engine's is the
 * rank alone. */
static zero_status rank_main(zero_world *world, void *user)
{
    const golden_job *job = user;
    const uint32_t rank = zero_world_rank(world);
    golden_part part = {.model = NULL};
    zero_world *own = NULL;
    zero_engine *engine = NULL;
    zero_tuning tuning = zero_tuning_init();
    zero_engine_options options = zero_engine_options_init();
    zero_status status = ZERO_OK;
    set_options(job, &options, &tuning);
    if (job->parts > 1) {
        TRY(zero_world_create_self(&own));
        options.model_parallel = world;
    }
    TRY(make_part(job, job->parts > 1 ? rank : 0, &part));
    TRY(zero_engine_create(own != NULL ? own : world, part.model, &options, &engine));
    TRY((job->write ? write_run : read_run)(engine, job, &part, rank));
done:
    zero_engine_destroy(engine);
    zero_model_destroy(part.model);
    zero_world_destroy(own);
    return status;
}

static int run_job(golden_job *job, uint32_t ranks)
{
    const zero_status status = zero_world_run(ranks, 60000, rank_main, job);
    if (status != ZERO_OK) {
        fprintf(stderr, "golden_run: %s: %s\n", zero_status_name(status),
                zero_last_error()->message);
        return 1;
    }
    return 0;
}

static const golden *find(const char *name)
{
    for (size_t i = 0; i < RUNS; i++) {
        if (strcmp(runs[i].name, name) == 0) {
            return &runs[i];
        }
    }
    fprintf(stderr, "golden_run: no run is called \"%s\"; `golden_run list` has the names\n", name);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (size_t i = 0; i < RUNS; i++) {
            printf("%s%s\n", runs[i].name, runs[i].traced ? " traced" : "");
        }
        return 0;
    }
    const golden *run = argc > 3 ? find(argv[2]) : NULL;
    if (argc == 4 && strcmp(argv[1], "write") == 0 && run != NULL) {
        golden_job job = {run, argv[3], run->parts, run->stage, .write = true};
        return run_job(&job, run->ranks);
    }
    if (argc == 7 && strcmp(argv[1], "read") == 0 && run != NULL) {
        const char *disk = strcmp(argv[6], "-") == 0 ? NULL : argv[6];
        golden_job job = {run, argv[3], 0, (zero_stage)atoi(argv[5]), disk, .write = false};
        return run_job(&job, (uint32_t)atoi(argv[4]));
    }
    fprintf(stderr, "usage: golden_run write NAME FOLDER\n"
                    "       golden_run read NAME CHECKPOINT RANKS STAGE DISK\n"
                    "       golden_run list\n");
    return 2;
}
