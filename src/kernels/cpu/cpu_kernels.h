/* The CPU kernels as plain functions, which run on the calling thread.
 *
 * Every function gives the same bits on every ISA and for any split of its range into sub-ranges
 * that start at multiples of 64 elements. Pointers need only the alignment of their elements. */
#ifndef ZI_KERNELS_CPU_CPU_KERNELS_H
#define ZI_KERNELS_CPU_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "kernels/math/norm.h"
#include "zero/dtype.h"

void zi_cpu_fold(const zi_fold *fold);

/* Elements [begin, end) of a fold, with their squares added to *squares (NULL: nowhere) and not to
 * the fold's own. begin: a multiple of ZI_NORM_CHUNK, of ZI_GRANULE where granules are packed. */
void zi_cpu_fold_range(const zi_fold *fold, size_t begin, size_t end, zi_norm_sum *squares);

/* target = round(source), to nearest even. Equal types copy bits. target == source only with equal
 * types; no other overlap. */
void zi_cpu_cast(void *target, zero_dtype target_dtype, const void *source, zero_dtype source_dtype,
                 size_t count);

/* Add the squares of `count` elements to *sum, in chunks of ZI_NORM_CHUNK from `source` on. */
void zi_cpu_square_sum(const void *source, zero_dtype dtype, size_t count, zi_norm_sum *sum);

/* Masters as bf16 parameters and their remainders, REMAINDER16 or 8. No overlap. */
void zi_cpu_join(float *values, const uint16_t *param, const void *rest, zero_dtype dtype,
                 size_t count);
/* The same back: REMAINDER8 is rounded to nearest. */
void zi_cpu_split(uint16_t *param, void *rest, zero_dtype dtype, const float *values, size_t count);

/* Moments as 8-bit codes, I8, COMPANDED8 or U8_ROOT, that begin at a block. No overlap. */
void zi_cpu_decode(float *values, const void *codes, const uint16_t *scales, zero_dtype dtype,
                   size_t count);
/* The same back, rounded to nearest. The last block's scale is that of the elements it has. */
void zi_cpu_encode(void *codes, uint16_t *scales, zero_dtype dtype, const float *values,
                   size_t count);

/* Elements as codes and scales of a type of core/block_codec.h, that begin at a block, and back.
 * source, target: F32, BF16 or F16. No overlap. */
void zi_cpu_encode_blocks(void *codes, void *scales, zero_dtype dtype, const void *source,
                          zero_dtype source_dtype, size_t count);
void zi_cpu_decode_blocks(void *target, zero_dtype target_dtype, const void *codes,
                          const void *scales, zero_dtype dtype, size_t count);

/* Fp32 scratch memory of one thread for the callback optimizer. */
#define ZI_CPU_RANGE_COUNT 4096
typedef struct zi_cpu_scratch {
    float param[ZI_CPU_RANGE_COUNT];
    float grad[ZI_CPU_RANGE_COUNT];
    float moment1[ZI_CPU_RANGE_COUNT];
    float moment2[ZI_CPU_RANGE_COUNT];
} zi_cpu_scratch;

/* Share `share` of `shares` of a job. Nothing is touched when the job's decision says skip.
 * scratch: this thread's; may be NULL for the library's optimizers. */
void zi_cpu_update(const zi_update_job *job, zi_cpu_scratch *scratch, uint32_t share,
                   uint32_t shares);

/* The same share of the measurement of a job: it is added to the job's sums, which other threads
 * may be adding to. */
void zi_cpu_measure(const zi_update_job *job, uint32_t share, uint32_t shares);

#endif
