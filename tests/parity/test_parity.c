/* Owns the proof that sharding changes no result: the toy is trained at every stage and every
 * hybrid, and parameters, master copies and moments must have the same bits. One program, two
 * worlds: ranks as threads of this process, or, under a launcher, this process as one rank. */
#include "harness.h"

#include "toy.h"

#define DEADLINE_MS 60000

typedef struct parity_case {
    const char *name;
    zero_dtype dtype;
    toy_flavour flavour;
    uint32_t micro_steps;
    bool hybrids;   /* their reduction adds in two levels: sums must be exact */
    bool one_rank;  /* one rank that takes all samples must come to the same bits */
    bool reference; /* and the double-precision AdamW to the same values */
    void (*adjust)(toy_run *run);
} parity_case;

static void clipped(toy_run *run)
{
    run->params.max_norm = 0.5f;
}

static void no_master(toy_run *run)
{
    run->options.master_dtype = ZERO_DTYPE_NONE;
    run->options.seed = 11;
}

static void bf16_moments(toy_run *run)
{
    run->options.moment_dtype = ZERO_DTYPE_BF16;
    run->options.seed = 12;
}

static void all_low(toy_run *run)
{
    no_master(run);
    bf16_moments(run);
    run->options.grad_dtype = ZERO_DTYPE_BF16;
    run->tuning.accum_dtype = ZERO_DTYPE_BF16;
    clipped(run);
}

static void bf16_wire(toy_run *run)
{
    run->tuning.wire_dtype = ZERO_DTYPE_BF16;
}

static void f32_gradients(toy_run *run)
{
    run->options.grad_dtype = ZERO_DTYPE_F32;
    run->tuning.wire_dtype = ZERO_DTYPE_BF16;
}

static void local_sums(toy_run *run)
{
    run->tuning.accumulation = ZERO_ACCUMULATION_LOCAL;
    clipped(run);
}

static void small_scale(toy_run *run)
{
    run->options.loss_scale = 64.0f; /* scaled integers stay exact in binary16 */
}

static void small_buckets(toy_run *run)
{
    run->tuning.bucket_bytes = 1;
    run->tuning.param_slots = 4;
    run->tuning.look_ahead = 2;
}

static void no_prefetch(toy_run *run)
{
    run->tuning.no_prefetch = 1;
    run->tuning.param_slots = 2;
}

#define F32 ZERO_DTYPE_F32
#define BF16 ZERO_DTYPE_BF16
#define F16 ZERO_DTYPE_F16

/* One row a case: name, dtype, flavour, micro-steps, hybrids, one_rank, reference, adjust. */
#define PARITY_CASES(X)                                                                     \
    X(real_f32, F32, TOY_REAL, 1, false, false, true, NULL)                                 \
    X(real_f32_clipped, F32, TOY_REAL, 1, false, false, true, clipped)                      \
    X(real_bf16, BF16, TOY_REAL, 1, false, false, false, clipped)                           \
    X(real_f16_scaled, F16, TOY_REAL, 1, false, false, false, NULL)                         \
    X(real_bf16_no_master, BF16, TOY_REAL, 1, false, false, false, no_master)               \
    X(real_f32_bf16_moments, F32, TOY_REAL, 1, false, false, false, bf16_moments)           \
    X(real_bf16_all_low, BF16, TOY_REAL, 1, false, false, false, all_low)                   \
    X(real_f32_bf16_wire, F32, TOY_REAL, 1, false, false, false, bf16_wire)                 \
    X(real_bf16_f32_gradients, BF16, TOY_REAL, 1, false, false, false, f32_gradients)       \
    X(real_f32_small_buckets, F32, TOY_REAL, 1, false, false, false, small_buckets)         \
    X(real_bf16_no_prefetch, BF16, TOY_REAL, 1, false, false, false, no_prefetch)           \
    X(integer_f32, F32, TOY_INTEGER, 1, true, true, true, NULL)                             \
    X(integer_f32_clipped_4_micro_steps, F32, TOY_INTEGER, 4, true, true, true, clipped)    \
    X(integer_bf16_4_micro_steps, BF16, TOY_INTEGER, 4, true, true, false, NULL)            \
    X(integer_bf16_no_master, BF16, TOY_INTEGER, 1, true, true, false, no_master)           \
    X(integer_bf16_all_low_4_micro_steps, BF16, TOY_INTEGER, 4, true, true, false, all_low) \
    X(integer_f16, F16, TOY_INTEGER, 1, true, true, false, small_scale)                     \
    X(integer_f16_4_micro_steps, F16, TOY_INTEGER, 4, true, true, false, small_scale)       \
    X(integer_f32_bf16_wire, F32, TOY_INTEGER, 1, true, true, true, bf16_wire)              \
    X(integer_f32_local_4_micro_steps, F32, TOY_INTEGER, 4, true, true, true, local_sums)   \
    X(integer_bf16_local_4_micro_steps, BF16, TOY_INTEGER, 4, true, true, false, local_sums)

#define CASE_ROW(case_name, ...) {#case_name, __VA_ARGS__},
static const parity_case cases[] = {PARITY_CASES(CASE_ROW)};
#undef CASE_ROW

/* 20 steps end within a small multiple of what rounding each step to fp32 can add up to. */
#define REFERENCE_BOUND 2e-5

static toy_run run_of(const parity_case *c, const toy_model *model)
{
    toy_run run = toy_run_init(model);
    run.flavour = c->flavour;
    run.micro_steps = c->micro_steps;
    if (c->adjust != NULL) {
        c->adjust(&run);
    }
    return run;
}

/* Trained elements have left their initial values, but for those that came back to them by
 * rounding; no frozen one has. */
static void check_moved(const toy_model *model, const toy_state *state)
{
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        uint64_t moved = 0;
        for (uint64_t e = 0; e < tensor->count; e++) {
            const uint32_t initial = toy_encode(toy_initial(t, e), tensor->desc.dtype);
            moved += state->gathered[tensor->base + e] != initial;
        }
        if ((tensor->desc.flags & ZERO_TENSOR_FROZEN) != 0) {
            CHECK_EQ(moved, 0);
        } else {
            CHECK(moved * 10 >= tensor->count * (tensor->desc.dtype == F32 ? 9 : 5));
        }
    }
}

static void check_reference(const toy_run *run, uint32_t ranks, const toy_state *state)
{
    float *param = calloc(run->model->element_count + 1, sizeof *param);
    CHECK(param != NULL);
    toy_reference(run, ranks, param);
    for (uint64_t i = 0; i < run->model->element_count; i++) {
        CHECK_NEAR(toy_decode(state->gathered[i], F32), param[i], REFERENCE_BOUND);
    }
    free(param);
}

/* One rank that takes the samples of all ranks one after another. */
static zero_status check_one_rank(const toy_run *run, uint32_t ranks, const toy_state *state)
{
    toy_run alone = *run;
    alone.micro_steps = run->micro_steps * ranks;
    zero_world *self = NULL;
    toy_state whole;
    TOY_TRY(zero_world_create_self(&self));
    TOY_TRY(toy_train_collect(&alone, self, &whole));
    toy_state_same(run->model, state, &whole, "all ranks, and one that takes all samples");
    toy_state_free(&whole);
    zero_world_destroy(self);
    return ZERO_OK;
}

/* One case on one world: all its shardings, one after another. */
static zero_status run_case(zero_world *world, void *user)
{
    const parity_case *c = user;
    const uint32_t ranks = zero_world_size(world);
    toy_model model;
    toy_model_mixed(&model, c->dtype);
    toy_run run = run_of(c, &model);
    toy_sharding ways[16];
    const uint32_t way_count = toy_shardings(ranks, c->hybrids, ways);
    toy_state first;
    toy_sharding_apply(&ways[0], &run);
    TOY_TRY(toy_train_collect(&run, world, &first));
    check_moved(&model, &first);
    for (uint32_t w = 1; w < way_count; w++) {
        toy_run other = run;
        toy_state state;
        toy_sharding_apply(&ways[w], &other);
        TOY_TRY(toy_train_collect(&other, world, &state));
        const char *what = test_text("%u ranks, %s and %s", ranks, ways[0].name, ways[w].name);
        toy_state_same(&model, &first, &state, what);
        toy_state_free(&state);
    }
    if (zero_world_rank(world) == 0 && c->reference) {
        check_reference(&run, ranks, &first);
    }
    if (zero_world_rank(world) == 0 && c->one_rank) {
        TOY_TRY(check_one_rank(&run, ranks, &first));
    }
    toy_state_free(&first);
    toy_model_close(&model);
    return zero_world_barrier(world);
}

static void run_threads(const parity_case *c)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 8};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        parity_case copy = *c;
        if (IN_SAMPLE((size_t)(c - cases) + w)) {
            CHECK_OK(zero_world_run(worlds[w], DEADLINE_MS, run_case, &copy));
        }
    }
}

/* This process is one rank: the same cases in turn; the first failure ends the job. */
static int run_launched(const char *filter)
{
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_launched(DEADLINE_MS, &world));
    const uint32_t rank = zero_world_rank(world);
    const uint32_t ranks = zero_world_size(world);
    unsigned passed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strstr(cases[i].name, filter) == NULL) {
            continue;
        }
        parity_case copy = cases[i];
        CHECK_OK(run_case(world, &copy));
        passed++;
        if (rank == 0) {
            printf("%-8s%s (%u ranks, %s)\n", "ok", cases[i].name, ranks,
                   zero_world_backend(world));
        }
    }
    zero_world_destroy(world);
    if (rank == 0) {
        printf("%u passed, 0 failed, 0 skipped\n", passed);
    }
    return 0;
}

#define CASE_ROW(case_name, ...) CASE_##case_name,
enum { PARITY_CASES(CASE_ROW) CASE_COUNT };
#undef CASE_ROW

#define CASE_TEST(case_name, ...)              \
    TEST(case_name)                            \
    {                                          \
        run_threads(&cases[CASE_##case_name]); \
    }
PARITY_CASES(CASE_TEST)
#undef CASE_TEST

int main(int argc, char **argv)
{
    if (zero_world_is_launched() != 0) {
        return run_launched(argc > 1 ? argv[1] : "");
    }
    return test_main(argc, argv);
}
