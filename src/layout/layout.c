/* Owns what follows from a layout besides places. */
#include "layout/layout.h"

uint32_t zi_unit_trained_count(const zi_layout *layout, uint32_t unit)
{
    const zi_unit_place *place = &layout->units[unit];
    uint32_t count = 0;
    while (count < place->flat_count && layout->flats[place->flat_first + count].trained) {
        count++;
    }
    return count;
}

uint32_t zi_unit_chunks(const zi_layout *layout, uint32_t unit, uint32_t *first)
{
    const zi_unit_place *place = &layout->units[unit];
    uint32_t count = 0;
    *first = place->flat_count != 0 ? layout->flats[place->flat_first].chunk_first : 0;
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        count += layout->flats[f].chunk_count;
    }
    return count;
}

bool zi_unit_updates_in_place(const zi_layout *layout, uint32_t unit)
{
    const uint32_t first = layout->units[unit].flat_first;
    for (uint32_t i = 0; i < zi_unit_trained_count(layout, unit); i++) {
        if (zi_flat_reads_param(&layout->flats[first + i])) {
            return true;
        }
    }
    return false;
}

bool zi_grads_sends_zeros(const zi_layout *layout)
{
    return layout->tuning.reduction == ZERO_REDUCTION_NATIVE &&
           zi_layout_crosses(layout, ZI_HOP_SCATTER);
}

bool zi_grads_end_late(const zi_layout *layout)
{
    if (!zi_role_offloaded(layout, ZERO_ROLE_GRAD) || layout->world == 1) {
        return false;
    }
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        if (layout->flats[f].trained && zi_flat_grad_in_place(layout, &layout->flats[f])) {
            return true;
        }
    }
    return false;
}
