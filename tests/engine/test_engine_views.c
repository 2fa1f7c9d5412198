/* Owns the tests of what views promise: where the memory that they show begins, and in which pass a
 * unit is acquired. */
#include "harness.h"

#include "at_stages.h"
#include "folders.h"
#include "sanitizer.h"

/* The promises of zero/unit.h and zero/shard.h. */
#define TENSOR_ALIGN 256
#define SHARD_ALIGN 128
#define SHARD_FIRST 64 /* elements */

/* ---- alignment ---- */

/* Sizes around every boundary of the layout, in all types, in units of their own and together. */
static void make_model(toy_model *model)
{
    static const uint64_t sizes[] = {1, 3, 63, 65, 127, 129, 191, 1000, 1001, 2047};
    static const zero_dtype dtypes[] = {ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F16};
    const uint32_t count = sizeof sizes / sizeof sizes[0];
    toy_model_open(model);
    for (uint32_t u = 0; u < count; u++) {
        (void)toy_model_layer(model, "unit", u);
        for (uint32_t t = 0; t < 3; t++) {
            const uint64_t rows = sizes[(u + 3 * t) % count];
            const uint32_t flags = (u + t) % 4 == 3 ? ZERO_TENSOR_FROZEN : 0;
            (void)toy_model_tensor(model, rows, 0, dtypes[t], flags);
            (void)toy_model_tensor(model, rows, 3, dtypes[(t + u) % 3], 0);
        }
    }
}

static void check_start(const zero_view *view, uintptr_t align, const char *what)
{
    if ((uintptr_t)view->data % align != 0 || (view->count != 0 && view->data == NULL)) {
        TEST_FAIL("%s of %zu elements at %p", what, view->count, view->data);
    }
}

/* A unit is in backward with its gradient. */
static zero_status check_unit(const toy_trainer *trainer, uint32_t unit)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        zero_view view;
        if (tensor->unit != unit) {
            continue;
        }
        TOY_TRY(zero_tensor_data(trainer->engine, t, &view));
        check_start(&view, TENSOR_ALIGN, "a parameter");
        if ((tensor->desc.flags & ZERO_TENSOR_FROZEN) == 0) {
            TOY_TRY(zero_tensor_grad(trainer->engine, t, &view));
            check_start(&view, TENSOR_ALIGN, "a gradient");
        }
    }
    return ZERO_OK;
}

static zero_status check_micro(toy_trainer *trainer, bool last)
{
    const zero_stream stream = toy_stream();
    TOY_TRY(toy_micro_begin(trainer, last));
    for (uint32_t u = trainer->run->model->unit_count; u-- > 0;) {
        TOY_TRY(zero_unit_acquire(trainer->engine, u, ZERO_PASS_BACKWARD, stream, NULL));
        TOY_TRY(check_unit(trainer, u));
        TOY_TRY(zero_unit_release(trainer->engine, u, stream));
    }
    return toy_micro_end(trainer);
}

static zero_status check_shards(const toy_trainer *trainer)
{
    for (int role = ZERO_ROLE_PARAM; role < ZI_TIER_ROLES; role++) {
        for (uint32_t t = 0; t < trainer->run->model->tensor_count; t++) {
            uint64_t first = 0;
            zero_view view;
            if (trainer->run->options.tier[role] == ZERO_TIER_DISK) {
                continue;
            }
            TOY_TRY(zero_shard_view(trainer->engine, t, (zero_role)role, &first, &view));
            CHECK_EQ(first % SHARD_FIRST, 0);
            check_start(&view, SHARD_ALIGN, zero_role_name((zero_role)role));
        }
    }
    return ZERO_OK;
}

static zero_status check_run(toy_trainer *trainer)
{
    for (int m = 0; m < 3; m++) { /* also what is added to in place */
        TOY_TRY(check_micro(trainer, m == 2));
    }
    TOY_TRY(toy_update(trainer));
    return check_shards(trainer);
}

TEST(views_begin_where_vector_loads_may)
{
    static const zero_tier tiers[] = {ZERO_TIER_DEVICE, ZERO_TIER_HOST, ZERO_TIER_DISK};
    static const zero_dtype sums[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16};
    uint32_t turn = 0;
    rig_folders(1, 0);
    toy_run run = toy_run_made(make_model);
    run.options.disk_directories = rig_paths;
    run.options.disk_directory_count = 1;
    run.tuning.extent_bytes = 4096;
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        toy_sharding ways[16];
        const uint32_t count = toy_shardings(ranks, true, ways);
        for (uint32_t i = 0; i < 6 * count; i++) {
            if (!IN_SAMPLE(turn++)) {
                continue;
            }
            toy_sharding_apply(&ways[i / 6], &run);
            run.tuning.accum_dtype = sums[i % 2];
            run.options.moment_dtype = sums[i / 2 % 2];
            run.tuning.bucket_bytes = i % 4 == 3 ? 1 : 0;
            for (int role = 0; role < ZI_TIER_ROLES; role++) {
                run.options.tier[role] = tiers[(i + turn * (uint32_t)(role % 3)) % 3];
            }
            CHECK_OK(toy_on_ranks(ranks, &run, check_run, NULL));
        }
    }
}

/* ---- the pass ---- */

static void expect_pass(const toy_trainer *trainer, uint32_t unit, zero_pass expected)
{
    zero_pass pass = ZERO_PASS_EVAL;
    CHECK_OK(zero_unit_pass(trainer->engine, unit, &pass));
    CHECK_EQ(pass, expected);
}

static zero_status walk_through(toy_trainer *trainer)
{
    zero_pass pass;
    expect_pass(trainer, BLOCK0, ZERO_PASS_NONE);
    TOY_TRY(acquire(trainer, BLOCK0, ZERO_PASS_EVAL));
    expect_pass(trainer, BLOCK0, ZERO_PASS_EVAL);
    expect_pass(trainer, BLOCK1, ZERO_PASS_NONE);
    TOY_TRY(release(trainer, BLOCK0));
    expect_pass(trainer, BLOCK0, ZERO_PASS_NONE);
    TOY_TRY(zero_micro_begin(trainer->engine, ZERO_MICRO_EARLIER));
    for (uint32_t u = 0; u < trainer->run->model->unit_count; u++) {
        TOY_TRY(acquire(trainer, u, ZERO_PASS_FORWARD));
        expect_pass(trainer, u, ZERO_PASS_FORWARD);
        TOY_TRY(release(trainer, u));
        expect_pass(trainer, u, ZERO_PASS_NONE);
    }
    TOY_TRY(acquire(trainer, HEAD, ZERO_PASS_BACKWARD));
    expect_pass(trainer, HEAD, ZERO_PASS_BACKWARD);
    expect_pass(trainer, EMBED, ZERO_PASS_BACKWARD);
    TOY_TRY(release(trainer, HEAD));
    expect_pass(trainer, EMBED, ZERO_PASS_NONE);
    TOY_TRY(acquire(trainer, BLOCK1, ZERO_PASS_FORWARD)); /* nested: the last one is told */
    TOY_TRY(acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD));
    expect_pass(trainer, BLOCK1, ZERO_PASS_BACKWARD);
    TOY_TRY(release(trainer, BLOCK1));
    expect_pass(trainer, BLOCK1, ZERO_PASS_BACKWARD);
    TOY_TRY(release(trainer, BLOCK1));
    expect_pass(trainer, BLOCK1, ZERO_PASS_NONE);
    TOY_TRY(zero_micro_end(trainer->engine));
    CHECK_FAILS(zero_unit_pass(trainer->engine, 6, &pass), ZERO_ERR_INVALID_ARGUMENT, "unit 6");
    CHECK_FAILS(zero_unit_pass(trainer->engine, 0, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "pass is NULL");
    CHECK_FAILS(zero_unit_pass(NULL, 0, &pass), ZERO_ERR_INVALID_ARGUMENT, "engine is NULL");
    CHECK_FAILS(acquire(trainer, 0, (zero_pass)4), ZERO_ERR_INVALID_ARGUMENT, "pass 4");
    return ZERO_OK;
}

TEST(the_pass_of_a_unit)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        CHECK_OK(toy_on_ways(ranks, &run, walk_through, NULL));
    }
}
