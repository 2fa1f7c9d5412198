/* src/kernels/cuda/packed.cu on the CPU. */
#include "emulated_kernels.h"

#include "kernels/cuda/packed.cu"
