/* Owns giving memory back between steps: which roles are evicted, what is kept of them on another
 * tier, and the way there and back. Invariants: no memory is given up before all that is to be kept
 * is on the other tier; what is there is given up only when it is back. */
#include "zero/evict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/arenas.h"
#include "engine/evict.h"
#include "engine/guard.h"
#include "engine/shard.h"
#include "engine/tiers.h"

/* What one transfer moves, and how many are under way. */
#define CHUNK_BYTES ((uint64_t)4 << 20)
#define CHUNKS 4
/* Checksums of a chunk, wherever it is. */
#define CHUNK_SUMS (CHUNK_BYTES / ZI_CHECKSUM_BYTES + 1)

/* The queue of one call, and where chunks wait that the disk does not reach. */
typedef struct mover {
    zero_engine *engine;
    zi_stream *host;
    zi_io *queue;
    unsigned char *room; /* CHUNKS of them; NULL where all arenas are the host's */
    zi_io_op ops[CHUNKS];
} mover;

static bool has(uint32_t roles, zero_role role)
{
    return (roles & ZERO_ROLE_BIT(role)) != 0;
}

static uint64_t bytes_of(const zero_engine *engine, zero_role role)
{
    return engine->layout->memory.bytes[role];
}

/* ---- what is legal ---- */

/* Offloaded shards pass through memory of these roles between steps too. */
static zero_status check_offloaded(const zero_engine *engine, uint32_t roles)
{
    const bool grads = has(roles, ZERO_ROLE_GRAD) || has(roles, ZERO_ROLE_GRAD_SLOT);
    if (grads && zi_role_offloaded(engine->layout, ZERO_ROLE_GRAD)) {
        ZI_FAIL(
            ZERO_UNSUPPORTED,
            "gradients are on the tier %s, so grad and grad slots stay; leave them out of roles",
            zero_tier_name(zi_role_tier(engine->layout, ZERO_ROLE_GRAD)));
    }
    for (int i = 0; i < ZI_OFFLOAD_ROLES && has(roles, ZERO_ROLE_IO_WINDOW); i++) {
        if (engine->offload[i] != NULL && zi_offload_window(engine->offload[i]) != NULL) {
            ZI_FAIL(ZERO_UNSUPPORTED,
                    "%s is on disk and passes through the I/O window; leave it out of roles",
                    zero_role_name((zero_role)i));
        }
    }
    return ZERO_OK;
}

static zero_status check_roles(const zero_engine *engine, uint32_t roles)
{
    char text[96];
    const uint32_t known = UINT32_MAX >> (32 - ZERO_ROLE_COUNT);
    if (roles == 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "roles is empty; ZERO_EVICT_ALL is all there are");
    }
    if ((roles & ~ZERO_EVICT_ALL) != 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "roles 0x%" PRIx32 " has bits that cannot be evicted (0x%" PRIx32 ": %s); "
                "use ZERO_EVICT_ALL or a part of it",
                roles, roles & ~ZERO_EVICT_ALL,
                zi_engine_roles_text(roles & ~ZERO_EVICT_ALL & known, text, sizeof text));
    }
    ZI_TRY(check_offloaded(engine, roles));
    const bool registered = engine->layout->can.registration != ZI_REGISTER_NONE;
    if (registered && (has(roles, ZERO_ROLE_GRAD) || has(roles, ZERO_ROLE_GRAD_SLOT))) {
        ZI_FAIL(ZERO_UNSUPPORTED,
                "grad and grad slots are registered with %s and stay where they are; leave them "
                "out of roles, or %s",
                engine->backend.transport->name, engine->backend.transport->unregistered);
    }
    return ZERO_OK;
}

static zero_status check_tier(const zero_engine *engine, zero_tier tier)
{
    if (tier != ZERO_TIER_HOST && tier != ZERO_TIER_DISK) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "tier %d (%s) is nowhere to evict; use ZERO_TIER_DISK, or on a GPU "
                "ZERO_TIER_HOST",
                (int)tier, zero_tier_name(tier));
    }
    if (tier == ZERO_TIER_HOST && engine->device->ops->host_memory) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tier host would free nothing: the memory of an engine on "
                                       "the CPU is the host's; use ZERO_TIER_DISK");
    }
    return ZERO_OK;
}

/* ---- what is to be done ---- */

/* Of the roles, those whose bytes are kept on `tier`: they have some, and not there already. */
static uint32_t kept_of(const zero_engine *engine, uint32_t roles, zero_tier tier)
{
    uint32_t evicted = 0;
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        if (has(roles, (zero_role)role) && engine->arena_bytes[role] != 0 &&
            zi_role_tier(engine->layout, (zero_role)role) != tier) {
            evicted |= ZERO_ROLE_BIT(role);
        }
    }
    return evicted;
}

/* Of the roles, those whose memory is given up besides. */
static uint32_t dropped_of(const zero_engine *engine, uint32_t roles)
{
    uint32_t dropped = 0;
    for (int role = 0; role < ZERO_ROLE_COUNT; role++) {
        if (has(roles & ~ZERO_EVICT_STATE, (zero_role)role) && engine->arena_bytes[role] != 0) {
            dropped |= ZERO_ROLE_BIT(role);
        }
    }
    return dropped;
}

/* Bytes of all roles that are kept before this one, or of all of them: ZERO_ROLE_COUNT. */
static uint64_t kept_before(const zero_engine *engine, int end)
{
    uint64_t bytes = 0;
    for (int role = 0; role < end; role++) {
        bytes += has(engine->evicted.kept, (zero_role)role) ? bytes_of(engine, (zero_role)role) : 0;
    }
    return bytes;
}

/* The same in chunks. */
static uint64_t chunks_before(const zero_engine *engine, int end)
{
    uint64_t count = 0;
    for (int role = 0; role < end; role++) {
        count += has(engine->evicted.kept, (zero_role)role)
                     ? zi_div_up(bytes_of(engine, (zero_role)role), CHUNK_BYTES)
                     : 0;
    }
    return count;
}

/* The step, its reductions and all the I/O window does are over. */
static zero_status settle(zero_engine *engine)
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

/* ---- to disk and back ---- */

/* Whether the disk reaches a role's arena. */
static bool is_reached(const zero_engine *engine, zero_role role)
{
    return engine->device->ops->host_memory || zi_role_tier(engine->layout, role) == ZERO_TIER_HOST;
}

static void close_mover(mover *m)
{
    const zi_device *device = m->engine->device;
    zi_io_destroy(m->queue);
    device->ops->host_free(device->self, m->room, CHUNKS * CHUNK_BYTES);
}

static zero_status open_mover(zero_engine *engine, mover *m)
{
    const zi_device *device = engine->device;
    const zi_io_options options = {.store = engine->evicted.store};
    *m = (mover){.engine = engine};
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &m->host));
    if (engine->evicted.store == NULL) {
        return ZERO_OK;
    }
    if (!device->ops->host_memory) {
        ZI_TRY(device->ops->host_alloc(device->self, CHUNKS * CHUNK_BYTES, (void **)&m->room));
    }
    const zero_status status = zi_io_create(&options, &m->queue);
    if (status != ZERO_OK) {
        close_mover(m);
    }
    return status;
}

/* One chunk of a role: where it is in memory, and its operation. */
typedef struct chunk {
    zi_io_op *op;
    unsigned char *data;   /* in the arena */
    unsigned char *memory; /* that the disk reaches: the same, or the room */
    uint64_t bytes;
    uint64_t *sums; /* NULL: none */
} chunk;

static chunk chunk_of(mover *m, zero_role role, uint64_t index)
{
    chunk c = {.op = &m->ops[index % CHUNKS],
               .data = m->engine->arena[role] + index * CHUNK_BYTES,
               .bytes = zi_min_u64(CHUNK_BYTES, bytes_of(m->engine, role) - index * CHUNK_BYTES)};
    const bool reached = is_reached(m->engine, role);
    c.memory = reached ? c.data : m->room + index % CHUNKS * CHUNK_BYTES;
    if (m->engine->evicted.sums != NULL) {
        c.sums =
            m->engine->evicted.sums + (chunks_before(m->engine, (int)role) + index) * CHUNK_SUMS;
    }
    return c;
}

static zero_status copy_chunk(mover *m, const chunk *c, zi_io_kind kind)
{
    const zi_device *device = m->engine->device;
    if (c->memory == c->data) {
        return ZERO_OK;
    }
    return kind == ZI_IO_WRITE
               ? device->ops->copy(device->self, m->host, c->memory, c->data, c->bytes)
               : device->ops->copy(device->self, m->host, c->data, c->memory, c->bytes);
}

static zero_status start_chunk(mover *m, zero_role role, uint64_t index, zi_io_kind kind)
{
    const chunk c = chunk_of(m, role, index);
    ZI_TRY(kind == ZI_IO_WRITE ? copy_chunk(m, &c, kind) : ZERO_OK);
    *c.op = (zi_io_op){.kind = kind,
                       .memory = c.memory,
                       .offset = kept_before(m->engine, (int)role) + index * CHUNK_BYTES,
                       .bytes = c.bytes};
    if (kind == ZI_IO_WRITE && c.sums != NULL) {
        const zi_checksum_span extent = {c.memory, c.op->offset, c.bytes};
        zi_checksum_make(m->engine->pool, &extent, c.sums);
    }
    return zi_io_start(m->queue, c.op);
}

/* Compare what was read with its checksums. */
static zero_status check_chunk(const mover *m, const chunk *c, zero_role role)
{
    const zero_engine *engine = m->engine;
    const zi_checksum_span extent = {c->memory, c->op->offset, c->bytes};
    zi_checksum_span bad;
    char what[120];
    if (c->sums == NULL || !zi_checksum_differs(engine->pool, &extent, c->sums, &bad)) {
        return ZERO_OK;
    }
    zi_layout_name_bytes(engine->layout, role, ZI_NO_INDEX, bad.at - kept_before(engine, (int)role),
                         bad.bytes, what, sizeof what);
    return zi_store_damaged(engine->evicted.store, bad.at, bad.bytes, what);
}

static zero_status finish_chunk(mover *m, zero_role role, uint64_t index, zi_io_kind kind)
{
    const chunk c = chunk_of(m, role, index);
    ZI_TRY(zi_io_wait(m->queue, c.op));
    if (kind == ZI_IO_WRITE) {
        return ZERO_OK;
    }
    ZI_TRY(check_chunk(m, &c, role));
    return copy_chunk(m, &c, kind);
}

static zero_status move_on_disk(mover *m, zero_role role, zi_io_kind kind)
{
    zero_stats *stats = &m->engine->stats;
    const uint64_t bytes = bytes_of(m->engine, role);
    const uint64_t count = zi_div_up(bytes, CHUNK_BYTES);
    for (uint64_t i = 0; i < count + CHUNKS; i++) {
        if (i >= CHUNKS && i - CHUNKS < count) {
            ZI_TRY(finish_chunk(m, role, i - CHUNKS, kind));
        }
        ZI_TRY(i < count ? start_chunk(m, role, i, kind) : ZERO_OK);
    }
    *(kind == ZI_IO_READ ? &stats->disk_read_bytes : &stats->disk_write_bytes) += bytes;
    return ZERO_OK;
}

static zero_status move_on_host(mover *m, zero_role role, zi_io_kind kind)
{
    const zi_device *device = m->engine->device;
    unsigned char *data = m->engine->arena[role];
    unsigned char *kept = m->engine->evicted.host[role - ZERO_ROLE_MASTER];
    return kind == ZI_IO_WRITE
               ? device->ops->copy(device->self, m->host, kept, data, bytes_of(m->engine, role))
               : device->ops->copy(device->self, m->host, data, kept, bytes_of(m->engine, role));
}

/* All that is kept: ZI_IO_WRITE takes it to the other tier, ZI_IO_READ brings it back. */
static zero_status move_all(mover *m, zi_io_kind kind)
{
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        if (has(m->engine->evicted.kept, (zero_role)role)) {
            ZI_TRY(m->queue != NULL ? move_on_disk(m, (zero_role)role, kind)
                                    : move_on_host(m, (zero_role)role, kind));
        }
    }
    return ZERO_OK;
}

/* ---- where it is kept ---- */

zero_status zi_engine_keep_directories(zero_engine *engine, const zero_engine_options *options)
{
    zero_engine_options resolved;
    zero_tuning tuning;
    ZI_TRY(zi_options_resolve(options, &resolved, &tuning));
    const uint32_t count = resolved.disk_directories != NULL ? resolved.disk_directory_count : 0;
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (resolved.disk_directories[i] == NULL) {
            ZI_FAIL(ZERO_INVALID_ARGUMENT, "options.disk_directories[%" PRIu32 "] is NULL", i);
        }
        bytes += strlen(resolved.disk_directories[i]) + 1;
    }
    ZI_TRY(zi_calloc(count * sizeof(char *) + bytes, 1, (void **)&engine->evicted.directories));
    engine->evicted.directory_count = count;
    engine->evicted.striping = engine->striping;
    char *text = (char *)(engine->evicted.directories + count);
    for (uint32_t i = 0; i < count; i++) {
        const size_t length = strlen(resolved.disk_directories[i]) + 1;
        engine->evicted.directories[i] = memcpy(text, resolved.disk_directories[i], length);
        text += length;
    }
    return ZERO_OK;
}

static zero_status open_store(zero_engine *engine, uint64_t bytes)
{
    engine_evicted *evicted = &engine->evicted;
    if (evicted->directory_count == 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
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
    if (!engine->layout->tuning.disk_unchecked) {
        const uint64_t chunks = chunks_before(engine, ZERO_ROLE_COUNT);
        ZI_TRY(zi_calloc(chunks * CHUNK_SUMS, sizeof *evicted->sums, (void **)&evicted->sums));
    }
    ZI_TRY(zi_store_create(&options, &evicted->store));
    engine->stats.disk_bytes += bytes;
    return ZERO_OK;
}

static zero_status open_host(zero_engine *engine)
{
    engine_evicted *evicted = &engine->evicted;
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        const uint64_t bytes = bytes_of(engine, (zero_role)role);
        if (has(evicted->kept, (zero_role)role)) {
            ZI_TRY(zi_pages_alloc(bytes, (void **)&evicted->host[role - ZERO_ROLE_MASTER]));
            engine->stats.host_bytes += bytes;
        }
    }
    return ZERO_OK;
}

/* Give up what is kept, and forget that anything is evicted. */
static void clear(zero_engine *engine)
{
    engine_evicted *evicted = &engine->evicted;
    for (int state = 0; state < ZI_STATES; state++) {
        const uint64_t bytes = bytes_of(engine, (zero_role)(ZERO_ROLE_MASTER + state));
        if (evicted->host[state] != NULL) {
            zi_pages_free(evicted->host[state], bytes);
            engine->stats.host_bytes -= bytes;
            evicted->host[state] = NULL;
        }
    }
    if (evicted->store != NULL) {
        engine->stats.disk_bytes -= zi_store_bytes(evicted->store);
        zi_store_destroy(evicted->store);
        evicted->store = NULL;
    }
    zi_free(evicted->sums);
    evicted->sums = NULL;
    evicted->roles = 0;
    evicted->kept = 0;
    evicted->given = 0;
}

void zi_engine_close_evicted(zero_engine *engine)
{
    if (engine->layout != NULL) {
        clear(engine);
    }
    zi_free(engine->evicted.directories);
}

/* ---- the memory ---- */

static zero_status give(zero_engine *engine, zero_role role)
{
    if (role == ZERO_ROLE_IO_WINDOW) {
        zi_window_suspend(engine->window);
    }
    return zi_engine_give_arena(engine, role);
}

static zero_status take(zero_engine *engine, zero_role role)
{
    ZI_TRY(zi_engine_take_arena(engine, role));
    const zero_status status =
        role == ZERO_ROLE_IO_WINDOW
            ? zi_window_resume(engine->window, engine->arena[ZERO_ROLE_IO_WINDOW])
            : ZERO_OK;
    if (status != ZERO_OK) {
        ZI_TRY(zi_engine_give_arena(engine, role)); /* the I/O window is suspended still */
    }
    return status;
}

static zero_status give_all(zero_engine *engine)
{
    for (int role = 0; role < ZERO_ROLE_COUNT; role++) {
        ZI_TRY(has(engine->evicted.given, (zero_role)role) ? give(engine, (zero_role)role)
                                                           : ZERO_OK);
    }
    return ZERO_OK;
}

/* Of the roles that were given up, those below `end`, again. */
static void give_taken(zero_engine *engine, int end)
{
    const zero_error error = *zero_last_error();
    for (int role = 0; role < end; role++) {
        if (has(engine->evicted.given, (zero_role)role)) {
            (void)give(engine, (zero_role)role);
        }
    }
    (void)zi_error_adopt(&error);
}

static zero_status take_all(zero_engine *engine)
{
    for (int role = 0; role < ZERO_ROLE_COUNT; role++) {
        const zero_status status =
            has(engine->evicted.given, (zero_role)role) ? take(engine, (zero_role)role) : ZERO_OK;
        if (status != ZERO_OK) {
            give_taken(engine, role);
            return status;
        }
    }
    return ZERO_OK;
}

/* ---- the calls ---- */

/* Copy all that is to be kept to the other tier. */
static zero_status evict_all(zero_engine *engine)
{
    const uint64_t bytes = kept_before(engine, ZERO_ROLE_COUNT);
    mover m;
    if (bytes == 0) {
        return ZERO_OK;
    }
    ZI_TRY(engine->evicted.tier == ZERO_TIER_DISK ? open_store(engine, bytes) : open_host(engine));
    ZI_TRY(open_mover(engine, &m));
    const zero_status status = move_all(&m, ZI_IO_WRITE);
    close_mover(&m);
    return status;
}

static zero_status check_evict(const zero_engine *engine, uint32_t roles, zero_tier tier)
{
    ZI_TRY(check_roles(engine, roles));
    ZI_TRY(check_tier(engine, tier));
    return zi_engine_admit(engine, ZI_CALL_EVICT, "zero_engine_evict");
}

zero_status zero_engine_evict(zero_engine *engine, uint32_t roles, zero_tier tier)
{
    ZI_TRY(zi_engine_check(engine));
    ZI_TRY(check_evict(engine, roles, tier));
    ZI_TRY(zi_engine_finish(engine, settle(engine)));
    engine_evicted *evicted = &engine->evicted;
    evicted->tier = tier;
    evicted->kept = kept_of(engine, roles, tier);
    evicted->given = evicted->kept | dropped_of(engine, roles);
    const zero_status status = evict_all(engine);
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        clear(engine); /* the engine has all it had */
        return zi_error_adopt(&error);
    }
    evicted->roles = roles;
    evicted->grads_lost = evicted->grads_lost || has(evicted->given, ZERO_ROLE_GRAD);
    engine->has_graph = false; /* it holds addresses */
    ZI_TRY(zi_engine_leave(engine, ZI_CALL_EVICT, give_all(engine)));
    zi_log(ZERO_LOG_INFO, "rank %" PRIu32 ": roles evicted, %" PRIu64 " bytes kept on the tier %s",
           zero_world_rank(engine->world), kept_before(engine, ZERO_ROLE_COUNT),
           zero_tier_name(tier));
    return ZERO_OK;
}

/* Take all memory and whatever moves the bytes; on failure none of it. */
static zero_status begin_restore(zero_engine *engine, mover *m)
{
    ZI_TRY(open_mover(engine, m));
    zero_status status = take_all(engine);
    if (status == ZERO_OK) {
        status = zi_engine_rebind(engine);
        if (status != ZERO_OK) {
            give_taken(engine, ZERO_ROLE_COUNT);
        }
    }
    if (status != ZERO_OK) {
        close_mover(m);
    }
    return status;
}

zero_status zero_engine_restore(zero_engine *engine)
{
    mover m;
    ZI_TRY(zi_engine_check(engine));
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_RESTORE, "zero_engine_restore"));
    ZI_TRY(begin_restore(engine, &m)); /* else all is still evicted */
    const zero_status moved = move_all(&m, ZI_IO_READ);
    close_mover(&m);
    ZI_TRY(zi_engine_leave(engine, ZI_CALL_RESTORE, moved));
    clear(engine);
    return ZERO_OK;
}
