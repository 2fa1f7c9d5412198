/* A step captured into a CUDA graph and launched has the bits of a plain one: on a GPU, and over
 * the double of the runtime, which shows that the program is right. There are no kernels in it but
 * the library's: a unit's gradient is a copy of its parameters. */
#include "harness.h"

#include "zero/capture.h"
#include "zero/cuda.h"
#include "zero/random.h"
#include "zero/zero.h"

#define DEADLINE_MS 60000
#define UNITS 3
#define COUNT 5000
#define LAUNCHES 4
#define STEPS (2 + LAUNCHES)

#define CUDA_OK(call) CHECK_EQ((call), cudaSuccess)

typedef struct trainer {
    zero_engine *engine;
    cudaStream_t native;
    zero_stream stream;
    uint64_t step;
} trainer;

/* The outcome of a course: all that a step writes. */
typedef struct outcome {
    float param[UNITS][COUNT];
    float moment1[UNITS][COUNT];
    float moment2[UNITS][COUNT];
    zero_step_result result;
} outcome;

typedef struct course {
    zero_engine_options options;
    zero_dtype dtype;
    bool captured;
    outcome left;
} course;

static void fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    zero_random_normal(3, tensor, first, count, 0.0f, 0.5f, values);
}

static void open_trainer(trainer *t, zero_world *world, const course *c)
{
    zero_model *model = NULL;
    *t = (trainer){0};
    CUDA_OK(cudaStreamCreateWithFlags(&t->native, cudaStreamNonBlocking));
    t->stream = zero_stream_cuda(t->native);
    CHECK_OK(zero_model_create(&model));
    for (uint32_t u = 0; u < UNITS; u++) {
        uint32_t unit = 0;
        uint32_t tensor = 0;
        char name[16];
        (void)snprintf(name, sizeof name, "unit%u", u);
        const zero_tensor_desc desc = {
            .name = name, .shape = {COUNT}, .dims = 1, .dtype = c->dtype};
        CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = name}, &unit, NULL));
        CHECK_OK(zero_tensor_add(model, unit, &desc, &tensor));
    }
    CHECK_OK(zero_engine_create(world, model, &c->options, &t->engine));
    CHECK_OK(zero_engine_fill(t->engine, fill, NULL));
    zero_model_destroy(model);
}

/* Others at every step, and clipped every second. */
static zero_step_params next_params(trainer *t)
{
    zero_step_params params = zero_step_params_init();
    t->step++;
    params.hyper.adamw.lr = 1e-2f / (float)t->step;
    params.hyper.adamw.weight_decay = 0.1f;
    params.max_norm = t->step % 2 == 0 ? 0.5 : 0.0;
    return params;
}

static void use_unit(trainer *t, uint32_t unit)
{
    const zero_unit_view *view = NULL;
    CHECK_OK(zero_unit_acquire(t->engine, unit, ZERO_PASS_BACKWARD, t->stream, &view));
    CUDA_OK(cudaMemcpyAsync(view->grads[0].data, view->params[0].data,
                            COUNT * zero_dtype_bytes(view->params[0].dtype),
                            cudaMemcpyDeviceToDevice, t->native));
    CHECK_OK(zero_unit_release(t->engine, unit, t->stream));
}

static void take_step(trainer *t, const zero_step_params *params)
{
    CHECK_OK(zero_micro_begin(t->engine, ZERO_MICRO_LAST));
    for (uint32_t u = UNITS; u-- > 0;) {
        use_unit(t, u);
    }
    CHECK_OK(zero_micro_end(t->engine));
    CHECK_OK(zero_step(t->engine, params, t->stream));
}

static void plain_steps(trainer *t, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const zero_step_params params = next_params(t);
        take_step(t, &params);
    }
}

static void launched_steps(trainer *t)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const zero_step_params first = zero_step_params_init(); /* set again before each launch */
    CHECK_OK(zero_capture_prepare(t->engine));
    CUDA_OK(cudaStreamBeginCapture(t->native, cudaStreamCaptureModeThreadLocal));
    CHECK_OK(zero_capture_begin(t->engine, t->stream));
    take_step(t, &first);
    CHECK_OK(zero_capture_end(t->engine, t->stream));
    CUDA_OK(cudaStreamEndCapture(t->native, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_OK(cudaGraphDestroy(graph));
    CHECK_OK(zero_replay_begin(t->engine, t->stream));
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        zero_step_result result = zero_step_result_init();
        const zero_step_params params = next_params(t);
        CHECK_OK(zero_replay_params(t->engine, t->stream, &params));
        CUDA_OK(cudaGraphLaunch(exec, t->native));
        CHECK_OK(zero_replay_result(t->engine, t->stream, &result));
        CHECK_EQ(result.step, t->step);
    }
    CHECK_OK(zero_replay_end(t->engine, t->stream));
    CUDA_OK(cudaStreamSynchronize(t->native));
    CUDA_OK(cudaGraphExecDestroy(exec));
}

static zero_status run_course(zero_world *world, void *user)
{
    course *c = user;
    trainer t;
    open_trainer(&t, world, c);
    plain_steps(&t, 1);
    if (c->captured) {
        launched_steps(&t);
    } else {
        plain_steps(&t, LAUNCHES);
    }
    plain_steps(&t, 1);
    c->left.result = zero_step_result_init();
    CHECK_OK(zero_step_wait(t.engine, &c->left.result));
    CHECK_EQ(c->left.result.step, STEPS);
    for (uint32_t u = 0; u < UNITS; u++) {
        outcome *left = &c->left;
        CHECK_OK(zero_shard_read(t.engine, u, ZERO_ROLE_PARAM, 0, COUNT, left->param[u]));
        CHECK_OK(zero_shard_read(t.engine, u, ZERO_ROLE_MOMENT1, 0, COUNT, left->moment1[u]));
        CHECK_OK(zero_shard_read(t.engine, u, ZERO_ROLE_MOMENT2, 0, COUNT, left->moment2[u]));
    }
    zero_engine_destroy(t.engine);
    CUDA_OK(cudaStreamDestroy(t.native));
    return ZERO_OK;
}

static void compare(zero_dtype dtype, zero_stage stage)
{
    static course courses[2];
    for (int k = 0; k < 2; k++) {
        course *c = &courses[k];
        memset(c, 0, sizeof *c);
        c->options = zero_engine_options_init();
        c->options.device = ZERO_DEVICE_CUDA;
        c->options.stage = stage;
        c->dtype = dtype;
        c->captured = k == 1;
        CHECK_OK(zero_world_run(1, DEADLINE_MS, run_course, c));
    }
    const outcome *plain = &courses[0].left;
    const outcome *launched = &courses[1].left;
    CHECK_BYTES(launched->param, plain->param, sizeof plain->param);
    CHECK_BYTES(launched->moment1, plain->moment1, sizeof plain->moment1);
    CHECK_BYTES(launched->moment2, plain->moment2, sizeof plain->moment2);
    CHECK_SAME(launched->result.norm, plain->result.norm);
    CHECK(plain->result.norm > 0.0);
}

TEST(launches_have_the_bits_of_plain_steps_in_f32)
{
    compare(ZERO_DTYPE_F32, ZERO_STAGE_0);
    compare(ZERO_DTYPE_F32, ZERO_STAGE_3);
}

TEST(launches_have_the_bits_of_plain_steps_in_bf16)
{
    compare(ZERO_DTYPE_BF16, ZERO_STAGE_0);
    compare(ZERO_DTYPE_BF16, ZERO_STAGE_3);
}
