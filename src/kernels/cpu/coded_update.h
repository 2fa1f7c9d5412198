/* Updates whose moments are 8-bit codes. A block's scale is known only when all its elements are,
 * so a run of blocks is gone over twice: the first time it is decoded and updated, and its new
 * moments stay in the first-level cache as fp32; the second time they are encoded. For lanes.c
 * only: what is inlined here is compiled for its instruction set.
 *
 * Elements are taken by pairs, as in pairs.h, and a block's new moments are kept in two halves:
 * those of its pairs' first elements, then those of the second. */
#ifndef ZI_KERNELS_CPU_CODED_UPDATE_H
#define ZI_KERNELS_CPU_CODED_UPDATE_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/update_form.h"
#include "kernels/math/code.h"

#define CODED_BLOCK ((size_t)ZERO_CODE_BLOCK)
#define BLOCK_PAIRS (CODED_BLOCK / 2)
/* Blocks of a run. */
#define RUN_BLOCKS 16
#define RUN_COUNT (RUN_BLOCKS * CODED_BLOCK)
#define RUN_PAIRS (RUN_BLOCKS * BLOCK_PAIRS)

_Static_assert(ZI_ROUNDING_BLOCK % RUN_COUNT == 0 && STEP == 2 * CODED_BLOCK,
               "a run has one sequence of random words, and two blocks whole lines");

/* A block of a moment. */
typedef struct moment_block {
    uint32_t words[BLOCK_PAIRS]; /* codes, as widen_bytes makes them */
    float values[CODED_BLOCK];   /* new; of a second moment their roots */
    int32_t most[BLOCK_PAIRS];   /* the greater magnitude of each pair, as bits */
} moment_block;

/* A block of a run. Its arrays are in one struct so that compilers see that they are apart. */
typedef struct run_block {
    _Alignas(64) moment_block moment[ZI_MOMENTS_MAX];
    uint32_t rest[BLOCK_PAIRS];
} run_block;

typedef struct coded_run {
    size_t blocks;
    update_arrays arrays;
    uint16_t *scales[ZI_MOMENTS_MAX];
    /* Of each moment and block: the step of its codes, then the gain. */
    _Alignas(64) float factor[ZI_MOMENTS_MAX][RUN_BLOCKS];
    run_block block[RUN_BLOCKS];
} coded_run;

/* dtype: a constant wherever this is inlined, as form and optimizer are in what follows. */
ALWAYS_INLINE pair_f32 decode_word(zero_dtype dtype, uint32_t word, float step)
{
    return (pair_f32){zi_code_value(dtype, word & UINT32_C(0xff), step),
                      zi_code_value(dtype, word >> 8, step)};
}

/* The greater magnitude, as a number that compares as it does and never is below 0. */
ALWAYS_INLINE int32_t greater_magnitude(float left, float right)
{
    const int32_t a = (int32_t)zi_code_magnitude(left);
    const int32_t b = (int32_t)zi_code_magnitude(right);
    return a > b ? a : b;
}

/* The optimizer over a block. stalled: of each pair, to add to. */
ALWAYS_INLINE void update_block(update_form form, run_block *restrict block, float m_step,
                                float v_step, update_arrays arrays, update_scalars scalars,
                                uint32_t *restrict stalled)
{
    const zero_dtype first_codes = zi_optimizer_code(form.optimizer, 0);
    const zero_dtype second_codes = zi_optimizer_code(form.optimizer, 1);
    arrays.rest = block->rest;
    for (size_t i = 0; i < BLOCK_PAIRS; i++) {
        const pair_f32 m = decode_word(first_codes, block->moment[0].words[i], m_step);
        const pair_f32 v = has_second(form)
                               ? decode_word(second_codes, block->moment[1].words[i], v_step)
                               : (pair_f32){0.0f, 0.0f};
        const pair_state next = update_pair(form, arrays, scalars, i, m, v, &stalled[i]);
        block->moment[0].values[i] = next.first.m;
        block->moment[0].values[i + BLOCK_PAIRS] = next.second.m;
        block->moment[0].most[i] = greater_magnitude(next.first.m, next.second.m);
        if (has_second(form)) {
            block->moment[1].values[i] = next.first.root;
            block->moment[1].values[i + BLOCK_PAIRS] = next.second.root;
            block->moment[1].most[i] = greater_magnitude(next.first.v, next.second.v);
        }
    }
}

/* Returns how many have stalled. */
ALWAYS_INLINE uint32_t update_blocks(update_form form, coded_run *restrict run,
                                     update_arrays arrays, const update_scalars *all)
{
    _Alignas(64) uint32_t stalled[BLOCK_PAIRS] = {0};
    update_scalars scalars = *all; /* kept in registers */
    for (size_t b = 0; b < run->blocks; b++) {
        const update_arrays here = arrays_from(form, arrays, b * CODED_BLOCK);
        run_block *block = &run->block[b];
        if (b % 2 == 0) {
            prefetch_arrays(form, here);
        }
        widen_bytes(block->moment[0].words, here.m, BLOCK_PAIRS);
        if (has_second(form)) {
            widen_bytes(block->moment[1].words, here.v, BLOCK_PAIRS);
        }
        if (form.master == ZERO_DTYPE_REMAINDER8) {
            widen_bytes(block->rest, here.master, BLOCK_PAIRS);
        }
        update_block(form, block, run->factor[0][b], has_second(form) ? run->factor[1][b] : 0.0f,
                     here, scalars, stalled);
        if (form.master == ZERO_DTYPE_REMAINDER8) {
            narrow_bytes(here.master, block->rest, BLOCK_PAIRS);
        }
        scalars.param_at += ZERO_CODE_BLOCK * scalars.param_step;
    }
    uint32_t sum = 0;
    for (size_t i = 0; i < BLOCK_PAIRS; i++) {
        sum += stalled[i];
    }
    return sum;
}

/* Of each two neighbours the greater. */
ALWAYS_INLINE void halve(int32_t *restrict target, const int32_t *restrict source, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        target[i] = source[2 * i] > source[2 * i + 1] ? source[2 * i] : source[2 * i + 1];
    }
}

/* New scales of all blocks, and the gains that go with them. */
ALWAYS_INLINE void scale_blocks(coded_run *restrict run, uint32_t moment, zero_dtype dtype)
{
    _Alignas(64) int32_t eights[RUN_BLOCKS * 8];
    _Alignas(64) int32_t fours[RUN_BLOCKS * 4];
    _Alignas(64) int32_t twos[RUN_BLOCKS * 2];
    _Alignas(64) int32_t most[RUN_BLOCKS];
    uint16_t scales[RUN_BLOCKS];
    for (size_t b = 0; b < RUN_BLOCKS; b++) {
        const int32_t *restrict of_pairs = run->block[b].moment[moment].most;
        for (size_t i = 0; i < 8; i++) {
            eights[8 * b + i] = of_pairs[i] > of_pairs[i + 8] ? of_pairs[i] : of_pairs[i + 8];
        }
    }
    halve(fours, eights, RUN_BLOCKS * 4);
    halve(twos, fours, RUN_BLOCKS * 2);
    halve(most, twos, RUN_BLOCKS);
    for (size_t b = 0; b < RUN_BLOCKS; b++) {
        scales[b] = zi_code_scale((uint32_t)most[b]);
    }
    for (size_t b = 0; b < RUN_BLOCKS; b++) {
        run->factor[moment][b] = zi_code_gain(dtype, scales[b]);
    }
    memcpy(run->scales[moment], scales, run->blocks * sizeof scales[0]);
}

/* The steps of all blocks' codes. */
ALWAYS_INLINE void open_moment(coded_run *restrict run, uint32_t moment, zero_dtype dtype)
{
    uint16_t scales[RUN_BLOCKS] = {0};
    memcpy(scales, run->scales[moment], run->blocks * sizeof scales[0]);
    for (size_t b = 0; b < RUN_BLOCKS; b++) {
        run->factor[moment][b] = zi_code_step(dtype, scales[b]);
    }
}

ALWAYS_INLINE void open_run(zero_optimizer optimizer, coded_run *restrict run)
{
    open_moment(run, 0, zi_optimizer_code(optimizer, 0));
    if (zi_optimizer_moments(optimizer) > 1) {
        open_moment(run, 1, zi_optimizer_code(optimizer, 1));
    }
}

/* The codes of a pair's new values. What is kept of a second moment is its root, its own measure.
 */
ALWAYS_INLINE uint32_t encode_pair(zero_dtype dtype, float first, float second, float gain,
                                   uint32_t word, uint32_t other)
{
    const bool has_root = dtype == ZERO_DTYPE_U8_ROOT;
    const uint32_t low = zi_code_word(dtype, first, has_root ? first : fabsf(first), gain,
                                      zi_code_random(dtype, word));
    const uint32_t high = zi_code_word(dtype, second, has_root ? second : fabsf(second), gain,
                                       zi_code_random(dtype, other));
    return (low & UINT32_C(0xff)) | high << 8;
}

/* A block's new codes, as words. at: its first random word, unmixed. */
ALWAYS_INLINE void encode_block(zero_optimizer optimizer, const run_block *restrict block,
                                float m_gain, float v_gain, uint32_t at, uint32_t step,
                                uint32_t *restrict m_words, uint32_t *restrict v_words)
{
    const zero_dtype first = zi_optimizer_code(optimizer, 0);
    const zero_dtype second = zi_optimizer_code(optimizer, 1);
    const moment_block *m = &block->moment[0];
    const moment_block *v = &block->moment[1];
    for (uint32_t i = 0; i < BLOCK_PAIRS; i++) {
        const uint32_t word = zi_rounding_mix_for(ZERO_DTYPE_I8, at + 2 * i * step);
        const uint32_t other = zi_rounding_mix_for(ZERO_DTYPE_I8, at + step + 2 * i * step);
        m_words[i] =
            encode_pair(first, m->values[i], m->values[i + BLOCK_PAIRS], m_gain, word, other);
        if (second != ZERO_DTYPE_NONE) {
            v_words[i] =
                encode_pair(second, v->values[i], v->values[i + BLOCK_PAIRS], v_gain, word, other);
        }
    }
}

/* New scales, and the codes that go with them. */
ALWAYS_INLINE void close_run(zero_optimizer optimizer, coded_run *restrict run,
                             const update_scalars *scalars)
{
    const bool has_second = zi_optimizer_moments(optimizer) > 1;
    const uint32_t step = scalars->moments_step;
    uint32_t at = scalars->moments_at;
    /* Of all blocks, for loops that are long enough to be vectorised. */
    _Alignas(64) uint32_t words[ZI_MOMENTS_MAX][RUN_PAIRS];
    scale_blocks(run, 0, zi_optimizer_code(optimizer, 0));
    if (has_second) {
        scale_blocks(run, 1, zi_optimizer_code(optimizer, 1));
    }
    for (size_t b = 0; b < run->blocks; b++) {
        encode_block(optimizer, &run->block[b], run->factor[0][b],
                     has_second ? run->factor[1][b] : 0.0f, at, step, words[0] + b * BLOCK_PAIRS,
                     words[1] + b * BLOCK_PAIRS);
        at += ZERO_CODE_BLOCK * step;
    }
    narrow_bytes(run->arrays.m, words[0], run->blocks * BLOCK_PAIRS);
    if (has_second) {
        narrow_bytes(run->arrays.v, words[1], run->blocks * BLOCK_PAIRS);
    }
}

/* Returns how many have stalled. As in lanes.c the arrays are parameters, for `restrict`. */
typedef uint32_t (*blocks_fn)(void *restrict master, void *restrict m, void *restrict v,
                              const void *restrict grad, void *restrict param,
                              coded_run *restrict run, const update_scalars *scalars);

/* The loops of an optimizer: over scales as they are, over elements by the types of gradients and
 * masters, over new moments. */
typedef struct coded_loops {
    void (*open)(coded_run *run);
    blocks_fn update[2][ZERO_DTYPE_REMAINDER8 + 1];
    void (*close)(coded_run *run, const update_scalars *scalars);
} coded_loops;

#define CODED_UPDATE(KIND, name, grad_type, master_type, param_type)                          \
    static uint32_t name##_coded_##grad_type##_##master_type(                                 \
        void *restrict master, void *restrict m, void *restrict v, const void *restrict grad, \
        void *restrict param, coded_run *restrict run, const update_scalars *scalars)         \
    {                                                                                         \
        return update_blocks((update_form){ZERO_OPTIMIZER_##KIND, ZERO_DTYPE_##grad_type,     \
                                           ZERO_DTYPE_##param_type, ZERO_DTYPE_I8,            \
                                           ZERO_DTYPE_##master_type},                         \
                             run, (update_arrays){master, m, v, grad, param, NULL}, scalars); \
    }
#define CODED_UPDATES(KIND, name, grad_type)               \
    CODED_UPDATE(KIND, name, grad_type, F32, NONE)         \
    CODED_UPDATE(KIND, name, grad_type, NONE, BF16)        \
    CODED_UPDATE(KIND, name, grad_type, REMAINDER16, BF16) \
    CODED_UPDATE(KIND, name, grad_type, REMAINDER8, BF16)
#define CODED_LOOPS(KIND, name)                                             \
    CODED_UPDATES(KIND, name, F32)                                          \
    CODED_UPDATES(KIND, name, BF16)                                         \
    static void name##_open(coded_run *run)                                 \
    {                                                                       \
        open_run(ZERO_OPTIMIZER_##KIND, run);                               \
    }                                                                       \
    static void name##_close(coded_run *run, const update_scalars *scalars) \
    {                                                                       \
        close_run(ZERO_OPTIMIZER_##KIND, run, scalars);                     \
    }
ZI_OPTIMIZERS(CODED_LOOPS)

#define CODED_ROW(name, grad_type)                                         \
    {                                                                      \
        [ZERO_DTYPE_F32] = name##_coded_##grad_type##_F32,                 \
        [ZERO_DTYPE_NONE] = name##_coded_##grad_type##_NONE,               \
        [ZERO_DTYPE_REMAINDER16] = name##_coded_##grad_type##_REMAINDER16, \
        [ZERO_DTYPE_REMAINDER8] = name##_coded_##grad_type##_REMAINDER8,   \
    }
#define CODED_TABLE(KIND, name) \
    [ZERO_OPTIMIZER_##          \
        KIND] = {name##_open, {CODED_ROW(name, F32), CODED_ROW(name, BF16)}, name##_close},
static const coded_loops coded_by_optimizer[] = {ZI_OPTIMIZERS(CODED_TABLE)};

/* The update of a run whose gradients are F32 or BF16, and whose parameters BF16 or not written. */
static uint32_t update_run(update_form form, coded_run *run, const update_scalars *scalars)
{
    zi_assert_cmp(form.optimizer, <, sizeof coded_by_optimizer / sizeof coded_by_optimizer[0]);
    zi_assert_cmp(form.master, <=, ZERO_DTYPE_REMAINDER8);
    const coded_loops *loops = &coded_by_optimizer[form.optimizer];
    const blocks_fn update = loops->update[form.grad == ZERO_DTYPE_BF16][form.master];
    const update_arrays arrays = run->arrays;
    zi_assert(update != NULL);
    if (run->blocks < RUN_BLOCKS) {
        memset(run->block, 0, sizeof run->block);
    }
    loops->open(run);
    const uint32_t stalled =
        update(arrays.master, arrays.m, arrays.v, arrays.grad, arrays.param, run, scalars);
    loops->close(run, scalars);
    return stalled;
}

/* Parameters in F16 that are their own masters. grad: as fp32. Returns how many have stalled. */
static uint32_t round_run(update_arrays arrays, const float *restrict p, const float *restrict grad,
                          const update_scalars *all, size_t count)
{
    const update_form form = {.master = ZERO_DTYPE_NONE, .param = ZERO_DTYPE_F16};
    const update_scalars scalars = *all;
    uint32_t stalled = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t same = put_master(form, arrays, scalars, i, 0.0f, p[i]);
        stalled += same & (uint32_t)(grad[i] * scalars.grad_scale != 0.0f);
    }
    return stalled;
}

/* The same of any types: F16 passes through fp32 that stays in the cache. */
static uint32_t update_any_run(update_form form, coded_run *run, const update_scalars *scalars)
{
    _Alignas(64) float grad[RUN_COUNT];
    _Alignas(64) float p[RUN_COUNT];
    const update_arrays arrays = run->arrays;
    const size_t count = run->blocks * CODED_BLOCK;
    const bool is_own = form.master == ZERO_DTYPE_NONE && form.param == ZERO_DTYPE_F16;
    update_form inner = form;
    if (form.grad == ZERO_DTYPE_F16 || is_own) {
        load_values(grad, arrays.grad, form.grad, count);
        run->arrays.grad = grad;
        inner.grad = ZERO_DTYPE_F32;
    }
    if (is_own) {
        load_values(p, arrays.param, ZERO_DTYPE_F16, count);
        run->arrays.master = p;
        inner.master = ZERO_DTYPE_F32;
    }
    const uint32_t stalled = update_run(inner, run, scalars);
    if (form.master == ZERO_DTYPE_F32 && form.param != ZERO_DTYPE_NONE) {
        store(arrays.param, form.param, arrays.master, count);
    }
    return is_own ? round_run(arrays, p, grad, scalars, count) : stalled;
}

/* The last elements of a tensor, fewer than a block, with zeros behind them: there are whole blocks
 * of codes, and so many elements of the other arrays as the tensor has. */
typedef struct coded_rest {
    _Alignas(64) float master[CODED_BLOCK];
    _Alignas(64) float grad[CODED_BLOCK];
    _Alignas(64) uint16_t param[CODED_BLOCK];
    _Alignas(64) uint8_t m[CODED_BLOCK];
    _Alignas(64) uint8_t v[CODED_BLOCK];
} coded_rest;

static void copy_some(void *target, const void *source, zero_dtype dtype, size_t count)
{
    if (target != NULL && source != NULL) {
        memcpy(target, source, count * width(dtype));
    }
}

static void copy_rest(update_form form, update_arrays target, update_arrays source, size_t count)
{
    copy_some(target.master, source.master, form.master, count);
    copy_some(target.param, source.param, form.param, count);
}

static uint32_t update_rest(update_form form, coded_run *run, const update_scalars *scalars,
                            size_t count)
{
    coded_rest rest;
    const update_arrays arrays = run->arrays;
    const update_arrays copy = {rest.master, rest.m, rest.v, rest.grad, rest.param, NULL};
    memset(&rest, 0, sizeof rest);
    copy_rest(form, copy, arrays, count);
    copy_some(rest.m, arrays.m, ZERO_DTYPE_I8, count);
    copy_some(rest.v, arrays.v, ZERO_DTYPE_I8, count);
    memcpy(rest.grad, arrays.grad, count * width(form.grad));
    run->arrays = copy;
    const uint32_t stalled = update_any_run(form, run, scalars);
    copy_rest(form, arrays, copy, count);
    copy_some(arrays.m, rest.m, ZERO_DTYPE_I8, CODED_BLOCK);
    copy_some(arrays.v, rest.v, ZERO_DTYPE_I8, CODED_BLOCK);
    return stalled;
}

/* Whole blocks from element i on, or the last elements, if they are fewer than a block: at most
 * `scalars->count` and RUN_COUNT. Returns how many elements that is. */
static size_t update_some(const zi_lanes_update *all, update_form form, size_t i,
                          const update_scalars *scalars, uint64_t *stalled)
{
    coded_run run;
    const size_t count = least(RUN_COUNT, scalars->count);
    run.blocks = count / CODED_BLOCK;
    run.arrays = arrays_at(all, form, i);
    run.scales[0] = all->scale1 + i / CODED_BLOCK;
    run.scales[1] = has_second(form) ? all->scale2 + i / CODED_BLOCK : NULL;
    if (run.blocks == 0) {
        run.blocks = 1;
        *stalled += update_rest(form, &run, scalars, count);
        return count;
    }
    *stalled += update_any_run(form, &run, scalars);
    return run.blocks * CODED_BLOCK;
}

/* Returns how many have stalled. The update's first element begins a block. */
static uint64_t update_coded(const zi_lanes_update *all)
{
    const update_form form = form_of(all);
    update_scalars scalars = {.grad_scale = all->grad_scale, .coeffs = all->coeffs};
    uint64_t stalled = 0;
    zi_assert_cmp(all->first % CODED_BLOCK, ==, 0);
    for (size_t i = 0; i < all->count;) {
        scalars.count = all->count - i;
        set_random(&scalars, all, i);
        while (scalars.count > 0) {
            const size_t done = update_some(all, form, i, &scalars, &stalled);
            scalars.count -= done;
            scalars.param_at += (uint32_t)done * scalars.param_step;
            scalars.moments_at += (uint32_t)done * scalars.moments_step;
            i += done;
        }
    }
    return stalled;
}

#endif
