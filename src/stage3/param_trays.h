/* Where an update finds this rank's parameters when they are far: trays, each with room for one
 * unit's shard. Units of an update take them in turn, so that one is worked on while what comes
 * next is loaded and what was before is stored. Where parameters are not far these calls do nothing
 * and the update works on the shard.
 *
 *   gather stream    load c       store b       load d      store c
 *   step stream           update b      update c       update d
 *
 * Events, per tray:
 *   moved     recorded on the gather stream, after the tray was filled or what was in it stored;
 *             awaited by the step stream, before it works on the tray
 *   updated   recorded on the step stream, after update and publish;
 *             awaited by the gather stream, before it stores
 *
 * An update that begins before its step is decided reads parameters, where it does, without a tray:
 *   shown     one; recorded on the gather stream, after what was read was copied;
 *             awaited by the step stream, before the update */
#ifndef ZI_STAGE3_PARAM_TRAYS_H
#define ZI_STAGE3_PARAM_TRAYS_H

#include "device/device.h"
#include "layout/layout.h"
#include "offload/shelf.h"

typedef struct zi_param_trays zi_param_trays;

typedef struct zi_param_trays_desc {
    const zi_layout *layout;
    const zi_device *device;
    zi_stream *gather_stream; /* the shelf's */
    zi_stream *step_stream;
    unsigned char *shards; /* arena of ZERO_ROLE_PARAM; NULL: they are far */
    unsigned char *slots;  /* arena of ZERO_ROLE_PARAM_SLOT */
    zi_shelf *shelf;       /* NULL: they are not far */
    const int *skip;       /* on disk: in host memory, whether the step under way changes nothing */
} zi_param_trays_desc;

zero_status zi_param_trays_create(const zi_param_trays_desc *desc, zi_param_trays **out);
void zi_param_trays_destroy(
    zi_param_trays *trays); /* accepts NULL; both streams are idle or gone */

/* This rank's shard of a flat where it is updated; the same in every step. */
unsigned char *zi_param_trays_shard(const zi_param_trays *trays, uint32_t flat);

/* For each unit of a step, in rising or falling order. Each enqueues. */
/* Fill the unit's tray where its update reads it. What had the tray is put back. */
zero_status zi_param_trays_bring(zi_param_trays *trays, uint32_t unit, bool down);
/* The step stream goes on once the unit may be updated. */
zero_status zi_param_trays_lend(zi_param_trays *trays, uint32_t unit);
/* Store what the step stream has updated so far. */
zero_status zi_param_trays_put_back(zi_param_trays *trays, uint32_t unit);
/* Copy bytes of a flat's shard, where that is far, from `at` on to host memory; the step stream
 * goes on once they are there. Between steps and before a step's first unit. */
zero_status zi_param_trays_show(zi_param_trays *trays, uint32_t flat, uint64_t at, uint64_t bytes,
                                void *memory);
/* The step stream goes on once all is stored, in host memory or the ring. */
zero_status zi_param_trays_settle(zi_param_trays *trays);

#endif
