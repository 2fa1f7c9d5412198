/* The work of a transformer: floating-point operations, and bytes that kernels move between
 * products. */
#ifndef ZI_PLAN_FLOPS_H
#define ZI_PLAN_FLOPS_H

#include <stdint.h>

#include "plan/transformer.h"
#include "zero/footprint.h"

/* Operations that a rank's micro-step takes in forward through unit `unit` of
 * zero_transformer_model; a multiply-add is two. Backward takes twice as many, and recomputation
 * those of each block again.
 *
 * Counted are products, as Narayanan et al., "Efficient large-scale language model training on GPU
 * clusters", 2021, section 5.1, count them (equation 3 is their sum): two operations for a token
 * and an element of a matrix, of experts only those that the token passes through; attention's
 * scores and what they weigh, without the saving that a causal mask allows; the head's product in
 * its unit. Of a window's pairs those that the mask leaves count twice, as they do where there is
 * no window: 2 x window x sequence - window^2 in a sample, and in chunks their squares. batch:
 * NULL: one sample.
 *
 * Errors: those of zero_activation_bytes' arguments; INVALID_ARGUMENT for a unit that the model
 * lacks, and for 2^63 operations or more. */
zero_status zi_transformer_flops(const zero_transformer *transformer, const zero_batch *batch,
                                 uint64_t unit, uint64_t *forward_flops);

/* How many keys a query meets, on average over a sample. t, b: resolved. */
double zi_keys_of(const zero_transformer *t, const zero_batch *b, bool windowed);

/* Operations of a pass of a rank's micro-step. */
typedef struct zi_pass_flops {
    double products;  /* of matrices */
    double attention; /* as if there were no causal mask */
    double head;      /* of `products`, those of the head */
} zi_pass_flops;

typedef struct zi_micro_flops {
    double model; /* three times forward's, as published rates count them */
    zi_pass_flops forward;
    zi_pass_flops backward; /* with what is computed again; without stored scores also those of
                               attention (Dao et al., 2022) */
} zi_micro_flops;

/* Recomputation ends with the input of a block's last product: what that gives is the residual
 * stream of the next block, which was kept (zi_transformer_last). t, b: resolved. Counted are those
 * of a stage's rank: ranks of tensor parallelism divide them evenly, and `products` has the copies
 * that each of them computes.
 */
zi_micro_flops zi_micro_flops_of(const zero_transformer *t, const zero_batch *b, zi_stage stage);

/* Bytes of a GPU's memory that kernels between products move in a micro-step: norms, activation
 * functions, sums, casts to fp8, stored scores, the loss. */
typedef struct zi_micro_elements {
    double forward;
    double backward; /* with what is computed again */
} zi_micro_elements;

/* t, b: resolved. Errors: those of zero_activation_bytes. */
zero_status zi_micro_elements_of(const zero_transformer *t, const zero_batch *b, zi_stage stage,
                                 zi_micro_elements *elements);

#endif
