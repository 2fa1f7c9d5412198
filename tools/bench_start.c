/* Owns `zero bench start`: an engine made and filled with normal values by ranks as threads,
 * against touching as much memory once by as many threads. Invariant: a row is added only where
 * parameters have the values that they were filled with. */
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "zero/zero.h"

#define METRIC "start_vs_touch"
#define RANKS 2
#define DEADLINE_MS 600000
#define SIGMA 0.02f

typedef struct start_case {
    const char *name;
    uint32_t units;
    uint64_t elements; /* of a unit, at full scale */
    zero_dtype dtype;
} start_case;

/* As many parameters as the blocks of a GPT-2 124M have, and one large unit. */
static const start_case cases[] = {
    {"12 units of 7.1M in f32, 2 ranks", 12, 7087872, ZERO_DTYPE_F32},
    {"12 units of 7.1M in bf16, 2 ranks", 12, 7087872, ZERO_DTYPE_BF16},
    {"1 unit of 64M in f32, 2 ranks", 1, UINT64_C(1) << 26, ZERO_DTYPE_F32}};
#define CASE_COUNT (sizeof cases / sizeof cases[0])

typedef struct start_bench {
    zero_model *model;
    zero_engine_options options;
    uint64_t bytes; /* of a rank, as planned */
    bool has_master;
    double seconds[RANKS]; /* of the last side */
} start_bench;

static void fill_normal(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    zero_random_normal(1, tensor, first, count, 0.0f, SIGMA, values);
}

/* The first values of the first unit, in fp32: its master, or a parameter that is its own. */
static int check_values(const start_bench *b, zero_engine *engine)
{
    const zero_role role = b->has_master ? ZERO_ROLE_MASTER : ZERO_ROLE_PARAM;
    float expected[64];
    float values[64];
    fill_normal(NULL, 0, 0, 64, expected);
    if (BENCH_TRY(zero_shard_read(engine, 0, role, 0, 64, values))) {
        return 1;
    }
    return memcmp(values, expected, sizeof values) == 0
               ? 0
               : bench_fail("start: values are others than those that were filled in");
}

static zero_status start_rank(zero_world *world, void *user)
{
    start_bench *b = user;
    const uint32_t rank = zero_world_rank(world);
    zero_engine *engine = NULL;
    int failed = BENCH_TRY(zero_world_barrier(world));
    const double begin = bench_now();
    failed = failed || BENCH_TRY(zero_engine_create(world, b->model, &b->options, &engine)) ||
             BENCH_TRY(zero_engine_fill(engine, fill_normal, NULL));
    b->seconds[rank] = bench_now() - begin;
    failed = failed || (rank == 0 && check_values(b, engine) != 0);
    zero_engine_destroy(engine);
    return bench_rank_status(failed);
}

/* In huge pages where the system gives them, as an engine's memory is. */
static zero_status touch_rank(zero_world *world, void *user)
{
    start_bench *b = user;
    int failed = BENCH_TRY(zero_world_barrier(world));
    const double begin = bench_now();
    void *memory = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return bench_rank_status(bench_fail("no %llu bytes left", (unsigned long long)b->bytes));
    }
    (void)madvise(memory, b->bytes, MADV_HUGEPAGE);
    for (uint64_t at = 0; at < b->bytes; at += 4096) {
        ((volatile char *)memory)[at] = 1;
    }
    b->seconds[zero_world_rank(world)] = bench_now() - begin;
    (void)munmap(memory, b->bytes);
    return bench_rank_status(failed);
}

/* The slowest rank's time. */
static double run_ranks(start_bench *b, zero_rank_fn rank)
{
    double most = 0;
    if (BENCH_TRY(zero_world_run(RANKS, DEADLINE_MS, rank, b))) {
        return -1.0;
    }
    for (int i = 0; i < RANKS; i++) {
        most = b->seconds[i] > most ? b->seconds[i] : most;
    }
    return most;
}

static double start_side(void *argument)
{
    return run_ranks(argument, start_rank);
}

static double touch_side(void *argument)
{
    return run_ranks(argument, touch_rank);
}

static int describe(const start_case *what, bench_scale scale, start_bench *b)
{
    static const uint64_t shares[] = {1, 8, 1024};
    const zero_tensor_desc desc = {.name = "weight",
                                   .shape = {what->elements / shares[scale]},
                                   .dims = 1,
                                   .dtype = what->dtype};
    zero_plan *plan = NULL;
    zero_memory memory = zero_memory_init();
    b->options = zero_engine_options_init();
    b->options.stage = ZERO_STAGE_3;
    b->options.threads = 1;
    b->has_master = what->dtype != ZERO_DTYPE_F32;
    const int failed =
        BENCH_TRY(zero_model_create(&b->model)) ||
        BENCH_TRY(zero_unit_add(
            b->model,
            &(zero_unit_desc){
                .name = "unit", .layers = what->units, .tensors = &desc, .tensor_count = 1},
            NULL, NULL)) ||
        BENCH_TRY(zero_plan_create(b->model, &b->options, RANKS, &plan)) ||
        BENCH_TRY(zero_plan_memory(plan, &memory));
    b->bytes = memory.tier_bytes[ZERO_TIER_DEVICE] + memory.tier_bytes[ZERO_TIER_HOST];
    zero_plan_destroy(plan);
    return failed;
}

static int measure(const start_case *what, const bench_options *options, bench_report *report)
{
    start_bench b = {0};
    const bench_side sides[] = {{start_side, &b}, {touch_side, &b}};
    bench_stat stats[2];
    const int failed = describe(what, options->scale, &b) ||
                       bench_interleave(sides, 2, bench_long_repetitions(options), stats) ||
                       bench_add_times(report, METRIC, what->name, &stats[0], &stats[1]);
    zero_model_destroy(b.model);
    return failed;
}

int bench_start(const bench_options *options, bench_report *report)
{
    int failed = 0;
    for (size_t i = 0; i < CASE_COUNT && !failed; i++) {
        failed = bench_wants(options, cases[i].name) && measure(&cases[i], options, report) != 0;
    }
    return failed;
}
