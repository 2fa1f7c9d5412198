/* The description of a model as the rest of the library reads it. */
#ifndef ZI_LAYOUT_MODEL_H
#define ZI_LAYOUT_MODEL_H

#include <stdbool.h>

#include "core/table.h"
#include "zero/model.h"

/* Of the longest name, the NUL included. */
#define ZI_NAME_BYTES 128

/* Names of units and tensors, end to end; they do not move. All zero: there are none. */
typedef struct zi_names {
    struct zi_name_block *blocks; /* the newest first */
} zi_names;

/* Copy a name. OUT_OF_MEMORY. */
zero_status zi_names_add(zi_names *names, const char *name, const char **copy);
void zi_names_free(zi_names *names);

typedef struct zi_tensor_info {
    const char *name;
    uint64_t shape[ZERO_TENSOR_DIMS_MAX];
    uint32_t dims;
    uint32_t unit;
    uint32_t flags;
    uint32_t group;
    uint32_t replica;
    uint32_t extra; /* of zi_tensor_extra; ZI_NO_EXTRA: the tensor has none */
    zero_dtype dtype;
    zero_dtype initial_dtype;
    uint64_t count; /* elements */
    void *initial;  /* the caller's; only read */
} zi_tensor_info;

#define ZI_NO_EXTRA UINT32_MAX

/* Properties that few tensors have: an array that is not contiguous, or a global tensor that they
 * are a part of. */
typedef struct zi_tensor_extra {
    uint64_t strides[ZERO_TENSOR_DIMS_MAX];
    uint64_t global_shape[ZERO_TENSOR_DIMS_MAX];
    uint64_t box_first[ZERO_TENSOR_DIMS_MAX];
    bool is_box; /* the tensor is not the global one */
} zi_tensor_extra;

typedef struct zi_unit_info {
    const char *name;
    bool ties;            /* it uses tensors of other units */
    bool tied;            /* others use tensors of it */
    uint32_t shard_group; /* zero_unit_desc's */
} zi_unit_info;

/* Unit `unit` uses a tensor that another unit, its owner, holds. */
typedef struct zi_tie {
    uint32_t unit;
    uint32_t tensor;
} zi_tie;

struct zero_model {
    zi_unit_info *units;
    zi_tensor_info *tensors;
    zi_tensor_extra *extras;
    zi_tie *ties;
    zi_names names;
    zi_table units_by_name;
    zi_table tensors_by_name;
    zi_table ties_by_pair;
    uint32_t unit_count;
    uint32_t unit_capacity;
    uint32_t tensor_count;
    uint32_t tensor_capacity;
    uint32_t extra_count;
    uint32_t extra_capacity;
    uint32_t tie_count;
    uint32_t tie_capacity;
    uint64_t element_count;
    bool dtype_warned; /* of an initial array whose type was not given */
};

/* A description with its defaults replaced, and its elements; INVALID_ARGUMENT naming the field.
 * The name is good. (tensor_desc.c) */
zero_status zi_tensor_desc_resolve(const zero_tensor_desc *given, zero_tensor_desc *desc,
                                   uint64_t *count);
/* An array of the tensor's with its defaults replaced; INVALID_ARGUMENT naming the field.
 * (tensor_desc.c) */
zero_status zi_array_resolve(const zero_tensor_desc *tensor, const zero_array *given,
                             zero_array *array);
/* True if a resolved description needs a zi_tensor_extra, which is then made. (tensor_desc.c) */
bool zi_tensor_extra_make(const zero_tensor_desc *desc, zi_tensor_extra *extra);
/* The resolved description again. (tensor_desc.c) */
void zi_tensor_describe(const zi_tensor_info *info, const zi_tensor_extra *extras,
                        zero_tensor_desc *desc);

#endif
