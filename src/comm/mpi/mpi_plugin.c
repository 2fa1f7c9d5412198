/* Owns every call of MPI, with the types of the MPI it is compiled for. It uses nothing else of the
 * library, so that whoever has another MPI compiles this file alone:
 *     mpicc -shared -fPIC mpi_plugin.c -o libzero-mpi.so
 * Invariant: a handle of ours is 0 exactly when MPI's is a null handle. */
#include "mpi_plugin.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

#define REQUESTS_AT_ONCE 64

_Static_assert(sizeof(MPI_Comm) <= sizeof(zi_mpi_handle), "a communicator fits");
_Static_assert(sizeof(MPI_Request) <= sizeof(zi_mpi_handle), "a request fits");

static MPI_Comm comm_of(zi_mpi_handle handle)
{
    MPI_Comm comm = MPI_COMM_NULL;
    if (handle.word != 0) {
        memcpy(&comm, &handle, sizeof comm);
    }
    return comm;
}

static zi_mpi_handle handle_of_comm(MPI_Comm comm)
{
    zi_mpi_handle handle = {0};
    if (comm != MPI_COMM_NULL) {
        memcpy(&handle, &comm, sizeof comm);
    }
    return handle;
}

static MPI_Request request_of(zi_mpi_handle handle)
{
    MPI_Request request = MPI_REQUEST_NULL;
    if (handle.word != 0) {
        memcpy(&request, &handle, sizeof request);
    }
    return request;
}

static zi_mpi_handle handle_of_request(MPI_Request request)
{
    zi_mpi_handle handle = {0};
    if (request != MPI_REQUEST_NULL) {
        memcpy(&handle, &request, sizeof request);
    }
    return handle;
}

/* Put the request of a call that makes one in its place, and return what the call returned. */
static int keep_request(int code, MPI_Request request, zi_mpi_handle *out)
{
    *out = code == MPI_SUCCESS ? handle_of_request(request) : (zi_mpi_handle){0};
    return code;
}

static int mpi_plugin_keep_comm(int code, MPI_Comm comm, zi_mpi_handle *out)
{
    *out = code == MPI_SUCCESS ? handle_of_comm(comm) : (zi_mpi_handle){0};
    return code;
}

static int initialized(int *yes)
{
    return MPI_Initialized(yes);
}

static int finalized(int *yes)
{
    return MPI_Finalized(yes);
}

static int mpi_plugin_init(void)
{
    int level = 0;
    return MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
}

static int finalize(void)
{
    return MPI_Finalize();
}

static int query_thread(int *level)
{
    int native = 0;
    const int code = MPI_Query_thread(&native);
    *level = native >= MPI_THREAD_MULTIPLE     ? ZI_MPI_MULTIPLE
             : native >= MPI_THREAD_SERIALIZED ? ZI_MPI_SERIALIZED
             : native >= MPI_THREAD_FUNNELED   ? ZI_MPI_FUNNELED
                                               : ZI_MPI_SINGLE;
    return code;
}

static int error_string(int code, char *text, size_t bytes)
{
    char native[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    const int result = MPI_Error_string(code, native, &length);
    (void)snprintf(text, bytes, "%s", result == MPI_SUCCESS ? native : "");
    return result;
}

static zi_mpi_handle comm_world(void)
{
    return handle_of_comm(MPI_COMM_WORLD);
}

static zi_mpi_handle comm_f2c(int comm)
{
    return handle_of_comm(MPI_Comm_f2c((MPI_Fint)comm));
}

static int comm_rank(zi_mpi_handle comm, int *rank)
{
    return MPI_Comm_rank(comm_of(comm), rank);
}

static int comm_size(zi_mpi_handle comm, int *size)
{
    return MPI_Comm_size(comm_of(comm), size);
}

static int comm_idup(zi_mpi_handle comm, zi_mpi_handle *copy, zi_mpi_handle *request)
{
    MPI_Request native = MPI_REQUEST_NULL;
    copy->word = 0;
    const int code = MPI_Comm_idup(comm_of(comm), (MPI_Comm *)(void *)copy, &native);
    return keep_request(code, native, request);
}

static int comm_split(zi_mpi_handle comm, int color, int key, zi_mpi_handle *part)
{
    MPI_Comm native = MPI_COMM_NULL;
    const int code = MPI_Comm_split(comm_of(comm), color, key, &native);
    return mpi_plugin_keep_comm(code, native, part);
}

static int comm_split_host(zi_mpi_handle comm, int key, zi_mpi_handle *part)
{
    MPI_Comm native = MPI_COMM_NULL;
    const int code =
        MPI_Comm_split_type(comm_of(comm), MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &native);
    return mpi_plugin_keep_comm(code, native, part);
}

static int comm_create_group(zi_mpi_handle comm, const int *ranks, int count, int tag,
                             zi_mpi_handle *part)
{
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    MPI_Comm native = MPI_COMM_NULL;
    int code = MPI_Comm_group(comm_of(comm), &all);
    if (code == MPI_SUCCESS) {
        code = MPI_Group_incl(all, count, ranks, &some);
        (void)MPI_Group_free(&all);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_create_group(comm_of(comm), some, tag, &native);
        (void)MPI_Group_free(&some);
    }
    return mpi_plugin_keep_comm(code, native, part);
}

static int comm_return_errors(zi_mpi_handle comm)
{
    return MPI_Comm_set_errhandler(comm_of(comm), MPI_ERRORS_RETURN);
}

static int comm_free(zi_mpi_handle *comm)
{
    MPI_Comm native = comm_of(*comm);
    comm->word = 0;
    return MPI_Comm_free(&native);
}

static int bcast(void *data, int bytes, int root, zi_mpi_handle comm)
{
    return MPI_Bcast(data, bytes, MPI_BYTE, root, comm_of(comm));
}

static int allgather(const void *mine, void *all, int bytes, zi_mpi_handle comm)
{
    return MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, comm_of(comm));
}

static int ibarrier(zi_mpi_handle comm, zi_mpi_handle *request)
{
    MPI_Request native = MPI_REQUEST_NULL;
    const int code = MPI_Ibarrier(comm_of(comm), &native);
    return keep_request(code, native, request);
}

static int isend(const void *data, int bytes, int to, int tag, zi_mpi_handle comm,
                 zi_mpi_handle *request)
{
    MPI_Request native = MPI_REQUEST_NULL;
    const int code = MPI_Isend(data, bytes, MPI_BYTE, to, tag, comm_of(comm), &native);
    return keep_request(code, native, request);
}

static int irecv(void *data, int bytes, int from, int tag, zi_mpi_handle comm,
                 zi_mpi_handle *request)
{
    MPI_Request native = MPI_REQUEST_NULL;
    const int source = from == ZI_MPI_ANY_SOURCE ? MPI_ANY_SOURCE : from;
    const int code = MPI_Irecv(data, bytes, MPI_BYTE, source, tag, comm_of(comm), &native);
    return keep_request(code, native, request);
}

static int iallgather(void *data, int bytes, zi_mpi_handle comm, zi_mpi_handle *request)
{
    MPI_Request native = MPI_REQUEST_NULL;
    const int code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, bytes, MPI_BYTE,
                                    comm_of(comm), &native);
    return keep_request(code, native, request);
}

static int ireduce_scatter_block(const void *send, void *recv, int count, zi_mpi_handle comm,
                                 zi_mpi_handle *request)
{
    MPI_Request native = MPI_REQUEST_NULL;
    const int code =
        MPI_Ireduce_scatter_block(send, recv, count, MPI_FLOAT, MPI_SUM, comm_of(comm), &native);
    return keep_request(code, native, request);
}

static int iallreduce(const void *send, void *recv, int count, zi_mpi_handle comm,
                      zi_mpi_handle *request)
{
    MPI_Request native = MPI_REQUEST_NULL;
    const int code = MPI_Iallreduce(send == recv ? MPI_IN_PLACE : send, recv, count, MPI_FLOAT,
                                    MPI_SUM, comm_of(comm), &native);
    return keep_request(code, native, request);
}

static int test(zi_mpi_handle *request, int *done)
{
    MPI_Request native = request_of(*request);
    const int code = MPI_Test(&native, done, MPI_STATUS_IGNORE);
    *request = handle_of_request(native);
    return code;
}

static int testsome(zi_mpi_handle *requests, int count, int *completed)
{
    MPI_Request native[REQUESTS_AT_ONCE];
    MPI_Status statuses[REQUESTS_AT_ONCE]; /* gcc warns of MPICH's MPI_STATUSES_IGNORE */
    int indices[REQUESTS_AT_ONCE];
    *completed = 0;
    for (int first = 0; first < count; first += REQUESTS_AT_ONCE) {
        const int some = count - first < REQUESTS_AT_ONCE ? count - first : REQUESTS_AT_ONCE;
        int done = 0;
        for (int i = 0; i < some; i++) {
            native[i] = request_of(requests[first + i]);
        }
        const int code = MPI_Testsome(some, native, &done, indices, statuses);
        for (int i = 0; i < some; i++) {
            requests[first + i] = handle_of_request(native[i]);
        }
        if (code != MPI_SUCCESS) {
            return code;
        }
        *completed += done != MPI_UNDEFINED ? done : 0;
    }
    return MPI_SUCCESS;
}

static int wait(zi_mpi_handle *request)
{
    MPI_Request native = request_of(*request);
    request->word = 0;
    return MPI_Wait(&native, MPI_STATUS_IGNORE);
}

static int cancel(zi_mpi_handle *request)
{
    MPI_Request native = request_of(*request);
    return MPI_Cancel(&native);
}

static int request_free(zi_mpi_handle *request)
{
    MPI_Request native = request_of(*request);
    request->word = 0;
    return MPI_Request_free(&native);
}

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const zi_mpi_plugin zi_mpi_plugin_table = {
    .version = ZI_MPI_PLUGIN_VERSION,
    .initialized = initialized,
    .finalized = finalized,
    .init = mpi_plugin_init,
    .finalize = finalize,
    .query_thread = query_thread,
    .error_string = error_string,
    .comm_world = comm_world,
    .comm_f2c = comm_f2c,
    .comm_rank = comm_rank,
    .comm_size = comm_size,
    .comm_idup = comm_idup,
    .comm_split = comm_split,
    .comm_split_host = comm_split_host,
    .comm_create_group = comm_create_group,
    .comm_return_errors = comm_return_errors,
    .comm_free = comm_free,
    .bcast = bcast,
    .allgather = allgather,
    .ibarrier = ibarrier,
    .isend = isend,
    .irecv = irecv,
    .iallgather = iallgather,
    .ireduce_scatter_block = ireduce_scatter_block,
    .iallreduce = iallreduce,
    .test = test,
    .testsome = testsome,
    .wait = wait,
    .cancel = cancel,
    .request_free = request_free,
};
