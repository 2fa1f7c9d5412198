/* What mpi_group.c (a group's life and the course of a batch), mpi_move.c (its data) and
 * mpi_staged.c (the data of device memory) share. */
#ifndef ZI_COMM_MPI_MPI_GROUP_H
#define ZI_COMM_MPI_MPI_GROUP_H

#include "comm/mpi/mpi_world.h"

/* Two bits for each of 64 collectives. */
typedef struct zi_mpi_bits {
    uint64_t absent;   /* send is NULL */
    uint64_t in_place; /* send and recv overlap */
} zi_mpi_bits;

/* What a member says about its batch before any data moves; sent as far as the batch goes. */
typedef struct zi_mpi_record {
    uint64_t hash;
    uint64_t batch_count;
    zi_mpi_bits bits[ZI_BATCH_MAX / 64];
} zi_mpi_record;

typedef struct zi_mpi_group {
    zi_group base;
    zi_mpi_comm *comm;
    zi_mpi_link *link;
    bool connected; /* on all members, so each tells the others when it leaves */
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
    MPI_Request op_request;
    const zi_collective *moving; /* what `op` is to start */
    /* One entry a member, behind `sources` in the group's own memory. */
    uint32_t *members;     /* world rank of each member */
    uint32_t *order;       /* group ranks in ascending world rank */
    uint32_t *late;        /* world ranks to be told of a timeout */
    const void *sources[]; /* what is being folded */
} zi_mpi_group;

/* How the members share a collective's array: each has a part of it. */
typedef struct zi_mpi_plan {
    const zi_collective *collective;
    uint32_t index; /* in its batch */
    bool sliced;    /* parts are slices of `count`, else `count` each */
} zi_mpi_plan;

/* Elements of member `i`'s part, and where it starts. The first member's is the longest. */
size_t zi_mpi_part_of(const zi_mpi_group *group, const zi_mpi_plan *plan, uint32_t i,
                      size_t *first);

/* Whether a member sends nothing to collective `index`. */
bool zi_mpi_absent(const zi_mpi_group *group, uint32_t member, uint32_t index);

/* Run group->exchange as its pieces say. */
zero_status zi_mpi_exchange_pieces(zi_mpi_group *group, const zi_collective *collective);

/* Move and fold the data of collective `index` of a batch that all members have described alike.
 * count > 0. */
zero_status zi_mpi_move(zi_mpi_group *group, const zi_collective *collective, uint32_t index);

/* The same for device memory. stream: whose task this is; when it fails, work may be left on it. */
zero_status zi_mpi_move_staged(zi_mpi_group *group, zi_stream *stream,
                               const zi_collective *collective, uint32_t index);

#endif
