/* Owns the making and unmaking of an engine. Invariant: after create returned OK nothing here
 * allocates; destroy undoes whatever create had done when it stopped. */
#include "zero/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_memory.h"
#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/engine_internal.h"
#include "layout/sharding.h"

_Static_assert(sizeof(zi_norm_sum) <= ZI_NORM_BYTES, "layout reserves too little for the norm");
_Static_assert(sizeof(zi_norm_sum) % 4 == 0, "the norm is gathered as 4-byte elements");

/* The state and the decision as they stand in the step arena. */
typedef struct step_block {
    zi_step_state state;
    zi_step_decision decision;
} step_block;

_Static_assert(sizeof(step_block) <= ZI_STEP_BYTES, "layout reserves too little for the step");

zero_status zi_engine_check(const zero_engine *engine)
{
    if (engine == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "engine is NULL; make one with zero_engine_create");
    }
    if (engine->poisoned) {
        ZI_FAIL(ZERO_POISONED, "%.240s", engine->poison.message);
    }
    return ZERO_OK;
}

zero_status zi_engine_finish(zero_engine *engine, zero_status status)
{
    switch (status) {
    case ZERO_OK:
    case ZERO_INVALID_ARGUMENT:
    case ZERO_STATE:
    case ZERO_UNSUPPORTED:
    case ZERO_POISONED:
        return status;
    case ZERO_OUT_OF_MEMORY:
    case ZERO_DEVICE:
    case ZERO_COMM:
    case ZERO_IO:
    case ZERO_CORRUPT:
    case ZERO_MISMATCH:
    case ZERO_TIMEOUT:
        break;
    }
    engine->poisoned = true;
    engine->poison = *zero_last_error();
    zi_log(ZERO_LOG_ERROR, "rank %" PRIu32 ": %s", zero_world_rank(engine->world),
           engine->poison.message);
    engine->world->comm->ops->abort(engine->world->comm, &engine->poison);
    return status;
}

static zero_status check_groups(const zero_engine *engine)
{
    zi_group *const groups[] = {engine->groups.gather,  engine->groups.scatter,
                                engine->groups.narrow,  engine->groups.replica,
                                engine->groups.publish, engine->groups.norm};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        ZI_TRY(zi_group_check(groups[i]));
    }
    return ZERO_OK;
}

zero_status zi_engine_await(zero_engine *engine, zi_event *event)
{
    ZI_TRY(
        engine->device->ops->event_wait(engine->device->self, event, &engine->stats.step_wait_ns));
    return check_groups(engine);
}

zero_status zi_engine_check_mode(const zero_engine *engine)
{
    switch (engine->mode) {
    case ENGINE_PLAIN:
    case ENGINE_CAPTURING:
        return ZERO_OK;
    case ENGINE_PREPARED:
        ZI_FAIL(ZERO_STATE, "a capture is prepared; call zero_capture_begin inside it, or "
                            "zero_capture_end to give it up");
    case ENGINE_CAPTURED:
        ZI_FAIL(ZERO_STATE, "a capture holds one step, which is taken; call zero_capture_end");
    case ENGINE_REPLAYING:
        break;
    }
    ZI_FAIL(ZERO_STATE, "a captured step is being launched; call zero_replay_end first");
}

zero_status zi_engine_check_waits(const zero_engine *engine)
{
    if (engine->mode == ENGINE_CAPTURING) {
        ZI_FAIL(ZERO_STATE, "inside a capture nothing runs, so nothing can be waited for; ask "
                            "before zero_capture_prepare or after the launch");
    }
    return zi_engine_check_mode(engine);
}

zero_status zi_engine_wrap(zero_engine *engine, zero_stream stream, zi_stream **out)
{
    const zi_device *device = engine->device;
    const bool capturing = engine->mode == ENGINE_CAPTURING || engine->mode == ENGINE_CAPTURED;
    ZI_TRY(device->ops->stream_wrap(device->self, stream, out));
    if (engine->mode != ENGINE_PLAIN && stream.native == NULL) {
        ZI_FAIL(ZERO_STATE, "the host stream cannot be captured and launches no graph; pass "
                            "zero_stream_cuda of a CUDA stream");
    }
    bool captured = false;
    if (capturing) {
        ZI_TRY(device->ops->captured(device->self, *out, &captured));
    }
    if (capturing && !captured) {
        ZI_FAIL(ZERO_STATE, "a hook inside a capture was given a stream outside it; pass the "
                            "captured stream or one that waited for an event of it");
    }
    return ZERO_OK;
}

zero_status zi_engine_check_unit(const zero_engine *engine, uint32_t unit)
{
    if (unit >= engine->layout->unit_count) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "unit %" PRIu32 " is not one of the engine's %" PRIu32, unit,
                engine->layout->unit_count);
    }
    return ZERO_OK;
}

zero_status zi_engine_check_tensor(const zero_engine *engine, uint32_t tensor)
{
    if (tensor >= engine->layout->tensor_count) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tensor %" PRIu32 " is not one of the engine's %" PRIu32,
                tensor, engine->layout->tensor_count);
    }
    return ZERO_OK;
}

/* Roles that peers read where memory is the host's: shards, gradient slots, norms. */
static bool is_shared(const zero_engine *engine, zero_role role)
{
    return engine->device->ops->host_memory &&
           (role == ZERO_ROLE_PARAM || role == ZERO_ROLE_GRAD || role == ZERO_ROLE_GRAD_SLOT ||
            role == ZERO_ROLE_STEP);
}

/* Roles that NCCL reads or writes, where it is to know them: from its own allocator. */
static bool is_known(const zero_engine *engine, zero_role role)
{
    return engine->layout->options.nccl_memory != ZERO_NCCL_MEMORY_NONE &&
           (role == ZERO_ROLE_PARAM || role == ZERO_ROLE_PARAM_SLOT || role == ZERO_ROLE_GRAD ||
            role == ZERO_ROLE_GRAD_SLOT || role == ZERO_ROLE_STEP || role == ZERO_ROLE_SCRATCH);
}

/* Where a role's bytes are counted. */
static uint64_t *held_bytes(zero_engine *engine, zero_role role)
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
    if (is_known(engine, role)) {
        return zi_nccl_memory_alloc(device, bytes, out);
    }
    return zi_role_tier(engine->layout, role) == ZERO_TIER_HOST
               ? device->ops->host_alloc(device->self, bytes, out)
               : device->ops->memory_alloc(device->self, bytes, out);
}

static void free_arena(zero_engine *engine, zero_role role)
{
    zi_comm *comm = engine->world->comm;
    const zi_device *device = engine->device;
    const size_t bytes = engine->layout->memory.bytes[role];
    if (is_shared(engine, role)) {
        comm->ops->memory_free(comm, engine->arena[role], bytes);
    } else if (is_known(engine, role)) {
        zi_nccl_memory_free(engine->arena[role]);
    } else if (zi_role_tier(engine->layout, role) == ZERO_TIER_HOST) {
        device->ops->host_free(device->self, engine->arena[role], bytes);
    } else {
        device->ops->memory_free(device->self, engine->arena[role], bytes);
    }
    engine->arena[role] = NULL;
}

zero_status zi_engine_take_arena(zero_engine *engine, zero_role role)
{
    const size_t bytes = engine->layout->memory.bytes[role];
    void *memory = engine->arena[role];
    if (memory != NULL) {
        ZI_TRY(zi_pages_restore(memory, bytes)); /* shared, and given up: see below */
    } else {
        ZI_TRY(alloc_arena(engine, role, bytes, &memory));
    }
    engine->arena[role] = memory;
    engine->arena_bytes[role] = bytes;
    *held_bytes(engine, role) += bytes;
    engine->stats.device_peak_bytes =
        zi_max_u64(engine->stats.device_peak_bytes, engine->stats.device_bytes);
    return ZERO_OK;
}

zero_status zi_engine_give_arena(zero_engine *engine, zero_role role)
{
    if (is_shared(engine, role)) {
        /* Peers have it mapped; only its pages go, which needs no agreement. */
        ZI_TRY(zi_pages_discard(engine->arena[role], engine->arena_bytes[role]));
    } else {
        free_arena(engine, role);
    }
    *held_bytes(engine, role) -= engine->arena_bytes[role];
    engine->arena_bytes[role] = 0;
    return ZERO_OK;
}

static zero_status take_arenas(zero_engine *engine)
{
    const zero_engine_options *options = &engine->layout->options;
    ZI_TRY(zi_nccl_memory_check(options->nccl_memory, options->nccl_zero_cta != 0));
    for (int role = 0; role < ZERO_ROLE_COUNT; role++) {
        if (engine->layout->memory.bytes[role] != 0 &&
            zi_role_tier(engine->layout, (zero_role)role) != ZERO_TIER_DISK) {
            ZI_TRY(zi_engine_take_arena(engine, (zero_role)role));
        }
    }
    return ZERO_OK;
}

/* A group's part in the engine: between which degrees, and what its batches read and write. */
typedef struct group_plan {
    const char *name;
    uint32_t from;
    uint32_t to;
    bool reduces;
    bool folds;    /* as zi_group_desc */
    bool zero_cta; /* where the options ask for it */
    zero_role roles[ZI_NCCL_MEMORIES];
    uint32_t role_count;
} group_plan;

/* Whether every collective finds its piece of the role's arena at the same offset on all ranks, as
 * symmetric windows need. Of gradients' slots that cannot be said: which one a bucket gets depends
 * on what this rank has left out, and a rank without a gradient sends zeros from the scratch memory
 * instead; both are plain windows, so that all ranks use windows of one kind. Slots of parameters
 * are taken in turn where this matters (stage3/params.c). */
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
    const zero_engine_options *options = &engine->layout->options;
    const uint32_t size = plan->to / plan->from;
    zi_group_memory memory[ZI_NCCL_MEMORIES];
    uint32_t *members = NULL;
    ZI_TRY(zi_calloc(size, sizeof *members, (void **)&members));
    zi_shard_members(&engine->layout->sharding, zero_world_rank(engine->world), plan->from,
                     plan->to, members);
    const zi_group_desc desc = {.kernels = &engine->kernels,
                                .members = members,
                                .size = size,
                                .transport = options->transport,
                                .gathers_only = !plan->reduces,
                                .folds = plan->folds,
                                .name = plan->name,
                                .nccl_memory = options->nccl_memory,
                                .nccl_zero_cta = plan->zero_cta && options->nccl_zero_cta != 0,
                                .memory = memory,
                                .memory_count = list_memory(engine, plan, memory),
                                .scratch = engine->arena[ZERO_ROLE_SCRATCH],
                                .scratch_bytes = engine->arena_bytes[ZERO_ROLE_SCRATCH]};
    const zero_status status = zi_world_group_create(engine->world, &desc, group);
    zi_free(members);
    return status;
}

/* The three that reduce share the scratch memory: their batches are all on the reduce stream. */
#define REDUCED_ROLES                                                                   \
    .reduces = true, .roles = {ZERO_ROLE_GRAD, ZERO_ROLE_GRAD_SLOT, ZERO_ROLE_SCRATCH}, \
    .role_count = 3

/* Whether some sum that this group of those that reduce makes is one that NCCL does not: see
 * nccl_group.h. What is sent is of the wire's type in the first that crosses ranks, and has the
 * accumulators' in those after it. */
static bool needs_folds(const zi_layout *layout, bool first)
{
    bool needs = layout->options.reduction == ZERO_REDUCTION_EXACT ||
                 (!first && layout->options.accum_dtype != ZERO_DTYPE_F32);
    for (uint32_t f = 0; f < layout->flat_count && first; f++) {
        needs =
            needs || (layout->flats[f].trained && layout->flats[f].wire_dtype != ZERO_DTYPE_F32);
    }
    return needs;
}

static zero_status make_groups(zero_engine *engine)
{
    const zero_sharding *s = &engine->layout->sharding;
    engine_groups *groups = &engine->groups;
    bool first = true; /* no group that reduces crosses ranks so far */
    struct {
        zi_group **group;
        group_plan plan;
    } rows[] = {
        {&groups->gather,
         {"gather", 1, s->param, .zero_cta = true, .roles = {ZERO_ROLE_PARAM, ZERO_ROLE_PARAM_SLOT},
          .role_count = 2}},
        {&groups->scatter, {"scatter", 1, s->grad, REDUCED_ROLES}},
        {&groups->narrow, {"narrow", s->grad, s->optimizer, REDUCED_ROLES}},
        {&groups->replica, {"replica", s->optimizer, s->world, REDUCED_ROLES}},
        {&groups->publish,
         {"publish", s->param, s->optimizer, .zero_cta = true, .roles = {ZERO_ROLE_PARAM},
          .role_count = 1}},
        {&groups->norm, {"norm", 1, s->optimizer, .roles = {ZERO_ROLE_STEP}, .role_count = 1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        group_plan *plan = &rows[i].plan;
        plan->folds = plan->reduces && needs_folds(engine->layout, first);
        ZI_TRY(make_group(engine, plan, rows[i].group));
        first = first && !(plan->reduces && plan->to > plan->from);
    }
    return ZERO_OK;
}

static zero_status make_streams(zero_engine *engine)
{
    const zi_device *device = engine->device;
    ZI_TRY(device->ops->stream_create(device->self, "zero gather", &engine->gather_stream));
    ZI_TRY(device->ops->stream_create(device->self, "zero reduce", &engine->reduce_stream));
    ZI_TRY(device->ops->stream_create(device->self, "zero step", &engine->step_stream));
    ZI_TRY(device->ops->event_create(device->self, &engine->caller));
    for (uint32_t i = 0; i <= ENGINE_GRAPH_TURN; i++) {
        ZI_TRY(device->ops->event_create(device->self, &engine->decided[i]));
    }
    for (uint32_t i = 0; i < ENGINE_STREAMS; i++) {
        ZI_TRY(device->ops->event_create(device->self, &engine->joined[i]));
    }
    return device->ops->event_create(device->self, &engine->stepped);
}

static zero_status open_device(zero_engine *engine)
{
    if (engine->layout->options.device != ZERO_DEVICE_CUDA) {
        return ZERO_OK;
    }
    if (engine->layout->options.optimizer == ZERO_OPTIMIZER_CALLBACK) {
        ZI_FAIL(ZERO_UNSUPPORTED,
                "ZERO_OPTIMIZER_CALLBACK is host code and cannot update memory of "
                "a GPU; use ZERO_OPTIMIZER_ADAMW or ZERO_DEVICE_CPU");
    }
    const bool queued = zi_world_submit_waits(engine->world, engine->layout->options.transport) ||
                        engine->layout->room_bytes != 0;
    ZI_TRY(zi_cuda_device_create(queued, &engine->own_device));
    engine->device = &engine->own_device;
    return ZERO_OK;
}

/* The CPU's kernels, on a pool of threads. */
static zero_status make_host_kernels(zero_engine *engine, zi_kernels *kernels)
{
    uint32_t threads = engine->layout->options.threads;
    if (threads == 0) {
        const long cores = sysconf(_SC_NPROCESSORS_ONLN);
        const uint32_t here = zero_world_local_size(engine->world);
        threads = cores > (long)here ? (uint32_t)cores / here : 1;
        threads = threads > 256 ? 256 : threads;
    }
    ZI_TRY(zi_pool_create(threads, &engine->pool));
    return zi_cpu_kernels_create(&engine->world->device, engine->pool, kernels);
}

static zero_status make_kernels(zero_engine *engine)
{
    if (engine->layout->options.device != ZERO_DEVICE_CUDA) {
        return make_host_kernels(engine, &engine->kernels);
    }
    ZI_TRY(zi_cuda_kernels_create(engine->device, &engine->kernels));
    return engine->layout->room_bytes != 0 ? make_host_kernels(engine, &engine->host_kernels)
                                           : ZERO_OK;
}

/* Bytes of the turns as taken from the device. */
static size_t turns_bytes(void)
{
    return zi_align_up((ENGINE_TURNS + 1) * sizeof(engine_turn), ZI_PAGE_BYTES);
}

/* The first state, put where the device keeps it. */
static zero_status start_state(zero_engine *engine, zi_step_state *target)
{
    const zero_engine_options *options = &engine->layout->options;
    const zi_loss_scaler scaler = {.scale = options->loss_scale,
                                   .min = options->loss_scale_min,
                                   .window = options->loss_scale_window,
                                   .hysteresis = options->loss_scale_hysteresis,
                                   .dynamic = !options->loss_scale_static};
    zi_step_state state;
    zi_stream *host = NULL;
    memset(&state, 0, sizeof state);
    zi_step_state_init(&state, scaler);
    ZI_TRY(engine->device->ops->stream_wrap(engine->device->self, zero_stream_host(), &host));
    return engine->device->ops->copy(engine->device->self, host, target, &state, sizeof state);
}

static zero_status make_step(zero_engine *engine)
{
    const zi_device *device = engine->device;
    const zi_layout *layout = engine->layout;
    unsigned char *arena = engine->arena[ZERO_ROLE_STEP];
    step_block *block = (step_block *)(void *)(arena + layout->step_at);
    zi_norm_sum *norms = (zi_norm_sum *)(void *)(arena + layout->norms_at);
    ZI_TRY(device->ops->host_alloc(device->self, turns_bytes(), (void **)&engine->turns));
    ZI_TRY(zi_calloc(zi_engine_agreement_words(zero_world_size(engine->world)),
                     sizeof *engine->agreement, (void **)&engine->agreement));
    engine->decide = (zi_decide_job){.norms = norms,
                                     .norm_count = engine->groups.norm->size,
                                     .state = &block->state,
                                     .decision = &block->decision};
    engine->norm_gather = (zi_collective){
        .kind = ZI_ALL_GATHER,
        .send_dtype = ZERO_DTYPE_F32,
        .recv_dtype = ZERO_DTYPE_F32,
        .tag = ZI_NO_INDEX,
        .count = layout->bucket_count != 0 ? sizeof(zi_norm_sum) / sizeof(float) : 0,
        .send = arena + layout->norm_at,
        .recv = norms};
    return start_state(engine, &block->state);
}

/* Where the optimizer finds each flat; the caller frees the list. */
static zero_status list_flats(const zero_engine *engine, zi_optim_flat **flats)
{
    const zi_layout *layout = engine->layout;
    ZI_TRY(zi_calloc(layout->flat_count, sizeof **flats, (void **)flats));
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        (*flats)[f].param = engine->arena[ZERO_ROLE_PARAM] + layout->flats[f].param_at;
        (*flats)[f].grad = layout->flats[f].trained ? zi_grads_reduced(engine->grads, f) : NULL;
    }
    return ZERO_OK;
}

zero_status zi_engine_point(zero_engine *engine)
{
    zi_optim_flat *flats = NULL;
    unsigned char *const state[ZI_STATES] = {engine->arena[ZERO_ROLE_MASTER],
                                             engine->arena[ZERO_ROLE_MOMENT1],
                                             engine->arena[ZERO_ROLE_MOMENT2]};
    zi_grads_point(engine->grads, engine->arena[ZERO_ROLE_GRAD],
                   engine->arena[ZERO_ROLE_GRAD_SLOT]);
    ZI_TRY(list_flats(engine, &flats));
    zi_optim_point(engine->optim, state, flats,
                   engine->arena[ZERO_ROLE_RING] + engine->layout->rooms_at);
    zi_free(flats);
    return ZERO_OK;
}

static zero_status make_optim(zero_engine *engine)
{
    const zi_layout *layout = engine->layout;
    zi_optim_flat *flats = NULL;
    ZI_TRY(list_flats(engine, &flats));
    const zi_optim_desc desc = {
        .layout = layout,
        .device = engine->device,
        .kernels = &engine->kernels,
        .rank = zero_world_rank(engine->world),
        .publish = engine->groups.publish,
        .step_stream = engine->step_stream,
        .state = {engine->arena[ZERO_ROLE_MASTER], engine->arena[ZERO_ROLE_MOMENT1],
                  engine->arena[ZERO_ROLE_MOMENT2]},
        .ring = engine->ring,
        .host_kernels = engine->host_kernels.ops != NULL ? &engine->host_kernels : &engine->kernels,
        .rooms = engine->arena[ZERO_ROLE_RING] + layout->rooms_at,
        .flats = flats,
        .segments = engine->arena[ZERO_ROLE_STEP] + layout->segments_at,
        .decision = engine->decide.decision,
        .stats = &engine->stats};
    const zero_status status = zi_optim_create(&desc, &engine->optim);
    zi_free(flats);
    return status;
}

static zero_status make_stages(zero_engine *engine)
{
    const zi_params_desc params = {.layout = engine->layout,
                                   .device = engine->device,
                                   .gather = engine->groups.gather,
                                   .gather_stream = engine->gather_stream,
                                   .shards = engine->arena[ZERO_ROLE_PARAM],
                                   .slots = engine->arena[ZERO_ROLE_PARAM_SLOT],
                                   .stats = &engine->stats};
    const zi_grads_desc grads = {
        .layout = engine->layout,
        .device = engine->device,
        .kernels = &engine->kernels,
        .rank = zero_world_rank(engine->world),
        .scatter = engine->groups.scatter,
        .narrow = engine->groups.narrow,
        .replica = engine->groups.replica,
        .reduce_stream = engine->reduce_stream,
        .shards = engine->arena[ZERO_ROLE_GRAD],
        .slots = engine->arena[ZERO_ROLE_GRAD_SLOT],
        .norm = (zi_norm_sum *)(void *)(engine->arena[ZERO_ROLE_STEP] + engine->layout->norm_at),
        .stats = &engine->stats};
    ZI_TRY(zi_params_create(&params, &engine->params));
    ZI_TRY(zi_grads_create(&grads, &engine->grads));
    return make_optim(engine);
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
static zero_status connect_groups(zero_engine *engine)
{
    ZI_TRY(zi_params_connect(engine->params));
    ZI_TRY(drain(engine, engine->gather_stream));
    ZI_TRY(zi_grads_connect(engine->grads));
    ZI_TRY(drain(engine, engine->reduce_stream));
    ZI_TRY(zi_optim_connect(engine->optim));
    ZI_TRY(zi_group_connect(engine->groups.norm, engine->step_stream, &engine->norm_gather, 1));
    ZI_TRY(drain(engine, engine->step_stream));
    return check_groups(engine);
}

static zero_status build(zero_engine *engine, const zero_model *model,
                         const zero_engine_options *options)
{
    const zero_status planned =
        zi_layout_create(model, options, zero_world_size(engine->world),
                         engine->world->comm->one_process, &engine->plan.layout);
    engine->layout = engine->plan.layout;
    ZI_TRY(zi_engine_agree_layout(engine->world, engine->layout, planned));
    engine->agreed = true;
    ZI_TRY(open_device(engine));
    ZI_TRY(take_arenas(engine));
    ZI_TRY(zi_engine_open_store(engine, options));
    ZI_TRY(zi_engine_keep_directories(engine, options));
    ZI_TRY(make_kernels(engine));
    ZI_TRY(make_groups(engine));
    ZI_TRY(make_streams(engine));
    ZI_TRY(make_step(engine));
    ZI_TRY(make_stages(engine));
    ZI_TRY(connect_groups(engine));
    ZI_TRY(zi_engine_take_initial(engine));
    /* Nobody gathers from a rank that is still taking its initial values. */
    return zero_world_barrier(engine->world);
}

zero_status zero_engine_create(zero_world *world, const zero_model *model,
                               const zero_engine_options *options, zero_engine **out)
{
    if (world == NULL || model == NULL || out == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "%s is NULL; zero_engine_create needs a world, a model and a "
                "place for the engine",
                world == NULL   ? "world"
                : model == NULL ? "model"
                                : "engine");
    }
    *out = NULL;
    zero_engine *engine = NULL;
    zero_status status = zi_calloc(1, sizeof *engine, (void **)&engine);
    if (status == ZERO_OK) {
        engine->world = world;
        engine->device = &world->device;
        status = build(engine, model, options);
    }
    if (status != ZERO_OK) {
        const zero_error first = *zero_last_error();
        if (engine == NULL || engine->agreed) {
            /* The others wait in the part of create that this rank has left. */
            world->comm->ops->abort(world->comm, &first);
        }
        zero_engine_destroy(engine);
        return zi_error_adopt(&first);
    }
    *out = engine;
    return ZERO_OK;
}

static void destroy_streams(zero_engine *engine)
{
    const zi_device *device = engine->device;
    zi_stream *const streams[] = {engine->gather_stream, engine->reduce_stream,
                                  engine->step_stream};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        device->ops->stream_destroy(device->self, streams[i]);
    }
    for (uint32_t i = 0; i <= ENGINE_GRAPH_TURN; i++) {
        device->ops->event_destroy(device->self, engine->decided[i]);
    }
    for (uint32_t i = 0; i < ENGINE_STREAMS; i++) {
        device->ops->event_destroy(device->self, engine->joined[i]);
    }
    device->ops->event_destroy(device->self, engine->caller);
    device->ops->event_destroy(device->self, engine->stepped);
}

static void destroy_memory(zero_engine *engine)
{
    for (int role = ZERO_ROLE_COUNT; role-- > 0;) {
        if (engine->arena[role] != NULL) {
            free_arena(engine, (zero_role)role);
        }
    }
}

void zero_engine_destroy(zero_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    zi_comm *comm = engine->world->comm;
    if (engine->micro_open || engine->step_due) {
        /* The streams may wait for ranks that wait for calls this rank will never make. Why it
         * stops is most likely what failed last on this thread. */
        const zero_error *last = zero_last_error();
        zero_error error = {.status = ZERO_COMM, .file = "engine.c", .line = __LINE__};
        (void)snprintf(error.message, sizeof error.message,
                       "a rank destroyed its engine in the middle of a step%s%.180s",
                       last->status != ZERO_OK ? "; its last error: " : "",
                       last->status != ZERO_OK ? last->message : "");
        comm->ops->abort(comm, &error);
    }
    if (engine->optim != NULL) {
        (void)zi_optim_quiet(engine->optim);
    }
    destroy_streams(engine);
    zi_optim_destroy(engine->optim);
    zi_engine_close_store(engine);
    zi_engine_close_park(engine);
    zi_grads_destroy(engine->grads);
    zi_params_destroy(engine->params);
    zi_group *const groups[] = {engine->groups.norm,    engine->groups.publish,
                                engine->groups.replica, engine->groups.narrow,
                                engine->groups.scatter, engine->groups.gather};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        zi_group_destroy(groups[i]);
    }
    zi_kernels_destroy(&engine->kernels);
    zi_kernels_destroy(&engine->host_kernels);
    zi_pool_destroy(engine->pool);
    destroy_memory(engine);
    engine->device->ops->host_free(engine->device->self, engine->turns, turns_bytes());
    zi_free(engine->agreement);
    zi_device_destroy(&engine->own_device);
    zi_layout_destroy(engine->plan.layout);
    zi_free(engine);
}

const zero_plan *zero_engine_plan(const zero_engine *engine)
{
    return &engine->plan;
}
