/* Kinds of element types, beside their sizes and names (zero/dtype.h). */
#ifndef ZI_CORE_DTYPE_H
#define ZI_CORE_DTYPE_H

#include <stdbool.h>

#include "zero/dtype.h"

/* How the elements of a role lie in bytes: codec.h counts them. */
typedef struct zi_codec {
    zero_dtype dtype; /* of a value; DEFAULT: there are none, and no bytes */
    bool by_block;    /* there is one for each ZERO_CODE_BLOCK elements */
} zi_codec;

/* True of types whose elements are numbers by themselves, and can be computed with. */
static inline bool zi_dtype_is_number(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_F32 || dtype == ZERO_DTYPE_BF16 || dtype == ZERO_DTYPE_F16;
}

/* True of a master that is only part of one: its parameter has the rest. */
static inline bool zi_dtype_is_remainder(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_REMAINDER16 || dtype == ZERO_DTYPE_REMAINDER8;
}

/* True of moments whose values need scales. */
static inline bool zi_dtype_is_code(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_I8 || dtype == ZERO_DTYPE_COMPANDED8 || dtype == ZERO_DTYPE_U8_ROOT;
}

/* True of kinds whose values mean nothing without those of another role. */
static inline bool zi_dtype_is_small(zero_dtype dtype)
{
    return zi_dtype_is_remainder(dtype) || zi_dtype_is_code(dtype);
}

#endif
