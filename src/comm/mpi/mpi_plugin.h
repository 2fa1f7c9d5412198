/* The calls of MPI that the library makes. An MPI's types and constants are its own, so these calls
 * are compiled once for each MPI, by mpi_plugin.c, and libzero.so itself needs no MPI to be loaded.
 * Calls return what MPI returns, 0 for success. */
#ifndef ZI_COMM_MPI_MPI_PLUGIN_H
#define ZI_COMM_MPI_MPI_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

/* Grows with every change of this file. */
#define ZI_MPI_PLUGIN_VERSION 1

/* A communicator or a request: MPI's own handle in its first bytes. 0: none. */
typedef struct zi_mpi_handle {
    uint64_t word;
} zi_mpi_handle;

/* The levels of thread support, in ascending order. */
typedef enum zi_mpi_thread_level {
    ZI_MPI_SINGLE = 0,
    ZI_MPI_FUNNELED = 1,
    ZI_MPI_SERIALIZED = 2,
    ZI_MPI_MULTIPLE = 3
} zi_mpi_thread_level;

#define ZI_MPI_ANY_SOURCE (-1)

typedef struct zi_mpi_plugin {
    uint32_t version;
    int (*initialized)(int *yes);
    int (*finalized)(int *yes);
    int (*init)(void); /* for any number of threads */
    int (*finalize)(void);
    int (*query_thread)(int *level);
    int (*error_string)(int code, char *text, size_t bytes);

    zi_mpi_handle (*comm_world)(void);
    zi_mpi_handle (*comm_f2c)(int comm);
    int (*comm_rank)(zi_mpi_handle comm, int *rank);
    int (*comm_size)(zi_mpi_handle comm, int *size);
    /* MPI writes *copy when the request is complete. */
    int (*comm_idup)(zi_mpi_handle comm, zi_mpi_handle *copy, zi_mpi_handle *request);
    int (*comm_split)(zi_mpi_handle comm, int color, int key, zi_mpi_handle *part);
    /* The ranks that share memory. */
    int (*comm_split_host)(zi_mpi_handle comm, int key, zi_mpi_handle *part);
    int (*comm_create_group)(zi_mpi_handle comm, const int *ranks, int count, int tag,
                             zi_mpi_handle *part);
    /* Errors are returned and do not end the process. */
    int (*comm_return_errors)(zi_mpi_handle comm);
    int (*comm_free)(zi_mpi_handle *comm);

    int (*bcast)(void *data, int bytes, int root, zi_mpi_handle comm);
    int (*allgather)(const void *mine, void *all, int bytes, zi_mpi_handle comm);
    int (*ibarrier)(zi_mpi_handle comm, zi_mpi_handle *request);
    int (*isend)(const void *data, int bytes, int to, int tag, zi_mpi_handle comm,
                 zi_mpi_handle *request);
    int (*irecv)(void *data, int bytes, int from, int tag, zi_mpi_handle comm,
                 zi_mpi_handle *request);
    /* In place: `bytes` of each rank. */
    int (*iallgather)(void *data, int bytes, zi_mpi_handle comm, zi_mpi_handle *request);
    /* Sums of f32. `count` of each rank; of all, which may be in place. */
    int (*ireduce_scatter_block)(const void *send, void *recv, int count, zi_mpi_handle comm,
                                 zi_mpi_handle *request);
    int (*iallreduce)(const void *send, void *recv, int count, zi_mpi_handle comm,
                      zi_mpi_handle *request);

    /* Requests that are complete become 0. */
    int (*test)(zi_mpi_handle *request, int *done);
    int (*testsome)(zi_mpi_handle *requests, int count, int *completed);
    int (*wait)(zi_mpi_handle *request);
    int (*cancel)(zi_mpi_handle *request);
    int (*request_free)(zi_mpi_handle *request);
} zi_mpi_plugin;

/* The table that a plug-in exports; a program may link mpi_plugin.c instead of having one
 * loaded. */
extern const zi_mpi_plugin zi_mpi_plugin_table;

#endif
