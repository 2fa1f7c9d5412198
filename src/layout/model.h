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
    zero_dtype dtype;
    uint64_t count; /* elements */
    const void *initial;
} zi_tensor_info;

typedef struct zi_unit_info {
    const char *name;
    bool ties; /* it uses tensors of other units */
    bool tied; /* others use tensors of it */
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
    zi_names names;
    zi_table units_by_name;
    zi_table tensors_by_name;
    zi_table ties_by_pair;
    uint32_t unit_count;
    uint32_t unit_capacity;
    uint32_t tensor_count;
    uint32_t tensor_capacity;
    uint32_t tie_count;
    uint32_t tie_capacity;
    uint64_t element_count;
};

#endif
