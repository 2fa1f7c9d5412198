/* Vectors of gpt2_real for gpt2_ops.c, as long as the registers of the instruction set it is
 * compiled for, their exponential, and sums whose shape does not depend on that length. */
#ifndef GPT2_LANES_H
#define GPT2_LANES_H

#include "gpt2_ops.h"

#include <math.h>
#include <string.h>

/* Elements of a vector: 16 bytes unless the build says otherwise. */
#ifndef GPT2_OPS_LANES
#define GPT2_OPS_LANES (16 / sizeof(gpt2_real))
#endif
enum { LANES = GPT2_OPS_LANES, SUM_LANES = 16, SUM_PARTS = SUM_LANES / LANES };

typedef gpt2_real vec __attribute__((vector_size(LANES * sizeof(gpt2_real))));
typedef float fvec __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t uvec __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef int32_t ivec __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint16_t hvec __attribute__((vector_size(LANES * sizeof(uint16_t))));
#ifdef GPT2_DOUBLE
typedef int64_t mask_vec __attribute__((vector_size(LANES * sizeof(int64_t))));
#else
typedef ivec mask_vec;
#endif

#define INLINE static inline __attribute__((always_inline))

/* Reads min(left, LANES) elements; the other lanes are those of `fill`. */
INLINE vec load_or(const gpt2_real *from, size_t left, vec fill)
{
    vec value = fill;
    if (left >= LANES) {
        memcpy(&value, from, sizeof value);
    } else {
        memcpy(&value, from, left * sizeof *from);
    }
    return value;
}

INLINE vec load(const gpt2_real *from, size_t left)
{
    return load_or(from, left, (vec){0});
}

INLINE void store(gpt2_real *to, vec value, size_t left)
{
    if (left >= LANES) {
        memcpy(to, &value, sizeof value);
    } else {
        memcpy(to, &value, left * sizeof *to);
    }
}

INLINE vec splat(gpt2_real value)
{
    return value - (vec){0};
}

INLINE vec choose(mask_vec where, vec yes, vec no)
{
    return (vec)(((mask_vec)yes & where) | ((mask_vec)no & ~where));
}

/* 16 partial sums: element c of a row belongs to number c % 16. */
typedef struct sum {
    vec part[SUM_PARTS];
} sum;

/* Adds the values of elements c .. c + LANES - 1. */
INLINE void sum_add(sum *total, size_t c, vec value)
{
    total->part[c / LANES % SUM_PARTS] += value;
}

/* The partial sums added in a fixed tree. */
INLINE gpt2_real sum_of(const sum *total)
{
    gpt2_real lane[SUM_LANES];
    memcpy(lane, total, sizeof lane);
    for (size_t half = SUM_LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++) {
            lane[i] += lane[i + half];
        }
    }
    return lane[0];
}

INLINE gpt2_real max_of(vec value)
{
    gpt2_real lane[LANES];
    memcpy(lane, &value, sizeof lane);
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++) {
            lane[i] = lane[i + half] > lane[i] ? lane[i + half] : lane[i];
        }
    }
    return lane[0];
}

#ifdef GPT2_DOUBLE
INLINE vec vec_exp(vec x)
{
    vec y = x;
    for (size_t i = 0; i < LANES; i++) {
        y[i] = exp(x[i]);
    }
    return y;
}
#else
/* exp by range reduction to [-ln 2 / 2, ln 2 / 2] and a polynomial of degree 6 (coefficients of the
 * Cephes library's expf). A NaN stays a NaN: both comparisons are false for it. */
INLINE vec vec_exp(vec x)
{
    x = choose(x < splat(-87.0f), splat(-87.0f), x);
    x = choose(x > splat(88.0f), splat(88.0f), x);
    const vec shift = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    const vec shifted = x * 1.44269504f + shift;
    const vec n = shifted - shift;
    const vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    /* The low bits of `shifted` are n; they move to the exponent. */
    return (vec)((uvec)p + ((uvec)shifted << 23));
}
#endif

#endif
