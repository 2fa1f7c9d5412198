/* Cases drawn at random: a model, how it is split, types, tiers and tuning. The same seed and
 * number give the same case, on every machine. Directories are those of rig_folders (folders.h), as
 * many as RANDOM_DIRECTORIES. */
#ifndef TESTS_ENGINE_RANDOM_CASE_H
#define TESTS_ENGINE_RANDOM_CASE_H

#include "harness.h"
#include "reads.h"

#include "core/block_codec.h"
#include "core/dtype.h"
#include "courses.h"
#include "folders.h"
#include "optimizer/optimizer.h"
#include "random_choices.h"
#include "toy.h"

#define RANDOM_PARTS 2
#define RANDOM_DIRECTORIES 2
#define RANDOM_TEXT_MAX 16384
#define RANDOM_STEPS 4

typedef struct random_case {
    uint64_t number;
    uint64_t draws; /* so far */
    uint32_t ranks;
    uint32_t parts; /* of model parallelism, each with its model */
    toy_model models[RANDOM_PARTS];
    toy_run run;
    course courses[RANDOM_STEPS]; /* of each step's micro-steps */
    uint64_t omits;               /* omission_of's seed */
    uint32_t evicted;             /* a set of ZERO_ROLE_BIT; 0: none */
    zero_tier evicted_to;
    zero_plan *plans[RANDOM_PARTS];
    bool refused;                        /* some part's plan */
    zero_hyper groups[ZERO_STEP_GROUPS]; /* the run's, where some have optimizers of their own */
} random_case;

/* ---- drawing ---- */

/* Choice 0 is the simplest of each: shrink.py looks for cases with as many of them as there can be.
 * Choices that belong together are a section and have numbers of their own, so that what is chosen
 * in one changes no other. */
#define SECTION_CHOICES 64
#define TENSOR_CHOICES 16
#define UNIT_CHOICES 128
#define UNITS_MAX 6

static uint64_t random_case_turn(random_case *s)
{
    return (test_seed << 40) + (s->number << 16) + s->draws++;
}

/* One more number in [0, choices) of the case's. */
static uint32_t random_case_choose(random_case *s, uint32_t choices)
{
    const uint64_t number = s->draws;
    return random_choice(number, test_chance(random_case_turn(s), choices), choices);
}

/* Once in so many times, else false. */
static bool random_case_one_in(random_case *s, uint32_t times)
{
    const uint64_t number = s->draws;
    return random_choice(number, test_chance(random_case_turn(s), times) == 0, 2) != 0;
}

/* 0 every second time, else a number in [1, choices]. */
static uint32_t random_case_choose_or_0(random_case *s, uint32_t choices)
{
    const uint64_t number = s->draws;
    const uint32_t chance = test_chance(random_case_turn(s), 2 * choices);
    return random_choice(number, chance < choices ? 0 : chance - choices + 1, choices + 1);
}

/* The next number of which so many are a section. */
static void random_case_section(random_case *s, uint32_t choices)
{
    s->draws = (s->draws + choices - 1) / choices * choices;
}

#define DRAW_COUNT(...) ((uint32_t)(sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))
#define DRAW(s, ...) \
    ((const uint64_t[]){__VA_ARGS__}[random_case_choose((s), DRAW_COUNT(__VA_ARGS__))])
/* Every second time the default. */
#define DRAW_OR_0(s, ...) \
    ((const uint64_t[]){0, __VA_ARGS__}[random_case_choose_or_0((s), DRAW_COUNT(__VA_ARGS__))])

/* A tensor's shape, and the box of a global one that each part of the model holds of it. */
static void draw_tensor(random_case *s, zero_dtype dtype)
{
    zero_tensor_desc desc = {.dtype = dtype, .dims = random_case_choose(s, 4)};
    const zero_dtype own = (zero_dtype)(ZERO_DTYPE_F32 + (int)random_case_choose(s, 3));
    desc.dtype = dtype == ZERO_DTYPE_DEFAULT ? own : dtype;
    const uint64_t rows = DRAW(s, 1, 2, 3, 17, 63, 64, 65, 127, 129, 257, 600, 1021, 0);
    desc.shape[0] = desc.dims > 0 ? rows : 0;
    for (uint32_t d = 1; d <= 2; d++) {
        const uint64_t extent = DRAW(s, 1, 2, 3, 5, 16);
        desc.shape[d] = d < desc.dims ? extent : 0;
    }
    desc.flags = random_case_one_in(s, 5) ? ZERO_TENSOR_FROZEN : ZERO_TENSOR_PLAIN;
    desc.flags |= random_case_one_in(s, 4) ? ZERO_TENSOR_NO_DECAY : ZERO_TENSOR_PLAIN;
    desc.group = (uint32_t)DRAW_OR_0(s, 1, 7, 63);
    const bool box = random_case_one_in(s, 3) && desc.dims > 0;
    const bool copies = random_case_one_in(s, 2) && !box && s->parts > 1;
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

/* Units that all have this one compete for the same slots. */
static void add_alike_tensor(random_case *s, zero_dtype dtype)
{
    const zero_tensor_desc desc = {.dtype = dtype, .dims = 1, .shape = {200}};
    for (uint32_t part = 0; part < s->parts; part++) {
        (void)toy_model_part(&s->models[part], &desc, s->models[part].tensor_count, 0);
    }
}

/* A unit of all parts, with `more` tensors than are drawn. apart: it may have a shard group. */
static void draw_unit(random_case *s, uint32_t unit, uint32_t more, zero_dtype dtype, bool alike,
                      bool apart)
{
    const uint64_t count_at = s->draws;
    const uint32_t count = random_case_choose(s, 5) + more;
    const bool tied = random_case_one_in(s, 6) && unit > 0;
    const uint32_t group = (uint32_t)DRAW_OR_0(s, 1, 2, s->ranks);
    for (uint32_t part = 0; part < s->parts; part++) {
        s->models[part].shard_group = apart && s->ranks % (group + !group) == 0 ? group : 0;
        (void)toy_model_layer(&s->models[part], "unit", unit);
    }
    if (alike) {
        add_alike_tensor(s, dtype);
    }
    for (uint32_t i = 0; i < count && !alike; i++) {
        random_case_section(s, TENSOR_CHOICES);
        random_choices_item(s->draws, TENSOR_CHOICES, count_at);
        draw_tensor(s, dtype);
    }
    for (uint32_t part = 0; tied && part < s->parts; part++) {
        toy_model_tie(&s->models[part], unit, 0);
    }
}

static void draw_model(random_case *s)
{
    random_case_section(s, SECTION_CHOICES);
    const uint64_t count_at = s->draws;
    const uint32_t units = 1 + random_case_choose(s, UNITS_MAX);
    const zero_dtype dtype =
        (zero_dtype)random_case_choose(s, 4); /* default: any, tensor by tensor */
    const bool alike = random_case_one_in(s, 4);
    const bool apart = random_case_one_in(s, 3);
    random_case_section(s, UNIT_CHOICES);
    const uint64_t end = s->draws + (uint64_t)UNITS_MAX * UNIT_CHOICES;
    for (uint32_t part = 0; part < s->parts; part++) {
        toy_model_open(&s->models[part]);
    }
    for (uint32_t u = 0; u < units; u++) {
        random_case_section(s, UNIT_CHOICES);
        random_choices_item(s->draws, UNIT_CHOICES, count_at);
        draw_unit(s, u, u == 0, dtype, alike, apart);
    }
    s->draws = end;
}

static void draw_split(random_case *s)
{
    zero_tuning *t = &s->run.tuning;
    const uint32_t w = s->ranks;
    toy_sharding ways[16];
    random_case_section(s, SECTION_CHOICES);
    s->run.options.stage = (zero_stage)random_case_choose(s, 4);
    const bool in_a_way = random_case_one_in(s, 3);
    const bool by_groups = random_case_one_in(s, 4); /* many of these are refused */
    const uint32_t way = random_case_choose(s, toy_shardings(w, true, ways));
    const uint32_t shard_group = (uint32_t)DRAW_OR_0(s, 1, 2, 4, w);
    const uint32_t grad_group = (uint32_t)DRAW_OR_0(s, 1, 2, 4, w);
    const uint32_t optimizer_group = (uint32_t)DRAW_OR_0(s, 1, 2, 4, w);
    if (in_a_way) {
        toy_sharding_apply(&ways[way], &s->run);
    } else if (by_groups) {
        s->run.options.shard_group = shard_group;
        t->grad_group = grad_group;
        t->optimizer_group = optimizer_group;
    }
    t->accumulation =
        random_case_one_in(s, 4) ? ZERO_ACCUMULATION_LOCAL : ZERO_ACCUMULATION_DEFAULT;
}

/* Numbers of the groups whose rates go by tensor: every other time those that norms change. */
static void draw_rates(random_case *s)
{
    const float adapts = random_case_one_in(s, 2) ? 1.0f : 0.0f;
    const float decay = random_case_one_in(s, 2) ? 0.1f : 0.0f;
    const bool bounded = random_case_one_in(s, 2);
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        zero_hyper *hyper = &s->groups[g];
        if (hyper->kind == ZERO_OPTIMIZER_LAMB) {
            hyper->lamb = (zero_lamb){
                1e-2f, 0.9f, 0.999f, 1e-6f, decay, bounded ? 0.4f : 0, bounded ? 0.5f : 0, adapts};
        } else if (hyper->kind == ZERO_OPTIMIZER_LARS) {
            hyper->lars = (zero_lars){2.0f, 0.9f, decay, 1e-2f, 1e-8f, adapts};
        }
    }
}

/* Of the groups that tensors are in. A model in several parts has no rates by tensor. */
static void draw_optimizers(random_case *s)
{
    static const uint32_t groups[] = {0, 1, 7, 63};
    const bool any = random_case_one_in(s, 3);
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        s->groups[g] = s->run.params.hyper;
    }
    for (uint32_t i = 0; i < 4; i++) {
        const zero_optimizer own = (zero_optimizer)DRAW_OR_0(
            s, ZERO_OPTIMIZER_LION, ZERO_OPTIMIZER_SGD, ZERO_OPTIMIZER_LAMB, ZERO_OPTIMIZER_LARS);
        const bool refused = zi_optimizer_is_layerwise(own) && s->parts > 1;
        if (any && own != ZERO_OPTIMIZER_DEFAULT && !refused) {
            s->run.options.group_optimizer[groups[i]] = own;
            s->groups[groups[i]] = zero_hyper_init(own);
        }
    }
    draw_rates(s);
    if (any) {
        s->run.params.groups = s->groups;
        s->run.params.group_count = ZERO_STEP_GROUPS;
    }
}

/* Remainders are of bf16, nobody knows the codes of a callback's moments, and no library adds codes
 * up. What is rounded after an update, which it is at the lower stages alone unless groups say
 * else, has masters in fp32. */
static void keep_to_what_there_is(random_case *s)
{
    zero_engine_options *o = &s->run.options;
    zero_tuning *t = &s->run.tuning;
    const toy_model *model = &s->models[0];
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const bool half = model->tensors[i].desc.dtype == ZERO_DTYPE_F16;
        o->master_dtype =
            half && zi_dtype_is_remainder(o->master_dtype) ? ZERO_DTYPE_F32 : o->master_dtype;
    }
    const bool blocks = zi_dtype_is_block(t->gather_dtype);
    o->master_dtype = blocks && o->stage < ZERO_STAGE_3 ? ZERO_DTYPE_F32 : o->master_dtype;
    const bool codes = o->moment_dtype == ZERO_DTYPE_I8;
    o->moment_dtype =
        codes && o->optimizer == ZERO_OPTIMIZER_CALLBACK ? ZERO_DTYPE_BF16 : o->moment_dtype;
    const bool packed = t->wire_dtype == ZERO_DTYPE_INT8_BLOCK;
    t->reduction =
        packed && t->reduction == ZERO_REDUCTION_NATIVE ? ZERO_REDUCTION_DEFAULT : t->reduction;
    t->host_wire_dtype =
        t->reduction != ZERO_REDUCTION_DEFAULT ? ZERO_DTYPE_DEFAULT : t->host_wire_dtype;
}

static void draw_types(random_case *s)
{
    zero_engine_options *o = &s->run.options;
    zero_tuning *t = &s->run.tuning;
    random_case_section(s, SECTION_CHOICES);
    o->grad_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16);
    o->master_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_NONE,
                                            ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_REMAINDER8);
    o->moment_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_I8);
    t->wire_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16,
                                          ZERO_DTYPE_INT8_BLOCK);
    t->host_wire_dtype =
        (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK, ZERO_DTYPE_DEFAULT);
    t->accum_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_BF16);
    t->gather_dtype = (zero_dtype)DRAW_OR_0(s, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16,
                                            ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK);
    t->reduction = (zero_reduction)random_case_choose(s, 3);
    const uint32_t states = random_case_choose(s, 3);
    if (random_case_one_in(s, 5) && o->device == ZERO_DEVICE_CPU) { /* it is host code */
        o->optimizer = ZERO_OPTIMIZER_CALLBACK;
        o->update = update_by_momentum;
        o->update_states = states;
        s->run.params.hyper.kind = ZERO_OPTIMIZER_CALLBACK;
    }
    draw_optimizers(s);
    keep_to_what_there_is(s);
    t->encoded_views =
        random_case_one_in(s, 2) && o->stage == ZERO_STAGE_3 && zi_dtype_is_block(t->gather_dtype);
}

static bool has_rates_by_tensor(const random_case *s)
{
    bool any = false;
    for (uint32_t t = 0; t < s->models[0].tensor_count; t++) {
        const zero_tensor_desc *desc = &s->models[0].tensors[t].desc;
        const zero_optimizer own = s->run.options.group_optimizer[desc->group];
        any |= (desc->flags & ZERO_TENSOR_FROZEN) == 0 && zi_optimizer_is_layerwise(own);
    }
    return any;
}

/* Moves to nearer tiers all that is read twice, to be measured and to be updated. */
static void keep_within_reach(random_case *s)
{
    zero_tier *tiers = s->run.options.tier;
    for (int role = 0; role < ZI_TIER_ROLES; role++) {
        const zero_tier near = tiers[role] == ZERO_TIER_DISK ? ZERO_TIER_HOST : tiers[role];
        tiers[role] = role < ZERO_ROLE_MASTER ? ZERO_TIER_DEVICE : near;
    }
    s->run.tuning.speculative_step = 0;
    s->run.predicted = false;
}

/* Draw who updates. Only one of them may update what is on disk, or comes to the GPU by units; and
 * only the GPU by norms that it has measured. */
static void draw_updater(random_case *s)
{
    const zero_engine_options *o = &s->run.options;
    bool both = true;
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        both = both && o->tier[role] != ZERO_TIER_DISK &&
               (role >= ZERO_ROLE_MASTER || o->tier[role] != ZERO_TIER_HOST);
    }
    if (has_rates_by_tensor(s)) {
        s->run.tuning.updater = (zero_updater)DRAW_OR_0(s, ZERO_UPDATER_GPU);
    } else {
        s->run.tuning.updater =
            both ? (zero_updater)DRAW_OR_0(s, ZERO_UPDATER_GPU, ZERO_UPDATER_CPU, ZERO_UPDATER_BOTH)
                 : (zero_updater)DRAW_OR_0(s, ZERO_UPDATER_CPU);
    }
#ifndef TOY_NCCL
    s->run.tuning.transport = ZERO_TRANSPORT_PEER; /* a plan cannot know that ranks are threads */
#endif
}

static void draw_tiers(random_case *s)
{
    zero_engine_options *o = &s->run.options;
    zero_tuning *t = &s->run.tuning;
    random_case_section(s, SECTION_CHOICES);
    const uint32_t mode = random_case_choose(s, 4);
    for (int role = 0; role < ZI_TIER_ROLES; role++) {
        const bool state = role >= ZERO_ROLE_MASTER;
        const zero_tier any = (zero_tier)random_case_choose(s, ZERO_TIER_COUNT);
        o->tier[role] = mode == 0 ? ZERO_TIER_DEFAULT : mode == 2 && state ? ZERO_TIER_DISK : any;
        o->tier[role] = mode == 3 ? ZERO_TIER_DISK : o->tier[role];
    }
    /* A GPU's in host memory are not where they are encoded either. */
    t->encoded_views = t->encoded_views && o->tier[ZERO_ROLE_PARAM] <= ZERO_TIER_DEVICE;
    const uint32_t directories = 1 + random_case_choose(s, RANDOM_DIRECTORIES);
    o->disk_directories = rig_paths;
    o->disk_directory_count = s->parts > 1 ? 1 : directories;
    t->speculative_step = random_case_one_in(s, 2) && mode >= 2;
    s->run.predicted = random_case_choose(s, 4) != 0 && t->speculative_step != 0;
    t->extent_bytes = DRAW_OR_0(s, 4096, 8192, 20480, 65536);
    t->io_window = (uint32_t)DRAW_OR_0(s, 3, 5, 9);
    t->io_depth = (uint32_t)DRAW_OR_0(s, 1, 3);
    t->disk_unchecked = random_case_one_in(s, 4);
    if (has_rates_by_tensor(s)) {
        keep_within_reach(s);
    }
    if (o->device == ZERO_DEVICE_CUDA) {
        draw_updater(s);
    }
}

#ifdef TOY_NCCL
/* Over NCCL ranks that leave out units say so, and then the order is that of the steps before. */
static void leave_out_at_once(random_case *s)
{
    s->run.tuning.left_out_at_once = s->omits != 0;
    for (int step = 0; step < RANDOM_STEPS && s->omits != 0; step++) {
        const course way = s->courses[step];
        s->courses[step] = course_is_whole(way) ? IN_ORDER : way;
    }
}
#endif

static void draw_courses(random_case *s)
{
    random_case_section(s, SECTION_CHOICES);
    for (int step = 0; step < RANDOM_STEPS; step++) {
        s->courses[step] = (course)random_case_choose_or_0(s, COURSE_COUNT - 1);
    }
    s->omits = random_case_one_in(s, 3) ? s->number + 1 : 0;
#ifdef TOY_NCCL
    leave_out_at_once(s);
#endif
}

static bool random_case_has_ties(const random_case *s)
{
    bool ties = false;
    for (uint32_t u = 0; u < s->models[0].unit_count; u++) {
        ties = ties || s->models[0].units[u].tie_count != 0;
    }
    return ties;
}

/* Raise slots to what the courses need: a slot for each unit where ranks leave out units in one
 * that is whole, or while what a unit ties to is held. */
static void raise_slots(random_case *s)
{
    zero_tuning *t = &s->run.tuning;
    for (int step = 0; step < RANDOM_STEPS; step++) {
        const bool all =
            s->omits != 0 && (course_is_whole(s->courses[step]) || random_case_has_ties(s));
        const uint32_t least = all ? UNITS_MAX : course_param_slots(s->courses[step]);
        t->param_slots = least > 2 && t->param_slots < least ? least : t->param_slots;
        const uint32_t grads = course_grad_slots(s->courses[step], UNITS_MAX);
        const uint32_t has = t->grad_slots != 0 ? t->grad_slots : 2;
        t->grad_slots = has < grads ? grads : t->grad_slots;
    }
}

static void draw_tuning(random_case *s)
{
    zero_tuning *t = &s->run.tuning;
    random_case_section(s, SECTION_CHOICES);
    t->param_slots = (uint32_t)DRAW_OR_0(s, 2, 3, 6);
    t->grad_slots = (uint32_t)DRAW_OR_0(s, 1, 2, 5);
    t->look_ahead = (uint32_t)DRAW_OR_0(s, 1, 2, 5);
    raise_slots(s);
    t->no_prefetch = random_case_one_in(s, 4);
    t->bucket_bytes = DRAW_OR_0(s, 1, 600, 5000);
    t->poison_released = random_case_one_in(s, 6);
    const bool staging = random_case_one_in(s, 8);
    const uint64_t staging_bytes = (UINT64_C(32) << 20) + random_case_choose(s, 9000);
    t->save_staging_bytes = staging ? staging_bytes : 0;
    s->run.options.loss_scale = (float)DRAW_OR_0(s, 1, 8);
    s->run.micro_steps = 1 + random_case_choose(s, 2);
    s->run.split = random_case_one_in(s, 2);
    s->run.params.max_norm = (float)random_case_choose(s, 2);
    const bool evicts_all = random_case_one_in(s, 3);
    const uint32_t roles = random_case_choose(s, 1 << (ZERO_ROLE_IO_WINDOW + 1)) & ZERO_EVICT_ALL;
    const bool to_host = random_case_one_in(s, 2);
    s->evicted = evicts_all ? ZERO_EVICT_ALL : roles;
    s->evicted_to =
        to_host && s->run.options.device == ZERO_DEVICE_CUDA ? ZERO_TIER_HOST : ZERO_TIER_DISK;
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
    random_case_section(s, SECTION_CHOICES);
    const uint64_t share = DRAW_OR_0(s, 2, 5, 9);
    const bool stays_refused = random_case_one_in(s, 8);
    if (share == 0 || host == 0 || s->parts > 1) {
        return;
    }
    s->run.options.host_budget_bytes = host - host / (2 * share);
    make_plans(s);
    if (s->refused && !stays_refused) {
        s->run.options.host_budget_bytes = host;
        make_plans(s);
    }
}

static void random_case_draw(random_case *s, uint64_t number)
{
    *s = (random_case){.number = number};
    s->ranks = (uint32_t)DRAW(s, 1, 2, 3, 4, 5, 8);
    s->parts = random_case_one_in(s, 4) && s->ranks <= 3 ? RANDOM_PARTS : 1;
    draw_model(s);
    s->run = toy_run_init(&s->models[0]);
    draw_split(s);
    draw_types(s);
    draw_tiers(s);
    draw_courses(s);
    draw_tuning(s);
    make_plans(s);
    draw_budget(s);
    random_case_section(s, SECTION_CHOICES);
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
    add(text,
        "  case %" PRIu64 " of seed %" PRIu64 ": %u ranks, %u parts, %u units, evicts 0x%x to %s",
        s->number, test_seed, s->ranks, s->parts, s->models[0].unit_count, s->evicted,
        zero_tier_name(s->evicted_to));
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
