/* The header of the shared file, and this rank's view of the file. For shm/ only. */
#ifndef ZI_COMM_SHM_SHARED_FILE_H
#define ZI_COMM_SHM_SHARED_FILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/peer/peer.h"
#include "comm/shm/shared.h"
#include "core/error.h"
#include "core/failure.h"

/* "zero" and the version of this layout. */
#define ZI_SHARED_MAGIC UINT64_C(0x7a65726f00000005)
#define ZI_SHARED_VALUES 4
/* Groups being created at one moment, and groups that one rank is a member of. */
#define ZI_SHARED_ENTRIES 256
#define ZI_SHARED_BLOCKS 256

typedef enum zi_shared_state {
    ZI_SHARED_JOINING = 0,
    ZI_SHARED_OPEN = 1,  /* all have arrived, the name is removed */
    ZI_SHARED_FAILED = 2 /* `failure_*` says why; final */
} zi_shared_state;

/* The presence of a rank, which may have begun to leave, or have left. */
typedef enum zi_shared_presence {
    ZI_SHARED_HERE = 0,
    ZI_SHARED_LEAVING = 1, /* it makes no more calls; its process must live on */
    ZI_SHARED_LEFT = 2     /* its process may end */
} zi_shared_presence;

/* One rank's entry. A rank counts `exchanges` up after it has written values[exchanges % 2]. It is
 * never more than one exchange ahead of another, so two sets of values are enough. */
typedef struct zi_shared_slot {
    _Alignas(128) _Atomic uint64_t pid; /* 0: has not arrived */
    _Atomic uint64_t start;             /* of that process; 0: not written yet */
    _Atomic uint32_t presence;          /* zi_shared_presence */
    _Atomic uint64_t exchanges;
    uint64_t values[2][ZI_SHARED_VALUES];
    zi_error_told told; /* how the last allocation ended; stays until all have read it */
    zi_call_note call;  /* on a line of its own */
} zi_shared_slot;

/* A group that is being made: written by its first member, joined by the others, then free again.
 */
typedef struct zi_shared_entry {
    _Atomic uint64_t key; /* 0: free; 1: being written; else the hash of the members */
    _Atomic uint32_t arrived;
    _Atomic uint32_t serial; /* raised with every use */
    uint64_t offset;         /* of the block in the file */
    char name[24];
} zi_shared_entry;

typedef struct zi_shared_header {
    _Atomic uint64_t magic; /* written last by the maker */
    uint64_t maker_pid;
    uint64_t maker_start;
    uint64_t launcher; /* of the maker: desc.launcher */
    uint32_t size;
    _Atomic uint32_t state;
    zi_failure failure;   /* the host's; `state` is FAILED once it is there */
    _Atomic uint64_t end; /* bytes of the file in use or freed */
    zi_shared_entry entries[ZI_SHARED_ENTRIES];
    zi_shared_slot slots[]; /* `size` of them: one for each rank of the host */
} zi_shared_header;

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the header is shared by processes");

/* A group's block as mapped here; the page before the block counts its users. */
typedef struct zi_shared_block {
    unsigned char *base; /* NULL: free row */
    uint64_t bytes;
    uint64_t offset;
} zi_shared_block;

struct zi_shared {
    int fd;
    uint32_t index;
    uint32_t size;
    uint32_t deadline_ms;
    const bool *crowded;
    zi_shared_header *header;
    bool registered;
    uint64_t exchanges;           /* entered so far */
    _Atomic uint64_t polled_ns;   /* when a thread of this rank last checked the others */
    atomic_uint next_poll;        /* the place it checks first next time */
    zi_silence *stops;            /* notes stopped processes; NULL: none does */
    _Atomic uint64_t *stopped_ns; /* by place: since when; 0: it is not */
    zi_peer_space space;          /* a window of 0 bytes is free */
    uint64_t window_offsets[ZI_PEER_WINDOWS_MAX];
    pthread_mutex_t mutex; /* guards `blocks`, which an abort walks */
    zi_shared_block blocks[ZI_SHARED_BLOCKS];
    uint32_t world_ranks[]; /* `size` of them, ascending */
};

/* A wait with a deadline, for calls outside the step: yields first, then sleeps. */
typedef struct zi_shared_wait {
    uint64_t until_ns;
    uint32_t rounds;
} zi_shared_wait;

zi_shared_wait zi_shared_wait_begin(uint32_t deadline_ms);

/* False when the deadline has passed. */
bool zi_shared_wait_more(zi_shared_wait *wait);

/* Let waits on this host check that the ranks live. */
void zi_shared_watch(zi_shared *shared);

/* True if the rank at place `index` makes no more calls. Loads after this one see what it did
 * before. */
bool zi_shared_has_left(const zi_shared *shared, uint32_t index);

/* COMM naming the rank at place `index`, which left. */
zero_status zi_shared_fail_left(const zi_shared *shared, uint32_t index, const char *what);

/* Fail everything on this host with the calling thread's last error, unless it has failed. Returns
 * that error's status. */
zero_status zi_shared_fail(zi_shared *shared);

/* True if the rank at place `index` is still waited for. */
typedef bool (*zi_shared_late_fn)(const zi_shared *shared, uint32_t index);

/* Fill `text` with the world ranks that are late; with that of place `last` when all have arrived
 * just now. */
const char *zi_shared_late_text(const zi_shared *shared, zi_shared_late_fn is_late, uint32_t last,
                                char *text, size_t text_bytes);

/* Allocate memory for `bytes` of the file from `offset`. */
zero_status zi_shared_back(const zi_shared *shared, uint64_t offset, uint64_t bytes);

/* Free that memory. */
void zi_shared_drop(const zi_shared *shared, uint64_t offset, uint64_t bytes);

#endif
