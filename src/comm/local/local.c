/* Owns the backend of ranks that are threads of one process: the hub that they share, and the comm
 * of each. `mutex` guards every field of the hub and of its blocks' list entries; what is inside a
 * block is guarded by the peer groups. All memory of the process is readable by its ranks, so an
 * allocation only agrees on that every rank got its part. Invariant: a block stays until each of
 * its members has left it, or the hub is freed. */
#include "comm/local/local.h"

#include <pthread.h>
#include <string.h>

#include "comm/peer/peer.h"
#include "core/check.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/memory.h"

typedef struct block_member {
    uint32_t world_rank;
    bool joined;
} block_member;

typedef struct local_block {
    struct local_block *next;
    zi_local_hub *hub;
    zi_peer_block *shared; /* NULL: the first to come had no memory for it */
    size_t bytes;
    zero_error error; /* why shared is NULL */
    uint32_t error_rank;
    uint32_t left;
    uint32_t size;
    block_member members[];
} local_block;

/* The current rendezvous of all ranks, and the outcome of the last one. */
typedef struct hub_rendezvous {
    uint64_t number;
    uint32_t arrived_count;
    size_t bytes;        /* as the first to come said */
    uint32_t bytes_rank; /* who that was */
    zero_error error;    /* status ZERO_OK so far */
    zero_error outcome;  /* of rendezvous number - 1; stays until all have come to the next */
} hub_rendezvous;

struct zi_local_hub {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a rendezvous ended, or the hub was aborted */
    uint32_t references;
    uint32_t rank_count;
    uint32_t deadline_ms;
    bool aborted;
    uint32_t abort_rank;
    zero_error abort_error;
    local_block *blocks;
    hub_rendezvous rendezvous;
    uint32_t left_count;
    zi_call_note *calls; /* by rank; each rank writes its own */
    bool *arrived;       /* by rank: at the current rendezvous; behind `left` */
    uint32_t left[];     /* by rank: its place in the order of leaving, from 1; 0: it is here */
};

static void lock(zi_local_hub *hub)
{
    (void)pthread_mutex_lock(&hub->mutex);
}

static void unlock(zi_local_hub *hub)
{
    (void)pthread_mutex_unlock(&hub->mutex);
}

zero_status zi_local_hub_create(uint32_t rank_count, uint32_t deadline_ms, zi_local_hub **out)
{
    *out = NULL;
    zi_assert_cmp(rank_count, >=, 1);
    zi_local_hub *hub = NULL;
    const size_t rank_bytes = sizeof hub->left[0] + sizeof hub->arrived[0];
    ZI_TRY(zi_calloc(1, sizeof *hub + rank_count * rank_bytes, (void **)&hub));
    hub->arrived = (bool *)(hub->left + rank_count);
    const zero_status status = zi_calloc(rank_count, sizeof *hub->calls, (void **)&hub->calls);
    if (status != ZERO_OK) {
        zi_free(hub);
        return status;
    }
    (void)pthread_mutex_init(&hub->mutex, NULL);
    zi_deadline_cond_init(&hub->changed);
    hub->references = 1;
    hub->rank_count = rank_count;
    hub->deadline_ms = deadline_ms;
    *out = hub;
    return ZERO_OK;
}

static void local_block_free(local_block *block)
{
    zi_pages_free(block->shared, block->bytes);
    zi_free(block);
}

void zi_local_hub_release(zi_local_hub *hub)
{
    lock(hub);
    const bool last = --hub->references == 0;
    unlock(hub);
    if (!last) {
        return;
    }
    /* Blocks that some member never joined are left. */
    while (hub->blocks != NULL) {
        local_block *next = hub->blocks->next;
        local_block_free(hub->blocks);
        hub->blocks = next;
    }
    (void)pthread_cond_destroy(&hub->changed);
    (void)pthread_mutex_destroy(&hub->mutex);
    zi_free(hub->calls);
    zi_free(hub);
}

/* How near to the cause an error is: a rank has COMM and POISONED because of something else, and
 * one that is of another rank because it was told. */
static int nearness(const zero_error *error)
{
    const bool follows = error->status == ZERO_ERR_COMM || error->status == ZERO_ERR_POISONED;
    return follows ? 0 : error->of_other != 0 ? 1 : 2;
}

/* With the mutex held. The first of the errors that are nearest to the cause counts. */
static void abort_locked(zi_local_hub *hub, uint32_t rank, const zero_error *error)
{
    const bool known = hub->aborted;
    if (known && nearness(error) <= nearness(&hub->abort_error)) {
        return;
    }
    hub->aborted = true;
    hub->abort_rank = rank;
    hub->abort_error = *error;
    for (local_block *block = hub->blocks; block != NULL && !known; block = block->next) {
        if (block->shared != NULL) {
            zi_peer_block_abort(block->shared, rank, error);
        }
    }
    (void)pthread_cond_broadcast(&hub->changed);
}

void zi_local_hub_abort(zi_local_hub *hub, uint32_t rank, const zero_error *error)
{
    lock(hub);
    abort_locked(hub, rank, error);
    unlock(hub);
}

static bool has_member(const local_block *block, uint32_t rank)
{
    uint32_t i = 0;
    while (i < block->size && block->members[i].world_rank != rank) {
        i++;
    }
    return i < block->size;
}

static void name_rank(zero_error *error, uint32_t rank)
{
    char message[sizeof error->message];
    zi_rank_message(rank, error, message);
    memcpy(error->message, message, sizeof message);
}

static const zero_error left_error = {
    .status = ZERO_ERR_COMM,
    .file = "local.c",
    .line = __LINE__,
    .message = "left the world, its function returned; all ranks must make the same calls"};

void zi_local_hub_leave(zi_local_hub *hub, uint32_t rank)
{
    lock(hub);
    hub->left[rank] = ++hub->left_count;
    for (local_block *block = hub->blocks; block != NULL; block = block->next) {
        if (block->shared != NULL && has_member(block, rank)) {
            zi_peer_block_abort(block->shared, rank, &left_error);
        }
    }
    (void)pthread_cond_broadcast(&hub->changed);
    unlock(hub);
}

/* With the mutex held: COMM if one of these ranks has left, naming the first to leave: others leave
 * because of it. ranks NULL: 0, 1, 2, ... block: NULL, or one that ranks which had joined it before
 * may have left. */
static zero_status all_present(const zi_local_hub *hub, const uint32_t *ranks, uint32_t count,
                               const local_block *block)
{
    uint32_t first = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t rank = ranks != NULL ? ranks[i] : i;
        const bool joined = block != NULL && block->members[i].joined;
        if (hub->left[rank] != 0 && !joined &&
            (first == UINT32_MAX || hub->left[rank] < hub->left[first])) {
            first = rank;
        }
    }
    if (first == UINT32_MAX) {
        return ZERO_OK;
    }
    zero_error error = left_error;
    name_rank(&error, first);
    return zi_error_adopt(&error);
}

bool zi_local_hub_error(zi_local_hub *hub, zero_error *error)
{
    lock(hub);
    const bool aborted = hub->aborted;
    if (aborted) {
        *error = hub->abort_error;
        name_rank(error, hub->abort_rank);
    }
    unlock(hub);
    return aborted;
}

/* With the mutex held: an error if the hub was aborted. */
static zero_status alive(const zi_local_hub *hub)
{
    if (!hub->aborted) {
        return ZERO_OK;
    }
    zero_error error = hub->abort_error;
    name_rank(&error, hub->abort_rank);
    error.status = zi_abort_status(error.status);
    error.of_other = 0;
    return zi_error_adopt(&error);
}

/* This rank's place in the block, if the block is of these members and the place is free. */
static block_member *free_place(local_block *block, uint32_t rank, const uint32_t *members,
                                uint32_t size)
{
    if (block->size != size) {
        return NULL;
    }
    block_member *place = NULL;
    for (uint32_t i = 0; i < size; i++) {
        if (block->members[i].world_rank != members[i]) {
            return NULL;
        }
        if (members[i] == rank) {
            place = &block->members[i];
        }
    }
    return place != NULL && !place->joined ? place : NULL;
}

/* With the mutex held: append a block for these members. Without memory for the shared part the
 * entry stays, so that the others get the error. */
static zero_status block_make(zi_local_hub *hub, uint32_t rank, const uint32_t *members,
                              uint32_t size, local_block **out)
{
    local_block *block = NULL;
    const zero_status listed =
        zi_calloc(1, sizeof *block + size * sizeof block->members[0], (void **)&block);
    if (listed != ZERO_OK) {
        abort_locked(hub, rank, zero_last_error());
        return listed;
    }
    block->hub = hub;
    block->size = size;
    for (uint32_t i = 0; i < size; i++) {
        block->members[i].world_rank = members[i];
    }
    block->bytes = zi_peer_block_bytes(size, 0);
    if (zi_pages_alloc(block->bytes, (void **)&block->shared) == ZERO_OK) {
        zi_peer_block_init(block->shared, size, 0);
    } else {
        block->error = *zero_last_error();
        block->error_rank = rank;
    }
    local_block **end = &hub->blocks;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = block;
    *out = block;
    return ZERO_OK;
}

/* With the mutex held. */
static void leave_locked(local_block *block)
{
    if (++block->left < block->size) {
        return;
    }
    local_block **link = &block->hub->blocks;
    while (*link != block) {
        link = &(*link)->next;
    }
    *link = block->next;
    local_block_free(block);
}

static zero_status join_locked(zi_local_hub *hub, uint32_t rank, const uint32_t *members,
                               uint32_t size, local_block **out)
{
    ZI_TRY(alive(hub));
    local_block *block = hub->blocks;
    while (block != NULL && free_place(block, rank, members, size) == NULL) {
        block = block->next;
    }
    ZI_TRY(all_present(hub, members, size, block));
    if (block == NULL) {
        ZI_TRY(block_make(hub, rank, members, size, &block));
    }
    block_member *place = free_place(block, rank, members, size);
    zi_assert(place != NULL);
    place->joined = true;
    if (block->shared == NULL) {
        zero_error error = block->error;
        if (block->error_rank != rank) {
            name_rank(&error, block->error_rank);
            error.status = ZERO_ERR_COMM;
        }
        leave_locked(block);
        return zi_error_adopt(&error);
    }
    *out = block;
    return ZERO_OK;
}

/* The block of the next group with these members that `rank` has not joined yet; the first to come
 * makes it. COMM when the member that came first had no memory, or the hub was aborted. */
static zero_status local_block_join(zi_local_hub *hub, uint32_t rank, const uint32_t *members,
                                    uint32_t size, local_block **out)
{
    *out = NULL;
    lock(hub);
    const zero_status status = join_locked(hub, rank, members, size, out);
    unlock(hub);
    return status;
}

/* Give a joined block back; the last member's call frees it. */
static void local_block_leave(local_block *block)
{
    zi_local_hub *hub = block->hub;
    lock(hub);
    leave_locked(block);
    unlock(hub);
}

/* With the mutex held: count this rank and its status in. The first failure is the rendezvous's. */
static void arrive(zi_local_hub *hub, uint32_t rank, size_t bytes, zero_status mine)
{
    hub_rendezvous *rendezvous = &hub->rendezvous;
    if (rendezvous->arrived_count == 0) {
        rendezvous->bytes = bytes;
        rendezvous->bytes_rank = rank;
        rendezvous->error = (zero_error){.status = ZERO_OK};
    }
    zi_assert(!hub->arrived[rank]);
    hub->arrived[rank] = true;
    rendezvous->arrived_count++;
    if (rendezvous->error.status != ZERO_OK) {
        return;
    }
    if (mine != ZERO_OK) {
        rendezvous->error = *zero_last_error();
        name_rank(&rendezvous->error, rank);
        rendezvous->error.of_other = 1;
    } else if (bytes != rendezvous->bytes) {
        (void)zi_error_set(ZERO_ERR_MISMATCH, 0, __FILE__, __LINE__,
                           "rank %u allocates %zu bytes of shared memory, rank %u %zu; all ranks "
                           "must ask for the same",
                           rank, bytes, rendezvous->bytes_rank, rendezvous->bytes);
        rendezvous->error = *zero_last_error();
    }
}

/* With the mutex held: not all have arrived within the deadline; the world fails. */
static zero_status late(zi_local_hub *hub, uint32_t rank)
{
    uint32_t missing = 0;
    while (missing < hub->rank_count && hub->arrived[missing]) {
        missing++;
    }
    (void)zi_error_set(ZERO_ERR_TIMEOUT, 0, __FILE__, __LINE__,
                       "rank %u (of %u that are missing) did not come to an allocation of shared "
                       "memory within %u ms",
                       missing, hub->rank_count - hub->rendezvous.arrived_count, hub->deadline_ms);
    const zero_error error = *zero_last_error();
    abort_locked(hub, rank, &error);
    return zi_error_adopt(&error);
}

static zero_status agree_locked(zi_local_hub *hub, uint32_t rank, size_t bytes, zero_status mine)
{
    hub_rendezvous *rendezvous = &hub->rendezvous;
    ZI_TRY(alive(hub));
    ZI_TRY(all_present(hub, NULL, hub->rank_count, NULL));
    arrive(hub, rank, bytes, mine);
    if (rendezvous->arrived_count == hub->rank_count) {
        rendezvous->outcome = rendezvous->error;
        rendezvous->arrived_count = 0;
        memset(hub->arrived, 0, hub->rank_count * sizeof hub->arrived[0]);
        rendezvous->number++;
        (void)pthread_cond_broadcast(&hub->changed);
    } else {
        const uint64_t number = rendezvous->number;
        const uint64_t until_ns = zi_deadline_in_ms(hub->deadline_ms);
        bool in_time = true;
        while (rendezvous->number == number && !hub->aborted && in_time &&
               all_present(hub, NULL, hub->rank_count, NULL) == ZERO_OK) {
            in_time = zi_deadline_wait(&hub->changed, &hub->mutex, until_ns);
        }
        if (rendezvous->number == number) {
            ZI_TRY(alive(hub));
            ZI_TRY(all_present(hub, NULL, hub->rank_count, NULL));
            return late(hub, rank);
        }
    }
    return rendezvous->outcome.status == ZERO_OK ? ZERO_OK : zi_error_adopt(&rendezvous->outcome);
}

/* Wait for all ranks; ZERO_OK if all came with ZERO_OK and the same `bytes`. mine: this rank's
 * status, its error being the thread's last; it is returned if it is a failure. */
static zero_status local_agree(zi_local_hub *hub, uint32_t rank, size_t bytes, zero_status mine)
{
    const zero_error own = *zero_last_error();
    lock(hub);
    const zero_status status = agree_locked(hub, rank, bytes, mine);
    unlock(hub);
    return mine == ZERO_OK ? status : zi_error_adopt(&own);
}

/* ---- the comm ---- */

typedef struct local_comm {
    zi_comm base;
    zi_local_hub *hub;
    zi_peer_space space;
} local_comm;

static void leave_block(void *owner, zi_peer_block *shared)
{
    local_block *block = owner;
    zi_assert(block->shared == shared);
    local_block_leave(block);
}

static zero_status local_group_create(zi_comm *base, const zi_kernels *kernels,
                                      const uint32_t *members, uint32_t size, const char *name,
                                      zi_group **out)
{
    local_comm *comm = (local_comm *)base;
    zi_peer_group_desc desc = {
        .kernels = kernels,
        .space = &comm->space,
        .members = members,
        .size = size,
        .deadline_ms = base->deadline_ms,
        .crowded = &base->crowded,
        .name = name,
    };
    *out = NULL;
    local_block *block = NULL;
    if (size > 1) {
        ZI_TRY(local_block_join(comm->hub, base->rank, members, size, &block));
        zi_assert(block != NULL);
        desc.block = block->shared;
        desc.block_free = leave_block;
        desc.owner = block;
    }
    const zero_status status = zi_peer_group_create(&desc, out);
    if (status != ZERO_OK && block != NULL) {
        zi_peer_block_abort(desc.block, base->rank, zero_last_error());
        local_block_leave(block);
    }
    return status;
}

static zero_status local_memory_alloc(zi_comm *base, size_t bytes, void **out)
{
    const local_comm *comm = (local_comm *)base;
    const zero_status mine = zi_pages_alloc(bytes, out);
    const zero_status agreed = local_agree(comm->hub, base->rank, bytes, mine);
    if (agreed != ZERO_OK) {
        zi_pages_free(*out, bytes);
        *out = NULL;
    }
    return agreed;
}

static void local_abort_all(zi_comm *base, const zero_error *error)
{
    const local_comm *comm = (local_comm *)base;
    zi_local_hub_abort(comm->hub, base->rank, error);
}

static zero_status local_check(zi_comm *base)
{
    zero_error error;
    if (!zi_local_hub_error(((local_comm *)base)->hub, &error)) {
        return ZERO_OK;
    }
    error.status =
        zi_abort_status(error.status); /* as on all ranks that wait for the one that aborted */
    return zi_error_adopt(&error);
}

static void local_destroy(zi_comm *base)
{
    local_comm *comm = (local_comm *)base;
    zi_local_hub_leave(comm->hub, base->rank);
    zi_local_hub_release(comm->hub);
    zi_free(comm);
}

static const zi_comm_ops local_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "local",
    .group_create = local_group_create,
    .memory_alloc = local_memory_alloc,
    .memory_free = zi_comm_pages_free,
    .abort = local_abort_all,
    .destroy = local_destroy,
    .check = local_check,
};

static const zi_call_note *local_call_of(const void *owner, uint32_t world_rank)
{
    return &((const zi_local_hub *)owner)->calls[world_rank];
}

zero_status zi_local_comm_create(zi_local_hub *hub, uint32_t rank, zi_comm **out)
{
    *out = NULL;
    local_comm *comm = NULL;
    ZI_TRY(zi_calloc(1, sizeof *comm, (void **)&comm));
    zi_assert_cmp(rank, <, hub->rank_count);
    lock(hub);
    hub->references++;
    unlock(hub);
    comm->base = (zi_comm){
        .ops = &local_ops,
        .rank = rank,
        .size = hub->rank_count,
        .local_size = hub->rank_count,
        .deadline_ms = hub->deadline_ms,
        .submit_waits = hub->rank_count > 1,
        .one_process = true,
    };
    comm->hub = hub;
    comm->space.one_address_space = true;
    comm->space.world_rank = rank;
    comm->space.call_of = local_call_of;
    comm->space.call_owner = hub;
    comm->base.call = &hub->calls[rank];
    *out = &comm->base;
    return ZERO_OK;
}
