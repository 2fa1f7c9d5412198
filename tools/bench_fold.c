/* Owns the measurement of folds that add the squares of what they store, against the fold alone and
 * against a fold whose result is read again for its squares.
 * Invariant: a case is reported only when the squares have the bits of those of what lies in
 * memory. */
#include "bench_fold.h"

#include <string.h>

#include "kernels/cpu/cpu_kernels.h"

#define EXTRA "norm_extra"
#define APART "fold_squares_vs_apart"
#define SOURCES_MAX 4
#define THREADS_MAX 256

typedef struct fold_case {
    const char *name;
    uint32_t source_count;
    zero_dtype source;
    zero_dtype target;
    bool added; /* to what the target holds */
} fold_case;

static const fold_case cases[] = {
    {"4 sources of f32 to f32", 4, ZERO_DTYPE_F32, ZERO_DTYPE_F32, false},
    {"4 sources of bf16 to f32", 4, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, false},
    {"1 source of bf16 added to f32", 1, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, true},
    {"4 sources of bf16 to bf16", 4, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, false},
    {"4 sources of f16 to f16", 4, ZERO_DTYPE_F16, ZERO_DTYPE_F16, false},
};
#define CASE_COUNT (sizeof cases / sizeof cases[0])

typedef struct fold_run {
    char name[64]; /* of the case, threads included */
    zi_pool *pool;
    zi_fold fold;
    const void *sources[SOURCES_MAX];
    unsigned char *memory;
    zi_norm_sum squares[THREADS_MAX]; /* a thread's */
} fold_run;

static size_t share_begin(const fold_run *run, uint32_t share, uint32_t shares)
{
    return run->fold.count / ZI_NORM_CHUNK * share / shares * ZI_NORM_CHUNK;
}

float bench_first_value(size_t i, uint32_t array, bool squared)
{
    const uint32_t mixed = ((uint32_t)(i % BENCH_PERIOD) * 2654435761u) ^ (array * 0x9e3779b9u);
    const float unit = (float)(int32_t)(mixed ^ mixed >> 15) * 0x1p-31f;
    return squared ? unit * unit * 1e-4f + 1e-8f : unit * 0.02f;
}

void bench_fill(void *base, zero_dtype dtype, size_t count, uint32_t array, bool squared)
{
    static float values[BENCH_PERIOD];
    const size_t bytes = BENCH_PERIOD * zero_dtype_bytes(dtype);
    for (size_t i = 0; i < BENCH_PERIOD; i++) {
        values[i] = bench_first_value(i, array, squared);
    }
    zi_cpu_cast(base, dtype, values, ZERO_DTYPE_F32, BENCH_PERIOD);
    for (size_t k = 1; k < count / BENCH_PERIOD; k++) {
        memcpy((unsigned char *)base + k * bytes, base, bytes);
    }
}

static void fill(const fold_run *run)
{
    const zi_fold *fold = &run->fold;
    const size_t bytes = fold->count * zero_dtype_bytes(fold->source_dtype);
    for (uint32_t k = 0; k < fold->source_count; k++) {
        bench_fill(run->memory + k * bytes, fold->source_dtype, fold->count, k, false);
    }
    bench_fill(fold->dst, fold->dst_dtype, fold->count, fold->source_count, false);
}

static void alone_share(void *argument, uint32_t share, uint32_t shares)
{
    const fold_run *run = argument;
    zi_cpu_fold_range(&run->fold, share_begin(run, share, shares),
                      share_begin(run, share + 1, shares), NULL);
}

static void fused_share(void *argument, uint32_t share, uint32_t shares)
{
    fold_run *run = argument;
    run->squares[share] = (zi_norm_sum){{0}, 0, 0};
    zi_cpu_fold_range(&run->fold, share_begin(run, share, shares),
                      share_begin(run, share + 1, shares), &run->squares[share]);
}

static void squares_share(void *argument, uint32_t share, uint32_t shares)
{
    fold_run *run = argument;
    const size_t begin = share_begin(run, share, shares);
    const size_t width = zero_dtype_bytes(run->fold.dst_dtype);
    run->squares[share] = (zi_norm_sum){{0}, 0, 0};
    zi_cpu_square_sum((const unsigned char *)run->fold.dst + begin * width, run->fold.dst_dtype,
                      share_begin(run, share + 1, shares) - begin, &run->squares[share]);
}

/* A fold, and what is run behind it. */
typedef struct fold_side {
    fold_run *run;
    zi_pool_fn fold;
    zi_pool_fn then; /* NULL: nothing */
} fold_side;

static double time_side(void *argument)
{
    const fold_side *side = argument;
    const double start = bench_now();
    zi_pool_run(side->run->pool, side->fold, side->run);
    if (side->then != NULL) {
        zi_pool_run(side->run->pool, side->then, side->run);
    }
    return bench_now() - start;
}

static zi_norm_sum sum_of(const fold_run *run)
{
    zi_norm_sum sum = {{0}, 0, 0};
    for (uint32_t i = 0; i < zi_pool_threads(run->pool); i++) {
        zi_norm_merge(&sum, &run->squares[i]);
    }
    return sum;
}

/* The last side that ran was the fused one. */
static int check_squares(fold_run *run)
{
    const zi_norm_sum fused = sum_of(run);
    zi_pool_run(run->pool, squares_share, run);
    const zi_norm_sum apart = sum_of(run);
    if (memcmp(&fused, &apart, sizeof fused) != 0 || !(zi_norm_value(&fused) > 0.0)) {
        return bench_fail("adam, %s: the fold's squares come to %a instead of %a", run->name,
                          zi_norm_value(&fused), zi_norm_value(&apart));
    }
    return 0;
}

static int measure(const bench_options *options, bench_report *report, fold_run *run)
{
    fold_side ways[] = {
        {run, alone_share, NULL}, {run, alone_share, squares_share}, {run, fused_share, NULL}};
    const bench_side sides[] = {
        {time_side, &ways[0]}, {time_side, &ways[1]}, {time_side, &ways[2]}};
    bench_stat stats[3];
    fill(run);
    if (bench_interleave(sides, 3, options->repetitions, stats) != 0 || check_squares(run) != 0) {
        return 1;
    }
    return bench_add_times(report, EXTRA, run->name, &stats[2], &stats[0]) ||
           bench_add_times(report, APART, run->name, &stats[2], &stats[1]);
}

/* The sources one after the other, then the target. */
static void lay_out(fold_run *run, const fold_case *what, unsigned char *memory, size_t bytes)
{
    const size_t width = zero_dtype_bytes(what->source);
    const size_t all = what->source_count * width + zero_dtype_bytes(what->target);
    const size_t count = bytes / all / BENCH_PERIOD * BENCH_PERIOD;
    for (uint32_t k = 0; k < what->source_count; k++) {
        run->sources[k] = memory + k * count * width;
    }
    run->memory = memory;
    run->fold = (zi_fold){.dst = memory + what->source_count * count * width,
                          .sources = run->sources,
                          .source_count = what->source_count,
                          .count = count,
                          .dst_dtype = what->target,
                          .source_dtype = what->source,
                          .accumulate = what->added};
}

int bench_fold(const bench_options *options, bench_report *report, zi_pool *pool,
               unsigned char *memory, size_t bytes)
{
    static fold_run run;
    const uint32_t threads = zi_pool_threads(pool);
    int failed = 0;
    for (size_t i = 0; i < CASE_COUNT && !failed; i++) {
        (void)snprintf(run.name, sizeof run.name, "%s, %u thread%s", cases[i].name, threads,
                       threads == 1 ? "" : "s");
        if (bench_wants(options, run.name)) {
            run.pool = pool;
            lay_out(&run, &cases[i], memory, bytes);
            failed = measure(options, report, &run);
        }
    }
    return failed;
}
