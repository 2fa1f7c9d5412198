/* The norm's arithmetic on the GPU. A pair of neighbouring lanes takes a chunk of zi_norm_chunk:
 * the even lane adds the chunk's lanes 0 to 3, the odd one 4 to 7, in the order of zi_norm_chunk.
 * The totals go exactly into a window of limbs that the lane keeps in registers; a window is
 * emptied into the block's accumulator, and that one into the launch's. Exact addition commutes, so
 * none of this shows in any bit.
 *
 * Headroom: a total adds less than 2^32 to a limb. A block has at most 2^13 chunks, so neither its
 * windows nor its accumulator overflow; it normalises, so a block adds less than 2^32 to a limb of
 * the launch's sum, which is one addition in the sense of ZI_NORM_ADDITIONS_MAX. */
#ifndef ZI_KERNELS_CUDA_NORM_BODY_H
#define ZI_KERNELS_CUDA_NORM_BODY_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/quad.h"
#include "kernels/math/norm.h"

/* Lanes of a chunk that one lane of a warp adds, and the rows it does it in. */
#define ZI_NORM_HALF (ZI_NORM_LANES / 2)
#define ZI_NORM_ROWS (ZI_NORM_CHUNK / ZI_NORM_LANES)

#if ZI_NORM_HALF != ZI_QUAD
#error "half a row of a chunk is a quad"
#endif

typedef struct zi_norm_half {
    double lane[ZI_NORM_HALF];
} zi_norm_half;

/* A row's quad. Squares of fp32 values are exact in double, so the fused form has the bits of the
 * separate one; a first row is added to +0, which has the bits of starting with it. */
ZI_LANE void zi_norm_half_add(zi_norm_half *half, zi_quad quad)
{
    ZI_UNROLL
    for (int i = 0; i < ZI_NORM_HALF; i++) {
        const double value = (double)quad.value[i];
        half->lane[i] = fma(value, value, half->lane[i]);
    }
}

/* The tree over a chunk's lanes. Each lane of the pair sends two of its sums, then one. */
typedef struct zi_norm_sent {
    double first;
    double second;
} zi_norm_sent;

ZI_LANE zi_norm_sent zi_norm_half_sends(const zi_norm_half *half, uint32_t lane)
{
    zi_norm_sent sent;
    sent.first = lane % 2 == 0 ? half->lane[1] : half->lane[0];
    sent.second = lane % 2 == 0 ? half->lane[3] : half->lane[2];
    return sent;
}

/* Even: (0 + 4) + (2 + 6). Odd: (1 + 5) + (3 + 7). Their sum is the chunk's total. */
ZI_LANE double zi_norm_half_sum(const zi_norm_half *half, uint32_t lane, zi_norm_sent received)
{
    const double first = lane % 2 == 0 ? half->lane[0] : half->lane[1];
    const double second = lane % 2 == 0 ? half->lane[2] : half->lane[3];
    return (first + received.first) + (second + received.second);
}

/* A total as what it adds to three neighbouring limbs. */
typedef struct zi_norm_addend {
    uint64_t limb[3];
    uint32_t first;
    int32_t finite; /* 0: infinite or NaN; nothing to add then, nor when `zero` */
    int32_t zero;
} zi_norm_addend;

/* As zi_norm_add takes a total apart. */
ZI_LANE zi_norm_addend zi_norm_addend_of(double total)
{
    const uint64_t bits = zi_f64_bits(total);
    const uint32_t exponent = (uint32_t)(bits >> 52) & UINT32_C(0x7ff);
    const uint64_t fraction = bits & UINT64_C(0xfffffffffffff);
    const uint32_t lowest = 1075 - ZI_NORM_LOW_EXPONENT;
    const uint32_t under = exponent < lowest ? lowest - exponent : 0;
    const uint64_t mantissa = (fraction | UINT64_C(0x10000000000000)) >> (under & 63);
    const uint32_t place = exponent + under - lowest;
    const uint32_t shift = place % 32;
    const uint64_t low = (mantissa & UINT32_MAX) << shift;
    const uint64_t high = (mantissa >> 32) << shift;
    zi_norm_addend addend;
    addend.first = place / 32;
    addend.finite = exponent != UINT32_C(0x7ff);
    addend.zero = exponent == 0;
    addend.limb[0] = low & UINT32_MAX;
    addend.limb[1] = (low >> 32) + (high & UINT32_MAX);
    addend.limb[2] = high >> 32;
    return addend;
}

/* Limbs [base, base + ZI_NORM_WINDOW). All lanes of a warp have the same base, so that a warp
 * empties its windows together. Totals begin in any of the first ZI_NORM_STARTS limbs: 96 powers of
 * two, so gradients of one model seldom fall out. */
#define ZI_NORM_WINDOW 5
#define ZI_NORM_STARTS (ZI_NORM_WINDOW - 2)
#define ZI_NORM_NO_BASE UINT32_C(0xffff)

typedef struct zi_norm_window {
    uint64_t limb[ZI_NORM_WINDOW];
    uint32_t base; /* ZI_NORM_NO_BASE: nothing fits */
} zi_norm_window;

ZI_LANE void zi_norm_window_open(zi_norm_window *window, uint32_t base)
{
    ZI_UNROLL
    for (int i = 0; i < ZI_NORM_WINDOW; i++) {
        window->limb[i] = 0;
    }
    window->base = base;
}

ZI_LANE int zi_norm_window_fits(const zi_norm_window *window, const zi_norm_addend *addend)
{
    return addend->first >= window->base && addend->first - window->base < ZI_NORM_STARTS;
}

/* The base of a window in whose middle a total that begins at `first` falls. */
ZI_LANE uint32_t zi_norm_window_base(uint32_t first)
{
    return first > 0 ? first - 1 : 0;
}

/* An addend that fits. Every limb's share is selected, so that the window stays in registers. */
ZI_LANE void zi_norm_window_add(zi_norm_window *window, const zi_norm_addend *addend)
{
    const uint32_t start = addend->first - window->base;
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_NORM_WINDOW; i++) {
        uint64_t share = 0;
        ZI_UNROLL
        for (uint32_t k = 0; k < 3; k++) {
            share |= start + k == i ? addend->limb[k] : 0;
        }
        window->limb[i] += share;
    }
}

/* The begin of row `row` of a lane's half of chunk `chunk`. */
ZI_LANE uint64_t zi_norm_row_place(uint64_t chunk, uint32_t row, uint32_t lane)
{
    return chunk * ZI_NORM_CHUNK + (uint64_t)row * ZI_NORM_LANES +
           (uint64_t)(lane % 2) * ZI_NORM_HALF;
}

/* A lane's quads of a chunk, by row, as they lie in memory. */
typedef struct zi_norm_rows {
    zi_quad_words words[ZI_NORM_ROWS];
} zi_norm_rows;

/* Narrow rows have 16 bytes. So the lanes of a pair load alternate rows whole, and each gives its
 * neighbour the neighbour's half. */
ZI_LANE zi_norm_rows zi_norm_rows_narrow(const void *source, zero_dtype dtype, uint64_t chunk,
                                         uint32_t lane)
{
    zi_norm_rows rows;
#if defined(__CUDA_ARCH__)
    zi_quad_words loaded[ZI_NORM_ROWS / 2];
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_NORM_ROWS / 2; i++) {
        const uint64_t row = 2 * i + lane % 2;
        loaded[i] = zi_words_load16(
            zi_place_const(source, dtype, chunk * ZI_NORM_CHUNK + row * ZI_NORM_LANES),
            ZI_USE_AGAIN);
    }
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_NORM_ROWS / 2; i++) {
        const bool even = lane % 2 == 0;
        ZI_UNROLL
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t low = loaded[i].word[k];
            const uint32_t high = loaded[i].word[k + 2];
            const uint32_t received = __shfl_xor_sync(0xffffffffu, even ? high : low, 1);
            rows.words[2 * i].word[k] = even ? low : received;
            rows.words[2 * i + 1].word[k] = even ? received : high;
        }
    }
#else
    for (uint32_t row = 0; row < ZI_NORM_ROWS; row++) {
        rows.words[row] = zi_words_load8(
            zi_place_const(source, dtype, zi_norm_row_place(chunk, row, lane)), ZI_USE_AGAIN);
    }
#endif
    return rows;
}

/* A lane's half of a whole chunk of an aligned array. Every load is issued before the first value
 * is used. All lanes of the warp call it together. */
ZI_LANE zi_norm_half zi_norm_half_whole(const void *source, zero_dtype dtype, uint64_t chunk,
                                        uint32_t lane)
{
    zi_norm_half half = {{0.0, 0.0, 0.0, 0.0}};
    zi_norm_rows rows;
    if (dtype == ZERO_DTYPE_F32) {
        ZI_UNROLL
        for (uint32_t row = 0; row < ZI_NORM_ROWS; row++) {
            rows.words[row] = zi_words_load16(
                zi_place_const(source, dtype, zi_norm_row_place(chunk, row, lane)), ZI_USE_AGAIN);
        }
    } else {
        rows = zi_norm_rows_narrow(source, dtype, chunk, lane);
    }
    ZI_UNROLL
    for (uint32_t row = 0; row < ZI_NORM_ROWS; row++) {
        zi_norm_half_add(&half, zi_quad_of(rows.words[row], dtype));
    }
    return half;
}

/* The same for any chunk, element by element, with zeros behind the end of the array. */
ZI_LANE zi_norm_half zi_norm_half_partial(const void *source, zero_dtype dtype, uint64_t count,
                                          uint64_t chunk, uint32_t lane)
{
    zi_norm_half half = {{0.0, 0.0, 0.0, 0.0}};
    ZI_NO_UNROLL
    for (uint32_t row = 0; row < ZI_NORM_ROWS; row++) {
        const uint64_t place = zi_norm_row_place(chunk, row, lane);
        zi_quad quad;
        ZI_UNROLL
        for (uint32_t i = 0; i < ZI_QUAD; i++) {
            quad.value[i] = place + i < count ? zi_element_get(source, dtype, place + i) : 0.0f;
        }
        zi_norm_half_add(&half, quad);
    }
    return half;
}

/* True when every chunk of the lane's warp can be loaded whole. The same on all lanes of a warp. */
ZI_LANE int zi_norm_warp_whole(const void *source, uint64_t count, uint64_t chunk, uint32_t lane)
{
    const uint64_t warp_first = chunk - lane / 2;
    return (warp_first + ZI_NORM_WARP_CHUNKS) * ZI_NORM_CHUNK <= count &&
           (uintptr_t)source % 16 == 0;
}

ZI_LANE zi_norm_half zi_norm_half_of(const void *source, zero_dtype dtype, uint64_t count,
                                     uint64_t chunk, uint32_t lane)
{
    return zi_norm_warp_whole(source, count, chunk, lane)
               ? zi_norm_half_whole(source, dtype, chunk, lane)
               : zi_norm_half_partial(source, dtype, count, chunk, lane);
}

/* The chunk of a lane in pass `pass` of a block. */
ZI_LANE uint64_t zi_norm_chunk_of(uint64_t block, uint64_t passes, uint64_t pass, uint32_t thread)
{
    return (block * passes + pass) * ZI_NORM_PASS_CHUNKS + thread / 2;
}

#endif
