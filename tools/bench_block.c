/* Owns the synthetic network of `zero bench step`. Invariant: parameters are read and gradients are
 * added to only between the hooks that lend them. */
#include "bench_block.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCALE, MIX, PROJECT, UP, DOWN, TENSORS_PER_BLOCK };

struct block_net {
    block_shape shape;
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

zero_status block_describe(const block_shape *shape, zero_model *model)
{
    static const char *const names[] = {"scale", "mix", "project", "up", "down"};
    const uint64_t width = shape->width;
    for (uint32_t b = 0; b < shape->blocks; b++) {
        char name[64];
        uint32_t unit = 0;
        (void)snprintf(name, sizeof name, "block%u", b);
        zero_status status = zero_unit_add(model, name, &unit);
        for (uint32_t t = 0; t < TENSORS_PER_BLOCK && status == ZERO_OK; t++) {
            (void)snprintf(name, sizeof name, "block%u.%s", b, names[t]);
            zero_tensor_desc desc = {.name = name, .dims = 2};
            desc.shape[0] = tensor_rows[t] * width;
            desc.shape[1] = tensor_columns[t] * width;
            if (t == SCALE) {
                desc.dims = 1;
                desc.flags = ZERO_TENSOR_NO_DECAY;
            }
            uint32_t tensor = 0;
            status = zero_tensor_add(model, unit, &desc, &tensor);
        }
        if (status != ZERO_OK) {
            return status;
        }
    }
    return ZERO_OK;
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

/* Room for `count` floats, of which each is written, so that no page is missing later. */
static float *make_floats(size_t count)
{
    float *floats = malloc(count * sizeof *floats);
    for (size_t i = 0; floats != NULL && i < count; i++) {
        floats[i] = 0.0f;
    }
    return floats;
}

block_net *block_net_create(const block_shape *shape, uint32_t rank)
{
    block_net *net = calloc(1, sizeof *net);
    if (net == NULL) {
        return NULL;
    }
    const size_t plane = (size_t)shape->tokens * shape->width;
    net->shape = *shape;
    net->input = make_floats((shape->blocks + (size_t)1) * plane);
    net->scaled = make_floats(shape->blocks * plane);
    net->mean = make_floats(shape->blocks * plane);
    net->middle = make_floats(shape->blocks * plane);
    net->raised = make_floats(shape->blocks * 4 * plane);
    net->target = make_floats(plane);
    net->wide = make_floats(4 * plane);
    net->narrow = make_floats(plane);
    net->gradient = make_floats(plane);
    if (net->input == NULL || net->scaled == NULL || net->mean == NULL || net->middle == NULL ||
        net->raised == NULL || net->target == NULL || net->wide == NULL || net->narrow == NULL ||
        net->gradient == NULL) {
        block_net_destroy(net);
        return NULL;
    }
    zero_random_normal(2, rank, 0, plane, 0.0f, 1.0f, net->input);
    zero_random_normal(3, rank, 0, plane, 0.0f, 1.0f, net->target);
    return net;
}

void block_net_destroy(block_net *net)
{
    if (net == NULL) {
        return;
    }
    float *const arrays[] = {net->input,  net->scaled, net->mean,   net->middle,  net->raised,
                             net->target, net->wide,   net->narrow, net->gradient};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        free(arrays[i]);
    }
    free(net);
}

/* out = in weight^T + beta out; in: rows x columns_in, weight: columns_out x columns_in. */
static void multiply_forward(const float *in, const float *weight, float *out, uint32_t rows,
                             const uint32_t columns[2], float beta)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)columns[1],
                (int)columns[0], 1.0f, in, (int)columns[0], weight, (int)columns[0], beta, out,
                (int)columns[1]);
}

/* in = out weight + beta in: the gradient of the input from that of the output. */
static void multiply_back(const float *out, const float *weight, float *in, uint32_t rows,
                          const uint32_t columns[2], float beta)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)columns[0],
                (int)columns[1], 1.0f, out, (int)columns[1], weight, (int)columns[0], beta, in,
                (int)columns[0]);
}

/* weight += out^T in: the gradient of the weight. */
static void multiply_weight(const float *out, const float *in, float *weight, uint32_t rows,
                            const uint32_t columns[2])
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)columns[1], (int)columns[0],
                (int)rows, 1.0f, out, (int)columns[1], in, (int)columns[0], 1.0f, weight,
                (int)columns[0]);
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

static zero_status forward_pass(block_net *net, zero_engine *engine)
{
    const zero_stream host = zero_stream_host();
    for (uint32_t block = 0; block < net->shape.blocks; block++) {
        float *weights[TENSORS_PER_BLOCK];
        const zero_unit_view *view = NULL;
        zero_status status = zero_unit_acquire(engine, block, ZERO_PASS_FORWARD, host, &view);
        if (status == ZERO_OK) {
            block_tensors(view->params, weights);
            forward(net, block, weights);
            status = zero_unit_release(engine, block, host);
        }
        if (status != ZERO_OK) {
            return status;
        }
    }
    return ZERO_OK;
}

static zero_status backward_pass(block_net *net, zero_engine *engine)
{
    const zero_stream host = zero_stream_host();
    for (uint32_t block = net->shape.blocks; block-- > 0;) {
        float *weights[TENSORS_PER_BLOCK];
        float *grads[TENSORS_PER_BLOCK];
        const zero_unit_view *view = NULL;
        zero_status status = zero_unit_acquire(engine, block, ZERO_PASS_BACKWARD, host, &view);
        if (status == ZERO_OK) {
            block_tensors(view->params, weights);
            block_tensors(view->grads, grads);
            backward(net, block, weights, grads);
            status = zero_unit_release(engine, block, host);
        }
        if (status != ZERO_OK) {
            return status;
        }
    }
    return ZERO_OK;
}

zero_status block_micro_step(block_net *net, zero_engine *engine, float *loss)
{
    zero_status status = zero_micro_begin(engine, 1);
    if (status == ZERO_OK) {
        status = forward_pass(net, engine);
    }
    if (status == ZERO_OK) {
        *loss = output_loss(net);
        status = backward_pass(net, engine);
    }
    return status == ZERO_OK ? zero_micro_end(engine) : status;
}

void block_single_thread(void)
{
    openblas_set_num_threads(1);
}
