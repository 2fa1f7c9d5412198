/* The kernels of layer.h: one thread for each number that is written, so sums have one order. */
#include "layer.h"

__global__ static void forward(const float *weight, const float *in, float *out)
{
    const int sample = (int)blockIdx.x;
    const int row = (int)threadIdx.x;
    float sum = 0.0f;
    for (int i = 0; i < WIDTH; i++) {
        sum += weight[row * WIDTH + i] * in[sample * WIDTH + i];
    }
    out[sample * WIDTH + row] = sum;
}

__global__ static void backward_weight(float *grad, const float *in, const float *d)
{
    const int row = (int)blockIdx.x;
    const int column = (int)threadIdx.x;
    float sum = 0.0f;
    for (int sample = 0; sample < SAMPLES; sample++) {
        sum += d[sample * WIDTH + row] * in[sample * WIDTH + column];
    }
    grad[row * WIDTH + column] += sum;
}

__global__ static void backward_input(const float *weight, const float *d, float *d_in)
{
    const int sample = (int)blockIdx.x;
    const int column = (int)threadIdx.x;
    float sum = 0.0f;
    for (int row = 0; row < WIDTH; row++) {
        sum += d[sample * WIDTH + row] * weight[row * WIDTH + column];
    }
    d_in[sample * WIDTH + column] = sum;
}

__global__ static void loss(const float *out, const float *in, float *d)
{
    const int i = (int)(blockIdx.x * WIDTH + threadIdx.x);
    d[i] = (out[i] - in[i ^ 1]) * 2.0f / VALUES;
}

cudaError_t layer_forward(cudaStream_t stream, const float *weight, const float *in, float *out)
{
    forward<<<SAMPLES, WIDTH, 0, stream>>>(weight, in, out);
    return cudaGetLastError();
}

cudaError_t layer_backward(cudaStream_t stream, const float *weight, float *grad, const float *in,
                           const float *d, float *d_in)
{
    backward_weight<<<WIDTH, WIDTH, 0, stream>>>(grad, in, d);
    backward_input<<<SAMPLES, WIDTH, 0, stream>>>(weight, d, d_in);
    return cudaGetLastError();
}

cudaError_t layer_loss(cudaStream_t stream, const float *out, const float *in, float *d)
{
    loss<<<SAMPLES, WIDTH, 0, stream>>>(out, in, d);
    return cudaGetLastError();
}
