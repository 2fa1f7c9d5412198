/* Owns the synthetic network of `zero bench step`. Invariant: parameters are read and gradients are
 * added to only between acquire and release. */
#include "bench_block.h"
#include "bench.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCALE, MIX, PROJECT, UP, DOWN, TENSORS_PER_BLOCK };

struct block_net {
    block_shape shape;
    float *memory;   /* of all that follows */
    float *input;    /* of every block and of the loss: (blocks + 1) x tokens x width */
    float *scaled;   /* input times scale: blocks x tokens x width */
    float *mean;     /* of the three parts: blocks x tokens x width */
    float *middle;   /* first residual sum: blocks x tokens x width */
    float *raised;   /* after the rectifier: blocks x tokens x 4 width */
    float *target;   /* tokens x width */
    float *wide;     /* scratch: tokens x 4 width */
    float *narrow;   /* scratch: tokens x width */
    float *gradient; /* of the block's output, then of its input: tokens x width */
};

/* Rows and columns of a block's tensors in units of the width; the scale has one column. */
static const uint32_t tensor_rows[TENSORS_PER_BLOCK] = {1, 3, 1, 4, 1};
static const uint32_t tensor_columns[TENSORS_PER_BLOCK] = {0, 1, 1, 1, 4};

int block_describe(const block_shape *shape, zero_model *model)
{
    static const char *const names[] = {"scale", "mix", "project", "up", "down"};
    zero_tensor_desc descs[TENSORS_PER_BLOCK];
    uint32_t unit = 0;
    uint32_t tensor = 0;
    for (uint32_t t = 0; t < TENSORS_PER_BLOCK; t++) {
        descs[t] = (zero_tensor_desc){
            .name = names[t],
            .shape = {tensor_rows[t] * shape->width, tensor_columns[t] * shape->width},
            .dims = t == SCALE ? 1 : 2,
            .flags = t == SCALE ? ZERO_TENSOR_NO_DECAY : ZERO_TENSOR_PLAIN};
    }
    return BENCH_TRY(zero_unit_add(model,
                                   &(zero_unit_desc){.name = "block",
                                                     .layers = shape->blocks,
                                                     .tensors = descs,
                                                     .tensor_count = TENSORS_PER_BLOCK},
                                   &unit, &tensor));
}

void block_fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    if (tensor % TENSORS_PER_BLOCK == SCALE) {
        for (uint64_t i = 0; i < count; i++) {
            values[i] = 1.0f;
        }
        return;
    }
    zero_random_normal(1, tensor, first, count, 0.0f, 0.02f, values);
}

block_net *block_net_create(const block_shape *shape, uint32_t rank)
{
    const size_t plane = (size_t)shape->tokens * shape->width;
    const size_t blocks = shape->blocks;
    block_net *net = calloc(1, sizeof *net);
    if (net == NULL) {
        return NULL;
    }
    float **const arrays[] = {&net->input,  &net->scaled, &net->mean,   &net->middle,  &net->raised,
                              &net->target, &net->wide,   &net->narrow, &net->gradient};
    const size_t planes[] = {blocks + 1, blocks, blocks, blocks, 4 * blocks, 1, 4, 1, 1};
    const size_t count = 8 * blocks + 8;
    net->memory = malloc(count * plane * sizeof *net->memory);
    if (net->memory == NULL) {
        block_net_destroy(net);
        return NULL;
    }
    /* Each is written, so that no page is missing later. */
    for (size_t i = 0; i < count * plane; i++) {
        net->memory[i] = 0.0f;
    }
    float *next = net->memory;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i] = next;
        next += planes[i] * plane;
    }
    net->shape = *shape;
    zero_random_normal(2, rank, 0, plane, 0.0f, 1.0f, net->input);
    zero_random_normal(3, rank, 0, plane, 0.0f, 1.0f, net->target);
    return net;
}

void block_net_destroy(block_net *net)
{
    if (net != NULL) {
        free(net->memory);
        free(net);
    }
}

/* out = in weight^T + beta out; in: rows x columns[0], weight: columns[1] x columns[0]. */
static void multiply_forward(const float *in, const float *weight, float *out, uint32_t rows,
                             const uint32_t columns[2], float beta)
{
    const int from = (int)columns[0];
    const int to = (int)columns[1];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, to, from, 1.0f, in, from,
                weight, from, beta, out, to);
}

/* in = out weight + beta in: the gradient of the input from that of the output. */
static void multiply_back(const float *out, const float *weight, float *in, uint32_t rows,
                          const uint32_t columns[2], float beta)
{
    const int from = (int)columns[0];
    const int to = (int)columns[1];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, from, to, 1.0f, out, to,
                weight, from, beta, in, from);
}

/* weight += out^T in: the gradient of the weight. */
static void multiply_weight(const float *out, const float *in, float *weight, uint32_t rows,
                            const uint32_t columns[2])
{
    const int from = (int)columns[0];
    const int to = (int)columns[1];
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, to, from, (int)rows, 1.0f, out, to, in,
                from, 1.0f, weight, from);
}

static void block_tensors(const zero_view *views, float *tensors[TENSORS_PER_BLOCK])
{
    for (uint32_t t = 0; t < TENSORS_PER_BLOCK; t++) {
        tensors[t] = views[t].data;
    }
}

/* out = in times the scale of its column. */
static void scale_rows(const block_shape *shape, const float *in, const float *scale, float *out)
{
    for (size_t row = 0; row < shape->tokens; row++) {
        for (size_t column = 0; column < shape->width; column++) {
            const size_t i = row * shape->width + column;
            out[i] = in[i] * scale[column];
        }
    }
}

/* Add to `gradient` what reached the scaled rows, and to `scale_grad` what reached the scale. */
static void scale_rows_back(const block_shape *shape, const float *reached, const float *in,
                            const float *scale, float *gradient, float *scale_grad)
{
    for (size_t row = 0; row < shape->tokens; row++) {
        for (size_t column = 0; column < shape->width; column++) {
            const size_t i = row * shape->width + column;
            gradient[i] += reached[i] * scale[column];
            scale_grad[column] += reached[i] * in[i];
        }
    }
}

/* mean = of the three parts that each row of `wide` is made of. */
static void average_parts(const block_shape *shape, const float *wide, float *mean)
{
    const size_t width = shape->width;
    for (size_t row = 0; row < shape->tokens; row++) {
        const float *part = wide + row * 3 * width;
        for (size_t i = 0; i < width; i++) {
            mean[row * width + i] =
                (part[i] + part[width + i] + part[2 * width + i]) * (1.0f / 3.0f);
        }
    }
}

/* A third of `reached` to each of the three parts. */
static void average_parts_back(const block_shape *shape, const float *reached, float *wide)
{
    const size_t width = shape->width;
    for (size_t row = 0; row < shape->tokens; row++) {
        float *part = wide + row * 3 * width;
        for (size_t i = 0; i < width; i++) {
            const float third = reached[row * width + i] * (1.0f / 3.0f);
            part[i] = third;
            part[width + i] = third;
            part[2 * width + i] = third;
        }
    }
}

static void forward(block_net *net, uint32_t block, float *const *weights)
{
    const uint32_t tokens = net->shape.tokens;
    const uint32_t width = net->shape.width;
    const size_t plane = (size_t)tokens * width;
    const float *input = net->input + block * plane;
    float *output = net->input + (block + 1) * plane;
    float *scaled = net->scaled + block * plane;
    float *mean = net->mean + block * plane;
    float *middle = net->middle + block * plane;
    float *raised = net->raised + block * 4 * plane;
    scale_rows(&net->shape, input, weights[SCALE], scaled);
    multiply_forward(scaled, weights[MIX], net->wide, tokens, (uint32_t[]){width, 3 * width}, 0.0f);
    average_parts(&net->shape, net->wide, mean);
    memcpy(middle, input, plane * sizeof *middle);
    multiply_forward(mean, weights[PROJECT], middle, tokens, (uint32_t[]){width, width}, 1.0f);
    multiply_forward(middle, weights[UP], raised, tokens, (uint32_t[]){width, 4 * width}, 0.0f);
    for (size_t i = 0; i < 4 * plane; i++) {
        raised[i] = raised[i] > 0.0f ? raised[i] : 0.0f;
    }
    memcpy(output, middle, plane * sizeof *output);
    multiply_forward(raised, weights[DOWN], output, tokens, (uint32_t[]){4 * width, width}, 1.0f);
}

/* net->gradient: in, of the block's output; out, of its input. */
static void backward(block_net *net, uint32_t block, float *const *weights, float *const *grads)
{
    const uint32_t tokens = net->shape.tokens;
    const uint32_t width = net->shape.width;
    const size_t plane = (size_t)tokens * width;
    const float *input = net->input + block * plane;
    const float *raised = net->raised + block * 4 * plane;
    const uint32_t down[] = {4 * width, width};
    const uint32_t up[] = {width, 4 * width};
    const uint32_t square[] = {width, width};
    const uint32_t mix[] = {width, 3 * width};
    multiply_weight(net->gradient, raised, grads[DOWN], tokens, down);
    multiply_back(net->gradient, weights[DOWN], net->wide, tokens, down, 0.0f);
    for (size_t i = 0; i < 4 * plane; i++) {
        net->wide[i] = raised[i] > 0.0f ? net->wide[i] : 0.0f;
    }
    multiply_weight(net->wide, net->middle + block * plane, grads[UP], tokens, up);
    multiply_back(net->wide, weights[UP], net->gradient, tokens, up, 1.0f);
    multiply_weight(net->gradient, net->mean + block * plane, grads[PROJECT], tokens, square);
    multiply_back(net->gradient, weights[PROJECT], net->narrow, tokens, square, 0.0f);
    average_parts_back(&net->shape, net->narrow, net->wide);
    multiply_weight(net->wide, net->scaled + block * plane, grads[MIX], tokens, mix);
    multiply_back(net->wide, weights[MIX], net->narrow, tokens, mix, 0.0f);
    scale_rows_back(&net->shape, net->narrow, input, weights[SCALE], net->gradient, grads[SCALE]);
}

/* Loss of the last output, and its gradient. */
static float output_loss(block_net *net)
{
    const size_t plane = (size_t)net->shape.tokens * net->shape.width;
    const float *output = net->input + net->shape.blocks * plane;
    double sum = 0.0;
    for (size_t i = 0; i < plane; i++) {
        const float distance = output[i] - net->target[i];
        sum += (double)distance * (double)distance;
        net->gradient[i] = distance / (float)plane;
    }
    return (float)(0.5 * sum / (double)plane);
}

static int forward_pass(block_net *net, zero_engine *engine)
{
    const zero_stream host = zero_stream_host();
    int failed = 0;
    for (uint32_t block = 0; block < net->shape.blocks && !failed; block++) {
        float *weights[TENSORS_PER_BLOCK];
        const zero_unit_view *view = NULL;
        failed = BENCH_TRY(zero_unit_acquire(engine, block, ZERO_PASS_FORWARD, host, &view));
        if (!failed) {
            block_tensors(view->params, weights);
            forward(net, block, weights);
            failed = BENCH_TRY(zero_unit_release(engine, block, host));
        }
    }
    return failed;
}

static int backward_pass(block_net *net, zero_engine *engine)
{
    const zero_stream host = zero_stream_host();
    int failed = 0;
    for (uint32_t block = net->shape.blocks; block-- > 0 && !failed;) {
        float *weights[TENSORS_PER_BLOCK];
        float *grads[TENSORS_PER_BLOCK];
        const zero_unit_view *view = NULL;
        failed = BENCH_TRY(zero_unit_acquire(engine, block, ZERO_PASS_BACKWARD, host, &view));
        if (!failed) {
            block_tensors(view->params, weights);
            block_tensors(view->grads, grads);
            backward(net, block, weights, grads);
            failed = BENCH_TRY(zero_unit_release(engine, block, host));
        }
    }
    return failed;
}

int block_micro_step(block_net *net, zero_engine *engine, float *loss)
{
    if (BENCH_TRY(zero_micro_begin(engine, ZERO_MICRO_LAST)) || forward_pass(net, engine)) {
        return 1;
    }
    *loss = output_loss(net);
    return backward_pass(net, engine) || BENCH_TRY(zero_micro_end(engine));
}

void block_single_thread(void)
{
    openblas_set_num_threads(1);
}
