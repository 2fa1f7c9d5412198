/* Stands in for zero_world_run where a program of this folder is to run over worlds that have only
 * NCCL: each rank is a thread with a GPU and a communicator of its own, over the fakes. */
#undef zero_world_run
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "comm/nccl/nccl_api.h"
#include "core/clock.h"
#include "fake_cuda.h"
#include "fake_nccl.h"
#include "toy.h"
#include "zero/nccl.h"

typedef struct toy_world {
    uint32_t ranks;
    uint32_t deadline_ms;
    zero_rank_fn fn;
    void *user;
    pthread_barrier_t over;
} toy_world;

typedef struct toy_rank {
    toy_world *world;
    uint32_t rank;
    zero_status status;
    pthread_t thread;
} toy_rank;

zero_status toy_nccl_world_run(uint32_t ranks, uint32_t deadline_ms, zero_rank_fn fn, void *user);

zero_world *toy_nccl_join(const char *name, uint32_t ranks, uint32_t rank, void **lent)
{
    zero_world *world = NULL;
    *lent = fake_nccl_lend(name, (int)ranks, (int)rank, true);
    TOY_CHECK(zero_world_create_nccl(*lent, 0, &world) == ZERO_OK, "%s",
              zero_last_error()->message);
    return world;
}

void toy_nccl_leave(void *lent)
{
    fake_nccl_take_back(lent);
}

static void *rank_main(void *argument)
{
    toy_rank *r = argument;
    toy_world *w = r->world;
    zero_world *world = NULL;
    TOY_CHECK(cudaSetDevice((int)r->rank) == cudaSuccess, "no GPU %u", r->rank);
    ncclComm_t lent = fake_nccl_lend("toy", (int)w->ranks, (int)r->rank, w->ranks % 2 == 0);
    r->status = zero_world_create_nccl(lent, w->deadline_ms, &world);
    if (r->status == ZERO_OK) {
        r->status = w->fn(world, w->user);
    }
    TOY_CHECK(r->status == ZERO_OK, "rank %u: %s", r->rank, zero_last_error()->message);
    zero_world_destroy(world);
    (void)pthread_barrier_wait(&w->over);
    fake_nccl_take_back(lent);
    return NULL;
}

zero_status toy_nccl_world_run(uint32_t ranks, uint32_t deadline_ms, zero_rank_fn fn, void *user)
{
    toy_world w = {.ranks = ranks, .deadline_ms = deadline_ms, .fn = fn, .user = user};
    toy_rank *all = calloc(ranks, sizeof *all);
    TOY_CHECK(all != NULL && ranks <= FAKE_CUDA_DEVICES_MAX, "%u ranks", ranks);
    zi_nccl_api_replace(fake_nccl_api());
    fake_cuda_devices((int)ranks);
    TOY_CHECK(pthread_barrier_init(&w.over, NULL, ranks) == 0, "no barrier");
    for (uint32_t i = 0; i < ranks; i++) {
        all[i] = (toy_rank){.world = &w, .rank = i};
        TOY_CHECK(pthread_create(&all[i].thread, NULL, rank_main, &all[i]) == 0, "no thread");
    }
    for (uint32_t i = 0; i < ranks; i++) {
        (void)pthread_join(all[i].thread, NULL);
    }
    (void)pthread_barrier_destroy(&w.over);
    free(all);
    /* One that failed and that a graph held goes a moment after that. */
    const uint64_t until_ns = zi_clock_ns() + UINT64_C(20000000000);
    while (fake_nccl_live() != 0 && zi_clock_ns() < until_ns) {
        (void)sched_yield();
    }
    TOY_CHECK(fake_nccl_check() && fake_nccl_live() == 0, "NCCL was not used well");
    return ZERO_OK;
}
