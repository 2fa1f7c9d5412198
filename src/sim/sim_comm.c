/* Owns the simulated ranks: a world in which all do what this one does, at the same time. Its
 * coordination group hands back what this rank sent, so ranks agree on everything; the engine's
 * groups move nothing and take their time. */
#include "sim/sim_comm.h"

#include <stdio.h>
#include <string.h>

#include "comm/world.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "sim/sim_device.h"

typedef struct sim_comm {
    zi_comm base;
    zi_sim_machine *machine;
} sim_comm;

typedef struct sim_group {
    zi_group base;
    zi_sim_machine *machine;
    uint32_t on_node; /* members on this rank's node */
} sim_group;

static zi_sim_machine *machine_of(const zi_comm *comm)
{
    return ((const sim_comm *)(const void *)comm)->machine;
}

/* ---- the coordination group: bytes of the host, in no time ---- */

static zero_status repeat(zi_group *group, zi_stream *stream, const zi_collective *batch,
                          size_t batch_count)
{
    (void)stream;
    for (size_t i = 0; i < batch_count; i++) {
        const size_t bytes = batch[i].count * zero_dtype_bytes(batch[i].send_dtype);
        zi_assert_cmp(batch[i].kind, ==, ZI_ALL_GATHER);
        for (uint32_t rank = 0; rank < group->size && bytes != 0; rank++) {
            unsigned char *part = (unsigned char *)batch[i].recv + rank * bytes;
            if (part != batch[i].send) {
                memcpy(part, batch[i].send, bytes);
            }
        }
    }
    return ZERO_OK;
}

/* ---- the engine's groups ---- */

static zero_sim_cause cause_of(const zi_collective *collective)
{
    if (collective->tag >= ZI_TAG_NORM) {
        return ZERO_SIM_OTHER;
    }
    return collective->kind == ZI_ALL_GATHER ? ZERO_SIM_GATHER : ZERO_SIM_REDUCTION;
}

/* Bytes of the longer of a collective's two buffers. */
static uint64_t whole_bytes(const zi_collective *collective, uint32_t size)
{
    const uint64_t bytes = zi_packed_bytes(collective->send_dtype, collective->count);
    return collective->kind == ZI_ALL_REDUCE ? bytes : bytes * size;
}

/* The same as nodes send it that have added up: sums, in a type of their own. */
static uint64_t sim_comm_sums_bytes(const zi_collective *collective, uint32_t size)
{
    zi_collective sums = *collective;
    sums.send_dtype = zi_collective_sum_dtype(collective);
    return whole_bytes(&sums, size);
}

/* In two levels: within the nodes, and between those members that have the same place on them, each
 * of whom has its part of the fabric. Sums that go at once send every part to its owner. */
static void add_levels(const sim_group *group, const zi_collective *collective, zi_sim_load *load)
{
    const zero_cluster *cluster = &group->machine->cluster;
    const uint32_t size = group->base.size;
    const uint64_t ways = collective->kind == ZI_ALL_REDUCE ? 2 : 1;
    const uint64_t bytes = ways * whole_bytes(collective, size);
    const uint32_t nodes = (uint32_t)zi_div_up(size, group->on_node);
    const bool in_levels = zi_collective_in_levels(&group->base, collective);
    const uint64_t near = group->on_node - 1;
    const bool sums = in_levels && group->on_node > 1;
    const uint64_t far = sums ? ways * sim_comm_sums_bytes(collective, size) : bytes;
    load->bytes[ZERO_SIM_LOCAL] += in_levels ? bytes / group->on_node * near : bytes / size * near;
    load->bytes[ZERO_SIM_FABRIC] += far / size * (in_levels ? nodes - 1 : size - group->on_node);
    const uint64_t latency_ns = ways * ((nodes - 1) * cluster->fabric_latency_ns +
                                        (group->on_node - 1) * cluster->local_latency_ns);
    load->latency_ns = zi_max_u64(load->latency_ns, latency_ns); /* a batch is one operation */
}

/* In a group of one rank a collective copies, or rounds. */
static void add_alone(const sim_group *group, const zi_collective *collective, zi_sim_load *load)
{
    const zi_sim_machine *machine = group->machine;
    const uint64_t sent = zi_packed_bytes(collective->send_dtype, collective->count);
    const uint64_t received = collective->count * zero_dtype_bytes(collective->recv_dtype);
    if (collective->send != collective->recv && collective->send != NULL) {
        zi_sim_load_add(machine, machine->host_memory, collective->send, sent, 0, load);
        zi_sim_load_add(machine, machine->host_memory, collective->recv, 0, received, load);
    }
}

static zero_status sim_comm_submit(zi_group *base, zi_stream *stream, const zi_collective *batch,
                                   size_t batch_count)
{
    const sim_group *group = (const sim_group *)(const void *)base;
    zi_sim_load load = {0};
    for (size_t i = 0; i < batch_count; i++) {
        if (base->size > 1) {
            add_levels(group, &batch[i], &load);
        } else {
            add_alone(group, &batch[i], &load);
        }
    }
    const uint64_t late_ns = zi_sim_draw_lateness(group->machine, base->size);
    return batch_count != 0 ? zi_sim_put(stream, &load, late_ns, cause_of(&batch[0])) : ZERO_OK;
}

static void destroy_group(zi_group *group)
{
    zi_free(group);
}

static const zi_group_ops coordination_ops = {
    .struct_bytes = sizeof(zi_group_ops), .submit = repeat, .destroy = destroy_group};
static const zi_group_ops group_ops = {
    .struct_bytes = sizeof(zi_group_ops), .submit = sim_comm_submit, .destroy = destroy_group};

/* Of a group with these members, in which this rank is one. */
static zero_status sim_comm_make_group(zi_comm *comm, const zi_group_ops *ops,
                                       const zi_kernels *kernels, const uint32_t *members,
                                       uint32_t size, const char *name, zi_group **out)
{
    const uint64_t per_node = machine_of(comm)->cluster.ranks_per_node;
    sim_group *group = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *group, (void **)&group));
    group->base = (zi_group){.ops = ops, .kernels = kernels, .size = size};
    group->machine = machine_of(comm);
    for (uint32_t i = 0; i < size; i++) {
        group->on_node += members[i] / per_node == comm->rank / per_node;
        group->base.rank = members[i] == comm->rank ? i : group->base.rank;
    }
    group->base.hosts_at_once = group->on_node == 1 && size > 1;
    (void)snprintf(group->base.name, sizeof group->base.name, "%s", name);
    *out = &group->base;
    return ZERO_OK;
}

static zero_status coordination_create(zi_comm *comm, const zi_kernels *kernels,
                                       const uint32_t *members, uint32_t size, const char *name,
                                       zi_group **out)
{
    return sim_comm_make_group(comm, &coordination_ops, kernels, members, size, name, out);
}

static zero_status sim_comm_group_create(zero_world *world, const zi_group_desc *desc,
                                         zi_group **out)
{
    return sim_comm_make_group(world->comm, &group_ops, desc->kernels, desc->members, desc->size,
                               desc->name, out);
}

/* ---- the world ---- */

static zero_status sim_comm_memory_alloc(zi_comm *comm, size_t bytes, void **out)
{
    return zi_sim_alloc(machine_of(comm), ZERO_TIER_DEVICE, bytes, out);
}

static void sim_comm_memory_free(zi_comm *comm, void *pointer, size_t bytes)
{
    (void)bytes;
    zi_sim_free(machine_of(comm), pointer);
}

static void sim_comm_abort_nobody(zi_comm *comm, const zero_error *error)
{
    (void)comm;
    (void)error;
}

static void sim_comm_destroy(zi_comm *comm)
{
    zi_free(comm);
}

static const zi_comm_ops comm_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "simulated",
    .group_create = coordination_create,
    .memory_alloc = sim_comm_memory_alloc,
    .memory_free = sim_comm_memory_free,
    .abort = sim_comm_abort_nobody,
    .destroy = sim_comm_destroy,
};

zero_status zi_sim_world_create(zi_sim_machine *machine, zero_world **out)
{
    sim_comm *comm = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *comm, (void **)&comm));
    comm->machine = machine;
    comm->base = (zi_comm){.ops = &comm_ops,
                           .size = machine->world,
                           .local_size = (uint32_t)machine->cluster.ranks_per_node,
                           .deadline_ms = ZI_DEADLINE_DEFAULT_MS};
    return zi_world_create(&comm->base, out);
}

/* Registered memory is like any other here. */
static zero_status registered_alloc(const zi_device *device, size_t bytes, void **out)
{
    return device->ops->memory_alloc(device->self, bytes, out);
}

/* The machine frees it when it is closed. */
static void registered_free(void *pointer)
{
    (void)pointer;
}

const zi_transport zi_sim_transport = {
    .struct_bytes = sizeof(zi_transport),
    .name = "simulated",
    .memory_alloc = registered_alloc,
    .memory_free = registered_free,
    .group_create = sim_comm_group_create,
};
