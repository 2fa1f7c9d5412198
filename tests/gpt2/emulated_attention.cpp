/* The kernels of examples/gpt2/gpt2_cuda_attention.cu on the CPU. */
#include "gpt2_emulation.h"

#include "gpt2_cuda_attention.cu"
