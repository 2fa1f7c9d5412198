/* Owns the tests of unusual hook sequences: each is trained beside a plain sequence that must come
 * to the same bits, at every stage and hybrid. */
#include "harness.h"

#include "toy.h"

#define STEPS 8

typedef struct hook_case {
    toy_run run;
    toy_step_fn unusual;
    toy_step_fn plain;
} hook_case;

static zero_status compare(zero_world *world, void *user)
{
    const hook_case *c = user;
    toy_run run = c->run;
    const uint32_t ranks = zero_world_size(world);
    const char *name = toy_split(&run, ranks, 0);
    for (uint32_t w = 0; name != NULL; name = toy_split(&run, ranks, ++w)) {
        if (IN_SMALL_SAMPLE(w + run.tuning.look_ahead)) {
            TOY_TRY(toy_compare(&run, world, c->unusual, c->plain, name));
        }
    }
    return ZERO_OK;
}

/* 3 and 4 ranks, buckets of one unit and of many, few slots and many. */
static void compare_case(hook_case c, uint32_t slots_least)
{
    for (uint32_t i = 0; i < 2; i++) {
        c.run.tuning.param_slots = i == 0 ? slots_least : slots_least + 2;
        c.run.tuning.look_ahead = 1 + i;
        c.run.tuning.bucket_bytes = i == 0 ? 1 : 4096;
        CHECK_OK(zero_world_run(3 + i, TOY_DEADLINE_MS, compare, &c));
    }
}

static hook_case case_of(toy_run run, toy_step_fn unusual, toy_step_fn plain, uint32_t micro_steps)
{
    run.flavour = TOY_INTEGER;
    run.steps = STEPS;
    run.micro_steps = micro_steps;
    return (hook_case){run, unusual, plain};
}

static void compare_everywhere(toy_step_fn unusual, toy_step_fn plain, uint32_t micro_steps,
                               uint32_t slots_least)
{
    compare_case(case_of(toy_run_mixed(ZERO_DTYPE_BF16), unusual, plain, micro_steps), slots_least);
}

/* Backward comes to units in another order than it is described in, so each bucket has a slot. */
static void compare_out_of_order(toy_step_fn unusual)
{
    hook_case c = case_of(toy_run_mixed(ZERO_DTYPE_BF16), unusual, toy_step, 2);
    c.run.tuning.grad_slots = TOY_UNITS_MAX;
    compare_case(c, 2);
}

/* Forward of a unit in the given pass without its gradient. */
static zero_status look(toy_trainer *trainer, uint32_t unit, zero_pass pass)
{
    TOY_TRY(zero_unit_params_acquire(trainer->engine, unit, pass, toy_stream()));
    TOY_TRY(toy_read(trainer, unit));
    return zero_unit_params_release(trainer->engine, unit, toy_stream());
}

static uint32_t units_of(const toy_trainer *trainer)
{
    return trainer->run->model->unit_count;
}

static zero_status forward_all(toy_trainer *trainer)
{
    for (uint32_t u = 0; u < units_of(trainer); u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    return ZERO_OK;
}

static zero_status backward_all(toy_trainer *trainer)
{
    for (uint32_t u = units_of(trainer); u-- > 0;) {
        TOY_TRY(toy_backward(trainer, u));
    }
    return ZERO_OK;
}

/* All micro-steps by `micro`, then the update. */
static zero_status step_of(toy_trainer *trainer, toy_step_fn micro)
{
    for (uint32_t m = 0; m < trainer->run->micro_steps; m++) {
        TOY_TRY(toy_micro_begin(trainer, m + 1 == trainer->run->micro_steps));
        TOY_TRY(micro(trainer));
        TOY_TRY(toy_micro_end(trainer));
    }
    return toy_update(trainer);
}

/* Defines the step `name`, each of whose micro-steps does what follows. */
#define MICRO_STEPS(name)                                  \
    static zero_status name##_micro(toy_trainer *trainer); \
    static zero_status name(toy_trainer *trainer)          \
    {                                                      \
        return step_of(trainer, name##_micro);             \
    }                                                      \
    static zero_status name##_micro(toy_trainer *trainer)

/* ---- the same unit more than once ---- */

MICRO_STEPS(three_times)
{
    for (uint32_t u = 0; u < units_of(trainer); u++) {
        for (int i = 0; i < 3; i++) {
            TOY_TRY(toy_forward(trainer, u));
        }
    }
    for (uint32_t u = units_of(trainer); u-- > 0;) {
        for (int i = 0; i < 2; i++) {
            TOY_TRY(look(trainer, u, ZERO_PASS_BACKWARD));
        }
        TOY_TRY(toy_backward(trainer, u));
    }
    return ZERO_OK;
}

TEST_CALL(unit_acquired_three_times_in_a_pass, compare_everywhere(three_times, toy_step, 2, 2));

/* Each unit is used again after all others, in backward too: its gradient is held open over both
 * uses, and is added at the first, or at the last. */
MICRO_STEPS(held_over_two_uses)
{
    TOY_TRY(forward_all(trainer));
    TOY_TRY(forward_all(trainer));
    for (uint32_t u = units_of(trainer); u-- > 0;) {
        const bool trained = toy_unit_trained(trainer->run->model, u);
        TOY_TRY(trained ? zero_unit_grads_acquire(trainer->engine, u, toy_stream()) : ZERO_OK);
        TOY_TRY(u % 2 == 0 ? toy_backward(trainer, u) : toy_backward_zero(trainer, u));
    }
    for (uint32_t u = units_of(trainer); u-- > 0;) {
        const bool trained = toy_unit_trained(trainer->run->model, u);
        TOY_TRY(u % 2 != 0 ? toy_backward(trainer, u) : toy_backward_zero(trainer, u));
        TOY_TRY(trained ? zero_unit_grads_ready(trainer->engine, u, toy_stream()) : ZERO_OK);
    }
    return ZERO_OK;
}

TEST_CALL(unit_used_twice_in_backward, compare_out_of_order(held_over_two_uses));

/* Units 1 and 3 again after everything else: a shared layer. */
MICRO_STEPS(come_back)
{
    TOY_TRY(forward_all(trainer));
    TOY_TRY(toy_forward(trainer, 1));
    TOY_TRY(toy_forward(trainer, 3));
    TOY_TRY(toy_forward(trainer, 1));
    return backward_all(trainer);
}

TEST_CALL(unit_acquired_again_after_others, compare_everywhere(come_back, toy_step, 2, 2));

MICRO_STEPS(nested)
{
    const zero_stream host = toy_stream();
    for (uint32_t u = 0; u < units_of(trainer); u++) {
        TOY_TRY(zero_unit_params_acquire(trainer->engine, u, ZERO_PASS_FORWARD, host));
        TOY_TRY(zero_unit_params_acquire(trainer->engine, u, ZERO_PASS_FORWARD, host));
        if (u > 0) {
            TOY_TRY(toy_read(trainer, u - 1));
            TOY_TRY(zero_unit_params_release(trainer->engine, u - 1, host));
        }
        TOY_TRY(zero_unit_params_release(trainer->engine, u, host));
        TOY_TRY(toy_read(trainer, u));
    }
    TOY_TRY(zero_unit_params_release(trainer->engine, units_of(trainer) - 1, host));
    for (uint32_t u = units_of(trainer); u-- > 0;) {
        TOY_TRY(zero_unit_params_acquire(trainer->engine, u, ZERO_PASS_BACKWARD, host));
        TOY_TRY(toy_backward(trainer, u));
        TOY_TRY(toy_read(trainer, u));
        TOY_TRY(zero_unit_params_release(trainer->engine, u, host));
    }
    return ZERO_OK;
}

TEST_CALL(acquires_nest_and_overlap, compare_everywhere(nested, toy_step, 2, 4));

/* The embedding stays acquired from the first use to the last. */
MICRO_STEPS(hold_first)
{
    const zero_stream host = toy_stream();
    TOY_TRY(zero_unit_acquire(trainer->engine, 0, ZERO_PASS_FORWARD, host, NULL));
    for (uint32_t u = 1; u < units_of(trainer); u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    TOY_TRY(backward_all(trainer));
    TOY_TRY(toy_read(trainer, 0));
    return zero_unit_release(trainer->engine, 0, host);
}

TEST_CALL(unit_held_through_forward_and_backward, compare_everywhere(hold_first, toy_step, 2, 3));

/* ---- recomputation ---- */

MICRO_STEPS(recompute)
{
    TOY_TRY(forward_all(trainer));
    /* Two units a checkpoint: forward of both again, then backward of both. */
    for (uint32_t end = units_of(trainer); end > 0; end -= end > 1 ? 2 : 1) {
        const uint32_t start = end > 1 ? end - 2 : 0;
        for (uint32_t u = start; u < end; u++) {
            TOY_TRY(look(trainer, u, ZERO_PASS_BACKWARD));
        }
        for (uint32_t u = end; u-- > start;) {
            TOY_TRY(toy_backward(trainer, u));
        }
    }
    return ZERO_OK;
}

TEST_CALL(recomputation_inside_backward, compare_everywhere(recompute, toy_step, 2, 2));

/* ---- gradients that do not come ---- */

/* What a rank leaves out of a unit in the running micro-step. */
typedef enum omission { ALL_DONE, NO_GRADIENT, NO_BACKWARD, NOT_AT_ALL } omission;
typedef omission (*omission_fn)(const toy_trainer *trainer, uint32_t unit);

/* explicit_zero: use every unit, and give a gradient of zero where `of` leaves it out. */
static zero_status omitting_micro(toy_trainer *trainer, omission_fn of, bool explicit_zero)
{
    for (uint32_t u = 0; u < units_of(trainer); u++) {
        if (explicit_zero || of(trainer, u) != NOT_AT_ALL) {
            TOY_TRY(toy_forward(trainer, u));
        }
    }
    for (uint32_t u = units_of(trainer); u-- > 0;) {
        const omission left = of(trainer, u);
        if (left == ALL_DONE) {
            TOY_TRY(toy_backward(trainer, u));
        } else if (explicit_zero) {
            TOY_TRY(toy_backward_zero(trainer, u));
        } else if (left == NO_GRADIENT) {
            TOY_TRY(look(trainer, u, ZERO_PASS_BACKWARD));
        }
    }
    return ZERO_OK;
}

/* Defines two steps: `name`, in which a rank leaves out what follows, and name_zero, in which it
 * gives explicit zeros instead. */
#define OMITTING(name)                                                    \
    static omission name##_of(const toy_trainer *trainer, uint32_t unit); \
    MICRO_STEPS(name)                                                     \
    {                                                                     \
        return omitting_micro(trainer, name##_of, false);                 \
    }                                                                     \
    MICRO_STEPS(name##_zero)                                              \
    {                                                                     \
        return omitting_micro(trainer, name##_of, true);                  \
    }                                                                     \
    static omission name##_of(const toy_trainer *trainer, uint32_t unit)

OMITTING(never_backward)
{
    (void)trainer;
    return unit == 1 ? NO_BACKWARD : unit == 3 ? NO_GRADIENT : ALL_DONE;
}

TEST_CALL(unit_whose_backward_never_fires,
          compare_everywhere(never_backward, never_backward_zero, 2, 2));

OMITTING(never_used)
{
    (void)trainer;
    return unit == 3 ? NOT_AT_ALL : ALL_DONE;
}

TEST_CALL(unit_that_nobody_uses, compare_everywhere(never_used, never_used_zero, 2, 2));

/* Used in even steps only: an older gradient would show in odd ones. */
OMITTING(even_steps)
{
    return unit == 1 && trainer->step % 2 == 1 ? NOT_AT_ALL : ALL_DONE;
}

TEST(gradient_is_never_from_an_older_step)
{
    compare_everywhere(even_steps, even_steps_zero, 1, 2);
    compare_everywhere(even_steps, even_steps_zero, 2, 2);
}

/* First used in the second micro-step of odd steps, after a step that filled its memory. */
OMITTING(later_micro)
{
    const bool late = (unit == 1 || unit == 0) && trainer->step % 2 == 1 && trainer->micro == 0;
    return late ? NOT_AT_ALL : ALL_DONE;
}

TEST_CALL(first_use_at_a_later_micro_step, compare_everywhere(later_micro, later_micro_zero, 3, 2));

/* Experts: every rank uses other units. */
OMITTING(experts)
{
    return unit % trainer->ranks == trainer->rank ? NOT_AT_ALL : ALL_DONE;
}

TEST(ranks_skip_different_units)
{
    compare_everywhere(experts, experts_zero, 1, 2);
    compare_everywhere(experts, experts_zero, 2, 2);
}

/* Nobody uses unit 3 for two steps, so its place in the order may be forgotten; then rank 0 alone
 * does. */
OMITTING(returns)
{
    return unit == 3 && (trainer->step < 2 || trainer->rank != 0) ? NOT_AT_ALL : ALL_DONE;
}

TEST_CALL(unit_comes_back_on_one_rank, compare_everywhere(returns, returns_zero, 1, 2));

/* Whatever comes to a rank's mind: all kinds of omissions, other ones each time. */
OMITTING(by_chance)
{
    uint64_t word =
        test_seed + unit + 64 * trainer->rank + 4096 * trainer->micro + 65536 * trainer->step;
    word = (word ^ (word >> 31)) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (omission)(word >> 40 & 3);
}

TEST(ranks_skip_by_chance)
{
    compare_everywhere(by_chance, by_chance_zero, 1, 2);
    compare_everywhere(by_chance, by_chance_zero, 2, 3);
}

/* Rank 1 has no work at all, and only rank 0 uses the embedding. */
OMITTING(lazy_rank)
{
    return trainer->rank == 1 || (unit == 0 && trainer->rank != 0) ? NOT_AT_ALL : ALL_DONE;
}

TEST_CALL(rank_without_work, compare_everywhere(lazy_rank, lazy_rank_zero, 2, 2));

/* From step 5 on the units come in another order. */
MICRO_STEPS(rotated)
{
    const uint32_t units = units_of(trainer);
    const uint32_t shift = trainer->step >= 5 ? 3 : 0;
    for (uint32_t i = 0; i < units; i++) {
        TOY_TRY(toy_forward(trainer, (i + shift) % units));
    }
    for (uint32_t i = units; i-- > 0;) {
        TOY_TRY(toy_backward(trainer, (i + shift) % units));
    }
    return ZERO_OK;
}

/* Units of one size compete for the same slots, held and let go at other times on every rank. */
static void compare_equal_units(toy_step_fn unusual, toy_step_fn plain, uint32_t slots_least,
                                uint32_t grad_slots)
{
    hook_case c = case_of(toy_run_equal(9, 200, ZERO_DTYPE_F32), unusual, plain, 2);
    c.run.tuning.grad_slots = grad_slots;
    c.run.tuning.bucket_bytes = 1;
    for (uint32_t slots = slots_least; slots <= 5; slots++) {
        c.run.tuning.param_slots = slots;
        c.run.tuning.look_ahead = slots - 1;
        CHECK_OK(zero_world_run(3, TOY_DEADLINE_MS, compare, &c));
    }
}

TEST_CALL(ranks_skip_different_units_of_one_size, compare_equal_units(experts, experts_zero, 2, 0));
TEST_CALL(ranks_skip_units_of_one_size_by_chance,
          compare_equal_units(by_chance, by_chance_zero, 2, 0));
TEST_CALL(unit_of_one_size_held_from_first_to_last,
          compare_equal_units(hold_first, toy_step, 3, 0));

/* Gradients that come in another order than described need slots to wait in. */
TEST_CALL(order_of_units_of_one_size_changes, compare_equal_units(rotated, toy_step, 2, 9));
TEST_CALL(units_of_one_size_and_a_lazy_rank, compare_equal_units(lazy_rank, lazy_rank_zero, 2, 0));

/* ---- other orders ---- */

TEST_CALL(order_changes_at_step_5, compare_out_of_order(rotated));

MICRO_STEPS(backward_ahead)
{
    TOY_TRY(forward_all(trainer));
    for (uint32_t u = 0; u < units_of(trainer); u++) {
        TOY_TRY(toy_backward(trainer, u));
    }
    return ZERO_OK;
}

TEST_CALL(backward_in_the_order_of_forward, compare_out_of_order(backward_ahead));

/* ---- evaluation between steps ---- */

static zero_status with_evaluation(toy_trainer *trainer)
{
    TOY_TRY(toy_evaluate(trainer));
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_evaluate(trainer));
    TOY_TRY(toy_evaluate(trainer));
    return ZERO_OK;
}

TEST_CALL(evaluation_between_steps, compare_everywhere(with_evaluation, toy_step, 2, 2));

/* Sweeps that stop half way, skip units by rank, or go backwards; also between micro-steps. */
static zero_status odd_sweep(toy_trainer *trainer)
{
    const uint32_t units = units_of(trainer);
    memset(trainer->seen_set, 0, TOY_TENSORS_MAX * sizeof *trainer->seen_set);
    for (uint32_t u = 0; u < units / 2; u++) {
        if (u % trainer->ranks != trainer->rank) {
            TOY_TRY(look(trainer, u, ZERO_PASS_EVAL));
        }
    }
    for (uint32_t u = units; u-- > units / 2;) {
        TOY_TRY(look(trainer, u, ZERO_PASS_EVAL));
    }
    return ZERO_OK;
}

static zero_status with_odd_sweeps(toy_trainer *trainer)
{
    TOY_TRY(odd_sweep(trainer));
    TOY_TRY(toy_micro(trainer, false));
    TOY_TRY(odd_sweep(trainer));
    TOY_TRY(toy_micro(trainer, true));
    return toy_update(trainer);
}

TEST_CALL(odd_evaluation_sweeps, compare_everywhere(with_odd_sweeps, toy_step, 2, 2));
