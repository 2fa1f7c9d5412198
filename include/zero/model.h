/** @file
 *  The description of a model: units in the order forward first uses them, and their tensors.
 *
 *  Nothing is allocated for the tensors here. A unit is what is gathered at once, usually a layer.
 *  Every rank describes the same model in the same order; zero_engine_create compares. */
#ifndef ZERO_MODEL_H
#define ZERO_MODEL_H

#include "zero/dtype.h"
#include "zero/export.h"
#include "zero/status.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** A description under construction. Threads: one at a time. */
typedef struct zero_model zero_model;

/** Most dimensions of a tensor. */
#define ZERO_TENSOR_DIMS_MAX 8

/** Properties of a tensor, combined with |. */
typedef enum zero_tensor_flags {
    ZERO_TENSOR_PLAIN = 0,    /**< trained, decayed */
    ZERO_TENSOR_NO_DECAY = 1, /**< weight decay does not apply (norms, biases) */
    ZERO_TENSOR_FROZEN = 2    /**< never trained: no gradient, no optimizer state */
} zero_tensor_flags;

/** One parameter of the model. All fields zero but the name: an fp32 scalar. Its size never
 * changes, since models give arrays of them: what comes later takes the place of `reserved`. */
typedef struct zero_tensor_desc {
    const char *name;                     /**< unique in the model, 1..127 bytes; copied */
    uint64_t shape[ZERO_TENSOR_DIMS_MAX]; /**< extents, outermost first; 0 is legal */
    uint32_t dims;                        /**< in [0, 8]; 0 is a scalar (one element) */
    zero_dtype dtype;                     /**< element type of the parameter; default F32 */
    uint32_t flags;                       /**< zero_tensor_flags */
    uint32_t group;                       /**< hyper-parameter group, in [0, 64) */
    const void *initial;  /**< NULL, or the whole tensor (host memory, dtype as above): read by
                               zero_engine_create, which takes its bytes as the initial values */
    uint64_t reserved[8]; /**< 0 */
} zero_tensor_desc;

/** An empty model. Ownership: the caller destroys it, any time after the last engine or plan was
 * made. */
ZERO_API ZERO_MUST_CHECK zero_status zero_model_create(zero_model **model);

/** Accepts NULL. */
ZERO_API void zero_model_destroy(zero_model *model);

/** Append a unit. name: unique among units, 1..127 bytes, copied. unit: out, its 0-based index.
 *  Errors: INVALID_ARGUMENT, also for more than 2^20 units; OUT_OF_MEMORY. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_add(zero_model *model, const char *name,
                                                   uint32_t *unit);

/** Append a tensor to a unit. tensor: out, its 0-based index in the model (not in the unit).
 *  Errors: INVALID_ARGUMENT naming the field (duplicate name, dims, dtype, flags, group, a product
 * of extents beyond 2^46 elements), and for more than 2^22 tensors or 2^50 elements in a model;
 * OUT_OF_MEMORY. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_add(zero_model *model, uint32_t unit,
                                                     const zero_tensor_desc *desc,
                                                     uint32_t *tensor);

/** Let `unit` use `tensor`, which belongs to another unit (a tied head). Acquiring `unit` then
 * acquires the owner too, and the owner's gradient is complete when both units' gradients are.
 *  Errors: INVALID_ARGUMENT for its own tensor and where ties would chain; OUT_OF_MEMORY. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_tie(zero_model *model, uint32_t unit,
                                                     uint32_t tensor);

/** Number of units. 0 for NULL. */
ZERO_API uint32_t zero_model_unit_count(const zero_model *model);

/** Number of tensors. 0 for NULL. */
ZERO_API uint32_t zero_model_tensor_count(const zero_model *model);

/** Elements of all tensors, without padding; a tied tensor counts once. 0 for NULL. */
ZERO_API uint64_t zero_model_element_count(const zero_model *model);

/** A tensor's name; NULL when `tensor` is out of range or the model NULL.
 * Ownership: the model's. */
ZERO_API const char *zero_model_tensor_name(const zero_model *model, uint32_t tensor);

/** Elements of one tensor; 0 when `tensor` is out of range or the model NULL. */
ZERO_API uint64_t zero_model_tensor_count_of(const zero_model *model, uint32_t tensor);

ZERO_END

#endif
