/* Owns the measurement of fused optimizer passes, AdamW's and those of rates by tensor, against
 * what the memory allows: reading and writing back the same bytes in place, in the way that is
 * fastest on this machine; before that, where norms are measured, reading what they are of.
 * Invariant: both sides work on the same arrays, the limit leaves every value as it is, and a case
 * is reported only when sampled elements went through exactly the scalar lane's bits, and the first
 * norms are those of the first values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_fold.h"
#include "core/host.h"
#include "core/memory.h"
#include "core/thread.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/math/code.h"
#include "kernels/math/convert.h"
#include "kernels/math/layer_norms.h"
#include "kernels/math/remainder.h"
#include "kernels/math/rounding.h"
#include "optimizer/optimizer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define METRIC "adamw_vs_limit"
/* Blocks of elements, of which one has one scale where there are scales. */
#define SAMPLE_STRIDE ((size_t)1281)
#define SEED UINT64_C(0x5eed)
/* Bytes of an array that one step of the limit covers; a line at least of the narrowest. */
#define STEP_ELEMENTS 64
/* Elements that have a line of scales. */
#define LINE_ELEMENTS (ZERO_CODE_BLOCK * (size_t)64 / sizeof(uint16_t))

/* An optimizer's metrics, and its numbers, which have no meaning. */
typedef struct adam_kind {
    const char *metric;
    const char *metric_speed;
    zi_hyper hyper;
} adam_kind;

static const adam_kind adamw = {
    METRIC,
    "adamw_ns_per_parameter",
    {.kind = ZERO_OPTIMIZER_ADAMW, .adamw = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f}}};
static const adam_kind lamb = {
    "lamb_vs_limit",
    "lamb_ns_per_parameter",
    {.kind = ZERO_OPTIMIZER_LAMB,
     .lamb = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-6f, .weight_decay = 0.01f}}};
static const adam_kind lars = {
    "lars_vs_limit",
    "lars_ns_per_parameter",
    {.kind = ZERO_OPTIMIZER_LARS,
     .lars = {.lr = 1e-1f, .momentum = 0.9f, .weight_decay = 0.01f, .trust = 1e-3f, .eps = 1e-8f}}};

typedef struct adam_case {
    const adam_kind *kind;
    const char *name;
    zero_dtype grad;
    zero_dtype param; /* F32: its own master, no copy */
    zero_dtype master;
    zero_dtype moment;
} adam_case;

static const adam_case cases[] = {
    {&adamw, "bf16 grad and copy", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32,
     ZERO_DTYPE_F32},
    {&adamw, "all fp32", ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
    {&adamw, "bf16 grad, copy and moments", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32,
     ZERO_DTYPE_BF16},
    {&adamw, "remainder16, bf16 moments", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16,
     ZERO_DTYPE_BF16},
    {&adamw, "remainder16, i8 moments", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16,
     ZERO_DTYPE_I8},
    {&adamw, "remainder8, i8 moments", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8,
     ZERO_DTYPE_I8},
    {&lamb, "LAMB, all fp32", ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
    {&lars, "LARS, all fp32", ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
};
#define CASE_COUNT (sizeof cases / sizeof cases[0])
#define THREADS_MAX 256

/* A way to read and write back. Which is the fastest depends on the machine and on the mix. */
typedef struct limit_way {
    size_t ahead;        /* bytes between use and prefetch; 0: none */
    bool stream_changed; /* changed arrays are stored past the caches, as the copy always is */
} limit_way;

static const limit_way limit_ways[] = {{0, false},    {1024, false}, {2048, false},
                                       {4096, false}, {0, true},     {2048, true}};
#define WAY_COUNT (sizeof limit_ways / sizeof limit_ways[0])

/* One case ready to run: the job covers `count` elements in one segment. */
typedef struct adam_run {
    const adam_case *what;
    char name[64]; /* of the case, threads included */
    size_t count;
    zi_update_job job;
    zi_segment segment;
    zi_step_decision decision;
    unsigned char *grad; /* the job's, which only reads it */
    zi_pool *pool;
    limit_way way;    /* of the limit's pass */
    uint64_t zero;    /* xor-ed in by the limit; the compiler does not know that it is 0 */
    uint64_t updates; /* passes of the optimizer so far */
    zi_layer_sums sums;
    zi_layer_norms norms[BENCH_REPETITIONS_MAX + 1]; /* by which each of them went */
    float (*first)[BENCH_PERIOD]; /* the state before them, of one period: master and moments */
    uint64_t seen[THREADS_MAX]; /* the limit's result of the gradient, by thread; nobody needs it */
} adam_run;

static bool has_remainder(const adam_run *run)
{
    return zi_dtype_is_remainder(run->what->master);
}

static bool has_copy(const adam_run *run)
{
    return run->what->param != ZERO_DTYPE_F32 && !has_remainder(run);
}

static zero_optimizer kind_of(const adam_run *run)
{
    return run->job.optimizer;
}

static void *master_of(const adam_run *run)
{
    return run->what->param != ZERO_DTYPE_F32 ? run->job.state[ZI_STATE_MASTER] : run->job.param;
}

/* Part of the elements, in multiples of LINE_ELEMENTS (the count is one). */
static size_t share_begin(const adam_run *run, uint32_t share, uint32_t shares)
{
    return run->count / LINE_ELEMENTS * share / shares * LINE_ELEMENTS;
}

#define CHANGED_MAX 4
#define SCALES_MAX 2

/* The limit, once per width of vector: read, change and write back arrays and their scales, read
 * one, and write one past the caches when there is a copy; or read all and change nothing. */
typedef struct limit_arrays {
    unsigned char *changed[CHANGED_MAX];
    size_t changed_width[CHANGED_MAX]; /* bytes of an element */
    int changed_count;
    unsigned char *scales[SCALES_MAX];
    int scales_count;
    const unsigned char *grad;
    size_t grad_width;
    unsigned char *copy; /* NULL: none */
    size_t count;
    limit_way way;
    bool only_reads;
    uint64_t zero;
} limit_arrays;

static inline void ask_for(const unsigned char *place, size_t bytes, size_t ahead)
{
    for (size_t b = 0; b < bytes && ahead != 0; b += 64) {
        __builtin_prefetch(place + b + ahead, 0, 2);
    }
}

#define LIMIT(name, target, bytes, stream)                                                    \
    typedef unsigned long long name##_vector __attribute__((vector_size(bytes)));             \
    target static uint64_t name(const limit_arrays *limit)                                    \
    {                                                                                         \
        const limit_arrays all = *limit;                                                      \
        const name##_vector zero = (name##_vector){0} + all.zero;                             \
        name##_vector seen = zero;                                                            \
        for (size_t i = 0; i < all.count; i += STEP_ELEMENTS) {                               \
            const unsigned char *grad = all.grad + i * all.grad_width;                        \
            const size_t grad_step = STEP_ELEMENTS * all.grad_width;                          \
            for (int k = 0; k < all.changed_count; k++) {                                     \
                ask_for(all.changed[k] + i * all.changed_width[k],                            \
                        STEP_ELEMENTS * all.changed_width[k], all.way.ahead);                 \
            }                                                                                 \
            ask_for(grad, grad_step, all.way.ahead);                                          \
            for (int k = 0; k < all.changed_count; k++) {                                     \
                unsigned char *at = all.changed[k] + i * all.changed_width[k];                \
                for (size_t b = 0; b < STEP_ELEMENTS * all.changed_width[k]; b += (bytes)) {  \
                    name##_vector *const place = (name##_vector *)(void *)(at + b);           \
                    const name##_vector value = *place ^ zero;                                \
                    if (all.only_reads) {                                                     \
                        seen |= value;                                                        \
                    } else if (all.way.stream_changed) {                                      \
                        stream(place, value);                                                 \
                    } else {                                                                  \
                        *place = value;                                                       \
                    }                                                                         \
                }                                                                             \
            }                                                                                 \
            for (int k = 0; k < all.scales_count && i % LINE_ELEMENTS == 0; k++) {            \
                unsigned char *at = all.scales[k] + i / LINE_ELEMENTS * 64;                   \
                for (size_t b = 0; b < 64; b += (bytes)) {                                    \
                    *(name##_vector *)(void *)(at + b) ^= zero;                               \
                }                                                                             \
            }                                                                                 \
            for (size_t b = 0; b < grad_step; b += (bytes)) {                                 \
                const name##_vector value = *(const name##_vector *)(const void *)(grad + b); \
                seen |= value;                                                                \
                if (all.copy != NULL) {                                                       \
                    stream(all.copy + i * 2 + b, value);                                      \
                }                                                                             \
            }                                                                                 \
        }                                                                                     \
        return seen[0] | seen[1];                                                             \
    }

#if defined(__x86_64__)
#define STREAM_64(place, value) _mm512_stream_si512((__m512i *)(void *)(place), (__m512i)(value))
#define STREAM_32(place, value) _mm256_stream_si256((__m256i *)(void *)(place), (__m256i)(value))
#define STREAM_16(place, value) _mm_stream_si128((__m128i *)(void *)(place), (__m128i)(value))
LIMIT(limit_64, __attribute__((target("avx512f"))), 64, STREAM_64)
LIMIT(limit_32, __attribute__((target("avx"))), 32, STREAM_32)
LIMIT(limit_16, , 16, STREAM_16)
#else
#define STREAM_PLAIN(place, value) memcpy((place), &(value), sizeof(value))
LIMIT(limit_16, , 16, STREAM_PLAIN)
#endif

static uint64_t run_limit(const limit_arrays *all)
{
#if defined(__x86_64__)
    uint64_t seen;
    if (__builtin_cpu_supports("avx512f")) {
        seen = limit_64(all);
    } else {
        seen = __builtin_cpu_supports("avx") ? limit_32(all) : limit_16(all);
    }
    _mm_sfence();
    return seen;
#else
    return limit_16(all);
#endif
}

static unsigned char *shifted(void *base, zero_dtype dtype, size_t index)
{
    return (unsigned char *)base + index * zero_dtype_bytes(dtype);
}

static void add_changed(limit_arrays *all, void *base, zero_dtype dtype, size_t begin)
{
    all->changed[all->changed_count] = shifted(base, dtype, begin);
    all->changed_width[all->changed_count++] = zero_dtype_bytes(dtype);
}

static void add_moments(limit_arrays *all, const adam_run *run, uint32_t moments, size_t begin)
{
    for (uint32_t k = 0; k < moments; k++) {
        add_changed(all, run->job.state[ZI_STATE_MOMENT1 + k], run->what->moment, begin);
    }
}

static limit_arrays limit_of(const adam_run *run, uint32_t share, uint32_t shares)
{
    const adam_case *what = run->what;
    const size_t begin = share_begin(run, share, shares);
    limit_arrays all = {
        .grad = (const unsigned char *)run->job.grad + begin * zero_dtype_bytes(what->grad),
        .grad_width = zero_dtype_bytes(what->grad),
        .copy = has_copy(run) ? shifted(run->job.param, what->param, begin) : NULL,
        .count = share_begin(run, share + 1, shares) - begin,
        .way = run->way,
        .zero = run->zero,
    };
    add_changed(&all, master_of(run), what->master, begin);
    if (has_remainder(run)) {
        add_changed(&all, run->job.param, what->param, begin);
    }
    return all;
}

/* All that a measurement of norms reads, of states that are fp32. */
static void limit_reads(void *argument, uint32_t share, uint32_t shares)
{
    adam_run *run = argument;
    limit_arrays all = limit_of(run, share, shares);
    all.only_reads = true;
    all.copy = NULL;
    add_moments(&all, run, zi_optimizer_measured_moments(kind_of(run)),
                share_begin(run, share, shares));
    run->seen[share] = run_limit(&all);
}

static void limit_share(void *argument, uint32_t share, uint32_t shares)
{
    adam_run *run = argument;
    void *const *state = run->job.state;
    const size_t begin = share_begin(run, share, shares);
    limit_arrays all = limit_of(run, share, shares);
    add_moments(&all, run, zi_optimizer_moments(kind_of(run)), begin);
    for (uint32_t k = ZI_STATE_SCALE1; k <= ZI_STATE_SCALE2 && state[k] != NULL; k++) {
        all.scales[all.scales_count++] =
            shifted(state[k], ZERO_DTYPE_BF16, begin / ZERO_CODE_BLOCK);
    }
    run->seen[share] = run_limit(&all);
}

static void measure_share(void *argument, uint32_t share, uint32_t shares)
{
    const adam_run *run = argument;
    zi_cpu_measure(&run->job, share, shares);
}

static void update_share(void *argument, uint32_t share, uint32_t shares)
{
    const adam_run *run = argument;
    zi_cpu_update(&run->job, NULL, share, shares);
}

static double time_limit(void *argument)
{
    adam_run *run = argument;
    const double start = bench_now();
    if (zi_optimizer_is_layerwise(kind_of(run))) {
        zi_pool_run(run->pool, limit_reads, run);
    }
    zi_pool_run(run->pool, limit_share, run);
    return bench_now() - start;
}

/* Chooses the way that is fastest in the better of two passes. */
static void choose_way(adam_run *run)
{
    double best = 0.0;
    size_t fastest = 0;
    for (size_t k = 0; k < 2 * WAY_COUNT; k++) {
        run->way = limit_ways[k % WAY_COUNT];
        const double taken = time_limit(run);
        if (k == 0 || taken < best) {
            best = taken;
            fastest = k % WAY_COUNT;
        }
    }
    run->way = limit_ways[fastest];
}

/* The norms that the next update goes by. */
static void measure(adam_run *run)
{
    zi_layer_norms *norms = &run->norms[run->updates];
    run->sums = (zi_layer_sums){{{0}, 0, 0}, {{0}, 0, 0}};
    zi_pool_run(run->pool, measure_share, run);
    *norms = (zi_layer_norms){zi_layer_norm(&run->sums.param), zi_layer_norm(&run->sums.direction)};
    run->job.norms = norms;
}

static double time_update(void *argument)
{
    adam_run *run = argument;
    const double start = bench_now();
    if (zi_optimizer_is_layerwise(kind_of(run))) {
        measure(run);
    }
    zi_pool_run(run->pool, update_share, run);
    run->updates++;
    return bench_now() - start;
}

/* The block of elements from `first` on, by element: master and moments as fp32. */
typedef float block_state[3][ZERO_CODE_BLOCK];

static void read_block(const adam_run *run, size_t first, block_state block)
{
    const zi_update_job *job = &run->job;
    const size_t count = ZERO_CODE_BLOCK;
    void *master = shifted(master_of(run), run->what->master, first);
    if (has_remainder(run)) {
        zi_cpu_join(block[0], (const uint16_t *)job->param + first, master, run->what->master,
                    count);
    } else {
        memcpy(block[0], master, sizeof block[0]);
    }
    memset(block[2], 0, sizeof block[2]); /* where there is one moment */
    for (uint32_t k = 0; k < zi_optimizer_moments(kind_of(run)); k++) {
        const void *moment = shifted(job->state[ZI_STATE_MOMENT1 + k], run->what->moment, first);
        if (run->what->moment == ZERO_DTYPE_I8) {
            const uint16_t *scales = job->state[ZI_STATE_SCALE1 + k];
            zi_cpu_decode(block[1 + k], moment, scales + first / count,
                          zi_optimizer_code(job->optimizer, k), count);
        } else {
            zi_cpu_cast(block[1 + k], ZERO_DTYPE_F32, moment, run->what->moment, count);
        }
    }
}

/* A moment's values as they are stored. random: the word of each. */
static void keep_moment(const adam_run *run, uint32_t moment, float *values, const uint32_t *random)
{
    const zero_dtype dtype = run->what->moment;
    const zero_dtype kind = zi_optimizer_code(kind_of(run), moment);
    uint32_t most = 0;
    for (size_t k = 0; k < ZERO_CODE_BLOCK; k++) {
        const uint32_t magnitude = zi_code_magnitude(values[k]);
        most = magnitude > most ? magnitude : most;
    }
    const uint16_t scale = zi_code_scale(most);
    const zi_rounding_purpose purpose = moment == 0 ? ZI_ROUNDING_MOMENT1 : ZI_ROUNDING_MOMENT2;
    for (size_t k = 0; k < ZERO_CODE_BLOCK; k++) {
        if (dtype == ZERO_DTYPE_I8) {
            const uint8_t code =
                zi_code_of(kind, values[k], zi_code_measure(kind, values[k]),
                           zi_code_gain(kind, scale), zi_code_random(kind, random[k]));
            values[k] = zi_code_value(kind, code, zi_code_step(kind, scale));
        } else if (dtype == ZERO_DTYPE_BF16) {
            values[k] = zi_f32_from_bf16(
                zi_bf16_from_f32_stochastic(values[k], zi_rounding_half(random[k], purpose)));
        }
    }
}

/* A block's gradients, unscaled. */
static void read_grad(const adam_run *run, size_t first, float grad[ZERO_CODE_BLOCK])
{
    zi_cpu_cast(grad, ZERO_DTYPE_F32, shifted(run->grad, run->what->grad, first), run->what->grad,
                ZERO_CODE_BLOCK);
    for (size_t k = 0; k < ZERO_CODE_BLOCK; k++) {
        grad[k] *= run->decision.grad_scale;
    }
}

/* One update of a block as the lane functions define it, by these norms. copies: the bits of its
 * parameters. */
static void scalar_update(const adam_run *run, size_t first, const zi_layer_norms *norms,
                          block_state block, uint16_t *copies)
{
    const zi_coeffs coeffs = zi_optimizer_trust(kind_of(run), run->decision.groups[0], *norms);
    zi_rounding_key key = {SEED, run->decision.update, 0, ZI_ROUNDING_PARAM};
    float grad[ZERO_CODE_BLOCK];
    uint32_t random[3][ZERO_CODE_BLOCK];
    read_grad(run, first, grad);
    for (size_t k = 0; k < ZERO_CODE_BLOCK; k++) {
        for (uint32_t purpose = 0; purpose < 3; purpose++) {
            key.purpose = (zi_rounding_purpose)purpose;
            random[purpose][k] = zi_rounding_word(
                key, purpose == ZI_ROUNDING_PARAM ? run->what->master : run->what->moment,
                first + k);
        }
        const zi_element_state state = {.p = block[0][k], .m = block[1][k], .v = block[2][k]};
        const zi_element_state next = zi_optimizer_lane(kind_of(run), state, grad[k], coeffs);
        zi_split split = {zi_bf16_from_f32(next.p), 0};
        block[0][k] = next.p;
        if (run->what->master == ZERO_DTYPE_REMAINDER16) {
            split = zi_split16(next.p);
        } else if (run->what->master == ZERO_DTYPE_REMAINDER8) {
            split = zi_split8(next.p, zi_rounding_half(random[0][k], ZI_ROUNDING_PARAM));
            block[0][k] = zi_join8(split.param, split.rest);
        }
        copies[k] = (uint16_t)split.param;
        block[1][k] = next.m;
        block[2][k] = next.v;
    }
    keep_moment(run, 0, block[1], random[1]);
    keep_moment(run, 1, block[2], random[2]);
}

/* Sampled blocks went through exactly `updates` scalar updates, and through nothing else. */
static int check_sample(const adam_run *run)
{
    const size_t blocks = run->count / ZERO_CODE_BLOCK;
    for (size_t k = 0; k < blocks / SAMPLE_STRIDE + 1; k++) {
        const size_t first = (k == 0 ? blocks - 1 : (k - 1) * SAMPLE_STRIDE) * ZERO_CODE_BLOCK;
        block_state block;
        block_state found;
        uint16_t copies[ZERO_CODE_BLOCK] = {0};
        for (size_t m = 0; m < 3; m++) {
            memcpy(block[m], run->first[m] + first % BENCH_PERIOD, sizeof block[m]);
        }
        for (uint64_t u = 0; u < run->updates; u++) {
            scalar_update(run, first, &run->norms[u], block, copies);
        }
        read_block(run, first, found);
        const bool right =
            memcmp(found, block, sizeof found) == 0 &&
            (run->what->param == ZERO_DTYPE_F32 ||
             memcmp((const uint16_t *)run->job.param + first, copies, sizeof copies) == 0);
        if (!right) {
            return bench_fail("adam, %s: the elements from %zu on differ from the scalar lane "
                              "after %llu updates",
                              run->name, first, (unsigned long long)run->updates);
        }
    }
    return 0;
}

/* The first update's norms are those of the first values, of which each period is the same. */
static int check_norms(const adam_run *run)
{
    const double periods = (double)(run->count / BENCH_PERIOD);
    double squares[2] = {0.0, 0.0};
    for (size_t first = 0; first < BENCH_PERIOD; first += ZERO_CODE_BLOCK) {
        float grad[ZERO_CODE_BLOCK];
        read_grad(run, first, grad);
        for (size_t k = 0; k < ZERO_CODE_BLOCK; k++) {
            const size_t i = first + k;
            const zi_element_state state = {
                .p = run->first[0][i], .m = run->first[1][i], .v = run->first[2][i]};
            const double direction = (double)zi_optimizer_direction(kind_of(run), state, grad[k],
                                                                    run->decision.groups[0]);
            squares[0] += (double)state.p * (double)state.p;
            squares[1] += direction * direction;
        }
    }
    const double norms[2] = {sqrt(squares[0] * periods), sqrt(squares[1] * periods)};
    const zi_layer_norms *found = &run->norms[0];
    if (fabs(found->param - norms[0]) > 1e-9 * norms[0] ||
        fabs(found->direction - norms[1]) > 1e-9 * norms[1]) {
        return bench_fail("adam, %s: norms %.17g and %.17g were measured, of the values they are "
                          "%.17g and %.17g",
                          run->name, found->param, found->direction, norms[0], norms[1]);
    }
    return 0;
}

/* Copies the first period of an array to all others. */
static void repeat(void *base, size_t bytes, size_t periods)
{
    for (size_t k = 1; k < periods; k++) {
        memcpy((unsigned char *)base + k * bytes, base, bytes);
    }
}

static void fill_master(const adam_run *run)
{
    const adam_case *what = run->what;
    const size_t periods = run->count / BENCH_PERIOD;
    if (!has_remainder(run)) {
        bench_fill(master_of(run), ZERO_DTYPE_F32, run->count, 1, false);
        return;
    }
    static float values[BENCH_PERIOD];
    bench_fill(values, ZERO_DTYPE_F32, BENCH_PERIOD, 1, false);
    zi_cpu_split(run->job.param, master_of(run), what->master, values, BENCH_PERIOD);
    repeat(run->job.param, BENCH_PERIOD * sizeof(uint16_t), periods);
    repeat(master_of(run), BENCH_PERIOD * zero_dtype_bytes(what->master), periods);
}

static void fill_moment(const adam_run *run, uint32_t moment)
{
    const size_t periods = run->count / BENCH_PERIOD;
    void *base = run->job.state[ZI_STATE_MOMENT1 + moment];
    void *scales = run->job.state[ZI_STATE_SCALE1 + moment];
    if (run->what->moment != ZERO_DTYPE_I8) {
        bench_fill(base, run->what->moment, run->count, 2 + moment, moment == 1);
        return;
    }
    static float values[BENCH_PERIOD];
    bench_fill(values, ZERO_DTYPE_F32, BENCH_PERIOD, 2 + moment, moment == 1);
    zi_cpu_encode(base, scales, zi_optimizer_code(kind_of(run), moment), values, BENCH_PERIOD);
    repeat(base, BENCH_PERIOD, periods);
    repeat(scales, BENCH_PERIOD / ZERO_CODE_BLOCK * sizeof(uint16_t), periods);
}

/* Fills the arrays, and keeps what a period of the state is. */
static void fill(const adam_run *run)
{
    bench_fill(run->grad, run->what->grad, run->count, 0, false);
    if (has_copy(run)) {
        memset(run->job.param, 0, run->count * zero_dtype_bytes(run->what->param));
    }
    fill_master(run);
    for (uint32_t k = 0; k < zi_optimizer_moments(kind_of(run)); k++) {
        fill_moment(run, k);
    }
    for (size_t first = 0; first < BENCH_PERIOD; first += ZERO_CODE_BLOCK) {
        block_state block;
        read_block(run, first, block);
        for (size_t m = 0; m < 3; m++) {
            memcpy(run->first[m] + first, block[m], sizeof block[m]);
        }
    }
}

/* Lay the arrays of a case out in `memory`, one after the other, and the scales behind them. All
 * others begin at multiples of 64 KiB, as those of an engine begin at pages. */
static void lay_out(adam_run *run, unsigned char *memory, size_t bytes)
{
    const adam_case *what = run->what;
    const bool own = what->param == ZERO_DTYPE_F32;
    const size_t master_width = zero_dtype_bytes(what->master);
    const size_t grad_width = zero_dtype_bytes(what->grad);
    const size_t moment_width = zero_dtype_bytes(what->moment);
    const size_t param_width = own ? 0 : zero_dtype_bytes(what->param);
    const uint32_t moments = zi_optimizer_moments((uint32_t)what->kind->hyper.kind);
    const size_t block_scales = what->moment == ZERO_DTYPE_I8 ? moments * sizeof(uint16_t) : 0;
    const size_t block =
        (master_width + grad_width + moments * moment_width + param_width) * ZERO_CODE_BLOCK +
        block_scales;
    run->count = bytes / block * ZERO_CODE_BLOCK / (2 * BENCH_PERIOD) * (2 * BENCH_PERIOD);
    run->segment = (zi_segment){.count = run->count};
    unsigned char *const moment1 = memory + run->count * master_width;
    unsigned char *const moment2 = moment1 + run->count * moment_width;
    unsigned char *const grad = moment1 + moments * run->count * moment_width;
    unsigned char *const param = grad + run->count * grad_width;
    unsigned char *const scale1 = param + run->count * param_width;
    unsigned char *const scale2 = scale1 + run->count / ZERO_CODE_BLOCK * sizeof(uint16_t);
    run->grad = grad;
    run->job =
        (zi_update_job){.optimizer = (zero_optimizer)what->kind->hyper.kind,
                        .segments = &run->segment,
                        .segment_count = 1,
                        .count = run->count,
                        .grad = grad,
                        .param = own ? memory : param,
                        .state[ZI_STATE_MASTER] = own ? NULL : memory,
                        .state[ZI_STATE_MOMENT1] = moment1,
                        .state[ZI_STATE_MOMENT2] = moments > 1 ? moment2 : NULL,
                        .state[ZI_STATE_SCALE1] = block_scales != 0 ? scale1 : NULL,
                        .state[ZI_STATE_SCALE2] = block_scales != 0 && moments > 1 ? scale2 : NULL,
                        .master_dtype = what->master,
                        .grad_dtype = what->grad,
                        .param_dtype = what->param,
                        .moment_dtype = what->moment,
                        .seed = SEED,
                        .decision = &run->decision,
                        .sums = &run->sums,
                        .layers = 1};
    fill(run);
}

/* Formats differ in how many parameters the arrays have. */
static int report_speed(const adam_run *run, bench_report *report, const bench_stat *ours,
                        const bench_stat *limit)
{
    const double scale = 1e9 / (double)run->count;
    const bench_stat speed = {.median = ours->median * scale,
                              .min = ours->min * scale,
                              .max = ours->max * scale,
                              .repetitions = ours->repetitions};
    return bench_add(report, run->what->kind->metric_speed, run->name, "ns", &speed,
                     limit->median * scale);
}

/* Interleaves both sides over one mix of types, then checks and reports. */
static int run_case(const bench_options *options, bench_report *report, adam_run *run,
                    unsigned char *memory, size_t bytes)
{
    /* A step like the tenth. */
    double carried[ZI_CARRIED] = {0.35 / 0.9, 0.99 / 0.999};
    run->decision = (zi_step_decision){.update = 10, .grad_scale = 0.5f, .group_count = 1};
    zi_optimizer_decide(run->what->kind->hyper, carried, &run->decision.groups[0]);
    lay_out(run, memory, bytes);
    choose_way(run);
    /* The limit goes first in a round, so that the copy it writes is not what is checked. */
    const bench_side sides[2] = {{time_limit, run}, {time_update, run}};
    bench_stat stats[2];
    const bool measured = zi_optimizer_is_layerwise(kind_of(run));
    return bench_interleave(sides, 2, options->repetitions, stats) || check_sample(run) ||
           (measured && check_norms(run) != 0) ||
           bench_add_times(report, run->what->kind->metric, run->name, &stats[1], &stats[0]) ||
           report_speed(run, report, &stats[1], &stats[0]);
}

/* All mixes, and the folds, on `threads` threads. */
static int run_threads(const bench_options *options, bench_report *report, uint32_t threads,
                       unsigned char *memory, size_t bytes)
{
    zi_pool *pool = NULL;
    if (zi_pool_create(threads, &pool) != ZERO_OK) {
        return bench_fail_zero("adam: starting threads");
    }
    static float first[3][BENCH_PERIOD];
    int failed = 0;
    for (size_t i = 0; i < CASE_COUNT && !failed; i++) {
        adam_run *run = calloc(1, sizeof *run);
        if (run == NULL) {
            failed = bench_fail("adam: no memory left for a case");
            break;
        }
        run->what = &cases[i];
        run->first = first;
        run->pool = pool;
        (void)snprintf(run->name, sizeof run->name, "%s, %u thread%s", cases[i].name, threads,
                       threads == 1 ? "" : "s");
        if (bench_wants(options, run->name)) {
            failed = run_case(options, report, run, memory, bytes);
        }
        free(run);
    }
    failed = failed || bench_fold(options, report, pool, memory, bytes);
    zi_pool_destroy(pool);
    return failed;
}

int bench_adam(const bench_options *options, bench_report *report)
{
    static const size_t sizes[] = {[BENCH_FULL] = (size_t)9 << 29, /* 4.5 GiB */
                                   [BENCH_QUICK] = (size_t)1 << 30,
                                   [BENCH_TINY] = (size_t)1 << 23};
    const size_t bytes = sizes[options->scale];
    void *memory = NULL;
    if (zi_pages_alloc(bytes, &memory) != ZERO_OK) {
        return bench_fail_zero("adam: memory for the arrays");
    }
    int failed = 0;
    if (options->threads != 0) {
        failed = run_threads(options, report, options->threads, memory, bytes);
    } else {
        failed = run_threads(options, report, 1, memory, bytes);
        if (zi_cpu_count() > 1) {
            failed = failed || run_threads(options, report, 2, memory, bytes);
        } else {
            (void)bench_skip(report, METRIC, "2 threads", "this process may use one CPU");
        }
    }
    zi_pages_free(memory, bytes);
    return failed;
}
