/* The common parts of the tests of the control plane: worlds whose ranks are threads or processes
 * of this host, and the log. */
#ifndef TESTS_CONTROL_CONTROL_RIG_H
#define TESTS_CONTROL_CONTROL_RIG_H

#include <pthread.h>
#include <stdatomic.h>

#include "control/control_plane.h"
#include "sanitizer.h"
#include "waits.h"
#include "zero/log.h"

#define RANKS_MAX 64
#define LONG_MS 60000
/* A deadline that passes; whoever is not to be late comes within it on any machine. */
#define SHORT_MS 1500
#define SOON_MS 2000

/* ---- ranks that are threads ---- */

typedef struct rig rig;
typedef void (*rank_fn)(zi_control *control, uint32_t rank, rig *g);

struct rig {
    uint32_t size;
    uint32_t deadline_ms;
    rank_fn fn;
    void *user;
    zi_control_endpoint endpoint;
    zi_control *server;
    zi_silence *silence[RANKS_MAX];
    pthread_barrier_t met; /* all ranks */
};

typedef struct rig_rank {
    rig *g;
    uint32_t rank;
    pthread_t thread;
} rig_rank;

static inline zi_control_desc rig_desc(rig *g, uint32_t rank)
{
    if (g->silence[rank] == NULL) {
        CHECK_OK(zi_silence_create(g->size, &g->silence[rank]));
    }
    return (zi_control_desc){.endpoint = &g->endpoint,
                             .rank = rank,
                             .size = g->size,
                             .deadline_ms = g->deadline_ms,
                             .join_ms = LONG_MS,
                             .silence = g->silence[rank],
                             .served = rank == 0 ? g->server : NULL};
}

static inline void *rig_main(void *argument)
{
    rig_rank *r = argument;
    const zi_control_desc desc = rig_desc(r->g, r->rank);
    zi_control *control = NULL;
    CHECK_OK(zi_control_join(&desc, &control));
    r->g->fn(control, r->rank, r->g);
    zi_control_leave(control);
    return NULL;
}

/* An endpoint on this host alone. */
static inline zi_control_endpoint local_endpoint(const char *host)
{
    zi_control_endpoint endpoint = {.key = zi_control_key_of("a job"), .port = 0};
    snprintf(endpoint.hosts, sizeof endpoint.hosts, "%s", host);
    return endpoint;
}

static inline void rig_serve(rig *g, uint32_t size, uint32_t deadline_ms)
{
    g->size = size;
    g->deadline_ms = deadline_ms;
    g->endpoint = local_endpoint("127.0.0.1");
    CHECK_OK(zi_control_serve(&g->endpoint, size, deadline_ms, &g->server));
    CHECK(g->endpoint.port != 0);
    CHECK_EQ(pthread_barrier_init(&g->met, NULL, size), 0);
}

static inline void rig_end(rig *g)
{
    for (uint32_t i = 0; i < g->size; i++) {
        zi_silence_destroy(g->silence[i]);
    }
}

/* All ranks run fn. */
static inline void rig_run(rig *g, rank_fn fn)
{
    rig_rank ranks[RANKS_MAX];
    g->fn = fn;
    for (uint32_t i = 0; i < g->size; i++) {
        ranks[i] = (rig_rank){.g = g, .rank = i};
        CHECK_EQ(pthread_create(&ranks[i].thread, NULL, rig_main, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < g->size; i++) {
        CHECK_EQ(pthread_join(ranks[i].thread, NULL), 0);
    }
    CHECK_EQ(pthread_barrier_destroy(&g->met), 0);
    rig_end(g);
}

static inline void rig_start(uint32_t size, uint32_t deadline_ms, rank_fn fn, void *user)
{
    rig g = {.user = user};
    rig_serve(&g, size, deadline_ms);
    rig_run(&g, fn);
}

/* Gather a record that says who sent it and when, of a size that differs between rounds. */
static inline void gather_once(zi_control *control, uint32_t rank, uint32_t size, uint32_t round)
{
    static _Thread_local unsigned char mine[65536];
    const uint32_t most = zi_control_most(control);
    const uint32_t bytes = round % 7 == 6 ? most : 1 + test_chance(round, 200);
    for (uint32_t i = 0; i < bytes; i++) {
        mine[i] = (unsigned char)(rank * 31 + round * 7 + i);
    }
    CHECK_OK(zi_control_gather(control, mine, bytes, "a round"));
    for (uint32_t r = 0; r < size; r++) {
        const unsigned char *theirs = zi_control_record(control, r);
        for (uint32_t i = 0; i < bytes; i++) {
            CHECK_EQ(theirs[i], (unsigned char)(r * 31 + round * 7 + i));
        }
    }
}

/* ---- ranks that are processes ---- */

/* The state that the processes of a test share. */
typedef struct shared_rig {
    _Atomic int served;
    zi_control_endpoint endpoint;
    _Atomic uint64_t went_ns;            /* when the rank went; 0: not yet */
    _Atomic uint64_t seen_ns[RANKS_MAX]; /* when each rank heard of it */
    _Atomic uint64_t back_ns[RANKS_MAX]; /* when each rank heard it again */
    _Atomic uint32_t rounds[RANKS_MAX];  /* gathers of each */
    _Atomic int stop;                    /* no more rounds */
    uint32_t size;
    uint32_t deadline_ms;
} shared_rig;

/* The target of this process's log: its rank's times. */
typedef struct log_watch {
    shared_rig *rig;
    uint32_t rank;
    char silent[48]; /* "rank 2 on" */
} log_watch;

static inline void watch_log(void *user, zero_log_level level, const char *message)
{
    const log_watch *watch = user;
    const bool about = strstr(message, watch->silent) != NULL && level == ZERO_LOG_WARN;
    if (about && strstr(message, "is silent: no heartbeat for") != NULL) {
        atomic_store(&watch->rig->seen_ns[watch->rank], zi_clock_ns());
    }
    if (about && strstr(message, "is heard again, after") != NULL) {
        atomic_store(&watch->rig->back_ns[watch->rank], zi_clock_ns());
    }
}

#endif
