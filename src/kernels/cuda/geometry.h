/* How a CUDA kernel's work is divided: pure functions of an element count, so that a test on the
 * CPU can go through the very blocks and lanes of a launch.
 *
 * A warp covers `warp_count` neighbouring elements, tile by tile. Neighbouring lanes access
 * neighbouring quads of four elements, so every access of a warp is contiguous. */
#ifndef ZI_KERNELS_CUDA_GEOMETRY_H
#define ZI_KERNELS_CUDA_GEOMETRY_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/norm.h"

#define ZI_WARP_LANES 32
#define ZI_ALL_LANES 0xffffffffu /* of what a whole warp does together */
#define ZI_BLOCK_WARPS 8
#define ZI_BLOCK_THREADS (ZI_WARP_LANES * ZI_BLOCK_WARPS)

/* Elements that a lane moves at once, and that a warp's lanes move together. */
#define ZI_QUAD 4
#define ZI_WARP_QUADS (ZI_WARP_LANES * ZI_QUAD)

/* Sources of a fold, at most. */
#define ZI_CUDA_SOURCES_MAX 256

/* Elements of a warp. With many, what a lane does at its start is small beside its work; the few
 * are for arrays that would leave processors without a block. */
#define ZI_WARP_COUNT_MANY 1024
#define ZI_WARP_COUNT_FEW 512
#define ZI_MANY_FROM ((uint64_t)1 << 23)

/* Of an update: one tile or two, so that all blocks under way are in one run of each array, as a
 * GPU's memory likes best (docs/decisions/091). Where the parameter is rounded stochastically,
 * many: its lanes call Philox once each. */
#define ZI_WARP_COUNT_LEAST 256
#define ZI_WARP_COUNT_MOST 2048

/* Blocks of an update whose state is in host memory. They wait for the bus, which so many can fill,
 * and leave the other processors to what else runs. */
#define ZI_BUS_BLOCKS 16

/* Lanes count their warp's elements in 32 bits. */
#define ZI_WARP_COUNT_END ((uint64_t)1 << 31)

typedef struct zi_cuda_grid {
    uint64_t blocks;
    uint64_t warp_count; /* elements of a warp, a multiple of every tile */
} zi_cuda_grid;

ZI_LANE zi_cuda_grid zi_cuda_grid_with(uint64_t count, uint64_t warp_count)
{
    const uint64_t block_count = warp_count * ZI_BLOCK_WARPS;
    zi_cuda_grid grid;
    grid.warp_count = warp_count;
    grid.blocks = count / block_count + (count % block_count != 0);
    return grid;
}

ZI_LANE zi_cuda_grid zi_cuda_grid_of(uint64_t count)
{
    return zi_cuda_grid_with(count, count < ZI_MANY_FROM ? ZI_WARP_COUNT_FEW : ZI_WARP_COUNT_MANY);
}

/* Of at most ZI_BUS_BLOCKS, unless a warp would have more elements than ZI_WARP_COUNT_END. */
ZI_LANE zi_cuda_grid zi_cuda_grid_of_bus(uint64_t count)
{
    const uint64_t warps = ZI_BUS_BLOCKS * ZI_BLOCK_WARPS;
    const uint64_t share = count / warps + (count % warps != 0);
    const uint64_t tiles = share / ZI_WARP_COUNT_LEAST + (share % ZI_WARP_COUNT_LEAST != 0);
    const uint64_t warp_count = (tiles + (tiles == 0)) * ZI_WARP_COUNT_LEAST;
    return zi_cuda_grid_with(count,
                             warp_count < ZI_WARP_COUNT_END ? warp_count : ZI_WARP_COUNT_END);
}

/* Elements [begin, end) of a warp. */
typedef struct zi_warp_range {
    uint64_t begin;
    uint64_t end;
} zi_warp_range;

ZI_LANE zi_warp_range zi_warp_range_of(uint64_t warp, uint64_t warp_count, uint64_t count)
{
    zi_warp_range range;
    range.begin = warp * warp_count < count ? warp * warp_count : count;
    range.end = count - range.begin < warp_count ? count : range.begin + warp_count;
    return range;
}

/* The first element of a lane's quad, of those that it has in a tile. */
ZI_LANE uint64_t zi_lane_place(uint64_t tile, int quad, uint32_t lane)
{
    return tile + (uint64_t)quad * ZI_WARP_QUADS + (uint64_t)lane * ZI_QUAD;
}

/* The norm: a pair of lanes takes a chunk, so a warp takes 16 at once and a block 128, and a block
 * makes `passes` of these. About so many blocks give every processor of today's GPUs several, while
 * each has enough chunks to make up for its own accumulator. */
#define ZI_NORM_WARP_CHUNKS (ZI_WARP_LANES / 2)
#define ZI_NORM_PASS_CHUNKS (ZI_NORM_WARP_CHUNKS * ZI_BLOCK_WARPS)
#define ZI_NORM_BLOCKS 1056
#define ZI_NORM_PASSES_MAX 64

typedef struct zi_norm_grid {
    uint64_t blocks;
    uint64_t passes; /* of a block */
} zi_norm_grid;

ZI_LANE zi_norm_grid zi_norm_grid_of(uint64_t count)
{
    const uint64_t pass_count = (uint64_t)ZI_NORM_PASS_CHUNKS * ZI_NORM_CHUNK;
    const uint64_t all = count / pass_count + (count % pass_count != 0);
    const uint64_t share = all / ZI_NORM_BLOCKS + (all % ZI_NORM_BLOCKS != 0);
    zi_norm_grid grid;
    grid.passes = share < ZI_NORM_PASSES_MAX ? share : ZI_NORM_PASSES_MAX;
    grid.blocks = grid.passes == 0 ? 0 : all / grid.passes + (all % grid.passes != 0);
    return grid;
}

#endif
