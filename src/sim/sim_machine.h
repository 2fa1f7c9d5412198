/* The simulated machine of one rank: the virtual clock of its threads and streams, its links, and
 * memory that is counted and never touched. All of its work is done when the engine issues it, on
 * the caller's thread; only virtual times say what ran beside what. */
#ifndef ZI_SIM_SIM_MACHINE_H
#define ZI_SIM_SIM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "sim/sim_calendar.h"
#include "sim/sim_track.h"
#include "zero/cluster.h"
#include "zero/role.h"
#include "zero/status.h"

/* Arenas and the like that a machine holds at once, at most. */
#define ZI_SIM_MEMORIES 64

/* Reserved address space. */
typedef struct zi_sim_memory {
    unsigned char *pointer; /* NULL: none */
    uint64_t bytes;
    zero_tier tier; /* DEVICE or HOST */
} zi_sim_memory;

typedef struct zi_sim_use {
    zi_sim_calendar calendar;
    uint64_t bytes; /* so far */
    uint64_t busy_ns;
} zi_sim_use;

/* The end of the virtual clock: 73 years. Three times of it are less than 2^63, so nothing that is
 * added up before it is checked can wrap. */
#define ZI_SIM_END_NS (UINT64_C(1) << 61)

/* The work that first came to the end of the clock, or moved more bytes than can be counted. Work
 * that follows it takes no time and moves nothing, and the run is refused. */
typedef struct zi_sim_overrun {
    bool set;
    bool compute;       /* not a link */
    zero_sim_link link; /* else */
    double ns;          /* that it takes by itself */
    uint64_t bytes;     /* that it moves */
} zi_sim_overrun;

/* Bytes that one operation moves over each link, all at the same time. */
typedef struct zi_sim_load {
    uint64_t bytes[ZERO_SIM_LINK_COUNT];
    uint64_t latency_ns;
} zi_sim_load;

typedef struct zi_sim_machine {
    zero_cluster cluster;
    uint32_t world;
    bool host_memory; /* the device computes on the host's */
    uint64_t jitter_ns;
    uint64_t seed;
    uint64_t draws; /* of the jitter, so far */
    zi_sim_use links[ZERO_SIM_LINK_COUNT];
    zi_sim_memory memories[ZI_SIM_MEMORIES];
    uint64_t held_bytes[ZERO_TIER_COUNT];
    uint64_t peak_bytes[ZERO_TIER_COUNT];
    zi_sim_track
        *thread; /* the thread that runs now: the caller's, or the one of a stream's task */
    zi_sim_track caller;
    zi_sim_overrun overrun;
} zi_sim_machine;

/* machine: zeroed. cluster: checked. host_memory: as zi_capabilities. */
void zi_sim_machine_open(const zero_cluster *cluster, bool host_memory, zi_sim_machine *machine);
/* Frees all that is still reserved. */
void zi_sim_machine_close(zi_sim_machine *machine);

/* Reserve address space, readable as zeros if it is the host's. */
zero_status zi_sim_alloc(zi_sim_machine *machine, zero_tier tier, uint64_t bytes, void **out);
/* Accepts NULL. */
void zi_sim_free(zi_sim_machine *machine, void *pointer);

/* Add an access of the GPU, or of the host, to bytes at `pointer`. What the machine has not
 * reserved is host memory. */
void zi_sim_load_add(const zi_sim_machine *machine, bool on_host, const void *pointer,
                     uint64_t read_bytes, uint64_t write_bytes, zi_sim_load *load);

/* INVALID_ARGUMENT naming the cluster's rate where it is 0. */
zero_status zi_sim_check_link(const zi_sim_machine *machine, zero_sim_link link);

/* Book a load from `from_ns` on. end_ns: out; `from_ns` where the clock ends before, which
 * zi_sim_check_clock tells. Errors: those of zi_sim_check_link. */
zero_status zi_sim_book(zi_sim_machine *machine, const zi_sim_load *load, uint64_t from_ns,
                        uint64_t *end_ns);

/* True if work that computes for `ns` from `from_ns` on ends before the clock does. */
bool zi_sim_computes(zi_sim_machine *machine, uint64_t from_ns, uint64_t ns);

/* INVALID_ARGUMENT naming what came to the end of the clock, if anything has. */
zero_status zi_sim_check_clock(const zi_sim_machine *machine);

/* How much later than this rank the last of `ranks` comes to a collective. */
uint64_t zi_sim_draw_lateness(zi_sim_machine *machine, uint32_t ranks);

#endif
