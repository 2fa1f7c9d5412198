/* How a block adds up the messages of a step: each of its warps takes every ZI_BLOCK_WARPS-th
 * message, and a lane of it one column of those and one limb of their weights. Sums are of integers
 * and cannot overflow, so the split shows in no bit: columns in halves (zi_step_column), and a
 * weight adds less than 2^33 to a limb, of less than 2^30 ranks. */
#ifndef ZI_KERNELS_CUDA_DECIDE_BODY_H
#define ZI_KERNELS_CUDA_DECIDE_BODY_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/norm_body.h"
#include "kernels/math/step.h"

#if ZI_STEP_COLUMNS > ZI_WARP_LANES
#error "a lane for each column"
#endif

/* The columns that the warps have added. */
typedef struct zi_decide_columns {
    zi_step_column of_warp[ZI_BLOCK_WARPS][ZI_STEP_COLUMNS];
    uint64_t weight_of_warp[ZI_BLOCK_WARPS][ZI_NORM_LIMBS];
} zi_decide_columns;

/* Of the members [0, count), those that a warp takes: warp, warp + ZI_BLOCK_WARPS, and so on. */
ZI_LANE uint32_t zi_decide_share(uint32_t count, uint32_t warp)
{
    return count / ZI_BLOCK_WARPS + (count % ZI_BLOCK_WARPS > warp);
}

/* A lane's column of its warp's messages. Eight loads are under way at once. */
ZI_LANE void zi_decide_add(const zi_step_messages *messages, uint32_t warp, uint32_t lane,
                           zi_decide_columns *columns)
{
    zi_step_column column = {0, 0};
    if (lane >= ZI_STEP_COLUMNS) {
        return;
    }
    const uint32_t first = messages->peer_first;
    const uint32_t behind = messages->count > first ? messages->count - first : 0;
    const uint32_t peers = behind / messages->peer_stride + (behind % messages->peer_stride != 0);
    const uint32_t share = zi_decide_share(peers, warp);
    ZI_UNROLL_8
    for (uint32_t i = 0; i < share; i++) {
        const uint32_t peer = i * ZI_BLOCK_WARPS + warp;
        zi_step_column_add(
            &column, zi_step_message_at(messages, first + peer * messages->peer_stride), lane);
    }
    columns->of_warp[warp][lane] = column;
}

/* A lane's limb of its warp's weights. Returns the first member of those whose weight is none, on
 * all lanes, or ZI_STEP_ALIKE; then the limb is of nothing particular. */
ZI_LANE uint32_t zi_decide_add_weights(const zi_step_messages *messages, uint32_t warp,
                                       uint32_t lane, zi_decide_columns *columns)
{
    const uint32_t share = zi_decide_share(messages->count, warp);
    uint32_t refused = ZI_STEP_ALIKE;
    uint64_t limb = 0;
    ZI_UNROLL_8
    for (uint32_t i = 0; i < share; i++) {
        const uint32_t member = i * ZI_BLOCK_WARPS + warp;
        const float weight = zi_step_weight_at(messages, member);
        const zi_norm_addend addend = zi_norm_addend_of((double)weight);
        refused = !zi_step_is_weight(weight) && member < refused ? member : refused;
        ZI_UNROLL
        for (uint32_t k = 0; k < 3; k++) {
            limb += addend.first + k == lane && !addend.zero ? addend.limb[k] : 0;
        }
    }
    if (lane < ZI_NORM_LIMBS) {
        columns->weight_of_warp[warp][lane] = limb;
    }
    return refused;
}

/* Once all lanes have added: a lane of the first warp adds its column and limb of all warps to the
 * first. */
ZI_LANE void zi_decide_join(uint32_t lane, zi_decide_columns *columns)
{
    for (uint32_t warp = 1; warp < ZI_BLOCK_WARPS && lane < ZI_STEP_COLUMNS; warp++) {
        columns->of_warp[0][lane].low += columns->of_warp[warp][lane].low;
        columns->of_warp[0][lane].high += columns->of_warp[warp][lane].high;
    }
    for (uint32_t warp = 1; warp < ZI_BLOCK_WARPS && lane < ZI_NORM_LIMBS; warp++) {
        columns->weight_of_warp[0][lane] += columns->weight_of_warp[warp][lane];
    }
}

/* The totals of the joined columns. refused: the least that zi_decide_add_weights has returned. */
ZI_LANE zi_step_totals zi_decide_totals(const zi_decide_columns *columns, uint32_t refused,
                                        uint32_t place)
{
    zi_step_totals totals;
    totals.squares = zi_step_columns_sum(columns->of_warp[0]);
    for (uint32_t i = 0; i < ZI_NORM_LIMBS; i++) {
        totals.weights.sum.limb[i] = columns->weight_of_warp[0][i];
    }
    totals.weights.sum.infinite_chunks = 0;
    totals.weights.sum.nan_chunks = 0;
    totals.weights.refused = refused;
    totals.place = place;
    return totals;
}

#endif
