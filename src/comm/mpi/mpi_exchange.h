/* Every member sends each other member a piece and receives one: the building block for what MPI's
 * collectives do not offer, a deadline that names who is late and sums in a stated order. */
#ifndef ZI_COMM_MPI_MPI_EXCHANGE_H
#define ZI_COMM_MPI_MPI_EXCHANGE_H

#include "comm/mpi/mpi_progress.h"

/* Largest piece: MPI counts in int. */
#define ZI_MPI_PIECE_MAX ((size_t)1 << 30)

typedef struct zi_mpi_exchange {
    zi_mpi_progress *progress;
    MPI_Comm comm;
    int tag;
    uint32_t rank; /* this rank's place among the members */
    uint32_t size;
    uint32_t deadline_ms;
    const uint32_t *comm_ranks;  /* of each member in `comm`; NULL: its place */
    const uint32_t *world_ranks; /* of each member, for errors */
    /* Per member; 0 bytes: nothing is sent or received, and the other side knows. Own: ignored. */
    const void *send_at[ZI_RANKS_MAX];
    size_t send_bytes[ZI_RANKS_MAX];
    void *recv_at[ZI_RANKS_MAX];
    size_t recv_bytes[ZI_RANKS_MAX];
    zi_mpi_op op;
    MPI_Request requests[ZI_MPI_REQUESTS_MAX];
    bool late[ZI_MPI_REQUESTS_MAX];
    uint32_t peers[ZI_MPI_REQUESTS_MAX]; /* member of each request */
} zi_mpi_exchange;

/* Do it once. TIMEOUT: "rank 3 did not arrive at WHAT within 500 ms". Members with nothing to say
 * to one another do not wait for one another. */
zero_status zi_mpi_exchange_run(zi_mpi_exchange *exchange, const char *what);

/* After a TIMEOUT: the world ranks of those that were late; returns their number. */
uint32_t zi_mpi_exchange_late(const zi_mpi_exchange *exchange, uint32_t *world_ranks);

/* The same `bytes` at `mine` to everybody; theirs to `all` + place * bytes, own included. */
zero_status zi_mpi_exchange_records(zi_mpi_exchange *exchange, const void *mine, void *all,
                                    size_t bytes, const char *what);

#endif
