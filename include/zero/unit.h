/** @file
 *  The hooks inside forward and backward.
 *
 *  A micro-step is one forward and one backward on one micro-batch. A unit costs four calls:
 *
 *      zero_micro_begin(engine, last)
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
 *  Nesting. The calls of one kind (zero_unit_acquire, parameters, gradients) nest by count, and a
 *  release closes the last open acquire of its kind. The outermost zero_unit_acquire in backward
 *  acquires the gradients, and they are ready at the release that closes it. Kinds may be mixed on
 *  a unit, but none closes another: its parameters stay until all that acquired them have released
 *  them, and its gradient is complete when all that acquired it have said so.
 *
 *  Ties. A unit that ties to tensors of another unit, their owner, acquires and releases the owner
 *  with itself. The owner's gradient is complete when its own and those of all units that tie to it
 *  are.
 *
 *  Refusals. An acquire that is refused with STATE or INVALID_ARGUMENT leaves no count raised, no
 *  slot held and no view changed. Parameters may have been gathered ahead of time, and backward has
 *  come to the unit (see ZERO_PASS_BACKWARD).
 *
 *  Ranks. Every rank makes the same calls in the same order, but a rank may leave units out. A unit
 *  that stays acquired while others of its size are gathered must be held so by every rank, and
 *  meanwhile no rank may leave units out. Otherwise ranks evict different units and later gather
 *  different ones: that is MISMATCH with the units' numbers, TIMEOUT over NCCL. With param_slots as
 *  many as there are units of a size nothing is evicted, and any rank may hold any unit.
 *
 *  What backward adds is the gradient of the micro-step's own mean loss, times zero_loss_scale. Do
 *  not divide the loss by the number of micro-steps or ranks: the step does (grad_divisor; see
 *  zero/step.h for what a loss that is divided twice looks like).
 *
 *  Threads: one at a time calls an engine. */
#ifndef ZERO_UNIT_H
#define ZERO_UNIT_H

#include "zero/dtype.h"
#include "zero/engine.h"
#include "zero/export.h"
#include "zero/status.h"
#include "zero/stream.h"
#include <stdint.h>

ZERO_BEGIN

/** What the caller is doing with a unit. */
typedef enum zero_pass {
    ZERO_PASS_NONE = 0,     /**< not acquired; an answer of zero_unit_pass, no pass to acquire in */
    ZERO_PASS_FORWARD = 1,  /**< forward of a micro-step */
    ZERO_PASS_BACKWARD = 2, /**< backward of a micro-step, and the unit's recomputation just before
                               it. Tells that backward has come to this unit: gradients of units
                                 too far behind it to find a slot are taken as left out */
    ZERO_PASS_EVAL = 3      /**< forward outside any micro-step; leaves the recorded order alone */
} zero_pass;

/** Open a micro-step. Every rank makes as many in a step. MISMATCH comes from where ranks that do
 * not meet first, a reduction or zero_step. Where they meet nowhere it is TIMEOUT: with
 * ZERO_ACCUMULATION_LOCAL at stage 3, and at stages 2 and 3 over NCCL.
 *  - last: 1 at the boundary, the last micro-step before zero_step; else 0.
 *  - Collective over the ranks that share parameters: it may begin the first gathers.
 *  - Errors: INVALID_ARGUMENT (last). STATE when one is open, when the boundary's step has not been
 *    taken, while a unit is acquired, and while roles are evicted (zero/evict.h). */
ZERO_API ZERO_MUST_CHECK zero_status zero_micro_begin(zero_engine *engine, int32_t last);

/** Close it: gradients that never came count as zero.
 *  - Collective over the ranks that share parameters or reduce gradients.
 *  - Errors: STATE when none is open, or when a unit or gradient is still acquired (named in the
 *    message). */
ZERO_API ZERO_MUST_CHECK zero_status zero_micro_end(zero_engine *engine);

/** What zero_unit_acquire hands out: the unit's own tensors in the order they were added, then
 * those that it ties to in the order of zero_tensor_tie. Only the library makes these; fields may
 * come to be added at the end. */
typedef struct zero_unit_view {
    uint32_t tensor_count;   /**< of `params` and `grads` */
    const zero_view *params; /**< each what zero_tensor_data says of the tensor */
    const zero_view *grads;  /**< each what zero_tensor_grad says of it. For frozen tensors: data
                                  NULL, count 0, dtype NONE. NULL outside backward */
} zero_unit_view;

/** Make a unit's parameters, and those of units it ties to, readable on `stream`; with
 * ZERO_PASS_BACKWARD make their gradients writable too.
 *  - pass: NONE excepted. In BACKWARD a unit without trained tensors has no gradient to acquire, so
 *    trainers need not tell such units apart.
 *  - stream: the caller's stream that reads and adds.
 *  - view: out, or NULL. Untouched on failure.
 *  - Collective over the ranks that share the unit's parameters.
 *  - Stream: what the caller puts on `stream` from here on runs after the gather; the call itself
 *    does not wait for a GPU. On the host stream it waits.
 *  - Ownership: the view is the engine's, one for each unit, the same for acquires that nest. Its
 *    arrays are good until the last zero_unit_release of the unit, `grads` until the one that
 *    closes the outermost acquire in backward.
 *  - Memory: none; slots and arrays are made by zero_engine_create.
 *  - Errors: INVALID_ARGUMENT (unit, pass, stream). STATE for a pass on the wrong side of a
 *    micro-step; when no slot is free (the message says how many param_slots or grad_slots are
 *    needed); in BACKWARD also after the unit's gradient was declared ready or taken as left out in
 *    this micro-step (zero_unit_params_acquire acquires its parameters alone). COMM, TIMEOUT or
 *    MISMATCH, after which the engine is poisoned. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_acquire(zero_engine *engine, uint32_t unit,
                                                       zero_pass pass, zero_stream stream,
                                                       const zero_unit_view **view);

/** Close the last open zero_unit_acquire of the unit. What was put on `stream` so far was the last
 * to read its parameters and, where this closes the outermost acquire in backward, completes its
 * gradient, whose reduction starts as soon as those of its bucket are complete.
 *  - stream: as in zero_unit_acquire, or one that waits for it.
 *  - Local call, no waiting.
 *  - Ownership: after the last release pointers into the unit are dead. With
 *    tuning.poison_released they read NaN.
 *  - Errors: INVALID_ARGUMENT (unit, stream); STATE naming the unit where it is not held by
 *    zero_unit_acquire. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_release(zero_engine *engine, uint32_t unit,
                                                       zero_stream stream);

/** The part of zero_unit_acquire that is about parameters. In ZERO_PASS_BACKWARD it tells that
 * backward has come to the unit, but acquires no gradient.
 *  - pass, stream: as there. zero_tensor_data gives views.
 *  - Collective over the ranks that share the unit's parameters.
 *  - Errors: as there, but for what is said of gradients. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_params_acquire(zero_engine *engine, uint32_t unit,
                                                              zero_pass pass, zero_stream stream);

/** Say that what was put on `stream` so far was the last to read the parameters that
 * zero_unit_params_acquire made readable.
 *  - stream: as in zero_unit_params_acquire, or one that waits for it.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT (unit, stream); STATE naming the unit where zero_unit_params_acquire
 * does not hold it. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_params_release(zero_engine *engine, uint32_t unit,
                                                              zero_stream stream);

/** Make a unit's gradient, and those of units it ties to, writable on `stream`. The buffer holds
 * zeros, or the sum of what was added earlier: ADD to it, never assign.
 *  - Local call. On the host stream it waits for a slot's last reduction.
 *  - Ownership: zero_tensor_grad gives views, until the matching zero_unit_grads_ready.
 *  - Memory: none; uses a slot made by zero_engine_create.
 *  - Errors: INVALID_ARGUMENT (unit, stream). STATE outside a micro-step; after the unit's gradient
 *    was declared ready or taken as left out in this micro-step; for a unit that has no trained
 *    tensor; when no slot is free (the message says how many grad_slots are needed). */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_grads_acquire(zero_engine *engine, uint32_t unit,
                                                             zero_stream stream);

/** Say that what was put on `stream` so far completes what zero_unit_grads_acquire was called for.
 * The reduction starts as soon as all gradients of its bucket are complete.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT (unit, stream); STATE naming the unit where zero_unit_grads_acquire
 *    does not hold its gradient. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_grads_ready(zero_engine *engine, uint32_t unit,
                                                           zero_stream stream);

/** The pass that a unit is acquired in, the last one where acquires nest; ZERO_PASS_NONE where it
 * is not. A unit that others tie to is acquired in the pass of these too.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT (unit, pass). */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_pass(const zero_engine *engine, uint32_t unit,
                                                    zero_pass *pass);

/** A tensor's elements: contiguous, shape as described, memory of the device, read-only to the
 * caller. They begin at a multiple of 256 bytes, whatever the tensors' sizes, the stage and the
 * tiers are: enough for cuBLASLt and for loads of 16 bytes a thread.
 *  - view: out.
 *  - Ownership: borrowed until the last release of its unit.
 *  - Errors: INVALID_ARGUMENT (tensor, view); STATE when its unit is not acquired. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_data(zero_engine *engine, uint32_t tensor,
                                                      zero_view *view);

/** A tensor's gradient: contiguous, shape as described, grad_dtype, device memory, to be added to.
 * It begins at a multiple of 256 bytes, as above.
 *  - view: out.
 *  - Ownership: borrowed until its unit's gradient is ready.
 *  - Errors: INVALID_ARGUMENT (tensor, view), also for a frozen tensor; STATE when the gradient of
 *    its unit is not acquired. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_grad(zero_engine *engine, uint32_t tensor,
                                                      zero_view *view);

ZERO_END

#endif
