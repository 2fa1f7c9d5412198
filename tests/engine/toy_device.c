/* Owns the toy's memory on either side. */
#include "toy_device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "toy.h"

static bool use_cpu;
struct toy_double toy_double;

void toy_double_begin(uint64_t seed)
{
    if (toy_double.begin != NULL) {
        toy_double.begin(seed);
    }
}

bool toy_double_is_well(void)
{
    return toy_double.is_well == NULL || toy_double.is_well();
}

void toy_device_on_cpu(bool on_cpu)
{
    use_cpu = on_cpu;
}

#ifdef TOY_CUDA

#include "zero/cuda.h"

#define CUDA_CHECK(call)                                                             \
    do {                                                                             \
        const cudaError_t code_ = (call);                                            \
        TOY_CHECK(code_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(code_)); \
    } while (0)

zero_device toy_device(void)
{
    return use_cpu ? ZERO_DEVICE_CPU : ZERO_DEVICE_CUDA;
}

uint64_t toy_device_bytes(void)
{
    size_t unused = 0;
    size_t total = 0;
    CUDA_CHECK(cudaMemGetInfo(&unused, &total));
    return total - unused;
}

static _Thread_local uint32_t stream_index;

void toy_stream_take(uint32_t index)
{
    TOY_CHECK(index < TOY_STREAMS, "no stream %u", index);
    stream_index = index;
}

static cudaStream_t own_stream(void)
{
    static _Thread_local cudaStream_t streams[TOY_STREAMS];
    cudaStream_t *stream = &streams[stream_index];
    if (*stream == NULL) {
        CUDA_CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    }
    return *stream;
}

zero_stream toy_stream(void)
{
    return use_cpu ? zero_stream_host() : zero_stream_cuda(own_stream());
}

/* Between the engine's memory and the host's. */
static void copy(void *to, const void *from, size_t bytes)
{
    if (use_cpu) {
        memcpy(to, from, bytes);
    } else {
        CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, own_stream()));
        CUDA_CHECK(cudaStreamSynchronize(own_stream()));
    }
}

#else

uint64_t toy_device_bytes(void)
{
    unsigned long long mapped = 0;
    unsigned long long resident = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    TOY_CHECK(statm != NULL && fscanf(statm, "%llu %llu", &mapped, &resident) == 2, "no statm");
    (void)fclose(statm);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

zero_device toy_device(void)
{
    return ZERO_DEVICE_CPU;
}

zero_stream toy_stream(void)
{
    return zero_stream_host();
}

static void copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

#endif

float *toy_scalar_open(float value)
{
    void *scalar = NULL;
#ifdef TOY_CUDA
    if (!use_cpu) {
        CUDA_CHECK(cudaMalloc(&scalar, sizeof value));
    }
#endif
    scalar = scalar != NULL ? scalar : malloc(sizeof value);
    TOY_CHECK(scalar != NULL, "no memory");
    toy_put(scalar, &value, sizeof value);
    return scalar;
}

void toy_settle(void)
{
#ifdef TOY_CUDA
    CUDA_CHECK(cudaDeviceSynchronize());
#endif
}

void toy_scalar_close(float *scalar)
{
#ifdef TOY_CUDA
    if (!use_cpu) {
        CUDA_CHECK(cudaFree(scalar));
        return;
    }
#endif
    free(scalar);
}

/* Freed with the thread. */
static pthread_key_t room_key;
static pthread_once_t room_once = PTHREAD_ONCE_INIT;

static void make_room_key(void)
{
    TOY_CHECK(pthread_key_create(&room_key, free) == 0, "no key");
}

void *toy_fetch(void *data, size_t bytes)
{
    static _Thread_local size_t room_bytes;
    (void)pthread_once(&room_once, make_room_key);
    void *room = pthread_getspecific(room_key);
    if (room == NULL || bytes > room_bytes) {
        free(room);
        room = malloc(bytes + 1);
        room_bytes = bytes;
        TOY_CHECK(room != NULL, "no memory");
        TOY_CHECK(pthread_setspecific(room_key, room) == 0, "no memory");
    }
    if (bytes != 0) {
        copy(room, data, bytes);
    }
    return room;
}

void toy_put(void *data, const void *host, size_t bytes)
{
    if (bytes != 0) {
        copy(data, host, bytes);
    }
}
