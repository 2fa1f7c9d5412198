/* Owns the inner loops of the CPU kernels. Compiled once per instruction set, with
 * ZI_LANES_SUFFIX naming it; nothing here chooses one or runs in parallel.
 * Invariant: no value depends on the block sizes below, on vector width or on alignment. Low
 * precision passes through fp32 blocks that stay in the first-level cache, so that there is one
 * loop per conversion instead of one per combination of types. AdamW on fp32 state and the fold
 * have one per combination: they wait for memory, and must ask for all of it at once. */
#include "kernels/cpu/lanes.h"

#include <stdbool.h>
#include <string.h>

#include "core/check.h"
#include "kernels/cpu/stream_store.h"
#include "kernels/cpu/wide.h"
#include "kernels/math/adamw.h"
#include "kernels/math/convert.h"

#define JOIN_(left, right) left##right
#define JOIN(left, right) JOIN_(left, right)
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Elements of a fixed-count loop: whole vectors on every instruction set, whole lines of memory. */
#define STEP 64
/* Elements converted at a time, a multiple of STEP: long enough that the loops' ends do not count,
 * and a function's blocks fit in a quarter of a 32 KiB first-level cache. They are also why a frame
 * may be larger than usual, up to 8 KiB. */
#define BLOCK 1024
/* The same for three arrays at once. */
#define UNPACKED 512
/* Elements between use and prefetch: of what is unpacked the next block, so that it comes while
 * this one is computed. */
#define AHEAD 512
/* From so many elements on, the data does not stay in a cache before its next use. */
#define STREAM_COUNT_MIN ((size_t)1 << 18)
#define LINE_BYTES 64

static inline size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t width(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

static inline const void *at_const(const void *base, zero_dtype dtype, size_t index)
{
    return (const unsigned char *)base + index * width(dtype);
}

/* An array that does not exist is NULL wherever one looks. */
static inline void *at(void *base, zero_dtype dtype, size_t index)
{
    return dtype == ZERO_DTYPE_NONE ? NULL : (unsigned char *)base + index * width(dtype);
}

/* Asks for the lines of `count` elements that lie AHEAD elements after `base`. Reading past an
 * array's end this way is harmless; the address is an integer because no such pointer may be. */
ALWAYS_INLINE void prefetch(const void *base, zero_dtype dtype, size_t count)
{
    const uintptr_t start = (uintptr_t)base + AHEAD * width(dtype);
    for (size_t i = 0; i < count * width(dtype); i += LINE_BYTES) {
        __builtin_prefetch((const void *)(start + i), 0, 2);
    }
}

/* One element as fp32. dtype is a constant wherever this is inlined. */
ALWAYS_INLINE float get(const void *base, zero_dtype dtype, size_t i)
{
    if (dtype == ZERO_DTYPE_F32) {
        return ((const float *)base)[i];
    }
    const uint16_t value = ((const uint16_t *)base)[i];
    return dtype == ZERO_DTYPE_BF16 ? zi_f32_from_bf16(value) : zi_f32_from_f16(value);
}

ALWAYS_INLINE void put(void *base, zero_dtype dtype, size_t i, float value)
{
    if (dtype == ZERO_DTYPE_F32) {
        ((float *)base)[i] = value;
    } else {
        ((uint16_t *)base)[i] =
            dtype == ZERO_DTYPE_BF16 ? zi_bf16_from_f32(value) : zi_f16_from_f32(value);
    }
}

ALWAYS_INLINE void load_step(float *restrict target, const void *restrict source, zero_dtype dtype,
                             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        target[i] = get(source, dtype, i);
    }
}

ALWAYS_INLINE void load_loop(float *restrict target, const void *restrict source, zero_dtype dtype,
                             size_t count)
{
    size_t i = 0;
    for (; i + STEP <= count; i += STEP) {
        prefetch(at_const(source, dtype, i), dtype, STEP);
        load_step(target + i, at_const(source, dtype, i), dtype, STEP);
    }
    load_step(target + i, at_const(source, dtype, i), dtype, count - i);
}

/* target = source, with the elements AHEAD of it on their way. */
static void load(float *restrict target, const void *restrict source, zero_dtype dtype,
                 size_t count)
{
    if (dtype == ZERO_DTYPE_F32) {
        load_loop(target, source, ZERO_DTYPE_F32, count);
    } else if (dtype == ZERO_DTYPE_BF16) {
        load_loop(target, source, ZERO_DTYPE_BF16, count);
    } else {
        zi_assert(dtype == ZERO_DTYPE_F16);
        load_loop(target, source, ZERO_DTYPE_F16, count);
    }
}

ALWAYS_INLINE void store(void *restrict target, zero_dtype dtype, const float *restrict source,
                         size_t count)
{
    if (dtype == ZERO_DTYPE_F32) {
        memcpy(target, source, count * sizeof *source);
    } else if (dtype == ZERO_DTYPE_BF16) {
        for (size_t i = 0; i < count; i++) {
            put(target, ZERO_DTYPE_BF16, i, source[i]);
        }
    } else {
        zi_assert(dtype == ZERO_DTYPE_F16);
        for (size_t i = 0; i < count; i++) {
            put(target, ZERO_DTYPE_F16, i, source[i]);
        }
    }
}

/* A block that nobody reads soon: past the caches where the target is aligned for that. */
static void store_far(void *restrict target, zero_dtype dtype, const float *restrict source,
                      size_t count)
{
    if (dtype == ZERO_DTYPE_F32) {
        zi_stream_store(target, source, count * sizeof *source);
        return;
    }
    _Alignas(64) uint16_t narrow[BLOCK];
    store(narrow, dtype, source, count);
    zi_stream_store(target, narrow, count * sizeof narrow[0]);
}

/* The generator's words of ZI_WIDE_LANES neighbouring blocks, from `block` on, as two words a lane:
 * zi_philox with a call in every lane. Only the lower half of a lane counts in x0..x3. */
ALWAYS_INLINE void random_words(zi_wide words[2], zi_rounding_key key, uint64_t block)
{
    const zi_rounding_counter counter = zi_rounding_counter_of(key, block);
    zi_wide x0 = zi_wide_of(counter.low) + zi_wide_indices();
    zi_wide x1 = x0 >> 32;
    zi_wide x2 = zi_wide_of(counter.high);
    zi_wide x3 = x2 >> 32;
    uint32_t k0 = (uint32_t)key.seed;
    uint32_t k1 = (uint32_t)(key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        const zi_wide p0 = zi_wide_multiply(x0, zi_wide_of(UINT64_C(0xD2511F53)));
        const zi_wide p1 = zi_wide_multiply(x2, zi_wide_of(UINT64_C(0xCD9E8D57)));
        x0 = (p1 >> 32) ^ x1 ^ k0;
        x2 = (p0 >> 32) ^ x3 ^ k1;
        x1 = p1;
        x3 = p0;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    words[0] = (x0 & UINT32_MAX) | (x1 << 32);
    words[1] = (x2 & UINT32_MAX) | (x3 << 32);
}

/* Calls of the generator whose words are put in order at once, and the elements they serve. */
#define CALLS 32
#define CALLS_ELEMENTS ((size_t)CALLS * ZI_ROUNDING_BLOCK)
/* Random bits of `count` elements, and of what the first and last call have too many of. */
#define BITS_COUNT(count) ((count) + CALLS_ELEMENTS)

/* Bits of CALLS_ELEMENTS elements from a multiple of ZI_ROUNDING_BLOCK on. */
static void random_calls(uint16_t *restrict bits, zi_rounding_key key, uint64_t block)
{
    _Alignas(64) uint64_t low[CALLS];
    _Alignas(64) uint64_t high[CALLS];
    _Alignas(64) uint64_t ordered[2 * CALLS];
    for (size_t i = 0; i < CALLS; i += ZI_WIDE_LANES) {
        zi_wide words[2];
        random_words(words, key, block + i);
        memcpy(low + i, &words[0], sizeof words[0]);
        memcpy(high + i, &words[1], sizeof words[1]);
    }
    for (size_t i = 0; i < CALLS; i++) {
        ordered[2 * i] = low[i];
        ordered[2 * i + 1] = high[i];
    }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(bits, ordered, sizeof ordered);
#else
    for (size_t i = 0; i < CALLS_ELEMENTS; i++) {
        bits[i] = (uint16_t)(ordered[i / 4] >> (16 * (i % 4)));
    }
#endif
}

/* The 16 random bits of elements [first, first + count) of a tensor. bits: room for
 * BITS_COUNT(count). Returns where in it they begin. */
static const uint16_t *random_bits(uint16_t *bits, zi_rounding_key key, uint64_t first,
                                   size_t count)
{
    const size_t before = first % ZI_ROUNDING_BLOCK;
    for (size_t i = 0; i < before + count; i += CALLS_ELEMENTS) {
        random_calls(bits + i, key, (first + i) / ZI_ROUNDING_BLOCK);
    }
    return bits + before;
}

/* `count` elements, rounded stochastically. */
static void round_block(void *restrict target, zero_dtype dtype, const float *restrict source,
                        size_t count, const uint16_t *restrict bits)
{
    uint16_t *restrict narrow = target;
    if (dtype == ZERO_DTYPE_BF16) {
        for (size_t i = 0; i < count; i++) {
            narrow[i] = zi_bf16_from_f32_stochastic(source[i], bits[i]);
        }
    } else {
        zi_assert(dtype == ZERO_DTYPE_F16);
        for (size_t i = 0; i < count; i++) {
            narrow[i] = zi_f16_from_f32_stochastic(source[i], bits[i]);
        }
    }
}

static void lanes_round(const zi_round_run *run)
{
    uint16_t room[BITS_COUNT(BLOCK)];
    for (size_t i = 0; i < run->count; i += BLOCK) {
        const size_t count = least(BLOCK, run->count - i);
        const uint16_t *bits = random_bits(room, run->key, run->first + i, count);
        round_block(at(run->target, run->dtype, i), run->dtype, run->source + i, count, bits);
    }
}

/* What AdamW on fp32 state needs beside its arrays. */
typedef struct adamw_scalars {
    size_t count;
    float grad_scale;
    float decay;
    zi_adamw_coeffs coeffs;
    bool far; /* the copy goes past the caches */
} adamw_scalars;

/* The arrays of AdamW; those of one block. */
typedef struct adamw_arrays {
    float *p;
    float *m;
    float *v;
    const void *grad;
    void *copy; /* unused where its type is NONE */
} adamw_arrays;

ALWAYS_INLINE void adamw_step(adamw_arrays arrays, adamw_scalars scalars, zero_dtype grad_dtype,
                              zero_dtype copy_dtype)
{
    _Alignas(64) uint16_t narrow[STEP];
    for (size_t i = 0; i < scalars.count; i++) {
        const zi_adamw_state state = {arrays.p[i], arrays.m[i], arrays.v[i]};
        const float grad = get(arrays.grad, grad_dtype, i) * scalars.grad_scale;
        const zi_adamw_state next = zi_adamw_lane(state, grad, scalars.coeffs, scalars.decay);
        arrays.p[i] = next.p;
        arrays.m[i] = next.m;
        arrays.v[i] = next.v;
        if (copy_dtype != ZERO_DTYPE_NONE) {
            put(narrow, copy_dtype, i, next.p);
        }
    }
    if (copy_dtype != ZERO_DTYPE_NONE) {
        if (scalars.far) {
            zi_stream_store(arrays.copy, narrow, scalars.count * sizeof narrow[0]);
        } else {
            memcpy(arrays.copy, narrow, scalars.count * sizeof narrow[0]);
        }
    }
}

ALWAYS_INLINE void adamw_loop(adamw_arrays arrays, const adamw_scalars *all, zero_dtype grad_dtype,
                              zero_dtype copy_dtype)
{
    adamw_scalars scalars = *all; /* kept in registers */
    scalars.count = STEP;
    for (size_t left = all->count; left > 0; left -= scalars.count) {
        if (left < STEP) {
            scalars.count = left;
            adamw_step(arrays, scalars, grad_dtype, copy_dtype);
            return;
        }
        prefetch(arrays.p, ZERO_DTYPE_F32, STEP);
        prefetch(arrays.m, ZERO_DTYPE_F32, STEP);
        prefetch(arrays.v, ZERO_DTYPE_F32, STEP);
        prefetch(arrays.grad, grad_dtype, STEP);
        adamw_step(arrays, scalars, grad_dtype, copy_dtype);
        arrays.p += STEP;
        arrays.m += STEP;
        arrays.v += STEP;
        arrays.grad = at_const(arrays.grad, grad_dtype, STEP);
        arrays.copy = at(arrays.copy, copy_dtype, STEP);
    }
}

/* One function per pair of types. The arrays are its parameters because that is where compilers
 * believe `restrict`. */
#define ADAMW(grad_type, copy_type)                                                            \
    static void adamw_##grad_type##_##copy_type(float *restrict p, float *restrict m,          \
                                                float *restrict v, const void *restrict grad,  \
                                                void *restrict copy, const adamw_scalars *all) \
    {                                                                                          \
        adamw_loop((adamw_arrays){p, m, v, grad, copy}, all, ZERO_DTYPE_##grad_type,           \
                   ZERO_DTYPE_##copy_type);                                                    \
    }
ADAMW(F32, NONE)
ADAMW(F32, BF16)
ADAMW(F32, F16)
ADAMW(BF16, NONE)
ADAMW(BF16, BF16)
ADAMW(BF16, F16)
ADAMW(F16, NONE)
ADAMW(F16, BF16)
ADAMW(F16, F16)

typedef void (*adamw_fn)(float *restrict p, float *restrict m, float *restrict v,
                         const void *restrict grad, void *restrict copy, const adamw_scalars *all);

static adamw_fn adamw_choose(zero_dtype grad_dtype, zero_dtype copy_dtype)
{
    static const adamw_fn by_type[3][3] = {{adamw_F32_BF16, adamw_F32_F16, adamw_F32_NONE},
                                           {adamw_BF16_BF16, adamw_BF16_F16, adamw_BF16_NONE},
                                           {adamw_F16_BF16, adamw_F16_F16, adamw_F16_NONE}};
    zi_assert(grad_dtype >= ZERO_DTYPE_F32 && grad_dtype <= ZERO_DTYPE_F16);
    zi_assert(copy_dtype >= ZERO_DTYPE_BF16 && copy_dtype <= ZERO_DTYPE_NONE);
    return by_type[grad_dtype - ZERO_DTYPE_F32][copy_dtype - ZERO_DTYPE_BF16];
}

/* Kept out of its caller, whose frame the random bits would join. */
__attribute__((noinline)) static void adamw_round(const zi_adamw_run *run,
                                                  zi_rounding_purpose purpose, void *target,
                                                  const float *source, size_t start, size_t count)
{
    uint16_t room[BITS_COUNT(UNPACKED)];
    zi_rounding_key key = run->key;
    key.purpose = purpose;
    const uint16_t *bits = random_bits(room, key, run->first + start, count);
    const zero_dtype dtype = purpose == ZI_ROUNDING_PARAM ? run->param_dtype : run->moment_dtype;
    round_block(at(target, dtype, start), dtype, source, count, bits);
}

/* State that is not all fp32 is unpacked, updated and rounded back, a block at a time. */
static void adamw_unpacked(const zi_adamw_run *run, adamw_scalars scalars, adamw_fn update)
{
    _Alignas(64) float p[UNPACKED];
    _Alignas(64) float m[UNPACKED];
    _Alignas(64) float v[UNPACKED];
    const bool unpack_param = run->master == NULL;
    const bool unpack_moments = run->moment_dtype != ZERO_DTYPE_F32;
    for (size_t i = 0; i < run->count; i += UNPACKED) {
        const size_t count = least(UNPACKED, run->count - i);
        void *param = at(run->param, run->param_dtype, i);
        void *moment1 = at(run->moment1, run->moment_dtype, i);
        void *moment2 = at(run->moment2, run->moment_dtype, i);
        if (unpack_param) {
            load(p, param, run->param_dtype, count);
        }
        if (unpack_moments) {
            load(m, moment1, run->moment_dtype, count);
            load(v, moment2, run->moment_dtype, count);
        }
        scalars.count = count;
        update(unpack_param ? p : run->master + i, unpack_moments ? m : moment1,
               unpack_moments ? v : moment2, at_const(run->grad, run->grad_dtype, i), param,
               &scalars);
        if (unpack_param) {
            adamw_round(run, ZI_ROUNDING_PARAM, run->param, p, i, count);
        }
        if (unpack_moments) {
            adamw_round(run, ZI_ROUNDING_MOMENT1, run->moment1, m, i, count);
            adamw_round(run, ZI_ROUNDING_MOMENT2, run->moment2, v, i, count);
        }
    }
}

static void lanes_adamw(const zi_adamw_run *run)
{
    const bool has_copy = run->master != NULL && run->param_dtype != ZERO_DTYPE_NONE;
    const adamw_scalars scalars = {
        .count = run->count,
        .grad_scale = run->grad_scale,
        .decay = run->decay,
        .coeffs = run->coeffs,
        .far =
            has_copy && run->count >= STREAM_COUNT_MIN && (uintptr_t)run->param % LINE_BYTES == 0,
    };
    const adamw_fn update =
        adamw_choose(run->grad_dtype, has_copy ? run->param_dtype : ZERO_DTYPE_NONE);
    if (run->master != NULL && run->moment_dtype == ZERO_DTYPE_F32) {
        update(run->master, run->moment1, run->moment2, run->grad, run->param, &scalars);
    } else {
        adamw_unpacked(run, scalars, update);
    }
    if (scalars.far) {
        zi_stream_fence();
    }
}

/* True when writes to dst can go past the caches: many, aligned, and nothing of it read here. */
static bool fold_is_far(const zi_fold *fold)
{
    bool far = fold->count >= STREAM_COUNT_MIN && !fold->accumulate &&
               (uintptr_t)fold->dst % LINE_BYTES == 0;
    for (uint32_t k = 0; k < fold->source_count; k++) {
        far = far && fold->sources[k] != fold->dst;
    }
    return far;
}

/* A sum that is normalised in time. */
typedef struct square_part {
    zi_norm_sum sum;
    uint64_t additions;
} square_part;

/* Adds the squares of `count` values, and fills up the last chunk with zeros. */
ALWAYS_INLINE void add_squares(square_part *part, float *values, size_t count)
{
    for (size_t k = count; k % ZI_NORM_CHUNK != 0; k++) {
        values[k] = 0.0f;
    }
    for (size_t k = 0; k < count; k += ZI_NORM_CHUNK) {
        zi_norm_add(&part->sum, zi_norm_chunk(values + k));
        part->additions++;
    }
    if (part->additions >= ZI_NORM_ADDITIONS_MAX / 2) {
        zi_norm_normalise(&part->sum);
        part->additions = 0;
    }
}

/* Fp32 of a register, the widest that the compilation may use. */
typedef float wide_f32 __attribute__((vector_size(__BIGGEST_ALIGNMENT__)));

/* Elements whose sums a fold keeps in registers while it goes over the sources. */
#define HELD_WIDE 4
#define HELD (HELD_WIDE * sizeof(wide_f32) / sizeof(float))

_Static_assert(STEP % HELD == 0 && STEP == ZI_NORM_CHUNK,
               "a step is whole registers and one chunk");

/* sum += HELD elements. */
ALWAYS_INLINE void add_held(wide_f32 *sum, const void *source, zero_dtype dtype)
{
    float room[HELD];
    if (dtype != ZERO_DTYPE_F32) {
        load_step(room, source, dtype, HELD);
        source = room;
    }
    for (size_t i = 0; i < HELD_WIDE; i++) {
        wide_f32 values;
        memcpy(&values, at_const(source, ZERO_DTYPE_F32, i * (HELD / HELD_WIDE)), sizeof values);
        sum[i] += values;
    }
}

/* The fold's sums of elements [i, i + STEP): one pass over the sources, so that memory is asked for
 * all of them at once. */
ALWAYS_INLINE void fold_step(float *restrict sums, const zi_fold *fold, size_t i,
                             zero_dtype source_dtype, zero_dtype dst_dtype)
{
    for (size_t h = 0; h < STEP; h += HELD) {
        /* The sum is never -0, so leaving zeros out changes no bit. */
        wide_f32 sum[HELD_WIDE] = {{0}};
        for (uint32_t k = 0; k < fold->source_count; k++) {
            if (fold->sources[k] != NULL) {
                const void *source = at_const(fold->sources[k], source_dtype, i + h);
                prefetch(source, source_dtype, HELD);
                add_held(sum, source, source_dtype);
            }
        }
        if (fold->accumulate) {
            const void *source = at_const(fold->dst, dst_dtype, i + h);
            prefetch(source, dst_dtype, HELD);
            add_held(sum, source, dst_dtype);
        }
        memcpy(sums + h, sum, sizeof sum);
    }
}

/* The same of fewer elements. */
static void fold_rest(float *restrict sums, const zi_fold *fold, size_t i, size_t count)
{
    for (size_t j = 0; j < count; j++) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < fold->source_count; k++) {
            sum +=
                fold->sources[k] != NULL ? get(fold->sources[k], fold->source_dtype, i + j) : 0.0f;
        }
        sums[j] = fold->accumulate ? sum + get(fold->dst, fold->dst_dtype, i + j) : sum;
    }
}

/* A fold as it goes on. */
typedef struct fold_state {
    const zi_fold *fold;
    square_part *part; /* NULL: no squares */
    bool far;
} fold_state;

/* Sums of at most STEP elements, put in their place: rounded, then squared as they are stored. */
ALWAYS_INLINE void fold_put(const fold_state *state, float *sums, size_t i, size_t count,
                            zero_dtype dst_dtype)
{
    _Alignas(64) uint16_t narrow[STEP];
    const void *values = sums;
    if (dst_dtype != ZERO_DTYPE_F32) {
        store(narrow, dst_dtype, sums, count);
        values = narrow;
    }
    void *dst = at(state->fold->dst, dst_dtype, i);
    if (state->far) {
        zi_stream_store(dst, values, count * width(dst_dtype));
    } else {
        memcpy(dst, values, count * width(dst_dtype));
    }
    if (state->part != NULL) {
        if (dst_dtype != ZERO_DTYPE_F32) {
            load_step(sums, narrow, dst_dtype, count);
        }
        add_squares(state->part, sums, count);
    }
}

ALWAYS_INLINE void fold_loop(const fold_state *state, size_t begin, size_t end,
                             zero_dtype source_dtype, zero_dtype dst_dtype)
{
    _Alignas(64) float sums[STEP];
    size_t i = begin;
    for (; i + STEP <= end; i += STEP) {
        fold_step(sums, state->fold, i, source_dtype, dst_dtype);
        fold_put(state, sums, i, STEP, dst_dtype);
    }
    if (i < end) {
        fold_rest(sums, state->fold, i, end - i);
        fold_put(state, sums, i, end - i, dst_dtype);
    }
}

/* One function per pair of types. */
#define FOLD(source_type, dst_type)                                                                \
    static void fold_##source_type##_##dst_type(const fold_state *state, size_t begin, size_t end) \
    {                                                                                              \
        fold_loop(state, begin, end, ZERO_DTYPE_##source_type, ZERO_DTYPE_##dst_type);             \
    }
FOLD(F32, F32)
FOLD(F32, BF16)
FOLD(F32, F16)
FOLD(BF16, F32)
FOLD(BF16, BF16)
FOLD(BF16, F16)
FOLD(F16, F32)
FOLD(F16, BF16)
FOLD(F16, F16)

typedef void (*fold_fn)(const fold_state *state, size_t begin, size_t end);

static fold_fn fold_choose(zero_dtype source_dtype, zero_dtype dst_dtype)
{
    static const fold_fn by_type[3][3] = {{fold_F32_F32, fold_F32_BF16, fold_F32_F16},
                                          {fold_BF16_F32, fold_BF16_BF16, fold_BF16_F16},
                                          {fold_F16_F32, fold_F16_BF16, fold_F16_F16}};
    zi_assert(source_dtype >= ZERO_DTYPE_F32 && source_dtype <= ZERO_DTYPE_F16);
    zi_assert(dst_dtype >= ZERO_DTYPE_F32 && dst_dtype <= ZERO_DTYPE_F16);
    return by_type[source_dtype - ZERO_DTYPE_F32][dst_dtype - ZERO_DTYPE_F32];
}

static void lanes_fold(const zi_fold *fold, size_t begin, size_t end, zi_norm_sum *squares)
{
    square_part part = {{{0}, 0, 0}, 0};
    const fold_state state = {fold, squares != NULL ? &part : NULL, fold_is_far(fold)};
    fold_choose(fold->source_dtype, fold->dst_dtype)(&state, begin, end);
    if (state.far) {
        zi_stream_fence();
    }
    if (squares != NULL) {
        zi_norm_merge(squares, &part.sum);
    }
}

static void lanes_cast(void *target, zero_dtype target_dtype, const void *source,
                       zero_dtype source_dtype, size_t count)
{
    _Alignas(64) float values[BLOCK];
    if (target_dtype == source_dtype) {
        if (target != source) {
            memcpy(target, source, count * width(source_dtype));
        }
        return;
    }
    const bool far = count >= STREAM_COUNT_MIN && (uintptr_t)target % LINE_BYTES == 0;
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t part = least(BLOCK, count - i);
        load(values, at_const(source, source_dtype, i), source_dtype, part);
        if (far) {
            store_far(at(target, target_dtype, i), target_dtype, values, part);
        } else {
            store(at(target, target_dtype, i), target_dtype, values, part);
        }
    }
    if (far) {
        zi_stream_fence();
    }
}

static void lanes_scale(float *restrict target, const void *restrict source,
                        zero_dtype source_dtype, float scale, size_t count)
{
    load(target, source, source_dtype, count);
    for (size_t i = 0; i < count; i++) {
        target[i] *= scale;
    }
}

static void lanes_square_sum(const void *source, zero_dtype dtype, size_t count, zi_norm_sum *sum)
{
    _Alignas(64) float values[BLOCK];
    square_part part = {{{0}, 0, 0}, 0};
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t block = least(BLOCK, count - i);
        load(values, at_const(source, dtype, i), dtype, block);
        add_squares(&part, values, block);
    }
    zi_norm_merge(sum, &part.sum);
}

const zi_cpu_lanes JOIN(zi_cpu_lanes_, ZI_LANES_SUFFIX) = {
    .struct_bytes = sizeof(zi_cpu_lanes),
    .name = TEXT(ZI_LANES_SUFFIX),
    .adamw = lanes_adamw,
    .round = lanes_round,
    .fold = lanes_fold,
    .cast = lanes_cast,
    .scale = lanes_scale,
    .square_sum = lanes_square_sum,
};
