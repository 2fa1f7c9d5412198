/* Owns the order of acquires. Invariant: position <= count <= capacity. */
#include "stage3/schedule.h"

#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"

/* Room for what the declared order did not foresee: as much again, and a little for tiny models. */
#define SPARE_ENTRIES 64

static void schedule_append(zi_schedule *schedule, uint32_t unit, uint32_t via, zero_pass pass)
{
    zi_assert_cmp(schedule->count, <, schedule->capacity);
    schedule->entries[schedule->count++] =
        (zi_schedule_entry){.unit = unit, .via = via, .pass = (uint8_t)pass};
}

void zi_schedule_reset(zi_schedule *schedule, const zi_layout *layout, const zero_pass *passes)
{
    schedule->count = 0;
    schedule->position = 0;
    for (uint32_t p = 0; passes[p] != 0; p++) {
        for (uint32_t i = 0; i < layout->unit_count; i++) {
            const bool reverse = passes[p] == ZERO_PASS_BACKWARD;
            const uint32_t unit = reverse ? layout->unit_count - 1 - i : i;
            const zi_unit_place *place = &layout->units[unit];
            for (uint32_t o = 0; o < place->owner_count; o++) {
                schedule_append(schedule, layout->owners[place->owner_first + o], unit, passes[p]);
            }
            schedule_append(schedule, unit, unit, passes[p]);
        }
    }
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
    ZI_TRY(zi_table_reserve(&schedule->used, schedule->capacity));
    zi_schedule_reset(schedule, layout, passes);
    return ZERO_OK;
}

void zi_schedule_destroy(zi_schedule *schedule)
{
    zi_free(schedule->entries);
    zi_table_free(&schedule->used);
    *schedule = (zi_schedule){0};
}

uint32_t zi_schedule_find(const zi_schedule *schedule, zi_schedule_entry wanted)
{
    for (uint32_t i = schedule->position; i < schedule->count; i++) {
        const zi_schedule_entry *entry = &schedule->entries[i];
        if (entry->unit == wanted.unit && entry->via == wanted.via && entry->pass == wanted.pass) {
            return i;
        }
    }
    return ZI_NO_INDEX;
}

bool zi_schedule_insert(zi_schedule *schedule, zi_schedule_entry entry)
{
    if (schedule->count == schedule->capacity) {
        return false;
    }
    zi_schedule_entry *at = &schedule->entries[schedule->position];
    memmove(at + 1, at, (schedule->count - schedule->position) * sizeof *at);
    *at = entry;
    schedule->count++;
    return true;
}

static bool same_use(const zi_schedule_entry *a, const zi_schedule_entry *b)
{
    return a->unit == b->unit && a->via == b->via && a->pass == b->pass;
}

static bool is_use(const void *entries, uint32_t index, const void *wanted)
{
    return same_use(&((const zi_schedule_entry *)entries)[index], wanted);
}

static uint64_t hash_use(const zi_schedule_entry *entry)
{
    const uint64_t hash = zi_hash_u64(ZI_HASH_START, (uint64_t)entry->unit << 32 | entry->via);
    return zi_hash_u64(hash, entry->pass);
}

/* True if an entry for the same use is marked as used. */
static bool is_used(const zi_schedule *schedule, const zi_schedule_entry *entry)
{
    return zi_table_find(&schedule->used, hash_use(entry), is_use, schedule->entries, entry) !=
           ZI_TABLE_NONE;
}

void zi_schedule_prune(zi_schedule *schedule)
{
    uint32_t kept = 0;
    zi_table_clear(&schedule->used);
    for (uint32_t i = 0; i < schedule->count; i++) {
        const zi_schedule_entry *entry = &schedule->entries[i];
        if (entry->used != 0 && !is_used(schedule, entry)) {
            zi_table_add(&schedule->used, hash_use(entry), i);
        }
    }
    for (uint32_t i = 0; i < schedule->count; i++) {
        zi_schedule_entry *entry = &schedule->entries[i];
        entry->moved = entry->used == 0 && is_used(schedule, entry);
    }
    for (uint32_t i = 0; i < schedule->count; i++) {
        if (schedule->entries[i].moved == 0) {
            schedule->entries[kept] = schedule->entries[i];
            schedule->entries[kept].used = 0;
            kept++;
        }
    }
    schedule->count = kept;
    schedule->position = 0;
}
