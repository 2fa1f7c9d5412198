/* Owns the routes: the hops that follow from the degrees of sharding, and in which codec a flat's
 * elements cross. Invariant: gradients lose bits by the wire codec at one hop at most, the first
 * that crosses ranks. */
#include "layout/layout.h"

void zi_route_make(const zero_sharding *s, zi_hop hops[ZI_HOPS])
{
    const bool boundary = s->optimizer > s->grad;
    const bool replica = s->world > s->optimizer;
    hops[ZI_HOP_GATHER] = (zi_hop){.role = ZERO_ROLE_PARAM, .low = 1, .high = s->param};
    hops[ZI_HOP_SCATTER] = (zi_hop){.role = ZERO_ROLE_GRAD,
                                    .low = 1,
                                    .high = s->grad,
                                    .sums = true,
                                    .ends = !boundary && !replica};
    hops[ZI_HOP_BOUNDARY] = (zi_hop){.role = ZERO_ROLE_GRAD,
                                     .low = s->grad,
                                     .high = s->optimizer,
                                     .sums = true,
                                     .boundary = true,
                                     .summed = s->grad > 1,
                                     .ends = !replica};
    hops[ZI_HOP_REPLICA] = (zi_hop){.role = ZERO_ROLE_GRAD,
                                    .low = s->optimizer,
                                    .high = s->world,
                                    .sums = true,
                                    .whole = true,
                                    .boundary = true,
                                    .summed = s->grad > 1 || boundary,
                                    .ends = true};
    hops[ZI_HOP_UPDATED] = (zi_hop){.role = ZERO_ROLE_PARAM, .low = s->param, .high = s->optimizer};
}

zi_codec zi_hop_source(const zi_flat *flat, zi_hop_kind kind)
{
    return kind == ZI_HOP_SCATTER                            ? flat->slot[ZERO_ROLE_GRAD]
           : kind == ZI_HOP_GATHER || kind == ZI_HOP_UPDATED ? flat->kept[ZERO_ROLE_PARAM]
                                                             : flat->kept[ZERO_ROLE_GRAD];
}

zi_codec zi_hop_wire(const zi_flat *flat, const zi_hop *hop, zi_hop_kind kind, bool single)
{
    if (kind == ZI_HOP_GATHER || kind == ZI_HOP_SCATTER) {
        return flat->wire[hop->role];
    }
    if (kind == ZI_HOP_UPDATED) {
        return flat->wire_updated;
    }
    if (hop->summed) {
        return flat->kept[hop->role];
    }
    /* A single gradient is in the shard as it was written, if that can hold it. */
    const bool written = single && flat->kept[ZERO_ROLE_GRAD].dtype == ZERO_DTYPE_F32;
    return written ? flat->wire[ZERO_ROLE_GRAD] : flat->wire_sum;
}
