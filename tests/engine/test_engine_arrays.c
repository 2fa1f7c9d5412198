/* Owns the tests of callers' arrays: strided initial values arrive, any state leaves for arrays of
 * any strides and type and comes back with its bits, however it is sharded and wherever it lives;
 * what is refused is refused on all ranks. */
#include <math.h>
#include <stdatomic.h>

#include "harness.h"

#include "engine/engine_internal.h"
#include "folders.h"
#include "saved_runs.h"
#include "toy.h"

#define DEV ZERO_TIER_DEVICE
#define HOST ZERO_TIER_HOST
#define DISK ZERO_TIER_DISK

/* ---- strides ---- */

/* One tensor in an array: strides of a shape, so that each element has a place of its own. */
typedef struct placing {
    uint64_t shape[4];
    uint32_t dims;
    uint64_t strides[4];
    uint64_t places; /* of the whole array */
} placing;

static const placing placings[] = {
    {{0}, 0, {0}, 1},
    {{37, 19}, 2, {0}, 37 * 19},
    {{37, 19}, 2, {50, 1}, 37 * 50},             /* columns of a wider matrix */
    {{37, 19}, 2, {1, 37}, 37 * 19},             /* transposed */
    {{1, 19, 1}, 3, {7, 3, 9}, 19 * 3},          /* every third */
    {{3, 5, 7, 11}, 4, {385, 1, 55, 5}, 1155},   /* a permuted part */
    {{3, 5, 7, 11}, 4, {800, 160, 11, 1}, 2400}, /* the two inner dimensions are one */
    {{4, 0, 3}, 3, {12, 3, 1}, 1},
    {{300, 1200}, 2, {1, 301}, 301 * 1200}, /* several staging buffers and rounds */
};
#define PLACINGS (sizeof placings / sizeof placings[0])

static uint64_t count_of(const placing *p)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < p->dims; i++) {
        count *= p->shape[i];
    }
    return count;
}

/* The place of an element, worked out dimension by dimension. */
static uint64_t place_of(const placing *p, uint64_t element)
{
    uint64_t at = 0;
    if (p->strides[0] == 0) {
        return element;
    }
    for (uint32_t i = p->dims; i-- > 0;) {
        at += element % p->shape[i] * p->strides[i];
        element /= p->shape[i];
    }
    return at;
}

static float value_at(uint64_t tensor, uint64_t element)
{
    return (float)(int32_t)test_chance(tensor << 32 | element, 2000001) / 1000003.0f;
}

#define UNTOUCHED 77.0f

static float *new_array(const placing *p)
{
    float *array = malloc(p->places * sizeof *array);
    CHECK(array != NULL);
    for (uint64_t i = 0; i < p->places; i++) {
        array[i] = UNTOUCHED;
    }
    return array;
}

static zero_array array_of(const placing *p, float *data)
{
    zero_array array = {.data = data, .dtype = ZERO_DTYPE_F32};
    memcpy(array.strides, p->strides, sizeof p->strides);
    return array;
}

typedef struct strided_case {
    toy_run run;
    zero_dtype dtype;
} strided_case;

/* Every place of the array that the tensor has holds its value as `dtype` gives it; others are as
 * they were. */
static void check_array(const placing *p, uint64_t tensor, const float *array, zero_dtype dtype)
{
    uint64_t touched = 0;
    for (uint64_t e = 0; e < count_of(p); e++) {
        CHECK_SAME(array[place_of(p, e)],
                   toy_decode(toy_encode(value_at(tensor, e), dtype), dtype));
    }
    for (uint64_t i = 0; i < p->places; i++) {
        touched += array[i] != UNTOUCHED;
    }
    CHECK_EQ(touched, count_of(p));
}

static zero_status export_strided(zero_world *world, zero_engine *engine, zero_dtype dtype)
{
    for (uint32_t t = 0; t < PLACINGS; t++) {
        /* Out with another tensor's array of the same shape now and then. */
        const placing *p = &placings[t == 1 ? 2 : t];
        float *array = new_array(p);
        const zero_array out = array_of(p, array);
        TOY_TRY(zero_tensor_export(engine, t, ZERO_ROLE_PARAM, &out));
        check_array(p, t, array, dtype);
        free(array);
        /* The masters are exact; one rank wants them. */
        const bool mine = zero_world_rank(world) == t % zero_world_size(world);
        array = new_array(p);
        const zero_array masters = array_of(p, array);
        TOY_TRY(zero_tensor_export(engine, t, ZERO_ROLE_MASTER, mine ? &masters : NULL));
        if (mine) {
            check_array(p, t, array, ZERO_DTYPE_F32);
        }
        free(array);
    }
    return ZERO_OK;
}

static zero_status take_strided(zero_world *world, void *user)
{
    const strided_case *c = user;
    zero_tensor_desc descs[PLACINGS] = {0};
    char names[PLACINGS][16];
    float *arrays[PLACINGS];
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    for (uint32_t t = 0; t < PLACINGS; t++) {
        arrays[t] = new_array(&placings[t]);
        for (uint64_t e = 0; e < count_of(&placings[t]); e++) {
            arrays[t][place_of(&placings[t], e)] = value_at(t, e);
        }
        (void)snprintf(names[t], sizeof names[t], "tensor%u", t);
        descs[t] = (zero_tensor_desc){.name = names[t],
                                      .dims = placings[t].dims,
                                      .dtype = c->dtype,
                                      .initial = array_of(&placings[t], arrays[t])};
        memcpy(descs[t].shape, placings[t].shape, sizeof placings[t].shape);
    }
    TOY_TRY(zero_model_create(&model));
    TOY_TRY(zero_unit_add(model,
                          &(zero_unit_desc){.name = "first", .tensors = descs, .tensor_count = 5},
                          NULL, NULL));
    TOY_TRY(zero_unit_add(
        model,
        &(zero_unit_desc){.name = "second", .tensors = descs + 5, .tensor_count = PLACINGS - 5},
        NULL, NULL));
    TOY_TRY(zero_engine_create(world, model, TOY_OPTIONS(&c->run), &engine));
    zero_model_destroy(model);
    for (uint32_t t = 0; t < PLACINGS; t++) {
        free(arrays[t]); /* the engine has read them */
    }
    TOY_TRY(export_strided(world, engine, c->dtype));
    zero_engine_destroy(engine);
    return ZERO_OK;
}

TEST(strided_arrays_in_and_out)
{
    static const zero_dtype dtypes[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
    static const zero_tier tiers[] = {DEV, HOST, DISK};
    rig_folders(1, 0);
    uint32_t turn = 0;
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        strided_case c = {.run = toy_run_init(NULL)};
        toy_run_disk(&c.run, rig_paths, 1);
        for (uint32_t w = 0; toy_split(&c.run, ranks, w) != NULL; w++, turn++) {
            c.dtype = dtypes[turn % 3];
            toy_run_tiers(&c.run, ZERO_ROLE_PARAM, tiers[turn / 3 % 3]);
            if (IN_SMALL_SAMPLE(turn)) {
                CHECK_OK(zero_world_run(ranks, TOY_DEADLINE_MS, take_strided, &c));
            }
        }
    }
}

/* ---- what was trained ---- */

static const zero_tier mixes[][ZI_SHARD_ROLES] = {
    {DEV, DEV, DEV, DEV, DEV},
    {HOST, HOST, HOST, HOST, HOST},
    {DISK, DISK, DISK, DISK, DISK},
    {DEV, DEV, DISK, HOST, DISK},
};
#define MIXES (sizeof mixes / sizeof mixes[0])

static void put_on(toy_run *run, const zero_tier *mix)
{
    memcpy(run->options.tier, mix, sizeof mixes[0]);
    toy_run_disk(run, rig_paths, 1);
}

static bool has_role(const toy_tensor *tensor, zero_role role)
{
    return role == ZERO_ROLE_PARAM || role == ZERO_ROLE_MASTER ||
           (tensor->desc.flags & ZERO_TENSOR_FROZEN) == 0;
}

/* The bits of one role of one tensor, as they are in an array of `dtype`. */
static void check_bits(const toy_tensor *tensor, zero_role role, const void *array,
                       zero_dtype dtype, const toy_state *state)
{
    const bool own = role == ZERO_ROLE_MASTER && (tensor->desc.dtype == ZERO_DTYPE_F32 ||
                                                  (tensor->desc.flags & ZERO_TENSOR_FROZEN) != 0);
    const uint32_t *bits = state->bits[own ? ZERO_ROLE_PARAM : role] + tensor->base;
    for (uint64_t e = 0; e < tensor->count; e++) {
        if (toy_load(array, e, dtype) != bits[e]) {
            TEST_FAIL("%s of %s, element %" PRIu64 ": %08x instead of %08x", zero_role_name(role),
                      tensor->name, e, toy_load(array, e, dtype), bits[e]);
        }
    }
}

/* Every role of every tensor, as it is. */
static zero_status export_all(toy_trainer *trainer, const toy_state *state)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        for (int role = 0; role < ZI_TIER_ROLES; role++) {
            zero_shard shard;
            const bool mine = (t + (uint32_t)role) % 3 == trainer->rank % 3;
            TOY_TRY(zero_shard_range(trainer->engine, t, (zero_role)role, &shard));
            void *values = calloc(tensor->count + 1, sizeof(float));
            CHECK(values != NULL);
            /* DEFAULT is the parameter's own type. */
            const bool param = role == ZERO_ROLE_PARAM;
            const bool own = role == ZERO_ROLE_MASTER && (tensor->desc.flags & ZERO_TENSOR_FROZEN);
            const zero_dtype dtype = own ? tensor->desc.dtype : shard.dtype;
            const zero_array array = {.data = values, .dtype = param ? 0 : dtype};
            if (has_role(tensor, (zero_role)role)) {
                TOY_TRY(
                    zero_tensor_export(trainer->engine, t, (zero_role)role, mine ? &array : NULL));
                if (mine) {
                    check_bits(tensor, (zero_role)role, values, dtype, state);
                }
            } else {
                CHECK_FAILS(zero_tensor_export(trainer->engine, t, (zero_role)role, &array),
                            ZERO_ERR_INVALID_ARGUMENT, "has no");
            }
            free(values);
        }
    }
    return ZERO_OK;
}

static zero_status export_trained(zero_world *world, const toy_run *run, void *user)
{
    uint32_t *turn = user;
    toy_run tiered = *run;
    toy_trainer trainer;
    toy_state state;
    put_on(&tiered, mixes[(run->options.stage + *turn) % MIXES]);
    TOY_TRY(toy_open(&trainer, &tiered, world));
    TOY_TRY(toy_train(&trainer));
    TOY_TRY(toy_collect(&trainer, &state));
    TOY_TRY(export_all(&trainer, &state));
    TOY_TRY(toy_train(&trainer)); /* goes on */
    toy_state_free(&state);
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(trained_state_is_exported)
{
    rig_folders(1, 0);
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        for (uint32_t turn = 0; turn < MIXES; turn++) {
            toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
            run.steps = 3;
            CHECK_OK(toy_run_ways(ranks, TOY_DEADLINE_MS, &run, export_trained, &turn));
        }
    }
}

/* ---- and goes on elsewhere ---- */

#define RESUMED_ROLES 4
static const zero_role resumed[RESUMED_ROLES] = {ZERO_ROLE_PARAM, ZERO_ROLE_MASTER,
                                                 ZERO_ROLE_MOMENT1, ZERO_ROLE_MOMENT2};

/* One role of all tensors between an engine and whole arrays of fp32 that every rank has. */
static zero_status move_role(toy_trainer *trainer, zero_role role, float *values, bool out)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        if (!has_role(&model->tensors[t], role)) {
            continue;
        }
        const zero_array array = {.data = values + model->tensors[t].base, .dtype = ZERO_DTYPE_F32};
        TOY_TRY(out ? zero_tensor_export(trainer->engine, t, role, &array)
                    : zero_tensor_import(trainer->engine, t, role, &array));
    }
    return ZERO_OK;
}

/* Train, take all out, put it into an engine that is split in another way and has trained too, so
 * that it has gathered ahead, and train on. */
static zero_status resume(zero_world *world, const toy_run *run, void *user)
{
    const toy_state *whole = user;
    toy_trainer first;
    toy_trainer second;
    toy_state state;
    zero_step_state saved = zero_step_state_init();
    float *values[RESUMED_ROLES];
    toy_run next = *run;
    next.options.stage = run->options.stage != ZERO_STAGE_3 ? ZERO_STAGE_3 : ZERO_STAGE_2;
    next.options.shard_group = 0;
    next.tuning.grad_group = 0;
    next.tuning.optimizer_group = 0;
    put_on(&next, mixes[run->options.stage % 2 == 0 ? 2 : 0]);
    TOY_TRY(toy_open(&first, run, world));
    TOY_TRY(toy_train(&first));
    TOY_TRY(zero_step_state_get(first.engine, &saved));
    for (int i = 0; i < RESUMED_ROLES; i++) {
        values[i] = calloc(run->model->element_count + 1, sizeof(float));
        CHECK(values[i] != NULL);
        TOY_TRY(move_role(&first, resumed[i], values[i], true));
    }
    const uint64_t step = first.step;
    toy_close(&first);
    TOY_TRY(toy_open(&second, &next, world));
    TOY_TRY(toy_step(&second));
    for (int i = 0; i < RESUMED_ROLES; i++) {
        TOY_TRY(move_role(&second, resumed[i], values[i], false));
        free(values[i]);
    }
    TOY_TRY(toy_collect(&second, &state)); /* an acquire shows what was imported */
    toy_state_free(&state);
    TOY_TRY(zero_step_state_set(second.engine, &saved));
    second.step = step;
    TOY_TRY(toy_train(&second));
    TOY_TRY(toy_collect_same(&second, whole, "uninterrupted and imported"));
    toy_close(&second);
    return ZERO_OK;
}

static zero_status train_whole(toy_trainer *trainer)
{
    TOY_TRY(toy_train(trainer));
    TOY_TRY(toy_train(trainer));
    return toy_collect_first(trainer, trainer->user);
}

TEST(imported_state_trains_on_with_its_bits)
{
    rig_folders(1, 0);
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
        toy_state whole;
        run.steps = 4;
        run.flavour = TOY_INTEGER;
        CHECK_OK(toy_on_ranks(ranks, &run, train_whole, &whole));
        CHECK_OK(toy_run_ways(ranks, TOY_DEADLINE_MS, &run, resume, &whole));
        toy_state_free(&whole);
    }
}

/* ---- misuse ---- */

static zero_status misuse(toy_trainer *trainer)
{
    float *values = trainer->user; /* of all ranks: only what is refused names it */
    const uint32_t rank = zero_world_rank(trainer->world);
    const zero_array good = {.data = values};
    const zero_array wide = {.data = values, .strides = {1, 1}};
    const zero_array typed = {.data = values, .dtype = ZERO_DTYPE_NONE};
    const zero_array nowhere = {.data = NULL};
    zero_engine *engine = trainer->engine;
#define REFUSED(tensor, role, array, text)                                                         \
    CHECK_FAILS(zero_tensor_export(engine, tensor, role, array), ZERO_ERR_INVALID_ARGUMENT, text); \
    CHECK_FAILS(zero_tensor_import(engine, tensor, role, array), ZERO_ERR_INVALID_ARGUMENT, text)
    REFUSED(trainer->run->model->tensor_count, ZERO_ROLE_PARAM, &good,
            "is not one of the engine's");
    REFUSED(0, ZERO_ROLE_STEP, &good, "has no shard");
    REFUSED(0, ZERO_ROLE_PARAM, &wide, "strides[");
    REFUSED(0, ZERO_ROLE_PARAM, &typed, "dtype of its array 4");
    REFUSED(0, ZERO_ROLE_PARAM, &nowhere, "array->data is NULL");
    CHECK_FAILS(zero_tensor_import(engine, 0, ZERO_ROLE_PARAM, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "array is NULL");
    /* One rank alone is wrong, or asks for something else. */
    CHECK_FAILS(zero_tensor_export(engine, 0, ZERO_ROLE_PARAM, rank == 1 ? &wide : NULL),
                ZERO_ERR_INVALID_ARGUMENT, rank == 1 ? "strides[" : "rank 1: tensor");
    CHECK_FAILS(zero_tensor_export(engine, rank == 1, ZERO_ROLE_PARAM, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "ranks 0 and 1 were given a different tensor or role");
    CHECK_FAILS(
        zero_tensor_export(engine, 0, rank == 1 ? ZERO_ROLE_MOMENT1 : ZERO_ROLE_PARAM, NULL),
        ZERO_ERR_INVALID_ARGUMENT, "ranks 0 and 1 were given a different tensor or role");
    TOY_TRY(toy_micro_begin(trainer, true));
    CHECK_FAILS(zero_tensor_export(engine, 0, ZERO_ROLE_PARAM, NULL), ZERO_ERR_STATE, "micro-step");
    CHECK_FAILS(zero_tensor_import(engine, 0, ZERO_ROLE_PARAM, &good), ZERO_ERR_STATE,
                "micro-step");
    TOY_TRY(toy_micro_end(trainer));
    TOY_TRY(toy_update(trainer));
    /* Nothing of it has hurt. */
    TOY_TRY(zero_tensor_export(engine, 0, ZERO_ROLE_PARAM, NULL));
    return toy_train(trainer);
}

TEST(what_is_refused_is_refused_everywhere)
{
    toy_model *model = toy_model_new();
    static float values[4096];
    toy_model_unit(model, "unit");
    toy_model_tensor(model, 40, 50, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
    toy_model_tensor(model, 40, 50, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN);
    toy_run run = toy_run_init(model);
    run.steps = 1;
    CHECK_OK(toy_on_ways(2, &run, misuse, values));
    CHECK_OK(toy_on_ways(3, &run, misuse, values));
}

/* ---- boxes ---- */

static zero_status differ_in_box(zero_world *world, void *user)
{
    const bool replica = *(const bool *)user;
    const uint32_t rank = zero_world_rank(world);
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    zero_engine_options options = zero_engine_options_init();
    zero_tensor_desc desc = {.name = "w", .shape = {4}, .dims = 1, .global_shape = {8}};
    if (replica) {
        desc.replica = rank;
    } else {
        desc.box_first[0] = rank * 4;
    }
    options.device = toy_device();
    TOY_TRY(zero_model_create(&model));
    TOY_TRY(zero_unit_add(
        model, &(zero_unit_desc){.name = "u", .tensors = &desc, .tensor_count = 1}, NULL, NULL));
    CHECK_FAILS(zero_engine_create(world, model, &options, &engine), ZERO_ERR_MISMATCH,
                "differ first in tensor 0 \"w\"");
    zero_model_destroy(model);
    return ZERO_OK;
}

TEST(ranks_that_hold_other_boxes_are_told)
{
    for (int i = 0; i < 2; i++) {
        bool replica = i != 0;
        CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, differ_in_box, &replica));
    }
}

/* ---- ranks that begin differently ---- */

typedef enum beginning {
    FILLED,       /* by a function that depends on the rank */
    GIVEN_BY_ONE, /* rank 1 alone imports parameters */
    GIVEN_APART,  /* each rank imports an array of its own */
    WRITTEN,      /* rank 1 alone writes its shard of a moment */
    VIEWED,       /* rank 1 writes through a view */
    ALIKE         /* ranks import, write and view alike */
} beginning;

static void fill_by_rank(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)(first + i) + (float)tensor + 0.5f * (float)*(uint32_t *)user;
    }
}

static zero_status write_own(toy_trainer *trainer, zero_role role, float value)
{
    float values[700];
    zero_shard shard;
    TOY_TRY(zero_shard_range(trainer->engine, 0, role, &shard));
    for (int i = 0; i < 700; i++) {
        values[i] = value;
    }
    return zero_shard_write(trainer->engine, 0, role, shard.first, shard.count, values);
}

static zero_status import_own(toy_trainer *trainer, float value)
{
    float values[700];
    const zero_array array = {.data = values};
    for (int i = 0; i < 700; i++) {
        values[i] = value;
    }
    return zero_tensor_import(trainer->engine, 0, ZERO_ROLE_PARAM, &array);
}

static zero_status view_own(toy_trainer *trainer, float value)
{
    uint64_t first = 0;
    zero_view view;
    if (trainer->run->options.device == ZERO_DEVICE_CUDA) { /* the host writes no GPU's memory */
        return write_own(trainer, ZERO_ROLE_PARAM, value);
    }
    TOY_TRY(zero_shard_view(trainer->engine, 0, ZERO_ROLE_PARAM, &first, &view));
    for (size_t i = 0; i < view.count; i++) {
        ((float *)view.data)[i] = value;
    }
    return ZERO_OK;
}

static zero_status begin_in_a_way(toy_trainer *trainer)
{
    const bool second = trainer->rank == 1;
    const char *text = NULL;
    switch (*(const beginning *)trainer->user) {
    case FILLED:
        CHECK_FAILS(zero_engine_fill(trainer->engine, fill_by_rank, &trainer->rank),
                    ZERO_ERR_INVALID_ARGUMENT,
                    "0 and 1 were given different initial values of tensor 0");
        break; /* nothing has changed */
    case GIVEN_BY_ONE:
        TOY_TRY(second ? import_own(trainer, 9) : ZERO_OK);
        text = "rank 1 was given param of tensor 0";
        break;
    case GIVEN_APART:
        TOY_TRY(import_own(trainer, (float)trainer->rank));
        text = "ranks 0 and 1 imported different values of tensor 0";
        break;
    case WRITTEN:
        TOY_TRY(second ? write_own(trainer, ZERO_ROLE_MOMENT1, 9) : ZERO_OK);
        text = "rank 1 was given moment1 of tensor 0";
        break;
    case VIEWED:
        TOY_TRY(view_own(trainer, second ? 9 : 8));
        text = trainer->run->options.stage == ZERO_STAGE_3
                   ? NULL
                   : "ranks 0 and 1 hold different param of tensor 0";
        break;
    case ALIKE:
        TOY_TRY(import_own(trainer, 3));
        TOY_TRY(write_own(trainer, ZERO_ROLE_MOMENT1, 1));
        TOY_TRY(view_own(trainer, 2));
        break;
    }
    if (text != NULL) {
        CHECK_FAILS(zero_micro_begin(trainer->engine, ZERO_MICRO_LAST), ZERO_ERR_MISMATCH, text);
        return ZERO_OK;
    }
    return toy_step(trainer);
}

TEST(ranks_that_begin_differently_are_told)
{
    toy_run run = toy_run_equal(3, 700, ZERO_DTYPE_F32);
    static const zero_stage stages[] = {ZERO_STAGE_0, ZERO_STAGE_1, ZERO_STAGE_3};
    for (size_t s = 0; s < 3; s++) {
        for (int i = FILLED; i <= ALIKE; i++) {
            beginning way = (beginning)i;
            run.options.stage = stages[s];
            const bool told = (way == VIEWED && stages[s] != ZERO_STAGE_3) ||
                              (way != VIEWED && way != ALIKE && way != FILLED);
            CHECK_EQ(toy_on_ranks(2, &run, begin_in_a_way, &way),
                     told ? ZERO_ERR_MISMATCH : ZERO_OK);
        }
    }
}

/* Initial arrays of each rank's own, or of rank 0 alone. */
static zero_status create_apart(zero_world *world, void *user)
{
    const zero_tuning *tuning = user;
    const uint32_t rank = zero_world_rank(world);
    zero_engine_options options = zero_engine_options_init();
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    uint32_t values[700] = {0x80000000, 1, 0x7fc12345, 0x3f800000}; /* -0, denormal, NaN, 1 */
    uint32_t exported[700];
    values[699] = rank;
    zero_tensor_desc desc = {.name = "w", .dims = 1, .shape = {700}, .initial = {.data = values}};
    const bool alone = tuning->broadcast_initial != 0 && rank != 0;
    desc.initial.data = alone ? NULL : values;
    options.tuning = tuning;
    TOY_TRY(zero_model_create(&model));
    TOY_TRY(zero_unit_add(
        model, &(zero_unit_desc){.name = "u", .tensors = &desc, .tensor_count = 1}, NULL, NULL));
    if (tuning->broadcast_initial == 0) {
        CHECK_FAILS(zero_engine_create(world, model, &options, &engine), ZERO_ERR_MISMATCH,
                    "different initial values of tensor 0 \"w\"; seed every rank alike, or set "
                    "tuning.broadcast_initial");
        values[699] = 0; /* the world is as good as before */
    }
    TOY_TRY(zero_engine_create(world, model, &options, &engine));
    const zero_array array = {.data = exported};
    TOY_TRY(zero_tensor_export(engine, 0, ZERO_ROLE_PARAM, &array));
    values[699] = 0;
    CHECK_BYTES(exported, values, sizeof values);
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    return ZERO_OK;
}

TEST(initial_arrays_are_compared_or_broadcast)
{
    zero_tuning tuning = zero_tuning_init();
    CHECK_OK(zero_world_run(3, TOY_DEADLINE_MS, create_apart, &tuning));
    tuning.broadcast_initial = 1;
    CHECK_OK(zero_world_run(3, TOY_DEADLINE_MS, create_apart, &tuning));
}

/* Only rank 0 is asked. */
static void fill_first(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    CHECK_EQ(*(uint32_t *)user, 0);
    toy_fill(NULL, tensor, first, count, values);
}

static zero_status fill_from_first(toy_trainer *trainer)
{
    const toy_state *expected = trainer->user;
    TOY_TRY(zero_engine_fill(trainer->engine, fill_first, &trainer->rank));
    return toy_collect_same(trainer, expected, "what rank 0 gave");
}

TEST(rank_0_fills_for_all)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    toy_state expected;
    run.steps = 0;
    CHECK_OK(toy_train_collect(&run, NULL, &expected));
    run.tuning.broadcast_initial = 1;
    CHECK_OK(toy_on_ranks(4, &run, fill_from_first, &expected));
    run.options.stage = ZERO_STAGE_1;
    CHECK_OK(toy_on_ranks(3, &run, fill_from_first, &expected));
    toy_state_free(&expected);
}

static void fill_counted(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    *(uint64_t *)user += count;
    toy_fill(NULL, tensor, first, count, values);
}

static zero_status count_asked(toy_trainer *trainer)
{
    uint64_t asked = 0;
    TOY_TRY(zero_engine_fill(trainer->engine, fill_counted, &asked));
    CHECK_EQ(asked, trainer->run->model->element_count);
    return ZERO_OK;
}

/* A rank alone compares no samples. */
TEST(a_rank_is_asked_once_for_a_parameter_and_its_master)
{
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
        run.options.stage = (zero_stage)stage;
        CHECK_OK(toy_on_ranks(1, &run, count_asked, NULL));
    }
}

/* ---- values that are out of range ---- */

static const toy_model *ranged_model(zero_dtype dtype)
{
    toy_model *model = toy_model_new();
    (void)toy_model_layer(model, "unit", 0);
    (void)toy_model_tensor(model, 7, 0, dtype, 0);
    (void)toy_model_tensor(model, 5000, 0, dtype, 0);
    return model;
}

/* 65519 rounds to the largest value of f16, and infinities are no finite values. */
static zero_status save_ranged(toy_trainer *trainer)
{
    const zero_save_options options = run_save_options("one");
    float values[5000] = {[4990] = -1e6f, [40] = 65520.0f, [39] = 65519.0f, [38] = INFINITY};
    const zero_array array = {.data = values};
    TOY_TRY(zero_tensor_import(trainer->engine, 1, ZERO_ROLE_PARAM, &array));
    uint16_t halves[5000];
    const zero_array narrow = {.data = halves, .dtype = ZERO_DTYPE_F16};
    TOY_TRY(zero_tensor_export(trainer->engine, 1, ZERO_ROLE_PARAM, &narrow));
    zero_stats stats = zero_stats_init();
    TOY_TRY(zero_engine_stats(trainer->engine, &stats));
    CHECK_EQ(stats.values_overflowed, 2);
    return zero_save(trainer->engine, &options);
}

static zero_status load_ranged(toy_trainer *trainer)
{
    zero_load_options options = run_load_options("one");
    zero_load_report report = zero_load_report_init();
    options.params_only = 1;
    TOY_TRY(zero_load(trainer->engine, &options, &report));
    CHECK_EQ(report.overflowed, 2);
    CHECK(strstr(report.list, "overflowed 2 values, first element 40 of ") != NULL);
    return ZERO_OK;
}

static zero_status refuse_ranged(toy_trainer *trainer)
{
    zero_load_options options = run_load_options("one");
    options.params_only = 1;
    options.refuse_overflow = 1;
    CHECK_FAILS(zero_load(trainer->engine, &options, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "2 finite values are beyond the range of the engine's type, first element 40 of");
    CHECK_FAILS(zero_micro_begin(trainer->engine, ZERO_MICRO_LAST), ZERO_ERR_POISONED, "");
    return ZERO_OK;
}

static void count_warnings(void *user, zero_log_level level, const char *message)
{
    atomic_int *warnings = user;
    if (level == ZERO_LOG_WARN && strstr(message, "finite values are beyond the range") != NULL) {
        atomic_fetch_add(warnings, 1);
    }
}

TEST(values_that_are_out_of_range_are_counted)
{
    atomic_int warnings = 0;
    const toy_run wide = toy_run_init(ranged_model(ZERO_DTYPE_F32));
    toy_run narrow = toy_run_init(ranged_model(ZERO_DTYPE_F16));
    run_directory_make();
    CHECK_OK(toy_on_ranks(2, &wide, save_ranged, NULL));
    zero_log_set(count_warnings, &warnings);
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage += 3) {
        narrow.options.stage = (zero_stage)stage;
        warnings = 0;
        CHECK_OK(toy_on_ranks(3, &narrow, load_ranged, NULL));
        CHECK_EQ(warnings, 1); /* of all ranks */
        CHECK_EQ(toy_on_ranks(3, &narrow, refuse_ranged, NULL), ZERO_ERR_INVALID_ARGUMENT);
        CHECK_EQ(warnings, 1);
    }
    zero_log_set(NULL, NULL);
}
