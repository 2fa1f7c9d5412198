/* A transformer with its defaults replaced, and how many parameters its units have. */
#ifndef ZI_PLAN_TRANSFORMER_H
#define ZI_PLAN_TRANSFORMER_H

#include <stdint.h>

#include "zero/transformer.h"

typedef struct zi_transformer_counts {
    uint64_t embedding;
    uint64_t block;
    uint64_t block_used; /* that a token passes through: with experts_used experts */
    uint64_t head;       /* without a tied matrix */
} zi_transformer_counts;

/* Errors: those of zero_transformer_check. */
zero_status zi_transformer_resolve(const zero_transformer *given, zero_transformer *resolved,
                                   zi_transformer_counts *counts);

#endif
