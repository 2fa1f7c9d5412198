/* The header that the ranks of a host share, and one rank's view of their memory. For host/ only.
 */
#ifndef ZI_COMM_HOST_SHARED_STATE_H
#define ZI_COMM_HOST_SHARED_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/host/shared.h"
#include "comm/peer/peer.h"
#include "core/error.h"
#include "core/failure.h"

/* "zero" and the version of this layout. */
#define ZI_SHARED_MAGIC UINT64_C(0x7a65726f00000006)
#define ZI_SHARED_VALUES 4
/* Groups being created at one moment. */
#define ZI_SHARED_ENTRIES 256

typedef enum zi_shared_state {
    ZI_SHARED_JOINING = 0,
    ZI_SHARED_OPEN = 1,  /* all have arrived, the name is removed */
    ZI_SHARED_FAILED = 2 /* `failure` says why; final */
} zi_shared_state;

/* The presence of a rank, which may have begun to leave, or have left. */
typedef enum zi_shared_presence {
    ZI_SHARED_HERE = 0,
    ZI_SHARED_LEAVING = 1, /* it makes no more calls; its process must live on */
    ZI_SHARED_LEFT = 2     /* its process may end */
} zi_shared_presence;

/* The words of one rank, which all read. A rank counts `exchanges` up after it has written
 * values[exchanges % 2]. It is never more than one exchange ahead of another, so two sets of values
 * are enough. */
typedef struct zi_shared_rank {
    _Alignas(128) _Atomic uint64_t pid; /* 0: has not arrived; a rank that is a thread has none */
    _Atomic uint64_t start;             /* of that process; 0: not written yet */
    _Atomic uint32_t presence;          /* zi_shared_presence */
    _Atomic uint32_t leaver;            /* in the order of leaving, from 1; 0: it has not left */
    _Atomic uint64_t exchanges;
    uint64_t values[2][ZI_SHARED_VALUES];
    zi_failure told;   /* how the last allocation ended; stays until all have read it */
    zi_call_note call; /* on a line of its own */
} zi_shared_rank;

/* A group that is being made: written by its first member, joined by the others, then free again.
 */
typedef struct zi_shared_entry {
    _Atomic uint64_t key; /* 0: free; 1: being written; else the hash of the members */
    _Atomic uint32_t arrived;
    _Atomic uint32_t serial; /* raised with every use */
    uint64_t offset;         /* of the block (shared_memory.c) */
    char name[24];
} zi_shared_entry;

struct zi_shared_header {
    _Atomic uint64_t magic; /* written last by the maker */
    uint64_t maker_pid;
    uint64_t maker_start;
    uint64_t launcher; /* of the maker: desc.launcher */
    uint32_t size;
    _Atomic uint32_t state;
    zi_failure_cell failure;  /* the host's; `state` is FAILED once it is there */
    _Atomic uint64_t end;     /* bytes of the file in use or freed */
    _Atomic uint32_t leavers; /* ranks that have left */
    zi_shared_entry entries[ZI_SHARED_ENTRIES];
    zi_shared_rank ranks[]; /* `size` of them: one for each rank of the host */
};

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the header is shared by processes");

/* A group's block as mapped here. */
typedef struct zi_shared_block {
    struct zi_shared_block *next;
    unsigned char *base;
    uint64_t bytes;
    uint64_t offset;
} zi_shared_block;

struct zi_shared {
    int fd; /* -1: ranks are threads */
    uint32_t index;
    uint32_t size;
    uint32_t deadline_ms;
    zi_shared_header *header;
    bool registered;
    uint64_t exchanges;           /* entered so far */
    _Atomic uint64_t polled_ns;   /* when a thread of this rank last checked the others */
    atomic_uint next_poll;        /* the place it checks first next time */
    zi_silence *stops;            /* notes stopped processes; NULL: none does */
    _Atomic uint64_t *stopped_ns; /* by place: since when; 0: it is not */
    zi_peer_space space;          /* a window of 0 bytes is free */
    uint64_t window_offsets[ZI_PEER_WINDOWS_MAX];
    pthread_mutex_t mutex;   /* guards `blocks`, which an abort walks */
    zi_shared_block *blocks; /* of this rank's groups */
    uint32_t world_ranks[];  /* `size` of them, ascending */
};

/* A wait with a deadline, for calls outside the step: yields first, then sleeps. */
typedef struct zi_shared_wait {
    uint64_t until_ns;
    uint32_t sleep_ns;
    uint32_t rounds;
} zi_shared_wait;

/* ranks: how many of the host may wait at once. */
zi_shared_wait zi_shared_wait_begin(uint32_t deadline_ms, uint32_t ranks);

/* False when the deadline has passed. */
bool zi_shared_wait_more(zi_shared_wait *wait);

/* Let waits on this host check that the ranks live. */
void zi_shared_watch(zi_shared *shared);

/* Set the failure of all ranks of the host; those that wait in a group find it within 100 ms. */
void zi_shared_set_failure(zi_shared_header *header, const zi_failure *failure);

/* Bytes of a header for `size` ranks. */
uint64_t zi_shared_header_bytes(uint32_t size);

/* True if the rank at place `index` makes no more calls. Loads after this one see what it did
 * before. */
bool zi_shared_has_left(const zi_shared *shared, uint32_t index);

/* COMM naming the rank at place `index`, which left. */
zero_status zi_shared_fail_left(const zi_shared *shared, uint32_t index, const char *what);

/* Fail everything on this host with the calling thread's last error, unless it has failed. Returns
 * that error's status. */
zero_status zi_shared_fail(zi_shared *shared);

/* Of these members, by world rank, the place of the one that left first, since others leave because
 * of it; shared->size where none has. members NULL: all ranks of the host. */
uint32_t zi_shared_leaver(const zi_shared *shared, const uint32_t *members, uint32_t size);

/* True if the rank at place `index` is still waited for. */
typedef bool (*zi_shared_late_fn)(const zi_shared *shared, uint32_t index);

/* Fill `text` with the world ranks that are late; with that of place `last` when all have arrived
 * just now. */
const char *zi_shared_late_text(const zi_shared *shared, zi_shared_late_fn is_late, uint32_t last,
                                char *text, size_t text_bytes);

/* ---- memory (shared_memory.c) ---- */

/* Allocate memory for `bytes` of the file from `offset`. */
zero_status zi_shared_back(const zi_shared *shared, uint64_t offset, uint64_t bytes);

/* Memory that all ranks find at *offset: take it, map it here, unmap it, and free it. */
zero_status zi_shared_take(const zi_shared *shared, uint64_t bytes, uint64_t *offset);
zero_status zi_shared_map(const zi_shared *shared, uint64_t offset, uint64_t bytes,
                          unsigned char **base);
void zi_shared_unmap(const zi_shared *shared, unsigned char *base, uint64_t bytes);
void zi_shared_drop(const zi_shared *shared, uint64_t offset, uint64_t bytes);

/* Allocate this rank's part of a window, `bytes`, and map all parts at *base; where ranks are
 * threads there is this part alone. */
zero_status zi_shared_map_window(const zi_shared *shared, uint64_t offset, uint64_t bytes,
                                 unsigned char **base);
void zi_shared_unmap_window(const zi_shared *shared, uint64_t offset, uint64_t bytes,
                            unsigned char *base);

#endif
