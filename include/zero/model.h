/** @file
 *  The description of a model: units in the order forward first uses them, and their tensors.
 *
 *  Nothing is allocated for the tensors here. A unit is what is gathered at once, usually a layer.
 *  Every rank describes the same model in the same order; zero_engine_create compares. */
#ifndef ZERO_MODEL_H
#define ZERO_MODEL_H

#include "zero/array.h"
#include "zero/dtype.h"
#include "zero/export.h"
#include "zero/status.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** A description under construction. Threads: one at a time. */
typedef struct zero_model zero_model;

/** Properties of a tensor, combined with |. */
typedef enum zero_tensor_flags {
    ZERO_TENSOR_PLAIN = 0,    /**< trained, decayed */
    ZERO_TENSOR_NO_DECAY = 1, /**< weight decay does not apply (norms, biases) */
    ZERO_TENSOR_FROZEN = 2    /**< never trained: no gradient, no optimizer state */
} zero_tensor_flags;

/** One parameter of the model, or this model-parallel rank's part of one. With every field but the
 *  name 0 it is an fp32 scalar. The layout is frozen, since callers have arrays of it: later
 *  versions use `reserved`.
 *
 *  With tensor or expert parallelism around the engine, a tensor is a box of a global one: `.shape
 *  = {C, F / 4}, .global_shape = {C, F}, .box_first = {0, 2 * F / 4}` is the third of four column
 *  shards. All ranks of the engine's world hold the same box, which the engine shards. A tensor
 *  that several boxes repeat (a norm's weight under tensor parallelism) is marked by `replica` on
 *  all its holders but one. */
typedef struct zero_tensor_desc {
    const char *name;                     /**< unique in the model, 1..127 bytes; UTF-8 without
                                             control characters, not "__metadata__"; copied */
    uint64_t shape[ZERO_TENSOR_DIMS_MAX]; /**< extents, outermost first; 0 is legal, and
                                             all that there is beyond dims */
    uint32_t dims;                        /**< in [0, 8]; 0 is a scalar (one element) */
    zero_dtype dtype;                     /**< element type of the parameter; default F32 */
    uint32_t flags;                       /**< zero_tensor_flags */
    uint32_t group;                       /**< hyper-parameter group, in [0, 64) */
    zero_array initial;    /**< data NULL, or the whole tensor: zero_engine_create reads this
                              rank's part of it. The master takes the values before they are
                              rounded. Say its dtype beside a 16-bit tensor: where it is left at
                              the default the array is read as 16 bits too, and the first such
                              tensor of a model is a warning (zero/log.h) */
    uint64_t layer_stride; /**< elements from a layer's `initial` to the next layer's, for
                              units of several layers; 0: layers lie end to end */
    uint64_t
        global_shape[ZERO_TENSOR_DIMS_MAX];   /**< extents of the global tensor; all 0: `shape` */
    uint64_t box_first[ZERO_TENSOR_DIMS_MAX]; /**< index in it of the first element that is here */
    uint32_t replica;      /**< 0: this copy counts in norms and is the one to save. Otherwise the
                              number of this copy, from 1: another rank of the model-parallel
                              world holds the one that counts, and all train alike */
    uint32_t reserved[15]; /**< 0 */
} zero_tensor_desc;

/** An empty model.
 *  - Ownership: the caller destroys it, any time after the last engine or plan was made. */
ZERO_API ZERO_MUST_CHECK zero_status zero_model_create(zero_model **model);

/** Free the description. Accepts NULL. */
ZERO_API void zero_model_destroy(zero_model *model);

/** A unit to add, or several that are alike. Zero all of it, then assign. It grows at its end. */
typedef struct zero_unit_desc {
    size_t struct_bytes;             /**< sizeof(zero_unit_desc), or 0 for the first release's */
    const char *name;                /**< unique among units; as zero_tensor_desc.name; copied */
    const zero_tensor_desc *tensors; /**< its tensors, in order; read before the call returns. NULL
                                        where tensor_count is 0: zero_tensor_add adds them later */
    uint32_t tensor_count;           /**< entries of tensors */
    uint32_t layers;      /**< 0: one unit. Else so many that are alike, such as the blocks of a
                             transformer: layer i's unit is "name.i", and its tensors are "name.i."
                             and their own names. `initial` is layer 0's; layer i's lies i times
                             `layer_stride` elements behind it */
    uint32_t shard_group; /**< ranks that the unit's states are split over, as far as the stage
                             splits them, with replicas across: experts beside a model that is
                             split over the whole world, for example. Divides the world; at most
                             three other groups than options.shard_group in a model. Tuning's
                             grad_group and optimizer_group do not apply to it. 0:
                             options.shard_group */
    uint32_t reserved0;   /**< 0 */
} zero_unit_desc;

/** Append a unit, or the units of all layers, with their tensors.
 *  - unit: out, its 0-based index, of layers the first one's; the others follow. NULL where it is
 *    not wanted.
 *  - tensor: out, the index in the model of the first of `tensors`; tensor t of layer i comes
 *    i * tensor_count + t later. NULL where it is not wanted.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT, also for more than 2^20 units, and for `initial` with strides and a
 *    layer_stride of 0; those of zero_tensor_add, with layer and tensor in the name; UNSUPPORTED
 *    for a newer library's fields; OUT_OF_MEMORY. The model is then as it was. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_add(zero_model *model, const zero_unit_desc *desc,
                                                   uint32_t *unit, uint32_t *tensor);

/** Append a tensor to a unit.
 *  - unit: index of the unit.
 *  - desc: copied, the arrays of `initial` excepted.
 *  - tensor: out, its 0-based index in the model (not in the unit).
 *  - Errors: INVALID_ARGUMENT naming the field (duplicate name, dims, extents beyond dims, dtype,
 *    flags, group, a product of extents beyond 2^46 elements, strides that put elements on one
 * another, a box that is not inside the global shape, reserved), and for more than 2^22 tensors or
 * 2^50 elements in a model; OUT_OF_MEMORY. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_add(zero_model *model, uint32_t unit,
                                                     const zero_tensor_desc *desc,
                                                     uint32_t *tensor);

/** Let `unit` use `tensor`, which belongs to another unit (a tied head). Acquiring `unit` then
 *  acquires the owner too, and the owner's gradient is complete when both units' gradients are.
 *  - Errors: INVALID_ARGUMENT for its own tensor and where ties would chain; OUT_OF_MEMORY. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_tie(zero_model *model, uint32_t unit,
                                                     uint32_t tensor);

/** Number of units. 0 for NULL. */
ZERO_API uint32_t zero_model_unit_count(const zero_model *model);

/** Number of tensors. 0 for NULL. */
ZERO_API uint32_t zero_model_tensor_count(const zero_model *model);

/** Elements of all tensors, without padding; a tied tensor counts once. 0 for NULL. */
ZERO_API uint64_t zero_model_element_count(const zero_model *model);

/** A tensor's name; NULL when `tensor` is out of range or the model NULL.
 *  - Ownership: the model's. */
ZERO_API const char *zero_model_tensor_name(const zero_model *model, uint32_t tensor);

/** Elements of one tensor; 0 when `tensor` is out of range or the model NULL. */
ZERO_API uint64_t zero_model_tensor_count_of(const zero_model *model, uint32_t tensor);

/** A tensor's description with all defaults replaced: dtypes, strides, global shape.
 *  - tensor: its index.
 *  - desc: out. layer_stride is 0.
 *  - Local call.
 *  - Ownership: the name is the model's, `initial.data` is the caller's own array.
 *  - Errors: INVALID_ARGUMENT. */
ZERO_API ZERO_MUST_CHECK zero_status zero_model_tensor_desc(const zero_model *model,
                                                            uint32_t tensor,
                                                            zero_tensor_desc *desc);

ZERO_END

#endif
