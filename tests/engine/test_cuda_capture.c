/* engine over the CUDA runtime's double: a step captured into a graph and launched is, bit for bit,
 * the plain step, with plain steps before, between and after; and what is not legal around captures
 * is refused without harm. The same over several ranks and NCCL's double, with RANKS (toy_nccl.c).
 */
#include "small_runs.h"

#include "reads.h"

#include "fake_cuda.h"
#include "toy_kernel.h"
#include "zero/cuda.h"

#ifndef RANKS
#define RANKS 1
#endif
#define LAUNCHES 5
#define SEEDS (RANKS == 1 ? 4u : 2u)

static cudaStream_t native(void)
{
    return toy_stream().native;
}

/* Other numbers at every step. */
static zero_step_params params_of(uint64_t step, bool changing)
{
    zero_step_params params = zero_step_params_init();
    params.hyper.adamw.lr = changing ? 1e-2f / (float)(step + 1) : 1e-2f;
    params.hyper.adamw.weight_decay = 0.1f;
    params.max_norm = changing && step % 2 == 0 ? 0.5f : 0.0f;
    return params;
}

/* Always the gradient of step 0, so that it is a function of parameters alone, as in a graph. */
static zero_status take_step(toy_trainer *trainer, const zero_step_params *params)
{
    const uint32_t units = trainer->run->model->unit_count;
    for (uint32_t m = 0; m < trainer->run->micro_steps; m++) {
        TOY_TRY(toy_micro_begin(trainer, m + 1 == trainer->run->micro_steps));
        for (uint32_t u = 0; u < units; u++) {
            TOY_TRY(toy_kernel_forward(trainer, u, ZERO_PASS_FORWARD));
        }
        for (uint32_t u = units; u-- > 0;) {
            TOY_TRY(toy_kernel_backward(trainer, u));
        }
        TOY_TRY(toy_micro_end(trainer));
    }
    trainer->micro = 0;
    return zero_step(trainer->engine, params, toy_stream());
}

/* A captured step, ready to be launched. */
static zero_status capture(toy_trainer *trainer, const zero_step_params *params,
                           cudaGraphExec_t *graph_exec)
{
    cudaGraph_t graph = NULL;
    TOY_TRY(zero_capture_prepare(trainer->engine));
    const uint64_t syncs = fake_cuda_syncs(); /* of all ranks: so it says something of one alone */
    const uint64_t pending = fake_cuda_pending();
    CHECK_EQ(cudaStreamBeginCapture(native(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    TOY_TRY(zero_capture_begin(trainer->engine, toy_stream()));
    TOY_TRY(take_step(trainer, params));
    TOY_TRY(zero_capture_end(trainer->engine, toy_stream()));
    CHECK_EQ(cudaStreamEndCapture(native(), &graph), cudaSuccess);
    CHECK(RANKS > 1 || fake_cuda_syncs() == syncs);
    CHECK(RANKS > 1 || fake_cuda_pending() <= pending);
    CHECK_EQ(cudaGraphInstantiate(graph_exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return ZERO_OK;
}

/* A rank's course in a test. */
typedef struct course {
    toy_run run;
    const zero_hyper *hyper; /* NULL: those of params_of */
    bool changing;           /* hyper-parameters */
    bool evaluate;           /* between plain steps and launches */
    uint32_t rounds;
    uint64_t steps;   /* that the launches and plain steps came to */
    float *weight;    /* of the GPU: what divides where they change; NULL: the number of samples */
    uint64_t stalled; /* what the last step said */
} course;

static zero_step_params course_params(const course *c, uint64_t step, bool changing)
{
    zero_step_params params = params_of(step, changing);
    params.grad_weight = c->weight;
    if (c->hyper != NULL) {
        params.hyper = *c->hyper;
        params.hyper.adamw.lr /= changing ? (float)(step + 1) : 1.0f; /* every optimizer's first */
    }
    return params;
}

/* The next step's, whose weight the stream writes when the last step has read its own. */
static zero_step_params next_params(course *c)
{
    const uint64_t step = c->steps++;
    const zero_step_params params = course_params(c, step, c->changing);
    if (c->weight != NULL) {
        /* As floats about 0.7, 3 and 12. */
        const int bytes = 0x3f + (int)(step % 3);
        CHECK_EQ(cudaMemsetAsync(c->weight, bytes, sizeof *c->weight, native()), cudaSuccess);
    }
    return params;
}

static zero_status plain_steps(toy_trainer *trainer, course *c, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const zero_step_params params = next_params(c);
        TOY_TRY(take_step(trainer, &params));
    }
    return ZERO_OK;
}

static zero_status evaluate(toy_trainer *trainer, const course *c)
{
    for (uint32_t u = 0; c->evaluate && u < c->run.model->unit_count; u++) {
        TOY_TRY(toy_kernel_forward(trainer, u, ZERO_PASS_EVAL));
    }
    return ZERO_OK;
}

static zero_status launch_steps(toy_trainer *trainer, course *c, cudaGraphExec_t graph_exec)
{
    zero_step_result result = zero_step_result_init();
    TOY_TRY(zero_replay_begin(trainer->engine, toy_stream()));
    const uint64_t syncs = fake_cuda_syncs();
    for (int i = 0; i < LAUNCHES; i++) {
        const zero_step_params params = next_params(c);
        if (c->changing || i == 0) {
            TOY_TRY(zero_replay_params(trainer->engine, toy_stream(), &params));
        }
        CHECK_EQ(cudaGraphLaunch(graph_exec, native()), cudaSuccess);
    }
    CHECK(RANKS > 1 || fake_cuda_syncs() - syncs == (c->changing ? LAUNCHES : 1));
    if (c->changing) {
        TOY_TRY(zero_replay_result(trainer->engine, toy_stream(), &result));
        CHECK_EQ(result.step, c->steps);
        CHECK_EQ(result.skipped, 0);
    }
    return zero_replay_end(trainer->engine, toy_stream());
}

static zero_status train_with_launches(toy_trainer *trainer, course *c)
{
    cudaGraphExec_t graph_exec = NULL;
    /* Those of the launches are set before. */
    const zero_step_params unused = course_params(c, 7, true);
    TOY_TRY(plain_steps(trainer, c, 1));
    TOY_TRY(capture(trainer, &unused, &graph_exec));
    for (uint32_t i = 0; i < c->rounds; i++) {
        TOY_TRY(evaluate(trainer, c));
        TOY_TRY(launch_steps(trainer, c, graph_exec));
        TOY_TRY(evaluate(trainer, c));
        TOY_TRY(plain_steps(trainer, c, i)); /* none after the first round */
    }
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(trainer->result.step, c->steps);
    CHECK_EQ(engine_stats(trainer->engine).steps, c->steps);
    CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
    return ZERO_OK;
}

typedef zero_status (*course_fn)(toy_trainer *trainer, course *c);

/* Check that `fn` comes to what as many plain steps come to. */
static zero_status compare_with_plain(zero_world *world, course *c, course_fn fn, const char *what)
{
    toy_trainer trainer;
    toy_state state;
    c->steps = 0;
    TOY_TRY(toy_open(&trainer, &c->run, world));
    TOY_TRY(fn(&trainer, c));
    TOY_TRY(toy_wait(&trainer));
    c->stalled = trainer.result.stalled;
    TOY_TRY(toy_collect(&trainer, &state));
    toy_close(&trainer);
    const uint32_t steps = (uint32_t)c->steps;
    c->steps = 0;
    TOY_TRY(toy_open(&trainer, &c->run, world));
    TOY_TRY(plain_steps(&trainer, c, steps));
    TOY_TRY(toy_wait(&trainer));
    CHECK_EQ(trainer.result.stalled, c->stalled);
    TOY_TRY(toy_collect_same(&trainer, &state, what));
    toy_close(&trainer);
    toy_state_free(&state);
    return ZERO_OK;
}

static zero_status compare(zero_world *world, void *user)
{
    course own = *(const course *)user; /* ranks are threads */
    own.weight = own.changing ? toy_scalar_open(1) : NULL;
    TOY_TRY(compare_with_plain(world, &own, train_with_launches, "launches"));
    CHECK(own.run.options.master_dtype != ZERO_DTYPE_REMAINDER8 || own.stalled > 0);
    if (own.weight != NULL) {
        toy_scalar_close(own.weight);
    }
    return ZERO_OK;
}

static void train(fake_cuda_mode mode, zero_dtype dtype, uint32_t micro_steps, bool changing)
{
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        course c = {.run = toy_run_mixed(dtype), .changing = changing, .rounds = 4};
        c.run.micro_steps = micro_steps;
        c.run.options.stage = (zero_stage)stage;
        c.run.tuning.poison_released = stage % 2;
        c.run.tuning.trace_events = stage > 1 ? 4096 : 0; /* a captured stream has no times */
        c.run.tuning.bucket_bytes = 1;
        c.run.options.loss_scale = 4; /* kernels leave it out: what it moves shows in the state */
        c.run.tuning.loss_scale_window = 3;
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            /* Over NCCL the seeds are few, so a stage has a part of the ways. */
            const uint64_t way = RANKS == 1 ? seed : seed + 2 * ((uint64_t)stage % 2);
            c.evaluate = (seed + (uint64_t)stage) % 2 == 0;
            c.run.options.tier[ZERO_ROLE_PARAM] = way > 2 ? ZERO_TIER_HOST : ZERO_TIER_DEVICE;
            c.run.options.tier[ZERO_ROLE_GRAD] = c.run.options.tier[ZERO_ROLE_PARAM];
            for (int role = ZERO_ROLE_MASTER; role < ZI_SHARD_ROLES; role++) {
                c.run.options.tier[role] = way % 2 == 0 ? ZERO_TIER_HOST : ZERO_TIER_DEVICE;
            }
            c.run.tuning.extent_bytes = 4096; /* many chunks */
            fake_cuda_start(mode, test_seed * SEEDS + seed);
            CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, compare, &c));
            CHECK(fake_cuda_check());
        }
    }
}

TEST_CALL(as_late_as_possible, train(FAKE_CUDA_LAZY, ZERO_DTYPE_F32, 1, false));
TEST_CALL(at_once, train(FAKE_CUDA_EAGER, ZERO_DTYPE_BF16, 2, true));
TEST_CALL(at_random, train(FAKE_CUDA_RANDOM, ZERO_DTYPE_F16, 2, true));
TEST_CALL(when_waited_for, train(FAKE_CUDA_AT_SYNC, ZERO_DTYPE_F32, 2, false));

/* Launches encode and decode states and gradients as plain steps do, and count what rounds to
 * nothing. */
TEST(small_states_have_the_same_bits)
{
    static const small_mix mixes[] = {
        {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_BF16, ADAMW},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8, ADAMW},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_I8, ADAMW},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8, ZERO_OPTIMIZER_LION},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_OPTIMIZER_LAMB},
    };
    for (uint32_t m = 0; m < sizeof mixes / sizeof mixes[0]; m++) {
        for (uint32_t i = 0; i < 4; i++) {
            zero_hyper hyper = zero_hyper_init(mixes[m].optimizer);
            course c = {.run = small_run(&mixes[m]), .hyper = &hyper, .changing = i % 2 == 1};
            hyper.adamw.lr = 1e-5f; /* of any optimizer */
            c.rounds = 2;
            c.run.micro_steps = 1 + i % 2;
            c.run.options.stage = (zero_stage)((m + i) % 4);
            c.run.tuning.wire_dtype = m % 2 == 0 ? ZERO_DTYPE_INT8_BLOCK : ZERO_DTYPE_DEFAULT;
            for (int role = ZERO_ROLE_MASTER; i > 1 && role < ZI_SHARD_ROLES; role++) {
                c.run.options.tier[role] = ZERO_TIER_HOST;
            }
            fake_cuda_start(FAKE_CUDA_RANDOM, test_seed * 16 + 4 * m + i);
            CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, compare, &c));
            CHECK(fake_cuda_check());
        }
    }
}

/* So do what rounds parameters for other ranks, where there are others. */
TEST(gathers_in_blocks_have_the_same_bits)
{
    static const zero_dtype dtypes[] = {ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK};
    for (int stage = ZERO_STAGE_1; stage <= ZERO_STAGE_3; stage++) {
        course c = {.run = toy_run_mixed(ZERO_DTYPE_BF16), .rounds = 2};
        c.run.options.stage = (zero_stage)stage;
        c.run.tuning.gather_dtype = dtypes[stage % 2];
        c.run.options.tier[ZERO_ROLE_PARAM] =
            stage == ZERO_STAGE_2 ? ZERO_TIER_HOST : ZERO_TIER_DEVICE;
        c.run.tuning.extent_bytes = 4096;
        fake_cuda_start(FAKE_CUDA_RANDOM, test_seed * 4 + (uint64_t)stage);
        CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, compare, &c));
        CHECK(fake_cuda_check());
    }
}

/* ---- ranks that give different numbers to launches ---- */

/* The launches of a graph whose hyper-parameters the ranks set differently change nothing, the next
 * ones neither, and every rank is told when it asks or sets the next ones. */
static zero_status differ_in_launches(zero_world *world, void *user)
{
    course own = *(const course *)user;
    toy_trainer trainer;
    cudaGraphExec_t graph_exec = NULL;
    zero_step_result result = zero_step_result_init();
    zero_step_params params = params_of(0, false);
    TOY_TRY(toy_open(&trainer, &own.run, world));
    TOY_TRY(plain_steps(&trainer, &own, 1));
    TOY_TRY(capture(&trainer, &params, &graph_exec));
    TOY_TRY(zero_replay_begin(trainer.engine, toy_stream()));
    CHECK_EQ(cudaGraphLaunch(graph_exec, native()), cudaSuccess);
    TOY_TRY(zero_replay_result(trainer.engine, toy_stream(), &result));
    CHECK_EQ(result.updates, 2);
    params.max_norm = 0.25f * (float)(1 + trainer.rank);
    TOY_TRY(zero_replay_params(trainer.engine, toy_stream(), &params));
    CHECK_EQ(cudaGraphLaunch(graph_exec, native()), cudaSuccess);
    CHECK_EQ(cudaGraphLaunch(graph_exec, native()), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(native()), cudaSuccess);
    TOY_TRY(zero_world_barrier(world)); /* the first to be told ends what others have under way */
    const zero_status told = own.changing
                                 ? zero_replay_params(trainer.engine, toy_stream(), &params)
                                 : zero_replay_result(trainer.engine, toy_stream(), &result);
    CHECK_FAILS(told, ZERO_ERR_MISMATCH, "max_norm is 0.25 on rank 0 and 0.5 on rank 1");
    CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(launches_that_ranks_are_given_differently)
{
    for (int stage = RANKS > 1 ? ZERO_STAGE_0 : ZERO_STAGE_3 + 1; stage <= ZERO_STAGE_3; stage++) {
        course c = {.run = toy_run_mixed(ZERO_DTYPE_F32), .changing = stage % 2 == 0};
        c.run.options.stage = (zero_stage)stage;
        fake_cuda_start(FAKE_CUDA_LAZY, 1 + (uint64_t)stage);
        CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, differ_in_launches, &c));
        CHECK(fake_cuda_check());
    }
}

/* ---- what the edges are there for ---- */

/* Launches that do not begin or end as they should, so that plain steps run beside them. */
static zero_status race_with_launches(toy_trainer *trainer)
{
    course *c = trainer->user;
    cudaGraphExec_t graph_exec = NULL;
    const zero_step_params params = params_of(0, false);
    TOY_TRY(capture(trainer, &params, &graph_exec));
    TOY_TRY(plain_steps(trainer, c, 1));
    CHECK_EQ(fake_cuda_races(), 0);
    CHECK_EQ(cudaGraphLaunch(graph_exec, native()), cudaSuccess);
    CHECK(fake_cuda_races() > 0);
    return ZERO_OK;
}

TEST(a_launch_without_begin_is_seen_to_race)
{
    course c = {.run = toy_run_mixed(ZERO_DTYPE_BF16)};
    fake_cuda_start(FAKE_CUDA_LAZY, 1);
    CHECK_OK(toy_on_ranks(1, &c.run, race_with_launches, &c));
}

/* Read a parameter on another stream than the launches', with an acquire alone to order it. */
static zero_status read_elsewhere(zero_engine *engine, cudaStream_t stream, void *room)
{
    zero_view view;
    TOY_TRY(zero_unit_acquire(engine, 0, ZERO_PASS_EVAL, zero_stream_cuda(stream), NULL));
    TOY_TRY(zero_tensor_data(engine, 0, &view));
    CHECK_EQ(cudaMemcpyAsync(room, view.data, 4, cudaMemcpyDefault, stream), cudaSuccess);
    return zero_unit_release(engine, 0, zero_stream_cuda(stream));
}

/* Readers and a step that no work of the caller's orders behind the launches. */
static zero_status follow_launches(zero_world *world, void *user)
{
    course own = *(const course *)user;
    course *c = &own;
    toy_trainer trainer;
    cudaGraphExec_t graph_exec = NULL;
    cudaStream_t other = NULL;
    void *room = NULL;
    uint32_t bits = 0;
    uint64_t first = 0;
    zero_view view;
    const zero_step_params params = params_of(0, false);
    TOY_TRY(toy_open(&trainer, &c->run, world));
    CHECK_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaMalloc(&room, 4), cudaSuccess);
    TOY_TRY(capture(&trainer, &params, &graph_exec));
    for (int way = 0; way < 3; way++) {
        TOY_TRY(launch_steps(&trainer, c, graph_exec));
        if (way == 0) {
            TOY_TRY(zero_shard_view(trainer.engine, 0, ZERO_ROLE_PARAM, &first, &view));
            if (view.count != 0) { /* small tensors are on some ranks only */
                fake_cuda_peek(&bits, view.data, 4);
            }
        } else if (way == 1) {
            TOY_TRY(read_elsewhere(trainer.engine, other, room));
            CHECK_EQ(cudaStreamSynchronize(other), cudaSuccess);
        } else {
            TOY_TRY(zero_micro_begin(trainer.engine, ZERO_MICRO_LAST)); /* every unit is left out */
            TOY_TRY(zero_micro_end(trainer.engine));
            TOY_TRY(zero_step(trainer.engine, &params, zero_stream_cuda(other)));
        }
    }
    TOY_TRY(zero_shard_view(trainer.engine, 0, ZERO_ROLE_PARAM, &first, &view));
    CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
    toy_close(&trainer);
    CHECK_EQ(cudaFree(room), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(other), cudaSuccess);
    return ZERO_OK;
}

TEST(what_follows_launches_comes_after_them)
{
    course c = {.run = toy_run_mixed(ZERO_DTYPE_BF16)};
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        c.run.options.stage = (zero_stage)stage;
        fake_cuda_start(FAKE_CUDA_LAZY, 1);
        CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, follow_launches, &c));
        CHECK(fake_cuda_check());
    }
}

/* The device alone knows how often it was launched. */
static zero_status ask_launches(toy_trainer *trainer)
{
    cudaGraphExec_t graph_exec = NULL;
    zero_step_result result = zero_step_result_init();
    zero_step_params params = params_of(0, false);
    TOY_TRY(capture(trainer, &params, &graph_exec));
    TOY_TRY(zero_replay_begin(trainer->engine, toy_stream()));
    CHECK_EQ(zero_replay_result(trainer->engine, toy_stream(), &result), ZERO_ERR_STATE);
    CHECK_EQ(cudaGraphLaunch(graph_exec, native()), cudaSuccess);
    CHECK_EQ(cudaGraphLaunch(graph_exec, native()), cudaSuccess);
    TOY_TRY(zero_replay_result(trainer->engine, toy_stream(), &result));
    CHECK_EQ(result.step, 2);
    CHECK_EQ(result.updates, 2);
    CHECK_EQ(result.loss_scale, 8.0f); /* it doubles after two good steps */
    TOY_TRY(zero_replay_end(trainer->engine, toy_stream()));
    float scale = 0;
    TOY_TRY(zero_loss_scale(trainer->engine, &scale));
    CHECK_EQ(scale, 8.0f);
    CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
    return ZERO_OK;
}

TEST(results_are_the_launches)
{
    course c = {.run = toy_run_mixed(ZERO_DTYPE_F16)};
    c.run.options.loss_scale = 4;
    c.run.tuning.loss_scale_window = 2;
    fake_cuda_start(FAKE_CUDA_RANDOM, 1);
    CHECK_OK(toy_on_ranks(RANKS, &c.run, ask_launches, &c));
    CHECK(fake_cuda_check());
}

/* ---- memory given back ---- */

/* A captured step holds addresses: an eviction retires it, and another is captured after. */
static zero_status launch_around_offload(toy_trainer *trainer, course *c)
{
    cudaGraphExec_t graph_exec = NULL;
    const zero_step_params params = params_of(0, false);
    zero_engine *engine = trainer->engine;
    TOY_TRY(plain_steps(trainer, c, 1));
    for (int i = 0; i < 2; i++) {
        TOY_TRY(capture(trainer, &params, &graph_exec));
        TOY_TRY(launch_steps(trainer, c, graph_exec));
        CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
        TOY_TRY(zero_capture_prepare(engine));
        CHECK_FAILS(zero_engine_evict(engine, ZERO_EVICT_ALL, ZERO_TIER_HOST), ZERO_ERR_STATE,
                    "capture is prepared");
        TOY_TRY(zero_capture_end(engine, toy_stream()));
        TOY_TRY(zero_engine_evict(engine, ZERO_EVICT_ALL, ZERO_TIER_HOST));
        TOY_TRY(evaluate(trainer, c));
        TOY_TRY(zero_engine_restore(engine));
        CHECK_FAILS(zero_replay_begin(engine, toy_stream()), ZERO_ERR_STATE,
                    "no step was captured");
        TOY_TRY(plain_steps(trainer, c, (uint32_t)i));
    }
    return ZERO_OK;
}

static zero_status compare_around_offload(zero_world *world, void *user)
{
    return compare_with_plain(world, user, launch_around_offload, "launches around an eviction");
}

TEST(an_offload_retires_the_captured_step)
{
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        course c = {.run = toy_run_mixed(ZERO_DTYPE_BF16), .evaluate = true};
        c.run.micro_steps = 2;
        c.run.options.stage = (zero_stage)stage;
        fake_cuda_start(FAKE_CUDA_LAZY, 1 + (uint64_t)stage);
        CHECK_OK(zero_world_run(1, TOY_DEADLINE_MS, compare_around_offload, &c));
        CHECK(fake_cuda_check());
    }
}

/* Check that a save has the state before the launches, although they are made while it is under
 * way; and that the captured step works on what is loaded. */
static zero_status launch_around_save(toy_trainer *trainer, course *c)
{
    cudaGraphExec_t graph_exec = NULL;
    const zero_step_params params = params_of(0, false);
    const zero_save_options save = run_save_options("launches");
    const zero_load_options load = run_load_options("launches");
    TOY_TRY(plain_steps(trainer, c, 1));
    TOY_TRY(capture(trainer, &params, &graph_exec));
    TOY_TRY(launch_steps(trainer, c, graph_exec));
    TOY_TRY(zero_save_begin(trainer->engine, &save));
    TOY_TRY(launch_steps(trainer, c, graph_exec));
    TOY_TRY(zero_save_end(trainer->engine));
    TOY_TRY(zero_load(trainer->engine, &load, NULL));
    c->steps -= LAUNCHES;
    TOY_TRY(launch_steps(trainer, c, graph_exec));
    TOY_TRY(plain_steps(trainer, c, 1));
    CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
    return ZERO_OK;
}

static zero_status compare_around_save(zero_world *world, void *user)
{
    course own = *(const course *)user; /* ranks are threads */
    return compare_with_plain(world, &own, launch_around_save, "launches around a save");
}

TEST(launches_while_a_save_is_under_way)
{
    static const fake_cuda_mode modes[] = {FAKE_CUDA_LAZY, FAKE_CUDA_EAGER, FAKE_CUDA_RANDOM,
                                           FAKE_CUDA_AT_SYNC};
    run_directory_make();
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        course c = {.run = toy_run_mixed(ZERO_DTYPE_BF16)};
        c.run.micro_steps = 2;
        c.run.options.stage = (zero_stage)stage;
        fake_cuda_start(modes[stage], test_seed + (uint64_t)stage);
        CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, compare_around_save, &c));
        CHECK(fake_cuda_check());
    }
}

/* Fail the nth allocation of device memory in a restore, for every n: all is still evicted. */
static zero_status reload_without_memory(toy_trainer *trainer)
{
    zero_engine *engine = trainer->engine;
    TOY_TRY(zero_engine_evict(engine, ZERO_EVICT_ALL, ZERO_TIER_HOST));
    const zero_memory less = engine_memory(engine);
    const uint64_t live = fake_cuda_live();
    uint64_t refusals = 0;
    zero_status status = ZERO_ERR_OUT_OF_MEMORY;
    while (status != ZERO_OK) {
        fake_cuda_fail("cudaMalloc", refusals + 1, cudaErrorMemoryAllocation);
        status = zero_engine_restore(engine);
        if (status != ZERO_OK) {
            const zero_memory still = engine_memory(engine);
            CHECK_EQ(status, ZERO_ERR_OUT_OF_MEMORY);
            CHECK_BYTES(&less, &still, sizeof less);
            CHECK_EQ(fake_cuda_live(), live);
            refusals++;
        }
    }
    fake_cuda_fail("cudaMalloc", UINT64_MAX, cudaErrorMemoryAllocation);
    CHECK(refusals >= 4); /* masters, two moments, gradients */
    return ZERO_OK;
}

static zero_status step_without_memory(toy_trainer *trainer, course *c)
{
    TOY_TRY(plain_steps(trainer, c, 2));
    TOY_TRY(reload_without_memory(trainer));
    return plain_steps(trainer, c, 2);
}

static zero_status compare_without_memory(zero_world *world, void *user)
{
    return compare_with_plain(world, user, step_without_memory, "a restore tried again");
}

TEST(a_reload_without_memory_may_be_tried_again)
{
    course c = {.run = toy_run_mixed(ZERO_DTYPE_BF16)};
    c.run.micro_steps = 1;
    fake_cuda_start(FAKE_CUDA_AT_SYNC, 1);
    CHECK_OK(zero_world_run(1, TOY_DEADLINE_MS, compare_without_memory, &c));
    CHECK(fake_cuda_check());
}

/* ---- misuse ---- */

static void misuse_before(zero_engine *engine)
{
    CHECK_FAILS(zero_capture_begin(engine, toy_stream()), ZERO_ERR_STATE, "zero_capture_prepare");
    CHECK_FAILS(zero_capture_end(engine, toy_stream()), ZERO_ERR_STATE, "zero_capture_begin");
    CHECK_FAILS(zero_replay_begin(engine, toy_stream()), ZERO_ERR_STATE, "no step was captured");
    CHECK_FAILS(zero_replay_end(engine, toy_stream()), ZERO_ERR_STATE, "zero_replay_begin");
    CHECK_FAILS(zero_replay_params(engine, toy_stream(), NULL), ZERO_ERR_STATE,
                "zero_replay_begin");
    CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_EARLIER));
    CHECK_FAILS(zero_capture_prepare(engine), ZERO_ERR_STATE, "finish the step");
    CHECK_OK(zero_micro_end(engine));
    CHECK_FAILS(zero_capture_prepare(engine), ZERO_ERR_STATE, "finish the step");
    CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
    CHECK_OK(zero_micro_end(engine));
    CHECK_FAILS(zero_capture_prepare(engine), ZERO_ERR_STATE, "zero_step");
    CHECK_OK(zero_step(engine, NULL, toy_stream()));
    CHECK_OK(zero_capture_prepare(engine));
    CHECK_OK(zero_capture_end(engine, zero_stream_host())); /* given up */
    CHECK_OK(zero_capture_prepare(engine));
    CHECK_FAILS(zero_micro_begin(engine, ZERO_MICRO_LAST), ZERO_ERR_STATE, "zero_capture_begin");
    CHECK_FAILS(zero_capture_prepare(engine), ZERO_ERR_STATE, "zero_capture_end");
    CHECK_FAILS(zero_capture_begin(engine, toy_stream()), ZERO_ERR_STATE, "cudaStreamBeginCapture");
    CHECK_FAILS(zero_capture_begin(engine, zero_stream_host()), ZERO_ERR_STATE, "host stream");
}

static void misuse_inside(toy_trainer *trainer, cudaStream_t outside)
{
    zero_engine *engine = trainer->engine;
    const zero_step_params params = params_of(0, false);
    zero_view view;
    uint64_t first = 0;
    double norm = 0;
    zero_step_state state = zero_step_state_init();
    CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
    CHECK_FAILS(zero_unit_acquire(engine, 0, ZERO_PASS_FORWARD, zero_stream_host(), NULL),
                ZERO_ERR_STATE, "host stream");
    CHECK_FAILS(zero_unit_acquire(engine, 0, ZERO_PASS_FORWARD, zero_stream_cuda(outside), NULL),
                ZERO_ERR_STATE, "outside");
    CHECK_FAILS(zero_capture_end(engine, toy_stream()), ZERO_ERR_STATE, "one step");
    CHECK_OK(zero_micro_end(engine));
    CHECK_FAILS(zero_engine_trace(engine, "./no-such-trace"), ZERO_ERR_STATE, "zero_capture_end");
    CHECK_FAILS(toy_wait(trainer), ZERO_ERR_STATE, "nothing runs");
    CHECK_FAILS(zero_shard_view(engine, 0, ZERO_ROLE_PARAM, &first, &view), ZERO_ERR_STATE,
                "nothing runs");
    CHECK_FAILS(zero_grad_norm(engine, NULL, zero_stream_host(), &norm), ZERO_ERR_STATE,
                "nothing runs");
    CHECK_FAILS(zero_step_discard(engine), ZERO_ERR_STATE, "what is dropped cannot be launched");
    CHECK_FAILS(zero_step_state_get(engine, &state), ZERO_ERR_STATE, "nothing runs");
    CHECK_FAILS(zero_step_state_set(engine, &state), ZERO_ERR_STATE, "nothing runs");
    CHECK_FAILS(zero_step(engine, &params, zero_stream_host()), ZERO_ERR_STATE, "host stream");
    CHECK_OK(zero_step(engine, &params, toy_stream()));
    CHECK_FAILS(zero_engine_fill(engine, toy_fill, NULL), ZERO_ERR_STATE, "zero_capture_end");
    CHECK_FAILS(zero_micro_begin(engine, ZERO_MICRO_LAST), ZERO_ERR_STATE, "one step");
    CHECK_FAILS(zero_unit_acquire(engine, 0, ZERO_PASS_EVAL, toy_stream(), NULL), ZERO_ERR_STATE,
                "one step");
}

static void misuse_after(zero_engine *engine)
{
    zero_step_result result = zero_step_result_init();
    double norm = 0;
    zero_step_state state = zero_step_state_init();
    zero_step_params wrong = zero_step_params_init();
    zero_step_params weighed = zero_step_params_init();
    weighed.grad_weight = &wrong.max_norm;
    wrong.hyper.adamw.lr = -1.0f;
    CHECK_FAILS(zero_replay_result(engine, toy_stream(), &result), ZERO_ERR_STATE,
                "zero_replay_begin");
    CHECK_FAILS(zero_replay_begin(engine, zero_stream_host()), ZERO_ERR_STATE, "host stream");
    CHECK_OK(zero_replay_begin(engine, toy_stream()));
    CHECK_FAILS(zero_replay_begin(engine, toy_stream()), ZERO_ERR_STATE, "zero_replay_end");
    CHECK_FAILS(zero_micro_begin(engine, ZERO_MICRO_LAST), ZERO_ERR_STATE, "zero_replay_end");
    CHECK_FAILS(zero_step_wait(engine, &result), ZERO_ERR_STATE, "zero_replay_end");
    CHECK_FAILS(zero_grad_norm(engine, NULL, zero_stream_host(), &norm), ZERO_ERR_STATE,
                "zero_replay_end");
    CHECK_FAILS(zero_step_discard(engine), ZERO_ERR_STATE, "zero_replay_end");
    CHECK_FAILS(zero_engine_trace(engine, "./no-such-trace"), ZERO_ERR_STATE, "zero_replay_end");
    CHECK_FAILS(zero_step_state_get(engine, &state), ZERO_ERR_STATE, "zero_replay_end");
    CHECK_FAILS(zero_step_state_set(engine, &state), ZERO_ERR_STATE, "zero_replay_end");
    CHECK_FAILS(zero_replay_params(engine, toy_stream(), &wrong), ZERO_ERR_INVALID_ARGUMENT, "lr");
    CHECK_FAILS(zero_replay_params(engine, toy_stream(), &weighed), ZERO_ERR_INVALID_ARGUMENT,
                "put the weight there");
    CHECK_OK(zero_replay_end(engine, toy_stream()));
}

static zero_status misuse(toy_trainer *trainer)
{
    cudaGraph_t graph = NULL;
    cudaStream_t outside = NULL;
    CHECK_EQ(cudaStreamCreateWithFlags(&outside, cudaStreamNonBlocking), cudaSuccess);
    misuse_before(trainer->engine);
    CHECK_EQ(cudaStreamBeginCapture(native(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_OK(zero_capture_begin(trainer->engine, toy_stream()));
    misuse_inside(trainer, outside);
    CHECK_OK(zero_capture_end(trainer->engine, toy_stream()));
    CHECK_EQ(cudaStreamEndCapture(native(), &graph), cudaSuccess);
    misuse_after(trainer->engine);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(outside), cudaSuccess);
    return ZERO_OK;
}

static zero_status unsupported(toy_trainer *trainer)
{
    const toy_run *run = trainer->run;
    CHECK_FAILS(zero_capture_prepare(trainer->engine), ZERO_ERR_UNSUPPORTED,
                run->options.device == ZERO_DEVICE_CPU ? "ZERO_DEVICE_CUDA" : "NCCL");
    return ZERO_OK;
}

TEST(misuse_is_refused)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    fake_cuda_start(FAKE_CUDA_RANDOM, 1);
    run.tuning.trace_events = 4096;
    CHECK_OK(toy_on_ranks(1, &run, misuse, NULL));
    if (RANKS == 1) { /* then worlds are of threads */
        CHECK_OK(toy_on_ranks(2, &run, unsupported, NULL));
    }
    CHECK(fake_cuda_check());
}

TEST(the_cpu_captures_nothing)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    run.options.device = ZERO_DEVICE_CPU;
    CHECK_OK(toy_on_ranks(1, &run, unsupported, NULL));
}
