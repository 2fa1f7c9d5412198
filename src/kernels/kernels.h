/* Element-wise and reduction kernels as the stages call them: enqueued on a stream, one table per
 * device.
 *
 * Arithmetic is fixed by kernels/math: the same bits on every ISA, device, thread split and range
 * split. All arrays are device memory; `grad`, `param`, ... point at the first element of the shard
 * that a job covers. */
#ifndef ZI_KERNELS_KERNELS_H
#define ZI_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "core/thread.h"
#include "device/device.h"
#include "kernels/math/norm.h"
#include "kernels/math/step.h"
#include "zero/dtype.h"
#include "zero/options.h"

/* A run of one tensor's elements inside a shard. */
typedef struct zi_segment {
    uint64_t offset;       /* first element, from the shard's start; a multiple of 64 */
    uint64_t count;        /* elements */
    uint64_t tensor_first; /* index in the tensor of its first element: keys stochastic rounding */
    uint32_t tensor;       /* index in the model */
    uint32_t group;        /* hyper-parameter group */
    uint32_t flags;        /* zero_tensor_flags */
} zi_segment;

/* One optimizer pass over one shard. The job stays in place until it has run. */
typedef struct zi_update_job {
    const zi_segment *segments;
    size_t segment_count;
    const void *grad; /* reduced sum; grad_dtype F32 or BF16 */
    void *param;      /* low-precision copy out, or the master itself when param_dtype is F32 */
    void *master;     /* F32; NULL when the parameter is its own master or there is none */
    void *moment1;    /* moment_dtype; NULL when the optimizer has none */
    void *moment2;
    zero_dtype grad_dtype;
    zero_dtype param_dtype;
    zero_dtype moment_dtype;
    uint64_t seed;
    /* Written by the decision task earlier on the same stream, read when the job runs. */
    const zi_step_decision *decision;
    /* The caller's own optimizer; NULL: AdamW. */
    zero_update_fn update;
    void *update_user;
    uint32_t update_states;
} zi_update_job;

typedef struct zi_kernels_ops {
    size_t struct_bytes;
    const char *name;
    /* One fused pass: skip, unscale and clip, update, write master, moments and parameter. */
    zero_status (*update)(void *self, zi_stream *stream, const zi_update_job *job);
    /* Add the squares of `count` elements to *sum, in chunks of ZI_NORM_CHUNK from `source` on. */
    zero_status (*square_sum)(void *self, zi_stream *stream, const void *source, zero_dtype dtype,
                              size_t count, zi_norm_sum *sum);
    /* target = round(source). Round to nearest even. Arrays are equal or do not overlap. */
    zero_status (*cast)(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                        const void *source, zero_dtype source_dtype, size_t count);
    /* target = round(target + source), in fp32. */
    zero_status (*add)(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                       const void *source, zero_dtype source_dtype, size_t count);
    void (*destroy)(void *self); /* accepts NULL */
} zi_kernels_ops;

typedef struct zi_kernels {
    const zi_kernels_ops *ops;
    void *self;
} zi_kernels;

/* Kernels of the CPU device. pool: the threads a kernel is spread over, borrowed; NULL: the
 * stream's own thread. */
zero_status zi_cpu_kernels_create(const zi_device *device, zi_pool *pool, zi_kernels *kernels);

/* Accepts a zeroed value. */
void zi_kernels_destroy(zi_kernels *kernels);

#endif
