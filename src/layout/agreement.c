/* Owns the list of what ranks must agree on, item by item, so that a disagreement can be named:
 * options, then units, then tensors. What a rank may choose alone (threads, budget, poison,
 * callbacks' addresses) is not in it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "layout/layout.h"
#include "zero/option.h"

/* Options that ranks compare are rows of the table (zero/option.h), in its order; others have no
 * say in their hash. */
uint32_t zi_layout_item_count(const zi_layout *layout)
{
    return zero_option_count() + layout->unit_count + layout->tensor_count + 1;
}

static uint64_t hash_unit(const zi_layout *layout, uint32_t unit)
{
    const zi_unit_place *place = &layout->units[unit];
    uint64_t hash = zi_hash_text(ZI_HASH_START, layout->unit_infos[unit].name);
    hash = zi_hash_u64(hash, layout->unit_infos[unit].shard_group);
    return zi_hash_bytes(hash, layout->ties + place->tie_first,
                         place->tie_count * sizeof *layout->ties);
}

/* The array that a rank takes initial values from is its own matter. */
static uint64_t hash_tensor(const zi_layout *layout, const zi_tensor_info *info)
{
    const zi_tensor_extra *extra =
        info->extra != ZI_NO_EXTRA ? &layout->tensor_extras[info->extra] : NULL;
    uint64_t hash = zi_hash_text(ZI_HASH_START, info->name);
    hash = zi_hash_bytes(hash, info->shape, sizeof info->shape);
    hash = zi_hash_u64(hash, info->dims);
    hash = zi_hash_u64(hash, info->unit);
    hash = zi_hash_u64(hash, info->flags);
    hash = zi_hash_u64(hash, info->group);
    hash = zi_hash_u64(hash, info->replica);
    if (extra != NULL && extra->is_box) {
        hash = zi_hash_bytes(hash, extra->global_shape, sizeof extra->global_shape);
        hash = zi_hash_bytes(hash, extra->box_first, sizeof extra->box_first);
    }
    return zi_hash_u64(hash, (uint64_t)info->dtype);
}

static uint64_t hash_option(const zi_layout *layout, uint32_t index)
{
    const zero_option *option = zero_option_at(index);
    const unsigned char *whole = option->is_tuning != 0 ? (const unsigned char *)&layout->tuning
                                                        : (const unsigned char *)&layout->options;
    const uint64_t hash = zi_hash_u64(ZI_HASH_START, index);
    return option->same_on_ranks != 0 ? zi_hash_bytes(hash, whole + option->offset, option->bytes)
                                      : hash;
}

uint64_t zi_layout_item_hash(const zi_layout *layout, uint32_t item)
{
    if (item < layout->unit_count) {
        return hash_unit(layout, item);
    }
    item -= layout->unit_count;
    if (item < layout->tensor_count) {
        return hash_tensor(layout, &layout->tensor_infos[item]);
    }
    item -= layout->tensor_count;
    return item < zero_option_count() ? hash_option(layout, item)
                                      : zi_hash_u64(ZI_HASH_START, layout->part_count);
}

void zi_layout_item_text(const zi_layout *layout, uint32_t item, char *text, size_t text_bytes)
{
    if (item < layout->unit_count) {
        (void)snprintf(text, text_bytes, "unit %" PRIu32 " \"%.60s\"", item,
                       layout->unit_infos[item].name);
        return;
    }
    item -= layout->unit_count;
    if (item < layout->tensor_count) {
        (void)snprintf(text, text_bytes, "tensor %" PRIu32 " \"%.60s\"", item,
                       layout->tensor_infos[item].name);
        return;
    }
    item -= layout->tensor_count;
    if (item < zero_option_count()) {
        (void)snprintf(text, text_bytes, "option %s", zero_option_at(item)->name);
        return;
    }
    (void)snprintf(text, text_bytes, "%s",
                   item == zero_option_count() ? "the number of ranks of options.model_parallel"
                                               : "the number of units or tensors");
}

uint64_t zi_layout_hash(const zi_layout *layout)
{
    uint64_t hash = zi_hash_u64(ZI_HASH_START, layout->world);
    for (uint32_t i = 0; i < zi_layout_item_count(layout); i++) {
        hash = zi_hash_u64(hash, zi_layout_item_hash(layout, i));
    }
    return hash;
}
