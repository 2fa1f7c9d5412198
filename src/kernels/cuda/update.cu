/* Owns the kernels of updates: one launch for all segments of a shard. A kernel is made for each
 * optimizer and combination of types that a job may have, so that no lane decides anything about
 * them; but those with a remainder or codes, which have much to do for each byte, ask for the
 * gradient's type when they run. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/update_body.h"
#include "kernels/cuda/update_codes.h"

/* The least blocks a processor, which bounds the registers: none of the kernels spills any. */
#define BLOCKS(param, moment, master, optimizer)                                  \
    ((param) == ZERO_DTYPE_F16 && (master) == ZERO_DTYPE_DEFAULT &&               \
             ((moment) == ZERO_DTYPE_I8 ||                                        \
              ((moment) == ZERO_DTYPE_F32 && (optimizer) == ZERO_OPTIMIZER_LAMB)) \
         ? 2                                                                      \
         : 3)

/* Add to the job's count of what a warp's lanes have found. */
static __forceinline__ __device__ void add_stalled(uint64_t *count, uint32_t stalled, uint32_t lane)
{
    uint64_t sum = stalled;
#pragma unroll
    for (int distance = ZI_WARP_LANES / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(ZI_WARP_ALL, sum, distance);
    }
    if (lane == 0 && sum != 0) {
        atomicAdd((unsigned long long *)count, (unsigned long long)sum);
    }
}

/* All work of a lane. Its warp's range is asked for anew for each segment, since there is no
 * register to keep it in. */
static __forceinline__ __device__ void update_lane(zi_update_form form, const zi_update_args *args)
{
    zi_warp_range range = zi_warp_range_of(zi_kernel_warp(), args->warp_count, args->count);
    if (args->decision->skip || range.begin == range.end) {
        return;
    }
    uint32_t stalled = 0;
    const uint32_t lane = zi_kernel_lane();
    const zi_segment *const end = args->segments + args->segment_count;
    const zi_segment *segment =
        args->segments + zi_segment_find(args->segments, args->segment_count, range.begin);
    ZI_NO_UNROLL
    for (; segment != end && segment->offset < range.end; segment++) {
        zi_update_walk walk = zi_update_walk_of(form, args, segment, range);
        zi_update_trust(form, args, &walk);
        stalled += zi_update_has_codes(form) ? zi_coded_walk_through(form, args, &walk, lane)
                                             : zi_update_walk_through(form, args, &walk, lane);
        range = zi_warp_range_of(zi_kernel_warp(), args->warp_count, args->count);
    }
    if (args->stalled != NULL) {
        add_stalled(args->stalled, stalled, lane);
    }
}

template <zero_dtype grad, zero_dtype param, zero_dtype moment, zero_dtype master,
          zero_optimizer optimizer>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, BLOCKS(param, moment, master, optimizer))
    update_kernel(const __grid_constant__ zi_update_args args)
{
    const zi_update_form form = {optimizer, grad, param, moment, master};
    update_lane(form, &args);
}

/* grad: unless it is asked for at run time. */
template <zero_optimizer optimizer, zero_dtype grad, zero_dtype param, zero_dtype master>
static const void *choose_moment(zi_update_form form)
{
    switch (form.moment) {
    case ZERO_DTYPE_F32:
        return (const void *)update_kernel<grad, param, ZERO_DTYPE_F32, master, optimizer>;
    case ZERO_DTYPE_BF16:
        return (const void *)update_kernel<grad, param, ZERO_DTYPE_BF16, master, optimizer>;
    default:
        return (
            const void *)update_kernel<ZERO_DTYPE_DEFAULT, param, ZERO_DTYPE_I8, master, optimizer>;
    }
}

template <zero_optimizer optimizer, zero_dtype param, zero_dtype master>
static const void *choose_grad(zi_update_form form)
{
    switch (form.grad) {
    case ZERO_DTYPE_F32:
        return choose_moment<optimizer, ZERO_DTYPE_F32, param, master>(form);
    case ZERO_DTYPE_BF16:
        return choose_moment<optimizer, ZERO_DTYPE_BF16, param, master>(form);
    default:
        return choose_moment<optimizer, ZERO_DTYPE_F16, param, master>(form);
    }
}

/* NULL: no job has such a parameter and master. */
template <zero_optimizer optimizer> static const void *choose_master(zi_update_form form)
{
    switch (form.master) {
    case ZERO_DTYPE_F32:
        return form.param == ZERO_DTYPE_BF16
                   ? choose_grad<optimizer, ZERO_DTYPE_BF16, ZERO_DTYPE_F32>(form)
               : form.param == ZERO_DTYPE_F16
                   ? choose_grad<optimizer, ZERO_DTYPE_F16, ZERO_DTYPE_F32>(form)
                   : choose_grad<optimizer, ZERO_DTYPE_NONE, ZERO_DTYPE_F32>(form);
    case ZERO_DTYPE_DEFAULT:
        return form.param == ZERO_DTYPE_BF16
                   ? choose_grad<optimizer, ZERO_DTYPE_BF16, ZERO_DTYPE_DEFAULT>(form)
               : form.param == ZERO_DTYPE_F16
                   ? choose_grad<optimizer, ZERO_DTYPE_F16, ZERO_DTYPE_DEFAULT>(form)
                   : NULL;
    case ZERO_DTYPE_REMAINDER16:
        return form.param == ZERO_DTYPE_BF16
                   ? choose_moment<optimizer, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_BF16,
                                   ZERO_DTYPE_REMAINDER16>(form)
                   : NULL;
    case ZERO_DTYPE_REMAINDER8:
        return form.param == ZERO_DTYPE_BF16
                   ? choose_moment<optimizer, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_BF16,
                                   ZERO_DTYPE_REMAINDER8>(form)
                   : NULL;
    default:
        return NULL;
    }
}

#define CHOOSE(KIND, name)      \
    case ZERO_OPTIMIZER_##KIND: \
        return choose_master<ZERO_OPTIMIZER_##KIND>(form);

/* NULL: no optimizer of the library, or no form that a job has. */
static const void *choose_kernel(zi_update_form form)
{
    switch (form.optimizer) {
        ZI_OPTIMIZERS(CHOOSE)
    default:
        return NULL;
    }
}

static const zero_dtype moments[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_I8};

/* All kernels of one optimizer. */
static cudaError_t load_kernels(zero_optimizer optimizer)
{
    static const struct {
        zero_dtype param;
        zero_dtype master;
    } truths[] = {
        {ZERO_DTYPE_BF16, ZERO_DTYPE_DEFAULT},   {ZERO_DTYPE_F16, ZERO_DTYPE_DEFAULT},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_F32},       {ZERO_DTYPE_F16, ZERO_DTYPE_F32},
        {ZERO_DTYPE_NONE, ZERO_DTYPE_F32},       {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8}};
    cudaError_t code = cudaSuccess;
    for (const zero_dtype grad : zi_elements) {
        for (const zero_dtype moment : moments) {
            for (const auto &truth : truths) {
                const zi_update_form form = {optimizer, grad, truth.param, moment, truth.master};
                /* One that asks for the gradient's type is there for all of them. */
                const bool asks = moment == ZERO_DTYPE_I8 || zi_dtype_is_remainder(truth.master);
                if (code == cudaSuccess && (!asks || grad == zi_elements[0])) {
                    code = zi_kernel_load(choose_kernel(form));
                }
            }
        }
    }
    return code;
}

#define LOAD(KIND, name) code = code == cudaSuccess ? load_kernels(ZERO_OPTIMIZER_##KIND) : code;

extern "C" cudaError_t zi_cuda_load_update(void)
{
    cudaError_t code = cudaSuccess;
    ZI_OPTIMIZERS(LOAD)
    return code;
}

static bool is_moment(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_F32 || dtype == ZERO_DTYPE_BF16 || dtype == ZERO_DTYPE_I8;
}

extern "C" cudaError_t zi_cuda_launch_update(cudaStream_t stream, const zi_update_job *job)
{
    const void *const kernel = choose_kernel(zi_update_form_of(job));
    if (kernel == NULL || !zi_is_element(job->grad_dtype) || !is_moment(job->moment_dtype)) {
        return cudaErrorInvalidValue;
    }
    zi_update_args args = zi_update_args_of(job);
    return zi_kernel_launch(kernel, zi_update_grid_of(job).blocks, &args, stream);
}
