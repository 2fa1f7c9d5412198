/* Owns the norms of tensors whose optimizer has layer-wise rates: before any of a step's updates,
 * each rank measures its shards, ranks gather the sums, and each has the norms of all tensors.
 * Invariant: the sums are zeros between steps, and no update has begun while they are added to. */
#include "core/clock.h"
#include "core/error.h"
#include "stage1/optim_internal.h"

_Static_assert(sizeof(zi_layer_sums) == ZI_LAYER_SUMS_BYTES &&
                   sizeof(zi_packed_sums) == ZI_LAYER_MESSAGE_BYTES &&
                   sizeof(zi_layer_norms) == ZI_LAYER_NORMS_BYTES,
               "layout reserves what a layer takes");

zi_layer_sums *zi_optim_layer_sums(const zi_optim *optim)
{
    return (zi_layer_sums *)(void *)(optim->desc.step_arena + optim->layout->layer_sums_at);
}

zi_layer_norms *zi_optim_layer_norms(const zi_optim *optim)
{
    return (zi_layer_norms *)(void *)(optim->desc.step_arena + optim->layout->layer_norms_at);
}

void zi_optim_make_layers(zi_optim *optim)
{
    const zi_layout *layout = optim->layout;
    unsigned char *message = optim->desc.step_arena + layout->layer_message_at;
    unsigned char *messages = optim->desc.step_arena + layout->layer_messages_at;
    optim->layers = (zi_layers_job){.layers = layout->layer_count,
                                    .sums = zi_optim_layer_sums(optim),
                                    .packed = (zi_packed_sums *)(void *)message,
                                    .messages = messages,
                                    .message_bytes = layout->layer_message_bytes,
                                    .message_count = layout->world,
                                    .peer_first = optim->desc.peer_first,
                                    .peer_stride = optim->desc.peer_stride,
                                    .norms = zi_optim_layer_norms(optim)};
    optim->layer_gather = (zi_collective){.kind = ZI_ALL_GATHER,
                                          .send_dtype = ZERO_DTYPE_F32,
                                          .recv_dtype = ZERO_DTYPE_F32,
                                          .tag = ZI_TAG_STEP,
                                          .count = layout->layer_message_bytes / sizeof(float),
                                          .send = message,
                                          .recv = messages};
}

zero_status zi_optim_connect_layers(zi_optim *optim)
{
    return optim->layout->layer_count != 0
               ? zi_group_connect(optim->desc.norm_group, optim->desc.step_stream,
                                  &optim->layer_gather, 1)
               : ZERO_OK;
}

static bool is_measured(const zi_optim *optim, uint32_t p)
{
    const zi_flat *flat = &optim->layout->flats[optim->layout->chunks[p].flat];
    return zi_optimizer_is_layerwise(flat->optimizer) && optim->jobs[p].segment_count != 0 &&
           optim->desc.counts[flat->sharding];
}

static zero_status measure_chunk(void *argument)
{
    const optim_work *work = argument;
    zi_optim *optim = work->optim;
    const zi_kernels *kernels = optim->desc.kernels;
    const bool timed = optim_ops_of(optim)->host_memory;
    const uint64_t start_ns = timed ? zi_clock_ns() : 0;
    ZI_TRY(
        kernels->ops->measure(kernels->self, optim->desc.step_stream, &optim->jobs[work->chunk]));
    if (timed) {
        atomic_fetch_add_explicit(&optim->update_ns, zi_clock_ns() - start_ns,
                                  memory_order_relaxed);
    }
    return ZERO_OK;
}

/* Enqueue the measurement of work->chunk, with its state in a staging buffer where the update has
 * it there; that buffer is free again behind it. */
static zero_status enqueue_measurement(const optim_work *work)
{
    zi_optim *optim = work->optim;
    void *host[ZI_STATES];
    if (optim->state_staging == NULL) {
        return zi_optim_enqueue_update(optim, measure_chunk, work);
    }
    zi_optim_host_states(optim, work->chunk, host);
    ZI_TRY(zi_state_staging_fetch(optim->state_staging, work->chunk, host));
    ZI_TRY(zi_optim_enqueue_update(optim, measure_chunk, work));
    return zi_state_staging_drop(optim->state_staging, work->chunk);
}

static zero_status layers_phase(void *argument)
{
    const optim_work *work = argument;
    zi_optim *optim = work->optim;
    const zi_kernels *kernels = optim->desc.kernels;
    zi_layers_job job = optim->layers;
    job.phase = work->merges ? ZI_LAYERS_MERGE : ZI_LAYERS_PACK;
    return kernels->ops->layers(kernels->self, optim->desc.step_stream, &job);
}

zero_status zi_optim_measure(zi_optim *optim)
{
    optim_work work = {.optim = optim};
    if (optim->layout->layer_count == 0) {
        return ZERO_OK;
    }
    if (optim->state_staging != NULL) {
        ZI_TRY(zi_state_staging_begin(optim->state_staging));
    }
    for (uint32_t p = 0; p < optim->layout->chunk_count; p++) {
        work.chunk = p;
        work.unit = optim->layout->flats[optim->layout->chunks[p].flat].unit;
        ZI_TRY(is_measured(optim, p) ? enqueue_measurement(&work) : ZERO_OK);
    }
    ZI_TRY(zi_optim_enqueue(optim, layers_phase, &work));
    ZI_TRY(
        zi_group_submit(optim->desc.norm_group, optim->desc.step_stream, &optim->layer_gather, 1));
    work.merges = true;
    return zi_optim_enqueue(optim, layers_phase, &work);
}
