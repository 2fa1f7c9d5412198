/* Owns the tests of memory: what the allocator counted is the plan to the byte, a budget is kept to
 * the byte, and after create nothing allocates. */
#include "harness.h"
#include "reads.h"

#include "core/memory.h"
#include "toy.h"

/* A plan cannot know that ranks of GPUs are threads. */
static toy_run run_of_threads(const toy_run *given)
{
    toy_run run = *given;
    if (toy_device() == ZERO_DEVICE_CUDA) {
        run.tuning.transport = ZERO_TRANSPORT_PEER;
    }
    return run;
}

static void check_measured(const toy_trainer *trainer, const char *when)
{
    const zero_memory plan = plan_memory(zero_engine_plan(trainer->engine));
    const zero_memory used = engine_memory(trainer->engine);
    const zero_stats stats = engine_stats(trainer->engine);
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (plan.bytes[role] != used.bytes[role]) {
            TEST_FAIL("%s, %s: planned %" PRIu64 " bytes, took %" PRIu64, when,
                      zero_role_name((zero_role)role), plan.bytes[role], used.bytes[role]);
        }
    }
    CHECK_EQ(used.total_bytes, plan.total_bytes);
    CHECK_EQ(stats.device_bytes, plan.total_bytes);
    CHECK_EQ(stats.device_peak_bytes, plan.total_bytes);
}

static zero_status compare_to_plan(zero_world *world, const toy_run *run)
{
    toy_trainer trainer;
    zero_plan *plan = NULL;
    TOY_TRY(zero_plan_create(run->model->model, TOY_OPTIONS(run), zero_world_size(world), &plan));
    TOY_TRY(toy_open(&trainer, run, world));
    const zero_memory before = plan_memory(plan);
    const zero_memory after = plan_memory(zero_engine_plan(trainer.engine));
    CHECK_BYTES(&before, &after, sizeof before);
    CHECK_EQ(zero_plan_hash(plan), zero_plan_hash(zero_engine_plan(trainer.engine)));
    zero_plan_destroy(plan);
    check_measured(&trainer, "after create");
    TOY_TRY(toy_micro(&trainer, false));
    check_measured(&trainer, "after a micro-step");
    TOY_TRY(toy_micro(&trainer, true));
    TOY_TRY(toy_update(&trainer));
    TOY_TRY(toy_evaluate(&trainer));
    check_measured(&trainer, "after a step");
    toy_close(&trainer);
    return ZERO_OK;
}

static zero_status compare_both(zero_world *world, const toy_run *given, void *user)
{
    (void)user;
    toy_run run = run_of_threads(given);
    TOY_TRY(compare_to_plan(world, &run));
    run.options.grad_dtype = ZERO_DTYPE_F32;
    run.tuning.wire_dtype = ZERO_DTYPE_BF16;
    run.tuning.accumulation = ZERO_ACCUMULATION_LOCAL;
    run.tuning.grad_group = 0;
    run.tuning.optimizer_group = 0;
    return compare_to_plan(world, &run);
}

TEST(measured_bytes_are_the_plan)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 8};
    for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_F16; dtype++) {
        toy_run run = toy_run_mixed((zero_dtype)dtype);
        run.micro_steps = 2;
        for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
            CHECK_OK(toy_run_ways(worlds[w], TOY_DEADLINE_MS, &run, compare_both, NULL));
            run.options.master_dtype = w % 2 == 0 ? ZERO_DTYPE_NONE : ZERO_DTYPE_DEFAULT;
            run.options.moment_dtype = w % 2 == 0 ? ZERO_DTYPE_BF16 : ZERO_DTYPE_DEFAULT;
        }
    }
}

static zero_status keep_budget(zero_world *world, void *user)
{
    toy_run run = run_of_threads(user);
    toy_trainer trainer;
    const uint64_t need = toy_planned(&run, zero_world_size(world)).total_bytes;
    run.options.device_budget_bytes = need;
    TOY_TRY(toy_open(&trainer, &run, world));
    check_measured(&trainer, "within the budget");
    toy_close(&trainer);
    run.options.device_budget_bytes = need - 1;
    CHECK_FAILS(toy_open(&trainer, &run, world), ZERO_ERR_OUT_OF_MEMORY, "short by 1");
    run.options.device_budget_bytes = need;
    TOY_TRY(toy_open(&trainer, &run, world));
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(budget_is_kept_to_the_byte)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    CHECK_OK(zero_world_run(3, TOY_DEADLINE_MS, keep_budget, &run));
}

static zero_status count_calls(toy_trainer *trainer)
{
    TOY_TRY(toy_step_or_skip(trainer, false));
    TOY_TRY(zero_world_barrier(trainer->world));
    const uint64_t before = zi_memory_calls();
    TOY_TRY(zero_world_barrier(trainer->world));
    for (uint32_t step = 0; step < 100; step++) {
        TOY_TRY(toy_step(trainer));
        if (step % 10 == 0) {
            TOY_TRY(toy_evaluate(trainer));
        }
    }
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(trainer->result.step, 101);
    TOY_TRY(zero_world_barrier(trainer->world));
    CHECK_EQ(zi_memory_calls() - before, 0);
    return zero_world_barrier(trainer->world);
}

TEST(nothing_allocates_after_create)
{
    const toy_run plain = toy_run_mixed(ZERO_DTYPE_BF16);
    toy_run run = plain;
    run.micro_steps = 2;
    run.params.max_norm = 1.0f;
    CHECK_OK(toy_on_stages(2, &run, count_calls, NULL));
    toy_run hybrid = plain;
    hybrid.options.shard_group = 2;
    hybrid.options.threads = 2;
    CHECK_OK(toy_on_ranks(4, &hybrid, count_calls, NULL));
}
