/* Owns access to the step's state between steps: zero_step_state_get and zero_step_state_set. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/sized.h"
#include "engine/agree.h"
#include "engine/guard.h"
#include "engine/outcome.h"
#include "engine/shard.h"

_Static_assert(ZERO_STEP_GROUPS == ZI_GROUPS_MAX, "a state has room for all groups");

/* So that sums of counts fit. */
#define UPDATES_MAX (UINT64_MAX / 4)

static zero_status state_get(zero_engine *engine, zero_step_state *state)
{
    const zi_device *device = engine->device;
    const zi_step_state *own = &engine->host->state;
    zero_step_state found = zero_step_state_init();
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_WAIT, "zero_step_state_get"));
    ZI_TRY(device->ops->copy(device->self, engine->step_stream, &engine->host->state,
                             engine->decide.state, sizeof *own));
    ZI_TRY(zi_engine_await_stream(engine, engine->step_stream));
    found.updates = own->updates;
    found.skipped = own->skipped;
    found.loss_scale = own->scaler.scale;
    found.good_steps = own->scaler.good_steps;
    found.overflows = own->scaler.overflows;
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        memcpy(found.carried[g], own->carried[g], sizeof own->carried[g]);
    }
    return ZI_SIZED_OUT(zero_step_state, state, &found);
}

zero_status zero_step_state_get(zero_engine *engine, zero_step_state *state)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_finish(engine, state_get(engine, state));
}

static zero_status check_carried(uint32_t group, const double *carried)
{
    for (uint32_t i = 0; i < ZERO_STEP_CARRIED; i++) {
        if (!(carried[i] >= 0.0 && carried[i] <= 1.0)) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "group %" PRIu32 ": carried[%" PRIu32 "] %g is not in [0, 1], where products "
                    "of betas are",
                    group, i, carried[i]);
        }
        if (i >= ZI_CARRIED && carried[i] != 1.0) {
            ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                    "group %" PRIu32 ": carried[%" PRIu32 "] is %g; no optimizer of this library "
                    "carries it, so it is 1; link a newer library",
                    group, i, carried[i]);
        }
    }
    return ZERO_OK;
}

static zero_status state_check_numbers(const zero_engine *engine, const zero_step_state *state)
{
    const zero_engine_options *options = &engine->layout->options;
    if (state->updates > UPDATES_MAX || state->skipped > UPDATES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "updates %" PRIu64 " or skipped %" PRIu64 " is more than any run has",
                state->updates, state->skipped);
    }
    if (!isfinite(state->loss_scale) || !(state->loss_scale > 0.0f)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "loss_scale %g is not finite and above 0; it is 1 where losses are not scaled",
                (double)state->loss_scale);
    }
    if (options->tuning->loss_scale_static &&
        memcmp(&state->loss_scale, &options->loss_scale, sizeof state->loss_scale) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "loss_scale %g is not the engine's, %g, which never changes; create the engine "
                "with options.loss_scale %g, or set this to the engine's",
                (double)state->loss_scale, (double)options->loss_scale, (double)state->loss_scale);
    }
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        ZI_TRY(check_carried(g, state->carried[g]));
    }
    return ZERO_OK;
}

/* Copy the caller's state, if it is valid and may be set now. */
static zero_status check_set(const zero_engine *engine, const zero_step_state *given,
                             zero_step_state *state)
{
    ZI_TRY(ZI_SIZED_IN(zero_step_state, given, state));
    if (state->reserved != 0) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "reserved is %" PRIu32 "; this library knows nothing but 0 there", state->reserved);
    }
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_STATE_SET, "zero_step_state_set"));
    return state_check_numbers(engine, state);
}

/* The fields that all parts of the model must have alike; groups are each part's own. Padding is
 * not hashed. */
static uint64_t state_hash_of_part(const zero_step_state *state)
{
    uint64_t hash = zi_hash_u64(ZI_HASH_START, state->updates);
    hash = zi_hash_u64(hash, state->skipped);
    hash = zi_hash_bytes(hash, &state->loss_scale, sizeof state->loss_scale);
    hash = zi_hash_bytes(hash, &state->good_steps, sizeof state->good_steps);
    return zi_hash_bytes(hash, &state->overflows, sizeof state->overflows);
}

static uint64_t state_hash_of(const zero_step_state *state)
{
    return zi_hash_bytes(state_hash_of_part(state), state->carried, sizeof state->carried);
}

/* Drop the outcomes of earlier steps, which do not follow the new state. */
static void forget_outcomes(zero_engine *engine, const zero_step_state *state)
{
    for (uint32_t step_buffer = 0; step_buffer <= ENGINE_GRAPH_BUFFER; step_buffer++) {
        engine->step_buffers[step_buffer].outcome.update = 0;
        engine->step_buffers[step_buffer].outcome.skipped = 0;
    }
    /* Either may be the larger: the differences wrap around, and so do the sums with them. */
    engine->other_steps = state->updates + state->skipped - engine->stats.steps;
    engine->other_skipped = state->skipped - engine->stats.steps_skipped;
    engine->first_scale = state->loss_scale;
}

static zero_status set(zero_engine *engine, const zero_step_state *given)
{
    const zi_device *device = engine->device;
    zi_step_state *own = &engine->host->state;
    zero_step_state taken = zero_step_state_init();
    const zero_step_state *state = &taken;
    const zero_status checked = check_set(engine, given, &taken);
    zero_status agreed =
        zi_engine_agree_given(engine, engine->world, checked,
                              checked == ZERO_OK ? state_hash_of(state) : 0, "step state");
    agreed = zi_engine_agree_given(engine, engine->mesh, agreed,
                                   agreed == ZERO_OK ? state_hash_of_part(state) : 0, "step state");
    ZI_TRY(agreed);
    ZI_TRY(zi_engine_wait_outcomes(engine));
    /* The rules of loss scaling stay this engine's. */
    ZI_TRY(device->ops->copy(device->self, engine->step_stream, own, engine->decide.state,
                             sizeof *own));
    ZI_TRY(zi_engine_await_stream(engine, engine->step_stream));
    own->updates = state->updates;
    own->skipped = state->skipped;
    own->scaler.scale = state->loss_scale;
    own->scaler.good_steps = state->good_steps;
    own->scaler.overflows = state->overflows;
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        memcpy(own->carried[g], state->carried[g], sizeof own->carried[g]);
    }
    ZI_TRY(device->ops->copy(device->self, engine->step_stream, engine->decide.state, own,
                             sizeof *own));
    ZI_TRY(zi_engine_await_stream(engine, engine->step_stream));
    forget_outcomes(engine, state);
    return ZERO_OK;
}

zero_status zero_step_state_set(zero_engine *engine, const zero_step_state *state)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_STATE_SET);
    return zi_engine_finish(engine, set(engine, state));
}
