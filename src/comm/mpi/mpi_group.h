/* A group whose members are on several hosts, for its files: mpi_group.c runs a batch, mpi_move.c
 * moves its data. */
#ifndef ZI_COMM_MPI_MPI_GROUP_H
#define ZI_COMM_MPI_MPI_GROUP_H

#include "comm/grid.h"
#include "comm/mpi/mpi_world.h"

/* Two bits for each of 64 collectives. */
typedef struct zi_mpi_bits {
    uint64_t absent;   /* send is NULL */
    uint64_t in_place; /* send and recv overlap */
} zi_mpi_bits;

/* A member's message about its batch before any data moves; cut after the bits of the last
 * collective. */
typedef struct zi_mpi_record {
    uint64_t hash;
    uint64_t batch_count;
    zi_mpi_bits bits[ZI_BATCH_MAX / 64];
} zi_mpi_record;

typedef struct zi_mpi_group {
    zi_group base;
    zi_mpi_comm *comm;
    zi_mpi_link *link;
    bool connected; /* on all members, so each sends the others a message when it leaves */
    uint64_t id;
    zero_error first_error; /* status ZERO_OK while the group is alive */
    zi_mpi_record mine;
    zi_mpi_record *records; /* one a member */
    unsigned char *stage;   /* stage_bytes a member: what came from them. For device memory as
                               much again behind it: what goes to them */
    size_t stage_bytes;
    size_t stage_total;
    zi_mpi_exchange exchange;
    zi_mpi_op op; /* MPI's own collectives */
    zi_mpi_handle op_request;
    const zi_collective *moving; /* the one that `op` is to start */
    zi_grid grid;                /* of gathers, and of sums without EXACT */
    zi_grid flat;                /* of sums with it */
    uint64_t crossed_bytes;      /* sent to other hosts so far, but by MPI's own collectives */
    /* One entry a member, behind `sources` in the group's own memory. */
    uint32_t *members;     /* world rank of each member */
    uint32_t *order;       /* group ranks in ascending world rank */
    uint32_t *by_host;     /* the same, host by host: of `grid` */
    uint32_t *late;        /* scratch: world ranks that get the notice of a timeout */
    const void *sources[]; /* arrays that are being folded */
} zi_mpi_group;

/* Move and fold the data of collective `index` of a batch whose terms all members have compared.
 * count is not 0.
 * - stream: whose task this is; after a failure work may be left on it. */
zero_status zi_mpi_move(zi_mpi_group *group, zi_stream *stream, const zi_collective *collective,
                        uint32_t index);

#endif
