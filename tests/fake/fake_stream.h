/* The fake's streams and events, what waits on them to run, and who runs it. */
#ifndef TESTS_FAKE_FAKE_STREAM_H
#define TESTS_FAKE_FAKE_STREAM_H

#include <pthread.h>

#include "fake_cuda.h"

typedef struct fake_operation fake_operation;
typedef struct CUgraph_st fake_capture; /* also while it is being captured */

/* The target of a cudaStream_t. Never freed; one that is gone keeps its `next`, so who walks the
 * streams meanwhile still comes to the end. */
struct CUstream_st {
    uint32_t magic;
    int device;
    bool legacy;   /* the device's stream 0 */
    bool blocking; /* ordered with the legacy stream */
    bool alive;
    int priority;        /* only told: any order that is allowed is taken */
    uint32_t connection; /* of its device: see fake_cuda_connections */
    bool running;        /* a function of the host, outside the lock */
    race_line line;      /* of the work enqueued */
    uint64_t done;       /* number of the last operation that has run */
    fake_operation *first;
    fake_operation *last;
    uint64_t operations[FAKE_CUDA_KINDS];
    fake_capture *capture; /* that it is in; NULL: none */
    uint32_t branch;       /* of that capture */
    struct CUstream_st *next;
    struct CUstream_st *next_retired;
};

/* The target of a cudaEvent_t. Never freed. */
struct CUevent_st {
    uint32_t magic;
    int device;
    bool alive;
    cudaStream_t stream;   /* of the last record; NULL: never recorded */
    uint64_t number;       /* of the record in that stream */
    race_clock clock;      /* of all that is ordered before it, itself included */
    fake_capture *capture; /* that the last record belongs to; NULL: none */
    size_t node;           /* of the record in that */
    bool timed;            /* made without cudaEventDisableTiming */
    uint64_t ns;           /* when the last record ran */
    struct CUevent_st *next;
};

typedef struct fake_state {
    pthread_mutex_t mutex; /* guards everything but what the host's functions do */
    pthread_cond_t moved;  /* a function of the host returned */
    fake_cuda_mode mode;
    uint64_t random;
    bool guards; /* allocations from here on are out of reach but for operations */
    int devices;
    int host_node;
    bool other_addresses;                      /* of registered host memory */
    uint32_t connections;                      /* 0: each stream has one of its own */
    uint32_t connected[FAKE_CUDA_DEVICES_MAX]; /* streams of a device so far */
    uint64_t enqueued;                         /* operations so far */
    uint64_t syncs;
    uint64_t ran;             /* kernels, copies and fills */
    uint64_t fail_at;         /* `ran` that ends the device; 0: none */
    cudaError_t sticky;       /* the device's end */
    uint32_t host_running;    /* functions of the host under way */
    race_line host;           /* known from waits outside of tasks */
    race_clock known_in_task; /* known from waits in tasks */
    race_clock effective;     /* room for fake_host_clock */
    cudaStream_t streams;     /* but for those retired */
    cudaStream_t retired;     /* by next_retired */
    uint64_t retired_operations[FAKE_CUDA_KINDS];
    cudaEvent_t events;
    cudaStream_t legacy[FAKE_CUDA_DEVICES_MAX];
    bool peers[FAKE_CUDA_DEVICES_MAX][FAKE_CUDA_DEVICES_MAX]; /* [d][o]: d may read o's memory */
    bool no_peers;                                            /* no device can */
} fake_state;

extern fake_state fake;

/* Of the calling thread. */
extern _Thread_local int fake_device;
extern _Thread_local bool fake_in_host_function;
/* In a task of a CPU stream: what the host knew when the task was put. Else NULL. */
extern _Thread_local const race_clock *fake_task_clock;

/* The fake cannot go on: says why and aborts. */
_Noreturn void fake_give_up(const char *what);

/* Every call begins with enter and ends with leave, whatever enter said. Takes the lock; returns
 * the failure that is armed for `call` or the device's end, else success. */
cudaError_t fake_enter(const char *call);
/* Runs what the mode says, notes the error, gives the lock back. Returns `code`, or the device's
 * end if that came just now. */
cudaError_t fake_leave(cudaError_t code);
/* May a call that gives something back do so? Also when the device has ended. */
bool fake_may_release(cudaError_t entered);
/* For control functions of the tests: only the lock. */
void fake_lock(void);
void fake_unlock(void);

cudaStream_t fake_stream_add(int device, bool blocking, bool legacy);
/* The stream is destroyed and the host knows all that it did. */
void fake_stream_retire(cudaStream_t stream);
/* The object of a handle; the legacy stream for 0. Errors: a handle that is no stream's. */
cudaError_t fake_stream_find(cudaStream_t handle, cudaStream_t *out);
cudaError_t fake_event_find(cudaEvent_t handle, cudaEvent_t *out);
/* fake_enter, then the object of a handle. */
cudaError_t fake_enter_stream(const char *call, cudaStream_t handle, cudaStream_t *out);
cudaError_t fake_enter_event(const char *call, cudaEvent_t handle, cudaEvent_t *out);

/* Put an operation last. Errors: a range that the device cannot reach. */
cudaError_t fake_stream_put(cudaStream_t stream, const fake_cuda_work *work);
/* Let what comes next on the stream follow the device's stream 0, or on that one the blocking
 * streams, as CUDA orders them. */
void fake_stream_order(cudaStream_t stream);
void fake_stream_record(cudaStream_t stream, cudaEvent_t event);
void fake_stream_await(cudaStream_t stream, cudaEvent_t event);
/* Let what comes next on the stream run after operation `number` of another. clock: of that. */
void fake_stream_follow(cudaStream_t stream, cudaStream_t other, uint64_t number,
                        const race_clock *clock);
/* Copies what an operation is made of; the rest of the copy is the caller's to set. */
void fake_work_copy(const fake_cuda_work *work, void **payload, fake_cuda_range **ranges);

/* Captures (fake_capture.c). Where the stream is in one, these keep the work, record or wait for
 * its graph and set *captured; errors as CUDA's. */
cudaError_t fake_capture_put(cudaStream_t stream, const fake_cuda_work *work, bool *captured);
cudaError_t fake_capture_record(cudaStream_t stream, cudaEvent_t event, bool *captured);
cudaError_t fake_capture_await(cudaStream_t stream, cudaEvent_t event, bool *captured);
/* The host asks or waits for a stream or an event: an error that ends the capture it is in. Either
 * may be NULL. */
cudaError_t fake_capture_asked(cudaStream_t stream, cudaEvent_t event);
/* A call that the calling thread may not make while it captures: the same for all its captures. */
cudaError_t fake_capture_unsafe(const char *call);

/* Run until operation `number` of the stream is done. The host learns nothing. */
void fake_run_until(cudaStream_t stream, uint64_t number);
/* Run one operation that `number` of the stream needs, if it is not done. */
void fake_run_toward(cudaStream_t stream, uint64_t number);
/* As far as it goes without what other threads have yet to enqueue. */
void fake_run_device(int device);
/* As a call does that waits for nothing: see fake_cuda_mode. */
void fake_run_by_mode(void);
/* As fake_run_until, and the host then knows what is done. */
void fake_host_wait(cudaStream_t stream, uint64_t number, const race_clock *clock);

/* The same of all streams of a device, as fake_run_device: ranks that are threads may share one
 * here, and what one of them has at a latch must not hold up another. The host does not learn what
 * is stuck there. */
void fake_host_wait_device(int device);

/* The work that the calling thread knows to be done. Good until the next call. */
const race_clock *fake_host_clock(void);
/* It has waited for this. */
void fake_host_learn(const race_clock *clock);
/* Next number of the host's own timeline, known to the caller. */
race_access fake_host_access(const char *what);

/* Let the process reach a range of device memory, or no longer. */
void fake_open_ranges(const fake_cuda_range *ranges, size_t range_count);
void fake_close_ranges(const fake_cuda_range *ranges, size_t range_count);

#endif
