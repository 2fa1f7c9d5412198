/* Owns speculative steps: what the caller predicted, the decision that is predicted from it, when a
 * unit is updated speculatively, and when speculation is held back. */
#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "core/sizes.h"
#include "engine/due_step.h"
#include "engine/guard.h"
#include "engine/input.h"
#include "engine/outcome.h"
#include "engine/speculate.h"
#include "optimizer/optimizer_table.h"

static zero_status predict(zero_engine *engine, const zero_step_params *params)
{
    engine_speculation *speculation = &engine->speculation;
    zi_step_input input;
    const float *weight = NULL;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_PREDICT, "zero_step_predict"));
    if (!engine->layout->tuning.speculative_step) {
        ZI_FAIL(ZERO_ERR_STATE,
                "tuning.speculative_step is 0, so no step is computed speculatively; set "
                "it to 1, or do not predict steps");
    }
    ZI_TRY(zi_engine_take_input(engine, params, &input, &weight));
    if (weight != NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "grad_weight is %p; what gradients are divided by has to be known before backward "
                "ends: give grad_divisor, or do not predict the step",
                (const void *)weight);
    }
    speculation->input = input;
    speculation->given = true;
    return ZERO_OK;
}

zero_status zero_step_predict(zero_engine *engine, const zero_step_params *params)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_finish(engine, predict(engine, params));
}

/* A speculative step was clipped, so it was updated twice. */
static void note_redone(zero_engine *engine)
{
    engine_speculation *speculation = &engine->speculation;
    speculation->redone++;
    /* Steps that began before others were held back do not count. */
    if (speculation->redone < ENGINE_REDONE_MAX || speculation->held != 0) {
        return;
    }
    speculation->held = speculation->next_held;
    speculation->next_held =
        (uint32_t)zi_min_u64(2 * (uint64_t)speculation->next_held, ENGINE_HELD_MAX);
    zi_log(ZERO_LOG_INFO,
           "rank %" PRIu32 ": %" PRIu32
           " speculative steps in a row were clipped, so updated twice; "
           "the next %" PRIu32 " are not updated during backward",
           zero_world_rank(engine->world), speculation->redone, speculation->held);
}

static void note_committed(zero_engine *engine)
{
    engine_speculation *speculation = &engine->speculation;
    if (speculation->redone >= ENGINE_REDONE_MAX) {
        zi_log(ZERO_LOG_INFO,
               "rank %" PRIu32 ": a speculative step was not clipped; steps are updated during "
               "backward again",
               zero_world_rank(engine->world));
    }
    speculation->redone = 0;
    speculation->held = 0;
    speculation->next_held = ENGINE_HELD_FIRST;
}

void zi_engine_note_speculation(zero_engine *engine, uint32_t step_buffer)
{
    engine_speculation *speculation = &engine->speculation;
    if (!speculation->speculative[step_buffer]) {
        return;
    }
    speculation->speculative[step_buffer] = false;
    speculation->unknown--;
    switch (engine->step_buffers[step_buffer].speculative) {
    case ZI_SPECULATION_COMMITTED:
        note_committed(engine);
        break;
    case ZI_SPECULATION_REDONE:
        note_redone(engine);
        break;
    case ZI_SPECULATION_SKIPPED: /* says nothing about clipping */
        break;
    }
}

/* True if the predicted step is computed speculatively. After ENGINE_REDONE_MAX redone steps in a
 * row steps are held back, then one is tried, and if it is redone too twice as many are held back.
 * Only outcomes count that the step buffers wait for anyway, ENGINE_STEP_BUFFERS steps back, so the
 * answer depends on the steps and not on timing. */
static bool may_speculate(zero_engine *engine)
{
    engine_speculation *speculation = &engine->speculation;
    if (speculation->redone < ENGINE_REDONE_MAX) {
        return true;
    }
    if (speculation->held == 0 && speculation->unknown == 0) {
        return true;
    }
    speculation->held -= speculation->held != 0;
    engine->stats.steps_held_back++;
    return false;
}

zero_status zi_engine_begin_speculation(zero_engine *engine)
{
    engine_speculation *speculation = &engine->speculation;
    engine_step_buffer *step_buffer = &engine->step_buffers[engine->step_buffer];
    if (!speculation->given || engine->layout->speculative_at == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_engine_await_step_buffer(engine, engine->step_buffer));
    zi_engine_note_speculation(engine, engine->step_buffer);
    if (!may_speculate(engine)) {
        return ZERO_OK;
    }
    step_buffer->input = speculation->input;
    zi_engine_resolve_divisor(engine, &step_buffer->input, NULL, engine->micro_index + 1);
    speculation->begun = true;
    speculation->next = 0;
    speculation->speculative[engine->step_buffer] = true;
    speculation->unknown++;
    /* Unless it is clipped or skipped, a step's decision is that of zero gradients. */
    ZI_TRY(zi_engine_predict_decision(engine, &step_buffer->input, &engine->host->predicted));
    return zi_optim_begin_speculation(engine->optim);
}

/* Update all units of a bucket; the flats of a unit are neighbours in it. */
static zero_status speculate_bucket(zero_engine *engine, uint32_t index)
{
    const zi_layout *layout = engine->layout;
    const zi_bucket *bucket = &layout->buckets[index];
    uint32_t unit = ZI_NO_INDEX;
    ZI_TRY(zi_grads_wait_bucket(engine->grads, index, engine->step_stream));
    for (uint32_t i = 0; i < bucket->flat_count; i++) {
        const uint32_t next = layout->flats[layout->bucket_flats[bucket->flat_first + i]].unit;
        if (next != unit) {
            unit = next;
            ZI_TRY(zi_optim_speculate_unit(engine->optim, unit));
        }
    }
    return ZERO_OK;
}

zero_status zi_engine_speculate(zero_engine *engine)
{
    engine_speculation *speculation = &engine->speculation;
    while (speculation->begun && speculation->next < zi_grads_reduced_count(engine->grads)) {
        ZI_TRY(speculate_bucket(engine, speculation->next++));
    }
    return ZERO_OK;
}

static zero_status speculate_check_group(uint32_t group, const zi_hyper *own,
                                         const zi_hyper *predicted)
{
    const zi_optimizer *optimizer = zi_optimizer_of(own->kind);
    for (uint32_t i = 0; i < optimizer->number_count; i++) {
        if (memcmp(&own->number[i], &predicted->number[i], sizeof own->number[i]) != 0) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "group %" PRIu32 ": %s %g was predicted as %g; give zero_step what "
                    "zero_step_predict was given",
                    group, optimizer->numbers[i].name, (double)own->number[i],
                    (double)predicted->number[i]);
        }
    }
    return ZERO_OK;
}

zero_status zi_engine_check_predicted(const zero_engine *engine, const zi_step_input *input,
                                      const float *weight)
{
    const zi_step_input *speculation = &engine->speculation.input;
    if (!engine->speculation.given) {
        return ZERO_OK;
    }
    if (memcmp(&input->max_norm, &speculation->max_norm, sizeof input->max_norm) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "max_norm %g was predicted as %g; give zero_step what zero_step_predict was given",
                input->max_norm, speculation->max_norm);
    }
    if (weight != NULL ||
        memcmp(&input->divisor, &speculation->divisor, sizeof input->divisor) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "grad_divisor %g and grad_weight %p were predicted as %g and NULL; give zero_step "
                "what zero_step_predict was given",
                input->divisor, (const void *)weight, speculation->divisor);
    }
    for (uint32_t g = 0; g < ZI_GROUPS_MAX; g++) {
        ZI_TRY(speculate_check_group(g, &input->groups[g], &speculation->groups[g]));
    }
    return ZERO_OK;
}
