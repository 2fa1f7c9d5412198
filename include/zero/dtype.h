/** @file
 *  Element types and views of tensors. */
#ifndef ZERO_DTYPE_H
#define ZERO_DTYPE_H

#include "zero/export.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** Element type. 0 stands for "the default" wherever an option accepts it. */
typedef enum zero_dtype {
    ZERO_DTYPE_DEFAULT = 0, /**< unset: the field's documented default */
    ZERO_DTYPE_F32 = 1,     /**< IEEE binary32 */
    ZERO_DTYPE_BF16 = 2,    /**< bfloat16: the upper half of a binary32 */
    ZERO_DTYPE_F16 = 3,     /**< IEEE binary16 */
    ZERO_DTYPE_NONE = 4     /**< the role does not exist (master only) */
} zero_dtype;

/** Bytes of one element; 0 for ZERO_DTYPE_DEFAULT and ZERO_DTYPE_NONE. */
ZERO_API size_t zero_dtype_bytes(zero_dtype dtype);

/** Lower-case name: "f32", "bf16", "f16", "none", "default". Never NULL. */
ZERO_API const char *zero_dtype_name(zero_dtype dtype);

/** Contiguous elements in memory of the library. The call that gives the view says how long it is
 *  valid. The struct's size never changes. */
typedef struct zero_view {
    void *data;           /**< first element; memory of options.device, unless said otherwise */
    size_t count;         /**< elements */
    zero_dtype dtype;     /**< element type */
    uint32_t reserved[3]; /**< 0 */
} zero_view;

ZERO_END

#endif
