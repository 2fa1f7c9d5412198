/* The description of a model as the rest of the library reads it. */
#ifndef ZI_LAYOUT_MODEL_H
#define ZI_LAYOUT_MODEL_H

#include "zero/model.h"

#define ZI_NAME_BYTES 128

typedef struct zi_tensor_info {
    char name[ZI_NAME_BYTES];
    uint64_t shape[ZERO_TENSOR_DIMS_MAX];
    uint32_t dims;
    uint32_t unit;
    uint32_t flags;
    uint32_t group;
    zero_dtype dtype;
    uint64_t count; /* elements */
    const void *initial;
} zi_tensor_info;

typedef struct zi_unit_info {
    char name[ZI_NAME_BYTES];
} zi_unit_info;

/* Unit `unit` uses a tensor that unit `owner` holds. */
typedef struct zi_tie {
    uint32_t unit;
    uint32_t owner;
} zi_tie;

struct zero_model {
    zi_unit_info *units;
    zi_tensor_info *tensors;
    zi_tie *ties;
    uint32_t unit_count;
    uint32_t unit_capacity;
    uint32_t tensor_count;
    uint32_t tensor_capacity;
    uint32_t tie_count;
    uint32_t tie_capacity;
    uint64_t element_count;
};

#endif
