/* A rank's membership of the control plane, for its two files: control_frames.c has what frames
 * mean, control_plane.c the thread that moves them, and the calls. */
#ifndef ZI_CONTROL_CONTROL_INTERNAL_H
#define ZI_CONTROL_CONTROL_INTERNAL_H

#include <poll.h>
#include <pthread.h>

#include "control/control_link.h"
#include "control/control_plane.h"
#include "control/control_round.h"

#define CONTROL_NS_PER_MS UINT64_C(1000000)

/* A rank has aborted or died; a gather has failed, and all after it do: its message names the ranks
 * that it waits for. */
enum { CONTROL_LOST, CONTROL_LATE };

struct zi_control {
    zi_control_desc desc; /* of rank 0, before it joins: rank, size and deadline */
    zi_control_endpoint endpoint;
    pthread_t thread;
    bool opened; /* the thread listens or has joined, or `error` is not OK */
    bool orphan; /* nobody waits for that any more: the thread frees this */
    zero_error error;
    int wake;         /* an eventfd: there is something to send, or the end has come */
    int listener;     /* rank 0's; -1 elsewhere */
    uint64_t full_ns; /* of the thread: until then the listener is not polled; 0: it ever was */
    pthread_mutex_t mutex;
    pthread_cond_t moved;   /* an answer or a failure has come */
    uint64_t end_ns;        /* 0: the rank is not leaving */
    uint16_t refusal;       /* the last one, of any try to join; 0: none */
    bool told;              /* `lost` has been called */
    zi_failure failures[2]; /* the first of each: CONTROL_LOST, CONTROL_LATE */
    zi_control_round *round;
    struct pollfd *polled; /* links, listener, wake */
    uint32_t link_count;
    zi_control_link links[];
};

/* All with the mutex. */

/* The first of a kind stays. kind: CONTROL_LOST, CONTROL_LATE. */
void zi_control_set_failure(zi_control *control, int kind, zi_failure failure);
/* Errors: COMM, MISMATCH: one has, or this rank. */
zero_status zi_control_check_lost(const zi_control *control);
/* Close a connection. That of a rank ends with its process, unless one of the two is leaving. */
void zi_control_drop(zi_control *control, zi_control_link *link);

/* A frame has come over a connection; zi_control_settle_* draw the conclusions. false: the
 * connection is to be closed. user: the control. */
bool zi_control_take_frame(void *user, zi_control_link *link);

/* Rank 0 answers the gather, or finds that it has failed. */
void zi_control_settle_gather(zi_control *control);
/* Tell every rank each failure once, unless the rank has told it. */
void zi_control_settle_failures(zi_control *control);
/* Note who is silent. Heartbeats of rank 0 list them, and go at once where that has changed. */
void zi_control_settle_silence(zi_control *control);

#endif
