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

void zi_engine_note_outcome(zero_engine *engine, uint32_t step_buffer)
{
    engine_speculation *speculation = &engine->speculation;
    const zi_step_decision *outcome = &engine->step_buffers[step_buffer].outcome;
    if (!speculation->unknown[step_buffer]) {
        return;
    }
    speculation->unknown[step_buffer] = false;
    if (outcome->skip != 0) {
        return; /* which says nothing about clipping */
    }
    speculation->outcomes = (uint32_t)zi_min_u64(speculation->outcomes + 1, ENGINE_REMEMBERED);
    speculation->clipped = (speculation->clipped << 1 | (outcome->clip < 1.0)) &
                           ((UINT32_C(1) << ENGINE_REMEMBERED) - 1);
}

static void log_change(const zero_engine *engine, uint32_t clipped)
{
    const engine_speculation *speculation = &engine->speculation;
    zi_log(ZERO_LOG_INFO,
           "rank %" PRIu32 ": %" PRIu32 " of the last %" PRIu32
           " steps were clipped; predicted steps are %s during backward",
           zero_world_rank(engine->world), clipped, speculation->outcomes,
           speculation->held_back ? "not updated" : "updated");
}

/* True if the predicted step is computed speculatively: less than half of the last steps whose
 * outcomes count were clipped. Those are outcomes that the step buffers wait for anyway,
 * ENGINE_STEP_BUFFERS steps back, so the answer depends on the steps and not on timing. */
static bool may_speculate(zero_engine *engine)
{
    engine_speculation *speculation = &engine->speculation;
    uint32_t clipped = 0;
    for (uint32_t i = 0; i < ENGINE_REMEMBERED; i++) {
        clipped += speculation->clipped >> i & 1;
    }
    const bool held_back = speculation->held_back;
    speculation->held_back = clipped != 0 && 2 * clipped >= speculation->outcomes;
    if (held_back != speculation->held_back) {
        log_change(engine, clipped);
    }
    engine->stats.steps_held_back += speculation->held_back;
    return !speculation->held_back;
}

zero_status zi_engine_begin_speculation(zero_engine *engine)
{
    engine_speculation *speculation = &engine->speculation;
    engine_step_buffer *step_buffer = &engine->step_buffers[engine->step_buffer];
    if (!speculation->given || engine->layout->speculative_at == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_engine_await_step_buffer(engine, engine->step_buffer));
    zi_engine_note_outcome(engine, engine->step_buffer);
    if (!may_speculate(engine)) {
        return ZERO_OK;
    }
    step_buffer->input = speculation->input;
    zi_engine_resolve_divisor(engine, &step_buffer->input, NULL, engine->micro_index + 1);
    speculation->begun = true;
    speculation->next = 0;
    /* Unless it is clipped or skipped, a step's decision is that of zero gradients. */
    ZI_TRY(zi_engine_predict_decision(engine, &step_buffer->input, &engine->host->predicted));
    return zi_optim_begin_speculation(engine->optim, step_buffer->input.max_norm);
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
            ZI_TRY(zi_optim_speculate_unit(engine->optim, unit, &engine->host->so_far[index]));
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
