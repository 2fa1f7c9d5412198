/* Owns the toy's training loop: the same hooks, in the same order, as a trainer would call them.
 * Invariant: within a micro-step every reading of a parameter must give the bits of the first. */
#include "toy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/block_codec.h"
#include "kernels/cpu/cpu_kernels.h"

zero_status toy_open(toy_trainer *trainer, const toy_run *run, zero_world *world)
{
    memset(trainer, 0, sizeof *trainer);
    if (world == NULL) {
        TOY_TRY(zero_world_create_self(&trainer->alone));
        world = trainer->alone;
    }
    trainer->run = run;
    trainer->world = world;
    trainer->rank = zero_world_rank(world);
    trainer->ranks = zero_world_size(world);
    trainer->loss_scale = 1;
    trainer->result = zero_step_result_init();
    void *model = (void *)(uintptr_t)run->model; /* is only read */
    zero_status status =
        zero_engine_create(world, run->plain ? run->model->plain : run->model->model,
                           TOY_OPTIONS(run), &trainer->engine);
    status = status == ZERO_OK ? zero_engine_fill(trainer->engine, toy_fill, model) : status;
    if (status != ZERO_OK) {
        toy_close(trainer);
        return status;
    }
    trainer->seen = calloc(run->model->element_count + 1, sizeof *trainer->seen);
    trainer->seen_set = calloc(TOY_TENSORS_MAX, sizeof *trainer->seen_set);
    TOY_CHECK(trainer->seen != NULL && trainer->seen_set != NULL, "no memory");
    return ZERO_OK;
}

void toy_close(toy_trainer *trainer)
{
    zero_engine_destroy(trainer->engine);
    free(trainer->seen);
    free(trainer->seen_set);
    zero_world_destroy(trainer->alone);
    memset(trainer, 0, sizeof *trainer);
}

bool toy_unit_uses(const toy_model *model, uint32_t unit, uint32_t tensor)
{
    const toy_unit *user = &model->units[unit];
    for (uint32_t i = 0; i < user->tie_count; i++) {
        if (user->ties[i] == tensor) {
            return true;
        }
    }
    return model->tensors[tensor].unit == unit;
}

/* True if acquiring `unit` acquires the unit `other`. */
static bool acquires(const toy_model *model, uint32_t unit, uint32_t other)
{
    bool found = unit == other;
    for (uint32_t i = 0; i < model->units[unit].tie_count; i++) {
        found = found || model->tensors[model->units[unit].ties[i]].unit == other;
    }
    return found;
}

bool toy_unit_trained(const toy_model *model, uint32_t unit)
{
    bool trained = false;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const bool frozen = (model->tensors[t].desc.flags & ZERO_TENSOR_FROZEN) != 0;
        trained = trained || (!frozen && acquires(model, unit, model->tensors[t].unit));
    }
    return trained;
}

UNWATCHED static zero_dtype param_dtype(const toy_tensor *tensor)
{
    return tensor->desc.dtype == ZERO_DTYPE_DEFAULT ? ZERO_DTYPE_F32 : tensor->desc.dtype;
}

/* The bits of a tensor as the rank has fetched them. */
UNWATCHED static void note_seen(toy_trainer *trainer, uint32_t index, const void *data)
{
    const toy_tensor *tensor = &trainer->run->model->tensors[index];
    for (uint64_t e = 0; e < tensor->count; e++) {
        const uint32_t bits = toy_load(data, e, param_dtype(tensor));
        uint32_t *seen = &trainer->seen[tensor->base + e];
        TOY_CHECK(!trainer->seen_set[index] || *seen == bits,
                  "rank %u step %llu micro %u: %s[%llu] was %08x and is %08x", trainer->rank,
                  (unsigned long long)trainer->step, trainer->micro, tensor->name,
                  (unsigned long long)e, *seen, bits);
        *seen = bits;
    }
}

static void read_tensor(toy_trainer *trainer, uint32_t index, const zero_view *view)
{
    const toy_tensor *tensor = &trainer->run->model->tensors[index];
    TOY_CHECK(view->count == tensor->count, "%s: view of %zu elements", tensor->name, view->count);
    TOY_CHECK(view->dtype == param_dtype(tensor), "%s: view of dtype %s", tensor->name,
              zero_dtype_name(view->dtype));
    TOY_CHECK((uintptr_t)view->data % 256 == 0, "%s: view at %p", tensor->name, view->data);
    note_seen(trainer, index, toy_fetch(view->data, view->count * zero_dtype_bytes(view->dtype)));
    trainer->seen_set[index] = true;
}

static void *fetched(const void *data, size_t bytes)
{
    void *copy = calloc(bytes + 1, 1);
    TOY_CHECK(copy != NULL, "no memory");
    memcpy(copy, toy_fetch((void *)(uintptr_t)data, bytes), bytes);
    return copy;
}

/* The values that codes and scales stand for, in the tensor's type. */
static zero_status read_encoded(toy_trainer *trainer, uint32_t index)
{
    const toy_tensor *tensor = &trainer->run->model->tensors[index];
    const zero_dtype dtype = trainer->run->tuning.gather_dtype;
    zero_encoded seen = {0};
    TOY_TRY(zero_tensor_encoded(trainer->engine, index, &seen));
    TOY_CHECK(seen.count == tensor->count && seen.dtype == dtype, "%s: %llu codes of %s",
              tensor->name, (unsigned long long)seen.count, zero_dtype_name(seen.dtype));
    const uint64_t scales_bytes = zi_block_scales_bytes(dtype, seen.count);
    TOY_CHECK(seen.block == zi_block_elements(dtype) && seen.scale_order == 0 &&
                  seen.scale_count * zi_block_scale_bytes(dtype) == scales_bytes,
              "%s: %llu scales", tensor->name, (unsigned long long)seen.scale_count);
    TOY_CHECK((uintptr_t)seen.codes % 256 == 0 && (uintptr_t)seen.scales % 4 == 0,
              "%s: codes at %p, scales at %p", tensor->name, seen.codes, seen.scales);
    void *codes = fetched(seen.codes, seen.count);
    void *scales = fetched(seen.scales, scales_bytes);
    void *values = calloc(tensor->count + 1, sizeof(float));
    TOY_CHECK(values != NULL, "no memory");
    zi_cpu_decode_blocks(values, param_dtype(tensor), codes, scales, dtype, tensor->count);
    note_seen(trainer, index, values);
    trainer->seen_set[index] = true;
    free(codes);
    free(scales);
    free(values);
    return ZERO_OK;
}

zero_status toy_read(toy_trainer *trainer, uint32_t unit)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        if (toy_unit_uses(model, unit, t) && trainer->run->tuning.encoded_views) {
            TOY_TRY(read_encoded(trainer, t));
        } else if (toy_unit_uses(model, unit, t)) {
            zero_view view = {0};
            TOY_TRY(zero_tensor_data(trainer->engine, t, &view));
            read_tensor(trainer, t, &view);
        }
    }
    return ZERO_OK;
}

/* Adds one sample's gradient of a whole tensor, scaled, to what the rank has fetched. */
UNWATCHED static void add_to(const toy_trainer *trainer, uint32_t index, void *data,
                             zero_dtype dtype, uint64_t sample)
{
    const toy_tensor *tensor = &trainer->run->model->tensors[index];
    for (uint64_t e = 0; e < tensor->count; e++) {
        const float param = toy_decode(trainer->seen[tensor->base + e], param_dtype(tensor));
        const float gradient = toy_gradient(trainer->run->flavour, tensor->key,
                                            toy_element(tensor, e), trainer->step, sample, param);
        const float old = toy_decode(toy_load(data, e, dtype), dtype);
        toy_store(data, e, dtype, toy_encode(old + gradient * trainer->loss_scale, dtype));
    }
}

/* As a backward pass would. */
static void add_sample(const toy_trainer *trainer, uint32_t index, const zero_view *grad,
                       uint64_t sample)
{
    const size_t bytes = grad->count * zero_dtype_bytes(grad->dtype);
    void *data = toy_fetch(grad->data, bytes);
    add_to(trainer, index, data, grad->dtype, sample);
    toy_put(grad->data, data, bytes);
}

/* The samples of this rank's micro-step. */
static void samples_of(const toy_trainer *trainer, uint64_t *first, uint64_t *count)
{
    const toy_run *run = trainer->run;
    const uint64_t slot = (uint64_t)trainer->micro * trainer->ranks + trainer->rank;
    *count = run->fold != 0 ? run->fold : 1;
    *first = slot * *count;
    if (run->shares != NULL) {
        *count = run->shares[trainer->rank];
        *first = 0;
        for (uint32_t r = 0; r < trainer->rank; r++) {
            *first += run->shares[r];
        }
    }
}

zero_status toy_add_gradient(toy_trainer *trainer, uint32_t unit)
{
    const toy_model *model = trainer->run->model;
    uint64_t first = 0;
    uint64_t count = 0;
    samples_of(trainer, &first, &count);
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        if (!toy_unit_uses(model, unit, t) || (tensor->desc.flags & ZERO_TENSOR_FROZEN) != 0) {
            continue;
        }
        TOY_CHECK(trainer->seen_set[t], "%s was never read", tensor->name);
        zero_view grad = {0};
        TOY_TRY(zero_tensor_grad(trainer->engine, t, &grad));
        TOY_CHECK(grad.count == tensor->count, "%s: gradient of %zu elements", tensor->name,
                  grad.count);
        for (uint64_t sample = first; sample < first + count; sample++) {
            if (trainer->run->samples == 0 || sample < trainer->run->samples) {
                add_sample(trainer, t, &grad, sample);
            }
        }
    }
    return ZERO_OK;
}

static void check_param(const toy_trainer *trainer, uint32_t tensor, const zero_view *view)
{
    zero_view told = {.dtype = ZERO_DTYPE_NONE};
    const zero_status status = zero_tensor_data(trainer->engine, tensor, &told);
    TOY_CHECK(status == (trainer->run->tuning.encoded_views ? ZERO_ERR_INVALID_ARGUMENT : ZERO_OK),
              "%s", zero_last_error()->message);
    TOY_CHECK(view->data == told.data && view->count == told.count && view->dtype == told.dtype,
              "%s: at %p by its view, at %p by zero_tensor_data",
              trainer->run->model->tensors[tensor].name, view->data, told.data);
}

static void check_grad(const toy_trainer *trainer, uint32_t tensor, const zero_view *view)
{
    const toy_tensor *about = &trainer->run->model->tensors[tensor];
    zero_view told = {.dtype = ZERO_DTYPE_NONE};
    if ((about->desc.flags & ZERO_TENSOR_FROZEN) == 0) {
        TOY_CHECK(zero_tensor_grad(trainer->engine, tensor, &told) == ZERO_OK, "%s",
                  zero_last_error()->message);
    }
    TOY_CHECK(view->data == told.data && view->count == told.count && view->dtype == told.dtype,
              "%s: gradient at %p by its view, at %p by zero_tensor_grad", about->name, view->data,
              told.data);
}

void toy_check_view(const toy_trainer *trainer, uint32_t unit, const zero_unit_view *view,
                    bool grads)
{
    const toy_model *model = trainer->run->model;
    uint32_t count = 0;
    uint32_t tensors[TOY_TENSORS_MAX];
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        if (model->tensors[t].unit == unit) {
            tensors[count++] = t;
        }
    }
    for (uint32_t i = 0; i < model->units[unit].tie_count; i++) {
        tensors[count++] = model->units[unit].ties[i];
    }
    TOY_CHECK(view->tensor_count == count, "unit %u has %u tensors, its view %u", unit, count,
              view->tensor_count);
    TOY_CHECK((view->grads != NULL) == grads, "unit %u: views of gradients at %p", unit,
              (const void *)view->grads);
    for (uint32_t i = 0; i < count; i++) {
        check_param(trainer, tensors[i], &view->params[i]);
        if (grads) {
            check_grad(trainer, tensors[i], &view->grads[i]);
        }
    }
}

zero_status toy_acquire(toy_trainer *trainer, uint32_t unit, zero_pass pass)
{
    const bool backward = pass == ZERO_PASS_BACKWARD;
    if (trainer->run->split) {
        TOY_TRY(zero_unit_params_acquire(trainer->engine, unit, pass, toy_stream()));
        return backward && toy_unit_trained(trainer->run->model, unit)
                   ? zero_unit_grads_acquire(trainer->engine, unit, toy_stream())
                   : ZERO_OK;
    }
    const zero_unit_view *view = NULL;
    TOY_TRY(zero_unit_acquire(trainer->engine, unit, pass, toy_stream(), &view));
    toy_check_view(trainer, unit, view, backward);
    return ZERO_OK;
}

zero_status toy_release(toy_trainer *trainer, uint32_t unit, zero_pass pass)
{
    if (!trainer->run->split) {
        return zero_unit_release(trainer->engine, unit, toy_stream());
    }
    if (pass == ZERO_PASS_BACKWARD && toy_unit_trained(trainer->run->model, unit)) {
        TOY_TRY(zero_unit_grads_ready(trainer->engine, unit, toy_stream()));
    }
    return zero_unit_params_release(trainer->engine, unit, toy_stream());
}

zero_status toy_forward(toy_trainer *trainer, uint32_t unit)
{
    TOY_TRY(toy_acquire(trainer, unit, ZERO_PASS_FORWARD));
    TOY_TRY(toy_read(trainer, unit));
    return toy_release(trainer, unit, ZERO_PASS_FORWARD);
}

static zero_status backward(toy_trainer *trainer, uint32_t unit, bool add)
{
    TOY_TRY(toy_acquire(trainer, unit, ZERO_PASS_BACKWARD));
    TOY_TRY(toy_read(trainer, unit));
    if (add) {
        TOY_TRY(toy_add_gradient(trainer, unit));
    }
    return toy_release(trainer, unit, ZERO_PASS_BACKWARD);
}

zero_status toy_backward(toy_trainer *trainer, uint32_t unit)
{
    return backward(trainer, unit, true);
}

zero_status toy_backward_zero(toy_trainer *trainer, uint32_t unit)
{
    return backward(trainer, unit, false);
}

zero_status toy_micro_begin(toy_trainer *trainer, bool last)
{
    memset(trainer->seen_set, 0, TOY_TENSORS_MAX * sizeof *trainer->seen_set);
    if (last && trainer->run->predicted) {
        TOY_TRY(zero_step_predict(trainer->engine, &trainer->run->params));
    }
    return zero_micro_begin(trainer->engine, last ? ZERO_MICRO_LAST : ZERO_MICRO_EARLIER);
}

zero_status toy_micro_end(toy_trainer *trainer)
{
    TOY_TRY(zero_micro_end(trainer->engine));
    trainer->micro++;
    return ZERO_OK;
}

zero_status toy_update(toy_trainer *trainer)
{
    TOY_TRY(zero_step(trainer->engine, &trainer->run->params, toy_stream()));
    trainer->step++;
    trainer->micro = 0;
    return ZERO_OK;
}

zero_status toy_wait(toy_trainer *trainer)
{
    return zero_step_wait(trainer->engine, &trainer->result);
}

zero_status toy_passes(toy_trainer *trainer)
{
    const uint32_t units = trainer->run->model->unit_count;
    for (uint32_t u = 0; u < units; u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    for (uint32_t u = units; u-- > 0;) {
        TOY_TRY(toy_backward(trainer, u));
    }
    return ZERO_OK;
}

zero_status toy_micro(toy_trainer *trainer, bool last)
{
    TOY_TRY(toy_micro_begin(trainer, last));
    TOY_TRY(toy_passes(trainer));
    return toy_micro_end(trainer);
}

zero_status toy_micros(toy_trainer *trainer)
{
    for (uint32_t m = 0; m < trainer->run->micro_steps; m++) {
        TOY_TRY(toy_micro(trainer, m + 1 == trainer->run->micro_steps));
    }
    return ZERO_OK;
}

zero_status toy_step_with(toy_trainer *trainer, const zero_step_params *params)
{
    const toy_run *given = trainer->run;
    toy_run run = *given;
    run.params = *params;
    trainer->run = &run;
    zero_status status = toy_micros(trainer);
    status = status == ZERO_OK ? toy_update(trainer) : status;
    trainer->run = given;
    return status;
}

zero_status toy_step(toy_trainer *trainer)
{
    TOY_TRY(zero_loss_scale(trainer->engine, &trainer->loss_scale));
    TOY_TRY(toy_micros(trainer));
    return toy_update(trainer);
}

zero_status toy_step_or_skip(toy_trainer *trainer, bool bad)
{
    TOY_TRY(zero_loss_scale(trainer->engine, &trainer->loss_scale));
    trainer->loss_scale = bad ? (float)INFINITY : trainer->loss_scale;
    TOY_TRY(toy_micros(trainer));
    TOY_TRY(toy_update(trainer));
    return toy_wait(trainer);
}

zero_status toy_train(toy_trainer *trainer)
{
    for (uint32_t s = 0; s < trainer->run->steps; s++) {
        TOY_TRY(toy_step(trainer));
    }
    return ZERO_OK;
}

zero_status toy_evaluate(toy_trainer *trainer)
{
    memset(trainer->seen_set, 0, TOY_TENSORS_MAX * sizeof *trainer->seen_set);
    for (uint32_t u = 0; u < trainer->run->model->unit_count; u++) {
        TOY_TRY(toy_acquire(trainer, u, ZERO_PASS_EVAL));
        TOY_TRY(toy_read(trainer, u));
        TOY_TRY(toy_release(trainer, u, ZERO_PASS_EVAL));
    }
    return ZERO_OK;
}

/* The job of a world's ranks. */
typedef struct rank_job {
    const toy_run *run;
    toy_step_fn fn;
    void *user;
} rank_job;

static zero_status on_run(zero_world *world, const toy_run *run, void *user)
{
    const rank_job *job = user;
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, run, world));
    trainer.user = job->user;
    const zero_status status = job->fn(&trainer);
    toy_close(&trainer);
    return status;
}

static zero_status on_rank(zero_world *world, void *user)
{
    const rank_job *job = user;
    return on_run(world, job->run, user);
}

zero_status toy_on_ranks(uint32_t ranks, const toy_run *run, toy_step_fn fn, void *user)
{
    rank_job job = {run, fn, user};
    return zero_world_run(ranks, TOY_DEADLINE_MS, on_rank, &job);
}

zero_status toy_on_ways(uint32_t ranks, const toy_run *run, toy_step_fn fn, void *user)
{
    rank_job job = {run, fn, user};
    return toy_run_ways(ranks, TOY_DEADLINE_MS, run, on_run, &job);
}

zero_status toy_on_stages(uint32_t ranks, const toy_run *run, toy_step_fn fn, void *user)
{
    toy_run split = *run;
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        split.options.stage = (zero_stage)stage;
        TOY_TRY(toy_on_ranks(ranks, &split, fn, user));
    }
    return ZERO_OK;
}
