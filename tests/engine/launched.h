/* zero_world_run for ranks that are processes of this host, started as torchrun would. */
#ifndef TESTS_ENGINE_LAUNCHED_H
#define TESTS_ENGINE_LAUNCHED_H

#include "comm/process_ranks.h"
#include "toy.h"

typedef struct launched {
    zero_rank_fn fn;
    void *user;
} launched;

static inline void launched_rank(uint32_t rank, void *user)
{
    const launched *job = user;
    zero_world *world = NULL;
    (void)rank;
    CHECK_OK(zero_world_create_launched(TOY_DEADLINE_MS, &world));
    CHECK_OK(job->fn(world, job->user));
    zero_world_destroy(world);
}

static inline void run_launched(uint32_t ranks, zero_rank_fn fn, void *user)
{
    run_ranks(ranks, launched_rank, &(launched){fn, user});
}

#endif
