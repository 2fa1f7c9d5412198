/* Owns steps that are begun before they are decided: what the caller announced, what is presumed of
 * it, and when a unit can be drafted. */
#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "core/sizes.h"
#include "engine/announce.h"
#include "engine/control.h"
#include "engine/guard.h"
#include "engine/input.h"
#include "engine/outcome.h"

static zero_status announce(zero_engine *engine, const zero_step_params *params)
{
    engine_announced *announced = &engine->announced;
    zi_step_input input;
    const float *weight = NULL;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_ANNOUNCE, "zero_step_announce"));
    if (!engine->layout->tuning.overlap_step) {
        ZI_FAIL(ZERO_STATE, "tuning.overlap_step is 0, so no step can begin before its time; set "
                            "it to 1, or do not announce steps");
    }
    ZI_TRY(zi_engine_take_input(engine, params, &input, &weight));
    if (weight != NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "grad_weight is %p; what gradients are divided by has to be known before backward "
                "ends: give grad_divisor, or do not announce the step",
                (const void *)weight);
    }
    announced->input = input;
    announced->given = true;
    return ZERO_OK;
}

zero_status zero_step_announce(zero_engine *engine, const zero_step_params *params)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_finish(engine, announce(engine, params));
}

/* A drafted step that was clipped was updated twice. */
static void note_redone(zero_engine *engine)
{
    engine_announced *announced = &engine->announced;
    announced->redone++;
    /* What was drafted before the rest began tells nothing new. */
    if (announced->redone < ENGINE_REDONE_MAX || announced->rest != 0) {
        return;
    }
    announced->rest = announced->next_rest;
    announced->next_rest =
        (uint32_t)zi_min_u64(2 * (uint64_t)announced->next_rest, ENGINE_REST_MAX);
    zi_log(ZERO_LOG_INFO,
           "rank %" PRIu32 ": %" PRIu32 " announced steps in a row were clipped, so updated twice; "
           "the next %" PRIu32 " are not updated during backward",
           zero_world_rank(engine->world), announced->redone, announced->rest);
}

static void note_kept(zero_engine *engine)
{
    engine_announced *announced = &engine->announced;
    if (announced->redone >= ENGINE_REDONE_MAX) {
        zi_log(ZERO_LOG_INFO,
               "rank %" PRIu32 ": an announced step was not clipped; steps are updated during "
               "backward again",
               zero_world_rank(engine->world));
    }
    announced->redone = 0;
    announced->rest = 0;
    announced->next_rest = ENGINE_REST_FIRST;
}

void zi_engine_note_drafts(zero_engine *engine, uint32_t turn)
{
    engine_announced *announced = &engine->announced;
    if (!announced->drafted[turn]) {
        return;
    }
    announced->drafted[turn] = false;
    announced->unknown--;
    switch (engine->turns[turn].drafts) {
    case ZI_DRAFTS_KEPT:
        note_kept(engine);
        break;
    case ZI_DRAFTS_REDONE:
        note_redone(engine);
        break;
    case ZI_DRAFTS_SKIPPED: /* says nothing about clipping */
        break;
    }
}

/* Whether the announced step is drafted: not where those before it were updated twice all the time.
 * Then steps rest, one is drafted to see whether it still is so, and they rest twice as long. Only
 * outcomes count that the turns wait for anyway, ENGINE_TURNS steps back, so the answer follows
 * from the steps and not from how fast anything ran. */
static bool may_draft(zero_engine *engine)
{
    engine_announced *announced = &engine->announced;
    if (announced->redone < ENGINE_REDONE_MAX) {
        return true;
    }
    if (announced->rest == 0 && announced->unknown == 0) {
        return true;
    }
    announced->rest -= announced->rest != 0;
    engine->stats.steps_held_back++;
    return false;
}

zero_status zi_engine_begin_announced(zero_engine *engine)
{
    engine_announced *announced = &engine->announced;
    engine_turn *turn = &engine->turns[engine->turn];
    if (!announced->given || engine->layout->draft_at == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_engine_await_turn(engine, engine->turn));
    zi_engine_note_drafts(engine, engine->turn);
    if (!may_draft(engine)) {
        return ZERO_OK;
    }
    turn->input = announced->input;
    zi_engine_settle_divisor(engine, &turn->input, NULL, engine->micro_index + 1);
    announced->begun = true;
    announced->next = 0;
    announced->drafted[engine->turn] = true;
    announced->unknown++;
    /* Unless it is clipped or skipped, the step is what it is for gradients of zeros. */
    ZI_TRY(zi_engine_presume(engine, &turn->input, &engine->host->presumed));
    return zi_optim_begin_drafts(engine->optim);
}

/* All units of a bucket, whose flats lie together. */
static zero_status draft_bucket(zero_engine *engine, uint32_t index)
{
    const zi_layout *layout = engine->layout;
    const zi_bucket *bucket = &layout->buckets[index];
    uint32_t unit = ZI_NO_INDEX;
    ZI_TRY(zi_grads_wait_bucket(engine->grads, index, engine->step_stream));
    for (uint32_t i = 0; i < bucket->flat_count; i++) {
        const uint32_t next = layout->flats[layout->bucket_flats[bucket->flat_first + i]].unit;
        if (next != unit) {
            unit = next;
            ZI_TRY(zi_optim_draft_unit(engine->optim, unit));
        }
    }
    return ZERO_OK;
}

zero_status zi_engine_draft(zero_engine *engine)
{
    engine_announced *announced = &engine->announced;
    while (announced->begun && announced->next < zi_grads_reduced_count(engine->grads)) {
        ZI_TRY(draft_bucket(engine, announced->next++));
    }
    return ZERO_OK;
}

zero_status zi_engine_check_announced(const zero_engine *engine, const zi_step_input *input,
                                      const float *weight)
{
    const zi_step_input *announced = &engine->announced.input;
    if (!engine->announced.given) {
        return ZERO_OK;
    }
    if (memcmp(&input->max_norm, &announced->max_norm, sizeof input->max_norm) != 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "max_norm %g was announced as %g; give zero_step what zero_step_announce was given",
                input->max_norm, announced->max_norm);
    }
    if (weight != NULL ||
        memcmp(&input->divisor, &announced->divisor, sizeof input->divisor) != 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "grad_divisor %g and grad_weight %p were announced as %g and NULL; give zero_step "
                "what zero_step_announce was given",
                input->divisor, (const void *)weight, announced->divisor);
    }
    for (uint32_t g = 0; g < ZI_GROUPS_MAX; g++) {
        const zero_adamw *own = &input->groups[g];
        const zero_adamw *said = &announced->groups[g];
        if (memcmp(own, said, sizeof *own) != 0) {
            ZI_FAIL(ZERO_INVALID_ARGUMENT,
                    "group %" PRIu32 ": lr %g, betas %g %g, eps %g, weight_decay %g were announced "
                    "as %g, %g %g, %g, %g; give zero_step what zero_step_announce was given",
                    g, (double)own->lr, (double)own->beta1, (double)own->beta2, (double)own->eps,
                    (double)own->weight_decay, (double)said->lr, (double)said->beta1,
                    (double)said->beta2, (double)said->eps, (double)said->weight_decay);
        }
    }
    return ZERO_OK;
}
