/* Owns the tests of calls that are wrong: each is refused with a status and a message that names
 * what was wrong, and the engine goes on as if it had never been made. */
#include "harness.h"
#include "reads.h"

#include <setjmp.h>
#include <stdatomic.h>

#include "at_stages.h"

/* The engine still trains: a refusal left nothing behind. */
static zero_status still_works(toy_trainer *trainer)
{
    TOY_TRY(toy_step_or_skip(trainer, false));
    CHECK_EQ(trainer->result.skipped, 0);
    CHECK(trainer->result.norm > 0);
    return toy_evaluate(trainer);
}

/* ---- acquire and release ---- */

TEST_AT_ALL_STAGES(release_without_acquire)
{
    CHECK_FAILS(release(trainer, BLOCK0), ZERO_ERR_STATE, "block0");
    TOY_TRY(toy_micro_begin(trainer, true));
    CHECK_FAILS(release(trainer, HEAD), ZERO_ERR_STATE, "head");
    TOY_TRY(acquire(trainer, BLOCK0, ZERO_PASS_FORWARD));
    TOY_TRY(acquire(trainer, BLOCK0, ZERO_PASS_FORWARD));
    TOY_TRY(release(trainer, BLOCK0));
    TOY_TRY(toy_read(trainer, BLOCK0));
    TOY_TRY(release(trainer, BLOCK0));
    CHECK_FAILS(release(trainer, BLOCK0), ZERO_ERR_STATE, "block0");
    TOY_TRY(end_step(trainer));
    CHECK_FAILS(release(trainer, BLOCK0), ZERO_ERR_STATE, "block0");
    return still_works(trainer);
}

/* An owner acquired through its tie is not the caller's to release. */
TEST_AT_ALL_STAGES(release_of_a_tied_owner)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(acquire(trainer, HEAD, ZERO_PASS_FORWARD));
    CHECK_FAILS(release(trainer, EMBED), ZERO_ERR_STATE, "embed");
    TOY_TRY(toy_read(trainer, HEAD));
    TOY_TRY(release(trainer, HEAD));
    TOY_TRY(end_step(trainer));
    return still_works(trainer);
}

TEST_AT_ALL_STAGES(passes_at_the_wrong_time)
{
    CHECK_FAILS(params_acquire(trainer, BLOCK1, ZERO_PASS_FORWARD), ZERO_ERR_STATE, "block1");
    CHECK(strstr(zero_last_error()->message, "forward") != NULL);
    CHECK_FAILS(params_acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD), ZERO_ERR_STATE, "backward");
    CHECK_FAILS(params_acquire(trainer, BLOCK1, (zero_pass)4), ZERO_ERR_INVALID_ARGUMENT, "pass 4");
    CHECK_FAILS(params_acquire(trainer, BLOCK1, (zero_pass)9), ZERO_ERR_INVALID_ARGUMENT, "pass 9");
    TOY_TRY(toy_micro_begin(trainer, true));
    CHECK_FAILS(params_acquire(trainer, BLOCK1, ZERO_PASS_EVAL), ZERO_ERR_STATE, "eval");
    TOY_TRY(end_step(trainer));
    return still_works(trainer);
}

TEST_AT_ALL_STAGES(tensor_data_of_a_unit_that_is_not_acquired)
{
    zero_engine *engine = trainer->engine;
    const toy_model *model = trainer->run->model;
    zero_view view;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        CHECK_FAILS(zero_tensor_data(engine, t, &view), ZERO_ERR_STATE, model->tensors[t].name);
    }
    TOY_TRY(acquire(trainer, BLOCK0, ZERO_PASS_EVAL));
    CHECK_FAILS(zero_tensor_data(engine, 0, &view), ZERO_ERR_STATE, "embed");
    TOY_TRY(release(trainer, BLOCK0));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        CHECK_FAILS(zero_tensor_data(engine, t, &view), ZERO_ERR_STATE, model->tensors[t].name);
    }
    return still_works(trainer);
}

TEST_AT_ALL_STAGES(units_tensors_and_roles_out_of_range)
{
    zero_engine *engine = trainer->engine;
    zero_view view;
    uint64_t first = 0;
    CHECK_FAILS(acquire(trainer, 6, ZERO_PASS_EVAL), ZERO_ERR_INVALID_ARGUMENT, "6");
    CHECK_FAILS(acquire(trainer, UINT32_MAX, ZERO_PASS_EVAL), ZERO_ERR_INVALID_ARGUMENT,
                "4294967295");
    CHECK_FAILS(release(trainer, 6), ZERO_ERR_INVALID_ARGUMENT, "6");
    CHECK_FAILS(grads_ready(trainer, 6), ZERO_ERR_INVALID_ARGUMENT, "6");
    CHECK_FAILS(zero_tensor_data(engine, 10000, &view), ZERO_ERR_INVALID_ARGUMENT, "10000");
    CHECK_FAILS(zero_tensor_grad(engine, 10000, &view), ZERO_ERR_INVALID_ARGUMENT, "10000");
    CHECK_FAILS(zero_shard_view(engine, 10000, ZERO_ROLE_PARAM, &first, &view),
                ZERO_ERR_INVALID_ARGUMENT, "10000");
    CHECK_FAILS(zero_shard_view(engine, 0, ZERO_ROLE_PARAM_SLOT, &first, &view),
                ZERO_ERR_INVALID_ARGUMENT, "role 16");
    CHECK_FAILS(zero_shard_view(engine, 0, (zero_role)99, &first, &view), ZERO_ERR_INVALID_ARGUMENT,
                "99");
    TOY_TRY(toy_micro_begin(trainer, true));
    CHECK_FAILS(grads_acquire(trainer, 6), ZERO_ERR_INVALID_ARGUMENT, "6");
    TOY_TRY(end_step(trainer));
    return still_works(trainer);
}

/* ---- micro-steps and steps ---- */

TEST_AT_ALL_STAGES(micro_steps_out_of_order)
{
    zero_engine *engine = trainer->engine;
    CHECK_FAILS(zero_micro_end(engine), ZERO_ERR_STATE, "zero_micro_begin");
    CHECK_FAILS(zero_micro_begin(engine, (zero_micro)2), ZERO_ERR_INVALID_ARGUMENT, "2");
    TOY_TRY(zero_micro_begin(engine, ZERO_MICRO_EARLIER));
    CHECK_FAILS(zero_micro_begin(engine, ZERO_MICRO_EARLIER), ZERO_ERR_STATE, "micro");
    CHECK_FAILS(zero_micro_begin(engine, ZERO_MICRO_LAST), ZERO_ERR_STATE, "micro");
    TOY_TRY(acquire(trainer, BLOCK0, ZERO_PASS_FORWARD));
    CHECK_FAILS(zero_micro_end(engine), ZERO_ERR_STATE, "block0");
    TOY_TRY(release(trainer, BLOCK0));
    TOY_TRY(grads_acquire(trainer, BLOCK1));
    CHECK_FAILS(zero_micro_end(engine), ZERO_ERR_STATE, "block1");
    TOY_TRY(grads_ready(trainer, BLOCK1));
    TOY_TRY(zero_micro_end(engine));
    TOY_TRY(zero_micro_begin(engine, ZERO_MICRO_LAST));
    TOY_TRY(zero_micro_end(engine));
    CHECK_FAILS(zero_micro_begin(engine, ZERO_MICRO_EARLIER), ZERO_ERR_STATE, "zero_step");
    TOY_TRY(toy_update(trainer));
    return still_works(trainer);
}

TEST_AT_ALL_STAGES(steps_out_of_order)
{
    zero_engine *engine = trainer->engine;
    const zero_step_params *params = &trainer->run->params;
    zero_step_result result = zero_step_result_init();
    CHECK_FAILS(zero_step_wait(engine, &result), ZERO_ERR_STATE, "step");
    CHECK_FAILS(zero_step(engine, params, toy_stream()), ZERO_ERR_STATE,
                "zero_micro_begin(engine, ZERO_MICRO_LAST)");
    TOY_TRY(zero_micro_begin(engine, ZERO_MICRO_EARLIER));
    CHECK_FAILS(zero_step(engine, params, toy_stream()), ZERO_ERR_STATE, "micro-step");
    TOY_TRY(zero_micro_end(engine));
    CHECK_FAILS(zero_step(engine, params, toy_stream()), ZERO_ERR_STATE,
                "zero_micro_begin(engine, ZERO_MICRO_LAST)");
    TOY_TRY(zero_micro_begin(engine, ZERO_MICRO_LAST));
    CHECK_FAILS(zero_step(engine, params, toy_stream()), ZERO_ERR_STATE, "micro-step");
    TOY_TRY(zero_micro_end(engine));
    TOY_TRY(acquire(trainer, BLOCK0, ZERO_PASS_EVAL));
    CHECK_FAILS(zero_step(engine, params, toy_stream()), ZERO_ERR_STATE, "block0");
    TOY_TRY(release(trainer, BLOCK0));
    TOY_TRY(toy_update(trainer));
    CHECK_FAILS(zero_step(engine, params, toy_stream()), ZERO_ERR_STATE,
                "zero_micro_begin(engine, ZERO_MICRO_LAST)");
    TOY_TRY(zero_step_wait(engine, &result));
    CHECK_EQ(result.step, 1);
    return still_works(trainer);
}

TEST_AT_ALL_STAGES(fill_and_shards_at_the_wrong_time)
{
    zero_engine *engine = trainer->engine;
    zero_view view;
    uint64_t first = 0;
    TOY_TRY(acquire(trainer, BLOCK0, ZERO_PASS_EVAL));
    CHECK_FAILS(zero_engine_fill(engine, toy_fill, NULL), ZERO_ERR_STATE, "block0");
    TOY_TRY(release(trainer, BLOCK0));
    TOY_TRY(toy_micro_begin(trainer, true));
    CHECK_FAILS(zero_engine_fill(engine, toy_fill, NULL), ZERO_ERR_STATE, "micro-step");
    CHECK_FAILS(zero_shard_view(engine, 0, ZERO_ROLE_PARAM, &first, &view), ZERO_ERR_STATE,
                "micro-step");
    TOY_TRY(end_step(trainer));
    TOY_TRY(zero_engine_fill(engine, toy_fill, NULL));
    return still_works(trainer);
}

/* ---- gradients ---- */

TEST_AT_ALL_STAGES(gradients_at_the_wrong_time)
{
    zero_engine *engine = trainer->engine;
    const toy_model *model = trainer->run->model;
    zero_view view;
    CHECK_FAILS(grads_acquire(trainer, BLOCK0), ZERO_ERR_STATE, "block0");
    CHECK_FAILS(grads_ready(trainer, BLOCK0), ZERO_ERR_STATE, "block0");
    TOY_TRY(toy_micro_begin(trainer, true));
    CHECK_FAILS(grads_acquire(trainer, FROZEN), ZERO_ERR_STATE, "frozen");
    CHECK_FAILS(grads_acquire(trainer, EMPTY), ZERO_ERR_STATE, "empty");
    CHECK_FAILS(grads_ready(trainer, BLOCK1), ZERO_ERR_STATE, "block1");
    TOY_TRY(grads_acquire(trainer, BLOCK1));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        if ((tensor->desc.flags & ZERO_TENSOR_FROZEN) != 0) {
            CHECK_FAILS(zero_tensor_grad(engine, t, &view), ZERO_ERR_INVALID_ARGUMENT,
                        tensor->name);
        } else if (tensor->unit != BLOCK1) {
            CHECK_FAILS(zero_tensor_grad(engine, t, &view), ZERO_ERR_STATE, tensor->name);
        } else {
            TOY_TRY(zero_tensor_grad(engine, t, &view));
        }
    }
    TOY_TRY(grads_acquire(trainer, BLOCK1));
    TOY_TRY(grads_ready(trainer, BLOCK1));
    TOY_TRY(grads_ready(trainer, BLOCK1));
    CHECK_FAILS(grads_ready(trainer, BLOCK1), ZERO_ERR_STATE, "block1");
    CHECK_FAILS(grads_acquire(trainer, BLOCK1), ZERO_ERR_STATE, "block1");
    TOY_TRY(end_step(trainer));
    return still_works(trainer);
}

/* A second use in backward, after the first has declared the gradient ready: the refusal names the
 * calls that hold it open over both. */
TEST_AT_ALL_STAGES(second_use_in_backward)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(toy_backward(trainer, BLOCK1));
    CHECK_FAILS(acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD), ZERO_ERR_STATE, "block1");
    CHECK(strstr(zero_last_error()->message,
                 "zero_unit_grads_acquire before its first use and zero_unit_grads_ready after its "
                 "last") != NULL);
    TOY_TRY(params_acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD));
    TOY_TRY(params_release(trainer, BLOCK1));
    TOY_TRY(end_step(trainer));
    return still_works(trainer);
}

/* ---- hyper-parameters ---- */

/* Structs that were assigned in part. Numbers that are 0 on purpose pass. */
TEST_AT_ALL_STAGES(betas_and_eps_that_were_forgotten)
{
    zero_step_params params = zero_step_params_init();
    const zero_hyper partly = {.adamw = {.lr = 1e-3f}};
    TOY_TRY(toy_micros(trainer));
    params.hyper.adamw = partly.adamw;
    CHECK_FAILS(zero_step(trainer->engine, &params, toy_stream()), ZERO_ERR_INVALID_ARGUMENT,
                "all numbers of this zero_adamw but lr 0.001 are 0");
    CHECK(strstr(zero_last_error()->message, "zero_step_params_init()") != NULL);
    params = zero_step_params_init();
    params.groups = &partly;
    params.group_count = 1;
    CHECK_FAILS(zero_step(trainer->engine, &params, toy_stream()), ZERO_ERR_INVALID_ARGUMENT,
                "group 0: all numbers of this zero_adamw but lr");
    params = zero_step_params_init();
    params.hyper.adamw.beta1 = 0;
    params.hyper.adamw.beta2 = 0;
    TOY_TRY(zero_step(trainer->engine, &params, toy_stream()));
    trainer->micro = 0;
    trainer->step++;
    return still_works(trainer);
}

/* ---- callbacks that do not return ---- */

typedef struct bad_fill {
    zero_engine *engine;
    jmp_buf out;
    bool leaves;
} bad_fill;

static void fill_badly(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    bad_fill *bad = user;
    toy_fill(NULL, tensor, first, count, values);
    if (bad->leaves) {
        longjmp(bad->out, 1);
    }
    CHECK_FAILS(zero_micro_begin(bad->engine, ZERO_MICRO_LAST), ZERO_ERR_STATE,
                "zero_engine_fill has not returned");
    CHECK_FAILS(zero_engine_fill(bad->engine, toy_fill, NULL), ZERO_ERR_STATE, "let fn return");
    CHECK_EQ(engine_stats(bad->engine).steps, 0); /* calls that only read are legal */
}

/* On rank 0 the callback is left by longjmp; the other waits for it, until the engine is destroyed.
 */
static zero_status leave_fill(toy_trainer *trainer)
{
    bad_fill bad = {.engine = trainer->engine};
    zero_pass pass = ZERO_PASS_NONE;
    TOY_TRY(zero_engine_fill(trainer->engine, fill_badly, &bad));
    TOY_TRY(still_works(trainer));
    if (trainer->rank != 0) {
        return zero_engine_fill(trainer->engine, toy_fill, NULL);
    }
    bad.leaves = true;
    if (setjmp(bad.out) == 0) {
        TOY_TRY(zero_engine_fill(trainer->engine, fill_badly, &bad));
        TEST_FAIL("the callback was to leave by longjmp");
    }
    CHECK_FAILS(zero_micro_begin(trainer->engine, ZERO_MICRO_LAST), ZERO_ERR_STATE,
                "longjmp or a C++ exception");
    CHECK_FAILS(zero_unit_pass(trainer->engine, 0, &pass), ZERO_ERR_STATE, "destroy the engine");
    return ZERO_OK;
}

TEST(callback_that_is_left_by_longjmp)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    for (int broadcast = 0; broadcast < 2; broadcast++) {
        run.tuning.broadcast_initial = broadcast;
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            CHECK_FAILS(toy_on_ranks(ranks, &run, leave_fill, NULL), ZERO_ERR_COMM,
                        "a rank destroyed its engine in the middle of a fill");
        }
    }
}

/* ---- what is warned of ---- */

static atomic_int zero_norms;
static atomic_int missing_units;
static atomic_int assigned_first; /* of the embedding, which the head ties to */
static atomic_int assigned;       /* of any tensor */

static void count_warnings(void *user, zero_log_level level, const char *message)
{
    (void)user;
    if (level == ZERO_LOG_WARN) {
        atomic_fetch_add(&zero_norms, strstr(message, "norm of the gradient is exactly 0") != NULL);
        atomic_fetch_add(&missing_units,
                         strstr(message, "gave no gradient to unit 3 \"block1\" (1 of 4") != NULL);
        atomic_fetch_add(&assigned, strstr(message, "backward assigned its gradient") != NULL);
        atomic_fetch_add(&assigned_first, strstr(message, "tensor 0 \"embed") != NULL);
    }
}

/* A step whose backward skips units: of all, or of BLOCK1. */
static zero_status step_without(toy_trainer *trainer, bool all)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    for (uint32_t u = trainer->run->model->unit_count; u-- > 0;) {
        TOY_TRY(all ? toy_backward_zero(trainer, u)
                    : (u != BLOCK1 ? toy_backward(trainer, u) : ZERO_OK));
    }
    TOY_TRY(end_step(trainer));
    return toy_wait(trainer);
}

/* Each is said once, by one rank, and a run that does what it should hears nothing. */
static zero_status warn_once(toy_trainer *trainer)
{
    const bool *right = trainer->user;
    if (*right) {
        return still_works(trainer);
    }
    for (int i = 0; i < 3; i++) {
        TOY_TRY(step_without(trainer, false));
    }
    for (int i = 0; i < 3; i++) {
        TOY_TRY(step_without(trainer, true));
        CHECK_SAME(trainer->result.norm, 0.0);
    }
    return still_works(trainer);
}

TEST(silent_mistakes_are_warned_of_once)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    zero_log_set(count_warnings, NULL);
    for (int right = 0; right < 2; right++) {
        for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
            run.options.stage = (zero_stage)stage;
            zero_norms = 0;
            missing_units = 0;
            CHECK_OK(toy_on_ranks(2, &run, warn_once, (bool[]){right != 0}));
            CHECK_EQ(zero_norms, right == 0);
            CHECK_EQ(missing_units, right == 0);
        }
    }
    zero_log_set(NULL, NULL);
}

/* How a trainer treats the gradients that it is given. */
typedef enum habit { ADDS, ASSIGNS, ASSIGNS_EMBED } habit;

static zero_status forget_what_is_there(toy_trainer *trainer, uint32_t unit)
{
    for (uint32_t t = 0; t < trainer->run->model->tensor_count; t++) {
        const toy_tensor *tensor = &trainer->run->model->tensors[t];
        zero_view grad;
        if (tensor->unit == unit && (tensor->desc.flags & ZERO_TENSOR_FROZEN) == 0) {
            TOY_TRY(zero_tensor_grad(trainer->engine, t, &grad));
            const size_t bytes = grad.count * zero_dtype_bytes(grad.dtype);
            void *zeros = calloc(1, bytes + 1);
            CHECK(zeros != NULL);
            toy_put(grad.data, zeros, bytes);
            free(zeros);
        }
    }
    return ZERO_OK;
}

/* Backward of a unit, whose gradients are assigned: cleared, then added. */
static zero_status assigned_backward(toy_trainer *trainer, uint32_t unit, bool assigns)
{
    TOY_TRY(acquire(trainer, unit, ZERO_PASS_BACKWARD));
    TOY_TRY(toy_read(trainer, unit));
    if (assigns) {
        TOY_TRY(forget_what_is_there(trainer, unit));
    }
    TOY_TRY(toy_add_gradient(trainer, unit));
    return release(trainer, unit);
}

static zero_status train_by_habit(toy_trainer *trainer)
{
    const habit how = *(const habit *)trainer->user;
    for (int step = 0; step < 2; step++) {
        for (int micro = 0; micro < 2; micro++) {
            TOY_TRY(toy_micro_begin(trainer, micro == 1));
            for (uint32_t u = trainer->run->model->unit_count; u-- > 0;) {
                const bool all = how == ASSIGNS;
                TOY_TRY(assigned_backward(trainer, u, all || (how == ASSIGNS_EMBED && u == EMBED)));
            }
            TOY_TRY(toy_micro_end(trainer));
        }
        TOY_TRY(toy_update(trainer));
        TOY_TRY(toy_wait(trainer));
        CHECK(isfinite(trainer->result.norm));
        CHECK_EQ(trainer->result.skipped, 0);
    }
    return ZERO_OK;
}

/* The first micro-step of two, at every stage and gradient type: one warning, by one rank. */
TEST(assigned_gradients_are_found_where_it_is_asked_for)
{
    zero_log_set(count_warnings, NULL);
    for (zero_dtype dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_F16; dtype++) {
        toy_run run = toy_run_mixed(dtype);
        for (uint32_t i = 0; i < 4 * 3 * 2; i++) {
            const habit how = (habit[]){ADDS, ASSIGNS, ASSIGNS_EMBED}[i / 4 % 3];
            run.options.stage = (zero_stage)(i % 4);
            run.tuning.check_added = i / 12 != 0;
            assigned_first = 0;
            assigned = 0;
            CHECK_OK(toy_on_ranks(2, &run, train_by_habit, (habit[]){how}));
            CHECK_EQ(assigned, run.tuning.check_added != 0 && how != ADDS);
            CHECK_EQ(assigned_first, run.tuning.check_added != 0 && how != ADDS);
        }
    }
    zero_log_set(NULL, NULL);
}

/* ---- slots ---- */

static zero_status hold_too_many(toy_trainer *trainer)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(acquire(trainer, 0, ZERO_PASS_FORWARD));
    TOY_TRY(acquire(trainer, 1, ZERO_PASS_FORWARD));
    CHECK_FAILS(acquire(trainer, 2, ZERO_PASS_FORWARD), ZERO_ERR_STATE, "param_slots to 3");
    TOY_TRY(release(trainer, 0));
    TOY_TRY(acquire(trainer, 2, ZERO_PASS_FORWARD));
    TOY_TRY(toy_read(trainer, 2));
    TOY_TRY(release(trainer, 2));
    TOY_TRY(release(trainer, 1));
    TOY_TRY(grads_acquire(trainer, 3));
    TOY_TRY(grads_acquire(trainer, 2));
    CHECK_FAILS(grads_acquire(trainer, 1), ZERO_ERR_STATE, "grad_slots to 3");
    TOY_TRY(grads_ready(trainer, 3));
    TOY_TRY(grads_acquire(trainer, 1));
    TOY_TRY(grads_ready(trainer, 1));
    TOY_TRY(grads_ready(trainer, 2));
    TOY_TRY(end_step(trainer));
    return still_works(trainer);
}

TEST(more_units_held_than_slots)
{
    toy_run run = toy_run_equal(4, 100, ZERO_DTYPE_F32);
    run.tuning.param_slots = 2;
    run.tuning.bucket_bytes = 1;
    CHECK_OK(toy_on_ranks(2, &run, hold_too_many, NULL));
}

/* Backward in the order of forward, with too few slots for the gradients that wait their turn. */
static zero_status late_gradient(toy_trainer *trainer)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    uint32_t unit = 0;
    zero_status status = ZERO_OK;
    for (; unit < 6 && status == ZERO_OK; unit++) {
        status = grads_acquire(trainer, unit);
        if (status == ZERO_OK) {
            TOY_TRY(grads_ready(trainer, unit));
        }
    }
    CHECK_EQ(status, ZERO_ERR_STATE);
    CHECK(unit >= 2);
    CHECK(strstr(zero_last_error()->message, "grad_slots") != NULL);
    TOY_TRY(end_step(trainer));
    return still_works(trainer);
}

/* Backward goes past units 3 and 2; unit 3 is within the gradient slots, and yet too late. */
static zero_status late_unit(toy_trainer *trainer)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(toy_backward(trainer, 2));
    CHECK_FAILS(acquire(trainer, 3, ZERO_PASS_BACKWARD), ZERO_ERR_STATE, "left_out_at_once");
    TOY_TRY(end_step(trainer));
    return still_works(trainer);
}

TEST(unit_that_was_left_out_at_once)
{
    toy_run run = toy_run_equal(4, 65, ZERO_DTYPE_F32);
    run.tuning.bucket_bytes = 1;
    run.tuning.left_out_at_once = 1;
    run.options.stage = ZERO_STAGE_3;
    CHECK_OK(toy_on_ranks(2, &run, late_unit, NULL));
}

TEST(gradient_after_its_turn)
{
    toy_run run = toy_run_equal(6, 100, ZERO_DTYPE_F32);
    run.tuning.bucket_bytes = 1;
    run.tuning.grad_slots = 2;
    CHECK_OK(toy_on_ranks(2, &run, late_gradient, NULL));
}

static void check_nan(const zero_view *view)
{
    const float *data = toy_fetch(view->data, view->count * sizeof(float));
    for (size_t i = 0; i < view->count; i++) {
        CHECK(isnan(data[i]));
    }
}

/* A pointer kept after the last release reads NaN at once and for as long as the unit is not
 * acquired again, whatever other units are. */
static zero_status keep_pointer(toy_trainer *trainer)
{
    zero_view stale;
    TOY_TRY(acquire(trainer, 0, ZERO_PASS_EVAL));
    TOY_TRY(acquire(trainer, 0, ZERO_PASS_EVAL));
    TOY_TRY(zero_tensor_data(trainer->engine, 0, &stale));
    const float *data = toy_fetch(stale.data, stale.count * sizeof(float));
    CHECK_SAME(data[0], toy_initial(0, 0));
    TOY_TRY(release(trainer, 0));
    data = toy_fetch(stale.data, stale.count * sizeof(float));
    CHECK_SAME(data[0], toy_initial(0, 0)); /* it is acquired still */
    TOY_TRY(release(trainer, 0));
    check_nan(&stale);
    for (uint32_t u = 1; u < 5; u++) {
        TOY_TRY(acquire(trainer, u, ZERO_PASS_EVAL));
        TOY_TRY(toy_read(trainer, u));
        TOY_TRY(release(trainer, u));
    }
    check_nan(&stale);
    /* A unit that is used twice has its parameters elsewhere the second time. */
    zero_view again;
    TOY_TRY(acquire(trainer, 0, ZERO_PASS_EVAL));
    TOY_TRY(zero_tensor_data(trainer->engine, 0, &again));
    CHECK(again.data != stale.data);
    TOY_TRY(toy_read(trainer, 0));
    check_nan(&stale);
    return release(trainer, 0);
}

TEST(stale_pointer_reads_nan)
{
    toy_model *model = toy_model_new();
    for (uint32_t u = 0; u < 5; u++) {
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_tensor(model, u == 0 ? 1024 : 640, 0, ZERO_DTYPE_F32, 0);
    }
    toy_run run = toy_run_init(model);
    run.tuning.poison_released = 1;
    run.tuning.param_slots = 2;
    CHECK_OK(toy_on_stages(2, &run, keep_pointer, NULL));
    CHECK_OK(toy_on_stages(1, &run, keep_pointer, NULL));
}

/* ---- NULL ---- */

TEST_AT_ALL_STAGES(null_arguments)
{
    zero_engine *engine = trainer->engine;
    uint64_t first = 0;
    zero_view view;
    CHECK_FAILS(zero_micro_begin(NULL, ZERO_MICRO_EARLIER), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_micro_end(NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_unit_acquire(NULL, 0, ZERO_PASS_EVAL, toy_stream(), NULL),
                ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_unit_release(NULL, 0, toy_stream()), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_unit_grads_acquire(NULL, 0, toy_stream()), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_unit_grads_ready(NULL, 0, toy_stream()), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_tensor_data(NULL, 0, &view), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_tensor_data(engine, 0, NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_tensor_grad(engine, 0, NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_shard_view(engine, 0, ZERO_ROLE_PARAM, NULL, &view), ZERO_ERR_INVALID_ARGUMENT,
                "NULL");
    CHECK_FAILS(zero_shard_view(engine, 0, ZERO_ROLE_PARAM, &first, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_engine_fill(engine, NULL, NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_loss_scale(engine, NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_engine_create(trainer->world, NULL, NULL, &engine), ZERO_ERR_INVALID_ARGUMENT,
                "model is NULL");
    CHECK_FAILS(zero_engine_create(NULL, trainer->run->model->model, NULL, &engine),
                ZERO_ERR_INVALID_ARGUMENT, "world is NULL");
    TOY_TRY(still_works(trainer));
    CHECK_FAILS(zero_step_wait(trainer->engine, NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    zero_engine_destroy(NULL);
    zero_plan_destroy(NULL);
    zero_model_destroy(NULL);
    zero_world_destroy(NULL);
    return still_works(trainer);
}

/* A foreign stream handle on the CPU device. */
TEST_AT_ALL_STAGES(foreign_streams)
{
    if (toy_device() != ZERO_DEVICE_CPU) {
        return ZERO_OK; /* CUDA cannot tell what is a stream from what is not */
    }
    int nothing = 0;
    const zero_stream foreign = {&nothing};
    CHECK_FAILS(zero_unit_acquire(trainer->engine, 0, ZERO_PASS_EVAL, foreign, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "stream");
    return still_works(trainer);
}
