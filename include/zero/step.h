/** @file
 *  The optimizer step on the shards.
 *
 *  **Mean gradient.** A step divides the sum of gradients over ranks and micro-steps once, and by
 *  the loss scale. The divisor depends on the loss of a micro-step:
 *
 *  - the mean over its samples: leave the default, ranks x micro-steps;
 *  - that mean, which the caller has divided by the number of micro-steps: set
 *    zero_step_params.grad_divisor to the number of ranks;
 *  - a sum that needs no division: set grad_divisor to 1;
 *  - the sum over its tokens, whose number differs between ranks: set grad_weight to that number.
 *    The sum of the weights divides, so every token counts alike.
 *
 *  A loss that is divided by the number of micro-steps twice looks right with AdamW, which divides
 *  by the gradient's own size: losses fall as they should. But norms are too small by that factor,
 *  so max_norm clips too little, and eps counts for more.
 *
 *  **Model parallelism.** With options.model_parallel norm, clipping, skipping and the loss scale
 *  are decided over all parts of the model. zero_step, zero_grad_norm, zero_step_discard and
 *  zero_step_state_set are then collective over all ranks of the mesh. Divisors and weights count
 *  the engine's world only: the ranks that hold other parts train on the same samples. */
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

/** AdamW's numbers for one group of tensors (Loshchilov and Hutter 2019, algorithm 2):
 *
 *      m = beta1 m + (1 - beta1) g
 *      v = beta2 v + (1 - beta2) g^2
 *      p = (1 - lr weight_decay) p - lr (m / c1) / (sqrt(v / c2) + eps)
 *
 *  where c1 is 1 - the product of the beta1 so far, and c2 likewise.
 *
 *  Take the struct that zero_step_params_init() gives and assign single fields. `(zero_adamw){.lr =
 *  1e-3f}` has betas and eps of 0 and is refused. */
typedef struct zero_adamw {
    float lr;           /**< learning rate, finite, >= 0 */
    float beta1;        /**< in [0, 1) */
    float beta2;        /**< in [0, 1) */
    float eps;          /**< > 0 */
    float weight_decay; /**< >= 0; does not apply to ZERO_TENSOR_NO_DECAY */
} zero_adamw;

/** Lion's numbers for one group of tensors (Chen et al. 2023, algorithm 2):
 *
 *      c = beta1 m + (1 - beta1) g
 *      p = (1 - lr weight_decay) p - lr sign(c)
 *      m = beta2 m + (1 - beta2) g
 *
 *  where sign(0) is 0. Take what zero_hyper_init() gives; betas and a weight_decay of 0 together
 * are refused. */
typedef struct zero_lion {
    float lr;           /**< learning rate, finite, >= 0 */
    float beta1;        /**< in [0, 1) */
    float beta2;        /**< in [0, 1) */
    float weight_decay; /**< >= 0; does not apply to ZERO_TENSOR_NO_DECAY */
} zero_lion;

/** The numbers of SGD with momentum for one group of tensors (Sutskever et al., "On the importance
 *  of initialization and momentum in deep learning", 2013; torch.optim.SGD without dampening):
 *
 *      d = g + weight_decay p
 *      m = momentum m + d
 *      p = p - lr m,  or with nesterov  p - lr (d + momentum m) */
typedef struct zero_sgd {
    float lr;           /**< learning rate, finite, >= 0 */
    float momentum;     /**< in [0, 1) */
    float weight_decay; /**< >= 0; does not apply to ZERO_TENSOR_NO_DECAY */
    float nesterov;     /**< 0 or 1 */
} zero_sgd;

/** LAMB's numbers for one group of tensors (You et al. 2019, algorithm 2):
 *
 *      m = beta1 m + (1 - beta1) g
 *      v = beta2 v + (1 - beta2) g^2
 *      u = (m / c1) / (sqrt(v / c2) + eps) + weight_decay p
 *      p = p - lr r u
 *
 *  where c1 is 1 - the product of the beta1 so far, c2 likewise, and r is the trust ratio of the
 *  tensor: |p| / |u|, L2 norms of the whole tensor before its update, over the shards of all ranks;
 *  1 where one of them is 0 or not finite. The bits are the same for any number of ranks.
 *
 *  A tensor that is ZERO_TENSOR_NO_DECAY, such as a bias or what a norm is scaled by, takes the
 *  ratio 1 too, as in the authors' and NVIDIA's code, unless adapt_undecayed is 1. */
typedef struct zero_lamb {
    float lr;              /**< learning rate, finite, >= 0 */
    float beta1;           /**< in [0, 1) */
    float beta2;           /**< in [0, 1) */
    float eps;             /**< > 0 */
    float weight_decay;    /**< >= 0; does not apply to ZERO_TENSOR_NO_DECAY */
    float min_ratio;       /**< a ratio is at least this, >= 0 */
    float max_ratio;       /**< and then at most this, >= 0; 0: no bound */
    float adapt_undecayed; /**< 0, or 1: ratios of ZERO_TENSOR_NO_DECAY follow their norms too */
} zero_lamb;

/** The numbers of LARS for one group of tensors (You et al. 2017, algorithm 1):
 *
 *      l = trust |p| / (|g| + weight_decay |p| + eps)
 *      m = momentum m + lr l (g + weight_decay p)
 *      p = p - m
 *
 *  with L2 norms of the whole tensor before its update, as LAMB's. l is 1 where one of them is 0 or
 *  not finite, and of a tensor that is ZERO_TENSOR_NO_DECAY unless adapt_undecayed is 1. */
typedef struct zero_lars {
    float lr;              /**< learning rate, finite, >= 0 */
    float momentum;        /**< in [0, 1) */
    float weight_decay;    /**< >= 0; does not apply to ZERO_TENSOR_NO_DECAY */
    float trust;           /**< > 0 */
    float eps;             /**< >= 0 */
    float adapt_undecayed; /**< 0, or 1: rates of ZERO_TENSOR_NO_DECAY follow their norms too */
} zero_lars;

/** An optimizer's hyper-parameters for one group of tensors. Its size never changes: 128 bytes,
 *  whatever optimizers come. */
typedef struct zero_hyper {
    zero_optimizer kind; /**< whose numbers these are, DEFAULT: AdamW's. Another than the group's
                            (options.group_optimizer) is refused; a callback reads none, and takes
                            DEFAULT and CALLBACK */
    uint32_t reserved0;  /**< 0 */
    union {
        zero_adamw adamw;      /**< of ZERO_OPTIMIZER_ADAMW and DEFAULT */
        zero_lion lion;        /**< of ZERO_OPTIMIZER_LION */
        zero_sgd sgd;          /**< of ZERO_OPTIMIZER_SGD */
        zero_lamb lamb;        /**< of ZERO_OPTIMIZER_LAMB */
        zero_lars lars;        /**< of ZERO_OPTIMIZER_LARS */
        uint64_t reserved[15]; /**< room for other optimizers' numbers */
    };
} zero_hyper;

/** Set a zero_hyper to an optimizer's defaults. For languages without C's inline functions; in C
 *  call zero_hyper_init(). Never fails.
 *  - hyper: out; NULL: nothing is done.
 *  - kind: the optimizer; of the caller's own there are no numbers. DEFAULT: AdamW.
 *  - Local call.
 *  - Threads: any. */
ZERO_API void zero_hyper_set_defaults(zero_hyper *hyper, zero_optimizer kind);

/** The defaults of AdamW: lr 1e-3, betas 0.9 and 0.999, eps 1e-8; of Lion: lr 1e-4, betas 0.9 and
 *  0.99; of SGD: lr 1e-3, no momentum; of LAMB: lr 1e-3, betas 0.9 and 0.999, eps 1e-6, ratios
 *  without bounds; of LARS: lr 0.1, momentum 0.9, trust 1e-3, eps 1e-8. No weight decay. */
static inline zero_hyper zero_hyper_init(zero_optimizer kind)
{
    zero_hyper hyper;
    zero_hyper_set_defaults(&hyper, kind);
    return hyper;
}

/** One step's hyper-parameters. Fill with zero_step_params_init(), then assign. It grows at its
 *  end; what an older caller's struct does not have is 0. */
typedef struct zero_step_params {
    size_t struct_bytes;      /**< set by zero_step_params_init() */
    zero_hyper hyper;         /**< for every group that `groups` does not cover. With several
                                 optimizers in one model `groups` covers those of the others */
    const zero_hyper *groups; /**< NULL, or one entry a group, by zero_tensor_desc.group; read
                                 before return */
    uint32_t group_count;     /**< entries of groups; 0: hyper serves all */
    float max_norm;      /**< clip the mean gradient's global L2 norm to this; 0: no clipping */
    double grad_divisor; /**< the sum over ranks and micro-steps is divided by this, finite and >
                            0. 0: ranks x micro-steps, or grad_weight where that is given */
    const float *grad_weight; /**< NULL, or the weight of this rank's gradients in the step, such
                                 as its number of tokens: a float in memory of the engine's
                                 device, finite and >= 0. The divisor is the exact sum over the
                                 ranks of the engine's world, rounded once to double. It is read
                                 on `stream` after the work there so far; later work on that
                                 stream may overwrite it */
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

/** Predict the next zero_step: give its hyper-parameters ahead, so that the engine computes it
 *  speculatively during backward, each unit as soon as its gradient is reduced.
 *
 *  The update assumes finite gradients and no clipping, and writes beside the parameters, masters
 *  and moments. zero_step validates it. If the assumption holds the update is committed. If
 *  clipping is needed it is discarded and the step is redone from the untouched state
 *  (zero_stats.steps_redone). If gradients are not finite the step is skipped. The bits are those
 *  of an ordinary step in all cases.
 *
 *  A rank whose reduced gradients alone are beyond the limit, or not finite, updates no further
 *  unit speculatively, nor does one whose zero_step has been called. Units that were updated before
 *  and are discarded move their state twice, and call a callback update twice.
 *
 *  While at least half of the last 8 steps were clipped, skipped ones apart, predicted steps are
 *  updated after backward like ordinary ones (zero_stats.steps_held_back). An outcome counts four
 *  steps later, so which steps are held back depends on outcomes only, not on timing.
 *  - params: as for zero_step; read before return. The next zero_step must be given the same.
 *    Another call before the last micro-step begins replaces them.
 *  - Local call; ranks may differ.
 *  - Errors: STATE where tuning.speculative_step is 0, or the step's last micro-step has begun;
 *    INVALID_ARGUMENT naming the hyper-parameter, also for grad_weight: the divisor must be known
 *    before backward ends. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_predict(zero_engine *engine,
                                                       const zero_step_params *params);

/** Update the shards with the reduced gradients, then all-gather the parameters where they are
 *  split less than the optimizer state. A step whose gradients are not finite changes nothing but
 *  the loss scale, and is counted.
 *  - params: NULL: the defaults of each group's optimizer; no clipping.
 *  - stream: where the last gradients were made ready.
 *  - Collective: every rank gives the same params after the same number of micro-steps. Ranks
 *    compare them together with the norm, except groups that have nothing to train or a callback.
 *    Parts of a model compare max_norm, the divisor, the loss scale and the steps so far;
 *    hyper-parameters are each part's own.
 *  - Stream: returns once enqueued. The next forward may begin at once; an acquire waits for its
 *    own unit only. The call itself waits while four steps are undecided and, where parameters are
 *    split, after steps 1, 2, 4, 8 and so on for the other ranks' same call.
 *  - Errors: STATE inside a micro-step or without a finished boundary. INVALID_ARGUMENT naming the
 *    hyper-parameter, also one that is not as predicted. INVALID_ARGUMENT once, before anything is
 *    done, for earlier steps whose weights could not divide (zero_step_wait reports them too):
 *    those changed nothing on any rank and are not counted, and the call can be made again. COMM,
 *    TIMEOUT. MISMATCH naming the first number that differs, two ranks and their values: the step,
 *    and each that was enqueued behind it, changes nothing on any rank. It comes with the step's
 *    result, from zero_step_wait, a dynamic zero_loss_scale or one of the next four zero_step, and
 *    poisons the engine. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step(zero_engine *engine, const zero_step_params *params,
                                               zero_stream stream);

/** The result of a step. Grows at its end. */
typedef struct zero_step_result {
    size_t struct_bytes; /**< set by zero_step_result_init() */
    uint64_t step;       /**< steps so far, this one and those of zero_step_state_set included */
    uint64_t updates;    /**< of these, not skipped */
    double norm; /**< L2 norm of the mean gradient before clipping; the true inf or NaN when not
                    finite. The same bits for any number of ranks that made the same gradients */
    double clip; /**< factor the gradient was multiplied by, 1 when not clipped */
    float loss_scale;          /**< scale of the next step's loss */
    int32_t skipped;           /**< 1: gradients were not finite, nothing was changed */
    uint32_t skipped_in_a_row; /**< steps skipped in a row up to this one; 0: it was not. A few
                                  are usual while a loss scale falls. Many mean that the run
                                  learns nothing any more, which the caller decides */
    uint64_t stalled; /**< of the update before this step: elements of this rank's optimizer shards
                           whose gradient was not 0 and whose master, or parameter that is its own,
                           has the bits that it had. Not of ZERO_OPTIMIZER_CALLBACK */
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

/** The last step's result. Waits until it is known; the update itself may still run.
 *  - result: in: struct_bytes, of zero_step_result_init(); out: the rest, as far as the struct
 *    goes.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT; STATE before the first step; the step's own failure.
 *    INVALID_ARGUMENT once when a step's weights could not divide (grad_weight); the next call
 *    gives the last step whose weights could. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_wait(zero_engine *engine, zero_step_result *result);

/** Get the factor of the loss in the next micro-step; 1 unless loss scaling is on.
 *  - scale: out.
 *  - Local call. With dynamic scaling it waits for the last step's decision.
 *  - Errors: INVALID_ARGUMENT; with dynamic scaling those of zero_step_wait. */
ZERO_API ZERO_MUST_CHECK zero_status zero_loss_scale(zero_engine *engine, float *scale);

/** The norm of the step that is due, before it is taken: the bits that zero_step_wait will report.
 *  It is the L2 norm of the mean gradient, without the loss scale and before clipping; inf or NaN
 *  when gradients are not finite. It changes nothing: zero_step or zero_step_discard comes next.
 *  - params: as for zero_step; grad_divisor and grad_weight are used.
 *  - stream: where grad_weight is read.
 *  - norm: out.
 *  - Collective: every rank makes the call, or none. It waits until the gradients of all ranks are
 *    reduced and, of a speculative step, for its update during backward.
 *  - Errors: INVALID_ARGUMENT, also for weights that cannot divide; STATE inside a micro-step,
 *    without a finished boundary, and inside a capture (zero/capture.h); COMM, TIMEOUT, MISMATCH
 *    when another rank is in zero_step. */
ZERO_API ZERO_MUST_CHECK zero_status zero_grad_norm(zero_engine *engine,
                                                    const zero_step_params *params,
                                                    zero_stream stream, double *norm);

/** Drop the step that is due instead of taking it, for example because its loss or norm is an
 *  outlier. Its gradients are gone, as after a step. Parameters, moments, the count of updates, the
 *  loss scale and the bits of all later steps are as if its micro-steps had not been made. A
 *  prediction of it is discarded too. It counts in zero_stats.steps_discarded, and not as a step.
 *  - Collective: every rank drops the step, or all take it. Returns at once.
 *  - Errors: STATE inside a micro-step, without a finished boundary, and inside a capture
 *    (zero/capture.h). */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_discard(zero_engine *engine);

/** Numbers that an optimizer may carry from one update of a group to the next; fixed for ever. */
#define ZERO_STEP_CARRIED 4

/** The state that a step passes on to the next besides shards; the same on all ranks. To resume a
 *  run with the bits of one that never ended, save this and every rank's shards (zero_shard_read of
 *  PARAM, MASTER, MOMENT1 and MOMENT2, and of SCALE1 and SCALE2 where there are any), and give both
 * to a new engine of the same model and options (zero_shard_write, zero_step_state_set). Ranks,
 * stage and tiers may differ. Fill with zero_step_state_init() for a new run, or with
 * zero_step_state_get. */
typedef struct zero_step_state {
    size_t struct_bytes; /**< set by zero_step_state_init() */
    uint64_t updates;    /**< steps so far that were not skipped */
    uint64_t skipped;    /**< steps so far that were */
    float loss_scale;    /**< of the next step's loss, > 0; 1 where losses are not scaled */
    uint32_t good_steps; /**< in a row that were not skipped, since the scale last changed */
    uint32_t overflows;  /**< in a row that were skipped, up to the last step */
    uint32_t reserved;   /**< 0 */
    double carried[ZERO_STEP_GROUPS]
                  [ZERO_STEP_CARRIED]; /**< by group, what its optimizer carries
                                          from one update to the next, in [0, 1]
                                          and 1 before the first. AdamW and
                                          LAMB: the products of the beta1 and of
                                          the beta2 of all updates. The rest stays 1 */
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

/** The engine's state after the last step. Waits for that step.
 *  - state: in: struct_bytes, of zero_step_state_init(); out: the rest, as far as the struct goes.
 *    Every rank gets the same.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT; STATE inside a capture and while one is launched (zero/capture.h);
 *    the step's own failure. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_state_get(zero_engine *engine,
                                                         zero_step_state *state);

/** Let the next step follow this state. The window, the hysteresis and the floor of loss scaling
 *  stay the engine's own. zero_step_result.step and .updates continue from these counts, zero_stats
 *  from the engine's own.
 *  - state: the same on every rank; read before return. Fields that an older caller's struct lacks
 *    are as zero_step_state_init() gives them.
 *  - Collective, between steps; waits for the last step.
 *  - Errors: INVALID_ARGUMENT naming the field, also when ranks were given different states or one
 *    of them refuses; UNSUPPORTED for a newer library's fields; STATE inside a step, while a unit
 *    is acquired, and as for zero_step_state_get. No rank's state has changed then. */
ZERO_API ZERO_MUST_CHECK zero_status zero_step_state_set(zero_engine *engine,
                                                         const zero_step_state *state);

ZERO_END

#endif
