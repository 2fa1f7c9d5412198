/* Owns the search by hash. Invariant: at most half of the entries are in use, so a probe ends. */
#include "core/table.h"

#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"

#define CAPACITY_MIN 32

/* Both halves of the hash, since the table looks at its low bits only. */
static uint32_t table_fold(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32);
}

static void table_put(zi_table *table, zi_table_entry entry)
{
    const uint32_t mask = table->capacity - 1;
    uint32_t at = entry.hash & mask;
    while (table->entries[at].item != 0) {
        at = (at + 1) & mask;
    }
    table->entries[at] = entry;
}

zero_status zi_table_reserve(zi_table *table, uint32_t item_count)
{
    zi_assert_cmp(item_count, <=, UINT32_C(1) << 29);
    if (item_count <= table->capacity / 2) {
        return ZERO_OK;
    }
    zi_table larger = {.capacity = CAPACITY_MIN, .item_count = table->item_count};
    while (larger.capacity / 2 < item_count) {
        larger.capacity *= 2;
    }
    ZI_TRY(zi_calloc(larger.capacity, sizeof *larger.entries, (void **)&larger.entries));
    for (uint32_t i = 0; i < table->capacity; i++) {
        if (table->entries[i].item != 0) {
            table_put(&larger, table->entries[i]);
        }
    }
    zi_free(table->entries);
    *table = larger;
    return ZERO_OK;
}

void zi_table_free(zi_table *table)
{
    zi_free(table->entries);
    *table = (zi_table){0};
}

void zi_table_clear(zi_table *table)
{
    if (table->capacity != 0) {
        memset(table->entries, 0, table->capacity * sizeof *table->entries);
    }
    table->item_count = 0;
}

void zi_table_add(zi_table *table, uint64_t hash, uint32_t item)
{
    zi_assert_cmp(table->item_count, <, table->capacity / 2);
    table_put(table, (zi_table_entry){.hash = table_fold(hash), .item = item + 1});
    table->item_count++;
}

uint32_t zi_table_find(const zi_table *table, uint64_t hash, zi_table_same_fn same,
                       const void *items, const void *wanted)
{
    if (table->capacity == 0) {
        return ZI_TABLE_NONE;
    }
    const uint32_t mask = table->capacity - 1;
    const uint32_t folded = table_fold(hash);
    for (uint32_t at = folded & mask; table->entries[at].item != 0; at = (at + 1) & mask) {
        const zi_table_entry *entry = &table->entries[at];
        if (entry->hash == folded && same(items, entry->item - 1, wanted)) {
            return entry->item - 1;
        }
    }
    return ZI_TABLE_NONE;
}
