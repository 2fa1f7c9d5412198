/* Owns the kernels of updates: one launch for all segments of a shard. A kernel is made for each
 * optimizer and combination of types that a job may have, so that no lane decides anything about
 * them. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/update_body.h"

/* The least blocks a processor, which bounds the registers: none of the kernels spills any. */
#define BLOCKS 3

template <zero_dtype grad, zero_dtype param, zero_dtype moment, int has_master,
          zero_optimizer optimizer>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, BLOCKS)
    update_kernel(const __grid_constant__ zi_update_args args)
{
    const zi_update_form form = {optimizer, grad, param, moment, has_master};
    zi_update_lane(form, &args, zi_kernel_warp(), zi_kernel_lane());
}

template <zero_optimizer optimizer, zero_dtype grad, zero_dtype moment>
static const void *choose_param(zi_update_form form)
{
    if (!form.has_master) {
        return form.param == ZERO_DTYPE_BF16
                   ? (const void *)update_kernel<grad, ZERO_DTYPE_BF16, moment, 0, optimizer>
                   : (const void *)update_kernel<grad, ZERO_DTYPE_F16, moment, 0, optimizer>;
    }
    switch (form.param) {
    case ZERO_DTYPE_BF16:
        return (const void *)update_kernel<grad, ZERO_DTYPE_BF16, moment, 1, optimizer>;
    case ZERO_DTYPE_F16:
        return (const void *)update_kernel<grad, ZERO_DTYPE_F16, moment, 1, optimizer>;
    default:
        return (const void *)update_kernel<grad, ZERO_DTYPE_NONE, moment, 1, optimizer>;
    }
}

template <zero_optimizer optimizer, zero_dtype grad>
static const void *choose_moment(zi_update_form form)
{
    return form.moment == ZERO_DTYPE_F32 ? choose_param<optimizer, grad, ZERO_DTYPE_F32>(form)
                                         : choose_param<optimizer, grad, ZERO_DTYPE_BF16>(form);
}

template <zero_optimizer optimizer> static const void *choose_grad(zi_update_form form)
{
    switch (form.grad) {
    case ZERO_DTYPE_F32:
        return choose_moment<optimizer, ZERO_DTYPE_F32>(form);
    case ZERO_DTYPE_BF16:
        return choose_moment<optimizer, ZERO_DTYPE_BF16>(form);
    default:
        return choose_moment<optimizer, ZERO_DTYPE_F16>(form);
    }
}

#define CHOOSE(KIND, name)      \
    case ZERO_OPTIMIZER_##KIND: \
        return choose_grad<ZERO_OPTIMIZER_##KIND>(form);

/* NULL: no optimizer of the library. */
static const void *choose_kernel(zi_update_form form)
{
    switch (form.optimizer) {
        ZI_OPTIMIZERS(CHOOSE)
    default:
        return NULL;
    }
}

/* All kernels of one optimizer. */
static cudaError_t load_kernels(zero_optimizer optimizer)
{
    static const zero_dtype moments[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16};
    static const struct {
        zero_dtype param;
        int32_t has_master;
    } truths[] = {{ZERO_DTYPE_BF16, 0},
                  {ZERO_DTYPE_F16, 0},
                  {ZERO_DTYPE_BF16, 1},
                  {ZERO_DTYPE_F16, 1},
                  {ZERO_DTYPE_NONE, 1}};
    cudaError_t code = cudaSuccess;
    for (const zero_dtype grad : zi_elements) {
        for (const zero_dtype moment : moments) {
            for (const auto &truth : truths) {
                const zi_update_form form = {optimizer, grad, truth.param, moment,
                                             truth.has_master};
                code = code == cudaSuccess ? zi_kernel_load(choose_kernel(form)) : code;
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

extern "C" cudaError_t zi_cuda_launch_update(cudaStream_t stream, const zi_update_job *job)
{
    const zi_update_form form = zi_update_form_of(job);
    if (choose_kernel(form) == NULL || !zi_is_element(form.grad) ||
        (form.moment != ZERO_DTYPE_F32 && form.moment != ZERO_DTYPE_BF16) ||
        (!form.has_master && !zi_is_element(form.param))) {
        return cudaErrorInvalidValue;
    }
    zi_update_args args = zi_update_args_of(job);
    return zi_kernel_launch(choose_kernel(form), zi_update_grid_of(job).blocks, &args, stream);
}
