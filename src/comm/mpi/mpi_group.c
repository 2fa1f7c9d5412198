/* Owns a group whose members are on several hosts. A batch is described to the other members,
 * compared, then moved. Invariants: the members compare before any data moves, so a difference is
 * an error and never a hang; the first failure stays, and the other members get a notice of it;
 * nothing of ours is allocated after create. */
#include "comm/mpi/mpi_group.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"

/* Bounds of the stage in one direction: of all members together, and of one. */
#define STAGE_ALL_BYTES ((size_t)16 << 20)
#define STAGE_LOW_BYTES ((size_t)16 << 10)
#define STAGE_HIGH_BYTES ((size_t)1 << 20)

_Static_assert(ZI_BATCH_MAX * sizeof(zi_collective_terms) <= STAGE_LOW_BYTES,
               "a table fits a stage");
_Static_assert(sizeof(int) == sizeof(uint32_t), "MPI takes a member list as it is");

/* How long the message that this member leaves may take. */
#define LEAVE_MS 1000

zero_status zi_mpi_fail_left(uint32_t world_rank, const char *what)
{
    ZI_FAIL(ZERO_ERR_COMM,
            "rank %u has left, its engine or world is destroyed; %s needs it: all ranks must make "
            "the same calls",
            world_rank, what);
}

zero_status zi_mpi_abort_left(zi_mpi_comm *comm, uint32_t world_rank, const char *what)
{
    (void)zi_mpi_fail_left(world_rank, what);
    const zero_error error = *zero_last_error();
    comm->base.ops->abort(&comm->base, &error);
    return zi_error_adopt(&error);
}

typedef struct batch_argument {
    zi_mpi_group *group;
    zi_stream *stream;
    const zi_collective *batch;
    size_t batch_count;
    uint64_t number; /* in the group's recorder */
} batch_argument;

/* The message that members send before a group is made. */
typedef struct rendezvous_record {
    uint64_t members_hash;
    uint64_t id;     /* of the first member: the group's number */
    uint64_t cached; /* number of a link that can be used again; 0: none */
    char name[24];
} rendezvous_record;

static bool works_in_place(const zi_mpi_group *group, const zi_collective *c)
{
    const unsigned char *send = c->send;
    const size_t own = zi_packed_bytes(c->send_dtype, group->base.rank * c->count);
    return send != NULL && ((c->kind == ZI_ALL_REDUCE && send == c->recv) ||
                            (c->kind == ZI_REDUCE_SCATTER && send + own == c->recv));
}

static void mpi_group_describe(zi_mpi_group *group, const batch_argument *batch)
{
    zi_mpi_record *mine = &group->mine;
    *mine = (zi_mpi_record){.hash = ZI_HASH_START, .batch_count = batch->batch_count};
    for (uint32_t i = 0; i < batch->batch_count; i++) {
        const zi_collective *c = &batch->batch[i];
        const zi_collective_terms terms = zi_collective_terms_of(c);
        mine->hash = zi_hash_bytes(mine->hash, &terms, sizeof terms);
        const uint64_t bit = UINT64_C(1) << (i % 64);
        mine->bits[i / 64].absent |= c->send == NULL ? bit : 0;
        mine->bits[i / 64].in_place |= works_in_place(group, c) ? bit : 0;
    }
}

/* MISMATCH, naming what group rank `other` does differently from group rank 0. */
static zero_status name_mismatch(const zi_mpi_group *group, uint32_t other)
{
    const zi_collective_terms *mine = (const void *)(group->stage);
    const zi_collective_terms *theirs = (const void *)(group->stage + other * group->stage_bytes);
    const uint64_t my_count = group->records[0].batch_count;
    const uint64_t their_count = group->records[other].batch_count;
    for (uint32_t i = 0; i < zi_min_u64(my_count, their_count); i++) {
        if (memcmp(&mine[i], &theirs[i], sizeof mine[i]) != 0) {
            return zi_collective_mismatch(group->base.name, i, group->members[other], &theirs[i],
                                          group->members[0], &mine[i]);
        }
    }
    return zi_batch_mismatch(group->base.name, group->members[other], their_count,
                             group->members[0], my_count);
}

/* Wait for what is on the stream: it may use the stage. */
static zero_status mpi_group_drain(const batch_argument *batch)
{
    const zi_device *device = batch->group->base.kernels->device;
    return device->ops->drain(device->self, batch->stream);
}

/* Exchange the terms of all collectives, to find the first that differs. */
static zero_status exchange_tables(zi_mpi_group *group, const batch_argument *batch,
                                   const char *what)
{
    ZI_TRY(mpi_group_drain(batch));
    zi_mpi_exchange *x = &group->exchange;
    zi_collective_terms *mine = (void *)(group->stage + group->base.rank * group->stage_bytes);
    for (uint32_t i = 0; i < batch->batch_count; i++) {
        mine[i] = zi_collective_terms_of(&batch->batch[i]);
    }
    for (uint32_t i = 0; i < group->base.size; i++) {
        x->transfers[i].member = i;
        x->transfers[i].send_at = mine;
        x->transfers[i].send_bytes = batch->batch_count * sizeof *mine;
        x->transfers[i].recv_at = group->stage + i * group->stage_bytes;
        x->transfers[i].recv_bytes = group->records[i].batch_count * sizeof *mine;
    }
    return zi_mpi_exchange_run(x, what);
}

/* All members compare all with group rank 0, so all find the same difference. */
static zero_status mpi_group_compare(zi_mpi_group *group, const batch_argument *batch)
{
    char text[ZI_COLLECTIVE_TEXT_BYTES];
    char what[ZI_COLLECTIVE_TEXT_BYTES + 64];
    (void)snprintf(what, sizeof what, "%s (first of %zu, group %s)",
                   batch->batch_count == 0 ? "an empty batch"
                                           : zi_collective_text(batch->batch, text, sizeof text),
                   batch->batch_count, group->base.name);
    mpi_group_describe(group, batch);
    const size_t mine_bytes =
        offsetof(zi_mpi_record, bits) + zi_div_up(batch->batch_count, 64) * sizeof(zi_mpi_bits);
    ZI_TRY(zi_mpi_exchange_records(&group->exchange, &group->mine, mine_bytes, group->records,
                                   sizeof group->mine, what));
    const zi_mpi_record *records = group->records;
    for (uint32_t i = 0; i < group->base.size; i++) {
        if (records[i].hash == ZI_MPI_LEFT && records[i].batch_count == ZI_MPI_LEFT) {
            return zi_mpi_fail_left(group->members[i], what);
        }
    }
    for (uint32_t i = 1; i < group->base.size; i++) {
        if (records[i].hash != records[0].hash ||
            records[i].batch_count != records[0].batch_count) {
            ZI_TRY(exchange_tables(group, batch, what));
            return name_mismatch(group, i);
        }
    }
    return ZERO_OK;
}

static zero_status run_moves(zi_mpi_group *group, const batch_argument *batch)
{
    zi_fault_sleep(ZI_FAULT_COLLECTIVE);
    if (zi_fault_hit(ZI_FAULT_COLLECTIVE)) {
        ZI_FAIL(ZERO_ERR_COMM, "group %s: a collective failed (injected)", group->base.name);
    }
    ZI_TRY(mpi_group_compare(group, batch));
    for (uint32_t i = 0; i < batch->batch_count; i++) {
        const zi_collective *collective = &batch->batch[i];
        if (collective->count != 0) {
            ZI_TRY(zi_mpi_move(group, batch->stream, collective, i));
        }
    }
    return ZERO_OK;
}

/* Notify the others of the group's first error, unless they know. */
static void notify_failure(zi_mpi_group *group)
{
    const zero_error *error = &group->first_error;
    if (error->status == ZERO_ERR_MISMATCH) {
        return; /* all have found it, and no message is under way */
    }
    group->link->dead = true;
    if (group->exchange.op.notified || group->op.notified) {
        return;
    }
    const uint32_t *whom = group->members;
    uint32_t count = group->base.size;
    if (error->status == ZERO_ERR_TIMEOUT) {
        /* Members that arrived time out by themselves; only the late ones get the notice. */
        whom = group->late;
        count = 0;
        for (uint32_t i = 0; i < group->base.size; i++) {
            if (group->exchange.transfers[i].late) {
                group->late[count++] = group->members[i];
            }
        }
    }
    zi_mpi_progress_notify(group->comm->progress, group->id, group->comm->base.rank, whom, count,
                           error);
}

static zero_status mpi_group_run_batch(const batch_argument *batch)
{
    zi_mpi_group *group = batch->group;
    if (group->first_error.status != ZERO_OK) {
        return zi_error_adopt(&group->first_error);
    }
    const zero_status status = run_moves(group, batch);
    if (status != ZERO_OK) {
        group->first_error = *zero_last_error();
        notify_failure(group);
        /* Whoever waits for the batch gets the failure at once, and may destroy the group. */
        (void)mpi_group_drain(batch);
        return zi_error_adopt(&group->first_error);
    }
    return ZERO_OK;
}

/* The task. */
static zero_status mpi_group_run(void *argument)
{
    const batch_argument *batch = argument;
    zi_recorder *recorder = &batch->group->base.recorder;
    zi_recorder_start(recorder, batch->number);
    const zero_status status = mpi_group_run_batch(batch);
    zi_recorder_end(recorder, batch->number, status == ZERO_OK ? ZI_RECORD_DONE : ZI_RECORD_FAILED);
    return status;
}

static zero_status mpi_group_submit(zi_group *base, zi_stream *stream, const zi_collective *batch,
                                    size_t batch_count)
{
    zi_assert_cmp(batch_count, <=, ZI_BATCH_MAX);
    const batch_argument argument = {(zi_mpi_group *)base, stream, batch, batch_count,
                                     zi_recorder_last(&base->recorder)};
    const zi_device *device = base->kernels->device;
    return device->ops->task(device->self, stream, mpi_group_run, &argument, sizeof argument);
}

/* Send the message of leaving to the other members, or receive theirs. */
static zero_status exchange_leaves(zi_mpi_group *group, size_t send_bytes, size_t recv_bytes,
                                   uint32_t deadline_ms)
{
    zi_mpi_exchange *x = &group->exchange;
    group->mine = (zi_mpi_record){.hash = ZI_MPI_LEFT, .batch_count = ZI_MPI_LEFT};
    for (uint32_t i = 0; i < group->base.size; i++) {
        x->transfers[i].member = i;
        x->transfers[i].send_at = &group->mine;
        x->transfers[i].send_bytes = send_bytes;
        x->transfers[i].recv_at = &group->records[i];
        x->transfers[i].recv_bytes = recv_bytes;
    }
    x->deadline_ms = deadline_ms;
    return zi_mpi_exchange_run(x, "the end of a group");
}

/* The message has the form of a batch's record. A member that waits for one reads it; otherwise it
 * stays in the link for the next group there. In a world that has failed there is none: it would be
 * read before the failure is heard of. */
static void mpi_group_leave(zi_mpi_group *group)
{
    group->link->dead =
        group->link->dead || !group->connected || zi_mpi_has_failed(group->comm) ||
        exchange_leaves(group, offsetof(zi_mpi_record, bits), 0, LEAVE_MS) != ZERO_OK;
    group->link->used = false;
}

/* Receive the messages of leaving from the group that had the link before. */
static zero_status take_leaves(zi_mpi_group *group)
{
    return exchange_leaves(group, 0, offsetof(zi_mpi_record, bits), group->exchange.deadline_ms);
}

static void mpi_group_destroy(zi_group *base)
{
    zi_mpi_group *group = (zi_mpi_group *)base;
    const zero_error kept = *zero_last_error();
    if (group->link != NULL && zi_mpi_progress_healthy(group->comm->progress)) {
        mpi_group_leave(group);
    }
    (void)zi_error_adopt(&kept);
    if (!zi_mpi_progress_healthy(group->comm->progress)) {
        return; /* MPI may still hold its buffers: left to the end of the process */
    }
    const zi_device *device = base->kernels->device;
    zi_mpi_exchange_close(&group->exchange);
    device->ops->host_free(device->self, group->stage, group->stage_total);
    zi_free(group->records);
    zi_free(group);
}

static void mpi_group_path_of(const zi_group *base, zero_path *path)
{
    const zi_mpi_group *group = (const zi_mpi_group *)base;
    path->carrier = ZERO_CARRIER_MPI;
    path->hosts = group->grid.columns > 1 ? group->grid.rows : 0;
}

static const zi_group_ops group_ops = {
    .struct_bytes = sizeof(zi_group_ops),
    .submit = mpi_group_submit,
    .destroy = mpi_group_destroy,
    .path = mpi_group_path_of,
};

static zero_status mpi_group_allocate(zi_mpi_group *group)
{
    const zi_device *device = group->base.kernels->device;
    const uint32_t size = group->base.size;
    group->stage_bytes = zi_align_up(STAGE_ALL_BYTES / size, ZI_PAGE_BYTES);
    group->stage_bytes = zi_max_u64(group->stage_bytes, STAGE_LOW_BYTES);
    group->stage_bytes = zi_min_u64(group->stage_bytes, STAGE_HIGH_BYTES);
    group->stage_total = size * group->stage_bytes * (device->ops->host_memory ? 1 : 2);
    group->exchange.size = size;
    ZI_TRY(zi_mpi_exchange_open(&group->exchange));
    ZI_TRY(zi_calloc(size, sizeof *group->records, (void **)&group->records));
    return device->ops->host_alloc(device->self, group->stage_total, (void **)&group->stage);
}

static zero_status mpi_group_make_grid(zi_mpi_group *group)
{
    const uint32_t size = group->base.size;
    uint64_t *hosts = NULL;
    ZI_TRY(zi_calloc(size, sizeof *hosts, (void **)&hosts));
    for (uint32_t i = 0; i < size; i++) {
        hosts[i] = group->comm->host_of[group->members[i]];
    }
    group->flat = zi_grid_flat(group->order, size, group->base.rank);
    group->grid = zi_grid_of_hosts(group->order, hosts, size, group->base.rank, group->by_host);
    group->base.hosts_at_once = zi_grid_crosses_at_once(&group->grid, hosts);
    zi_free(hosts);
    return ZERO_OK;
}

/* A link of the same members that no living group uses; NULL: none. */
static zi_mpi_link *find_link(zi_mpi_comm *comm, uint64_t members_hash)
{
    for (uint32_t i = 0; i < comm->link_count; i++) {
        zi_mpi_link *link = &comm->links[i];
        if (link->made && !link->used && !link->dead && link->members_hash == members_hash) {
            return link;
        }
    }
    return NULL;
}

/* Exchange with the other members what each is making; all must mean the same group. *again: all
 * have a link for it. */
static zero_status mpi_group_rendezvous(zi_mpi_group *group, uint64_t members_hash,
                                        const zi_mpi_link *link, bool *again)
{
    zi_mpi_comm *comm = group->comm;
    zi_mpi_exchange *x = &group->exchange;
    x->progress = comm->progress;
    x->comm = comm->world;
    x->tag = ZI_MPI_TAG_RENDEZVOUS;
    x->rank = group->base.rank;
    x->deadline_ms = comm->base.deadline_ms;
    x->comm_ranks = group->members;
    x->world_ranks = group->members;
    x->silence = comm->base.silence;
    rendezvous_record mine = {
        .members_hash = members_hash,
        .id = ((uint64_t)comm->base.rank + 1) << 32 | ++comm->groups_made,
        .cached = link != NULL ? link->id : 0,
    };
    memcpy(mine.name, group->base.name, sizeof mine.name);
    char what[64];
    (void)snprintf(what, sizeof what, "making group %s", group->base.name);
    rendezvous_record *all = (void *)group->stage;
    ZI_TRY(zi_mpi_exchange_records(x, &mine, sizeof mine, all, sizeof mine, what));
    *again = true;
    for (uint32_t i = 0; i < group->base.size; i++) {
        if (all[i].members_hash == ZI_MPI_LEFT) {
            return zi_mpi_abort_left(comm, group->members[i], what);
        }
        if (all[i].members_hash != members_hash ||
            strncmp(all[i].name, mine.name, sizeof mine.name) != 0) {
            ZI_FAIL(ZERO_ERR_MISMATCH,
                    "rank %u makes group '%.23s', this rank '%s'%s; all ranks of a world make "
                    "their groups in the same order",
                    group->members[i], all[i].name, group->base.name,
                    all[i].members_hash != members_hash ? " of other members" : "");
        }
        *again = *again && all[i].cached != 0 && all[i].cached == all[0].cached;
    }
    group->id = all[0].id;
    return ZERO_OK;
}

/* All members have arrived, so MPI's own call blocks only for a short time. */
static int start_create(zi_mpi_op *op)
{
    zi_mpi_group *group = op->argument;
    const int *ranks = (const void *)group->members; /* of MPI's world, so they fit */
    int code = zi_mpi->comm_create_group(group->comm->world, ranks, (int)group->base.size,
                                         ZI_MPI_TAG_CREATE, &group->link->comm);
    if (code == ZI_MPI_SUCCESS) {
        code = zi_mpi->comm_return_errors(group->link->comm);
    }
    return code;
}

static zero_status make_link(zi_mpi_group *group, uint64_t members_hash)
{
    zi_mpi_comm *comm = group->comm;
    if (comm->link_count == ZI_MPI_GROUPS_MAX) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "this world has made %d communicators; destroy an engine first", ZI_MPI_GROUPS_MAX);
    }
    group->link = &comm->links[comm->link_count++];
    *group->link = (zi_mpi_link){
        .members_hash = members_hash,
        .id = group->id,
    };
    group->op = (zi_mpi_op){.start = start_create, .argument = group};
    const zero_status status =
        zi_mpi_progress_run(comm->progress, &group->op, comm->base.deadline_ms);
    if (status == ZERO_ERR_TIMEOUT) {
        ZI_FAIL(ZERO_ERR_TIMEOUT, "group %s: MPI did not make its communicator within %u ms",
                group->base.name, comm->base.deadline_ms);
    }
    group->link->made = status == ZERO_OK;
    return status;
}

static zero_status mpi_group_connect_members(zi_mpi_group *group)
{
    const uint32_t size = group->base.size;
    uint64_t hash = zi_hash_u64(ZI_HASH_START, size);
    hash = zi_hash_bytes(hash, group->members, size * sizeof *group->members);
    zi_mpi_link *link = find_link(group->comm, hash);
    bool again = false;
    ZI_TRY(mpi_group_rendezvous(group, hash, link, &again));
    if (again) {
        group->link = link;
    } else {
        ZI_TRY(make_link(group, hash));
    }
    group->link->used = true;
    group->exchange.comm = group->link->comm;
    group->exchange.tag = ZI_MPI_TAG_DATA;
    group->exchange.comm_ranks = NULL;
    group->exchange.op.group_id = group->id;
    if (again) {
        ZI_TRY(take_leaves(group));
    }
    group->connected = true;
    return ZERO_OK;
}

zero_status zi_mpi_group_create(zi_mpi_comm *comm, const zi_kernels *kernels,
                                const uint32_t *members, uint32_t size, const char *name,
                                zi_group **out)
{
    *out = NULL;
    ZI_TRY(zi_group_check_sources(kernels, size, name, "use NCCL"));
    zi_mpi_group *group = NULL;
    const size_t member_bytes = sizeof group->sources[0] + 4 * sizeof *group->members;
    ZI_TRY(zi_calloc(1, sizeof *group + size * member_bytes, (void **)&group));
    group->members = (uint32_t *)(void *)&group->sources[size];
    group->order = group->members + size;
    group->by_host = group->order + size;
    group->late = group->by_host + size;
    group->comm = comm;
    group->base = (zi_group){.ops = &group_ops, .kernels = kernels, .size = size};
    (void)snprintf(group->base.name, sizeof group->base.name, "%s", name);
    memcpy(group->members, members, size * sizeof *members);
    group->base.rank = zi_group_index(members, size, comm->base.rank, group->order);
    zero_status status = mpi_group_make_grid(group);
    if (status == ZERO_OK) {
        status = mpi_group_allocate(group);
    }
    if (status == ZERO_OK) {
        status = mpi_group_connect_members(group);
    }
    if (status != ZERO_OK) {
        mpi_group_destroy(&group->base);
        return status;
    }
    *out = &group->base;
    return ZERO_OK;
}
