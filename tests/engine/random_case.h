/* Cases drawn at random: a model, how it is split, types, tiers and tuning. The same seed and
 * number give the same case, on every machine. Directories are those of rig_folders (folders.h), as
 * many as RANDOM_DIRECTORIES. */
#ifndef TESTS_ENGINE_RANDOM_CASE_H
#define TESTS_ENGINE_RANDOM_CASE_H

#include "harness.h"
#include "reads.h"

#include "folders.h"
#include "toy.h"

#define RANDOM_PARTS 2
#define RANDOM_DIRECTORIES 2
#define RANDOM_TEXT_MAX 16384

typedef struct random_case {
    uint64_t number;
    uint64_t draws; /* so far */
    uint32_t ranks;
    uint32_t parts; /* of model parallelism, each with its model */
    toy_model models[RANDOM_PARTS];
    toy_run run;
    uint32_t evicted; /* a set of ZERO_ROLE_BIT; 0: none */
    zero_tier evicted_to;
    zero_plan *plans[RANDOM_PARTS];
    bool refused; /* some part's plan */
} random_case;

/* ---- drawing ---- */

/* One more number in [0, choices) of the case's. */
static uint32_t random_case_choose(random_case *s, uint32_t choices)
{
    return test_chance((test_seed << 40) + (s->number << 16) + s->draws++, choices);
}

#define DRAW(s, ...)                                     \
    ((const uint64_t[]){__VA_ARGS__}[random_case_choose( \
        (s), (uint32_t)(sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))])

/* Every second time the default. */
#define DRAW_OR_0(s, ...) (random_case_choose((s), 2) == 0 ? 0 : DRAW((s), __VA_ARGS__))

/* A tensor's shape, and the box of a global one that each part of the model holds of it. */
static void draw_tensor(random_case *s, zero_dtype dtype)
{
    zero_tensor_desc desc = {.dtype = dtype, .dims = random_case_choose(s, 4)};
    if (dtype == ZERO_DTYPE_DEFAULT) {
        desc.dtype = (zero_dtype)(ZERO_DTYPE_F32 + (int)random_case_choose(s, 3));
    }
    for (uint32_t d = 0; d < desc.dims; d++) {
        desc.shape[d] = d == 0 ? DRAW(s, 0, 1, 2, 3, 17, 63, 64, 65, 127, 129, 257, 600, 1021)
                               : DRAW(s, 1, 2, 3, 5, 16);
    }
    desc.flags = random_case_choose(s, 5) == 0 ? ZERO_TENSOR_FROZEN : ZERO_TENSOR_PLAIN;
    desc.flags |= random_case_choose(s, 4) == 0 ? ZERO_TENSOR_NO_DECAY : ZERO_TENSOR_PLAIN;
    desc.group = (uint32_t)DRAW_OR_0(s, 1, 7, 63);
    const bool box = desc.dims > 0 && random_case_choose(s, 3) == 0;
    const bool copies = !box && s->parts > 1 && random_case_choose(s, 2) == 0;
    const uint32_t gap = random_case_choose(s, 3);
    for (uint32_t part = 0; part < s->parts; part++) {
        toy_model *model = &s->models[part];
        for (uint32_t d = 0; box && d < desc.dims; d++) {
            desc.global_shape[d] = d == 0 ? s->parts * desc.shape[0] + gap : desc.shape[d];
        }
        desc.box_first[0] = box ? part * desc.shape[0] : 0;
        desc.replica = copies ? part : 0;
        (void)toy_model_part(model, &desc, model->tensor_count, 0);
    }
}

static void draw_model(random_case *s)
{
    const zero_dtype dtype =
        (zero_dtype)random_case_choose(s, 4); /* default: any, tensor by tensor */
    const uint32_t units = 1 + random_case_choose(s, 6);
    for (uint32_t part = 0; part < s->parts; part++) {
        toy_model_open(&s->models[part]);
    }
    for (uint32_t u = 0; u < units; u++) {
        for (uint32_t part = 0; part < s->parts; part++) {
            (void)toy_model_layer(&s->models[part], "unit", u);
        }
        for (uint32_t left = random_case_choose(s, 5) + (u == 0); left > 0; left--) {
            draw_tensor(s, dtype);
        }
        const bool tied = u > 0 && random_case_choose(s, 6) == 0;
        for (uint32_t part = 0; tied && part < s->parts; part++) {
            toy_model_tie(&s->models[part], u, 0);
        }
    }
}

static void draw_split(random_case *s)
{
    zero_tuning *t = &s->run.tuning;
    const uint32_t w = s->ranks;
    s->run.options.stage = (zero_stage)random_case_choose(s, 4);
    if (random_case_choose(s, 3) == 0) {
        toy_sharding ways[16];
        toy_sharding_apply(&ways[random_case_choose(s, toy_shardings(w, true, ways))], &s->run);
    } else if (random_case_choose(s, 4) == 0) { /* many of these are refused */
        s->run.options.shard_group = (uint32_t)DRAW_OR_0(s, 1, 2, 4, w);
        t->grad_group = (uint32_t)DRAW_OR_0(s, 1, 2, 4, w);
        t->optimizer_group = (uint32_t)DRAW_OR_0(s, 1, 2, 4, w);
    }
    t->accumulation =
        random_case_choose(s, 4) == 0 ? ZERO_ACCUMULATION_LOCAL : ZERO_ACCUMULATION_DEFAULT;
}

static void update_nothing(void *user, const zero_update_range *range)
{
    (void)user;
    (void)range;
}

static void draw_types(random_case *s)
{
    zero_engine_options *o = &s->run.options;
    zero_tuning *t = &s->run.tuning;
    o->grad_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16);
    o->master_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_NONE);
    o->moment_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_BF16);
    t->wire_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16);
    t->accum_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_BF16);
    t->reduction = (zero_reduction)random_case_choose(s, 3);
    if (random_case_choose(s, 5) == 0 && o->device == ZERO_DEVICE_CPU) { /* it is host code */
        o->optimizer = ZERO_OPTIMIZER_CALLBACK;
        o->update = update_nothing;
        o->update_states = random_case_choose(s, 3);
        s->run.params.hyper.kind = ZERO_OPTIMIZER_CALLBACK;
    }
}

/* What is on disk, or comes to the GPU by units, only one of them may update. */
static void draw_updater(random_case *s)
{
    const zero_engine_options *o = &s->run.options;
    bool both = true;
    for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
        both = both && o->tier[role] != ZERO_TIER_DISK &&
               (role >= ZERO_ROLE_MASTER || o->tier[role] != ZERO_TIER_HOST);
    }
    s->run.tuning.updater =
        both ? (zero_updater)DRAW_OR_0(s, ZERO_UPDATER_GPU, ZERO_UPDATER_CPU, ZERO_UPDATER_BOTH)
             : (zero_updater)DRAW_OR_0(s, ZERO_UPDATER_CPU);
    s->run.tuning.transport = ZERO_TRANSPORT_PEER; /* a plan cannot know that ranks are threads */
}

static void draw_tiers(random_case *s)
{
    zero_engine_options *o = &s->run.options;
    zero_tuning *t = &s->run.tuning;
    const uint32_t mode = random_case_choose(s, 4);
    for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
        const bool state = role >= ZERO_ROLE_MASTER;
        const zero_tier any = (zero_tier)random_case_choose(s, ZERO_TIER_COUNT);
        o->tier[role] = mode == 0 ? ZERO_TIER_DEFAULT : mode == 1 && state ? ZERO_TIER_DISK : any;
        o->tier[role] = mode == 2 ? ZERO_TIER_DISK : o->tier[role];
    }
    o->disk_directories = rig_paths;
    o->disk_directory_count = s->parts > 1 ? 1 : 1 + random_case_choose(s, RANDOM_DIRECTORIES);
    t->speculative_step = (mode == 1 || mode == 2) && random_case_choose(s, 2) == 0;
    s->run.predicted = t->speculative_step != 0 && random_case_choose(s, 4) != 0;
    t->extent_bytes = DRAW_OR_0(s, 4096, 8192, 20480, 65536);
    t->io_window = (uint32_t)DRAW_OR_0(s, 3, 5, 9);
    t->io_depth = (uint32_t)DRAW_OR_0(s, 1, 3);
    t->disk_unchecked = random_case_choose(s, 4) == 0;
    if (o->device == ZERO_DEVICE_CUDA) {
        draw_updater(s);
    }
}

static void draw_tuning(random_case *s)
{
    zero_tuning *t = &s->run.tuning;
    t->param_slots = (uint32_t)DRAW_OR_0(s, 2, 3, 6);
    t->grad_slots = (uint32_t)DRAW_OR_0(s, 1, 2, 5);
    t->look_ahead = (uint32_t)DRAW_OR_0(s, 1, 2, 5);
    t->no_prefetch = random_case_choose(s, 4) == 0;
    t->bucket_bytes = DRAW_OR_0(s, 1, 600, 5000);
    t->poison_released = random_case_choose(s, 6) == 0;
    t->save_staging_bytes =
        random_case_choose(s, 8) == 0 ? (UINT64_C(32) << 20) + random_case_choose(s, 9000) : 0;
    s->run.options.loss_scale = (float)DRAW_OR_0(s, 1, 8);
    s->run.micro_steps = 1 + random_case_choose(s, 2);
    s->run.split = random_case_choose(s, 2) == 0;
    s->run.params.max_norm = random_case_choose(s, 2) == 0 ? 0 : 1;
    s->evicted = random_case_choose(s, 3) == 0
                     ? ZERO_EVICT_ALL
                     : random_case_choose(s, 1 << ZERO_ROLE_COUNT) & ZERO_EVICT_ALL;
    s->evicted_to = s->run.options.device == ZERO_DEVICE_CUDA && random_case_choose(s, 2) == 0
                        ? ZERO_TIER_HOST
                        : ZERO_TIER_DISK;
}

static void make_plans(random_case *s)
{
    s->refused = false;
    for (uint32_t part = 0; part < s->parts; part++) {
        zero_plan_destroy(s->plans[part]);
        s->plans[part] = NULL;
        s->refused = zero_plan_create(s->models[part].model, TOY_OPTIONS(&s->run), s->ranks,
                                      &s->plans[part]) != ZERO_OK ||
                     s->refused;
    }
}

/* A budget that may make windows smaller, or be too small; else one that is just enough. */
static void draw_budget(random_case *s)
{
    const uint64_t host = s->refused ? 0 : plan_memory(s->plans[0]).tier_bytes[ZERO_TIER_HOST];
    const uint64_t share = DRAW_OR_0(s, 2, 5, 9);
    if (share == 0 || host == 0 || s->parts > 1) {
        return;
    }
    s->run.options.host_budget_bytes = host - host / (2 * share);
    make_plans(s);
    if (s->refused && random_case_choose(s, 8) != 0) {
        s->run.options.host_budget_bytes = host;
        make_plans(s);
    }
}

static void random_case_draw(random_case *s, uint64_t number)
{
    *s = (random_case){.number = number};
    s->ranks = (uint32_t)DRAW(s, 1, 2, 3, 4, 5, 8);
    s->parts = s->ranks <= 3 && random_case_choose(s, 4) == 0 ? RANDOM_PARTS : 1;
    draw_model(s);
    s->run = toy_run_init(&s->models[0]);
    draw_split(s);
    draw_types(s);
    draw_tiers(s);
    draw_tuning(s);
    make_plans(s);
    draw_budget(s);
}

static void random_case_close(random_case *s)
{
    for (uint32_t part = 0; part < s->parts; part++) {
        zero_plan_destroy(s->plans[part]);
        toy_model_close(&s->models[part]);
    }
}

/* ---- telling ---- */

__attribute__((format(printf, 2, 3))) static void add(char *text, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list parts;
    va_start(parts, format);
    (void)vsnprintf(text + used, RANDOM_TEXT_MAX - used, format, parts);
    va_end(parts);
}

static void describe_model(const toy_model *model, char *text)
{
    uint32_t unit = UINT32_MAX;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        const zero_tensor_desc *desc = &tensor->desc;
        if (tensor->unit != unit) {
            unit = tensor->unit;
            add(text, "\n    unit %u%s:", unit,
                model->units[unit].tie_count != 0 ? ", tied to tensor 0" : "");
        }
        add(text, " %s", zero_dtype_name(desc->dtype));
        for (uint32_t d = 0; d < desc->dims; d++) {
            add(text, "%c%" PRIu64, d == 0 ? '[' : 'x', desc->shape[d]);
        }
        add(text, "%s%s%s", desc->dims != 0 ? "]" : "",
            (desc->flags & ZERO_TENSOR_FROZEN) != 0 ? " frozen" : "",
            desc->replica != 0 ? " copy" : "");
    }
}

/* All of the case that is not its default. */
static const char *random_case_text(const random_case *s)
{
    static char text[RANDOM_TEXT_MAX];
    const zero_option *option = NULL;
    text[0] = '\0';
    add(text, "  case %" PRIu64 " of seed %" PRIu64 ": %u ranks, %u parts, evicts 0x%x to %s",
        s->number, test_seed, s->ranks, s->parts, s->evicted, zero_tier_name(s->evicted_to));
    for (uint32_t part = 0; part < s->parts; part++) {
        describe_model(&s->models[part], text);
    }
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        char value[128];
        char fallback[128];
        const zero_engine_options plain = zero_engine_options_init();
        const zero_tuning tuning = zero_tuning_init();
        (void)zero_option_print(option, &s->run.options, &s->run.tuning, value, sizeof value);
        (void)zero_option_print(option, &plain, &tuning, fallback, sizeof fallback);
        if (strcmp(value, fallback) != 0) {
            add(text, "\n    %s %s", option->name, value);
        }
    }
    return text;
}

#endif
