/* Memory shared by the ranks of one host, which are processes or threads.
 *
 * Processes hold one file without a name open and map it: windows for tensors and blocks for groups
 * are parts of that file. So once they have joined nothing of theirs has a name, and the kernel
 * frees all of it when the last process ends, however it ends. Threads share memory of the process.
 *
 * The ranks of a host are a subset of the world: `index` counts them from 0, world ranks name them.
 */
#ifndef ZI_COMM_HOST_SHARED_H
#define ZI_COMM_HOST_SHARED_H

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

typedef struct zi_shared zi_shared;
typedef struct zi_shared_header zi_shared_header;

typedef struct zi_shared_desc {
    const char *name;            /* for shm_open: "/...", the same for all; unused with `header` */
    zi_shared_header *header;    /* of ranks that are threads, in state OPEN; NULL: processes */
    const uint32_t *world_ranks; /* of this host's ranks, ascending; copied. NULL: 0, 1, 2, ... */
    uint32_t index;              /* this rank's place in world_ranks */
    uint32_t size;               /* ranks on this host */
    uint64_t launcher;           /* of this rank; ranks of another are refused */
    uint32_t deadline_ms;
    zi_silence *silence; /* the comm's: who is silent, for errors */
    bool watches_stops;  /* note there which processes are stopped; else others do */
} zi_shared_desc;

/* Wait for the other ranks of the host, where they are processes. Index 0 makes the file, and
 * replaces one that a killed job left. Returns once all have arrived and the name is removed.
 * - Collective over the ranks of the host.
 * - Errors: TIMEOUT naming the ranks that did not arrive; STATE when a living job uses the name,
 *   or rank 0 has another launcher;
 *   COMM when rank 0 dies meanwhile; the error that another rank failed with. */
zero_status zi_shared_join(const zi_shared_desc *desc, zi_shared **out);

/* Leave, and free `shared`; other ranks may still use theirs. No window or group of this
 * rank may be in use. Local. Accepts NULL. */
void zi_shared_leave(zi_shared *shared);

/* zi_comm_ops.memory_alloc and memory_free among the ranks of the host. After a failure of
 * window_alloc that is not OUT_OF_MEMORY nothing more can be allocated. */
zero_status zi_shared_window_alloc(zi_shared *shared, size_t bytes, void **out);
void zi_shared_window_free(zi_shared *shared, void *pointer, size_t bytes);

/* A group of `comm` whose members are all on this host; as zi_comm_ops.group_create. */
zero_status zi_shared_group_create(zi_shared *shared, const zi_comm *comm,
                                   const zi_kernels *kernels, const uint32_t *members,
                                   uint32_t size, const char *name, zi_group **out);

/* Fail everything on this host with the failure of a rank. Any thread. */
void zi_shared_abort(zi_shared *shared, const zi_failure *failure);

/* OK, or the failure of a rank, which the message names, as the calling thread's error. Any thread.
 */
zero_status zi_shared_check(const zi_shared *shared);

/* Check that the processes of this host's ranks live, at most once in 100 ms. One that ended
 * without leaving fails everything, as an abort of that rank. Returns OK or the failure.
 * - what: where this rank waits, for the error.
 * - Threads: any; never blocks. */
zero_status zi_shared_poll(zi_shared *shared, const char *what);

/* The note of this rank's calls, for the errors of all. */
zi_call_note *zi_shared_call(const zi_shared *shared);

/* Let waits for this rank fail with COMM from now on: it makes no more calls that need the others.
 */
void zi_shared_begin_leave(zi_shared *shared);

/* True once a rank aborted or did not arrive. */
int zi_shared_failed(const zi_shared *shared);

#endif
