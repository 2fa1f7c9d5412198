/* Owns the views that callers get where their releases are checked. A unit has two, and takes the
 * other one at each first acquire. Invariant: the view that it has holds its parameters from the
 * first acquire to the last release, and NaN at any other time, as the other one always does. So a
 * pointer which is used too long or too early reads NaN, never another unit, and nor does one that
 * was kept from an acquire before. */
#include "core/error.h"
#include "stage3/param_internal.h"

unsigned char *zi_params_view(const zi_params *params, uint32_t unit)
{
    const zi_unit_place *place = &params->layout->units[unit];
    return params->desc.slots + place->view_at + params->units[unit].turn * place->slot_bytes;
}

zero_status zi_params_show(zi_params *params, uint32_t unit, zi_stream *stream)
{
    const zi_unit_place *place = &params->layout->units[unit];
    param_unit *target = &params->units[unit];
    if (target->use_count > 1) {
        return param_ops_of(params)->stream_wait(param_self_of(params), stream, target->shown,
                                                 NULL);
    }
    target->turn = 1 - target->turn;
    ZI_TRY(
        param_ops_of(params)->stream_wait(param_self_of(params), stream, target->released, NULL));
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        const zi_flat *flat = &params->layout->flats[f];
        ZI_TRY(param_ops_of(params)->copy(
            param_self_of(params), stream, zi_params_view(params, unit) + flat->slot_at,
            zi_params_flat(params, f), zi_codec_bytes(flat->slot[ZERO_ROLE_PARAM], flat->count)));
    }
    return param_ops_of(params)->event_record(param_self_of(params), target->shown, stream);
}

/* All bits set are a NaN in every type. */
zero_status zi_params_hide(zi_params *params, uint32_t unit, zi_stream *stream)
{
    return param_ops_of(params)->fill(param_self_of(params), stream, zi_params_view(params, unit),
                                      0xFF, params->layout->units[unit].slot_bytes);
}

zero_status zi_params_hide_both(zi_params *params, uint32_t unit, zi_stream *stream)
{
    ZI_TRY(zi_params_hide(params, unit, stream));
    params->units[unit].turn = 1 - params->units[unit].turn;
    return zi_params_hide(params, unit, stream);
}

void zi_params_end_view(zi_params *params, uint32_t unit)
{
    const param_unit *target = &params->units[unit];
    if (target->shown != NULL) { /* a stream's failure is of no interest any more */
        (void)param_ops_of(params)->event_wait(param_self_of(params), target->shown, NULL);
        (void)param_ops_of(params)->event_wait(param_self_of(params), target->released, NULL);
    }
}
