/* Owns the tests of checkpoints of a model in parts: meshes of data x model ranks save one, and
 * others load it, whatever their tensors are cut into, and go on with the bits of a run that never
 * ended. And of what does not fit together: boxes that overlap, copies without an original,
 * elements that nobody saved, ranks that fail. */
#include "saved_runs.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/fault.h"
#include "damage_said.h"
#include "mesh_threads.h"
#include "sanitizer.h"

#define UNITS 4
#define WHOLE UINT32_MAX

/* ---- a model in boxes ---- */

/* A tensor of each unit, and the dimension over which parts cut it. */
typedef struct piece {
    uint32_t dims;
    uint64_t shape[3];
    uint32_t cut; /* WHOLE: parts have copies of it */
    uint32_t flags;
} piece;

/* How a mesh cuts the model. */
typedef struct cutting {
    uint32_t data;
    uint32_t stages; /* pipeline parts: units are striped over them */
    uint32_t cuts;   /* of each tensor */
    uint32_t turn;   /* over another dimension than pieces say */
} cutting;

static const piece pieces[] = {
    {2, {24, 40}, 1, 0},                    /* columns of 10 to 40 elements */
    {2, {50, 33}, 0, 0},                    /* rows, which begin at no granule */
    {2, {6, 1024}, 1, 0},                   /* columns of whole granules */
    {1, {70}, WHOLE, ZERO_TENSOR_NO_DECAY}, /* a norm's */
    {3, {4, 9, 5}, 0, 0},                   /* experts */
    {2, {12, 7}, 0, ZERO_TENSOR_FROZEN},    /* */
    {2, {0, 4}, WHOLE, 0},                  /* empty */
};
#define PIECES (sizeof pieces / sizeof pieces[0])

/* The begin of part `index` of `parts` of an extent. */
static uint64_t begin_of(uint64_t extent, uint32_t index, uint32_t parts)
{
    return extent * index / parts;
}

static zero_tensor_desc describe(const piece *p, zero_dtype dtype, const cutting *c, uint32_t cut)
{
    zero_tensor_desc desc = {.dims = p->dims, .dtype = dtype, .flags = p->flags};
    memcpy(desc.shape, p->shape, sizeof p->shape);
    if (p->cut == WHOLE) {
        desc.replica = cut;
    } else if (c->cuts > 1) {
        const uint32_t d = (p->cut + c->turn) % p->dims;
        memcpy(desc.global_shape, p->shape, sizeof p->shape);
        desc.box_first[d] = begin_of(p->shape[d], cut, c->cuts);
        desc.shape[d] = begin_of(p->shape[d], cut + 1, c->cuts) - desc.box_first[d];
    }
    return desc;
}

/* The model's tensors that a part has. */
static toy_model *model_of(zero_dtype dtype, const cutting *c, uint32_t part)
{
    toy_model *model = toy_model_new();
    for (uint32_t u = part / c->cuts; u < UNITS; u += c->stages) {
        (void)toy_model_layer(model, "layer", u);
        for (uint32_t i = 0; i < PIECES; i++) {
            zero_tensor_desc desc = describe(&pieces[i], dtype, c, part % c->cuts);
            desc.group = i % RUN_GROUPS;
            (void)toy_model_part(model, &desc, u * (uint32_t)PIECES + i, 0);
        }
    }
    return model;
}

static uint32_t parts_of(const cutting *c)
{
    return c->stages * c->cuts;
}

/* ---- the run ---- */

typedef struct course {
    const toy_model *model; /* the whole */
    zero_dtype dtype;
    zero_dtype master;
    zero_dtype moments; /* DEFAULT: fp32 */
    zero_stage stage;
    cutting cut;
    const char *name; /* of the checkpoint */
    uint32_t ranks;   /* that saved it */
    toy_state half;   /* of the whole model */
    toy_state whole;  /* at the end */
} course;

static toy_run run_for(const course *c, const toy_model *model, const mesh_rank *at)
{
    toy_run run = run_of(model, c->master, c->moments);
    run.options.stage = c->stage;
    run.options.model_parallel = at != NULL && parts_of(&c->cut) > 1 ? at->parts : NULL;
    return run;
}

static zero_status take_whole(toy_trainer *trainer)
{
    course *c = trainer->user;
    const zero_save_options options = run_save_options("single");
    while (trainer->step < RUN_HALF) {
        TOY_TRY(run_step(trainer));
    }
    TOY_TRY(toy_collect_first(trainer, &c->half));
    TOY_TRY(zero_save(trainer->engine, &options));
    while (trainer->step < RUN_STEPS) {
        TOY_TRY(run_step(trainer));
    }
    return toy_collect_first(trainer, &c->whole);
}

static course course_of(zero_dtype dtype, zero_dtype master)
{
    static const cutting one = {1, 1, 1, 0};
    course c = {.dtype = dtype, .master = master, .stage = ZERO_STAGE_2, .cut = one};
    c.model = model_of(dtype, &one, 0);
    const toy_run run = run_for(&c, c.model, NULL);
    CHECK_OK(toy_on_ranks(2, &run, take_whole, &c));
    return c;
}

static void end_course(course *c)
{
    toy_state_free(&c->half);
    toy_state_free(&c->whole);
}

/* Every state of the part's elements has the bits that it has in the whole model. */
static void check_state(const course *c, toy_trainer *trainer, const toy_state *whole,
                        const char *what)
{
    toy_state state;
    if (whole->element_count == 0) { /* nobody knows it */
        return;
    }
    CHECK_OK(toy_collect(trainer, &state));
    for (uint32_t t = 0; t < trainer->run->model->tensor_count; t++) {
        const toy_tensor *tensor = &trainer->run->model->tensors[t];
        const toy_tensor *of = &c->model->tensors[tensor->key];
        for (uint64_t e = 0; e < tensor->count; e++) {
            const uint64_t at = of->base + toy_element(tensor, e);
            for (int role = 0; role < TOY_ROLES; role++) {
                if (role != ZERO_ROLE_GRAD &&
                    state.bits[role][tensor->base + e] != whole->bits[role][at]) {
                    TEST_FAIL("%s, %s: %s of %s[%" PRIu64 "]: %08x instead of %08x", what, c->name,
                              zero_role_name((zero_role)role), tensor->name, e,
                              state.bits[role][tensor->base + e], whole->bits[role][at]);
                }
            }
        }
    }
    toy_state_free(&state);
}

static zero_status open_rank(const course *c, const mesh_rank *at, toy_run *run,
                             toy_trainer *trainer)
{
    *run = run_for(c, model_of(c->dtype, &c->cut, at->part), at);
    return toy_open(trainer, run, at->world);
}

static zero_status save_part(const mesh_rank *at, void *user)
{
    const course *c = user;
    const zero_save_options options = run_save_options(c->name);
    toy_trainer trainer;
    toy_run run;
    TOY_TRY(open_rank(c, at, &run, &trainer));
    while (trainer.step < RUN_HALF) {
        TOY_TRY(run_step(&trainer));
    }
    check_state(c, &trainer, &c->half, "before it was saved");
    TOY_TRY(zero_save_begin(trainer.engine, &options));
    while (trainer.step < RUN_STEPS) { /* meanwhile */
        TOY_TRY(run_step(&trainer));
    }
    TOY_TRY(zero_save_end(trainer.engine));
    check_state(c, &trainer, &c->whole, "a run that was saved meanwhile");
    toy_close(&trainer);
    return ZERO_OK;
}

static zero_status load_part(const mesh_rank *at, void *user)
{
    const course *c = user;
    const zero_load_options options = run_load_options(c->name);
    zero_load_report report = zero_load_report_init();
    toy_trainer trainer;
    toy_run run;
    TOY_TRY(open_rank(c, at, &run, &trainer));
    TOY_TRY(zero_load(trainer.engine, &options, &report));
    CHECK_EQ(report.step, RUN_HALF);
    CHECK_EQ(report.world, c->ranks);
    CHECK_EQ(report.loaded, run.model->tensor_count);
    CHECK_EQ(report.missing + report.unexpected + report.mismatching, 0);
    check_state(c, &trainer, &c->half, "what was saved");
    for (trainer.step = RUN_HALF; trainer.step < RUN_STEPS;) {
        TOY_TRY(run_step(&trainer));
    }
    check_state(c, &trainer, &c->whole, "a run that went on elsewhere");
    toy_close(&trainer);
    return ZERO_OK;
}

static const cutting meshes[] = {{1, 1, 1, 0}, {1, 1, 2, 0}, {2, 2, 1, 0}, {1, 1, 4, 0},
                                 {3, 1, 2, 1}, {2, 1, 4, 1}, {1, 2, 2, 0}, {2, 4, 1, 0}};
#define MESHES (sizeof meshes / sizeof meshes[0])

/* Saved by each mesh, or each so manieth, and loaded by each. */
static void over_meshes(zero_dtype dtype, zero_dtype master, uint32_t step)
{
    static const char *const names[] = {"single", "mesh1", "mesh2", "mesh3",
                                        "mesh4",  "mesh5", "mesh6", "mesh7"};
    run_directory_make();
    course c = course_of(dtype, master);
    for (uint32_t from = 0; from < MESHES; from += step) {
        c.name = names[from];
        c.cut = meshes[from];
        c.stage = (zero_stage)(ZERO_STAGE_0 + from % 4);
        c.ranks = from == 0 ? 2 : c.cut.data * parts_of(&c.cut);
        if (from != 0) {
            CHECK_OK(run_mesh(c.cut.data, parts_of(&c.cut), save_part, &c));
        }
        for (uint32_t to = 0; to < MESHES; to++) {
            c.cut = meshes[to];
            c.stage = (zero_stage)(ZERO_STAGE_0 + (from + to) % 4);
            if (IN_SMALL_SAMPLE(from + to / 2)) {
                CHECK_OK(run_mesh(c.cut.data, parts_of(&c.cut), load_part, &c));
            }
        }
    }
    end_course(&c);
}

TEST_CALL(each_mesh_goes_on_from_each_in_f32, over_meshes(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, 1));
TEST_CALL(each_mesh_goes_on_from_each_in_bf16, over_meshes(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, 1));
TEST_CALL(each_mesh_goes_on_from_some_with_remainders,
          over_meshes(ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, 4));

/* ---- codes ---- */

static zero_status load_codes(toy_trainer *trainer)
{
    course *c = trainer->user;
    const zero_load_options options = run_load_options(c->name);
    TOY_TRY(zero_load(trainer->engine, &options, NULL));
    return toy_collect_first(trainer, &c->half);
}

/* Whatever the boxes, what codes stand for is the same; blocks of other boxes are made anew. */
TEST(each_mesh_reads_the_codes_of_some)
{
    run_directory_make();
    for (uint32_t from = 1; from < MESHES; from += 3) {
        course c = {.dtype = ZERO_DTYPE_BF16,
                    .master = ZERO_DTYPE_REMAINDER16,
                    .moments = ZERO_DTYPE_I8,
                    .name = "codes",
                    .cut = meshes[from]};
        c.model = model_of(c.dtype, &meshes[0], 0);
        c.ranks = c.cut.data * parts_of(&c.cut);
        CHECK_OK(run_mesh(c.cut.data, parts_of(&c.cut), save_part, &c));
        for (uint32_t to = 0; to < MESHES; to++) {
            c.cut = meshes[to];
            c.stage = (zero_stage)(ZERO_STAGE_0 + (from + to) % 4);
            if (to == 0) {
                c.moments = ZERO_DTYPE_F32;
                const toy_run run = run_for(&c, c.model, NULL);
                CHECK_OK(toy_on_ranks(1, &run, load_codes, &c));
            } else if (IN_SMALL_SAMPLE(from + to / 2)) {
                CHECK_OK(run_mesh(c.cut.data, parts_of(&c.cut), load_part, &c));
            }
        }
        toy_state_free(&c.half);
        c.half = (toy_state){0};
        c.moments = ZERO_DTYPE_I8;
        CHECK_OK(run_mesh(c.cut.data, parts_of(&c.cut), load_part, &c));
    }
}

/* ---- betas of each part's own ---- */

/* Steps of a part, in the second one by betas of its own. */
static zero_status own_step(toy_trainer *trainer, uint32_t part)
{
    zero_hyper groups[RUN_GROUPS];
    zero_step_params params = trainer->run->params;
    run_choose_groups(trainer->step + 2 * part, groups);
    params.groups = groups;
    params.group_count = RUN_GROUPS;
    return toy_step_with(trainer, &params);
}

static zero_status save_own_betas(const mesh_rank *at, void *user)
{
    const course *c = user;
    const zero_save_options save = run_save_options("betas");
    const zero_load_options load = run_load_options("betas");
    toy_trainer trainer;
    toy_run run;
    toy_state state;
    TOY_TRY(open_rank(c, at, &run, &trainer));
    TOY_TRY(own_step(&trainer, at->part));
    TOY_TRY(zero_save(trainer.engine, &save));
    TOY_TRY(own_step(&trainer, at->part));
    TOY_TRY(toy_collect(&trainer, &state));
    TOY_TRY(own_step(&trainer, at->part));
    TOY_TRY(zero_load(trainer.engine, &load, NULL));
    trainer.step = 1;
    TOY_TRY(own_step(&trainer, at->part));
    TOY_TRY(toy_collect_same(&trainer, &state, "a part that went on with its own betas"));
    toy_state_free(&state);
    toy_close(&trainer);
    return ZERO_OK;
}

static zero_status refuse_betas(toy_trainer *trainer)
{
    zero_load_options load = run_load_options("betas");
    CHECK_FAILS(zero_load(trainer->engine, &load, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "not of the same updates and betas");
    load.params_only = 1;
    return zero_load(trainer->engine, &load, NULL);
}

TEST(parts_keep_betas_of_their_own)
{
    run_directory_make();
    course c = course_of(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT);
    const toy_run run = run_for(&c, c.model, NULL);
    c.cut = (cutting){2, 2, 1, 0};
    CHECK_OK(run_mesh(2, 2, save_own_betas, &c));
    CHECK_OK(toy_on_ranks(1, &run, refuse_betas, NULL)); /* a group has tensors of both parts */
    end_course(&c);
}

/* ---- seeds of each part's own ---- */

/* An engine of a part whose seed is `seed` and the part's number, before its first step. */
static zero_status with_seed(const mesh_rank *at, const course *c, uint64_t seed,
                             zero_status (*then)(toy_trainer *trainer))
{
    toy_run run = run_for(c, model_of(c->dtype, &c->cut, at->part), at);
    toy_trainer trainer;
    run.options.seed = seed + at->part;
    TOY_TRY(toy_open(&trainer, &run, at->world));
    const zero_status status = then(&trainer);
    toy_close(&trainer);
    return status;
}

static zero_status save_seeded(toy_trainer *trainer)
{
    const zero_save_options save = run_save_options("seeds");
    TOY_TRY(run_step(trainer));
    return zero_save(trainer->engine, &save);
}

static zero_status load_seeded(toy_trainer *trainer)
{
    const zero_load_options load = run_load_options("seeds");
    TOY_TRY(zero_load(trainer->engine, &load, NULL));
    return run_step(trainer);
}

static zero_status refuse_seed(toy_trainer *trainer)
{
    const zero_load_options load = run_load_options("seeds");
    const bool compares = zero_world_rank(trainer->run->options.model_parallel) == 0;
    CHECK_FAILS(zero_load(trainer->engine, &load, NULL), ZERO_ERR_INVALID_ARGUMENT,
                compares ? "options.seed is 5, but the saved run has been rounded with 4"
                         : "model-parallel rank 0: options.seed is 5, but the saved run has been");
    return run_step(trainer);
}

static zero_status own_seeds(const mesh_rank *at, void *user)
{
    TOY_TRY(with_seed(at, user, 4, save_seeded));
    TOY_TRY(with_seed(at, user, 4, load_seeded));
    return with_seed(at, user, 5, refuse_seed);
}

/* The first part's is saved, and compared with the first part's. */
TEST(parts_keep_seeds_of_their_own)
{
    course c = {.dtype = ZERO_DTYPE_BF16,
                .master = ZERO_DTYPE_NONE,
                .stage = ZERO_STAGE_2,
                .cut = {2, 2, 1, 0}};
    run_directory_make();
    CHECK_OK(run_mesh(2, 2, own_seeds, &c));
}

/* ---- what does not fit together ---- */

/* Two parts, of which each has such a tensor of one name and another one alone. */
typedef struct pair {
    zero_tensor_desc parts[2];
    zero_status status;
    const char *text;
    const char *name;
} pair;

static const toy_model *pair_model(const zero_tensor_desc *desc, uint32_t part)
{
    const zero_tensor_desc own = {.dims = 1, .shape = {300}};
    zero_tensor_desc first = *desc;
    toy_model *model = toy_model_new();
    first.group = 1; /* its moments may be those of no update */
    (void)toy_model_layer(model, "layer", 0);
    (void)toy_model_part(model, &first, 0, 0);
    (void)toy_model_layer(model, "own", part);
    (void)toy_model_part(model, &own, 1 + part, 0);
    return model;
}

static zero_status open_pair(const pair *p, const mesh_rank *at, toy_run *run, toy_trainer *trainer)
{
    *run = toy_run_init(pair_model(&p->parts[at->part], at->part));
    run->flavour = TOY_INTEGER;
    run->options.stage = ZERO_STAGE_1;
    run->options.model_parallel = at->parts;
    return toy_open(trainer, run, at->world);
}

static zero_status save_pair(const mesh_rank *at, void *user)
{
    const pair *p = user;
    const zero_save_options options = run_save_options(p->name);
    toy_trainer trainer;
    toy_run run;
    TOY_TRY(open_pair(p, at, &run, &trainer));
    TOY_TRY(toy_step(&trainer));
    if (p->status == ZERO_OK) {
        CHECK_OK(zero_save(trainer.engine, &options));
    } else {
        CHECK_FAILS(zero_save(trainer.engine, &options), p->status, p->text);
    }
    TOY_TRY(toy_step(&trainer)); /* the engine goes on */
    toy_close(&trainer);
    return ZERO_OK;
}

static pair cut_pair(uint64_t second, uint64_t rows)
{
    return (pair){.parts = {{.dims = 2, .shape = {4, 4}, .global_shape = {rows, 4}},
                            {.dims = 2,
                             .shape = {4, 4},
                             .global_shape = {rows, 4},
                             .box_first = {second, 0}}},
                  .name = "pair"};
}

TEST(parts_that_do_not_fit_are_refused_on_all_ranks)
{
    run_directory_make();
    pair p = cut_pair(2, 8);
    p.status = ZERO_ERR_INVALID_ARGUMENT;
    p.text = "overlap";
    CHECK_OK(run_mesh(2, 2, save_pair, &p));
    p = cut_pair(4, 8);
    p.status = ZERO_ERR_INVALID_ARGUMENT;
    p.text =
        "\"layer0.t0\" is [4, 4] at [0, 0] of [8, 4] in part 0 and [4, 4] at [4, 0] of [9, 4] in";
    p.parts[1].global_shape[0] = 9;
    CHECK_OK(run_mesh(2, 2, save_pair, &p));
    p = cut_pair(0, 4); /* two copies that both count */
    p.status = ZERO_ERR_INVALID_ARGUMENT;
    p.text = "overlap";
    CHECK_OK(run_mesh(2, 2, save_pair, &p));
    p.parts[0].replica = 1;
    p.parts[1].replica = 2;
    p.text = "no part has its copy 0";
    CHECK_OK(run_mesh(2, 2, save_pair, &p));
    p.parts[0].replica = 0;
    p.status = ZERO_OK;
    CHECK_OK(run_mesh(2, 2, save_pair, &p));
    CHECK_EQ(rig_entries(run_directory), 2); /* the checkpoint, and `latest` */
}

/* ---- what a load finds ---- */

typedef struct finding {
    const char *list; /* of the report; NULL: all is there */
    uint32_t missing;
    uint32_t unexpected;
    uint32_t mismatching;
} finding;

static void check_finding(toy_trainer *trainer, const finding *f)
{
    zero_load_options options = run_load_options("pair");
    zero_load_report report = zero_load_report_init();
    if (f->list != NULL) {
        CHECK_FAILS(zero_load(trainer->engine, &options, NULL), ZERO_ERR_INVALID_ARGUMENT, "");
    }
    options.partial = 1;
    CHECK_OK(zero_load(trainer->engine, &options, &report));
    CHECK_EQ(report.missing, f->missing);
    CHECK_EQ(report.unexpected, f->unexpected);
    CHECK_EQ(report.mismatching, f->mismatching);
    if (f->list != NULL && strstr(report.list, f->list) == NULL) {
        TEST_FAIL("no %s in the list: %s", f->list, report.list);
    }
}

static zero_status find_alone(toy_trainer *trainer)
{
    check_finding(trainer, trainer->user);
    return ZERO_OK;
}

/* An engine that is in one part loads the pair. */
static void find_in_one(const zero_tensor_desc *desc, finding f)
{
    const zero_tensor_desc own = {.dims = 1, .shape = {300}};
    zero_tensor_desc first = *desc;
    toy_model *model = toy_model_new();
    first.group = 1; /* its moments may be those of no update */
    (void)toy_model_layer(model, "layer", 0);
    (void)toy_model_part(model, &first, 0, 0);
    (void)toy_model_layer(model, "own", 0);
    (void)toy_model_part(model, &own, 1, 0);
    (void)toy_model_layer(model, "own", 1);
    (void)toy_model_part(model, &own, 2, 0);
    const toy_run run = toy_run_init(model);
    CHECK_OK(toy_on_ranks(2, &run, find_alone, &f));
}

/* And two parts do, of which the second has other tensors than the pair's. */
typedef struct pair_finding {
    pair pair;
    finding parts[2];
} pair_finding;

static zero_status find_in_part(const mesh_rank *at, void *user)
{
    const pair_finding *f = user;
    toy_trainer trainer;
    toy_run run;
    TOY_TRY(open_pair(&f->pair, at, &run, &trainer));
    check_finding(&trainer, &f->parts[at->part]);
    TOY_TRY(toy_step(&trainer));
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(what_is_missing_is_listed)
{
    run_directory_make();
    pair p = cut_pair(5, 9); /* nobody has the row between */
    CHECK_OK(run_mesh(2, 2, save_pair, &p));
    const zero_tensor_desc all = {.dims = 2, .shape = {9, 4}};
    const zero_tensor_desc other = {.dims = 2, .shape = {8, 4}};
    const zero_tensor_desc row = {
        .dims = 2, .shape = {1, 4}, .global_shape = {9, 4}, .box_first = {7, 0}};
    find_in_one(&all, (finding){"missing elements of layer0.t0\n", 1, 0, 0});
    find_in_one(&row, (finding){NULL, 0, 0, 0});
    find_in_one(&other,
                (finding){"mismatching layer0.t0: [8, 4] here, [4, 4] at [0, 0] of [9, 4] there\n",
                          0, 0, 1});
    pair_finding f = {p, {{NULL, 0, 0, 0}, {NULL, 0, 0, 0}}};
    CHECK_OK(run_mesh(2, 2, find_in_part, &f));
    f.pair.parts[1].box_first[0] = 3; /* it wants the row that nobody has */
    f.parts[0].list = "";
    f.parts[1] = (finding){"missing elements of layer0.t0\n", 1, 0, 0};
    CHECK_OK(run_mesh(2, 2, find_in_part, &f));
}

/* Tensors that another part has are not unexpected; those that none has are so on all. */
static zero_status find_unexpected(const mesh_rank *at, void *user)
{
    toy_trainer trainer;
    toy_run run = toy_run_init(pair_model(&((const pair *)user)->parts[0], 0));
    const finding f = {"unexpected own1.t2\n", 0, 1, 0};
    toy_model *model = toy_model_new();
    const zero_tensor_desc own = {.dims = 1, .shape = {300}};
    (void)toy_model_layer(model, at->part == 0 ? "layer" : "own", 0);
    (void)toy_model_part(model, at->part == 0 ? &((const pair *)user)->parts[0] : &own, at->part,
                         0);
    run.model = model;
    run.options.model_parallel = at->parts;
    TOY_TRY(toy_open(&trainer, &run, at->world));
    check_finding(&trainer, &f);
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(what_no_part_has_is_unexpected)
{
    run_directory_make();
    pair p = cut_pair(4, 8);
    CHECK_OK(run_mesh(2, 2, save_pair, &p));
    CHECK_OK(run_mesh(2, 2, find_unexpected, &p));
}

/* ---- failures ---- */

typedef struct failing {
    course course;
    zi_fault_kind kind;
    uint64_t nth;
    uint32_t failed;
    pthread_barrier_t all; /* ranks of the mesh */
    atomic_uint good;
} failing;

/* Every n-th event of any rank fails once: the save fails on all ranks of the mesh or on none. */
static zero_status fail_nth(const mesh_rank *at, void *user)
{
    failing *f = user;
    const bool first = at->part == 0 && at->data == 0;
    const zero_save_options options = run_save_options("failing");
    const uint32_t ranks = f->course.cut.data * parts_of(&f->course.cut);
    toy_trainer trainer;
    toy_run run;
    TOY_TRY(open_rank(&f->course, at, &run, &trainer));
    TOY_TRY(run_step(&trainer));
    for (bool over = false; !over;) {
        (void)pthread_barrier_wait(&f->all);
        if (first) {
            atomic_store(&f->good, 0);
            zi_fault_arm(f->kind, ++f->nth);
        }
        (void)pthread_barrier_wait(&f->all);
        const zero_status status = zero_save(trainer.engine, &options);
        const zero_error error = *zero_last_error();
        atomic_fetch_add(&f->good, status == ZERO_OK);
        (void)pthread_barrier_wait(&f->all);
        over = zi_fault_count(f->kind) < f->nth;
        const uint32_t good = atomic_load(&f->good);
        (void)pthread_barrier_wait(&f->all);
        if (first) {
            zi_fault_arm(f->kind, 0);
            f->failed += status != ZERO_OK;
        }
        CHECK(good == 0 || good == ranks);
        CHECK(!over || status == ZERO_OK);
        CHECK(status == ZERO_OK || error.message[0] != '\0');
        (void)pthread_barrier_wait(&f->all);
        TOY_TRY(toy_step(&trainer)); /* the engine goes on */
    }
    toy_close(&trainer);
    return ZERO_OK;
}

static void fail_each(zi_fault_kind kind, uint32_t at_least)
{
    run_directory_make();
    failing f = {.course = course_of(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT), .kind = kind};
    f.course.cut = (cutting){2, 1, 2, 0};
    CHECK_EQ(pthread_barrier_init(&f.all, NULL, 4), 0);
    CHECK_OK(run_mesh(2, 2, fail_nth, &f));
    CHECK_EQ(pthread_barrier_destroy(&f.all), 0);
    CHECK(f.failed >= at_least);
    end_course(&f.course);
}

TEST_CALL(every_access_may_fail, fail_each(ZI_FAULT_IO, 12));
TEST_CALL(every_allocation_may_fail, fail_each(ZI_FAULT_ALLOC, 30));
TEST_CALL(every_thread_may_fail, fail_each(ZI_FAULT_THREAD, 4));

/* One rank wants to save elsewhere, or has nowhere to save to. */
static zero_status disagree(const mesh_rank *at, void *user)
{
    const course *c = user;
    zero_save_options options = run_save_options("disagreed");
    zero_load_options load = run_load_options("single");
    toy_trainer trainer;
    toy_run run;
    const bool odd = at->part == 1 && at->data == 1;
    TOY_TRY(open_rank(c, at, &run, &trainer));
    options.name = odd ? "elsewhere" : options.name;
    CHECK_FAILS(zero_save(trainer.engine, &options), ZERO_ERR_INVALID_ARGUMENT,
                "options of a save");
    options = run_save_options("disagreed");
    options.directory = odd ? NULL : options.directory;
    CHECK_FAILS(zero_save(trainer.engine, &options), ZERO_ERR_INVALID_ARGUMENT,
                "directory is NULL");
    load.path = odd ? "/nowhere" : load.path;
    CHECK_FAILS(zero_load(trainer.engine, &load, NULL), ZERO_ERR_INVALID_ARGUMENT, "/nowhere");
    load = run_load_options("single");
    TOY_TRY(zero_load(trainer.engine, &load, NULL));
    TOY_TRY(run_step(&trainer));
    toy_close(&trainer);
    return ZERO_OK;
}

/* One rank leaves in the middle; the others learn of it. */
static zero_status leave_early(const mesh_rank *at, void *user)
{
    const course *c = user;
    const zero_save_options options = run_save_options("left");
    toy_trainer trainer;
    toy_run run;
    TOY_TRY(open_rank(c, at, &run, &trainer));
    TOY_TRY(zero_save_begin(trainer.engine, &options));
    if (at->part != 1 || at->data != 1) {
        CHECK_FAILS(zero_save_end(trainer.engine), ZERO_ERR_COMM, "");
    }
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(ranks_that_disagree_or_leave)
{
    run_directory_make();
    course c = course_of(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT);
    c.cut = (cutting){2, 1, 2, 0};
    CHECK_OK(run_mesh(2, 2, disagree, &c));
    CHECK_EQ(rig_entries(run_directory), 2); /* the one, and `latest` */
    CHECK_OK(run_mesh(2, 2, leave_early, &c));
    CHECK_EQ(rig_entries(run_directory), 2);
    end_course(&c);
}

/* ---- one part of a model, by an engine that knows no others ---- */

static zero_status save_and_load(toy_trainer *trainer)
{
    const zero_save_options save = run_save_options("own");
    const zero_load_options load = run_load_options("own");
    toy_state state;
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_collect(trainer, &state));
    TOY_TRY(zero_save(trainer->engine, &save));
    TOY_TRY(toy_step(trainer));
    TOY_TRY(zero_load(trainer->engine, &load, NULL));
    TOY_TRY(toy_collect_same(trainer, &state, "a box that was saved by itself"));
    toy_state_free(&state);
    return ZERO_OK;
}

/* It reads its boxes of others' checkpoint: pieces are not read by all who share them. */
static zero_status load_box(toy_trainer *trainer)
{
    const course *c = trainer->user;
    zero_load_options load = run_load_options("single");
    TOY_TRY(zero_load(trainer->engine, &load, NULL));
    check_state(c, trainer, &c->half, "a box by itself");
    return ZERO_OK;
}

#define DAMAGED_AT 4500

static said_tensor damaged_tensor; /* has that byte of the first moments, which are of f32 */

static zero_status load_damaged(toy_trainer *trainer)
{
    zero_load_options load = run_load_options("single");
    CHECK_FAILS(zero_load(trainer->engine, &load, NULL), ZERO_ERR_CORRUPT, "differ from their sum");
    said_check(zero_last_error()->message, "moment1.safetensors", &damaged_tensor, 4, DAMAGED_AT);
    return ZERO_OK;
}

static zero_status load_damaged_part(const mesh_rank *at, void *user)
{
    toy_trainer trainer;
    toy_run run;
    TOY_TRY(open_rank(user, at, &run, &trainer));
    const zero_status status = load_damaged(&trainer);
    toy_close(&trainer);
    return status == ZERO_OK ? ZERO_ERR_CORRUPT : status;
}

TEST(a_box_without_the_other_parts)
{
    static const cutting cut = {1, 1, 2, 0};
    run_directory_make();
    course c = course_of(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT);
    c.name = "single";
    toy_run run = run_for(&c, model_of(ZERO_DTYPE_F32, &cut, 0), NULL);
    CHECK_OK(toy_on_ranks(2, &run, save_and_load, &c));
    CHECK_OK(toy_on_ranks(2, &run, load_box, &c));
    const char *path = test_text("%s/single/moment1.safetensors", run_directory);
    const int file = open(path, O_RDWR);
    unsigned char byte = 0;
    damaged_tensor = said_find(path, DAMAGED_AT);
    CHECK(file >= 0 && pread(file, &byte, 1, DAMAGED_AT) == 1);
    byte ^= 0x10;
    CHECK(pwrite(file, &byte, 1, DAMAGED_AT) == 1 && close(file) == 0);
    CHECK_EQ(toy_on_ranks(2, &run, load_damaged, &c), ZERO_ERR_CORRUPT);
    c.cut = (cutting){2, 1, 2, 0}; /* and so do all parts */
    CHECK_EQ(run_mesh(2, 2, load_damaged_part, &c), ZERO_ERR_CORRUPT);
    end_course(&c);
}
