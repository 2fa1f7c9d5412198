/* Runs CUDA kernels on the CPU, thread by thread, from the source that nvcc compiles.
 *
 * A block's threads are contexts that run in turn until each waits at a barrier of its block or of
 * its warp; blocks follow one another. Threads that wait at different barriers, or leave while
 * others of the warp wait, are a fault and abort. What a warp does together is written out here by
 * the layouts that the PTX manual gives (sections mma.m16n8k16 and ldmatrix). A launch runs at
 * once, on the calling thread. Not emulated: caches, races between barriers, limits of a launch but
 * its threads, and the speed of anything. */
#ifndef TESTS_GPT2_EMULATION_H
#define TESTS_GPT2_EMULATION_H

#define GPT2_EMULATED

#include <cuda_runtime_api.h>
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <vector_functions.h>

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

enum {
    EMULATED_THREADS_MAX = 1024,
    EMULATED_STACK_BYTES = 1 << 16,
    EMULATED_SHARED_MAX = 99 << 10, /* the least that a GPU since Ampere has */
    EMULATED_COPIES_MAX = 128,
    EMULATED_GUARD = 4096 /* bytes behind the shared memory that stay as they are */
};

enum emulated_state { READY, AT_WARP, AT_BLOCK, DONE };

/* What a lane gives to the others of its warp. */
struct emulated_gift {
    uint32_t words[6];
    const unsigned char *row;
};

/* Zeros where there is no source. */
struct emulated_copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct emulated_thread {
    jmp_buf place;      /* where it waits */
    ucontext_t context; /* where it began */
    bool began;
    uint3 index;
    int lane;
    emulated_state state;
    emulated_gift *warp; /* 32 of them */
    emulated_copy copies[EMULATED_COPIES_MAX];
    int copy_count; /* begun, and not waited for */
};

/* The block under way on this thread of the host. */
struct emulated_block {
    jmp_buf scheduler;
    emulated_thread threads[EMULATED_THREADS_MAX];
    emulated_gift gifts[EMULATED_THREADS_MAX];
    unsigned char *stacks;
    unsigned char *shared; /* dynamic */
    emulated_thread *now;
    uint3 index;
    dim3 grid;
    dim3 shape;
    void (*run)(const void *call);
    const void *call;
};

static thread_local emulated_block *emulated;

#define threadIdx (emulated->now->index)
#define blockIdx (emulated->index)
#define gridDim (emulated->grid)
#define GPT2_DYNAMIC_SHARED(name) unsigned char *name = emulated->shared

static inline void emulated_fault(const char *what)
{
    fprintf(stderr, "emulation: %s\n", what);
    abort();
}

/* --- threads ---------------------------------------------------------------------------------- */

/* Back to the scheduler until that comes back. A switch is a jump between stacks, which makes no
 * system call. */
static inline void emulated_wait(emulated_state state)
{
    emulated_thread *self = emulated->now;
    self->state = state;
    if (_setjmp(self->place) == 0) {
        _longjmp(emulated->scheduler, 1);
    }
}

/* One context serves all blocks: its first stack frame never returns. */
static void emulated_entry()
{
    for (;;) {
        emulated->run(emulated->call);
        emulated_wait(DONE);
    }
}

static inline void emulated_resume(emulated_thread *thread)
{
    emulated->now = thread;
    if (_setjmp(emulated->scheduler) != 0) {
        return;
    }
    if (thread->began) {
        _longjmp(thread->place, 1);
    }
    thread->began = true;
    setcontext(&thread->context);
}

/* Every other block runs its threads backwards, so that an order they rely on shows. */
static inline int emulated_in_turn(int i, int count)
{
    return (emulated->index.x + emulated->index.y) % 2 == 0 ? i : count - 1 - i;
}

/* Runs a warp until all its threads wait for the block or are done. */
static inline void emulated_run_warp(int first, int count)
{
    for (;;) {
        int at[4] = {0, 0, 0, 0};
        for (int i = 0; i < count; i++) {
            emulated_thread *thread = &emulated->threads[emulated_in_turn(i, count) + first];
            if (thread->state == READY) {
                emulated_resume(thread);
            }
            at[thread->state]++;
        }
        if (at[AT_WARP] == 0) {
            return;
        }
        if (at[AT_WARP] != count) {
            emulated_fault("a warp's threads diverge at what they do together");
        }
        for (int i = first; i < first + count; i++) {
            emulated->threads[i].state = READY;
        }
    }
}

static inline void emulated_start_block()
{
    const dim3 shape = emulated->shape;
    for (unsigned i = 0; i < shape.x * shape.y; i++) {
        emulated_thread *thread = &emulated->threads[i];
        thread->index = {i % shape.x, i / shape.x, 0};
        thread->state = READY;
        thread->copy_count = 0;
    }
}

static inline void emulated_run_block()
{
    const int count = (int)(emulated->shape.x * emulated->shape.y);
    emulated_start_block();
    for (;;) {
        int done = 0;
        for (int warp = 0; warp < count / 32; warp++) {
            emulated_run_warp(emulated_in_turn(warp, count / 32) * 32, 32);
        }
        for (int i = 0; i < count; i++) {
            done += emulated->threads[i].state == DONE;
            if (emulated->threads[i].state == DONE && emulated->threads[i].copy_count != 0) {
                emulated_fault("a thread left while its copies were under way");
            }
            emulated->threads[i].state = emulated->threads[i].state == DONE ? DONE : READY;
        }
        if (done == count) {
            return;
        }
        if (done != 0) {
            emulated_fault("some threads left before the others' barrier");
        }
    }
}

/* What a thread of the host needs for its launches; kept. */
static inline void emulated_open()
{
    if (emulated != NULL) {
        return;
    }
    emulated = (emulated_block *)calloc(1, sizeof *emulated);
    emulated->stacks = (unsigned char *)malloc((size_t)EMULATED_THREADS_MAX * EMULATED_STACK_BYTES);
    emulated->shared = (unsigned char *)aligned_alloc(16, EMULATED_SHARED_MAX + EMULATED_GUARD);
    for (int i = 0; i < EMULATED_THREADS_MAX; i++) {
        emulated_thread *thread = &emulated->threads[i];
        thread->lane = i % 32;
        thread->warp = &emulated->gifts[i / 32 * 32];
        getcontext(&thread->context);
        thread->context.uc_stack.ss_sp = emulated->stacks + (size_t)i * EMULATED_STACK_BYTES;
        thread->context.uc_stack.ss_size = EMULATED_STACK_BYTES;
        thread->context.uc_link = NULL;
        makecontext(&thread->context, emulated_entry, 0);
    }
}

template <typename job> struct emulated_call {
    void (*kernel)(job);
    const job *what;
};

template <typename job> static void emulated_run(const void *call)
{
    const emulated_call<job> *it = (const emulated_call<job> *)call;
    it->kernel(*it->what);
}

static inline void emulated_check_guard(size_t shared)
{
    for (size_t i = 0; i < EMULATED_GUARD; i++) {
        if (emulated->shared[shared + i] != 0xff) {
            emulated_fault("a block writes beyond its shared memory");
        }
    }
}

template <typename job>
static inline cudaError_t gpt2_launch(void (*kernel)(job), dim3 grid, dim3 block, size_t shared,
                                      cudaStream_t stream, const job &what)
{
    (void)stream;
    const unsigned threads = block.x * block.y * block.z;
    if (threads > EMULATED_THREADS_MAX || threads % 32 != 0 || shared > EMULATED_SHARED_MAX ||
        grid.x == 0 || grid.y == 0 || grid.y > 65535 || grid.z != 1) {
        return cudaErrorInvalidConfiguration;
    }
    const emulated_call<job> call = {kernel, &what};
    emulated_open();
    emulated->grid = grid;
    emulated->shape = block;
    emulated->run = emulated_run<job>;
    emulated->call = &call;
    for (unsigned y = 0; y < grid.y; y++) {
        for (unsigned x = 0; x < grid.x; x++) {
            emulated->index = {x, y, 0};
            /* What a block finds in shared memory is nobody's: NaNs, and beyond it too. */
            memset(emulated->shared, 0xff, shared + EMULATED_GUARD);
            emulated_run_block();
            emulated_check_guard(shared);
        }
    }
    return cudaSuccess;
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
    emulated_wait(AT_BLOCK);
}

static inline void emulated_copy_now(const emulated_copy *copy)
{
    if (copy->from != NULL) {
        memcpy(copy->to, copy->from, copy->bytes);
    } else {
        memset(copy->to, 0, copy->bytes);
    }
}

/* A copy may be done at any time until it is waited for. In every other block it is done at once,
 * so that one over what is still being read shows; in the others when it is waited for, so that
 * reading too early does. */
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
    if ((emulated->index.x + emulated->index.y) % 2 == 0) {
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
    for (int i = 0; i < self->copy_count && (emulated->index.x + emulated->index.y) % 2 != 0; i++) {
        emulated_copy_now(&self->copies[i]);
    }
    self->copy_count = 0;
}

static inline float warp_from(float value, int lane)
{
    emulated_thread *self = emulated->now;
    self->warp[self->lane].words[0] = bits_of(value);
    emulated_wait(AT_WARP);
    const uint32_t bits = self->warp[lane].words[0];
    emulated_wait(AT_WARP);
    return from_bits(bits);
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
