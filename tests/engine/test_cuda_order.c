/* engine over the CUDA runtime's double: forward and backward are kernels on the caller's stream
 * and the host waits for nothing, so that streams and events alone must order every read and write.
 * The toy's other tests read on the host, which orders more than a trainer on a GPU does. */
#include "harness.h"

#include "fake_cuda.h"
#include "folders.h"
#include "toy_kernel.h"
#include "zero/cuda.h"

#define STEPS 5
/* The numbers of ranks, too. */
#if defined(__SANITIZE_ADDRESS__)
#define SEEDS 2
#else
#define SEEDS 4
#endif

static uint32_t unit_streams = 1; /* on which units take turns */

typedef bool (*omit_fn)(const toy_trainer *trainer, uint32_t unit);

static bool omit_none(const toy_trainer *trainer, uint32_t unit)
{
    (void)trainer;
    (void)unit;
    return false;
}

/* As experts do: each rank leaves out other units in every step, and some are left out by all. */
static bool omit_some(const toy_trainer *trainer, uint32_t unit)
{
    return (unit + trainer->step + trainer->rank) % 3 == 0 || (unit + trainer->step) % 5 == 0;
}

/* A pass of a unit, on the stream whose turn it is. */
static zero_status pass_over(toy_trainer *trainer, uint32_t unit, zero_pass pass)
{
    toy_stream_take(unit % unit_streams);
    const zero_status status = pass == ZERO_PASS_BACKWARD ? toy_kernel_backward(trainer, unit)
                                                          : toy_kernel_forward(trainer, unit, pass);
    toy_stream_take(0);
    return status;
}

/* The first waits for the others. */
static void join_streams(void)
{
    cudaEvent_t event = NULL;
    CHECK_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    for (uint32_t s = 1; s < unit_streams; s++) {
        toy_stream_take(s);
        CHECK_EQ(cudaEventRecord(event, toy_stream().native), cudaSuccess);
        toy_stream_take(0);
        CHECK_EQ(cudaStreamWaitEvent(toy_stream().native, event, 0), cudaSuccess);
    }
    CHECK_EQ(cudaEventDestroy(event), cudaSuccess);
}

static zero_status step_without(toy_trainer *trainer, omit_fn omit)
{
    const uint32_t units = trainer->run->model->unit_count;
    for (uint32_t m = 0; m < trainer->run->micro_steps; m++) {
        TOY_TRY(toy_micro_begin(trainer, m + 1 == trainer->run->micro_steps));
        for (uint32_t u = 0; u < units; u++) {
            TOY_TRY(omit(trainer, u) ? ZERO_OK : pass_over(trainer, u, ZERO_PASS_FORWARD));
        }
        for (uint32_t u = units; u-- > 0;) {
            TOY_TRY(omit(trainer, u) ? ZERO_OK : pass_over(trainer, u, ZERO_PASS_BACKWARD));
        }
        TOY_TRY(toy_micro_end(trainer));
    }
    /* Readings that no gradient follows, right before the parameters change. */
    for (uint32_t u = 0; u < units; u++) {
        TOY_TRY(omit(trainer, u) ? ZERO_OK : pass_over(trainer, u, ZERO_PASS_EVAL));
    }
    join_streams();
    return toy_update(trainer);
}

static zero_status step(toy_trainer *trainer)
{
    return step_without(trainer, omit_none);
}

static zero_status step_omitting(toy_trainer *trainer)
{
    return step_without(trainer, omit_some);
}

typedef struct comparison {
    toy_run run;
    toy_step_fn first; /* gives the state that all must come to */
    toy_step_fn step;
} comparison;

/* Parameters and gradients in host memory, so that slots and staging are filled and stored as well.
 */
static void put_far(toy_run *run, bool far)
{
    run->options.tier[ZERO_ROLE_PARAM] = far ? ZERO_TIER_HOST : ZERO_TIER_DEVICE;
    run->options.tier[ZERO_ROLE_GRAD] = run->options.tier[ZERO_ROLE_PARAM];
}

/* State in host memory, in so many chunks that they take turns in the staging buffers. */
static void put_state_far(toy_run *run, bool far)
{
    for (int role = ZERO_ROLE_MASTER; far && role < ZI_SHARD_ROLES; role++) {
        run->options.tier[role] = ZERO_TIER_HOST;
    }
    run->tuning.extent_bytes = far ? 4096 : run->tuning.extent_bytes;
}

static zero_status compare_ways(zero_world *world, void *user)
{
    const comparison *c = user;
    toy_sharding ways[16];
    toy_state first;
    const uint32_t count = toy_shardings(zero_world_size(world), true, ways);
    const uint32_t places = zero_world_size(world) == 2 ? 3 : 2; /* the last takes its time */
    toy_run run = c->run;
    toy_sharding_apply(&ways[0], &run);
    TOY_TRY(toy_train_by(&run, world, c->first, &first));
    for (uint32_t w = 0; w < places * count; w++) {
        run = c->run;
        toy_sharding_apply(&ways[w / places], &run);
        put_far(&run, w % places == 1);
        put_state_far(&run, w % 2 == 1 && w % places != 2);
        if (w % places == 2) { /* the CPU updates while the caller's kernels run */
            toy_run_overlap(&run, rig_paths);
            put_far(&run, w / places % 2 != 0);
        }
        TOY_TRY(toy_train_same(&run, world, c->step, &first, ways[w / places].name));
    }
    toy_state_free(&first);
    return ZERO_OK;
}

static void train(fake_cuda_mode mode, zero_dtype dtype, uint32_t micro_steps)
{
    rig_folders(0, 1);
    comparison c = {toy_run_mixed(dtype), toy_step, step};
    c.run.steps = STEPS;
    c.run.micro_steps = micro_steps;
    c.run.flavour = TOY_INTEGER;
    c.run.tuning.bucket_bytes = unit_streams == 1;
    c.run.options.loss_scale = 1;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        fake_cuda_start(mode, test_seed * SEEDS + seed);
        c.run.tuning.poison_released = (int32_t)(seed % 2); /* kernels read views, or slots */
        CHECK_OK(zero_world_run((uint32_t)seed, TOY_DEADLINE_MS, compare_ways, &c));
        c.first = step_omitting;
        c.step = step_omitting;
        CHECK_OK(zero_world_run((uint32_t)seed, TOY_DEADLINE_MS, compare_ways, &c));
        CHECK(fake_cuda_check());
        c.first = toy_step;
        c.step = step;
    }
}

TEST_CALL(as_late_as_possible, train(FAKE_CUDA_LAZY, ZERO_DTYPE_F32, 1));
TEST_CALL(at_once, train(FAKE_CUDA_EAGER, ZERO_DTYPE_F32, 2));
TEST_CALL(at_random, train(FAKE_CUDA_RANDOM, ZERO_DTYPE_BF16, 2));
TEST_CALL(when_waited_for, train(FAKE_CUDA_AT_SYNC, ZERO_DTYPE_F16, 2));

/* Nothing of the caller's orders units on different streams: those that share a bucket, or a tied
 * tensor, are ordered by the engine. */
TEST(units_on_different_streams)
{
    unit_streams = TOY_STREAMS;
    train(FAKE_CUDA_RANDOM, ZERO_DTYPE_F32, 2);
}

/* ---- a unit that two of the caller's streams use, where releases are checked ---- */

static cudaStream_t new_stream(void)
{
    cudaStream_t stream = NULL;
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

/* Acquire unit 0 on a stream and read its tensor there. */
static zero_status use_on(zero_engine *engine, cudaStream_t stream, void *target)
{
    zero_view view;
    TOY_TRY(zero_unit_acquire(engine, 0, ZERO_PASS_EVAL, zero_stream_cuda(stream), NULL));
    TOY_TRY(zero_tensor_data(engine, 0, &view));
    CHECK_EQ(
        cudaMemcpyAsync(target, view.data, view.count * sizeof(float), cudaMemcpyDefault, stream),
        cudaSuccess);
    return ZERO_OK;
}

static zero_status use_on_two_streams(zero_world *world, void *user)
{
    toy_trainer trainer;
    const toy_run *run = user;
    const size_t bytes = run->model->tensors[0].count * sizeof(float);
    cudaStream_t streams[] = {new_stream(), new_stream()};
    unsigned char *target = NULL;
    CHECK_EQ(cudaMalloc((void **)&target, 2 * bytes), cudaSuccess);
    TOY_TRY(toy_open(&trainer, run, world));
    for (int i = 0; i < 4; i++) {
        TOY_TRY(use_on(trainer.engine, streams[0], target));
        TOY_TRY(use_on(trainer.engine, streams[1], target + bytes));
        TOY_TRY(zero_unit_release(trainer.engine, 0, zero_stream_cuda(streams[0])));
        TOY_TRY(zero_unit_release(trainer.engine, 0, zero_stream_cuda(streams[1])));
    }
    toy_close(&trainer);
    CHECK_EQ(cudaStreamSynchronize(streams[1]), cudaSuccess);
    CHECK_EQ(cudaFree(target), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(streams[0]) + cudaStreamDestroy(streams[1]), cudaSuccess);
    return ZERO_OK;
}

TEST(views_on_two_streams)
{
    static const fake_cuda_mode modes[] = {FAKE_CUDA_LAZY, FAKE_CUDA_RANDOM, FAKE_CUDA_AT_SYNC};
    toy_run run = toy_run_equal(2, 1000, ZERO_DTYPE_F32);
    run.tuning.poison_released = 1;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        fake_cuda_start(modes[i], test_seed + i);
        CHECK_OK(zero_world_run(1, TOY_DEADLINE_MS, use_on_two_streams, &run));
        CHECK(fake_cuda_check());
    }
}

/* ---- what the host waits for ---- */

static zero_status count_waits(toy_trainer *trainer)
{
    TOY_TRY(step(trainer));
    const uint64_t before = fake_cuda_syncs();
    for (int i = 0; i < 3; i++) {
        TOY_TRY(step(trainer)); /* no more steps ahead of the GPU than there are turns */
    }
    CHECK_EQ(fake_cuda_syncs() - before, 0);
    return ZERO_OK;
}

TEST(hooks_wait_for_no_gpu)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        run.options.stage = (zero_stage)stage;
        fake_cuda_start(FAKE_CUDA_LAZY, 1);
        CHECK_OK(toy_on_ranks(1, &run, count_waits, NULL));
        CHECK(fake_cuda_check());
    }
}

/* ---- what reads gradients again for their norm ---- */

#define SQUARES_STEPS 2

static zero_status count_squares(toy_trainer *trainer)
{
    for (int i = 0; i < SQUARES_STEPS; i++) {
        TOY_TRY(step(trainer));
    }
    TOY_TRY(toy_wait(trainer));
    CHECK(trainer->result.norm > 0);
    return ZERO_OK;
}

/* Launches of square_sum of all ranks in a step: `units` units of one flat each. */
static uint64_t squares_of(zero_stage stage, uint32_t shard_group, uint32_t ranks, uint32_t units)
{
    toy_run run = toy_run_equal(units, 1000, ZERO_DTYPE_F32);
    run.options.stage = stage;
    run.options.shard_group = shard_group;
    run.micro_steps = 2;
    fake_cuda_start(FAKE_CUDA_AT_SYNC, 1);
    CHECK_OK(toy_on_ranks(ranks, &run, count_squares, NULL));
    CHECK(fake_cuda_check());
    CHECK(fake_cuda_calls("zi_cuda_launch_fold") != 0 || ranks == 1);
    return fake_cuda_calls("zi_cuda_launch_square_sum") / SQUARES_STEPS;
}

TEST(the_last_fold_of_a_gradient_adds_its_squares)
{
    CHECK_EQ(squares_of(ZERO_STAGE_1, 0, 2, 3), 0);
    CHECK_EQ(squares_of(ZERO_STAGE_2, 0, 2, 3), 0);
    CHECK_EQ(squares_of(ZERO_STAGE_3, 0, 2, 3), 0);
    /* Flats that nobody reduces, and sums that replicas put together. */
    CHECK_EQ(squares_of(ZERO_STAGE_0, 0, 1, 3), 3);
    CHECK_EQ(squares_of(ZERO_STAGE_0, 0, 2, 3), 6);
    CHECK_EQ(squares_of(ZERO_STAGE_3, 2, 4, 3), 12);
}
