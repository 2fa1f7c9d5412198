/* Times at which a GPU's streams came to a point, in the host's clock. */
#ifndef ZI_DEVICE_CUDA_CUDA_TIMES_H
#define ZI_DEVICE_CUDA_CUDA_TIMES_H

#include "device/cuda/cuda_device.h"

typedef struct cuda_times cuda_times;

/* idle: a stream of which nobody expects work to be under way; it ties the GPU's times to the
 * host's clock. */
zero_status zi_cuda_times_create(cudaStream_t idle, cuda_times **out);
/* Accepts NULL. */
void zi_cuda_times_destroy(cuda_times *times);

/* As zi_device_ops.timestamp, on any stream but the host's. Any thread. */
zero_status zi_cuda_times_mark(cuda_times *times, cudaStream_t stream, uint64_t *ns);
/* As zi_device_ops.timestamps_flush. Any thread. */
zero_status zi_cuda_times_settle(cuda_times *times);

#endif
