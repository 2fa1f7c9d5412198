/* Owns the groups of ranks: between which degrees each is, what its batches read and write, and
 * that all are connected before anything else is put on them. */
#include "engine/groups.h"

#include "core/error.h"
#include "core/memory.h"
#include "layout/sharding.h"

/* A group's part in the engine: between which degrees, and what its batches read and write. */
typedef struct group_plan {
    const char *name;
    uint32_t from;
    uint32_t to;
    bool reduces;
    bool folds;        /* as zi_group_desc */
    bool copy_engines; /* as zi_group_desc, where that is asked for */
    zero_role roles[ZI_GROUP_MEMORIES];
    uint32_t role_count;
} group_plan;

/* Whether every collective finds its piece of the role's arena at the same offset on all ranks, as
 * symmetric windows need. Of gradients' slots that cannot be said: which one a bucket gets depends
 * on what this rank has left out, and a rank without a gradient sends zeros from the scratch memory
 * instead; both are plain windows, so that all ranks use windows of one kind. Slots of parameters
 * are taken in turn where this matters (stage3/param_slots.c). */
static bool is_symmetric(zero_role role)
{
    return role != ZERO_ROLE_GRAD_SLOT && role != ZERO_ROLE_SCRATCH;
}

static uint32_t list_memory(const zero_engine *engine, const group_plan *plan,
                            zi_group_memory *memory)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->role_count; i++) {
        const zero_role role = plan->roles[i];
        if (engine->arena_bytes[role] != 0) {
            memory[count++] = (zi_group_memory){.pointer = engine->arena[role],
                                                .bytes = engine->arena_bytes[role],
                                                .symmetric = is_symmetric(role)};
        }
    }
    return count;
}

static zero_status make_group(zero_engine *engine, const group_plan *plan, zi_group **group)
{
    const zi_capabilities *can = &engine->layout->can;
    const uint32_t size = plan->to / plan->from;
    zi_group_memory memory[ZI_GROUP_MEMORIES];
    uint32_t *members = NULL;
    ZI_TRY(zi_calloc(size, sizeof *members, (void **)&members));
    zi_shard_members(&engine->layout->sharding, zero_world_rank(engine->world), plan->from,
                     plan->to, members);
    const zi_group_desc desc = {.kernels = &engine->kernels,
                                .members = members,
                                .size = size,
                                .gathers_only = !plan->reduces,
                                .folds = plan->folds,
                                .name = plan->name,
                                .registration = can->registration,
                                .copy_engines = plan->copy_engines && can->copy_engines,
                                .memory = memory,
                                .memory_count = list_memory(engine, plan, memory),
                                .scratch = engine->arena[ZERO_ROLE_SCRATCH],
                                .scratch_bytes = engine->arena_bytes[ZERO_ROLE_SCRATCH]};
    const zero_status status = engine->backend.transport->group_create(engine->world, &desc, group);
    zi_free(members);
    return status;
}

/* Between the parts of the model. No memory is registered: the parts' arenas have other sizes. */
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
    zi_free(members);
    return status;
}

/* The three that reduce share the scratch memory: their batches are all on the reduce stream. */
#define REDUCED_ROLES                                                                   \
    .reduces = true, .roles = {ZERO_ROLE_GRAD, ZERO_ROLE_GRAD_SLOT, ZERO_ROLE_SCRATCH}, \
    .role_count = 3

/* Whether some sum that this group of those that reduce makes is one that only kernels add up as
 * promised (zi_group_desc.folds). What is sent is of the wire's type in the first that crosses
 * ranks, and has the accumulators' in those after it. */
static bool needs_folds(const zi_layout *layout, bool first)
{
    bool needs = layout->tuning.reduction == ZERO_REDUCTION_EXACT ||
                 (!first && layout->tuning.accum_dtype != ZERO_DTYPE_F32);
    for (uint32_t f = 0; f < layout->flat_count && first; f++) {
        needs = needs || (layout->flats[f].trained &&
                          layout->flats[f].wire[ZERO_ROLE_GRAD].dtype != ZERO_DTYPE_F32);
    }
    return needs;
}

zero_status zi_engine_make_groups(zero_engine *engine)
{
    const zero_sharding *s = &engine->layout->sharding;
    engine_groups *groups = &engine->groups;
    bool first = true; /* no group that reduces crosses ranks so far */
    struct {
        zi_group **group;
        group_plan plan;
    } rows[] = {
        {&groups->gather,
         {"gather", 1, s->param, .copy_engines = true,
          .roles = {ZERO_ROLE_PARAM, ZERO_ROLE_PARAM_SLOT}, .role_count = 2}},
        {&groups->scatter, {"scatter", 1, s->grad, REDUCED_ROLES}},
        {&groups->boundary, {"narrow", s->grad, s->optimizer, REDUCED_ROLES}},
        {&groups->replica, {"replica", s->optimizer, s->world, REDUCED_ROLES}},
        {&groups->param_gather,
         {"publish", s->param, s->optimizer, .copy_engines = true, .roles = {ZERO_ROLE_PARAM},
          .role_count = 1}},
        {&groups->norm, {"norm", 1, s->world, .roles = {ZERO_ROLE_STEP}, .role_count = 1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        group_plan *plan = &rows[i].plan;
        plan->folds = plan->reduces && needs_folds(engine->layout, first);
        ZI_TRY(make_group(engine, plan, rows[i].group));
        first = first && !(plan->reduces && plan->to > plan->from);
    }
    return make_mesh(engine);
}

static zero_status drain(zero_engine *engine, zi_stream *stream)
{
    const zi_device_ops *ops = engine->device->ops;
    zi_event *event = engine->joined[0]; /* nothing is captured yet */
    ZI_TRY(ops->event_record(engine->device->self, event, stream));
    return ops->event_wait(engine->device->self, event, NULL);
}

/* Let all groups connect for all that will be put on them, one after the other and in the same
 * order on all ranks: later, ranks come to them in other orders, and a rank that waits on the host
 * in one could keep others waiting in another. What is put on the streams for that moves zeros,
 * and comes between nothing that orders the streams, so each runs dry before the next begins. */
zero_status zi_engine_connect_groups(zero_engine *engine)
{
    ZI_TRY(zi_params_connect(engine->params));
    ZI_TRY(drain(engine, engine->gather_stream));
    ZI_TRY(zi_grads_connect(engine->grads));
    ZI_TRY(drain(engine, engine->reduce_stream));
    ZI_TRY(zi_optim_connect(engine->optim));
    ZI_TRY(zi_group_connect(engine->groups.norm, engine->step_stream, &engine->norm_gather, 1));
    ZI_TRY(drain(engine, engine->step_stream));
    if (engine->groups.mesh != NULL) {
        ZI_TRY(zi_group_connect(engine->groups.mesh, engine->step_stream, &engine->part_gather, 1));
        ZI_TRY(drain(engine, engine->step_stream));
    }
    return zi_engine_check_groups(engine);
}

zero_status zi_engine_check_groups(const zero_engine *engine)
{
    zi_group *const groups[] = {engine->groups.gather,       engine->groups.scatter,
                                engine->groups.boundary,     engine->groups.replica,
                                engine->groups.param_gather, engine->groups.norm,
                                engine->groups.mesh};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        ZI_TRY(zi_group_check(groups[i]));
    }
    return ZERO_OK;
}

void zi_engine_destroy_groups(zero_engine *engine)
{
    zi_group *const groups[] = {engine->groups.mesh,         engine->groups.norm,
                                engine->groups.param_gather, engine->groups.replica,
                                engine->groups.boundary,     engine->groups.scatter,
                                engine->groups.gather};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        zi_group_destroy(groups[i]);
    }
}
