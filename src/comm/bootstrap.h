/* The launcher's environment, read once into a value. Pure but for the lookup that the caller
 * passes, so that every environment can be tested. */
#ifndef ZI_COMM_BOOTSTRAP_H
#define ZI_COMM_BOOTSTRAP_H

#include <stdbool.h>
#include <stdint.h>

#include "control/control_endpoint.h"
#include "zero/status.h"

/* MPI, and launchers with it, count ranks in int. */
#define ZI_LAUNCH_SIZE_MAX INT32_MAX

typedef enum zi_launch_kind {
    ZI_LAUNCH_NONE = 0,    /* no launcher: one rank */
    ZI_LAUNCH_MPI = 1,     /* mpirun, mpiexec or srun: MPI knows the rest */
    ZI_LAUNCH_TORCHRUN = 2 /* RANK and WORLD_SIZE, and where rank 0 lives */
} zi_launch_kind;

typedef struct zi_launch {
    zi_launch_kind kind;
    const char *launcher; /* static text for messages: "mpirun", ... */
    bool pmi;             /* an MPI of MPICH's kind, which has PMI, rather than Open MPI */
    uint32_t rank;
    uint32_t size;
    uint32_t local_rank;
    uint32_t local_size; /* ranks on this host; 0: not said */
    char address[256];   /* of rank 0's host; "": not said. TORCHRUN only, like the next two */
    uint32_t port;       /* 0: not said */
    zi_control_key key;  /* of the run's name, its restart and its token */
    bool named;          /* the key tells this run from others: it has a run id or a token */
    char comm_id[256];   /* NCCL_COMM_ID; "": not said */
} zi_launch;

/* The value of an environment variable, or NULL. */
typedef const char *(*zi_lookup_fn)(void *user, const char *name);

/* INVALID_ARGUMENT naming variable and value when the environment describes half a world or an
 * impossible one. */
zero_status zi_launch_parse(zi_lookup_fn lookup, void *user, zi_launch *launch);

/* *one: whether all of a TORCHRUN launch's ranks are on one host. It follows from what is the same
 * on all ranks, and so does the refusal: INVALID_ARGUMENT where the environment leaves it open. */
zero_status zi_launch_on_one_host(const zi_launch *launch, bool *one);

/* The name of the memory in which a TORCHRUN launch's ranks of one host meet: nobody else's of this
 * user who has another port, run, restart, token or number of ranks. */
void zi_launch_host_name(const zi_launch *launch, char name[64]);

/* The place at which ranks on several hosts meet: the port after MASTER_PORT, at which torchrun
 * itself listens; or the one after that of NCCL_COMM_ID, at which NCCL does. INVALID_ARGUMENT when
 * neither is set. */
zero_status zi_launch_endpoint(const zi_launch *launch, zi_control_endpoint *endpoint);

#endif
