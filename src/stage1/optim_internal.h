/* State shared by the two halves of the optimizer shard: what is updated (optim.c) and how
 * (update.c). */
#ifndef ZI_STAGE1_OPTIM_INTERNAL_H
#define ZI_STAGE1_OPTIM_INTERNAL_H

#include <stdatomic.h>

#include "stage1/optim.h"
#include "stage1/share.h"
#include "stage1/staging.h"

struct zi_optim {
    zi_optim_desc desc;
    const zi_layout *layout;
    zi_optim_flat *flats;
    zi_update_job *jobs; /* by piece */
    zi_stream *host;     /* of the host's kernels on records */
    /* Where the layout has rooms. */
    zi_segment *segments; /* the jobs', in host memory: piece p's from segment_first[p] on */
    size_t *segment_first;
    zi_staging *staging;
    zi_stream *cpu_stream; /* the CPU's, where it shares a step with the GPU; else NULL */
    zi_share *share;       /* likewise */
    uint64_t shared_steps;
    zi_collective *publishes; /* by flat */
    bool down;                /* the step under way goes from the last unit to the first */
    bool begun;               /* and its first unit is enqueued */
    atomic_uint_fast64_t update_ns;
    atomic_uint_fast64_t host_elements;
};

/* A piece's state in one role: `record` holds what is on disk. */
void *zi_optim_piece_state(const zi_optim *optim, const zi_piece *piece, zero_role role,
                           unsigned char *record);
/* Let a job work on a record; NULL: what it has in arenas. */
void zi_optim_point_job(const zi_optim *optim, uint32_t p, unsigned char *record);
/* Whether the CPU updates the piece of an engine on a GPU, and the GPU never does. */
bool zi_optim_is_staged(const zi_optim *optim, uint32_t p);

#endif
