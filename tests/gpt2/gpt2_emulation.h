/* The common operations of the GPT's kernels, on the CPU (tests/emulation). A warp's are written
 * out here by the layouts that the PTX manual gives (sections mma.m16n8k16 and ldmatrix). */
#ifndef TESTS_GPT2_GPT2_EMULATION_H
#define TESTS_GPT2_GPT2_EMULATION_H

#define GPT2_EMULATED

#include "../emulation/emulation.h"

#define GPT2_DYNAMIC_SHARED(name) unsigned char *name = emulated->shared

/* --- launch ----------------------------------------------------------------------------------- */

template <typename job> struct emulated_call {
    void (*kernel)(job);
    const job *what;
};

template <typename job> static void emulated_run(const void *call)
{
    const emulated_call<job> *it = (const emulated_call<job> *)call;
    it->kernel(*it->what);
}

template <typename job>
static inline cudaError_t gpt2_launch(void (*kernel)(job), dim3 grid, dim3 block, size_t shared,
                                      cudaStream_t stream, const job &what)
{
    (void)stream;
    const emulated_call<job> call = {kernel, &what};
    return emulated_launch(grid, block, shared, emulated_run<job>, &call);
}

/* --- elements --------------------------------------------------------------------------------- */

static inline float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float __int_as_float(int bits)
{
    return from_bits((uint32_t)bits);
}

static inline uint32_t to_bf16(float value)
{
    const uint32_t bits = bits_of(value);
    return value != value ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

static inline uint32_t to_bf16_pair(float low, float high)
{
    return to_bf16(low) | to_bf16(high) << 16;
}

/* --- a block and a warp together -------------------------------------------------------------- */

static inline void sync_block()
{
    emulated_sync_block();
}

static inline void emulated_copy_now(const emulated_copy *copy)
{
    if (copy->from != NULL) {
        memcpy(copy->to, copy->from, copy->bytes);
    } else {
        memset(copy->to, 0, copy->bytes);
    }
}

/* A copy may be done at any time until it is waited for. In every other block, and launch, it is
 * done at once, so that one over what is still being read shows; in the others when it is waited
 * for, so that reading too early does. */
static inline void emulated_begin_copy(void *to, const void *from, size_t bytes, bool exists)
{
    emulated_thread *self = emulated->now;
    if ((uintptr_t)to % bytes != 0 || (exists && (uintptr_t)from % bytes != 0)) {
        emulated_fault("a copy is not aligned to its size");
    }
    if (self->copy_count == EMULATED_COPIES_MAX) {
        emulated_fault("more copies at once than the emulation has room for");
    }
    emulated_copy *copy = &self->copies[self->copy_count++];
    *copy = {to, exists ? from : NULL, bytes};
    if (emulated_is_other()) {
        emulated_copy_now(copy);
    }
}

static inline float power_of_two(float x)
{
    return exp2f(x);
}

static inline void copy_sixteen(void *shared, const void *from, bool exists)
{
    emulated_begin_copy(shared, from, 16, exists);
}

static inline void copy_float(float *shared, const float *from, bool exists)
{
    emulated_begin_copy(shared, from, sizeof *from, exists);
}

static inline void await_copies()
{
    emulated_thread *self = emulated->now;
    for (int i = 0; i < self->copy_count && !emulated_is_other(); i++) {
        emulated_copy_now(&self->copies[i]);
    }
    self->copy_count = 0;
}

static inline float warp_from(float value, int lane)
{
    return emulated_from(value, lane);
}

static inline float warp_xor(float value, int mask)
{
    return warp_from(value, emulated->now->lane ^ mask);
}

static inline uint32_t emulated_half(const unsigned char *row, int column)
{
    uint16_t half;
    memcpy(&half, row + 2 * column, sizeof half);
    return half;
}

static inline void emulated_load(uint32_t (&out)[4], const void *row, bool turned)
{
    emulated_thread *self = emulated->now;
    if ((uintptr_t)row % 16 != 0) {
        emulated_fault("a row of a matrix is not aligned to 16 bytes");
    }
    self->warp[self->lane].row = (const unsigned char *)row;
    emulated_wait(AT_WARP);
    const int outer = self->lane / 4;
    const int inner = self->lane % 4 * 2;
    for (int matrix = 0; matrix < 4; matrix++) {
        const emulated_gift *rows = self->warp + 8 * matrix;
        out[matrix] = turned ? emulated_half(rows[inner].row, outer) |
                                   emulated_half(rows[inner + 1].row, outer) << 16
                             : emulated_half(rows[outer].row, inner) |
                                   emulated_half(rows[outer].row, inner + 1) << 16;
    }
    emulated_wait(AT_WARP);
}

static inline void load_matrices(uint32_t (&out)[4], const void *row)
{
    emulated_load(out, row, false);
}

static inline void load_matrices_turned(uint32_t (&out)[4], const void *row)
{
    emulated_load(out, row, true);
}

/* Element (row, k) of the left factor: register by which half of the rows and of k, lane by the
 * place in the half. */
static inline float emulated_left(const emulated_gift *warp, int row, int k)
{
    const uint32_t word = warp[row % 8 * 4 + k % 8 / 2].words[row / 8 + k / 8 * 2];
    return from_bits(k % 2 == 0 ? word << 16 : word & 0xffff0000u);
}

static inline float emulated_right(const emulated_gift *warp, int k, int column)
{
    const uint32_t word = warp[column * 4 + k % 8 / 2].words[4 + k / 8];
    return from_bits(k % 2 == 0 ? word << 16 : word & 0xffff0000u);
}

static inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulated_thread *self = emulated->now;
    emulated_gift *gift = &self->warp[self->lane];
    memcpy(gift->words, a, sizeof a);
    gift->words[4] = b0;
    gift->words[5] = b1;
    emulated_wait(AT_WARP);
    for (int i = 0; i < 4; i++) {
        const int row = self->lane / 4 + i / 2 * 8;
        const int column = self->lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            c[i] += emulated_left(self->warp, row, k) * emulated_right(self->warp, k, column);
        }
    }
    emulated_wait(AT_WARP);
}

#endif
