/* A linear layer on a GPU, as any trainer has its kernels: launched on a stream, nothing waited
 * for. All pointers are device memory; inputs and outputs are SAMPLES rows of WIDTH values. */
#ifndef EXAMPLES_LAYER_H
#define EXAMPLES_LAYER_H

#include <cuda_runtime_api.h>

enum { LAYERS = 3, WIDTH = 16, SAMPLES = 32, WEIGHTS = WIDTH * WIDTH, VALUES = SAMPLES * WIDTH };

#ifdef __cplusplus
extern "C" {
#endif

/* out = weight in, for every sample. */
cudaError_t layer_forward(cudaStream_t stream, const float *weight, const float *in, float *out);

/* Adds to the weight's gradient; sets d_in = d loss / d in from d = d loss / d out. */
cudaError_t layer_backward(cudaStream_t stream, const float *weight, float *grad, const float *in,
                           const float *d, float *d_in);

/* d = d loss / d out, where the loss is the mean square of out less the input with neighbours
 * swapped. */
cudaError_t layer_loss(cudaStream_t stream, const float *out, const float *in, float *d);

#ifdef __cplusplus
}
#endif

#endif
