/* Types in which elements travel between ranks in fewer bytes: codes of a few bits, and one scale
 * for each block of neighbours.
 *
 * Parameters are two planes from an element on at which a granule begins: their codes, a byte each,
 * and the scales of their blocks. Neither is padded; the last block may be shorter.
 *
 * Gradients are packed: each granule has the scales of its blocks, then its codes. So a part of an
 * array, which begins at a granule, lies in one piece, and is folded as it comes. */
#ifndef ZI_CORE_BLOCK_CODEC_H
#define ZI_CORE_BLOCK_CODEC_H

#include <stdint.h>

#include "core/lane.h"
#include "zero/dtype.h"

/* Elements that nothing cuts (codec.h). */
#define ZI_GRANULE ((uint64_t)256)

/* Elements that share a scale: a byte in MXFP8, bfloat16 in INT8_BLOCK. */
#define ZI_MXFP8_BLOCK 32
#define ZI_INT8_BLOCK 128

/* 1 of the types of parameters. */
ZI_LANE int zi_dtype_is_block(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_MXFP8 || dtype == ZERO_DTYPE_INT8_BLOCK;
}

/* Elements of a block. */
ZI_LANE uint32_t zi_block_elements(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_MXFP8 ? ZI_MXFP8_BLOCK : ZI_INT8_BLOCK;
}

/* Bytes of a scale. */
ZI_LANE uint32_t zi_block_scale_bytes(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_MXFP8 ? 1 : 2;
}

/* Bytes of the scales of `count` elements. */
ZI_LANE uint64_t zi_block_scales_bytes(zero_dtype dtype, uint64_t count)
{
    const uint32_t elements = zi_block_elements(dtype);
    return (count / elements + (count % elements != 0)) * zi_block_scale_bytes(dtype);
}

/* 1 of the types of gradients. */
ZI_LANE int zi_dtype_is_packed(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_INT8_BLOCK || dtype == ZERO_DTYPE_INT4_BLOCK;
}

/* Bytes of a packed granule, and of the scales that it begins with. */
#define ZI_PACKED_SCALES_BYTES ((uint32_t)(ZI_GRANULE / ZI_INT8_BLOCK) * 2)

ZI_LANE uint32_t zi_packed_granule_bytes(zero_dtype dtype)
{
    const uint32_t elements = (uint32_t)ZI_GRANULE;
    return ZI_PACKED_SCALES_BYTES + (dtype == ZERO_DTYPE_INT8_BLOCK ? elements : elements / 2);
}

#endif
