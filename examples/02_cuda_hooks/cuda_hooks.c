/* The training of examples/01_hello on GPUs: a trainer with kernels, device memory and a stream of
 * its own, and the library's calls around its layers. docs/gpu.md goes through it.
 *
 *     cuda_hooks [STAGE [RANKS [STEPS [host]]]]
 *
 * STAGE is 0, 1, 2 or 3. Ranks are RANKS threads of this process, or the processes that mpirun,
 * srun or torchrun started. Rank n uses GPU n modulo the number of GPUs. STEPS is 150 if it is 0 or
 * not given. With `host` processes exchange through host memory instead of NCCL. The last line
 * prints the first and the last loss. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zero/cuda.h>
#include <zero/zero.h>

#include "layer.h"

enum { STEPS = 150, DEADLINE_MS = 60000 };

#define TRY(call)                     \
    if ((status = (call)) != ZERO_OK) \
    goto done
#define CUDA(call)                                      \
    if ((status = cuda_status(call, #call)) != ZERO_OK) \
    goto done

/* The state that any trainer has on the GPU. */
typedef struct trainer {
    cudaStream_t stream;
    float *x[LAYERS + 1]; /* activations; x[0] is the input */
    float *d[LAYERS + 1]; /* d loss / d x */
    zero_engine *engine;
} trainer;

typedef struct run {
    zero_engine_options options;
    zero_tuning tuning;
    uint32_t steps;
    float first_loss; /* of rank 0 */
    float last_loss;
} run;

static zero_status cuda_status(cudaError_t code, const char *call)
{
    if (code == cudaSuccess) {
        return ZERO_OK;
    }
    fprintf(stderr, "cuda_hooks: %s: %s\n", call, cudaGetErrorString(code));
    return ZERO_ERR_DEVICE;
}

/* Before all other calls of CUDA: a rank's GPU is the one that is current when its engine is
 * created. */
static zero_status choose_gpu(uint32_t local_rank)
{
    int count = 0;
    zero_status status = cuda_status(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (status == ZERO_OK) {
        status = cuda_status(cudaSetDevice((int)(local_rank % (uint32_t)count)), "cudaSetDevice");
    }
    return status;
}

static zero_status describe(zero_model *model)
{
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < LAYERS && status == ZERO_OK; i++) {
        char name[16];
        uint32_t unit = 0;
        uint32_t tensor = 0;
        (void)snprintf(name, sizeof name, "layer%u", i);
        const zero_tensor_desc desc = {.name = name, .shape = {WIDTH, WIDTH}, .dims = 2};
        status = zero_unit_add(model, &(zero_unit_desc){.name = name}, &unit, NULL);
        if (status == ZERO_OK) {
            status = zero_tensor_add(model, unit, &desc, &tensor);
        }
    }
    return status;
}

static void fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    zero_random_normal(1, tensor, first, count, 0, 0.25F, values);
}

static zero_status make_engine(trainer *t, zero_world *world, const zero_engine_options *options)
{
    zero_model *model = NULL;
    zero_status status;
    TRY(zero_model_create(&model));
    TRY(describe(model));
    TRY(zero_engine_create(world, model, options, &t->engine));
    TRY(zero_engine_fill(t->engine, fill, NULL));
done:
    zero_model_destroy(model); /* the engine does not use it */
    return status;
}

static zero_status make_room(trainer *t)
{
    zero_status status = ZERO_OK;
    CUDA(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    for (uint32_t i = 0; i <= LAYERS; i++) {
        CUDA(cudaMalloc((void **)&t->x[i], VALUES * sizeof(float)));
        CUDA(cudaMalloc((void **)&t->d[i], VALUES * sizeof(float)));
    }
done:
    return status;
}

static void give_back(trainer *t)
{
    zero_engine_destroy(t->engine);
    for (uint32_t i = 0; i <= LAYERS; i++) {
        (void)cudaFree(t->x[i]);
        (void)cudaFree(t->d[i]);
    }
    if (t->stream != NULL) {
        (void)cudaStreamDestroy(t->stream);
    }
}

static zero_status forward(trainer *t)
{
    const zero_stream stream = zero_stream_cuda(t->stream);
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < LAYERS; i++) {
        const zero_unit_view *view;
        TRY(zero_unit_acquire(t->engine, i, ZERO_PASS_FORWARD, stream, &view));
        CUDA(layer_forward(t->stream, view->params[0].data, t->x[i], t->x[i + 1]));
        TRY(zero_unit_release(t->engine, i, stream));
    }
done:
    return status;
}

static zero_status backward(trainer *t)
{
    const zero_stream stream = zero_stream_cuda(t->stream);
    zero_status status = ZERO_OK;
    for (uint32_t i = LAYERS; i-- > 0;) {
        const zero_unit_view *view;
        TRY(zero_unit_acquire(t->engine, i, ZERO_PASS_BACKWARD, stream, &view));
        CUDA(layer_backward(t->stream, view->params[0].data, view->grads[0].data, t->x[i],
                            t->d[i + 1], t->d[i]));
        TRY(zero_unit_release(t->engine, i, stream));
    }
done:
    return status;
}

static zero_status train_step(trainer *t, const float *input)
{
    zero_step_params params = zero_step_params_init();
    params.hyper.adamw.lr = 0.01F;
    zero_status status;
    CUDA(cudaMemcpyAsync(t->x[0], input, VALUES * sizeof *input, cudaMemcpyDefault, t->stream));
    TRY(zero_micro_begin(t->engine, ZERO_MICRO_LAST));
    TRY(forward(t));
    CUDA(layer_loss(t->stream, t->x[LAYERS], t->x[0], t->d[LAYERS]));
    TRY(backward(t));
    TRY(zero_micro_end(t->engine));
    TRY(zero_step(t->engine, &params, zero_stream_cuda(t->stream)));
done:
    return status;
}

/* Reading a loss waits for the GPU. */
static zero_status read_loss(trainer *t, float *loss)
{
    float d[VALUES];
    zero_status status;
    *loss = 0;
    CUDA(cudaMemcpyAsync(d, t->d[LAYERS], sizeof d, cudaMemcpyDefault, t->stream));
    CUDA(cudaStreamSynchronize(t->stream));
    for (uint32_t i = 0; i < VALUES; i++) {
        *loss += d[i] * d[i] * VALUES / 4;
    }
done:
    return status;
}

static zero_status train(trainer *t, zero_world *world, run *r)
{
    zero_status status = ZERO_OK;
    for (uint32_t step = 0; step < r->steps; step++) {
        float input[VALUES];
        zero_random_normal(2, zero_world_rank(world), step * VALUES, VALUES, 0, 1, input);
        TRY(train_step(t, input));
        if (step == 0 || step + 1 == r->steps) {
            float loss = 0;
            TRY(read_loss(t, &loss));
            if (zero_world_rank(world) == 0) {
                *(step == 0 ? &r->first_loss : &r->last_loss) = loss;
            }
        }
    }
done:
    return status;
}

/* The work of one rank, thread or process. */
static zero_status rank(zero_world *world, void *user)
{
    run *r = user;
    trainer t;
    memset(&t, 0, sizeof t);
    zero_status status = ZERO_OK;
    if (getenv("LOCAL_RANK") == NULL) { /* ranks are on one host */
        TRY(choose_gpu(zero_world_rank(world)));
    }
    TRY(make_room(&t));
    TRY(make_engine(&t, world, &r->options));
    TRY(train(&t, world, r));
    if (zero_world_rank(world) == 0) {
        zero_path gather = zero_path_init();
        zero_path reduce = zero_path_init();
        TRY(zero_engine_path(t.engine, ZERO_TRAFFIC_GATHER, &gather));
        TRY(zero_engine_path(t.engine, ZERO_TRAFFIC_REDUCE, &reduce));
        printf("parameters by %s, gradients by %s\n", gather.text, reduce.text);
        printf("stage %d, %u ranks over %s: loss %.3e to %.3e\n", (int)r->options.stage,
               zero_world_size(world), zero_world_backend(world), (double)r->first_loss,
               (double)r->last_loss);
    }
done:
    give_back(&t);
    return status;
}

/* A process that a launcher started. Under torchrun on several hosts the world itself is made over
 * the GPU that is current. */
static zero_status run_launched(run *r)
{
    const char *local_rank = getenv("LOCAL_RANK"); /* torchrun's */
    zero_world *world = NULL;
    zero_status status = ZERO_OK;
    if (local_rank != NULL) {
        TRY(choose_gpu((uint32_t)strtoul(local_rank, NULL, 10)));
    }
    TRY(zero_world_create_launched(DEADLINE_MS, &world));
    TRY(rank(world, r));
done:
    zero_world_destroy(world);
    return status;
}

int main(int argc, char **argv)
{
    run r = {.options = zero_engine_options_init(), .tuning = zero_tuning_init()};
    r.options.tuning = &r.tuning;
    r.options.device = ZERO_DEVICE_CUDA;
    r.options.stage = (zero_stage)(argc > 1 ? argv[1][0] - '0' : 3);
    const uint32_t ranks = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2;
    const uint32_t steps = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    r.steps = steps != 0 ? steps : STEPS;
    if (argc > 4 && strcmp(argv[4], "host") == 0) {
        r.tuning.transport = ZERO_TRANSPORT_HOST;
    }
    const zero_status status =
        zero_world_is_launched() ? run_launched(&r) : zero_world_run(ranks, DEADLINE_MS, rank, &r);
    if (status != ZERO_OK) {
        /* CUDA's own message is printed already, and the library says nothing of it. */
        const char *said = zero_last_error()->message;
        fprintf(stderr, "cuda_hooks: %s%s%s\n", zero_status_name(status),
                said[0] != '\0' ? ": " : "", said);
        return 1;
    }
    /* Few steps make the loss smaller, all of them a hundred times. */
    return r.last_loss <= r.first_loss / (r.steps >= STEPS ? 100 : 1) ? 0 : 1;
}
