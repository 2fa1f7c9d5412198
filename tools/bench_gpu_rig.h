/* The common parts of the measurements of kernels: a device of the library's, its kernels, and one
 * piece of the GPU's memory that every case lays its arrays out in.
 *
 * An array is a tile of random values over and over, so that the host knows every element without
 * holding them all. Samples are ranges of elements all over the array, whose course the host
 * follows with the CPU's kernels; afterwards they must agree to the bit. */
#ifndef TOOLS_BENCH_GPU_RIG_H
#define TOOLS_BENCH_GPU_RIG_H

#include "bench_gpu_clock.h"
#include "device/device.h"
#include "kernels/kernels.h"

/* A copy inside the GPU's memory, the reference of most cases: `bytes` are read and `bytes` are
 * written. */
typedef struct gpu_copy {
    cudaStream_t stream;
    void *target;
    const void *source;
    size_t bytes;
} gpu_copy;

/* A gpu_work; argument: a gpu_copy. */
int gpu_copy_once(void *argument);

#define GPU_SAMPLES 64      /* of an array */
#define GPU_SAMPLE_COUNT 64 /* elements of each */
#define GPU_SAMPLE_ALL (GPU_SAMPLES * GPU_SAMPLE_COUNT)

typedef struct gpu_rig {
    const bench_options *options;
    bench_report *report;
    zi_device device;
    zi_kernels kernels;
    zi_stream *stream;
    gpu_clock clock;
    uint64_t count;      /* elements of an array */
    uint64_t tile_count; /* of the tile; divides count */
    uint32_t times;      /* launches in one measurement */
    float *normal;       /* host: a tile of values, and of the same narrowed or squared */
    void *tile;
    unsigned char *arena;
    size_t arena_bytes;
    size_t arena_used;
    gpu_copy copy; /* the reference; source and target lie apart from the arena */
    size_t copy_bytes_max;
} gpu_rig;

/* 0, or 1 after bench_fail; close accepts what is half open. */
int gpu_rig_open(gpu_rig *rig, const bench_options *options, bench_report *report);
void gpu_rig_close(gpu_rig *rig);

typedef struct gpu_array {
    unsigned char *data; /* of the GPU; count elements */
    zero_dtype dtype;
    void *samples; /* host: GPU_SAMPLE_ALL elements, one sample after the other */
} gpu_array;

/* The begin of sample `index` in an array. */
uint64_t gpu_sample_first(const gpu_rig *rig, uint32_t index);

/* Start laying out again: arrays so far are gone, their samples are not. */
void gpu_arrays_restart(gpu_rig *rig);

/* A new array of random values, keyed by `key`; squared: small and never negative. NULL samples:
 * bench_fail was called, and 1 returned. */
int gpu_array_make(gpu_rig *rig, zero_dtype dtype, uint64_t key, bool squared, gpu_array *array);

/* 0 when the GPU's samples have the bits of the host's; else 1 after bench_fail. */
int gpu_array_check(const gpu_rig *rig, const gpu_array *array, const char *name);
void gpu_array_drop(gpu_array *array);

/* Work on the rig's stream, timed as often as its scale says. */
gpu_timed gpu_rig_timed(const gpu_rig *rig, gpu_work work, void *argument);

/* Let the reference move as many bytes as a case does, reads and writes added up. */
void gpu_rig_copy_moves(gpu_rig *rig, uint64_t moved_bytes);

/* fold_vs_copy, cast_vs_copy, norm_extra, fold_squares_vs_apart. 0, or 1 after bench_fail. */
int bench_gpu_fold(gpu_rig *rig);

#endif
