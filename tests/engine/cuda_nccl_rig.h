/* Engines over NCCL, with doubles of NCCL and of the CUDA runtime and ranks that are threads but
 * say that they are processes. */
#ifndef TESTS_ENGINE_CUDA_NCCL_RIG_H
#define TESTS_ENGINE_CUDA_NCCL_RIG_H

#include "harness.h"
#include "reads.h"

#include "comm/comm.h"
#include "fake_cuda.h"
#include "fake_nccl_memory.h"
#include "fake_nccl_ranks.h"
#include "toy.h"

#define DEADLINE_MS 60000
#define RANKS 4
/* The requests to NCCL. */
typedef struct asked {
    zero_nccl_memory memory;
    int32_t zero_cta;
} asked;

static const asked kinds[] = {
    {ZERO_NCCL_MEMORY_NONE, 0},
    {ZERO_NCCL_MEMORY_REGISTERED, 0},
    {ZERO_NCCL_MEMORY_REGISTERED, 1},
};
/* True if GPUs map one another's memory. */
static bool windows = true;
/* The kinds that can be had, with the headers of this build. */
#define KINDS ((size_t)(windows && ZI_NCCL_HAS_ZERO_CTA ? 3 : 2))
#define NEEDS_KINDS(count)                       \
    if (KINDS < (count)) {                       \
        SKIP("nccl.h of this build is too old"); \
    }

static inline void ask(toy_run *run, asked what)
{
    run->tuning.nccl_memory = what.memory;
    run->tuning.nccl_zero_cta = what.zero_cta;
}

static inline void set_windows(bool possible)
{
    windows = possible;
    fake_nccl_without_windows(!possible);
}

/* In a world whose GPUs map no memory of others, and in one whose GPUs do. */
static inline void run_both(uint32_t ranks, zero_rank_fn fn, void *user)
{
    set_windows(false);
    CHECK_OK(fake_nccl_world_run(ranks, DEADLINE_MS, fn, user));
    set_windows(true);
    CHECK_OK(fake_nccl_world_run(ranks, DEADLINE_MS, fn, user));
}

/* Neighbouring ranks that say that they are on one host; 0: all do. */
static uint32_t per_host;

/* Ranks of this world are processes from here on, until all have come to the end. */
static inline void become_processes(zero_world *world)
{
    world->comm->one_process = false;
    if (per_host != 0) {
        world->comm->host = 1 + zero_world_rank(world) / per_host;
    }
}

static inline zero_status become_threads(zero_world *world)
{
    const zero_status status = zero_world_barrier(world);
    world->comm->one_process = true;
    return status;
}

static inline void start(void)
{
    zi_nccl_api_replace(fake_nccl_api());
    fake_cuda_start(FAKE_CUDA_AT_SYNC, test_seed);
}

static inline void finish(void)
{
    CHECK(fake_nccl_check());
    CHECK_EQ(fake_nccl_live(), 0);
    CHECK_EQ(fake_nccl_memory_live(), 0);
    CHECK(fake_cuda_check());
}

#endif
