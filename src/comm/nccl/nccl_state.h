/* What nccl_group.c (a group's life), nccl_base.c (what groups are split from), nccl_move.c (its
 * data), nccl_watch.c (its failures) and nccl_abort.c (its end by force) share. */
#ifndef ZI_COMM_NCCL_NCCL_STATE_H
#define ZI_COMM_NCCL_NCCL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_group.h"

/* Batches of a group that are told apart while they are under way. */
#define ZI_NCCL_MARKS 64
/* Pieces of sums that share one round. */
#define ZI_NCCL_PIECES 64
/* Longest batch, as for peer/. */
#define ZI_NCCL_BATCH_MAX 1024
/* Batches that a group remembers to have connected for; of more it connects for some again. */
#define ZI_NCCL_CONNECTED 32

/* A batch under way. `began` and `done` are recorded around it on its stream; only the watcher asks
 * for them. When all marks are taken, later batches join the last one. */
typedef struct zi_nccl_mark {
    cudaEvent_t began;
    cudaEvent_t done;
    uint64_t began_ns; /* when the watcher found that it had begun; 0: it has not */
    uint32_t batches;
    uint32_t collectives; /* of the first batch; 0: `first` is nothing */
    zi_collective_terms first;
} zi_nccl_mark;

/* Elements [begin, begin + count) of every part of a sum. */
typedef struct zi_nccl_piece {
    const zi_collective *collective;
    uint64_t begin;
    uint64_t count;
    unsigned char *at; /* its own piece of scratch memory */
} zi_nccl_piece;

/* An arena that the communicator knows. NCCL may fill a window in later than its call returns. */
typedef struct zi_nccl_known {
    void *buffer; /* of ncclCommRegister */
#if ZI_NCCL_HAS_WINDOWS
    ncclWindow_t window;
#endif
    bool symmetric;
} zi_nccl_known;

typedef struct zi_nccl_ending zi_nccl_ending;

typedef struct zi_nccl_group {
    zi_group base;
    const zi_nccl_api *api;
    zi_comm *comm;
    int ordinal; /* of the GPU */
    uint32_t deadline_ms;
    /* Guards the next six, and every call of NCCL about this group: none may be under way when it
     * is aborted. Nobody waits for other ranks while holding it. */
    pthread_mutex_t mutex;
    ncclComm_t handle; /* NULL: aborted, or being so */
    bool captured;     /* graphs hold batches of the group, or did */
    ncclComm_t child;  /* of a base: where NCCL puts what a split under way comes to */
    zi_nccl_mark marks[ZI_NCCL_MARKS];
    uint32_t mark_first;
    uint32_t mark_count;
    /* Written once, by whoever moves `failing` from 0 to 1; readable once `failed` is 1. */
    atomic_uint failing;
    atomic_uint failed;
    zero_error first_error;
    zi_nccl_ending *ending; /* of nccl_abort.c */
    bool outlived;          /* of a base: graphs were found to live longer than their groups */
    /* When not 0: the rank has given up, and this communicator, which carries its last words, goes
     * at that time instead of with the others. */
    _Atomic uint64_t leaves_ns;
    struct zi_nccl_group *next; /* of the watcher's list */
    unsigned char *scratch;     /* lent: zeros, then work; half_bytes each. NULL: gathers only */
    size_t half_bytes;
    int version; /* of NCCL */
    bool zero_cta;
    zero_nccl_memory memory_kind;
    zi_nccl_known known[ZI_GROUP_MEMORIES];
    uint32_t known_count;
    uint64_t connected[ZI_NCCL_CONNECTED]; /* hashes of terms */
    uint32_t connected_count;
    zi_nccl_piece pieces[ZI_NCCL_PIECES]; /* of the round under way */
    uint32_t piece_count;
    uint32_t piece_limit;
    /* One entry a member, behind `sources` in the group's own memory. */
    uint32_t *order;       /* group ranks in ascending world rank */
    const void *sources[]; /* what is being folded */
} zi_nccl_group;

/* The base of a world: the communicator over all its ranks, which has been made. */
static inline zi_nccl_group *zi_nccl_base_of(const zi_comm *comm)
{
    return (zi_nccl_group *)comm->parent;
}

/* A group without a communicator: this rank's part alone. members NULL: all ranks of the world, for
 * a base, whose kernels are NULL because no batch is put on it. */
zero_status zi_nccl_group_open(const zi_nccl_group_desc *desc, zi_nccl_group **out);

/* Give up the communicator, in peace unless the group has failed, and free the group. It is not
 * watched. Accepts NULL. */
void zi_nccl_group_close(zi_nccl_group *group);

/* Make what an abort needs; zi_nccl_abort_finish frees it. (nccl_abort.c) */
zero_status zi_nccl_ending_create(zi_nccl_group *group);
/* Begin to abort the communicator unless that has been. Not of one group on two threads at once:
 * the watcher does it, or whoever has taken the group from it. (nccl_abort.c) */
void zi_nccl_abort_begin(zi_nccl_group *group);
/* Wait until the watcher's abort of a group that has failed is over. (nccl_abort.c) */
void zi_nccl_abort_await(zi_nccl_group *group);
/* Begin if need be, and wait: afterwards what was registered may go. An abort that takes longer
 * than limit_ms is left alone. Nothing more is done with the communicator. (nccl_abort.c) */
void zi_nccl_abort_finish(zi_nccl_group *group, uint64_t limit_ms);

/* Gather `bytes` bytes, a multiple of 4, of every rank over the host. Collective over `host`. */
zero_status zi_nccl_exchange(zi_group *host, const void *mine, void *all, size_t bytes);

/* Split the group's communicator off the world's base: the ranks of the same color become one, in
 * the order of their keys. Collective over the world. When it fails no other group can be made: the
 * base fails with it. (nccl_base.c) */
zero_status zi_nccl_split(zi_nccl_group *group, uint32_t color);

/* OK, or the group's error. Any thread; never blocks. */
zero_status zi_nccl_check(zi_nccl_group *group);

/* Let the group fail with `error` unless it has; false when it has. The watcher does the rest. */
bool zi_nccl_set_error(zi_nccl_group *group, const zero_error *error);

/* As zi_nccl_set_error, and tell the other ranks. */
void zi_nccl_fail(zi_nccl_group *group, const zero_error *error);

/* OK, or COMM with NCCL's words about what `call` came to. Not for ncclInProgress. */
zero_status zi_nccl_result(zi_nccl_group *group, ncclResult_t result, const char *call);

/* Let others work for a moment between two looks at what they do, of which there were `rounds`. */
void zi_nccl_pause(uint32_t rounds);

/* Wait until NCCL is done with what `call` has begun. TIMEOUT after the group's deadline; the
 * group's or the world's error when that comes first. */
zero_status zi_nccl_wait(zi_nccl_group *group, ncclResult_t result, const char *call);

/* The same where `parent`'s state tells how far `call` about the group is. */
zero_status zi_nccl_wait_of(zi_nccl_group *parent, zi_nccl_group *group, ncclResult_t result,
                            const char *call);

/* Issue a batch on its stream, within a task of it. (nccl_move.c) */
zero_status zi_nccl_move(zi_nccl_group *group, zi_stream *stream, const zi_collective *batch,
                         uint32_t batch_count);

/* What is asked of the communicator before it is made. (nccl_memory.c) */
zero_status zi_nccl_configure(const zi_nccl_group *group, ncclConfig_t *config);
/* Register the memory with the communicator, which is ready. Collective over the members where it
 * becomes windows. (nccl_memory.c) */
zero_status zi_nccl_register(zi_nccl_group *group, const zi_nccl_group_desc *desc);
/* Give the registrations back; no batch is under way. Not after an abort: that has done it.
 * (nccl_memory.c) */
zero_status zi_nccl_deregister(zi_nccl_group *group);

/* Begin and end the watch over a group. (nccl_watch.c) */
zero_status zi_nccl_watch_add(zi_nccl_group *group);
void zi_nccl_watch_remove(zi_nccl_group *group);

/* How a batch is noted. */
typedef enum zi_nccl_noting {
    ZI_NCCL_UNNOTED, /* the stream captures a graph, which runs the batch later or never */
    ZI_NCCL_NOTED,   /* by a mark of its own */
    ZI_NCCL_JOINED   /* by the last one */
} zi_nccl_noting;

/* Bracket a batch on its stream. (nccl_watch.c) */
zero_status zi_nccl_mark_begin(zi_nccl_group *group, cudaStream_t stream, zi_nccl_noting *noting);
zero_status zi_nccl_mark_end(zi_nccl_group *group, cudaStream_t stream, zi_nccl_noting noting,
                             const zi_collective *batch, uint32_t batch_count);

#endif
