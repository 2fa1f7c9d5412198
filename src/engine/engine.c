/* Owns create and destroy. Invariant: after create returned OK nothing here allocates; destroy
 * undoes whatever create had done when it stopped. */
#include "zero/engine.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/agree.h"
#include "engine/arenas.h"
#include "engine/array.h"
#include "engine/collectives_file.h"
#include "engine/evict.h"
#include "engine/given.h"
#include "engine/groups.h"
#include "engine/guard.h"
#include "engine/host_room.h"
#include "engine/save.h"
#include "engine/speculate.h"
#include "engine/tiers.h"
#include "engine/tracing.h"
#include "engine/unit_views.h"
#include "layout/sharding.h"

_Static_assert(offsetof(zi_step_message, given.hyper) == ZI_MESSAGE_BYTES,
               "layout reserves what a message begins with");
_Static_assert(sizeof(zi_step_part) == ZI_PART_BYTES, "and each part of the model");

/* The layout of the state and the decision in the step arena. */
typedef struct step_block {
    zi_step_state state;
    zi_step_decision decision;
    zi_step_part part;
    zi_norm_sum replicas;
    float weights[ENGINE_STEP_BUFFERS + 2];
    uint64_t stalled[2]; /* zi_optim_desc.stalled */
} step_block;

_Static_assert(sizeof(step_block) <= ZI_STEP_BYTES, "layout reserves too little for the step");

static zero_status make_streams(zero_engine *engine)
{
    const zi_device *device = engine->device;
    /* Forward and backward wait for gathers; a reduction has until the step. */
    ZI_TRY(zi_device_stream_first(device, "zero gather", &engine->gather_stream));
    ZI_TRY(device->ops->stream_create(device->self, "zero reduce", &engine->reduce_stream));
    ZI_TRY(device->ops->stream_create(device->self, "zero step", &engine->step_stream));
    zi_engine_name_streams(engine);
    ZI_TRY(device->ops->event_create(device->self, &engine->caller));
    for (uint32_t i = 0; i <= ENGINE_GRAPH_BUFFER; i++) {
        ZI_TRY(device->ops->event_create(device->self, &engine->decided[i]));
    }
    for (uint32_t i = 0; i < ENGINE_STREAMS; i++) {
        ZI_TRY(device->ops->event_create(device->self, &engine->joined[i]));
    }
    return device->ops->event_create(device->self, &engine->stepped);
}

/* The caller's functions for the device's memory, where some are given. */
static zero_status take_memory_source(const zero_engine *engine)
{
    const zero_engine_options *options = &engine->layout->options;
    const zi_memory_source source = {options->device_alloc, options->device_free,
                                     options->device_memory_user};
    const zi_device *device = engine->device;
    if (source.alloc == NULL) {
        return ZERO_OK;
    }
    if (device->ops->memory_from == NULL) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "options.device_alloc is given, and the device %s takes no memory from the caller; "
                "leave it out",
                device->ops->name);
    }
    device->ops->memory_from(device->self, &source);
    return ZERO_OK;
}

static zero_status engine_open_device(zero_engine *engine)
{
    const zi_backend *backend = &engine->backend;
    const zi_capabilities *can = &engine->layout->can;
    if (!can->host_memory && engine->layout->options.update != NULL) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "ZERO_OPTIMIZER_CALLBACK is host code and cannot update memory of "
                "a GPU; use another optimizer or ZERO_DEVICE_CPU");
    }
    if (backend->device_create != NULL) {
        ZI_TRY(backend->device_create(backend->self, &engine->own_device));
        engine->device = &engine->own_device;
        if (zi_engine_uses_host(engine)) {
            zi_device_issue_on_threads(engine->device);
        }
    }
    zi_assert_cmp(engine->device->ops->host_memory, ==, can->host_memory);
    return take_memory_source(engine);
}

/* Threads of the host, if it computes. */
static zero_status make_pool(zero_engine *engine)
{
    uint32_t threads = engine->layout->options.threads;
    if (!engine->layout->can.host_memory && !zi_engine_uses_host(engine)) {
        return ZERO_OK;
    }
    if (threads == 0) {
        threads = (uint32_t)zi_min_u64(zero_world_cpus(engine->world), 256);
    }
    return zi_pool_create(threads, &engine->pool);
}

static zero_status make_kernels(zero_engine *engine)
{
    const zi_backend *backend = &engine->backend;
    ZI_TRY(make_pool(engine));
    ZI_TRY(backend->kernels_create(backend->self, engine->device, engine->pool, &engine->kernels));
    if (engine->layout->can.host_memory || !zi_engine_uses_host(engine)) {
        return ZERO_OK;
    }
    return backend->host_kernels_create(backend->self, &engine->world->device, engine->pool,
                                        &engine->host_kernels);
}

/* Rounded up to pages, for the device's allocator. */
static size_t host_bytes(const zero_engine *engine)
{
    const zi_layout *layout = engine->layout;
    const size_t sums = layout->speculative_at != 0 ? layout->bucket_count : 0;
    return zi_align_up(sizeof(engine_host) + sums * sizeof(zi_norm_sum), ZI_PAGE_BYTES);
}

/* Copy the first state to the device. */
static zero_status start_state(zero_engine *engine, zi_step_state *target)
{
    const zero_engine_options *options = &engine->layout->options;
    const zi_loss_scaler scaler = {.scale = options->loss_scale,
                                   .min = options->tuning->loss_scale_min,
                                   .window = options->tuning->loss_scale_window,
                                   .hysteresis = options->tuning->loss_scale_hysteresis,
                                   .dynamic = !options->tuning->loss_scale_static};
    zi_step_state state;
    zi_stream *host = NULL;
    memset(&state, 0, sizeof state);
    zi_step_state_init(&state, scaler);
    ZI_TRY(engine->device->ops->stream_wrap(engine->device->self, zero_stream_host(), &host));
    return engine->device->ops->copy(engine->device->self, host, target, &state, sizeof state);
}

/* The all-gather of step messages, or of the parts' sums. */
static zi_collective gather_of(uint32_t tag, const void *send, uint64_t bytes, void *recv)
{
    return (zi_collective){.kind = ZI_ALL_GATHER,
                           .send_dtype = ZERO_DTYPE_F32,
                           .recv_dtype = ZERO_DTYPE_F32,
                           .tag = tag,
                           .count = bytes / sizeof(float),
                           .send = send,
                           .recv = recv};
}

/* Let a decision read the sums of all parts of the model. */
static void place_parts(const zero_engine *engine, step_block *block, zi_decide_job *job)
{
    const zi_layout *layout = engine->layout;
    unsigned char *gathered = engine->arena[ZERO_ROLE_STEP] + layout->parts_at;
    job->part = &block->part;
    job->parts = engine->mesh != NULL ? (zi_step_part *)(void *)gathered : job->part;
    job->part_count = layout->part_count;
    job->state = &block->state;
    job->decision = &block->decision;
}

static step_block *block_at(const zero_engine *engine, uint64_t at)
{
    return (step_block *)(void *)(engine->arena[ZERO_ROLE_STEP] + at);
}

static zero_status make_step(zero_engine *engine)
{
    const zi_device *device = engine->device;
    const zi_layout *layout = engine->layout;
    unsigned char *arena = engine->arena[ZERO_ROLE_STEP];
    step_block *block = block_at(engine, layout->step_at);
    step_block *aside = block_at(engine, layout->aside_at);
    const zero_sharding *s = &layout->shardings[0];
    /* With one way to split units each group of peers has every element once; with several each
     * rank counts only what is the first replica (zi_grads_desc.counts). */
    const uint32_t replicas = layout->sharding_count > 1 ? 1 : s->world / s->optimizer;
    ZI_TRY(device->ops->host_alloc(device->self, host_bytes(engine), (void **)&engine->host));
    engine->step_buffers = engine->host->step_buffers;
    /* Of the ranks in the order of their slices, replicas of the same part are neighbours. */
    engine->decide = (zi_decide_job){
        .messages = {.first = arena + layout->messages_at,
                     .count = s->world,
                     .bytes = layout->message_bytes,
                     .peer_first =
                         zi_shard_index(s, zero_world_rank(engine->world), s->world) % replicas,
                     .peer_stride = replicas,
                     .number_count = ZI_GIVEN_HYPER + layout->hyper_count}};
    engine->aside = engine->decide;
    engine->aside.messages.number_count = ZI_GIVEN_HYPER;
    engine->decide.stalled = &block->stalled[0];
    place_parts(engine, block, &engine->decide);
    place_parts(engine, aside, &engine->aside);
    engine->norm_gather = gather_of(ZI_TAG_STEP, arena + layout->message_at, layout->message_bytes,
                                    arena + layout->messages_at);
    engine->norm_query = engine->norm_gather;
    engine->norm_query.tag = ZI_TAG_NORM;
    engine->part_gather =
        gather_of(ZI_TAG_STEP, &block->part, ZI_PART_BYTES, arena + layout->parts_at);
    engine->part_query =
        gather_of(ZI_TAG_NORM, &aside->part, ZI_PART_BYTES, arena + layout->parts_at);
    engine->weights = block->weights;
    engine->replicas = &block->replicas;
    engine->first_scale = layout->options.loss_scale;
    return start_state(engine, &block->state);
}

/* True if this rank's squares of units that are split this way count in the step's message: each
 * element's once among the messages that are added up. */
static bool counts_squares(const zero_engine *engine, const zero_sharding *s)
{
    const uint32_t slice = zi_shard_index(s, zero_world_rank(engine->world), s->world);
    return engine->layout->sharding_count == 1 || slice % (s->world / s->optimizer) == 0;
}

static zero_status make_optim(zero_engine *engine)
{
    const zi_layout *layout = engine->layout;
    zi_optim_desc desc = {
        .layout = layout,
        .device = engine->device,
        .kernels = &engine->kernels,
        .rank = zero_world_rank(engine->world),
        .step_stream = engine->step_stream,
        .shards = engine->shards,
        .window = engine->windows[ZERO_ROLE_MASTER],
        .param_staging = layout->param_staging_bytes != 0
                             ? engine->arena[ZERO_ROLE_PARAM_SLOT] + layout->param_staging_at
                             : NULL,
        .param_wire = layout->updated_wire_bytes != 0
                          ? engine->arena[ZERO_ROLE_PARAM_SLOT] + layout->updated_wire_at
                          : NULL,
        .state_staging = layout->state_staging_bytes != 0
                             ? engine->arena[ZERO_ROLE_STEP] + layout->state_staging_at
                             : NULL,
        .host_kernels = zi_engine_host_kernels(engine),
        .workspace = engine->arena[ZERO_ROLE_IO_WINDOW],
        .segments = engine->arena[ZERO_ROLE_STEP] + layout->segments_at,
        .step_arena = engine->arena[ZERO_ROLE_STEP],
        .decision = engine->decide.decision,
        .predicted = &engine->host->predicted,
        .stalled = engine->decide.stalled,
        .stats = &engine->stats,
        .norm_group = engine->groups.norm,
        .peer_first = engine->decide.messages.peer_first,
        .peer_stride = engine->decide.messages.peer_stride};
    for (uint32_t i = 0; i < layout->sharding_count; i++) {
        desc.counts[i] = counts_squares(engine, &layout->shardings[i]);
    }
    memcpy(desc.groups, engine->groups.hops, sizeof desc.groups);
    return zi_optim_create(&desc, &engine->optim);
}

static zero_status leave_out(void *user, uint32_t unit)
{
    zero_engine *engine = user;
    ZI_TRY(zi_grads_left_out(engine->grads, unit));
    return zi_engine_speculate(engine);
}

static zero_status make_stages(zero_engine *engine)
{
    const bool at_once = engine->layout->tuning.left_out_at_once != 0;
    zi_params_desc params = {.layout = engine->layout,
                             .device = engine->device,
                             .gather_stream = engine->gather_stream,
                             .shards = &engine->shards[ZERO_ROLE_PARAM],
                             .kernels = &engine->kernels,
                             .slots = engine->arena[ZERO_ROLE_PARAM_SLOT],
                             .stats = &engine->stats,
                             .left_out = at_once ? leave_out : NULL,
                             .left_out_user = engine};
    zi_grads_desc grads = {
        .layout = engine->layout,
        .device = engine->device,
        .kernels = &engine->kernels,
        .rank = zero_world_rank(engine->world),
        .reduce_stream = engine->reduce_stream,
        .shards = &engine->shards[ZERO_ROLE_GRAD],
        .slots = engine->arena[ZERO_ROLE_GRAD_SLOT],
        .norm = (zi_norm_sum *)(void *)(engine->arena[ZERO_ROLE_STEP] + engine->layout->message_at),
        .replicas = engine->replicas,
        .so_far = engine->layout->speculative_at != 0 ? engine->host->so_far : NULL,
        .stats = &engine->stats};
    memcpy(params.groups, engine->groups.hops, sizeof params.groups);
    memcpy(grads.groups, engine->groups.hops, sizeof grads.groups);
    for (uint32_t i = 0; i < engine->layout->sharding_count; i++) {
        grads.counts[i] = counts_squares(engine, &engine->layout->shardings[i]);
    }
    zi_engine_bind_shards(engine);
    ZI_TRY(zi_params_create(&params, &engine->params));
    ZI_TRY(zi_grads_create(&grads, &engine->grads));
    return make_optim(engine);
}

/* Local allocations, each of which may fail on one rank alone. */
static zero_status engine_prepare(zero_engine *engine, const zero_engine_options *options,
                                  const zi_backend *backend)
{
    if (backend != NULL) {
        engine->backend = *backend;
    } else {
        ZI_TRY(zi_backend_choose(engine->world, engine->mesh, engine->layout, options,
                                 &engine->backend));
    }
    ZI_TRY(engine_open_device(engine));
    ZI_TRY(zi_engine_keep_hang_directory(engine, options));
    ZI_TRY(zi_engine_open_timeline(engine));
    ZI_TRY(zi_engine_take_own_arenas(engine));
    ZI_TRY(make_kernels(engine));
    ZI_TRY(zi_engine_keep_directories(engine, options));
    ZI_TRY(zi_engine_open_store(engine, options));
    ZI_TRY(zi_engine_make_views(engine));
    return zi_engine_open_given(engine);
}

/* Collective creation: a rank that fails leaves the others waiting. */
static zero_status engine_join(zero_engine *engine)
{
    ZI_TRY(zi_engine_make_groups(engine));
    if (zi_engine_submit_waits(engine)) {
        zi_device_issue_on_threads(engine->device);
    }
    ZI_TRY(make_streams(engine));
    ZI_TRY(make_step(engine));
    ZI_TRY(make_stages(engine));
    ZI_TRY(zi_engine_connect_groups(engine));
    ZI_TRY(zi_engine_take_initial(engine));
    ZI_TRY(zi_engine_align_clocks(engine));
    /* No rank gathers from one that still copies its initial values. */
    return zi_world_barrier(engine->world);
}

static zero_status plan(zero_engine *engine, const zero_model *model,
                        const zero_engine_options *options, const zi_backend *backend,
                        zero_engine *const *out)
{
    if (model == NULL || out == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s is NULL; zero_engine_create needs a world, a model and a place for the engine",
                model == NULL ? "model" : "engine");
    }
    ZI_TRY(zi_layout_create(model, options, zero_world_size(engine->world),
                            engine->world->comm->one_process,
                            backend != NULL ? &backend->can : NULL, &engine->plan.layout));
    const zero_world *mesh = engine->plan.layout->options.model_parallel;
    if (mesh == engine->world) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.model_parallel is the engine's own world; give the ranks that hold the "
                "other parts of the model, or NULL");
    }
    ZI_TRY(mesh != NULL ? zi_world_check_open(mesh) : ZERO_OK);
    return zi_layout_expand(engine->plan.layout);
}

/* Until join() ranks exchange whether they succeeded, so one's failure fails all and the worlds
 * stay usable. If all ranks of one part fail, each reports it to its model-parallel world, so the
 * other parts fail too. If two parts do not match, only the ranks that compared them know; they
 * report it to their own world. */
static zero_status engine_build(zero_engine *engine, const zero_model *model,
                                const zero_engine_options *options, const zi_backend *backend,
                                zero_engine *const *out)
{
    zero_status status = plan(engine, model, options, backend, out);
    engine->layout = engine->plan.layout;
    zi_host_room room;
    status = zi_engine_agree_layout(engine, status);
    if (status == ZERO_OK && backend == NULL) { /* a given one need not take what it plans */
        status = zi_engine_check_room(engine, engine->world, zi_engine_find_room(engine, &room));
    }
    ZI_TRY(zi_engine_agree_ready(engine, engine->mesh, status));
    status = backend == NULL ? zi_engine_check_room(engine, engine->mesh, &room) : ZERO_OK;
    status = status == ZERO_OK ? zi_engine_agree_parts(engine) : status;
    status = status == ZERO_OK ? engine_prepare(engine, options, backend) : status;
    status = zi_engine_agree_ready(engine, engine->world, status);
    status = status == ZERO_OK ? zi_engine_compare_initial(engine) : status;
    status = status == ZERO_OK ? zi_engine_take_shared_arenas(engine) : status;
    ZI_TRY(zi_engine_agree_ready(engine, engine->mesh, status));
    status = engine_join(engine);
    if (status != ZERO_OK) {
        zero_error first = *zero_last_error();
        zi_engine_abort(engine, &first);
        zi_engine_report_hang(engine, &first);
        return zi_error_adopt(&first);
    }
    return ZERO_OK;
}

/* Use the caller's model-parallel world from now on, if it has several ranks, so that they learn of
 * any other error in the options. The plan reports errors of the world itself. */
static void take_mesh(zero_engine *engine, const zero_engine_options *options)
{
    zero_engine_options given;
    zero_tuning tuning;
    if (zi_options_take(options, &given, &tuning) == ZERO_OK &&
        given.model_parallel != engine->world && zero_world_size(given.model_parallel) > 1 &&
        zi_world_check_open(given.model_parallel) == ZERO_OK) {
        engine->mesh = given.model_parallel;
        zi_world_retain(engine->mesh);
    }
}

/* An engine with the memory that comparing ranks needs. */
static zero_status make_engine(zero_world *world, const zero_engine_options *options,
                               zero_engine **out)
{
    zero_engine *engine = NULL;
    ZI_TRY(zi_calloc(1, sizeof *engine, (void **)&engine));
    engine->world = world;
    engine->device = &world->device;
    zi_world_retain(world);
    take_mesh(engine, options);
    zi_engine_enter_call(engine, ZI_IN_ENGINE_CREATE);
    *out = engine;
    const uint64_t most = zi_max_u64(zero_world_size(world), zero_world_size(engine->mesh));
    return zi_calloc(zi_engine_agreement_words((uint32_t)most), sizeof *engine->agreement,
                     (void **)&engine->agreement);
}

zero_status zi_engine_create_with(zero_world *world, const zero_model *model,
                                  const zero_engine_options *options, const zi_backend *backend,
                                  zero_engine **out)
{
    if (out != NULL) {
        *out = NULL;
    }
    ZI_TRY(zi_world_check(world));
    zero_engine *engine = NULL;
    zero_status status = make_engine(world, options, &engine);
    if (status == ZERO_OK) {
        status = engine_build(engine, model, options, backend, out);
    } else if (engine != NULL) {
        zi_engine_abort(engine, zero_last_error()); /* the others are about to wait for this rank */
    } else {
        world->comm->ops->abort(world->comm, zero_last_error());
    }
    if (status != ZERO_OK) {
        const zero_error first = *zero_last_error();
        zero_engine_destroy(engine);
        return zi_error_adopt(&first);
    }
    *out = engine;
    return ZERO_OK;
}

zero_status zero_engine_create(zero_world *world, const zero_model *model,
                               const zero_engine_options *options, zero_engine **out)
{
    return zi_engine_create_with(world, model, options, NULL, out);
}

static void destroy_streams(zero_engine *engine)
{
    const zi_device *device = engine->device;
    zi_stream *const streams[] = {engine->gather_stream, engine->reduce_stream,
                                  engine->step_stream};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        device->ops->stream_destroy(device->self, streams[i]);
    }
    for (uint32_t i = 0; i <= ENGINE_GRAPH_BUFFER; i++) {
        device->ops->event_destroy(device->self, engine->decided[i]);
    }
    for (uint32_t i = 0; i < ENGINE_STREAMS; i++) {
        device->ops->event_destroy(device->self, engine->joined[i]);
    }
    device->ops->event_destroy(device->self, engine->caller);
    device->ops->event_destroy(device->self, engine->stepped);
}

/* In a forked child nothing is freed: its parent's threads, streams and locks do not exist there,
 * and shared memory and files are the parent's. */
void zero_engine_destroy(zero_engine *engine)
{
    if (engine == NULL || zi_world_inherited(engine->world)) {
        return;
    }
    zero_world *world = engine->world;
    zero_world *mesh = engine->mesh;
    if (zi_engine_state_owes(engine->state) || engine->filling) {
        /* The streams may wait for ranks that wait for calls of this rank, which will not come. The
         * reason is most likely what failed last on this thread. */
        const zero_error *last = zero_last_error();
        zero_error error = {.status = ZERO_ERR_COMM, .file = "engine.c", .line = __LINE__};
        (void)snprintf(error.message, sizeof error.message,
                       "a rank destroyed its engine in the middle of a %s%s%.180s",
                       engine->filling ? "fill" : "step",
                       last->status != ZERO_OK ? "; its last error: " : "",
                       last->status != ZERO_OK ? last->message : "");
        zi_engine_abort(engine, &error);
    }
    zi_save_abandon(engine);
    if (engine->optim != NULL) {
        (void)zi_optim_drain(engine->optim);
    }
    destroy_streams(engine);
    zi_save_close(engine);
    zi_optim_destroy(engine->optim);
    zi_engine_close_store(engine);
    zi_engine_close_evicted(engine);
    zi_engine_free_views(engine);
    zi_grads_destroy(engine->grads);
    zi_params_destroy(engine->params);
    zi_engine_destroy_groups(engine);
    zi_kernels_destroy(&engine->kernels);
    zi_kernels_destroy(&engine->host_kernels);
    zi_pool_destroy(engine->pool);
    zi_engine_free_arenas(engine);
    if (engine->host != NULL) { /* so there is a layout */
        engine->device->ops->host_free(engine->device->self, engine->host, host_bytes(engine));
    }
    zi_engine_close_given(engine);
    zi_engine_close_fill(engine);
    zi_free(engine->agreement);
    zi_free(engine->hang_directory);
    zi_device_destroy(&engine->own_device);
    zi_timeline_destroy(engine->timeline);
    zi_layout_destroy(engine->plan.layout);
    zi_free(engine);
    if (mesh != NULL) {
        zi_world_release(mesh);
    }
    zi_world_release(world);
}

const zero_plan *zero_engine_plan(const zero_engine *engine)
{
    return engine != NULL ? &engine->plan : NULL;
}
