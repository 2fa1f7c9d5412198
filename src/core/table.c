/* Owns the search by hash. Invariant: at most half of the slots are in use, so a probe ends. */
#include "core/table.h"

#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"

#define SLOTS_MIN 32

/* Both halves of the hash, since the table looks at its low bits only. */
static uint32_t table_fold(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32);
}

static void table_put(zi_table *table, zi_table_slot slot)
{
    const uint32_t mask = table->slot_count - 1;
    uint32_t at = slot.hash & mask;
    while (table->slots[at].item != 0) {
        at = (at + 1) & mask;
    }
    table->slots[at] = slot;
}

zero_status zi_table_reserve(zi_table *table, uint32_t item_count)
{
    zi_assert_cmp(item_count, <=, UINT32_C(1) << 29);
    if (item_count <= table->slot_count / 2) {
        return ZERO_OK;
    }
    zi_table larger = {.slot_count = SLOTS_MIN, .item_count = table->item_count};
    while (larger.slot_count / 2 < item_count) {
        larger.slot_count *= 2;
    }
    ZI_TRY(zi_calloc(larger.slot_count, sizeof *larger.slots, (void **)&larger.slots));
    for (uint32_t i = 0; i < table->slot_count; i++) {
        if (table->slots[i].item != 0) {
            table_put(&larger, table->slots[i]);
        }
    }
    zi_free(table->slots);
    *table = larger;
    return ZERO_OK;
}

void zi_table_free(zi_table *table)
{
    zi_free(table->slots);
    *table = (zi_table){0};
}

void zi_table_clear(zi_table *table)
{
    if (table->slot_count != 0) {
        memset(table->slots, 0, table->slot_count * sizeof *table->slots);
    }
    table->item_count = 0;
}

void zi_table_add(zi_table *table, uint64_t hash, uint32_t item)
{
    zi_assert_cmp(table->item_count, <, table->slot_count / 2);
    table_put(table, (zi_table_slot){.hash = table_fold(hash), .item = item + 1});
    table->item_count++;
}

uint32_t zi_table_find(const zi_table *table, uint64_t hash, zi_table_same_fn same,
                       const void *items, const void *wanted)
{
    if (table->slot_count == 0) {
        return ZI_TABLE_NONE;
    }
    const uint32_t mask = table->slot_count - 1;
    const uint32_t folded = table_fold(hash);
    for (uint32_t at = folded & mask; table->slots[at].item != 0; at = (at + 1) & mask) {
        const zi_table_slot *slot = &table->slots[at];
        if (slot->hash == folded && same(items, slot->item - 1, wanted)) {
            return slot->item - 1;
        }
    }
    return ZI_TABLE_NONE;
}
