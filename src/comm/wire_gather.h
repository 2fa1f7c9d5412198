/* A gather in which parts cross in another type than members have them in. Each member rounds its
 * part into a wire buffer, the parts are gathered there, and all of them are made values again, the
 * member's own too, so that all members have the same. In a type of blocks (core/block_codec.h) the
 * buffer has the codes of all parts, then their scales, which are gathered in the same batch.
 *
 * The three calls go on one stream, in this order; the next gather through the buffer comes after
 * them. */
#ifndef ZI_COMM_WIRE_GATHER_H
#define ZI_COMM_WIRE_GATHER_H

#include "comm/comm.h"

/* Values, or codes and scales. */
#define ZI_WIRE_COLLECTIVES 2

typedef struct zi_wire_gather {
    const char *name; /* of the unit, for the timeline */
    uint32_t tag;     /* likewise, for errors */
    uint32_t rank;    /* this member's */
    uint32_t size;    /* members */
    zero_dtype wire;
    zero_dtype own_dtype;
    zero_dtype all_dtype;
    uint64_t count;        /* elements of each part; whole granules */
    const void *own;       /* this member's part; may lie in `all` */
    void *all;             /* out: all parts, in the order of members */
    unsigned char *buffer; /* zi_codec_bytes of all parts in the wire's type */
} zi_wire_gather;

/* Enqueue: this member's part, rounded to the wire's type. */
zero_status zi_wire_encode(const zi_wire_gather *gather, const zi_kernels *kernels,
                           zi_stream *stream);
/* Write down what brings the other parts; returns how many collectives that are. batch: out, room
 * for ZI_WIRE_COLLECTIVES. */
uint32_t zi_wire_batch(const zi_wire_gather *gather, zi_collective *batch);
/* Enqueue: the values of all parts. */
zero_status zi_wire_decode(const zi_wire_gather *gather, const zi_kernels *kernels,
                           zi_stream *stream);

/* A gather of each member's `count` values of a type, from this one's to all of them. */
zi_collective zi_gather_values(uint32_t tag, zero_dtype dtype, uint64_t count, const void *send,
                               void *recv);

#endif
