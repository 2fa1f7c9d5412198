/* Worlds of more ranks than a host has cores by far: an engine of theirs, and a world that cannot
 * be had. */
#include "core/fault.h"
#include "harness.h"
#include "zero/zero.h"

#define MANY 300
#define LONG_MS 60000

enum { UNITS = 2, STEPS = 2 };

static uint64_t count_of(uint32_t tensor)
{
    return 1000 + tensor * 37;
}

/* Whole numbers, so that every order of addition gives the same sum. */
static float first_value(uint32_t tensor, uint64_t index)
{
    return (float)((index * 3 + tensor) % 101) - 50.0f;
}

static float gradient(uint32_t rank, uint32_t tensor, uint64_t index)
{
    return (float)((index + rank * 5 + tensor) % 7) - 3.0f;
}

static void fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = first_value(tensor, first + i);
    }
}

static void update(void *user, const zero_update_range *range)
{
    (void)user;
    for (size_t i = 0; i < range->count; i++) {
        range->param[i] -= range->grad[i];
    }
}

static void check_unit(zero_engine *engine, uint32_t unit, uint32_t steps_done)
{
    zero_view view;
    CHECK_OK(zero_tensor_data(engine, unit, &view));
    CHECK_EQ(view.count, count_of(unit));
    for (uint64_t i = 0; i < view.count; i++) {
        float sum = 0.0f;
        for (uint32_t rank = 0; rank < MANY; rank++) {
            sum += gradient(rank, unit, i);
        }
        CHECK_SAME(((const float *)view.data)[i], first_value(unit, i) - (float)steps_done * sum);
    }
}

static void add_gradient(const zero_view *view, uint32_t rank, uint32_t unit)
{
    for (uint64_t i = 0; i < view->count; i++) {
        ((float *)view->data)[i] += gradient(rank, unit, i);
    }
}

static void train(zero_engine *engine, uint32_t rank)
{
    zero_step_params params = zero_step_params_init();
    params.grad_divisor = 1;
    const zero_stream here = zero_stream_host();
    for (uint32_t step = 0; step < STEPS; step++) {
        CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
        for (uint32_t unit = 0; unit < UNITS; unit++) {
            CHECK_OK(zero_unit_acquire(engine, unit, ZERO_PASS_FORWARD, here, NULL));
            check_unit(engine, unit, step);
            CHECK_OK(zero_unit_release(engine, unit, here));
        }
        for (uint32_t unit = UNITS; unit-- > 0;) {
            const zero_unit_view *view = NULL;
            CHECK_OK(zero_unit_acquire(engine, unit, ZERO_PASS_BACKWARD, here, &view));
            add_gradient(&view->grads[0], rank, unit);
            CHECK_OK(zero_unit_release(engine, unit, here));
        }
        CHECK_OK(zero_micro_end(engine));
        CHECK_OK(zero_step(engine, &params, here));
    }
}

/* Train on every rank; *user: over how many ranks parameters are split. */
static zero_status run_engine(zero_world *world, void *user)
{
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    CHECK_OK(zero_model_create(&model));
    for (uint32_t unit = 0; unit < UNITS; unit++) {
        uint32_t index;
        const char *name = unit == 0 ? "first" : "second";
        const zero_tensor_desc desc = {.name = name, .shape = {count_of(unit)}, .dims = 1};
        CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = name}, &index, NULL));
        CHECK_OK(zero_tensor_add(model, unit, &desc, &index));
    }
    zero_engine_options options = zero_engine_options_init();
    options.stage = ZERO_STAGE_3;
    options.shard_group = *(const uint32_t *)user;
    options.optimizer = ZERO_OPTIMIZER_CALLBACK;
    options.update = update;
    options.threads = 1;
    CHECK_OK(zero_engine_create(world, model, &options, &engine));
    CHECK_OK(zero_engine_fill(engine, fill, NULL));
    train(engine, zero_world_rank(world));
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    return ZERO_OK;
}

TEST(engine)
{
    uint32_t shard_group = MANY;
    CHECK_OK(zero_world_run(MANY, LONG_MS, run_engine, &shard_group));
}

TEST(hybrid_engine)
{
    uint32_t shard_group = 10;
    CHECK_OK(zero_world_run(MANY, LONG_MS, run_engine, &shard_group));
}

static zero_status wait_for_all(zero_world *world, void *user)
{
    (void)user;
    return zero_world_barrier(world);
}

/* The system has no thread for the last rank: those that wait for it are told. */
TEST(no_more_threads)
{
    zi_fault_arm(ZI_FAULT_THREAD, MANY);
    CHECK_FAILS(zero_world_run(MANY, LONG_MS, wait_for_all, NULL), ZERO_ERR_DEVICE,
                "rank 299: cannot start a thread");
    zi_fault_arm(ZI_FAULT_THREAD, 0);
    CHECK_OK(zero_world_run(MANY, LONG_MS, wait_for_all, NULL));
}
