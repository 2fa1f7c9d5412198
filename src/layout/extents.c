/* Owns the cutting of shards on disk into extents, and what offloaded shards pass through.
 * Invariant: where there is a chunk, its elements are one whole extent of each role on disk, so an
 * update overwrites extents and no parts of them. */
#include <inttypes.h>

#include "core/checksum.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/layout.h"

static bool is_on_disk(const zi_layout *layout, const zi_flat *flat, zero_role role)
{
    return zi_role_tier(layout, role) == ZERO_TIER_DISK && !zi_codec_is_none(flat->kept[role]);
}

static uint64_t even_cut(const zi_layout *layout, const zi_flat *flat, zero_role role)
{
    return zi_codec_count_within(flat->kept[role], layout->tuning.extent_bytes);
}

uint64_t zi_extent_count_max(const zi_layout *layout, const zi_flat *flat)
{
    uint64_t count = UINT64_MAX;
    for (int role = 0; role < ZI_OFFLOAD_ROLES; role++) {
        if (is_on_disk(layout, flat, (zero_role)role)) {
            count = zi_min_u64(count, even_cut(layout, flat, (zero_role)role));
        }
    }
    return count;
}

/* Optimizer shards in a flat's shard of a role. */
static uint32_t optimizer_shards_of(const zi_layout *layout, const zi_flat *flat, zero_role role)
{
    const zero_sharding *s = zi_flat_sharding(layout, flat);
    return s->optimizer / zi_role_degree(s, role);
}

uint32_t zi_flat_extent_count(const zi_layout *layout, const zi_flat *flat, zero_role role)
{
    if (flat->trained) {
        return flat->chunk_count * optimizer_shards_of(layout, flat, role);
    }
    return (uint32_t)zi_div_up(zi_role_count(layout, flat, role), even_cut(layout, flat, role));
}

uint64_t zi_offload_add_extents(zi_offload_place *place, uint64_t extents, uint64_t bytes)
{
    const uint64_t each = zi_align_up(bytes, ZI_PAGE_BYTES);
    place->extent_bytes_max = zi_max_u64(place->extent_bytes_max, extents != 0 ? each : 0);
    place->bytes += extents * each;
    place->sum_count += extents * zi_checksum_count(each);
    return extents * each;
}

/* Cut the flat's shard, whose chunks are the ranges from *range on. Returns the bytes of its
 * extents that hold this rank's optimizer shard. */
static uint64_t extents_cut_flat(zi_layout *layout, zi_flat *flat, zero_role role, uint32_t *range)
{
    zi_offload_place *place = &layout->offload[role];
    const uint32_t index = (uint32_t)(flat - layout->flats);
    const zi_codec codec = flat->kept[role];
    const uint32_t shards = optimizer_shards_of(layout, flat, role);
    uint64_t own = 0;
    if (!flat->trained) {
        const uint64_t count = zi_role_count(layout, flat, role);
        const uint64_t each = even_cut(layout, flat, role);
        (void)zi_offload_add_extents(place, count / each, zi_codec_bytes(codec, each));
        (void)zi_offload_add_extents(place, count % each != 0, zi_codec_bytes(codec, count % each));
    }
    while (*range < layout->chunk_range_count && layout->chunk_ranges[*range].flat <= index) {
        const zi_chunk_range *chunks = &layout->chunk_ranges[(*range)++];
        if (chunks->flat == index) {
            own += zi_offload_add_extents(place, shards * chunks->chunks,
                                          zi_codec_bytes(codec, chunks->count)) /
                   shards;
        }
    }
    return own;
}

/* Count the bytes that a step moves of a role on disk besides the state. It writes the trained
 * parameters, and reads those of its shard that have no master. It reads its shard of the
 * gradients; where they cross ranks late all of them are read before, and that shard is written. */
static void count_step(zi_layout *layout, const zi_flat *flat, zero_role role, uint64_t all,
                       uint64_t own)
{
    const bool late = role == ZERO_ROLE_GRAD && zi_grads_end_late(layout);
    if (role == ZERO_ROLE_PARAM && flat->trained) {
        layout->step_write_bytes += all;
        layout->step_read_bytes += zi_flat_reads_param(flat) ? own : 0;
    } else if (role == ZERO_ROLE_GRAD) {
        layout->step_write_bytes += late ? own : 0;
        layout->step_read_bytes += own + (late ? all : 0);
    }
}

static zero_status cut_role(zi_layout *layout, zero_role role)
{
    zi_offload_place *place = &layout->offload[role];
    uint64_t count = 0;
    uint32_t range = 0;
    place->at = layout->disk_bytes;
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        zi_flat *flat = &layout->flats[f];
        if (is_on_disk(layout, flat, role)) {
            const uint64_t before = place->bytes;
            flat->extent_first[role] = (uint32_t)count;
            const uint64_t own = extents_cut_flat(layout, flat, role, &range);
            count += zi_flat_extent_count(layout, flat, role);
            count_step(layout, flat, role, place->bytes - before, own);
        }
    }
    if (count > UINT32_MAX / 2) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.extent_bytes %" PRIu64 " cuts %s into %" PRIu64
                " extents, more than can be counted; raise it",
                layout->tuning.extent_bytes, zero_role_name(role), count);
    }
    place->extent_count = (uint32_t)count;
    place->window_buffers = (uint32_t)zi_min_u64(layout->tuning.io_window + 1, count);
    layout->disk_bytes += place->bytes;
    return ZERO_OK;
}

/* Size the staging buffers of parameters that other ranks gather after the update, a chunk at a
 * time, and the wire buffer that chunks take turns in. */
static void size_param_staging(zi_layout *layout)
{
    for (uint32_t r = 0; r < layout->chunk_range_count; r++) {
        const zi_chunk_range *range = &layout->chunk_ranges[r];
        const zi_flat *flat = &layout->flats[range->flat];
        const uint32_t shards = optimizer_shards_of(layout, flat, ZERO_ROLE_PARAM);
        const uint64_t bytes =
            zi_layout_crosses(layout, ZI_HOP_UPDATED)
                ? shards * zi_codec_bytes(flat->kept[ZERO_ROLE_PARAM], range->count)
                : 0;
        layout->param_staging_bytes = zi_max_u64(layout->param_staging_bytes, bytes);
        layout->updated_wire_bytes = zi_max_u64(
            layout->updated_wire_bytes, zi_flat_updated_wire_bytes(layout, flat, range->count));
    }
}

/* Size the staging buffers of sums that cross ranks, or go over a bus, and are in no slot. */
static void size_grad_staging(zi_layout *layout)
{
    const bool disk = zi_role_tier(layout, ZERO_ROLE_GRAD) == ZERO_TIER_DISK;
    for (uint32_t b = 0; b < layout->bucket_count && !(disk && layout->world == 1); b++) {
        const zi_bucket *bucket = &layout->buckets[b];
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < bucket->flat_count; i++) {
            zi_flat *flat = &layout->flats[layout->bucket_flats[bucket->flat_first + i]];
            if (!zi_flat_grad_in_place(layout, flat)) {
                flat->grad_staging_at = bytes;
                bytes += zi_codec_padded_bytes(flat->kept[ZERO_ROLE_GRAD],
                                               zi_role_count(layout, flat, ZERO_ROLE_GRAD));
            }
        }
        layout->grad_staging_bytes = zi_max_u64(layout->grad_staging_bytes, bytes);
    }
}

zero_status zi_layout_make_extents(zi_layout *layout)
{
    layout->disk_bytes = layout->state.bytes + layout->speculative_at;
    for (int role = 0; role < ZI_OFFLOAD_ROLES; role++) {
        if (zi_role_tier(layout, (zero_role)role) == ZERO_TIER_DISK) {
            ZI_TRY(cut_role(layout, (zero_role)role));
        }
    }
    layout->pass_read_bytes = layout->offload[ZERO_ROLE_PARAM].bytes;
    layout->micro_bytes = layout->offload[ZERO_ROLE_GRAD].bytes;
    if (zi_role_offloaded(layout, ZERO_ROLE_PARAM)) {
        size_param_staging(layout);
    }
    if (zi_role_offloaded(layout, ZERO_ROLE_GRAD)) {
        size_grad_staging(layout);
    }
    return ZERO_OK;
}

static zi_extent_place find_even(const zi_layout *layout, const zi_flat *flat, zero_role role,
                                 uint64_t element)
{
    const uint64_t each = even_cut(layout, flat, role);
    const uint64_t all = zi_role_count(layout, flat, role);
    const uint64_t first = element / each * each;
    return (zi_extent_place){.index = flat->extent_first[role] + (uint32_t)(element / each),
                             .first = first,
                             .count = zi_min_u64(each, all - first)};
}

uint32_t zi_layout_find_chunk(const zi_layout *layout, uint32_t flat, uint64_t element)
{
    const zi_flat *place = &layout->flats[flat];
    uint32_t low = place->chunk_first; /* chunks tile the shard: the last one that begins at the */
    uint32_t high = low + place->chunk_count; /* element or before */
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        *(layout->chunks[middle].first <= element ? &low : &high) = middle;
    }
    return low;
}

zi_extent_place zi_layout_find_extent(const zi_layout *layout, zero_role role, uint32_t flat,
                                      uint64_t element)
{
    const zi_flat *place = &layout->flats[flat];
    if (!place->trained) {
        return find_even(layout, place, role, element);
    }
    const uint64_t shard_count = zi_optimizer_shard_count(layout, place);
    const uint64_t shard = element / shard_count;
    const uint32_t found = zi_layout_find_chunk(layout, flat, element % shard_count);
    if (zi_role_is_state(role)) { /* of which a rank has its own shard alone */
        const zi_chunk *chunk = &layout->chunks[found];
        return (zi_extent_place){.index = chunk->extent,
                                 .first = chunk->first,
                                 .count = chunk->count,
                                 .at = chunk->at[zi_role_state(role)]};
    }
    return (zi_extent_place){.index = place->extent_first[role] +
                                      (uint32_t)shard * place->chunk_count + found -
                                      place->chunk_first,
                             .first = shard * shard_count + layout->chunks[found].first,
                             .count = layout->chunks[found].count};
}

zero_status zi_layout_expand_extents(zi_layout *layout)
{
    for (int role = 0; role < ZI_OFFLOAD_ROLES; role++) {
        zi_offload_place *place = &layout->offload[role];
        uint64_t at = place->at;
        ZI_TRY(zi_calloc(place->extent_count, sizeof *place->extents, (void **)&place->extents));
        for (uint32_t f = 0; f < layout->flat_count; f++) {
            const zi_flat *flat = &layout->flats[f];
            const uint32_t count = is_on_disk(layout, flat, (zero_role)role)
                                       ? zi_flat_extent_count(layout, flat, (zero_role)role)
                                       : 0;
            uint64_t first = 0;
            for (uint32_t i = 0; i < count; i++) {
                const zi_extent_place found =
                    zi_layout_find_extent(layout, (zero_role)role, f, first);
                const uint64_t bytes =
                    zi_align_up(zi_codec_bytes(flat->kept[role], found.count), ZI_PAGE_BYTES);
                place->extents[found.index] = (zi_extent){.at = at, .bytes = bytes};
                at += bytes;
                first += found.count;
            }
        }
    }
    return ZERO_OK;
}
