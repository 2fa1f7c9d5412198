/* Owns where checksums of what is on disk are kept, and the names of what they are of. Invariant:
 * every extent has room for the checksums of all its places on disk, wherever it begins. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/checksum.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/layout.h"

uint64_t zi_extent_sum_count(const zi_extent *extents, uint32_t extent_count)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < extent_count; i++) {
        count += zi_checksum_count(extents[i].bytes);
    }
    return count;
}

void zi_layout_place_sums(zi_layout *layout)
{
    uint64_t count = (layout->speculative_at != 0 ? 2 : 1) * layout->state.sum_count;
    if (layout->tuning.disk_unchecked) {
        return;
    }
    for (int role = 0; role < ZI_OFFLOAD_ROLES; role++) {
        zi_offload_place *place = &layout->offload[role];
        place->sums_at = count;
        count += place->sum_count;
    }
    layout->sums_bytes = zi_align_up(count * sizeof(uint64_t), ZI_PAGE_BYTES);
}

/* The roles, and the first and last unit, that some bytes belong to. */
typedef struct found_bytes {
    const zi_checksum_span *bytes; /* without memory; from the start of an extent or an arena */
    uint32_t roles;
    uint32_t first_unit;
    uint32_t last_unit;
} found_bytes;

static void checks_find(found_bytes *found, zero_role role, uint32_t unit, uint64_t at,
                        uint64_t bytes)
{
    if (at < found->bytes->at + found->bytes->bytes && found->bytes->at < at + bytes) {
        found->first_unit =
            found->roles == 0 || unit < found->first_unit ? unit : found->first_unit;
        found->last_unit = found->roles == 0 || unit > found->last_unit ? unit : found->last_unit;
        found->roles |= 1u << role;
    }
}

static void find_in_extent(const zi_layout *layout, zero_role role, uint32_t extent,
                           found_bytes *found)
{
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const zi_flat *flat = &layout->flats[f];
        const uint32_t first = flat->extent_first[role];
        if ((role == ZERO_ROLE_PARAM || flat->trained) && extent >= first &&
            extent - first < zi_flat_extent_count(layout, flat, role)) {
            const uint64_t count =
                flat->trained
                    ? layout->chunks[flat->chunk_first + (extent - first) % flat->chunk_count].count
                    : UINT64_MAX / sizeof(double);
            checks_find(found, role, flat->unit, 0, zi_codec_bytes(flat->kept[role], count));
        }
    }
}

/* role: IO_WINDOW for what an extent has, else one whose arena the bytes are of. */
static void find_in_state(const zi_layout *layout, zero_role role, uint32_t extent,
                          found_bytes *found)
{
    for (uint32_t p = 0; p < layout->chunk_count; p++) {
        const zi_chunk *chunk = &layout->chunks[p];
        const zi_flat *flat = &layout->flats[chunk->flat];
        for (uint32_t state = 0; state < ZI_STATES; state++) {
            const zero_role own = zi_state_role(state);
            const bool there =
                role == ZERO_ROLE_IO_WINDOW
                    ? chunk->extent == extent && zi_role_tier(layout, own) == ZERO_TIER_DISK
                    : role == own;
            if (there) {
                checks_find(found, own, flat->unit, chunk->at[state],
                            zi_codec_bytes(flat->kept[own], chunk->count));
            }
        }
    }
}

void zi_layout_name_bytes(const zi_layout *layout, zero_role role, uint32_t index, uint64_t at,
                          uint64_t bytes, char *text, size_t text_bytes)
{
    const zi_checksum_span extent = {.at = at, .bytes = bytes};
    found_bytes found = {.bytes = &extent};
    if (role < ZI_OFFLOAD_ROLES) {
        find_in_extent(layout, role, index, &found);
    } else {
        find_in_state(layout, role, index, &found);
    }
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < ZI_SHARD_ROLES; i++) {
        if ((found.roles & 1u << i) != 0 && used < text_bytes) {
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used != 0 ? ", " : "",
                                     zero_role_name((zero_role)i));
        }
    }
    if (found.roles == 0) {
        (void)snprintf(text, text_bytes, "padding between tensors");
    } else if (used < text_bytes && found.first_unit == found.last_unit) {
        (void)snprintf(text + used, text_bytes - used, " of unit %" PRIu32 " \"%.40s\"",
                       found.first_unit, layout->unit_infos[found.first_unit].name);
    } else if (used < text_bytes) {
        (void)snprintf(text + used, text_bytes - used, " of units %" PRIu32 " to %" PRIu32,
                       found.first_unit, found.last_unit);
    }
}
