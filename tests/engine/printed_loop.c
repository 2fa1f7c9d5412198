/* The parts of a random case's program, by the library's public headers alone: a model whose
 * gradients are integers, ranks that are threads, and the steps of a trainer. Gradients and initial
 * values are those of the tests (toy_model.c), so the state at the end has the same bits. */
#include <ftw.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zero/zero.h>

#include "courses.h"

#define UNITS_MAX 16
#define TENSORS_MAX 64
/* PARAM, GRAD, MASTER, MOMENT1 and MOMENT2. */
#define ROLES (ZERO_ROLE_SCALE2 + 1)
#define DISKS_MAX 2
#define DEADLINE_MS 60000
#define PATH_BYTES 64

/* A program calls some of them. */
#define HELPER __attribute__((unused)) static

#define TRY(call)                        \
    do {                                 \
        const zero_status try_ = (call); \
        if (try_ != ZERO_OK) {           \
            return try_;                 \
        }                                \
    } while (0)

#define MUST(condition)                                                \
    do {                                                               \
        if (!(condition)) {                                            \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, \
                    zero_last_error()->message);                       \
            exit(1);                                                   \
        }                                                              \
    } while (0)

/* ---- the model ---- */

static struct {
    zero_model *described;
    uint32_t units;
    uint32_t tensors;
    uint64_t elements;
    zero_tensor_desc tensor[TENSORS_MAX];
    uint64_t count[TENSORS_MAX];
    uint64_t first[TENSORS_MAX]; /* of its elements, in the order of the whole model's */
    uint32_t owner[TENSORS_MAX]; /* unit */
    bool uses[UNITS_MAX][TENSORS_MAX];
    bool acquires[UNITS_MAX][UNITS_MAX]; /* itself, and those it ties to */
    _Atomic uint64_t *state[ROLES];      /* bits of all elements, HELD beside them */
} model;

#define HELD (UINT64_C(1) << 32)

HELPER void unit(const char *name, uint32_t shard_group)
{
    const zero_unit_desc desc = {.name = name, .shard_group = shard_group};
    MUST(model.units < UNITS_MAX &&
         zero_unit_add(model.described, &desc, &model.units, NULL) == ZERO_OK);
    model.acquires[model.units][model.units] = true;
    model.units++;
}

/* Of the last unit. */
HELPER void tensor(zero_tensor_desc desc)
{
    uint32_t index = 0;
    MUST(model.tensors < TENSORS_MAX);
    MUST(zero_tensor_add(model.described, model.units - 1, &desc, &index) == ZERO_OK);
    model.tensor[index] = desc;
    model.count[index] = zero_model_tensor_count_of(model.described, index);
    model.first[index] = model.elements;
    model.elements += model.count[index];
    model.owner[index] = model.units - 1;
    model.uses[model.units - 1][index] = true;
    model.tensors = index + 1;
}

HELPER void tie(uint32_t to_unit, uint32_t index)
{
    MUST(zero_tensor_tie(model.described, to_unit, index) == ZERO_OK);
    model.uses[to_unit][index] = true;
    model.acquires[to_unit][model.owner[index]] = true;
}

static bool is_trained(uint32_t index)
{
    return (model.tensor[index].flags & ZERO_TENSOR_FROZEN) == 0;
}

/* True if it has a gradient: it or a unit it ties to has a trained tensor. */
static bool unit_is_trained(uint32_t index)
{
    bool trained = false;
    for (uint32_t t = 0; t < model.tensors; t++) {
        trained = trained || (model.acquires[index][model.owner[t]] && is_trained(t));
    }
    return trained;
}

/* A well-mixed word of four indices (the finaliser of SplitMix64, chained). */
static uint64_t mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    const uint64_t words[4] = {a, b, c, d};
    uint64_t state = UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < 4; i++) {
        state += words[i] + UINT64_C(0x9E3779B97F4A7C15);
        state = (state ^ (state >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        state = (state ^ (state >> 27)) * UINT64_C(0x94D049BB133111EB);
        state ^= state >> 31;
    }
    return state;
}

/* In [-1, 1). */
static void initial(void *user, uint32_t index, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t word = mix(7, index, first + i, 0);
        values[i] = (float)((int32_t)(word >> 40) - (1 << 23)) * 0x1p-23F;
    }
}

static float gradient(uint32_t index, uint64_t element, uint64_t step, uint64_t sample, float param)
{
    const uint64_t word = mix(element, (uint64_t)index << 32 | sample, step, 1);
    return (float)((int32_t)(word % 7) - 3 + (param > 0.25F));
}

/* ---- elements ---- */

static uint32_t load_bits(const void *data, uint64_t index, zero_dtype dtype)
{
    const size_t width = zero_dtype_bytes(dtype);
    uint32_t word = 0; /* its first bytes are the lower ones */
    memcpy(&word, (const char *)data + width * index, width);
    return word;
}

static float load_value(const void *data, uint64_t index, zero_dtype dtype)
{
    uint32_t bits = load_bits(data, index, dtype);
    float value = 0;
    if (dtype == ZERO_DTYPE_F16 && (bits & 0x7c00) == 0) { /* zero, or so small */
        return (float)(bits & 0x3ff) * ((bits & 0x8000) != 0 ? -0x1p-24F : 0x1p-24F);
    }
    if (dtype == ZERO_DTYPE_F16) {
        bits = (bits & 0x8000) << 16 | ((bits & 0x7fff) + (112 << 10)) << 13;
    } else if (dtype == ZERO_DTYPE_BF16) {
        bits <<= 16;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A value that the type has: a sum of gradients, which are small integers, with the loss scale. */
static void store_value(void *data, uint64_t index, zero_dtype dtype, float value)
{
    uint32_t bits = UINT32_C(0x7fc00000); /* any value that is not finite becomes NaN */
    if (isfinite(value)) {
        memcpy(&bits, &value, sizeof bits);
    }
    uint16_t half = (uint16_t)(bits >> 16);
    if (dtype == ZERO_DTYPE_F16 && !isfinite(value)) {
        half = 0x7e00;
    } else if (dtype == ZERO_DTYPE_F16) {
        const uint32_t size = value != 0 ? ((bits & 0x7fffffff) >> 13) - (112 << 10) : 0;
        half = (uint16_t)((bits >> 16 & 0x8000) | size);
    }
    if (zero_dtype_bytes(dtype) == sizeof half) {
        memcpy((char *)data + sizeof half * index, &half, sizeof half);
    } else {
        memcpy((char *)data + sizeof bits * index, &bits, sizeof bits);
    }
}

/* ---- how it is trained ---- */

typedef struct setup {
    uint32_t ranks;
    uint32_t micro_steps;
    uint64_t omits; /* omission_of's seed */
    bool split;     /* units are acquired by the calls for parameters and gradients alone */
    bool predicted; /* every step is */
    zero_engine_options options;
    zero_tuning tuning;
    zero_step_params params;
    zero_hyper groups[ZERO_STEP_GROUPS]; /* if some have optimizers of their own */
} setup;

static struct {
    char all[PATH_BYTES];
    char disk[DISKS_MAX][PATH_BYTES];
    char saves[PATH_BYTES];
} folders;
static const char *const disks[DISKS_MAX] = {folders.disk[0], folders.disk[1]};

HELPER setup setup_of(uint32_t ranks, uint32_t micro_steps)
{
    setup made = {.ranks = ranks, .micro_steps = micro_steps};
    made.options = zero_engine_options_init();
    made.options.disk_directories = disks;
    made.options.disk_directory_count = 1;
    made.tuning = zero_tuning_init();
    made.params = zero_step_params_init();
    return made;
}

HELPER void set(setup *of, const char *option, const char *value)
{
    MUST(zero_option_set(&of->options, &of->tuning, option, value) == ZERO_OK);
}

/* The group has an optimizer of its own, with its defaults. */
HELPER void hyper(setup *of, uint32_t group, zero_optimizer optimizer)
{
    for (uint32_t g = of->params.group_count; g < ZERO_STEP_GROUPS; g++) {
        of->groups[g] = of->params.hyper;
    }
    of->groups[group] = zero_hyper_init(optimizer);
    of->params.group_count = ZERO_STEP_GROUPS;
}

typedef struct rank {
    const setup *setup;
    zero_world *world;
    zero_engine *engine;
    uint64_t step;
    uint32_t micro;
    float loss_scale;
    bool stepped; /* there is a step to wait for */
    bool drops;   /* a step that comes to nothing */
} rank;

typedef zero_status (*steps_fn)(rank *r);

/* Of the micro-step. */
static uint64_t sample_of(const rank *r)
{
    return (uint64_t)r->micro * r->setup->ranks + zero_world_rank(r->world);
}

/* Adds this rank's sample. */
static zero_status add_gradient(rank *r, uint32_t index, const zero_view *param)
{
    const uint64_t sample = sample_of(r);
    zero_view grad;
    TRY(zero_tensor_grad(r->engine, index, &grad));
    for (uint64_t e = 0; e < grad.count; e++) {
        const float at = load_value(param->data, e, param->dtype);
        const float old = load_value(grad.data, e, grad.dtype);
        const float more = gradient(index, e, r->step, sample, at) * r->loss_scale;
        store_value(grad.data, e, grad.dtype, old + more);
    }
    return ZERO_OK;
}

static zero_status acquire(rank *r, uint32_t index, zero_pass pass)
{
    const zero_stream here = zero_stream_host();
    if (!r->setup->split) {
        const zero_unit_view *view;
        return zero_unit_acquire(r->engine, index, pass, here, &view);
    }
    TRY(zero_unit_params_acquire(r->engine, index, pass, here));
    return pass == ZERO_PASS_BACKWARD && unit_is_trained(index)
               ? zero_unit_grads_acquire(r->engine, index, here)
               : ZERO_OK;
}

static zero_status release(rank *r, uint32_t index, zero_pass pass)
{
    const zero_stream here = zero_stream_host();
    if (!r->setup->split) {
        return zero_unit_release(r->engine, index, here);
    }
    if (pass == ZERO_PASS_BACKWARD && unit_is_trained(index)) {
        TRY(zero_unit_grads_ready(r->engine, index, here));
    }
    return zero_unit_params_release(r->engine, index, here);
}

/* adds: in backward, this rank's gradient; else it is zero. */
static zero_status use(rank *r, uint32_t index, zero_pass pass, bool adds)
{
    TRY(acquire(r, index, pass));
    for (uint32_t t = 0; t < model.tensors; t++) {
        if (model.uses[index][t]) {
            zero_view param;
            TRY(zero_tensor_data(r->engine, t, &param));
            TRY(adds && is_trained(t) ? add_gradient(r, t, &param) : ZERO_OK);
        }
    }
    return release(r, index, pass);
}

static zero_status begin_micro_step(rank *r, bool last)
{
    if (last && r->setup->predicted) {
        TRY(zero_step_predict(r->engine, &r->setup->params));
    }
    return zero_micro_begin(r->engine, last ? ZERO_MICRO_LAST : ZERO_MICRO_EARLIER);
}

static omission course_left_out(const rank *r, uint32_t index)
{
    return r->drops ? ALL_DONE : omission_of(r->setup->omits, r->step, sample_of(r), index);
}

#define course_units(r) (model.units)
#define course_stream zero_stream_host
#define course_trained(r, u) unit_is_trained(u)
#define course_read(r, u) ((void)(u), ZERO_OK) /* acquire shows it */
#define course_forward(r, u) use((r), (u), ZERO_PASS_FORWARD, false)
#define course_backward(r, u, adds) use((r), (u), ZERO_PASS_BACKWARD, (adds))
#define COURSE_TRY TRY
typedef rank course_rank;
#include "course_passes.h"

static zero_status micro_steps(rank *r, course way)
{
    for (r->micro = 0; r->micro < r->setup->micro_steps; r->micro++) {
        TRY(begin_micro_step(r, r->micro + 1 == r->setup->micro_steps));
        TRY(course_passes(r, way));
        TRY(zero_micro_end(r->engine));
    }
    return ZERO_OK;
}

/* ---- what ranks do ---- */

HELPER zero_status step(rank *r, course way)
{
    TRY(zero_loss_scale(r->engine, &r->loss_scale));
    TRY(micro_steps(r, way));
    TRY(zero_step(r->engine, &r->setup->params, zero_stream_host()));
    r->step++;
    r->stepped = true;
    return ZERO_OK;
}

/* Nothing is left out of steps that come to nothing; every other time a micro-step of one is over.
 */
static zero_status go_astray(rank *r)
{
    r->micro = 0;
    r->loss_scale = r->step % 3 == 1 ? INFINITY : 1;
    r->drops = true;
    if (r->step % 2 != 0) {
        TRY(zero_micro_begin(r->engine, ZERO_MICRO_EARLIER));
        TRY(course_passes(r, IN_ORDER));
        TRY(zero_micro_end(r->engine));
    }
    return ZERO_OK;
}

HELPER zero_status discarded_step(rank *r)
{
    TRY(go_astray(r));
    TRY(zero_micro_begin(r->engine, ZERO_MICRO_LAST));
    TRY(course_dropped(r, r->step));
    TRY(zero_micro_end(r->engine));
    r->drops = false;
    return zero_step_discard(r->engine);
}

/* Ranks give up at different places, or together at one. */
HELPER zero_status abandoned_micro_step(rank *r, bool together)
{
    const uint32_t index = together ? 0 : zero_world_rank(r->world);
    TRY(go_astray(r));
    TRY(zero_micro_begin(r->engine, r->step % 4 >= 2 ? ZERO_MICRO_LAST : ZERO_MICRO_EARLIER));
    if (index == 1 && r->step % 3 == 0) {
        TRY(course_passes(r, IN_ORDER));
        TRY(zero_micro_end(r->engine));
    } else {
        TRY(course_into(r, course_calls(r->step, index)));
    }
    r->drops = false;
    return zero_micro_abandon(r->engine, zero_stream_host());
}

static zero_status wait_for_last_step(rank *r)
{
    zero_step_result result = zero_step_result_init();
    return r->stepped ? zero_step_wait(r->engine, &result) : ZERO_OK;
}

/* Its gradients are not finite. */
HELPER zero_status skipped_step(rank *r)
{
    r->loss_scale = INFINITY;
    r->drops = true;
    TRY(micro_steps(r, IN_ORDER));
    r->drops = false;
    TRY(zero_step(r->engine, &r->setup->params, zero_stream_host()));
    r->stepped = true;
    return wait_for_last_step(r);
}

/* Of all that this rank has of a role of a tensor. */
static zero_status turn_role(rank *r, uint32_t index, zero_role role)
{
    zero_shard shard;
    TRY(zero_shard_range(r->engine, index, role, &shard));
    const size_t each = shard.count != 0 ? zero_dtype_bytes(shard.dtype) : 1;
    unsigned char *values = calloc(shard.count + 1, each);
    MUST(values != NULL);
    TRY(zero_shard_read(r->engine, index, role, shard.first, shard.count, values));
    for (uint64_t e = 0; e < shard.count; e++) {
        values[each * e + each - 1] ^= 0x80;
    }
    TRY(zero_shard_write(r->engine, index, role, shard.first, shard.count, values));
    free(values);
    return ZERO_OK;
}

/* Of one tensor's parameters, another one's master and first moment. */
HELPER zero_status turned_signs(rank *r)
{
    const uint32_t index = (uint32_t)(r->step % model.tensors);
    const uint32_t next = (index + 1) % model.tensors;
    TRY(wait_for_last_step(r));
    TRY(turn_role(r, index, ZERO_ROLE_PARAM));
    TRY(zero_world_barrier(r->world));
    TRY(turn_role(r, next, ZERO_ROLE_MASTER));
    return turn_role(r, next, ZERO_ROLE_MOMENT1);
}

HELPER zero_status new_values(rank *r)
{
    TRY(wait_for_last_step(r));
    return zero_engine_fill(r->engine, initial, NULL);
}

HELPER zero_status evaluation(rank *r)
{
    for (uint32_t u = 0; u < model.units; u++) {
        TRY(use(r, u, ZERO_PASS_EVAL, false));
    }
    return ZERO_OK;
}

/* Evict these roles, if the engine can, and restore them after an evaluation. */
HELPER zero_status evicted(rank *r, uint32_t roles, zero_tier tier)
{
    TRY(wait_for_last_step(r));
    const zero_status status = zero_engine_evict(r->engine, roles, tier);
    if (status == ZERO_ERR_UNSUPPORTED) {
        return ZERO_OK;
    }
    TRY(status);
    TRY(evaluation(r));
    return zero_engine_restore(r->engine);
}

static zero_save_options save_options(const char *name, int32_t replace, uint32_t keep)
{
    zero_save_options options = zero_save_options_init();
    options.directory = folders.saves;
    options.name = name;
    options.replace = replace;
    options.keep = keep;
    return options;
}

HELPER zero_status save(rank *r, const char *name, int32_t replace, uint32_t keep)
{
    const zero_save_options options = save_options(name, replace, keep);
    return zero_save(r->engine, &options);
}

HELPER zero_status begin_save(rank *r, const char *name, int32_t replace, uint32_t keep)
{
    const zero_save_options options = save_options(name, replace, keep);
    return zero_save_begin(r->engine, &options);
}

/* Load what was saved after so many steps of the program's. */
HELPER zero_status load(rank *r, uint64_t steps)
{
    zero_load_options options = zero_load_options_init();
    zero_load_report report = zero_load_report_init();
    options.path = folders.saves;
    options.if_any = 1;
    TRY(zero_load(r->engine, &options, &report));
    r->step = steps;
    return ZERO_OK;
}

/* This rank's shards of one role, to where the whole model's state is put together. */
static zero_status read_role(rank *r, zero_role role)
{
    for (uint32_t t = 0; t < model.tensors; t++) {
        zero_shard shard;
        TRY(zero_shard_range(r->engine, t, role, &shard));
        void *values = calloc(shard.count + 1, sizeof(uint32_t));
        MUST(values != NULL);
        TRY(zero_shard_read(r->engine, t, role, shard.first, shard.count, values));
        for (uint64_t e = 0; e < shard.count; e++) {
            const uint64_t at = model.first[t] + shard.first + e;
            atomic_store(&model.state[role][at], HELD | load_bits(values, e, shard.dtype));
        }
        free(values);
    }
    return ZERO_OK;
}

static zero_status read_state(rank *r)
{
    for (int role = 0; role < ROLES; role++) {
        TRY(read_role(r, (zero_role)role));
    }
    return evaluation(r);
}

static void tell_counts(const rank *r)
{
    zero_stats stats = zero_stats_init();
    MUST(zero_engine_stats(r->engine, &stats) == ZERO_OK);
    printf("%llu steps, %llu discarded, %llu micro-steps, %llu gathers, %llu reductions\n",
           (unsigned long long)stats.steps, (unsigned long long)stats.steps_discarded,
           (unsigned long long)stats.micro_steps, (unsigned long long)stats.gathers,
           (unsigned long long)stats.reduces);
}

typedef struct job {
    const setup *setup;
    steps_fn steps;
} job;

static zero_status run_rank(zero_world *world, void *user)
{
    const job *given = user;
    rank r = {.setup = given->setup, .world = world};
    zero_engine_options options = r.setup->options;
    options.tuning = &r.setup->tuning;
    TRY(zero_engine_create(world, model.described, &options, &r.engine));
    zero_status status = zero_engine_fill(r.engine, initial, NULL);
    status = status == ZERO_OK ? given->steps(&r) : status;
    status = status == ZERO_OK ? read_state(&r) : status;
    if (status == ZERO_OK && zero_world_rank(world) == 0) {
        tell_counts(&r);
    }
    zero_engine_destroy(r.engine);
    return status;
}

/* ---- the program ---- */

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *ftw)
{
    (void)about;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void remove_folders(void)
{
    MUST(nftw(folders.all, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

static void make_folder(char *path, const char *name)
{
    (void)snprintf(path, PATH_BYTES, "%.32s/%s", folders.all, name);
    MUST(mkdir(path, 0777) == 0);
}

static void begin(void)
{
    (void)snprintf(folders.all, PATH_BYTES, "zero-storage-XXXXXX");
    MUST(mkdtemp(folders.all) != NULL && atexit(remove_folders) == 0);
    make_folder(folders.disk[0], "disk0");
    make_folder(folders.disk[1], "disk1");
    make_folder(folders.saves, "saves");
    MUST(zero_model_create(&model.described) == ZERO_OK);
}

/* All ranks, each with an engine of its own. */
static void run(setup of, steps_fn steps)
{
    job given = {&of, steps};
    of.params.groups = of.params.group_count != 0 ? of.groups : NULL;
    for (int role = 0; role < ROLES; role++) {
        free(model.state[role]);
        model.state[role] = calloc(model.elements + 1, sizeof *model.state[role]);
        MUST(model.state[role] != NULL);
    }
    MUST(zero_world_run(of.ranks, DEADLINE_MS, run_rank, &given) == ZERO_OK);
}

/* 0 where the state, gradients left out, has this hash. */
static int end(uint64_t expected)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int role = 0; role < ROLES; role++) {
        for (uint64_t e = 0; role != ZERO_ROLE_GRAD && e < model.elements; e++) {
            hash = (hash ^ model.state[role][e]) * UINT64_C(0x100000001b3);
        }
        free(model.state[role]);
    }
    zero_model_destroy(model.described);
    printf("state %016llx\n", (unsigned long long)hash);
    if (hash != expected) {
        printf("not that of one plain rank, %016llx\n", (unsigned long long)expected);
    }
    return hash != expected;
}
