/** @file
 *  The optimizer step on the shards. */
#ifndef ZERO_STEP_H
#define ZERO_STEP_H

#include "zero/engine.h"
#include "zero/export.h"
#include "zero/status.h"
#include "zero/stream.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

/** One step's hyper-parameters. Fill with zero_step_params_init(), then assign. */
typedef struct zero_step_params {
    size_t struct_bytes; /**< set by zero_step_params_init() */
    zero_adamw
        adamw; /**< for every group that `groups` does not cover; ignored by the callback form */
    const zero_adamw
        *groups; /**< NULL, or one entry a group, by zero_tensor_desc.group; read before return */
    uint32_t group_count; /**< entries of groups; 0: adamw serves all */
    float max_norm;       /**< clip the mean gradient's global L2 norm to this; 0: no clipping */
} zero_step_params;

/** lr 1e-3, betas 0.9 and 0.999, eps 1e-8, no decay, no clipping. */
static inline zero_step_params zero_step_params_init(void)
{
    zero_step_params params;
    memset(&params, 0, sizeof params);
    params.struct_bytes = sizeof params;
    params.adamw.lr = 1e-3f;
    params.adamw.beta1 = 0.9f;
    params.adamw.beta2 = 0.999f;
    params.adamw.eps = 1e-8f;
    return params;
}

/** Say ahead what the next zero_step will be given, so that it is updated while backward runs, each
 * unit as soon as its gradient is reduced. Until zero_step decides, that goes beside what is there:
 * parameters, masters and moments stay as they are. It presumes that gradients are finite and not
 * clipped. A step that is clipped is updated again, from what was there before, which moves its
 * state twice (zero_stats.steps_redone); a step that is skipped leaves all as it was. The bits are
 * those of a step that was not announced. A callback update may so be called twice for a step.
 * params  as for zero_step; read before return; the next zero_step must be given the same. Another
 * call before the last micro-step begins replaces them. Local call; ranks may differ. Errors: STATE
 * where options.overlap_step is 0, or the step's last micro-step has begun; INVALID_ARGUMENT naming
 * the hyper-parameter. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_announce(zero_engine *engine,
                                                        const zero_step_params *params);

/** Update the shards with the reduced gradients, then publish the parameters. Returns once
 * enqueued: the next forward may begin at once, an acquire waits for its own unit only. It waits
 * itself while four steps are undecided, and after steps 1, 2, 4, 8 and so on, where parameters are
 * split, for the other ranks' same call. A step whose gradients are not finite changes nothing but
 * the loss scale, and is counted. params  NULL: as zero_step_params_init() has them. stream  where
 * the last gradients were made ready. Collective: every rank gives the same params after the same
 * number of micro-steps. The ranks compare them with the norm, but for groups that have nothing to
 * train and, with a callback, for AdamW's numbers. Where they differ the step changes nothing on
 * any rank, and so does each that was enqueued behind it; MISMATCH names the first number that
 * differs, two ranks and their values. It comes with the step's result: from zero_step_wait, from
 * zero_loss_scale where that is dynamic, or from a zero_step at most four later; the engine is
 * poisoned then. Errors: STATE inside a micro-step or without a finished boundary; INVALID_ARGUMENT
 * naming the hyper-parameter, also one that is not as announced; COMM, TIMEOUT, MISMATCH. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step(zero_engine *engine, const zero_step_params *params,
                                               zero_stream stream);

/** What a step came to. */
typedef struct zero_step_result {
    uint64_t step;    /**< steps so far, this one included */
    uint64_t updates; /**< of these, not skipped */
    double norm; /**< L2 norm of the mean gradient before clipping; the true inf or NaN when not
                    finite. The same bits for any number of ranks that made the same gradients */
    double clip; /**< factor the gradient was multiplied by, 1 when not clipped */
    float loss_scale;          /**< scale of the next step's loss */
    int32_t skipped;           /**< 1: gradients were not finite, nothing was changed */
    uint32_t skipped_in_a_row; /**< steps up to this one that were all skipped; 0: it was not. With
                                  a loss scale that still falls a few are usual; many are a run
                                  that learns nothing any more, for the caller to end */
} zero_step_result;

/** The last step's result; waits until it is known (the update itself may still run). Local call.
 *  Errors: STATE before the first step; the step's own failure. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_wait(zero_engine *engine, zero_step_result *result);

/** What to multiply the loss by in the next micro-step. 1 unless loss scaling is on. Waits for the
 * last step's decision when scaling is dynamic. */
ZERO_API ZERO_MUST_CHECK zero_status zero_loss_scale(zero_engine *engine, float *scale);

ZERO_END

#endif
