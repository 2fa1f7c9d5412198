/* Owns the axes of a search. Invariant: an axis that is held has one value, the caller's. */
#include "plan/search_space.h"

#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "layout/layout.h"
#include "plan/batch.h"
#include "plan/cluster.h"
#include "plan/estimate.h"
#include "plan/transformer.h"

#define MICRO_STEPS_LIMIT 65536
#define SAMPLES_LIMIT (UINT64_C(1) << 20)

static bool is_held(const zi_space *space, zero_search_axis axis)
{
    return (space->held & (uint32_t)axis) != 0;
}

/* ---- states, tiers and stages ---- */

/* Parameters in fp32 are their own masters, and leave no remainder. */
static void list_formats(zi_space *space)
{
    static const zi_format formats[ZI_FORMATS_MAX] = {
        {ZERO_DTYPE_DEFAULT, ZERO_DTYPE_DEFAULT}, /* fp32 */
        {ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_BF16},
        {ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8},
        {ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8},
    };
    const bool masters = space->transformer.dtype != ZERO_DTYPE_F32;
    memcpy(space->formats, formats, sizeof formats);
    space->format_count = masters ? ZI_FORMATS_MAX : ZI_FORMATS_MAX - 1;
    for (uint32_t i = 0; i < space->format_count && !masters; i++) {
        space->formats[i].master = ZERO_DTYPE_DEFAULT;
    }
    if (is_held(space, ZERO_SEARCH_STATES)) {
        space->formats[0] = (zi_format){space->options.master_dtype, space->options.moment_dtype};
        space->format_count = 1;
    }
}

static void add_mix(zi_space *space, const zi_mix *mix)
{
    zi_assert_cmp(space->mix_count, <, ZI_MIXES_MAX);
    space->mixes[space->mix_count++] = *mix;
}

/* The nearest tiers first. */
static void list_shard_tiers(zi_space *space, zero_tier moments, zero_tier master)
{
    for (zero_tier grad = ZERO_TIER_DEVICE; grad <= moments; grad++) {
        for (zero_tier param = ZERO_TIER_DEVICE; param <= moments; param++) {
            const bool none = space->cluster.host_bytes == 0;
            zi_mix mix = {.updater = space->tuning.updater};
            for (int role = ZERO_ROLE_MASTER; role < ZERO_ROLE_SHARDS_MAX; role++) {
                mix.tier[role] = zero_role_exists((zero_role)role) != 0 ? moments : 0;
            }
            mix.tier[ZERO_ROLE_PARAM] = param;
            mix.tier[ZERO_ROLE_GRAD] = grad;
            mix.tier[ZERO_ROLE_MASTER] = master;
            if (none && (grad == ZERO_TIER_HOST || param == ZERO_TIER_HOST)) {
                continue;
            }
            add_mix(space, &mix);
            if (moments == ZERO_TIER_HOST && mix.updater == ZERO_UPDATER_DEFAULT &&
                space->options.device == ZERO_DEVICE_CUDA) {
                mix.updater = ZERO_UPDATER_CPU;
                add_mix(space, &mix);
            }
        }
    }
}

static void list_mixes(zi_space *space)
{
    const uint64_t bytes[] = {[ZERO_TIER_DEVICE] = 1,
                              [ZERO_TIER_HOST] = space->cluster.host_bytes,
                              [ZERO_TIER_DISK] = space->cluster.disk_bytes};
    space->mix_count = 0;
    if (is_held(space, ZERO_SEARCH_TIERS)) {
        zi_mix mix = {.updater = space->tuning.updater};
        for (int role = 0; role < ZERO_ROLE_SHARDS_MAX; role++) {
            const zero_tier tier = space->options.tier[role];
            const bool unset = zero_role_exists((zero_role)role) != 0 && tier == ZERO_TIER_DEFAULT;
            mix.tier[role] = unset ? ZERO_TIER_DEVICE : tier;
        }
        add_mix(space, &mix);
        return;
    }
    for (zero_tier moments = ZERO_TIER_DEVICE; moments <= ZERO_TIER_DISK; moments++) {
        for (zero_tier master = ZERO_TIER_DEVICE; master <= moments; master++) {
            if (bytes[moments] != 0 && bytes[master] != 0) {
                list_shard_tiers(space, moments, master);
            }
        }
    }
}

static void add_split(zi_mesh *mesh, uint32_t stage, uint32_t group)
{
    zi_assert_cmp(mesh->split_count, <, ZI_SPLITS_MAX);
    mesh->splits[mesh->split_count++] = (zi_split){(zero_stage)stage, group};
}

static void list_splits(const zi_space *space, zi_mesh *mesh)
{
    const uint32_t ranks = (uint32_t)space->cluster.ranks_per_node;
    const uint32_t tensor = (uint32_t)mesh->transformer.tensor_parallel;
    const uint32_t near = ranks % tensor == 0 ? ranks / tensor : 1;
    mesh->split_count = 0;
    if (is_held(space, ZERO_SEARCH_STAGE)) {
        add_split(mesh, (uint32_t)space->options.stage, space->options.shard_group);
        return;
    }
    const uint32_t stages = mesh->world > 1 ? 3 : 1;
    for (uint32_t stage = 0; stage < stages; stage++) {
        add_split(mesh, stage, 0);
    }
    for (uint32_t group = 2; group < mesh->world; group++) {
        if (mesh->world % group == 0 && (group % near == 0 || near % group == 0)) {
            add_split(mesh, stages, group);
        }
    }
    if (mesh->world > 1) {
        add_split(mesh, stages, 0);
    }
}

void zi_space_options(const zi_space *space, const zi_split *split, const zi_mix *mix,
                      const zi_format *format, zero_engine_options *options, zero_tuning *tuning)
{
    *options = space->options;
    *tuning = space->tuning;
    options->tuning = tuning;
    options->stage = split->stage;
    options->shard_group = split->group;
    options->master_dtype = format->master;
    options->moment_dtype = format->moments;
    memcpy(options->tier, mix->tier, sizeof mix->tier);
    tuning->updater = mix->updater;
}

/* ---- batches ---- */

static zero_status grow_shapes(zi_space *space)
{
    zi_shape *more = NULL;
    const uint32_t room = space->shape_room != 0 ? 2 * space->shape_room : 256;
    if (space->shape_count < space->shape_room) {
        return ZERO_OK;
    }
    ZI_TRY(zi_calloc(room, sizeof *more, (void **)&more));
    if (space->shape_count != 0) {
        memcpy(more, space->shapes, space->shape_count * sizeof *more);
    }
    zi_free(space->shapes);
    space->shapes = more;
    space->shape_room = room;
    return ZERO_OK;
}

/* The shape of a mesh that lacks the fewest bytes stands for those that cannot fit: the last one of
 * the mesh so far, if that does not fit either. */
static zero_status add_shape(zi_space *space, uint32_t mesh, const zero_batch *batch)
{
    const zero_transformer *t = &space->meshes[mesh].transformer;
    const zero_cluster *c = &space->cluster;
    zi_shape shape = {.mesh = mesh, .order = space->shape_count, .batch = *batch};
    zi_shape *last = space->shape_count != 0 ? &space->shapes[space->shape_count - 1] : NULL;
    zero_estimate floor;
    ZI_TRY(zero_activation_bytes(t, batch, &shape.activation_bytes));
    shape.fits = shape.activation_bytes <= c->device_bytes &&
                 c->device_reserve_bytes <= c->device_bytes - shape.activation_bytes;
    const bool stands = last != NULL && last->mesh == mesh && !last->fits;
    if (!shape.fits && last != NULL && last->mesh == mesh &&
        (last->fits || last->activation_bytes <= shape.activation_bytes)) {
        return ZERO_OK;
    }
    if (shape.fits) {
        ZI_TRY(zi_estimate_of_plan(t, c, NULL, batch, &floor));
        const double sent = (double)floor.term_ns[ZERO_ESTIMATE_ACTIVATIONS];
        shape.floor_ns = (double)floor.high_ns -
                         (batch->mesh_overlap != 0 ? (1 - ZI_BESIDE_PRODUCTS) * sent : 0);
        shape.passes_ns =
            (double)(floor.term_ns[ZERO_ESTIMATE_PRODUCTS] + floor.term_ns[ZERO_ESTIMATE_ELEMENTS]);
    }
    if (stands) {
        shape.order = last->order;
        *last = shape;
        return ZERO_OK;
    }
    ZI_TRY(grow_shapes(space));
    space->shapes[space->shape_count++] = shape;
    return ZERO_OK;
}

/* samples x micro-steps of one rank's share of the step, as far as neither is held. */
static zero_status add_batch(zi_space *space, uint32_t mesh, uint64_t share, uint64_t samples,
                             zero_batch *batch)
{
    const uint64_t micro_steps = share / samples;
    const bool held =
        (is_held(space, ZERO_SEARCH_SAMPLES) && samples != space->batch.samples) ||
        (is_held(space, ZERO_SEARCH_MICRO_STEPS) && micro_steps != space->batch.micro_steps);
    if (held || samples > SAMPLES_LIMIT || micro_steps > MICRO_STEPS_LIMIT ||
        (batch->interleave > 1 && !is_held(space, ZERO_SEARCH_INTERLEAVE) &&
         micro_steps % space->meshes[mesh].transformer.pipeline_parallel != 0)) {
        return ZERO_OK;
    }
    batch->samples = samples;
    batch->micro_steps = (uint32_t)micro_steps;
    return add_shape(space, mesh, batch);
}

static zero_status list_counts(zi_space *space, uint32_t mesh, zero_batch *batch)
{
    const uint64_t replicas = space->meshes[mesh].world / batch->context_parallel;
    const uint64_t share = space->step_samples / replicas;
    if (space->step_samples % replicas != 0) {
        return ZERO_OK;
    }
    uint64_t root = 1;
    for (; root * root < share; root++) {
        if (share % root == 0) {
            ZI_TRY(add_batch(space, mesh, share, share / root, batch));
        }
    }
    for (; root > 0; root--) {
        if (share % root == 0 && share / root >= root) {
            ZI_TRY(add_batch(space, mesh, share, root, batch));
        }
    }
    return ZERO_OK;
}

static zero_status list_groups(zi_space *space, uint32_t mesh, zero_batch *batch)
{
    const zero_transformer *t = &space->meshes[mesh].transformer;
    const uint64_t blocks = zi_transformer_blocks(t);
    const bool held = is_held(space, ZERO_SEARCH_INTERLEAVE);
    const bool even = t->pipeline_parallel > 1 && t->layers % t->pipeline_parallel == 0;
    batch->interleave = held ? space->batch.interleave : 1;
    if (batch->interleave > 1 && (t->pipeline_parallel == 1 || batch->interleave > blocks)) {
        return ZERO_OK;
    }
    ZI_TRY(list_counts(space, mesh, batch));
    for (uint64_t groups = 2; !held && even && groups <= blocks; groups *= 2) {
        batch->interleave = groups;
        if (blocks % groups == 0) {
            ZI_TRY(list_counts(space, mesh, batch));
        }
    }
    return ZERO_OK;
}

static zero_status list_batches(zi_space *space, uint32_t mesh)
{
    const uint32_t world = space->meshes[mesh].world;
    const bool held = is_held(space, ZERO_SEARCH_CONTEXT);
    const bool again = is_held(space, ZERO_SEARCH_RECOMPUTE);
    zero_batch batch = space->batch;
    for (uint64_t context = held ? space->batch.context_parallel : 1;
         world % context == 0 && batch.sequence % context == 0; context *= 2) {
        batch.context_parallel = context;
        batch.sequence_parallel = is_held(space, ZERO_SEARCH_TENSOR)
                                      ? space->batch.sequence_parallel
                                      : space->meshes[mesh].transformer.tensor_parallel > 1;
        for (uint32_t recompute = 0; recompute < 2; recompute++) {
            batch.recompute = again ? space->batch.recompute : recompute;
            if (recompute == 0 || !again) {
                ZI_TRY(list_groups(space, mesh, &batch));
            }
        }
        if (held) {
            return ZERO_OK;
        }
    }
    return ZERO_OK;
}

/* ---- meshes ---- */

static zero_status add_mesh(zi_space *space, uint64_t tensor, uint64_t pipeline)
{
    const uint32_t index = space->mesh_count;
    zi_mesh *mesh = &space->meshes[index];
    const uint64_t ranks = space->cluster.nodes * space->cluster.ranks_per_node;
    mesh->transformer = space->transformer;
    mesh->transformer.tensor_parallel = tensor;
    mesh->transformer.pipeline_parallel = pipeline;
    if (zero_transformer_check(&mesh->transformer) != ZERO_OK) {
        return ZERO_OK;
    }
    mesh->world = (uint32_t)(ranks / (tensor * pipeline));
    list_splits(space, mesh);
    space->mesh_count++;
    return list_batches(space, index);
}

static zero_status list_pipelines(zi_space *space, uint64_t tensor)
{
    const uint64_t ranks = space->cluster.nodes * space->cluster.ranks_per_node;
    if (is_held(space, ZERO_SEARCH_PIPELINE)) {
        const uint64_t pipeline = space->transformer.pipeline_parallel;
        return ranks % (tensor * pipeline) == 0 ? add_mesh(space, tensor, pipeline) : ZERO_OK;
    }
    const uint64_t most = zi_min_u64(ranks / tensor, space->transformer.layers);
    for (uint64_t pipeline = 1; pipeline <= most; pipeline++) {
        if (ranks % (tensor * pipeline) == 0) {
            ZI_TRY(add_mesh(space, tensor, pipeline));
        }
    }
    return ZERO_OK;
}

/* Meshes are so many at most: a divisor of the node's ranks and one of the rest. */
static zero_status room_for_meshes(zi_space *space)
{
    return space->meshes != NULL ? ZERO_OK
                                 : zi_calloc((size_t)ZI_SPLITS_MAX * 24, sizeof *space->meshes,
                                             (void **)&space->meshes);
}

zero_status zi_space_list(zi_space *space)
{
    const uint64_t ranks = space->cluster.ranks_per_node;
    space->mesh_count = 0;
    space->shape_count = 0;
    ZI_TRY(room_for_meshes(space));
    if (is_held(space, ZERO_SEARCH_TENSOR)) {
        ZI_TRY(list_pipelines(space, space->transformer.tensor_parallel));
    } else {
        for (uint64_t tensor = 1; tensor <= ranks; tensor++) {
            if (ranks % tensor == 0) {
                ZI_TRY(list_pipelines(space, tensor));
            }
        }
    }
    if (space->shape_count == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "no batch on %" PRIu64 " ranks has %" PRIu64
                " samples in a step within what is held (axes %#" PRIx32
                "); make them a multiple of the ranks, or hold fewer axes",
                space->cluster.nodes * ranks, space->step_samples, space->held);
    }
    return ZERO_OK;
}

/* ---- the request ---- */

static zero_status count_samples(zi_space *space, uint64_t given)
{
    const zero_transformer *t = &space->transformer;
    const uint64_t parts =
        t->tensor_parallel * t->pipeline_parallel * space->batch.context_parallel;
    const uint64_t ranks = space->cluster.nodes * space->cluster.ranks_per_node;
    if (given == 0 && ranks % parts != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "the mesh of the batch has %" PRIu64
                " ranks, which do not divide the cluster's %" PRIu64 "; give step_samples",
                parts, ranks);
    }
    if (given > (UINT64_C(1) << 32)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "step_samples is %" PRIu64 "; a step has at most 2^32 samples", given);
    }
    space->step_samples =
        given != 0 ? given : space->batch.samples * space->batch.micro_steps * (ranks / parts);
    return ZERO_OK;
}

zero_status zi_space_open(const zero_search_request *request, zi_space *space)
{
    zero_search_request r = {.struct_bytes = sizeof r};
    zi_transformer_counts counts;
    ZI_TRY(ZI_SIZED_IN(zero_search_request, request, &r));
    if (r.held >= 2 * (uint32_t)ZERO_SEARCH_UNITS) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "held is %#" PRIx32 "; it has the bits of zero_search_axis, up to %#x", r.held,
                (unsigned)ZERO_SEARCH_UNITS);
    }
    space->held = r.held;
    ZI_TRY(zi_transformer_resolve(r.transformer, &space->transformer, &counts));
    if (space->transformer.expert_parallel > 1) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "expert_parallel is %" PRIu64 ", and only plans of one engine are searched; leave "
                "it 0, or ask for the time of this mesh alone",
                space->transformer.expert_parallel);
    }
    ZI_TRY(zi_cluster_resolve(r.cluster, &space->cluster));
    ZI_TRY(zi_options_take(r.options, &space->options, &space->tuning));
    ZI_TRY(zi_batch_resolve(r.batch, &space->transformer, &space->batch));
    space->options.tuning = &space->tuning;
    if (r.batch == NULL || r.batch->logit_rows == 0) {
        space->batch.logit_rows = 0; /* of each shape: all of its micro-step */
    }
    ZI_TRY(count_samples(space, r.step_samples));
    list_formats(space);
    list_mixes(space);
    return ZERO_OK;
}

void zi_space_close(zi_space *space)
{
    zi_free(space->meshes);
    zi_free(space->shapes);
}
