/* Two ranks of this process teach three linear layers to swap neighbouring values, sharded as the
 * first argument says: stage 0, 1, 2 or 3. Every call that a trainer needs is here. */
#include <stdio.h>
#include <zero/zero.h>

enum { RANKS = 2, LAYERS = 3, WIDTH = 16, WEIGHTS = WIDTH * WIDTH, STEPS = 500 };
#define TRY(call)                     \
    if ((status = (call)) != ZERO_OK) \
    goto done

static void forward(const float *weight, const float *x, float *y)
{
    for (int i = 0; i < WEIGHTS; i++) {
        y[i / WIDTH] += weight[i] * x[i % WIDTH];
    }
}

/* dx, dy: of the loss by x and by y. Gradients are added. */
static void backward(const float *weight, float *grad, const float *x, const float *dy, float *dx)
{
    for (int i = 0; i < WEIGHTS; i++) {
        grad[i] += dy[i / WIDTH] * x[i % WIDTH];
        dx[i % WIDTH] += dy[i / WIDTH] * weight[i];
    }
}

static float loss_of(const float *x, const float *y, float *dy)
{
    float loss = 0;
    for (int i = 0; i < WIDTH; i++) {
        dy[i] = (y[i] - x[i ^ 1]) * 2 / WIDTH;
        loss += dy[i] * dy[i] * WIDTH / 4;
    }
    return loss;
}

static zero_status rank(zero_world *world, void *options)
{
    static const char *const names[LAYERS] = {"first", "second", "third"};
    zero_step_params params = zero_step_params_init();
    params.hyper.adamw.lr = 0.01F;
    const zero_stream here = zero_stream_host();
    const zero_unit_view *unit;
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    zero_status status;
    float initial[LAYERS][WEIGHTS];
    TRY(zero_model_create(&model));
    for (uint32_t l = 0, tensor; l < LAYERS; l++) {
        const zero_tensor_desc desc = {names[l], {WIDTH, WIDTH}, 2, .initial.data = initial[l]};
        zero_random_normal(1, l, 0, WEIGHTS, 0, 0.25F, initial[l]);
        TRY(zero_unit_add(model, &(zero_unit_desc){.name = names[l]}, &tensor, NULL));
        TRY(zero_tensor_add(model, l, &desc, &tensor));
    }
    TRY(zero_engine_create(world, model, options, &engine));
    for (uint32_t step = 0; step < STEPS; step++) {
        float x[LAYERS + 1][WIDTH] = {0}, d[LAYERS + 1][WIDTH] = {0}, loss;
        zero_random_normal(2, zero_world_rank(world), step * WIDTH, WIDTH, 0, 1, x[0]);
        TRY(zero_micro_begin(engine, ZERO_MICRO_LAST));
        for (uint32_t l = 0; l < LAYERS; l++) {
            TRY(zero_unit_acquire(engine, l, ZERO_PASS_FORWARD, here, &unit));
            forward(unit->params[0].data, x[l], x[l + 1]);
            TRY(zero_unit_release(engine, l, here));
        }
        loss = loss_of(x[0], x[LAYERS], d[LAYERS]);
        for (uint32_t l = LAYERS; l-- > 0;) {
            TRY(zero_unit_acquire(engine, l, ZERO_PASS_BACKWARD, here, &unit));
            backward(unit->params[0].data, unit->grads[0].data, x[l], d[l + 1], d[l]);
            TRY(zero_unit_release(engine, l, here));
        }
        TRY(zero_micro_end(engine));
        TRY(zero_step(engine, &params, here));
        if (zero_world_rank(world) == 0) {
            printf("step %3u  loss %.8e\n", step, (double)loss);
        }
    }
done:
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    return status;
}

int main(int argc, char **argv)
{
    zero_engine_options options = zero_engine_options_init();
    options.stage = (zero_stage)(argc > 1 ? argv[1][0] - '0' : 3);
    const zero_status status = zero_world_run(RANKS, 0, rank, &options);
    return status != ZERO_OK && fprintf(stderr, "hello: %s\n", zero_last_error()->message) > 0;
}
