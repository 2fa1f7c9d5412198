/* Owns the update jobs. Invariant: segments of a flat are this rank's part of its tensors, in
 * order, without padding. */
#include "stage1/optim.h"

#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/sharding.h"

_Static_assert(sizeof(zi_segment) <= ZI_SEGMENT_BYTES, "layout reserves too little for segments");

struct zi_optim {
    zi_optim_desc desc;
    const zi_layout *layout;
    zi_optim_flat *flats;
    zi_update_job *jobs; /* by flat; no segments when frozen */
    zi_collective *publishes;
};

void zi_optim_part(const zi_optim *optim, uint32_t flat, uint64_t *first, uint64_t *count)
{
    const zero_sharding *s = &optim->layout->sharding;
    *count = zi_shard_count(optim->layout, &optim->layout->flats[flat], s->optimizer);
    *first = *count * zi_shard_index(s, optim->desc.rank, s->optimizer);
}

void *zi_optim_state(const zi_optim *optim, uint32_t flat, zero_role role)
{
    const zi_flat *place = &optim->layout->flats[flat];
    if (!place->trained) {
        return NULL;
    }
    if (role == ZERO_ROLE_MASTER) {
        return place->has_master ? optim->desc.master + place->master_at : NULL;
    }
    const uint32_t moment = role == ZERO_ROLE_MOMENT1 ? 0 : 1;
    return moment < optim->layout->moment_count
               ? optim->desc.moment[moment] + place->moment_at[moment]
               : NULL;
}

/* This rank's part of the flat inside its parameter shard. */
static unsigned char *param_part(const zi_optim *optim, uint32_t flat)
{
    const zero_sharding *s = &optim->layout->sharding;
    const zi_flat *place = &optim->layout->flats[flat];
    const uint32_t part =
        zi_shard_index(s, optim->desc.rank, s->optimizer) % (s->optimizer / s->param);
    return optim->flats[flat].param + part * zi_shard_count(optim->layout, place, s->optimizer) *
                                          zero_dtype_bytes(place->dtype);
}

static void make_job(zi_optim *optim, uint32_t flat)
{
    const zi_layout *layout = optim->layout;
    const zi_flat *place = &layout->flats[flat];
    const zero_engine_options *options = &layout->options;
    const bool own = options->optimizer == ZERO_OPTIMIZER_CALLBACK;
    optim->jobs[flat] = (zi_update_job){
        .grad = optim->flats[flat].grad,
        .param = param_part(optim, flat),
        .master = zi_optim_state(optim, flat, ZERO_ROLE_MASTER),
        .moment1 = zi_optim_state(optim, flat, ZERO_ROLE_MOMENT1),
        .moment2 = zi_optim_state(optim, flat, ZERO_ROLE_MOMENT2),
        .grad_dtype = options->accum_dtype,
        .param_dtype = place->dtype,
        .moment_dtype = options->moment_dtype,
        .seed = options->seed,
        .decision = optim->desc.decision,
        .update = own ? options->update : NULL,
        .update_user = options->update_user,
        .update_states = options->update_states,
    };
    optim->publishes[flat] = (zi_collective){
        .kind = ZI_ALL_GATHER,
        .send_dtype = place->dtype,
        .recv_dtype = place->dtype,
        .tag = place->unit,
        .count = zi_shard_count(layout, place, layout->sharding.optimizer),
        .send = param_part(optim, flat),
        .recv = optim->flats[flat].param,
    };
}

/* The piece of a tensor that lies in this rank's part, if any. */
static bool make_segment(const zi_optim *optim, uint32_t tensor, zi_segment *segment)
{
    const zi_tensor_info *info = &optim->layout->tensor_infos[tensor];
    const zi_tensor_place *place = &optim->layout->tensors[tensor];
    uint64_t first = 0;
    uint64_t count = 0;
    zi_optim_part(optim, place->flat, &first, &count);
    const uint64_t begin = zi_max_u64(first, place->offset);
    const uint64_t end = zi_min_u64(first + count, place->offset + info->count);
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

/* Two sweeps over the tensors: count each flat's segments, then write them where they belong, all
 * flats' end to end. */
static void list_segments(zi_optim *optim, zi_segment *segments)
{
    const zi_layout *layout = optim->layout;
    zi_segment segment;
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        if (layout->flats[layout->tensors[t].flat].trained && make_segment(optim, t, &segment)) {
            optim->jobs[layout->tensors[t].flat].segment_count++;
        }
    }
    zi_segment *next = segments;
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        optim->jobs[f].segments = next;
        next += optim->jobs[f].segment_count;
        optim->jobs[f].segment_count = 0;
    }
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        if (layout->flats[layout->tensors[t].flat].trained && make_segment(optim, t, &segment)) {
            zi_update_job *job = &optim->jobs[layout->tensors[t].flat];
            segments[(size_t)(job->segments - segments) + job->segment_count++] = segment;
            job->count = segment.offset + segment.count;
        }
    }
}

/* The jobs' segments are read on the device, so that is where they go. */
static zero_status make_segments(zi_optim *optim)
{
    const zi_device *device = optim->desc.device;
    zi_segment *segments = NULL;
    zi_stream *host = NULL;
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &host));
    ZI_TRY(zi_calloc(optim->layout->tensor_count, sizeof *segments, (void **)&segments));
    list_segments(optim, segments);
    size_t count = 0;
    for (uint32_t f = 0; f < optim->layout->flat_count; f++) {
        zi_update_job *job = &optim->jobs[f];
        job->segments = (const zi_segment *)(const void *)optim->desc.segments + count;
        count += job->segment_count;
    }
    const zero_status status = device->ops->copy(device->self, host, optim->desc.segments, segments,
                                                 count * sizeof *segments);
    zi_free(segments);
    return status;
}

static zero_status build(zi_optim *optim, const zi_optim_flat *flats)
{
    const zi_layout *layout = optim->layout;
    ZI_TRY(zi_calloc(layout->flat_count, sizeof *optim->flats, (void **)&optim->flats));
    ZI_TRY(zi_calloc(layout->flat_count, sizeof *optim->jobs, (void **)&optim->jobs));
    ZI_TRY(zi_calloc(layout->flat_count, sizeof *optim->publishes, (void **)&optim->publishes));
    if (layout->flat_count != 0) {
        memcpy(optim->flats, flats, layout->flat_count * sizeof *flats);
    }
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        if (layout->flats[f].trained) {
            make_job(optim, f);
        }
    }
    return make_segments(optim);
}

zero_status zi_optim_create(const zi_optim_desc *desc, zi_optim **out)
{
    *out = NULL;
    zi_optim *optim = NULL;
    ZI_TRY(zi_calloc(1, sizeof *optim, (void **)&optim));
    optim->desc = *desc;
    optim->layout = desc->layout;
    const zero_status status = build(optim, desc->flats);
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
        zi_free(optim->flats);
        zi_free(optim->jobs);
        zi_free(optim->publishes);
        zi_free(optim);
    }
}

zero_status zi_optim_step_unit(zi_optim *optim, uint32_t unit)
{
    const zi_unit_place *place = &optim->layout->units[unit];
    const zi_kernels *kernels = optim->desc.kernels;
    /* A unit's trained flats come first: layout puts the frozen ones behind. */
    uint32_t trained = 0;
    while (trained < place->flat_count &&
           optim->layout->flats[place->flat_first + trained].trained) {
        const zi_update_job *job = &optim->jobs[place->flat_first + trained];
        if (job->segment_count != 0) {
            ZI_TRY(kernels->ops->update(kernels->self, optim->desc.step_stream, job));
        }
        trained++;
    }
    if (trained == 0 || optim->desc.publish->size == 1) {
        return ZERO_OK;
    }
    const zi_collective *batch = &optim->publishes[place->flat_first];
    optim->desc.stats->publishes++;
    for (uint32_t i = 0; i < trained; i++) {
        optim->desc.stats->gather_bytes +=
            batch[i].count * optim->desc.publish->size * zero_dtype_bytes(batch[i].send_dtype);
    }
    return zi_group_submit(optim->desc.publish, optim->desc.step_stream, batch, trained);
}
