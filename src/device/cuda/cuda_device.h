/* The CUDA device: one GPU's memory, its streams beside the caller's, events.
 *
 * A direct device issues on the calling thread: what is put on a stream is with the driver when the
 * call returns. A queued device gives each of its own streams a thread that issues, so that a task
 * may wait for other ranks without blocking the caller. There an event means nothing to the driver
 * before its record is issued; whoever waits for the event first waits for that. The host waits for
 * the GPU only on the host stream, in event_wait, in create and in destroy. */
#ifndef ZI_DEVICE_CUDA_CUDA_DEVICE_H
#define ZI_DEVICE_CUDA_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "device/device.h"

/* For kernels and collectives, in a task: where to put their work. */
cudaStream_t zi_cuda_stream_native(const zi_stream *stream);

/* DEVICE, or OUT_OF_MEMORY, naming the call and CUDA's text; OK for cudaSuccess. */
zero_status zi_cuda_check(cudaError_t code, const char *call);

#endif
