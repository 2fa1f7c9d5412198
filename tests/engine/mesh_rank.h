/* A rank of a mesh, data x model. The includer says how the mesh runs. */
#ifndef TESTS_ENGINE_MESH_RANK_H
#define TESTS_ENGINE_MESH_RANK_H

#include "zero/zero.h"

/* One rank of the mesh: `data` of its part's world, `part` of the model-parallel world. */
typedef struct mesh_rank {
    uint32_t data;
    uint32_t part;
    zero_world *world;
    zero_world *parts;
} mesh_rank;

typedef zero_status (*mesh_fn)(const mesh_rank *at, void *user);

/* Run `fn` as every rank of a mesh, whose worlds are made and destroyed around it. */
static zero_status run_mesh(uint32_t data, uint32_t parts, mesh_fn fn, void *user);

#endif
