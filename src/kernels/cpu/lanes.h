/* The inner loops of the CPU kernels: one source, compiled once per instruction set into a table.
 */
#ifndef ZI_KERNELS_CPU_LANES_H
#define ZI_KERNELS_CPU_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/math/layer_norms.h"
#include "kernels/math/rounding.h"
#include "kernels/math/step.h"

/* An update of neighbouring elements of one tensor, by an optimizer of the library. */
typedef struct zi_lanes_update {
    zero_optimizer optimizer;
    const void *grad;
    void *param;  /* low precision, out; with a remainder, or master NULL, also in */
    void *master; /* NULL: none, and the parameter is rounded stochastically */
    void *moment1;
    void *moment2;    /* NULL where the optimizer has none, and unused */
    uint16_t *scale1; /* of moments in codes, which begin at a block */
    uint16_t *scale2;
    size_t count;
    zero_dtype grad_dtype;
    zero_dtype param_dtype;  /* ZERO_DTYPE_NONE: only the master is written */
    zero_dtype master_dtype; /* F32, or a remainder */
    zero_dtype moment_dtype;
    float grad_scale;
    zi_coeffs coeffs;    /* for the tensor's flags */
    zi_rounding_key key; /* its purpose is set as needed */
    uint64_t first;      /* index in the tensor of the first element */
} zi_lanes_update;

/* Fp32 values to round stochastically to BF16 or F16, or to parameters and their REMAINDER8. */
typedef struct zi_lanes_rounding {
    void *target;
    uint8_t *rest; /* NULL: none */
    const float *source;
    size_t count;
    zero_dtype dtype;
    zi_rounding_key key;
    uint64_t first;
} zi_lanes_rounding;

/* Normal values of neighbouring elements: zero_random_normal. */
typedef struct zi_lanes_normal {
    uint64_t seed;
    uint64_t stream;
    uint64_t first; /* a pair's: even */
    size_t pairs;
    float mean;
    float stddev;
    float *values; /* 2 * pairs */
} zi_lanes_normal;

typedef struct zi_cpu_lanes {
    size_t struct_bytes;
    const char *name;
    /* Returns how many elements have stalled: their gradient is not 0, and the bits of their
     * master, or of a parameter that is its own, are those that were there. */
    uint64_t (*update)(const zi_lanes_update *update);
    /* Add the squares of the parameters, and of the directions that their update would take by
     * `coeffs`, to *sums. Nothing is written but these. */
    void (*measure)(const zi_lanes_update *update, zi_layer_sums *sums);
    void (*round)(const zi_lanes_rounding *rounding);
    /* As zi_cpu_fold_range. */
    void (*fold)(const zi_fold *fold, size_t begin, size_t end, zi_norm_sum *squares);
    void (*cast)(void *target, zero_dtype target_dtype, const void *source, zero_dtype source_dtype,
                 size_t count);
    /* target[i] = fp32(source[i]) * scale */
    void (*scale)(float *target, const void *source, zero_dtype source_dtype, float scale,
                  size_t count);
    void (*square_sum)(const void *source, zero_dtype dtype, size_t count, zi_norm_sum *sum);
    /* As zi_cpu_encode_blocks and zi_cpu_decode_blocks. */
    void (*encode_blocks)(void *codes, void *scales, zero_dtype dtype, const void *source,
                          zero_dtype source_dtype, size_t count);
    void (*decode_blocks)(void *target, zero_dtype target_dtype, const void *codes,
                          const void *scales, zero_dtype dtype, size_t count);
    void (*normal)(const zi_lanes_normal *normal);
} zi_cpu_lanes;

/* Tables that this machine can run, slowest first: at least one. */
uint32_t zi_cpu_lanes_count(void);
const zi_cpu_lanes *zi_cpu_lanes_at(uint32_t index);

/* The table in use: the last one, unless a test or a benchmark selected another. Selecting holds
 * for the whole process; no kernel may be running. */
const zi_cpu_lanes *zi_cpu_lanes_current(void);
void zi_cpu_lanes_select(uint32_t index);

/* One per instruction set in the build. */
extern const zi_cpu_lanes zi_cpu_lanes_generic;
extern const zi_cpu_lanes zi_cpu_lanes_avx2;
extern const zi_cpu_lanes zi_cpu_lanes_avx512;

#endif
