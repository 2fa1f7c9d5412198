/* How the elements of a role lie in bytes. Whoever turns elements into bytes asks here.
 *
 * Elements come in granules: tensors, slices, shards, chunks and extents begin at a multiple of
 * ZI_GRANULE elements. So a format that keeps something for each block of elements fits in without
 * moving any of them: the scales of 8-bit codes are a role of their own, one for ZERO_CODE_BLOCK
 * elements. */
#ifndef ZI_CORE_CODEC_H
#define ZI_CORE_CODEC_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/block_codec.h"
#include "core/check.h"
#include "core/dtype.h"
#include "core/sizes.h"

_Static_assert(ZI_GRANULE % ZERO_CODE_BLOCK == 0 && ZI_GRANULE % ZI_MXFP8_BLOCK == 0 &&
                   ZI_GRANULE % ZI_INT8_BLOCK == 0,
               "no block lies in two granules");

static inline bool zi_codec_is_none(zi_codec codec)
{
    return codec.dtype == ZERO_DTYPE_DEFAULT;
}

static inline bool zi_codec_same(zi_codec a, zi_codec b)
{
    return a.dtype == b.dtype && a.by_block == b.by_block;
}

/* Bytes of `count` elements as ranks send them to be added up, and before element `count` of an
 * array. In a packed type they are whole granules. */
static inline uint64_t zi_packed_bytes(zero_dtype dtype, uint64_t count)
{
    return zi_dtype_is_packed(dtype) ? count / ZI_GRANULE * zi_packed_granule_bytes(dtype)
                                     : count * zero_dtype_bytes(dtype);
}

/* The key of a packed array's rounding that is `index` after another one. Different indices give
 * different keys. */
static inline uint64_t zi_packed_key_next(uint64_t key, uint64_t index)
{
    return key + index * UINT64_C(0x9e3779b97f4a7c15);
}

/* Values of `count` elements that begin at a granule. */
static inline uint64_t zi_codec_values(zi_codec codec, uint64_t count)
{
    return codec.by_block ? zi_div_up(count, ZERO_CODE_BLOCK) : count;
}

/* Their bytes, with those of blocks' scales. */
static inline uint64_t zi_codec_bytes(zi_codec codec, uint64_t count)
{
    if (codec.dtype == ZERO_DTYPE_INT4_BLOCK) {
        return zi_packed_bytes(codec.dtype, count);
    }
    const uint64_t scales =
        zi_dtype_is_block(codec.dtype) ? zi_block_scales_bytes(codec.dtype, count) : 0;
    return zi_codec_values(codec, count) * zero_dtype_bytes(codec.dtype) + scales;
}

/* The elements whose values are so many bytes, or as many as fit in there. */
static inline uint64_t zi_codec_elements(zi_codec codec, uint64_t bytes)
{
    return bytes / zero_dtype_bytes(codec.dtype) * (codec.by_block ? ZERO_CODE_BLOCK : 1);
}

/* Bytes before an element at which a granule begins. */
static inline uint64_t zi_codec_offset(zi_codec codec, uint64_t element)
{
    zi_assert_cmp(element % ZI_GRANULE, ==, 0);
    return zi_codec_bytes(codec, element);
}

/* The bytes of `count` elements in an arena or an extent, where the next things begin aligned. */
static inline uint64_t zi_codec_padded_bytes(zi_codec codec, uint64_t count)
{
    return zi_align_up(zi_codec_bytes(codec, count), ZI_ARENA_ALIGN);
}

/* The most elements, in whole granules, that fit in so many bytes. */
static inline uint64_t zi_codec_count_within(zi_codec codec, uint64_t bytes)
{
    return bytes / zi_codec_bytes(codec, ZI_GRANULE) * ZI_GRANULE;
}

#endif
