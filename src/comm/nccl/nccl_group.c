/* Owns how a group is made, runs a batch, and is closed. Invariant: whatever can fail on one rank
 * alone is done before the ranks exchange their records, so all learn of it there. */
#include "comm/nccl/nccl_group.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "comm/nccl/nccl_state.h"
#include "core/check.h"
#include "core/error.h"
#include "core/failure.h"
#include "core/fault.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/trace.h"
#include "device/cuda/cuda_device.h"

/* The sends that one group of calls has at most, about. */
#define CALLS 1024

#define NAME_BYTES sizeof(((zi_group *)NULL)->name)

/* The message that the ranks of the world exchange before each makes its group of a name. */
typedef struct rendezvous_record {
    zi_failure told; /* the outcome of getting ready */
    uint32_t color;  /* the lowest world rank of the group */
    uint32_t size;
    uint32_t found;   /* 0; ranks of this color, where the records are compared */
    uint64_t members; /* hash of the list */
    uint64_t host;
    char name[NAME_BYTES];
} rendezvous_record;

_Static_assert(sizeof(rendezvous_record) % sizeof(float) == 0, "gathered as fp32 elements");

/* The tasks' argument. */
typedef struct batch_argument {
    zi_nccl_group *group;
    zi_stream *stream;
    const zi_collective *batch;
    size_t batch_count;
    uint64_t number; /* in the group's recorder */
} batch_argument;

static zero_status nccl_group_run_batch(const batch_argument *task)
{
    zi_nccl_group *group = task->group;
    const uint32_t count = (uint32_t)task->batch_count;
    const cudaStream_t native = zi_cuda_stream_native(task->stream);
    zi_nccl_marking marking;
    if (zi_fault_hit(ZI_FAULT_COLLECTIVE)) {
        ZI_FAIL(ZERO_ERR_COMM, "group %s: injected fault", group->base.name);
    }
    zi_fault_sleep(ZI_FAULT_COLLECTIVE);
    ZI_TRY(zi_nccl_mark_begin(group, native, &marking));
    ZI_TRY(zi_nccl_move(group, task->stream, task->batch, count));
    return zi_nccl_mark_end(group, native, marking, task->batch, count, task->number);
}

static zero_status nccl_group_run(void *argument)
{
    const batch_argument *task = argument;
    zi_nccl_group *group = task->group;
    zero_status status = zi_nccl_check(group);
    if (status != ZERO_OK) {
        zi_recorder_end(&group->base.recorder, task->number, ZI_RECORD_FAILED);
        return status;
    }
    zi_span_begin(NULL, ZI_SPAN_COLLECTIVE, group->base.name);
    status = nccl_group_run_batch(task);
    zi_span_end(NULL);
    if (status == ZERO_OK) {
        return ZERO_OK;
    }
    zi_recorder_end(&group->base.recorder, task->number, ZI_RECORD_FAILED);
    /* When the watcher was faster, its error is the one that all ranks get. */
    const zero_error error = *zero_last_error();
    zi_nccl_fail(group, &error);
    while (zi_nccl_check(group) == ZERO_OK) {
        (void)sched_yield();
    }
    return zi_nccl_check(group);
}

static zero_status nccl_group_submit(zi_group *base, zi_stream *stream, const zi_collective *batch,
                                     size_t batch_count)
{
    zi_assert_cmp(batch_count, <=, ZI_BATCH_MAX);
    zi_nccl_group *group = (zi_nccl_group *)base;
    const zi_device *device = base->kernels->device;
    const batch_argument argument = {group, stream, batch, batch_count,
                                     zi_recorder_last(&base->recorder)};
    ZI_TRY(device->ops->task(device->self, stream, nccl_group_run, &argument, sizeof argument));
    /* On the host stream the batch has run by now, or was aborted. */
    return zi_nccl_check(group);
}

/* The hash of all terms by which NCCL chooses an algorithm: not the tag. */
static uint64_t hash_terms(const zi_collective *batch, size_t batch_count)
{
    uint64_t hash = zi_hash_u64(ZI_HASH_START, batch_count);
    for (size_t i = 0; i < batch_count; i++) {
        zi_collective_terms terms = zi_collective_terms_of(&batch[i]);
        terms.tag = 0;
        hash = zi_hash_bytes(hash, &terms, sizeof terms);
    }
    return hash;
}

/* NCCL connects the members for an algorithm when it first picks it, by the kind and size of what
 * is called together, and pairs of members when they first exchange. So only the batch itself
 * connects all that it will need. All members remember the same batches. */
static zero_status connect_for(zi_group *base, zi_stream *stream, const zi_collective *batch,
                               size_t batch_count)
{
    zi_nccl_group *group = (zi_nccl_group *)base;
    const uint64_t hash = hash_terms(batch, batch_count);
    for (uint32_t i = 0; i < group->connected_count; i++) {
        if (group->connected[i] == hash) {
            return ZERO_OK;
        }
    }
    if (group->connected_count < ZI_NCCL_CONNECTED) {
        group->connected[group->connected_count++] = hash;
    }
    return zi_group_submit(base, stream, batch, batch_count);
}

static zero_status nccl_group_check(zi_group *base)
{
    return zi_nccl_check((zi_nccl_group *)base);
}

/* Destroy the events of the marks. */
static void nccl_group_close_device(zi_nccl_group *group)
{
    for (uint32_t i = 0; i < ZI_NCCL_MARKS; i++) {
        zi_nccl_mark *mark = &group->marks[i];
        if (mark->began != NULL) {
            (void)cudaEventDestroy(mark->began);
        }
        if (mark->done != NULL) {
            (void)cudaEventDestroy(mark->done);
        }
    }
}

static void close_group(zi_nccl_group *group)
{
    zi_nccl_handle_close(group);
    nccl_group_close_device(group);
    zi_free(group);
}

static void nccl_group_destroy(zi_group *base)
{
    zi_nccl_group *group = (zi_nccl_group *)base;
    zi_nccl_watch_remove(group);
    close_group(group);
}

zero_status zi_nccl_group_abandon(zi_nccl_group *group)
{
    const zero_error error = *zero_last_error();
    if (group != NULL) {
        zi_nccl_watch_remove(group); /* first, so that the watcher does not fail the other groups */
        (void)zi_nccl_set_error(group, &error); /* so that close aborts */
        close_group(group);
    }
    return zi_error_adopt(&error);
}

static void nccl_group_path_of(const zi_group *base, zero_path *path)
{
    const zi_nccl_group *group = (const zi_nccl_group *)base;
    path->carrier = ZERO_CARRIER_NCCL;
    path->nccl_version = group->version;
    path->zero_cta = group->zero_cta ? 1 : 0;
    const zi_nccl_handle *handle = group->handle;
    *(handle->windows ? &path->windows : &path->buffers) = handle->registered_count;
    path->hosts = group->grid.columns > 1 ? group->grid.rows : 0;
    for (uint32_t i = 0; i < handle->registered_count; i++) {
        path->symmetric += handle->registered[i].symmetric;
    }
}

static const zi_group_ops nccl_ops = {
    .struct_bytes = sizeof(zi_group_ops),
    .submit = nccl_group_submit,
    .connect = connect_for,
    .destroy = nccl_group_destroy,
    .check = nccl_group_check,
    .path = nccl_group_path_of,
};

static zero_status open_marks(zi_nccl_group *group)
{
    for (uint32_t i = 0; i < ZI_NCCL_MARKS; i++) {
        zi_nccl_mark *mark = &group->marks[i];
        ZI_TRY(zi_cuda_check(cudaEventCreateWithFlags(&mark->began, cudaEventDisableTiming),
                             "cudaEventCreateWithFlags"));
        ZI_TRY(zi_cuda_check(cudaEventCreateWithFlags(&mark->done, cudaEventDisableTiming),
                             "cudaEventCreateWithFlags"));
    }
    return ZERO_OK;
}

static zero_status take_scratch(zi_nccl_group *group, const zi_group_desc *desc)
{
    const size_t ninth = desc->scratch_bytes / 9 / ZI_PAGE_BYTES * ZI_PAGE_BYTES;
    const size_t zeros = zi_min_u64(ninth, ZI_ZEROS_MAX);
    /* Two rounds, and in each two shares of all members in fp32, with packed sums behind them. */
    const size_t least = 5 * group->base.size * ZI_SHARE_COUNT * sizeof(float);
    if (desc->gathers_only) {
        return ZERO_OK;
    }
    if (zeros == 0 || desc->scratch_bytes - zeros < least) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "group %s: %zu bytes of scratch memory are too few for %u ranks; give %zu or more",
                group->base.name, desc->scratch_bytes, group->base.size,
                (size_t)zi_max_u64(9 * ZI_PAGE_BYTES, 2 * zi_align_up(least, ZI_PAGE_BYTES)));
    }
    group->zeros = desc->scratch;
    group->zeros_bytes = zeros;
    group->sums = (unsigned char *)desc->scratch + zeros;
    group->sums_bytes = desc->scratch_bytes - zeros;
    return ZERO_OK;
}

/* Do all that this rank can do alone. */
static zero_status nccl_group_prepare(zi_nccl_group *group, const zi_group_desc *desc)
{
    zi_nccl_group *base = zi_nccl_base_of(group->comm);
    ZI_TRY(zi_nccl_check(base));
    const int mine = group->handle->ordinal;
    if (mine != base->handle->ordinal) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "group %s, rank %u: GPU %d is current but NCCL was connected from GPU %d; make one "
                "GPU current for all engines of a world",
                group->base.name, group->comm->rank, mine, base->handle->ordinal);
    }
    ZI_TRY(open_marks(group));
    return take_scratch(group, desc);
}

/* MISMATCH where a rank makes a group of another name, or the status of one that could not prepare.
 */
static zero_status nccl_group_compare(const zi_nccl_group *group, const rendezvous_record *all)
{
    const uint32_t size = group->comm->size;
    const uint32_t failed = zi_failure_first_cause(&all->told, sizeof *all, size);
    if (failed < size) {
        return zi_failure_hear(&all[failed].told, "", failed);
    }
    for (uint32_t i = 0; i < size; i++) {
        if (strcmp(all[i].name, all[0].name) != 0) {
            ZI_FAIL(ZERO_ERR_MISMATCH,
                    "rank %u makes group %s, rank 0 group %s; all ranks must make their groups in "
                    "the same order",
                    i, all[i].name, all[0].name);
        }
    }
    return ZERO_OK;
}

/* MISMATCH where the members' lists do not fit together, which NCCL would not find. All ranks check
 * all groups, so all find the same difference. */
static zero_status compare_members(const zi_nccl_group *group, rendezvous_record *all)
{
    const uint32_t size = group->comm->size;
    for (uint32_t i = 0; i < size; i++) {
        const uint32_t color = all[i].color;
        all[color].found++;
        if (all[i].members != all[color].members) {
            ZI_FAIL(ZERO_ERR_MISMATCH,
                    "group %s: rank %u's members are not those of rank %u, or in another order; "
                    "give all ranks the same lists",
                    group->base.name, i, color);
        }
    }
    for (uint32_t i = 0; i < size; i++) {
        const uint32_t color = all[i].color;
        if (all[color].found != all[i].size) {
            ZI_FAIL(ZERO_ERR_MISMATCH,
                    "group %s: %u of the %u members of rank %u make it, the others another; give "
                    "all ranks the same lists",
                    group->base.name, all[color].found, all[i].size, i);
        }
    }
    return ZERO_OK;
}

/* Find out which members are on one host, and whether kernels can add up what comes at once. */
static zero_status nccl_group_make_grid(zi_nccl_group *group, const zi_group_desc *desc,
                                        const rendezvous_record *all)
{
    uint64_t *hosts = NULL;
    ZI_TRY(zi_calloc(desc->size, sizeof *hosts, (void **)&hosts));
    for (uint32_t i = 0; i < desc->size; i++) {
        hosts[i] = all[desc->members[i]].host;
    }
    group->grid =
        zi_grid_of_hosts(group->order, hosts, desc->size, group->base.rank, group->by_host);
    group->base.hosts_at_once = zi_grid_crosses_at_once(&group->grid, hosts);
    zi_free(hosts);
    const bool exact = desc->reduction == ZERO_REDUCTION_EXACT;
    const zi_grid *grid = exact ? &group->flat : &group->grid;
    return desc->gathers_only || desc->reduction == ZERO_REDUCTION_NATIVE
               ? ZERO_OK
               : zi_group_check_sources(desc->kernels,
                                        (uint32_t)zi_max_u64(grid->rows, grid->columns),
                                        group->base.name, "let NCCL add: ZERO_REDUCTION_NATIVE");
}

/* Exchange with the other ranks how preparing ended. */
static zero_status nccl_group_rendezvous(zi_nccl_group *group, zi_group *coordination,
                                         const zi_group_desc *desc, uint32_t color)
{
    const zero_status ready = nccl_group_prepare(group, desc);
    const zero_error error = *zero_last_error();
    rendezvous_record *all = NULL;
    rendezvous_record mine = {
        .told = zi_failure_tell(ready),
        .color = color,
        .size = desc->size,
        .members = zi_hash_bytes(ZI_HASH_START, desc->members, desc->size * sizeof *desc->members),
        .host = group->comm->host,
    };
    memcpy(mine.name, group->base.name, sizeof mine.name);
    ZI_TRY(zi_calloc(group->comm->size, sizeof *all, (void **)&all));
    zero_status status = zi_group_gather(coordination, 0, &mine, all, sizeof mine);
    if (status == ZERO_OK) {
        status = ready != ZERO_OK ? zi_error_adopt(&error) : nccl_group_compare(group, all);
    }
    if (status == ZERO_OK) {
        status = compare_members(group, all);
    }
    if (status == ZERO_OK) {
        status = nccl_group_make_grid(group, desc, all);
    }
    zi_free(all);
    return status;
}

/* Begin the split, with the configuration that the group asks for. */
static zero_status nccl_group_begin_split(zi_nccl_group *base, const zi_nccl_group *group,
                                          const zi_group_desc *desc, uint32_t color)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    zi_nccl_configure(desc, &config);
    ZI_TRY(zi_nccl_enter(base, "ncclCommSplit"));
    zi_nccl_handle *handle = base->handle;
    handle->child = NULL;
    const ncclResult_t result = base->handle->api->comm_split(
        handle->comm, (int)color, (int)group->base.rank, &handle->child, &config);
    zi_nccl_leave(base);
    return result == ncclInProgress ? ZERO_OK : zi_nccl_result(base, result, "ncclCommSplit");
}

/* The split is over: the child is the group's. */
static zero_status take_child(zi_nccl_group *base, zi_nccl_group *group)
{
    ZI_TRY(zi_nccl_enter(base, "ncclCommSplit"));
    group->handle->comm = base->handle->child;
    group->handle->blocking = true;
    base->handle->child = NULL;
    zi_nccl_leave(base);
    if (group->handle->comm == NULL) {
        ZI_FAIL(ZERO_ERR_COMM, "group %s: ncclCommSplit made no communicator", group->base.name);
    }
    return ZERO_OK;
}

/* Split the group's communicator off the world's base: the ranks of one color become one
 * communicator, in the order of their group ranks. Collective over the world. When it fails the
 * base fails with it, so no other group can be made. */
static zero_status split(zi_nccl_group *group, const zi_group_desc *desc, uint32_t color)
{
    zi_nccl_group *base = zi_nccl_base_of(group->comm);
    zero_status status = nccl_group_begin_split(base, group, desc, color);
    if (status == ZERO_OK) {
        /* The call returns success when it has begun; only the state of the base says when the
         * child is there. */
        status = zi_nccl_wait_of(base, group, ncclInProgress, "ncclCommSplit");
    }
    if (status == ZERO_OK) {
        status = take_child(base, group);
    }
    return status == ZERO_OK ? ZERO_OK : zi_nccl_break_off(base);
}

/* Agree on what the memory becomes. With buffers NCCL exchanges addresses on the host at each
 * batch. */
static zero_status agree_memory(zi_nccl_group *group, zi_group *coordination, void *memory)
{
    zi_nccl_group *base = zi_nccl_base_of(group->comm);
    ZI_TRY(zi_nccl_agree_memory(base, coordination, memory));
    group->handle->windows = base->handle->windows;
    group->base.submit_waits = !group->handle->windows;
    if (group->zero_cta && !group->handle->windows) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tuning.nccl_zero_cta is 1 and NCCL %d.%d.%d makes no window of memory here: GPUs "
                "cannot map one another's, or NCCL_CUMEM_ENABLE or NCCL_WIN_ENABLE is 0; leave it "
                "at 0",
                group->version / 10000, group->version / 100 % 100, group->version % 100);
    }
    return ZERO_OK;
}

static zero_status nccl_group_connect_members(zi_nccl_group *group, zi_group *coordination,
                                              const zi_group_desc *desc)
{
    const uint32_t color = desc->members[group->order[0]];
    ZI_TRY(nccl_group_rendezvous(group, coordination, desc, color));
    if (desc->registered && desc->memory_count != 0) {
        ZI_TRY(agree_memory(group, coordination, desc->memory[0].pointer));
    }
    ZI_TRY(split(group, desc, color));
    /* Registering may wait for other ranks, and so is watched. */
    ZI_TRY(zi_nccl_watch_add(group));
    return zi_nccl_register(group, desc);
}

zero_status zi_nccl_group_open(zi_comm *comm, const zi_group_desc *desc, zi_nccl_group **out)
{
    *out = NULL;
    zi_nccl_group *group = NULL;
    const size_t member_bytes = sizeof group->sources[0] + 2 * sizeof *group->order;
    ZI_TRY(zi_calloc(1, sizeof *group + desc->size * member_bytes, (void **)&group));
    group->order = (uint32_t *)(void *)&group->sources[desc->size];
    group->by_host = group->order + desc->size;
    group->base = (zi_group){
        .ops = &nccl_ops, .kernels = desc->kernels, .rank = comm->rank, .size = desc->size};
    (void)snprintf(group->base.name, sizeof group->base.name, "%s", desc->name);
    group->comm = comm;
    group->deadline_ms = comm->deadline_ms;
    group->zero_cta = desc->copy_engines;
    group->chunk_limit = (uint32_t)zi_max_u64(1, zi_min_u64(ZI_NCCL_CHUNKS, CALLS / desc->size));
    if (desc->members != NULL) {
        group->base.rank = zi_group_index(desc->members, desc->size, comm->rank, group->order);
        group->flat = zi_grid_flat(group->order, desc->size, group->base.rank);
        group->grid = group->flat;
    }
    const zero_status status = zi_nccl_handle_open(group);
    if (status != ZERO_OK) {
        close_group(group);
        return status;
    }
    *out = group;
    return ZERO_OK;
}

zero_status zi_nccl_group_create(zero_world *world, const zi_group_desc *desc, zi_group **out)
{
    *out = NULL;
    zi_nccl_group *group = NULL;
    ZI_TRY(zi_nccl_group_open(world->comm, desc, &group));
    if (nccl_group_connect_members(group, world->coordination, desc) != ZERO_OK) {
        return zi_nccl_group_abandon(group);
    }
    *out = &group->base;
    return ZERO_OK;
}
