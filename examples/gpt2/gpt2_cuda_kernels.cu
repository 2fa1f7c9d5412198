/* The kernels of embedding, layer normalisation, sums over rows, GELU and loss.
 *
 * Sums have a fixed order: within a thread by index, then over a warp or a block by one tree. Where
 * a thread returns early, its whole warp does, and no block-wide barrier follows. */
#include "gpt2_cuda_kernels.h"
#include "gpt2_cuda_warp.h"

#include <math.h>

enum { THREADS = 256, WARPS = THREADS / 32, LINES = 8, COLUMNS = 256 };

#define INFINITE __int_as_float(0x7f800000)

/* Which instantiation a job asks for. */
#define CHOOSE(kernel, dtype) ((dtype) == ZERO_DTYPE_F32 ? kernel<float> : kernel<gpt2_bf16>)

static bool is_known(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_F32 || dtype == ZERO_DTYPE_BF16;
}

static unsigned pieces_of(uint64_t count, uint64_t piece)
{
    return (unsigned)((count + piece - 1) / piece);
}

/* --- embedding -------------------------------------------------------------------------------- */

template <typename T> static __global__ void embed_kernel(const gpt2_embed_job job)
{
    const uint32_t vectors = job.width / 8;
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint32_t row = (uint32_t)(index / vectors);
    const uint32_t column = (uint32_t)(index % vectors) * 8;
    if (row >= job.rows) {
        return;
    }
    const uint64_t token = (uint64_t)job.tokens[row];
    float sum[8];
    float position[8];
    load_eight(sum, (const T *)job.wte + token * job.width + column);
    load_eight(position, (const T *)job.wpe + (uint64_t)(row % job.positions) * job.width + column);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] += position[i];
    }
    store_eight((T *)job.out + (uint64_t)row * job.width + column, sum);
}

extern "C" cudaError_t gpt2_launch_embed(cudaStream_t stream, const gpt2_embed_job *job)
{
    if (!is_known(job->dtype)) {
        return cudaErrorInvalidValue;
    }
    const uint64_t vectors = (uint64_t)job->rows * (job->width / 8);
    return gpt2_launch(CHOOSE(embed_kernel, job->dtype), dim3(pieces_of(vectors, THREADS)),
                       dim3(THREADS), 0, stream, *job);
}

/* Adds up the block's 8 lines of 256 columns; the result is for column threadIdx.y * 32 +
 * threadIdx.x of the block's. */
static __device__ float sum_of_lines(const float (&own)[8])
{
    __shared__ float lines[LINES][COLUMNS];
    store_eight(&lines[threadIdx.y][threadIdx.x * 8], own);
    sync_block();
    const uint32_t column = threadIdx.y * 32 + threadIdx.x;
    float total = 0;
    for (int line = 0; line < LINES; line++) {
        total += lines[line][column];
    }
    sync_block();
    return total;
}

/* A block has one segment and 256 columns; line y adds every eighth row. */
template <typename T, typename G>
static __global__ void token_grad_kernel(const gpt2_embed_grad_job job)
{
    const uint32_t segment = blockIdx.x;
    const uint32_t first = blockIdx.y * COLUMNS;
    const uint32_t column = first + threadIdx.x * 8;
    const int32_t end = job.starts[segment + 1];
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (column < job.width) {
        for (int32_t i = job.starts[segment] + (int32_t)threadIdx.y; i < end; i += LINES) {
            float row[8];
            load_eight(row, (const T *)job.grad + (uint64_t)job.order[i] * job.width + column);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum[e] += row[e];
            }
        }
    }
    const float total = sum_of_lines(sum);
    const uint32_t own = first + threadIdx.y * 32 + threadIdx.x;
    if (own < job.width) {
        G *to = (G *)job.dwte + (uint64_t)job.ids[segment] * job.width + own;
        store_one(to, widen(*to) + total);
    }
}

template <typename T, typename G>
static __global__ void position_grad_kernel(const gpt2_embed_grad_job job)
{
    const uint32_t vectors = job.width / 8;
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint32_t position = (uint32_t)(index / vectors);
    const uint32_t column = (uint32_t)(index % vectors) * 8;
    if (position >= job.positions) {
        return;
    }
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    float row[8];
    for (uint32_t s = 0; s < job.samples; s++) {
        const uint64_t token = (uint64_t)s * job.positions + position;
        load_eight(row, (const T *)job.grad + token * job.width + column);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            sum[e] += row[e];
        }
    }
    G *to = (G *)job.dwpe + (uint64_t)position * job.width + column;
    load_eight(row, to);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        sum[e] += row[e];
    }
    store_eight(to, sum);
}

template <typename T, typename G>
static cudaError_t launch_embed_grad(cudaStream_t stream, const gpt2_embed_grad_job *job)
{
    const cudaError_t code =
        gpt2_launch(token_grad_kernel<T, G>, dim3(job->segments, pieces_of(job->width, COLUMNS)),
                    dim3(32, LINES), 0, stream, *job);
    if (code != cudaSuccess) {
        return code;
    }
    const uint64_t vectors = (uint64_t)job->positions * (job->width / 8);
    return gpt2_launch(position_grad_kernel<T, G>, dim3(pieces_of(vectors, THREADS)), dim3(THREADS),
                       0, stream, *job);
}

extern "C" cudaError_t gpt2_launch_embed_grad(cudaStream_t stream, const gpt2_embed_grad_job *job)
{
    if (job->dtype == ZERO_DTYPE_F32 && job->grad_dtype == ZERO_DTYPE_F32) {
        return launch_embed_grad<float, float>(stream, job);
    }
    if (job->dtype == ZERO_DTYPE_BF16 && job->grad_dtype == ZERO_DTYPE_F32) {
        return launch_embed_grad<gpt2_bf16, float>(stream, job);
    }
    if (job->dtype == ZERO_DTYPE_BF16 && job->grad_dtype == ZERO_DTYPE_BF16) {
        return launch_embed_grad<gpt2_bf16, gpt2_bf16>(stream, job);
    }
    return cudaErrorInvalidValue;
}

/* --- layer normalisation ---------------------------------------------------------------------- */

/* A warp has one row. */
template <typename T> static __global__ void norm_kernel(const gpt2_norm_job job)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= job.rows) {
        return;
    }
    const T *x = (const T *)job.x + (uint64_t)row * job.width;
    float value[8];
    float total = 0;
    for (uint32_t c = lane * 8; c < job.width; c += 256) {
        load_eight(value, x + c);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            total += value[i];
        }
    }
    const float mean = warp_sum(total) / (float)job.width;
    float square = 0;
    for (uint32_t c = lane * 8; c < job.width; c += 256) {
        load_eight(value, x + c);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            square += (value[i] - mean) * (value[i] - mean);
        }
    }
    const float variance = warp_sum(square) / (float)job.width;
    const float rstd = 1 / sqrtf(variance + 1e-5f);
    for (uint32_t c = lane * 8; c < job.width; c += 256) {
        float weight[8];
        float bias[8];
        load_eight(value, x + c);
        load_eight(weight, (const T *)job.weight + c);
        load_eight(bias, (const T *)job.bias + c);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            value[i] = (value[i] - mean) * rstd * weight[i] + bias[i];
        }
        store_eight((T *)job.y + (uint64_t)row * job.width + c, value);
    }
    if (lane == 0) {
        job.mean[row] = mean;
        job.rstd[row] = rstd;
    }
}

/* h = (x - mean) rstd and g = dy weight at one vector of a row. */
template <typename T>
static __device__ __forceinline__ void norm_terms(const gpt2_norm_job &job, uint32_t row,
                                                  uint32_t column, float (&h)[8], float (&g)[8])
{
    const uint64_t at = (uint64_t)row * job.width + column;
    const float mean = job.mean[row];
    const float rstd = job.rstd[row];
    float weight[8];
    load_eight(h, (const T *)job.x + at);
    load_eight(g, (const T *)job.dy + at);
    load_eight(weight, (const T *)job.weight + column);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        h[i] = (h[i] - mean) * rstd;
        g[i] *= weight[i];
    }
}

/* dx += rstd (g - mean(g) - h mean(g h)). A warp has one row. */
template <typename T> static __global__ void norm_grad_kernel(const gpt2_norm_job job)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= job.rows) {
        return;
    }
    float h[8];
    float g[8];
    float total = 0;
    float product = 0;
    for (uint32_t c = lane * 8; c < job.width; c += 256) {
        norm_terms<T>(job, row, c, h, g);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            total += g[i];
            product += g[i] * h[i];
        }
    }
    const float mean_g = warp_sum(total) / (float)job.width;
    const float mean_gh = warp_sum(product) / (float)job.width;
    const float rstd = job.rstd[row];
    for (uint32_t c = lane * 8; c < job.width; c += 256) {
        T *dx = (T *)job.dx + (uint64_t)row * job.width + c;
        float sum[8];
        norm_terms<T>(job, row, c, h, g);
        load_eight(sum, dx);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] += rstd * (g[i] - mean_g - h[i] * mean_gh);
        }
        store_eight(dx, sum);
    }
}

extern "C" cudaError_t gpt2_launch_norm(cudaStream_t stream, const gpt2_norm_job *job)
{
    if (!is_known(job->dtype)) {
        return cudaErrorInvalidValue;
    }
    return gpt2_launch(CHOOSE(norm_kernel, job->dtype), dim3(pieces_of(job->rows, WARPS)),
                       dim3(THREADS), 0, stream, *job);
}

extern "C" cudaError_t gpt2_launch_norm_grad(cudaStream_t stream, const gpt2_norm_job *job)
{
    if (!is_known(job->dtype)) {
        return cudaErrorInvalidValue;
    }
    return gpt2_launch(CHOOSE(norm_grad_kernel, job->dtype), dim3(pieces_of(job->rows, WARPS)),
                       dim3(THREADS), 0, stream, *job);
}

/* --- sums over rows --------------------------------------------------------------------------- */

/* A block has 256 columns and every gridDim.y-th eight rows. */
template <typename T> static __global__ void partial_sums_kernel(const gpt2_sums_job job)
{
    const uint32_t first = blockIdx.x * COLUMNS;
    const uint32_t column = first + threadIdx.x * 8;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    float product[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (uint32_t r = blockIdx.y * LINES + threadIdx.y; r < job.rows && column < job.width;
         r += gridDim.y * LINES) {
        const uint64_t at = (uint64_t)r * job.width + column;
        float dy[8];
        load_eight(dy, (const T *)job.dy + at);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] += dy[i];
        }
        if (job.x != NULL) {
            const float mean = job.mean[r];
            const float rstd = job.rstd[r];
            float x[8];
            load_eight(x, (const T *)job.x + at);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                product[i] += dy[i] * ((x[i] - mean) * rstd);
            }
        }
    }
    const uint32_t own = first + threadIdx.y * 32 + threadIdx.x;
    const float total = sum_of_lines(sum);
    const float product_total = job.x != NULL ? sum_of_lines(product) : 0;
    if (own < job.width) {
        job.partials[(uint64_t)blockIdx.y * job.width + own] = total;
        job.partials[((uint64_t)GPT2_SUM_GROUPS_MAX + blockIdx.y) * job.width + own] =
            product_total;
    }
}

static __host__ __device__ uint32_t groups_of(uint32_t rows)
{
    const uint32_t groups = (rows + LINES - 1) / LINES;
    return groups < GPT2_SUM_GROUPS_MAX ? groups : (uint32_t)GPT2_SUM_GROUPS_MAX;
}

/* Row 0 of the grid finishes the sums, row 1 the products. */
template <typename G> static __global__ void finish_sums_kernel(const gpt2_sums_job job)
{
    const uint32_t column = blockIdx.x * THREADS + threadIdx.x;
    const uint32_t groups = groups_of(job.rows);
    if (column >= job.width) {
        return;
    }
    const float *partials =
        job.partials + (uint64_t)blockIdx.y * GPT2_SUM_GROUPS_MAX * job.width + column;
    float total = 0;
    for (uint32_t group = 0; group < groups; group++) {
        total += partials[(uint64_t)group * job.width];
    }
    G *to = (G *)(blockIdx.y == 0 ? job.sums : job.products) + column;
    store_one(to, widen(*to) + total);
}

extern "C" cudaError_t gpt2_launch_sums(cudaStream_t stream, const gpt2_sums_job *job)
{
    if (!is_known(job->dtype) || !is_known(job->grad_dtype)) {
        return cudaErrorInvalidValue;
    }
    const cudaError_t code = gpt2_launch(CHOOSE(partial_sums_kernel, job->dtype),
                                         dim3(pieces_of(job->width, COLUMNS), groups_of(job->rows)),
                                         dim3(32, LINES), 0, stream, *job);
    if (code != cudaSuccess) {
        return code;
    }
    return gpt2_launch(CHOOSE(finish_sums_kernel, job->grad_dtype),
                       dim3(pieces_of(job->width, THREADS), job->x != NULL ? 2 : 1), dim3(THREADS),
                       0, stream, *job);
}

/* --- GELU ------------------------------------------------------------------------------------- */

typedef struct gelu_job {
    void *y;
    const void *x;
    uint64_t count;
} gelu_job;

/* gelu(x) = x gate(x), gate = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3). */
static __device__ __forceinline__ float gelu_gate(float x)
{
    return 1 / (1 + expf(-1.5957691216057308f * x * (1 + 0.044715f * x * x)));
}

template <typename T> static __global__ void gelu_kernel(const gelu_job job)
{
    const uint64_t index = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (index >= job.count) {
        return;
    }
    float value[8];
    load_eight(value, (const T *)job.x + index);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        value[i] *= gelu_gate(value[i]);
    }
    store_eight((T *)job.y + index, value);
}

template <typename T> static __global__ void gelu_grad_kernel(const gelu_job job)
{
    const uint64_t index = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (index >= job.count) {
        return;
    }
    float value[8];
    float dy[8];
    load_eight(value, (const T *)job.x + index);
    load_eight(dy, (const T *)job.y + index);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float x = value[i];
        const float gate = gelu_gate(x);
        const float slope = 1.5957691216057308f * (1 + 3 * 0.044715f * x * x);
        dy[i] *= gate + x * gate * (1 - gate) * slope;
    }
    store_eight((T *)job.y + index, dy);
}

extern "C" cudaError_t gpt2_launch_gelu(cudaStream_t stream, zero_dtype dtype, void *y,
                                        const void *x, uint64_t count)
{
    const gelu_job job = {y, x, count};
    if (!is_known(dtype)) {
        return cudaErrorInvalidValue;
    }
    return gpt2_launch(CHOOSE(gelu_kernel, dtype), dim3(pieces_of(count, 8 * THREADS)),
                       dim3(THREADS), 0, stream, job);
}

extern "C" cudaError_t gpt2_launch_gelu_grad(cudaStream_t stream, zero_dtype dtype, void *dy,
                                             const void *x, uint64_t count)
{
    const gelu_job job = {dy, x, count};
    if (!is_known(dtype)) {
        return cudaErrorInvalidValue;
    }
    return gpt2_launch(CHOOSE(gelu_grad_kernel, dtype), dim3(pieces_of(count, 8 * THREADS)),
                       dim3(THREADS), 0, stream, job);
}

/* --- loss ------------------------------------------------------------------------------------- */

/* A row of a large vocabulary is read twice, the second time from the L2 cache if the rows under
 * way fit into it: few blocks of many threads. */
enum { LOSS_THREADS_MAX = 1024, LOSS_WIDE_FROM = 8192 };

#define LOG2_E 1.4426950408889634f

/* Values seen so far: the largest, and the sum of exp(value - largest). */
struct power_sum {
    float most;
    float total;
};

/* exp(value - most). */
static __device__ __forceinline__ float power_from(float value, float most)
{
    return power_of_two(value * LOG2_E - most * LOG2_E);
}

/* The same, 0 where nothing was seen. */
static __device__ __forceinline__ float rescale(float from, float to)
{
    return from == -INFINITE ? 0 : power_from(from, to);
}

static __device__ __forceinline__ power_sum join(power_sum a, power_sum b)
{
    const float most = fmaxf(a.most, b.most);
    return {most, a.total * rescale(a.most, most) + b.total * rescale(b.most, most)};
}

/* Eight neighbours, those beyond the vocabulary -infinity. */
template <typename T>
static __device__ __forceinline__ void load_logits(float (&value)[8], const T *logits, uint32_t c,
                                                   uint32_t vocab)
{
    load_eight(value, logits + c);
    if (c + 8 > vocab) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            value[i] = c + i < vocab ? value[i] : -INFINITE;
        }
    }
}

template <typename T, int COUNT>
static __device__ power_sum sum_own(const gpt2_loss_job &job, const T *logits)
{
    power_sum own = {-INFINITE, 0};
    for (uint32_t c = threadIdx.x * 8; c < job.vocab; c += COUNT * 8) {
        float value[8];
        load_logits(value, logits, c, job.vocab);
        power_sum some = {value[0], 0};
#pragma unroll
        for (int i = 1; i < 8; i++) {
            some.most = fmaxf(some.most, value[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            some.total += power_from(value[i], some.most);
        }
        own = join(own, some);
    }
    return own;
}

/* Over the block, the same bits in every thread. */
template <int COUNT> static __device__ power_sum sum_block(power_sum own)
{
    __shared__ power_sum warps[COUNT / 32];
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        own = join(own, {warp_xor(own.most, mask), warp_xor(own.total, mask)});
    }
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = own;
    }
    sync_block();
    power_sum all = warps[0];
    for (int warp = 1; warp < COUNT / 32; warp++) {
        all = join(all, warps[warp]);
    }
    return all;
}

/* A block has one row. Nobody writes logits before sum_block's barrier, behind which nobody reads
 * but its own. */
template <typename T, int COUNT>
static __global__ void __launch_bounds__(COUNT) loss_kernel(const gpt2_loss_job job)
{
    const uint32_t row = blockIdx.x;
    const uint32_t target = (uint32_t)job.targets[row];
    T *logits = (T *)job.logits + (uint64_t)row * job.stride;
    const float at_target = threadIdx.x == 0 ? widen(logits[target]) : 0;
    const power_sum all = sum_block<COUNT>(sum_own<T, COUNT>(job, logits));
    if (threadIdx.x == 0) {
        job.losses[row] = (float)(log((double)all.total) + (double)all.most - (double)at_target);
    }
    if (!job.trains) {
        return;
    }
    const float factor = job.scale / all.total;
    for (uint32_t c = threadIdx.x * 8; c < job.stride; c += COUNT * 8) {
        float value[8];
        load_logits(value, logits, c, job.vocab);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            value[i] = power_from(value[i], all.most) * factor;
        }
        if (target - c < 8) {
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                value[i] -= c + i == target ? job.scale : 0;
            }
        }
        store_eight(logits + c, value);
    }
}

template <typename T> static cudaError_t launch_loss(cudaStream_t stream, const gpt2_loss_job *job)
{
    return job->vocab < LOSS_WIDE_FROM
               ? gpt2_launch(loss_kernel<T, THREADS>, dim3(job->rows), dim3(THREADS), 0, stream,
                             *job)
               : gpt2_launch(loss_kernel<T, LOSS_THREADS_MAX>, dim3(job->rows),
                             dim3(LOSS_THREADS_MAX), 0, stream, *job);
}

extern "C" cudaError_t gpt2_launch_loss(cudaStream_t stream, const gpt2_loss_job *job)
{
    if (!is_known(job->dtype)) {
        return cudaErrorInvalidValue;
    }
    return job->dtype == ZERO_DTYPE_F32 ? launch_loss<float>(stream, job)
                                        : launch_loss<gpt2_bf16>(stream, job);
}

typedef struct upload_job {
    int32_t *target;
    const int32_t *source;
    uint64_t count;
} upload_job;

static __global__ void upload_kernel(const upload_job job)
{
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index < job.count) {
        job.target[index] = job.source[index];
    }
}

extern "C" cudaError_t gpt2_launch_upload(cudaStream_t stream, int32_t *target,
                                          const int32_t *source, uint64_t count)
{
    const upload_job job = {target, source, count};
    return gpt2_launch(upload_kernel, dim3(pieces_of(count, THREADS)), dim3(THREADS), 0, stream,
                       job);
}

typedef struct mean_job {
    double *mean;
    const float *losses;
    uint32_t count;
} mean_job;

static __global__ void mean_kernel(const mean_job job)
{
    __shared__ double sums[THREADS];
    double own = 0;
    for (uint32_t i = threadIdx.x; i < job.count; i += THREADS) {
        own += (double)job.losses[i];
    }
    sums[threadIdx.x] = own;
    sync_block();
    for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
        sync_block();
    }
    if (threadIdx.x == 0) {
        *job.mean = sums[0] / job.count;
    }
}

extern "C" cudaError_t gpt2_launch_mean(cudaStream_t stream, double *mean, const float *losses,
                                        uint32_t count)
{
    const mean_job job = {mean, losses, count};
    return gpt2_launch(mean_kernel, dim3(1), dim3(THREADS), 0, stream, job);
}

/* --- gradients -------------------------------------------------------------------------------- */

typedef struct add_job {
    void *target;
    const void *source;
    uint64_t count;
} add_job;

template <typename G, typename T> static __global__ void add_kernel(const add_job job)
{
    const uint64_t index = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (index >= job.count) {
        return;
    }
    float sum[8];
    float value[8];
    load_eight(sum, (const G *)job.target + index);
    load_eight(value, (const T *)job.source + index);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] += value[i];
    }
    store_eight((G *)job.target + index, sum);
}

extern "C" cudaError_t gpt2_launch_add(cudaStream_t stream, zero_dtype target_dtype, void *target,
                                       zero_dtype source_dtype, const void *source, uint64_t count)
{
    const add_job job = {target, source, count};
    const dim3 grid(pieces_of(count, 8 * THREADS));
    if (target_dtype == ZERO_DTYPE_F32 && source_dtype == ZERO_DTYPE_F32) {
        return gpt2_launch(add_kernel<float, float>, grid, dim3(THREADS), 0, stream, job);
    }
    if (target_dtype == ZERO_DTYPE_BF16 && source_dtype == ZERO_DTYPE_F32) {
        return gpt2_launch(add_kernel<gpt2_bf16, float>, grid, dim3(THREADS), 0, stream, job);
    }
    if (target_dtype == ZERO_DTYPE_BF16 && source_dtype == ZERO_DTYPE_BF16) {
        return gpt2_launch(add_kernel<gpt2_bf16, gpt2_bf16>, grid, dim3(THREADS), 0, stream, job);
    }
    return cudaErrorInvalidValue;
}
