/* Every member sends each other member a buffer and receives one. This is the building block for
 * what MPI's collectives do not offer: a deadline that names who is late, and sums in a stated
 * order. */
#ifndef ZI_COMM_MPI_MPI_EXCHANGE_H
#define ZI_COMM_MPI_MPI_EXCHANGE_H

#include "comm/mpi/mpi_progress.h"

/* Largest buffer: MPI counts in int. */
#define ZI_MPI_TRANSFER_MAX ((size_t)1 << 30)

/* The buffers that go to a member and come from it. 0 bytes: none, which the other side knows.
 * Entries of this rank itself are ignored. Two members have as many entries about one another, in
 * the same order from `first` on. */
typedef struct zi_mpi_transfer {
    uint32_t member;
    const void *send_at;
    size_t send_bytes;
    void *recv_at;
    size_t recv_bytes;
    bool late; /* after a TIMEOUT, of the member whose rank is this entry's place: not arrived */
} zi_mpi_transfer;

typedef struct zi_mpi_exchange {
    zi_mpi_progress *progress;
    zi_mpi_handle comm;
    int tag;
    uint32_t rank; /* this rank's place among the members */
    uint32_t size;
    uint32_t deadline_ms;
    const uint32_t *comm_ranks;  /* of each member in `comm`; NULL: its place */
    const uint32_t *world_ranks; /* of each member, for errors */
    zi_silence *silence;         /* the comm's, for errors */
    zi_mpi_op op;
    uint32_t first;             /* entry to begin with: best another one on each member */
    zi_mpi_transfer *transfers; /* `size` of them; the head of a block with all that follows */
    zi_mpi_handle *requests;
    uint32_t *peers; /* member of each request */
    bool *late;      /* of each request, for `op` */
} zi_mpi_exchange;

/* Allocate the memory for exchanges among exchange->size members. */
zero_status zi_mpi_exchange_open(zi_mpi_exchange *exchange);

/* Free it; does nothing when it was not allocated. */
void zi_mpi_exchange_close(zi_mpi_exchange *exchange);

/* Run the exchange once. Members without buffers for one another do not wait for one another.
 * - Errors: TIMEOUT: "rank 3 did not arrive at WHAT within 500 ms"; COMM. */
zero_status zi_mpi_exchange_run(zi_mpi_exchange *exchange, const char *what);

/* Gather a record of every member.
 * - mine: mine_bytes of it, which may be fewer than `bytes`.
 * - all: out; the record of the member at place i, own included, is at i * bytes. */
zero_status zi_mpi_exchange_records(zi_mpi_exchange *exchange, const void *mine, size_t mine_bytes,
                                    void *all, size_t bytes, const char *what);

#endif
