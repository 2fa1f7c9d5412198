/* Which of many items is equal to a wanted one: an open-addressing table of the items' hashes and
 * indices. The items themselves stay with the caller, who says whether two are equal. */
#ifndef ZI_CORE_TABLE_H
#define ZI_CORE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "zero/status.h"

#define ZI_TABLE_NONE UINT32_MAX

typedef struct zi_table_entry {
    uint32_t hash;
    uint32_t item; /* its index and 1; 0: the entry is empty */
} zi_table_entry;

/* All zero: an empty table. */
typedef struct zi_table {
    zi_table_entry *entries;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t item_count;
} zi_table;

/* True if item `item` of `items` is the wanted one. */
typedef bool (*zi_table_same_fn)(const void *items, uint32_t item, const void *wanted);

/* Make room for so many items in all: until then zi_table_add does not allocate. At most 2^29.
 * OUT_OF_MEMORY. */
zero_status zi_table_reserve(zi_table *table, uint32_t item_count);
void zi_table_free(zi_table *table);
/* Forget all items; the room stays. */
void zi_table_clear(zi_table *table);
/* Add an item that is not in the table; there is room for it. */
void zi_table_add(zi_table *table, uint64_t hash, uint32_t item);
/* The item with this hash that `same` takes for the wanted one; ZI_TABLE_NONE when there is none.
 */
uint32_t zi_table_find(const zi_table *table, uint64_t hash, zi_table_same_fn same,
                       const void *items, const void *wanted);

#endif
