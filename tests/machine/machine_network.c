/* Owns the connections of the machine's threads to one another. Sockets of the internet are local
 * ones of the system here, whose bytes arrive when they are sent, so what a thread finds follows
 * from the turns alone. A port is a name that this process alone has. Waiting for sockets is
 * waiting for a call that moves bytes. */
#include "machine_network.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "machine_internal.h"

IN_PLACE_OF(close);
IN_PLACE_OF(getrandom);
IN_PLACE_OF(poll);
IN_PLACE_OF(send);
IN_PLACE_OF(shutdown);
IN_PLACE_OF(socket);
/* Their addresses are a union of pointers in the system's headers. */
int __real_accept4(int fd, struct sockaddr *at, socklen_t *bytes, int flags);
int __real_bind(int fd, const struct sockaddr *at, socklen_t bytes);
int __real_connect(int fd, const struct sockaddr *at, socklen_t bytes);
int __real_getsockname(int fd, struct sockaddr *at, socklen_t *bytes);
int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t bytes);
int __wrap_accept4(int fd, struct sockaddr *at, socklen_t *bytes, int flags);
int __wrap_bind(int fd, const struct sockaddr *at, socklen_t bytes);
int __wrap_connect(int fd, const struct sockaddr *at, socklen_t bytes);
int __wrap_getsockname(int fd, struct sockaddr *at, socklen_t *bytes);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t bytes);

#define NS_PER_MS UINT64_C(1000000)
/* Ports that are not asked for by number. */
#define PORT_FIRST 40000
#define DESCRIPTORS 4096

static const char network;           /* the object that those that poll wait for */
static in_port_t ports[DESCRIPTORS]; /* of bound sockets, in the network's order; 0: not bound */
static uint32_t owners[DESCRIPTORS]; /* processes of sockets; 0: the program's, or no socket */
static uint16_t next_port = PORT_FIRST;

static struct {
    uint64_t sends;
    uint64_t break_at;
    uint64_t broken_ns;
} course;

void machine_network_break(uint64_t nth)
{
    course.sends = 0;
    course.break_at = nth;
    course.broken_ns = 0;
}

uint64_t machine_network_sends(void)
{
    return course.sends;
}

uint64_t machine_network_broken_ns(void)
{
    return course.broken_ns;
}

void machine_moved(void)
{
    if (machine_is_on()) {
        (void)machine_wake(&network, UINT32_MAX);
    }
}

static bool is_internet(int family)
{
    return family == AF_INET || family == AF_INET6;
}

/* The port is at the same place for both families. */
static in_port_t port_of(const struct sockaddr *at)
{
    struct sockaddr_in known;
    memcpy(&known, at, sizeof known);
    return known.sin_port;
}

/* Its name in the abstract namespace, and the length of the address. */
static socklen_t name_of(in_port_t port, struct sockaddr_un *local)
{
    *local = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length = snprintf(local->sun_path + 1, sizeof local->sun_path - 1, "machine-%ld-%u",
                                (long)getpid(), ntohs(port));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Of the caller's process. */
static int own(int fd)
{
    if (machine_is_on() && fd >= 0 && fd < DESCRIPTORS) {
        owners[fd] = machine_process_of_caller();
    }
    return fd;
}

int __wrap_socket(int family, int type, int protocol)
{
    const bool local = machine_is_on() && is_internet(family);
    return own(__real_socket(local ? AF_UNIX : family, type, local ? 0 : protocol));
}

int __wrap_accept4(int fd, struct sockaddr *at, socklen_t *bytes, int flags)
{
    return own(__real_accept4(fd, at, bytes, flags));
}

int __wrap_bind(int fd, const struct sockaddr *at, socklen_t bytes)
{
    if (!machine_is_on() || !is_internet(at->sa_family) || fd >= DESCRIPTORS) {
        return __real_bind(fd, at, bytes);
    }
    struct sockaddr_un local;
    const in_port_t port = port_of(at) != 0 ? port_of(at) : htons(next_port++);
    const socklen_t length = name_of(port, &local);
    const int code = __real_bind(fd, (const void *)&local, length);
    ports[fd] = code == 0 ? port : 0;
    return code;
}

int __wrap_getsockname(int fd, struct sockaddr *at, socklen_t *bytes)
{
    if (!machine_is_on() || fd >= DESCRIPTORS || ports[fd] == 0) {
        return __real_getsockname(fd, at, bytes);
    }
    const struct sockaddr_in known = {.sin_family = AF_INET, .sin_port = ports[fd]};
    memcpy(at, &known, *bytes < sizeof known ? *bytes : sizeof known);
    *bytes = sizeof known;
    return 0;
}

int __wrap_connect(int fd, const struct sockaddr *at, socklen_t bytes)
{
    if (!machine_is_on() || !is_internet(at->sa_family)) {
        return __real_connect(fd, at, bytes);
    }
    struct sockaddr_un local;
    const socklen_t length = name_of(port_of(at), &local);
    const int code = __real_connect(fd, (const void *)&local, length);
    machine_moved();
    return code;
}

/* Options of the protocols have no meaning for local sockets. */
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
    const bool ignored = machine_is_on() && (level == IPPROTO_TCP || level == IPPROTO_IPV6);
    return ignored ? 0 : __real_setsockopt(fd, level, name, value, bytes);
}

/* A part of the bytes may go before. */
static void break_now(int fd, const void *data, size_t bytes, int flags)
{
    const size_t count = machine_choose((uint32_t)bytes);
    if (count != 0) {
        (void)__real_send(fd, data, count, flags);
    }
    (void)__real_shutdown(fd, SHUT_RDWR);
    course.broken_ns = machine_time();
    machine_moved();
}

/* A part of the bytes, now and then. */
ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags)
{
    if (machine_is_on() && ++course.sends == course.break_at) {
        break_now(fd, data, bytes, flags);
        errno = EPIPE;
        return -1;
    }
    const bool partly = machine_is_on() && bytes > 1 && machine_choose(8) == 1;
    const size_t count = partly ? 1 + machine_choose((uint32_t)bytes) : bytes;
    const ssize_t sent = __real_send(fd, data, count, flags);
    machine_moved();
    return sent;
}

int __wrap_shutdown(int fd, int how)
{
    const int code = __real_shutdown(fd, how);
    machine_moved();
    return code;
}

int __wrap_close(int fd)
{
    if (machine_is_on() && fd >= 0 && fd < DESCRIPTORS) {
        ports[fd] = 0;
        owners[fd] = 0;
    }
    const int code = __real_close(fd);
    machine_moved();
    return code;
}

void machine_process_ended(uint32_t process)
{
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        if (owners[fd] == process) {
            (void)__wrap_close(fd);
        }
    }
}

int __wrap_poll(struct pollfd *sockets, nfds_t count, int timeout_ms)
{
    BEFORE_IT(poll(sockets, count, timeout_ms));
    const uint64_t until_ns =
        timeout_ms < 0 ? MACHINE_NEVER : machine_time() + (uint64_t)timeout_ms * NS_PER_MS;
    int ready = __real_poll(sockets, count, 0);
    while (ready == 0 && machine_time() < until_ns) {
        (void)machine_wait(&network, until_ns);
        ready = __real_poll(sockets, count, 0);
    }
    return ready;
}

ssize_t __wrap_getrandom(void *words, size_t bytes, unsigned flags)
{
    BEFORE_IT(getrandom(words, bytes, flags));
    for (size_t i = 0; i < bytes; i++) {
        ((unsigned char *)words)[i] = (unsigned char)machine_choose(256);
    }
    return (ssize_t)bytes;
}
