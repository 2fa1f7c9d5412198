/* The comm, for its files: mpi_comm.c (the comm) and mpi_group.c (its groups across hosts). */
#ifndef ZI_COMM_MPI_MPI_WORLD_H
#define ZI_COMM_MPI_MPI_WORLD_H

#include "comm/host/shared.h"
#include "comm/mpi/mpi_exchange.h"
#include "control/control_plane.h"
#include "core/error.h"

/* Groups across hosts that exist at once. */
#define ZI_MPI_GROUPS_MAX 64

/* Tags on the comm's own communicator; 1 is for notices. */
#define ZI_MPI_TAG_RENDEZVOUS 2 /* members of a group to be */
#define ZI_MPI_TAG_CREATE 3     /* MPI's own, while it makes a communicator */
#define ZI_MPI_TAG_DATA 4       /* on a group's communicator */

/* In the first word of a record: the rank has left, and sends nothing more. */
#define ZI_MPI_LEFT UINT64_MAX

/* COMM naming the world rank that left. what: which needs it. */
zero_status zi_mpi_fail_left(uint32_t world_rank, const char *what);

/* A communicator made for a member list. It is kept when its group is destroyed: making one is
 * collective, and so would be freeing it. */
typedef struct zi_mpi_link {
    zi_mpi_handle comm;
    uint64_t members_hash;
    uint64_t id; /* of the group it was made for: the same on all members */
    bool made;
    bool used;
    bool dead; /* its group failed: messages may be left in it */
} zi_mpi_link;

/* A rank's message of itself when the ranks allocate or join. */
typedef struct zi_mpi_word {
    uint64_t bytes; /* that it allocates; ZI_MPI_LEFT: it leaves */
    zi_failure told;
} zi_mpi_word;

typedef struct zi_mpi_comm {
    zi_comm base;
    zi_mpi_handle world;       /* ours alone */
    zi_shared *shared;         /* with the ranks of this host */
    zi_mpi_progress *progress; /* NULL: one host, no MPI call between create and destroy */
    zi_control *plane;    /* NULL: one host; says who of the others aborts, dies or is silent */
    uint64_t groups_made; /* so far, to number them */
    uint32_t link_count;
    zi_mpi_link links[ZI_MPI_GROUPS_MAX];
    zi_mpi_exchange control; /* among all ranks, for calls outside the step */
    bool finalize;
    /* One entry a rank, behind `words` in the comm's own memory. */
    uint32_t *host_of;   /* lowest world rank on each rank's host */
    uint32_t *ranks;     /* 0, 1, 2, ... */
    uint32_t *on_host;   /* world ranks of this host, base.local_size of them */
    zi_mpi_word words[]; /* of each rank, when the ranks allocate or join */
} zi_mpi_comm;

/* The same of a rank that has left the world, where this rank has received the message that the
 * other sends for the end of the world. This rank cannot end the world together with it any more,
 * so it aborts the comm. */
zero_status zi_mpi_abort_left(zi_mpi_comm *comm, uint32_t world_rank, const char *what);

/* True if the world has failed, as far as this rank knows. */
static inline bool zi_mpi_has_failed(const zi_mpi_comm *comm)
{
    return zi_shared_failed(comm->shared) != 0;
}

/* A group whose members are on several hosts. */
zero_status zi_mpi_group_create(zi_mpi_comm *comm, const zi_kernels *kernels,
                                const uint32_t *members, uint32_t size, const char *name,
                                zi_group **out);

#endif
