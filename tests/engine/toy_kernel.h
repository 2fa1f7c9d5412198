/* Forward and backward of the toy as kernels of the CUDA runtime's double, or on a caller's stream
 * of a checked device: they only enqueue, so that nothing is ordered by the host. Their gradient is
 * that of trainer->step and the micro-step's sample, without the loss scale. */
#ifndef TESTS_ENGINE_TOY_KERNEL_H
#define TESTS_ENGINE_TOY_KERNEL_H

#include "toy.h"

/* Acquire, a kernel that reads each tensor, release. */
zero_status toy_kernel_forward(toy_trainer *trainer, uint32_t unit, zero_pass pass);
/* Acquire, a kernel for each tensor that reads it and adds to its gradient, release. */
zero_status toy_kernel_backward(toy_trainer *trainer, uint32_t unit);

#endif
