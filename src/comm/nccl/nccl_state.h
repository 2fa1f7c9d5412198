/* A group over NCCL, for the files of this folder. Each section below is what one of them gives to
 * those after it: nccl_state.c, nccl_memory.c, nccl_move.c, nccl_watch.c, nccl_group.c. */
#ifndef ZI_COMM_NCCL_NCCL_STATE_H
#define ZI_COMM_NCCL_NCCL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/grid.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_group.h"
#include "core/failure.h"

/* Batches of a group under way that have a mark of their own. */
#define ZI_NCCL_MARKS 64
/* Chunks of sums that share one round. */
#define ZI_NCCL_CHUNKS 64
/* Terms of batches that a group remembers to have connected for; of more it connects for some
 * again.
 */
#define ZI_NCCL_CONNECTED 32

/* A batch under way. `began` and `done` are recorded around it on its stream; only the watcher asks
 * for them. When all marks are taken, later batches join the last one. */
typedef struct zi_nccl_mark {
    cudaEvent_t began;
    cudaEvent_t done;
    uint64_t began_ns; /* when the watcher found that it had begun; 0: it has not */
    uint32_t batches;
    uint64_t number; /* of the first batch and of the last, in the group's recorder */
    uint64_t last;
    uint32_t collectives; /* of the first batch; 0: `first` is nothing */
    zi_collective_terms first;
} zi_nccl_mark;

/* Elements [begin, begin + count) of every part of a sum. */
typedef struct zi_nccl_chunk {
    const zi_collective *collective;
    uint64_t begin;
    uint64_t count;
    unsigned char *at; /* its place in scratch memory */
} zi_nccl_chunk;

/* Chunks that go through scratch memory together. */
typedef struct zi_nccl_round {
    zi_nccl_chunk chunks[ZI_NCCL_CHUNKS];
    uint32_t count;
} zi_nccl_round;

/* How long anybody waits for NCCL to give a communicator back. A graph that has captured its
 * batches holds it up; NCCL then keeps it. */
#define ZI_NCCL_END_MS 10000

/* An arena registered with the communicator. NCCL may fill in a window later than its call returns.
 */
typedef struct zi_nccl_registration {
    void *handle;
    bool symmetric;
} zi_nccl_registration;

/* A communicator. It is ended on a thread of its own, and outlives its group where NCCL does not
 * give it back in time (nccl_state.c). */
typedef struct zi_nccl_handle {
    const zi_nccl_api *api;
    int ordinal;   /* of the GPU */
    bool blocking; /* its calls return when they are done, and so may wait for other ranks */
    /* Held during each of its calls but those that end it, and guards the group's marks. */
    pthread_mutex_t mutex;
    ncclComm_t comm;  /* NULL: not made yet */
    ncclComm_t child; /* of a base: where NCCL puts what a split under way comes to */
    bool windows;     /* registrations are windows, not buffers */
    zi_nccl_registration registered[ZI_GROUP_MEMORIES];
    uint32_t registered_count;
    bool ending; /* its end has begun; the watcher's, or whoever's who closes the group */
    bool aborts; /* and is an abort */
    atomic_uint over;
    atomic_uint owners; /* the group, and the thread; the last frees this */
} zi_nccl_handle;

typedef struct zi_nccl_group {
    zi_group base;
    zi_comm *comm;
    uint32_t deadline_ms;
    zi_nccl_handle *handle;
    /* The call under way, and since when: 0: none. Written by the thread that makes it, read by the
     * watcher. */
    const char *_Atomic call;
    _Atomic uint64_t called_ns;
    bool agreed; /* of a base: the ranks have agreed on its `windows`, which are all groups' */
    zi_nccl_mark marks[ZI_NCCL_MARKS];
    uint32_t mark_first;
    uint32_t mark_count;
    zi_failure_cell failure;    /* why it has failed */
    struct zi_nccl_group *next; /* of the watcher's list */
    /* The caller's scratch memory. NULL: gathers only. */
    const unsigned char *zeros; /* sent by ranks without a send buffer; stays zeros */
    size_t zeros_bytes;
    unsigned char *sums; /* behind them: what is exchanged and summed */
    size_t sums_bytes;
    zi_grid grid; /* of sums without EXACT */
    zi_grid flat; /* of those with it */
    int version;  /* of NCCL */
    bool zero_cta;
    uint64_t connected[ZI_NCCL_CONNECTED]; /* hashes of terms */
    uint32_t connected_count;
    zi_nccl_round rounds[2]; /* under way */
    uint32_t chunk_limit;    /* of a round */
    /* One entry a member, behind `sources` in the group's own memory. */
    uint32_t *order;       /* group ranks in ascending world rank */
    uint32_t *by_host;     /* the same, host by host: of `grid` */
    const void *sources[]; /* arrays that are being folded */
} zi_nccl_group;

/* The base of a world: the communicator over all its ranks, which has been made. */
static inline zi_nccl_group *zi_nccl_base_of(const zi_comm *comm)
{
    return (zi_nccl_group *)comm->parent;
}

/* ---- failure, NCCL's calls, and the end of communicators (nccl_state.c) ---- */

/* OK, or the group's error. Any thread; never blocks. */
zero_status zi_nccl_check(zi_nccl_group *group);

/* Let the group fail with `error` unless it has failed; false when it has. The watcher then aborts
 * its communicator. Any thread. */
bool zi_nccl_set_error(zi_nccl_group *group, const zero_error *error);

/* As zi_nccl_set_error, and notify the other ranks. */
void zi_nccl_fail(zi_nccl_group *group, const zero_error *error);

/* OK, or COMM with NCCL's words about what `call` came to. Not for ncclInProgress. */
zero_status zi_nccl_result(zi_nccl_group *group, ncclResult_t result, const char *call);

/* TIMEOUT: `call` did not finish in time. */
zero_status zi_nccl_late(const zi_nccl_group *group, const char *call);

/* Begin and end a call of NCCL about the group. Between the two the watcher bounds the time; after
 * an error of zi_nccl_enter there is none. A group that has failed has no calls any more. */
zero_status zi_nccl_enter(zi_nccl_group *group, const char *call);
void zi_nccl_leave(zi_nccl_group *group);

/* Pause between two looks at NCCL's progress, of which there were `rounds`. */
void zi_nccl_pause(uint32_t rounds);

/* Get the outcome of a call that has been left: wait until NCCL has finished it, where it is in
 * progress. TIMEOUT after the group's deadline; the group's or the world's error when that comes
 * first. */
zero_status zi_nccl_wait(zi_nccl_group *group, ncclResult_t result, const char *call);

/* The same where the state of `parent` says whether `call` about the group has finished. */
zero_status zi_nccl_wait_of(zi_nccl_group *parent, zi_nccl_group *group, ncclResult_t result,
                            const char *call);

/* Undo a registration. Not after an abort, which has done it. */
ncclResult_t zi_nccl_deregister(const zi_nccl_handle *handle,
                                const zi_nccl_registration *registration);
/* A handle without a communicator, on the current GPU. */
zero_status zi_nccl_handle_open(zi_nccl_group *group);
/* Begin to end the communicator unless that has been done: an abort where the group has failed.
 * Never of one group on two threads at once: the watcher calls it, or whoever has taken the group
 * from the watcher. */
void zi_nccl_begin_end(zi_nccl_group *group);
/* Let the base fail with the thread's last error, which is returned. The watcher aborts it, what
 * was being split off it, and the other groups of the world. That is over then, unless it takes
 * longer than ZI_NCCL_END_MS: until then NCCL may use the caller's memory. */
zero_status zi_nccl_break_off(zi_nccl_group *base);
/* End the communicator, and leave it to NCCL where that takes too long. Accepts a group without a
 * handle. */
void zi_nccl_handle_close(zi_nccl_group *group);

/* ---- registered memory (nccl_memory.c) ---- */

/* Let the ranks find out what registered memory becomes in this world, unless they have: windows
 * where NCCL makes one for all of them, of a page of `memory`, else buffers.
 * - Collective over the world. */
zero_status zi_nccl_agree_memory(zi_nccl_group *base, zi_group *coordination, void *memory);
/* Set what the options ask of a communicator before it is made. The transport has checked that
 * they can be had. */
void zi_nccl_configure(const zi_group_desc *desc, ncclConfig_t *config);
/* Register the memory with the communicator, which is ready. Collective over the members where it
 * becomes windows. */
zero_status zi_nccl_register(zi_nccl_group *group, const zi_group_desc *desc);

/* ---- data (nccl_move.c) ---- */

/* Issue a batch on its stream, within a task of it. */
zero_status zi_nccl_move(zi_nccl_group *group, zi_stream *stream, const zi_collective *batch,
                         uint32_t batch_count);

/* ---- the watcher (nccl_watch.c) ---- */

/* Begin and end the watch over a group; one that is not watched is left alone. */
zero_status zi_nccl_watch_add(zi_nccl_group *group);
void zi_nccl_watch_remove(zi_nccl_group *group);

/* By which mark the watcher sees a batch. */
typedef enum zi_nccl_marking {
    ZI_NCCL_UNMARKED, /* none: the stream captures a graph, which runs the batch later or never */
    ZI_NCCL_OWN_MARK,
    ZI_NCCL_LAST_MARK /* that of the batch before it: no other was free */
} zi_nccl_marking;

/* Bracket a batch on its stream. */
zero_status zi_nccl_mark_begin(zi_nccl_group *group, cudaStream_t stream, zi_nccl_marking *marking);
zero_status zi_nccl_mark_end(zi_nccl_group *group, cudaStream_t stream, zi_nccl_marking marking,
                             const zi_collective *batch, uint32_t batch_count, uint64_t number);

/* ---- the group (nccl_group.c) ---- */

/* A group without a communicator: this rank's part alone. members NULL: all ranks of the world, for
 * a base, whose kernels are NULL because no batch is put on it. */
zero_status zi_nccl_group_open(zi_comm *comm, const zi_group_desc *desc, zi_nccl_group **out);

/* Abort and free a group that could not be made, which fails alone. Returns the thread's last
 * error. Accepts NULL. */
zero_status zi_nccl_group_abandon(zi_nccl_group *group);

#endif
