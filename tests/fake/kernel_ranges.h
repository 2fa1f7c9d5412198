/* The ranges that each kernel of src/kernels/kernels.h reads and writes. */
#ifndef TESTS_FAKE_KERNEL_RANGES_H
#define TESTS_FAKE_KERNEL_RANGES_H

#include "kernels/kernels.h"
#include "race.h"

/* Of a fold. */
#define KERNEL_SOURCES_MAX 256

typedef struct kernel_ranges {
    size_t count;
    race_range ranges[KERNEL_SOURCES_MAX + 20];
} kernel_ranges;

kernel_ranges kernel_ranges_update(const zi_update_job *job);
kernel_ranges kernel_ranges_measure(const zi_update_job *job);
kernel_ranges kernel_ranges_layers(const zi_layers_job *job);
kernel_ranges kernel_ranges_square_sum(const void *source, zero_dtype dtype, uint64_t count,
                                       const zi_norm_sum *sum);
kernel_ranges kernel_ranges_decide(const zi_decide_job *job);
kernel_ranges kernel_ranges_fold(const zi_fold *fold);
kernel_ranges kernel_ranges_cast(const void *target, zero_dtype target_dtype, const void *source,
                                 zero_dtype source_dtype, uint64_t count);
kernel_ranges kernel_ranges_encode(const void *codes, const void *scales, zero_dtype dtype,
                                   const void *source, zero_dtype source_dtype, uint64_t count);
kernel_ranges kernel_ranges_decode(const void *target, zero_dtype target_dtype, const void *codes,
                                   const void *scales, zero_dtype dtype, uint64_t count);

#endif
