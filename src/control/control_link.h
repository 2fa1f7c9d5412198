/* One end of a connection of the control plane: frames in, frames out, and when the other end was
 * last heard. Not thread-safe. */
#ifndef ZI_CONTROL_CONTROL_LINK_H
#define ZI_CONTROL_CONTROL_LINK_H

#include <poll.h>

#include "control/control_wire.h"
#include "zero/status.h"

#define ZI_CONTROL_OUT_BYTES 2560

typedef struct zi_control_link {
    int fd;                 /* -1: closed */
    int code;               /* errno that it ended with; 0: the other end closed, or broke a rule */
    zi_control_nonce nonce; /* random; the other end proves with it that it knows the key */
    bool proved;            /* it has, and has not said goodbye: the owner sets these four */
    bool told[2];           /* each of the owner's failures */
    bool silent;
    zi_control_name name;
    zi_control_inbox inbox;
    uint64_t opened_ns;
    uint64_t heard_ns; /* when bytes last came */
    uint64_t told_ns;  /* when a heartbeat last went */
    /* Small frames that are still to be sent, and one large frame, which the owner keeps in place.
     */
    size_t out_bytes;
    unsigned char out[ZI_CONTROL_OUT_BYTES];
    const unsigned char *large;
    size_t large_bytes;
    bool large_begun;
} zi_control_link;

/* Take over a socket, whose other end is a NEW_SERVER or a NEW_RANK. */
zero_status zi_control_link_open(zi_control_link *link, int fd, zi_control_sender from);

/* Accepts a link that is closed. */
void zi_control_link_close(zi_control_link *link);

/* Send a frame as soon as may be. False where the other end has not read for so long that there is
 * no place for it. `frame.bytes` are behind it. */
bool zi_control_link_put(zi_control_link *link, zi_control_frame frame, const void *payload);

/* The same for a whole frame of any size, header included; none may be on its way. */
void zi_control_link_put_large(zi_control_link *link, const void *frame, size_t bytes);

/* The events that poll is to wait for. */
struct pollfd zi_control_link_poll(const zi_control_link *link);

/* Send what the system takes. False: the connection has ended. */
bool zi_control_link_send(zi_control_link *link);

/* Called with each frame; false ends the connection. */
typedef bool (*zi_control_frame_fn)(void *user, zi_control_link *link);

/* Read what has come, as much as fits a turn. False: the connection has ended, or a frame came that
 * may not. */
bool zi_control_link_read(zi_control_link *link, zi_control_frame_fn fn, void *user);

#endif
