/* The CUDA kernels here and now, on what a job points to in host memory: in the emulation
 * (tests/emulation/emulated_launch.c) or on a GPU (gpu_launch.c). One function for each of
 * kernels/cuda/launch.h. */
#ifndef TESTS_KERNELS_LAUNCH_NOW_H
#define TESTS_KERNELS_LAUNCH_NOW_H

#include <stdint.h>

#include "kernels/kernels.h"

void launch_update_now(const zi_update_job *job);
void launch_measure_now(const zi_update_job *job);
void launch_layers_now(const zi_layers_job *job);
void launch_square_sum_now(const void *source, zero_dtype dtype, uint64_t count, zi_norm_sum *sum);
void launch_decide_now(const zi_decide_job *job);
/* At most ZI_CUDA_SOURCES_MAX sources. */
void launch_fold_now(const zi_fold *fold);
void launch_cast_now(void *target, zero_dtype target_dtype, const void *source,
                     zero_dtype source_dtype, uint64_t count);
void launch_encode_now(void *codes, void *scales, zero_dtype dtype, const void *source,
                       zero_dtype source_dtype, uint64_t count);
void launch_decode_now(void *target, zero_dtype target_dtype, const void *codes, const void *scales,
                       zero_dtype dtype, uint64_t count);

#endif
