/* Owns the memory of roles: which allocator each uses, and how it is freed. Invariant: memory that
 * is held is counted, in arena_bytes and in the statistics. */
#include "engine/arenas.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/tiers.h"
#include "engine/unit_views.h"

/* Roles that peers read directly if the device's memory is host memory: shards, gradient slots,
 * norms, and parameter slots where those hold what ranks send: shards that are offloaded,
 * codes, or a wire buffer. */
static bool is_shared(const zero_engine *engine, zero_role role)
{
    return engine->device->ops->host_memory &&
           (role == ZERO_ROLE_PARAM || role == ZERO_ROLE_GRAD || role == ZERO_ROLE_GRAD_SLOT ||
            role == ZERO_ROLE_STEP ||
            (role == ZERO_ROLE_PARAM_SLOT &&
             (zi_role_offloaded(engine->layout, ZERO_ROLE_PARAM) ||
              engine->layout->tuning.encoded_views || engine->layout->param_wire_bytes != 0 ||
              engine->layout->updated_wire_bytes != 0)));
}

/* Roles that collectives read or write and groups register: they come from the transport's
 * allocator. */
static bool is_registered(const zero_engine *engine, zero_role role)
{
    return engine->layout->can.registered &&
           (role == ZERO_ROLE_PARAM || role == ZERO_ROLE_PARAM_SLOT || role == ZERO_ROLE_GRAD ||
            role == ZERO_ROLE_GRAD_SLOT || role == ZERO_ROLE_STEP || role == ZERO_ROLE_SCRATCH);
}

/* The counter of a role's bytes. */
static uint64_t *arenas_held_bytes(zero_engine *engine, zero_role role)
{
    const bool host = zi_role_tier(engine->layout, role) == ZERO_TIER_HOST;
    return host ? &engine->stats.host_bytes : &engine->stats.device_bytes;
}

static zero_status alloc_arena(zero_engine *engine, zero_role role, size_t bytes, void **out)
{
    zi_comm *comm = engine->world->comm;
    const zi_device *device = engine->device;
    if (is_shared(engine, role)) {
        return comm->ops->memory_alloc(comm, bytes, out);
    }
    if (is_registered(engine, role)) {
        return engine->backend.transport->memory_alloc(device, bytes, out);
    }
    return zi_role_tier(engine->layout, role) == ZERO_TIER_HOST
               ? device->ops->host_alloc(device->self, bytes, out)
               : device->ops->memory_alloc(device->self, bytes, out);
}

static void free_arena(zero_engine *engine, zero_role role)
{
    zi_comm *comm = engine->world->comm;
    const zi_device *device = engine->device;
    const size_t bytes = zi_role_arena_bytes(engine->layout, role);
    if (is_shared(engine, role)) {
        comm->ops->memory_free(comm, engine->arena[role], bytes);
    } else if (is_registered(engine, role)) {
        engine->backend.transport->memory_free(engine->arena[role]);
    } else if (zi_role_tier(engine->layout, role) == ZERO_TIER_HOST) {
        device->ops->host_free(device->self, engine->arena[role], bytes);
    } else {
        device->ops->memory_free(device->self, engine->arena[role], bytes);
    }
    engine->arena[role] = NULL;
}

zero_status zi_engine_take_arena(zero_engine *engine, zero_role role)
{
    const size_t bytes = zi_role_arena_bytes(engine->layout, role);
    void *memory = engine->arena[role];
    if (memory != NULL) {
        ZI_TRY(zi_pages_restore(memory,
                                bytes)); /* shared memory whose pages were discarded: see below */
    } else {
        ZI_TRY(alloc_arena(engine, role, bytes, &memory));
    }
    engine->arena[role] = memory;
    engine->arena_bytes[role] = bytes;
    *arenas_held_bytes(engine, role) += bytes;
    engine->stats.device_peak_bytes =
        zi_max_u64(engine->stats.device_peak_bytes, engine->stats.device_bytes);
    return ZERO_OK;
}

zero_status zi_engine_give_arena(zero_engine *engine, zero_role role)
{
    if (is_shared(engine, role)) {
        /* Peers have it mapped, so only its pages are discarded, which is local. */
        ZI_TRY(zi_pages_discard(engine->arena[role], engine->arena_bytes[role]));
    } else {
        free_arena(engine, role);
    }
    *arenas_held_bytes(engine, role) -= engine->arena_bytes[role];
    engine->arena_bytes[role] = 0;
    return ZERO_OK;
}

/* Allocate the roles with memory that peers read, or the others. */
static zero_status take_roles(zero_engine *engine, bool shared)
{
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (zi_role_arena_bytes(engine->layout, (zero_role)role) != 0 &&
            is_shared(engine, (zero_role)role) == shared &&
            zi_role_tier(engine->layout, (zero_role)role) != ZERO_TIER_DISK) {
            ZI_TRY(zi_engine_take_arena(engine, (zero_role)role));
        }
    }
    return ZERO_OK;
}

zero_status zi_engine_take_own_arenas(zero_engine *engine)
{
    const zi_capabilities *can = &engine->layout->can;
    const zi_transport *transport = engine->backend.transport;
    if (transport->check != NULL) {
        ZI_TRY(transport->check(can));
    }
    return take_roles(engine, false);
}

zero_status zi_engine_take_shared_arenas(zero_engine *engine)
{
    return take_roles(engine, true);
}

void zi_engine_free_arenas(zero_engine *engine)
{
    for (int role = ZERO_ROLE_COUNT_MAX; role-- > 0;) {
        if (engine->arena[role] != NULL) {
            free_arena(engine, (zero_role)role);
        }
    }
}

void zi_engine_rebind(zero_engine *engine)
{
    zi_engine_bind_shards(engine);
    zi_grads_rebind(engine->grads, engine->arena[ZERO_ROLE_GRAD_SLOT]);
    zi_engine_forget_grad_views(engine);
    zi_optim_rebind(engine->optim, engine->arena[ZERO_ROLE_IO_WINDOW]);
}
