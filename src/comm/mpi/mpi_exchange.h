/* Every member sends each other member a piece and receives one: the building block for what MPI's
 * collectives do not offer, a deadline that names who is late and sums in a stated order. */
#ifndef ZI_COMM_MPI_MPI_EXCHANGE_H
#define ZI_COMM_MPI_MPI_EXCHANGE_H

#include "comm/mpi/mpi_progress.h"

/* Largest piece: MPI counts in int. */
#define ZI_MPI_PIECE_MAX ((size_t)1 << 30)

/* What goes to a member and comes from it. 0 bytes: nothing, and the other side knows. The own one
 * is ignored. */
typedef struct zi_mpi_piece {
    const void *send_at;
    size_t send_bytes;
    void *recv_at;
    size_t recv_bytes;
    bool late; /* after a TIMEOUT: the member was waited for */
} zi_mpi_piece;

typedef struct zi_mpi_exchange {
    zi_mpi_progress *progress;
    MPI_Comm comm;
    int tag;
    uint32_t rank; /* this rank's place among the members */
    uint32_t size;
    uint32_t deadline_ms;
    const uint32_t *comm_ranks;  /* of each member in `comm`; NULL: its place */
    const uint32_t *world_ranks; /* of each member, for errors */
    zi_mpi_op op;
    zi_mpi_piece *pieces; /* one a member; the head of a block with all that follows */
    MPI_Request *requests;
    uint32_t *peers; /* member of each request */
    bool *late;      /* of each request, for `op` */
} zi_mpi_exchange;

/* Take the memory for exchanges among exchange->size members. */
zero_status zi_mpi_exchange_open(zi_mpi_exchange *exchange);

/* Give it back; also when it was never taken. */
void zi_mpi_exchange_close(zi_mpi_exchange *exchange);

/* Do it once. TIMEOUT: "rank 3 did not arrive at WHAT within 500 ms". Members with nothing to say
 * to one another do not wait for one another. */
zero_status zi_mpi_exchange_run(zi_mpi_exchange *exchange, const char *what);

/* `mine_bytes` at `mine` to everybody; theirs to `all` + place * bytes, own included. A record may
 * be shorter than the `bytes` there is room for. */
zero_status zi_mpi_exchange_records(zi_mpi_exchange *exchange, const void *mine, size_t mine_bytes,
                                    void *all, size_t bytes, const char *what);

#endif
