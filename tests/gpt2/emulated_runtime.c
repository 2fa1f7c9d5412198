/* The calls of the CUDA backend to the CUDA runtime and to cuBLASLt, on the CPU: device memory is
 * host memory, and all is done at once but copies to the host, which are done when the host waits.
 * Products are loops over column-major matrices, as cuBLASLt defines them: types by the table of
 * cublasLtMatmul's manual, and an algorithm as careless as the preferences let it be. Epilogues are
 * those of BIAS, GELU_AUX_BIAS, DGELU and BGRADA. */
#include "emulated_runtime.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bf16.h"

emulated_limits emulated_limit;

/* --- runtime ---------------------------------------------------------------------------------- */

enum { COPIES_MAX = 16 };

typedef struct copy {
    void *to;
    const void *from;
    size_t bytes;
} copy;

/* Copies to the host that this thread has not waited for. */
static _Thread_local copy pending[COPIES_MAX];
static _Thread_local size_t pending_count;

static cudaError_t flush(void)
{
    for (size_t i = 0; i < pending_count; i++) {
        memcpy(pending[i].to, pending[i].from, pending[i].bytes);
    }
    pending_count = 0;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t code)
{
    return code == cudaSuccess ? "no error" : "an emulated error";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *about, int device)
{
    (void)device;
    memset(about, 0, sizeof *about);
    memcpy(about->name, "emulation", sizeof "emulation");
    return cudaSuccess;
}

/* Filled with NaNs: nothing may rely on what memory held. */
cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    if (emulated_limit.malloc == 1) {
        return cudaErrorMemoryAllocation;
    }
    if (emulated_limit.malloc > 1) { /* else nothing is written, since ranks are threads */
        emulated_limit.malloc--;
    }
    *pointer = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*pointer == NULL) {
        return cudaErrorMemoryAllocation;
    }
    memset(*pointer, 0xff, bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer)
{
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    return cudaMalloc(pointer, bytes);
}

cudaError_t cudaFreeHost(void *pointer)
{
    return cudaFree(pointer);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)stream;
    if (kind != cudaMemcpyDeviceToHost) {
        memcpy(to, from, bytes);
        return cudaSuccess;
    }
    if (pending_count == COPIES_MAX) {
        return cudaErrorMemoryAllocation;
    }
    pending[pending_count++] = (copy){to, from, bytes};
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    memset(pointer, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *pointer, int value, size_t bytes)
{
    return cudaMemsetAsync(pointer, value, bytes, NULL);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = malloc(1);
    return *stream != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return flush();
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return flush();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = malloc(1);
    return *event != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)event;
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return flush();
}

/* --- cuBLASLt --------------------------------------------------------------------------------- */

typedef struct layout {
    cudaDataType type;
    uint64_t rows;
    uint64_t columns;
    int64_t stride;
} layout;

typedef struct preference {
    uint64_t workspace_bytes;
    uint32_t reductions;
    uint32_t aligns[4]; /* of A, B, C, D */
} preference;

enum { POINTERS = 6 }; /* A, B, C, D, the bias or its gradient, GELU's argument */

/* The properties that an algorithm relies on, kept in a cublasLtMatmulAlgo_t. */
typedef struct algorithm {
    uint32_t aligns[POINTERS];
    uint32_t reduction; /* in place: what half of the inner size gives is kept in D's type */
    uint64_t workspace_bytes;
} algorithm;

typedef struct product {
    cublasOperation_t turn_a;
    cublasOperation_t turn_b;
    cublasLtEpilogue_t epilogue;
    void *bias; /* or its gradient */
    void *aux;  /* GELU's argument */
    int64_t aux_stride;
    cublasComputeType_t compute;
} product;

static cublasStatus_t make(void **object, const void *value, size_t bytes)
{
    *object = malloc(bytes);
    if (*object == NULL) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    memcpy(*object, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an emulated failure";
}

size_t cublasLtGetVersion(void)
{
    return 0;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    const int none = 0;
    return make((void **)handle, &none, sizeof none);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale_type)
{
    const product value = {.turn_a = CUBLAS_OP_N,
                           .turn_b = CUBLAS_OP_N,
                           .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                           .compute = compute};
    if (scale_type != CUDA_R_32F ||
        (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return make((void **)desc, &value, sizeof value);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes)
{
    product *it = (product *)(void *)desc;
    void *field = which == CUBLASLT_MATMUL_DESC_TRANSA                 ? (void *)&it->turn_a
                  : which == CUBLASLT_MATMUL_DESC_TRANSB               ? (void *)&it->turn_b
                  : which == CUBLASLT_MATMUL_DESC_EPILOGUE             ? (void *)&it->epilogue
                  : which == CUBLASLT_MATMUL_DESC_BIAS_POINTER         ? (void *)&it->bias
                  : which == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ? (void *)&it->aux
                  : which == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD      ? (void *)&it->aux_stride
                                                                       : NULL;
    const bool is_long = which == CUBLASLT_MATMUL_DESC_BIAS_POINTER ||
                         which == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ||
                         which == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD;
    const size_t expected = is_long ? 8 : 4;
    if (field == NULL || bytes != expected) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    const layout value = {type, rows, columns, stride};
    if (stride < (int64_t)rows) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return make((void **)out, &value, sizeof value);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t it)
{
    free(it);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *choice)
{
    const preference value = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return make((void **)choice, &value, sizeof value);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t choice)
{
    free(choice);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t choice,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t bytes)
{
    preference *it = (preference *)(void *)choice;
    const int align = (int)which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    void *field = which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? (void *)&it->workspace_bytes
                  : which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? (void *)&it->reductions
                  : align >= 0 && align < 4                             ? &it->aligns[align]
                                                                        : NULL;
    if (field == NULL || bytes != (field == &it->workspace_bytes ? 8 : 4)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static bool is_gelu(const product *it)
{
    return it->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           it->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static bool has_bias(const product *it)
{
    return it->epilogue == CUBLASLT_EPILOGUE_BIAS ||
           it->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

/* Every epilogue has what it needs, and nothing that it would not look at. */
static bool epilogue_agrees(const product *it, const layout *d)
{
    const bool vector = has_bias(it) || it->epilogue == CUBLASLT_EPILOGUE_BGRADA;
    const bool known = vector || is_gelu(it) || it->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    const bool stride = it->aux_stride % 8 == 0 && it->aux_stride >= (int64_t)d->rows;
    return known && vector == (it->bias != NULL) && is_gelu(it) == (it->aux != NULL) &&
           (!is_gelu(it) || stride);
}

/* Sizes must agree as cuBLASLt checks them: op(A) is m x k, op(B) k x n, C and D m x n. A bias, its
 * gradient and GELU's argument have D's type. */
static bool agree(const product *it, const layout *a, const layout *b, const layout *d)
{
    const uint64_t m = it->turn_a == CUBLAS_OP_T ? a->columns : a->rows;
    const uint64_t k = it->turn_a == CUBLAS_OP_T ? a->rows : a->columns;
    const uint64_t n = it->turn_b == CUBLAS_OP_T ? b->rows : b->columns;
    const uint64_t inner = it->turn_b == CUBLAS_OP_T ? b->columns : b->rows;
    const bool types = a->type == b->type && (d->type == a->type || d->type == CUDA_R_32F);
    return k == inner && d->rows == m && d->columns == n && types &&
           (it->compute == CUBLAS_COMPUTE_32F || a->type == CUDA_R_32F) && epilogue_agrees(it, d);
}

static uint32_t align_of(const void *pointer)
{
    const uintptr_t bits = (uintptr_t)pointer | 256;
    return (uint32_t)(bits & (~bits + 1));
}

static bool is_refused(cublasLtEpilogue_t epilogue)
{
    bool refused = false;
    for (int i = 0; i < 3; i++) {
        refused = refused || emulated_limit.no_epilogue[i] == (uint32_t)epilogue;
    }
    return refused;
}

/* Relies on every alignment and on all of the workspace that it was promised, and of the reductions
 * takes the one that rounds most. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t choice, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    const product *it = (const product *)(const void *)desc;
    const preference *limits = (const preference *)(const void *)choice;
    const layout *out = (const layout *)(const void *)d;
    algorithm chosen = {.aligns = {limits->aligns[0], limits->aligns[1], limits->aligns[2],
                                   limits->aligns[3], align_of(it->bias), align_of(it->aux)},
                        .workspace_bytes = limits->workspace_bytes};
    (void)handle;
    (void)c;
    if (!agree(it, (const layout *)(const void *)a, (const layout *)(const void *)b, out)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (is_refused(it->epilogue)) {
        *found = 0;
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if ((limits->reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) {
        chosen.reduction = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    }
    *found = wanted > 0 ? 1 : 0;
    memset(results, 0, sizeof *results);
    results->workspaceSize = chosen.workspace_bytes;
    memcpy(&results->algo, &chosen, sizeof chosen);
    results->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

static float read_value(const void *from, cudaDataType type, uint64_t index)
{
    return type == CUDA_R_32F ? ((const float *)from)[index]
                              : float_of(((const uint16_t *)from)[index]);
}

static void write_value(void *to, cudaDataType type, uint64_t index, float value)
{
    if (type == CUDA_R_32F) {
        ((float *)to)[index] = value;
    } else {
        ((uint16_t *)to)[index] = bf16_of(value);
    }
}

static float rounded(float value, cudaDataType_t type)
{
    float kept = 0;
    write_value(&kept, type, 0, value);
    return read_value(&kept, type, 0);
}

/* Element (row, column) of op(matrix). */
static float element(const void *from, const layout *it, cublasOperation_t turn, uint64_t row,
                     uint64_t column)
{
    const uint64_t stride = (uint64_t)it->stride;
    return read_value(from, it->type,
                      turn == CUBLAS_OP_T ? row * stride + column : column * stride + row);
}

/* True if what an algorithm relies on holds; else a GPU would fault, or write beyond the
 * workspace. */
static bool keeps(const algorithm *chosen, const void *const pointers[POINTERS],
                  const void *workspace, size_t workspace_bytes)
{
    for (int i = 0; i < POINTERS; i++) {
        if (pointers[i] != NULL && align_of(pointers[i]) < chosen->aligns[i]) {
            return false;
        }
    }
    return chosen->workspace_bytes <= workspace_bytes && align_of(workspace) == 256;
}

/* gelu(x), tanh form, or its derivative. */
static float gelu(float value, bool derivative)
{
    const double x = (double)value;
    const double slope = sqrt(2 / acos(-1.0));
    const double t = tanh(slope * (x + 0.044715 * x * x * x));
    const double inside = slope * (1 + 3 * 0.044715 * x * x);
    return (float)(derivative ? 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inside : 0.5 * x * (1 + t));
}

/* An element of D from the product's, not rounded yet; GELU's argument is rounded to D's type. */
static float finish(const product *it, cudaDataType type, uint64_t row, uint64_t column,
                    float value)
{
    const uint64_t at = column * (uint64_t)it->aux_stride + row;
    const float sum = has_bias(it) ? value + read_value(it->bias, type, row) : value;
    if (it->epilogue == CUBLASLT_EPILOGUE_DGELU) {
        return sum * gelu(read_value(it->aux, type, at), true);
    }
    if (it->epilogue != CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        return sum;
    }
    write_value(it->aux, type, at, sum);
    return gelu(sum, false);
}

/* The gradient of a bias that op(A) is the gradient of: sums over the inner size. */
static void sum_rows(const product *it, const void *a, const layout *la, uint64_t inner,
                     const layout *ld)
{
    for (uint64_t row = 0; row < ld->rows; row++) {
        float total = 0;
        for (uint64_t k = 0; k < inner; k++) {
            total += element(a, la, it->turn_a, row, k);
        }
        write_value(it->bias, ld->type, row, total);
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_desc, const void *b,
                              cublasLtMatrixLayout_t b_desc, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_desc, void *d, cublasLtMatrixLayout_t d_desc,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    const product *it = (const product *)(const void *)desc;
    const layout *la = (const layout *)(const void *)a_desc;
    const layout *lb = (const layout *)(const void *)b_desc;
    const layout *lc = (const layout *)(const void *)c_desc;
    const layout *ld = (const layout *)(const void *)d_desc;
    const algorithm *chosen = (const algorithm *)(const void *)algo;
    const uint64_t inner = it->turn_a == CUBLAS_OP_T ? la->rows : la->columns;
    const uint64_t middle = inner / 2;
    const float scale = *(const float *)alpha;
    const float keep = *(const float *)beta;
    const void *const pointers[POINTERS] = {a, b, c, d, it->bias, it->aux};
    (void)handle;
    (void)stream;
    if (!agree(it, la, lb, ld) || !keeps(chosen, pointers, workspace, workspace_bytes)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    for (uint64_t column = 0; column < ld->columns; column++) {
        for (uint64_t row = 0; row < ld->rows; row++) {
            float total = 0;
            for (uint64_t k = 0; k < inner; k++) {
                if (k == middle && chosen->reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE) {
                    total = rounded(total, ld->type);
                }
                total += element(a, la, it->turn_a, row, k) * element(b, lb, it->turn_b, k, column);
            }
            total *= scale;
            if (keep != 0.0f) {
                total += keep * element(c, lc, CUBLAS_OP_N, row, column);
            }
            write_value(d, ld->type, column * (uint64_t)ld->stride + row,
                        finish(it, ld->type, row, column, total));
        }
    }
    if (it->epilogue == CUBLASLT_EPILOGUE_BGRADA) {
        sum_rows(it, a, la, inner, ld);
    }
    return CUBLAS_STATUS_SUCCESS;
}
