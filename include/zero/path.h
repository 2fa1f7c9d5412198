/** @file
 *  What carries bytes between ranks and to disk, as chosen when the engine was created. */
#ifndef ZERO_PATH_H
#define ZERO_PATH_H

#include "zero/engine.h"
#include "zero/export.h"
#include "zero/options.h"
#include "zero/status.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** The kind of data that is moved. */
typedef enum zero_traffic {
    ZERO_TRAFFIC_GATHER = 0, /**< parameters: gathers of units, or the all-gather after a step */
    ZERO_TRAFFIC_REDUCE = 1  /**< gradients: the first reduction that crosses ranks */
} zero_traffic;

/** The transport that moves it. */
typedef enum zero_carrier {
    ZERO_CARRIER_NONE = 0, /**< nothing: the state is with one rank */
    ZERO_CARRIER_HOST = 1, /**< host memory that the ranks of a host share; a GPU's is staged */
    ZERO_CARRIER_PEER = 2, /**< GPUs that read one another's memory */
    ZERO_CARRIER_MPI = 3,  /**< messages of MPI between hosts */
    ZERO_CARRIER_NCCL = 4  /**< NCCL */
} zero_carrier;

/** A carrier and, for NCCL, which memory it accepted; zero_plan_tuning of zero_engine_plan(engine)
 *  has what was asked for. NCCL does not report which kernel or copy engine it then uses; with
 *  NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=REG,TUNING,COLL in the environment it prints that. Grows
 *  at its end. */
typedef struct zero_path {
    size_t struct_bytes;  /**< set by zero_path_init() */
    zero_carrier carrier; /**< that moves the bytes */
    int32_t nccl_version; /**< of the library that was loaded: 22809 is 2.28.9. 0: not NCCL */
    uint32_t buffers;     /**< arenas that the communicator has registered as plain buffers */
    uint32_t windows;     /**< arenas that it has registered as windows */
    uint32_t symmetric;   /**< of these, symmetric ones */
    int32_t zero_cta;     /**< 1: the communicator was made with NCCL_CTA_POLICY_ZERO */
    char text[96];        /**< the same for people: "nccl 2.28.9, symmetric windows" */
    uint32_t hosts;       /**< number of hosts, if it goes in two levels, within each host and then
                             between hosts. 0: all at once, or as NCCL or MPI does it */
} zero_path;

/** As zero_engine_options_init_sized: no carrier, struct_bytes set. */
ZERO_API void zero_path_init_sized(zero_path *path, size_t struct_bytes);

/** No carrier, with the caller's size. */
static inline zero_path zero_path_init(void)
{
    zero_path path;
    zero_path_init_sized(&path, sizeof path);
    return path;
}

/** Get the path of this traffic of the engine, between this rank and its peers.
 *  - path: in: struct_bytes, of zero_path_init(); out: the rest, as far as the struct goes.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT. */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_path(const zero_engine *engine,
                                                      zero_traffic traffic, zero_path *path);

/** I/O backends, in fallback order: the first that the machine grants is taken. */
typedef enum zero_io_backend {
    ZERO_IO_BACKEND_NONE = 0,  /**< nothing is on disk */
    ZERO_IO_BACKEND_FIXED = 1, /**< io_uring with registered files, and memory as far as the limit
                                  on locked memory allows */
    ZERO_IO_BACKEND_URING = 2, /**< plain io_uring */
    ZERO_IO_BACKEND_POSIX = 3  /**< threads that call pread and pwrite */
} zero_io_backend;

/** How state on disk is reached. Grows at its end. */
typedef struct zero_disk_path {
    size_t struct_bytes;       /**< set by zero_disk_path_init() */
    zero_io_backend backend;   /**< that was taken */
    int32_t direct;            /**< 1: no directory goes through the page cache */
    uint64_t window_bytes;     /**< host memory that all accesses go through; while the I/O window
                                  is evicted (zero/evict.h), as before */
    uint64_t registered_bytes; /**< of these, registered with io_uring */
    char text[256];    /**< the same for people: "fixed (files, 1 of 1 slices of memory), direct" */
    char refused[512]; /**< better backends that were refused, with the reasons; "" without */
    char striped[192]; /**< how it is striped over the directories: "to one directory", "equally",
                          "by disk_weights 3:1", or "by measured MB/s 2870:1410"; "" without */
} zero_disk_path;

/** As zero_engine_options_init_sized: nothing on disk, struct_bytes set. */
ZERO_API void zero_disk_path_init_sized(zero_disk_path *path, size_t struct_bytes);

/** Nothing on disk, with the caller's size. */
static inline zero_disk_path zero_disk_path_init(void)
{
    zero_disk_path path;
    zero_disk_path_init_sized(&path, sizeof path);
    return path;
}

/** How this rank reaches its state on disk; ZERO_IO_BACKEND_NONE where nothing is there.
 *  - path: in: struct_bytes, of zero_disk_path_init(); out: the rest, as far as the struct goes.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT. */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_disk_path(const zero_engine *engine,
                                                           zero_disk_path *path);

ZERO_END

#endif
