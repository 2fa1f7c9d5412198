/* Owns the matrix products that calibration measures: OpenBLAS, in fp32, as the examples use it.
 * Each caller computes rows of its own with one thread of BLAS, so that ranks do not wait for its
 * lock. */
#include <cblas.h>
#include <pthread.h>
#include <stdlib.h>

#include "bench_block.h"
#include "bench_calibrate.h"

/* A block of GPT-2: four matrices, in widths. */
static const int block_from[] = {1, 1, 1, 4};
static const int block_to[] = {3, 1, 4, 1};
#define MATRICES 4

/* Attention goes over rows of one head at a time, as the GPT example's does. */
#define HEAD_ROWS 64
#define HEAD_TOKENS 256
#define LINE_BYTES ((size_t)64)

struct calibrate_product {
    int square; /* rows and columns */
    int width;
    int tokens;
    float *left; /* each as large as the largest matrix */
    float *right;
    float *out;
};

void calibrate_product_destroy(calibrate_product *product)
{
    if (product != NULL) {
        free(product->left);
        free(product->right);
        free(product->out);
        free(product);
    }
}

/* Ranks are threads, and the setting is the process's. */
static pthread_once_t single_thread = PTHREAD_ONCE_INIT;

/* On cache lines, as trainers' are: short products read matrices where they lie. */
static float *make_matrix(size_t count)
{
    const size_t lines = (count * sizeof(float) + LINE_BYTES - 1) / LINE_BYTES;
    float *matrix = aligned_alloc(LINE_BYTES, lines * LINE_BYTES);
    for (size_t i = 0; i < count && matrix != NULL; i++) {
        matrix[i] = (float)(i % 17) * 0.125f - 1.0f;
    }
    return matrix;
}

calibrate_product *calibrate_product_create(const calibration *all, const char **missing)
{
    static const int squares[] = {1024, 768, 96};
    static const int widths[] = {768, 384, 64};
    static const int tokens[] = {512, 512, 64};
    calibrate_product *product = calloc(1, sizeof *product);
    *missing = NULL;
    if (product == NULL) {
        return NULL;
    }
    product->square = squares[all->scale];
    product->width = all->width != 0 ? (int)all->width : widths[all->scale];
    product->tokens = all->tokens != 0 ? (int)all->tokens : tokens[all->scale];
    const size_t square = (size_t)product->square * (size_t)product->square;
    const size_t weights = 4 * (size_t)product->width * (size_t)product->width;
    const size_t activations = 4 * (size_t)product->width * (size_t)product->tokens;
    const size_t block = weights > activations ? weights : activations;
    const size_t count = square > block ? square : block;
    product->left = make_matrix(count);
    product->right = make_matrix(count);
    product->out = make_matrix(count);
    if (product->left == NULL || product->right == NULL || product->out == NULL) {
        calibrate_product_destroy(product);
        return NULL;
    }
    (void)pthread_once(&single_thread, block_single_thread);
    return product;
}

/* Tokens of the sample that attention is measured over. */
static int head_tokens(const calibrate_product *product)
{
    return product->tokens < HEAD_TOKENS ? product->tokens : HEAD_TOKENS;
}

double calibrate_product_flops(const calibrate_product *product, calibrate_shape shape)
{
    const double side = product->square;
    const double block = 12.0 * product->width * product->width; /* elements of the matrices */
    const double tokens = head_tokens(product);
    switch (shape) {
    case CALIBRATE_SQUARE:
        return 2.0 * side * side * side;
    case CALIBRATE_BLOCK:
        return 6.0 * block * product->tokens;
    case CALIBRATE_HEADS:
    default: /* two products forward; backward those of the scores again, and four */
        return 14.0 * tokens * tokens * product->width;
    }
}

/* Rows of out = left right, or right^T. left: rows x inner. */
static void multiply(const calibrate_product *p, CBLAS_TRANSPOSE transpose, const int sizes[3],
                     uint32_t share, uint32_t shares)
{
    const int first = (int)((uint64_t)sizes[0] * share / shares);
    const int end = (int)((uint64_t)sizes[0] * (share + 1) / shares);
    const int inner = sizes[1];
    const int columns = sizes[2];
    if (end > first) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, transpose, end - first, columns, inner, 1.0f,
                    p->left + (size_t)first * (size_t)inner, inner, p->right,
                    transpose == CblasTrans ? inner : columns, 0.0f,
                    p->out + (size_t)first * (size_t)columns, columns);
    }
}

/* Rows of out = left^T right, the gradient of a weight. left: inner x rows. */
static void multiply_weight(const calibrate_product *p, const int sizes[3], uint32_t share,
                            uint32_t shares)
{
    const int first = (int)((uint64_t)sizes[0] * share / shares);
    const int end = (int)((uint64_t)sizes[0] * (share + 1) / shares);
    if (end > first) {
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, end - first, sizes[2], sizes[1], 1.0f,
                    p->left + first, sizes[0], p->right, sizes[2], 0.0f,
                    p->out + (size_t)first * (size_t)sizes[2], sizes[2]);
    }
}

/* c = a b, with strides. */
static void multiply_head(const float *a, int a_stride, const float *b, int b_stride, float *c,
                          int c_stride, const int sizes[3], const CBLAS_TRANSPOSE transposes[2])
{
    cblas_sgemm(CblasRowMajor, transposes[0], transposes[1], sizes[0], sizes[2], sizes[1], 1.0f, a,
                a_stride, b, b_stride, 0.0f, c, c_stride);
}

/* A head's rows from `first` on, which see the columns up to their last one: scores twice and
 * their gradient (rows x columns), what they weigh and the gradient of queries (rows x head), those
 * of keys and values (columns x head). Queries, keys and values lie side by side. */
static void multiply_rows(const calibrate_product *p, int head, int first, int rows)
{
    static const CBLAS_TRANSPOSE along[] = {CblasNoTrans, CblasTrans};
    static const CBLAS_TRANSPOSE across[] = {CblasNoTrans, CblasNoTrans};
    static const CBLAS_TRANSPOSE back[] = {CblasTrans, CblasNoTrans};
    const int depth = CALIBRATE_HEAD_WIDTH;
    const int columns = first + rows;
    const int stride = 3 * p->width;
    const float *query = p->left + (size_t)first * (size_t)stride + head * depth;
    const float *key = p->left + p->width + head * depth;
    for (int i = 0; i < 3; i++) {
        multiply_head(query, stride, key, stride, p->right, columns, (int[]){rows, depth, columns},
                      along);
    }
    for (int i = 0; i < 2; i++) {
        multiply_head(p->right, columns, key, stride, p->out, stride, (int[]){rows, columns, depth},
                      across);
        multiply_head(p->right, columns, query, stride, p->out, stride,
                      (int[]){columns, rows, depth}, back);
    }
}

static void multiply_heads(const calibrate_product *p)
{
    const int tokens = head_tokens(p);
    for (int head = 0; head < p->width / CALIBRATE_HEAD_WIDTH; head++) {
        for (int first = 0; first < tokens; first += HEAD_ROWS) {
            multiply_rows(p, head, first, tokens - first < HEAD_ROWS ? tokens - first : HEAD_ROWS);
        }
    }
}

void calibrate_product_run(const calibrate_product *product, calibrate_shape shape, uint32_t share,
                           uint32_t shares)
{
    if (shape == CALIBRATE_SQUARE) {
        const int side = product->square;
        multiply(product, CblasNoTrans, (const int[]){side, side, side}, share, shares);
        return;
    }
    if (shape == CALIBRATE_HEADS) {
        multiply_heads(product);
        return;
    }
    for (int i = 0; i < MATRICES; i++) {
        const int from = block_from[i] * product->width;
        const int to = block_to[i] * product->width;
        const int tokens = product->tokens;
        multiply(product, CblasTrans, (const int[]){tokens, from, to}, share, shares);
        multiply(product, CblasNoTrans, (const int[]){tokens, to, from}, share, shares);
        multiply_weight(product, (const int[]){to, tokens, from}, share, shares);
    }
}
