/* A test double of the CUDA runtime on the CPU: a recording device.
 *
 * Link fake_cuda_dep (tests/fake/meson.build) into a test: it defines the cuda* functions that
 * libzero calls, so libcudart is not used and no GPU is needed. It differs from a GPU on purpose:
 *
 *  - Nothing runs when it is enqueued. Work runs when somebody waits, in an order drawn by a seed
 *    among all that streams and events allow (fake_cuda_mode).
 *  - Device memory is PROT_NONE. An operation that runs reaches just the pages of the ranges it
 *    declared; whoever else touches device memory dies of SIGSEGV. Every fourth seed has that, the
 *    first among them, as half of the time goes into it.
 *  - Every access is checked, when it is enqueued, against the earlier accesses to the same bytes:
 *    two of which one writes are a race unless streams, events or the host order them. So the
 *    verdict depends on what was enqueued and not on what ran when.
 *
 * Order is kept by vector clocks: one timeline a stream, and one for the host. The fake does not
 * see how host threads synchronise, so all of them share the host's timeline: what one has waited
 * for counts as known to all, in every rank. That can hide a race between threads that did not tell
 * each other; it does not report one that is none. One thing is told apart: a task put on a CPU
 * stream (a queued device's issuer) knows what the host knew when the task was put, not when it
 * runs, and what any task has waited for. So how far an issuer lags behind shows in no verdict. The
 * price: who lets a task wait for the host, and the host meanwhile for the GPU, gets a false alarm.
 *
 * Other limits: ranges are as wide as declared, protection is by the page, and host memory is
 * watched only where an operation or fake_cuda_host_read and _write declare it; but host memory
 * that changes between the enqueueing and the running of an operation that reads it is a fault too.
 *
 * A captured step is kept as it was put. A launch puts it anew, each captured stream's part on a
 * stream of its own that begins after the launching stream's work and that the launching stream
 * goes on after; so the order is the graph's and every launch is checked for races. CUDA's rules
 * for captures are errors here, and wrong use too; not known are work on stream 0 while a blocking
 * stream is captured, and freeing memory that a graph uses.
 *
 * Functions of the host (cudaLaunchHostFunc) run on whichever thread waits, outside the lock; all
 * else runs under one lock. Objects live as long as the process, so a stale handle is recognised.
 */
#ifndef TESTS_FAKE_FAKE_CUDA_H
#define TESTS_FAKE_FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "race.h"

typedef enum fake_cuda_mode {
    FAKE_CUDA_AT_SYNC = 0, /* on a wait: anything that can run, at random, until it is over */
    FAKE_CUDA_EAGER = 1,   /* each call runs all that can run, in a random order */
    FAKE_CUDA_LAZY = 2,    /* on a wait: only what it needs */
    FAKE_CUDA_RANDOM = 3   /* each call runs a few that can run; on a wait as AT_SYNC */
} fake_cuda_mode;
#define FAKE_CUDA_MODES 4

typedef enum fake_cuda_kind {
    FAKE_CUDA_KERNEL = 0,
    FAKE_CUDA_COPY = 1,
    FAKE_CUDA_FILL = 2,
    FAKE_CUDA_RECORD = 3,
    FAKE_CUDA_WAIT = 4,
    FAKE_CUDA_HOST_FN = 5
} fake_cuda_kind;
#define FAKE_CUDA_KINDS 6

/* From here on: this order of running, no faults, all counters 0, no failure armed. Objects and
 * what is enqueued stay. At the start of a process: AT_SYNC, seed 1, one device. */
void fake_cuda_start(fake_cuda_mode mode, uint64_t seed);

/* GPUs of this machine, at most FAKE_CUDA_DEVICES_MAX. A thread starts on the first. */
#define FAKE_CUDA_DEVICES_MAX 32
void fake_cuda_devices(int count);
/* Can they be made to read each other's memory? At first they can. */
void fake_cuda_peers(bool possible);

/* The host's NUMA node next to every GPU; at first -1, none. */
void fake_cuda_host_node(int node);

/* From now on GPUs have addresses of their own for registered host memory. */
void fake_cuda_other_addresses(void);

/* Streams that are made from now on share `count` connections to their device in turn; 0, as at
 * first: each has its own. A connection hands over what was enqueued on its streams in that order,
 * and what waits, for an event or for other ranks, holds up all behind it. A GPU's lets kernels go
 * by one that runs; its wait for other ranks may have come before it runs, so this is the worst of
 * what CUDA_DEVICE_MAX_CONNECTIONS allows. */
void fake_cuda_connections(uint32_t count);

/* The faults so far. */
#define fake_cuda_faults race_faults
#define fake_cuda_races race_races
#define fake_cuda_fault_text race_fault_text
#define fake_cuda_check race_check

/* For texts: a name instead of "stream N". */
void fake_cuda_name_stream(cudaStream_t stream, const char *name);

/* Calls so far that may block the host until the GPU has done something. */
uint64_t fake_cuda_syncs(void);
/* Calls so far of a cuda* function or of a launch, by its name. */
uint64_t fake_cuda_calls(const char *name);
/* Operations of a kind enqueued so far; on all streams, or on one. */
uint64_t fake_cuda_operations(fake_cuda_kind kind);
uint64_t fake_cuda_stream_operations(cudaStream_t stream, fake_cuda_kind kind);
/* Operations enqueued that have not run. */
uint64_t fake_cuda_pending(void);
/* Allocations, registrations, streams and events that were made and not given back. */
uint64_t fake_cuda_live(void);

/* Let the nth call (1-based) of `name` from now on return `code`, once, and do nothing. */
void fake_cuda_fail(const char *name, uint64_t nth, cudaError_t code);
/* Let the nth kernel, copy or fill that runs from now on be the device's end: what is pending is
 * dropped and every later call returns cudaErrorIllegalAddress. */
void fake_cuda_fail_operation(uint64_t nth);

/* Accesses of the host, in the order that the host knows of. host_read and host_write only declare
 * what the test does to registered memory; peek and poke also copy, from and to memory of the
 * device, which the host cannot reach otherwise. */
void fake_cuda_host_read(const void *pointer, size_t bytes);
void fake_cuda_host_write(const void *pointer, size_t bytes);
void fake_cuda_peek(void *target, const void *device, size_t bytes);
void fake_cuda_poke(void *device, const void *source, size_t bytes);

/* Run everything, in any order, without the host having waited for it. */
void fake_cuda_drain(void);

typedef race_range fake_cuda_range;

/* An operation: run is called with a copy of the payload when its turn comes. */
typedef struct fake_cuda_work {
    const char *name; /* static text; also what fake_cuda_fail and fake_cuda_calls go by */
    fake_cuda_kind kind;
    void (*run)(void *payload);
    const void *payload;
    size_t payload_bytes;
    const fake_cuda_range *ranges; /* copied */
    size_t range_count;
} fake_cuda_work;

/* As a launch does. For fakes of kernels and of libraries above CUDA. */
cudaError_t fake_cuda_enqueue(cudaStream_t stream, const fake_cuda_work *work);

/* For fakes of libraries whose work on one stream waits for work on others that may not even be
 * enqueued yet. Streams come to a latch in any order; what waits for it goes on once `expected`
 * have come and what each had enqueued by then has run. Ranks of a collective share no memory that
 * is checked, so a latch orders no accesses. Zeroed but for `expected`; it and the flags stay. */
typedef struct fake_cuda_latch {
    uint32_t expected;
    uint32_t count;
    cudaStream_t streams[FAKE_CUDA_DEVICES_MAX];
    uint64_t numbers[FAKE_CUDA_DEVICES_MAX];
} fake_cuda_latch;

cudaError_t fake_cuda_latch_come(cudaStream_t stream, fake_cuda_latch *latch);
/* given_up: once it is set, by the next, the stream goes on anyway. */
cudaError_t fake_cuda_latch_wait(cudaStream_t stream, const fake_cuda_latch *latch,
                                 const bool *given_up);
/* Set the flag unless all have come. */
void fake_cuda_latch_give_up(const fake_cuda_latch *latch, bool *given_up);
/* True if all have come. In work that runs: the lock is held. */
bool fake_cuda_latch_full(const fake_cuda_latch *latch);

/* A captured stream's graph calls `fn` at each launch, at this place, with the stream that this
 * stream's part is put on: it enqueues what it likes there. Not under the lock. *graph: which. */
cudaError_t fake_cuda_at_launch(cudaStream_t stream,
                                cudaError_t (*fn)(cudaStream_t stream, void *user), void *user,
                                cudaGraph_t *graph);
/* True if it is being captured, or it or what was instantiated of it is not destroyed. */
bool fake_cuda_graph_lives(cudaGraph_t graph);

#endif
