/* Owns the cutting of optimizer shards into chunks, and of their state on disk into extents.
 * Invariant: a flat's chunks tile its part in order, an extent's chunks are neighbours, and no
 * extent is longer than extent_bytes. Equal neighbours are kept as one range, so the time that a
 * plan takes depends on the number of flats and not on their sizes. */
#include <inttypes.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/layout.h"

/* The cut so far. */
typedef struct cutter {
    zi_layout *layout;
    uint64_t chunk_count;
    uint64_t extent_count;
    uint64_t used_bytes; /* of the last extent */
} cutter;

/* How one state lies in an extent; none where it is not on disk. */
static zi_codec disk_codec(const zi_layout *layout, const zi_flat *flat, uint32_t state)
{
    const zero_role role = zi_state_role(state);
    return zi_role_tier(layout, role) == ZERO_TIER_DISK ? flat->kept[role] : (zi_codec){0};
}

/* The bytes of `count` elements of the flat in an extent. */
static uint64_t state_bytes(const zi_layout *layout, const zi_flat *flat, uint64_t count)
{
    uint64_t bytes = 0;
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        bytes += zi_codec_padded_bytes(disk_codec(layout, flat, state), count);
    }
    return bytes;
}

/* The most elements of the flat, in whole granules, whose states fit in `room` bytes. */
static uint64_t count_within(const zi_layout *layout, const zi_flat *flat, uint64_t room)
{
    uint64_t granule = 0; /* bytes without padding: that of one is not that of many */
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        granule += zi_codec_bytes(disk_codec(layout, flat, state), ZI_GRANULE);
    }
    uint64_t count = room / granule * ZI_GRANULE;
    while (count != 0 && state_bytes(layout, flat, count) > room) {
        count -= ZI_GRANULE;
    }
    return count;
}

/* True if a GPU updates state that is in host memory in part or as a whole. */
static bool stages_state(const zi_layout *layout)
{
    bool host = false;
    bool disk = false;
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        const zero_tier tier = zi_role_tier(layout, zi_state_role(state));
        host = host || tier == ZERO_TIER_HOST;
        disk = disk || tier == ZERO_TIER_DISK; /* the CPU updates that */
    }
    return host && !disk && !layout->can.host_memory && layout->tuning.updater < ZERO_UPDATER_CPU;
}

/* Elements of a chunk that passes through a buffer and whose state is not on disk: as many as an
 * extent would have. */
static uint64_t bounce_count(const zi_layout *layout)
{
    const zi_codec widest = {.dtype = ZERO_DTYPE_F32};
    return zi_max_u64(
        zi_codec_count_within(widest, layout->tuning.extent_bytes / ZI_ELEMENT_STATES), ZI_GRANULE);
}

/* As many of `left` elements as fit in `room` bytes of an extent of the state, and in one extent of
 * each other role; all when none of them is on disk. */
static uint64_t fitting(const zi_layout *layout, const zi_flat *flat, uint64_t left, uint64_t room)
{
    const uint64_t granule = state_bytes(layout, flat, ZI_GRANULE);
    left = zi_min_u64(left, zi_extent_count_max(layout, flat));
    if (granule == 0) {
        const bool passes = layout->tuning.updater >= ZERO_UPDATER_CPU || stages_state(layout);
        return passes ? zi_min_u64(left, bounce_count(layout)) : left;
    }
    return zi_min_u64(left, count_within(layout, flat, room));
}

/* Ranges of a flat, at most: what fills the open extent, which may be three chunks where an extent
 * of gradients is shorter, whole extents, and the rest, which may be as many. */
#define RANGES_OF_FLAT 8

/* So many extents, of which so many bytes are used, are complete. */
static void close_extents(cutter *cut, uint64_t extents, uint64_t used_bytes)
{
    zi_layout *layout = cut->layout;
    if (extents == 0 || used_bytes == 0) {
        return;
    }
    const uint64_t bytes = zi_offload_add_extents(&layout->state, extents, used_bytes) / extents;
    const uint32_t last = layout->state_range_count;
    if (last == 0 || layout->state_ranges[last - 1].bytes != bytes) {
        layout->state_ranges[layout->state_range_count++] = (zi_extent_range){.bytes = bytes};
    }
    layout->state_ranges[layout->state_range_count - 1].extents += extents;
}

/* As many equal chunks of `left` elements as can follow one another. What fills a new extent leaves
 * no room in it for a granule more, or is the longest chunk there is; the next opens one too. */
static void add_range(cutter *cut, uint32_t flat, uint64_t first, uint64_t count, uint64_t left)
{
    zi_layout *layout = cut->layout;
    const uint64_t bytes = state_bytes(layout, &layout->flats[flat], count);
    const uint64_t chunks = bytes == 0 || cut->used_bytes == 0 ? left / count : 1;
    layout->chunk_ranges[layout->chunk_range_count++] =
        (zi_chunk_range){.flat = flat,
                         .chunks = chunks,
                         .first = first,
                         .count = count,
                         .extent = bytes != 0 ? cut->extent_count - 1 : UINT64_MAX,
                         .at = cut->used_bytes};
    cut->chunk_count += chunks;
    if (bytes != 0) {
        close_extents(cut, chunks - 1, bytes);
        cut->extent_count += chunks - 1;
        cut->used_bytes += bytes;
    }
}

static void chunks_cut_flat(cutter *cut, uint32_t flat)
{
    zi_layout *layout = cut->layout;
    zi_flat *place = &layout->flats[flat];
    const uint64_t whole = zi_optimizer_shard_count(layout, place);
    const uint64_t extent_bytes = layout->tuning.extent_bytes;
    uint64_t first = 0;
    while (first < whole) {
        const uint64_t room = cut->extent_count != 0 ? extent_bytes - cut->used_bytes : 0;
        const uint64_t count = fitting(layout, place, whole - first, room);
        if (count == 0) {
            close_extents(cut, 1, cut->used_bytes);
            cut->extent_count++;
            cut->used_bytes = 0;
            continue; /* a page holds a granule of any flat, so this ends */
        }
        add_range(cut, flat, first, count, whole - first);
        const zi_chunk_range *range = &layout->chunk_ranges[layout->chunk_range_count - 1];
        first += range->chunks * range->count;
    }
}

static zero_status cut_all(zi_layout *layout)
{
    cutter cut = {.layout = layout};
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const uint64_t before = cut.chunk_count;
        if (layout->flats[f].trained) {
            chunks_cut_flat(&cut, f);
        }
        layout->flats[f].chunk_first = (uint32_t)before;
        layout->flats[f].chunk_count = (uint32_t)(cut.chunk_count - before);
    }
    close_extents(&cut, 1, cut.used_bytes);
    if (cut.chunk_count > UINT32_MAX / 2) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.extent_bytes %" PRIu64 " cuts the state into %" PRIu64
                " chunks, more than can be counted; raise it",
                layout->tuning.extent_bytes, cut.chunk_count);
    }
    layout->chunk_count = (uint32_t)cut.chunk_count;
    layout->state.extent_count = (uint32_t)cut.extent_count;
    return ZERO_OK;
}

/* Bytes of so many extents at one end of the state. */
static uint64_t end_bytes(const zi_layout *layout, uint32_t extents, bool first)
{
    uint64_t bytes = 0;
    uint64_t left = extents;
    for (uint32_t i = 0; i < layout->state_range_count && left != 0; i++) {
        const zi_extent_range *range =
            &layout->state_ranges[first ? i : layout->state_range_count - 1 - i];
        const uint64_t taken = zi_min_u64(left, range->extents);
        bytes += taken * range->bytes;
        left -= taken;
    }
    return bytes;
}

/* Count the bytes of the state that a step moves: it writes all extents, and need not read what the
 * last one left in the I/O window, which is one end of the state or the other. */
static void count_moves(zi_layout *layout)
{
    zi_offload_place *state = &layout->state;
    const uint64_t all = state->bytes;
    const bool twice = layout->tuning.speculative_step != 0;
    state->window_buffers = (uint32_t)zi_min_u64(layout->tuning.io_window, state->extent_count);
    const uint64_t low = end_bytes(layout, state->window_buffers, true);
    const uint64_t high = end_bytes(layout, state->window_buffers, false);
    layout->speculative_at = twice ? all : 0;
    layout->step_write_bytes = all;
    layout->step_read_bytes = all - (twice ? 0 : zi_min_u64(low, high)); /* all go one way */
}

/* Measure the largest chunk that the CPU updates in a bounce buffer (stage1/staging.c): gradient,
 * parameter and state, as far as they are the GPU's memory. */
static void measure_bounce(zi_layout *layout)
{
    const zero_engine_options *options = &layout->options;
    for (uint32_t r = 0; !layout->can.host_memory && r < layout->chunk_range_count; r++) {
        const zi_chunk_range *chunk = &layout->chunk_ranges[r];
        const zi_flat *flat = &layout->flats[chunk->flat];
        if (chunk->extent == UINT64_MAX && options->tuning->updater < ZERO_UPDATER_CPU) {
            continue;
        }
        uint64_t bytes = 0;
        for (int i = 0; i < ZI_SHARD_ROLES; i++) {
            const zero_role role = (zero_role)i;
            const bool gathered =
                role == ZERO_ROLE_PARAM && zi_layout_crosses(layout, ZI_HOP_UPDATED);
            if (gathered || !zi_role_offloaded(layout, role)) {
                bytes += zi_codec_padded_bytes(flat->kept[role], chunk->count);
            }
        }
        /* A page at least, which says that the CPU updates. */
        const uint64_t pages = zi_align_up(zi_max_u64(bytes, 1), ZI_PAGE_BYTES);
        layout->bounce_bytes = zi_max_u64(layout->bounce_bytes, pages);
    }
}

/* Measure the largest chunk's state in a staging buffer, as far as it is in host memory. */
static void measure_state_staging(zi_layout *layout)
{
    for (uint32_t r = 0; stages_state(layout) && r < layout->chunk_range_count; r++) {
        const zi_chunk_range *chunk = &layout->chunk_ranges[r];
        uint64_t bytes = 0;
        for (uint32_t state = 0; state < ZI_STATES; state++) {
            const zero_role role = zi_state_role(state);
            if (zi_role_offloaded(layout, role)) {
                bytes += zi_codec_padded_bytes(layout->flats[chunk->flat].kept[role], chunk->count);
            }
        }
        layout->state_staging_bytes = zi_max_u64(layout->state_staging_bytes, bytes);
    }
}

/* Tensors of trained flats, and where cuts between chunks may go through one. */
static void count_segments(zi_layout *layout)
{
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        layout->segment_count += layout->flats[layout->tensors[t].flat].trained;
    }
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const uint32_t chunks = layout->flats[f].chunk_count;
        layout->segment_count += chunks != 0 ? chunks - 1 : 0;
    }
}

zero_status zi_layout_make_chunks(zi_layout *layout)
{
    const size_t ranges = (size_t)layout->flat_count * RANGES_OF_FLAT;
    ZI_TRY(zi_calloc(ranges, sizeof *layout->chunk_ranges, (void **)&layout->chunk_ranges));
    ZI_TRY(zi_calloc(ranges + 1, sizeof *layout->state_ranges, (void **)&layout->state_ranges));
    ZI_TRY(cut_all(layout));
    count_moves(layout);
    measure_bounce(layout);
    measure_state_staging(layout);
    count_segments(layout);
    return ZERO_OK;
}

/* Piece `i` of a range: its states that are on disk lie one behind the other in its extent. */
static zi_chunk chunks_chunk_of(const zi_layout *layout, const zi_chunk_range *range, uint64_t i)
{
    const zi_flat *flat = &layout->flats[range->flat];
    const bool on_disk = range->extent != UINT64_MAX;
    zi_chunk chunk = {.flat = range->flat,
                      .extent = on_disk ? (uint32_t)(range->extent + i) : ZI_NO_INDEX,
                      .first = range->first + i * range->count,
                      .count = range->count};
    uint64_t at = i == 0 ? range->at : 0;
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        const zi_codec codec = disk_codec(layout, flat, state);
        const zero_role role = zi_state_role(state);
        chunk.at[state] = zi_codec_is_none(codec)
                              ? flat->at[role] + zi_codec_offset(flat->kept[role], chunk.first)
                              : at;
        at += zi_codec_padded_bytes(codec, range->count);
    }
    return chunk;
}

zero_status zi_layout_expand(zi_layout *layout)
{
    zi_offload_place *state = &layout->state;
    ZI_TRY(zi_calloc(state->extent_count, sizeof *state->extents, (void **)&state->extents));
    ZI_TRY(zi_calloc(layout->chunk_count, sizeof *layout->chunks, (void **)&layout->chunks));
    zi_extent *extent = state->extents;
    uint64_t at = 0;
    for (uint32_t r = 0; r < layout->state_range_count; r++) {
        const zi_extent_range *range = &layout->state_ranges[r];
        for (uint64_t i = 0; i < range->extents; i++, at += range->bytes) {
            *extent++ = (zi_extent){.at = at, .bytes = range->bytes};
        }
    }
    zi_chunk *chunk = layout->chunks;
    for (uint32_t r = 0; r < layout->chunk_range_count; r++) {
        for (uint64_t i = 0; i < layout->chunk_ranges[r].chunks; i++) {
            *chunk++ = chunks_chunk_of(layout, &layout->chunk_ranges[r], i);
        }
    }
    return zi_layout_expand_extents(layout);
}
