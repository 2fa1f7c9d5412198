/** @file
 *  The hooks inside forward and backward.
 *
 *  A micro-step is one forward and one backward on one micro-batch:
 *
 *      zero_micro_begin(engine, last)
 *        forward:   acquire unit, compute, release unit      (for each unit)
 *        backward:  acquire unit, acquire its gradient, compute, gradient ready, release unit
 *      zero_micro_end(engine)
 *
 *  Every rank makes the same calls in the same order, but a rank may leave units out. A unit
 *  that stays acquired while others of its size are gathered must be held so by every rank, and
 *  meanwhile no rank may leave units out: a rank that holds a unit gives up another's place where
 *  the others give up that one's, and later they gather different units. That is MISMATCH with the
 *  units' numbers, TIMEOUT over NCCL; with param_slots as many as there are units of a size nothing
 *  is given up and any rank may hold any unit.
 *
 *  What backward adds is the gradient of the micro-step's own mean loss, times zero_loss_scale. Do
 * not divide the loss by the number of micro-steps or ranks: the step does (options.grad_divisor;
 * see zero/step.h for what a loss that is divided twice looks like). */
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
                                 too far behind it to find a slot are taken as left out. Recompute
                                 several units ahead of their backward with ZERO_PASS_FORWARD */
    ZERO_PASS_EVAL = 3      /**< forward outside any micro-step; leaves the recorded order alone */
} zero_pass;

/** Open a micro-step. last: 1 at the boundary, the last micro-step before zero_step; else 0. Every
 * rank makes as many in a step: MISMATCH comes from where ranks that do not meet first, a reduction
 * or zero_step. Where they meet nowhere it is TIMEOUT: with ZERO_ACCUMULATION_LOCAL at stage 3, and
 * at stages 2 and 3 over NCCL.
 *  Errors: STATE when one is open, when the boundary's step has not been taken, while a unit is
 * acquired, and while roles are offloaded (zero/park.h). */
ZERO_API ZERO_MUST_CHECK zero_status zero_micro_begin(zero_engine *engine, int32_t last);

/** Close it: gradients that never came count as zero. Errors: STATE when none is open or a unit or
 * gradient is still acquired (named in the message). */
ZERO_API ZERO_MUST_CHECK zero_status zero_micro_end(zero_engine *engine);

/** Make a unit's full parameters (and those of units it ties to) readable on `stream`.
 *  Collective over the shard group. Acquires nest by count. Memory: none; uses a slot made at
 * create. Errors: INVALID_ARGUMENT (unit, pass, stream); STATE (pass outside/inside a micro-step;
 * no free slot: the message says how many param_slots are needed); COMM, TIMEOUT or MISMATCH, after
 * which the engine is poisoned. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_acquire(zero_engine *engine, uint32_t unit,
                                                       zero_pass pass, zero_stream stream);

/** Say that what was put on `stream` so far was the last to read the unit. Pointers into it are
 * dead. Errors: STATE naming the unit when it is not acquired. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_release(zero_engine *engine, uint32_t unit,
                                                       zero_stream stream);

/** The pass that a unit is acquired in, the last one where acquires nest; ZERO_PASS_NONE where it
 * is not. A unit that others tie to is acquired in the pass of these too. Local call, no waiting.
 * Errors: INVALID_ARGUMENT (unit, pass). */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_pass(const zero_engine *engine, uint32_t unit,
                                                    zero_pass *pass);

/** A tensor's elements: contiguous, shape as described, memory of the device, read-only to the
 * caller. They begin at a multiple of 256 bytes, whatever the tensors' sizes, the stage and the
 * tiers are: enough for cuBLASLt and for loads of 16 bytes a thread. Borrowed until the last
 * release of its unit. Errors: STATE when its unit is not acquired.
 */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_data(zero_engine *engine, uint32_t tensor,
                                                      zero_view *view);

/** Make a unit's gradient (and those of units it ties to) writable on `stream`. The buffer holds
 * zeros, or the sum of what was added earlier: ADD to it, never assign. Nests by count. Errors:
 * STATE outside a micro-step, after the unit's gradient was declared ready or taken as left out in
 * this micro-step, for a unit with no trained tensor, or when no slot is free (the message says how
 * many grad_slots are needed). */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_grad_acquire(zero_engine *engine, uint32_t unit,
                                                            zero_stream stream);

/** A tensor's gradient: contiguous, shape as described, grad_dtype, device memory, to be added to.
 *  It begins at a multiple of 256 bytes, as above. Borrowed until zero_unit_grad_ready. Errors:
 * STATE when not acquired; INVALID_ARGUMENT for a frozen tensor. */
ZERO_API ZERO_MUST_CHECK zero_status zero_tensor_grad(zero_engine *engine, uint32_t tensor,
                                                      zero_view *view);

/** Say that what was put on `stream` so far completes the unit's gradient of this micro-step. Its
 * reduction starts as soon as those of its bucket are complete. Errors: STATE naming the unit when
 * its gradient is not acquired. */
ZERO_API ZERO_MUST_CHECK zero_status zero_unit_grad_ready(zero_engine *engine, uint32_t unit,
                                                          zero_stream stream);

ZERO_END

#endif
