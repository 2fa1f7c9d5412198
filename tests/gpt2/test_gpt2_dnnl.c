/* oneDNN's products of bf16: against double on the same rounded operands, the model's gradients
 * against those of BLAS's products, and training through the hooks. Where the CPU has no
 * instructions for bf16 oneDNN emulates them, by the same sums. */
#include "bf16.h"
#include "gpt2_dnnl.h"
#include "gpt2_training.h"

#include <dirent.h>
#include <math.h>

static gpt2_dnnl *create(size_t count, uint32_t threads)
{
    gpt2_error error = {""};
    gpt2_dnnl *made = NULL;
    const size_t counts[] = {count, count};
    if (gpt2_dnnl_create(gpt2_ops_best(), counts, threads, &error, &made) != ZERO_OK) {
        SKIP(test_text("%s", error.text));
    }
    return made;
}

/* --- products --------------------------------------------------------------------------------- */

enum { LARGEST = 100 * 100 };

typedef struct products_case {
    gpt2_product shape;
    bool transposed[2];
} products_case;

static float activation(uint32_t operand, size_t index)
{
    return (float)case_uniform(operand, (uint32_t)index) * 3.1f;
}

/* Element (row, column) of an operand whose transpose is of `rows` x `columns`, or it itself. */
static size_t index_of(const gpt2_matrix *it, size_t row, size_t column)
{
    return it->transposed ? column * it->stride + row : row * it->stride + column;
}

/* Sums in fp32 of `inner` products, in any order, are off by at most inner 2^-24 of their
 * magnitudes, and so is the addition to what was there. */
static void check_result(const float *got, const float *old, const products_case *what,
                         const gpt2_matrix *a, const gpt2_matrix *b)
{
    const gpt2_product *shape = &what->shape;
    const uint16_t *left = a->at;
    const uint16_t *right = b->at;
    for (size_t i = 0; i < shape->rows * shape->columns; i++) {
        double sum = (double)shape->beta * (double)old[i];
        double magnitude = fabs(sum);
        for (size_t k = 0; k < shape->inner; k++) {
            const double term = (double)float_of(left[index_of(a, i / shape->columns, k)]) *
                                (double)float_of(right[index_of(b, k, i % shape->columns)]);
            sum += term;
            magnitude += fabs(term);
        }
        CHECK_NEAR(got[i], sum, magnitude * ldexp((double)shape->inner + 2, -24));
    }
}

static void check_product(gpt2_dnnl *dnnl, const products_case *what)
{
    static float values[2][LARGEST];
    static float old[LARGEST];
    static float got[2][LARGEST];
    gpt2_multiplier *by = gpt2_dnnl_multiplier(dnnl);
    const gpt2_product *shape = &what->shape;
    const size_t counts[] = {shape->rows * shape->inner, shape->inner * shape->columns};
    const size_t strides[] = {what->transposed[0] ? shape->rows : shape->inner,
                              what->transposed[1] ? shape->inner : shape->columns};
    gpt2_matrix operands[2];
    for (int number = 0; number < 2; number++) {
        for (size_t i = 0; i < counts[number]; i++) {
            values[number][i] = activation((uint32_t)number, i);
        }
        const uint16_t *rounded = by->operand(by, number, values[number], counts[number]);
        for (size_t i = 0; i < counts[number]; i++) {
            CHECK_EQ(rounded[i], bf16_of(values[number][i]));
        }
        operands[number] = (gpt2_matrix){rounded, strides[number], what->transposed[number]};
    }
    const size_t results = shape->rows * shape->columns;
    for (size_t i = 0; i < results; i++) {
        old[i] = activation(2, i);
        got[0][i] = got[1][i] = shape->beta != 0 ? old[i] : NAN;
    }
    for (int turn = 0; turn < 2; turn++) {
        by->multiply(by, got[turn], operands[0], operands[1], shape);
    }
    gpt2_error error = {""};
    if (gpt2_dnnl_status(dnnl, &error) != ZERO_OK) {
        TEST_FAIL("%s", error.text);
    }
    check_result(got[0], old, what, &operands[0], &operands[1]);
    CHECK_EQ(memcmp(got[0], got[1], results * sizeof **got), 0);
}

/* threads: also more than there are CPUs. */
static void check_products(uint32_t threads)
{
    gpt2_dnnl *dnnl = create(LARGEST, threads);
    const size_t sizes[][3] = {{1, 37, 24}, {64, 96, 32}, {33, 1, 7}, {70, 37, 24}, {100, 64, 100}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int how = 0; how < 8; how++) {
            const float beta = how / 4 == 0 ? 0 : 1;
            check_product(dnnl, &(products_case){{sizes[i][0], sizes[i][1], sizes[i][2], 1, beta},
                                                 {how % 2 == 1, how / 2 % 2 == 1}});
        }
    }
    gpt2_dnnl_destroy(dnnl);
}

TEST_CALL(products_follow_double, check_products(1));
TEST_CALL(products_of_three_threads_follow_double, check_products(3));

/* More shapes than are kept, twice: the first ones have been given up meanwhile. */
TEST(products_that_were_given_up_are_made_again)
{
    gpt2_dnnl *dnnl = create(LARGEST, 1);
    for (size_t i = 0; i < 160; i++) {
        check_product(dnnl, &(products_case){{1 + i % 80, 8, 5, 1, 0}, {false, true}});
    }
    gpt2_dnnl_destroy(dnnl);
}

static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    CHECK(tasks != NULL);
    for (const struct dirent *it = readdir(tasks); it != NULL; it = readdir(tasks)) {
        count += it->d_name[0] != '.';
    }
    CHECK_EQ(closedir(tasks), 0);
    return count;
}

/* Threads that a product of a rank with `threads` has started; oneDNN's own default is all cores.
 */
static int threads_started(uint32_t threads)
{
    enum { SIDE = 512 };
    static float values[SIDE * SIDE];
    static float result[SIDE * SIDE];
    gpt2_dnnl *dnnl = create(SIDE * SIDE, threads);
    gpt2_multiplier *by = gpt2_dnnl_multiplier(dnnl);
    const int before = count_threads();
    const gpt2_matrix a = {by->operand(by, 0, values, SIDE * SIDE), SIDE, false};
    const gpt2_matrix b = {by->operand(by, 1, values, SIDE * SIDE), SIDE, false};
    by->multiply(by, result, a, b, &(gpt2_product){SIDE, SIDE, SIDE, 1, 0});
    const int after = count_threads();
    gpt2_dnnl_destroy(dnnl);
    return after - before;
}

TEST(a_product_has_the_threads_of_its_rank)
{
    CHECK_EQ(threads_started(1), 0);
    CHECK(threads_started(3) <= 2);
}

/* --- the backend without an engine ------------------------------------------------------------ */

/* Passes over bf16 parameters and fp32 gradients, by each library in turn. */
typedef struct passes {
    gpt2_case model;
    uint16_t *params;
    zero_view param_views[CASE_TENSORS_MAX];
    zero_view grad_views[CASE_TENSORS_MAX];
    double loss;
} passes;

static void head_views(const passes *it, const zero_view *views, zero_view *head)
{
    memcpy(head, &views[it->model.tensor_count - 2], 2 * sizeof *head);
    head[GPT2_HEAD_WTE] = views[GPT2_WTE];
}

static void run_backward(passes *it, void *space, const gpt2_backend *table)
{
    zero_view params[GPT2_HEAD_TENSORS];
    zero_view grads[GPT2_HEAD_TENSORS];
    head_views(it, it->param_views, params);
    head_views(it, it->grad_views, grads);
    CHECK_OK(table->head_backward(space, params, grads, 1));
    for (uint32_t layer = it->model.config.layers; layer-- > 0;) {
        const uint32_t first = GPT2_EMBED_TENSORS + layer * GPT2_BLOCK_TENSORS;
        CHECK_OK(
            table->block_backward(space, layer, it->param_views + first, it->grad_views + first));
    }
    CHECK_OK(table->embed_backward(space, it->grad_views));
}

static void run_passes(passes *it, void *space, const gpt2_backend *table)
{
    zero_view head[GPT2_HEAD_TENSORS];
    head_views(it, it->param_views, head);
    CHECK_OK(table->begin(space, &it->model.batch));
    CHECK_OK(table->embed_forward(space, it->param_views));
    for (uint32_t layer = 0; layer < it->model.config.layers; layer++) {
        const uint32_t first = GPT2_EMBED_TENSORS + layer * GPT2_BLOCK_TENSORS;
        CHECK_OK(table->block_forward(space, layer, it->param_views + first));
    }
    CHECK_OK(table->head_forward(space, head, true));
    CHECK_OK(table->loss(space, &it->loss));
    run_backward(it, space, table);
}

static void make_passes(passes *it, gpt2_library products)
{
    gpt2_error error = {""};
    const gpt2_backend *table = gpt2_cpu_backend(&error);
    case_create(&it->model, &reference_shape, 2, false);
    const gpt2_case *model = &it->model;
    it->params = calloc(model->first[model->tensor_count], sizeof *it->params);
    CHECK(it->params != NULL);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const size_t first = model->first[i];
        const size_t count = model->first[i + 1] - first;
        for (size_t j = first; j < first + count; j++) {
            it->params[j] = bf16_of(model->params[j]);
        }
        it->param_views[i] =
            (zero_view){.data = it->params + first, .count = count, .dtype = ZERO_DTYPE_BF16};
        it->grad_views[i] =
            (zero_view){.data = model->grads + first, .count = count, .dtype = ZERO_DTYPE_F32};
    }
    const gpt2_backend_setup setup = {.config = model->config,
                                      .dtype = ZERO_DTYPE_BF16,
                                      .grad_dtype = ZERO_DTYPE_F32,
                                      .samples = 2,
                                      .products = products,
                                      .error = &error};
    void *space = NULL;
    if (table->create(&setup, &space) != ZERO_OK) {
        TEST_FAIL("%s", error.text);
    }
    run_passes(it, space, table);
    table->destroy(space);
}

static void end_passes(passes *it)
{
    free(it->params);
    case_destroy(&it->model);
}

/* Activations rounded to bf16 are off by 2^-9 of their values at most, at random, so gradients by a
 * few times that of their norms; a wrong factor or term would be off by as much as they are. */
TEST(gradients_follow_those_of_blas)
{
    passes blas;
    passes dnnl;
    gpt2_dnnl_destroy(create(1, 1));
    make_passes(&blas, GPT2_LIBRARY_BLAS);
    make_passes(&dnnl, GPT2_LIBRARY_DNNL);
    CHECK_NEAR(dnnl.loss, blas.loss, 1e-3);
    CHECK(dnnl.loss != blas.loss);
    for (uint32_t i = 0; i < blas.model.tensor_count; i++) {
        double apart = 0;
        double norm = 0;
        for (size_t j = blas.model.first[i]; j < blas.model.first[i + 1]; j++) {
            apart += pow((double)dnnl.model.grads[j] - (double)blas.model.grads[j], 2);
            norm += pow((double)blas.model.grads[j], 2);
        }
        if (!(norm > 0 && apart > 0 && sqrt(apart / norm) < 0.02)) {
            TEST_FAIL("%s: off by %g of %g", blas.model.tensors[i].name, sqrt(apart), sqrt(norm));
        }
    }
    end_passes(&blas);
    end_passes(&dnnl);
}

/* --- training --------------------------------------------------------------------------------- */

static history train_by_dnnl(uint32_t ranks, zero_stage stage, bool recompute)
{
    return train((setting){.ranks = ranks,
                           .dtype = ZERO_DTYPE_BF16,
                           .stage = stage,
                           .recompute = recompute,
                           .products = GPT2_LIBRARY_DNNL});
}

TEST(training_stays_near_pytorch)
{
    gpt2_dnnl_destroy(create(1, 1));
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        const history past = train_by_dnnl(ranks, ZERO_STAGE_3, false);
        check_reference(&past, 0.05, 0.5);
    }
}

/* Stage 0 shards nothing. */
TEST(every_stage_gives_the_same_bits_by_dnnl)
{
    gpt2_dnnl_destroy(create(1, 1));
    const history whole = train_by_dnnl(2, ZERO_STAGE_0, false);
    for (int stage = ZERO_STAGE_1; stage <= ZERO_STAGE_3; stage++) {
        const history sharded = train_by_dnnl(2, (zero_stage)stage, false);
        check_same(&whole, &sharded);
    }
    const history recomputed = train_by_dnnl(2, ZERO_STAGE_3, true);
    check_same(&whole, &recomputed);
}

TEST(a_run_by_dnnl_repeats_itself)
{
    gpt2_dnnl_destroy(create(1, 1));
    const history once = train_by_dnnl(2, ZERO_STAGE_2, false);
    const history twice = train_by_dnnl(2, ZERO_STAGE_2, false);
    check_same(&once, &twice);
}
