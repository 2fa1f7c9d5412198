/* Tests of what each of two ranks does on the mixed model, at every stage, and the calls on a unit
 * on the toy's stream. */
#ifndef TESTS_ENGINE_AT_STAGES_H
#define TESTS_ENGINE_AT_STAGES_H

#include "harness.h"
#include "toy.h"

/* Units of toy_model_mixed; the head ties to the embedding. */
enum { EMBED, BLOCK0, FROZEN, BLOCK1, EMPTY, HEAD };

static inline void at_all_stages(toy_step_fn fn)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    for (int checked = 0; checked < 2; checked++) {
        run.tuning.poison_released = checked;
        CHECK_OK(toy_on_stages(2, &run, fn, NULL));
    }
}

#define TEST_AT_ALL_STAGES(name)                   \
    static zero_status name(toy_trainer *trainer); \
    TEST(name)                                     \
    {                                              \
        at_all_stages(name);                       \
    }                                              \
    static zero_status name(toy_trainer *trainer)

static inline zero_status acquire(const toy_trainer *trainer, uint32_t unit, zero_pass pass)
{
    return zero_unit_acquire(trainer->engine, unit, pass, toy_stream(), NULL);
}

static inline zero_status release(const toy_trainer *trainer, uint32_t unit)
{
    return zero_unit_release(trainer->engine, unit, toy_stream());
}

static inline zero_status params_acquire(const toy_trainer *trainer, uint32_t unit, zero_pass pass)
{
    return zero_unit_params_acquire(trainer->engine, unit, pass, toy_stream());
}

static inline zero_status params_release(const toy_trainer *trainer, uint32_t unit)
{
    return zero_unit_params_release(trainer->engine, unit, toy_stream());
}

static inline zero_status grads_acquire(const toy_trainer *trainer, uint32_t unit)
{
    return zero_unit_grads_acquire(trainer->engine, unit, toy_stream());
}

static inline zero_status grads_ready(const toy_trainer *trainer, uint32_t unit)
{
    return zero_unit_grads_ready(trainer->engine, unit, toy_stream());
}

/* The micro-step and its step end. */
static inline zero_status end_step(toy_trainer *trainer)
{
    TOY_TRY(toy_micro_end(trainer));
    return toy_update(trainer);
}

#endif
