/* Owns the order between streams of several ranks in one process: a CUDA event that one rank
 * records and the others wait for. When that is safe to do is the collective's matter. */
#include "device/cuda/cuda_fence.h"

#include <stdatomic.h>

#include "core/error.h"
#include "core/memory.h"

struct zi_fence {
    cudaEvent_t native;
    int ordinal; /* of the GPU whose streams mark it */
};

zero_status zi_cuda_fence_create(int ordinal, zi_fence **out)
{
    *out = NULL;
    zi_fence *fence = NULL;
    ZI_TRY(zi_calloc(1, sizeof *fence, (void **)&fence));
    fence->ordinal = ordinal;
    const zero_status status =
        zi_cuda_check(cudaEventCreateWithFlags(&fence->native, cudaEventDisableTiming),
                      "cudaEventCreateWithFlags");
    if (status != ZERO_OK) {
        zi_free(fence);
        return status;
    }
    *out = fence;
    return ZERO_OK;
}

void zi_cuda_fence_destroy(zi_fence *fence)
{
    if (fence != NULL) {
        (void)cudaEventDestroy(fence->native);
        zi_free(fence);
    }
}

zero_status zi_cuda_fence_mark(zi_fence *fence, const cuda_stream *stream)
{
    return zi_cuda_check(cudaEventRecord(fence->native, stream->native), "cudaEventRecord");
}

/* Let kernels of the current GPU read the memory of another. */
static zero_status open_peer(int own, int other, _Atomic uint64_t *opened)
{
    const uint64_t bit = UINT64_C(1) << (other % 64);
    if ((atomic_load(opened) & bit) != 0) {
        return ZERO_OK;
    }
    int can = 0;
    ZI_TRY(zi_cuda_check(cudaDeviceCanAccessPeer(&can, own, other), "cudaDeviceCanAccessPeer"));
    if (!can) {
        ZI_FAIL(ZERO_UNSUPPORTED,
                "GPU %d cannot read the memory of GPU %d; start one process for each GPU, or put "
                "the ranks on GPUs that can",
                own, other);
    }
    const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
    } else {
        ZI_TRY(zi_cuda_check(code, "cudaDeviceEnablePeerAccess"));
    }
    (void)atomic_fetch_or(opened, bit);
    return ZERO_OK;
}

zero_status zi_cuda_fence_follow(const cuda_stream *stream, int ordinal, _Atomic uint64_t *opened,
                                 const zi_fence *fence)
{
    if (fence->ordinal != ordinal) {
        ZI_TRY(open_peer(ordinal, fence->ordinal, opened));
    }
    return zi_cuda_check(cudaStreamWaitEvent(stream->native, fence->native, 0),
                         "cudaStreamWaitEvent");
}
