/* Owns the places of shards that are far: records of PARAM by unit and of GRAD by bucket, on disk
 * behind the ranges of the optimizer state. Invariant: a record holds its flats in their order, so
 * a unit's trained ones come first. */
#include "core/arena.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/layout.h"

static bool has_record(const zi_flat *flat, zero_role role)
{
    return role == ZERO_ROLE_PARAM || flat->trained;
}

/* Give the flat its place in its record. */
static void put_in_record(const zi_layout *layout, zi_flat *flat, zero_role role)
{
    const bool param = role == ZERO_ROLE_PARAM;
    const uint32_t degree = param ? layout->sharding.param : layout->sharding.grad;
    const zero_dtype dtype = param ? flat->dtype : layout->tuning.accum_dtype;
    zi_range *record = &layout->shelves[role].records[param ? flat->unit : flat->bucket];
    uint64_t *at = param ? &flat->param_at : &flat->grad_at;
    *at = record->bytes;
    record->bytes +=
        zi_align_up(zi_shard_count(layout, flat, degree) * zero_dtype_bytes(dtype), ZI_ARENA_ALIGN);
}

static zero_status make_shelf(zi_layout *layout, zero_role role, uint32_t record_count)
{
    zi_shelf_place *shelf = &layout->shelves[role];
    const bool disk = zi_role_tier(layout, role) == ZERO_TIER_DISK;
    ZI_TRY(zi_calloc(record_count, sizeof *shelf->records, (void **)&shelf->records));
    shelf->record_count = record_count;
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        if (has_record(&layout->flats[f], role)) {
            put_in_record(layout, &layout->flats[f], role);
        }
    }
    for (uint32_t i = 0; i < record_count; i++) {
        zi_range *record = &shelf->records[i];
        record->bytes = disk ? zi_align_up(record->bytes, ZI_PAGE_BYTES) : record->bytes;
        record->at = (disk ? layout->disk_bytes : 0) + shelf->bytes;
        shelf->bytes += record->bytes;
        shelf->record_bytes_max = zi_max_u64(shelf->record_bytes_max, record->bytes);
    }
    if (disk) {
        layout->disk_bytes += shelf->bytes;
        /* A shelf of nothing needs no disk, and no engine has one for it. */
        shelf->ring_slots =
            shelf->bytes != 0 ? (uint32_t)zi_min_u64(layout->tuning.ring_depth, record_count) : 0;
    }
    return ZERO_OK;
}

/* What a step moves of the parameters: it writes what is trained, and reads that first where the
 * update does, where a frozen flat shares the record, and always where the decision whether
 * there is an update is out of the host's sight. */
static void count_param_moves(zi_layout *layout)
{
    const zi_shelf_place *shelf = &layout->shelves[ZERO_ROLE_PARAM];
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        if (zi_unit_trained_count(layout, u) != 0) {
            const bool whole = zi_unit_trained_count(layout, u) == layout->units[u].flat_count;
            const bool read =
                !whole || zi_unit_updates_in_place(layout, u) || !layout->can.host_memory;
            layout->step_write_bytes += shelf->records[u].bytes;
            layout->step_read_bytes += read ? shelf->records[u].bytes : 0;
        }
    }
    layout->pass_read_bytes = shelf->bytes;
}

zero_status zi_layout_make_shelves(zi_layout *layout)
{
    layout->disk_bytes = layout->step_write_bytes + layout->draft_at; /* all ranges */
    if (zi_role_far(layout, ZERO_ROLE_PARAM)) {
        ZI_TRY(make_shelf(layout, ZERO_ROLE_PARAM, layout->unit_count));
    }
    if (zi_role_far(layout, ZERO_ROLE_GRAD)) {
        ZI_TRY(make_shelf(layout, ZERO_ROLE_GRAD, layout->bucket_count));
    }
    if (layout->shelves[ZERO_ROLE_PARAM].ring_slots != 0) {
        count_param_moves(layout);
    }
    if (layout->shelves[ZERO_ROLE_GRAD].ring_slots != 0) {
        const uint64_t all = layout->shelves[ZERO_ROLE_GRAD].bytes;
        const uint64_t times = zi_grads_end_late(layout) ? 2 : 1;
        layout->step_read_bytes += times * all;
        layout->step_write_bytes += (times - 1) * all;
        layout->micro_bytes = all;
    }
    return ZERO_OK;
}

uint32_t zi_unit_trained_count(const zi_layout *layout, uint32_t unit)
{
    const zi_unit_place *place = &layout->units[unit];
    uint32_t count = 0;
    while (count < place->flat_count && layout->flats[place->flat_first + count].trained) {
        count++;
    }
    return count;
}

bool zi_unit_updates_in_place(const zi_layout *layout, uint32_t unit)
{
    const uint32_t first = layout->units[unit].flat_first;
    for (uint32_t i = 0; i < zi_unit_trained_count(layout, unit); i++) {
        if (!layout->flats[first + i].has_master) {
            return true;
        }
    }
    return false;
}

bool zi_grads_end_late(const zi_layout *layout)
{
    if (!zi_role_far(layout, ZERO_ROLE_GRAD) || layout->sharding.world == 1) {
        return false;
    }
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        if (layout->flats[f].trained && zi_flat_grad_in_place(layout, &layout->flats[f])) {
            return true;
        }
    }
    return false;
}
