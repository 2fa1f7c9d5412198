/* Owns the tests of what gradients are divided by: the ranks' weights, such as the tokens that each
 * has seen, or a number of the caller's; and of steps that cannot be divided. */
#include "harness.h"

#include "folders.h"
#include "reads.h"
#include "refusals.h"
#include "toy.h"

#define RANKS_MAX 4
#define SAMPLES 8
#define STEPS 4

/* ---- unequal shares ---- */

/* Samples, a token each, that ranks take; one of them may take none. */
static const uint32_t shares[RANKS_MAX][RANKS_MAX] = {{8}, {5, 3}, {1, 0, 7}, {2, 3, 1, 2}};

typedef struct course {
    toy_run run;
    double norms[STEPS];
    toy_state state; /* of one rank that takes all samples, divided by their number */
} course;

/* A step whose gradients weigh `weight` on this rank; the place is overwritten at once. */
static zero_status weigh_step(toy_trainer *trainer, float weight, double *norm)
{
    const toy_run *plain = trainer->run;
    toy_run run = *plain;
    float *place = toy_scalar_open(weight);
    const float other = NAN;
    run.params.grad_weight = place;
    trainer->run = &run;
    zero_status status = toy_micro(trainer, true);
    if (status == ZERO_OK && norm != NULL) {
        status = zero_grad_norm(trainer->engine, &run.params, toy_stream(), norm);
    }
    status = status == ZERO_OK ? toy_update(trainer) : status;
    toy_put(place, &other, sizeof other);
    toy_scalar_close(place);
    trainer->run = plain;
    return status;
}

static zero_status take_all(toy_trainer *trainer)
{
    course *c = trainer->user;
    for (uint32_t s = 0; s < STEPS; s++) {
        TOY_TRY(toy_step_or_skip(trainer, false));
        c->norms[s] = trainer->result.norm;
    }
    return toy_collect(trainer, &c->state);
}

static zero_status take_shares(toy_trainer *trainer)
{
    const course *c = trainer->user;
    for (uint32_t s = 0; s < STEPS; s++) {
        double norm = c->norms[s];
        TOY_TRY(weigh_step(trainer, (float)trainer->run->shares[trainer->rank],
                           s % 2 != 0 ? &norm : NULL));
        TOY_TRY(toy_wait(trainer));
        CHECK_SAME(trainer->result.norm, c->norms[s]);
        CHECK_SAME(norm, c->norms[s]);
    }
    return toy_collect_same(trainer, &c->state, "one rank and unequal shares");
}

TEST(unequal_tokens_equal_the_batch_on_one_rank)
{
    for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_F16; dtype++) {
        course c = {.run = toy_run_mixed((zero_dtype)dtype)};
        c.run.flavour = TOY_INTEGER;
        c.run.options.loss_scale = 1;
        c.run.params.max_norm = 1;
        c.run.params.grad_divisor = SAMPLES;
        c.run.shares = shares[0];
        CHECK_OK(toy_on_ranks(1, &c.run, take_all, &c));
        c.run.params.grad_divisor = 0;
        for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++) {
            c.run.shares = shares[ranks - 1];
            CHECK_OK(toy_on_ways(ranks, &c.run, take_shares, &c));
        }
        toy_state_free(&c.state);
    }
}

/* ---- weights that nothing can be divided by ---- */

typedef struct bad_weight {
    float weight; /* of the last rank; the others' is 0 */
    const char *text;
} bad_weight;

static const bad_weight bad_weights[] = {
    {0, "grad_weight adds up to 0 over the ranks"},
    {-3, "grad_weight is -3 on rank "},
    {INFINITY, "grad_weight is inf on rank "},
    {NAN, "nan on rank "},
};

/* A refused step has changed nothing and is not counted; the run goes on as if it had not been. */
static zero_status try_weight(toy_trainer *trainer)
{
    const bad_weight *bad = trainer->user;
    const toy_run *run = trainer->run;
    toy_run weighed = *run;
    toy_state before;
    double norm = 0;
    float scale = 0;
    TOY_TRY(weigh_step(trainer, 1, NULL));
    TOY_TRY(toy_collect(trainer, &before));
    TOY_TRY(toy_micro(trainer, true));
    float *place = toy_scalar_open(trainer->rank == trainer->ranks - 1 ? bad->weight : 0);
    weighed.params.grad_weight = place;
    CHECK_FAILS(zero_grad_norm(trainer->engine, &weighed.params, toy_stream(), &norm),
                ZERO_ERR_INVALID_ARGUMENT, bad->text);
    CHECK_OK(zero_grad_norm(trainer->engine, NULL, toy_stream(), &norm));
    CHECK(norm > 0);
    trainer->run = &weighed;
    TOY_TRY(toy_update(trainer));
    trainer->run = run;
    CHECK_FAILS(toy_wait(trainer), ZERO_ERR_INVALID_ARGUMENT, bad->text);
    toy_scalar_close(place);
    CHECK_OK(toy_wait(trainer));
    CHECK_EQ(trainer->result.step, 1);
    TOY_TRY(zero_loss_scale(trainer->engine, &scale));
    CHECK_SAME(scale, 16.0);
    TOY_TRY(toy_collect_same(trainer, &before, "before and after a refused step"));
    TOY_TRY(weigh_step(trainer, 1, NULL));
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(trainer->result.updates, 2);
    CHECK_EQ(trainer->result.skipped, 0);
    toy_state_free(&before);
    return ZERO_OK;
}

TEST(a_step_without_a_weight_is_refused_and_the_next_is_not)
{
    toy_run run = toy_run_equal(2, 150, ZERO_DTYPE_BF16);
    run.options.loss_scale = 8;
    run.tuning.loss_scale_window = 1;
    for (size_t i = 0; i < sizeof bad_weights / sizeof bad_weights[0]; i++) {
        bad_weight bad = bad_weights[i];
        for (uint32_t ranks = 1; ranks <= 3; ranks++) {
            CHECK_OK(toy_on_ways(ranks, &run, try_weight, &bad));
        }
    }
}

/* Whoever does not wait is told by a later zero_step, once, which can be made again. */
static zero_status hear_later(toy_trainer *trainer)
{
    for (uint32_t s = 0; s < 4; s++) {
        TOY_TRY(weigh_step(trainer, s == 0 ? 0 : 1, NULL));
    }
    CHECK_FAILS(weigh_step(trainer, 1, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "grad_weight adds up to 0");
    TOY_TRY(toy_update(trainer));
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(trainer->result.updates, 4);
    return ZERO_OK;
}

TEST(a_refused_step_is_told_by_a_later_one)
{
    const toy_run run = toy_run_equal(2, 150, ZERO_DTYPE_F32);
    CHECK_OK(toy_on_ways(2, &run, hear_later, NULL));
}

/* ---- misuse ---- */

static zero_status try_divisors(toy_trainer *trainer)
{
    static const double wrong[] = {-1.0, (double)INFINITY, (double)NAN};
    float *weight = ((float **)trainer->user)[trainer->rank];
    toy_run odd = *trainer->run;
    trainer->run = &odd;
    TOY_TRY(toy_micro(trainer, true));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        odd.params.grad_divisor = wrong[i];
        CHECK_FAILS(toy_update(trainer), ZERO_ERR_INVALID_ARGUMENT, "is not finite and > 0");
    }
    odd.params.grad_divisor = 3;
    odd.params.grad_weight = weight;
    CHECK_FAILS(toy_update(trainer), ZERO_ERR_INVALID_ARGUMENT, "divided by one of them");
    odd.params.grad_divisor = 0;
    TOY_TRY(toy_update(trainer));
    CHECK_OK(toy_wait(trainer));
    CHECK_EQ(trainer->result.updates, 1);
    /* A rank with a weight and one without. */
    TOY_TRY(toy_micro(trainer, true));
    odd.params.grad_weight = trainer->rank == 0 ? weight : NULL;
    TOY_TRY(toy_update(trainer));
    CHECK_FAILS(toy_wait(trainer), ZERO_ERR_MISMATCH,
                "what gradients are divided by (0: the sum of grad_weight) is 0 on rank 0 and 2 on "
                "rank 1");
    return ZERO_OK;
}

/* The weights outlive engines that have failed, and may still read them. */
TEST(numbers_that_cannot_divide_are_refused)
{
    float *weights[] = {toy_scalar_open(1), toy_scalar_open(1)};
    const toy_run run = toy_run_equal(2, 150, ZERO_DTYPE_F32);
    CHECK_EQ(toy_on_ranks(2, &run, try_divisors, weights), ZERO_ERR_MISMATCH);
    toy_scalar_close(weights[0]);
    toy_scalar_close(weights[1]);
}

/* A speculative step is divided by what is known before backward. */
static zero_status predict_divisors(toy_trainer *trainer)
{
    const toy_run *run = trainer->run;
    toy_run odd = *run;
    float *weight = toy_scalar_open(1);
    odd.params.grad_weight = weight;
    CHECK_FAILS(zero_step_predict(trainer->engine, &odd.params), ZERO_ERR_INVALID_ARGUMENT,
                "give grad_divisor");
    odd.params.grad_weight = NULL;
    odd.params.grad_divisor = 6;
    CHECK_OK(zero_step_predict(trainer->engine, &odd.params));
    TOY_TRY(toy_micro(trainer, true));
    CHECK_FAILS(toy_update(trainer), ZERO_ERR_INVALID_ARGUMENT, "were predicted as 6");
    trainer->run = &odd;
    TOY_TRY(toy_update(trainer));
    CHECK_OK(toy_wait(trainer));
    CHECK_EQ(trainer->result.updates, 1);
    CHECK_EQ(engine_stats(trainer->engine).steps_redone, 0);
    toy_scalar_close(weight);
    return ZERO_OK;
}

TEST(predicted_steps_have_a_number)
{
    rig_folders(1, 0);
    toy_run run = toy_run_equal(2, 150, ZERO_DTYPE_F32);
    toy_run_tiers(&run, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    toy_run_disk(&run, rig_paths, 1);
    run.tuning.speculative_step = 1;
    CHECK_OK(toy_on_ranks(2, &run, predict_divisors, NULL));
}
