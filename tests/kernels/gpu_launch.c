/* The functions of launch_now.h on a GPU: what a job points to is copied there, the real launch
 * runs, and what it wrote comes back. So the tests of the bodies become tests of the kernels. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/codec.h"
#include "kernels/cuda/launch.h"
#include "launch_now.h"

#define CUDA_CHECK(call)                                                     \
    do {                                                                     \
        const cudaError_t code_ = (call);                                    \
        if (code_ != cudaSuccess) {                                          \
            fprintf(stderr, "  %s: %s\n", #call, cudaGetErrorString(code_)); \
            fflush(NULL);                                                    \
            _exit(1);                                                        \
        }                                                                    \
    } while (0)

/* As far from a boundary as on the host, so that alignment is the test's matter. */
#define BOUNDARY 256

typedef struct mirror {
    void *host;
    size_t bytes;
    unsigned char *base;
    unsigned char *device;
} mirror;

static mirror open_mirror(const void *host, size_t bytes)
{
    mirror m = {.bytes = bytes};
    memcpy(&m.host, &host, sizeof host);
    if (host != NULL) {
        CUDA_CHECK(cudaMalloc((void **)&m.base, bytes + BOUNDARY));
        m.device = m.base + (uintptr_t)host % BOUNDARY;
        CUDA_CHECK(cudaMemcpy(m.device, host, bytes, cudaMemcpyHostToDevice));
    }
    return m;
}

static void close_mirror(mirror *m, bool written)
{
    if (m->host != NULL && written) {
        CUDA_CHECK(cudaMemcpy(m->host, m->device, m->bytes, cudaMemcpyDeviceToHost));
    }
    CUDA_CHECK(cudaFree(m->base));
}

static void finish(cudaError_t launched)
{
    CUDA_CHECK(launched);
    CUDA_CHECK(cudaDeviceSynchronize());
}

/* The bytes of a job's state. A last block of codes is written whole. */
static size_t state_bytes(const zi_update_job *job, uint32_t state)
{
    const zi_codec codec = zi_job_state_codec(job, state);
    const size_t blocks = (job->count + ZERO_CODE_BLOCK - 1) / ZERO_CODE_BLOCK;
    const size_t count = zi_dtype_is_code(codec.dtype) ? blocks * ZERO_CODE_BLOCK : job->count;
    return (codec.by_block ? blocks : count) * zero_dtype_bytes(codec.dtype);
}

/* A job's arrays on the GPU. */
typedef struct mirrored_job {
    zi_update_job there;
    mirror segments;
    mirror decision;
    mirror grad;
    mirror param;
    mirror stalled;
    mirror sums;
    mirror norms;
    mirror states[ZI_STATES];
} mirrored_job;

static mirrored_job open_job(const zi_update_job *job)
{
    mirrored_job all = {
        .there = *job,
        .segments = open_mirror(job->segments, job->segment_count * sizeof *job->segments),
        .decision = open_mirror(job->decision, sizeof *job->decision),
        .grad = open_mirror(job->grad, job->count * zero_dtype_bytes(job->grad_dtype)),
        .param = open_mirror(job->param, job->count * zero_dtype_bytes(job->param_dtype)),
        .stalled = open_mirror(job->stalled, sizeof *job->stalled),
        .sums = open_mirror(job->sums, job->layers * sizeof *job->sums),
        .norms = open_mirror(job->norms, job->layers * sizeof *job->norms)};
    all.there.segments = (const zi_segment *)(const void *)all.segments.device;
    all.there.decision = (const zi_step_decision *)(const void *)all.decision.device;
    all.there.grad = all.grad.device;
    all.there.param = all.param.device;
    all.there.stalled = (uint64_t *)(void *)all.stalled.device;
    all.there.sums = (zi_layer_sums *)(void *)all.sums.device;
    all.there.norms = (const zi_layer_norms *)(const void *)all.norms.device;
    for (uint32_t i = 0; i < ZI_STATES; i++) {
        all.states[i] = open_mirror(job->state[i], state_bytes(job, i));
        all.there.state[i] = all.states[i].device;
    }
    return all;
}

static void close_job(mirrored_job *all)
{
    close_mirror(&all->segments, false);
    close_mirror(&all->decision, false);
    close_mirror(&all->grad, false);
    close_mirror(&all->param, true);
    close_mirror(&all->stalled, true);
    close_mirror(&all->sums, true);
    close_mirror(&all->norms, false);
    for (uint32_t i = 0; i < ZI_STATES; i++) {
        close_mirror(&all->states[i], true);
    }
}

void launch_update_now(const zi_update_job *job)
{
    mirrored_job all = open_job(job);
    finish(zi_cuda_launch_update(NULL, &all.there));
    close_job(&all);
}

void launch_measure_now(const zi_update_job *job)
{
    mirrored_job all = open_job(job);
    finish(zi_cuda_launch_measure(NULL, &all.there));
    close_job(&all);
}

void launch_layers_now(const zi_layers_job *job)
{
    mirror sums = open_mirror(job->sums, job->layers * sizeof *job->sums);
    mirror packed = open_mirror(job->packed, job->layers * sizeof *job->packed);
    mirror messages = open_mirror(job->messages, job->message_count * job->message_bytes);
    mirror norms = open_mirror(job->norms, job->layers * sizeof *job->norms);
    zi_layers_job there = *job;
    there.sums = (zi_layer_sums *)(void *)sums.device;
    there.packed = (zi_packed_sums *)(void *)packed.device;
    there.messages = messages.device;
    there.norms = (zi_layer_norms *)(void *)norms.device;
    finish(zi_cuda_launch_layers(NULL, &there));
    close_mirror(&sums, true);
    close_mirror(&packed, true);
    close_mirror(&messages, false);
    close_mirror(&norms, true);
}

void launch_square_sum_now(const void *source, zero_dtype dtype, uint64_t count, zi_norm_sum *sum)
{
    mirror from = open_mirror(source, count * zero_dtype_bytes(dtype));
    mirror to = open_mirror(sum, sizeof *sum);
    finish(zi_cuda_launch_square_sum(NULL, from.device, dtype, count,
                                     (zi_norm_sum *)(void *)to.device));
    close_mirror(&from, false);
    close_mirror(&to, true);
}

void launch_decide_now(const zi_decide_job *job)
{
    mirror input = open_mirror(job->input, sizeof *job->input);
    mirror messages =
        open_mirror(job->messages.first, (size_t)job->messages.count * job->messages.bytes);
    mirror state = open_mirror(job->state, sizeof *job->state);
    mirror decision = open_mirror(job->decision, sizeof *job->decision);
    const bool alone = job->parts == job->part;
    mirror part = open_mirror(job->part, sizeof *job->part);
    mirror parts = open_mirror(alone ? NULL : job->parts, job->part_count * sizeof *job->parts);
    zi_decide_job there = {
        .input = (const zi_step_input *)(const void *)input.device,
        .messages = job->messages,
        .part = (zi_step_part *)(void *)part.device,
        .parts = (const zi_step_part *)(const void *)(alone ? part.device : parts.device),
        .part_count = job->part_count,
        .phases = job->phases,
        .state = (zi_step_state *)(void *)state.device,
        .decision = (zi_step_decision *)(void *)decision.device,
    };
    there.messages.first = messages.device;
    finish(zi_cuda_launch_decide(NULL, &there));
    close_mirror(&input, false);
    close_mirror(&messages, false);
    close_mirror(&part, true);
    close_mirror(&parts, false);
    close_mirror(&state, true);
    close_mirror(&decision, true);
}

void launch_fold_now(const zi_fold *fold)
{
    const size_t source_bytes = zi_packed_bytes(fold->source_dtype, fold->count);
    mirror *sources = calloc(fold->source_count + 1, sizeof *sources);
    const void **list = calloc(fold->source_count + 1, sizeof *list);
    mirror dst = open_mirror(fold->dst, zi_packed_bytes(fold->dst_dtype, fold->count));
    for (uint32_t i = 0; i < fold->source_count; i++) {
        const bool same = fold->sources[i] == fold->dst;
        sources[i] = open_mirror(same ? NULL : fold->sources[i], source_bytes);
        list[i] = same ? dst.device : sources[i].device;
    }
    mirror squares = open_mirror(fold->squares, sizeof *fold->squares);
    zi_fold there = *fold;
    there.dst = dst.device;
    there.sources = list;
    there.squares = (zi_norm_sum *)(void *)squares.device;
    finish(zi_cuda_launch_fold(NULL, &there));
    for (uint32_t i = 0; i < fold->source_count; i++) {
        close_mirror(&sources[i], false);
    }
    close_mirror(&dst, true);
    close_mirror(&squares, true);
    free(sources);
    free(list);
}

void launch_cast_now(void *target, zero_dtype target_dtype, const void *source,
                     zero_dtype source_dtype, uint64_t count)
{
    mirror from = open_mirror(source, count * zero_dtype_bytes(source_dtype));
    mirror to = open_mirror(target, count * zero_dtype_bytes(target_dtype));
    finish(zi_cuda_launch_cast(NULL, target == source ? from.device : to.device, target_dtype,
                               from.device, source_dtype, count));
    close_mirror(&from, false);
    close_mirror(&to, target != source);
}

void launch_encode_now(void *codes, void *scales, zero_dtype dtype, const void *source,
                       zero_dtype source_dtype, uint64_t count)
{
    mirror from = open_mirror(source, count * zero_dtype_bytes(source_dtype));
    mirror to = open_mirror(codes, count);
    mirror at = open_mirror(scales, zi_block_scales_bytes(dtype, count));
    finish(
        zi_cuda_launch_encode(NULL, to.device, at.device, dtype, from.device, source_dtype, count));
    close_mirror(&from, false);
    close_mirror(&to, true);
    close_mirror(&at, true);
}

void launch_decode_now(void *target, zero_dtype target_dtype, const void *codes, const void *scales,
                       zero_dtype dtype, uint64_t count)
{
    mirror from = open_mirror(codes, count);
    mirror at = open_mirror(scales, zi_block_scales_bytes(dtype, count));
    mirror to = open_mirror(target, count * zero_dtype_bytes(target_dtype));
    finish(
        zi_cuda_launch_decode(NULL, to.device, target_dtype, from.device, at.device, dtype, count));
    close_mirror(&from, false);
    close_mirror(&at, false);
    close_mirror(&to, true);
}
