/* Owns a world's base: the communicator over all its ranks that groups are split off, and how it is
 * made: from an id that the ranks exchange, or as a split of the caller's communicator. Invariants:
 * a world has at most one, on one GPU; it stands first in the watcher's list, so that it is aborted
 * before its splits; when a split of it fails it fails too, since nobody knows which ranks are
 * still in it. The caller's communicator is never aborted, finalised or destroyed here: a split of
 * it that does not finish cannot be ended, and what NCCL may still write to is left to it. */
#include "comm/nccl/nccl_base.h"

#include <stdatomic.h>
#include <string.h>

#include "core/clock.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/failure.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/thread.h"
#include "device/cuda/cuda_device.h"

/* The message that the ranks exchange before they connect. */
typedef struct base_record {
    zi_failure told; /* the outcome of getting ready */
    int32_t version;
    ncclUniqueId id; /* of rank 0 */
} base_record;

_Static_assert(sizeof(base_record) % sizeof(float) == 0, "gathered as fp32 elements");

/* Open a base without a communicator and watch it, so that nothing is left that can fail on one
 * rank alone once the ranks exchange their records. */
static zero_status open_base(zi_comm *comm, zi_nccl_group **out)
{
    const zi_group_desc desc = {.size = comm->size, .name = "world"};
    ZI_TRY(zi_nccl_group_open(comm, &desc, out));
    return zi_nccl_watch_add(*out);
}

/* Make the base comm->parent when `status`, of connecting it, is OK, else end it. Returns `status`.
 * base: NULL with a failure. */
static zero_status keep_base(zi_comm *comm, zi_nccl_group *base, zero_status status)
{
    if (status != ZERO_OK) {
        return zi_nccl_group_abandon(base);
    }
    comm->parent = &base->base;
    return ZERO_OK;
}

static zero_status nccl_base_init(zi_nccl_group *base, const ncclUniqueId *id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ZI_TRY(zi_nccl_enter(base, "ncclCommInitRankConfig"));
    const ncclResult_t result = base->handle->api->comm_init_rank_config(
        &base->handle->comm, (int)base->base.size, *id, (int)base->base.rank, &config);
    zi_nccl_leave(base);
    return zi_nccl_wait(base, result, "ncclCommInitRankConfig");
}

/* Do all that this rank can do alone, and fill its record for the others. */
static zero_status nccl_base_prepare(zi_comm *comm, zi_nccl_group **base, base_record *mine)
{
    ZI_TRY(open_base(comm, base));
    mine->version = (*base)->version;
    if (comm->rank != 0) {
        return ZERO_OK;
    }
    const ncclResult_t result = (*base)->handle->api->get_unique_id(&mine->id);
    return zi_nccl_result(*base, result, "ncclGetUniqueId");
}

/* MISMATCH, or the status of a rank that could not prepare. */
static zero_status nccl_base_compare(const zi_comm *comm, const base_record *all)
{
    const uint32_t failed = zi_failure_first_cause(&all->told, sizeof *all, comm->size);
    if (failed < comm->size) {
        return zi_failure_hear(&all[failed].told, "", failed);
    }
    for (uint32_t i = 0; i < comm->size; i++) {
        if (all[i].version != all[0].version) {
            ZI_FAIL(ZERO_ERR_MISMATCH,
                    "rank %u loads NCCL %d, rank 0 NCCL %d; install one version everywhere", i,
                    (int)all[i].version, (int)all[0].version);
        }
    }
    return ZERO_OK;
}

zero_status zi_nccl_base_get(zero_world *world)
{
    zi_comm *comm = world->comm;
    if (comm->parent != NULL) {
        return ZERO_OK;
    }
    zi_nccl_group *base = NULL;
    base_record *all = NULL;
    base_record mine;
    memset(&mine, 0, sizeof mine);
    ZI_TRY(zi_calloc(comm->size, sizeof *all, (void **)&all));
    const zero_status ready = nccl_base_prepare(comm, &base, &mine);
    const zero_error error = *zero_last_error();
    mine.told = zi_failure_tell(ready);
    zero_status status = zi_group_gather(world->coordination, 0, &mine, all, sizeof mine);
    if (status == ZERO_OK) {
        status = ready != ZERO_OK ? zi_error_adopt(&error) : nccl_base_compare(comm, all);
    }
    if (status == ZERO_OK) {
        status = nccl_base_init(base, &all[0].id);
    }
    zi_free(all);
    return keep_base(comm, base, status);
}

/* ---- a split of the caller's communicator ---- */

/* A split of the caller's communicator. The call has a thread of its own: where that communicator
 * is blocking, ncclCommSplit returns only when all ranks have called it. */
typedef struct split_job {
    const zi_nccl_api *api;
    ncclComm_t parent;
    ncclComm_t child; /* NCCL writes it until the parent is no longer in progress */
    int rank;
    int ordinal;
    ncclResult_t result;
    atomic_uint returned;
    atomic_uint owners; /* the caller, and the thread; the last frees this */
    struct split_job *next;
} split_job;

/* Jobs whose split did not finish by the deadline. NCCL may still write to their `child`, so they
 * are never freed; the list keeps leak checkers silent. */
static split_job *_Atomic unfinished;

/* A child that nobody has taken goes too. */
static void nccl_base_release(split_job *job)
{
    if (atomic_fetch_sub_explicit(&job->owners, 1, memory_order_acq_rel) == 1) {
        if (job->child != NULL) {
            (void)job->api->comm_abort(job->child);
        }
        zi_free(job);
    }
}

static void *split_main(void *argument)
{
    split_job *job = argument;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    (void)cudaSetDevice(job->ordinal);
    job->result = job->api->comm_split(job->parent, 0, job->rank, &job->child, &config);
    atomic_store_explicit(&job->returned, 1, memory_order_release);
    nccl_base_release(job);
    return NULL;
}

static zero_status nccl_base_begin_split(const zi_nccl_group *base, ncclComm_t parent,
                                         split_job **out)
{
    pthread_t thread;
    ZI_TRY(zi_calloc(1, sizeof **out, (void **)out));
    split_job *job = *out;
    job->api = base->handle->api;
    job->parent = parent;
    job->rank = (int)base->base.rank;
    job->ordinal = base->handle->ordinal;
    atomic_init(&job->owners, 2);
    const zero_status status = zi_thread_start(&thread, split_main, job);
    if (status != ZERO_OK) {
        zi_free(job);
        return status;
    }
    (void)pthread_detach(thread);
    return ZERO_OK;
}

/* Wait until the communicator is no longer in progress, and return its state; ncclInProgress after
 * the deadline. */
static ncclResult_t await_state(const zi_nccl_api *api, ncclComm_t comm, uint64_t until_ns)
{
    for (uint32_t rounds = 0;; rounds++) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t result = api->comm_get_async_error(comm, &state);
        state = result != ncclSuccess ? result : state;
        if (state != ncclInProgress || zi_clock_ns() > until_ns) {
            return state;
        }
        zi_nccl_pause(rounds);
    }
}

/* Wait for the result of the split; ncclInProgress after the deadline. */
static ncclResult_t await_split(split_job *job, uint64_t until_ns)
{
    for (uint32_t rounds = 0; atomic_load_explicit(&job->returned, memory_order_acquire) == 0;
         rounds++) {
        if (zi_clock_ns() > until_ns) {
            return ncclInProgress;
        }
        zi_nccl_pause(rounds);
    }
    if (job->result != ncclSuccess && job->result != ncclInProgress) {
        return job->result;
    }
    const ncclResult_t state = await_state(job->api, job->parent, until_ns);
    if (state == ncclInProgress) { /* the job stays this thread's */
        atomic_fetch_add_explicit(&job->owners, 1, memory_order_relaxed);
        job->next = atomic_exchange(&unfinished, job);
    }
    return state;
}

static zero_status split_parent(zi_nccl_group *base, ncclComm_t parent)
{
    static const char call[] = "ncclCommSplit of the caller's communicator";
    split_job *job = NULL;
    ncclComm_t child = NULL;
    const uint64_t until_ns = zi_deadline_in_ms(base->deadline_ms);
    ZI_TRY(nccl_base_begin_split(base, parent, &job));
    const ncclResult_t state = await_split(job, until_ns);
    if (state == ncclSuccess) {
        child = job->child;
        job->child = NULL;
    }
    nccl_base_release(job);
    if (state == ncclInProgress) {
        ZI_FAIL(ZERO_ERR_TIMEOUT,
                "rank %u: %s did not finish within %u ms; not all %u ranks called "
                "zero_world_create_nccl, and the communicator is good for nothing but "
                "ncclCommAbort now",
                base->base.rank, call, base->deadline_ms, base->base.size);
    }
    ZI_TRY(zi_nccl_result(base, state, call));
    if (child == NULL) {
        ZI_FAIL(ZERO_ERR_COMM, "%s made none", call);
    }
    (void)pthread_mutex_lock(&base->handle->mutex);
    base->handle->comm = child;
    (void)pthread_mutex_unlock(&base->handle->mutex);
    return zi_nccl_wait(base, ncclInProgress, call);
}

static zero_status ask(const zi_nccl_api *api, ncclResult_t result, const char *call)
{
    if (result != ncclSuccess) {
        ZI_FAIL_NATIVE(ZERO_ERR_COMM, (int)result, "%s of the caller's communicator: %.100s", call,
                       api->get_error_string(result));
    }
    return ZERO_OK;
}

zero_status zi_nccl_borrowed_rank(ncclComm_t comm, uint32_t deadline_ms, int *rank, int *size)
{
    const zi_nccl_api *api = NULL;
    int version = 0;
    int device = 0;
    int current = 0;
    ZI_TRY(zi_nccl_api_get(&api, &version));
    const ncclResult_t state = await_state(api, comm, zi_deadline_in_ms(deadline_ms));
    if (state == ncclInProgress) {
        ZI_FAIL(ZERO_ERR_TIMEOUT, "the caller's communicator was still in progress after %u ms",
                deadline_ms);
    }
    ZI_TRY(ask(api, state, "the state"));
    ZI_TRY(ask(api, api->comm_user_rank(comm, rank), "ncclCommUserRank"));
    ZI_TRY(ask(api, api->comm_count(comm, size), "ncclCommCount"));
    ZI_TRY(ask(api, api->comm_cu_device(comm, &device), "ncclCommCuDevice"));
    ZI_TRY(zi_cuda_check(cudaGetDevice(&current), "cudaGetDevice"));
    if (current != device) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "comm is of GPU %d but GPU %d is current; call cudaSetDevice(%d) first", device,
                current, device);
    }
    return ZERO_OK;
}

zero_status zi_nccl_base_make(zi_comm *comm, ncclComm_t borrowed)
{
    zi_nccl_group *base = NULL;
    zero_status status = open_base(comm, &base);
    if (status == ZERO_OK) {
        status = split_parent(base, borrowed);
    }
    return keep_base(comm, base, status);
}

/* ---- what rank 0 tells the others ---- */

/* Gather what is at the begin of `pinned` on every rank behind it, and wait for it. */
static zero_status nccl_base_gather(zi_nccl_group *base, unsigned char *pinned, size_t bytes,
                                    cudaStream_t stream)
{
    const uint64_t until_ns = zi_deadline_in_ms(base->deadline_ms);
    ZI_TRY(zi_nccl_enter(base, "ncclAllGather"));
    const ncclResult_t result = base->handle->api->all_gather(
        pinned, pinned + bytes, bytes / sizeof(float), ncclFloat32, base->handle->comm, stream);
    zi_nccl_leave(base);
    ZI_TRY(zi_nccl_wait(base, result, "ncclAllGather"));
    cudaError_t code = cudaStreamQuery(stream);
    for (uint32_t rounds = 0; code == cudaErrorNotReady; rounds++) {
        (void)cudaGetLastError(); /* it is no error, but is kept like one */
        ZI_TRY(zi_nccl_check(base));
        if (zi_clock_ns() > until_ns) {
            ZI_FAIL(ZERO_ERR_TIMEOUT, "rank %u: not all of %u ranks made the world within %u ms",
                    base->base.rank, base->base.size, base->deadline_ms);
        }
        zi_nccl_pause(rounds);
        code = cudaStreamQuery(stream);
    }
    ZI_TRY(zi_nccl_check(base)); /* an abort ends it too */
    return zi_cuda_check(code, "cudaStreamQuery");
}

zero_status zi_nccl_base_share(zi_nccl_group *base, void *record, size_t bytes)
{
    zi_device device;
    zi_stream *stream = NULL;
    void *pinned = NULL; /* host memory that the GPU reads and writes, which NCCL takes as well */
    const size_t pinned_bytes = zi_align_up(bytes * (base->base.size + 1), ZI_PAGE_BYTES);
    ZI_TRY(zi_cuda_device_create(&device));
    const zi_device_ops *ops = device.ops;
    zero_status status = ops->stream_create(device.self, "zero control", &stream);
    status = status != ZERO_OK ? status : ops->host_alloc(device.self, pinned_bytes, &pinned);
    if (status == ZERO_OK) {
        memcpy(pinned, record, bytes);
        status = nccl_base_gather(base, pinned, bytes, zi_cuda_stream_native(stream));
    }
    if (status == ZERO_OK) {
        memcpy(record, (unsigned char *)pinned + bytes, bytes);
    } else {
        (void)zi_nccl_break_off(base);
    }
    ops->stream_destroy(device.self, stream);
    ops->host_free(device.self, pinned, pinned_bytes);
    zi_device_destroy(&device);
    return status;
}
