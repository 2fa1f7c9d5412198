/* Views of units. (unit_views.c) */
#ifndef ZI_ENGINE_UNIT_VIEWS_H
#define ZI_ENGINE_UNIT_VIEWS_H

#include "engine/engine_internal.h"

/* Make the arrays that acquires hand out, and free them. */
zero_status zi_engine_make_views(zero_engine *engine);
void zi_engine_free_views(zero_engine *engine);
/* Set the addresses of a unit's views of its acquired parameters, or gradients.
 */
void zi_engine_view_params(zero_engine *engine, uint32_t unit);
void zi_engine_view_grads(zero_engine *engine, uint32_t unit);
/* After the memory of gradients was allocated again. */
void zi_engine_forget_grad_views(zero_engine *engine);

#endif
