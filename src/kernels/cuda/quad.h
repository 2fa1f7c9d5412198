/* Reading and writing arrays on the GPU: single elements, and quads of four neighbouring ones in
 * one access of 16 bytes, 8 where the type has 16 bits, 4 where it has 8, or 2. Everything passes
 * through fp32, but for parts of masters and codes of moments. Types are constants wherever this is
 * inlined. The CPU compiles the same text for tests. */
#ifndef ZI_KERNELS_CUDA_QUAD_H
#define ZI_KERNELS_CUDA_QUAD_H

#include <stdint.h>
#include <string.h>

#include "core/block_codec.h"
#include "core/lane.h"
#include "kernels/cuda/geometry.h"
#include "kernels/math/convert.h"
#include "kernels/math/rounding.h"
#include "zero/dtype.h"

#if defined(__CUDA_ARCH__)
#define ZI_UNROLL _Pragma("unroll")
#define ZI_UNROLL_8 _Pragma("unroll 8")
#define ZI_NO_UNROLL _Pragma("unroll 1")
#else
#define ZI_UNROLL
#define ZI_UNROLL_8
#define ZI_NO_UNROLL
#endif

/* How a step uses data, which it reads again or once. What it reads once is evicted from the cache
 * first. */
typedef enum zi_use { ZI_USE_AGAIN = 0, ZI_USE_ONCE = 1 } zi_use;

typedef struct zi_quad {
    float value[ZI_QUAD];
} zi_quad;

/* A quad as it lies in memory; one of 16 bits takes the first two words, the lower half first, and
 * one of 8 bits the first, the lowest byte first. */
typedef struct zi_quad_words {
    uint32_t word[4];
} zi_quad_words;

/* The bytes of an element. */
ZI_LANE uint64_t zi_quad_width(zero_dtype dtype)
{
    if (dtype == ZERO_DTYPE_REMAINDER8 || dtype == ZERO_DTYPE_I8 || zi_dtype_is_block(dtype)) {
        return 1;
    }
    return dtype == ZERO_DTYPE_F32 ? 4 : 2;
}

ZI_LANE const void *zi_place_const(const void *base, zero_dtype dtype, uint64_t index)
{
    return (const unsigned char *)base + index * zi_quad_width(dtype);
}

ZI_LANE void *zi_place(void *base, zero_dtype dtype, uint64_t index)
{
    return (unsigned char *)base + index * zi_quad_width(dtype);
}

/* The bytes of a quad. */
ZI_LANE uint64_t zi_quad_bytes(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_INT4_BLOCK ? ZI_QUAD / 2 : ZI_QUAD * zi_quad_width(dtype);
}

/* True when quads that begin at a multiple of four elements are one access. */
ZI_LANE int zi_quad_aligned(const void *base, zero_dtype dtype)
{
    return (uintptr_t)base % zi_quad_bytes(dtype) == 0;
}

ZI_LANE float zi_f32_from_narrow(uint32_t half, zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_BF16 ? zi_f32_from_bf16((uint16_t)half)
                                    : zi_f32_from_f16((uint16_t)half);
}

ZI_LANE uint16_t zi_narrow_from_f32(float value, zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_BF16 ? zi_bf16_from_f32(value) : zi_f16_from_f32(value);
}

/* Of a value that arithmetic has left. */
ZI_LANE uint16_t zi_narrow_stochastic(float value, zero_dtype dtype, uint32_t random)
{
    return dtype == ZERO_DTYPE_BF16 ? zi_bf16_from_result_stochastic(value, random)
                                    : zi_f16_from_f32_stochastic(value, random);
}

ZI_LANE float zi_element_get(const void *base, zero_dtype dtype, uint64_t index)
{
    return dtype == ZERO_DTYPE_F32 ? ((const float *)base)[index]
                                   : zi_f32_from_narrow(((const uint16_t *)base)[index], dtype);
}

ZI_LANE void zi_element_put(void *base, zero_dtype dtype, uint64_t index, float value)
{
    if (dtype == ZERO_DTYPE_F32) {
        ((float *)base)[index] = value;
    } else {
        ((uint16_t *)base)[index] = zi_narrow_from_f32(value, dtype);
    }
}

/* The bits of an element. */
ZI_LANE uint32_t zi_element_bits(const void *base, zero_dtype dtype, uint64_t index)
{
    const uint64_t width = zi_quad_width(dtype);
    return width == 4   ? ((const uint32_t *)base)[index]
           : width == 2 ? ((const uint16_t *)base)[index]
                        : ((const uint8_t *)base)[index];
}

ZI_LANE void zi_element_set(void *base, zero_dtype dtype, uint64_t index, uint32_t bits)
{
    const uint64_t width = zi_quad_width(dtype);
    if (width == 4) {
        ((uint32_t *)base)[index] = bits;
    } else if (width == 2) {
        ((uint16_t *)base)[index] = (uint16_t)bits;
    } else {
        ((uint8_t *)base)[index] = (uint8_t)bits;
    }
}

#if defined(__CUDA_ARCH__)
/* Loads that the compiler does not move: it would move plain ones down to their first use, behind
 * the arithmetic of the quads before, and fewer loads would be in flight. */
#define ZI_LOAD16(how, words, place)                                                    \
    asm volatile("ld.global" how ".v4.u32 {%0, %1, %2, %3}, [%4];"                      \
                 : "=r"((words).word[0]), "=r"((words).word[1]), "=r"((words).word[2]), \
                   "=r"((words).word[3])                                                \
                 : "l"(place)                                                           \
                 : "memory")
#define ZI_LOAD8(how, words, place)                             \
    asm volatile("ld.global" how ".v2.u32 {%0, %1}, [%2];"      \
                 : "=r"((words).word[0]), "=r"((words).word[1]) \
                 : "l"(place)                                   \
                 : "memory")
#define ZI_LOAD4(how, words, place) \
    asm volatile("ld.global" how ".u32 %0, [%1];" : "=r"((words).word[0]) : "l"(place) : "memory")
#define ZI_LOAD2(how, half, place) \
    asm volatile("ld.global" how ".u16 %0, [%1];" : "=h"(half) : "l"(place) : "memory")
#endif

ZI_LANE zi_quad_words zi_words_load16(const void *place, zi_use use)
{
    zi_quad_words words;
#if defined(__CUDA_ARCH__)
    if (use == ZI_USE_ONCE) {
        ZI_LOAD16(".cs", words, place);
    } else {
        ZI_LOAD16("", words, place);
    }
#else
    (void)use;
    memcpy(words.word, place, 16);
#endif
    return words;
}

ZI_LANE zi_quad_words zi_words_load8(const void *place, zi_use use)
{
    zi_quad_words words;
    words.word[2] = 0;
    words.word[3] = 0;
#if defined(__CUDA_ARCH__)
    if (use == ZI_USE_ONCE) {
        ZI_LOAD8(".cs", words, place);
    } else {
        ZI_LOAD8("", words, place);
    }
#else
    (void)use;
    memcpy(words.word, place, 8);
#endif
    return words;
}

/* A quad of bytes, which a step reads again. */
ZI_LANE zi_quad_words zi_words_load4(const void *place)
{
    zi_quad_words words;
    words.word[1] = 0;
    words.word[2] = 0;
    words.word[3] = 0;
#if defined(__CUDA_ARCH__)
    ZI_LOAD4("", words, place);
#else
    memcpy(words.word, place, 4);
#endif
    return words;
}

/* A quad of 4 bits each. */
ZI_LANE zi_quad_words zi_words_load2(const void *place)
{
    zi_quad_words words;
    uint16_t half;
#if defined(__CUDA_ARCH__)
    ZI_LOAD2("", half, place);
#else
    memcpy(&half, place, 2);
#endif
    words.word[0] = half;
    words.word[1] = 0;
    words.word[2] = 0;
    words.word[3] = 0;
    return words;
}

/* Of any type. */
ZI_LANE zi_quad_words zi_words_load(const void *base, zero_dtype dtype, uint64_t index, zi_use use)
{
    const void *const place = zi_place_const(base, dtype, index);
    const uint64_t width = zi_quad_width(dtype);
    return width == 4   ? zi_words_load16(place, use)
           : width == 2 ? zi_words_load8(place, use)
                        : zi_words_load4(place);
}

ZI_LANE void zi_words_store16(void *place, zi_quad_words words, zi_use use)
{
#if defined(__CUDA_ARCH__)
    uint4 *const at = (uint4 *)place;
    const uint4 x = make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
    if (use == ZI_USE_ONCE) {
        __stcs(at, x);
    } else {
        *at = x;
    }
#else
    (void)use;
    memcpy(place, words.word, 16);
#endif
}

ZI_LANE void zi_words_store8(void *place, zi_quad_words words, zi_use use)
{
#if defined(__CUDA_ARCH__)
    uint2 *const at = (uint2 *)place;
    const uint2 x = make_uint2(words.word[0], words.word[1]);
    if (use == ZI_USE_ONCE) {
        __stcs(at, x);
    } else {
        *at = x;
    }
#else
    (void)use;
    memcpy(place, words.word, 8);
#endif
}

ZI_LANE void zi_words_store4(void *place, zi_quad_words words)
{
    *(uint32_t *)place = words.word[0];
}

ZI_LANE void zi_words_store2(void *place, zi_quad_words words)
{
    *(uint16_t *)place = (uint16_t)words.word[0];
}

/* Element i of a narrow quad, as 16 bits. */
ZI_LANE uint32_t zi_words_half(zi_quad_words words, int i)
{
    return (words.word[i / 2] >> (16 * (i % 2))) & UINT32_C(0xffff);
}

/* Element i of a quad of bytes. */
ZI_LANE uint32_t zi_words_byte(zi_quad_words words, int i)
{
    return (words.word[0] >> (8 * i)) & UINT32_C(0xff);
}

ZI_LANE zi_quad zi_quad_of(zi_quad_words words, zero_dtype dtype)
{
    zi_quad quad;
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        quad.value[i] = dtype == ZERO_DTYPE_F32
                            ? zi_f32_from_bits(words.word[i])
                            : zi_f32_from_narrow(zi_words_half(words, i), dtype);
    }
    return quad;
}

ZI_LANE zi_quad zi_quad_load(const void *base, zero_dtype dtype, uint64_t index, zi_use use)
{
    return zi_quad_of(zi_words_load(base, dtype, index, use), dtype);
}

ZI_LANE zi_quad_words zi_words_narrow(uint32_t first, uint32_t second)
{
    zi_quad_words words;
    words.word[0] = first;
    words.word[1] = second;
    words.word[2] = 0;
    words.word[3] = 0;
    return words;
}

/* Four halves, and four bytes. */
ZI_LANE zi_quad_words zi_words_of_halves(const uint32_t *half)
{
    return zi_words_narrow(half[0] | half[1] << 16, half[2] | half[3] << 16);
}

ZI_LANE zi_quad_words zi_words_of_bytes(const uint32_t *byte)
{
    return zi_words_narrow(byte[0] | byte[1] << 8 | byte[2] << 16 | byte[3] << 24, 0);
}

/* Two neighbours, each rounded to nearest even: one instruction on a GPU. */
ZI_LANE uint32_t zi_narrow_pair(float low, float high, zero_dtype dtype)
{
#if defined(__CUDA_ARCH__)
    uint32_t pair;
    if (dtype == ZERO_DTYPE_BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
#else
    return (uint32_t)zi_narrow_from_f32(low, dtype) | (uint32_t)zi_narrow_from_f32(high, dtype)
                                                          << 16;
#endif
}

ZI_LANE void zi_quad_store(void *base, zero_dtype dtype, uint64_t index, zi_quad quad, zi_use use)
{
    void *const place = zi_place(base, dtype, index);
    if (dtype == ZERO_DTYPE_F32) {
        zi_quad_words words;
        ZI_UNROLL
        for (int i = 0; i < ZI_QUAD; i++) {
            words.word[i] = zi_f32_bits(quad.value[i]);
        }
        zi_words_store16(place, words, use);
    } else {
        zi_words_store8(place,
                        zi_words_narrow(zi_narrow_pair(quad.value[0], quad.value[1], dtype),
                                        zi_narrow_pair(quad.value[2], quad.value[3], dtype)),
                        use);
    }
}

/* Rounded stochastically to a narrow type. random: a word for each element, of which the purpose
 * has its half. */
ZI_LANE zi_quad_words zi_quad_round(zero_dtype dtype, zi_quad quad, zi_quad_words random,
                                    zi_rounding_purpose purpose)
{
    uint32_t narrow[ZI_QUAD];
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        narrow[i] =
            zi_narrow_stochastic(quad.value[i], dtype, zi_rounding_half(random.word[i], purpose));
    }
    return zi_words_of_halves(narrow);
}

#endif
