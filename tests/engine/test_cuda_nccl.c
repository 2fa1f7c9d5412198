/* engine over NCCL: results are those of GPUs that read one another, also where streams share
 * connections to their GPU and where units share slots. */
#include "cuda_nccl_rig.h"

/* Of ranks that are to wait for one another for ever. */
#define SHARED_DEADLINE_MS 1500

/* ---- the same results, whatever carries them ---- */

/* How steps are taken by GPUs that read one another, and over NCCL. */
typedef struct steps {
    toy_step_fn peers;
    toy_step_fn nccl;
} steps;

static zero_status compare_kinds(zero_world *world, const toy_run *given, void *user)
{
    const steps *by = user;
    toy_run run = *given;
    toy_state peers;
    TOY_TRY(toy_train_by(&run, world, by->peers, &peers));
    for (size_t k = 0; k < KINDS; k++) {
        toy_state state;
        ask(&run, kinds[k]);
        become_processes(world);
        TOY_TRY(toy_train_by(&run, world, by->nccl, &state));
        TOY_TRY(become_threads(world));
        toy_state_same(run.model, &peers, &state, "over NCCL");
        toy_state_free(&state);
    }
    toy_state_free(&peers);
    return ZERO_OK;
}

static zero_status compare_ways(zero_world *world, void *user)
{
    return toy_each_way(world, user, compare_kinds, &(steps){toy_step, toy_step});
}

static toy_run run_in(zero_dtype dtype)
{
    toy_run run = toy_run_mixed(dtype);
    run.steps = 3;
    run.micro_steps = 2;
    run.flavour = TOY_INTEGER;
    run.tuning.bucket_bytes = 1;
    run.options.loss_scale = 1;
    run.params.max_norm = 1.0f;
    return run;
}

static void compare_by(zero_status (*by)(zero_world *world, void *user), toy_run *run)
{
    start();
    run_both(RANKS, by, run);
    CHECK(fake_nccl_registered(FAKE_NCCL_BUFFER) != 0);
    CHECK(fake_nccl_registered(FAKE_NCCL_SYMMETRIC) != 0);
    CHECK(fake_nccl_registered(FAKE_NCCL_SYMMETRIC) < fake_nccl_registered(FAKE_NCCL_WINDOW));
    CHECK_EQ(fake_nccl_zero_cta() != 0, KINDS > 2);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 0);
    finish();
}

static void train(zero_dtype dtype, zero_dtype wire, zero_reduction reduction)
{
    toy_run run = run_in(dtype);
    run.tuning.wire_dtype = wire;
    run.tuning.reduction = reduction;
    compare_by(compare_ways, &run);
}

TEST(results_in_fp32)
{
    train(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_REDUCTION_DEFAULT);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_REDUCE_SCATTER), 0);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ALL_REDUCE), 0);
}

TEST(results_of_sums_by_nccl)
{
    train(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_REDUCTION_NATIVE);
    CHECK(fake_nccl_calls(FAKE_NCCL_REDUCE_SCATTER) != 0);
    CHECK(fake_nccl_calls(FAKE_NCCL_ALL_REDUCE) != 0);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SEND), 0);
    train(ZERO_DTYPE_BF16, ZERO_DTYPE_DEFAULT, ZERO_REDUCTION_NATIVE);
}

TEST(results_in_bf16)
{
    train(ZERO_DTYPE_BF16, ZERO_DTYPE_DEFAULT, ZERO_REDUCTION_DEFAULT);
    CHECK(fake_nccl_calls(FAKE_NCCL_SEND) != 0);
}

TEST(results_with_wire_copies)
{
    train(ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_REDUCTION_EXACT);
    train(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_REDUCTION_DEFAULT);
}

TEST(results_with_packed_gradients)
{
    train(ZERO_DTYPE_BF16, ZERO_DTYPE_INT8_BLOCK, ZERO_REDUCTION_DEFAULT);
}

static zero_status compare_way(zero_world *world, void *user)
{
    return compare_kinds(world, user, &(steps){toy_step, toy_step});
}

/* Which cross before units are used and after updates, and may stay so in slots. */
TEST(results_with_parameters_in_blocks)
{
    toy_run run = run_in(ZERO_DTYPE_BF16);
    run.tuning.gather_dtype = ZERO_DTYPE_INT8_BLOCK;
    compare_by(compare_ways, &run);
    run.tuning.encoded_views = 1;
    compare_by(compare_way, &run);
}

/* With whole numbers, so that the order of additions does not show. */
TEST(results_of_two_hosts)
{
    per_host = 2;
    train(ZERO_DTYPE_BF16, ZERO_DTYPE_DEFAULT, ZERO_REDUCTION_DEFAULT);
    train(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_REDUCTION_DEFAULT);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_REDUCE_SCATTER), 0);
}

/* ---- hosts that send packed sums ---- */

/* Over other memory the same bits, and others than with sums as they are. */
static zero_status compare_packed(zero_world *world, const toy_run *given, void *user)
{
    toy_run run = *given;
    toy_state plain;
    toy_state packed;
    const zero_dtype hosts = *(const zero_dtype *)user;
    become_processes(world);
    TOY_TRY(toy_train_by(&run, world, toy_step, &plain));
    run.tuning.host_wire_dtype = hosts;
    TOY_TRY(toy_train_by(&run, world, toy_step, &packed));
    CHECK(zero_world_rank(world) != 0 || toy_state_moved(&plain, &packed) != 0);
    ask(&run, kinds[KINDS - 1]);
    TOY_TRY(toy_train_same(&run, world, toy_step, &packed, "over other memory"));
    toy_state_free(&packed);
    toy_state_free(&plain);
    return become_threads(world);
}

static zero_status compare_packed_ways(zero_world *world, void *user)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    run.steps = 2;
    run.micro_steps = 2;
    run.options.loss_scale = 1;
    run.params.max_norm = 1.0f;
    return toy_each_way(world, &run, compare_packed, user);
}

/* Ranks of each host add up first; where each is a host of its own, all send packed gradients. */
TEST(packed_sums_of_hosts)
{
    static zero_dtype types[] = {ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK};
    start();
    for (size_t i = 0; i < 2; i++) {
        per_host = 2 - (uint32_t)i;
        run_both(RANKS, compare_packed_ways, &types[i]);
    }
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_REDUCE_SCATTER), 0);
    finish();
}

/* As backward goes past it; every other time with its parameters. */
static zero_status omit(toy_trainer *trainer, uint32_t unit)
{
    if ((unit + trainer->step) % 2 == 0) {
        return ZERO_OK;
    }
    TOY_TRY(zero_unit_params_acquire(trainer->engine, unit, ZERO_PASS_BACKWARD, toy_stream()));
    return zero_unit_params_release(trainer->engine, unit, toy_stream());
}

/* A rank without a gradient sends zeros from other memory than those that have one. */
static zero_status leave_out(toy_trainer *trainer)
{
    const uint32_t units = trainer->run->model->unit_count;
    TOY_TRY(toy_micro_begin(trainer, true));
    for (uint32_t u = 0; u < units; u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    for (uint32_t u = units; u-- > 0;) {
        const bool omits = (u + trainer->step + trainer->rank) % 3 == 0;
        TOY_TRY(omits ? omit(trainer, u) : toy_backward(trainer, u));
    }
    TOY_TRY(toy_micro_end(trainer));
    return toy_update(trainer);
}

/* Memory is given back before each step: what NCCL knows stays where it is. */
static zero_status step_after_offload(toy_trainer *trainer)
{
    const uint32_t grads = ZERO_ROLE_BIT(ZERO_ROLE_GRAD) | ZERO_ROLE_BIT(ZERO_ROLE_GRAD_SLOT);
    const bool known = trainer->run->tuning.nccl_memory != ZERO_NCCL_MEMORY_NONE;
    if (known) {
        CHECK_FAILS(zero_engine_evict(trainer->engine, ZERO_EVICT_ALL, ZERO_TIER_HOST),
                    ZERO_ERR_UNSUPPORTED, "nccl_memory");
    }
    TOY_TRY(
        zero_engine_evict(trainer->engine, ZERO_EVICT_STATE | (known ? 0 : grads), ZERO_TIER_HOST));
    TOY_TRY(toy_evaluate(trainer));
    TOY_TRY(zero_engine_restore(trainer->engine));
    return toy_step(trainer);
}

static zero_status compare_offloaded(zero_world *world, void *user)
{
    return compare_kinds(world, user, &(steps){toy_step, step_after_offload});
}

TEST(memory_given_back_between_steps)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    run.steps = 3;
    run.flavour = TOY_INTEGER;
    run.options.loss_scale = 1;
    start();
    run_both(RANKS, compare_offloaded, &run);
    finish();
}

static zero_status compare_left_out(zero_world *world, void *user)
{
    return compare_kinds(world, user, &(steps){leave_out, leave_out});
}

TEST(gradients_left_out)
{
    toy_run run = toy_run_equal(9, 5000, ZERO_DTYPE_F32);
    run.steps = 4;
    run.flavour = TOY_INTEGER;
    run.tuning.bucket_bytes = 1;
    start();
    for (int way = 0; way < 3; way++) {
        const uint32_t ranks = way == 0 ? 3 : 4;
        per_host = way == 1 ? 2 : 0; /* two levels */
        run.tuning.reduction = way == 2 ? ZERO_REDUCTION_NATIVE : ZERO_REDUCTION_DEFAULT;
        for (int stage = ZERO_STAGE_2; stage <= ZERO_STAGE_3; stage++) {
            run.options.stage = (zero_stage)stage;
            run_both(ranks, compare_left_out, &run);
        }
    }
    finish();
}

/* ---- streams that share connections to their GPU ---- */

/* The connections that CUDA_DEVICE_MAX_CONNECTIONS=32 leaves each of a rank's streams. */
#define CONNECTION_EACH 32

static zero_status compare_first_kind(zero_world *world, void *user)
{
    const toy_run *run = user;
    toy_state peers;
    TOY_TRY(toy_train_by(run, world, toy_step, &peers));
    become_processes(world);
    TOY_TRY(toy_train_same(run, world, toy_step, &peers, "over shared connections"));
    TOY_TRY(become_threads(world));
    toy_state_free(&peers);
    return ZERO_OK;
}

/* All ranks put the collectives of all groups on their streams in one order: not even one
 * connection for all streams brings two groups to wait for one another. */
TEST(shared_connections)
{
    toy_run run = toy_run_equal(5, 3000, ZERO_DTYPE_BF16);
    run.steps = 3;
    run.micro_steps = 2;
    run.flavour = TOY_INTEGER;
    run.tuning.bucket_bytes = 1;
    run.options.loss_scale = 1;
    for (uint32_t connections = 1; connections <= 4; connections++) {
        for (int stage = ZERO_STAGE_2; stage <= ZERO_STAGE_3; stage++) {
            run.options.stage = (zero_stage)stage;
            start();
            fake_cuda_connections(connections);
            CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, compare_first_kind, &run));
            finish();
        }
    }
}

/* Some units, and at each third step everything. */
static zero_status leave_out_or_idle(toy_trainer *trainer)
{
    if ((trainer->step + trainer->rank) % 3 != 0) {
        return leave_out(trainer);
    }
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(toy_micro_end(trainer));
    return toy_update(trainer);
}

static zero_status compare_left_out_at_once(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    toy_state peers;
    run.tuning.left_out_at_once = 0;
    TOY_TRY(toy_train_by(&run, world, leave_out_or_idle, &peers));
    become_processes(world);
    TOY_TRY(toy_train_same(user, world, leave_out_or_idle, &peers, "left out at once"));
    TOY_TRY(become_threads(world));
    toy_state_free(&peers);
    return ZERO_OK;
}

static zero_status leave_out_over_nccl(zero_world *world, void *user)
{
    toy_state state;
    become_processes(world);
    TOY_TRY(toy_train_by(user, world, leave_out, &state));
    toy_state_free(&state);
    return become_threads(world);
}

/* Nor do units that some ranks leave out with left_out_at_once; else that is well only as long as
 * streams share no connection (docs/decisions/071). Where they do it is found at the deadline. */
TEST(shared_connections_and_units_left_out)
{
    toy_run run = toy_run_equal(9, 5000, ZERO_DTYPE_F32);
    run.steps = 4;
    run.flavour = TOY_INTEGER;
    run.tuning.bucket_bytes = 1;
    run.options.stage = ZERO_STAGE_3;
    start();
    fake_cuda_connections(CONNECTION_EACH);
    CHECK_OK(fake_nccl_world_run(3, DEADLINE_MS, leave_out_over_nccl, &run));
    finish();
    run.tuning.left_out_at_once = 1;
    for (uint32_t connections = 1; connections <= 3; connections++) {
        start();
        fake_cuda_connections(connections);
        CHECK_OK(fake_nccl_world_run(3, DEADLINE_MS, compare_left_out_at_once, &run));
        finish();
    }
    run.tuning.left_out_at_once = 0;
    start();
    fake_cuda_connections(1);
    CHECK(fake_nccl_world_run(3, SHARED_DEADLINE_MS, leave_out_over_nccl, &run) != ZERO_OK);
    CHECK_SAID("did not finish within");
}

/* Ties, several types, buckets of several units, slots that are few. */
TEST(shared_connections_in_other_shapes)
{
    for (uint32_t shape = 0; shape < 16; shape++) {
        toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
        run.steps = 4;
        run.micro_steps = 2;
        run.flavour = TOY_INTEGER;
        run.options.stage = ZERO_STAGE_3;
        run.options.loss_scale = 1;
        run.tuning.left_out_at_once = 1;
        run.tuning.look_ahead = 1 + shape % 2;
        run.tuning.param_slots = shape / 2 % 2 == 0 ? 3 : 4;
        run.tuning.grad_slots = 2 + shape / 4 % 2;
        run.tuning.bucket_bytes = shape / 8 == 0 ? 1 : 0;
        start();
        fake_cuda_connections(1);
        CHECK_OK(fake_nccl_world_run(3, DEADLINE_MS, compare_left_out_at_once, &run));
        finish();
    }
}

/* ---- slots over symmetric windows ---- */

static zero_status use(toy_trainer *trainer, uint32_t unit)
{
    TOY_TRY(zero_unit_acquire(trainer->engine, unit, ZERO_PASS_EVAL, toy_stream(), NULL));
    TOY_TRY(toy_read(trainer, unit));
    return zero_unit_release(trainer->engine, unit, toy_stream());
}

/* Rank 0 keeps unit 1 while it uses 2 and 3; the others leave unit 1 out, and may evict it. */
static zero_status hold_and_leave_out(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    toy_trainer trainer;
    become_processes(world);
    TOY_TRY(toy_open(&trainer, &run, world));
    for (int sweep = 0; sweep < 2; sweep++) {
        memset(trainer.seen_set, 0, TOY_TENSORS_MAX * sizeof *trainer.seen_set);
        TOY_TRY(use(&trainer, 0));
        if (trainer.rank == 0) {
            TOY_TRY(zero_unit_acquire(trainer.engine, 1, ZERO_PASS_EVAL, toy_stream(), NULL));
        }
        TOY_TRY(use(&trainer, 2));
        TOY_TRY(use(&trainer, 3));
        if (trainer.rank == 0) {
            TOY_TRY(toy_read(&trainer, 1));
            TOY_TRY(zero_unit_release(trainer.engine, 1, toy_stream()));
        }
        for (uint32_t u = 4; u < run.model->unit_count; u++) {
            TOY_TRY(use(&trainer, u));
        }
    }
    TOY_TRY(zero_world_barrier(world));
    toy_close(&trainer);
    return become_threads(world);
}

/* More than the slots that take turns. */
static zero_status hold_too_many(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    toy_trainer trainer;
    become_processes(world);
    TOY_TRY(toy_open(&trainer, &run, world));
    TOY_TRY(zero_unit_acquire(trainer.engine, 1, ZERO_PASS_EVAL, toy_stream(), NULL));
    TOY_TRY(use(&trainer, 2));
    TOY_TRY(use(&trainer, 3));
    CHECK_FAILS(zero_unit_acquire(trainer.engine, 4, ZERO_PASS_EVAL, toy_stream(), NULL),
                ZERO_ERR_STATE, "take 3 slots in turn");
    TOY_TRY(zero_unit_release(trainer.engine, 1, toy_stream()));
    TOY_TRY(use(&trainer, 4));
    TOY_TRY(zero_world_barrier(world));
    toy_close(&trainer);
    return become_threads(world);
}

TEST(slots_are_the_same_on_all_ranks)
{
    toy_run run = toy_run_equal(8, 3000, ZERO_DTYPE_BF16);
    run.tuning.param_slots = 3;
    ask(&run, kinds[1]);
    start();
    CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, hold_and_leave_out, &run));
    CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, hold_too_many, &run));
    finish();
}
