/* Worlds whose ranks are on one host and started without MPI: processes ("shm"), or threads of one
 * process ("local"). Both have the same groups, memory and failures (shared.h). */
#ifndef ZI_COMM_HOST_HOST_COMM_H
#define ZI_COMM_HOST_HOST_COMM_H

#include "comm/comm.h"
#include "comm/host/shared.h"

/* The memory that ranks which are threads share. */
typedef struct zi_thread_ranks zi_thread_ranks;

typedef struct zi_host_comm {
    zi_comm base;
    zi_shared *shared;
    zi_thread_ranks *threads; /* NULL: ranks are processes */
} zi_host_comm;

/* ---- processes ---- */

typedef struct zi_process_rank {
    char name[64]; /* for shm_open: "/...", the same for all ranks */
    uint32_t rank;
    uint32_t size;
    uint64_t launcher; /* what zi_process_launcher says; 0: the name tells jobs apart */
} zi_process_rank;

/* Make the comm of a rank that is this process, once all ranks have arrived. Errors: those of
 * zi_shared_join. */
zero_status zi_process_comm_create(const zi_process_rank *rank, uint32_t deadline_ms,
                                   zi_comm **out);

/* ---- threads ---- */

/* Ownership: one reference, which release drops; every comm holds another. */
zero_status zi_thread_ranks_create(uint32_t size, uint32_t deadline_ms, zi_thread_ranks **out);
void zi_thread_ranks_release(zi_thread_ranks *threads);

/* Let whatever these ranks wait for fail, in the name of rank `rank`, which has no comm. Any
 * thread. */
void zi_thread_ranks_abort(zi_thread_ranks *threads, uint32_t rank, const zero_error *error);

/* OK, or the failure of these ranks as the calling thread's error: with the status that it has on
 * the rank that found it, and that rank's name in front. */
zero_status zi_thread_ranks_outcome(const zi_thread_ranks *threads);

/* Rank `rank`'s comm. Local call. */
zero_status zi_thread_comm_create(zi_thread_ranks *threads, uint32_t rank, zi_comm **out);

#endif
