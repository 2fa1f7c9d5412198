/* Owns the roles that are not on the device: the store on disk, its windows, and the counts of all
 * tiers. */
#include <inttypes.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/failure.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sized.h"
#include "engine/guard.h"
#include "engine/tiers.h"
#include "zero/evict.h"
#include "zero/path.h"

zero_status zi_engine_choose_striping(const zero_engine *engine, const char *const *directories,
                                      uint32_t directory_count, uint64_t bytes,
                                      engine_striping *striping)
{
    const zi_rate_options rate = {.directories = directories,
                                  .directory_count = directory_count,
                                  .rank = zero_world_rank(engine->world)};
    zi_rates rates;
    if (striping->by != ENGINE_STRIPED_EQUALLY) {
        return ZERO_OK;
    }
    if (engine->backend.storage != NULL) {
        for (uint32_t i = 0; i < directory_count; i++) {
            striping->rates[i] = 1; /* an injected storage is not measured */
        }
        return ZERO_OK;
    }
    ZI_TRY(zi_rate_choose(&rate, bytes, &rates));
    memcpy(striping->rates, rates.rate, sizeof striping->rates);
    striping->by = rates.measured ? ENGINE_STRIPED_AS_MEASURED : ENGINE_STRIPED_EQUALLY;
    return ZERO_OK;
}

static void take_weights(engine_striping *striping, const zero_engine_options *options)
{
    if (options->tuning->disk_weights != NULL) {
        striping->by = ENGINE_STRIPED_AS_GIVEN;
        for (uint32_t i = 0; i < options->disk_directory_count; i++) {
            striping->rates[i] = options->tuning->disk_weights[i];
        }
    }
}

/* The window of a role's extents, or of all states'. */
static zero_status tiers_make_window(zero_engine *engine, zero_role role)
{
    const zi_layout *layout = engine->layout;
    const bool state = zi_role_is_state(role);
    const zi_offload_place *place = state ? &layout->state : &layout->offload[role];
    if (place->window_buffers == 0) {
        return ZERO_OK;
    }
    const zi_window_desc window = {.extents = place->extents,
                                   .extent_count = place->extent_count,
                                   .buffer_count = place->window_buffers,
                                   .buffer_bytes = place->extent_bytes_max,
                                   .memory = engine->arena[ZERO_ROLE_IO_WINDOW] + place->window_at,
                                   .io_depth = layout->tuning.io_depth,
                                   .shared = !state,
                                   .speculative_at = state ? layout->speculative_at : 0,
                                   .store = engine->store,
                                   .sums =
                                       engine->sums != NULL ? engine->sums + place->sums_at : NULL,
                                   .pool = engine->pool,
                                   .layout = layout,
                                   .role = state ? ZERO_ROLE_IO_WINDOW : role,
                                   .timeline = engine->timeline};
    return zi_window_create(&window, &engine->windows[role]);
}

/* Of the stream's thread: see zi_shards_desc. */
static void tell_others(void *user, const zero_error *error)
{
    zero_engine *engine = user;
    const zi_failure failure = zi_failure_of_all(error);
    (void)zi_failure_set(&engine->found,
                         &failure); /* first: what comes of the abort is known by it */
    zi_engine_abort(engine, error);
}

void zi_engine_bind_shards(zero_engine *engine)
{
    for (int i = 0; i < ZI_SHARD_ROLES; i++) {
        const zero_role role = (zero_role)i;
        const bool disk = zi_role_tier(engine->layout, role) == ZERO_TIER_DISK;
        const int window = zi_role_is_state(role) ? ZERO_ROLE_MASTER : i;
        zi_shards_make(&engine->shards[role],
                       &(zi_shards_desc){.layout = engine->layout,
                                         .role = role,
                                         .device = engine->device,
                                         .kernels = &engine->kernels,
                                         .host_kernels = zi_engine_host_kernels(engine),
                                         .arena = engine->arena[role],
                                         .window = disk ? engine->windows[window] : NULL,
                                         .failed = tell_others,
                                         .user = engine});
    }
}

/* Reserve the bytes of all roles on disk. */
static zero_status make_store(zero_engine *engine, const zero_engine_options *caller_options)
{
    const zi_layout *layout = engine->layout;
    zero_engine_options options; /* the plan's have no directories */
    zero_tuning tuning;
    ZI_TRY(zi_options_resolve(caller_options, &options, &tuning));
    take_weights(&engine->striping, &options);
    if (layout->disk_bytes == 0) {
        return ZERO_OK;
    }
    if (engine->evicted.directory_count == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.disk_directories is %s; a role on disk needs at least one directory",
                options.disk_directories == NULL ? "NULL" : "empty, disk_directory_count is 0");
    }
    const uint64_t bytes = layout->memory.tier_bytes[ZERO_TIER_DISK];
    const char *const *directories = engine->evicted.directories;
    ZI_TRY(zi_engine_choose_striping(engine, directories, engine->evicted.directory_count, bytes,
                                     &engine->striping));
    const zi_store_options store = {.directories = directories,
                                    .rates = engine->striping.rates,
                                    .directory_count = engine->evicted.directory_count,
                                    .rank = zero_world_rank(engine->world),
                                    .bytes = bytes,
                                    .storage = engine->backend.storage};
    ZI_TRY(zi_store_create(&store, &engine->store));
    engine->stats.disk_bytes = zi_store_bytes(engine->store);
    if (layout->sums_bytes != 0) {
        ZI_TRY(zi_pages_alloc(layout->sums_bytes, (void **)&engine->sums));
        engine->stats.host_bytes += layout->sums_bytes;
    }
    return ZERO_OK;
}

zero_status zi_engine_open_store(zero_engine *engine, const zero_engine_options *caller_options)
{
    ZI_TRY(make_store(engine, caller_options));
    engine->evicted.striping = engine->striping;
    for (int role = 0; role < ENGINE_WINDOWS; role++) {
        ZI_TRY(tiers_make_window(engine, (zero_role)role));
    }
    if (engine->store != NULL) {
        zero_disk_path path = zero_disk_path_init();
        ZI_TRY(zero_engine_disk_path(engine, &path));
        zi_log(ZERO_LOG_INFO,
               "rank %" PRIu32 ": %" PRIu64 " bytes on disk, %" PRIu32 " extents of state, "
               "%" PRIu32 " of them in memory; reached by %s; striped %s",
               zero_world_rank(engine->world), zi_store_bytes(engine->store),
               engine->layout->state.extent_count, engine->layout->state.window_buffers, path.text,
               path.striped);
    }
    return ZERO_OK;
}

zi_stream *zi_engine_role_stream(const zero_engine *engine, zero_role role)
{
    return role == ZERO_ROLE_PARAM  ? engine->gather_stream
           : role == ZERO_ROLE_GRAD ? engine->reduce_stream
                                    : engine->step_stream;
}

void zi_engine_close_store(zero_engine *engine)
{
    for (int i = 0; i < ENGINE_WINDOWS; i++) {
        zi_window_destroy(engine->windows[i]);
    }
    if (engine->sums != NULL) {
        zi_pages_free(engine->sums, engine->layout->sums_bytes);
    }
    zi_store_destroy(engine->store);
}

bool zi_engine_steps_down(const zero_engine *engine)
{
    if (engine->layout->speculative_at != 0) {
        return false; /* speculative updates follow backward, from the last unit to the first */
    }
    if (engine->windows[ZERO_ROLE_MASTER] != NULL) {
        /* Initial values are written in ascending order, so the first step descends. */
        return engine->plain_steps % 2 == 0;
    }
    /* A descending update leaves in the window of parameters what the next forward needs first. */
    return engine->layout->offload[ZERO_ROLE_PARAM].window_buffers != 0;
}

static void add_counts(zero_stats *stats, const zi_window *window)
{
    if (window == NULL) {
        return;
    }
    const zi_window_counts counts = zi_window_count(window);
    stats->disk_read_bytes += counts.read_bytes; /* in addition to what evictions moved */
    stats->disk_write_bytes += counts.write_bytes;
    stats->disk_read_hits += counts.hits;
    stats->disk_read_wait_ns += counts.read_wait_ns;
    stats->disk_write_wait_ns += counts.write_wait_ns;
    stats->disk_check_ns += counts.check_ns;
}

zero_status zero_engine_stats(const zero_engine *engine, zero_stats *out)
{
    ZI_TRY(zi_engine_check_given(engine));
    zero_stats stats = engine->stats;
    stats.taken_ns = zi_clock_ns();
    stats.update_ns = zi_optim_update_ns(engine->optim);
    stats.host_update_elements = zi_optim_host_elements(engine->optim);
    stats.steps_speculative = zi_optim_kept(engine->optim);
    stats.steps_redone = zi_optim_redone(engine->optim);
    for (int i = 0; i < ENGINE_WINDOWS; i++) {
        add_counts(&stats, engine->windows[i]);
    }
    return ZI_SIZED_OUT(zero_stats, out, &stats);
}

/* Add the evicted roles that are kept on another tier. */
static void add_evicted(const zero_engine *engine, zero_memory *memory)
{
    const engine_evicted *evicted = &engine->evicted;
    for (uint32_t i = 0; i < evicted->kept_count; i++) {
        memory->bytes[evicted->kept[i].role] += evicted->kept[i].bytes;
        memory->tier_bytes[evicted->tier] += evicted->kept[i].bytes;
    }
}

zero_status zero_engine_memory(const zero_engine *engine, zero_memory *out)
{
    ZI_TRY(zi_engine_check_given(engine));
    zero_memory memory = {0};
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const zero_tier tier = zi_role_tier(engine->layout, (zero_role)role);
        const bool disk = tier == ZERO_TIER_DISK;
        /* The store is reserved as a whole, so a role's bytes on disk are the planned ones. */
        memory.bytes[role] = disk ? engine->layout->memory.bytes[role] : engine->arena_bytes[role];
        memory.tier_bytes[tier] += disk ? 0 : engine->arena_bytes[role];
    }
    const uint64_t sums_bytes = engine->sums != NULL ? engine->layout->sums_bytes : 0;
    memory.bytes[ZERO_ROLE_IO_WINDOW] += sums_bytes;
    memory.tier_bytes[ZERO_TIER_HOST] += sums_bytes;
    memory.tier_bytes[ZERO_TIER_DISK] = engine->store != NULL ? zi_store_bytes(engine->store) : 0;
    add_evicted(engine, &memory);
    for (int tier = 0; tier < ZERO_TIER_COUNT; tier++) {
        memory.total_bytes += memory.tier_bytes[tier];
    }
    return ZI_SIZED_OUT(zero_memory, out, &memory);
}
