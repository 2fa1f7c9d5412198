/* The order of acquires: declared by the model, then corrected by what really happens.
 *
 * It is the order in which gathers are enqueued, so it must be the same on all ranks even if one of
 * them leaves units out: a rank walks over every entry between its last acquire and the next, and
 * takes part in their gathers. What the schedule did not foresee is inserted where it happened.
 * Entries whose use has moved elsewhere are pruned when the ranks agree to. Pure bookkeeping: no
 * memory, streams or ranks in here. */
#ifndef ZI_STAGE3_SCHEDULE_H
#define ZI_STAGE3_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/table.h"
#include "layout/layout.h"
#include "zero/unit.h"

typedef struct zi_schedule_entry {
    uint32_t unit;
    uint32_t via; /* the unit that was asked for: `unit` itself, or one that ties to it */
    uint8_t pass;
    uint8_t used;  /* acquired here, or by a rank that told us, since the last pruning */
    uint8_t moved; /* scratch of pruning */
} zi_schedule_entry;

typedef struct zi_schedule {
    zi_schedule_entry *entries;
    uint32_t count;
    uint32_t capacity;
    uint32_t position; /* next entry to walk over */
    zi_table used;     /* scratch of pruning: uses that some entry is marked for */
} zi_schedule;

/* Passes in their declared order: forward through the units as described, backward in reverse; each
 * unit after those it ties to. `passes` ends with 0. */
zero_status zi_schedule_create(const zi_layout *layout, const zero_pass *passes,
                               zi_schedule *schedule);
void zi_schedule_destroy(zi_schedule *schedule);

/* Back to the declared order. */
void zi_schedule_reset(zi_schedule *schedule, const zi_layout *layout, const zero_pass *passes);

/* Index of the next entry like `wanted` (unit, via, pass) from the position on, or ZI_NO_INDEX. */
uint32_t zi_schedule_find(const zi_schedule *schedule, zi_schedule_entry wanted);

/* Insert an entry at the position; false when the schedule is full (it then stays unforeseen). */
bool zi_schedule_insert(zi_schedule *schedule, zi_schedule_entry entry);

/* Drop the entries that are not marked as used while another one for the same use is, and forget
 * the marks. A use that nobody made keeps its entries: one rank alone may make it later. */
void zi_schedule_prune(zi_schedule *schedule);

#endif
