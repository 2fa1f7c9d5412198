/* A transformer with its defaults replaced, and how many parameters its units have. */
#ifndef ZI_PLAN_TRANSFORMER_H
#define ZI_PLAN_TRANSFORMER_H

#include <stdbool.h>
#include <stdint.h>

#include "zero/transformer.h"

typedef struct zi_transformer_counts {
    uint64_t embedding;
    uint64_t block;
    uint64_t block_used; /* that a token passes through: with experts_used experts */
    uint64_t head;       /* without a tied matrix */
} zi_transformer_counts;

/* Neighbouring blocks, with or without the head: a pipeline stage, or all of a transformer. */
typedef struct zi_stage {
    uint64_t layers;
    bool head;
} zi_stage;

/* The transformer in one part, and all of it as a stage. t: resolved. */
zero_transformer zi_transformer_whole(const zero_transformer *t);
zi_stage zi_transformer_all(const zero_transformer *t);

/* Blocks of the fullest stage. */
uint64_t zi_transformer_blocks(const zero_transformer *t);

/* Of how many elements in `extent` a rank of tensor parallelism has the most. */
uint64_t zi_tensor_part(const zero_transformer *t, uint64_t extent);

/* Key and value heads of a rank: ranks beyond their number have copies. */
uint64_t zi_tensor_kv_heads(const zero_transformer *t);

/* Errors: those of zero_transformer_check. */
zero_status zi_transformer_resolve(const zero_transformer *given, zero_transformer *resolved,
                                   zi_transformer_counts *counts);

/* The products of a token with a unit of zero_transformer_model, in one part. */
typedef struct zi_transformer_products {
    uint64_t elements; /* of its matrices; of experts, those that a token passes through */
    bool attends;      /* attention runs in it: it has the matrix that follows attention */
} zi_transformer_products;

/* t: resolved, in one part. INVALID_ARGUMENT where the model has no such unit. */
zero_status zi_transformer_unit(const zero_transformer *t, uint64_t unit,
                                zi_transformer_products *products);

#endif
