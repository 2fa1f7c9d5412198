/* Element-wise and reduction kernels as the stages call them: enqueued on a stream, one table per
 * device.
 *
 * Arithmetic is fixed by kernels/math: the same bits on every ISA, device, thread split and range
 * split. Which bits a NaN has is not specified: a GPU's operations make others than a CPU's, and
 * compilers choose which operand's survive. All arrays are device memory; `grad`, `param`, ...
 * point at the first element of the shard that a job covers. */
#ifndef ZI_KERNELS_KERNELS_H
#define ZI_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/block_codec.h"
#include "core/dtype.h"
#include "core/role.h"
#include "core/thread.h"
#include "device/device.h"
#include "kernels/math/layer_norms.h"
#include "kernels/math/norm.h"
#include "kernels/math/step.h"
#include "zero/dtype.h"
#include "zero/options.h"

/* A range of one tensor's elements inside a shard. */
typedef struct zi_segment {
    uint64_t offset;       /* first element, from the shard's start; a multiple of 64 */
    uint64_t count;        /* elements */
    uint64_t tensor_first; /* index in the tensor of its first element: keys stochastic rounding */
    uint32_t tensor;       /* index in the model */
    uint32_t group;        /* hyper-parameter group */
    uint32_t flags;        /* zero_tensor_flags */
    uint32_t layer;        /* index among tensors whose norms are measured; 0 for others */
} zi_segment;

/* One optimizer pass over one shard. The job stays in place until it is issued. */
typedef struct zi_update_job {
    const zi_segment *segments; /* device memory; by ascending offset */
    size_t segment_count;
    uint64_t count;   /* elements up to the end of the last segment */
    const void *grad; /* reduced sum; grad_dtype F32 or BF16 */
    void *param;      /* low-precision copy out, or the master itself when param_dtype is F32 */
    /* By state: the master, moments, and scales of those in codes. NULL: there is none, as where
     * the parameter is its own master. */
    void *state[ZI_STATES];
    zero_dtype master_dtype; /* DEFAULT: F32; or a remainder, whose `param`, of BF16, is read too */
    zero_dtype grad_dtype;
    zero_dtype param_dtype;
    zero_dtype moment_dtype; /* I8: codes, of the optimizer's kinds */
    uint64_t seed;
    int32_t over_bus; /* on a GPU: its state is in host memory */
    /* Device memory: written by `decide` earlier on the same stream, read when the job runs. */
    const zi_step_decision *decision;
    /* Device memory: the number of elements is added whose gradient is not 0 and whose master, or
     * parameter that is its own, has the bits that it had. NULL: they are not counted. */
    uint64_t *stalled;
    /* Device memory, by layer, of optimizers that are layer-wise: what a measurement adds to, and
     * what an update goes by. */
    zi_layer_sums *sums;
    const zi_layer_norms *norms;
    zero_optimizer optimizer; /* not DEFAULT */
    zero_update_fn update;    /* of ZERO_OPTIMIZER_CALLBACK, and the next two */
    void *update_user;
    uint32_t update_states;
    uint32_t layers; /* of sums and norms */
} zi_update_job;

static inline bool zi_job_has_remainder(const zi_update_job *job)
{
    return job->state[ZI_STATE_MASTER] != NULL && zi_dtype_is_remainder(job->master_dtype);
}

/* Of a state that the job has. */
static inline zi_codec zi_job_state_codec(const zi_update_job *job, uint32_t state)
{
    zi_codec codec = {job->moment_dtype, false};
    if (state == ZI_STATE_SCALE1 || state == ZI_STATE_SCALE2) {
        codec.dtype = ZERO_DTYPE_BF16;
        codec.by_block = true;
    } else if (state == ZI_STATE_MASTER) {
        codec.dtype = zi_job_has_remainder(job) ? job->master_dtype : ZERO_DTYPE_F32;
    }
    return codec;
}

/* Between the measurement of all jobs and their updates: PACK takes this rank's sums, which are
 * zeros then, to what it sends; MERGE takes what all ranks have sent to norms. All is device
 * memory. */
typedef struct zi_layers_job {
    uint32_t layers;
    uint32_t phase;                /* zi_layers_phase */
    zi_layer_sums *sums;           /* PACK: by layer */
    zi_packed_sums *packed;        /* PACK: likewise */
    const unsigned char *messages; /* MERGE: those of all members, one after the other */
    uint64_t message_bytes;        /* from one to the next */
    uint32_t message_count;
    uint32_t peer_first;   /* every peer_stride-th one from here on covers every element */
    uint32_t peer_stride;  /* once; >= 1 */
    zi_layer_norms *norms; /* MERGE: by layer */
} zi_layers_job;

typedef enum zi_layers_phase { ZI_LAYERS_PACK = 1, ZI_LAYERS_MERGE = 2 } zi_layers_phase;

/* Of the rank's message `index`, what it has of a layer. */
ZI_LANE const zi_packed_sums *zi_layers_message(const zi_layers_job *job, uint32_t index,
                                                uint32_t layer)
{
    const unsigned char *message = job->messages + index * job->message_bytes;
    return (const zi_packed_sums *)(const void *)message + layer;
}

/* dst = round((accumulate ? dst : 0) + scale * sum), where sum adds sources[0], sources[1], ... in
 * that order, in fp32, from +0, and is complete before it is scaled. sources[i] == NULL contributes
 * zeros. dst may be one of the sources when the types are equal; no other overlap.
 *
 * In a packed type (core/block_codec.h) dst or sources are whole granules, at addresses that are
 * multiples of 4. A packed dst is rounded stochastically (math/packed.h), has no squares, is not
 * accumulated to and is none of the sources. */
typedef struct zi_fold {
    void *dst;
    const void *const *sources;
    uint32_t source_count; /* 0: the sum is +0 */
    size_t count;          /* elements of dst and of every source */
    zero_dtype dst_dtype;
    zero_dtype source_dtype;
    int32_t accumulate;
    float scale; /* a power of two, so that it changes no bit of a sum in range; 0: 1 */
    /* Device memory: the squares of the new dst are added, with the bits of a square_sum of dst.
     * NULL: they are not. */
    zi_norm_sum *squares;
    /* Of the rounding of a packed dst: its key, and the index of its first element, by which the
     * same element of the same array is rounded alike wherever it is cut. */
    uint64_t key;
    uint64_t first; /* a multiple of ZI_GRANULE */
} zi_fold;

static inline bool zi_fold_is_packed(const zi_fold *fold)
{
    return zi_dtype_is_packed(fold->dst_dtype) || zi_dtype_is_packed(fold->source_dtype);
}

static inline float zi_fold_scale(const zi_fold *fold)
{
    return fold->scale != 0.0f ? fold->scale : 1.0f;
}

/* From the messages of all ranks to a step's decision. COLLECT compares the messages and adds up
 * their squares, for this part of the model; CONCLUDE decides from all parts. Both are one job
 * where there is one part; else two jobs, between which the parts are gathered. `input` is host
 * memory that the device reaches, and stays until the job has run; all else is device memory. */
typedef struct zi_decide_job {
    const zi_step_input *input;
    zi_step_messages messages; /* COLLECT: compared, and their squares added up */
    zi_step_part *part;        /* COLLECT: written */
    const zi_step_part *parts; /* CONCLUDE: of all, in the order of their ranks; `part` if alone */
    uint32_t part_count;       /* CONCLUDE */
    uint32_t phases;           /* zi_decide_phases */
    zi_step_state *state;      /* COLLECT: read; CONCLUDE: moves on */
    zi_step_decision *decision;
    uint64_t *stalled; /* CONCLUDE: moves to the decision, and is 0 then; NULL: nobody counts */
} zi_decide_job;

typedef enum zi_decide_phases { ZI_DECIDE_COLLECT = 1, ZI_DECIDE_CONCLUDE = 2 } zi_decide_phases;

typedef struct zi_kernels_ops {
    size_t struct_bytes;
    const char *name;
    uint32_t sources_max; /* of a fold; 0: any number */
    /* One fused pass: skip, unscale and clip, update, write master, moments and parameter. */
    zero_status (*update)(void *self, zi_stream *stream, const zi_update_job *job);
    /* Before the update of a job whose optimizer is layer-wise: add the squares of its parameters,
     * and of the directions that its update will take, to those of its layers. A step that is
     * skipped adds nothing. */
    zero_status (*measure)(void *self, zi_stream *stream, const zi_update_job *job);
    zero_status (*layers)(void *self, zi_stream *stream, const zi_layers_job *job);
    /* Add the squares of `count` elements to *sum, in chunks of ZI_NORM_CHUNK from `source` on. */
    zero_status (*square_sum)(void *self, zi_stream *stream, const void *source, zero_dtype dtype,
                              size_t count, zi_norm_sum *sum);
    /* zi_step_collect and zi_step_conclude on the device. */
    zero_status (*decide)(void *self, zi_stream *stream, const zi_decide_job *job);
    /* The fold and its list of sources stay in place until it is issued. */
    zero_status (*fold)(void *self, zi_stream *stream, const zi_fold *fold);
    /* target = round(source). Round to nearest even. Arrays are equal or do not overlap. `source`
     * may be host memory that the device reaches. */
    zero_status (*cast)(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                        const void *source, zero_dtype source_dtype, size_t count);
    /* The codes and scales of `count` elements, which begin at a granule, in a type of
     * core/block_codec.h. source: F32, BF16 or F16. No overlap. */
    zero_status (*encode)(void *self, zi_stream *stream, void *codes, void *scales,
                          zero_dtype dtype, const void *source, zero_dtype source_dtype,
                          size_t count);
    /* The same back: target = round(value), to nearest even. target: F32, BF16 or F16. */
    zero_status (*decode)(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                          const void *codes, const void *scales, zero_dtype dtype, size_t count);
    void (*destroy)(void *self); /* accepts NULL */
} zi_kernels_ops;

typedef struct zi_kernels {
    const zi_kernels_ops *ops;
    void *self;
    const zi_device *device; /* whose streams and memory they work on */
} zi_kernels;

/* Kernels of the CPU device. pool: the threads a kernel is spread over, borrowed; NULL: the
 * stream's own thread. */
zero_status zi_cpu_kernels_create(const zi_device *device, zi_pool *pool, zi_kernels *kernels);

/* Kernels of a CUDA device. UNSUPPORTED in a build without CUDA. */
zero_status zi_cuda_kernels_create(const zi_device *device, zi_kernels *kernels);

/* Accepts a zeroed value. */
void zi_kernels_destroy(zi_kernels *kernels);

#endif
