/* Owns which pages of state on disk share blocks of the file system with the checkpoint that they
 * are loaded from, instead of being written. A table has, by extent, the elements that lie in a
 * file of the checkpoint as they do in the extent. Values are read, compared with their sums and
 * put into the I/O window as always; the window asks here when it writes an extent.
 *
 * Invariant: a page is shared only once all its values in the window are the file's, so that what
 * the window's checksums are made of is what the store holds. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/load.h"

/* Elements of a tensor that lie alike in an extent and in a file: whole pages of both. */
typedef struct load_twin {
    uint32_t extent;
    uint64_t at; /* bytes of the extent before them */
    uint64_t bytes;
    uint32_t tensor; /* the engine's */
    zero_role role;
    uint64_t first; /* element of the tensor */
    zi_codec codec;
    zi_source_range saved; /* the same elements */
    uint64_t counted;      /* bytes of the extent before this one are in shared_bytes */
} load_twin;

/* Those of one window, in the order of the store. */
typedef struct twin_table {
    engine_load *load;
    load_twin *twins; /* NULL while they are counted */
    uint64_t count;
    zi_io_source source;
} twin_table;

typedef struct load_share {
    twin_table state;
    twin_table param;
    load_range filled; /* the last range, as far as it was; count 0: none was */
    bool begun;
    bool refused; /* by the file system */
} load_share;

/* ---- the table ---- */

/* Add elements of the shard, from `first` on and so many at most, that are together in an extent
 * and in a saved box. Returns how many these were, twins or not. */
static uint64_t add_twin(twin_table *table, uint32_t tensor, const engine_shard *shard,
                         uint64_t first, uint64_t count)
{
    const engine_load *load = table->load;
    const zi_checkpoint_map *map = load->source->map;
    const zi_codec codec = shard->codec;
    load_source source;
    const zi_joined joined =
        zi_load_joined(load, tensor, load->found[tensor], shard->role, &source);
    const engine_extent extent = zi_engine_shard_extent(load->engine, shard, first);
    zi_source_range saved = zi_joined_find(&joined, shard->tensor_first + first);
    const uint64_t together = zi_min_u64(zi_min_u64(count, extent.count), saved.count);
    const uint64_t at = zi_align_up(extent.at, ZI_CHECKPOINT_ALIGN);
    const uint64_t lead = zi_codec_elements(codec, at - extent.at);
    const uint64_t pages = zi_codec_bytes(codec, together - zi_min_u64(together, lead)) /
                           ZI_CHECKPOINT_ALIGN * ZI_CHECKPOINT_ALIGN;
    const zi_checkpoint_tensor *there = &map->tensors[saved.tensor];
    const bool alike =
        !zi_load_from(there, &source).widened &&
        zi_codec_same(zi_saved_codec(there, saved.role), codec) &&
        extent.at % ZI_CHECKPOINT_ALIGN == zi_source_page_offset(load->source, &saved);
    if (pages >= SHARED_BYTES_MIN && alike) {
        if (table->twins != NULL) {
            saved.first += lead;
            table->twins[table->count] = (load_twin){.extent = extent.index,
                                                     .at = at,
                                                     .bytes = pages,
                                                     .tensor = tensor,
                                                     .role = shard->role,
                                                     .first = shard->tensor_first + first + lead,
                                                     .codec = codec,
                                                     .saved = saved,
                                                     .counted = at};
        }
        table->count++;
    }
    return together;
}

/* Add all of a role that is on disk and is loaded. */
static void add_role(twin_table *table, zero_role role)
{
    const engine_load *load = table->load;
    for (uint32_t t = 0; t < load->engine->layout->tensor_count; t++) {
        const engine_shard shard = zi_engine_shard(load->engine, t, role);
        const bool loaded =
            load->found[t] != ZI_NO_INDEX && zi_load_dtype(load, t, role) != ZERO_DTYPE_NONE;
        for (uint64_t at = 0; loaded && shard.tier == ZERO_TIER_DISK && at < shard.count;) {
            at += add_twin(table, t, &shard, at, shard.count - at);
        }
    }
}

static int by_place(const void *left, const void *right)
{
    const load_twin *a = left;
    const load_twin *b = right;
    if (a->extent != b->extent) {
        return a->extent < b->extent ? -1 : 1;
    }
    return a->at < b->at ? -1 : a->at > b->at;
}

static zero_status fill_table(twin_table *table, zero_role first, zero_role last)
{
    for (int role = (int)first; role <= (int)last; role++) {
        add_role(table, (zero_role)role);
    }
    ZI_TRY(zi_calloc(zi_max_u64(table->count, 1), sizeof *table->twins, (void **)&table->twins));
    table->count = 0;
    for (int role = (int)first; role <= (int)last; role++) {
        add_role(table, (zero_role)role);
    }
    qsort(table->twins, table->count, sizeof *table->twins, by_place);
    return ZERO_OK;
}

/* ---- what the windows ask ---- */

/* Elements of the tensor before this one have been filled in, or its role is not loaded: see
 * find_next of load_feed.c. */
static uint64_t filled_end(const load_share *share, const load_twin *twin)
{
    const load_range *last = &share->filled;
    if (last->count == 0 || twin->tensor != last->tensor) {
        return last->count != 0 && twin->tensor < last->tensor ? UINT64_MAX : 0;
    }
    const uint64_t end = last->first + last->count;
    const uint64_t stride = (end - 1) / LOAD_STRIDE * LOAD_STRIDE;
    return twin->role == last->role ? end : twin->role < last->role ? stride + LOAD_STRIDE : stride;
}

/* The twin that has byte `at` of the extent, or the one behind it; NULL: there is none in it. */
static load_twin *find_twin(const twin_table *table, uint32_t extent, uint64_t at)
{
    uint64_t low = 0;
    uint64_t high = table->count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const load_twin *twin = &table->twins[middle];
        if (twin->extent < extent || (twin->extent == extent && twin->at + twin->bytes <= at)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < table->count && table->twins[low].extent == extent ? &table->twins[low] : NULL;
}

/* Share so many bytes of a piece that its twin has; false: the file system refuses. */
static bool share_bytes(const twin_table *table, load_twin *twin, const zi_io_piece *piece,
                        uint64_t bytes)
{
    engine_load *load = table->load;
    zi_source_range range = twin->saved;
    range.first += zi_codec_elements(twin->codec, piece->at - twin->at);
    range.count = zi_codec_elements(twin->codec, bytes);
    if (!zi_source_share(load->source, &range, piece->fd, piece->offset)) {
        zi_log(ZERO_LOG_WARN, "checkpoint: state on disk is written, not shared (%s): %s",
               strerror(errno), load->source->name);
        load->share->refused = true;
        return false;
    }
    const uint64_t end = piece->at + bytes;
    const uint64_t from = zi_max_u64(piece->at, twin->counted); /* extents may be written again */
    load->report.shared_bytes += end > from ? end - from : 0;
    twin->counted = zi_max_u64(twin->counted, end);
    return true;
}

static zi_io_shared load_share_share(void *user, const zi_io_piece *piece)
{
    const twin_table *table = user;
    const load_share *shares = table->load->share;
    load_twin *twin = find_twin(table, piece->extent, piece->at);
    if (twin == NULL || shares->refused || twin->at >= piece->at + piece->bytes) {
        return (zi_io_shared){.bytes = piece->bytes};
    }
    if (twin->at > piece->at) {
        return (zi_io_shared){.bytes = twin->at - piece->at};
    }
    const uint64_t filled = zi_max_u64(filled_end(shares, twin), twin->first) - twin->first;
    const uint64_t there = zi_codec_bytes(
        twin->codec, zi_min_u64(filled, zi_codec_elements(twin->codec, twin->bytes)));
    const uint64_t end = twin->at + there / ZI_CHECKPOINT_ALIGN * ZI_CHECKPOINT_ALIGN;
    const uint64_t bytes = zi_min_u64(piece->bytes, zi_max_u64(end, piece->at) - piece->at);
    if (bytes >= SHARED_BYTES_MIN && share_bytes(table, twin, piece, bytes)) {
        return (zi_io_shared){.bytes = bytes, .shared = true};
    }
    return (zi_io_shared){.bytes = zi_min_u64(piece->bytes, twin->at + twin->bytes - piece->at)};
}

/* ---- the load ---- */

zero_status zi_load_open_share(engine_load *load)
{
    if (load->options.reflink == 0 || load->engine->store == NULL ||
        load->source->ops->share == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(zi_calloc(1, sizeof *load->share, (void **)&load->share));
    twin_table *state = &load->share->state;
    twin_table *param = &load->share->param;
    *state = (twin_table){.load = load, .source = {load_share_share, state}};
    *param = (twin_table){.load = load, .source = {load_share_share, param}};
    ZI_TRY(fill_table(state, ZERO_ROLE_MASTER, ZI_SHARD_ROLES - 1));
    return fill_table(param, ZERO_ROLE_PARAM, ZERO_ROLE_PARAM);
}

zero_status zi_load_begin_share(engine_load *load)
{
    if (load->share == NULL) {
        return ZERO_OK;
    }
    load->share->begun = true;
    return zi_engine_shard_set_sources(load->engine, &load->share->state.source,
                                       &load->share->param.source);
}

void zi_load_filled(engine_load *load, const load_range *range, uint64_t count)
{
    if (load->share != NULL) {
        load->share->filled = *range;
        load->share->filled.count = count;
    }
}

void zi_load_close_share(engine_load *load)
{
    const zero_error error = *zero_last_error();
    load_share *shares = load->share;
    if (shares == NULL) {
        return;
    }
    if (shares->begun) { /* the load fails where this does */
        (void)zi_engine_shard_set_sources(load->engine, NULL, NULL);
        (void)zi_error_adopt(&error);
    }
    zi_free(shares->state.twins);
    zi_free(shares->param.twins);
    zi_free(shares);
    load->share = NULL;
}
