/* Owns the size of the scratch memory that reductions borrow: what the largest batch needs
 * to go in one round, or what that many ranks have at most, and an eighth as many zeros, for ranks
 * without a gradient. A sum that the transport makes by itself cannot be cut, so its share of the
 * largest batch always fits. All these reductions are on one stream, so one at a time uses it. */
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/layout.h"

/* The room for one flat's share of a batch: every rank's share at once, or this rank's where the
 * transport's library adds up. */
static uint64_t flat_need(const zi_layout *layout, const zi_flat *flat, zi_hop_kind kind)
{
    const zi_hop *hop = &layout->routes[flat->sharding][kind];
    const uint32_t size = zi_hop_size(hop);
    const uint64_t own = zi_shard_count(layout, flat, zi_hop_received(hop));
    const uint64_t share =
        hop->whole ? zi_align_up(zi_div_up(own, size), ZI_SCRATCH_PART_COUNT) : own;
    const bool native = layout->tuning.reduction == ZERO_REDUCTION_NATIVE;
    const uint64_t count = native ? own : share * size;
    return zi_max_u64(zi_codec_padded_bytes(zi_hop_wire(flat, hop, kind, true), count),
                      zi_codec_padded_bytes(zi_hop_wire(flat, hop, kind, false), count));
}

static uint64_t largest_batch(const zi_layout *layout, uint32_t sharding, zi_hop_kind kind)
{
    uint64_t most = 0;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const zi_bucket *bucket = &layout->buckets[b];
        uint64_t need = 0;
        for (uint32_t i = 0; i < bucket->flat_count && bucket->sharding == sharding; i++) {
            need += flat_need(layout, &layout->flats[layout->bucket_flats[bucket->flat_first + i]],
                              kind);
        }
        most = zi_max_u64(most, need);
    }
    return most;
}

/* The room for a hop's sums: messages are not to become short where there are many ranks. */
static uint64_t hop_sums(const zi_layout *layout, uint32_t sharding, zi_hop_kind kind)
{
    const zi_hop *hop = &layout->routes[sharding][kind];
    const uint32_t size = zi_hop_size(hop);
    if (!hop->sums || size == 1) {
        return 0;
    }
    const uint64_t least = 5 * size * ZI_SCRATCH_PART_COUNT * sizeof(float);
    const uint64_t need = zi_max_u64(least, largest_batch(layout, sharding, kind));
    const uint64_t most = zi_min_u64(ZI_SCRATCH_SUMS_MANY, size * ZI_SCRATCH_RANK_BYTES);
    return layout->tuning.reduction == ZERO_REDUCTION_NATIVE
               ? need
               : zi_min_u64(need, zi_max_u64(ZI_SCRATCH_SUMS_FEW, most));
}

uint64_t zi_layout_scratch_bytes(const zi_layout *layout)
{
    uint64_t sums = 0;
    if (!layout->can.lent_scratch) {
        return 0;
    }
    for (uint32_t i = 0; i < layout->sharding_count * ZI_HOPS; i++) {
        sums = zi_max_u64(sums, hop_sums(layout, i / ZI_HOPS, (zi_hop_kind)(i % ZI_HOPS)));
    }
    /* The zeros come first, in whole pages. */
    const uint64_t eighth = zi_align_up(zi_div_up(sums, 8), ZI_PAGE_BYTES);
    return 8 * eighth + zi_min_u64(eighth, ZI_SCRATCH_ZEROS_MAX);
}
