/* src/kernels/cuda/measure.cu on the CPU. */
#include "emulated_kernels.h"

#include "kernels/cuda/measure.cu"
