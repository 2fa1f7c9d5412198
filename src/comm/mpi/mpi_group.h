/* What mpi_group.c (a group's life and the course of a batch) and mpi_move.c (its data) share. */
#ifndef ZI_COMM_MPI_MPI_GROUP_H
#define ZI_COMM_MPI_MPI_GROUP_H

#include "comm/mpi/mpi_world.h"

/* Longest batch, as for peer/. */
#define ZI_MPI_BATCH_MAX 1024

/* What a member says about its batch before any data moves. Bits: one a collective. */
typedef struct zi_mpi_record {
    uint64_t hash;
    uint64_t batch_count;
    uint64_t absent[ZI_MPI_BATCH_MAX / 64];   /* send is NULL */
    uint64_t in_place[ZI_MPI_BATCH_MAX / 64]; /* send and recv overlap */
} zi_mpi_record;

typedef struct zi_mpi_group {
    zi_group base;
    zi_mpi_comm *comm;
    zi_mpi_link *link;
    uint64_t id;
    zero_error first_error;         /* status ZERO_OK while the group is alive */
    uint32_t members[ZI_RANKS_MAX]; /* world rank of each member */
    uint32_t order[ZI_RANKS_MAX];   /* group ranks in ascending world rank */
    zi_mpi_record mine;
    zi_mpi_record *records; /* one a member */
    unsigned char *stage;   /* stage_bytes a member: their pieces of a sum */
    size_t stage_bytes;
    size_t stage_total;
    const void *sources[ZI_RANKS_MAX];
    zi_mpi_exchange exchange;
    uint32_t late[ZI_RANKS_MAX]; /* world ranks to be told of a timeout */
    zi_mpi_op op;                /* MPI's own collectives */
    MPI_Request op_requests[ZI_MPI_REQUESTS_MAX];
    const zi_collective *moving; /* what `op` is to start */
} zi_mpi_group;

/* Move and fold the data of collective `index` of a batch that all members have described alike. */
zero_status zi_mpi_move(zi_mpi_group *group, const zi_collective *collective, uint32_t index);

#endif
