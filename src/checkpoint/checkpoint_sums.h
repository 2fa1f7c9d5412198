/* The sums of the pieces that one rank writes of a checkpoint, made by several threads from blocks
 * that come in any order, and written once all have come. */
#ifndef ZI_CHECKPOINT_CHECKPOINT_SUMS_H
#define ZI_CHECKPOINT_CHECKPOINT_SUMS_H

#include "checkpoint/checkpoint_map.h"
#include "zero/status.h"

/* Elements of a tensor that one rank writes; they begin and end at cuts. */
typedef struct zi_checkpoint_slice {
    uint64_t first;
    uint64_t count; /* 0: none */
} zi_checkpoint_slice;

typedef struct zi_checkpoint_sums zi_checkpoint_sums;

/* Sums of 0 for the pieces of all roles.
 * - map: borrowed; its pieces may move until the first call of zi_checkpoint_sums_next.
 * - own: by tensor of the map; copied.
 * - Errors: OUT_OF_MEMORY. */
zero_status zi_checkpoint_sums_create(const zi_checkpoint_map *map, const zi_checkpoint_slice *own,
                                      zi_checkpoint_sums **out);
/* Accepts NULL. */
void zi_checkpoint_sums_destroy(zi_checkpoint_sums *sums);

/* Add elements [first, first + count) of a tensor in a role, which are the rank's own, to the sums
 * of their pieces. first: a multiple of 256. Each element is added once. Any threads. */
void zi_checkpoint_sums_add(zi_checkpoint_sums *sums, zero_role role, uint32_t tensor,
                            uint64_t first, uint64_t count, const unsigned char *elements);

/* Sums that are neighbours in the file, as they are written there. */
typedef struct zi_checkpoint_sum_range {
    zero_role role; /* these two say where the next range begins: 0 at first */
    uint32_t tensor;
    uint64_t first; /* counted over all of the checkpoint */
    uint64_t count;
    const uint64_t *values; /* little-endian */
} zi_checkpoint_sum_range;

/* The next range; false: there are no more. Nothing is added any more. */
bool zi_checkpoint_sums_next(const zi_checkpoint_sums *sums, zi_checkpoint_sum_range *range);

#endif
