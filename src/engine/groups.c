/* Owns the groups of ranks: between which degrees each is, what its batches read and write, and
 * that all are connected before they are used. */
#include "engine/groups.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/sharding.h"

_Static_assert(ZI_SCRATCH_PART_COUNT == ZI_SHARE_COUNT && ZI_SCRATCH_ZEROS_MAX == ZI_ZEROS_MAX,
               "the plan counts what groups take");

/* A group: the hop that it is for, or the norm's; and what its batches read and write. */
typedef struct group_plan {
    const char *name;
    uint32_t sharding; /* of units that are split this way */
    zi_hop hop;
    bool copy_engines; /* as zi_group_desc, where that is asked for */
    bool updated;      /* of updated parameters alone */
    zero_role roles[ZI_GROUP_MEMORIES];
    uint32_t role_count;
} group_plan;

/* Two kinds of gathers need no group of their own where a group that reduces has the same members:
 * the messages of a step, and the updated parameters. Both go on the step stream, after the step's
 * last reduction and before the next one's first, which waits for the gradients to be consumed
 * (stage2/grads.h): batches of the group are in one order on all ranks. A speculative step gathers
 * parameters between reductions, so it takes a group for that; so does a gather by copy engines,
 * which are asked for by communicator. */
static bool takes_norm(const zero_engine *engine, const group_plan *plan)
{
    return plan->hop.sums && plan->hop.low == 1 && plan->hop.high == engine->layout->world;
}

static bool takes_params(const zero_engine *engine, const group_plan *plan)
{
    const zi_layout *layout = engine->layout;
    const zi_hop *updated = &layout->routes[plan->sharding][ZI_HOP_UPDATED];
    return !layout->tuning.speculative_step && !layout->can.copy_engines && plan->hop.sums &&
           plan->hop.low == updated->low && plan->hop.high == updated->high;
}

static uint32_t add_memory(const zero_engine *engine, zero_role role, zi_group_memory *memory,
                           uint32_t count)
{
    if (engine->arena_bytes[role] == 0) {
        return count;
    }
    memory[count] =
        (zi_group_memory){.pointer = engine->arena[role],
                          .bytes = engine->arena_bytes[role],
                          .symmetric = role != ZERO_ROLE_GRAD_SLOT && role != ZERO_ROLE_SCRATCH};
    return count + 1;
}

/* The memory that updated parameters cross in. */
static uint32_t add_params(const zero_engine *engine, zi_group_memory *memory, uint32_t count)
{
    count = add_memory(engine, ZERO_ROLE_PARAM, memory, count);
    return engine->layout->updated_wire_bytes != 0
               ? add_memory(engine, ZERO_ROLE_PARAM_SLOT, memory, count)
               : count;
}

/* The roles of a plan that have memory. Symmetric windows require that every collective uses the
 * same offset in a role's arena on all ranks. Gradient slots do not: which one a bucket gets
 * depends on the units that this rank left out, and a rank without a gradient sends zeros from
 * scratch memory. So both are plain windows on all ranks. Parameter slots are then used round-robin
 * (stage3/param_slots.c). */
static uint32_t list_memory(const zero_engine *engine, const group_plan *plan,
                            zi_group_memory *memory)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->role_count; i++) {
        count = add_memory(engine, plan->roles[i], memory, count);
    }
    count = takes_norm(engine, plan) ? add_memory(engine, ZERO_ROLE_STEP, memory, count) : count;
    const bool params = plan->updated || takes_params(engine, plan);
    return params ? add_params(engine, memory, count) : count;
}

/* The list that a group was made of, for zi_engine_group_at; `status` says whether it was made. */
static zero_status keep_members(zero_status status, zi_group *group, uint32_t *members)
{
    if (status == ZERO_OK) {
        group->members = members;
    } else {
        zi_free(members);
    }
    return status;
}

static zero_status groups_make_group(zero_engine *engine, const group_plan *plan, zi_group **group)
{
    const zi_capabilities *can = &engine->layout->can;
    const uint32_t size = zi_hop_size(&plan->hop);
    zi_group_memory memory[ZI_GROUP_MEMORIES];
    uint32_t *members = NULL;
    ZI_TRY(zi_calloc(size, sizeof *members, (void **)&members));
    zi_shard_members(&engine->layout->shardings[plan->sharding], zero_world_rank(engine->world),
                     plan->hop.low, plan->hop.high, members);
    const zi_group_desc desc = {.kernels = &engine->kernels,
                                .members = members,
                                .size = size,
                                .gathers_only = !plan->hop.sums,
                                .reduction = engine->layout->tuning.reduction,
                                .name = plan->name,
                                .registered = can->registered,
                                .copy_engines = plan->copy_engines && can->copy_engines,
                                .hints = can->hints,
                                .memory = memory,
                                .memory_count = list_memory(engine, plan, memory),
                                .scratch = engine->arena[ZERO_ROLE_SCRATCH],
                                .scratch_bytes = engine->arena_bytes[ZERO_ROLE_SCRATCH]};
    const zero_status status = engine->backend.transport->group_create(engine->world, &desc, group);
    for (uint32_t i = 0; i < size && status == ZERO_OK; i++) {
        (*group)->leader = (uint32_t)zi_min_u64(i == 0 ? members[0] : (*group)->leader, members[i]);
    }
    return keep_members(status, *group, members);
}

/* Between the parts of the model. No memory is registered, since the parts' arenas differ in size.
 */
static zero_status make_mesh(zero_engine *engine)
{
    const zi_transport *transport = engine->backend.mesh_transport;
    const uint32_t size = zero_world_size(engine->mesh);
    uint32_t *members = NULL;
    if (engine->mesh == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(zi_calloc(size, sizeof *members, (void **)&members));
    for (uint32_t i = 0; i < size; i++) {
        members[i] = i;
    }
    const zi_group_desc desc = {.kernels = &engine->kernels,
                                .members = members,
                                .size = size,
                                .gathers_only = true,
                                .name = "mesh"};
    const zero_status status = transport->group_create(engine->mesh, &desc, &engine->groups.mesh);
    if (status == ZERO_OK) { /* all its ranks have this one in their own worlds */
        engine->groups.mesh->leader = zero_world_rank(engine->world);
    }
    return keep_members(status, engine->groups.mesh, members);
}

/* Sums share the scratch memory, which nothing else uses: all of them are on the reduce stream. */
#define SUMMED_ROLES \
    .roles = {ZERO_ROLE_GRAD, ZERO_ROLE_GRAD_SLOT, ZERO_ROLE_SCRATCH}, .role_count = 3

/* By hop: the names for each way to split units, and the roles. */
static const struct {
    const char *names[ZI_SHARDINGS_MAX];
    group_plan plan;
} hop_plans[ZI_HOPS] = {
    [ZI_HOP_GATHER] = {{"gather", "gather 2", "gather 3", "gather 4"},
                       {.copy_engines = true,
                        .roles = {ZERO_ROLE_PARAM, ZERO_ROLE_PARAM_SLOT},
                        .role_count = 2}},
    [ZI_HOP_SCATTER] = {{"scatter", "scatter 2", "scatter 3", "scatter 4"}, {SUMMED_ROLES}},
    [ZI_HOP_BOUNDARY] = {{"boundary", "boundary 2", "boundary 3", "boundary 4"}, {SUMMED_ROLES}},
    [ZI_HOP_REPLICA] = {{"replica", "replica 2", "replica 3", "replica 4"}, {SUMMED_ROLES}},
    [ZI_HOP_UPDATED] = {{"param gather", "param gather 2", "param gather 3", "param gather 4"},
                        {.copy_engines = true, .updated = true}},
};

/* The groups of one way to split units. */
static zero_status make_route(zero_engine *engine, uint32_t sharding)
{
    engine_groups *groups = &engine->groups;
    for (int i = 0; i < ZI_HOPS; i++) {
        zi_group **group = &groups->hops[sharding][i];
        group_plan plan = hop_plans[i].plan;
        plan.name = hop_plans[i].names[sharding];
        plan.sharding = sharding;
        plan.hop = engine->layout->routes[sharding][i];
        if (*group == NULL) {
            ZI_TRY(groups_make_group(engine, &plan, group));
        }
        if (takes_norm(engine, &plan) && groups->norm == NULL) {
            groups->norm = *group;
        }
        if (takes_params(engine, &plan) && groups->hops[sharding][ZI_HOP_UPDATED] == NULL) {
            groups->hops[sharding][ZI_HOP_UPDATED] = *group;
        }
    }
    return ZERO_OK;
}

zero_status zi_engine_make_groups(zero_engine *engine)
{
    const group_plan norm = {.name = "norm",
                             .hop = {.low = 1, .high = engine->layout->world},
                             .roles = {ZERO_ROLE_STEP},
                             .role_count = 1};
    for (uint32_t k = 0; k < engine->layout->sharding_count; k++) {
        ZI_TRY(make_route(engine, k));
    }
    if (engine->groups.norm == NULL) {
        ZI_TRY(groups_make_group(engine, &norm, &engine->groups.norm));
    }
    return make_mesh(engine);
}

static zero_status groups_drain(zero_engine *engine, zi_stream *stream)
{
    const zi_device_ops *ops = engine->device->ops;
    zi_event *event = engine->joined[0]; /* nothing is captured yet */
    ZI_TRY(ops->event_record(engine->device->self, event, stream));
    return ops->event_wait(engine->device->self, event, NULL);
}

/* Connect all groups for all their collectives, one after the other and in the same order on all
 * ranks. Later, ranks reach them in different orders, and a rank that waits on the host in one
 * could block others in another. Connecting moves zeros and no event orders it, so each stream is
 * drained before the next group. */
zero_status zi_engine_connect_groups(zero_engine *engine)
{
    ZI_TRY(zi_params_connect(engine->params));
    ZI_TRY(groups_drain(engine, engine->gather_stream));
    ZI_TRY(zi_grads_connect(engine->grads));
    ZI_TRY(groups_drain(engine, engine->reduce_stream));
    ZI_TRY(zi_optim_connect(engine->optim));
    ZI_TRY(zi_group_connect(engine->groups.norm, engine->step_stream, &engine->norm_gather, 1));
    ZI_TRY(groups_drain(engine, engine->step_stream));
    if (engine->groups.mesh != NULL) {
        ZI_TRY(zi_group_connect(engine->groups.mesh, engine->step_stream, &engine->part_gather, 1));
        ZI_TRY(groups_drain(engine, engine->step_stream));
    }
    return zi_engine_check_groups(engine);
}

zi_group *zi_engine_group_at(const zero_engine *engine, uint32_t i)
{
    const engine_groups *groups = &engine->groups;
    zi_group *all[ENGINE_GROUPS] = {0};
    uint32_t count = 0;
    for (; count < ZI_SHARDINGS_MAX * ZI_HOPS; count++) {
        all[count] = groups->hops[count / ZI_HOPS][count % ZI_HOPS];
    }
    all[count++] = groups->norm;
    all[count++] = groups->mesh;
    for (uint32_t k = 0; k < i; k++) {
        if (all[k] == all[i]) { /* one that carries more than its own */
            return NULL;
        }
    }
    return all[i];
}

bool zi_engine_submit_waits(const zero_engine *engine)
{
    bool waits = false;
    for (uint32_t i = 0; i < ENGINE_GROUPS; i++) {
        const zi_group *group = zi_engine_group_at(engine, i);
        waits = waits || (group != NULL && group->submit_waits);
    }
    return waits;
}

zero_status zi_engine_check_groups(const zero_engine *engine)
{
    for (uint32_t i = 0; i < ENGINE_GROUPS; i++) {
        ZI_TRY(zi_group_check(zi_engine_group_at(engine, i)));
    }
    return ZERO_OK;
}

void zi_engine_destroy_groups(zero_engine *engine)
{
    for (uint32_t i = ENGINE_GROUPS; i-- > 0;) {
        zi_group *group = zi_engine_group_at(engine, i);
        if (group != NULL) {
            zi_free(group->members);
        }
        zi_group_destroy(group);
    }
}
