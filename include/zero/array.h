/** @file
 *  The caller's arrays that tensors are copied from and to: initial values, imports and exports. */
#ifndef ZERO_ARRAY_H
#define ZERO_ARRAY_H

#include "zero/dtype.h"
#include "zero/export.h"
#include <stdint.h>

ZERO_BEGIN

/** Most dimensions of a tensor. */
#define ZERO_TENSOR_DIMS_MAX 8

/** A tensor in the caller's host memory, as a strided part of an array. The layout is frozen: it
 *  never grows.
 *
 *  For example `{.data = qkv + layer * 3 * C * C}` is one layer of an array of [layers, 3C, C], and
 *  `{.data = w + first, .strides = {N, 1}}` some columns of an array of N columns. No two elements
 *  may share a place. */
typedef struct zero_array {
    void *data; /**< the first element; only read where it gives values */
    uint64_t strides[ZERO_TENSOR_DIMS_MAX]; /**< elements from an index of a dimension to the
                                               next; all 0: the elements lie end to end */
    zero_dtype dtype;                       /**< default: the tensor's */
    uint32_t reserved;                      /**< 0 */
} zero_array;

ZERO_END

#endif
