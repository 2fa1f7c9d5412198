/* A track: what one thread or one stream does along the virtual clock, and when it is done with
 * what it has so far. */
#ifndef ZI_SIM_SIM_TRACK_H
#define ZI_SIM_SIM_TRACK_H

#include <stdint.h>

#include "zero/sim.h"

/* The last spans that a track remembers. Most tracks never come to so many, and pages of those that
 * they do not come to are never touched. */
#define ZI_SIM_SPANS (1 << 20)

typedef struct zi_sim_track zi_sim_track;

/* Work, or a wait for another track. Idle time is a wait for the thread that issues. */
typedef struct zi_sim_span {
    uint64_t begin_ns;
    uint64_t end_ns;
    const zi_sim_track *on; /* NULL: work */
    zero_sim_cause cause;   /* of work */
} zi_sim_span;

struct zi_sim_track {
    uint64_t now_ns; /* begin of its next span */
    uint64_t count;  /* spans so far, without gaps; the last ZI_SIM_SPANS are kept */
    zi_sim_span spans[ZI_SIM_SPANS];
};

/* The track works until `until_ns`, if that is later. */
void zi_sim_track_work(zi_sim_track *track, uint64_t until_ns, zero_sim_cause cause);

/* The track waits until the other one has come to `until_ns`, if that is later. */
void zi_sim_track_wait(zi_sim_track *track, const zi_sim_track *on, uint64_t until_ns);

/* Add to wait_ns, by cause, what the track did in [begin_ns, end_ns): what it worked on, and for
 * its waits what the other track did then. What is no longer remembered is OTHER. */
void zi_sim_track_causes(const zi_sim_track *track, uint64_t begin_ns, uint64_t end_ns,
                         uint64_t wait_ns[ZERO_SIM_CAUSE_COUNT]);

#endif
