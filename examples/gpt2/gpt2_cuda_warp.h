/* The parts of the kernels: elements in fp32, eight at a time, and the operations of a warp.
 *
 * tests/gpt2/gpt2_emulation.h defines the second half in plain C++, so that the same kernels run on
 * the CPU, thread by thread, in a test. */
#ifndef GPT2_CUDA_WARP_H
#define GPT2_CUDA_WARP_H

#include <stdint.h>

/* A bfloat16 as its bits. */
struct gpt2_bf16 {
    uint16_t bits;
};

#ifndef GPT2_EMULATED
#include <cuda_bf16.h>
#include <cuda_runtime.h>

/* The launch's dynamic shared memory. */
#define GPT2_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

static __device__ __forceinline__ float from_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}

/* To nearest even. */
static __device__ __forceinline__ uint32_t to_bf16(float value)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* `low` in the lower half. */
static __device__ __forceinline__ uint32_t to_bf16_pair(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return (uint32_t)__bfloat16_as_ushort(pair.x) | (uint32_t)__bfloat16_as_ushort(pair.y) << 16;
}

/* 2^x by one instruction, off by 2^-22 of it; 0 below 2^-126. exp2f takes care of what lies there.
 */
static __device__ __forceinline__ float power_of_two(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

static __device__ __forceinline__ void sync_block()
{
    __syncthreads();
}

/* The value of lane (own ^ mask). */
static __device__ __forceinline__ float warp_xor(float value, int mask)
{
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

static __device__ __forceinline__ float warp_from(float value, int lane)
{
    return __shfl_sync(0xffffffffu, value, lane);
}

static __device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Begins a copy of 16 bytes, both at multiples of 16, to shared memory past the registers; zeros
 * where the source does not exist, and then it is not read. */
static __device__ __forceinline__ void copy_sixteen(void *shared, const void *from, bool exists)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0)
                 : "memory");
}

/* The same of one float. */
static __device__ __forceinline__ void copy_float(float *shared, const float *from, bool exists)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(exists ? 4 : 0)
                 : "memory");
}

/* Waits for the copies that this thread began. Others' are there after a barrier behind it. */
static __device__ __forceinline__ void await_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Four 8 x 8 matrices of 16 bits; lane i gives the row i % 8 of matrix i / 8 and gets of each the
 * elements (lane / 4, lane % 4 * 2 ..  + 1), or with `turned` those of the transposed matrix. */
static __device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_turned(uint32_t (&out)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* c (16 x 8) += a (16 x 16) b (16 x 8), a and b bf16. With g = lane / 4 and t = lane % 4:
 * a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), a pair of columns each;
 * b: (2t, g), (2t + 8, g), a pair of rows each; c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (.., 2t + 1).
 */
static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

/* --- elements --------------------------------------------------------------------------------- */

static __device__ __forceinline__ float widen(float value)
{
    return value;
}

static __device__ __forceinline__ float widen(gpt2_bf16 value)
{
    return from_bits((uint32_t)value.bits << 16);
}

static __device__ __forceinline__ void store_one(float *to, float value)
{
    *to = value;
}

static __device__ __forceinline__ void store_one(gpt2_bf16 *to, float value)
{
    to->bits = (uint16_t)to_bf16(value);
}

/* Two neighbours, the first at an even index. */
static __device__ __forceinline__ void store_two(float *to, float first, float second)
{
    *(float2 *)to = make_float2(first, second);
}

static __device__ __forceinline__ void store_two(gpt2_bf16 *to, float first, float second)
{
    *(uint32_t *)to = to_bf16_pair(first, second);
}

/* Eight neighbours at a multiple of 16 bytes. */
static __device__ __forceinline__ void load_eight(float (&value)[8], const float *from)
{
    const float4 low = ((const float4 *)from)[0];
    const float4 high = ((const float4 *)from)[1];
    value[0] = low.x;
    value[1] = low.y;
    value[2] = low.z;
    value[3] = low.w;
    value[4] = high.x;
    value[5] = high.y;
    value[6] = high.z;
    value[7] = high.w;
}

static __device__ __forceinline__ void load_eight(float (&value)[8], const gpt2_bf16 *from)
{
    const uint4 all = *(const uint4 *)from;
    const uint32_t pairs[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        value[2 * i] = from_bits(pairs[i] << 16);
        value[2 * i + 1] = from_bits(pairs[i] & 0xffff0000u);
    }
}

static __device__ __forceinline__ void store_eight(float *to, const float (&value)[8])
{
    ((float4 *)to)[0] = make_float4(value[0], value[1], value[2], value[3]);
    ((float4 *)to)[1] = make_float4(value[4], value[5], value[6], value[7]);
}

static __device__ __forceinline__ void store_eight(gpt2_bf16 *to, const float (&value)[8])
{
    *(uint4 *)to = make_uint4(to_bf16_pair(value[0], value[1]), to_bf16_pair(value[2], value[3]),
                              to_bf16_pair(value[4], value[5]), to_bf16_pair(value[6], value[7]));
}

/* Sum over the warp, the same bits in every lane. */
static __device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        value += warp_xor(value, mask);
    }
    return value;
}

/* --- launches --------------------------------------------------------------------------------- */

#ifndef GPT2_EMULATED
template <typename job>
static inline cudaError_t gpt2_launch(void (*kernel)(job), dim3 grid, dim3 block, size_t shared,
                                      cudaStream_t stream, const job &what)
{
    /* More than 48 KiB of dynamic shared memory must be asked for. */
    if (shared > 48 * 1024) {
        const cudaError_t code = cudaFuncSetAttribute(
            (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (code != cudaSuccess) {
            return code;
        }
    }
    /* Not <<<>>> and cudaGetLastError, which would also tell of what others left behind. */
    job copy = what;
    void *arguments[] = {&copy};
    return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream);
}
#endif

#endif
