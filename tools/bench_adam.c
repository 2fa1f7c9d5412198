/* Owns the measurement of the fused AdamW pass against what the memory allows: reading and writing
 * back the same bytes in place, in the way that is fastest on this machine.
 * Invariant: both sides work on the same arrays, the limit leaves every value as it is, and a case
 * is reported only when sampled elements went through exactly the scalar lane's bits. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_fold.h"
#include "core/host.h"
#include "core/memory.h"
#include "core/thread.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/math/convert.h"
#include "kernels/math/rounding.h"
#include "optimizer/optimizer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define METRIC "adamw_vs_limit"
#define SAMPLE_STRIDE ((size_t)40961)
#define SEED UINT64_C(0x5eed)
/* Bytes of an array that one step of the limit covers; a line at least of the narrowest. */
#define STEP_ELEMENTS 64

typedef struct adam_case {
    const char *name;
    zero_dtype grad;
    zero_dtype param; /* F32: its own master, no copy */
    zero_dtype moment;
} adam_case;

static const adam_case cases[] = {
    {"bf16 grad and copy", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32},
    {"all fp32", ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
    {"bf16 grad, copy and moments", ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16},
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
    zi_pool *pool;
    limit_way way;    /* of the limit's pass */
    uint64_t zero;    /* xor-ed in by the limit; the compiler does not know that it is 0 */
    uint64_t updates; /* passes of AdamW so far */
    uint64_t seen[THREADS_MAX]; /* the limit's result of the gradient, by thread; nobody needs it */
} adam_run;

static float get(const void *base, zero_dtype dtype, size_t i)
{
    return dtype == ZERO_DTYPE_F32 ? ((const float *)base)[i]
                                   : zi_f32_from_bf16(((const uint16_t *)base)[i]);
}

static bool has_copy(const adam_run *run)
{
    return run->what->param != ZERO_DTYPE_F32;
}

static float *master_of(const adam_run *run)
{
    return has_copy(run) ? run->job.state[ZI_STATE_MASTER] : run->job.param;
}

/* Part of the elements, in multiples of STEP_ELEMENTS (the count is one). */
static size_t share_begin(const adam_run *run, uint32_t share, uint32_t shares)
{
    return run->count / STEP_ELEMENTS * share / shares * STEP_ELEMENTS;
}

/* The limit, once per width of vector: read, change and write back three arrays, read one, and
 * write one past the caches when there is a copy. */
typedef struct limit_arrays {
    unsigned char *changed[3];
    size_t changed_width[3]; /* bytes of an element */
    const unsigned char *grad;
    size_t grad_width;
    unsigned char *copy; /* NULL: none */
    size_t count;
    limit_way way;
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
            for (int k = 0; k < 3; k++) {                                                     \
                ask_for(all.changed[k] + i * all.changed_width[k],                            \
                        STEP_ELEMENTS * all.changed_width[k], all.way.ahead);                 \
            }                                                                                 \
            ask_for(grad, grad_step, all.way.ahead);                                          \
            for (int k = 0; k < 3; k++) {                                                     \
                unsigned char *at = all.changed[k] + i * all.changed_width[k];                \
                for (size_t b = 0; b < STEP_ELEMENTS * all.changed_width[k]; b += (bytes)) {  \
                    name##_vector *const place = (name##_vector *)(void *)(at + b);           \
                    const name##_vector value = *place ^ zero;                                \
                    if (all.way.stream_changed) {                                             \
                        stream(place, value);                                                 \
                    } else {                                                                  \
                        *place = value;                                                       \
                    }                                                                         \
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

static void limit_share(void *argument, uint32_t share, uint32_t shares)
{
    adam_run *run = argument;
    const adam_case *what = run->what;
    const size_t begin = share_begin(run, share, shares);
    const size_t moment_width = zero_dtype_bytes(what->moment);
    const limit_arrays all = {
        .changed = {shifted(master_of(run), ZERO_DTYPE_F32, begin),
                    shifted(run->job.state[ZI_STATE_MOMENT1], what->moment, begin),
                    shifted(run->job.state[ZI_STATE_MOMENT2], what->moment, begin)},
        .changed_width = {sizeof(float), moment_width, moment_width},
        .grad = (const unsigned char *)run->job.grad + begin * zero_dtype_bytes(what->grad),
        .grad_width = zero_dtype_bytes(what->grad),
        .copy = has_copy(run) ? shifted(run->job.param, what->param, begin) : NULL,
        .count = share_begin(run, share + 1, shares) - begin,
        .way = run->way,
        .zero = run->zero,
    };
    run->seen[share] = run_limit(&all);
}

static void adamw_share(void *argument, uint32_t share, uint32_t shares)
{
    const adam_run *run = argument;
    zi_cpu_update(&run->job, NULL, share, shares);
}

static double time_limit(void *argument)
{
    adam_run *run = argument;
    const double start = bench_now();
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

static double time_adamw(void *argument)
{
    adam_run *run = argument;
    const double start = bench_now();
    zi_pool_run(run->pool, adamw_share, run);
    run->updates++;
    return bench_now() - start;
}

/* One update of one element as the lane functions define it; returns the bits of the copy. */
static uint16_t scalar_update(const adam_run *run, size_t i, zi_element_state *state)
{
    const zi_adamw_coeffs coeffs = run->decision.groups[0].adamw;
    const float grad = get(run->job.grad, run->what->grad, i) * run->decision.grad_scale;
    *state = zi_adamw_lane(*state, grad, coeffs);
    if (run->what->moment != ZERO_DTYPE_F32) {
        zi_rounding_key key = {SEED, run->decision.update, 0, ZI_ROUNDING_MOMENT1};
        state->m =
            zi_f32_from_bf16(zi_bf16_from_f32_stochastic(state->m, zi_rounding_bits(key, i)));
        key.purpose = ZI_ROUNDING_MOMENT2;
        state->v =
            zi_f32_from_bf16(zi_bf16_from_f32_stochastic(state->v, zi_rounding_bits(key, i)));
    }
    return zi_bf16_from_f32(state->p);
}

static bool same_bits(float left, float right)
{
    return zi_f32_bits(left) == zi_f32_bits(right);
}

/* Sampled elements went through exactly `updates` scalar updates, and through nothing else. */
static int check_sample(const adam_run *run)
{
    const zero_dtype moment = run->what->moment;
    for (size_t k = 0; k < run->count / SAMPLE_STRIDE + 1; k++) {
        const size_t i = k == 0 ? run->count - 1 : (k - 1) * SAMPLE_STRIDE;
        zi_element_state state = {bench_first_value(i, 1, false), bench_first_value(i, 2, false),
                                  bench_first_value(i, 3, true)};
        if (moment != ZERO_DTYPE_F32) {
            state.m = zi_f32_from_bf16(zi_bf16_from_f32(state.m));
            state.v = zi_f32_from_bf16(zi_bf16_from_f32(state.v));
        }
        uint16_t copy = 0;
        for (uint64_t u = 0; u < run->updates; u++) {
            copy = scalar_update(run, i, &state);
        }
        const bool right = same_bits(state.p, master_of(run)[i]) &&
                           same_bits(state.m, get(run->job.state[ZI_STATE_MOMENT1], moment, i)) &&
                           same_bits(state.v, get(run->job.state[ZI_STATE_MOMENT2], moment, i)) &&
                           (!has_copy(run) || copy == ((const uint16_t *)run->job.param)[i]);
        if (!right) {
            return bench_fail("adam, %s: element %zu differs from the scalar lane after %llu "
                              "updates: %a instead of %a",
                              run->name, i, (unsigned long long)run->updates,
                              (double)master_of(run)[i], (double)state.p);
        }
    }
    return 0;
}

/* Lay the arrays of a case out in `memory`, one after the other. They begin at multiples of 64 KiB,
 * as those of an engine begin at pages. */
static void lay_out(adam_run *run, unsigned char *memory, size_t bytes)
{
    const adam_case *what = run->what;
    const size_t grad_width = zero_dtype_bytes(what->grad);
    const size_t moment_width = zero_dtype_bytes(what->moment);
    const size_t copy_width = has_copy(run) ? zero_dtype_bytes(what->param) : 0;
    const size_t width = sizeof(float) + grad_width + 2 * moment_width + copy_width;
    run->count = bytes / width / BENCH_PERIOD * BENCH_PERIOD;
    run->segment = (zi_segment){.count = run->count};
    unsigned char *const moment1 = memory + run->count * sizeof(float);
    unsigned char *const moment2 = moment1 + run->count * moment_width;
    unsigned char *const grad = moment2 + run->count * moment_width;
    unsigned char *const copy = grad + run->count * grad_width;
    run->job = (zi_update_job){.optimizer = ZERO_OPTIMIZER_ADAMW,
                               .segments = &run->segment,
                               .segment_count = 1,
                               .grad = grad,
                               .param = has_copy(run) ? copy : memory,
                               .state[ZI_STATE_MASTER] = has_copy(run) ? memory : NULL,
                               .state[ZI_STATE_MOMENT1] = moment1,
                               .state[ZI_STATE_MOMENT2] = moment2,
                               .grad_dtype = what->grad,
                               .param_dtype = what->param,
                               .moment_dtype = what->moment,
                               .seed = SEED,
                               .decision = &run->decision};
    bench_fill(grad, what->grad, run->count, 0, false);
    bench_fill(memory, ZERO_DTYPE_F32, run->count, 1, false);
    bench_fill(moment1, what->moment, run->count, 2, false);
    bench_fill(moment2, what->moment, run->count, 3, true);
    memset(copy, 0, run->count * copy_width);
}

/* Interleaves both sides over one mix of types, then checks and reports. */
static int run_case(const bench_options *options, bench_report *report, adam_run *run,
                    unsigned char *memory, size_t bytes)
{
    /* A step like the tenth, with numbers of no meaning. */
    const zero_adamw adamw = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f};
    double carried[ZI_CARRIED] = {0.35 / 0.9, 0.99 / 0.999};
    run->decision = (zi_step_decision){.update = 10, .grad_scale = 0.5f, .group_count = 1};
    run->decision.groups[0].adamw = zi_adamw_decide(adamw, carried);
    lay_out(run, memory, bytes);
    choose_way(run);
    /* The limit goes first in a round, so that the copy it writes is not what is checked. */
    const bench_side sides[2] = {{time_limit, run}, {time_adamw, run}};
    bench_stat stats[2];
    return bench_interleave(sides, 2, options->repetitions, stats) || check_sample(run) ||
           bench_add_times(report, METRIC, run->name, &stats[1], &stats[0]);
}

/* All mixes, and the folds, on `threads` threads. */
static int run_threads(const bench_options *options, bench_report *report, uint32_t threads,
                       unsigned char *memory, size_t bytes)
{
    zi_pool *pool = NULL;
    if (zi_pool_create(threads, &pool) != ZERO_OK) {
        return bench_fail_zero("adam: starting threads");
    }
    int failed = 0;
    for (size_t i = 0; i < CASE_COUNT && !failed; i++) {
        adam_run *run = calloc(1, sizeof *run);
        if (run == NULL) {
            failed = bench_fail("adam: no memory left for a case");
            break;
        }
        run->what = &cases[i];
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
