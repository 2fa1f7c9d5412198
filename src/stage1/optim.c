/* Owns the update jobs, one for each chunk. Invariant: segments of a chunk are this rank's shard of
 * the flat's tensors that lies in it, in order, without padding. */
#include "stage1/optim_internal.h"

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/sharding.h"

_Static_assert(sizeof(zi_segment) <= ZI_SEGMENT_BYTES, "layout reserves too little for segments");

/* The address of a chunk's gradients; NULL: on disk. */
static const void *chunk_grad(const zi_optim *optim, const zi_chunk *chunk)
{
    const uint64_t first = zi_optim_shard_first(optim, ZERO_ROLE_GRAD, chunk->flat);
    return zi_shards_at(&optim->desc.shards[ZERO_ROLE_GRAD], chunk->flat, first + chunk->first);
}

/* The address at which a chunk's parameters are updated; NULL: in their extent. */
static void *chunk_param(const zi_optim *optim, uint32_t p)
{
    const zi_chunk *chunk = &optim->layout->chunks[p];
    const uint64_t first = zi_optim_shard_first(optim, ZERO_ROLE_PARAM, chunk->flat);
    return optim->desc.param_staging != NULL ? zi_optim_staged_own(optim, p).memory
                                             : zi_shards_at(&optim->desc.shards[ZERO_ROLE_PARAM],
                                                            chunk->flat, first + chunk->first);
}

/* True if a GPU's update reads or writes host memory. */
static bool is_over_bus(const zi_optim *optim)
{
    const bool param =
        zi_role_offloaded(optim->layout, ZERO_ROLE_PARAM) && optim->desc.param_staging == NULL;
    bool state = false;
    for (int role = ZERO_ROLE_MASTER; role < ZI_SHARD_ROLES; role++) {
        state = state || zi_role_tier(optim->layout, (zero_role)role) == ZERO_TIER_HOST;
    }
    return param || zi_role_offloaded(optim->layout, ZERO_ROLE_GRAD) ||
           (state && optim->state_staging == NULL);
}

static void optim_make_job(zi_optim *optim, uint32_t p)
{
    const zi_layout *layout = optim->layout;
    const zi_chunk *chunk = &layout->chunks[p];
    const zi_codec *kept = layout->flats[chunk->flat].kept;
    const zero_engine_options *options = &layout->options;
    optim->jobs[p] = (zi_update_job){
        .grad = chunk_grad(optim, chunk),
        .param = chunk_param(optim, p),
        .grad_dtype = kept[ZERO_ROLE_GRAD].dtype,
        .param_dtype = kept[ZERO_ROLE_PARAM].dtype,
        .master_dtype = kept[ZERO_ROLE_MASTER].dtype,
        .moment_dtype = options->moment_dtype,
        .seed = options->seed,
        .over_bus = is_over_bus(optim),
        .decision = optim->desc.decision,
        .stalled = optim->desc.stalled,
        .sums = zi_optim_layer_sums(optim),
        .norms = zi_optim_layer_norms(optim),
        .layers = layout->layer_count,
        .optimizer = layout->flats[chunk->flat].optimizer,
        .update = options->update,
        .update_user = options->update_user,
        .update_states = options->update_states,
    };
    zi_optim_rebind_job(optim, p, &optim->jobs[p], NULL);
}

/* Flats or chunks that are gathered after their update. */
static uint32_t gather_count(const zi_optim *optim)
{
    return optim->desc.param_staging != NULL ? optim->layout->chunk_count
                                             : optim->layout->flat_count;
}

static void make_param_gathers(zi_optim *optim)
{
    const zi_layout *layout = optim->layout;
    const bool staged = optim->desc.param_staging != NULL;
    uint32_t made = 0;
    for (uint32_t i = 0; i < gather_count(optim); i++) {
        const uint32_t f = staged ? layout->chunks[i].flat : i;
        optim->gather_first[i] = made;
        if (!layout->flats[f].trained) { /* nowhere on disk, where nobody else has it */
            continue;
        }
        const zi_wire_gather gather =
            staged ? zi_optim_chunk_gather(optim, i) : zi_optim_flat_gather(optim, i);
        if (zi_flat_updated_wired(layout, &layout->flats[f])) {
            made += zi_wire_batch(&gather, &optim->param_gathers[made]);
        } else {
            optim->param_gathers[made++] = zi_gather_values(gather.tag, gather.own_dtype,
                                                            gather.count, gather.own, gather.all);
        }
    }
    optim->gather_first[gather_count(optim)] = made;
}

/* Of so many flats or chunks of one unit. */
static zero_status connect_gathers(zi_optim *optim, uint32_t unit, uint32_t first, uint32_t count)
{
    const uint32_t batch = optim->gather_first[first];
    return zi_group_connect(optim->desc.groups[optim->layout->units[unit].sharding][ZI_HOP_UPDATED],
                            optim->desc.step_stream, &optim->param_gathers[batch],
                            optim->gather_first[first + count] - batch);
}

zero_status zi_optim_connect(zi_optim *optim)
{
    const zi_layout *layout = optim->layout;
    const bool staged = optim->desc.param_staging != NULL;
    for (uint32_t p = 0; p < layout->chunk_count && staged; p++) {
        ZI_TRY(connect_gathers(optim, layout->flats[layout->chunks[p].flat].unit, p, 1));
    }
    for (uint32_t u = 0; u < layout->unit_count && !staged; u++) {
        ZI_TRY(connect_gathers(optim, u, layout->units[u].flat_first,
                               zi_unit_trained_count(layout, u)));
    }
    return zi_optim_connect_layers(optim);
}

/* The range of a tensor that lies in a chunk of its flat, if any. */
static bool make_segment(const zi_optim *optim, uint32_t tensor, const zi_chunk *chunk,
                         zi_segment *segment)
{
    const zi_tensor_info *info = &optim->layout->tensor_infos[tensor];
    const zi_tensor_place *place = &optim->layout->tensors[tensor];
    uint64_t first = 0;
    uint64_t whole = 0;
    zi_optim_range(optim, place->flat, &first, &whole);
    first += chunk->first;
    const uint64_t begin = zi_max_u64(first, place->offset);
    const uint64_t end = zi_min_u64(first + chunk->count, place->offset + info->count);
    if (begin >= end) {
        return false;
    }
    *segment = (zi_segment){.offset = begin - first,
                            .count = end - begin,
                            .tensor_first = begin - place->offset,
                            .tensor = tensor,
                            .group = info->group,
                            .flags = info->flags};
    return true;
}

/* Count a tensor's segments, or where there is room for them write each behind its job's others. */
static void add_segments(zi_optim *optim, uint32_t tensor, uint32_t layer, zi_segment *segments)
{
    const zi_layout *layout = optim->layout;
    const zi_flat *place = &layout->flats[layout->tensors[tensor].flat];
    zi_segment segment;
    for (uint32_t p = place->chunk_first; p < place->chunk_first + place->chunk_count; p++) {
        if (!make_segment(optim, tensor, &layout->chunks[p], &segment)) {
            continue;
        }
        zi_update_job *job = &optim->jobs[p];
        if (segments != NULL) {
            segment.layer = layer;
            segments[(size_t)(job->segments - segments) + job->segment_count] = segment;
            job->count = segment.offset + segment.count;
        }
        job->segment_count++;
    }
}

/* Two sweeps over the tensors: count each chunk's segments, then write them where they belong, all
 * chunks' end to end. */
static void list_segments(zi_optim *optim, zi_segment *segments)
{
    const zi_layout *layout = optim->layout;
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        add_segments(optim, t, 0, NULL);
    }
    zi_segment *next = segments;
    for (uint32_t p = 0; p < layout->chunk_count; p++) {
        optim->jobs[p].segments = next;
        next += optim->jobs[p].segment_count;
        optim->jobs[p].segment_count = 0;
    }
    zi_assert_cmp(next - segments, <=, (int64_t)layout->segment_count);
    uint32_t layer = 0;
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        add_segments(optim, t, layer, segments);
        layer += zi_tensor_has_layer(layout, t) ? 1 : 0;
    }
    zi_assert_cmp(layer, ==, layout->layer_count);
}

/* The jobs' segments are read on the device, so that is where they go; the CPU commits its own. */
static zero_status optim_make_segments(zi_optim *optim)
{
    const uint32_t chunks = optim->layout->chunk_count;
    zi_stream *host = NULL;
    ZI_TRY(optim_ops_of(optim)->stream_wrap(optim_self_of(optim), zero_stream_host(), &host));
    ZI_TRY(zi_calloc(chunks, sizeof *optim->segment_first, (void **)&optim->segment_first));
    ZI_TRY(zi_calloc(optim->layout->segment_count, sizeof *optim->segments,
                     (void **)&optim->segments));
    list_segments(optim, optim->segments);
    size_t count = 0;
    for (uint32_t p = 0; p < chunks; p++) {
        zi_update_job *job = &optim->jobs[p];
        job->segments = (const zi_segment *)(const void *)optim->desc.segments + count;
        optim->segment_first[p] = count;
        count += job->segment_count;
    }
    ZI_TRY(optim_ops_of(optim)->copy(optim_self_of(optim), host, optim->desc.segments,
                                     optim->segments, count * sizeof *optim->segments));
    if (optim->staging == NULL) {
        zi_free(optim->segments);
        optim->segments = NULL;
    }
    return ZERO_OK;
}

/* Make what shares a step between the GPU and the CPU. */
static zero_status make_share(zi_optim *optim)
{
    if (optim->layout->tuning.updater != ZERO_UPDATER_BOTH) {
        return ZERO_OK;
    }
    ZI_TRY(zi_share_create(optim->layout->unit_count, &optim->share));
    ZI_TRY(
        optim_ops_of(optim)->stream_create(optim_self_of(optim), "zero cpu", &optim->cpu_stream));
    zi_stream_name(optim->desc.device, optim->cpu_stream, "update on the CPU");
    return ZERO_OK;
}

static zero_status make_staging(zi_optim *optim)
{
    const zi_layout *layout = optim->layout;
    const zi_device *host = optim->desc.host_kernels->device;
    ZI_TRY(host->ops->stream_wrap(host->self, zero_stream_host(), &optim->host));
    if (layout->bounce_bytes == 0) {
        return ZERO_OK;
    }
    ZI_TRY(make_share(optim));
    zi_staging_desc desc = {.device = optim->desc.device,
                            .stream =
                                optim->share != NULL ? optim->cpu_stream : optim->desc.step_stream,
                            .kernels = optim->desc.host_kernels,
                            .buffers = optim->desc.workspace + layout->bounce_at,
                            .buffer_bytes = layout->bounce_bytes};
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        desc.on_device[role] = zi_role_tier(layout, (zero_role)role) == ZERO_TIER_DEVICE;
    }
    desc.on_device[ZERO_ROLE_PARAM] |= optim->desc.param_staging != NULL;
    return zi_staging_create(&desc, &optim->staging);
}

static zero_status make_state_staging(zi_optim *optim)
{
    const zi_state_staging_desc desc = {.layout = optim->layout,
                                        .device = optim->desc.device,
                                        .step_stream = optim->desc.step_stream,
                                        .buffers = optim->desc.state_staging};
    return desc.buffers != NULL ? zi_state_staging_create(&desc, &optim->state_staging) : ZERO_OK;
}

static zero_status optim_build(zi_optim *optim)
{
    const zi_layout *layout = optim->layout;
    ZI_TRY(zi_calloc(layout->chunk_count, sizeof *optim->jobs, (void **)&optim->jobs));
    ZI_TRY(zi_calloc((size_t)ZI_WIRE_COLLECTIVES * gather_count(optim),
                     sizeof *optim->param_gathers, (void **)&optim->param_gathers));
    ZI_TRY(zi_calloc((size_t)gather_count(optim) + 1, sizeof *optim->gather_first,
                     (void **)&optim->gather_first));
    make_param_gathers(optim);
    zi_optim_make_layers(optim);
    ZI_TRY(make_state_staging(optim));
    for (uint32_t p = 0; p < layout->chunk_count; p++) {
        optim_make_job(optim, p);
    }
    ZI_TRY(make_staging(optim));
    ZI_TRY(optim_make_segments(optim));
    return layout->speculative_at != 0 ? zi_optim_make_speculation(optim) : ZERO_OK;
}

zero_status zi_optim_create(const zi_optim_desc *desc, zi_optim **out)
{
    *out = NULL;
    zi_optim *optim = NULL;
    ZI_TRY(zi_calloc(1, sizeof *optim, (void **)&optim));
    optim->desc = *desc;
    optim->layout = desc->layout;
    const zero_status status = optim_build(optim);
    if (status != ZERO_OK) {
        zi_optim_destroy(optim);
        return status;
    }
    *out = optim;
    return ZERO_OK;
}

void zi_optim_destroy(zi_optim *optim)
{
    if (optim != NULL) {
        zi_free(optim->jobs);
        zi_free(optim->speculative_jobs);
        zi_free(optim->speculated);
        if (optim->cpu_stream != NULL) {
            zi_share_close(optim->share, UINT64_MAX);
            optim_ops_of(optim)->stream_destroy(optim_self_of(optim), optim->cpu_stream);
        }
        zi_share_destroy(optim->share);
        zi_staging_destroy(optim->staging);
        zi_state_staging_destroy(optim->state_staging);
        zi_free(optim->segments);
        zi_free(optim->segment_first);
        zi_free(optim->param_gathers);
        zi_free(optim->gather_first);
        zi_free(optim);
    }
}

void zi_optim_rebind(zi_optim *optim, unsigned char *workspace)
{
    optim->desc.workspace = workspace;
    if (optim->staging != NULL) {
        zi_staging_rebind(optim->staging, workspace + optim->layout->bounce_at);
    }
    for (uint32_t p = 0; p < optim->layout->chunk_count; p++) {
        optim->jobs[p].grad = chunk_grad(optim, &optim->layout->chunks[p]);
        zi_optim_rebind_job(optim, p, &optim->jobs[p], NULL);
    }
    zi_optim_rebind_speculation(optim);
}
