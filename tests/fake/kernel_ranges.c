/* Owns nothing: the kernels' contracts, as lists. */
#include "kernel_ranges.h"

#include <stdlib.h>

#include "core/codec.h"

static void reads(kernel_ranges *list, const void *pointer, uint64_t bytes)
{
    if (pointer != NULL) {
        list->ranges[list->count++] = (race_range){pointer, bytes, false};
    }
}

static void writes(kernel_ranges *list, const void *pointer, uint64_t bytes)
{
    if (pointer != NULL) {
        list->ranges[list->count++] = (race_range){pointer, bytes, true};
    }
}

/* Of both an update and its measurement. Elements between segments count as touched: only
 * the device knows the segments. */
static void reads_job(kernel_ranges *list, const zi_update_job *job)
{
    reads(list, job->segments, job->segment_count * sizeof job->segments[0]);
    reads(list, job->decision, sizeof *job->decision);
    reads(list, job->grad, job->count * zero_dtype_bytes(job->grad_dtype));
    if (job->param_dtype == ZERO_DTYPE_F32 || job->state[ZI_STATE_MASTER] == NULL ||
        zi_job_has_remainder(job)) {
        reads(list, job->param, job->count * zero_dtype_bytes(job->param_dtype));
    }
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        reads(list, job->state[state], zi_codec_bytes(zi_job_state_codec(job, state), job->count));
    }
}

kernel_ranges kernel_ranges_measure(const zi_update_job *job)
{
    kernel_ranges list = {0};
    reads_job(&list, job);
    reads(&list, job->sums, job->layers * sizeof *job->sums);
    writes(&list, job->sums, job->layers * sizeof *job->sums);
    return list;
}

kernel_ranges kernel_ranges_layers(const zi_layers_job *job)
{
    kernel_ranges list = {0};
    if (job->phase == ZI_LAYERS_PACK) {
        reads(&list, job->sums, job->layers * sizeof *job->sums);
        writes(&list, job->sums, job->layers * sizeof *job->sums);
        writes(&list, job->packed, job->layers * sizeof *job->packed);
    } else {
        reads(&list, job->messages, job->message_count * job->message_bytes);
        writes(&list, job->norms, job->layers * sizeof *job->norms);
    }
    return list;
}

kernel_ranges kernel_ranges_update(const zi_update_job *job)
{
    kernel_ranges list = {0};
    reads_job(&list, job);
    writes(&list, job->param, job->count * zero_dtype_bytes(job->param_dtype));
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        writes(&list, job->state[state],
               zi_codec_bytes(zi_job_state_codec(job, state), job->count));
    }
    if (zi_optimizer_is_layerwise(job->optimizer)) {
        reads(&list, job->norms, job->layers * sizeof *job->norms);
    }
    reads(&list, job->stalled, sizeof *job->stalled);
    writes(&list, job->stalled, sizeof *job->stalled);
    return list;
}

kernel_ranges kernel_ranges_square_sum(const void *source, zero_dtype dtype, uint64_t count,
                                       const zi_norm_sum *sum)
{
    kernel_ranges list = {0};
    reads(&list, source, count * zero_dtype_bytes(dtype));
    reads(&list, sum, sizeof *sum);
    writes(&list, sum, sizeof *sum);
    return list;
}

kernel_ranges kernel_ranges_decide(const zi_decide_job *job)
{
    kernel_ranges list = {0};
    reads(&list, job->input, sizeof *job->input);
    reads(&list, job->state, sizeof *job->state);
    if ((job->phases & ZI_DECIDE_COLLECT) != 0) {
        reads(&list, job->messages.first, (size_t)job->messages.count * job->messages.bytes);
        writes(&list, job->part, sizeof *job->part);
    }
    if ((job->phases & ZI_DECIDE_CONCLUDE) != 0) {
        reads(&list, job->parts, job->part_count * sizeof *job->parts);
        writes(&list, job->state, sizeof *job->state);
        /* A skipped step leaves the groups of the decision as they were, and one that is refused
         * leaves all but what it says of that. */
        reads(&list, job->decision, sizeof *job->decision);
        writes(&list, job->decision, sizeof *job->decision);
        reads(&list, job->stalled, sizeof *job->stalled);
        writes(&list, job->stalled, sizeof *job->stalled);
    }
    return list;
}

kernel_ranges kernel_ranges_fold(const zi_fold *fold)
{
    const uint64_t dst_bytes = zi_packed_bytes(fold->dst_dtype, fold->count);
    kernel_ranges list = {0};
    if (fold->source_count > KERNEL_SOURCES_MAX) {
        abort();
    }
    for (uint32_t i = 0; i < fold->source_count; i++) {
        reads(&list, fold->sources[i], zi_packed_bytes(fold->source_dtype, fold->count));
    }
    if (fold->accumulate) {
        reads(&list, fold->dst, dst_bytes);
    }
    writes(&list, fold->dst, dst_bytes);
    reads(&list, fold->squares, sizeof *fold->squares);
    writes(&list, fold->squares, sizeof *fold->squares);
    return list;
}

kernel_ranges kernel_ranges_cast(const void *target, zero_dtype target_dtype, const void *source,
                                 zero_dtype source_dtype, uint64_t count)
{
    kernel_ranges list = {0};
    reads(&list, source, count * zero_dtype_bytes(source_dtype));
    writes(&list, target, count * zero_dtype_bytes(target_dtype));
    return list;
}

kernel_ranges kernel_ranges_encode(const void *codes, const void *scales, zero_dtype dtype,
                                   const void *source, zero_dtype source_dtype, uint64_t count)
{
    kernel_ranges list = {0};
    reads(&list, source, count * zero_dtype_bytes(source_dtype));
    writes(&list, codes, count * zero_dtype_bytes(dtype));
    writes(&list, scales, zi_block_scales_bytes(dtype, count));
    return list;
}

kernel_ranges kernel_ranges_decode(const void *target, zero_dtype target_dtype, const void *codes,
                                   const void *scales, zero_dtype dtype, uint64_t count)
{
    kernel_ranges list = {0};
    reads(&list, codes, count * zero_dtype_bytes(dtype));
    reads(&list, scales, zi_block_scales_bytes(dtype, count));
    writes(&list, target, count * zero_dtype_bytes(target_dtype));
    return list;
}
