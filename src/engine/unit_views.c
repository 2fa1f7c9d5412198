/* Owns the arrays of views that zero_unit_acquire hands out. Invariant: while a unit is
 * acquired, its views are those of zero_tensor_data and, in backward, zero_tensor_grad. The
 * addresses of a unit's own tensors change only with its slots, so most acquires rewrite nothing.
 */
#include "engine/unit_views.h"

#include "core/error.h"
#include "core/memory.h"

/* No slot, and not ZI_NO_INDEX either: views that were never taken. */
#define NOWHERE (ZI_NO_INDEX - 1)

/* List the tensors of each unit's views: its own, then those it ties to. */
static void unit_views_list_tensors(const zi_layout *layout, engine_views *views)
{
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        views->units[layout->tensor_infos[t].unit].own_count++;
    }
    uint32_t next = 0;
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        engine_unit *unit = &views->units[u];
        unit->first = next;
        next += unit->own_count + layout->units[u].tie_count;
    }
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        engine_unit *unit = &views->units[layout->tensor_infos[t].unit];
        views->tensors[unit->first + unit->view.tensor_count++] = t;
    }
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        engine_unit *unit = &views->units[u];
        for (uint32_t i = 0; i < layout->units[u].tie_count; i++) {
            views->tensors[unit->first + unit->view.tensor_count++] =
                layout->ties[layout->units[u].tie_first + i];
        }
    }
}

zero_status zi_engine_make_views(zero_engine *engine)
{
    const zi_layout *layout = engine->layout;
    engine_views *views = &engine->views;
    size_t count = layout->tensor_count;
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        count += layout->units[u].tie_count;
    }
    ZI_TRY(zi_calloc(layout->unit_count, sizeof *views->units, (void **)&views->units));
    ZI_TRY(zi_calloc(count, sizeof *views->tensors, (void **)&views->tensors));
    ZI_TRY(zi_calloc(count, sizeof *views->params, (void **)&views->params));
    ZI_TRY(zi_calloc(count, sizeof *views->grads, (void **)&views->grads));
    unit_views_list_tensors(layout, views);
    for (size_t i = 0; i < count; i++) {
        const zi_tensor_info *info = &layout->tensor_infos[views->tensors[i]];
        const zi_flat *flat = &layout->flats[layout->tensors[views->tensors[i]].flat];
        views->params[i] = zi_flat_shown_encoded(flat)
                               ? (zero_view){.dtype = ZERO_DTYPE_NONE}
                               : (zero_view){.count = info->count, .dtype = info->dtype};
        views->grads[i] = flat->trained ? (zero_view){.count = info->count,
                                                      .dtype = flat->slot[ZERO_ROLE_GRAD].dtype}
                                        : (zero_view){.dtype = ZERO_DTYPE_NONE};
    }
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        engine_unit *unit = &views->units[u];
        unit->view.params = views->params + unit->first;
        unit->param_slot = NOWHERE;
        unit->grad_slot = NOWHERE;
    }
    return ZERO_OK;
}

void zi_engine_free_views(zero_engine *engine)
{
    zi_free(engine->views.units);
    zi_free(engine->views.tensors);
    zi_free(engine->views.params);
    zi_free(engine->views.grads);
}

void zi_engine_view_params(zero_engine *engine, uint32_t unit)
{
    const engine_views *views = &engine->views;
    engine_unit *it = &views->units[unit];
    const uint32_t slot = zi_params_slot(engine->params, unit);
    for (uint32_t i = slot != it->param_slot ? 0 : it->own_count; i < it->view.tensor_count; i++) {
        zero_view *view = &views->params[it->first + i];
        if (view->dtype != ZERO_DTYPE_NONE) {
            view->data = zi_params_data(engine->params, views->tensors[it->first + i]);
        }
    }
    it->param_slot = slot;
}

void zi_engine_view_grads(zero_engine *engine, uint32_t unit)
{
    const engine_views *views = &engine->views;
    engine_unit *it = &views->units[unit];
    const uint32_t slot = zi_grads_slot(engine->grads, unit);
    for (uint32_t i = slot != it->grad_slot ? 0 : it->own_count; i < it->view.tensor_count; i++) {
        zero_view *view = &views->grads[it->first + i];
        if (view->dtype != ZERO_DTYPE_NONE) {
            view->data = zi_grads_data(engine->grads, views->tensors[it->first + i]);
        }
    }
    it->grad_slot = slot;
    it->view.grads = views->grads + it->first;
}

void zi_engine_forget_grad_views(zero_engine *engine)
{
    for (uint32_t u = 0; u < engine->layout->unit_count; u++) {
        engine->views.units[u].grad_slot = NOWHERE;
    }
}
