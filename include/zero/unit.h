/** @file
 *  The hooks inside forward and backward.
 *
 *  A micro-step is one forward and one backward on one micro-batch. A unit costs four calls:
 *
 *      zero_micro_begin(engine, ZERO_MICRO_LAST)
 *        forward:   zero_unit_acquire(FORWARD),  compute, zero_unit_release   (for each unit)
 *        backward:  zero_unit_acquire(BACKWARD), compute, zero_unit_release   (for each unit)
 *      zero_micro_end(engine)
 *
 *  zero_unit_acquire hands out views of the unit's tensors and, in backward, of their gradients.
 *  The zero_unit_release that closes it says that parameters are read and gradients complete.
 *
 *  Four split calls do the parts alone, for trainers whose order is another one:
 *
 *      parameters   zero_unit_params_acquire   zero_unit_params_release
 *      gradients    zero_unit_grads_acquire    zero_unit_grads_ready
 *
 *  - Activation recomputation of several units ahead of their backward: parameters, or
 *    zero_unit_acquire, with ZERO_PASS_FORWARD.
 *  - Units whose gradient needs none of their parameters (an embedding): gradients alone, so
 *    nothing is gathered.
 *  - Gradients that are finished after the unit's parameters were released: zero_unit_grads_acquire
 *    before that release, zero_unit_grads_ready when they are complete.
 *  - Pipeline schedules that split backward: parameters for the pass over inputs, later gradients
 *    for the pass over weights.
 *
 *  **Nesting.** The calls of one kind (zero_unit_acquire, parameters, gradients) nest by count, and
 *  a release closes the last open acquire of its kind. The outermost zero_unit_acquire in backward
 *  acquires the gradients, and they are ready at the release that closes it. Kinds may be mixed on
 *  a unit, but a release of one kind never closes an acquire of another: the parameters stay until
 *  every acquire of them is released, and the gradient is complete when every acquire of it is
 *  closed.
 *
 *  **A unit that is used more than once** in a micro-step (a shared layer) is acquired and released
 *  at each use. Its gradient must stay open from the first use in backward to the last:
 *
 *      zero_unit_grads_acquire                              before the first
 *        zero_unit_acquire(BACKWARD), compute, zero_unit_release    at each
 *      zero_unit_grads_ready                                after the last, which reduces it once
 *
 *  The engine cannot count the uses itself, since recomputation acquires units in forward too.
 *  Without this the second acquire in backward is refused, and says so: the release of the first
 *  has declared the gradient ready.
 *
 *  **Addresses.** A view's addresses hold from the unit's first acquire to its last release. The
 *  next acquire may give others, and at stage 3 it mostly does as soon as other units or another
 *  order of them come between; that they often repeat is chance. So take them anew from each
 *  acquire. With tuning.poison_released they change at every first acquire, and what was kept reads
 *  NaN (docs/decisions/086).
 *
 *  **Ties.** A unit that ties to tensors of another unit, their owner, acquires and releases the
 *  owner with itself. The owner's gradient is complete when its own and those of all units that tie
 *  to it are.
 *
 *  **Refusals.** An acquire that is refused with STATE or INVALID_ARGUMENT raises no count, holds
 *  no slot and changes no view. It may have gathered parameters ahead of time, and in backward it
 *  counts as reaching the unit (see ZERO_PASS_BACKWARD).
 *
 *  **Ranks.** Every rank makes the same calls in the same order, but a rank may leave units out. If
 *  a unit stays acquired while others of its size are gathered, every rank must hold it, and no
 *  rank may leave units out meanwhile; nor in a micro-step that comes back to units after others or
 *  to units in another order than the steps before: a rank that leaves some out cannot know where
 *  the others are. Otherwise ranks evict different units and later gather different ones, which is
 *  MISMATCH with the units' numbers, or over NCCL, which cannot tell, TIMEOUT or the values of
 *  another unit of the same size. With as many param_slots as there are units of a size nothing is
 *  evicted, and any rank may hold any unit.
 *  Where ranks leave units out over NCCL, set left_out_at_once (zero/tuning.h).
 *
 *  **Loss.** Backward adds the gradient of the micro-step's own mean loss, times zero_loss_scale.
 *  Do not divide the loss by the number of micro-steps or ranks: the step does (grad_divisor;
 *  zero/step.h says what a loss that is divided twice looks like).
 *
 *  **Warnings** (zero/log.h), once each, by rank 0: after the first step, for units that it has
 *  given no gradient while others got one; for a step whose norm is exactly 0, when its result is
 *  known. A gradient that is assigned instead of added is right in the first use of a step, and
 *  later uses lose what was summed before: tuning.check_added finds it in the first micro-step.
 *
 *  **Threads.** As zero_engine says: one thread at a time, any thread. */
#ifndef ZERO_UNIT_H
#define ZERO_UNIT_H

#include "zero/dtype.h"
#include "zero/engine.h"
#include "zero/export.h"
#include "zero/status.h"
#include "zero/stream.h"
#include <stdint.h>

ZERO_BEGIN

/** The caller's use of a unit. */
typedef enum zero_pass {
    ZERO_PASS_NONE = 0,     /**< of zero_unit_pass: not acquired. Of an acquire: FORWARD where a
                               micro-step is open, EVAL where none is */
    ZERO_PASS_FORWARD = 1,  /**< forward of a micro-step */
    ZERO_PASS_BACKWARD = 2, /**< backward of a micro-step, and the unit's recomputation just
                               before it. Backward has reached this unit: gradients of units
                               that are too far behind it to get a slot count as left out */
    ZERO_PASS_EVAL = 3 /**< forward outside any micro-step; does not change the recorded order */
} zero_pass;

/** Which micro-step of a step one is. */
typedef enum zero_micro {
    ZERO_MICRO_EARLIER = 0, /**< others follow before zero_step: their gradients are added to it */
    ZERO_MICRO_LAST = 1     /**< the boundary: zero_step follows */
} zero_micro;

/** Open a micro-step. Every rank makes the same number of them in a step. Otherwise the first
 *  collective that differs, a reduction or zero_step, is MISMATCH. With ZERO_ACCUMULATION_LOCAL at
 *  stage 3, and at stages 2 and 3 over NCCL, it is TIMEOUT.
 *  - Collective over the ranks that share parameters: it may begin the first gathers. An engine's
 *    first one is collective over its world, unless it was saved or captured before: where
 *    anything was filled, loaded, imported or written, ranks compare hashes of the shards that
 *    several of them hold, and what each has imported. This reads those shards once.
 *  - Errors: INVALID_ARGUMENT (micro). MISMATCH naming the ranks and the first tensor that differs.
 *    STATE when a micro-step is open, when the step is due, while a unit is acquired, and while
 *    roles are evicted (zero/evict.h). */
ZERO_API ZERO_MUST_CHECK zero_status zero_micro_begin(zero_engine *engine, zero_micro micro);

/** Close the micro-step. Gradients that were never acquired in it count as zero.
 *  - Collective over the ranks that share parameters or reduce gradients.
 *  - Errors: STATE when no micro-step is open, or when a unit or gradient is still acquired, which
 *    the message names. */
ZERO_API ZERO_MUST_CHECK zero_status zero_micro_end(zero_engine *engine);

/** Drop the step under way, wherever in it this rank is: the way out of an exception in forward or
 *  backward, or of a batch that turns out bad. Every unit and gradient that is acquired is
 * released, by however many calls, so all views are invalid. The open micro-step, if there is one,
 * is closed without the gradients that are missing. The sums of the step's earlier micro-steps are
 * dropped with it, as by zero_step_discard, since the shards hold one sum of all of them.
 * Parameters, moments, the count of updates, the loss scale and the bits of all later steps are as
 * if the step's micro-steps had not been made. zero_micro_begin comes next.
 *  - stream: after the work on views so far. Where several streams read or write them, let this one
 *    wait for the others first.
 *  - Collective: every rank makes the call in the same micro-step, each wherever it is in it, or
 *    after its end. A rank that is alone in abandoning cannot: the others go on to zero_step, and
 *    the first collective that differs is MISMATCH or TIMEOUT. Where units stay acquired while
 *    others of their size are gathered (see Ranks above), all ranks abandon at the same call.
 *  - Stream: as zero_micro_end, and likewise it takes part in all gathers and reductions that are
 *    left of the micro-step.
 *  - Memory: none. The open micro-step counts in zero_stats.micro_steps, the step in
 *    steps_discarded. Shards of role GRAD (zero/shard.h) hold part of its sums until the next step.
 *  - Errors: INVALID_ARGUMENT (stream). STATE when no step is under way, and inside a capture
 *    (zero/capture.h). COMM, TIMEOUT, MISMATCH. */
ZERO_API ZERO_MUST_CHECK zero_status zero_micro_abandon(zero_engine *engine, zero_stream stream);

/** The tensors that zero_unit_acquire hands out: the unit's own in the order they were added, then
 *  those that it ties to in the order of zero_tensor_tie. Only the library fills it; later versions
 *  may add fields at its end. */
typedef struct zero_unit_view {
    uint32_t tensor_count;   /**< of `params` and `grads` */
    const zero_view *params; /**< each what zero_tensor_data says of the tensor. With
                                tuning.encoded_views: data NULL, count 0, dtype NONE */
    const zero_view *grads;  /**< each what zero_tensor_grad says of it. For frozen tensors: data
                                NULL, count 0, dtype NONE. NULL outside backward */
} zero_unit_view;

/** Make a unit's parameters, and those of units it ties to, readable on `stream`; with
 *  ZERO_PASS_BACKWARD make their gradients writable too.
 *  - pass: FORWARD, BACKWARD or EVAL; NONE: FORWARD or EVAL, as a micro-step is open or not, so
 *    that one forward serves training and validation. In BACKWARD a unit without trained tensors is
 * acquired without gradients, so trainers need no special case for it.
 *  - stream: the caller's stream that reads the parameters and adds to the gradients.
 *  - view: out, or NULL. Untouched on failure.
 *  - Collective over the ranks that share the unit's parameters.
 *  - Stream: what the caller puts on `stream` from here on runs after the gather; the call itself
 *    does not wait for a GPU. With the host stream it waits.
 *  - Ownership: the view is the engine's: one for each unit, shared by acquires that nest. Its
 *    arrays are valid until the last zero_unit_release of the unit, `grads` until the release that
 *    closes the outermost acquire in backward.
 *  - Memory: none; slots and arrays are made by zero_engine_create.
 *  - Errors: INVALID_ARGUMENT (unit, pass, stream). STATE for a pass on the wrong side of a
 *    micro-step; when no slot is free (the message says how many param_slots or grad_slots are
 *    needed); in BACKWARD also after the unit's gradient was declared ready or counted as left out
 *    in this micro-step (zero_unit_params_acquire then acquires its parameters alone). COMM,
 *    TIMEOUT or MISMATCH, after which the engine is poisoned. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_acquire(zero_engine *engine, uint32_t unit,
                                                       zero_pass pass, zero_stream stream,
                                                       const zero_unit_view **view);

/** Close the last open zero_unit_acquire of the unit. Work on `stream` so far was the last to read
 *  its parameters. If this closes the outermost acquire in backward, that work also completes the
 *  gradient, whose reduction starts as soon as all gradients of its bucket are complete.
 *  - stream: as in zero_unit_acquire, or one that waits for it.
 *  - Local call, no waiting.
 *  - Ownership: after the last release pointers into the unit are invalid. With
 *    tuning.poison_released they read NaN.
 *  - Errors: INVALID_ARGUMENT (unit, stream); STATE naming the unit where it is not held by
 *    zero_unit_acquire. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_release(zero_engine *engine, uint32_t unit,
                                                       zero_stream stream);

/** Make a unit's parameters, and those of units it ties to, readable on `stream`. In
 *  ZERO_PASS_BACKWARD backward has then reached the unit, but no gradient is acquired.
 *  - pass, stream: as in zero_unit_acquire. zero_tensor_data gives views.
 *  - Collective over the ranks that share the unit's parameters.
 *  - Errors: those of zero_unit_acquire, except the ones about gradients. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_params_acquire(zero_engine *engine, uint32_t unit,
                                                              zero_pass pass, zero_stream stream);

/** Release parameters that zero_unit_params_acquire acquired. Work on `stream` so far was the last
 *  to read them.
 *  - stream: as in zero_unit_params_acquire, or one that waits for it.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT (unit, stream); STATE naming the unit where zero_unit_params_acquire
 *    does not hold it. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_params_release(zero_engine *engine, uint32_t unit,
                                                              zero_stream stream);

/** Make a unit's gradient, and those of units it ties to, writable on `stream`. The buffer holds
 *  zeros, or the sum of what was added earlier: add to it, never assign.
 *  - Local call. With the host stream it waits for the last reduction of the slot.
 *  - Ownership: zero_tensor_grad gives views, until the matching zero_unit_grads_ready.
 *  - Memory: none; uses a slot made by zero_engine_create.
 *  - Errors: INVALID_ARGUMENT (unit, stream). STATE outside a micro-step; after the unit's gradient
 *    was declared ready or counted as left out in this micro-step; for a unit that has no trained
 *    tensor and ties to no unit that has one; when no slot is free (the message says how many
 *    grad_slots are needed). */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_grads_acquire(zero_engine *engine, uint32_t unit,
                                                             zero_stream stream);

/** Close zero_unit_grads_acquire: work on `stream` so far completes the unit's gradient. The
 *  reduction starts as soon as all gradients of its bucket are complete.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT (unit, stream); STATE naming the unit where zero_unit_grads_acquire
 *    does not hold its gradient. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_grads_ready(zero_engine *engine, uint32_t unit,
                                                           zero_stream stream);

/** The pass of a unit's last open acquire; ZERO_PASS_NONE when it is not acquired. Acquiring a unit
 *  that ties to this one counts too.
 *  - pass: out.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT (unit, pass). */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_pass(const zero_engine *engine, uint32_t unit,
                                                    zero_pass *pass);

/** A tensor's elements: contiguous, shape as described, memory of the device, read-only to the
 *  caller. They begin at a multiple of 256 bytes at every stage and on every tier: enough for
 *  cuBLASLt and for loads of 16 bytes a thread.
 *  - view: out.
 *  - Ownership: borrowed until the last release of its unit.
 *  - Errors: INVALID_ARGUMENT (tensor, view), and with tuning.encoded_views; STATE when its unit is
 *    not acquired. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_data(zero_engine *engine, uint32_t tensor,
                                                      zero_view *view);

/** A tensor's gradient: contiguous, shape as described, grad_dtype, device memory, to be added to.
 *  It begins at a multiple of 256 bytes, as above.
 *  - view: out.
 *  - Ownership: borrowed until its unit's gradient is ready.
 *  - Errors: INVALID_ARGUMENT (tensor, view), also for a frozen tensor; STATE when the gradient of
 *    its unit is not acquired. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_grad(zero_engine *engine, uint32_t tensor,
                                                      zero_view *view);

ZERO_END

#endif
