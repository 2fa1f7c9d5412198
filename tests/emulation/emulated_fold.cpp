/* src/kernels/cuda/fold.cu on the CPU. */
#include "emulated_kernels.h"

#include "kernels/cuda/fold.cu"
