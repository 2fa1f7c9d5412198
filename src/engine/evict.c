/* Owns giving memory back between steps: which roles are evicted, what is kept of them, and the
 * order of giving up and taking back. What is kept on disk passes through a window for each role.
 * Invariants: no memory is given up before all that is to be kept is on the other tier. What is
 * there is given up only when it is back. */
#include "zero/evict.h"

#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/arenas.h"
#include "engine/evict.h"
#include "engine/guard.h"
#include "engine/shard.h"
#include "engine/tiers.h"
#include "engine/tracing.h"
#include "zero/option.h"

/* The extents that a role is cut into on disk, and how many of them are moved at once. */
#define EXTENT_BYTES ((uint64_t)4 << 20)
#define EXTENTS_MOVED 4
#define BOUNCE_BYTES (EXTENTS_MOVED * EXTENT_BYTES)

static bool evict_has(uint32_t roles, zero_role role)
{
    return (roles & ZERO_ROLE_BIT(role)) != 0;
}

/* ---- what is legal ---- */

/* Offloaded shards pass through memory of these roles between steps too. */
static zero_status check_offloaded(const zero_engine *engine, uint32_t roles)
{
    const bool grads = evict_has(roles, ZERO_ROLE_GRAD) || evict_has(roles, ZERO_ROLE_GRAD_SLOT);
    if (grads && zi_role_offloaded(engine->layout, ZERO_ROLE_GRAD)) {
        ZI_FAIL(
            ZERO_ERR_UNSUPPORTED,
            "gradients are on the tier %s, so grad and grad slots stay; leave them out of roles",
            zero_tier_name(zi_role_tier(engine->layout, ZERO_ROLE_GRAD)));
    }
    for (int i = 0; i < ZI_OFFLOAD_ROLES && evict_has(roles, ZERO_ROLE_IO_WINDOW); i++) {
        if (engine->windows[i] != NULL) {
            ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                    "%s is on disk and passes through the I/O window; leave it out of roles",
                    zero_role_name((zero_role)i));
        }
    }
    return ZERO_OK;
}

static zero_status check_roles(const zero_engine *engine, uint32_t roles)
{
    char text[96];
    if (roles == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "roles is empty; ZERO_EVICT_ALL is all there are");
    }
    if ((roles & ~ZERO_EVICT_ALL) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "roles 0x%" PRIx32 " has bits that cannot be evicted (0x%" PRIx32 ": %s); "
                "use ZERO_EVICT_ALL or a part of it",
                roles, roles & ~ZERO_EVICT_ALL,
                zi_engine_roles_text(roles & ~ZERO_EVICT_ALL, text, sizeof text));
    }
    ZI_TRY(check_offloaded(engine, roles));
    const bool registered = engine->layout->can.registered;
    if (registered && (evict_has(roles, ZERO_ROLE_GRAD) || evict_has(roles, ZERO_ROLE_GRAD_SLOT))) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "grad and grad slots are registered with %s and stay where they are; leave them "
                "out of roles, or %s",
                engine->backend.transport->name, engine->backend.transport->unregistered);
    }
    return ZERO_OK;
}

static zero_status check_tier(const zero_engine *engine, zero_tier tier)
{
    if (tier != ZERO_TIER_HOST && tier != ZERO_TIER_DISK) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tier %d (%s) is nowhere to evict; use ZERO_TIER_DISK, or on a GPU "
                "ZERO_TIER_HOST",
                (int)tier, zero_tier_name(tier));
    }
    if (tier == ZERO_TIER_HOST && engine->device->ops->host_memory) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tier host would free nothing: the memory of an engine on "
                "the CPU is the host's; use ZERO_TIER_DISK");
    }
    return ZERO_OK;
}

/* ---- what is to be done ---- */

/* List the roles whose memory is given up, and those of them that are kept on `tier`. A role
 * without memory, or on that tier already, stays as it is. */
static void choose_roles(zero_engine *engine, uint32_t roles, zero_tier tier)
{
    engine_evicted *evicted = &engine->evicted;
    evicted->tier = tier;
    for (int i = 0; i < ZERO_ROLE_COUNT_MAX; i++) {
        const zero_role role = (zero_role)i;
        const bool keeps = evict_has(ZERO_EVICT_STATE, role);
        if (!evict_has(roles, role) || engine->arena_bytes[role] == 0 ||
            (keeps && zi_role_tier(engine->layout, role) == tier)) {
            continue;
        }
        evicted->given |= ZERO_ROLE_BIT(role);
        if (keeps) {
            evicted->kept[evicted->kept_count++] = (engine_kept){
                .role = role, .at = evicted->kept_bytes, .bytes = engine->arena_bytes[role]};
            evicted->kept_bytes += engine->arena_bytes[role];
        }
    }
}

/* Block until the step, its reductions and what the I/O window does are over. */
static zero_status evict_drain(zero_engine *engine)
{
    const zi_device *device = engine->device;
    zi_stream *const streams[] = {engine->reduce_stream, engine->step_stream};
    ZI_TRY(zi_engine_flush_shards(engine));
    ZI_TRY(zi_optim_drain(engine->optim));
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        ZI_TRY(device->ops->event_record(device->self, engine->joined[i], streams[i]));
        ZI_TRY(zi_engine_await(engine, engine->joined[i]));
    }
    return ZERO_OK;
}

/* ---- where it is kept ---- */

/* Memory for so many names, of so many bytes together. */
static zero_status take_names(zero_engine *engine, uint32_t count, size_t bytes)
{
    engine->evicted.directory_count = count;
    return zi_calloc(count * sizeof(char *) + bytes, 1, (void **)&engine->evicted.directories);
}

static zero_status keep_list(zero_engine *engine, const zero_engine_options *options)
{
    const uint32_t count = options->disk_directories != NULL ? options->disk_directory_count : 0;
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (options->disk_directories[i] == NULL) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "options.disk_directories[%" PRIu32 "] is NULL", i);
        }
        bytes += strlen(options->disk_directories[i]) + 1;
    }
    ZI_TRY(take_names(engine, count, bytes));
    char *text = (char *)(engine->evicted.directories + count);
    for (uint32_t i = 0; i < count; i++) {
        const size_t length = strlen(options->disk_directories[i]) + 1;
        engine->evicted.directories[i] = memcpy(text, options->disk_directories[i], length);
        text += length;
    }
    return ZERO_OK;
}

/* "/a:/b": names end where the colons are. */
static zero_status keep_path(zero_engine *engine, const char *path)
{
    const uint64_t most = zero_option_find("disk_directory_count")->high;
    uint32_t count = 1;
    for (const char *at = path; *at != '\0'; at++) {
        count += *at == ':';
    }
    if (count > most) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.disk_path \"%.200s\" has %" PRIu32 " directories; give at most %" PRIu64,
                path, count, most);
    }
    const size_t bytes = strlen(path) + 1;
    ZI_TRY(take_names(engine, count, bytes));
    char *text = memcpy(engine->evicted.directories + count, path, bytes);
    for (uint32_t i = 0; i < count; i++) {
        engine->evicted.directories[i] = text;
        text += strcspn(text, ":");
        *text++ = '\0';
        if (engine->evicted.directories[i][0] == '\0') {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "options.disk_path \"%.200s\" has a directory without a name; put one colon "
                    "between two directories, and none at the ends",
                    path);
        }
    }
    return ZERO_OK;
}

zero_status zi_engine_keep_directories(zero_engine *engine, const zero_engine_options *options)
{
    zero_engine_options resolved;
    zero_tuning tuning;
    ZI_TRY(zi_options_resolve(options, &resolved, &tuning));
    return resolved.disk_path != NULL ? keep_path(engine, resolved.disk_path)
                                      : keep_list(engine, &resolved);
}

static zero_status open_store(zero_engine *engine)
{
    engine_evicted *evicted = &engine->evicted;
    const uint64_t bytes = evicted->kept_bytes;
    if (evicted->directory_count == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%" PRIu64 " bytes are to be evicted on disk and options.disk_directories was "
                "empty; create the engine with a directory",
                bytes);
    }
    ZI_TRY(zi_engine_choose_striping(engine, evicted->directories, evicted->directory_count, bytes,
                                     &evicted->striping));
    const zi_store_options options = {.directories = evicted->directories,
                                      .rates = evicted->striping.rates,
                                      .directory_count = evicted->directory_count,
                                      .rank = zero_world_rank(engine->world),
                                      .use = "-evict",
                                      .storage = engine->backend.storage,
                                      .bytes = bytes};
    return zi_store_create(&options, &evicted->store);
}

/* Make the bounce buffers that extents pass through where the disk does not reach the device's
 * memory. */
static zero_status make_bounce_buffers(zero_engine *engine)
{
    const zi_device *device = engine->device;
    return engine->evicted.store != NULL && !device->ops->host_memory
               ? device->ops->host_alloc(device->self, BOUNCE_BYTES,
                                         (void **)&engine->evicted.bounce)
               : ZERO_OK;
}

static void free_bounce_buffers(zero_engine *engine)
{
    engine->device->ops->host_free(engine->device->self, engine->evicted.bounce, BOUNCE_BYTES);
    engine->evicted.bounce = NULL;
}

/* True if the disk reaches the role's memory. */
static bool evict_is_in_place(const zero_engine *engine, zero_role role)
{
    return engine->device->ops->host_memory || zi_role_tier(engine->layout, role) == ZERO_TIER_HOST;
}

static unsigned char *window_memory(const zero_engine *engine, zero_role role)
{
    return evict_is_in_place(engine, role) ? engine->arena[role] : engine->evicted.bounce;
}

/* Cut what is kept of a role into extents, and make the window before them. */
static zero_status evict_make_window(zero_engine *engine, engine_kept *kept)
{
    kept->extent_count = (uint32_t)zi_div_up(kept->bytes, EXTENT_BYTES);
    ZI_TRY(zi_calloc(kept->extent_count, sizeof *kept->extents, (void **)&kept->extents));
    for (uint32_t i = 0; i < kept->extent_count; i++) {
        const uint64_t at = i * EXTENT_BYTES;
        kept->extents[i] =
            (zi_extent){.at = kept->at + at, .bytes = zi_min_u64(EXTENT_BYTES, kept->bytes - at)};
    }
    if (!engine->layout->tuning.disk_unchecked) {
        ZI_TRY(zi_calloc(zi_extent_sum_count(kept->extents, kept->extent_count), sizeof *kept->sums,
                         (void **)&kept->sums));
    }
    const zi_window_desc desc = {.extents = kept->extents,
                                 .extent_count = kept->extent_count,
                                 .buffer_count = EXTENTS_MOVED,
                                 .buffer_bytes = EXTENT_BYTES,
                                 .memory = window_memory(engine, kept->role),
                                 .in_place = evict_is_in_place(engine, kept->role),
                                 .store = engine->evicted.store,
                                 .sums = kept->sums,
                                 .pool = engine->pool,
                                 .layout = engine->layout,
                                 .role = kept->role,
                                 .timeline = engine->timeline};
    return zi_window_create(&desc, &kept->window);
}

/* Reserve the other tier's bytes. */
static zero_status evict_reserve(zero_engine *engine)
{
    engine_evicted *evicted = &engine->evicted;
    const bool disk = evicted->tier == ZERO_TIER_DISK;
    if (evicted->kept_count != 0 && disk) {
        ZI_TRY(open_store(engine));
        ZI_TRY(make_bounce_buffers(engine));
    }
    for (uint32_t i = 0; i < evicted->kept_count; i++) {
        engine_kept *kept = &evicted->kept[i];
        ZI_TRY(disk ? evict_make_window(engine, kept)
                    : zi_pages_alloc(kept->bytes, (void **)&kept->host));
    }
    return ZERO_OK;
}

/* The counter of the bytes that are kept. */
static uint64_t *evict_held_bytes(zero_engine *engine)
{
    return engine->evicted.tier == ZERO_TIER_DISK ? &engine->stats.disk_bytes
                                                  : &engine->stats.host_bytes;
}

/* Give up what is kept, and forget that anything is evicted. The last error stays. */
static void clear(zero_engine *engine)
{
    engine_evicted *evicted = &engine->evicted;
    const zero_error error = *zero_last_error();
    for (uint32_t i = 0; i < evicted->kept_count; i++) {
        engine_kept *kept = &evicted->kept[i];
        zi_window_destroy(kept->window);
        zi_free(kept->extents);
        zi_free(kept->sums);
        if (kept->host != NULL) {
            zi_pages_free(kept->host, kept->bytes);
        }
    }
    free_bounce_buffers(engine);
    zi_store_destroy(evicted->store);
    evicted->store = NULL;
    evicted->roles = 0;
    evicted->given = 0;
    evicted->kept_count = 0;
    evicted->kept_bytes = 0;
    (void)zi_error_adopt(&error);
}

void zi_engine_close_evicted(zero_engine *engine)
{
    if (engine->layout != NULL) {
        clear(engine);
    }
    zi_free(engine->evicted.directories);
}

/* ---- there and back ---- */

/* Copy bytes between memory of the device and of the host; blocks. */
static zero_status evict_copy(const zero_engine *engine, void *target, const void *source,
                              uint64_t bytes)
{
    const zi_device *device = engine->device;
    zi_stream *host = NULL;
    if (target == source) {
        return ZERO_OK; /* an extent in place */
    }
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &host));
    return device->ops->copy(device->self, host, target, source, bytes);
}

/* Move a role to or from its extents. */
static zero_status evict_move_on_disk(zero_engine *engine, const engine_kept *kept, zi_io_kind kind)
{
    const bool back = kind == ZI_IO_READ;
    ZI_TRY(back ? zi_window_walk(kept->window, 0, kept->extent_count - 1) : ZERO_OK);
    for (uint32_t i = 0; i < kept->extent_count; i++) {
        unsigned char *data = engine->arena[kept->role] + i * EXTENT_BYTES;
        unsigned char *extent = NULL;
        ZI_TRY(zi_window_acquire(kept->window, i, back ? ZI_WINDOW_READS : ZI_WINDOW_REPLACES,
                                 &extent));
        ZI_TRY(
            evict_copy(engine, back ? data : extent, back ? extent : data, kept->extents[i].bytes));
        ZI_TRY(zi_window_release(kept->window, i, !back));
    }
    *(back ? &engine->stats.disk_read_bytes : &engine->stats.disk_write_bytes) += kept->bytes;
    return zi_window_flush(kept->window);
}

/* Move all that is kept: ZI_IO_WRITE to the other tier, ZI_IO_READ back. */
static zero_status move_all(zero_engine *engine, zi_io_kind kind)
{
    for (uint32_t i = 0; i < engine->evicted.kept_count; i++) {
        const engine_kept *kept = &engine->evicted.kept[i];
        unsigned char *data = engine->arena[kept->role];
        if (kept->window != NULL) {
            ZI_TRY(evict_move_on_disk(engine, kept, kind));
        } else {
            ZI_TRY(kind == ZI_IO_WRITE ? evict_copy(engine, kept->host, data, kept->bytes)
                                       : evict_copy(engine, data, kept->host, kept->bytes));
        }
    }
    return ZERO_OK;
}

/* ---- the memory ---- */

/* True if the I/O window of state on disk is evicted too. */
static bool evicts_window(const zero_engine *engine)
{
    return engine->windows[ZERO_ROLE_MASTER] != NULL &&
           evict_has(engine->evicted.given, ZERO_ROLE_IO_WINDOW);
}

/* Give up all memory of the evicted roles that is held, and what their bytes pass through. */
static zero_status give_all(zero_engine *engine)
{
    for (uint32_t i = 0; i < engine->evicted.kept_count; i++) {
        if (engine->evicted.kept[i].window != NULL) {
            zi_window_suspend(engine->evicted.kept[i].window);
        }
    }
    if (evicts_window(engine)) {
        zi_window_suspend(engine->windows[ZERO_ROLE_MASTER]);
    }
    free_bounce_buffers(engine);
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (evict_has(engine->evicted.given, (zero_role)role) && engine->arena_bytes[role] != 0) {
            ZI_TRY(zi_engine_give_arena(engine, (zero_role)role));
        }
    }
    return ZERO_OK;
}

/* Take it again. What a failure leaves taken, give_all gives up. */
static zero_status take_all(zero_engine *engine)
{
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (evict_has(engine->evicted.given, (zero_role)role) && engine->arena_bytes[role] == 0) {
            ZI_TRY(zi_engine_take_arena(engine, (zero_role)role));
        }
    }
    ZI_TRY(make_bounce_buffers(engine));
    for (uint32_t i = 0; i < engine->evicted.kept_count; i++) {
        const engine_kept *kept = &engine->evicted.kept[i];
        if (kept->window != NULL) {
            ZI_TRY(zi_window_resume(kept->window, window_memory(engine, kept->role)));
        }
    }
    if (evicts_window(engine)) {
        ZI_TRY(zi_window_resume(engine->windows[ZERO_ROLE_MASTER],
                                engine->arena[ZERO_ROLE_IO_WINDOW]));
    }
    zi_engine_rebind(engine);
    return ZERO_OK;
}

/* ---- the calls ---- */

static zero_status check_evict(const zero_engine *engine, uint32_t roles, zero_tier tier)
{
    ZI_TRY(check_roles(engine, roles));
    ZI_TRY(check_tier(engine, tier));
    return zi_engine_admit(engine, ZI_CALL_EVICT, "zero_engine_evict");
}

static zero_status evict(zero_engine *engine, uint32_t roles, zero_tier tier)
{
    ZI_TRY(check_evict(engine, roles, tier));
    ZI_TRY(zi_engine_finish(engine, evict_drain(engine)));
    engine_evicted *evicted = &engine->evicted;
    choose_roles(engine, roles, tier);
    zero_status status = evict_reserve(engine);
    status = status == ZERO_OK ? move_all(engine, ZI_IO_WRITE) : status;
    if (status != ZERO_OK) {
        clear(engine); /* the engine has all it had */
        return status;
    }
    *evict_held_bytes(engine) += evicted->kept_bytes;
    evicted->roles = roles;
    evicted->grads_lost = evicted->grads_lost || evict_has(evicted->given, ZERO_ROLE_GRAD);
    engine->has_graph = false; /* it holds addresses */
    ZI_TRY(zi_engine_leave(engine, ZI_CALL_EVICT, give_all(engine)));
    zi_log(ZERO_LOG_INFO, "rank %" PRIu32 ": roles evicted, %" PRIu64 " bytes kept on the tier %s",
           zero_world_rank(engine->world), evicted->kept_bytes, zero_tier_name(tier));
    return ZERO_OK;
}

zero_status zero_engine_evict(zero_engine *engine, uint32_t roles, zero_tier tier)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_EVICT);
    zi_engine_span_begin(engine, ZI_SPAN_EVICT, "");
    return zi_engine_span_end(engine, evict(engine, roles, tier));
}

static zero_status restore(zero_engine *engine)
{
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_RESTORE, "zero_engine_restore"));
    zero_status status = take_all(engine);
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        (void)give_all(engine); /* all is still evicted */
        return zi_error_adopt(&error);
    }
    status = zi_engine_leave(engine, ZI_CALL_RESTORE, move_all(engine, ZI_IO_READ));
    *evict_held_bytes(engine) -= engine->evicted.kept_bytes;
    clear(engine);
    return status;
}

zero_status zero_engine_restore(zero_engine *engine)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_RESTORE);
    zi_engine_span_begin(engine, ZI_SPAN_RESTORE, "");
    return zi_engine_span_end(engine, restore(engine));
}
