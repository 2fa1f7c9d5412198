/* Owns the launches of the CUDA kernels' bodies on the CPU: lanes one after the other, and where
 * lanes of a warp meet, all of them up to that point first. */
#include "fake_launch.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cuda/decide_body.h"
#include "kernels/cuda/fold_body.h"
#include "kernels/cuda/norm_body.h"
#include "kernels/cuda/update_body.h"

void zi_fake_run_update(const zi_update_job *job)
{
    const zi_update_form form = zi_update_form_of(job);
    const zi_update_args args = zi_update_args_of(job);
    const uint64_t warps = zi_update_grid_of(job).blocks * ZI_BLOCK_WARPS;
    for (uint64_t warp = 0; warp < warps; warp++) {
        for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
            zi_update_lane(form, &args, warp, lane);
        }
    }
}

void zi_fake_run_cast(void *target, zero_dtype target_dtype, const void *source,
                      zero_dtype source_dtype, uint64_t count)
{
    if (target_dtype == source_dtype) {
        if (target != source) {
            memcpy(target, source, count * zi_quad_width(source_dtype));
        }
        return;
    }
    const zi_cuda_grid grid = zi_cuda_grid_of(count);
    const zi_cast_args args = {
        .target = target,
        .source = source,
        .count = count,
        .warp_count = grid.warp_count,
        .aligned = zi_quad_aligned(target, target_dtype) && zi_quad_aligned(source, source_dtype),
    };
    for (uint64_t warp = 0; warp < grid.blocks * ZI_BLOCK_WARPS; warp++) {
        for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
            zi_cast_lane(target_dtype, source_dtype, &args, warp, lane);
        }
    }
}

/* The totals of a warp's chunks, each with both lanes of its pair. */
static void warp_totals(const void *source, zero_dtype dtype, uint64_t count, uint64_t first_chunk,
                        double totals[ZI_WARP_LANES])
{
    zi_norm_half half[ZI_WARP_LANES];
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        half[lane] = zi_norm_half_of(source, dtype, count, first_chunk + lane / 2, lane);
    }
    double sum[ZI_WARP_LANES];
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        sum[lane] =
            zi_norm_half_sum(&half[lane], lane, zi_norm_half_sends(&half[lane ^ 1], lane ^ 1));
    }
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        totals[lane] = sum[lane] + sum[lane ^ 1];
    }
}

static void windows_open(zi_norm_window *windows)
{
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        zi_norm_window_open(&windows[lane], ZI_NORM_NO_BASE);
    }
}

/* A warp's windows go to the block's accumulator. */
static void windows_close(const zi_norm_window *windows, zi_norm_sum *block)
{
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        for (uint32_t i = 0; i < ZI_NORM_WINDOW; i++) {
            if (windows[lane].limb[i] != 0) {
                block->limb[windows[lane].base + i] += windows[lane].limb[i];
            }
        }
    }
}

/* Moves the windows when none of the totals that there are to add fits; those of lanes with `adds`.
 */
static void windows_follow(zi_norm_window *windows, const zi_norm_addend *addends, const bool *adds,
                           zi_norm_sum *block)
{
    uint32_t leader = ZI_WARP_LANES;
    for (uint32_t lane = ZI_WARP_LANES; lane-- > 0;) {
        if (adds[lane] && zi_norm_window_fits(&windows[lane], &addends[lane])) {
            return;
        }
        leader = adds[lane] ? lane : leader;
    }
    if (leader == ZI_WARP_LANES) {
        return;
    }
    windows_close(windows, block);
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        zi_norm_window_open(&windows[lane], zi_norm_window_base(addends[leader].first));
    }
}

/* The totals of lanes with `owns`. */
static void warp_add_totals(zi_norm_window *windows, const double *totals, const bool *owns,
                            zi_norm_sum *block)
{
    zi_norm_addend addends[ZI_WARP_LANES];
    bool adds[ZI_WARP_LANES];
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        addends[lane] = zi_norm_addend_of(totals[lane]);
        adds[lane] = owns[lane] && addends[lane].finite && !addends[lane].zero;
        block->infinite_chunks += owns[lane] && isinf(totals[lane]);
        block->nan_chunks += owns[lane] && isnan(totals[lane]);
    }
    windows_follow(windows, addends, adds, block);
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        if (adds[lane] && zi_norm_window_fits(&windows[lane], &addends[lane])) {
            zi_norm_window_add(&windows[lane], &addends[lane]);
        } else if (adds[lane]) {
            for (uint32_t i = 0; i < 3; i++) {
                block->limb[addends[lane].first + i] += addends[lane].limb[i];
            }
        }
    }
}

/* A block's accumulator goes to the launch's sum. */
static void block_close(zi_norm_sum *block, zi_norm_sum *sum)
{
    zi_norm_normalise(block);
    for (int i = 0; i < ZI_NORM_LIMBS; i++) {
        sum->limb[i] += block->limb[i];
    }
    sum->infinite_chunks += block->infinite_chunks;
    sum->nan_chunks += block->nan_chunks;
}

void zi_fake_run_square_sum(const void *source, zero_dtype dtype, uint64_t count, zi_norm_sum *sum)
{
    const zi_norm_grid grid = zi_norm_grid_of(count);
    const uint64_t chunks = count / ZI_NORM_CHUNK + (count % ZI_NORM_CHUNK != 0);
    for (uint64_t block = 0; block < grid.blocks; block++) {
        zi_norm_sum own = {{0}, 0, 0};
        for (uint32_t warp = 0; warp < ZI_BLOCK_WARPS; warp++) {
            zi_norm_window windows[ZI_WARP_LANES];
            windows_open(windows);
            for (uint64_t pass = 0; pass < grid.passes; pass++) {
                const uint64_t first =
                    zi_norm_chunk_of(block, grid.passes, pass, warp * ZI_WARP_LANES);
                if (first >= chunks) {
                    break;
                }
                double totals[ZI_WARP_LANES];
                bool owns[ZI_WARP_LANES];
                for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
                    owns[lane] = lane % 2 == 0 && first + lane / 2 < chunks;
                }
                warp_totals(source, dtype, count, first, totals);
                warp_add_totals(windows, totals, owns, &own);
            }
            windows_close(windows, &own);
        }
        block_close(&own, sum);
    }
}

/* The totals of a tile's chunks, each with all lanes of its chunk. */
static void tile_totals(const zi_fold *fold, const zi_fold_args *args, uint64_t tile,
                        double totals[ZI_WARP_LANES])
{
    _Alignas(16) float room[ZI_FOLD_BUFFER];
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        zi_fold_tile_squares(fold->dst_dtype, fold->source_dtype, args, tile, lane, room);
    }
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        totals[lane] = zi_fold_column(room, lane);
    }
    for (uint32_t half = ZI_NORM_LANES / 2; half > 0; half /= 2) {
        double before[ZI_WARP_LANES];
        memcpy(before, totals, sizeof before);
        for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
            totals[lane] += before[lane ^ half];
        }
    }
}

/* The tiles of one pass of a warp. */
static void fold_pass(const zi_fold *fold, const zi_fold_args *args, uint64_t first,
                      zi_norm_window *windows, zi_norm_sum *block)
{
    double kept[ZI_WARP_LANES] = {0};
    bool owns[ZI_WARP_LANES];
    for (uint32_t i = 0; i < ZI_FOLD_PASS_TILES; i++) {
        const uint64_t tile = first + (uint64_t)i * ZI_FOLD_TILE;
        if (tile >= args->count) {
            break;
        }
        double totals[ZI_WARP_LANES];
        tile_totals(fold, args, tile, totals);
        for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
            kept[lane] = zi_fold_keeps(lane) == i ? totals[lane] : kept[lane];
        }
    }
    for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
        owns[lane] = zi_fold_owns(args, first, lane);
    }
    warp_add_totals(windows, kept, owns, block);
}

static void run_fold_squares(const zi_fold *fold, const zi_fold_args *args, uint64_t blocks)
{
    for (uint64_t block = 0; block < blocks; block++) {
        zi_norm_sum own = {{0}, 0, 0};
        for (uint32_t warp = 0; warp < ZI_BLOCK_WARPS; warp++) {
            zi_norm_window windows[ZI_WARP_LANES];
            windows_open(windows);
            for (uint64_t pass = 0; pass < args->passes; pass++) {
                const uint64_t first = zi_fold_pass_tile(block, args->passes, pass, warp);
                if (first >= args->count) {
                    break;
                }
                fold_pass(fold, args, first, windows, &own);
            }
            windows_close(windows, &own);
        }
        block_close(&own, args->squares);
    }
}

void zi_fake_run_fold(const zi_fold *fold)
{
    const zi_cuda_grid grid = zi_cuda_grid_of(fold->count);
    const zi_norm_grid norm_grid = zi_norm_grid_of(fold->count);
    zi_fold_args args;
    zi_fold_args_fill(&args, fold->dst, fold->dst_dtype, fold->sources, fold->source_count,
                      fold->source_dtype);
    args.count = fold->count;
    args.warp_count = grid.warp_count;
    args.squares = fold->squares;
    args.passes = norm_grid.passes;
    args.accumulate = fold->accumulate;
    args.scale = zi_fold_scale(fold);
    if (fold->squares != NULL) {
        run_fold_squares(fold, &args, norm_grid.blocks);
        return;
    }
    for (uint64_t warp = 0; warp < grid.blocks * ZI_BLOCK_WARPS; warp++) {
        for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
            zi_fold_lane(fold->dst_dtype, fold->source_dtype, &args, warp, lane);
        }
    }
}

/* As the kernel collects. */
static void collect(const zi_decide_job *job)
{
    static zi_decide_columns columns;
    uint32_t refused = ZI_STEP_ALIKE;
    for (uint32_t thread = ZI_BLOCK_THREADS; thread-- > 0;) {
        const uint32_t warp = thread / ZI_WARP_LANES;
        const uint32_t lane = thread % ZI_WARP_LANES;
        zi_decide_add(&job->messages, warp, lane, &columns);
        const uint32_t first = zi_decide_add_weights(&job->messages, warp, lane, &columns);
        refused = first < refused ? first : refused;
    }
    for (uint32_t lane = ZI_WARP_LANES; lane-- > 0;) {
        zi_decide_join(lane, &columns);
    }
    const zi_step_totals totals =
        zi_decide_totals(&columns, refused, zi_step_compare(&job->messages));
    zi_step_collect_totals(job->input, &job->messages, &totals, job->state, job->part);
}

/* The block's threads come to their columns and groups in any order: here the last one first. */
void zi_fake_run_decide(const zi_decide_job *job)
{
    uint32_t groups = 0;
    if ((job->phases & ZI_DECIDE_COLLECT) != 0) {
        collect(job);
    }
    if ((job->phases & ZI_DECIDE_CONCLUDE) != 0) {
        groups = zi_step_conclude_scalars(job->input, job->parts, job->part_count, job->state,
                                          job->decision);
    }
    while (groups-- > 0) {
        zi_step_decide_group(job->input, groups, job->state, job->decision);
    }
}
