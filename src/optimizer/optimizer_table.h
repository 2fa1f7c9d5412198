/* Facts of an optimizer by the number of its kind: names and bounds of hyper-parameters, for
 * messages, files and comparisons between ranks. */
#ifndef ZI_OPTIMIZER_OPTIMIZER_TABLE_H
#define ZI_OPTIMIZER_OPTIMIZER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "optimizer/optimizer.h"

/* The bounds of a hyper-parameter; all values are finite. */
typedef enum zi_bounds {
    ZI_BOUNDS_NOT_NEGATIVE, /* >= 0 */
    ZI_BOUNDS_BELOW_ONE,    /* in [0, 1) */
    ZI_BOUNDS_POSITIVE,     /* > 0 */
    ZI_BOUNDS_FLAG          /* 0 or 1 */
} zi_bounds;

typedef struct zi_hyper_number {
    const char *name;
    zi_bounds bounds;
    float fallback;
} zi_hyper_number;

typedef struct zi_optimizer {
    const char *name; /* as in options and files; NULL: there is no such kind */
    const zi_hyper_number *numbers;
    uint32_t number_count; /* 0: the caller's own optimizer, whose numbers nobody knows */
} zi_optimizer;

/* Any number: one that is no kind has no name and no numbers. DEFAULT is AdamW's. */
const zi_optimizer *zi_optimizer_of(uint32_t kind);
/* By name; ZERO_OPTIMIZER_DEFAULT: there is none of that name. */
zero_optimizer zi_optimizer_named(const char *name);

/* The optimizer with its defaults. */
zi_hyper zi_hyper_default(uint32_t kind);
/* The bounds in words, for messages. */
const char *zi_bounds_text(zi_bounds bounds);
bool zi_bounds_hold(zi_bounds bounds, float value);

#endif
