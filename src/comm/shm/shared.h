/* Memory shared by the ranks of one host: one nameless file that all of them hold open and map
 * pieces of. Windows for tensors and blocks for groups are further pieces of the same file, so
 * after the ranks have met nothing of theirs has a name, and the system takes it all back when the
 * last of them ends, however it ends.
 *
 * The ranks of a host are a subset of the world: `index` counts them from 0, world ranks name
 * them. */
#ifndef ZI_COMM_SHM_SHARED_H
#define ZI_COMM_SHM_SHARED_H

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

typedef struct zi_shared zi_shared;

typedef struct zi_shared_desc {
    const char *name;            /* where they meet: "/..." for shm_open, the same for all */
    const uint32_t *world_ranks; /* of this host's ranks, ascending; copied. NULL: 0, 1, 2, ... */
    uint32_t index;              /* this rank's place in world_ranks */
    uint32_t size;               /* ranks on this host */
    uint32_t deadline_ms;
    const bool *crowded; /* the comm's, for its groups */
} zi_shared_desc;

/* Meet the others. Index 0 makes the file, and replaces one that a killed job left. Returns once
 * all are there and the name is gone. Errors: TIMEOUT naming the ranks that did not come; STATE
 * when a living job uses the name; COMM when rank 0 dies meanwhile; what another rank failed with.
 */
zero_status zi_shared_join(const zi_shared_desc *desc, zi_shared **out);

/* Local. Accepts NULL. No window or group may be in use; others may still use theirs. */
void zi_shared_leave(zi_shared *shared);

/* The two calls of zi_comm_ops, collective over the host. After a failure of window_alloc that is
 * not OUT_OF_MEMORY nothing more can be made. */
zero_status zi_shared_window_alloc(zi_shared *shared, size_t bytes, void **out);
void zi_shared_window_free(zi_shared *shared, void *pointer, size_t bytes);

/* A group whose members are all on this host; as zi_comm_ops.group_create. */
zero_status zi_shared_group_create(zi_shared *shared, const zi_kernels *kernels,
                                   const uint32_t *members, uint32_t size, const char *name,
                                   zi_group **out);

/* As zi_comm_ops.abort. world_rank: who cannot go on. Any thread. */
void zi_shared_abort(zi_shared *shared, uint32_t world_rank, const zero_error *error);

/* The failure of a rank as the calling thread's own, or OK. Any thread. */
zero_status zi_shared_check(const zi_shared *shared);

/* See whether the processes of this host's ranks live, at most once in 100 ms: one that ended
 * without leaving fails everything, as an abort of that rank. Then the failure, or OK. what: where
 * this rank waits, for the error. Any thread; never blocks. */
zero_status zi_shared_look(zi_shared *shared, const char *what);

/* Called by the thread that finds a rank dead, after everything on this host has failed. error:
 * COMM, without the rank's name. Set before any rank can wait. */
typedef void (*zi_shared_gone_fn)(void *user, uint32_t world_rank, const zero_error *error);
void zi_shared_on_gone(zi_shared *shared, zi_shared_gone_fn fn, void *user);

/* This rank makes no more calls that need the others: those that wait for it get COMM. */
void zi_shared_part(zi_shared *shared);

/* True once a rank aborted or did not come. */
int zi_shared_failed(const zi_shared *shared);

#endif
