/* A mesh of ranks, data x model, that are threads of the test. With TOY_NCCL worlds are lent
 * communicators, and are joined in one process. */
#ifndef TESTS_ENGINE_MESH_THREADS_H
#define TESTS_ENGINE_MESH_THREADS_H

#include "harness.h"

#include "comm/host/host_comm.h"
#include "comm/world.h"
#include "mesh_rank.h"
#include "toy.h"

#define PARTS_MAX 4
#define DATA_MAX 8

typedef struct mesh mesh;

struct mesh {
    uint32_t data;
    uint32_t parts;
    zi_thread_ranks *worlds[PARTS_MAX];
    zi_thread_ranks *across[DATA_MAX];
    mesh_fn fn;
    void *user;
};

static zero_world *join_hub(zi_thread_ranks *hub, uint32_t rank)
{
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    CHECK_OK(zi_thread_comm_create(hub, rank, &comm));
    CHECK_OK(zi_world_create(comm, &world));
    return world;
}

#ifdef TOY_NCCL

static zero_status run_mesh_rank(zero_world *base, void *user)
{
    const mesh *m = user;
    const uint32_t rank = zero_world_rank(base);
    mesh_rank at = {.data = rank % m->data, .part = rank / m->data};
    const bool mixed = m->data != 2; /* the parts are threads then, and read one another's GPUs */
    char names[2][16];
    void *lent[2] = {NULL, NULL};
    (void)snprintf(names[0], sizeof names[0], "part %u", at.part);
    (void)snprintf(names[1], sizeof names[1], "across %u", at.data);
    at.world = toy_nccl_join(names[0], m->data, at.data, &lent[0]);
    at.parts = mixed ? join_hub(m->across[at.data], at.part)
                     : toy_nccl_join(names[1], m->parts, at.part, &lent[1]);
    const zero_status status = m->fn(&at, m->user);
    CHECK_OK(status);
    zero_world_destroy(at.parts);
    zero_world_destroy(at.world);
    CHECK_OK(zero_world_barrier(base));
    toy_nccl_leave(lent[0]);
    if (!mixed) {
        toy_nccl_leave(lent[1]);
    }
    return status;
}

#else

static zero_status run_mesh_rank(zero_world *base, void *user)
{
    const mesh *m = user;
    const uint32_t rank = zero_world_rank(base);
    mesh_rank at = {.data = rank % m->data, .part = rank / m->data};
    at.world = join_hub(m->worlds[at.part], at.data);
    at.parts = join_hub(m->across[at.data], at.part);
    const zero_status status = m->fn(&at, m->user);
    zero_world_destroy(at.parts);
    zero_world_destroy(at.world);
    return status;
}

#endif

static zero_status run_mesh(uint32_t data, uint32_t parts, mesh_fn fn, void *user)
{
    mesh m = {.data = data, .parts = parts, .fn = fn, .user = user};
    for (uint32_t p = 0; p < parts; p++) {
        CHECK_OK(zi_thread_ranks_create(data, TOY_DEADLINE_MS, &m.worlds[p]));
    }
    for (uint32_t d = 0; d < data; d++) {
        CHECK_OK(zi_thread_ranks_create(parts, TOY_DEADLINE_MS, &m.across[d]));
    }
    const zero_status status = zero_world_run(data * parts, TOY_DEADLINE_MS, run_mesh_rank, &m);
    for (uint32_t p = 0; p < parts; p++) {
        zi_thread_ranks_release(m.worlds[p]);
    }
    for (uint32_t d = 0; d < data; d++) {
        zi_thread_ranks_release(m.across[d]);
    }
    return status;
}

#endif
