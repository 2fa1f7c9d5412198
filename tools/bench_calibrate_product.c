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

static float *make_matrix(size_t count)
{
    float *matrix = malloc(count * sizeof *matrix);
    for (size_t i = 0; i < count && matrix != NULL; i++) {
        matrix[i] = (float)(i % 17) * 0.125f - 1.0f;
    }
    return matrix;
}

calibrate_product *calibrate_product_create(bench_scale scale, const char **missing)
{
    static const int squares[] = {1024, 768, 96};
    static const int widths[] = {768, 384, 64};
    static const int tokens[] = {512, 512, 64};
    calibrate_product *product = calloc(1, sizeof *product);
    *missing = NULL;
    if (product == NULL) {
        return NULL;
    }
    product->square = squares[scale];
    product->width = widths[scale];
    product->tokens = tokens[scale];
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

double calibrate_product_flops(const calibrate_product *product, calibrate_shape shape)
{
    const double side = product->square;
    const double block = 12.0 * product->width * product->width; /* elements of the matrices */
    return shape == CALIBRATE_SQUARE ? 2.0 * side * side * side : 6.0 * block * product->tokens;
}

/* Rows of out = left right, or right^T. left: rows x inner. */
static void multiply(const calibrate_product *p, CBLAS_TRANSPOSE transpose, const int sizes[3],
                     uint32_t part, uint32_t parts)
{
    const int first = (int)((uint64_t)sizes[0] * part / parts);
    const int end = (int)((uint64_t)sizes[0] * (part + 1) / parts);
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
static void multiply_weight(const calibrate_product *p, const int sizes[3], uint32_t part,
                            uint32_t parts)
{
    const int first = (int)((uint64_t)sizes[0] * part / parts);
    const int end = (int)((uint64_t)sizes[0] * (part + 1) / parts);
    if (end > first) {
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, end - first, sizes[2], sizes[1], 1.0f,
                    p->left + first, sizes[0], p->right, sizes[2], 0.0f,
                    p->out + (size_t)first * (size_t)sizes[2], sizes[2]);
    }
}

void calibrate_product_run(const calibrate_product *product, calibrate_shape shape, uint32_t part,
                           uint32_t parts)
{
    if (shape == CALIBRATE_SQUARE) {
        const int side = product->square;
        multiply(product, CblasNoTrans, (const int[]){side, side, side}, part, parts);
        return;
    }
    for (int i = 0; i < MATRICES; i++) {
        const int from = block_from[i] * product->width;
        const int to = block_to[i] * product->width;
        const int tokens = product->tokens;
        multiply(product, CblasTrans, (const int[]){tokens, from, to}, part, parts);
        multiply(product, CblasNoTrans, (const int[]){tokens, to, from}, part, parts);
        multiply_weight(product, (const int[]){to, tokens, from}, part, parts);
    }
}
