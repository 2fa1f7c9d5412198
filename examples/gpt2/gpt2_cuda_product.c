/* cuBLASLt's matrices are column-major, so a row-major product is made as its transpose: out' =
 * right' left', with row-major memory read as the transposed column-major matrix. */
#include "gpt2_cuda_product.h"

#include <stdlib.h>
#include <string.h>

/* The properties that decide on descriptors and algorithm. Filled with zeros first, compared as
 * bytes. */
typedef struct kind {
    uint64_t rows;
    uint64_t columns;
    uint64_t inner;
    uint64_t left_stride;
    uint64_t right_stride;
    uint64_t out_stride;
    uint32_t left_turned;
    uint32_t right_turned;
    uint32_t dtype;
    uint32_t out_dtype;
    uint32_t left_align; /* bytes that addresses are multiples of, at most 256 */
    uint32_t right_align;
    uint32_t added_align;
    uint32_t out_align;
    uint32_t vector_align; /* of bias or sums; 0: neither */
    uint32_t before_align; /* 0: not read, nor written */
    uint32_t end;
    uint32_t unused;
} kind;

struct gpt2_product_plan {
    kind what;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t left;
    cublasLtMatrixLayout_t right;
    cublasLtMatrixLayout_t out; /* and added */
    cublasLtMatmulAlgo_t algorithm;
};

static bool check(cublasStatus_t status, const char *what, gpt2_error *error)
{
    return status == CUBLAS_STATUS_SUCCESS ||
           gpt2_fail(error, "%s: cuBLASLt says %s", what, cublasLtGetStatusString(status));
}

bool gpt2_products_create(gpt2_products *products, bool tf32, void *workspace,
                          size_t workspace_bytes, gpt2_error *error)
{
    memset(products, 0, sizeof *products);
    products->compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    products->workspace = workspace;
    products->workspace_bytes = workspace_bytes;
    products->plans = calloc(GPT2_PRODUCT_PLANS, sizeof *products->plans);
    if (products->plans == NULL) {
        return gpt2_fail(error, "no host memory for the plans of matrix products");
    }
    return check(cublasLtCreate(&products->handle), "cublasLtCreate", error);
}

/* --- plans ------------------------------------------------------------------------------------ */

static void plan_destroy(gpt2_product_plan *plan)
{
    if (plan->product != NULL) {
        (void)cublasLtMatmulDescDestroy(plan->product);
    }
    cublasLtMatrixLayout_t layouts[3] = {plan->left, plan->right, plan->out};
    for (int i = 0; i < 3; i++) {
        if (layouts[i] != NULL) {
            (void)cublasLtMatrixLayoutDestroy(layouts[i]);
        }
    }
    memset(plan, 0, sizeof *plan);
}

void gpt2_products_destroy(gpt2_products *products)
{
    for (uint32_t i = 0; products->plans != NULL && i < GPT2_PRODUCT_PLANS; i++) {
        plan_destroy(&products->plans[i]);
    }
    free(products->plans);
    if (products->handle != NULL) {
        (void)cublasLtDestroy(products->handle);
    }
    memset(products, 0, sizeof *products);
}

/* The largest power of two, at most 256, that the address is a multiple of. */
static uint32_t align_of(const void *pointer)
{
    const uintptr_t bits = (uintptr_t)pointer | 256;
    return (uint32_t)(bits & (~bits + 1));
}

/* To cuBLASLt a bias and sums of columns are one thing, which is read or written. */
static const void *vector_of(const gpt2_product_job *job)
{
    return job->bias != NULL ? job->bias : job->sums;
}

static kind kind_of(const gpt2_product_job *job)
{
    kind what;
    memset(&what, 0, sizeof what);
    what.rows = job->rows;
    what.columns = job->columns;
    what.inner = job->inner;
    what.left_stride = job->left.stride;
    what.right_stride = job->right.stride;
    what.out_stride = job->out_stride;
    what.left_turned = job->left.turned;
    what.right_turned = job->right.turned;
    what.dtype = job->dtype;
    what.out_dtype = job->out_dtype;
    what.left_align = align_of(job->left.at);
    what.right_align = align_of(job->right.at);
    what.added_align = align_of(job->beta != 0.0f ? job->added : job->out);
    what.out_align = align_of(job->out);
    what.vector_align = vector_of(job) != NULL ? align_of(vector_of(job)) : 0;
    what.before_align = job->before != NULL ? align_of(job->before) : 0;
    what.end = job->end;
    return what;
}

static cudaDataType_t type_of(uint32_t dtype)
{
    return dtype == ZERO_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* A row-major rows x columns matrix is, to cuBLASLt, a columns x rows one. */
static cublasStatus_t layout_create(cublasLtMatrixLayout_t *layout, uint32_t dtype, uint64_t rows,
                                    uint64_t columns, uint64_t stride)
{
    return cublasLtMatrixLayoutCreate(layout, type_of(dtype), columns, rows, (int64_t)stride);
}

/* Rows and columns as they lie in memory, whatever transpose is meant. */
static cublasStatus_t layouts_create(gpt2_product_plan *plan)
{
    const kind *it = &plan->what;
    const uint64_t left_rows = it->left_turned ? it->inner : it->rows;
    const uint64_t left_columns = it->left_turned ? it->rows : it->inner;
    const uint64_t right_rows = it->right_turned ? it->columns : it->inner;
    const uint64_t right_columns = it->right_turned ? it->inner : it->columns;
    cublasStatus_t status =
        layout_create(&plan->left, it->dtype, left_rows, left_columns, it->left_stride);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status =
            layout_create(&plan->right, it->dtype, right_rows, right_columns, it->right_stride);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout_create(&plan->out, it->out_dtype, it->rows, it->columns, it->out_stride);
    }
    return status;
}

static cublasStatus_t set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t which,
                          const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(product, which, value, bytes);
}

/* cuBLASLt's A is our right factor, so sums of that one's columns are A's. */
static cublasLtEpilogue_t epilogue_of(const kind *it)
{
    switch ((gpt2_product_end)it->end) {
    case GPT2_END_GELU:
        return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GPT2_END_GELU_GRAD:
        return CUBLASLT_EPILOGUE_DGELU;
    case GPT2_END_SUMS:
        return CUBLASLT_EPILOGUE_BGRADA;
    case GPT2_END_NONE:
    case GPT2_ENDS:
        break;
    }
    return it->vector_align != 0 ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* The addresses that a descriptor has, and not a call. */
static cublasStatus_t set_addresses(gpt2_product_plan *plan, const gpt2_product_job *job)
{
    const void *vector = vector_of(job);
    const void *before = job->before;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (vector != NULL) {
        status = set(plan->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
    }
    if (status == CUBLAS_STATUS_SUCCESS && before != NULL) {
        status =
            set(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &before, sizeof before);
    }
    return status;
}

/* cuBLASLt's A is our right factor and its B the left one. */
static cublasStatus_t product_create(gpt2_product_plan *plan, cublasComputeType_t compute)
{
    const kind *it = &plan->what;
    const cublasOperation_t first = it->right_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = it->left_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(it);
    const int64_t before_stride = (int64_t)it->out_stride;
    cublasStatus_t status = cublasLtMatmulDescCreate(&plan->product, compute, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = set(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = set(plan->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = set(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    }
    if (status == CUBLAS_STATUS_SUCCESS && it->before_align != 0) {
        status = set(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &before_stride,
                     sizeof before_stride);
    }
    return status;
}

/* Only algorithms that these alignments and the workspace allow, and that keep partial sums in
 * fp32: cuBLASLt may else split the inner size and round every part to the output's type. */
static cublasStatus_t restrict_choice(cublasLtMatmulPreference_t choice, const kind *it,
                                      uint64_t workspace_bytes)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t which;
        uint32_t value;
    } wanted[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, it->right_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, it->left_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, it->added_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, it->out_align},
    };
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
        choice, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == CUBLAS_STATUS_SUCCESS;
         i++) {
        status = cublasLtMatmulPreferenceSetAttribute(choice, wanted[i].which, &wanted[i].value,
                                                      sizeof wanted[i].value);
    }
    return status;
}

static cublasStatus_t choose_algorithm(const gpt2_products *products, gpt2_product_plan *plan)
{
    cublasLtMatmulPreference_t choice = NULL;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&choice);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    memset(&found, 0, sizeof found);
    status = restrict_choice(choice, &plan->what, products->workspace_bytes);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status =
            cublasLtMatmulAlgoGetHeuristic(products->handle, plan->product, plan->right, plan->left,
                                           plan->out, plan->out, choice, 1, &found, &count);
    }
    (void)cublasLtMatmulPreferenceDestroy(choice);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = count > 0 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED;
    }
    plan->algorithm = found.algo;
    return status;
}

/* Names all that cuBLASLt decides by, since any of it may be what it does not take. */
static void refuse(const gpt2_products *products, const gpt2_product_job *job, const kind *it,
                   cublasStatus_t status, gpt2_error *error)
{
    static const char *const ends[GPT2_ENDS] = {"", " with GELU", " with GELU's gradient",
                                                " with sums of columns"};
    (void)gpt2_fail(
        error,
        "no matrix product (%llu x %llu) (%llu x %llu) of %s%s%s into %s%s%s%s%s "
        "(strides %llu, %llu, %llu; "
        "alignments %u, %u, %u, %u, %u, %u; workspace %zu): cuBLASLt %zu says %s",
        (unsigned long long)it->rows, (unsigned long long)it->inner, (unsigned long long)it->inner,
        (unsigned long long)it->columns, zero_dtype_name(job->dtype),
        it->left_turned ? ", left transposed" : "", it->right_turned ? ", right transposed" : "",
        zero_dtype_name(job->out_dtype), job->bias != NULL ? " with a bias" : "",
        job->beta != 0.0f ? " with a sum" : "", ends[job->end],
        products->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? " in TF32" : "",
        (unsigned long long)it->left_stride, (unsigned long long)it->right_stride,
        (unsigned long long)it->out_stride, it->left_align, it->right_align, it->added_align,
        it->out_align, it->vector_align, it->before_align, products->workspace_bytes,
        cublasLtGetVersion(), cublasLtGetStatusString(status));
}

static gpt2_product_plan *find_plan(gpt2_products *products, const gpt2_product_job *job,
                                    gpt2_error *error)
{
    const kind what = kind_of(job);
    for (uint32_t i = 0; i < GPT2_PRODUCT_PLANS && i < products->plan_count; i++) {
        if (memcmp(&products->plans[i].what, &what, sizeof what) == 0) {
            return &products->plans[i];
        }
    }
    gpt2_product_plan *plan = &products->plans[products->plan_count % GPT2_PRODUCT_PLANS];
    plan_destroy(plan);
    plan->what = what;
    cublasStatus_t status = product_create(plan, products->compute);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = set_addresses(plan, job);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layouts_create(plan);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = choose_algorithm(products, plan);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        plan_destroy(plan);
        refuse(products, job, &what, status, error);
        return NULL;
    }
    products->plan_count++;
    return plan;
}

/* --- products --------------------------------------------------------------------------------- */

bool gpt2_product_is_possible(gpt2_products *products, const gpt2_product_job *job)
{
    gpt2_error unused;
    return find_plan(products, job, &unused) != NULL;
}

bool gpt2_product(gpt2_products *products, cudaStream_t stream, const gpt2_product_job *job,
                  gpt2_error *error)
{
    gpt2_product_plan *plan = find_plan(products, job, error);
    if (plan == NULL) {
        return false;
    }
    if (!check(set_addresses(plan, job), "addresses of a matrix product", error)) {
        return false;
    }
    const void *added = job->beta != 0.0f ? job->added : job->out;
    const cublasStatus_t status =
        cublasLtMatmul(products->handle, plan->product, &job->alpha, job->right.at, plan->right,
                       job->left.at, plan->left, &job->beta, added, plan->out, job->out, plan->out,
                       &plan->algorithm, products->workspace, products->workspace_bytes, stream);
    if (status != CUBLAS_STATUS_SUCCESS) {
        refuse(products, job, &plan->what, status, error);
    }
    return status == CUBLAS_STATUS_SUCCESS;
}
