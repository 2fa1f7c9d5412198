/* Owns the tests of the table of states by real calls: an engine is led into each state, every
 * public call is made in it, and what comes of it is what the table says: the status, the words of
 * a refusal, and the state after it. With TOY_CUDA that includes captures and launches. */
#include "harness.h"

#include "engine/engine_internal.h"
#include "engine_calls.h"
#include "zero/capture.h"
#ifdef TOY_CUDA
#include "zero/cuda.h"
#endif

#define UNIT_ELEMENTS 100

static zero_stream stream(void)
{
    return toy_stream();
}

/* ---- captures of the caller's stream ---- */

#ifdef TOY_CUDA

static void begin_stream_capture(void)
{
    CHECK_EQ(cudaStreamBeginCapture(stream().native, cudaStreamCaptureModeThreadLocal),
             cudaSuccess);
}

static void end_stream_capture(void)
{
    cudaGraph_t graph = NULL;
    CHECK_EQ(cudaStreamEndCapture(stream().native, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

#else

static void begin_stream_capture(void)
{
    TEST_FAIL("the CPU captures nothing");
}

static void end_stream_capture(void)
{
    TEST_FAIL("the CPU captures nothing");
}

#endif

/* ---- the ways there and back ---- */

/* True if the engine's steps can be captured: none that has state on disk, as speculative ones
 * need. */
static bool captures(const zero_engine *engine)
{
    return toy_device() == ZERO_DEVICE_CUDA && !engine->layout->tuning.speculative_step;
}

/* True if a call can be legal at all. */
static bool is_possible(const zero_engine *engine, zi_engine_call call)
{
    return call == ZI_CALL_PREDICT ? engine->layout->tuning.speculative_step != 0
           : call == ZI_CALL_PREPARE || call == ZI_CALL_REPLAY_BEGIN ? captures(engine)
                                                                     : true;
}

static bool is_of_capture(zi_engine_state state)
{
    return zi_engine_state_streams(state) != ZI_STREAMS_ANY;
}

static void one_step(zero_engine *engine)
{
    CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
    CHECK_OK(zero_micro_end(engine));
    CHECK_OK(zero_step(engine, NULL, stream()));
}

/* One call nearer to idle. */
static void go_back(zero_engine *engine)
{
    switch (engine->state) {
    case ZI_ENGINE_MICRO:
    case ZI_ENGINE_LAST_MICRO:
    case ZI_ENGINE_CAPTURING_MICRO:
    case ZI_ENGINE_CAPTURING_LAST_MICRO:
        CHECK_OK(zero_micro_end(engine));
        break;
    case ZI_ENGINE_ACCUMULATING:
    case ZI_ENGINE_CAPTURING:
    case ZI_ENGINE_CAPTURING_ACCUMULATING:
        CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
        break;
    case ZI_ENGINE_STEP_DUE:
    case ZI_ENGINE_CAPTURING_STEP_DUE:
        CHECK_OK(zero_step(engine, NULL, stream()));
        break;
    case ZI_ENGINE_EVICTED:
        CHECK_OK(zero_engine_restore(engine));
        break;
    case ZI_ENGINE_PREPARED:
        CHECK_OK(zero_capture_end(engine, stream()));
        break;
    case ZI_ENGINE_CAPTURED:
        CHECK_OK(zero_capture_end(engine, stream()));
        end_stream_capture();
        break;
    case ZI_ENGINE_REPLAYING:
        CHECK_OK(zero_replay_end(engine, stream()));
        break;
    case ZI_ENGINE_IDLE:
    case ZI_ENGINE_POISONED:
    case ZI_ENGINE_STATE_COUNT:
        TEST_FAIL("no way back from %s", zi_engine_state_name(engine->state));
    }
}

/* From idle, by the calls that a caller makes. */
static void go_to(zero_engine *engine, zi_engine_state state)
{
    switch (state) {
    case ZI_ENGINE_IDLE:
        break;
    case ZI_ENGINE_MICRO:
        CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_EARLIER));
        break;
    case ZI_ENGINE_ACCUMULATING:
        go_to(engine, ZI_ENGINE_MICRO);
        CHECK_OK(zero_micro_end(engine));
        break;
    case ZI_ENGINE_LAST_MICRO:
        CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
        break;
    case ZI_ENGINE_STEP_DUE:
        go_to(engine, ZI_ENGINE_LAST_MICRO);
        CHECK_OK(zero_micro_end(engine));
        break;
    case ZI_ENGINE_EVICTED:
        CHECK_OK(zero_engine_evict(engine, ZERO_EVICT_ALL, ELSEWHERE));
        break;
    case ZI_ENGINE_PREPARED:
        CHECK_OK(zero_capture_prepare(engine));
        break;
    case ZI_ENGINE_CAPTURING:
        go_to(engine, ZI_ENGINE_PREPARED);
        begin_stream_capture();
        CHECK_OK(zero_capture_begin(engine, stream()));
        break;
    case ZI_ENGINE_CAPTURING_MICRO:
        go_to(engine, ZI_ENGINE_CAPTURING);
        CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_EARLIER));
        break;
    case ZI_ENGINE_CAPTURING_ACCUMULATING:
        go_to(engine, ZI_ENGINE_CAPTURING_MICRO);
        CHECK_OK(zero_micro_end(engine));
        break;
    case ZI_ENGINE_CAPTURING_LAST_MICRO:
        go_to(engine, ZI_ENGINE_CAPTURING);
        CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
        break;
    case ZI_ENGINE_CAPTURING_STEP_DUE:
        go_to(engine, ZI_ENGINE_CAPTURING_LAST_MICRO);
        CHECK_OK(zero_micro_end(engine));
        break;
    case ZI_ENGINE_CAPTURED:
        go_to(engine, ZI_ENGINE_CAPTURING_STEP_DUE);
        CHECK_OK(zero_step(engine, NULL, stream()));
        break;
    case ZI_ENGINE_REPLAYING:
        CHECK_OK(zero_replay_begin(engine, stream()));
        break;
    case ZI_ENGINE_POISONED:
    case ZI_ENGINE_STATE_COUNT:
        TEST_FAIL("no way to %d", (int)state);
    }
    CHECK_EQ(engine->state, state);
}

/* In the state, with a step behind it and, where there can be one, a captured step. */
static void stand(zero_engine *engine, zi_engine_state state)
{
    while (engine->state != ZI_ENGINE_IDLE) {
        go_back(engine);
    }
    one_step(engine);
    if (captures(engine) && zero_world_size(engine->world) == 1 && !engine->has_graph) {
        go_to(engine, ZI_ENGINE_CAPTURED);
        go_back(engine);
    }
    go_to(engine, state);
}

/* ---- every call ---- */

/* The pass that a unit may be acquired in, in the engine's state; NONE: in no pass. */
static zero_pass legal_pass(const zero_engine *engine)
{
    return zi_engine_on(engine->state, ZI_CALL_EVAL).legal    ? ZERO_PASS_EVAL
           : zi_engine_on(engine->state, ZI_CALL_TRAIN).legal ? ZERO_PASS_BACKWARD
                                                              : ZERO_PASS_NONE;
}

static zero_status call_release(zero_engine *engine)
{
    const zero_pass pass = legal_pass(engine);
    return pass != ZERO_PASS_NONE ? acquire(engine, pass) : zero_unit_release(engine, 0, stream());
}

static zero_status params_acquire(zero_engine *engine, zero_pass pass)
{
    TOY_TRY(zero_unit_params_acquire(engine, 0, pass, stream()));
    return zero_unit_params_release(engine, 0, stream());
}

CALL(params_backward, params_acquire(engine, ZERO_PASS_BACKWARD))
CALL(params_eval, params_acquire(engine, ZERO_PASS_EVAL))

static zero_status call_params_release(zero_engine *engine)
{
    const zero_pass pass = legal_pass(engine);
    return pass != ZERO_PASS_NONE ? params_acquire(engine, pass)
                                  : zero_unit_params_release(engine, 0, stream());
}

static zero_status call_grad_acquire(zero_engine *engine)
{
    TOY_TRY(zero_unit_grads_acquire(engine, 0, stream()));
    return zero_unit_grads_ready(engine, 0, stream());
}

static zero_status call_grad_ready(zero_engine *engine)
{
    if (zi_engine_on(engine->state, ZI_CALL_GRADS).legal) {
        TOY_TRY(zero_unit_grads_acquire(engine, 1, stream()));
    }
    return zero_unit_grads_ready(engine, 1, stream());
}

CALL(predict, zero_step_predict(engine, NULL))
CALL(wait, zero_step_wait(engine, (zero_step_result[]){zero_step_result_init()}))
CALL(loss_scale, zero_loss_scale(engine, (float[]){0}))
CALL(state_get, zero_step_state_get(engine, (zero_step_state[]){zero_step_state_init()}))
CALL(state_set, zero_step_state_set(engine, (zero_step_state[]){zero_step_state_init()}))
static zero_status call_view(zero_engine *engine)
{
    uint64_t first = 0;
    zero_view view;
    return zero_shard_view(engine, 0, ZERO_ROLE_PARAM, &first, &view);
}

CALL(read, zero_shard_read(engine, 0, ZERO_ROLE_PARAM, 0, 1, (float[]){0}))
CALL(write, zero_shard_write(engine, 0, ZERO_ROLE_PARAM, 0, 1, (float[]){1}))

static zero_status call_export(zero_engine *engine)
{
    float values[UNIT_ELEMENTS];
    const zero_array array = {.data = values};
    return zero_tensor_export(engine, 0, ZERO_ROLE_PARAM, &array);
}

static zero_status call_import(zero_engine *engine)
{
    float values[UNIT_ELEMENTS] = {0};
    const zero_array array = {.data = values};
    return zero_tensor_import(engine, 0, ZERO_ROLE_PARAM, &array);
}

static zero_status call_capture_begin(zero_engine *engine)
{
    if (engine->state == ZI_ENGINE_PREPARED) {
        begin_stream_capture();
    }
    return zero_capture_begin(engine, stream());
}

static zero_status call_capture_end(zero_engine *engine)
{
    const bool captured = engine->state == ZI_ENGINE_CAPTURED;
    TOY_TRY(zero_capture_end(engine, stream()));
    if (captured) {
        end_stream_capture();
    }
    return ZERO_OK;
}

CALL(replay_begin, zero_replay_begin(engine, stream()))
CALL(replay_params, zero_replay_params(engine, stream(), NULL))
CALL(replay_result,
     zero_replay_result(engine, stream(), (zero_step_result[]){zero_step_result_init()}))
CALL(replay_end, zero_replay_end(engine, stream()))

/* says: what the message of a refusal begins with. */
static const struct {
    zi_engine_call call;
    const char *says;
    zero_status (*make)(zero_engine *engine);
} calls[] = {
    {ZI_CALL_MICRO_BEGIN, "zero_micro_begin", call_begin},
    {ZI_CALL_LAST_BEGIN, "zero_micro_begin", call_begin_last},
    {ZI_CALL_MICRO_END, "zero_micro_end", zero_micro_end},
    {ZI_CALL_TRAIN, "pass forward of unit 0 \"layer0\"", call_forward},
    {ZI_CALL_TRAIN, "pass backward of unit 0 \"layer0\"", call_backward},
    {ZI_CALL_EVAL, "pass eval of unit 0 \"layer0\"", call_eval},
    {ZI_CALL_RELEASE, "zero_unit_release of unit 0 \"layer0\"", call_release},
    {ZI_CALL_TRAIN, "pass backward of unit 0 \"layer0\"", call_params_backward},
    {ZI_CALL_EVAL, "pass eval of unit 0 \"layer0\"", call_params_eval},
    {ZI_CALL_RELEASE, "zero_unit_params_release of unit 0 \"layer0\"", call_params_release},
    {ZI_CALL_GRADS, "zero_unit_grads_acquire of unit 0 \"layer0\"", call_grad_acquire},
    {ZI_CALL_GRADS, "zero_unit_grads_ready of unit 1 \"layer1\"", call_grad_ready},
    {ZI_CALL_STEP, "zero_step", call_step},
    {ZI_CALL_DISCARD, "zero_step_discard", zero_step_discard},
    {ZI_CALL_ABANDON, "zero_micro_abandon", call_abandon},
    {ZI_CALL_NORM, "zero_grad_norm", call_norm},
    {ZI_CALL_PREDICT, "zero_step_predict", call_predict},
    {ZI_CALL_WAIT, "zero_step_wait", call_wait},
    {ZI_CALL_WAIT, "zero_loss_scale", call_loss_scale},
    {ZI_CALL_WAIT, "zero_step_state_get", call_state_get},
    {ZI_CALL_STATE_SET, "zero_step_state_set", call_state_set},
    {ZI_CALL_FILL, "zero_engine_fill", call_fill},
    {ZI_CALL_SAVE, "zero_save_begin", call_save},
    {ZI_CALL_LOAD, "zero_load", call_load},
    {ZI_CALL_SHARD_READ, "zero_shard_view of param", call_view},
    {ZI_CALL_SHARD_READ, "zero_shard_read of param", call_read},
    {ZI_CALL_SHARD_WRITE, "zero_shard_write of param", call_write},
    {ZI_CALL_SHARD_READ, "zero_tensor_export of param", call_export},
    {ZI_CALL_SHARD_WRITE, "zero_tensor_import of param", call_import},
    {ZI_CALL_EVICT, "zero_engine_evict", call_evict},
    {ZI_CALL_RESTORE, "zero_engine_restore", zero_engine_restore},
    {ZI_CALL_PREPARE, "zero_capture_prepare", zero_capture_prepare},
    {ZI_CALL_CAPTURE_BEGIN, "zero_capture_begin", call_capture_begin},
    {ZI_CALL_CAPTURE_END, "zero_capture_end", call_capture_end},
    {ZI_CALL_REPLAY_BEGIN, "zero_replay_begin", call_replay_begin},
    {ZI_CALL_LAUNCH, "zero_replay_params", call_replay_params},
    {ZI_CALL_LAUNCH, "zero_replay_result", call_replay_result},
    {ZI_CALL_REPLAY_END, "zero_replay_end", call_replay_end},
};

#define CALLS (sizeof calls / sizeof calls[0])

/* The call is refused as the table has it, and has changed nothing. */
static void expect_refusal(zero_engine *engine, size_t i)
{
    const zi_engine_state state = engine->state;
    const zi_engine_cell cell = zi_engine_on(state, calls[i].call);
    const zero_status status = calls[i].make(engine);
    const char *said = zero_last_error()->message;
    if (status != ZERO_ERR_STATE || engine->state != state || strstr(said, calls[i].says) != said ||
        strstr(said, zi_engine_state_text(state)) == NULL || strstr(said, cell.remedy) == NULL) {
        TEST_FAIL("%s while %s: %s, then %s: %s", calls[i].says, zi_engine_state_name(state),
                  zero_status_name(status), zi_engine_state_name(engine->state), said);
    }
}

static void expect_success(zero_engine *engine, size_t i)
{
    const zi_engine_state state = engine->state;
    const zero_status status = calls[i].make(engine);
    if (status != ZERO_OK || engine->state != zi_engine_on(state, calls[i].call).next) {
        TEST_FAIL("%s while %s: %s, then %s: %s", calls[i].says, zi_engine_state_name(state),
                  zero_status_name(status), zi_engine_state_name(engine->state),
                  status != ZERO_OK ? zero_last_error()->message : "");
    }
}

static void make_all_calls(zero_engine *engine, zi_engine_state state)
{
    bool made[ZI_ENGINE_CALL_COUNT] = {false};
    for (size_t i = 0; i < CALLS; i++) {
        const bool legal = zi_engine_on(state, calls[i].call).legal;
        made[calls[i].call] = true;
        if (legal && is_possible(engine, calls[i].call)) {
            stand(engine, state);
            expect_success(engine, i);
        } else if (!legal) {
            if (engine->state != state) {
                stand(engine, state);
            }
            expect_refusal(engine, i);
        }
    }
    for (int call = 0; call < ZI_ENGINE_CALL_COUNT; call++) {
        CHECK(made[call]);
    }
}

/* Calls that only ask are legal wherever there is an engine to ask. */
static void make_queries(zero_engine *engine)
{
    zero_pass pass = ZERO_PASS_EVAL;
    zero_shard shard;
    zero_view view;
    CHECK_OK(zero_unit_pass(engine, 0, &pass));
    CHECK_EQ(pass, ZERO_PASS_NONE);
    CHECK_OK(zero_shard_range(engine, 0, ZERO_ROLE_MASTER, &shard));
    CHECK_FAILS(zero_tensor_data(engine, 0, &view), ZERO_ERR_STATE, "not acquired");
    CHECK_FAILS(zero_tensor_grad(engine, 0, &view), ZERO_ERR_STATE, "not acquired");
}

/* Calls that must not be made while a unit is acquired are refused by the unit's name, then
 * made. */
static void make_calls_with_a_unit(zero_engine *engine, zi_engine_state state)
{
    for (size_t i = 0; i < CALLS; i++) {
        const zi_engine_call call = calls[i].call;
        if ((zi_engine_call_needs(call) & ZI_NEEDS_NO_UNIT) == 0 || !is_possible(engine, call) ||
            !zi_engine_on(state, call).legal) {
            continue;
        }
        stand(engine, state);
        CHECK_OK(zero_unit_acquire(engine, 1, legal_pass(engine), stream(), NULL));
        CHECK_FAILS(calls[i].make(engine), ZERO_ERR_STATE,
                    "unit 1 \"layer1\" is still acquired; release it first");
        CHECK(strstr(zero_last_error()->message, calls[i].says) == zero_last_error()->message);
        CHECK_EQ(engine->state, state);
        CHECK_OK(zero_unit_release(engine, 1, stream()));
        expect_success(engine, i);
    }
}

static zero_status walk_the_table(toy_trainer *trainer)
{
    zero_engine *engine = trainer->engine;
    CHECK_EQ(engine->state, ZI_ENGINE_IDLE);
    CHECK_FAILS(zero_replay_begin(engine, stream()), ZERO_ERR_STATE, "no step was captured");
    for (int s = 0; s < ZI_ENGINE_POISONED; s++) {
        const zi_engine_state state = (zi_engine_state)s;
        if (captures(engine) || !is_of_capture(state)) {
            stand(engine, state);
            make_queries(engine);
            make_all_calls(engine, state);
            make_calls_with_a_unit(engine, state);
        }
    }
    stand(engine, ZI_ENGINE_IDLE);
    return ZERO_OK;
}

/* A model of two units, a folder, and a loss scale that moves. */
static toy_run table_run(void)
{
    toy_run run = toy_run_equal(2, UNIT_ELEMENTS, ZERO_DTYPE_F32);
    rig_folders(1, 0);
    run_directory_make();
    run.options.loss_scale = 4;
    run.options.disk_directories = rig_paths;
    run.options.disk_directory_count = 1;
    return run;
}

TEST(every_call_in_every_state)
{
    toy_run run = table_run();
    for (int way = 0; way < 4; way++) {
        run.options.stage = way % 2 == 0 ? ZERO_STAGE_0 : ZERO_STAGE_3;
        run.tuning.speculative_step = way / 2;
        for (int role = ZERO_ROLE_MASTER; way == 2 && role <= ZERO_ROLE_MOMENT2; role++) {
            run.options.tier[role] = ZERO_TIER_DISK;
        }
        toy_double_begin(test_seed);
        CHECK_OK(toy_on_ranks(1, &run, walk_the_table, NULL));
        CHECK(toy_double_is_well());
    }
}

/* ---- roles that are not there ---- */

static zero_status ask_for_roles(toy_trainer *trainer)
{
    float value = 0;
    zero_engine *engine = trainer->engine;
    one_step(engine);
    TOY_TRY(zero_engine_evict(
        engine, ZERO_ROLE_BIT(ZERO_ROLE_MOMENT1) | ZERO_ROLE_BIT(ZERO_ROLE_GRAD), ELSEWHERE));
    CHECK_FAILS(zero_shard_read(engine, 0, ZERO_ROLE_MOMENT1, 0, 1, &value), ZERO_ERR_STATE,
                "zero_shard_read of moment1: grad, moment1 are evicted; call zero_engine_restore");
    TOY_TRY(zero_shard_read(engine, 0, ZERO_ROLE_MOMENT2, 0, 1, &value));
    TOY_TRY(zero_engine_restore(engine));
    TOY_TRY(zero_shard_read(engine, 0, ZERO_ROLE_MOMENT1, 0, 1, &value));
    CHECK_FAILS(zero_shard_read(engine, 0, ZERO_ROLE_GRAD, 0, 1, &value), ZERO_ERR_STATE,
                "after the next zero_step");
    one_step(engine);
    return zero_shard_read(engine, 0, ZERO_ROLE_GRAD, 0, 1, &value);
}

TEST(roles_that_are_offloaded)
{
    toy_run run = table_run();
    CHECK_OK(toy_on_ranks(1, &run, ask_for_roles, NULL));
}

/* Sums that are being made have no view: the reductions that write them may be under way. */
static zero_status view_sums(toy_trainer *trainer)
{
    uint64_t first = 0;
    zero_view view;
    zero_engine *engine = trainer->engine;
    go_to(engine, ZI_ENGINE_ACCUMULATING);
    CHECK_FAILS(zero_shard_view(engine, 0, ZERO_ROLE_GRAD, &first, &view), ZERO_ERR_STATE,
                "gradients are being added up, micro-step 1 of a step is over");
    TOY_TRY(zero_shard_view(engine, 0, ZERO_ROLE_PARAM, &first, &view));
    go_back(engine);
    go_back(engine);
    CHECK_FAILS(zero_shard_view(engine, 0, ZERO_ROLE_GRAD, &first, &view), ZERO_ERR_STATE,
                "the step is due; call zero_step, or zero_step_discard, first");
    go_back(engine);
    return zero_shard_view(engine, 0, ZERO_ROLE_GRAD, &first, &view);
}

TEST(sums_have_no_view_before_their_step)
{
    toy_run run = table_run();
    CHECK_OK(toy_on_ranks(1, &run, view_sums, NULL));
}

/* ---- poisoned ---- */

/* Ranks that give different numbers to a step: what is told to each poisons its engine. */
static zero_status poison(toy_trainer *trainer)
{
    zero_pass pass = ZERO_PASS_NONE;
    zero_engine *engine = trainer->engine;
    zero_step_params params = zero_step_params_init();
    params.max_norm = 1.0f + (float)trainer->rank;
    TOY_TRY(zero_micro_begin(engine, ZERO_MICRO_LAST));
    TOY_TRY(zero_micro_end(engine));
    TOY_TRY(zero_step(engine, &params, stream()));
    CHECK_EQ(toy_wait(trainer), ZERO_ERR_MISMATCH);
    CHECK_EQ(engine->state, ZI_ENGINE_POISONED);
    for (size_t i = 0; i < CALLS; i++) {
        CHECK_FAILS(calls[i].make(engine), ZERO_ERR_POISONED, "max_norm is 1 on rank 0 and 2 on");
        CHECK_EQ(engine->state, ZI_ENGINE_POISONED);
    }
    CHECK_EQ(zero_unit_pass(engine, 0, &pass), ZERO_ERR_POISONED);
    CHECK(zero_engine_plan(engine) != NULL);
    return ZERO_OK;
}

TEST(no_call_is_legal_after_a_failure)
{
    toy_run run = table_run();
    toy_double_begin(test_seed);
    CHECK_FAILS(toy_on_ranks(2, &run, poison, NULL), ZERO_ERR_MISMATCH, "max_norm is 1");
}

/* ---- destroyed in any state ---- */

typedef struct ending {
    const toy_run *run;
    zi_engine_state state;
} ending;

/* One rank goes: the other is told so where it may be waiting for it, and else goes on. */
static zero_status end_in_state(zero_world *world, void *user)
{
    const ending *of = user;
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, of->run, world));
    stand(trainer.engine, of->state);
    TOY_TRY(zero_world_barrier(world));
    if (trainer.rank == 1) {
        toy_close(&trainer);
    }
    const zero_status status = zero_world_barrier(world);
    if (trainer.rank == 0) {
        toy_close(&trainer);
    }
    return status;
}

TEST(destroyed_in_every_state)
{
    toy_run run = table_run();
    for (int s = 0; s < ZI_ENGINE_POISONED; s++) {
        ending of = {&run, (zi_engine_state)s};
        if (is_of_capture(of.state)) {
            continue; /* ranks that are threads capture nothing */
        }
        toy_double_begin(test_seed);
        if (zi_engine_state_owes(of.state)) {
            CHECK_FAILS(zero_world_run(2, TOY_DEADLINE_MS, end_in_state, &of), ZERO_ERR_COMM,
                        "a rank destroyed its engine in the middle of a step");
        } else {
            CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, end_in_state, &of));
        }
    }
}
