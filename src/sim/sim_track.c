/* Owns what tracks remember. Invariant: spans of a track follow one another without gaps, up to its
 * now_ns. */
#include "sim/sim_track.h"

#include <stdbool.h>
#include <stddef.h>

#include "core/sizes.h"

/* Two tracks never wait for one another at the same time, so a chain of waits ends. What is behind
 * so many of them is not looked for. */
#define CHAIN_MAX 16

static void sim_track_add(zi_sim_track *track, const zi_sim_span *span)
{
    zi_sim_span *last = &track->spans[(track->count + ZI_SIM_SPANS - 1) % ZI_SIM_SPANS];
    if (span->end_ns <= span->begin_ns) {
        return;
    }
    track->now_ns = span->end_ns;
    if (track->count != 0 && last->on == span->on && last->cause == span->cause) {
        last->end_ns = span->end_ns;
        return;
    }
    track->spans[track->count++ % ZI_SIM_SPANS] = *span;
}

void zi_sim_track_work(zi_sim_track *track, uint64_t until_ns, zero_sim_cause cause)
{
    const zi_sim_span span = {.begin_ns = track->now_ns, .end_ns = until_ns, .cause = cause};
    sim_track_add(track, &span);
}

void zi_sim_track_wait(zi_sim_track *track, const zi_sim_track *on, uint64_t until_ns)
{
    const zi_sim_span span = {
        .begin_ns = track->now_ns, .end_ns = until_ns, .on = on, .cause = ZERO_SIM_OTHER};
    sim_track_add(track, &span);
}

/* The first span, by its number, that is remembered and ends behind `ns`; the track's count: none.
 */
static uint64_t sim_track_find(const zi_sim_track *track, uint64_t ns)
{
    uint64_t low = track->count - zi_min_u64(track->count, ZI_SIM_SPANS);
    uint64_t high = track->count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (track->spans[middle % ZI_SIM_SPANS].end_ns <= ns) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void add_causes(const zi_sim_track *track, uint64_t begin_ns, uint64_t end_ns,
                       uint32_t chain, uint64_t wait_ns[ZERO_SIM_CAUSE_COUNT])
{
    uint64_t at_ns = begin_ns;
    for (uint64_t i = sim_track_find(track, begin_ns); i < track->count && at_ns < end_ns; i++) {
        const zi_sim_span *span = &track->spans[i % ZI_SIM_SPANS];
        const uint64_t from = zi_min_u64(zi_max_u64(span->begin_ns, at_ns), end_ns);
        const uint64_t to = zi_min_u64(span->end_ns, end_ns);
        wait_ns[ZERO_SIM_OTHER] += from - at_ns; /* it is not remembered */
        if (span->on != NULL && chain < CHAIN_MAX) {
            add_causes(span->on, from, to, chain + 1, wait_ns);
        } else {
            wait_ns[span->cause] += to - from;
        }
        at_ns = to;
    }
    wait_ns[ZERO_SIM_OTHER] += end_ns - at_ns;
}

void zi_sim_track_causes(const zi_sim_track *track, uint64_t begin_ns, uint64_t end_ns,
                         uint64_t wait_ns[ZERO_SIM_CAUSE_COUNT])
{
    if (end_ns > begin_ns) {
        add_causes(track, begin_ns, end_ns, 0, wait_ns);
    }
}
