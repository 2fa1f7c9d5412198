/* Owns the tests of what one acquire does for a whole unit: how it nests, how it mixes with the
 * split calls, and that a refused one leaves nothing behind. What the views show is
 * toy_check_view's, at every use of a unit in every program of the toy's. */
#include "harness.h"

#include <sys/mman.h>

#include "at_stages.h"
#include "folders.h"
#include "reads.h"

/* The unit's first tensor, or else the one it ties to. */
static uint32_t tensor_of(const toy_trainer *trainer, uint32_t unit)
{
    const toy_model *model = trainer->run->model;
    uint32_t tensor = 0;
    while (model->tensors[tensor].unit != unit) {
        tensor++;
    }
    return tensor;
}

/* Check what is acquired of the unit now. */
static void expect(const toy_trainer *trainer, uint32_t unit, bool params, bool grads)
{
    zero_view view;
    const uint32_t tensor = tensor_of(trainer, unit);
    CHECK_EQ(zero_tensor_data(trainer->engine, tensor, &view), params ? ZERO_OK : ZERO_ERR_STATE);
    CHECK_EQ(zero_tensor_grad(trainer->engine, tensor, &view), grads ? ZERO_OK : ZERO_ERR_STATE);
}

/* The micro-step and its step end as if nothing had been refused, and the engine trains on. */
static zero_status still_works(toy_trainer *trainer)
{
    TOY_TRY(end_step(trainer));
    TOY_TRY(toy_step(trainer));
    return toy_evaluate(trainer);
}

/* ---- nesting ---- */

TEST_AT_ALL_STAGES(backward_in_backward)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD));
    TOY_TRY(acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD));
    TOY_TRY(release(trainer, BLOCK1));
    expect(trainer, BLOCK1, true, true);
    TOY_TRY(release(trainer, BLOCK1));
    expect(trainer, BLOCK1, false, false);
    CHECK_FAILS(acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD), ZERO_ERR_STATE, "declared ready");
    expect(trainer, BLOCK1, false, false);
    CHECK_FAILS(release(trainer, BLOCK1), ZERO_ERR_STATE, "block1");
    TOY_TRY(params_acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD)); /* its parameters alone */
    TOY_TRY(toy_read(trainer, BLOCK1));
    TOY_TRY(params_release(trainer, BLOCK1));
    return still_works(trainer);
}

/* The release that closes the backward acquire is the inner one. */
TEST_AT_ALL_STAGES(backward_in_forward)
{
    const zero_unit_view *outer = NULL;
    const zero_unit_view *inner = NULL;
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(zero_unit_acquire(trainer->engine, BLOCK1, ZERO_PASS_FORWARD, toy_stream(), &outer));
    CHECK(outer->grads == NULL);
    TOY_TRY(zero_unit_acquire(trainer->engine, BLOCK1, ZERO_PASS_BACKWARD, toy_stream(), &inner));
    CHECK(outer == inner);
    toy_check_view(trainer, BLOCK1, inner, true);
    TOY_TRY(release(trainer, BLOCK1));
    expect(trainer, BLOCK1, true, false);
    toy_check_view(trainer, BLOCK1, outer, false);
    TOY_TRY(release(trainer, BLOCK1));
    expect(trainer, BLOCK1, false, false);
    return still_works(trainer);
}

/* And here the outer one. */
TEST_AT_ALL_STAGES(forward_in_backward)
{
    const zero_unit_view *view = NULL;
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(zero_unit_acquire(trainer->engine, BLOCK1, ZERO_PASS_BACKWARD, toy_stream(), &view));
    TOY_TRY(acquire(trainer, BLOCK1, ZERO_PASS_FORWARD));
    TOY_TRY(release(trainer, BLOCK1));
    toy_check_view(trainer, BLOCK1, view, true);
    TOY_TRY(release(trainer, BLOCK1));
    expect(trainer, BLOCK1, false, false);
    return still_works(trainer);
}

/* ---- ties ---- */

/* The head holds the embedding as often as itself, and the embedding's gradient waits for its own.
 */
TEST_AT_ALL_STAGES(ties_nest)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(acquire(trainer, HEAD, ZERO_PASS_BACKWARD));
    TOY_TRY(acquire(trainer, HEAD, ZERO_PASS_BACKWARD));
    expect(trainer, EMBED, true, true);
    CHECK_FAILS(release(trainer, EMBED), ZERO_ERR_STATE, "embed");
    CHECK_FAILS(params_release(trainer, EMBED), ZERO_ERR_STATE, "embed");
    CHECK_FAILS(grads_ready(trainer, EMBED), ZERO_ERR_STATE, "embed");
    TOY_TRY(acquire(trainer, EMBED, ZERO_PASS_FORWARD));
    TOY_TRY(release(trainer, HEAD));
    expect(trainer, EMBED, true, true);
    TOY_TRY(release(trainer, HEAD));
    expect(trainer, EMBED, true, false);
    TOY_TRY(release(trainer, EMBED));
    expect(trainer, EMBED, false, false);
    TOY_TRY(acquire(trainer, EMBED, ZERO_PASS_BACKWARD));
    TOY_TRY(release(trainer, EMBED));
    CHECK_FAILS(acquire(trainer, EMBED, ZERO_PASS_BACKWARD), ZERO_ERR_STATE, "declared ready");
    CHECK_FAILS(acquire(trainer, HEAD, ZERO_PASS_BACKWARD), ZERO_ERR_STATE, "declared ready");
    return still_works(trainer);
}

/* ---- units and tensors that are not trained ---- */

/* Backward of a unit without trained tensors: nothing to acquire, so nothing to be ready either. */
TEST_AT_ALL_STAGES(frozen_units)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    for (int i = 0; i < 2; i++) {
        const zero_unit_view *view = NULL;
        const zero_stream here = toy_stream();
        TOY_TRY(zero_unit_acquire(trainer->engine, FROZEN, ZERO_PASS_BACKWARD, here, &view));
        CHECK(view->tensor_count > 0);
        for (uint32_t t = 0; t < view->tensor_count; t++) {
            CHECK(view->grads[t].data == NULL);
            CHECK_EQ(view->grads[t].count, 0);
            CHECK_EQ(view->grads[t].dtype, ZERO_DTYPE_NONE);
        }
        CHECK_FAILS(grads_ready(trainer, FROZEN), ZERO_ERR_STATE, "frozen");
        TOY_TRY(release(trainer, FROZEN));
        CHECK(view->grads == NULL);
        TOY_TRY(zero_unit_acquire(trainer->engine, EMPTY, ZERO_PASS_BACKWARD, here, &view));
        CHECK(view->grads != NULL);
        TOY_TRY(release(trainer, EMPTY));
    }
    return still_works(trainer);
}

/* ---- both kinds of calls on a unit ---- */

TEST_AT_ALL_STAGES(neither_kind_closes_the_other)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(params_acquire(trainer, BLOCK1, ZERO_PASS_FORWARD));
    CHECK_FAILS(release(trainer, BLOCK1), ZERO_ERR_STATE, "zero_unit_params_release");
    TOY_TRY(acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD));
    CHECK_FAILS(grads_ready(trainer, BLOCK1), ZERO_ERR_STATE, "zero_unit_release says");
    TOY_TRY(params_release(trainer, BLOCK1));
    CHECK_FAILS(params_release(trainer, BLOCK1), ZERO_ERR_STATE, "call zero_unit_release");
    expect(trainer, BLOCK1, true, true);
    TOY_TRY(release(trainer, BLOCK1));
    expect(trainer, BLOCK1, false, false);
    CHECK_FAILS(release(trainer, BLOCK1), ZERO_ERR_STATE, "not acquired");
    CHECK_FAILS(params_release(trainer, BLOCK1), ZERO_ERR_STATE, "not acquired");
    CHECK_FAILS(grads_ready(trainer, BLOCK1), ZERO_ERR_STATE, "not acquired");
    return still_works(trainer);
}

/* Weight gradients that are computed later need this. */
TEST_AT_ALL_STAGES(a_gradient_finished_after_the_release)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(acquire(trainer, BLOCK1, ZERO_PASS_BACKWARD));
    TOY_TRY(grads_acquire(trainer, BLOCK1));
    TOY_TRY(release(trainer, BLOCK1));
    expect(trainer, BLOCK1, false, true);
    CHECK_FAILS(zero_micro_end(trainer->engine), ZERO_ERR_STATE, "zero_unit_grads_ready");
    TOY_TRY(grads_ready(trainer, BLOCK1));
    expect(trainer, BLOCK1, false, false);
    return still_works(trainer);
}

/* ---- refusals ---- */

/* Nothing of unit 1 is acquired, and the caller's pointer is its own. */
static void refused(const toy_trainer *trainer, zero_pass pass, const char *why)
{
    const zero_unit_view mine = {.tensor_count = 77};
    const zero_unit_view *view = &mine;
    zero_pass now = ZERO_PASS_EVAL;
    CHECK_FAILS(zero_unit_acquire(trainer->engine, 1, pass, toy_stream(), &view), ZERO_ERR_STATE,
                why);
    CHECK(view == &mine);
    expect(trainer, 1, false, false);
    CHECK_OK(zero_unit_pass(trainer->engine, 1, &now));
    CHECK_EQ(now, ZERO_PASS_NONE);
}

static zero_status micro_with_refusals(toy_trainer *trainer, bool refuse)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(acquire(trainer, 3, ZERO_PASS_FORWARD));
    TOY_TRY(acquire(trainer, 2, ZERO_PASS_FORWARD));
    if (refuse) {
        refused(trainer, ZERO_PASS_FORWARD, "param_slots to 3");
        refused(trainer, ZERO_PASS_FORWARD, "param_slots to 3");
    }
    TOY_TRY(release(trainer, 3));
    TOY_TRY(release(trainer, 2));
    TOY_TRY(toy_forward(trainer, 1));
    TOY_TRY(grads_acquire(trainer, 3));
    TOY_TRY(grads_acquire(trainer, 2));
    if (refuse) {
        refused(trainer, ZERO_PASS_BACKWARD, "grad_slots to 3");
        refused(trainer, ZERO_PASS_BACKWARD, "grad_slots to 3");
    }
    TOY_TRY(toy_backward(trainer, 3)); /* which nests in what is held */
    TOY_TRY(grads_ready(trainer, 3));
    TOY_TRY(toy_backward(trainer, 1));
    TOY_TRY(grads_ready(trainer, 2));
    return toy_micro_end(trainer);
}

static zero_status undisturbed_step(toy_trainer *trainer)
{
    TOY_TRY(micro_with_refusals(trainer, false));
    return toy_update(trainer);
}

static zero_status disturbed_step(toy_trainer *trainer)
{
    TOY_TRY(micro_with_refusals(trainer, true));
    return toy_update(trainer);
}

static zero_status compare_rank(zero_world *world, void *user)
{
    return toy_compare(user, world, undisturbed_step, disturbed_step, "refused acquires");
}

TEST(a_refused_acquire_leaves_no_trace)
{
    for (int checked = 0; checked < 2; checked++) {
        toy_run run = toy_run_equal(4, 100, ZERO_DTYPE_F32);
        run.tuning.poison_released = checked;
        run.tuning.param_slots = 2;
        run.tuning.grad_slots = 2;
        run.tuning.bucket_bytes = 1;
        run.steps = 4;
        CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, compare_rank, &run));
    }
}

static void expect_inferred(toy_trainer *trainer, zero_pass expected)
{
    const zero_stream here = zero_stream_host();
    const zero_unit_view *view = NULL;
    zero_pass pass = ZERO_PASS_NONE;
    CHECK_OK(zero_unit_acquire(trainer->engine, 0, ZERO_PASS_NONE, here, &view));
    CHECK_OK(zero_unit_pass(trainer->engine, 0, &pass));
    CHECK_EQ(pass, expected);
    CHECK(view->grads == NULL);
    CHECK_OK(zero_unit_release(trainer->engine, 0, here));
    CHECK_OK(zero_unit_params_acquire(trainer->engine, 0, ZERO_PASS_NONE, here));
    CHECK_OK(zero_unit_pass(trainer->engine, 0, &pass));
    CHECK_EQ(pass, expected);
    CHECK_OK(zero_unit_params_release(trainer->engine, 0, here));
}

/* Before a micro-step, in it, and while its step is due. */
static zero_status infer_passes(toy_trainer *trainer)
{
    expect_inferred(trainer, ZERO_PASS_EVAL);
    TOY_TRY(toy_micro_begin(trainer, true));
    expect_inferred(trainer, ZERO_PASS_FORWARD);
    TOY_TRY(toy_passes(trainer));
    TOY_TRY(toy_micro_end(trainer));
    expect_inferred(trainer, ZERO_PASS_EVAL);
    TOY_TRY(toy_update(trainer));
    expect_inferred(trainer, ZERO_PASS_EVAL);
    return toy_wait(trainer);
}

TEST(the_pass_is_inferred)
{
    const toy_run run = toy_run_equal(3, 100, ZERO_DTYPE_F32);
    CHECK_OK(toy_on_stages(2, &run, infer_passes, NULL));
}

/* Units of one size but for the last; `last` ties to `first`, for which there is one slot more. */
enum { TIED_FIRST, TIED_FREE, TIED_LEFT, TIED_RIGHT, TIED_LAST, TIED_OTHER, TIED_UNITS };

/* `last` is refused when a slot for `first` was found and none for itself. */
static zero_status half_acquired(toy_trainer *trainer)
{
    zero_pass pass = ZERO_PASS_EVAL;
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(grads_acquire(trainer, TIED_RIGHT));
    TOY_TRY(grads_acquire(trainer, TIED_LEFT));
    TOY_TRY(acquire(trainer, TIED_FIRST, ZERO_PASS_FORWARD));
    CHECK_FAILS(acquire(trainer, TIED_LAST, ZERO_PASS_BACKWARD), ZERO_ERR_STATE, "grad_slots");
    CHECK_FAILS(grads_acquire(trainer, TIED_LAST), ZERO_ERR_STATE, "grad_slots");
    CHECK_OK(zero_unit_pass(trainer->engine, TIED_FIRST, &pass));
    CHECK_EQ(pass, ZERO_PASS_FORWARD); /* not that of the refused acquire */
    TOY_TRY(release(trainer, TIED_FIRST));
    expect(trainer, TIED_FIRST, false, false);
    expect(trainer, TIED_LAST, false, false);
    TOY_TRY(toy_backward(trainer, TIED_OTHER)); /* it was not given up to no avail */
    TOY_TRY(toy_backward(trainer, TIED_FREE));  /* takes the slot that was found for `first` */
    TOY_TRY(grads_ready(trainer, TIED_RIGHT));
    TOY_TRY(grads_ready(trainer, TIED_LEFT));
    return still_works(trainer);
}

TEST(no_slot_is_left_with_an_owner)
{
    static const char *const names[] = {"first", "free", "left", "right", "last", "other"};
    toy_model *model = toy_model_new();
    for (uint32_t u = 0; u < TIED_UNITS; u++) {
        (void)toy_model_unit(model, names[u]);
        (void)toy_model_tensor(model, u == TIED_OTHER ? 5000 : 100, 0, ZERO_DTYPE_F32, 0);
    }
    toy_model_tie(model, TIED_LAST, TIED_FIRST);
    toy_run run = toy_run_init(model);
    run.tuning.grad_slots = 2;
    run.tuning.param_slots = 5;
    run.tuning.bucket_bytes = 1;
    CHECK_OK(toy_on_ranks(2, &run, half_acquired, NULL));
}

/* ---- views ---- */

/* Several tensors of two owners, tied in an order of their own, one of them frozen and one empty.
 */
TEST(views_of_ties)
{
    toy_model *model = toy_model_new();
    uint32_t tensors[6];
    for (uint32_t u = 0; u < 2; u++) {
        (void)toy_model_unit(model, u == 0 ? "one" : "two");
        tensors[3 * u] = toy_model_tensor(model, 70, 3, ZERO_DTYPE_F32, 0);
        tensors[3 * u + 1] = toy_model_tensor(model, 40, 0, ZERO_DTYPE_BF16, ZERO_TENSOR_FROZEN);
        tensors[3 * u + 2] = toy_model_tensor(model, 5 * u, 0, ZERO_DTYPE_F16, 0);
    }
    const uint32_t user = toy_model_unit(model, "user");
    (void)toy_model_tensor(model, 33, 0, ZERO_DTYPE_BF16, 0);
    const uint32_t order[] = {tensors[5], tensors[1], tensors[3], tensors[0]};
    for (uint32_t i = 0; i < 4; i++) {
        toy_model_tie(model, user, order[i]);
    }
    CHECK_OK(zero_tensor_tie(model->model, user, order[1])); /* once more is once */
    toy_run run = toy_run_init(model);
    run.micro_steps = 2;
    CHECK_OK(toy_on_stages(2, &run, toy_train, NULL));
}

/* Units of the model below. */
enum { ONE, TWO, USER };

/* Find where the user's gradients are: its own and, first, one of TWO's. Its backward comes after
 * that of `before`, unless that is the user itself, and all of the micro-step's is over then. */
static zero_status user_after(toy_trainer *trainer, uint32_t before, const void *at[2])
{
    const zero_unit_view *view = NULL;
    TOY_TRY(toy_micro_begin(trainer, false));
    TOY_TRY(before != USER ? grads_acquire(trainer, before) : ZERO_OK);
    TOY_TRY(zero_unit_acquire(trainer->engine, USER, ZERO_PASS_BACKWARD, toy_stream(), &view));
    toy_check_view(trainer, USER, view, true);
    at[0] = view->grads[0].data;
    at[1] = view->grads[1].data;
    TOY_TRY(release(trainer, USER));
    TOY_TRY(before != USER ? grads_ready(trainer, before) : ZERO_OK);
    return toy_micro_end(trainer);
}

/* The slot of what a unit ties to changes, that of its own does not. */
static zero_status owners_move(toy_trainer *trainer)
{
    const void *first[2];
    const void *then[2];
    TOY_TRY(user_after(trainer, USER, first));
    TOY_TRY(user_after(trainer, ONE, then));
    CHECK(first[0] == then[0]);
    CHECK(first[1] != then[1]);
    return ZERO_OK;
}

TEST(views_follow_owners)
{
    toy_model *model = toy_model_new();
    for (uint32_t u = ONE; u <= USER; u++) {
        (void)toy_model_unit(model, u == ONE ? "one" : u == TWO ? "two" : "user");
        (void)toy_model_tensor(model, u == USER ? 5000 : 100, 0, ZERO_DTYPE_F32, 0);
    }
    toy_model_tie(model, USER, TWO);
    toy_model_tie(model, USER, ONE);
    toy_run run = toy_run_init(model);
    run.options.stage = ZERO_STAGE_2;
    CHECK_OK(toy_on_ranks(2, &run, owners_move, NULL));
}

/* True if memory that is given back loses its addresses for sure: not on the CPU, where ranks have
 * it mapped, but over CUDA's double. */
#define MOVES test_over_doubles

/* Something else takes the place of gradients while they are offloaded. */
static zero_status reload_elsewhere(toy_trainer *trainer)
{
    const size_t bytes = engine_memory(trainer->engine).bytes[ZERO_ROLE_GRAD];
    const uint32_t grad = ZERO_ROLE_BIT(ZERO_ROLE_GRAD);
    const zero_unit_view *view = NULL;
    void *taken[64];
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(zero_unit_acquire(trainer->engine, 0, ZERO_PASS_BACKWARD, toy_stream(), &view));
    const void *before = view->grads[0].data;
    TOY_TRY(release(trainer, 0));
    TOY_TRY(end_step(trainer));
    TOY_TRY(zero_engine_evict(trainer->engine, grad, ZERO_TIER_DISK));
    for (int i = 0; i < 64; i++) {
        taken[i] = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(taken[i] != MAP_FAILED);
    }
    TOY_TRY(zero_engine_restore(trainer->engine));
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(zero_unit_acquire(trainer->engine, 0, ZERO_PASS_BACKWARD, toy_stream(), &view));
    toy_check_view(trainer, 0, view, true);
    CHECK(view->grads[0].data != before || !MOVES);
    TOY_TRY(release(trainer, 0));
    for (int i = 0; i < 64; i++) {
        CHECK_EQ(munmap(taken[i], bytes), 0);
    }
    return still_works(trainer);
}

TEST(views_follow_a_reload)
{
    toy_run run = toy_run_equal(2, 100000, ZERO_DTYPE_F32);
    run.options.stage = ZERO_STAGE_0;
    rig_folders(1, 0);
    run.options.disk_directories = rig_paths;
    run.options.disk_directory_count = 1;
    CHECK_OK(toy_on_ranks(1, &run, reload_elsewhere, NULL));
}

/* Ranks whose views would show different tensors. */
static zero_status tie_differently(zero_world *world, void *user)
{
    (void)user;
    toy_model *model = toy_model_new();
    zero_engine *engine = NULL;
    (void)toy_model_unit(model, "owner");
    (void)toy_model_tensor(model, 10, 0, ZERO_DTYPE_F32, 0);
    (void)toy_model_tensor(model, 10, 0, ZERO_DTYPE_F32, 0);
    toy_model_tie(model, toy_model_unit(model, "user"), zero_world_rank(world));
    const toy_run run = toy_run_init(model);
    CHECK_FAILS(zero_engine_create(world, model->model, &run.options, &engine), ZERO_ERR_MISMATCH,
                "unit 1 \"user\"");
    return ZERO_OK;
}

TEST_CALL(ranks_that_tie_differently,
          CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, tie_differently, NULL)));

/* ---- units that ranks leave out by turns ---- */

/* Rank 0 leaves out the gradient of unit 1 in the first step, so that in the second one it takes
 * slots in another order; there rank 1 comes in backward to unit 0 alone. */
static zero_status leave_out_by_turns(toy_trainer *trainer)
{
    for (int step = 0; step < 2; step++) {
        TOY_TRY(toy_micro_begin(trainer, true));
        for (uint32_t u = 0; u < 4; u++) {
            TOY_TRY(toy_forward(trainer, u));
        }
        for (uint32_t u = 4; u-- > 0;) {
            const bool left_out =
                step == 0 ? trainer->rank == 0 && u == 1 : trainer->rank == 1 && u != 0;
            TOY_TRY(left_out ? ZERO_OK : toy_backward(trainer, u));
        }
        TOY_TRY(toy_micro_end(trainer));
        TOY_TRY(toy_update(trainer));
    }
    return toy_wait(trainer);
}

/* Who takes a slot waits for what was in it, and not for what its last bucket does elsewhere now:
 * that waits for ranks that wait for this one. */
TEST(a_slot_waits_for_its_own_reduction)
{
    toy_run run = toy_run_equal(4, 200, ZERO_DTYPE_F32);
    run.options.stage = ZERO_STAGE_3;
    run.tuning.grad_slots = 4;
    run.tuning.bucket_bytes = 1;
    CHECK_OK(toy_on_ranks(2, &run, leave_out_by_turns, NULL));
}
