/* src/kernels/cuda/update.cu on the CPU. */
#include "emulated_kernels.h"

#include "kernels/cuda/update.cu"
