/* Owns the checks that every call begins with and what it ends with: is the engine usable and in a
 * state for the call, are streams and numbers valid, which state follows, what does a failure do.
 * Invariant: a refused call changes nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/failure.h"
#include "core/log.h"
#include "engine/collectives_file.h"
#include "engine/groups.h"
#include "engine/guard.h"
#include "engine/tracing.h"
#include "zero/evict.h"

zero_status zi_engine_check_given(const zero_engine *engine)
{
    if (engine == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "engine is NULL; make one with zero_engine_create");
    }
    return ZERO_OK;
}

/* With the place in the source where the failure was found. A function of its own: every call would
 * pay for a record on the stack. */
static __attribute__((noinline, cold)) zero_status refuse_poisoned(const zero_engine *engine)
{
    zero_error poison = engine->poison;
    poison.status = ZERO_ERR_POISONED;
    return zi_error_adopt(&poison);
}

zero_status zi_engine_check(const zero_engine *engine)
{
    ZI_TRY(zi_engine_check_given(engine));
    if (engine->state == ZI_ENGINE_POISONED) {
        return refuse_poisoned(engine);
    }
    if (engine->filling) {
        ZI_FAIL(ZERO_ERR_STATE,
                "zero_engine_fill has not returned: its fn calls the engine that it "
                "fills, or longjmp or a C++ exception has left fn; let fn return, or "
                "destroy the engine");
    }
    ZI_TRY(zi_world_check_open(engine->world));
    return engine->mesh != NULL ? zi_world_check_open(engine->mesh) : ZERO_OK;
}

void zi_engine_abort(const zero_engine *engine, const zero_error *error)
{
    zero_error of_mesh =
        *error; /* that names a rank of the engine's world names none of the mesh */
    of_mesh.of_other = 0;
    engine->world->comm->ops->abort(engine->world->comm, error);
    if (engine->mesh != NULL) {
        engine->mesh->comm->ops->abort(engine->mesh->comm, &of_mesh);
    }
}

const char *zi_engine_roles_text(uint32_t roles, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const char *name = zero_role_name((zero_role)role);
        if ((roles & ZERO_ROLE_BIT(role)) != 0 && zero_role_exists((zero_role)role) != 0 &&
            used + strlen(name) + 3 <= text_bytes) {
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used != 0 ? ", " : "",
                                     name);
        }
    }
    return text;
}

/* The roles that are evicted, which the table of states does not know. */
static const char *detail(const zero_engine *engine, char *text, size_t text_bytes)
{
    char roles[96];
    text[0] = '\0';
    if (engine->evicted.roles != 0) {
        (void)snprintf(text, text_bytes, " (%s)",
                       zi_engine_roles_text(engine->evicted.roles, roles, sizeof roles));
    }
    return text;
}

/* subject: what the call is on, for the message. */
static zero_status guard_admit(const zero_engine *engine, zi_engine_call call, const char *name,
                               const char *subject)
{
    const zi_engine_cell cell = zi_engine_on(engine->state, call);
    const uint32_t needs = zi_engine_call_needs(call);
    char text[100];
    if (!cell.legal) {
        ZI_FAIL(ZERO_ERR_STATE, "%s%s: %s%s; %s", name, subject,
                zi_engine_state_text(engine->state), detail(engine, text, sizeof text),
                cell.remedy);
    }
    const uint32_t used =
        (needs & ZI_NEEDS_NO_UNIT) != 0 ? zi_params_first_in_use(engine->params) : ZI_NO_INDEX;
    if (used != ZI_NO_INDEX) {
        ZI_FAIL(ZERO_ERR_STATE,
                "%s%s: unit %" PRIu32 " \"%.60s\" is still acquired; release it first", name,
                subject, used, engine->layout->unit_infos[used].name);
    }
    if ((needs & ZI_NEEDS_GRAPH) != 0 && !engine->has_graph) {
        ZI_FAIL(ZERO_ERR_STATE, "%s: no step was captured; see zero_capture_prepare", name);
    }
    return ZERO_OK;
}

zero_status zi_engine_admit(const zero_engine *engine, zi_engine_call call, const char *name)
{
    return guard_admit(engine, call, name, "");
}

zero_status zi_engine_admit_unit(const zero_engine *engine, zi_engine_call call, const char *name,
                                 uint32_t unit)
{
    char subject[96];
    if (zi_engine_on(engine->state, call).legal) {
        return ZERO_OK; /* the unit's own state decides the rest */
    }
    (void)snprintf(subject, sizeof subject, " of unit %" PRIu32 " \"%.60s\"", unit,
                   engine->layout->unit_infos[unit].name);
    return guard_admit(engine, call, name, subject);
}

zero_status zi_engine_admit_role(const zero_engine *engine, zi_engine_call call, const char *name,
                                 zero_role role)
{
    const uint32_t evicted = engine->evicted.roles;
    const bool on_disk = zi_role_tier(engine->layout, role) == ZERO_TIER_DISK;
    char subject[32];
    char text[96];
    (void)snprintf(subject, sizeof subject, " of %s", zero_role_name(role));
    ZI_TRY(guard_admit(engine, call, name, subject));
    if ((evicted & ZERO_ROLE_BIT(role)) != 0 ||
        (on_disk && (evicted & ZERO_ROLE_BIT(ZERO_ROLE_IO_WINDOW)) != 0)) {
        ZI_FAIL(ZERO_ERR_STATE, "%s%s: %s are evicted; call zero_engine_restore first", name,
                subject, zi_engine_roles_text(evicted, text, sizeof text));
    }
    if (role == ZERO_ROLE_GRAD && engine->evicted.grads_lost) {
        ZI_FAIL(ZERO_ERR_STATE,
                "%s%s: gradients were freed by zero_engine_evict; there are new ones "
                "after the next zero_step",
                name, subject);
    }
    if (role == ZERO_ROLE_GRAD && engine->micro_index != 0) {
        ZI_FAIL(ZERO_ERR_STATE,
                "%s%s: gradients are being added up, micro-step %" PRIu64
                " of a step is over; call zero_step first",
                name, subject, engine->micro_index);
    }
    return ZERO_OK;
}

zero_status zi_engine_leave(zero_engine *engine, zi_engine_call call, zero_status status)
{
    ZI_TRY(zi_engine_finish(engine, status));
    engine->state = zi_engine_on(engine->state, call).next;
    return ZERO_OK;
}

zero_status zi_engine_finish(zero_engine *engine, zero_status status)
{
    switch (status) {
    case ZERO_OK:
    case ZERO_ERR_INVALID_ARGUMENT:
    case ZERO_ERR_STATE:
    case ZERO_ERR_UNSUPPORTED:
    case ZERO_ERR_POISONED:
        return status;
    case ZERO_ERR_OUT_OF_MEMORY:
    case ZERO_ERR_DEVICE:
    case ZERO_ERR_COMM:
    case ZERO_ERR_IO:
    case ZERO_ERR_CORRUPT:
    case ZERO_ERR_MISMATCH:
    case ZERO_ERR_TIMEOUT:
        break;
    }
    return zi_engine_poison(engine, status);
}

/* A failure that a thread of this rank has found reaches the host by a collective that it aborted,
 * too, and there as another rank's would. */
static zero_status as_found(const zero_engine *engine, zero_status status)
{
    zi_failure found;
    if (status != ZERO_ERR_COMM || !zi_failure_get(&engine->found, &found)) {
        return status;
    }
    const zero_error error = zi_failure_error(&found, ZI_FAILURE_NO_RANK);
    return zi_error_adopt(&error);
}

zero_status zi_engine_poison(zero_engine *engine, zero_status status)
{
    if (engine->state == ZI_ENGINE_POISONED) {
        return status; /* the first failure stays */
    }
    status = as_found(engine, status);
    engine->state = ZI_ENGINE_POISONED;
    engine->poison = *zero_last_error();
    zi_engine_abort(engine, &engine->poison); /* the others do not wait for the file */
    zi_engine_report_hang(engine, &engine->poison);
    zi_log(ZERO_LOG_ERROR, "rank %" PRIu32 ": %s", zero_world_rank(engine->world),
           engine->poison.message);
    (void)zi_error_adopt(&engine->poison);
    return status;
}

zero_status zi_engine_await(zero_engine *engine, zi_event *event)
{
    ZI_TRY(
        engine->device->ops->event_wait(engine->device->self, event, &engine->stats.step_wait_ns));
    return zi_engine_check_groups(engine);
}

zero_status zi_engine_wrap(zero_engine *engine, zero_stream stream, zi_stream **out)
{
    const zi_device *device = engine->device;
    const zi_engine_streams streams = zi_engine_state_streams(engine->state);
    ZI_TRY(device->ops->stream_wrap(device->self, stream, out));
    if (streams != ZI_STREAMS_ANY && stream.native == NULL) {
        ZI_FAIL(ZERO_ERR_STATE, "the host stream cannot be captured and launches no graph; pass %s",
                device->ops->stream_text);
    }
    bool captured = true;
    if (streams == ZI_STREAMS_CAPTURED) {
        ZI_TRY(device->ops->captured(device->self, *out, &captured));
    }
    if (!captured) {
        ZI_FAIL(ZERO_ERR_STATE, "a hook inside a capture was given a stream outside it; pass the "
                                "captured stream or one that waited for an event of it");
    }
    return zi_engine_enter_stream(engine, stream, *out);
}

zero_status zi_engine_check_unit(const zero_engine *engine, uint32_t unit)
{
    if (unit >= engine->layout->unit_count) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "unit %" PRIu32 " is not one of the engine's %" PRIu32 "; units count from 0", unit,
                engine->layout->unit_count);
    }
    return ZERO_OK;
}

zero_status zi_engine_check_tensor(const zero_engine *engine, uint32_t tensor)
{
    if (tensor >= engine->layout->tensor_count) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor %" PRIu32 " is not one of the engine's %" PRIu32 "; tensors count from 0",
                tensor, engine->layout->tensor_count);
    }
    return ZERO_OK;
}

zero_status zi_engine_check_role(zero_role role)
{
    if ((uint32_t)role >= ZI_SHARD_ROLES) {
        ZI_FAIL(
            ZERO_ERR_INVALID_ARGUMENT,
            "role %d (%s) has no shard of a tensor; use PARAM, GRAD or a state of the optimizer, "
            "ZERO_ROLE_MASTER to %d",
            (int)role, zero_role_name(role), ZI_SHARD_ROLES - 1);
    }
    return ZERO_OK;
}
