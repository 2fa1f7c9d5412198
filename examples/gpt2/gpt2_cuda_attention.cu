/* Causal attention by tiles (Dao, "FlashAttention-2", 2023): no positions x positions array.
 *
 * A block of four warps holds 64 rows of one head in shared memory, a warp 16 of them, and walks
 * over tiles of COLUMNS others, of which the next is copied while one is computed with. Forward
 * keeps a running maximum and sum of each query's row, and leaves its log-sum; backward makes the
 * probabilities again from that. There are two backward kernels, one with queries as rows (dq) and
 * one with keys as rows (dk, dv), so that each sum is one warp's and nothing is added atomically.
 *
 * A 16 x COLUMNS tile of scores lies in registers as the matrix instructions leave it: value i of
 * piece n is row (lane / 4 + i / 2 * 8), column (n * 8 + lane % 4 * 2 + i % 2). For bfloat16 the
 * products are matrix instructions; for float the same lanes compute the same values in fp32.
 * Probabilities are powers of two: a score is scaled by log2(e) / sqrt(depth) where its exponent is
 * computed, by the same instruction that subtracts the row's. Only tiles that the diagonal crosses
 * are masked. Rows beyond the last position are zeros, and nothing of them is stored. */
#include "gpt2_cuda_kernels.h"
#include "gpt2_cuda_warp.h"

#include <math.h>

enum { ROWS = 64, WARP_ROWS = 16, THREADS = 128 };

#define INFINITE __int_as_float(0x7f800000)

/* The tiles' shapes for heads of up to DEPTH, whose rows are padded so that the 8 rows that are
 * read at once lie in different banks. Two stages, one to compute with and one to copy to, fit into
 * the 99 KiB that a block can have on the smallest of the GPUs since Ampere (compute capability
 * 8.6, 8.9 and 12.0); for that, and for registers, the deepest heads have fewer columns. */
template <typename T, int DEPTH_MAX, bool BACKWARD> struct tiles {
    enum {
        DEPTH = DEPTH_MAX,
        COLUMNS = sizeof(T) == 2    ? (DEPTH_MAX <= 64 ? 64 : 32)
                  : DEPTH_MAX <= 64 ? 32
                  : BACKWARD        ? 8
                                    : 16,
        STRIDE = DEPTH_MAX + 16 / (int)sizeof(T),
        TILE = COLUMNS * STRIDE, /* elements; a stage has two */
        HELD = (BACKWARD ? 2 : 1) * ROWS * STRIDE,
        BYTES = (HELD + 4 * TILE) * (int)sizeof(T),
        /* keys as rows need log-sums and deltas of the queries besides */
        KEY_BYTES = BYTES + 4 * COLUMNS * (int)sizeof(float),
        /* Blocks that a multiprocessor has registers for; 0: the compiler's choice, which here was
         * one more and a few registers in memory. */
        QUERY_BLOCKS = sizeof(T) == 4 && DEPTH_MAX == 32 ? 4 : 0,
        FORWARD_BLOCKS = sizeof(T) == 2 && DEPTH_MAX <= 64 ? 4 : 0,
        KEY_BLOCKS = sizeof(T) == 2 && DEPTH_MAX == 32 ? 3 : 0
    };
    static_assert(KEY_BYTES <= 99 * 1024, "more than a block can have");
};

/* --- tiles ------------------------------------------------------------------------------------ */

/* The place of one head of one sample. */
struct head {
    uint64_t qkv;       /* first query, in qkv and dqkv */
    uint64_t out;       /* in mixed and dmixed */
    uint64_t row;       /* in log_sums and deltas */
    uint32_t width;     /* heads x depth: rows of mixed; rows of qkv have 3 of it */
    uint32_t positions; /* rows of the head */
};

static __device__ __forceinline__ head head_of(const gpt2_attention_job &job, uint32_t pair)
{
    const uint32_t width = job.heads * job.depth;
    const uint64_t token = (uint64_t)(pair / job.heads) * job.positions;
    const uint32_t column = pair % job.heads * job.depth;
    return {token * 3 * width + column, token * width + column, (uint64_t)pair * job.positions,
            width, job.positions};
}

/* Begins to copy rows [first, first + COUNT) of a matrix of `stride` into a tile; 0 beyond the last
 * position and beyond the head's depth. A thread has the same columns of each row that is its. */
template <typename shape, int COUNT, typename T>
static __device__ __forceinline__ void copy_tile(T *tile, const T *from, uint64_t stride,
                                                 uint32_t first, const gpt2_attention_job &job)
{
    enum { PIECE = 16 / (int)sizeof(T), PIECES = shape::DEPTH / PIECE, STEP = THREADS / PIECES };
    static_assert(COUNT % STEP == 0, "every thread copies as many rows");
    const uint32_t row = threadIdx.x / PIECES;
    const uint32_t column = threadIdx.x % PIECES * PIECE;
    const T *source = from + (first + row) * stride + column;
    T *target = tile + row * (uint32_t)shape::STRIDE + column;
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i += STEP) {
        copy_sixteen(target + i * (uint32_t)shape::STRIDE, source + i * stride,
                     first + row + i < job.positions && column < job.depth);
    }
}

/* Begins to copy a stage of what queries as rows need: keys and values from row `first` on. */
template <typename shape, typename T>
static __device__ __forceinline__ void copy_keys(T *tiles, const T *qkv, uint32_t first,
                                                 const head &at, const gpt2_attention_job &job)
{
    const uint64_t stride = 3 * (uint64_t)at.width;
    copy_tile<shape, shape::COLUMNS>(tiles, qkv + at.width, stride, first, job);
    copy_tile<shape, shape::COLUMNS>(tiles + shape::TILE, qkv + 2 * at.width, stride, first, job);
}

/* The stage that was copied to is there for the whole block, and the other one no longer read. */
static __device__ __forceinline__ void next_stage()
{
    await_copies();
    sync_block();
}

/* out = x y': a warp's 16 rows of x by the COLUMNS rows of y, over the depth. */
template <typename shape>
static __device__ __forceinline__ void cross(float (&out)[shape::COLUMNS / 8][4],
                                             const gpt2_bf16 *x, const gpt2_bf16 *y)
{
    const int lane = (int)threadIdx.x % 32;
    const gpt2_bf16 *x_row = x + (lane / 8 % 2 * 8 + lane % 8) * shape::STRIDE + lane / 16 * 8;
    const gpt2_bf16 *y_row = y + (lane / 16 * 8 + lane % 8) * shape::STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < shape::COLUMNS / 8; n++) {
        out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
    }
#pragma unroll
    for (int k = 0; k < shape::DEPTH; k += 16) {
        uint32_t a[4];
        load_matrices(a, x_row + k);
#pragma unroll
        for (int n = 0; n < shape::COLUMNS; n += 16) {
            uint32_t b[4];
            load_matrices(b, y_row + n * shape::STRIDE + k);
            multiply(out[n / 8], a, b[0], b[1]);
            multiply(out[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

template <typename shape>
static __device__ __forceinline__ void cross(float (&out)[shape::COLUMNS / 8][4], const float *x,
                                             const float *y)
{
    const int lane = (int)threadIdx.x % 32;
    const float *x_row = x + lane / 4 * shape::STRIDE;
    const float *y_row = y + lane % 4 * 2 * shape::STRIDE;
#pragma unroll
    for (int n = 0; n < shape::COLUMNS / 8; n++) {
        out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
    }
    for (int k = 0; k < shape::DEPTH; k += 4) {
        const float4 a0 = *(const float4 *)(x_row + k);
        const float4 a1 = *(const float4 *)(x_row + 8 * shape::STRIDE + k);
#pragma unroll
        for (int n = 0; n < shape::COLUMNS / 8; n++) {
            const float4 b0 = *(const float4 *)(y_row + n * 8 * shape::STRIDE + k);
            const float4 b1 = *(const float4 *)(y_row + (n * 8 + 1) * shape::STRIDE + k);
            out[n][0] += a0.x * b0.x + a0.y * b0.y + a0.z * b0.z + a0.w * b0.w;
            out[n][1] += a0.x * b1.x + a0.y * b1.y + a0.z * b1.z + a0.w * b1.w;
            out[n][2] += a1.x * b0.x + a1.y * b0.y + a1.z * b0.z + a1.w * b0.w;
            out[n][3] += a1.x * b1.x + a1.y * b1.y + a1.z * b1.z + a1.w * b1.w;
        }
    }
}

/* out += p y: the warp's 16 x COLUMNS scores by the COLUMNS rows of y. Two neighbouring pieces of
 * scores are, as they lie, one left factor of the matrix instruction. */
template <typename shape>
static __device__ __forceinline__ void weigh(float (&out)[shape::DEPTH / 8][4],
                                             const float (&p)[shape::COLUMNS / 8][4],
                                             const gpt2_bf16 *y)
{
    const int lane = (int)threadIdx.x % 32;
    const gpt2_bf16 *y_row = y + (lane / 8 % 2 * 8 + lane % 8) * shape::STRIDE + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < shape::COLUMNS; k += 16) {
        const float(&low)[4] = p[k / 8];
        const float(&high)[4] = p[k / 8 + 1];
        const uint32_t a[4] = {to_bf16_pair(low[0], low[1]), to_bf16_pair(low[2], low[3]),
                               to_bf16_pair(high[0], high[1]), to_bf16_pair(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < shape::DEPTH; n += 16) {
            uint32_t b[4];
            load_matrices_turned(b, y_row + k * shape::STRIDE + n);
            multiply(out[n / 8], a, b[0], b[1]);
            multiply(out[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

template <typename shape>
static __device__ __forceinline__ void
weigh(float (&out)[shape::DEPTH / 8][4], const float (&p)[shape::COLUMNS / 8][4], const float *y)
{
    const int lane = (int)threadIdx.x % 32;
    const float *y_row = y + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < shape::COLUMNS; k++) {
        /* column k of both rows is with the lane of the same four that holds it */
        const int from = lane / 4 * 4 + k % 8 / 2;
        const float p0 = warp_from(p[k / 8][k % 2], from);
        const float p1 = warp_from(p[k / 8][2 + k % 2], from);
#pragma unroll
        for (int n = 0; n < shape::DEPTH / 8; n++) {
            const float2 b = *(const float2 *)(y_row + k * shape::STRIDE + n * 8);
            out[n][0] += p0 * b.x;
            out[n][1] += p0 * b.y;
            out[n][2] += p1 * b.x;
            out[n][3] += p1 * b.y;
        }
    }
}

template <typename shape>
static __device__ __forceinline__ void clear(float (&out)[shape::DEPTH / 8][4])
{
#pragma unroll
    for (int n = 0; n < shape::DEPTH / 8; n++) {
        out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
    }
}

/* The warp's 16 rows from row `first` on, times `low` for rows lane / 4 and `high` for those 8
 * further. */
template <typename shape, typename T>
static __device__ __forceinline__ void
store_rows(T *to, uint64_t stride, uint32_t first, const float (&value)[shape::DEPTH / 8][4],
           float low, float high, const gpt2_attention_job &job)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = first + lane / 4;
#pragma unroll
    for (int n = 0; n < shape::DEPTH / 8; n++) {
        const uint32_t column = (uint32_t)n * 8 + lane % 4 * 2;
        if (column < job.depth && row < job.positions) {
            store_two(to + row * stride + column, value[n][0] * low, value[n][1] * low);
        }
        if (column < job.depth && row + 8 < job.positions) {
            store_two(to + (row + 8) * stride + column, value[n][2] * high, value[n][3] * high);
        }
    }
}

static __device__ __forceinline__ float natural_scale(const gpt2_attention_job &job)
{
    return 1 / sqrtf((float)job.depth);
}

static __device__ __forceinline__ float base2_scale(const gpt2_attention_job &job)
{
    return natural_scale(job) * 1.4426950408889634f;
}

/* Takes from the scores of a warp's 16 rows what is not seen: a query sees keys up to its own.
 * `row` is the warp's first row, `column` the tile's first column. */
template <typename shape, bool ROWS_ARE_KEYS>
static __device__ __forceinline__ void hide(float (&s)[shape::COLUMNS / 8][4], uint32_t row,
                                            uint32_t column)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < shape::COLUMNS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t r = row + lane / 4 + i / 2 * 8;
            const uint32_t c = column + n * 8 + lane % 4 * 2 + i % 2;
            const bool seen = ROWS_ARE_KEYS ? r <= c : c <= r;
            s[n][i] = seen ? s[n][i] : -INFINITE;
        }
    }
}

/* --- forward ---------------------------------------------------------------------------------- */

/* Of the two rows that a lane has values of: largest scaled score so far, and the lane's share of
 * the sum of 2^(scaled score - most). */
struct running {
    float most[2];
    float total[2];
};

/* Scores of a tile to probabilities up to the row's factor; what was summed before is scaled to the
 * new maximum. Column 0 is visible to every row and in the first tile, so no maximum stays
 * -infinity. */
template <typename shape>
static __device__ __forceinline__ void soften(float (&s)[shape::COLUMNS / 8][4], float scale,
                                              float (&out)[shape::DEPTH / 8][4], running &state)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = -INFINITE;
#pragma unroll
        for (int n = 0; n < shape::COLUMNS / 8; n++) {
            most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        }
        most = fmaxf(most, warp_xor(most, 1));
        most = fmaxf(most, warp_xor(most, 2));
        most = fmaxf(state.most[half], most * scale);
        const float factor = power_of_two(state.most[half] - most);
        float total = state.total[half] * factor;
#pragma unroll
        for (int n = 0; n < shape::COLUMNS / 8; n++) {
            s[n][2 * half] = power_of_two(s[n][2 * half] * scale - most);
            s[n][2 * half + 1] = power_of_two(s[n][2 * half + 1] * scale - most);
            total += s[n][2 * half] + s[n][2 * half + 1];
        }
#pragma unroll
        for (int n = 0; n < shape::DEPTH / 8; n++) {
            out[n][2 * half] *= factor;
            out[n][2 * half + 1] *= factor;
        }
        state.most[half] = most;
        state.total[half] = total;
    }
}

template <typename T, typename shape>
static __global__ void __launch_bounds__(THREADS, shape::FORWARD_BLOCKS)
    attention_kernel(const gpt2_attention_job job)
{
    GPT2_DYNAMIC_SHARED(shared);
    T *query_tile = (T *)shared;
    T *stages = query_tile + shape::HELD;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    const head at = head_of(job, blockIdx.x);
    const uint32_t first = (gridDim.y - 1 - blockIdx.y) * ROWS; /* the longest walks begin first */
    const uint32_t own = first + warp * WARP_ROWS;
    const uint32_t end = first + ROWS < at.positions ? first + ROWS : at.positions;
    const uint64_t stride = 3 * (uint64_t)at.width;
    const T *qkv = (const T *)job.qkv + at.qkv;
    const float scale = base2_scale(job);
    running state = {{-INFINITE, -INFINITE}, {0, 0}};
    float s[shape::COLUMNS / 8][4];
    float out[shape::DEPTH / 8][4];
    clear<shape>(out);
    copy_tile<shape, ROWS>(query_tile, qkv, stride, first, job);
    uint32_t stage = 0;
    copy_keys<shape>(stages, qkv, 0, at, job);
    for (uint32_t key = 0; key < end; key += shape::COLUMNS) {
        const T *key_tile = stages + stage * 2 * shape::TILE;
        const T *value_tile = key_tile + shape::TILE;
        stage = 1 - stage;
        next_stage();
        if (key + shape::COLUMNS < end) {
            copy_keys<shape>(stages + stage * 2 * shape::TILE, qkv, key + shape::COLUMNS, at, job);
        }
        if (key > own + WARP_ROWS - 1) {
            continue; /* nothing of this tile is visible to the warp */
        }
        cross<shape>(s, query_tile + warp * WARP_ROWS * shape::STRIDE, key_tile);
        if (key + shape::COLUMNS - 1 > own) {
            hide<shape, false>(s, own, key);
        }
        soften<shape>(s, scale, out, state);
        weigh<shape>(out, s, value_tile);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        state.total[half] += warp_xor(state.total[half], 1);
        state.total[half] += warp_xor(state.total[half], 2);
        const uint32_t row = own + lane / 4 + half * 8;
        if (lane % 4 == 0 && row < at.positions) {
            job.log_sums[at.row + row] = state.most[half] + log2f(state.total[half]);
        }
    }
    store_rows<shape>((T *)job.mixed + at.out, at.width, own, out, 1 / state.total[0],
                      1 / state.total[1], job);
}

/* --- backward --------------------------------------------------------------------------------- */

/* deltas = sum over the depth of dmixed mixed, which is the sum over keys of p dp. A warp has one
 * head of one token. */
template <typename T> static __global__ void delta_kernel(const gpt2_attention_job job)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t index = (uint64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const uint64_t tokens = (uint64_t)job.samples * job.positions;
    if (index >= tokens * job.heads) {
        return;
    }
    const uint64_t token = index / job.heads;
    const uint32_t which = (uint32_t)(index % job.heads);
    const uint64_t at = (token * job.heads + which) * job.depth;
    float total = 0;
    for (uint32_t c = lane; c < job.depth; c += 32) {
        total += widen(((const T *)job.mixed)[at + c]) * widen(((const T *)job.dmixed)[at + c]);
    }
    total = warp_sum(total);
    if (lane == 0) {
        const uint64_t pair = token / job.positions * job.heads + which;
        job.deltas[pair * job.positions + token % job.positions] = total;
    }
}

/* Rows are queries: dq = scale ds k, ds = p (dp - delta), dp = dmixed v'. */
template <typename T, typename shape>
static __global__ void __launch_bounds__(THREADS, shape::QUERY_BLOCKS)
    query_grad_kernel(const gpt2_attention_job job)
{
    GPT2_DYNAMIC_SHARED(shared);
    T *query_tile = (T *)shared;
    T *dout_tile = query_tile + ROWS * shape::STRIDE;
    T *stages = query_tile + shape::HELD;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    const head at = head_of(job, blockIdx.x);
    const uint32_t first = (gridDim.y - 1 - blockIdx.y) * ROWS;
    const uint32_t own = first + warp * WARP_ROWS;
    const uint32_t end = first + ROWS < at.positions ? first + ROWS : at.positions;
    const uint64_t stride = 3 * (uint64_t)at.width;
    const T *qkv = (const T *)job.qkv + at.qkv;
    const float scale = base2_scale(job);
    float log_sum[2] = {0, 0};
    float delta[2] = {0, 0};
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t row = own + lane / 4 + half * 8;
        if (row < at.positions) {
            log_sum[half] = job.log_sums[at.row + row];
            delta[half] = job.deltas[at.row + row];
        }
    }
    float s[shape::COLUMNS / 8][4];
    float dp[shape::COLUMNS / 8][4];
    float dq[shape::DEPTH / 8][4];
    clear<shape>(dq);
    copy_tile<shape, ROWS>(query_tile, qkv, stride, first, job);
    copy_tile<shape, ROWS>(dout_tile, (const T *)job.dmixed + at.out, at.width, first, job);
    uint32_t stage = 0;
    copy_keys<shape>(stages, qkv, 0, at, job);
    for (uint32_t key = 0; key < end; key += shape::COLUMNS) {
        const T *key_tile = stages + stage * 2 * shape::TILE;
        const T *value_tile = key_tile + shape::TILE;
        stage = 1 - stage;
        next_stage();
        if (key + shape::COLUMNS < end) {
            copy_keys<shape>(stages + stage * 2 * shape::TILE, qkv, key + shape::COLUMNS, at, job);
        }
        if (key > own + WARP_ROWS - 1) {
            continue;
        }
        cross<shape>(s, query_tile + warp * WARP_ROWS * shape::STRIDE, key_tile);
        cross<shape>(dp, dout_tile + warp * WARP_ROWS * shape::STRIDE, value_tile);
        if (key + shape::COLUMNS - 1 > own) {
            hide<shape, false>(s, own, key);
        }
#pragma unroll
        for (int n = 0; n < shape::COLUMNS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float p = power_of_two(s[n][i] * scale - log_sum[i / 2]);
                s[n][i] = p * (dp[n][i] - delta[i / 2]);
            }
        }
        weigh<shape>(dq, s, key_tile);
    }
    const float factor = natural_scale(job);
    store_rows<shape>((T *)job.dqkv + at.qkv, stride, own, dq, factor, factor, job);
}

/* Begins to copy a stage of what keys as rows need of the queries: to `tiles` the queries and
 * dmixed, to `sums` log-sums and deltas. */
template <typename shape, typename T>
static __device__ __forceinline__ void copy_queries(T *tiles, float *sums, uint32_t first,
                                                    const head &at, const gpt2_attention_job &job)
{
    copy_tile<shape, shape::COLUMNS>(tiles, (const T *)job.qkv + at.qkv, 3 * (uint64_t)at.width,
                                     first, job);
    copy_tile<shape, shape::COLUMNS>(tiles + shape::TILE, (const T *)job.dmixed + at.out, at.width,
                                     first, job);
    for (uint32_t i = threadIdx.x; i < shape::COLUMNS; i += THREADS) {
        const bool exists = first + i < at.positions;
        copy_float(sums + i, job.log_sums + at.row + first + i, exists);
        copy_float(sums + shape::COLUMNS + i, job.deltas + at.row + first + i, exists);
    }
}

/* Rows are keys, so scores, p and ds lie transposed: dv = p' dmixed, dk = scale ds' q. */
template <typename T, typename shape>
static __global__ void __launch_bounds__(THREADS, shape::KEY_BLOCKS)
    key_grad_kernel(const gpt2_attention_job job)
{
    GPT2_DYNAMIC_SHARED(shared);
    T *key_tile = (T *)shared;
    T *value_tile = key_tile + ROWS * shape::STRIDE;
    T *stages = key_tile + shape::HELD;
    float *sums = (float *)(stages + 4 * shape::TILE);
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    const head at = head_of(job, blockIdx.x);
    const uint32_t first = blockIdx.y * ROWS; /* here the first rows walk longest */
    const uint32_t own = first + warp * WARP_ROWS;
    const uint64_t stride = 3 * (uint64_t)at.width;
    const T *qkv = (const T *)job.qkv + at.qkv;
    const float scale = base2_scale(job);
    float p[shape::COLUMNS / 8][4];
    float ds[shape::COLUMNS / 8][4];
    float dk[shape::DEPTH / 8][4];
    float dv[shape::DEPTH / 8][4];
    clear<shape>(dk);
    clear<shape>(dv);
    copy_tile<shape, ROWS>(key_tile, qkv + at.width, stride, first, job);
    copy_tile<shape, ROWS>(value_tile, qkv + 2 * at.width, stride, first, job);
    uint32_t stage = 0;
    copy_queries<shape>(stages, sums, first, at, job);
    for (uint32_t query = first; query < at.positions; query += shape::COLUMNS) {
        const T *query_tile = stages + stage * 2 * shape::TILE;
        const T *dout_tile = query_tile + shape::TILE;
        const float *log_sums = sums + stage * 2 * shape::COLUMNS;
        const float *deltas = log_sums + shape::COLUMNS;
        stage = 1 - stage;
        next_stage();
        if (query + shape::COLUMNS < at.positions) {
            copy_queries<shape>(stages + stage * 2 * shape::TILE, sums + stage * 2 * shape::COLUMNS,
                                query + shape::COLUMNS, at, job);
        }
        if (query + shape::COLUMNS - 1 < own) {
            continue; /* the warp's keys are behind all of these queries */
        }
        cross<shape>(p, key_tile + warp * WARP_ROWS * shape::STRIDE, query_tile);
        cross<shape>(ds, value_tile + warp * WARP_ROWS * shape::STRIDE, dout_tile);
        if (own + WARP_ROWS - 1 > query) {
            hide<shape, true>(p, own, query);
        }
#pragma unroll
        for (int n = 0; n < shape::COLUMNS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t column = n * 8 + lane % 4 * 2 + i % 2;
                p[n][i] = power_of_two(p[n][i] * scale - log_sums[column]);
                ds[n][i] = p[n][i] * (ds[n][i] - deltas[column]);
            }
        }
        weigh<shape>(dv, p, dout_tile);
        weigh<shape>(dk, ds, query_tile);
    }
    const float factor = natural_scale(job);
    T *dqkv = (T *)job.dqkv + at.qkv;
    store_rows<shape>(dqkv + at.width, stride, own, dk, factor, factor, job);
    store_rows<shape>(dqkv + 2 * at.width, stride, own, dv, 1, 1, job);
}

/* --- launches --------------------------------------------------------------------------------- */

template <typename T, typename shape>
static cudaError_t launch_forward(cudaStream_t stream, const gpt2_attention_job *job)
{
    const dim3 grid(job->samples * job->heads, (job->positions + ROWS - 1) / ROWS);
    return gpt2_launch(attention_kernel<T, shape>, grid, dim3(THREADS), shape::BYTES, stream, *job);
}

template <typename T, typename shape>
static cudaError_t launch_backward(cudaStream_t stream, const gpt2_attention_job *job)
{
    const dim3 grid(job->samples * job->heads, (job->positions + ROWS - 1) / ROWS);
    const uint64_t deltas = (uint64_t)job->samples * job->positions * job->heads;
    const uint64_t warps = THREADS / 32;
    cudaError_t code = gpt2_launch(delta_kernel<T>, dim3((unsigned)((deltas + warps - 1) / warps)),
                                   dim3(THREADS), 0, stream, *job);
    if (code == cudaSuccess) {
        code = gpt2_launch(query_grad_kernel<T, shape>, grid, dim3(THREADS), shape::BYTES, stream,
                           *job);
    }
    if (code == cudaSuccess) {
        code = gpt2_launch(key_grad_kernel<T, shape>, grid, dim3(THREADS), shape::KEY_BYTES, stream,
                           *job);
    }
    return code;
}

template <typename T> static cudaError_t forward(cudaStream_t stream, const gpt2_attention_job *job)
{
    return job->depth <= 32   ? launch_forward<T, tiles<T, 32, false>>(stream, job)
           : job->depth <= 64 ? launch_forward<T, tiles<T, 64, false>>(stream, job)
                              : launch_forward<T, tiles<T, 128, false>>(stream, job);
}

template <typename T>
static cudaError_t backward(cudaStream_t stream, const gpt2_attention_job *job)
{
    return job->depth <= 32   ? launch_backward<T, tiles<T, 32, true>>(stream, job)
           : job->depth <= 64 ? launch_backward<T, tiles<T, 64, true>>(stream, job)
                              : launch_backward<T, tiles<T, 128, true>>(stream, job);
}

static bool is_possible(const gpt2_attention_job *job)
{
    return (job->dtype == ZERO_DTYPE_F32 || job->dtype == ZERO_DTYPE_BF16) && job->depth % 8 == 0 &&
           job->depth <= 128;
}

extern "C" cudaError_t gpt2_launch_attention(cudaStream_t stream, const gpt2_attention_job *job)
{
    if (!is_possible(job)) {
        return cudaErrorInvalidValue;
    }
    return job->dtype == ZERO_DTYPE_F32 ? forward<float>(stream, job)
                                        : forward<gpt2_bf16>(stream, job);
}

extern "C" cudaError_t gpt2_launch_attention_grad(cudaStream_t stream,
                                                  const gpt2_attention_job *job)
{
    if (!is_possible(job)) {
        return cudaErrorInvalidValue;
    }
    return job->dtype == ZERO_DTYPE_F32 ? backward<float>(stream, job)
                                        : backward<gpt2_bf16>(stream, job);
}
