/* Worlds over the fake NCCL alone: ranks are threads, each with a GPU and a communicator of the
 * caller's. */
#ifndef TESTS_COMM_NCCL_WORLD_RIG_H
#define TESTS_COMM_NCCL_WORLD_RIG_H

#include <pthread.h>

#include "comm/nccl/nccl_launch.h"
#include "comm/world.h"
#include "nccl_rig.h"
#include "zero/nccl.h"

#define RIG_RANKS_MAX 8

/* How the ranks of a test come to their worlds. */
typedef struct rig {
    uint32_t ranks;
    uint32_t deadline_ms;
    bool blocking; /* the caller's communicators */
    bool launched; /* there are none: as a launcher's processes */
    zero_rank_fn fn;
    void *user;
} rig;

typedef struct rig_rank {
    const rig *rig;
    uint32_t rank;
    zero_status status;
    pthread_t thread;
} rig_rank;

static pthread_barrier_t rig_met;        /* all ranks of the rig */
static zi_control_endpoint rig_endpoint; /* at which launched ranks meet */

/* An endpoint of this host that is free now. */
static inline zi_control_endpoint rig_free_endpoint(void)
{
    zi_control_endpoint endpoint = {.key = zi_control_key_of("rig"), .hosts = "127.0.0.1"};
    int listener = -1;
    CHECK_OK(zi_control_listen(&endpoint, &listener));
    zi_control_close(listener);
    return endpoint;
}

static inline zero_status rig_create(const rig_rank *r, ncclComm_t *lent, zero_world **world)
{
    const rig *g = r->rig;
    if (g->launched) {
        const zi_launch launch = {.rank = r->rank, .size = g->ranks, .address = "127.0.0.1"};
        zi_comm *comm = NULL;
        *world = NULL;
        ZI_TRY(zi_nccl_can_launch(&launch));
        ZI_TRY(zi_nccl_launch(&launch, g->deadline_ms, &rig_endpoint, &comm));
        return zi_world_create(comm, world);
    }
    *lent = fake_nccl_lend("rig", (int)g->ranks, (int)r->rank, g->blocking);
    return zero_world_create_nccl(*lent, g->deadline_ms, world);
}

static inline void *rig_main(void *argument)
{
    rig_rank *r = argument;
    ncclComm_t lent = NULL;
    zero_world *world = NULL;
    CHECK_EQ(cudaSetDevice((int)r->rank), cudaSuccess);
    CHECK_OK(rig_create(r, &lent, &world));
    r->status = r->rig->fn(world, r->rig->user);
    zero_world_destroy(world);
    (void)pthread_barrier_wait(&rig_met);
    if (lent != NULL) {
        fake_nccl_take_back(lent);
    }
    return NULL;
}

/* All ranks must come to `expected`. */
static inline void rig_run(const rig *g, zero_status expected)
{
    rig_rank ranks[RIG_RANKS_MAX];
    zi_nccl_api_replace(fake_nccl_api());
    fake_cuda_devices((int)g->ranks);
    rig_endpoint = rig_free_endpoint();
    CHECK_EQ(pthread_barrier_init(&rig_met, NULL, g->ranks), 0);
    for (uint32_t i = 0; i < g->ranks; i++) {
        ranks[i] = (rig_rank){.rig = g, .rank = i};
        CHECK_EQ(pthread_create(&ranks[i].thread, NULL, rig_main, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < g->ranks; i++) {
        CHECK_EQ(pthread_join(ranks[i].thread, NULL), 0);
        CHECK_EQ(ranks[i].status, expected);
    }
    CHECK_EQ(pthread_barrier_destroy(&rig_met), 0);
}

#endif
