/* Runs whose states are small: the mixes of types that tests list, and their steps. */
#ifndef TESTS_ENGINE_SMALL_RUNS_H
#define TESTS_ENGINE_SMALL_RUNS_H

#include "saved_runs.h"

#define ADAMW ZERO_OPTIMIZER_ADAMW

typedef struct small_mix {
    zero_dtype dtype;
    zero_dtype master;
    zero_dtype moments;
    zero_optimizer optimizer;
} small_mix;

static inline toy_run small_run(const small_mix *mix)
{
    toy_run run = run_of(run_model(mix->dtype), mix->master, mix->moments);
    run.options.optimizer = mix->optimizer;
    run.params.hyper = zero_hyper_init(mix->optimizer);
    run.options.seed = 17;
    return run;
}

/* A step of RUN_SAMPLES samples. AdamW's groups have numbers of their own (saved_runs.h). */
static inline zero_status small_step(toy_trainer *trainer)
{
    if (trainer->run->options.optimizer == ADAMW) {
        return run_step(trainer);
    }
    const toy_run *given = trainer->run;
    toy_run run = *given;
    run.micro_steps = RUN_SAMPLES / trainer->ranks;
    trainer->run = &run;
    const zero_status status = toy_step_or_skip(trainer, trainer->step == 1);
    trainer->run = given;
    return status;
}

#endif
