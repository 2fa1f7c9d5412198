/* Owns the toy's kernels. */
#include "toy_kernel.h"

#include <math.h>

#ifdef TOY_CUDA
#include "fake_cuda.h"
#else
#include "checked_device.h"
#endif

/* One kernel: reads a tensor's parameters and adds a sample's gradient; without `grad` it only
 * reads. */
typedef struct toy_kernel {
    const void *param;
    void *grad;
    uint64_t count;
    uint64_t step;
    uint64_t sample;
    zero_dtype param_dtype;
    zero_dtype grad_dtype;
    uint32_t tensor;
    toy_flavour flavour;
} toy_kernel;

static void run_kernel(void *payload)
{
    const toy_kernel *k = payload;
    for (uint64_t e = 0; e < k->count; e++) {
        const float param = toy_decode(toy_load(k->param, e, k->param_dtype), k->param_dtype);
        TOY_CHECK(isfinite(param), "a parameter of a poisoned slot"); /* which reads as NaN */
        if (k->grad != NULL) {
            const float old = toy_decode(toy_load(k->grad, e, k->grad_dtype), k->grad_dtype);
            const float sum =
                old + toy_gradient(k->flavour, k->tensor, e, k->step, k->sample, param);
            toy_store(k->grad, e, k->grad_dtype, toy_encode(sum, k->grad_dtype));
        }
    }
}

#ifdef TOY_CUDA
static void put_kernel(const toy_kernel *kernel, const race_range *ranges, size_t range_count)
{
    const fake_cuda_work work = {
        .name = kernel->grad != NULL ? "backward" : "forward",
        .kind = FAKE_CUDA_KERNEL,
        .run = run_kernel,
        .payload = kernel,
        .payload_bytes = sizeof *kernel,
        .ranges = ranges,
        .range_count = range_count,
    };
    const cudaError_t code = fake_cuda_enqueue(toy_stream().native, &work);
    TOY_CHECK(code == cudaSuccess, "%s: %s", work.name, cudaGetErrorString(code));
}
#else
static zero_status run_task(void *argument)
{
    run_kernel(argument);
    return ZERO_OK;
}

static void put_kernel(const toy_kernel *kernel, const race_range *ranges, size_t range_count)
{
    checked_caller_put(toy_stream(), run_task, kernel, sizeof *kernel, ranges, range_count);
}
#endif

static void launch(const toy_kernel *kernel)
{
    const size_t param_bytes = kernel->count * zero_dtype_bytes(kernel->param_dtype);
    const size_t grad_bytes =
        kernel->grad != NULL ? kernel->count * zero_dtype_bytes(kernel->grad_dtype) : 0;
    const race_range ranges[] = {{kernel->param, param_bytes, false},
                                 {kernel->grad, grad_bytes, false},
                                 {kernel->grad, grad_bytes, true}};
    put_kernel(kernel, ranges, 3);
}

/* Kernels over all tensors that a unit uses; backward also adds the gradient. */
static zero_status use_unit(toy_trainer *trainer, uint32_t unit, bool backward)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        zero_view param = {0};
        zero_view grad = {0};
        if (!toy_unit_uses(model, unit, t)) {
            continue;
        }
        TOY_TRY(zero_tensor_data(trainer->engine, t, &param));
        if (backward && (model->tensors[t].desc.flags & ZERO_TENSOR_FROZEN) == 0) {
            TOY_TRY(zero_tensor_grad(trainer->engine, t, &grad));
        }
        const toy_kernel kernel = {
            .param = param.data,
            .grad = grad.data,
            .count = param.count,
            .step = trainer->step,
            .sample = (uint64_t)trainer->micro * trainer->ranks + trainer->rank,
            .param_dtype = param.dtype,
            .grad_dtype = grad.dtype,
            .tensor = t,
            .flavour = trainer->run->flavour,
        };
        if (param.count != 0) {
            launch(&kernel);
        }
    }
    return ZERO_OK;
}

zero_status toy_kernel_forward(toy_trainer *trainer, uint32_t unit, zero_pass pass)
{
    TOY_TRY(zero_unit_acquire(trainer->engine, unit, pass, toy_stream(), NULL));
    TOY_TRY(use_unit(trainer, unit, false));
    return zero_unit_release(trainer->engine, unit, toy_stream());
}

zero_status toy_kernel_backward(toy_trainer *trainer, uint32_t unit)
{
    TOY_TRY(toy_acquire(trainer, unit, ZERO_PASS_BACKWARD));
    TOY_TRY(use_unit(trainer, unit, true));
    return toy_release(trainer, unit, ZERO_PASS_BACKWARD);
}
