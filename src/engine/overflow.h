/* Finite values that become infinite where they are rounded to a narrower type. (overflow.c) */
#ifndef ZI_ENGINE_OVERFLOW_H
#define ZI_ENGINE_OVERFLOW_H

#include "engine/engine_internal.h"

/* The overflows that a call has met so far; all 0: none. */
typedef struct engine_overflow {
    uint64_t count;  /* values */
    uint64_t tensor; /* of the first of them */
    uint64_t index;  /* of that in its tensor */
} engine_overflow;

/* Values of one type that are about to be rounded to another. */
typedef struct engine_values {
    const void *values;
    zero_dtype from;
    zero_dtype to;
    uint32_t tensor;
    uint64_t first; /* index in the tensor */
    uint64_t count;
} engine_values;

/* Count those that overflow, and add them to the engine's statistics. by_slice: only those of this
 * rank's slice, so that no two ranks count one element. */
void zi_engine_count_overflow(zero_engine *engine, engine_overflow *overflow,
                              const engine_values *values, bool by_slice);
/* *overflow := that of all ranks: the sum of their counts, and the first of their first values.
 * Collective over the world. */
zero_status zi_engine_join_overflow(zero_engine *engine, engine_overflow *overflow);
/* One warning, where there was any. name: of the call. */
void zi_engine_warn_overflow(const zero_engine *engine, const engine_overflow *overflow,
                             const char *name);

#endif
