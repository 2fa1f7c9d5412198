/* The axes of a search: every value that each may have, on every mesh. */
#ifndef ZI_PLAN_SEARCH_SPACE_H
#define ZI_PLAN_SEARCH_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "zero/search.h"

#define ZI_FORMATS_MAX 4
#define ZI_MIXES_MAX 48
/* Four stages, and shard groups: a number up to 65536 has at most 120 divisors. */
#define ZI_SPLITS_MAX 128

/* A format of the states. */
typedef struct zi_format {
    zero_dtype master;
    zero_dtype moments;
} zi_format;

/* Tiers of the roles, and who updates. */
typedef struct zi_mix {
    zero_tier tier[ZERO_ROLE_SHARDS_MAX];
    zero_updater updater;
} zi_mix;

/* A stage, and the ranks that parameters are split over. */
typedef struct zi_split {
    zero_stage stage;
    uint32_t group;
} zi_split;

/* The ways to cut the model, and what an engine of one part may be. */
typedef struct zi_mesh {
    zero_transformer transformer;
    uint32_t world; /* an engine's */
    uint32_t split_count;
    zi_split splits[ZI_SPLITS_MAX];
} zi_mesh;

/* A batch on a mesh. */
typedef struct zi_shape {
    uint32_t mesh;
    uint32_t order; /* in which shapes are listed */
    zero_batch batch;
    uint64_t activation_bytes;
    double floor_ns;  /* of a step, without what an engine moves, with all overlap there may be; 0
                         where activations alone do not fit */
    double passes_ns; /* of it, compute, which copies may overlap with */
    bool fits;        /* activations alone do */
} zi_shape;

/* A request with its defaults replaced, and its axes as lists. */
typedef struct zi_space {
    zero_transformer transformer;
    zero_cluster cluster;
    zero_engine_options options; /* its tuning is the next */
    zero_tuning tuning;
    zero_batch batch;
    uint64_t step_samples;
    uint32_t held;
    uint32_t format_count;
    zi_format formats[ZI_FORMATS_MAX];
    uint32_t mix_count;
    zi_mix mixes[ZI_MIXES_MAX];
    uint32_t mesh_count;
    zi_mesh *meshes;
    uint32_t shape_count;
    uint32_t shape_room;
    zi_shape *shapes;
} zi_space;

/* Read the request. Nothing is listed yet; zi_space_close gives back what is. */
zero_status zi_space_open(const zero_search_request *request, zi_space *space);

/* List meshes and shapes, for units and slots as they are in the space now. Of shapes whose
 * activations do not fit each mesh has the one with the fewest. INVALID_ARGUMENT where there is no
 * shape. */
zero_status zi_space_list(zi_space *space);

/* options->tuning becomes `tuning`. */
void zi_space_options(const zi_space *space, const zi_split *split, const zi_mix *mix,
                      const zi_format *format, zero_engine_options *options, zero_tuning *tuning);

void zi_space_close(zi_space *space);

#endif
