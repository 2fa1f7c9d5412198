/** @file
 *  The optimizer step on the shards.
 *
 *  A step takes the mean gradient: the sum that backward added up, over ranks and micro-steps,
 * divided once, and by the loss scale. It is divided by ranks x micro-steps unless a step is given
 * another number: zero_step_params.grad_divisor, or grad_weight, whose sum over the ranks divides.
 * By default the loss of a micro-step is the mean over its own samples, and nothing else: a loss
 * that the caller has divided by the number of micro-steps already, as is usual elsewhere, is
 * divided by it twice. AdamW hides that, since it divides by the gradient's own size: losses fall
 * as they should, but norms are too small by that number, so max_norm clips too little, and eps
 * counts for more. Either leave the loss undivided, or set grad_divisor to the number of ranks; to
 * 1 for a sum. Where ranks see unequal numbers of tokens, let the loss be the sum over its tokens
 * and grad_weight their number: then every token counts alike.
 *
 * With options.model_parallel the model is in several parts, and norm, clipping, skipping and the
 * loss scale are decided over all of them. zero_step, zero_grad_norm, zero_step_discard and
 * zero_step_state_set are then collective over all ranks of the mesh. Divisors and weights are of
 * the engine's world alone: the ranks that hold other parts train on the same samples. */
#ifndef ZERO_STEP_H
#define ZERO_STEP_H

#include "zero/engine.h"
#include "zero/export.h"
#include "zero/options.h"
#include "zero/status.h"
#include "zero/stream.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** AdamW's numbers for one group of tensors (Loshchilov and Hutter 2019, alg. 2):
 *  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *  p = (1 - lr weight_decay) p - lr (m / c1) / (sqrt(v / c2) + eps), where c1 = 1 - product of the
 * beta1 so far, c2 likewise. */
typedef struct zero_adamw {
    float lr;           /**< learning rate, finite, >= 0 */
    float beta1;        /**< in [0, 1) */
    float beta2;        /**< in [0, 1) */
    float eps;          /**< > 0 */
    float weight_decay; /**< >= 0; does not apply to ZERO_TENSOR_NO_DECAY */
} zero_adamw;

/** An optimizer's hyper-parameters for one group of tensors. Its size never changes: 128 bytes,
 *  whatever optimizers come. */
typedef struct zero_hyper {
    zero_optimizer kind; /**< whose numbers these are: options.optimizer, or DEFAULT for that. Any
                            other is refused */
    uint32_t reserved0;  /**< 0 */
    union {
        zero_adamw adamw; /**< of ZERO_OPTIMIZER_ADAMW; a callback has its own and reads none */
        uint64_t reserved[15]; /**< room for other optimizers' numbers */
    };
} zero_hyper;

/** One step's hyper-parameters. Fill with zero_step_params_init(), then assign. It grows at its
 *  end; what an older caller's struct does not have is 0. */
typedef struct zero_step_params {
    size_t struct_bytes;      /**< set by zero_step_params_init() */
    zero_hyper hyper;         /**< for every group that `groups` does not cover */
    const zero_hyper *groups; /**< NULL, or one entry a group, by zero_tensor_desc.group; read
                                 before return */
    uint32_t group_count;     /**< entries of groups; 0: hyper serves all */
    float max_norm;      /**< clip the mean gradient's global L2 norm to this; 0: no clipping */
    double grad_divisor; /**< the sum over ranks and micro-steps is divided by this, finite and > 0.
                              0: ranks x micro-steps, or grad_weight where that is given */
    const float *grad_weight; /**< NULL, or memory of the engine's device, with what this rank's
                                   gradients of the step weigh: its tokens, for example. Finite and
                                   >= 0. The sum over the ranks of the engine's world, exact and
                                   rounded once to double, divides. Read on `stream`, after what is
                                   on it: work that is put there later may overwrite it */
} zero_step_params;

/** As zero_engine_options_init_sized: what zero_step_params_init() gives. */
ZERO_API void zero_step_params_init_sized(zero_step_params *params, size_t struct_bytes);

/** AdamW's lr 1e-3, betas 0.9 and 0.999, eps 1e-8, no decay; no clipping. */
static inline zero_step_params zero_step_params_init(void)
{
    zero_step_params params;
    zero_step_params_init_sized(&params, sizeof params);
    return params;
}

/** Say ahead what the next zero_step will be given, so that it is updated while backward runs, each
 *  unit as soon as its gradient is reduced. Until zero_step decides, that goes beside what is
 *  there: parameters, masters and moments stay as they are. It assumes that gradients are finite
 *  and not clipped. A step that is clipped is updated again, from what was there before, which
 *  moves its state twice (zero_stats.steps_redone); a step that is skipped leaves all as it was.
 *  The bits are those of a step that was not speculative. A callback update may so be called twice
 *  for a step. When three such steps one after the other were clipped, the next 8 are updated after
 *  backward, like steps that were not speculative (zero_stats.steps_held_back); then one is tried,
 *  and if that is clipped too, 16 are held back, and so on up to 512. A step's outcome counts four
 *  steps later, so which steps these are depends on the outcomes alone. The first that is not
 *  clipped ends it.
 *  - params: as for zero_step; read before return; the next zero_step must be given the same.
 *    Another call before the last micro-step begins replaces them. Local call; ranks may differ.
 *  - Errors: STATE where tuning.speculative_step is 0, or the step's last micro-step has begun;
 *    INVALID_ARGUMENT naming the hyper-parameter. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_predict(zero_engine *engine,
                                                       const zero_step_params *params);

/** Update the shards with the reduced gradients, then publish the parameters. Returns once
 *  enqueued: the next forward may begin at once, an acquire waits for its own unit only. It waits
 *  itself while four steps are undecided, and after steps 1, 2, 4, 8 and so on, where parameters
 *  are split, for the other ranks' same call. A step whose gradients are not finite changes nothing
 *  but the loss scale, and is counted.
 *  - params: NULL: as zero_step_params_init() has them.
 *  - stream: where the last gradients were made ready.
 *  - Collective: every rank gives the same params after the same number of micro-steps. The ranks
 *    compare them with the norm, but for groups that have nothing to train and, with a callback,
 *    for AdamW's numbers. Parts of a model compare max_norm, what gradients are divided by, the
 *    loss scale and the steps so far; AdamW's numbers are each part's own. Where they differ the
 *    step changes nothing on any rank, and so does each that was enqueued behind it; MISMATCH names
 *    the first number that differs, two ranks and their values. It comes with the step's result:
 *    from zero_step_wait, from zero_loss_scale where that is dynamic, or from a zero_step at most
 *    four later; the engine is poisoned then.
 *  - Errors: STATE inside a micro-step or without a finished boundary; INVALID_ARGUMENT naming the
 *    hyper-parameter, also one that is not as predicted, and, before anything is done, once for
 *    earlier steps whose weights could not divide: those changed nothing on any rank, the loss
 *    scale included, and are not counted; zero_step_wait says it too, so it can be called again;
 *    COMM, TIMEOUT, MISMATCH. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step(zero_engine *engine, const zero_step_params *params,
                                               zero_stream stream);

/** What a step came to. Grows at its end. */
typedef struct zero_step_result {
    size_t struct_bytes; /**< set by zero_step_result_init() */
    uint64_t step;       /**< steps so far, this one and those of zero_step_state_set included */
    uint64_t updates;    /**< of these, not skipped */
    double norm; /**< L2 norm of the mean gradient before clipping; the true inf or NaN when not
                    finite. The same bits for any number of ranks that made the same gradients */
    double clip; /**< factor the gradient was multiplied by, 1 when not clipped */
    float loss_scale;          /**< scale of the next step's loss */
    int32_t skipped;           /**< 1: gradients were not finite, nothing was changed */
    uint32_t skipped_in_a_row; /**< steps up to this one that were all skipped; 0: it was not. With
                                  a loss scale that still falls a few are usual; many are a run
                                  that learns nothing any more, for the caller to end */
} zero_step_result;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_step_result_init_sized(zero_step_result *result, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_step_result zero_step_result_init(void)
{
    zero_step_result result;
    zero_step_result_init_sized(&result, sizeof result);
    return result;
}

/** The last step's result; waits until it is known (the update itself may still run).
 *  - result: in: struct_bytes, of zero_step_result_init(); out: the rest, as far as the struct is
 *    long.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT; STATE before the first step; INVALID_ARGUMENT, once, where weights
 *    of a step could not divide (grad_weight), after which the call gives the last step that
 *    could; the step's own failure. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_wait(zero_engine *engine, zero_step_result *result);

/** What to multiply the loss by in the next micro-step. 1 unless loss scaling is on. Waits for the
 * last step's decision when scaling is dynamic, and then fails as zero_step_wait does. */
ZERO_API ZERO_MUST_CHECK zero_status zero_loss_scale(zero_engine *engine, float *scale);

/** The norm of the step that is due, before it is taken: what zero_step_wait will tell of it, with
 *  the same bits. It is the L2 norm of the mean gradient, without the loss scale and before
 *  clipping, inf or NaN when gradients are not finite. Moves nothing: zero_step or
 *  zero_step_discard comes next, as ever.
 *  - params: as the step's: grad_divisor and grad_weight are used; NULL as there.
 *  - stream: where grad_weight is read.
 *  - norm: out. Waits until the gradients of all ranks are reduced and, of a speculative step,
 *    until it is updated as far as that goes during backward.
 *  - Collective: every rank makes the call, or none.
 *  - Errors: INVALID_ARGUMENT, also for weights that cannot divide; STATE inside a micro-step,
 *    without a finished boundary, and inside a capture (zero/capture.h); COMM, TIMEOUT, MISMATCH
 *    when another rank is in zero_step. */
ZERO_API ZERO_MUST_CHECK zero_status zero_grad_norm(zero_engine *engine,
                                                    const zero_step_params *params,
                                                    zero_stream stream, double *norm);

/** Drop the step that is due instead of taking it, as trainers do whose loss or norm is an outlier.
 *  Its gradients are forgotten, as after a step; parameters, moments, the count of updates and the
 *  loss scale are what they would be had its micro-steps never been, and so are the bits of all
 *  steps that follow. A prediction of it is void. Counted in zero_stats.steps_discarded, and not as
 *  a step.
 *  - Collective: every rank drops it, or all take it. Returns at once.
 *  - Errors: STATE inside a micro-step, without a finished boundary, and inside a capture
 *    (zero/capture.h). */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_discard(zero_engine *engine);

/** Hyper-parameter groups (zero_tensor_desc.group), at most. */
#define ZERO_STEP_GROUPS 64

/** What steps leave to the steps after them, besides shards. Whoever saves this and every rank's
 * shards (zero_shard_read of PARAM, MASTER, MOMENT1 and MOMENT2), and gives both to a new engine of
 * the same model and options (zero_shard_write, zero_step_state_set), goes on with the bits of a
 * run that never ended. Ranks, stage and tiers may differ; it is the same on all ranks. Fill with
 * zero_step_state_init(), for a run that begins, or zero_step_state_get. */
typedef struct zero_step_state {
    size_t struct_bytes; /**< set by zero_step_state_init() */
    uint64_t updates;    /**< steps so far that were not skipped */
    uint64_t skipped;    /**< steps so far that were */
    float loss_scale;    /**< of the next step's loss, > 0; 1 where losses are not scaled */
    uint32_t good_steps; /**< in a row that were not skipped, since the scale last changed */
    uint32_t overflows;  /**< in a row that were skipped, up to the last step */
    uint32_t reserved;   /**< 0 */
    double beta1_product[ZERO_STEP_GROUPS]; /**< by group, the product of the beta1 of all updates:
                                               beta1^updates where it never changed, 1 before the
                                               first */
    double beta2_product[ZERO_STEP_GROUPS]; /**< likewise */
} zero_step_state;

/** As zero_engine_options_init_sized: what zero_step_state_init() gives. */
ZERO_API void zero_step_state_init_sized(zero_step_state *state, size_t struct_bytes);

/** The state before the first step of losses that are not scaled. */
static inline zero_step_state zero_step_state_init(void)
{
    zero_step_state state;
    zero_step_state_init_sized(&state, sizeof state);
    return state;
}

/** The engine's state after the last step, for which this waits.
 *  - state: in: struct_bytes, of zero_step_state_init(); out: the rest, as far as the struct goes.
 *    Local call; every rank gets the same.
 *  - Errors: INVALID_ARGUMENT; STATE inside a capture and while one is launched (zero/capture.h);
 *    the step's own failure. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_state_get(zero_engine *engine,
                                                         zero_step_state *state);

/** Let the next step be the one after this state. The window, the hysteresis and the floor of loss
 *  scaling stay the engine's own. zero_step_result.step and .updates go on from these counts,
 *  zero_stats from the engine's own.
 *  - state: the same on every rank; read before return; what an older caller's struct does not have
 *    is as zero_step_state_init() gives it.
 *  - Collective, between steps; waits for the last.
 *  - Errors: INVALID_ARGUMENT naming the field, also where ranks were given different ones or one
 *    of them refuses, and then no rank's state has changed; UNSUPPORTED for a newer library's
 *    fields; STATE inside a step, while a unit is acquired, and as for zero_step_state_get. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_state_set(zero_engine *engine,
                                                         const zero_step_state *state);

ZERO_END

#endif
