/** @file
 *  What a rank needs of each tier, beside what it has.
 *
 *  The bytes of parameters, gradients and optimizer state are those of the engine's own plan
 *  (zero/plan.h), to the byte. Activations are counted from the transformer's dimensions.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of libzero-plan. */
#ifndef ZERO_FOOTPRINT_H
#define ZERO_FOOTPRINT_H

#include "zero/cluster.h"
#include "zero/export.h"
#include "zero/options.h"
#include "zero/plan.h"
#include "zero/status.h"
#include "zero/transformer.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** How parameters and gradients are sent between ranks. Grows at its end. */
typedef enum zero_wire {
    ZERO_WIRE_ENGINE = 0, /**< as an engine does: its plan's types, nothing quantised */
    ZERO_WIRE_ZEROPP = 1, /**< as a peer does, to compare: ZeRO++ (Wang et al., 2023) gathers
                               parameters in int8 in forward and within a node in backward, from a
                               second copy that no footprint counts, and reduces gradients in
                               int4 */
    ZERO_WIRE_COUNT = 2   /**< how many values there are */
} zero_wire;

/** A rank's work in a micro-step, and the micro-steps of an update. Grows at its end. */
typedef struct zero_batch {
    size_t struct_bytes;  /**< set by zero_batch_init() */
    uint64_t samples;     /**< of a rank in a micro-step, in [1, 2^20]. 0: 1 */
    uint64_t sequence;    /**< tokens of a sample, at most the transformer's. 0: as many */
    uint64_t logit_rows;  /**< tokens whose logits exist at once. 0: all of a micro-step */
    zero_dtype dtype;     /**< of activations. Default: that of the parameters */
    uint32_t recompute;   /**< 1: only the residual stream of each block is kept for backward, which
                               computes the rest of it again (Chen et al., "Training deep nets with
                               sublinear memory cost", 2016). 2: so in every second block. 0: all is
                               kept */
    uint32_t micro_steps; /**< of a step, in [1, 65536]. 0: 1 */
    uint64_t interleave;  /**< groups of neighbouring blocks that a pipeline stage has (Narayanan et
                               al., 2021, section 2.2), at most its blocks. 0: 1 */
    uint64_t context_parallel;  /**< ranks that split the tokens of each sample and gather its keys
                                     and values; divides sequence. `samples` is then of all of
                                     them together. 0: 1 */
    uint32_t sequence_parallel; /**< 1: ranks of tensor parallelism split norms and the residual
                                     stream by tokens (Korthikanti et al., 2022). 0: each has all */
    uint32_t fp8; /**< 1: the matrices of blocks are multiplied in fp8; not attention and the head.
                       0: in 16 bits. For zero_estimate_of */
    zero_wire wire; /**< for zero_estimate_of */
    uint32_t fused; /**< 1: operations between products are fused: compiled, or kernels written for
                         them. 0: one by one, as PyTorch runs them by itself: they move twice the
                         bytes, and keep the activation function's value before it meets the gate,
                         and queries and keys before their rotation too */
    uint32_t stored_attention; /**< 1: attention stores its scores. 0: it does not (Dao et al.,
                                    "FlashAttention", 2022) */
    uint32_t mesh_overlap; /**< 1: ranks of a mesh send sums, keys and the stream in parts, while
                                products run, as TransformerEngine does. For zero_estimate_of */
} zero_batch;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_batch_init_sized(zero_batch *batch, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_batch zero_batch_init(void)
{
    zero_batch batch;
    zero_batch_init_sized(&batch, sizeof batch);
    return batch;
}

/** One rank's bytes. Grows at its end. */
typedef struct zero_footprint {
    size_t struct_bytes;                      /**< set by zero_footprint_init() */
    uint64_t role_bytes[ZERO_ROLE_COUNT_MAX]; /**< the engine's, by role: its plan */
    uint64_t activation_bytes;                /**< on the device */
    uint64_t need_bytes[ZERO_TIER_COUNT_MAX]; /**< by tier: the engine's, activations, reserves */
    uint64_t have_bytes[ZERO_TIER_COUNT_MAX]; /**< by tier: the rank's share of its node's */
    uint64_t likely_low_bytes;  /**< between this and the next lie 80 % of the peaks that two
                                     trainers on PyTorch report for the device, with its reserve
                                     (docs/feasibility.md): need_bytes with what their allocator
                                     adds and their loss spares. At most 2^63 - 1 */
    uint64_t likely_high_bytes; /**< likewise */
} zero_footprint;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_footprint_init_sized(zero_footprint *footprint, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_footprint zero_footprint_init(void)
{
    zero_footprint footprint;
    zero_footprint_init_sized(&footprint, sizeof footprint);
    return footprint;
}

/** Bytes that forward keeps for backward, with what both work in: the residual stream, the inputs
 *  of all products and norms, the attention's rows, the logits, and the gradients under way in one
 *  block. Korthikanti et al., "Reducing activation recomputation in large transformer models",
 * 2022, section 4, counts the same without dropout and scores: 32 bytes for each token and element
 * of the width in 16 bits. Activations in 16 bits have a loss in fp32, which keeps the logits and
 * their gradient once more. Of pipeline stages it is the first, which keeps pipeline_parallel
 * micro-steps at once.
 *  - bytes: out.
 *  - Local call.
 *  - Errors: those of zero_transformer_check; INVALID_ARGUMENT naming the batch's field, and for
 *    2^63 bytes or more.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_activation_bytes(const zero_transformer *transformer,
                                                           const zero_batch *batch,
                                                           uint64_t *bytes);

/** The bytes of a rank that trains the transformer on the cluster. Inside a mesh (tensor_parallel,
 *  pipeline_parallel) the engine's world is a column of it: the cluster's ranks divided by both.
 *  With expert_parallel a second engine has the experts, in a world of a column's ranks divided by
 *  it, with the same options.
 *  - options: of the engine; NULL: all defaults. `device` is taken as given: ZERO_DEVICE_CUDA is
 *    what a cluster has.
 *  - batch: NULL: one sample, everything kept.
 *  - footprint: in: struct_bytes, of zero_footprint_init(); out: the rest, as far as the struct
 *    goes. That it does not fit is no error.
 *  - Local call. Memory: the plan's own while it is made.
 *  - Errors: those of zero_transformer_check, zero_cluster_check, zero_activation_bytes and
 *    zero_plan_create; INVALID_ARGUMENT where the mesh does not divide the cluster's ranks.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_footprint_of(const zero_transformer *transformer,
                                                       const zero_cluster *cluster,
                                                       const zero_engine_options *options,
                                                       const zero_batch *batch,
                                                       zero_footprint *footprint);

/** 1 where no tier needs more than the rank has, else 0. 0 for NULL. */
ZERO_API int32_t zero_footprint_fits(const zero_footprint *footprint);

/** As deep as zero_footprint_layers looks. */
#define ZERO_FOOTPRINT_LAYERS_MAX 1024

/** The deepest transformer of these dimensions that fits: `layers` as large as it may be, up to
 *  ZERO_FOOTPRINT_LAYERS_MAX; with stages a multiple of pipeline_parallel.
 *  - layers: out; 0: not even one does.
 *  - The rest as in zero_footprint_of. */
ZERO_API ZERO_MUST_CHECK zero_status zero_footprint_layers(const zero_transformer *transformer,
                                                           const zero_cluster *cluster,
                                                           const zero_engine_options *options,
                                                           const zero_batch *batch,
                                                           uint64_t *layers);

ZERO_END

#endif
