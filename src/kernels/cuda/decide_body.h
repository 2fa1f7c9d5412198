/* How a block adds up the messages of a step: each of its warps takes every ZI_BLOCK_WARPS-th
 * message, and a lane of it one column of those. Sums are of integers, in halves that cannot
 * overflow (zi_step_column), so the split shows in no bit. */
#ifndef ZI_KERNELS_CUDA_DECIDE_BODY_H
#define ZI_KERNELS_CUDA_DECIDE_BODY_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/cuda/geometry.h"
#include "kernels/math/step.h"

#if ZI_STEP_COLUMNS > ZI_WARP_LANES
#error "a lane for each column"
#endif

/* What the warps have added. */
typedef struct zi_decide_columns {
    zi_step_column of_warp[ZI_BLOCK_WARPS][ZI_STEP_COLUMNS];
} zi_decide_columns;

/* A lane's column of its warp's messages. Loads do not depend on one another, so many are under
 * way. A member's number has 64 bits: the one behind the last does not wrap. */
ZI_LANE void zi_decide_add(const zi_step_messages *messages, uint32_t warp, uint32_t lane,
                           zi_decide_columns *columns)
{
    zi_step_column column = {0, 0};
    if (lane >= ZI_STEP_COLUMNS) {
        return;
    }
    const uint64_t stride = (uint64_t)messages->peer_stride * ZI_BLOCK_WARPS;
    uint64_t i = messages->peer_first + (uint64_t)messages->peer_stride * warp;
    for (; i < messages->count; i += stride) {
        zi_step_column_add(&column, zi_step_message_at(messages, (uint32_t)i), lane);
    }
    columns->of_warp[warp][lane] = column;
}

/* Once all lanes have added: a lane of the first warp adds its column of all warps to the first. */
ZI_LANE void zi_decide_join(uint32_t lane, zi_decide_columns *columns)
{
    if (lane >= ZI_STEP_COLUMNS) {
        return;
    }
    for (uint32_t warp = 1; warp < ZI_BLOCK_WARPS; warp++) {
        columns->of_warp[0][lane].low += columns->of_warp[warp][lane].low;
        columns->of_warp[0][lane].high += columns->of_warp[warp][lane].high;
    }
}

#endif
