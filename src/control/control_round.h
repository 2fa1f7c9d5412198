/* The gather under way. Each rank sends its record to rank 0, which answers with all of them, or
 * finds out who is missing. No file and no connection. Not thread-safe. */
#ifndef ZI_CONTROL_CONTROL_ROUND_H
#define ZI_CONTROL_CONTROL_ROUND_H

#include "control/control_wire.h"

typedef enum zi_control_presence {
    ZI_CONTROL_AWAY = 0, /* not there yet */
    ZI_CONTROL_HERE = 1,
    ZI_CONTROL_GONE = 2 /* it has left, or died */
} zi_control_presence;

typedef struct zi_control_round_rank {
    zi_control_presence presence; /* set by the owner */
    bool sent; /* its record, of `length` bytes; or it was not told of `failed` */
    uint32_t length;
} zi_control_round_rank;

typedef struct zi_control_round {
    uint32_t rank; /* this one */
    uint32_t size;
    uint32_t record_max;
    uint32_t deadline_ms;         /* from the first record to the last */
    uint64_t number;              /* from 1 on; the next once it is answered */
    const unsigned char *records; /* of the last answer, record_bytes of each rank */
    uint32_t record_bytes;
    zi_control_inbox kept; /* holds them, but at rank 0 */
    unsigned char
        *results[2];   /* frame, records: by number % 2 at rank 0, else of this rank alone */
    uint64_t until_ns; /* 0: nobody waits. This and the rest: at rank 0 */
    zi_failure failed; /* a gather has failed; no other follows */
    zi_control_round_rank ranks[];
} zi_control_round;

zero_status zi_control_round_create(uint32_t rank, uint32_t size, uint32_t deadline_ms,
                                    zi_control_round **out);

/* Accepts NULL. */
void zi_control_round_destroy(zi_control_round *round);

/* This rank's record. Returns the GATHER to send, in place until the next; NULL at rank 0. */
const zi_control_frame *zi_control_round_begin(zi_control_round *round, const void *record,
                                               uint32_t bytes);

/* At rank 0: a rank's GATHER. False where it may not come now. */
bool zi_control_round_take(zi_control_round *round, uint32_t rank, const zi_control_frame *frame,
                           const void *record);

/* At rank 0: draw the conclusion. Returns the GATHERED with all records, each as long as the
 * longest, in place until the gather after the next; else NULL, with `failed` set where a rank that
 * is needed has gone or has not come in time. */
const zi_control_frame *zi_control_round_settle(zi_control_round *round);

/* Elsewhere: the GATHERED that has come. The inbox gets the memory of the one before. False where
 * it may not come now. */
bool zi_control_round_keep(zi_control_round *round, zi_control_inbox *inbox);

#endif
