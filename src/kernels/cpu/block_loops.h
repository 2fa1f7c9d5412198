/* Elements to codes and scales of blocks and back, a run of blocks at a time, whose values stay in
 * the first-level cache as fp32. For lanes.c only: what is inlined here is compiled for its
 * instruction set. */
#ifndef ZI_KERNELS_CPU_BLOCK_LOOPS_H
#define ZI_KERNELS_CPU_BLOCK_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/check.h"
#include "kernels/cpu/elements.h"
#include "kernels/math/block.h"

_Static_assert(BLOCK % ZI_INT8_BLOCK == 0 && BLOCK % ZI_MXFP8_BLOCK == 0,
               "what is converted at a time are whole blocks");

/* dtype: a constant wherever this is inlined, as in what follows. */
ALWAYS_INLINE uint32_t get_scale(const void *scales, zero_dtype dtype, size_t block)
{
    return dtype == ZERO_DTYPE_MXFP8 ? ((const uint8_t *)scales)[block]
                                     : ((const uint16_t *)scales)[block];
}

ALWAYS_INLINE void put_scale(void *scales, zero_dtype dtype, size_t block, uint32_t scale)
{
    if (dtype == ZERO_DTYPE_MXFP8) {
        ((uint8_t *)scales)[block] = (uint8_t)scale;
    } else {
        ((uint16_t *)scales)[block] = (uint16_t)scale;
    }
}

/* The greatest magnitude, as bits. */
ALWAYS_INLINE uint32_t greatest(const float *restrict values, size_t count)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = zi_code_magnitude(values[i]);
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* Codes take 32 bits while they are made: compilers turn a loop from those to bytes into vectors of
 * bytes, of which a block of MXFP8 has not enough. Returns the scale. */
ALWAYS_INLINE uint32_t encode_one(uint32_t *restrict words, zero_dtype dtype,
                                  const float *restrict values, size_t count)
{
    const uint32_t scale = zi_block_scale(dtype, greatest(values, count));
    const zi_block_encoder encoder = zi_block_encoder_of(dtype, scale);
    for (size_t i = 0; i < count; i++) {
        words[i] = zi_block_code(dtype, values[i], encoder);
    }
    return scale;
}

/* At most BLOCK elements. */
ALWAYS_INLINE void encode_run(uint8_t *restrict codes, void *scales, zero_dtype dtype,
                              const float *values, size_t count)
{
    _Alignas(64) uint32_t words[BLOCK];
    const size_t whole = zi_block_elements(dtype);
    const size_t blocks = count / whole;
    for (size_t b = 0; b < blocks; b++) {
        put_scale(scales, dtype, b,
                  encode_one(words + b * whole, dtype, values + b * whole, whole));
    }
    const size_t done = blocks * whole;
    if (done < count) {
        put_scale(scales, dtype, blocks,
                  encode_one(words + done, dtype, values + done, count - done));
    }
    for (size_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)words[i];
    }
}

ALWAYS_INLINE void decode_one(float *restrict values, zero_dtype dtype,
                              const uint32_t *restrict words, uint32_t scale, size_t count)
{
    const zi_block_decoder decoder = zi_block_decoder_of(dtype, scale);
    for (size_t i = 0; i < count; i++) {
        values[i] = zi_block_value(dtype, words[i], decoder);
    }
}

/* At most BLOCK elements. */
ALWAYS_INLINE void decode_run(float *values, zero_dtype dtype, const uint8_t *restrict codes,
                              const void *scales, size_t count)
{
    _Alignas(64) uint32_t words[BLOCK];
    const size_t whole = zi_block_elements(dtype);
    const size_t blocks = count / whole;
    for (size_t i = 0; i < count; i++) {
        words[i] = codes[i];
    }
    for (size_t b = 0; b < blocks; b++) {
        decode_one(values + b * whole, dtype, words + b * whole, get_scale(scales, dtype, b),
                   whole);
    }
    const size_t done = blocks * whole;
    if (done < count) {
        decode_one(values + done, dtype, words + done, get_scale(scales, dtype, blocks),
                   count - done);
    }
}

/* The scales from element i on, which begins a block. */
static inline size_t scales_before(zero_dtype dtype, size_t i)
{
    return (size_t)zi_block_scales_bytes(dtype, i);
}

ALWAYS_INLINE void encode_all(uint8_t *codes, unsigned char *scales, zero_dtype dtype,
                              const void *source, zero_dtype source_dtype, size_t count)
{
    _Alignas(64) float values[BLOCK];
    _Alignas(64) uint8_t run[BLOCK];
    const bool non_temporal = count >= STREAM_COUNT_MIN && (uintptr_t)codes % LINE_BYTES == 0;
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t block = least(BLOCK, count - i);
        uint8_t *const to = non_temporal ? run : codes + i;
        lanes_load(values, at_const(source, source_dtype, i), source_dtype, block);
        encode_run(to, scales + scales_before(dtype, i), dtype, values, block);
        if (non_temporal) {
            zi_stream_store(codes + i, run, block);
        }
    }
    if (non_temporal) {
        zi_stream_fence();
    }
}

static void lanes_encode_blocks(void *codes, void *scales, zero_dtype dtype, const void *source,
                                zero_dtype source_dtype, size_t count)
{
    if (dtype == ZERO_DTYPE_MXFP8) {
        encode_all(codes, scales, ZERO_DTYPE_MXFP8, source, source_dtype, count);
    } else {
        zi_assert_cmp(dtype, ==, ZERO_DTYPE_INT8_BLOCK);
        encode_all(codes, scales, ZERO_DTYPE_INT8_BLOCK, source, source_dtype, count);
    }
}

ALWAYS_INLINE void decode_all(void *target, zero_dtype target_dtype, const uint8_t *codes,
                              const unsigned char *scales, zero_dtype dtype, size_t count)
{
    _Alignas(64) float values[BLOCK];
    const bool non_temporal = count >= STREAM_COUNT_MIN && (uintptr_t)target % LINE_BYTES == 0;
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t block = least(BLOCK, count - i);
        prefetch(codes + i, dtype, block);
        decode_run(values, dtype, codes + i, scales + scales_before(dtype, i), block);
        if (non_temporal) {
            store_non_temporal(at(target, target_dtype, i), target_dtype, values, block);
        } else {
            store(at(target, target_dtype, i), target_dtype, values, block);
        }
    }
    if (non_temporal) {
        zi_stream_fence();
    }
}

static void lanes_decode_blocks(void *target, zero_dtype target_dtype, const void *codes,
                                const void *scales, zero_dtype dtype, size_t count)
{
    if (dtype == ZERO_DTYPE_MXFP8) {
        decode_all(target, target_dtype, codes, scales, ZERO_DTYPE_MXFP8, count);
    } else {
        zi_assert_cmp(dtype, ==, ZERO_DTYPE_INT8_BLOCK);
        decode_all(target, target_dtype, codes, scales, ZERO_DTYPE_INT8_BLOCK, count);
    }
}

#endif
