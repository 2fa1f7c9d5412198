/* Owns the tests of calls around a step that is due, and of ranks that make different ones. That a
 * norm told ahead is the step's own, and that dropped steps leave nothing behind, random programs
 * show. */
#include "harness.h"
#include "reads.h"

#include "folders.h"
#include "toy.h"

/* Both calls, where neither is legal. */
static void expect_none_due(const toy_trainer *trainer, const char *text)
{
    double norm = -1;
    CHECK_FAILS(zero_grad_norm(trainer->engine, NULL, toy_stream(), &norm), ZERO_ERR_STATE, text);
    CHECK_SAME(norm, -1.0);
    CHECK_FAILS(zero_step_discard(trainer->engine), ZERO_ERR_STATE, text);
}

/* Everything that is refused, and what may come between a dropped step and the next. */
static zero_status misuse(toy_trainer *trainer)
{
    TOY_TRY(toy_step(trainer));
    expect_none_due(trainer, "zero_micro_begin(engine, ZERO_MICRO_LAST)");
    TOY_TRY(toy_micro_begin(trainer, false));
    expect_none_due(trainer, "a micro-step is open");
    TOY_TRY(toy_micro_end(trainer));
    expect_none_due(trainer, "zero_micro_begin(engine, ZERO_MICRO_LAST)");
    TOY_TRY(toy_micro(trainer, true));
    CHECK_FAILS(zero_grad_norm(trainer->engine, NULL, toy_stream(), NULL),
                ZERO_ERR_INVALID_ARGUMENT, "norm is NULL");
    CHECK_FAILS(zero_micro_begin(trainer->engine, ZERO_MICRO_EARLIER), ZERO_ERR_STATE,
                "zero_step_discard");
    TOY_TRY(zero_step_discard(trainer->engine));
    trainer->micro = 0;
    expect_none_due(trainer, "zero_micro_begin(engine, ZERO_MICRO_LAST)");
    for (uint32_t t = 0; t < trainer->run->model->tensor_count; t++) { /* at rest */
        zero_shard shard;
        float values[4096];
        TOY_TRY(zero_shard_range(trainer->engine, t, ZERO_ROLE_GRAD, &shard));
        CHECK(shard.count <= 4096);
        TOY_TRY(
            zero_shard_read(trainer->engine, t, ZERO_ROLE_GRAD, shard.first, shard.count, values));
    }
    TOY_TRY(zero_engine_evict(trainer->engine, ZERO_ROLE_BIT(ZERO_ROLE_MOMENT1), ZERO_TIER_DISK));
    TOY_TRY(zero_engine_restore(trainer->engine));
    TOY_TRY(toy_evaluate(trainer));
    return toy_step(trainer);
}

TEST(what_is_refused_changes_nothing)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    double norm = 0;
    rig_folders(1, 0);
    toy_run_disk(&run, rig_paths, 1); /* for what is evicted */
    CHECK_OK(toy_on_stages(2, &run, misuse, NULL));
    CHECK_FAILS(zero_grad_norm(NULL, NULL, toy_stream(), &norm), ZERO_ERR_INVALID_ARGUMENT,
                "engine is NULL");
    CHECK_FAILS(zero_step_discard(NULL), ZERO_ERR_INVALID_ARGUMENT, "engine is NULL");
}

#ifndef TOY_CUDA

/* One rank asks for the norm where the other takes the step: their squares are not mixed up. */
static zero_status part_ways(toy_trainer *trainer)
{
    double norm = 0;
    TOY_TRY(toy_micro(trainer, true));
    zero_status status = trainer->rank == 0
                             ? zero_grad_norm(trainer->engine, NULL, toy_stream(), &norm)
                             : toy_update(trainer);
    if (status == ZERO_OK && trainer->rank == 1) {
        status = toy_wait(trainer);
    }
    CHECK(status != ZERO_OK);
    return status;
}

TEST(a_norm_meets_no_step)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    CHECK_FAILS(toy_on_ranks(2, &run, part_ways, NULL), ZERO_ERR_MISMATCH, "rank");
}

#endif
