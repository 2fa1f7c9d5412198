/* NCCL's functions, looked up at their first use. The library has some 200 MB and not every machine
 * has it, so nothing links it; and tests may put a table of their own in its place. */
#ifndef ZI_COMM_NCCL_NCCL_API_H
#define ZI_COMM_NCCL_NCCL_API_H

#include <nccl.h>

#include "zero/status.h"

/* The oldest NCCL that has all that is required here: 2.22, from which on ncclCommAbort may be part
 * of a group of calls. */
#define ZI_NCCL_VERSION_MIN 22200

#define ZI_NCCL_REQUIRED(X)                          \
    X(get_version, ncclGetVersion)                   \
    X(get_unique_id, ncclGetUniqueId)                \
    X(get_error_string, ncclGetErrorString)          \
    X(get_last_error, ncclGetLastError)              \
    X(comm_init_rank_config, ncclCommInitRankConfig) \
    X(comm_split, ncclCommSplit)                     \
    X(comm_get_async_error, ncclCommGetAsyncError)   \
    X(comm_abort, ncclCommAbort)                     \
    X(comm_destroy, ncclCommDestroy)                 \
    X(comm_count, ncclCommCount)                     \
    X(comm_user_rank, ncclCommUserRank)              \
    X(comm_cu_device, ncclCommCuDevice)              \
    X(group_start, ncclGroupStart)                   \
    X(group_end, ncclGroupEnd)                       \
    X(all_gather, ncclAllGather)                     \
    X(reduce_scatter, ncclReduceScatter)             \
    X(all_reduce, ncclAllReduce)                     \
    X(send, ncclSend)                                \
    X(recv, ncclRecv)                                \
    X(mem_alloc, ncclMemAlloc)                       \
    X(mem_free, ncclMemFree)                         \
    X(comm_register, ncclCommRegister)               \
    X(comm_deregister, ncclCommDeregister)

/* From which version on the library has windows whose handles are GPU memory, and gathers without
 * CTAs. 2.27 has windows too, but does not say whether it has made one. */
#define ZI_NCCL_VERSION_WINDOWS 22800
/* From which version on a configuration surely has a traffic class. */
#define ZI_NCCL_VERSION_TRAFFIC 22700
#define ZI_NCCL_HAS_TRAFFIC (NCCL_VERSION_CODE >= ZI_NCCL_VERSION_TRAFFIC)
#define ZI_NCCL_HAS_ZERO_CTA (NCCL_VERSION_CODE >= ZI_NCCL_VERSION_WINDOWS)

/* NULL where the library does not have them. The headers of the build need not have them: a window
 * is a pointer. */
#define ZI_NCCL_OPTIONAL(X)                         \
    X(comm_window_register, ncclCommWindowRegister) \
    X(comm_window_deregister, ncclCommWindowDeregister)
#define ZI_NCCL_WIN_COLL_SYMMETRIC 1

#define ZI_NCCL_MEMBER(member, symbol) __typeof__(&(symbol)) member;
typedef struct zi_nccl_api {
    ZI_NCCL_REQUIRED(ZI_NCCL_MEMBER)
    ncclResult_t (*comm_window_register)(ncclComm_t comm, void *memory, size_t bytes, void **window,
                                         int flags);
    ncclResult_t (*comm_window_deregister)(ncclComm_t comm, void *window);
} zi_nccl_api;

/* The table of the process, and the version of its NCCL: MAJOR * 10000 + MINOR * 100 + PATCH. The
 * first call loads the library.
 * - Errors: UNSUPPORTED when it is missing, lacks a function, or is too old; then always the same.
 * - Threads: any. */
zero_status zi_nccl_api_get(const zi_nccl_api **api, int *version);

/* Load `library` into a table. */
zero_status zi_nccl_api_load(const char *library, zi_nccl_api *api);

/* For tests: use this table from now on; NULL: the library again. No group may exist. */
void zi_nccl_api_replace(const zi_nccl_api *api);

#endif
