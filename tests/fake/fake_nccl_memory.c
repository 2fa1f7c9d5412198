/* Owns the fake's allocations, registrations and windows; under fake_nccl.c's lock. */
#include "fake_nccl_memory.h"

#include <stdlib.h>
#include <string.h>

#include "fake_nccl_state.h"

/* The bytes that sizes are rounded up to. */
#define GRANULE ((size_t)16384)
#define ALLOCATIONS_MAX 1024

#define lock fake_nccl_lock
#define fault fake_nccl_fault

typedef struct allocation {
    unsigned char *base;
    size_t bytes; /* as asked for */
} allocation;

static allocation allocations[ALLOCATIONS_MAX];
static _Atomic uint64_t registered[3];
static _Atomic uint64_t zero_cta;
static ncclConfig_t last_config;
static atomic_int failing_rank = -1;
static _Atomic uint64_t failing_nth;
static atomic_int failing_error;
static atomic_bool refused;
static atomic_bool windowless;
static atomic_int refused_rank = -1;
static atomic_bool refused_meets;

static const fake_known *known_of(ncclComm_t comm, const void *pointer, size_t bytes)
{
    for (uint32_t n = 0; n < comm->known_count; n++) {
        const fake_known *k = &comm->known[n];
        const uintptr_t at = (uintptr_t)pointer - (uintptr_t)k->base;
        if (k->alive && at <= k->bytes && bytes <= k->bytes - at) {
            return k;
        }
    }
    return NULL;
}

/* ---- what fake_nccl.c asks ---- */

void fake_nccl_memory_join(const ncclConfig_t *config)
{
    last_config = *config;
#if ZI_NCCL_HAS_ZERO_CTA
    if (config->CTAPolicy == NCCL_CTA_POLICY_ZERO) {
        zero_cta++;
        if (fake_nccl_version < 22800) {
            fault("version %d is told of zero CTAs", fake_nccl_version);
        }
    } else if (config->CTAPolicy != NCCL_CONFIG_UNDEF_INT) {
        fault("an unknown CTA policy");
    }
#endif
}

/* Of the nth registration: an address that no other of the communicator has. */
static void *handle_of(ncclComm_t comm, uint32_t n)
{
    fake_known *k = &comm->known[n];
    return k->window ? (void *)(k->base + n) : (void *)k;
}

/* Hand out the nth window when all ranks have come to it. */
static bool settle_window(ncclComm_t comm, uint32_t n)
{
    fake_known *mine = &comm->known[n];
    for (int r = 0; r < comm->clique->size; r++) {
        const ncclComm_t other = comm->clique->comms[r];
        if (other->known_count <= n) {
            return false;
        }
        if (!other->known[n].window || other->known[n].bytes != mine->bytes ||
            other->known[n].flags != mine->flags) {
            fault("window %u of ranks %d and %d: other bytes or flags", n, comm->rank, r);
        }
    }
    mine->pending = false;
    mine->alive = comm->rank != refused_rank;
    *mine->out = mine->alive ? handle_of(comm, n) : NULL;
    return true;
}

bool fake_nccl_memory_exchanges(ncclComm_t comm)
{
    bool exchanges = false;
    for (uint32_t n = 0; n < comm->known_count; n++) {
        exchanges = exchanges || (comm->known[n].alive && !comm->known[n].window);
    }
    return exchanges;
}

bool fake_nccl_memory_waits(ncclComm_t comm)
{
    bool waits = false;
    for (uint32_t n = 0; n < comm->known_count; n++) {
        waits = waits || comm->known[n].pending;
    }
    return waits;
}

bool fake_nccl_memory_ready(ncclComm_t comm)
{
    bool ready = true;
    for (uint32_t n = 0; n < comm->known_count; n++) {
        ready = (!comm->known[n].pending || settle_window(comm, n)) && ready;
    }
    return ready;
}

static fake_place place_of(ncclComm_t comm, const fake_op *op, const size_t *bytes, int side)
{
    const void *const pointers[] = {op->send, op->recv};
    const void *pointer = pointers[side];
    const fake_nccl_call whole = side == 0 ? FAKE_NCCL_ALL_GATHER : FAKE_NCCL_REDUCE_SCATTER;
    const uintptr_t part = (uintptr_t)pointers[1 - side] + (size_t)comm->rank * bytes[side];
    const fake_known *k = known_of(comm, pointer, bytes[side]);
    fake_place p = {.covered = k != NULL || bytes[side] == 0};
    if (k != NULL) {
        p.window = k->window;
        p.flags = k->flags;
        p.index = (uint32_t)(k - comm->known);
        p.offset = (size_t)((uintptr_t)pointer - (uintptr_t)k->base);
        p.in_place = op->call == whole && (uintptr_t)pointer == part;
    }
    return p;
}

static void check_alike(const fake_place *a, const fake_place *b, int rank, uint32_t n)
{
    if (!a->window || !b->window) {
        return; /* plain buffers may lie anywhere */
    }
    const bool same =
        a->index == b->index && (a->offset == b->offset || (a->in_place && b->in_place));
    if (a->flags != b->flags) {
        fault("rank %d: collective %u uses a window of another kind than the others", rank, n);
    } else if ((a->flags & ZI_NCCL_WIN_COLL_SYMMETRIC) != 0 && !same) {
        fault("rank %d: collective %u is at offset %zu of a symmetric window, another's at %zu",
              rank, n, a->offset, b->offset);
    }
}

/* Note a collective, and hold it against the same one of the ranks that have come to it. */
static void note(ncclComm_t comm, const fake_place *places)
{
    const uint32_t n = comm->log_count;
    if (n == comm->log_room) {
        comm->log_room = comm->log_room * 2 + 64;
        comm->log = realloc(comm->log, comm->log_room * sizeof *comm->log);
        if (comm->log == NULL) {
            abort();
        }
    }
    memcpy(comm->log[comm->log_count++], places, sizeof *comm->log);
    for (int r = 0; r < comm->clique->size; r++) {
        const ncclComm_t other = comm->clique->comms[r];
        for (int side = 0; side < 2 && other->log_count > n; side++) {
            check_alike(&places[side], &other->log[n][side], comm->rank, n);
        }
    }
}

void fake_nccl_memory_use(ncclComm_t comm, const fake_op *op, const size_t *bytes)
{
    if (comm->known_count == 0) {
        return;
    }
    const fake_place places[] = {place_of(comm, op, bytes, 0), place_of(comm, op, bytes, 1)};
    if (!places[0].covered || !places[1].covered) {
        fault("rank %d: call %d uses memory that is not registered", comm->rank, (int)op->call);
    }
    if (op->call != FAKE_NCCL_SEND && op->call != FAKE_NCCL_RECV) {
        note(comm, places);
    }
}

void fake_nccl_memory_leave(ncclComm_t comm, bool aborted)
{
    for (uint32_t n = 0; n < comm->known_count; n++) {
        if (comm->known[n].alive && !aborted) {
            fault("rank %d destroys a communicator that has memory registered", comm->rank);
        }
        comm->known[n].alive = false;
    }
}

/* ---- NCCL's functions ---- */

ncclResult_t fake_nccl_mem_alloc(void **out, size_t bytes)
{
    const size_t rounded = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    if (cudaMalloc(out, rounded) != cudaSuccess) {
        return ncclUnhandledCudaError;
    }
    (void)pthread_mutex_lock(&lock);
    uint32_t next = 0;
    while (next < ALLOCATIONS_MAX && allocations[next].base != NULL) {
        next++;
    }
    if (next == ALLOCATIONS_MAX) {
        abort();
    }
    allocations[next] = (allocation){.base = *out, .bytes = bytes};
    (void)pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t fake_nccl_mem_free(void *pointer)
{
    bool found = false;
    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < ALLOCATIONS_MAX && pointer != NULL; i++) {
        if (allocations[i].base == pointer) {
            allocations[i] = (allocation){NULL, 0};
            found = true;
        }
    }
    for (ncclComm_t comm = fake_nccl_comms; comm != NULL; comm = comm->next) {
        if (known_of(comm, pointer, 0) != NULL) {
            fault("memory is freed that rank %d has registered", comm->rank);
        }
    }
    if (!found) {
        fault("ncclMemFree of what ncclMemAlloc did not give");
    }
    (void)pthread_mutex_unlock(&lock);
    return found && cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclInvalidArgument;
}

static bool is_allocated(const void *pointer, size_t bytes)
{
    for (uint32_t i = 0; i < ALLOCATIONS_MAX; i++) {
        if (allocations[i].base == pointer && bytes <= allocations[i].bytes) {
            return true;
        }
    }
    return false;
}

/* A place for a registration, or NULL and why. The lock is held. */
static fake_known *add(ncclComm_t comm, void *pointer, size_t bytes, ncclResult_t *why)
{
    *why = ncclInvalidArgument;
    if (comm->gone || comm->known_count == KNOWN_MAX || bytes == 0 ||
        !is_allocated(pointer, bytes)) {
        fault("a registration with a communicator that is gone, or of memory that is not NCCL's");
        return NULL;
    }
    if (comm->rank == failing_rank && --failing_nth == 0) {
        failing_rank = -1;
        *why = (ncclResult_t)failing_error;
        return NULL;
    }
    *why = ncclSuccess;
    if (refused) {
        return NULL;
    }
    fake_known *k = &comm->known[comm->known_count++];
    *k = (fake_known){.base = pointer, .bytes = bytes, .alive = true};
    return k;
}

ncclResult_t fake_nccl_comm_register(ncclComm_t comm, void *pointer, size_t bytes, void **handle)
{
    ncclResult_t why = ncclSuccess;
    (void)pthread_mutex_lock(&lock);
    fake_known *k = add(comm, pointer, bytes, &why);
    *handle = k;
    registered[FAKE_NCCL_BUFFER] += k != NULL;
    (void)pthread_mutex_unlock(&lock);
    return why;
}

/* Of a buffer or a window. */
ncclResult_t fake_nccl_comm_deregister(ncclComm_t comm, void *handle)
{
    bool found = false;
    (void)pthread_mutex_lock(&lock);
    for (uint32_t n = 0; n < comm->known_count; n++) {
        fake_known *k = &comm->known[n];
        if (handle == handle_of(comm, n) && k->alive && !k->pending) {
            k->alive = false;
            found = true;
        }
    }
    if (!found) {
        fault("a handle is given back that was not given");
    }
    (void)pthread_mutex_unlock(&lock);
    return found ? ncclSuccess : ncclInvalidArgument;
}

/* One that all ranks are to have; or a plain registration in its place, as 2.28 makes, or none. */
static fake_known *add_window(ncclComm_t comm, void *pointer, size_t bytes, int flags,
                              ncclResult_t *why)
{
    *why = ncclSuccess;
    if ((windowless && fake_nccl_version >= 22900) ||
        (comm->rank == refused_rank && !refused_meets)) {
        return NULL;
    }
    fake_known *k = add(comm, pointer, bytes, why);
    if (k != NULL && !windowless) {
        k->window = true;
        k->pending = true;
        k->flags = flags;
        registered[FAKE_NCCL_WINDOW]++;
        registered[FAKE_NCCL_SYMMETRIC] += (flags & ZI_NCCL_WIN_COLL_SYMMETRIC) != 0;
    }
    return k;
}

ncclResult_t fake_nccl_window_register(ncclComm_t comm, void *pointer, size_t bytes, void **window,
                                       int flags)
{
    ncclResult_t why = ncclSuccess;
    (void)pthread_mutex_lock(&lock);
    if (!fake_nccl_is_ready(comm)) {
        fault("rank %d registers with a communicator that is not ready", comm->rank);
    }
    fake_known *k = add_window(comm, pointer, bytes, flags, &why);
    *window = k != NULL && !k->window ? k : NULL;
    if (k != NULL) {
        k->out = window;
    }
    if (comm->blocking) {
        comm->under_way++;
        while (!fake_nccl_memory_ready(comm) && !comm->aborting) {
            fake_nccl_pause();
        }
        comm->under_way--;
        why = comm->aborting ? ncclInternalError : why;
    } else {
        comm->failed = why;
        comm->looks = LOOKS;
        why = ncclSuccess;
    }
    (void)pthread_mutex_unlock(&lock);
    return why;
}

/* ---- what tests control and count ---- */

uint64_t fake_nccl_memory_live(void)
{
    uint64_t live = 0;
    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < ALLOCATIONS_MAX; i++) {
        live += allocations[i].base != NULL;
    }
    for (ncclComm_t comm = fake_nccl_comms; comm != NULL; comm = comm->next) {
        for (uint32_t n = 0; n < comm->known_count; n++) {
            live += comm->known[n].alive;
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return live;
}

uint64_t fake_nccl_registered(fake_nccl_memory_kind kind)
{
    return registered[kind];
}

ncclConfig_t fake_nccl_last_config(void)
{
    (void)pthread_mutex_lock(&lock);
    const ncclConfig_t config = last_config;
    (void)pthread_mutex_unlock(&lock);
    return config;
}

uint64_t fake_nccl_zero_cta(void)
{
    return zero_cta;
}

void fake_nccl_fail_register(int rank, uint64_t nth, ncclResult_t error)
{
    failing_nth = nth;
    failing_error = (int)error;
    failing_rank = rank;
}

void fake_nccl_refuse_register(bool refuse)
{
    refused = refuse;
}

void fake_nccl_without_windows(bool without)
{
    windowless = without;
}

void fake_nccl_refuse_window(int rank, bool meets)
{
    refused_meets = meets;
    refused_rank = rank;
}
