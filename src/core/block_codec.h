/* Types in which elements travel between ranks in fewer bytes: codes of 8 bits, and one scale for
 * each block of neighbours. Elements that begin at a granule are two planes: their codes, a byte
 * each, and the scales of their blocks. Neither is padded; the last block may be shorter. */
#ifndef ZI_CORE_BLOCK_CODEC_H
#define ZI_CORE_BLOCK_CODEC_H

#include <stdint.h>

#include "core/lane.h"
#include "zero/dtype.h"

/* Elements that share a scale: a byte in MXFP8, bfloat16 in INT8_BLOCK. */
#define ZI_MXFP8_BLOCK 32
#define ZI_INT8_BLOCK 128

/* 1 of the types that the rest of this file is about. */
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

#endif
