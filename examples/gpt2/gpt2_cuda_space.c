/* Everything is allocated once: the layout is counted first, then laid over the memory by the same
 * code. */
#include "gpt2_cuda_space.h"
#include "gpt2_cuda_kernels.h"

#include <stdlib.h>
#include <string.h>

/* Pieces of device memory begin at multiples of this. */
enum { PIECE_ALIGN = 256 };

/* Recommended for cuBLAS on GPUs since Hopper. */
enum { WORKSPACE_BYTES = 32 << 20 };

/* All of a batch's logits are kept up to this size; beyond it the head is done in pieces, whose
 * logits backward makes again. */
#define LOGITS_BYTES_MAX ((uint64_t)4 << 30)

zero_status gpt2_cuda_check(gpt2_cuda_space *space, cudaError_t code, const char *what)
{
    if (code == cudaSuccess) {
        return ZERO_OK;
    }
    (void)gpt2_fail(space->error, "GPU %d: %s: %s", space->device, what, cudaGetErrorString(code));
    return ZERO_ERR_DEVICE;
}

/* --- layout ----------------------------------------------------------------------------------- */

static void *carve(unsigned char *memory, size_t *used, size_t bytes)
{
    unsigned char *piece = memory == NULL ? NULL : memory + *used;
    *used += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    return piece;
}

static void carve_saved(gpt2_cuda_space *space, gpt2_cuda_saved *saved, size_t *used)
{
    unsigned char *memory = space->memory;
    const size_t tokens = space->tokens_max;
    const size_t rows = tokens * space->config.width * zero_dtype_bytes(space->dtype);
    saved->norm1 = carve(memory, used, rows);
    saved->mean1 = carve(memory, used, tokens * sizeof(float));
    saved->rstd1 = carve(memory, used, tokens * sizeof(float));
    saved->qkv = carve(memory, used, 3 * rows);
    saved->mixed = carve(memory, used, rows);
    saved->log_sums = carve(memory, used, tokens * space->config.heads * sizeof(float));
    saved->middle = carve(memory, used, rows);
    saved->norm2 = carve(memory, used, rows);
    saved->mean2 = carve(memory, used, tokens * sizeof(float));
    saved->rstd2 = carve(memory, used, tokens * sizeof(float));
    saved->expand = carve(memory, used, 4 * rows);
    saved->active = carve(memory, used, 4 * rows);
}

static void carve_batch(const gpt2_cuda_space *space, gpt2_cuda_batch *batch, unsigned char *memory,
                        size_t *used)
{
    const size_t bytes = space->tokens_max * sizeof(int32_t);
    batch->tokens = carve(memory, used, bytes);
    batch->targets = carve(memory, used, bytes);
    batch->order = carve(memory, used, bytes);
    batch->starts = carve(memory, used, bytes + sizeof(int32_t));
    batch->ids = carve(memory, used, bytes);
}

/* Device memory laid out over space->memory, or only counted when that is NULL. */
static size_t carve_space(gpt2_cuda_space *space)
{
    const gpt2_config *config = &space->config;
    unsigned char *memory = space->memory;
    const size_t tokens = space->tokens_max;
    const size_t width = config->width;
    const size_t element = zero_dtype_bytes(space->dtype);
    const size_t rows = tokens * width * element;
    const bool pieces = space->logits_rows < tokens;
    const bool low = space->grad_dtype != ZERO_DTYPE_F32;
    const bool padded = space->logits_columns != config->vocab;
    size_t used = 0;
    carve_batch(space, &space->batch, memory, &used);
    space->batch_bytes = used;
    space->residual = carve(memory, &used, (config->layers + 1) * rows);
    for (uint32_t i = 0; i < (space->recompute ? 1 : config->layers); i++) {
        carve_saved(space, &space->saved[i], &used);
    }
    space->kept.norm1 = carve(memory, &used, rows);
    space->kept.mean1 = carve(memory, &used, tokens * sizeof(float));
    space->kept.rstd1 = carve(memory, &used, tokens * sizeof(float));
    space->grad = carve(memory, &used, rows);
    space->wide = carve(memory, &used, 4 * rows);
    space->narrow = carve(memory, &used, rows);
    space->logits =
        carve(memory, &used, (size_t)space->logits_rows * space->logits_stride * element);
    space->padded_wte = carve(memory, &used, padded ? space->logits_columns * width * element : 0);
    space->losses = carve(memory, &used, tokens * sizeof(float));
    space->deltas = carve(memory, &used, tokens * config->heads * sizeof(float));
    space->partials = carve(memory, &used, 2 * GPT2_SUM_GROUPS_MAX * 4 * width * sizeof(float));
    space->wte_sums =
        carve(memory, &used, pieces && low ? config->vocab * width * sizeof(float) : 0);
    space->mean = carve(memory, &used, sizeof(double));
    space->workspace = carve(memory, &used, WORKSPACE_BYTES);
    return used;
}

/* The same of pinned host memory. */
static size_t carve_host(gpt2_cuda_space *space)
{
    size_t used = 0;
    carve_batch(space, &space->staged, space->host, &used);
    space->host_mean = carve(space->host, &used, sizeof(double));
    space->host_logits =
        carve(space->host, &used, space->logits_stride * zero_dtype_bytes(space->dtype));
    return used;
}

/* --- creation --------------------------------------------------------------------------------- */

/* True if cuBLASLt and the kernels take the setup; the command line is checked earlier and says
 * more. */
static bool is_possible(const gpt2_backend_setup *setup, zero_dtype grad_dtype)
{
    const uint32_t depth = setup->config.width / setup->config.heads;
    return (setup->dtype == ZERO_DTYPE_F32 || setup->dtype == ZERO_DTYPE_BF16) &&
           (grad_dtype == ZERO_DTYPE_F32 || grad_dtype == setup->dtype) && depth % 8 == 0 &&
           depth <= 128;
}

static void set_sizes(gpt2_cuda_space *space, const gpt2_backend_setup *setup)
{
    const gpt2_config *config = &setup->config;
    space->config = *config;
    space->dtype = setup->dtype;
    space->grad_dtype = setup->grad_dtype == ZERO_DTYPE_DEFAULT ? setup->dtype : setup->grad_dtype;
    space->tokens_max = setup->samples * config->seq;
    space->recompute = setup->recompute;
    space->error = setup->error;
    /* Rows at multiples of 128 bytes, so that products read them in whole lines. */
    space->logits_stride = (config->vocab + GPT2_LINE - 1) / GPT2_LINE * GPT2_LINE;
    const bool aligned = config->vocab * zero_dtype_bytes(space->dtype) % 16 == 0;
    space->logits_columns = aligned ? config->vocab : space->logits_stride;
    const uint64_t row_bytes = (uint64_t)space->logits_stride * zero_dtype_bytes(space->dtype);
    const uint64_t rows = LOGITS_BYTES_MAX / row_bytes;
    space->logits_rows = rows < space->tokens_max ? (uint32_t)rows : space->tokens_max;
}

static zero_status no_memory(const gpt2_cuda_space *space, const gpt2_backend_setup *setup,
                             cudaError_t code)
{
    (void)gpt2_fail(setup->error,
                    "GPU %d: no memory for activations of %u samples of %u tokens a rank (%.2f "
                    "GiB): %s; make --batch, --seq or --width smaller, --micro-steps larger, or "
                    "use --recompute",
                    space->device, setup->samples, setup->config.seq,
                    (double)space->bytes / (1 << 30), cudaGetErrorString(code));
    return ZERO_ERR_OUT_OF_MEMORY;
}

static zero_status allocate(gpt2_cuda_space *space, const gpt2_backend_setup *setup)
{
    space->saved = calloc(space->recompute ? 1 : setup->config.layers, sizeof *space->saved);
    space->counts = malloc((setup->config.vocab + (size_t)1) * sizeof *space->counts);
    if (space->saved == NULL || space->counts == NULL) {
        (void)gpt2_fail(setup->error, "no host memory for a table of %u layers",
                        setup->config.layers);
        return ZERO_ERR_OUT_OF_MEMORY;
    }
    void *memory = NULL;
    space->bytes = carve_space(space);
    cudaError_t code = cudaMalloc(&memory, space->bytes);
    if (code != cudaSuccess) {
        return no_memory(space, setup, code);
    }
    space->memory = memory;
    (void)carve_space(space);
    memory = NULL;
    space->host_bytes = carve_host(space);
    code = cudaMallocHost(&memory, space->host_bytes);
    if (code != cudaSuccess) {
        return no_memory(space, setup, code);
    }
    space->host = memory;
    (void)carve_host(space);
    return ZERO_OK;
}

/* Set what is behind wte in its padded copy to 0: the padding of logits' gradient is multiplied by
 * it, and nothing writes it again. */
static zero_status clear_padding(gpt2_cuda_space *space)
{
    const size_t row = space->config.width * zero_dtype_bytes(space->dtype);
    unsigned char *padding = (unsigned char *)space->padded_wte + space->config.vocab * row;
    const size_t rows = space->logits_columns - space->config.vocab;
    return rows == 0
               ? ZERO_OK
               : gpt2_cuda_check(space, cudaMemsetAsync(padding, 0, rows * row, space->stream),
                                 "clearing a padding");
}

static zero_status start(gpt2_cuda_space *space, const gpt2_backend_setup *setup)
{
    struct cudaDeviceProp about;
    TRY(gpt2_cuda_check(space, cudaGetDevice(&space->device), "which GPU"));
    TRY(gpt2_cuda_check(space, cudaGetDeviceProperties(&about, space->device), "its properties"));
    (void)snprintf(space->machine, sizeof space->machine, "%s", about.name);
    TRY(gpt2_cuda_check(space, cudaStreamCreateWithFlags(&space->stream, cudaStreamNonBlocking),
                        "making a stream"));
    TRY(gpt2_cuda_check(space, cudaEventCreateWithFlags(&space->uploaded, cudaEventDisableTiming),
                        "making an event"));
    TRY(gpt2_cuda_check(space, cudaEventCreateWithFlags(&space->measured, cudaEventDisableTiming),
                        "making an event"));
    TRY(allocate(space, setup));
    memset(space->host, 0, space->host_bytes);
    TRY(clear_padding(space));
    const bool tf32 = setup->tf32 && space->dtype == ZERO_DTYPE_F32;
    return gpt2_products_create(&space->products, tf32, space->workspace, WORKSPACE_BYTES,
                                setup->error)
               ? ZERO_OK
               : ZERO_ERR_DEVICE;
}

zero_status gpt2_cuda_space_create(const gpt2_backend_setup *setup, gpt2_cuda_space **space)
{
    const zero_dtype grads =
        setup->grad_dtype == ZERO_DTYPE_DEFAULT ? setup->dtype : setup->grad_dtype;
    if (!is_possible(setup, grads)) {
        (void)gpt2_fail(setup->error,
                        "no GPU kernels for parameters in %s, gradients in %s and heads of %u; use "
                        "f32 or bf16, gradients likewise or f32, and a multiple of 8 up to 128",
                        zero_dtype_name(setup->dtype), zero_dtype_name(grads),
                        setup->config.width / setup->config.heads);
        return ZERO_ERR_UNSUPPORTED;
    }
    if ((uint64_t)setup->samples * setup->config.seq > INT32_MAX) {
        (void)gpt2_fail(setup->error,
                        "%u samples of %u tokens are more than a GPU's rank can number; make "
                        "--micro-steps larger",
                        setup->samples, setup->config.seq);
        return ZERO_ERR_UNSUPPORTED;
    }
    gpt2_cuda_space *self = calloc(1, sizeof *self);
    if (self == NULL) {
        (void)gpt2_fail(setup->error, "no host memory for a space");
        return ZERO_ERR_OUT_OF_MEMORY;
    }
    set_sizes(self, setup);
    const zero_status status = start(self, setup);
    if (status != ZERO_OK) {
        gpt2_cuda_space_destroy(self);
        return status;
    }
    *space = self;
    return ZERO_OK;
}

void gpt2_cuda_space_destroy(gpt2_cuda_space *space)
{
    if (space == NULL) {
        return;
    }
    if (space->stream != NULL) {
        (void)cudaStreamSynchronize(space->stream);
    }
    gpt2_products_destroy(&space->products);
    (void)cudaFree(space->memory);
    (void)cudaFreeHost(space->host);
    if (space->uploaded != NULL) {
        (void)cudaEventDestroy(space->uploaded);
    }
    if (space->measured != NULL) {
        (void)cudaEventDestroy(space->measured);
    }
    if (space->stream != NULL) {
        (void)cudaStreamDestroy(space->stream);
    }
    free(space->saved);
    free(space->counts);
    free(space);
}

/* --- batch ------------------------------------------------------------------------------------ */

/* Rows by their token, ascending within each: a counting sort. */
static void sort_rows(gpt2_cuda_space *space)
{
    const gpt2_cuda_batch *staged = &space->staged;
    const uint32_t vocab = space->config.vocab;
    int32_t *counts = space->counts;
    memset(counts, 0, (vocab + (size_t)1) * sizeof *counts);
    for (uint32_t i = 0; i < space->rows; i++) {
        counts[staged->tokens[i]]++;
    }
    uint32_t segments = 0;
    int32_t next = 0;
    for (uint32_t token = 0; token < vocab; token++) {
        const int32_t count = counts[token];
        counts[token] = next; /* place of the token's next row */
        if (count > 0) {
            staged->ids[segments] = (int32_t)token;
            staged->starts[segments++] = next;
            next += count;
        }
    }
    staged->starts[segments] = next;
    for (uint32_t i = 0; i < space->rows; i++) {
        staged->order[counts[staged->tokens[i]]++] = (int32_t)i;
    }
    space->segments = segments;
}

zero_status gpt2_cuda_space_begin(gpt2_cuda_space *space, const gpt2_batch *batch)
{
    const uint64_t rows = (uint64_t)batch->samples * batch->positions;
    if (rows == 0 || rows > space->tokens_max) {
        (void)gpt2_fail(space->error, "a batch of %llu tokens, but room for %u",
                        (unsigned long long)rows, space->tokens_max);
        return ZERO_ERR_INVALID_ARGUMENT;
    }
    TRY(gpt2_cuda_check(space, cudaEventSynchronize(space->uploaded), "the batch before"));
    space->samples = batch->samples;
    space->positions = batch->positions;
    space->rows = (uint32_t)rows;
    memcpy(space->staged.tokens, batch->tokens, rows * sizeof *batch->tokens);
    if (batch->targets != NULL) {
        memcpy(space->staged.targets, batch->targets, rows * sizeof *batch->targets);
        sort_rows(space);
    }
    TRY(gpt2_cuda_check(space,
                        gpt2_launch_upload(space->stream, space->batch.tokens, space->staged.tokens,
                                           space->batch_bytes / sizeof(int32_t)),
                        "copying the batch"));
    return gpt2_cuda_check(space, cudaEventRecord(space->uploaded, space->stream),
                           "copying the batch");
}
