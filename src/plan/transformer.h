/* A transformer with its defaults replaced, its blocks by kind, and how many parameters its units
 * have. */
#ifndef ZI_PLAN_TRANSFORMER_H
#define ZI_PLAN_TRANSFORMER_H

#include <stdbool.h>
#include <stdint.h>

#include "zero/transformer.h"

/* A block's kind, by its feed-forward layer. */
typedef enum zi_block_kind {
    ZI_BLOCK_MAIN = 0,  /* experts where the transformer has any, else one layer */
    ZI_BLOCK_DENSE = 1, /* one layer where other blocks have experts */
    ZI_BLOCK_KINDS = 2
} zi_block_kind;

typedef struct zi_transformer_counts {
    uint64_t embedding;
    uint64_t block[ZI_BLOCK_KINDS];
    uint64_t
        block_used[ZI_BLOCK_KINDS]; /* that a token passes through: with experts_used experts */
    uint64_t head;                  /* without a tied matrix */
} zi_transformer_counts;

/* Neighbouring blocks, with or without the head: a pipeline stage, or all of a transformer. */
typedef struct zi_stage {
    uint64_t first;
    uint64_t layers;
    uint64_t dense;    /* of them, ZI_BLOCK_DENSE */
    uint64_t windowed; /* of them, with a window */
    bool head;
} zi_stage;

/* ---- parts; t: resolved ---- */

/* The transformer in one part, all of it as a stage, and stage `stage` of its pipeline. */
zero_transformer zi_transformer_whole(const zero_transformer *t);
zi_stage zi_transformer_all(const zero_transformer *t);
zi_stage zi_transformer_stage(const zero_transformer *t, uint64_t stage);

/* A transformer whose blocks are all of that kind. */
zero_transformer zi_transformer_kind(const zero_transformer *t, zi_block_kind kind);
zi_block_kind zi_transformer_kind_at(const zero_transformer *t, uint64_t block);
bool zi_transformer_windowed_at(const zero_transformer *t, uint64_t block);
/* Blocks of that kind. */
uint64_t zi_stage_count(const zi_stage *stage, zi_block_kind kind);
/* True if all blocks have the same tensors and the same attention. */
bool zi_transformer_alike(const zero_transformer *t);

/* Blocks of the stage that has the most. */
uint64_t zi_transformer_blocks(const zero_transformer *t);

/* Of how many elements in `extent` a rank of tensor parallelism has the most. */
uint64_t zi_tensor_part(const zero_transformer *t, uint64_t extent);

/* Key and value heads of a rank: ranks beyond their number have copies. */
uint64_t zi_tensor_kv_heads(const zero_transformer *t);

/* ---- tensors; t: resolved ---- */

/* Errors: INVALID_ARGUMENT for more parameters than a model may have. */
zero_status zi_transformer_count(const zero_transformer *t, zi_transformer_counts *counts);

/* The stage whose blocks have the most parameters, the first of such. */
zi_stage zi_transformer_fullest(const zero_transformer *t);

/* The units of zero_transformer_model, and those of zero_transformer_experts. */
zero_status zi_transformer_add_units(const zero_transformer *t, zero_model *model);
zero_status zi_transformer_add_experts(const zero_transformer *t, zero_model *model);

/* The products of a token with a unit of zero_transformer_model, in one part. */
typedef struct zi_transformer_products {
    uint64_t elements; /* of its matrices; of experts, those that a token passes through */
    uint64_t pair;     /* multiply-adds of a query with a key and its value, in the unit with the
                          matrix that follows attention; else 0 */
    bool windowed;     /* that attention has the window */
} zi_transformer_products;

/* In one part. INVALID_ARGUMENT where the model has no such unit. */
zero_status zi_transformer_unit(const zero_transformer *t, uint64_t unit,
                                zi_transformer_products *products);

/* The same of a whole block. */
zi_transformer_products zi_transformer_block(const zero_transformer *t, zi_block_kind kind);

/* Elements of the products that end a block, whose results backward does not need: recomputation
 * leaves them out. */
uint64_t zi_transformer_last(const zero_transformer *t, zi_block_kind kind);

/* ---- all ---- */

/* Errors: those of zero_transformer_check. */
zero_status zi_transformer_resolve(const zero_transformer *given, zero_transformer *resolved,
                                   zi_transformer_counts *counts);

#endif
