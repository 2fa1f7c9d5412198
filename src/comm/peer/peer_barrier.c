/* Owns how the members of a group wait for one another within a batch: fences between their
 * streams, patience, and the words for those that are late. Invariant: fences take turns, so none
 * is marked again before all have followed it. */
#include <stdio.h>

#include "comm/peer/peer_group.h"
#include "core/error.h"

/* Looks at the generation before sleeping; about as long as a futex call takes. With more ranks
 * than CPUs the one waited for needs this CPU: it gets it a few times without a sleep, which is
 * faster than to be woken. */
#define SPINS 400
#define SPINS_CROWDED 20
#define YIELDS_CROWDED 10

/* "rank 3" or "ranks 3, 5, 6 and 4 more". */
static const char *ranks_text(const zi_peer_group *group, uint32_t count, char *text,
                              size_t text_bytes)
{
    const uint32_t named = count < 6 ? count : 6;
    size_t used = (size_t)snprintf(text, text_bytes, "rank%s ", count > 1 ? "s" : "");
    for (uint32_t i = 0; i < named && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, i == 0 ? "%u" : ", %u",
                                 group->members[group->missing[i]]);
    }
    if (count > named && used < text_bytes) {
        (void)snprintf(text + used, text_bytes - used, " and %u more", count - named);
    }
    return text;
}

/* What this rank has put on its stream so far, others will find done. Fences take turns, so that
 * one is marked again only after a meeting between at which all have followed it. */
static zero_status mark(const zi_peer_batch *batch, uint32_t turn)
{
    const zi_peer_group *group = batch->group;
    const zi_device *device = group->base.kernels->device;
    if (!group->space->one_address_space) {
        return device->ops->drain(device->self, batch->stream);
    }
    return group->fences[turn] != NULL
               ? device->ops->fence_mark(device->self, group->fences[turn], batch->stream)
               : ZERO_OK;
}

/* What this rank puts on its stream from here on, the others' streams are ready for. */
static zero_status follow(const zi_peer_batch *batch, uint32_t turn)
{
    const zi_peer_group *group = batch->group;
    const zi_device *device = group->base.kernels->device;
    for (uint32_t i = 0; i < group->base.size && group->fences[turn] != NULL; i++) {
        const zi_fence *fence = group->block->slots[i].fences[turn];
        if (i != group->base.rank) {
            ZI_TRY(device->ops->fence_follow(device->self, batch->stream, fence));
        }
    }
    return ZERO_OK;
}

static const char *batch_text(const zi_peer_batch *batch, char text[ZI_COLLECTIVE_TEXT_BYTES])
{
    return batch->count != 0
               ? zi_collective_text(&batch->collectives[0], text, ZI_COLLECTIVE_TEXT_BYTES)
               : "an empty batch";
}

static void look(const void *user)
{
    const zi_peer_batch *batch = user;
    const zi_peer_space *space = batch->group->space;
    char text[ZI_COLLECTIVE_TEXT_BYTES];
    char what[ZI_COLLECTIVE_TEXT_BYTES + 40];
    (void)snprintf(what, sizeof what, "%s (group %s)", batch_text(batch, text),
                   batch->group->base.name);
    space->look(space->look_owner, what);
}

zero_status zi_peer_barrier(const zi_peer_batch *batch, const char *doing)
{
    zi_peer_group *group = batch->group;
    const uint32_t turn = group->barriers++ % 2;
    ZI_TRY(mark(batch, turn));
    group->patience.spins = *group->crowded ? SPINS_CROWDED : SPINS;
    group->patience.yields = *group->crowded ? YIELDS_CROWDED : 0;
    switch (zi_peer_block_arrive(group->block, group->base.rank, &group->patience,
                                 group->deadline_ms, group->space->look != NULL ? look : NULL,
                                 batch)) {
    case ZI_PEER_ARRIVED:
        return follow(batch, turn);
    case ZI_PEER_FAILED:
        return zi_peer_block_error(group->block);
    case ZI_PEER_LATE:
        break;
    }
    char who[64];
    char what[ZI_COLLECTIVE_TEXT_BYTES];
    const uint32_t count = zi_peer_block_missing(group->block, group->base.rank, group->missing);
    ZI_FAIL(ZERO_TIMEOUT, "%s did not %s %s (group %s, a batch of %u) within %u ms",
            ranks_text(group, count, who, sizeof who), doing, batch_text(batch, what),
            group->base.name, batch->count, group->deadline_ms);
}
