/* Owns the simulated disks: accesses that take their time and move nothing. Invariant: those in
 * flight are in the order in which they end. */
#include "sim/sim_storage.h"

#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "storage/io_backend.h"

typedef struct sim_access {
    zi_io_segment *segment;
    uint64_t end_ns;
} sim_access;

typedef struct sim_queue {
    zi_sim_machine *machine;
    uint32_t depth;
    uint32_t count;
    sim_access flight[];
} sim_queue;

static void sim_storage_put(void *self, zi_io_segment *segment)
{
    sim_queue *queue = self;
    zi_sim_machine *machine = queue->machine;
    const bool write = segment->kind == ZI_IO_WRITE;
    zi_sim_load load = {.latency_ns = machine->cluster.disk_latency_ns};
    sim_access access = {.segment = segment};
    load.bytes[write ? ZERO_SIM_DISK_WRITE : ZERO_SIM_DISK_READ] = segment->bytes;
    load.bytes[ZERO_SIM_HOST_MEMORY] = segment->bytes;
    zi_assert_cmp(queue->count, <, queue->depth);
    segment->result = (int32_t)segment->bytes;
    /* A machine whose disks have no rate was refused. */
    const zero_status booked = zi_sim_book(machine, &load, machine->thread->now_ns, &access.end_ns);
    zi_assert(booked == ZERO_OK);
    uint32_t at = queue->count++;
    for (; at > 0 && queue->flight[at - 1].end_ns > access.end_ns; at--) {
        queue->flight[at] = queue->flight[at - 1];
    }
    queue->flight[at] = access;
}

static void sim_storage_flush(void *self)
{
    (void)self;
}

static int reap(void *self, zi_io_segment **done, uint32_t done_max, uint32_t want,
                uint64_t timeout_ns)
{
    sim_queue *queue = self;
    zi_sim_track *thread = queue->machine->thread;
    uint32_t count = 0;
    (void)timeout_ns;
    if (want > 0 && queue->count > 0) {
        const uint32_t last = (uint32_t)zi_min_u64(want, queue->count) - 1;
        zi_sim_track_work(thread, queue->flight[last].end_ns, ZERO_SIM_DISK);
    }
    while (count < queue->count && count < done_max &&
           queue->flight[count].end_ns <= thread->now_ns) {
        done[count] = queue->flight[count].segment;
        count++;
    }
    queue->count -= count;
    memmove(queue->flight, &queue->flight[count], queue->count * sizeof queue->flight[0]);
    return (int)count;
}

static const zi_io_backend_ops queue_ops = {
    .struct_bytes = sizeof(zi_io_backend_ops),
    .name = "simulated",
    .put = sim_storage_put,
    .flush = sim_storage_flush,
    .reap = reap,
    .destroy = zi_free,
};

static zero_status backend_create(void *self, const zi_io_setup *setup, zi_io_backend *backend,
                                  zi_io_report *report)
{
    sim_queue *queue = NULL;
    (void)report;
    ZI_TRY(zi_calloc(1, sizeof *queue + setup->depth * sizeof queue->flight[0], (void **)&queue));
    queue->machine = self;
    queue->depth = setup->depth;
    *backend = (zi_io_backend){&queue_ops, queue};
    return ZERO_OK;
}

zi_storage zi_sim_storage(zi_sim_machine *machine)
{
    return (zi_storage){.struct_bytes = sizeof(zi_storage),
                        .name = "simulated",
                        .self = machine,
                        .moves_nothing = true,
                        .backend_create = backend_create};
}
