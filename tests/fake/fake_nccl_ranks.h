/* Ranks that are threads, each with a GPU of its own, since NCCL refuses two on one. */
#ifndef TESTS_FAKE_FAKE_NCCL_RANKS_H
#define TESTS_FAKE_FAKE_NCCL_RANKS_H

#include "fake_cuda.h"
#include "harness.h"
#include "zero/world.h"

typedef struct fake_nccl_rank {
    zero_rank_fn fn;
    void *user;
} fake_nccl_rank;

static inline zero_status fake_nccl_rank_main(zero_world *world, void *user)
{
    const fake_nccl_rank *rank = user;
    CHECK_EQ(cudaSetDevice((int)zero_world_rank(world)), cudaSuccess);
    return rank->fn(world, rank->user);
}

/* As zero_world_run. */
static inline zero_status fake_nccl_world_run(uint32_t rank_count, uint32_t deadline_ms,
                                              zero_rank_fn fn, void *user)
{
    fake_nccl_rank rank = {fn, user};
    fake_cuda_devices((int)rank_count);
    return zero_world_run(rank_count, deadline_ms, fake_nccl_rank_main, &rank);
}

#endif
