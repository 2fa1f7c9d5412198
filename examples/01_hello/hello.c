/* Two ranks of this process teach three linear layers to swap neighbouring values, sharded as the
 * first argument says: stage 0, 1, 2 or 3. Every call that a trainer needs is here. */
#include <stdio.h>
#include <zero/zero.h>

enum { RANKS = 2, LAYERS = 3, WIDTH = 16, WEIGHTS = WIDTH * WIDTH, VALUES = 32 * WIDTH };
#define TRY(call)                     \
    if ((status = (call)) != ZERO_OK) \
    goto done

/* Adds weight x in to out, for 32 inputs. */
static void forward(const float *weight, const float *in, float *out)
{
    for (int i = 0; i < VALUES * WIDTH; i++) {
        out[i / WIDTH] += weight[i % WEIGHTS] * in[i / WEIGHTS * WIDTH + i % WIDTH];
    }
}

/* Adds to the weight's gradient, and to d loss / d in, what d = d loss / d out makes of them. */
static void backward(const float *weight, float *grad, const float *in, const float *d, float *d_in)
{
    for (int i = 0; i < VALUES * WIDTH; i++) {
        grad[i % WEIGHTS] += d[i / WIDTH] * in[i / WEIGHTS * WIDTH + i % WIDTH];
        d_in[i / WEIGHTS * WIDTH + i % WIDTH] += d[i / WIDTH] * weight[i % WEIGHTS];
    }
}

static void fill(void *seed, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    zero_random_normal(*(const uint64_t *)seed, tensor, first, count, 0, 0.25F, values);
}

static zero_status rank(zero_world *world, void *options)
{
    zero_step_params params = zero_step_params_init();
    params.hyper.adamw.lr = 0.01F;
    const zero_stream here = zero_stream_host();
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    zero_status status;
    TRY(zero_model_create(&model));
    for (uint32_t i = 0, unit, tensor; i < LAYERS; i++) {
        const char *const names[LAYERS] = {"first", "second", "third"};
        const zero_tensor_desc desc = {.name = names[i], .shape = {WIDTH, WIDTH}, .dims = 2};
        TRY(zero_unit_add(model, names[i], &unit));
        TRY(zero_tensor_add(model, unit, &desc, &tensor));
    }
    TRY(zero_engine_create(world, model, options, &engine));
    TRY(zero_engine_fill(engine, fill, &(uint64_t){1}));
    char text[4096];
    zero_plan_print(zero_engine_plan(engine), text, sizeof text);
    printf("%s", zero_world_rank(world) == 0 ? text : "");
    for (uint32_t step = 0; step < 150; step++) {
        float x[LAYERS + 1][VALUES] = {0}, d[LAYERS + 1][VALUES] = {0}, loss = 0, losses[RANKS];
        zero_view weight, grad;
        zero_random_normal(2, zero_world_rank(world), step * VALUES, VALUES, 0, 1, x[0]);
        TRY(zero_micro_begin(engine, 1));
        for (uint32_t i = 0; i < LAYERS; i++) {
            TRY(zero_unit_acquire(engine, i, ZERO_PASS_FORWARD, here));
            TRY(zero_tensor_data(engine, i, &weight));
            forward(weight.data, x[i], x[i + 1]);
            TRY(zero_unit_release(engine, i, here));
        }
        for (int i = 0; i < VALUES; i++) {
            d[LAYERS][i] = (x[LAYERS][i] - x[0][i ^ 1]) * 2 / VALUES;
            loss += d[LAYERS][i] * d[LAYERS][i] * VALUES / 4;
        }
        for (uint32_t i = LAYERS; i-- > 0;) {
            TRY(zero_unit_acquire(engine, i, ZERO_PASS_BACKWARD, here));
            TRY(zero_unit_grad_acquire(engine, i, here));
            TRY(zero_tensor_data(engine, i, &weight));
            TRY(zero_tensor_grad(engine, i, &grad));
            backward(weight.data, grad.data, x[i], d[i + 1], d[i]);
            TRY(zero_unit_grad_ready(engine, i, here));
            TRY(zero_unit_release(engine, i, here));
        }
        TRY(zero_micro_end(engine));
        TRY(zero_step(engine, &params, here));
        TRY(zero_world_gather(world, &loss, losses, sizeof loss));
        if (zero_world_rank(world) == 0) {
            printf("step %3u  loss %.8e\n", step, (double)(losses[0] + losses[1]) / RANKS);
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
    if (zero_world_run(RANKS, 0, rank, &options) == ZERO_OK) {
        return 0;
    }
    fprintf(stderr, "hello: %s\n", zero_last_error()->message);
    return 1;
}
