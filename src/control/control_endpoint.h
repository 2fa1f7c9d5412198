/* The place where the control plane is served: sockets, names and addresses. Sockets never
 * block. */
#ifndef ZI_CONTROL_CONTROL_ENDPOINT_H
#define ZI_CONTROL_CONTROL_ENDPOINT_H

#include <stdbool.h>
#include <sys/socket.h>

#include "control/control_wire.h"
#include "zero/status.h"

/* The address at which rank 0 serves; the same bytes on all ranks. */
typedef struct zi_control_endpoint {
    zi_control_key key;
    uint32_t port;
    uint32_t unused;
    char hosts[488]; /* names or addresses of rank 0's host, a blank between them */
} zi_control_endpoint;

_Static_assert(sizeof(zi_control_endpoint) == 512, "sent as bytes");

typedef struct zi_control_address {
    struct sockaddr_storage at;
    socklen_t bytes;
    bool loopback;
    char text[80]; /* "10.0.0.1 port 29501" */
} zi_control_address;

#define ZI_CONTROL_ADDRESSES 16

/* The addresses of the endpoint's hosts, ZI_CONTROL_ADDRESSES at most, loopback last. COMM naming a
 * host that cannot be resolved. The resolver's own limits hold: half a minute may pass. */
zero_status zi_control_resolve(const zi_control_endpoint *endpoint, zi_control_address *addresses,
                               uint32_t *count);

/* Listen at the first of the endpoint's addresses that is one of this host, loopback last. An
 * endpoint without hosts is filled: all interfaces, a free port, and a random key. Port 0 is filled
 * too.
 * - Errors: COMM naming address and port, or as zi_control_resolve, which it calls. */
zero_status zi_control_listen(zi_control_endpoint *endpoint, int *listener);

/* Begin to connect. Returns 0, or errno; what else goes wrong is found when the socket is read. */
int zi_control_connect(const zi_control_address *address, int *socket);

/* Take one connection that waits; -1: none. It never blocks. */
int zi_control_accept(int listener);
/* True if errno `code` of that says that the process has no descriptor or memory left. first: the
 * log gets a warning. */
bool zi_control_is_full(int code, bool first);

/* The name of this process as rank `rank` of `size`. */
void zi_control_own_name(uint32_t rank, uint32_t size, zi_control_name *name);

/* Random words. */
zero_status zi_control_random(void *words, size_t bytes);

/* Close a socket that a function above has opened; -1: none. A child that was forked meanwhile has
 * closed its copies when it was made: a connection must end with the process that it speaks for. */
void zi_control_close(int socket);

#endif
