/* Owns the links and the memory of a machine. Invariant: device memory that it hands out can be
 * neither read nor written, so an engine that computes on it ends the process. */
#include "sim/sim_machine.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sys/mman.h>

#include "core/check.h"
#include "core/error.h"
#include "core/rng.h"
#include "core/sizes.h"

/* The cluster's field of each link, and by how many ranks it is shared. */
typedef struct link_rate {
    const char *name;
    uint64_t bytes_per_s;
    uint64_t shared_by;
    uint64_t permille;
} link_rate;

static link_rate sim_machine_rate_of(const zero_cluster *c, zero_sim_link link)
{
    const uint64_t ranks = c->ranks_per_node;
    switch (link) {
    case ZERO_SIM_DEVICE_MEMORY:
        return (link_rate){"device_bytes_per_s", c->device_bytes_per_s, 1, 1000};
    case ZERO_SIM_HOST_MEMORY:
        return (link_rate){"host_bytes_per_s", c->host_bytes_per_s, ranks, 1000};
    case ZERO_SIM_HOST_TO_DEVICE:
    case ZERO_SIM_DEVICE_TO_HOST:
        return (link_rate){"host_link_bytes_per_s", c->host_link_bytes_per_s, 1, 1000};
    case ZERO_SIM_LOCAL:
        return (link_rate){"local_bytes_per_s", c->local_bytes_per_s, 1,
                           c->local_permille != 0 ? c->local_permille : 1000};
    case ZERO_SIM_FABRIC:
        return (link_rate){"fabric_bytes_per_s", c->fabric_bytes_per_s, ranks, c->fabric_permille};
    case ZERO_SIM_DISK_READ:
        return (link_rate){"disk_read_bytes_per_s", c->disk_read_bytes_per_s, ranks, 1000};
    case ZERO_SIM_DISK_WRITE:
        return (link_rate){"disk_write_bytes_per_s", c->disk_write_bytes_per_s, ranks, 1000};
    case ZERO_SIM_LINK_COUNT:
        break;
    }
    zi_assert(false);
    return (link_rate){0};
}

void zi_sim_machine_open(const zero_cluster *cluster, bool host_memory, zi_sim_machine *machine)
{
    machine->cluster = *cluster;
    machine->world = (uint32_t)(cluster->nodes * cluster->ranks_per_node);
    machine->host_memory = host_memory;
    machine->thread = &machine->caller;
    machine->caller.now_ns = 1; /* a timestamp of 0 has not been set */
}

void zi_sim_machine_close(zi_sim_machine *machine)
{
    for (uint32_t i = 0; i < ZI_SIM_MEMORIES; i++) {
        zi_sim_free(machine, machine->memories[i].pointer);
    }
}

/* The memory that begins at `pointer`; NULL: an unused entry. */
static zi_sim_memory *find_start(zi_sim_machine *machine, const void *pointer)
{
    for (uint32_t i = 0; i < ZI_SIM_MEMORIES; i++) {
        if (machine->memories[i].pointer == pointer) {
            return &machine->memories[i];
        }
    }
    return NULL;
}

zero_status zi_sim_alloc(zi_sim_machine *machine, zero_tier tier, uint64_t bytes, void **out)
{
    const int access =
        tier == ZERO_TIER_HOST || machine->host_memory ? PROT_READ | PROT_WRITE : PROT_NONE;
    zi_sim_memory *memory = find_start(machine, NULL);
    zi_assert(memory != NULL);
    *out = NULL;
    if (bytes == 0) {
        return ZERO_OK;
    }
    void *pointer = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pointer == MAP_FAILED) {
        ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, errno,
                       "the system has no %" PRIu64
                       " bytes of address space for a simulated rank; simulate more ranks, or "
                       "allow it to overcommit memory",
                       bytes);
    }
    *memory = (zi_sim_memory){pointer, bytes, tier};
    machine->held_bytes[tier] += bytes;
    machine->peak_bytes[tier] = zi_max_u64(machine->peak_bytes[tier], machine->held_bytes[tier]);
    *out = pointer;
    return ZERO_OK;
}

void zi_sim_free(zi_sim_machine *machine, void *pointer)
{
    if (pointer != NULL) {
        zi_sim_memory *memory = find_start(machine, pointer);
        zi_assert(memory != NULL);
        machine->held_bytes[memory->tier] -= memory->bytes;
        (void)munmap(memory->pointer, memory->bytes);
        *memory = (zi_sim_memory){0};
    }
}

static bool is_device(const zi_sim_machine *machine, const void *pointer)
{
    const uintptr_t at = (uintptr_t)pointer;
    for (uint32_t i = 0; i < ZI_SIM_MEMORIES && !machine->host_memory; i++) {
        const zi_sim_memory *memory = &machine->memories[i];
        const uintptr_t start = (uintptr_t)memory->pointer;
        if (memory->pointer != NULL && at >= start && at - start < memory->bytes) {
            return memory->tier == ZERO_TIER_DEVICE;
        }
    }
    return false;
}

void zi_sim_load_add(const zi_sim_machine *machine, bool on_host, const void *pointer,
                     uint64_t read_bytes, uint64_t write_bytes, zi_sim_load *load)
{
    if (is_device(machine, pointer)) {
        load->bytes[ZERO_SIM_DEVICE_MEMORY] += read_bytes + write_bytes;
        return;
    }
    load->bytes[ZERO_SIM_HOST_MEMORY] += read_bytes + write_bytes;
    if (!on_host && !machine->host_memory) {
        load->bytes[ZERO_SIM_HOST_TO_DEVICE] += read_bytes;
        load->bytes[ZERO_SIM_DEVICE_TO_HOST] += write_bytes;
        load->latency_ns = machine->cluster.host_link_latency_ns;
    }
}

zero_status zi_sim_check_link(const zi_sim_machine *machine, zero_sim_link link)
{
    const link_rate rate = sim_machine_rate_of(&machine->cluster, link);
    if (rate.bytes_per_s == 0 || rate.permille == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s of the cluster is 0, and a step moves bytes over the link \"%s\"; set it",
                rate.bytes_per_s != 0 ? "fabric_permille" : rate.name, zero_sim_link_name(link));
    }
    return ZERO_OK;
}

/* When a link is free. A disk reads and writes with the same chips, so the two take turns: the
 * optimizer's part of a step on a disk takes as long as its reads and its writes one after the
 * other (docs/feasibility.md, a rank's part of a trillion parameters). */
static zi_sim_calendar *calendar_of(zi_sim_machine *machine, zero_sim_link link)
{
    return &machine->links[link == ZERO_SIM_DISK_WRITE ? ZERO_SIM_DISK_READ : link].calendar;
}

static void overrun(zi_sim_machine *machine, zi_sim_overrun what)
{
    what.set = true;
    machine->overrun = machine->overrun.set ? machine->overrun : what;
}

bool zi_sim_computes(zi_sim_machine *machine, uint64_t from_ns, uint64_t ns)
{
    if (ns > ZI_SIM_END_NS || from_ns + ns > ZI_SIM_END_NS) {
        overrun(machine, (zi_sim_overrun){.compute = true, .ns = (double)ns});
    }
    return !machine->overrun.set;
}

zero_status zi_sim_check_clock(const zi_sim_machine *machine)
{
    const zi_sim_overrun *over = &machine->overrun;
    if (!over->set) {
        return ZERO_OK;
    }
    if (over->compute) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "the steps take more than 73 years, the most that is simulated: a pass over a unit "
                "computes for %.3g s; raise device_flops of the cluster, %" PRIu64
                ", or simulate a smaller batch or fewer steps",
                over->ns / 1e9, machine->cluster.device_flops);
    }
    const link_rate rate = sim_machine_rate_of(&machine->cluster, over->link);
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "the steps take more than 73 years, or move 2^63 bytes: the link \"%s\" moves %" PRIu64
            " bytes in %.3g s; raise %s of the cluster, %" PRIu64
            ", lower its latencies, or simulate a smaller batch or fewer steps",
            zero_sim_link_name(over->link), over->bytes, over->ns / 1e9, rate.name,
            rate.bytes_per_s);
}

/* Book a link's part, if it ends before the clock does. */
static void book_link(zi_sim_machine *machine, zero_sim_link link, uint64_t bytes, uint64_t from_ns,
                      uint64_t *end_ns)
{
    zi_sim_use *use = &machine->links[link];
    const link_rate rate = sim_machine_rate_of(&machine->cluster, link);
    const double share = (double)rate.bytes_per_s * (double)rate.permille / 1e3;
    const double ns = (double)bytes * 1e9 * (double)rate.shared_by / share;
    const bool counted = ns < (double)ZI_SIM_END_NS && bytes < INT64_MAX - use->bytes;
    if (counted) {
        const uint64_t busy_ns = (uint64_t)(ns + 0.5);
        use->bytes += bytes;
        use->busy_ns += busy_ns;
        *end_ns = zi_sim_calendar_book(calendar_of(machine, link), from_ns, busy_ns);
    }
    if (!counted || *end_ns > ZI_SIM_END_NS) {
        overrun(machine, (zi_sim_overrun){.link = link, .ns = ns, .bytes = bytes});
    }
}

zero_status zi_sim_book(zi_sim_machine *machine, const zi_sim_load *load, uint64_t from_ns,
                        uint64_t *end_ns)
{
    uint64_t last_ns = from_ns;
    zi_sim_overrun late = {.ns = (double)load->latency_ns};
    *end_ns = from_ns;
    for (int i = 0; i < ZERO_SIM_LINK_COUNT && !machine->overrun.set; i++) {
        uint64_t link_end_ns = from_ns;
        if (load->bytes[i] != 0) {
            late.link = (zero_sim_link)i;
            late.bytes = load->bytes[i];
            ZI_TRY(zi_sim_check_link(machine, late.link));
            book_link(machine, late.link, late.bytes, from_ns, &link_end_ns);
            last_ns = zi_max_u64(last_ns, link_end_ns);
        }
    }
    if (last_ns + load->latency_ns > ZI_SIM_END_NS) {
        overrun(machine, late);
    }
    *end_ns = machine->overrun.set ? from_ns : last_ns + load->latency_ns;
    return ZERO_OK;
}

/* Ranks are late by an exponential distribution; the last of n by the n-th power of it, of which
 * one number is drawn. */
uint64_t zi_sim_draw_lateness(zi_sim_machine *machine, uint32_t ranks)
{
    if (machine->jitter_ns == 0 || ranks < 2) {
        return 0;
    }
    const uint32_t word = zi_philox(machine->seed, machine->draws++, 0).word[0];
    const double uniform = ((double)word + 0.5) / 4294967296.0;
    const double late = -log1p(-pow(uniform, 1.0 / ranks));
    return (uint64_t)(late * (double)machine->jitter_ns + 0.5);
}
