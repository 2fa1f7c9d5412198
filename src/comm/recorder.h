/* A group's flight recorder: its newest batches of collectives, and when each was enqueued, began
 * and ended on this rank. It is always on, in memory of the group: no lock, no allocation.
 *
 * Threads: one thread enqueues a group's batches. What runs a batch, on any thread, says when it
 * begins and ends, in that order. Any thread may read meanwhile, also while the group hangs. */
#ifndef ZI_COMM_RECORDER_H
#define ZI_COMM_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Batches that a group remembers. The host may be several steps ahead of a GPU, and a batch that
 * hangs there must not be overwritten by those behind it. */
#define ZI_RECORDS 256

/* X(name, text): how far a batch has come on this rank. */
#define ZI_RECORD_STATES(X)                                                                \
    X(ENQUEUED, "enqueued") /* it is on its stream, which has not come to it */            \
    X(STARTED, "started")   /* this rank has arrived, and waits for the others or moves */ \
    X(DONE, "done")         /* this rank waits for no other in it any more */              \
    X(FAILED, "failed")                                                                    \
    X(CAPTURED, "captured") /* it is part of a graph; nobody sees when that runs */

#define ZI_RECORD_ROW(name, text) ZI_RECORD_##name,
typedef enum zi_record_state {
    ZI_RECORD_STATES(ZI_RECORD_ROW) ZI_RECORD_STATE_COUNT
} zi_record_state;
#undef ZI_RECORD_ROW

const char *zi_record_state_text(zi_record_state state);

/* A batch, and what became of it. */
typedef struct zi_record {
    uint64_t number; /* of the group's batches */
    zi_record_state state;
    uint64_t terms[2]; /* the bytes of the first collective's terms */
    uint64_t bytes;    /* of the whole arrays of all collectives */
    uint32_t collectives;
    uint32_t hash;        /* of the terms of all */
    uint64_t enqueued_ns; /* times are zi_clock_ns; 0: unknown */
    uint64_t started_ns;
    uint64_t ended_ns;
} zi_record;

/* The same as it is kept. `key` is the number with the state in its lowest bits; 0: being written,
 * or never. It is written last, and whoever changes the state later does so only where the key is
 * still that of its batch. */
typedef struct zi_record_entry {
    _Atomic uint64_t key;
    _Atomic uint64_t terms[2];
    _Atomic uint64_t bytes;
    _Atomic uint64_t counts; /* collectives, and the hash above them */
    _Atomic uint64_t enqueued_ns;
    _Atomic uint64_t started_ns;
    _Atomic uint64_t ended_ns;
} zi_record_entry;

_Static_assert(sizeof(zi_record_entry) == 64, "a record is a line of the cache");

typedef struct zi_recorder {
    _Atomic uint64_t enqueued; /* batches so far */
    _Atomic uint64_t done;     /* all batches below it are done, of those that are in no graph */
    zi_record_entry entries[ZI_RECORDS];
} zi_recorder;

/* Note a batch that is about to be put on its stream. Its number, state and times are not read.
 * Returns the number. */
uint64_t zi_recorder_enqueue(zi_recorder *recorder, const zi_record *batch);

/* The number of the batch that was enqueued last, for the function that puts it on the stream. */
static inline uint64_t zi_recorder_last(const zi_recorder *recorder)
{
    return atomic_load_explicit(&recorder->enqueued, memory_order_relaxed) - 1;
}

/* The batch begins. */
void zi_recorder_start(zi_recorder *recorder, uint64_t number);
/* The batch is DONE, FAILED or CAPTURED. Only the first of these counts. */
void zi_recorder_end(zi_recorder *recorder, uint64_t number, zi_record_state state);

/* Read the record of a batch; false where it is overwritten, or being so. */
bool zi_recorder_read(const zi_recorder *recorder, uint64_t number, zi_record *out);

#endif
