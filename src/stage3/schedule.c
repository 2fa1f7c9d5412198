/* Owns the order of acquires. Invariant: position <= count <= capacity. */
#include "stage3/schedule.h"

#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"

/* Room for what the declared order did not foresee: as much again, and a little for tiny models. */
#define SPARE_ENTRIES 64

static void append(zi_schedule *schedule, uint32_t unit, zero_pass pass)
{
    zi_assert_cmp(schedule->count, <, schedule->capacity);
    schedule->entries[schedule->count++] = (zi_schedule_entry){.unit = unit, .pass = (uint8_t)pass};
}

static void append_with_owners(zi_schedule *schedule, const zi_layout *layout, uint32_t unit,
                               zero_pass pass)
{
    const zi_unit_place *place = &layout->units[unit];
    for (uint32_t i = 0; i < place->owner_count; i++) {
        append(schedule, layout->owners[place->owner_first + i], pass);
    }
    append(schedule, unit, pass);
}

zero_status zi_schedule_create(const zi_layout *layout, const zero_pass *passes,
                               zi_schedule *schedule)
{
    *schedule = (zi_schedule){0};
    uint32_t declared = 0;
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        declared += 1 + layout->units[u].owner_count;
    }
    uint32_t pass_count = 0;
    while (passes[pass_count] != 0) {
        pass_count++;
    }
    schedule->capacity = 2 * pass_count * declared + SPARE_ENTRIES;
    ZI_TRY(zi_calloc(schedule->capacity, sizeof *schedule->entries, (void **)&schedule->entries));
    for (uint32_t p = 0; p < pass_count; p++) {
        for (uint32_t i = 0; i < layout->unit_count; i++) {
            const bool reverse = passes[p] == ZERO_PASS_BACKWARD;
            append_with_owners(schedule, layout, reverse ? layout->unit_count - 1 - i : i,
                               passes[p]);
        }
    }
    return ZERO_OK;
}

void zi_schedule_destroy(zi_schedule *schedule)
{
    zi_free(schedule->entries);
    *schedule = (zi_schedule){0};
}

uint32_t zi_schedule_find(const zi_schedule *schedule, uint32_t unit, zero_pass pass)
{
    for (uint32_t i = schedule->position; i < schedule->count; i++) {
        if (schedule->entries[i].unit == unit && schedule->entries[i].pass == (uint8_t)pass) {
            return i;
        }
    }
    return ZI_NO_INDEX;
}

bool zi_schedule_insert(zi_schedule *schedule, uint32_t unit, zero_pass pass)
{
    if (schedule->count == schedule->capacity) {
        return false;
    }
    zi_schedule_entry *at = &schedule->entries[schedule->position];
    memmove(at + 1, at, (schedule->count - schedule->position) * sizeof *at);
    *at = (zi_schedule_entry){.unit = unit, .pass = (uint8_t)pass};
    schedule->count++;
    return true;
}

void zi_schedule_prune(zi_schedule *schedule)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < schedule->count; i++) {
        kept += schedule->entries[i].used;
    }
    if (kept == 0) {
        return;
    }
    kept = 0;
    for (uint32_t i = 0; i < schedule->count; i++) {
        if (schedule->entries[i].used != 0) {
            schedule->entries[kept] = schedule->entries[i];
            schedule->entries[kept].used = 0;
            kept++;
        }
    }
    schedule->count = kept;
    schedule->position = 0;
}
