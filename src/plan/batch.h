/* A batch with its defaults replaced. */
#ifndef ZI_PLAN_BATCH_H
#define ZI_PLAN_BATCH_H

#include "zero/footprint.h"

/* t: resolved. Errors: INVALID_ARGUMENT naming the batch's field. */
zero_status zi_batch_resolve(const zero_batch *given, const zero_transformer *t, zero_batch *b);

#endif
