/* Owns the comparison of plans with the memory of hosts and cgroups, before any of it is taken: the
 * kernel says nothing when memory is promised and kills when it is used. Invariant: all ranks of a
 * world come to the same answer, since each looks at the pools of all. */
#include "engine/host_room.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "core/sizes.h"
#include "engine/agree.h"

/* The message that ranks exchange. */
typedef struct room_message {
    uint64_t count;
    zi_pool_need needs[ZI_MEMORY_POOLS];
} room_message;

_Static_assert(sizeof(room_message) <= 32 * sizeof(uint64_t), "engine->agreement has 32 a rank");
_Static_assert(offsetof(zi_host_room, pools) == sizeof(room_message), "begins as the message");

/* Bytes of the host's memory that the plan takes on this rank. */
static uint64_t planned_bytes(const zi_layout *layout)
{
    const uint64_t *tiers = layout->memory.tier_bytes;
    return tiers[ZERO_TIER_HOST] + (layout->can.host_memory ? tiers[ZERO_TIER_DEVICE] : 0);
}

zi_host_room *zi_engine_find_room(const zero_engine *engine, zi_host_room *room)
{
    const uint64_t bytes = planned_bytes(engine->layout);
    memset(room, 0, sizeof *room);
    if (bytes == 0 || engine->layout->tuning.host_overcommit != 0) {
        return room;
    }
    room->count = zi_memory_pools("", room->pools);
    for (uint64_t i = 0; i < room->count; i++) {
        const zi_memory_pool *pool = &room->pools[i];
        room->needs[i] =
            (zi_pool_need){.id = pool->id,
                           .room = pool->limit > pool->used ? pool->limit - pool->used : 0,
                           .bytes = bytes};
    }
    return room;
}

/* Add up what all ranks want of the pool `id`, and find the least room that one of them reads. */
static zi_pool_need host_room_add_up(const room_message *all, uint32_t size, uint64_t id)
{
    zi_pool_need sum = {.id = id, .room = UINT64_MAX};
    for (uint32_t rank = 0; rank < size; rank++) {
        for (uint64_t i = 0; i < all[rank].count; i++) {
            const zi_pool_need *need = &all[rank].needs[i];
            if (need->id == id) {
                sum.room = zi_min_u64(sum.room, need->room);
                sum.bytes += need->bytes;
            }
        }
    }
    return sum;
}

static zero_status host_room_refuse(const zi_pool_need *need, const zi_memory_pool *pool)
{
    ZI_FAIL(ZERO_ERR_OUT_OF_MEMORY,
            "the plans of this host's ranks take %" PRIu64 " bytes: short by %" PRIu64
            "; %s allows %" PRIu64 ", %" PRIu64
            " in use; use more hosts, put roles on disk, or set tuning.host_overcommit",
            need->bytes, need->bytes - need->room, pool->source, pool->limit,
            pool->limit - zi_min_u64(pool->limit, need->room));
}

zero_status zi_engine_check_room(const zero_engine *engine, zero_world *world, zi_host_room *room)
{
    const uint32_t size = zero_world_size(world);
    const room_message *all = (const room_message *)(const void *)engine->agreement;
    if (world == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(zi_world_gather(world, room, engine->agreement, sizeof(room_message)));
    for (uint64_t i = 0; i < room->count; i++) {
        room->needs[i] = host_room_add_up(all, size, room->needs[i].id);
        if (room->needs[i].bytes > room->needs[i].room) {
            return host_room_refuse(&room->needs[i], &room->pools[i]);
        }
    }
    for (uint32_t rank = 0; rank < size; rank++) {
        for (uint64_t i = 0; i < all[rank].count; i++) {
            const zi_pool_need need = host_room_add_up(all, size, all[rank].needs[i].id);
            if (need.bytes > need.room) {
                ZI_FAIL(ZERO_ERR_OUT_OF_MEMORY,
                        "the host of rank %" PRIu32 ", or its container, is short of %" PRIu64
                        " bytes for the plans of its ranks; their own error names the limit",
                        rank, need.bytes - need.room);
            }
        }
    }
    return ZERO_OK;
}
