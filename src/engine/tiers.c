/* Owns what of an engine's state is not on the device: the store on disk and the ring before it,
 * and the counts of all tiers. */
#include <inttypes.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/engine_internal.h"
#include "zero/path.h"

zero_status zi_engine_open_store(zero_engine *engine, const zero_engine_options *caller_options)
{
    const zi_layout *layout = engine->layout;
    zero_engine_options options; /* the plan's have no directories */
    if (layout->range_count == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_options_resolve(caller_options, &options));
    if (options.disk_directories == NULL || options.disk_directory_count == 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.disk_directories is %p and disk_directory_count %" PRIu32
                "; a role on disk needs at least one directory",
                (const void *)options.disk_directories, options.disk_directory_count);
    }
    const zi_store_options store = {.directories = options.disk_directories,
                                    .rates = options.disk_weights,
                                    .directory_count = options.disk_directory_count,
                                    .rank = zero_world_rank(engine->world),
                                    .bytes = layout->memory.tier_bytes[ZERO_TIER_DISK]};
    ZI_TRY(zi_store_create(&store, &engine->store));
    engine->stats.disk_bytes = zi_store_bytes(engine->store);
    const zi_ring_desc ring = {.ranges = layout->ranges,
                               .range_count = layout->range_count,
                               .slot_count = layout->ring_slots,
                               .slot_bytes = layout->record_bytes_max,
                               .memory = engine->arena[ZERO_ROLE_RING],
                               .io_depth = options.io_depth,
                               .store = engine->store};
    ZI_TRY(zi_ring_create(&ring, &engine->ring));
    zi_log(ZERO_LOG_INFO,
           "rank %" PRIu32 ": %" PRIu64 " bytes of state in %" PRIu32 " directories, %" PRIu32
           " ranges, %" PRIu32 " of them in memory; reached by %s",
           store.rank, store.bytes, store.directory_count, ring.range_count, ring.slot_count,
           zero_engine_disk_path(engine).text);
    return ZERO_OK;
}

void zi_engine_close_store(zero_engine *engine)
{
    zi_ring_destroy(engine->ring);
    zi_store_destroy(engine->store);
}

bool zi_engine_steps_down(const zero_engine *engine)
{
    /* Filling goes up, so the first step goes down. */
    return engine->ring != NULL && engine->plain_steps % 2 == 0;
}

zero_stats zero_engine_stats(const zero_engine *engine)
{
    zero_stats stats = engine->stats;
    stats.taken_ns = zi_clock_ns();
    stats.update_ns = zi_optim_update_ns(engine->optim);
    stats.host_update_elements = zi_optim_host_elements(engine->optim);
    if (engine->ring != NULL) {
        const zi_ring_counts counts = zi_ring_count(engine->ring);
        stats.disk_read_bytes += counts.read_bytes; /* on top of what was parked */
        stats.disk_write_bytes += counts.write_bytes;
        stats.disk_read_hits = counts.hits;
        stats.disk_read_wait_ns = counts.read_wait_ns;
        stats.disk_write_wait_ns = counts.write_wait_ns;
    }
    return stats;
}

zero_memory zero_engine_memory(const zero_engine *engine)
{
    zero_memory memory = {0};
    for (int role = 0; role < ZERO_ROLE_COUNT; role++) {
        const zero_tier tier = zi_role_tier(engine->layout, (zero_role)role);
        const bool disk = tier == ZERO_TIER_DISK;
        /* The store is reserved as a whole, so a role's share of it is what was planned. */
        memory.bytes[role] = disk ? engine->layout->memory.bytes[role] : engine->arena_bytes[role];
        memory.tier_bytes[tier] += disk ? 0 : engine->arena_bytes[role];
    }
    memory.tier_bytes[ZERO_TIER_DISK] = engine->store != NULL ? zi_store_bytes(engine->store) : 0;
    zi_engine_add_parked(engine, &memory);
    for (int tier = 0; tier < ZERO_TIER_COUNT; tier++) {
        memory.total_bytes += memory.tier_bytes[tier];
    }
    return memory;
}
