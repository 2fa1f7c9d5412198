/* Products by oneDNN. Each shape of a product is one of its primitives, made when it first comes
 * and kept: a model has some twenty.
 *
 * Invariant: `status` is that of the first call that failed, and nothing is multiplied after it. */
#include "gpt2_dnnl.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shapes that are kept; beyond them the oldest gives way. Sampling has five for each length. */
enum { PRODUCTS_MAX = 64 };

/* The OpenMP that oneDNN runs on: threads of what this thread starts. */
extern void omp_set_num_threads(int threads);

typedef struct product {
    gpt2_product shape;
    bool transposed[2];
    dnnl_primitive_t primitive; /* NULL: none */
    dnnl_memory_t a;
    dnnl_memory_t b;
    dnnl_memory_t c;
} product;

struct gpt2_dnnl {
    gpt2_multiplier multiplier; /* first: its calls get it */
    const gpt2_ops *ops;
    uint16_t *operands[2];
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    product products[PRODUCTS_MAX];
    size_t made; /* products so far, also those that gave way */
    dnnl_status_t status;
};

/* --- the two interfaces of oneDNN ------------------------------------------------------------- */

/* In versions 1 and 2 a memory's description is a value, and so is that of an operation; since 3 a
 * description is an object, and an operation has none. */
#if DNNL_VERSION_MAJOR >= 3
#define SINCE_3 1
#else
#define SINCE_3 0
#endif

static dnnl_status_t describe(dnnl_memory_desc_t *about, const dnnl_dims_t dims,
                              dnnl_data_type_t type, const dnnl_dims_t strides)
{
#if SINCE_3
    return dnnl_memory_desc_create_with_strides(about, 2, dims, type, strides);
#else
    return dnnl_memory_desc_init_by_strides(about, 2, dims, type, strides);
#endif
}

static void forget(dnnl_memory_desc_t *about)
{
#if SINCE_3
    (void)dnnl_memory_desc_destroy(*about);
#else
    (void)about;
#endif
}

static dnnl_status_t make_memory(dnnl_memory_t *memory, const dnnl_memory_desc_t *about,
                                 dnnl_engine_t engine)
{
#if SINCE_3
    return dnnl_memory_create(memory, *about, engine, DNNL_MEMORY_NONE);
#else
    return dnnl_memory_create(memory, about, engine, DNNL_MEMORY_NONE);
#endif
}

static dnnl_status_t add_to_old(dnnl_post_ops_t after)
{
#if SINCE_3
    return dnnl_post_ops_append_sum(after, 1, 0, dnnl_data_type_undef);
#else
    return dnnl_post_ops_append_sum(after, 1);
#endif
}

/* abc: descriptions of a, b and c. */
static dnnl_status_t describe_product(dnnl_primitive_desc_t *about, const dnnl_memory_desc_t *abc,
                                      const_dnnl_primitive_attr_t attributes, dnnl_engine_t engine)
{
#if SINCE_3
    return dnnl_matmul_primitive_desc_create(about, engine, abc[0], abc[1], NULL, abc[2],
                                             attributes);
#else
    dnnl_matmul_desc_t operation;
    const dnnl_status_t status = dnnl_matmul_desc_init(&operation, &abc[0], &abc[1], NULL, &abc[2]);
    return status != dnnl_success
               ? status
               : dnnl_primitive_desc_create(about, &operation, attributes, engine, NULL);
#endif
}

/* --- products --------------------------------------------------------------------------------- */

/* Do the calls up to the first that fails. */
#define NEXT(status, call)              \
    do {                                \
        if ((status) == dnnl_success) { \
            (status) = (call);          \
        }                               \
    } while (0)

/* A matrix of `rows` x `columns` as an operand, contiguous. */
static dnnl_status_t describe_matrix(dnnl_memory_desc_t *about, size_t rows, size_t columns,
                                     bool transposed, dnnl_data_type_t type)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    const dnnl_dims_t along = {(dnnl_dim_t)columns, 1};
    const dnnl_dims_t across = {1, (dnnl_dim_t)rows};
    return describe(about, dims, type, transposed ? across : along);
}

/* adds: the result is added to what is there. */
static dnnl_status_t make_attributes(bool adds, dnnl_primitive_attr_t *attributes)
{
    dnnl_post_ops_t after = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attributes);
    if (adds) {
        NEXT(status, dnnl_post_ops_create(&after));
        NEXT(status, add_to_old(after));
        NEXT(status, dnnl_primitive_attr_set_post_ops(*attributes, after));
        (void)dnnl_post_ops_destroy(after);
    }
    return status;
}

static void destroy_product(product *it)
{
    (void)dnnl_primitive_destroy(it->primitive);
    (void)dnnl_memory_destroy(it->a);
    (void)dnnl_memory_destroy(it->b);
    (void)dnnl_memory_destroy(it->c);
    memset(it, 0, sizeof *it);
}

static dnnl_status_t create_primitive(product *it, const dnnl_memory_desc_t *abc,
                                      dnnl_engine_t engine)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t about = NULL;
    dnnl_status_t status = make_attributes(it->shape.beta != 0, &attributes);
    NEXT(status, describe_product(&about, abc, attributes, engine));
    NEXT(status, dnnl_primitive_create(&it->primitive, about));
    NEXT(status, make_memory(&it->a, &abc[0], engine));
    NEXT(status, make_memory(&it->b, &abc[1], engine));
    NEXT(status, make_memory(&it->c, &abc[2], engine));
    (void)dnnl_primitive_desc_destroy(about);
    (void)dnnl_primitive_attr_destroy(attributes);
    return status;
}

/* `it` has its shape. */
static dnnl_status_t create_product(product *it, dnnl_engine_t engine)
{
    const gpt2_product *shape = &it->shape;
    const size_t rows[3] = {shape->rows, shape->inner, shape->rows};
    const size_t columns[3] = {shape->inner, shape->columns, shape->columns};
    const bool transposed[3] = {it->transposed[0], it->transposed[1], false};
    dnnl_memory_desc_t abc[3];
    dnnl_status_t status = dnnl_success;
    size_t described = 0;
    while (status == dnnl_success && described < 3) {
        status = describe_matrix(&abc[described], rows[described], columns[described],
                                 transposed[described], described < 2 ? dnnl_bf16 : dnnl_f32);
        described += status == dnnl_success;
    }
    NEXT(status, create_primitive(it, abc, engine));
    while (described > 0) {
        forget(&abc[--described]);
    }
    return status;
}

static bool is_same(const product *left, const product *right)
{
    return left->shape.rows == right->shape.rows && left->shape.columns == right->shape.columns &&
           left->shape.inner == right->shape.inner && left->shape.beta == right->shape.beta &&
           left->transposed[0] == right->transposed[0] &&
           left->transposed[1] == right->transposed[1];
}

/* The primitive of a shape; NULL: self->status says why there is none. */
static product *product_of(gpt2_dnnl *self, const product *wanted)
{
    const size_t kept = self->made < PRODUCTS_MAX ? self->made : PRODUCTS_MAX;
    for (size_t i = 0; i < kept; i++) {
        if (is_same(&self->products[i], wanted)) {
            return &self->products[i];
        }
    }
    product *it = &self->products[self->made++ % PRODUCTS_MAX];
    destroy_product(it);
    *it = *wanted;
    self->status = create_product(it, self->engine);
    return self->status == dnnl_success ? it : NULL;
}

static void multiply(gpt2_multiplier *multiplier, gpt2_real *c, gpt2_matrix a, gpt2_matrix b,
                     const gpt2_product *shape)
{
    gpt2_dnnl *self = (gpt2_dnnl *)multiplier;
    const product wanted = {.shape = *shape, .transposed = {a.transposed, b.transposed}};
    product *it = self->status == dnnl_success ? product_of(self, &wanted) : NULL;
    if (it == NULL) {
        return;
    }
    /* oneDNN takes what it only reads as void * too. */
    NEXT(self->status, dnnl_memory_set_data_handle(it->a, (void *)(uintptr_t)a.at));
    NEXT(self->status, dnnl_memory_set_data_handle(it->b, (void *)(uintptr_t)b.at));
    NEXT(self->status, dnnl_memory_set_data_handle(it->c, c));
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, it->a}, {DNNL_ARG_WEIGHTS, it->b}, {DNNL_ARG_DST, it->c}};
    NEXT(self->status, dnnl_primitive_execute(it->primitive, self->stream, 3, arguments));
    NEXT(self->status, dnnl_stream_wait(self->stream));
}

static const void *operand(gpt2_multiplier *multiplier, int number, const gpt2_real *values,
                           size_t count)
{
    gpt2_dnnl *self = (gpt2_dnnl *)multiplier;
    self->ops->narrow_bf16(self->operands[number], values, count);
    return self->operands[number];
}

/* --- creation --------------------------------------------------------------------------------- */

static bool has_isa(dnnl_cpu_isa_t isa)
{
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

bool gpt2_dnnl_is_fast(void)
{
    return has_isa(dnnl_cpu_isa_avx512_core_bf16);
}

const char *gpt2_dnnl_text(char *text, size_t bytes)
{
    const dnnl_version_t *version = dnnl_version();
    (void)snprintf(text, bytes, "oneDNN %d.%d.%d, %s", version->major, version->minor,
                   version->patch,
                   has_isa(dnnl_cpu_isa_avx512_core_amx) ? "AMX"
                   : gpt2_dnnl_is_fast()                 ? "AVX-512 BF16"
                                         : "slow, this CPU has no instructions for bf16");
    return text;
}

void gpt2_dnnl_destroy(gpt2_dnnl *self)
{
    if (self == NULL) {
        return;
    }
    for (size_t i = 0; i < PRODUCTS_MAX; i++) {
        destroy_product(&self->products[i]);
    }
    (void)dnnl_stream_destroy(self->stream);
    (void)dnnl_engine_destroy(self->engine);
    free(self->operands[0]);
    free(self->operands[1]);
    free(self);
}

/* Makes the smallest product, so that a CPU on which oneDNN has none is found out before the first
 * step. */
static dnnl_status_t open_library(gpt2_dnnl *self)
{
    const product smallest = {.shape = {1, 1, 1, 1, 0}};
    dnnl_status_t status = dnnl_engine_create(&self->engine, dnnl_cpu, 0);
    NEXT(status, dnnl_stream_create(&self->stream, self->engine, dnnl_stream_default_flags));
    if (status == dnnl_success && product_of(self, &smallest) == NULL) {
        status = self->status;
    }
    return status;
}

static zero_status no_memory(gpt2_error *error)
{
    (void)gpt2_fail(error, "no memory for products by oneDNN; make --batch, --seq or --width "
                           "smaller, --micro-steps larger, or use --products blas");
    return ZERO_ERR_OUT_OF_MEMORY;
}

zero_status gpt2_dnnl_create(const gpt2_ops *ops, const size_t counts[2], uint32_t threads,
                             gpt2_error *error, gpt2_dnnl **dnnl)
{
    gpt2_dnnl *self = calloc(1, sizeof *self);
    bool whole = self != NULL;
    *dnnl = NULL;
    for (int i = 0; i < 2 && whole; i++) {
        self->operands[i] =
            aligned_alloc(64, (counts[i] * sizeof *self->operands[i] + 63) / 64 * 64);
        whole = self->operands[i] != NULL;
    }
    if (!whole) {
        gpt2_dnnl_destroy(self);
        return no_memory(error);
    }
    self->multiplier = (gpt2_multiplier){operand, multiply};
    self->ops = ops;
    omp_set_num_threads(threads == 0 ? 1 : (int)threads);
    self->status = open_library(self);
    const zero_status status = gpt2_dnnl_status(self, error);
    if (status != ZERO_OK) {
        gpt2_dnnl_destroy(self);
        return status;
    }
    *dnnl = self;
    return ZERO_OK;
}

gpt2_multiplier *gpt2_dnnl_multiplier(gpt2_dnnl *self)
{
    return &self->multiplier;
}

zero_status gpt2_dnnl_status(const gpt2_dnnl *self, gpt2_error *error)
{
    char library[80];
    if (self->status == dnnl_success) {
        return ZERO_OK;
    }
    if (self->status == dnnl_out_of_memory) {
        return no_memory(error);
    }
    if (self->status == dnnl_unimplemented) {
        (void)gpt2_fail(error,
                        "--products dnnl: %s, multiplies no bf16 here: it needs AVX-512; use "
                        "--products blas",
                        gpt2_dnnl_text(library, sizeof library));
        return ZERO_ERR_UNSUPPORTED;
    }
    (void)gpt2_fail(error, "%s: a product failed with status %d; use --products blas",
                    gpt2_dnnl_text(library, sizeof library), (int)self->status);
    return ZERO_ERR_UNSUPPORTED;
}
