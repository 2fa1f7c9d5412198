/* src/kernels/cuda/block.cu on the CPU. */
#include "emulated_kernels.h"

#include "kernels/cuda/block.cu"
