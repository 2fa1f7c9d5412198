/* Runs of the toy that are saved and go on from there: directories of their own, steps that leave
 * no part of the state at its default, and what all tests of saves share. */
#ifndef TESTS_ENGINE_SAVED_RUNS_H
#define TESTS_ENGINE_SAVED_RUNS_H

#include "harness.h"

#include <ftw.h>
#include <unistd.h>

#include "folders.h"
#include "toy.h"

#define RUN_STEPS 6
#define RUN_HALF 3
#define RUN_SAMPLES 24 /* a step's, over all ranks and micro-steps */
#define RUN_GROUPS 3

static char *run_directory; /* removed with all that is in it at the process's end */
static pid_t run_directory_maker;

static inline int run_remove_entry(const char *path, const struct stat *info, int kind,
                                   struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path);
}

/* A rank that is a process of its own leaves it to the test. */
static inline void run_directory_remove(void)
{
    if (getpid() != run_directory_maker) {
        return;
    }
    CHECK_EQ(nftw(run_directory, run_remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(run_directory);
}

static inline void run_directory_make_in(bool memory)
{
    run_directory = rig_folder(memory);
    run_directory_maker = getpid();
    CHECK_EQ(atexit(run_directory_remove), 0);
}

static inline void run_directory_make(void)
{
    run_directory_make_in(false);
}

/* Every group has other betas, and other ones in every step. */
static inline void run_choose_groups(uint64_t step, zero_hyper *groups)
{
    for (uint32_t g = 0; g < RUN_GROUPS; g++) {
        groups[g] = (zero_hyper){.adamw = {.lr = 0.01f * (float)(g + 1),
                                           .beta1 = 0.5f + 0.05f * (float)((step + g) % 5),
                                           .beta2 = 0.9f + 0.02f * (float)((step + 2 * g) % 4),
                                           .eps = 1e-6f,
                                           .weight_decay = 0.1f}};
    }
}

/* One step of RUN_SAMPLES samples, whatever the ranks; two of the run's are not finite. */
static inline zero_status run_step(toy_trainer *trainer)
{
    zero_hyper groups[RUN_GROUPS];
    toy_run run = *trainer->run;
    const toy_run *given = trainer->run;
    run_choose_groups(trainer->step, groups);
    run.params.groups = groups;
    run.params.group_count = RUN_GROUPS;
    run.micro_steps = RUN_SAMPLES / trainer->ranks;
    trainer->run = &run;
    const zero_status status =
        toy_step_or_skip(trainer, trainer->step == 1 || trainer->step == RUN_HALF + 1);
    trainer->run = given;
    return status;
}

/* Units of several sizes and groups, a frozen tensor, an empty one, and a tied unit. */
static inline const toy_model *run_model(zero_dtype dtype)
{
    static const uint64_t rows[] = {129, 64, 1, 300, 77};
    toy_model *model = toy_model_new();
    for (uint32_t u = 0; u < 5; u++) {
        (void)toy_model_layer(model, "unit", u);
        (void)toy_model_grouped(model, rows[u], dtype, 0, u % RUN_GROUPS);
        (void)toy_model_tensor(model, rows[u], 3, dtype, u == 2 ? ZERO_TENSOR_FROZEN : 0);
        (void)toy_model_grouped(model, rows[4 - u], ZERO_DTYPE_F32, 0, (u + 1) % RUN_GROUPS);
        (void)toy_model_grouped(model, u == 1 ? 0 : 5, dtype, ZERO_TENSOR_NO_DECAY, 0);
    }
    const uint32_t tied = toy_model_layer(model, "head", 0);
    (void)toy_model_tensor(model, 9, 30, dtype, 0);
    toy_model_tie(model, tied, 0);
    return model;
}

static inline toy_run run_of(const toy_model *model, zero_dtype master, zero_dtype moments)
{
    toy_run run = toy_run_init(model);
    run.flavour = TOY_INTEGER; /* sums are exact, so any number of ranks has the same bits */
    run.options.master_dtype = master;
    run.options.moment_dtype = moments;
    run.options.loss_scale = 64;
    run.tuning.loss_scale_window = 2;
    run.tuning.loss_scale_hysteresis = 2;
    run.params.max_norm = 2;
    return run;
}

static inline zero_save_options run_save_options(const char *name)
{
    zero_save_options options = zero_save_options_init();
    options.directory = run_directory;
    options.name = name;
    options.replace = 1;
    return options;
}

static inline zero_load_options run_load_options(const char *name)
{
    zero_load_options options = zero_load_options_init();
    options.path = run_directory;
    options.name = name;
    return options;
}

#endif
