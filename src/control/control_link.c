/* Owns the bytes that go over one connection. Invariants: frames leave whole, one after another; a
 * link holds a bounded number of bytes, however slow the other end is. */
#include "control/control_link.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "control/control_endpoint.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"

/* Reads in one turn, two for a frame, so that none keeps the others waiting. */
#define READS 64

zero_status zi_control_link_open(zi_control_link *link, int fd, zi_control_sender from)
{
    memset(link, 0, sizeof *link);
    link->fd = fd;
    link->inbox.from = from;
    link->opened_ns = zi_clock_ns();
    link->heard_ns = link->opened_ns;
    const zero_status status = zi_control_random(&link->nonce, sizeof link->nonce);
    if (status != ZERO_OK) {
        zi_control_link_close(link);
    }
    return status;
}

void zi_control_link_close(zi_control_link *link)
{
    zi_control_close(link->fd);
    link->fd = -1;
    zi_control_inbox_free(&link->inbox);
}

bool zi_control_link_put(zi_control_link *link, zi_control_frame frame, const void *payload)
{
    const size_t bytes = sizeof frame + frame.bytes;
    if (link->fd < 0 || bytes > sizeof link->out - link->out_bytes) {
        return false;
    }
    memcpy(link->out + link->out_bytes, &frame, sizeof frame);
    if (frame.bytes != 0) {
        memcpy(link->out + link->out_bytes + sizeof frame, payload, frame.bytes);
    }
    link->out_bytes += bytes;
    return true;
}

void zi_control_link_put_large(zi_control_link *link, const void *frame, size_t bytes)
{
    zi_assert(link->large == NULL);
    link->large = frame;
    link->large_bytes = bytes;
    link->large_begun = false;
}

struct pollfd zi_control_link_poll(const zi_control_link *link)
{
    const bool busy = link->out_bytes != 0 || link->large != NULL;
    return (struct pollfd){.fd = link->fd, .events = busy ? POLLIN | POLLOUT : POLLIN};
}

/* After a send or receive that moved nothing: whether a later one may. */
static bool lives(zi_control_link *link, ssize_t moved)
{
    link->code = moved < 0 ? errno : 0;
    return link->code == EAGAIN || link->code == EINTR;
}

bool zi_control_link_send(zi_control_link *link)
{
    while (link->fd >= 0 && (link->out_bytes != 0 || link->large != NULL)) {
        const bool large = link->large != NULL && (link->large_begun || link->out_bytes == 0);
        const ssize_t sent = send(link->fd, large ? link->large : link->out,
                                  large ? link->large_bytes : link->out_bytes, MSG_NOSIGNAL);
        if (sent <= 0) {
            return lives(link, sent);
        }
        if (large) {
            link->large_begun = true;
            link->large_bytes -= (size_t)sent;
            link->large = link->large_bytes != 0 ? link->large + sent : NULL;
        } else {
            link->out_bytes -= (size_t)sent;
            memmove(link->out, link->out + sent, link->out_bytes);
        }
    }
    return link->fd >= 0;
}

bool zi_control_link_read(zi_control_link *link, zi_control_frame_fn fn, void *user)
{
    for (int i = 0; i < READS; i++) {
        size_t room = 0;
        void *at = zi_control_room(&link->inbox, &room);
        const ssize_t got = recv(link->fd, at, room, 0);
        if (got <= 0) {
            return lives(link, got);
        }
        link->heard_ns = zi_clock_ns();
        const zi_control_fed fed = zi_control_feed(&link->inbox, (size_t)got);
        if (fed == ZI_CONTROL_BAD || (fed == ZI_CONTROL_WHOLE && !fn(user, link))) {
            link->code = 0;
            return false;
        }
    }
    return true;
}
