/* A model that is trained whole by data ranks alone, and in parts by the ranks of a mesh, data x
 * model, which come to the same norms, clipping, skipped steps, loss scales and parameters. The
 * includer says how the mesh runs. */
#ifndef TESTS_ENGINE_MESH_COURSE_H
#define TESTS_ENGINE_MESH_COURSE_H

#include "harness.h"
#include "mesh_rank.h"
#include "toy.h"

#define STEPS 5
#define BAD_STEP 2

/* ---- a model in parts ---- */

#define UNITS 4
#define WIDE 768 /* a quarter of it is whole chunks */
#define NARROW 70

/* The whole model: in each unit a tensor that can be cut, and one that cannot. */
static const toy_model *whole_model(zero_dtype dtype)
{
    toy_model *model = toy_model_new();
    for (uint32_t u = 0; u < UNITS; u++) {
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_tensor(model, WIDE, 0, dtype, ZERO_TENSOR_PLAIN);
        (void)toy_model_tensor(model, NARROW, 0, dtype, ZERO_TENSOR_NO_DECAY);
    }
    return model;
}

/* Part `part` of it: units are striped to `stages` pipeline stages, and in each of these wide
 * tensors are cut into `cuts`, of which every one has a copy of the narrow tensors. */
static const toy_model *part_model(zero_dtype dtype, uint32_t stages, uint32_t cuts, uint32_t part)
{
    toy_model *model = toy_model_new();
    const uint32_t stage = part / cuts;
    const uint32_t cut = part % cuts;
    for (uint32_t u = stage; u < UNITS; u += stages) {
        (void)toy_model_layer(model, "layer", u);
        const zero_tensor_desc wide = {.shape = {WIDE / cuts}, .dims = 1, .dtype = dtype};
        const zero_tensor_desc narrow = {.shape = {NARROW},
                                         .dims = 1,
                                         .dtype = dtype,
                                         .flags = ZERO_TENSOR_NO_DECAY,
                                         .replica = cut};
        (void)toy_model_part(model, &wide, 2 * u, (uint64_t)cut * (WIDE / cuts));
        (void)toy_model_part(model, &narrow, 2 * u + 1, 0);
    }
    return model;
}

/* ---- the same run, whole and in parts ---- */

typedef struct course {
    toy_run run; /* of the whole model */
    zero_dtype dtype;
    uint32_t stages;
    uint32_t cuts;
    uint32_t spoilt; /* tensor key whose gradient is not finite in a bad step, of the last part that
                        has it; NONE: there is no bad step */
    zero_step_result results[STEPS]; /* of the whole model */
    toy_state state;
} course;

#define NONE UINT32_MAX

/* Backward of a unit, with something that is not finite in one tensor's gradient. */
static zero_status spoil(toy_trainer *trainer, uint32_t unit, uint32_t tensor)
{
    const float bad[2] = {INFINITY, INFINITY};
    zero_view grad;
    TOY_TRY(zero_unit_acquire(trainer->engine, unit, ZERO_PASS_BACKWARD, toy_stream(), NULL));
    TOY_TRY(zero_tensor_grad(trainer->engine, tensor, &grad));
    toy_put(grad.data, bad, zero_dtype_bytes(grad.dtype) == 4 ? 4 : 2);
    return zero_unit_release(trainer->engine, unit, toy_stream());
}

static zero_status take_micro(toy_trainer *trainer, bool last, uint32_t spoilt)
{
    const toy_model *model = trainer->run->model;
    TOY_TRY(toy_micro_begin(trainer, last));
    for (uint32_t u = 0; u < model->unit_count; u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    for (uint32_t u = model->unit_count; u-- > 0;) {
        const bool here = spoilt != NONE && model->tensors[spoilt].unit == u;
        TOY_TRY(here ? spoil(trainer, u, spoilt) : toy_backward(trainer, u));
    }
    return toy_micro_end(trainer);
}

static zero_status take_step(toy_trainer *trainer, uint32_t spoilt)
{
    const uint32_t micro_steps = trainer->run->micro_steps;
    double norm = 0;
    TOY_TRY(zero_loss_scale(trainer->engine, &trainer->loss_scale));
    for (uint32_t m = 0; m < micro_steps; m++) {
        const bool last = m + 1 == micro_steps;
        TOY_TRY(take_micro(trainer, last, last && trainer->rank == 0 ? spoilt : NONE));
    }
    if (trainer->step % 2 == 1) {
        TOY_TRY(zero_grad_norm(trainer->engine, &trainer->run->params, toy_stream(), &norm));
    }
    TOY_TRY(toy_update(trainer));
    TOY_TRY(toy_wait(trainer));
    if (trainer->step % 2 == 0) { /* it counts the one that was taken */
        CHECK(isnan(norm) ? isnan(trainer->result.norm) : norm == trainer->result.norm);
    }
    return ZERO_OK;
}

/* The tensor of this model that holds key's element `first`, or NONE. */
static uint32_t find_key(const toy_model *model, uint32_t key)
{
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        if (model->tensors[t].key == key) {
            return t;
        }
    }
    return NONE;
}

static zero_status take_whole(toy_trainer *trainer)
{
    course *c = trainer->user;
    for (uint32_t s = 0; s < STEPS; s++) {
        TOY_TRY(take_step(trainer, s == BAD_STEP ? c->spoilt : NONE));
        if (trainer->rank == 0) {
            c->results[s] = trainer->result;
        }
    }
    return toy_collect_first(trainer, &c->state);
}

static void check_result(const zero_step_result *whole, const zero_step_result *part)
{
    CHECK_EQ(part->step, whole->step);
    CHECK_EQ(part->updates, whole->updates);
    CHECK_EQ(part->skipped, whole->skipped);
    CHECK_SAME(part->norm, whole->norm);
    CHECK_SAME(part->clip, whole->clip);
    CHECK_SAME(part->loss_scale, whole->loss_scale);
}

/* Every state of the part's elements has the bits that it has in the whole model. */
static void check_state(const course *c, const toy_model *model, const toy_state *state)
{
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        const uint64_t at = c->run.model->tensors[tensor->key].base + tensor->key_first;
        for (int role = 0; role < TOY_ROLES; role++) {
            if (role != ZERO_ROLE_GRAD) {
                CHECK_BYTES(state->bits[role] + tensor->base, c->state.bits[role] + at,
                            tensor->count * sizeof *state->bits[role]);
            }
        }
    }
}

static zero_status take_part(const mesh_rank *at, void *user)
{
    const course *c = user;
    toy_trainer trainer;
    toy_state state;
    toy_run run = c->run;
    run.model = part_model(c->dtype, c->stages, c->cuts, at->part);
    run.options.model_parallel = at->parts;
    TOY_TRY(toy_open(&trainer, &run, at->world));
    /* The last part that has the tensor: of a narrow one that is a copy which does not count. */
    const uint32_t own = find_key(run.model, c->spoilt);
    const bool spoils = own != NONE && at->part % c->cuts == c->cuts - 1;
    for (uint32_t s = 0; s < STEPS; s++) {
        TOY_TRY(take_step(&trainer, s == BAD_STEP && spoils ? own : NONE));
        check_result(&c->results[s], &trainer.result);
    }
    TOY_TRY(toy_collect(&trainer, &state));
    if (c->spoilt == NONE) {
        check_state(c, run.model, &state);
    }
    toy_state_free(&state);
    toy_close(&trainer);
    return ZERO_OK;
}

typedef struct split {
    uint32_t data;
    uint32_t stages;
    uint32_t cuts;
} split;

static const split splits[] = {{2, 1, 2}, {2, 2, 1}, {1, 2, 2}, {3, 1, 2}, {1, 1, 4}};

/* ranks: of the meshes that can be run here; 0: any. */
static void compare_splits(zero_dtype dtype, uint32_t spoilt, uint32_t ranks)
{
    const toy_model *model = whole_model(dtype);
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        if (ranks != 0 && splits[i].data * splits[i].stages * splits[i].cuts != ranks) {
            continue;
        }
        course c = {.run = toy_run_init(model),
                    .dtype = dtype,
                    .stages = splits[i].stages,
                    .cuts = splits[i].cuts,
                    .spoilt = spoilt};
        for (uint32_t w = 0; toy_split(&c.run, splits[i].data, w) != NULL; w++) {
            c.run.micro_steps = 1 + w % 2;
            c.run.params.max_norm = 1.5f;
            c.run.options.loss_scale = 8;
            c.run.tuning.loss_scale_window = 2;
            CHECK_OK(toy_on_ranks(splits[i].data, &c.run, take_whole, &c));
            CHECK_EQ(c.results[BAD_STEP].skipped, spoilt != NONE);
            CHECK(c.results[0].clip < 1.0);
            CHECK_OK(run_mesh(splits[i].data, splits[i].stages * splits[i].cuts, take_part, &c));
            toy_state_free(&c.state);
        }
    }
}

#endif
