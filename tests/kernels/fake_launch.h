/* The CUDA kernels without a GPU: every block and lane of a launch runs here and now, on host
 * memory, through the very bodies that nvcc compiles. One function for each of
 * kernels/cuda/launch.h; what they get by pointer is read when they run. */
#ifndef TESTS_KERNELS_FAKE_LAUNCH_H
#define TESTS_KERNELS_FAKE_LAUNCH_H

#include <stdint.h>

#include "kernels/kernels.h"

void zi_fake_run_update(const zi_update_job *job);
void zi_fake_run_square_sum(const void *source, zero_dtype dtype, uint64_t count, zi_norm_sum *sum);
void zi_fake_run_decide(const zi_decide_job *job);
/* At most ZI_CUDA_SOURCES_MAX sources. */
void zi_fake_run_fold(const zi_fold *fold);
void zi_fake_run_cast(void *target, zero_dtype target_dtype, const void *source,
                      zero_dtype source_dtype, uint64_t count);

#endif
