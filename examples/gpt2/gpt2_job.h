/* A training job, as its program (gpt2_main.c) makes it and its ranks (gpt2_train.c) have it. */
#ifndef GPT2_JOB_H
#define GPT2_JOB_H

#include "gpt2_backend.h"
#include "gpt2_data.h"
#include "gpt2_options.h"
#include "tools/live_line.h"
#include "zero/zero.h"

#include <pthread.h>
#include <stdbool.h>

/* Shared by the ranks of a process; read-only but for the error. */
typedef struct gpt2_job {
    gpt2_options options;
    gpt2_config config;
    gpt2_data data;
    double bigram;
    bool launched;   /* ranks are processes */
    live_line *live; /* shows what rank 0 is doing; NULL: standard output is no terminal */
    uint32_t threads;
    const gpt2_backend *backend;
    pthread_mutex_t lock; /* guards error and stop */
    gpt2_error error;     /* the first failure that was not the library's */
    int stop;             /* the signal that ended it; 0: none */
} gpt2_job;

/* The engine's options and tuning. The options point to the job's own. */
zero_engine_options gpt2_job_engine(const gpt2_job *job);
zero_tuning gpt2_job_tuning(const gpt2_job *job);

/* Train as one rank of the world. user: the gpt2_job. */
zero_status gpt2_train_rank(zero_world *world, void *user);

#endif
