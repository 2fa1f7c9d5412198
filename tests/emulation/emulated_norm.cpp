/* src/kernels/cuda/norm.cu on the CPU. */
#include "emulated_kernels.h"

#include "kernels/cuda/norm.cu"
