/* Owns the cutting of optimizer parts into pieces and ranges. Invariant: a flat's pieces tile its
 * part in order, a range's pieces are neighbours, and no record is longer than range_bytes. */
#include <inttypes.h>

#include "core/arena.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/layout.h"

/* The cut so far. While layout->pieces is NULL it only counts. */
typedef struct cutter {
    zi_layout *layout;
    uint64_t piece_count;
    uint64_t range_count;
    uint64_t used_bytes; /* of the last range's record */
} cutter;

uint64_t zi_state_bytes(const zi_layout *layout, const zi_flat *flat, zero_role role)
{
    if (role == ZERO_ROLE_MASTER) {
        return flat->has_master ? sizeof(float) : 0;
    }
    const uint32_t moment = (uint32_t)role - ZERO_ROLE_MOMENT1;
    return flat->trained && moment < layout->moment_count
               ? zero_dtype_bytes(layout->options.moment_dtype)
               : 0;
}

/* Bytes of an element of one state in a record. */
static uint64_t disk_bytes(const zi_layout *layout, const zi_flat *flat, int state)
{
    const zero_role role = (zero_role)(ZERO_ROLE_MASTER + state);
    return zi_role_tier(layout, role) == ZERO_TIER_DISK ? zi_state_bytes(layout, flat, role) : 0;
}

/* What `count` elements of the flat take in a record. */
static uint64_t record_bytes(const zi_layout *layout, const zi_flat *flat, uint64_t count)
{
    uint64_t bytes = 0;
    for (int state = 0; state < ZI_STATES; state++) {
        bytes += zi_align_up(count * disk_bytes(layout, flat, state), ZI_ARENA_ALIGN);
    }
    return bytes;
}

/* Elements of a piece that the CPU updates and that no range cuts: as many as a range would have.
 */
static uint64_t room_count(const zi_layout *layout)
{
    const uint64_t count = layout->options.range_bytes / (ZI_STATES * sizeof(float));
    return zi_max_u64(count / ZI_SLICE_ALIGN, 1) * ZI_SLICE_ALIGN;
}

/* As many of `left` elements as fit in `room` bytes of a record; all when none of them is on disk.
 */
static uint64_t fitting(const zi_layout *layout, const zi_flat *flat, uint64_t left, uint64_t room)
{
    uint64_t each = 0;
    for (int state = 0; state < ZI_STATES; state++) {
        each += disk_bytes(layout, flat, state);
    }
    if (each == 0) {
        return layout->options.updater >= ZERO_UPDATER_CPU ? zi_min_u64(left, room_count(layout))
                                                           : left;
    }
    uint64_t count = zi_min_u64(left, room / each / ZI_SLICE_ALIGN * ZI_SLICE_ALIGN);
    while (count != 0 && record_bytes(layout, flat, count) > room) {
        count -= ZI_SLICE_ALIGN;
    }
    return count;
}

static void add_piece(cutter *cut, uint32_t flat, uint64_t first, uint64_t count)
{
    zi_layout *layout = cut->layout;
    const zi_flat *place = &layout->flats[flat];
    const uint64_t bytes = record_bytes(layout, place, count);
    if (layout->pieces != NULL) {
        zi_piece *piece = &layout->pieces[cut->piece_count];
        *piece = (zi_piece){.flat = flat,
                            .range = bytes != 0 ? (uint32_t)cut->range_count - 1 : ZI_NO_INDEX,
                            .first = first,
                            .count = count};
        uint64_t at = cut->used_bytes;
        for (int state = 0; state < ZI_STATES; state++) {
            piece->at[state] = at;
            at += zi_align_up(count * disk_bytes(layout, place, state), ZI_ARENA_ALIGN);
        }
        if (bytes != 0) {
            layout->ranges[piece->range].bytes = zi_align_up(at, ZI_PAGE_BYTES);
        }
    }
    cut->used_bytes += bytes;
    cut->piece_count++;
}

static void cut_flat(cutter *cut, uint32_t flat)
{
    const zi_layout *layout = cut->layout;
    const zi_flat *place = &layout->flats[flat];
    const uint64_t whole = zi_shard_count(layout, place, layout->sharding.optimizer);
    const uint64_t range_bytes = layout->options.range_bytes;
    uint64_t first = 0;
    while (first < whole) {
        const uint64_t room = cut->range_count != 0 ? range_bytes - cut->used_bytes : 0;
        const uint64_t count = fitting(layout, place, whole - first, room);
        if (count == 0) {
            cut->range_count++;
            cut->used_bytes = 0;
            continue; /* a page holds 64 elements of any flat, so this ends */
        }
        add_piece(cut, flat, first, count);
        first += count;
    }
}

static void cut_all(cutter *cut)
{
    zi_layout *layout = cut->layout;
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const uint64_t before = cut->piece_count;
        if (layout->flats[f].trained) {
            cut_flat(cut, f);
        }
        if (layout->pieces != NULL) {
            layout->flats[f].piece_first = (uint32_t)before;
            layout->flats[f].piece_count = (uint32_t)(cut->piece_count - before);
        }
    }
}

/* Records end to end; what a step moves: it writes all, and need not read what the last one left in
 * the ring, which is one end of the store or the other. */
static void place_records(zi_layout *layout)
{
    uint64_t at = 0;
    for (uint32_t r = 0; r < layout->range_count; r++) {
        layout->ranges[r].at = at;
        at += layout->ranges[r].bytes;
        layout->record_bytes_max = zi_max_u64(layout->record_bytes_max, layout->ranges[r].bytes);
    }
    layout->ring_slots = (uint32_t)zi_min_u64(layout->options.ring_depth, layout->range_count);
    uint64_t low = 0;
    uint64_t high = 0;
    for (uint32_t i = 0; i < layout->ring_slots; i++) {
        low += layout->ranges[i].bytes;
        high += layout->ranges[layout->range_count - 1 - i].bytes;
    }
    const bool drafts = layout->options.overlap_step != 0;
    layout->draft_at = drafts ? at : 0;
    layout->step_write_bytes = at;
    layout->step_read_bytes = at - (drafts ? 0 : zi_min_u64(low, high)); /* all go one way */
}

/* What the largest piece that the CPU updates takes in a room (stage1/staging.c): gradient,
 * parameter, and the state that is the GPU's memory. */
static void measure_rooms(zi_layout *layout)
{
    const zero_engine_options *options = &layout->options;
    for (uint32_t p = 0; options->device == ZERO_DEVICE_CUDA && p < layout->piece_count; p++) {
        const zi_piece *piece = &layout->pieces[p];
        const zi_flat *flat = &layout->flats[piece->flat];
        if (piece->range == ZI_NO_INDEX && options->updater < ZERO_UPDATER_CPU) {
            continue;
        }
        uint64_t bytes =
            zi_align_up(piece->count * zero_dtype_bytes(options->accum_dtype), ZI_ARENA_ALIGN) +
            zi_align_up(piece->count * zero_dtype_bytes(flat->dtype), ZI_ARENA_ALIGN);
        for (int state = 0; state < ZI_STATES; state++) {
            const zero_role role = (zero_role)(ZERO_ROLE_MASTER + state);
            const bool stays = zi_role_tier(layout, role) == ZERO_TIER_DEVICE;
            bytes += stays ? zi_align_up(piece->count * zi_state_bytes(layout, flat, role),
                                         ZI_ARENA_ALIGN)
                           : 0;
        }
        layout->room_bytes = zi_max_u64(layout->room_bytes, zi_align_up(bytes, ZI_PAGE_BYTES));
    }
}

/* Tensors of trained flats, and where cuts between pieces may go through one. */
static void count_segments(zi_layout *layout)
{
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        layout->segment_count += layout->flats[layout->tensors[t].flat].trained;
    }
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const uint32_t pieces = layout->flats[f].piece_count;
        layout->segment_count += pieces != 0 ? pieces - 1 : 0;
    }
}

zero_status zi_layout_make_pieces(zi_layout *layout)
{
    cutter count = {.layout = layout};
    cut_all(&count);
    if (count.piece_count > UINT32_MAX / 2) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "options.range_bytes %" PRIu64 " cuts the state into %" PRIu64
                " pieces, more than can be counted; make ranges larger",
                layout->options.range_bytes, count.piece_count);
    }
    layout->piece_count = (uint32_t)count.piece_count;
    layout->range_count = (uint32_t)count.range_count;
    ZI_TRY(zi_calloc(layout->range_count, sizeof *layout->ranges, (void **)&layout->ranges));
    ZI_TRY(zi_calloc(layout->piece_count, sizeof *layout->pieces, (void **)&layout->pieces));
    cutter write = {.layout = layout};
    cut_all(&write);
    place_records(layout);
    measure_rooms(layout);
    count_segments(layout);
    return ZERO_OK;
}
