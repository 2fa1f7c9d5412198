/* Owns how the members of a group wait for one another within a batch: fences between their
 * streams, spins and yields, and the error for members that are late. Invariant: barriers alternate
 * between two fences, so that a fence is marked again only after all have followed it. */
#include <stdio.h>

#include "comm/peer/peer_group.h"
#include "core/error.h"

/* How often the generation is read before sleeping, which takes about as long as a futex call. With
 * more ranks than CPUs the awaited member needs this CPU. Yielding it a few times is faster than to
 * sleep and be woken. */
#define SPINS 400
#define SPINS_CROWDED 20
#define YIELDS_CROWDED 10

/* Mark what this rank has put on its stream so far, for the others to follow. */
static zero_status peer_barrier_mark(const zi_peer_batch *batch, uint32_t parity)
{
    const zi_peer_group *group = batch->group;
    const zi_device *device = group->base.kernels->device;
    if (!group->space->one_address_space) {
        return device->ops->drain(device->self, batch->stream);
    }
    return group->fences[parity] != NULL
               ? device->ops->fence_mark(device->self, group->fences[parity], batch->stream)
               : ZERO_OK;
}

/* Let what this rank puts on its stream from now on run after the marks of the others. */
static zero_status peer_barrier_follow(const zi_peer_batch *batch, uint32_t parity)
{
    const zi_peer_group *group = batch->group;
    const zi_device *device = group->base.kernels->device;
    for (uint32_t i = 0; i < group->base.size && group->fences[parity] != NULL; i++) {
        const zi_fence *fence = group->block->member[i].fences[parity];
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

static void peer_barrier_poll(const void *user)
{
    const zi_peer_batch *batch = user;
    const zi_peer_space *space = batch->group->space;
    char text[ZI_COLLECTIVE_TEXT_BYTES];
    char what[ZI_COLLECTIVE_TEXT_BYTES + 40];
    (void)snprintf(what, sizeof what, "%s (group %s)", batch_text(batch, text),
                   batch->group->base.name);
    space->poll(space->poll_owner, what);
}

/* The calls that this rank and the first that is late are in, or were last. */
static const char *calls_text(const zi_peer_group *group, uint32_t late, char *text,
                              size_t text_bytes)
{
    const zi_peer_space *space = group->space;
    text[0] = '\0';
    if (space->call_of != NULL) {
        const uint32_t own = zi_call_get(space->call_of(space->call_owner, space->world_rank));
        const uint32_t other = zi_call_get(space->call_of(space->call_owner, late));
        (void)snprintf(text, text_bytes, "; last calls: rank %u %s, rank %u %s", space->world_rank,
                       zi_public_call_text(own), late, zi_public_call_text(other));
    }
    return text;
}

zero_status zi_peer_barrier(const zi_peer_batch *batch, const char *doing)
{
    zi_peer_group *group = batch->group;
    const uint32_t parity = group->barriers++ % 2;
    ZI_TRY(peer_barrier_mark(batch, parity));
    group->patience.spins = *group->crowded ? SPINS_CROWDED : SPINS;
    group->patience.yields = *group->crowded ? YIELDS_CROWDED : 0;
    switch (zi_peer_block_arrive(group->block, group->base.rank, &group->patience,
                                 group->deadline_ms,
                                 group->space->poll != NULL ? peer_barrier_poll : NULL, batch)) {
    case ZI_PEER_ARRIVED:
        return peer_barrier_follow(batch, parity);
    case ZI_PEER_FAILED:
        return zi_peer_block_error(group->block);
    case ZI_PEER_LATE:
        break;
    }
    char who[64];
    char what[ZI_COLLECTIVE_TEXT_BYTES];
    const uint32_t count = zi_peer_block_missing(group->block, group->base.rank, group->missing);
    for (uint32_t i = 0; i < count; i++) {
        group->missing[i] = group->members[group->missing[i]];
    }
    char silent[ZI_SILENCE_TEXT_BYTES];
    char calls[112];
    (void)zi_silence_text(group->space->silence, silent, sizeof silent);
    ZI_FAIL(ZERO_ERR_TIMEOUT, "%s did not %s %s (group %s, a batch of %u) within %u ms%s",
            zi_ranks_text(group->missing, count, who, sizeof who), doing, batch_text(batch, what),
            group->base.name, batch->count, group->deadline_ms,
            silent[0] != '\0' ? silent : calls_text(group, group->missing[0], calls, sizeof calls));
}
