/* What lies at the start of the shared file, and this rank's view of it. For shm/ only. */
#ifndef ZI_COMM_SHM_SHARED_FILE_H
#define ZI_COMM_SHM_SHARED_FILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/peer/peer.h"
#include "comm/shm/shared.h"

/* "zero" and the version of this layout. */
#define ZI_SHARED_MAGIC UINT64_C(0x7a65726f00000003)
#define ZI_SHARED_WORDS 4
/* Groups being created at one moment, and groups that one rank is a member of. */
#define ZI_SHARED_ENTRIES 256
#define ZI_SHARED_BLOCKS 256

typedef enum zi_shared_state {
    ZI_SHARED_JOINING = 0,
    ZI_SHARED_OPEN = 1,  /* all have come, the name is gone */
    ZI_SHARED_FAILED = 2 /* `failure_*` says why; final */
} zi_shared_state;

/* How far a rank has gone from the others. */
typedef enum zi_shared_presence {
    ZI_SHARED_HERE = 0,
    ZI_SHARED_LEAVING = 1, /* it makes no more calls; its process must live on */
    ZI_SHARED_LEFT = 2     /* its process may end */
} zi_shared_presence;

/* One rank's line. `turn` is raised after `words[turn % 2]` is written: a rank is never more than
 * one exchange ahead, so two sets are enough. */
typedef struct zi_shared_slot {
    _Alignas(128) _Atomic uint64_t pid; /* 0: has not come */
    _Atomic uint64_t start;             /* of that process; 0: not written yet */
    _Atomic uint32_t presence;          /* zi_shared_presence */
    _Atomic uint64_t turn;
    uint64_t words[2][ZI_SHARED_WORDS];
} zi_shared_slot;

/* A group on its way: written by its first member, joined by the others, then free again. */
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
    uint32_t size;
    _Atomic uint32_t state;
    _Atomic uint32_t failing; /* claimed by the one who writes the failure */
    int32_t failure_status;
    int32_t failure_native;
    uint32_t failure_rank; /* world rank */
    char failure_text[256];
    _Atomic uint64_t end; /* bytes of the file given out */
    zi_shared_entry entries[ZI_SHARED_ENTRIES];
    zi_shared_slot slots[]; /* `size` of them: one for each rank of the host */
} zi_shared_header;

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the header is shared by processes");

/* A block mapped here; the page before the block counts its users. */
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
    bool signed_in;
    uint64_t turn;
    _Atomic uint64_t looked_ns; /* when a thread of this rank last looked after the others */
    atomic_uint next_look;      /* at which place it begins next */
    zi_shared_gone_fn on_gone;
    void *on_gone_user;
    zi_peer_space space; /* a window of 0 bytes is free */
    uint64_t window_offsets[ZI_PEER_WINDOWS_MAX];
    pthread_mutex_t mutex; /* guards `blocks`, which an abort walks */
    zi_shared_block blocks[ZI_SHARED_BLOCKS];
    uint32_t world_ranks[]; /* `size` of them, ascending */
};

/* A wait with a deadline, for calls outside the step: yields at first, then sleeps. */
typedef struct zi_shared_wait {
    uint64_t until_ns;
    uint32_t rounds;
} zi_shared_wait;

zi_shared_wait zi_shared_wait_begin(uint32_t deadline_ms);

/* False when the deadline has passed. */
bool zi_shared_wait_more(zi_shared_wait *wait);

/* Let waits on this host look after the ranks. */
void zi_shared_watch(zi_shared *shared);

/* Whether the rank at place `index` makes no more calls. What it did before is seen by loads after
 * this one. */
bool zi_shared_has_left(const zi_shared *shared, uint32_t index);

/* COMM naming the rank at place `index`, which left. */
zero_status zi_shared_fail_left(const zi_shared *shared, uint32_t index, const char *what);

/* Let everything on this host fail with the calling thread's last error, unless it has. Returns
 * that error's status. */
zero_status zi_shared_fail(zi_shared *shared);

/* Whether the rank at place `index` is still waited for. */
typedef bool (*zi_shared_late_fn)(const zi_shared *shared, uint32_t index);

/* Fill `text` with the world ranks that are late; with that of place `last` when all have come just
 * now. */
const char *zi_shared_late_text(const zi_shared *shared, zi_shared_late_fn is_late, uint32_t last,
                                char *text, size_t text_bytes);

/* Back `bytes` of the file from `offset` with memory. */
zero_status zi_shared_back(const zi_shared *shared, uint64_t offset, uint64_t bytes);

/* Give the memory behind it back. */
void zi_shared_drop(const zi_shared *shared, uint64_t offset, uint64_t bytes);

#endif
