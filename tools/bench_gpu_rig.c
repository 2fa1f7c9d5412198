/* Owns the memory that kernels are measured on, and what the host knows of it. */
#include "bench_gpu_rig.h"

#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_device.h"
#include "kernels/cpu/cpu_kernels.h"
#include "zero/random.h"

#define SEED 7
#define TILE_MAX (UINT64_C(1) << 20)
/* Bytes for each element of the largest case: four fp32 sources and their sum. */
#define ARENA_WIDTH 20
/* Half of the most that a case moves for each element. */
#define COPY_WIDTH 14

static int alloc_all(gpu_rig *rig)
{
    const zi_device *device = &rig->device;
    rig->arena_bytes = rig->count * ARENA_WIDTH;
    rig->copy_bytes_max = rig->count * COPY_WIDTH;
    void *arena = NULL;
    void *source = NULL;
    rig->normal = calloc(rig->tile_count, sizeof *rig->normal);
    rig->tile = calloc(rig->tile_count, sizeof(float));
    if (rig->normal == NULL || rig->tile == NULL) {
        return bench_fail("gpu: no memory left for a tile of %llu values",
                          (unsigned long long)rig->tile_count);
    }
    const int failed =
        BENCH_TRY(device->ops->memory_alloc(device->self, rig->arena_bytes, &arena)) ||
        BENCH_TRY(device->ops->memory_alloc(device->self, rig->copy_bytes_max, &source)) ||
        BENCH_TRY(device->ops->memory_alloc(device->self, rig->copy_bytes_max, &rig->copy.target));
    rig->arena = arena;
    rig->copy.source = source;
    if (failed) {
        return bench_fail("gpu: %llu MiB are needed at this size; --quick needs a sixteenth",
                          (unsigned long long)(rig->count * (ARENA_WIDTH + 2 * COPY_WIDTH) >> 20));
    }
    return 0;
}

/* Zeros copy faster than what gradients look like. */
static int fill_copy_source(gpu_rig *rig)
{
    gpu_array array;
    if (gpu_array_make(rig, ZERO_DTYPE_F32, 1000, false, &array) != 0) {
        return 1;
    }
    gpu_array_drop(&array);
    const size_t bytes = rig->count * sizeof(float);
    unsigned char *source = (unsigned char *)(uintptr_t)rig->copy.source;
    int failed = 0;
    for (size_t done = 0; done < rig->copy_bytes_max && !failed; done += bytes) {
        const size_t left = rig->copy_bytes_max - done;
        failed = gpu_copy_inside(source + done, rig->arena, left < bytes ? left : bytes,
                                 rig->clock.stream);
    }
    gpu_arrays_restart(rig);
    return failed || GPU_TRY(cudaStreamSynchronize(rig->clock.stream));
}

int gpu_rig_open(gpu_rig *rig, const bench_options *options, bench_report *report)
{
    static const uint64_t counts[] = {UINT64_C(1) << 28, UINT64_C(1) << 24, UINT64_C(1) << 14};
    static const uint32_t times[] = {4, 16, 1};
    *rig = (gpu_rig){.options = options, .report = report};
    rig->count = counts[options->scale];
    rig->tile_count = rig->count < TILE_MAX ? rig->count : TILE_MAX;
    rig->times = times[options->scale];
    zi_device *device = &rig->device;
    if (BENCH_TRY(zi_cuda_device_create(device)) ||
        BENCH_TRY(zi_cuda_kernels_create(device, &rig->kernels)) ||
        BENCH_TRY(device->ops->stream_create(device->self, "zero bench", &rig->stream)) ||
        gpu_clock_open(&rig->clock, zi_cuda_stream_native(rig->stream))) {
        return 1;
    }
    rig->copy.stream = rig->clock.stream;
    return alloc_all(rig) || fill_copy_source(rig);
}

void gpu_rig_close(gpu_rig *rig)
{
    const zi_device *device = &rig->device;
    if (device->ops != NULL) {
        void *source = (void *)(uintptr_t)rig->copy.source;
        device->ops->stream_destroy(device->self, rig->stream);
        device->ops->memory_free(device->self, rig->arena, rig->arena_bytes);
        device->ops->memory_free(device->self, source, rig->copy_bytes_max);
        device->ops->memory_free(device->self, rig->copy.target, rig->copy_bytes_max);
    }
    gpu_clock_close(&rig->clock);
    zi_kernels_destroy(&rig->kernels);
    zi_device_destroy(&rig->device);
    free(rig->normal);
    free(rig->tile);
    *rig = (gpu_rig){0};
}

uint64_t gpu_sample_first(const gpu_rig *rig, uint32_t index)
{
    return index + 1 == GPU_SAMPLES ? rig->count - GPU_SAMPLE_COUNT
                                    : rig->count / GPU_SAMPLES * index;
}

void gpu_arrays_restart(gpu_rig *rig)
{
    rig->arena_used = 0;
}

/* The tile goes to the array's start, then what is there doubles. */
static int spread(const gpu_rig *rig, const gpu_array *array)
{
    const size_t width = zero_dtype_bytes(array->dtype);
    const size_t bytes = rig->count * width;
    size_t done = rig->tile_count * width;
    int failed = gpu_upload(array->data, rig->tile, done, rig->clock.stream);
    for (; done < bytes && !failed; done *= 2) {
        failed = gpu_copy_inside(array->data + done, array->data, done, rig->clock.stream);
    }
    return failed || GPU_TRY(cudaStreamSynchronize(rig->clock.stream));
}

static void take_samples(const gpu_rig *rig, const gpu_array *array)
{
    const size_t width = zero_dtype_bytes(array->dtype);
    for (uint32_t i = 0; i < GPU_SAMPLES; i++) {
        const uint64_t place = gpu_sample_first(rig, i) % rig->tile_count;
        memcpy((unsigned char *)array->samples + (size_t)i * GPU_SAMPLE_COUNT * width,
               (const unsigned char *)rig->tile + place * width, GPU_SAMPLE_COUNT * width);
    }
}

int gpu_array_make(gpu_rig *rig, zero_dtype dtype, uint64_t key, bool squared, gpu_array *array)
{
    const size_t width = zero_dtype_bytes(dtype);
    if (rig->arena_used + rig->count * width > rig->arena_bytes) {
        return bench_fail("gpu: the arrays of a case need more than %d bytes for an element",
                          ARENA_WIDTH);
    }
    *array = (gpu_array){.data = rig->arena + rig->arena_used, .dtype = dtype};
    array->samples = calloc(GPU_SAMPLE_ALL, width);
    if (array->samples == NULL) {
        return bench_fail("gpu: no memory left for samples");
    }
    rig->arena_used += rig->count * width;
    zero_random_normal(SEED, key, 0, rig->tile_count, 0.0f, 0.02f, rig->normal);
    for (uint64_t i = 0; i < rig->tile_count && squared; i++) {
        rig->normal[i] = rig->normal[i] * rig->normal[i] * 1e-3f;
    }
    zi_cpu_cast(rig->tile, dtype, rig->normal, ZERO_DTYPE_F32, rig->tile_count);
    take_samples(rig, array);
    return spread(rig, array);
}

int gpu_array_check(const gpu_rig *rig, const gpu_array *array, const char *name)
{
    const size_t width = zero_dtype_bytes(array->dtype);
    for (uint32_t i = 0; i < GPU_SAMPLES; i++) {
        unsigned char seen[GPU_SAMPLE_COUNT * sizeof(float)];
        const uint64_t first = gpu_sample_first(rig, i);
        const unsigned char *expected =
            (const unsigned char *)array->samples + (size_t)i * GPU_SAMPLE_COUNT * width;
        if (gpu_fetch(seen, array->data + first * width, GPU_SAMPLE_COUNT * width,
                      rig->clock.stream) != 0) {
            return 1;
        }
        for (size_t byte = 0; byte < GPU_SAMPLE_COUNT * width; byte++) {
            if (seen[byte] != expected[byte]) {
                return bench_fail("gpu, %s: element %llu differs from the CPU kernel's in byte %zu:"
                                  " %02x instead of %02x",
                                  name, (unsigned long long)(first + byte / width), byte % width,
                                  seen[byte], expected[byte]);
            }
        }
    }
    return 0;
}

void gpu_array_drop(gpu_array *array)
{
    free(array->samples);
    *array = (gpu_array){0};
}

void gpu_rig_copy_moves(gpu_rig *rig, uint64_t moved_bytes)
{
    rig->copy.bytes = moved_bytes / 2;
}

int gpu_copy_once(void *argument)
{
    const gpu_copy *copy = argument;
    return gpu_copy_inside(copy->target, copy->source, copy->bytes, copy->stream);
}

gpu_timed gpu_rig_timed(const gpu_rig *rig, gpu_work work, void *argument)
{
    return (gpu_timed){&rig->clock, work, argument, rig->times};
}
