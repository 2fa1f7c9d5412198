/* Owns the views that callers get where their releases are checked. Invariant: a unit's view holds
 * its parameters from the first acquire to the last release, and NaN at any other time, so that a
 * pointer which is used too long or too early reads NaN, never another unit. */
#include "core/error.h"
#include "stage3/param_internal.h"

unsigned char *zi_params_view(const zi_params *params, uint32_t unit)
{
    return params->desc.slots + params->layout->units[unit].view_at;
}

zero_status zi_params_show(zi_params *params, uint32_t unit, zi_stream *stream)
{
    const zi_unit_place *place = &params->layout->units[unit];
    const param_unit *target = &params->units[unit];
    if (target->use_count > 1) {
        return ops_of(params)->stream_wait(self_of(params), stream, target->shown, NULL);
    }
    ZI_TRY(ops_of(params)->stream_wait(self_of(params), stream, target->released, NULL));
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        const zi_flat *flat = &params->layout->flats[f];
        ZI_TRY(ops_of(params)->copy(
            self_of(params), stream, zi_params_view(params, unit) + flat->slot_at,
            zi_params_flat(params, f), zi_codec_bytes(flat->slot[ZERO_ROLE_PARAM], flat->count)));
    }
    return ops_of(params)->event_record(self_of(params), target->shown, stream);
}

zero_status zi_params_hide(zi_params *params, uint32_t unit, zi_stream *stream)
{
    /* All bits set are a NaN in every type. */
    return ops_of(params)->fill(self_of(params), stream, zi_params_view(params, unit), 0xFF,
                                params->layout->units[unit].slot_bytes);
}

void zi_params_end_view(zi_params *params, uint32_t unit)
{
    const param_unit *target = &params->units[unit];
    if (target->shown != NULL) { /* what a stream failed with is of no interest any more */
        (void)ops_of(params)->event_wait(self_of(params), target->shown, NULL);
        (void)ops_of(params)->event_wait(self_of(params), target->released, NULL);
    }
}
