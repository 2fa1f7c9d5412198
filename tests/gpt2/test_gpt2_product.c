/* The CUDA backend's matrix products, bit by bit: factors are small integers, so that every sum is
 * exact in fp32 (and the factors in TF32) in whatever order it is made, and the output has to be
 * that sum rounded once to its type.
 *
 * Compiled twice as test_gpt2_cuda.c is. On a GPU it also has GPT-2's own sizes, of which it looks
 * at some thousand elements, so that a kind of product that cuBLASLt does not take or does with
 * less than fp32 is named here, not by a loss that is off. */
#include "bf16.h"
#include "gpt2_cuda_product.h"
#include "harness.h"

enum { WORKSPACE_BYTES = 32 << 20, ALL_MAX = 1 << 26, SOME = 2048 };

#define CHECK_CUDA(call) CHECK_EQ((call), cudaSuccess)

/* --- factors ---------------------------------------------------------------------------------- */

/* An integer in [-16, 15]: products are at most 2^8, sums of 2^16 of them at most 2^24. */
static int32_t integer_at(uint32_t matrix, uint64_t index)
{
    uint64_t hash = (index + 1) * 0x9e3779b97f4a7c15u + matrix * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 31) * 0x94d049bb133111ebu;
    return (int32_t)(hash >> 40 & 31) - 16;
}

/* Device memory with `count` of the matrix's integers, from `offset` bytes on. */
static unsigned char *upload(uint32_t matrix, uint64_t count, zero_dtype dtype, size_t offset)
{
    const size_t bytes = offset + count * zero_dtype_bytes(dtype);
    unsigned char *host = malloc(bytes);
    void *device = NULL;
    CHECK(host != NULL);
    memset(host, 0xff, offset);
    for (uint64_t i = 0; i < count; i++) {
        const float value = (float)integer_at(matrix, i);
        if (dtype == ZERO_DTYPE_F32) {
            memcpy(host + offset + i * sizeof value, &value, sizeof value);
        } else {
            const uint16_t half = bf16_of(value);
            memcpy(host + offset + i * sizeof half, &half, sizeof half);
        }
    }
    CHECK_CUDA(cudaMalloc(&device, bytes));
    CHECK_CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    free(host);
    return device;
}

/* --- one product ------------------------------------------------------------------------------ */

typedef struct types {
    zero_dtype dtype;
    zero_dtype out;
    bool tf32;
} types;

static const types all_types[] = {
    {ZERO_DTYPE_F32, ZERO_DTYPE_F32, false},
    {ZERO_DTYPE_F32, ZERO_DTYPE_F32, true},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, false},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_F32, false},
};

typedef enum addition { NOTHING, APART, IN_PLACE } addition;

/* The shape of a product of the model. */
typedef struct shape {
    const char *name;
    uint64_t rows;
    uint64_t columns;
    uint64_t inner;
    bool left_turned;
    bool right_turned;
    bool bias;
    addition added;        /* nothing, another matrix, the output itself */
    uint64_t left_padding; /* of its rows in memory, as logits have it */
    uint64_t out_padding;  /* likewise */
    size_t out_offset;     /* bytes that the address is beyond a multiple of 256 */
    size_t bias_offset;    /* likewise */
    bool sums;             /* of right's columns too */
} shape;

enum { LEFT, RIGHT, OUT, ADDED, BIAS, BEFORE, MATRICES };

typedef struct trial {
    gpt2_products products;
    gpt2_error error;
    types how;
    void *workspace;
    unsigned char *at[MATRICES];
} trial;

static void trial_open(trial *it, types how)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        SKIP("no NVIDIA GPU here; the same is tested in emulation by gpt2_product_emulated");
    }
    memset(it, 0, sizeof *it);
    it->how = how;
    CHECK_CUDA(cudaMalloc(&it->workspace, WORKSPACE_BYTES));
    if (!gpt2_products_create(&it->products, how.tf32, it->workspace, WORKSPACE_BYTES,
                              &it->error)) {
        TEST_FAIL("%s", it->error.text);
    }
}

static void trial_close(trial *it)
{
    gpt2_products_destroy(&it->products);
    CHECK_CUDA(cudaFree(it->workspace));
}

static uint64_t left_stride(const shape *s)
{
    return (s->left_turned ? s->rows : s->inner) + s->left_padding;
}

static uint64_t right_stride(const shape *s)
{
    return s->right_turned ? s->inner : s->columns;
}

static gpt2_product_job job_of(const trial *it, const shape *s)
{
    const void *out = it->at[OUT] + s->out_offset;
    return (gpt2_product_job){.rows = s->rows,
                              .columns = s->columns,
                              .inner = s->inner,
                              .dtype = it->how.dtype,
                              .left = {it->at[LEFT], left_stride(s), s->left_turned},
                              .right = {it->at[RIGHT], right_stride(s), s->right_turned},
                              .out_dtype = it->how.out,
                              .out_stride = s->columns + s->out_padding,
                              .out = it->at[OUT] + s->out_offset,
                              .added = s->added == IN_PLACE ? out : it->at[ADDED],
                              .bias = s->bias ? it->at[BIAS] + s->bias_offset : NULL,
                              .alpha = 0.5f,
                              .beta = s->added != NOTHING ? 1.0f : 0.0f,
                              .end = s->sums ? GPT2_END_SUMS : GPT2_END_NONE,
                              .sums = s->sums ? it->at[BIAS] + s->bias_offset : NULL};
}

/* The addend of a product: a matrix and a bias, exactly. */
static float addend_at(const shape *s, uint64_t row, uint64_t column)
{
    const uint64_t out = row * (s->columns + s->out_padding) + column;
    return (float)((s->added != NOTHING ? integer_at(s->added == IN_PLACE ? OUT : ADDED, out) : 0) +
                   (s->bias ? integer_at(BIAS, column) : 0));
}

/* alpha left right, exactly. */
static float product_at(const shape *s, uint64_t row, uint64_t column)
{
    const uint64_t left = left_stride(s);
    const uint64_t right = right_stride(s);
    int64_t sum = 0;
    for (uint64_t k = 0; k < s->inner; k++) {
        const uint64_t l = s->left_turned ? k * left + row : row * left + k;
        const uint64_t r = s->right_turned ? column * right + k : k * right + column;
        sum += integer_at(LEFT, l) * integer_at(RIGHT, r);
    }
    return (float)sum * 0.5f;
}

static float rounded(const trial *it, float value)
{
    return it->how.out == ZERO_DTYPE_F32 ? value : float_of(bf16_of(value));
}

/* Rounded once. Some of cuBLASLt's kernels for bfloat16 round the product before they add a matrix
 * to it (on an H100 those of gradients, nvjet ... badd), and then the sum. */
static bool is_right(const trial *it, const shape *s, uint64_t row, uint64_t column, float found)
{
    const float product = product_at(s, row, column);
    const float more = addend_at(s, row, column);
    return found == rounded(it, product + more) ||
           (s->added != NOTHING && found == rounded(it, rounded(it, product) + more));
}

static void check_outputs(const trial *it, const shape *s)
{
    const uint64_t stride = s->columns + s->out_padding;
    const size_t each = zero_dtype_bytes(it->how.out);
    unsigned char *found = malloc(s->rows * stride * each);
    CHECK(found != NULL);
    CHECK_CUDA(cudaMemcpy(found, it->at[OUT] + s->out_offset, s->rows * stride * each,
                          cudaMemcpyDeviceToHost));
    const uint64_t count = s->rows * s->columns;
    /* All of them, or some that are spread over rows and columns; the last is among them. */
    const uint64_t step = count * s->inner < ALL_MAX ? 1 : count / SOME | 1;
    for (uint64_t i = 0; i < count; i += step) {
        const uint64_t which = count - 1 - i;
        const uint64_t row = which / s->columns;
        const uint64_t column = which % s->columns;
        float value;
        if (it->how.out == ZERO_DTYPE_F32) {
            memcpy(&value, found + (row * stride + column) * each, sizeof value);
        } else {
            uint16_t half;
            memcpy(&half, found + (row * stride + column) * each, sizeof half);
            value = float_of(half);
        }
        if (!is_right(it, s, row, column, value)) {
            TEST_FAIL("%s, %s into %s%s: (%llu, %llu) is %g and should be %g + %g", s->name,
                      zero_dtype_name(it->how.dtype), zero_dtype_name(it->how.out),
                      it->how.tf32 ? " in TF32" : "", (unsigned long long)row,
                      (unsigned long long)column, (double)value, (double)product_at(s, row, column),
                      (double)addend_at(s, row, column));
        }
    }
    free(found);
}

/* `count` values of the output's type as floats. */
static void download(const trial *it, const void *from, uint64_t count, float *values)
{
    const size_t each = zero_dtype_bytes(it->how.out);
    unsigned char *bytes = malloc(count * each);
    CHECK(bytes != NULL);
    CHECK_CUDA(cudaMemcpy(bytes, from, count * each, cudaMemcpyDeviceToHost));
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half = 0;
        memcpy(&half, bytes + i * each, sizeof half);
        values[i] = float_of(half);
        if (it->how.out == ZERO_DTYPE_F32) {
            memcpy(&values[i], bytes + i * each, sizeof values[i]);
        }
    }
    free(bytes);
}

static void check_sums(const trial *it, const shape *s)
{
    float found[512];
    CHECK(s->columns <= 512);
    download(it, it->at[BIAS] + s->bias_offset, s->columns, found);
    for (uint64_t column = 0; column < s->columns; column++) {
        int64_t sum = 0;
        for (uint64_t k = 0; k < s->inner; k++) {
            sum += integer_at(RIGHT, k * right_stride(s) + column);
        }
        const float expected =
            it->how.out == ZERO_DTYPE_F32 ? (float)sum : float_of(bf16_of((float)sum));
        CHECK_EQ(found[column], expected);
    }
}

static void open_shape(trial *it, const shape *s)
{
    const uint64_t left_rows = s->left_turned ? s->inner : s->rows;
    const uint64_t right_rows = s->right_turned ? s->columns : s->inner;
    const uint64_t out_count = s->rows * (s->columns + s->out_padding);
    it->at[LEFT] = upload(LEFT, left_rows * left_stride(s), it->how.dtype, 0);
    it->at[RIGHT] = upload(RIGHT, right_rows * right_stride(s), it->how.dtype, 0);
    it->at[OUT] = upload(OUT, out_count, it->how.out, s->out_offset);
    it->at[ADDED] = s->added == APART ? upload(ADDED, out_count, it->how.out, 0) : NULL;
    it->at[BIAS] = upload(BIAS, s->columns, it->how.out, s->bias_offset);
    it->at[BEFORE] = upload(BEFORE, out_count, it->how.out, 0);
}

static void close_shape(trial *it)
{
    for (int i = 0; i < MATRICES; i++) {
        CHECK_CUDA(cudaFree(it->at[i]));
        it->at[i] = NULL;
    }
}

static void check_shape(trial *it, const shape *s)
{
    open_shape(it, s);
    const gpt2_product_job job = job_of(it, s);
    if (!gpt2_product(&it->products, NULL, &job, &it->error)) {
        TEST_FAIL("%s: %s", s->name, it->error.text);
    }
    CHECK_CUDA(cudaDeviceSynchronize());
    check_outputs(it, s);
    if (s->sums) {
        check_sums(it, s);
    }
    close_shape(it);
}

/* --- the model's ------------------------------------------------------------------------------ */

typedef struct sizes {
    uint64_t tokens;
    uint64_t width;
    uint64_t vocab;
} sizes;

/* Every kind of product that gpt2_cuda.c has. Where the output's type is not the factors', it has
 * those that add to gradients only. */
static void check_model(trial *it, sizes of)
{
    const uint64_t n = of.tokens;
    const uint64_t c = of.width;
    const uint64_t v = of.vocab;
    const uint64_t stride = (v + 63) / 64 * 64;
    const uint64_t padding = stride - v;
    const uint64_t lines = v / 64 * 64; /* of the vocabulary; the rest is a product of its own */
    const shape shapes[] = {
        {"forward", n, 3 * c, c, .bias = true},
        {"forward onto the residual stream", n, c, 4 * c, .bias = true, .added = APART},
        {"logits", n, v, c, .right_turned = true, .out_padding = padding},
        {"logits of one token", 1, v, c, .right_turned = true, .out_padding = padding},
        {"gradient of an input", n, c, 3 * c, .right_turned = true},
        {"gradient of the head's input", n, c, v, .left_padding = padding},
        {"padded logits", n, stride, c, .right_turned = true},
        {"gradient of the head's input by padded logits", n, c, stride, .left_padding = 0},
        {"gradient of wte", v, c, n, .left_turned = true, .added = IN_PLACE,
         .left_padding = padding},
        {"a piece's gradient of wte", v, c, n, .left_turned = true, .left_padding = padding},
        {"gradient of wte's last rows", v - lines, c, n, .left_turned = true, .added = IN_PLACE,
         .left_padding = stride - (v - lines)},
        {"gradient of a weight", c, 3 * c, n, .left_turned = true, .added = IN_PLACE},
    };
    const size_t first = it->how.out == it->how.dtype ? 0 : 8;
    for (size_t i = first; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (shapes[i].rows != 0) { /* a vocabulary may have no last rows */
            check_shape(it, &shapes[i]);
        }
    }
}

TEST(products_are_exact_sums_rounded_once)
{
    for (size_t i = 0; i < sizeof all_types / sizeof all_types[0]; i++) {
        trial it;
        trial_open(&it, all_types[i]);
        check_model(&it, (sizes){70, 24, 37});
        check_model(&it, (sizes){1, 8, 3});
        check_model(&it, (sizes){131, 64, 256});
        trial_close(&it);
    }
}

#ifndef EMULATED
/* 1024 x 50257 logits; a weight's gradient sums over as many tokens as a batch of 16 has. */
TEST(products_of_gpt2_are_exact_sums_rounded_once)
{
    for (size_t i = 0; i < sizeof all_types / sizeof all_types[0]; i++) {
        trial it;
        trial_open(&it, all_types[i]);
        const shape long_sum = {.name = "gradient of a weight by a whole batch",
                                .rows = 768,
                                .columns = 768,
                                .inner = 16384,
                                .left_turned = true,
                                .added = IN_PLACE};
        check_model(&it, (sizes){1024, 768, 50257});
        check_shape(&it, &long_sum);
        trial_close(&it);
    }
}
#endif

/* --- epilogues -------------------------------------------------------------------------------- */

/* A GPU whose cuBLASLt lacks one is not at fault; the program then has a kernel. */
static bool has_end(trial *it, const gpt2_product_job *job, const char *name)
{
    const bool possible = gpt2_product_is_possible(&it->products, job);
#ifdef EMULATED
    CHECK(possible);
#endif
    if (!possible) {
        printf("  cuBLASLt %zu has no %s here\n", cublasLtGetVersion(), name);
    }
    return possible;
}

/* The two types that fuse: what comes of bfloat16 factors. */
TEST(sums_of_columns_are_exact_and_rounded_once)
{
    for (size_t i = 2; i < sizeof all_types / sizeof all_types[0]; i++) {
        trial it;
        trial_open(&it, all_types[i]);
        const shape shapes[] = {{"gradients of a layer", 24, 72, 70, .left_turned = true,
                                 .added = IN_PLACE, .sums = true},
                                {"of a large one", 64, 256, 1031, .left_turned = true,
                                 .added = IN_PLACE, .bias_offset = 16, .sums = true}};
        for (int s = 0; s < 2; s++) {
            open_shape(&it, &shapes[s]);
            const gpt2_product_job job = job_of(&it, &shapes[s]);
            const bool possible = has_end(&it, &job, "sums of columns");
            close_shape(&it);
            if (possible) {
                check_shape(&it, &shapes[s]);
            }
        }
        trial_close(&it);
    }
}

/* gelu(x), tanh form, or its derivative. */
static double gelu(double x, bool derivative)
{
    const double slope = sqrt(2 / acos(-1.0));
    const double t = tanh(slope * (x + 0.044715 * x * x * x));
    return derivative ? 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope * (1 + 3 * 0.044715 * x * x)
                      : 0.5 * x * (1 + t);
}

/* |found - expected| of what is rounded to bfloat16 once: 2^-8 of it at most, and what cuBLASLt's
 * tanh is off by, for which there is a quarter of that and 2^-9 around 0. */
static bool is_near(double found, double expected)
{
    return fabs(found - expected) <= 1.25 * 0x1p-8 * fabs(expected) + 0x1p-9;
}

/* GELU's argument is the exact result, or as cuBLASLt has it on an H100 that result rounded as it
 * is stored for backward; its gradient likewise is multiplied with the one or the other. */
static void check_gelu(trial *it, const shape *s, bool gradient)
{
    float found[4096];
    float before[4096];
    const uint64_t count = s->rows * s->columns;
    CHECK(count <= 4096);
    open_shape(it, s);
    gpt2_product_job job = job_of(it, s);
    job.alpha = 0x1p-8f;
    job.end = gradient ? GPT2_END_GELU_GRAD : GPT2_END_GELU;
    job.before = it->at[BEFORE];
    if (has_end(it, &job, gradient ? "gradient of GELU" : "GELU")) {
        CHECK(gpt2_product(&it->products, NULL, &job, &it->error));
        CHECK_CUDA(cudaDeviceSynchronize());
        download(it, it->at[OUT], count, found);
        download(it, it->at[BEFORE], count, before);
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t row = i / s->columns;
            const uint64_t column = i % s->columns;
            const float sum = product_at(s, row, column) * 0x1p-7f + addend_at(s, row, column);
            const float stored = float_of(bf16_of(sum));
            const float x = gradient ? (float)integer_at(BEFORE, i) : stored;
            const double slope = gelu((double)x, true);
            const double exact = gradient ? (double)sum * slope : gelu((double)sum, false);
            const double by_stored =
                gradient ? (double)stored * slope : gelu((double)stored, false);
            CHECK_EQ(before[i], x);
            if (!is_near((double)found[i], exact) && !is_near((double)found[i], by_stored)) {
                TEST_FAIL("of %g found %g, should be %g or %g", (double)sum, (double)found[i],
                          exact, by_stored);
            }
        }
    }
    close_shape(it);
}

TEST(gelu_and_its_gradient_follow_double)
{
    trial it;
    trial_open(&it, (types){ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, false});
    const shape forward = {"GELU", 35, 96, 24, .bias = true};
    const shape gradient = {"gradient of GELU", 35, 96, 24, .right_turned = true};
    check_gelu(&it, &forward, false);
    check_gelu(&it, &gradient, true);
    trial_close(&it);
}

/* --- refusals --------------------------------------------------------------------------------- */

/* An algorithm is chosen for the addresses at hand: one that was chosen for a bias at a multiple of
 * 256 bytes is not for another. */
TEST(algorithms_are_chosen_by_every_alignment)
{
    for (size_t i = 0; i < 3; i++) {
        trial it;
        trial_open(&it, all_types[i]);
        shape s = {"16 bytes off", 32, 64, 48, .bias = true, .added = APART, .out_offset = 16};
        check_shape(&it, &s);
        s.out_offset = 0;
        s.bias_offset = 16;
        check_shape(&it, &s);
        trial_close(&it);
    }
}

TEST(what_cublaslt_refuses_is_named)
{
    trial it;
    trial_open(&it, (types){ZERO_DTYPE_F32, ZERO_DTYPE_BF16, false});
    const shape s = {.name = "refused", .rows = 3, .columns = 4, .inner = 5};
    it.at[LEFT] = it.at[RIGHT] = it.at[OUT] = it.workspace;
    const gpt2_product_job job = job_of(&it, &s);
    CHECK(!gpt2_product(&it.products, NULL, &job, &it.error));
    CHECK(strstr(it.error.text, "no matrix product (3 x 5) (5 x 4) of f32 into bf16") != NULL);
    trial_close(&it);
}
