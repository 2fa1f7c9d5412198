/* Owns the public world: a comm with a device and a coordination group, and the threads of
 * in-process worlds. Invariant: a rank that fails aborts the comm before its handles are freed, so
 * no other waits for it. */
#include "comm/world.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/host/host_comm.h"
#include "comm/nccl/nccl_group.h"
#include "comm/self/self.h"
#include "core/check.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/host.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/thread.h"
#include "core/thread_limit.h"

/* Bytes of each rank that one collective of zero_world_gather carries; whole fp32 elements. */
#define GATHER_BYTES ((size_t)128)

/* The public handle and the buffers of zero_world_gather: one part to send, size parts to receive.
 */
typedef struct world_memory {
    zero_world world;
    unsigned char buffers[];
} world_memory;

static zero_status world_build(zero_world *world, zi_comm *comm)
{
    zi_fork_watch();
    world->comm = comm;
    world->born = zi_fork_generation;
    world->gate = zi_fork_generation;
    world->pid = getpid();
    atomic_init(&world->users, 1);
    ZI_TRY(zi_cpu_device_create(&world->device));
    ZI_TRY(zi_cpu_kernels_create(&world->device, NULL, &world->kernels));
    uint32_t *members = NULL;
    ZI_TRY(zi_calloc(comm->size, sizeof *members, (void **)&members));
    for (uint32_t i = 0; i < comm->size; i++) {
        members[i] = i;
    }
    const zero_status status = comm->ops->group_create(comm, &world->kernels, members, comm->size,
                                                       "coordination", &world->coordination);
    zi_free(members);
    return status;
}

/* Divide the CPUs between the ranks. Ranks that name the same pool share it; those bound to
 * different CPUs do not, so each keeps all of its own. */
static zero_status share_cpus(zero_world *world)
{
    enum { POOLS = 2 };
    zi_comm *comm = world->comm;
    const zi_cpu_pool own[POOLS] = {zi_cpu_affinity(), zi_cpu_quota("")};
    zi_cpu_pool *all = NULL;
    ZI_TRY(zi_calloc(comm->size, sizeof own, (void **)&all));
    const zero_status status = zero_world_gather(world, own, all, sizeof own);
    uint64_t share = ZI_CPUS_UNLIMITED;
    for (int pool = 0; pool < POOLS && status == ZERO_OK; pool++) {
        uint64_t ranks = 0;
        for (uint32_t i = 0; i < comm->size; i++) {
            ranks += all[(size_t)i * POOLS + (size_t)pool].id == own[pool].id;
        }
        comm->crowded = comm->crowded || ranks > own[pool].cpus;
        share = zi_min_u64(share, own[pool].cpus / ranks);
    }
    comm->cpus = share > 1 ? (uint32_t)share : 1;
    zi_free(all);
    return status;
}

zero_status zi_world_create(zi_comm *comm, zero_world **out)
{
    *out = NULL;
    world_memory *memory = NULL;
    comm->host = comm->host != 0 ? comm->host : zi_host_id();
    comm->call = comm->call != NULL ? comm->call : &comm->own_call;
    const size_t bytes = sizeof *memory + ((size_t)comm->size + 1) * GATHER_BYTES;
    zero_status status = zi_calloc(1, bytes, (void **)&memory);
    if (status == ZERO_OK) {
        status = world_build(&memory->world, comm);
    }
    if (status == ZERO_OK) {
        status = share_cpus(&memory->world);
    }
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        comm->ops->abort(comm, &error);
        if (memory != NULL) {
            zi_group_destroy(memory->world.coordination);
            zi_kernels_destroy(&memory->world.kernels);
            zi_device_destroy(&memory->world.device);
            zi_free(memory);
        }
        comm->ops->destroy(comm);
        return zi_error_adopt(&error);
    }
    *out = &memory->world;
    return ZERO_OK;
}

zero_status zi_world_refuse(const zero_world *world)
{
    if (zi_world_inherited(world)) {
        ZI_FAIL(ZERO_ERR_STATE,
                "the world and its engines were made in process %d, and this is its child %d; make "
                "them in the child",
                (int)world->pid, (int)getpid());
    }
    ZI_FAIL(ZERO_ERR_STATE, "the world was destroyed; destroy its engines, and destroy them first");
}

zero_status zi_world_check(const zero_world *world)
{
    if (world == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "world is NULL; make one with a function of zero/world.h");
    }
    return zi_world_check_open(world);
}

void zi_world_retain(zero_world *world)
{
    atomic_fetch_add(&world->users, 1);
}

void zi_world_release(zero_world *world)
{
    if (atomic_fetch_sub(&world->users, 1) != 1) {
        return;
    }
    zi_group_destroy(world->coordination);
    zi_comm_destroy_parent(world->comm);
    zi_kernels_destroy(&world->kernels);
    zi_device_destroy(&world->device);
    world->comm->ops->destroy(world->comm);
    zi_free(world);
}

/* A forked child does nothing: the world is its parent's. */
void zero_world_destroy(zero_world *world)
{
    if (world == NULL || zi_world_inherited(world)) {
        return;
    }
    world->gate = 0;
    zi_world_release(world);
}

zero_status zi_world_clear(zero_world **world)
{
    if (world == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "world is NULL; pass the address of a zero_world *");
    }
    *world = NULL;
    return ZERO_OK;
}

zero_status zero_world_create_self(zero_world **world)
{
    ZI_TRY(zi_world_clear(world));
    zi_comm *comm = NULL;
    ZI_TRY(zi_self_comm_create(&comm));
    return zi_world_create(comm, world);
}

/* One thread of zero_world_run. */
typedef struct rank_thread {
    zi_thread_ranks *threads;
    zero_rank_fn fn;
    void *user;
    pthread_t thread;
    uint32_t rank;
} rank_thread;

/* Tell the others of the last error, those that wait in a group too. */
static void run_abort(const rank_thread *run, zero_world *world)
{
    if (world != NULL) {
        world->comm->ops->abort(world->comm, zero_last_error());
    } else {
        zi_thread_ranks_abort(run->threads, run->rank, zero_last_error());
    }
}

static void *rank_main(void *argument)
{
    const rank_thread *run = argument;
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    zero_status status = zi_thread_comm_create(run->threads, run->rank, &comm);
    if (status == ZERO_OK) {
        status = zi_world_create(comm, &world);
    }
    if (status == ZERO_OK) {
        status = run->fn(world, run->user);
    }
    if (status == ZERO_OK && atomic_load(&world->users) != 1) {
        status = zi_error_set(ZERO_ERR_STATE, 0, __FILE__, __LINE__,
                              "the rank's function returned while an engine of its world lives; "
                              "destroy the engine first");
    }
    if (status != ZERO_OK) {
        if (zero_last_error()->status != status) {
            (void)zi_error_set(status, 0, __FILE__, __LINE__, "the rank's function returned %s",
                               zero_status_name(status));
        }
        run_abort(run, world);
    }
    zero_world_destroy(world);
    return NULL;
}

/* Refuse more ranks than the system has threads for, before any is started. */
static zero_status check_rank_count(uint32_t rank_count)
{
    if (rank_count < 1) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "rank_count is 0; a world has at least one rank");
    }
    if (rank_count > ZI_WORLD_RANKS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "rank_count %u is more than the %d ranks that a world has", rank_count,
                ZI_WORLD_RANKS_MAX);
    }
    const zi_limit limit = zi_limit_threads();
    if (rank_count > limit.most) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "rank_count %u is more than the %llu threads that this process may have, by %s",
                rank_count, (unsigned long long)limit.most, limit.by);
    }
    return ZERO_OK;
}

zero_status zero_world_run(uint32_t rank_count, uint32_t deadline_ms, zero_rank_fn fn, void *user)
{
    ZI_TRY(check_rank_count(rank_count));
    if (fn == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "fn is NULL; pass what each rank is to do");
    }
    rank_thread *runs = NULL;
    ZI_TRY(zi_calloc(rank_count, sizeof *runs, (void **)&runs));
    zi_thread_ranks *threads = NULL;
    const uint32_t deadline = deadline_ms != 0 ? deadline_ms : ZI_DEADLINE_DEFAULT_MS;
    const zero_status made = zi_thread_ranks_create(rank_count, deadline, &threads);
    if (made != ZERO_OK) {
        zi_free(runs);
        return made;
    }
    uint32_t started = 0;
    for (; started < rank_count; started++) {
        rank_thread *run = &runs[started];
        *run = (rank_thread){.threads = threads, .fn = fn, .user = user, .rank = started};
        if (zi_thread_start(&run->thread, rank_main, run) != ZERO_OK) {
            zi_thread_ranks_abort(threads, started, zero_last_error());
            break;
        }
    }
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(runs[i].thread, NULL);
    }
    const zero_status outcome = zi_thread_ranks_outcome(threads);
    zi_thread_ranks_release(threads);
    zi_free(runs);
    return outcome;
}

uint32_t zero_world_rank(const zero_world *world)
{
    return world != NULL ? world->comm->rank : 0;
}

uint32_t zero_world_size(const zero_world *world)
{
    return world != NULL ? world->comm->size : 0;
}

uint32_t zero_world_local_size(const zero_world *world)
{
    return world != NULL ? world->comm->local_size : 0;
}

uint32_t zero_world_cpus(const zero_world *world)
{
    return world != NULL ? world->comm->cpus : zi_cpu_count();
}

const char *zero_world_backend(const zero_world *world)
{
    return world != NULL ? world->comm->ops->name : "none";
}

void zi_comm_destroy_parent(zi_comm *comm)
{
    zi_group_destroy(comm->parent);
    comm->parent = NULL;
}

static zero_status world_group_create(zero_world *world, const zi_group_desc *desc, zi_group **out)
{
    zi_comm *comm = world->comm;
    ZI_TRY(
        comm->ops->group_create(comm, desc->kernels, desc->members, desc->size, desc->name, out));
    (*out)->submit_waits = comm->submit_waits && desc->size > 1;
    return ZERO_OK;
}

const zi_transport zi_world_transport = {
    .struct_bytes = sizeof(zi_transport),
    .name = "the world",
    .group_create = world_group_create,
};

zero_status zi_transport_choose(const zero_world *world, zero_transport asked,
                                const zi_transport **out)
{
    const bool threads = world->comm->one_process;
    *out = &zi_world_transport;
    if (asked == ZERO_TRANSPORT_NCCL && threads && zero_world_size(world) > 1) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tuning.transport is ZERO_TRANSPORT_NCCL, and ranks are threads of one process, "
                "whose GPUs read one another; leave it at ZERO_TRANSPORT_DEFAULT, or start one "
                "process for each GPU");
    }
    if (asked == ZERO_TRANSPORT_PEER && !threads) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tuning.transport is ZERO_TRANSPORT_PEER, and ranks are processes, whose GPUs do "
                "not read one another here; leave it at ZERO_TRANSPORT_DEFAULT");
    }
    if (asked == ZERO_TRANSPORT_NCCL || (asked == ZERO_TRANSPORT_DEFAULT && !threads)) {
        *out = &zi_nccl_transport;
    }
    return ZERO_OK;
}

static const char *carrier_text(zero_carrier carrier)
{
    switch (carrier) {
    case ZERO_CARRIER_NONE:
        break;
    case ZERO_CARRIER_HOST:
        return "host memory";
    case ZERO_CARRIER_PEER:
        return "peer copies";
    case ZERO_CARRIER_MPI:
        return "mpi";
    case ZERO_CARRIER_NCCL:
        return "nccl";
    }
    return "none (one rank)";
}

static void world_write_text(zero_path *path)
{
    char memory[48] = "";
    char version[24] = "";
    char hosts[32] = "";
    if (path->symmetric != 0 && path->symmetric == path->windows) {
        (void)snprintf(memory, sizeof memory, ", symmetric windows");
    } else if (path->windows != 0) {
        (void)snprintf(memory, sizeof memory, ", windows (%u of %u symmetric)", path->symmetric,
                       path->windows);
    } else if (path->buffers != 0) {
        (void)snprintf(memory, sizeof memory, ", registered buffers");
    }
    if (path->nccl_version != 0) {
        (void)snprintf(version, sizeof version, " %d.%d.%d", path->nccl_version / 10000,
                       path->nccl_version / 100 % 100, path->nccl_version % 100);
    }
    if (path->hosts != 0) {
        (void)snprintf(hosts, sizeof hosts, ", then %u hosts", path->hosts);
    }
    (void)snprintf(path->text, sizeof path->text, "%s%s%s", carrier_text(path->carrier), version,
                   memory);
    const size_t used = strlen(path->text);
    (void)snprintf(path->text + used, sizeof path->text - used, "%s%s",
                   path->zero_cta != 0 ? ", zero-CTA policy" : "", hosts);
}

void zi_world_group_path(const zero_world *world, const zi_group *group, bool in_levels,
                         zero_path *path)
{
    memset(path, 0, sizeof *path);
    if (group->size > 1 && group->ops->path != NULL) {
        group->ops->path(group, path);
    } else if (group->size > 1) {
        const bool peers = !group->kernels->device->ops->host_memory && world->comm->one_process;
        path->carrier = peers ? ZERO_CARRIER_PEER : ZERO_CARRIER_HOST;
    }
    path->hosts = in_levels ? path->hosts : 0;
    world_write_text(path);
}

/* The tag holds the bytes of each rank in all, so ranks that ask for different sizes find out in
 * the first gather. */
static uint32_t tag_of(uint32_t call, uint32_t bytes)
{
    const uint32_t most = (UINT32_C(1) << ZI_TAG_CALL_BITS) - 1;
    return call == ZI_IN_NONE
               ? ZI_TAG_WORLD + (uint32_t)zi_min_u64(bytes, ZI_TAG_CALL - ZI_TAG_WORLD - 1)
               : ZI_TAG_CALL + (call << ZI_TAG_CALL_BITS) + (uint32_t)zi_min_u64(bytes, most);
}

static zero_status barrier(zero_world *world, uint32_t call)
{
    unsigned char *buffers = ((world_memory *)world)->buffers;
    return zi_group_gather(world->coordination, tag_of(call, 0), buffers, buffers + GATHER_BYTES,
                           0);
}

static zero_status world_gather(zero_world *world, uint32_t call, const void *send, void *recv,
                                uint32_t bytes)
{
    const uint32_t tag = tag_of(call, bytes);
    unsigned char *send_buffer = ((world_memory *)world)->buffers;
    unsigned char *recv_buffer = send_buffer + GATHER_BYTES;
    uint32_t done = 0;
    do {
        const uint32_t part = (uint32_t)zi_min_u64(bytes - done, GATHER_BYTES);
        const size_t sent = zi_align_up(part, sizeof(float));
        if (part != 0) {
            memcpy(send_buffer, (const unsigned char *)send + done, part);
        }
        ZI_TRY(zi_group_gather(world->coordination, tag, send_buffer, recv_buffer, sent));
        for (uint32_t i = 0; i < zero_world_size(world) && part != 0; i++) {
            memcpy((unsigned char *)recv + (size_t)i * bytes + done, recv_buffer + i * sent, part);
        }
        done += part;
    } while (done < bytes);
    return ZERO_OK;
}

zero_status zero_world_barrier(zero_world *world)
{
    ZI_TRY(zi_world_check(world));
    return barrier(world, ZI_IN_NONE);
}

zero_status zero_world_gather(zero_world *world, const void *send, void *recv, uint32_t bytes)
{
    ZI_TRY(zi_world_check(world));
    if (bytes != 0 && (send == NULL || recv == NULL)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s is NULL; %u bytes of each rank need a place",
                send == NULL ? "send" : "recv", bytes);
    }
    return world_gather(world, ZI_IN_NONE, send, recv, bytes);
}

zero_status zi_world_barrier(zero_world *world)
{
    ZI_TRY(zi_world_check_open(world));
    return barrier(world, zi_call_get(world->comm->call));
}

zero_status zi_world_gather(zero_world *world, const void *send, void *recv, uint32_t bytes)
{
    ZI_TRY(zi_world_check_open(world));
    return world_gather(world, zi_call_get(world->comm->call), send, recv, bytes);
}

zero_status zero_world_mean(zero_world *world, double value, double *mean)
{
    ZI_TRY(zi_world_check(world));
    if (mean == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "mean is NULL; pass the address of a double");
    }
    unsigned char *send = ((world_memory *)world)->buffers;
    unsigned char *recv = send + GATHER_BYTES;
    const uint32_t size = zero_world_size(world);
    double sum = 0.0;
    memcpy(send, &value, sizeof value);
    ZI_TRY(zi_group_gather(world->coordination, ZI_TAG_WORLD + (uint32_t)sizeof value, send, recv,
                           sizeof value));
    for (uint32_t i = 0; i < size; i++) {
        double own;
        memcpy(&own, recv + i * sizeof own, sizeof own);
        sum += own;
    }
    *mean = sum / size;
    return ZERO_OK;
}

void zero_world_abort(zero_world *world)
{
    if (world == NULL || zi_world_check_open(world) != ZERO_OK) {
        return;
    }
    zero_error error = *zero_last_error();
    if (error.status == ZERO_OK) {
        error.status = ZERO_ERR_COMM;
        memcpy(error.message, "the rank aborted", sizeof "the rank aborted");
    }
    world->comm->ops->abort(world->comm, &error);
}
