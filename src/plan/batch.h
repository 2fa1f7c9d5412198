/* A batch with its defaults replaced. */
#ifndef ZI_PLAN_BATCH_H
#define ZI_PLAN_BATCH_H

#include "zero/footprint.h"

/* Tokens of a rank's micro-step. b: resolved. */
uint64_t zi_batch_tokens(const zero_batch *b);

/* The part of a stage's blocks that backward computes again. b: resolved. */
double zi_batch_again(const zero_batch *b);

/* How many of `ranks` hold one part of the model: the engine's world. t, b: resolved.
 * INVALID_ARGUMENT where the mesh does not divide the ranks. */
zero_status zi_mesh_columns(const zero_transformer *t, const zero_batch *b, uint64_t ranks,
                            uint32_t *column);

/* t: resolved. Errors: INVALID_ARGUMENT naming the batch's field. */
zero_status zi_batch_resolve(const zero_batch *given, const zero_transformer *t, zero_batch *b);

#endif
