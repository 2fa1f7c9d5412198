/* Owns what of a step is done before it is decided. Invariant: until a step is decided, nothing
 * that it replaces has changed; what it then keeps has the bits that it would have come to. */
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "stage1/optim_internal.h"

/* The flat's draft of its parameters. */
static unsigned char *draft_part(const zi_optim *optim, uint32_t flat)
{
    return optim->desc.workspace + optim->layout->flats[flat].draft_at;
}

void zi_optim_point_drafts(zi_optim *optim)
{
    const zi_layout *layout = optim->layout;
    for (uint32_t p = 0; p < layout->piece_count && optim->drafts != NULL; p++) {
        const zi_piece *piece = &layout->pieces[p];
        zi_update_job *draft = &optim->drafts[p];
        *draft = optim->jobs[p];
        draft->param = draft_part(optim, piece->flat) +
                       piece->first * zero_dtype_bytes(layout->flats[piece->flat].dtype);
        draft->decision = optim->desc.presumed;
    }
}

zero_status zi_optim_make_drafts(zi_optim *optim)
{
    ZI_TRY(zi_calloc(optim->layout->piece_count, sizeof *optim->drafts, (void **)&optim->drafts));
    zi_optim_point_drafts(optim);
    return ZERO_OK;
}

static zero_status begin(void *argument)
{
    const optim_work *work = argument;
    zi_ring *ring = work->optim->desc.ring;
    ZI_TRY(zi_ring_draft(ring));
    return zi_ring_aim(ring, work->optim->layout->range_count - 1, 0);
}

zero_status zi_optim_begin_drafts(zi_optim *optim)
{
    const optim_work work = {.optim = optim};
    optim->down = false;
    optim->begun = false;
    optim->drafted = true;
    return zi_optim_enqueue(optim, begin, &work);
}

/* A parameter with a master is only written. */
zi_optim_draft zi_optim_draft_of(const zi_optim *optim, uint32_t flat)
{
    const bool reads = !optim->layout->flats[flat].has_master;
    return (zi_optim_draft){
        .memory = draft_part(optim, flat),
        .at = (uint64_t)(zi_optim_param_part(optim, flat) - optim->flats[flat].param),
        .bytes = reads ? zi_optim_param_bytes(optim, flat) : 0};
}

/* Copy what the unit's drafts begin with from the parameters or, `whole`, all of them to those. */
static zero_status copy_unit(const zi_optim *optim, uint32_t unit, bool whole)
{
    const zi_device *device = optim->desc.device;
    zi_stream *stream = optim->desc.step_stream;
    const uint32_t first = optim->layout->units[unit].flat_first;
    const uint32_t count = zi_unit_trained_count(optim->layout, unit);
    for (uint32_t f = first; f < first + count; f++) {
        const zi_optim_draft draft = zi_optim_draft_of(optim, f);
        unsigned char *param = zi_optim_param_part(optim, f);
        if (whole) {
            ZI_TRY(device->ops->copy(device->self, stream, param, draft.memory,
                                     zi_optim_param_bytes(optim, f)));
        } else if (draft.bytes != 0) {
            ZI_TRY(device->ops->copy(device->self, stream, draft.memory, param, draft.bytes));
        }
    }
    return ZERO_OK;
}

static zero_status draft_unit(void *argument)
{
    const optim_work *work = argument;
    const zi_device *device = work->optim->desc.device;
    if (!zi_role_far(work->optim->layout, ZERO_ROLE_PARAM)) {
        ZI_TRY(copy_unit(work->optim, work->unit, false));
    }
    /* What is presumed is here then. */
    ZI_TRY(device->ops->drain(device->self, work->optim->desc.step_stream));
    return zi_optim_update_pieces(work);
}

zero_status zi_optim_draft_unit(zi_optim *optim, uint32_t unit)
{
    const optim_work work = {.optim = optim,
                             .unit = unit,
                             .down = true,
                             .drafts = true,
                             .outcome = optim->desc.presumed};
    return zi_optim_enqueue(optim, draft_unit, &work);
}

/* Whether both let an update do the same. */
static bool is_same_update(const zi_step_decision *a, const zi_step_decision *b)
{
    return a->skip == b->skip && a->update == b->update && a->group_count == b->group_count &&
           memcmp(&a->grad_scale, &b->grad_scale, sizeof a->grad_scale) == 0 &&
           memcmp(a->groups, b->groups, sizeof a->groups) == 0;
}

static zero_status judge(void *argument)
{
    const optim_work *work = argument;
    zi_optim *optim = work->optim;
    const zi_device *device = optim->desc.device;
    zi_ring *ring = optim->desc.ring;
    ZI_TRY(device->ops->drain(device->self, optim->desc.step_stream)); /* the outcome is here */
    optim->keeps = is_same_update(work->outcome, optim->desc.presumed);
    if (optim->keeps) {
        *work->judgement = ZI_DRAFTS_KEPT;
        atomic_fetch_add_explicit(&optim->kept, 1, memory_order_relaxed);
        return zi_ring_keep(ring);
    }
    zi_ring_drop(ring);
    *work->judgement = work->outcome->skip ? ZI_DRAFTS_SKIPPED : ZI_DRAFTS_REDONE;
    if (work->outcome->skip) {
        return ZERO_OK;
    }
    atomic_fetch_add_explicit(&optim->redone, 1, memory_order_relaxed);
    return zi_ring_aim(ring, 0, optim->layout->range_count - 1);
}

zero_status zi_optim_judge(zi_optim *optim, const zi_step_decision *outcome,
                           zi_optim_judgement *judgement)
{
    const optim_work work = {.optim = optim, .outcome = outcome, .judgement = judgement};
    return zi_optim_enqueue(optim, judge, &work);
}

static zero_status discard(void *argument)
{
    const optim_work *work = argument;
    zi_ring *ring = work->optim->desc.ring;
    zi_ring_drop(ring);
    return zi_ring_rest(ring); /* what was on its way there has arrived, or its failure shows */
}

zero_status zi_optim_discard(zi_optim *optim)
{
    const optim_work work = {.optim = optim};
    optim->drafted = false;
    return zi_optim_enqueue(optim, discard, &work);
}

const int *zi_optim_keeps(const zi_optim *optim)
{
    return optim->drafted ? &optim->keeps : NULL;
}

zero_status zi_optim_adopt_unit(const optim_work *work)
{
    return copy_unit(work->optim, work->unit, true);
}

uint64_t zi_optim_kept(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->kept, memory_order_relaxed);
}

uint64_t zi_optim_redone(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->redone, memory_order_relaxed);
}
