/* Memory of the fake: allocations, registrations, copies, fills and what the host itself touches.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_stream.h"

/* The byte that memory holds until it is set. */
#define UNSET_BYTE 0xa5

/* ---- memory ---- */

static size_t page_ceil(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* A page that stays out of reach follows, so that neighbours are never adjacent. */
static cudaError_t map_memory(void **out, size_t bytes)
{
    const size_t mapped_bytes = page_ceil(bytes) + page_ceil(1);
    void *base =
        mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return cudaErrorMemoryAllocation;
    }
    memset(base, UNSET_BYTE, page_ceil(bytes));
    const size_t open_bytes = fake.guards ? 0 : page_ceil(bytes);
    if (mprotect((unsigned char *)base + open_bytes, mapped_bytes - open_bytes, PROT_NONE) != 0) {
        (void)munmap(base, mapped_bytes);
        return cudaErrorMemoryAllocation;
    }
    race_region *region = race_region_add(base, bytes, fake_device, NULL);
    region->mapped_bytes = mapped_bytes;
    region->guarded = fake.guards;
    *out = base;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    cudaError_t code = fake_enter("cudaMalloc");
    fake.syncs++;
    if (code == cudaSuccess) {
        code = fake_capture_unsafe("cudaMalloc");
    }
    if (code == cudaSuccess) {
        *devPtr = NULL;
        code = size == 0 ? cudaSuccess : map_memory(devPtr, size);
    }
    return fake_leave(code);
}

/* Nothing may be pending on memory that goes. What is runs now, for the test to go on: CUDA waits
 * here too, but nobody should count on it, so the host learns nothing. */
static void retire(race_region *region, const char *call)
{
    race_access pending;
    const fake_cuda_range all = {region->base, region->bytes, true};
    if (fake.sticky == cudaSuccess &&
        !race_region_settled(region, &all, fake_host_clock(), true, &pending)) {
        race_fault(RACE_MISUSE, "%s of %s, which %s may still use", call, race_region_text(region),
                   race_access_text(pending));
    }
    for (int device = 0; device < FAKE_CUDA_DEVICES_MAX; device++) {
        fake_run_device(device);
    }
    if (region->device != RACE_HOST) {
        (void)munmap(region->base, region->mapped_bytes);
    }
    race_region_remove(region);
}

cudaError_t cudaFree(void *devPtr)
{
    cudaError_t code = fake_enter("cudaFree");
    fake.syncs++;
    race_region *region = race_region_of(devPtr);
    if (devPtr == NULL || !fake_may_release(code)) {
        return fake_leave(code);
    }
    if (region == NULL || region->base != devPtr || region->device == RACE_HOST) {
        race_fault(RACE_MISUSE, "cudaFree of what cudaMalloc did not give");
        code = cudaErrorInvalidValue;
    } else {
        retire(region, "cudaFree");
    }
    return fake_leave(code);
}

/* The memory that every GPU of the fake has. */
#define DEVICE_BYTES ((size_t)1 << 40)

/* Weak: a program may have its own, for what it wants to be told. */
__attribute__((weak)) cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    const cudaError_t code = fake_enter("cudaMemGetInfo");
    if (code == cudaSuccess) {
        *total = DEVICE_BYTES;
        *free = DEVICE_BYTES - race_region_bytes(fake_device);
    }
    return fake_leave(code);
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
    cudaError_t code = fake_enter("cudaHostRegister");
    fake.syncs++;
    if (code == cudaSuccess) {
        code = fake_capture_unsafe("cudaHostRegister");
    }
    if (code == cudaSuccess && (ptr == NULL || size == 0)) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess && race_region_of(ptr) != NULL) {
        code = cudaErrorHostMemoryAlreadyRegistered;
    }
    if (code == cudaSuccess) {
        const race_access set_by = fake_host_access("cudaHostRegister");
        race_region *region = race_region_add(ptr, size, RACE_HOST, &set_by);
        /* Portable or not: one address space. Mapping is promised with a flag or with none. */
        region->by_copy = flags != cudaHostRegisterDefault && (flags & cudaHostRegisterMapped) == 0;
    }
    return fake_leave(code);
}

cudaError_t cudaHostUnregister(void *ptr)
{
    cudaError_t code = fake_enter("cudaHostUnregister");
    fake.syncs++;
    race_region *region = race_region_of(ptr);
    if (!fake_may_release(code)) {
        return fake_leave(code);
    }
    if (region == NULL || region->base != ptr || region->device != RACE_HOST) {
        race_fault(RACE_MISUSE, "cudaHostUnregister of what is not registered");
        code = cudaErrorHostMemoryNotRegistered;
    } else {
        retire(region, "cudaHostUnregister");
    }
    return fake_leave(code);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    const cudaError_t code = fake_enter("cudaPointerGetAttributes");
    if (code == cudaSuccess) {
        const race_region *region = race_region_of(ptr);
        union {
            const void *given;
            void *plain;
        } pointer = {ptr};
        *attributes = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered};
        attributes->device = -2; /* cudaInvalidDeviceId */
        attributes->hostPointer = pointer.plain;
        if (region != NULL) {
            const bool host = region->device == RACE_HOST;
            attributes->type = host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
            attributes->device = host ? 0 : region->device;
            attributes->devicePointer = pointer.plain;
            attributes->hostPointer = host ? pointer.plain : NULL;
        }
    }
    return fake_leave(code);
}

/* ---- copies and fills ---- */

typedef struct copy_payload {
    void *target;
    const void *source;
    size_t bytes;
} copy_payload;

typedef struct staged_payload {
    void *target;
    size_t bytes;
    unsigned char data[];
} staged_payload;

typedef struct fill_payload {
    void *target;
    int byte;
    size_t bytes;
} fill_payload;

static void run_copy(void *payload)
{
    const copy_payload *copy = payload;
    memmove(copy->target, copy->source, copy->bytes);
}

static void run_staged(void *payload)
{
    const staged_payload *copy = payload;
    memcpy(copy->target, copy->data, copy->bytes);
}

static void run_fill(void *payload)
{
    const fill_payload *fill = payload;
    memset(fill->target, fill->byte, fill->bytes);
}

/* How a copy goes: whether each side is a device's, and whether the host's side is registered. */
typedef struct route {
    bool target_device;
    bool source_device;
    bool target_pageable;
    bool source_pageable;
} route;

static route route_of(const void *target, const void *source)
{
    const race_region *to = race_region_of(target);
    const race_region *from = race_region_of(source);
    return (route){.target_device = to != NULL && to->device != RACE_HOST,
                   .source_device = from != NULL && from->device != RACE_HOST,
                   .target_pageable = to == NULL,
                   .source_pageable = from == NULL};
}

static bool kind_fits(route way, enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !way.target_device && !way.source_device;
    case cudaMemcpyHostToDevice:
        return way.target_device && !way.source_device;
    case cudaMemcpyDeviceToHost:
        return !way.target_device && way.source_device;
    case cudaMemcpyDeviceToDevice:
        return way.target_device && way.source_device;
    case cudaMemcpyDefault:
        return true;
    }
    return false;
}

/* From pageable memory: its bytes are taken now. */
static cudaError_t put_staged(cudaStream_t stream, const char *name, const copy_payload *copy)
{
    const size_t payload_bytes = sizeof(staged_payload) + copy->bytes;
    staged_payload *staged = race_allocate(payload_bytes);
    staged->target = copy->target;
    staged->bytes = copy->bytes;
    memcpy(staged->data, copy->source, copy->bytes);
    const fake_cuda_range range = {copy->target, copy->bytes, true};
    const fake_cuda_work work = {name,          FAKE_CUDA_COPY, run_staged, staged,
                                 payload_bytes, &range,         1};
    const cudaError_t code = fake_stream_put(stream, &work);
    free(staged);
    return code;
}

static cudaError_t put_copy(cudaStream_t stream, const char *name, const copy_payload *copy)
{
    const fake_cuda_range ranges[2] = {{copy->source, copy->bytes, false},
                                       {copy->target, copy->bytes, true}};
    const fake_cuda_work work = {name, FAKE_CUDA_COPY, run_copy, copy, sizeof *copy, ranges, 2};
    return fake_stream_put(stream, &work);
}

/* Enqueue, and wait where CUDA does. blocking: of the two calls, the one that waits for more. */
static cudaError_t copy_on(cudaStream_t stream, const copy_payload *copy, enum cudaMemcpyKind kind,
                           bool blocking)
{
    const route way = route_of(copy->target, copy->source);
    const char *name = blocking ? "cudaMemcpy" : "cudaMemcpyAsync";
    if (!kind_fits(way, kind)) {
        return cudaErrorInvalidValue;
    }
    const bool staged = way.target_device && way.source_pageable;
    const bool to_host = !way.target_device && (blocking || way.target_pageable);
    const bool waits = to_host || (!way.target_device && !way.source_device) ||
                       (blocking && !staged && !way.source_device);
    fake.syncs += blocking || staged || waits;
    cudaStream_t found = NULL;
    cudaError_t code = fake_stream_find(stream, &found);
    if (code == cudaSuccess && (staged || waits)) {
        code = fake_capture_asked(found, NULL);
    }
    if (code == cudaSuccess) {
        code = staged ? put_staged(found, name, copy) : put_copy(found, name, copy);
    }
    if (code == cudaSuccess && waits) {
        fake_host_wait(found, found->line.number, &found->line.clock);
    }
    return code;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const copy_payload copy = {dst, src, count};
    cudaError_t code = fake_enter("cudaMemcpyAsync");
    if (code == cudaSuccess && count > 0) {
        code = copy_on(stream, &copy, kind, false);
    }
    return fake_leave(code);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
    const copy_payload copy = {dst, src, count};
    cudaError_t code = fake_enter("cudaMemcpy");
    if (code == cudaSuccess) {
        code = fake_capture_unsafe("cudaMemcpy");
    }
    if (code == cudaSuccess && count > 0) {
        code = copy_on(NULL, &copy, kind, true);
    }
    return fake_leave(code);
}

static cudaError_t fill_on(cudaStream_t stream, const fill_payload *fill, bool blocking)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_stream_find(stream, &found);
    const fake_cuda_range range = {fill->target, fill->bytes, true};
    const fake_cuda_work work = {blocking ? "cudaMemset" : "cudaMemsetAsync",
                                 FAKE_CUDA_FILL,
                                 run_fill,
                                 fill,
                                 sizeof *fill,
                                 &range,
                                 1};
    if (code == cudaSuccess) {
        code = fake_stream_put(found, &work);
    }
    const race_region *region = race_region_of(fill->target);
    /* A set of device memory may return before it is done. */
    if (code == cudaSuccess && blocking && region->device == RACE_HOST) {
        fake_host_wait(found, found->line.number, &found->line.clock);
    }
    return code;
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    const fill_payload fill = {devPtr, value, count};
    cudaError_t code = fake_enter("cudaMemsetAsync");
    if (code == cudaSuccess && count > 0) {
        code = fill_on(stream, &fill, false);
    }
    return fake_leave(code);
}

cudaError_t cudaMemset(void *devPtr, int value, size_t count)
{
    const fill_payload fill = {devPtr, value, count};
    cudaError_t code = fake_enter("cudaMemset");
    fake.syncs++;
    if (code == cudaSuccess) {
        code = fake_capture_unsafe("cudaMemset");
    }
    if (code == cudaSuccess && count > 0) {
        code = fill_on(NULL, &fill, true);
    }
    return fake_leave(code);
}

/* ---- the host's own accesses ---- */

static void host_access(const char *what, const void *pointer, size_t bytes, bool write)
{
    const fake_cuda_range range = {pointer, bytes, write};
    if (bytes > 0 && race_region_of_range(pointer, bytes) == NULL) {
        race_fault(RACE_MISUSE, "%s of memory that is neither registered nor a device's", what);
        return;
    }
    const race_access who = fake_host_access(what);
    race_note(fake_host_clock(), who, &range, 1);
}

void fake_cuda_host_read(const void *pointer, size_t bytes)
{
    fake_lock();
    host_access("host_read", pointer, bytes, false);
    fake_unlock();
}

void fake_cuda_host_write(const void *pointer, size_t bytes)
{
    fake_lock();
    host_access("host_write", pointer, bytes, true);
    fake_unlock();
}

void fake_cuda_peek(void *target, const void *device, size_t bytes)
{
    const fake_cuda_range range = {device, bytes, false};
    fake_lock();
    host_access("peek", device, bytes, false);
    fake_open_ranges(&range, 1);
    memcpy(target, device, bytes);
    fake_close_ranges(&range, 1);
    fake_unlock();
}

void fake_cuda_poke(void *device, const void *source, size_t bytes)
{
    const fake_cuda_range range = {device, bytes, true};
    fake_lock();
    host_access("poke", device, bytes, true);
    fake_open_ranges(&range, 1);
    memcpy(device, source, bytes);
    fake_close_ranges(&range, 1);
    fake_unlock();
}
