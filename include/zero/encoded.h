/** @file
 *  Parameters as codes and scales, for products that take them so, such as fp8 in blocks of 32.
 *
 *      tuning.gather_dtype = ZERO_DTYPE_MXFP8;
 *      tuning.encoded_views = 1;
 *
 *  Units are acquired and released as without. In between, zero_tensor_encoded says where codes and
 *  scales of a tensor are.
 *
 *  Ranks encode their shards and gather the codes into the unit's slot, where they stay: nothing is
 *  decoded. So a slot has about a byte an element. Shards, masters and gradients are as without:
 *  gradients have their own type, and an update reads no value that was encoded for a gather.
 *
 *  All tensors are encoded, frozen ones and those of fp32 too, also where no other rank has a part
 *  of them.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). */
#ifndef ZERO_ENCODED_H
#define ZERO_ENCODED_H

#include "zero/dtype.h"
#include "zero/engine.h"
#include "zero/export.h"
#include "zero/status.h"
#include <stdint.h>

ZERO_BEGIN

/** A tensor's elements in order, as zero_dtype says of `dtype`: element i has codes[i], and the
 *  scale of block i / block. Blocks go on over the ends of rows, and no block has elements of two
 *  tensors. Memory of options.device. The struct's size never changes. */
typedef struct zero_encoded {
    const void *codes;    /**< `count` bytes: E4M3 of MXFP8, signed integers of INT8_BLOCK. They
                             begin at a multiple of 256 bytes */
    const void *scales;   /**< `scale_count` of them: a byte each (E8M0) of MXFP8, a bfloat16 of
                             INT8_BLOCK. They begin at a multiple of 4 bytes */
    uint64_t count;       /**< elements */
    uint64_t scale_count; /**< blocks: count / block, rounded up */
    zero_dtype dtype;     /**< MXFP8 or INT8_BLOCK */
    uint32_t block;       /**< elements that have one scale: 32 or 128. The last block may have
                             fewer; the codes behind it are zeros */
    uint32_t scale_order; /**< 0: scales are in the order of blocks, one behind the other */
    uint32_t reserved[5]; /**< 0 */
} zero_encoded;

/** A tensor's codes and scales, while its unit is acquired; read-only to the caller. As
 *  zero_tensor_data, which is refused then, and in zero_unit_view.params the tensor has data NULL,
 *  count 0 and dtype NONE.
 *  - out: untouched on failure.
 *  - Ownership: borrowed until the last release of the tensor's unit. With tuning.poison_released
 *    codes and scales then read as NaN (MXFP8; INT8_BLOCK: the scales).
 *  - Errors: INVALID_ARGUMENT (tensor, out), and where tuning.encoded_views is 0; STATE when its
 *    unit is not acquired.
 *  - Threads: as zero_engine says: one thread at a time, any thread. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_encoded(zero_engine *engine, uint32_t tensor,
                                                         zero_encoded *out);

ZERO_END

#endif
