/* Runs CUDA kernels on the CPU, thread by thread, from the source that nvcc compiles.
 *
 * A block's threads run in turn until each waits at a barrier of its block or of its warp, with the
 * stack that it has by then; one that waits for nobody leaves its stack to the next. Blocks follow
 * one another. Threads that wait at different barriers, or leave while others of the warp wait, are
 * a fault and abort. A launch runs at once, on the calling thread; one at a time in a process. Not
 * emulated: caches, races between barriers, limits of a launch but its threads, and the speed of
 * anything. */
#ifndef TESTS_EMULATION_EMULATION_H
#define TESTS_EMULATION_EMULATION_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <vector_functions.h>

/* All that blocks share by name is one section, which each block finds filled with NaNs. */
#undef __shared__
#define __shared__ static __attribute__((section("emulated_shared")))
extern "C" unsigned char __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));
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

/* The values that a lane gives to the others of its warp. */
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

/* Of __builtin_setjmp, of which sanitizers know nothing. */
typedef void *emulated_place[5];

/* The stack that threads run on, one at a time. */
struct emulated_stack {
    emulated_place place; /* at which its thread waits, or it waits for one */
    ucontext_t first;     /* of its begin */
    bool began;
    emulated_stack *next; /* of those without a thread */
};

struct emulated_thread {
    emulated_stack *stack; /* NULL: it has not begun, or is done */
    uint3 index;
    int lane;
    emulated_state state;
    emulated_gift *warp; /* 32 of them */
    emulated_copy copies[EMULATED_COPIES_MAX];
    int copy_count; /* begun, and not waited for */
};

/* The block under way. */
struct emulated_block {
    emulated_place scheduler;
    emulated_thread threads[EMULATED_THREADS_MAX];
    emulated_gift gifts[EMULATED_THREADS_MAX];
    emulated_stack stacks[EMULATED_THREADS_MAX];
    emulated_stack *free_stacks;
    unsigned char *shared; /* dynamic */
    emulated_thread *now;
    int first; /* of the warp under way */
    int turn;  /* of its next thread */
    uint3 index;
    dim3 grid;
    dim3 shape;
    unsigned launches; /* so far */
    void (*run)(const void *call);
    const void *call;
};

/* One for all files that are linked together. */
inline emulated_block *emulated;
inline pthread_mutex_t emulated_mutex = PTHREAD_MUTEX_INITIALIZER;

#define threadIdx (emulated->now->index)
#define blockIdx (emulated->index)
#define gridDim (emulated->grid)

static inline void emulated_fault(const char *what)
{
    fprintf(stderr, "emulation: %s\n", what);
    abort();
}

/* --- threads ---------------------------------------------------------------------------------- */

/* True if this block is one of every other: of a launch, and a grid's only one of launches. */
static inline bool emulated_is_other()
{
    return (emulated->index.x + emulated->index.y + emulated->launches) % 2 == 0;
}

/* Every other block runs its threads backwards, so that an order they rely on shows. */
static inline int emulated_in_turn(int i, int count)
{
    return emulated_is_other() ? count - 1 - i : i;
}

/* The next thread of the warp that can run; NULL: all have had their turn. */
static inline emulated_thread *emulated_next()
{
    while (emulated->turn < 32) {
        const int place = emulated->first + emulated_in_turn(emulated->turn++, 32);
        if (emulated->threads[place].state == READY) {
            return &emulated->threads[place];
        }
    }
    return NULL;
}

/* A switch is a jump between stacks, which makes no system call. NULL: to the scheduler. */
__attribute__((noinline)) static void emulated_switch(emulated_thread *to)
{
    emulated->now = to;
    if (to == NULL) {
        __builtin_longjmp(emulated->scheduler, 1);
    }
    if (to->stack == NULL) {
        to->stack = emulated->free_stacks;
        emulated->free_stacks = to->stack->next;
    }
    if (to->stack->began) {
        __builtin_longjmp(to->stack->place, 1);
    }
    to->stack->began = true;
    setcontext(&to->stack->first);
    abort();
}

/* Returns when somebody switches to this stack. */
static inline void emulated_leave(emulated_stack *stack, emulated_thread *to)
{
    if (__builtin_setjmp(stack->place) == 0) {
        emulated_switch(to);
    }
}

/* Others run until all that it waits for have come. */
static inline void emulated_wait(emulated_state state)
{
    emulated_thread *self = emulated->now;
    self->state = state;
    emulated_leave(self->stack, emulated_next());
}

/* Run a stack's threads in turn. Its first frame never returns. */
static void emulated_entry()
{
    for (;;) {
        emulated_thread *self = emulated->now;
        emulated->run(emulated->call);
        emulated_stack *stack = self->stack;
        self->state = DONE;
        self->stack = NULL;
        emulated_thread *to = emulated_next();
        if (to != NULL && to->stack == NULL) {
            to->stack = stack;
            emulated->now = to;
            continue;
        }
        stack->next = emulated->free_stacks;
        emulated->free_stacks = stack;
        emulated_leave(stack, to);
    }
}

/* Each of the warp's threads that can run does so once. */
static inline void emulated_take_turns()
{
    emulated->turn = 0;
    if (__builtin_setjmp(emulated->scheduler) == 0) {
        emulated_switch(emulated_next());
    }
}

/* Runs a warp until all its threads wait for the block or are done. */
static inline void emulated_run_warp(int first)
{
    emulated->first = first;
    for (;;) {
        int waiting = 0;
        emulated_take_turns();
        for (int i = first; i < first + 32; i++) {
            waiting += emulated->threads[i].state == AT_WARP;
        }
        if (waiting == 0) {
            return;
        }
        if (waiting != 32) {
            emulated_fault("a warp's threads diverge at what they do together");
        }
        for (int i = first; i < first + 32; i++) {
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
            emulated_run_warp(emulated_in_turn(warp, count / 32) * 32);
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

/* Allocate what launches need; it is kept. */
static inline void emulated_open()
{
    if (emulated != NULL) {
        return;
    }
    emulated = (emulated_block *)calloc(1, sizeof *emulated);
    emulated->shared = (unsigned char *)aligned_alloc(16, EMULATED_SHARED_MAX + EMULATED_GUARD);
    unsigned char *bytes =
        (unsigned char *)malloc((size_t)EMULATED_THREADS_MAX * EMULATED_STACK_BYTES);
    for (int i = 0; i < EMULATED_THREADS_MAX; i++) {
        emulated_thread *thread = &emulated->threads[i];
        emulated_stack *stack = &emulated->stacks[i];
        thread->lane = i % 32;
        thread->warp = &emulated->gifts[i / 32 * 32];
        getcontext(&stack->first);
        stack->first.uc_stack.ss_sp = bytes + (size_t)i * EMULATED_STACK_BYTES;
        stack->first.uc_stack.ss_size = EMULATED_STACK_BYTES;
        stack->first.uc_link = NULL;
        makecontext(&stack->first, emulated_entry, 0);
        stack->next = emulated->free_stacks;
        emulated->free_stacks = stack;
    }
}

static inline void emulated_check_guard(size_t shared)
{
    for (size_t i = 0; shared != 0 && i < EMULATED_GUARD; i++) {
        if (emulated->shared[shared + i] != 0xff) {
            emulated_fault("a block writes beyond its shared memory");
        }
    }
}

/* Fill shared memory, and what is beyond it, with NaNs: what a block finds there is nobody's. */
static inline void emulated_fill_shared(size_t shared)
{
    if (shared != 0) {
        memset(emulated->shared, 0xff, shared + EMULATED_GUARD);
    }
    if (__start_emulated_shared != NULL) {
        memset(__start_emulated_shared, 0xff,
               (size_t)(__stop_emulated_shared - __start_emulated_shared));
    }
}

/* run: what each thread of the grid does with the call. */
static inline cudaError_t emulated_launch(dim3 grid, dim3 block, size_t shared,
                                          void (*run)(const void *call), const void *call)
{
    const unsigned threads = block.x * block.y * block.z;
    if (threads > EMULATED_THREADS_MAX || threads % 32 != 0 || shared > EMULATED_SHARED_MAX ||
        grid.x == 0 || grid.y == 0 || grid.y > 65535 || grid.z != 1) {
        return cudaErrorInvalidConfiguration;
    }
    pthread_mutex_lock(&emulated_mutex);
    emulated_open();
    emulated->grid = grid;
    emulated->shape = block;
    emulated->run = run;
    emulated->call = call;
    emulated->launches++;
    for (unsigned y = 0; y < grid.y; y++) {
        for (unsigned x = 0; x < grid.x; x++) {
            emulated->index = {x, y, 0};
            emulated_fill_shared(shared);
            emulated_run_block();
            emulated_check_guard(shared);
        }
    }
    pthread_mutex_unlock(&emulated_mutex);
    return cudaSuccess;
}

/* --- a block and a warp together -------------------------------------------------------------- */

static inline void emulated_sync_block()
{
    emulated_wait(AT_BLOCK);
}

/* Each lane of the warp gives a value and gets the one of a lane that it names. */
template <typename type> static inline type emulated_from(const type &value, int lane)
{
    emulated_thread *self = emulated->now;
    type received;
    static_assert(sizeof value <= sizeof self->warp->words, "a gift has room for it");
    memcpy(self->warp[self->lane].words, &value, sizeof value);
    emulated_wait(AT_WARP);
    memcpy(&received, self->warp[lane].words, sizeof received);
    emulated_wait(AT_WARP);
    return received;
}

#endif
