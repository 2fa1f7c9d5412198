/* Owns the size of the scratch memory that reductions borrow: what the largest batch needs
 * to go in one round, or what that many ranks have at most, and an eighth as many zeros, for ranks
 * without a gradient. A sum that the transport makes by itself cannot be cut, so its part of the
 * largest batch always fits. All these reductions are on one stream, so one at a time uses it. */
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/layout.h"

/* One of the three reductions of stage2/reduce.c. */
typedef struct reduction {
    uint32_t size;     /* ranks that are summed; 1: nothing crosses */
    uint32_t degree;   /* of what each of them receives */
    bool whole;        /* all receive the same, as after an ALL_REDUCE */
    bool before_wired; /* a reduction before this one has crossed already */
    bool shards;       /* what is sent may be the sum of several micro-steps */
    uint32_t sharding; /* of the flats that it is of */
} reduction;

/* What one flat's part of a batch takes: every rank's part at once, or this rank's where the
 * transport's library adds up. */
static uint64_t flat_need(const zi_layout *layout, const zi_flat *flat, const reduction *r)
{
    const uint64_t own = zi_shard_count(layout, flat, r->degree);
    const uint64_t part =
        r->whole ? zi_align_up(zi_div_up(own, r->size), ZI_SCRATCH_PART_COUNT) : own;
    const bool native = layout->tuning.reduction == ZERO_REDUCTION_NATIVE;
    const uint64_t count = native ? own : part * r->size;
    if (r->before_wired) {
        return zi_codec_padded_bytes(flat->kept[ZERO_ROLE_GRAD], count);
    }
    const uint64_t sums = zi_codec_padded_bytes(flat->wire_sum, count);
    const uint64_t single = zi_codec_padded_bytes(flat->wire[ZERO_ROLE_GRAD], count);
    return r->shards ? zi_max_u64(single, sums) : single;
}

static uint64_t largest_batch(const zi_layout *layout, const reduction *r)
{
    uint64_t most = 0;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const zi_bucket *bucket = &layout->buckets[b];
        uint64_t need = 0;
        for (uint32_t i = 0; i < bucket->flat_count && bucket->sharding == r->sharding; i++) {
            need +=
                flat_need(layout, &layout->flats[layout->bucket_flats[bucket->flat_first + i]], r);
        }
        most = zi_max_u64(most, need);
    }
    return most;
}

/* What a sum over `size` ranks takes: messages are not to become short where there are many. */
static uint64_t scratch_sums_of(const zi_layout *layout, const reduction *r)
{
    const uint64_t least = 4 * r->size * ZI_SCRATCH_PART_COUNT * sizeof(float);
    const uint64_t need = zi_max_u64(least, largest_batch(layout, r));
    const uint64_t most = zi_min_u64(ZI_SCRATCH_SUMS_MANY, r->size * ZI_SCRATCH_RANK_BYTES);
    return layout->tuning.reduction == ZERO_REDUCTION_NATIVE
               ? need
               : zi_min_u64(need, zi_max_u64(ZI_SCRATCH_SUMS_FEW, most));
}

/* What the sums of one way to split units take. */
static uint64_t sharding_sums(const zi_layout *layout, uint32_t sharding)
{
    const zero_sharding *s = &layout->shardings[sharding];
    const uint32_t boundary = s->optimizer / s->grad;
    const reduction reductions[] = {
        {.size = s->grad, .degree = s->grad},
        {.size = boundary, .degree = s->optimizer, .before_wired = s->grad > 1, .shards = true},
        {.size = s->world / s->optimizer,
         .degree = s->optimizer,
         .whole = true,
         .before_wired = s->grad > 1 || boundary > 1,
         .shards = true},
    };
    uint64_t sums = 0;
    for (size_t i = 0; i < sizeof reductions / sizeof reductions[0]; i++) {
        reduction r = reductions[i];
        r.sharding = sharding;
        sums = r.size > 1 ? zi_max_u64(sums, scratch_sums_of(layout, &r)) : sums;
    }
    return sums;
}

uint64_t zi_layout_scratch_bytes(const zi_layout *layout)
{
    uint64_t sums = 0;
    if (!layout->can.lent_scratch) {
        return 0;
    }
    for (uint32_t i = 0; i < layout->sharding_count; i++) {
        sums = zi_max_u64(sums, sharding_sums(layout, i));
    }
    /* The zeros come first, in whole pages. */
    const uint64_t eighth = zi_align_up(zi_div_up(sums, 8), ZI_PAGE_BYTES);
    return 8 * eighth + zi_min_u64(eighth, ZI_SCRATCH_ZEROS_MAX);
}
