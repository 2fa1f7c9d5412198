/* Owns the sockets of the control plane: resolving, binding, connecting. Invariants: sockets never
 * block, and a forked child has none of them. */
#include "control/control_endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/error.h"
#include "core/host.h"
#include "core/log.h"

/* ---- sockets that children do not keep ---- */

static struct {
    pthread_once_t once;
    pthread_mutex_t mutex; /* guards `open`; held by a fork */
    fd_set open;
} sockets = {.once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER};

static void control_endpoint_before_fork(void)
{
    (void)pthread_mutex_lock(&sockets.mutex);
}

static void control_endpoint_after_fork(void)
{
    (void)pthread_mutex_unlock(&sockets.mutex);
}

static void control_endpoint_in_child(void)
{
    for (int i = 0; i < FD_SETSIZE; i++) {
        if (FD_ISSET(i, &sockets.open)) {
            (void)close(i);
        }
    }
    FD_ZERO(&sockets.open);
    control_endpoint_after_fork();
}

static void control_endpoint_watch_forks(void)
{
    (void)pthread_atfork(control_endpoint_before_fork, control_endpoint_after_fork,
                         control_endpoint_in_child);
}

/* Open or accept a socket, and keep it from children. Beyond FD_SETSIZE, where a server has many
 * ranks, they inherit it. listener: -1: open one of `family`. */
static int make_socket(int family, int listener)
{
    const int on = 1;
    (void)pthread_once(&sockets.once, control_endpoint_watch_forks);
    (void)pthread_mutex_lock(&sockets.mutex);
    const int fd = listener < 0 ? socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)
                                : accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 && fd < FD_SETSIZE) {
        FD_SET(fd, &sockets.open);
    }
    const int code = errno;
    (void)pthread_mutex_unlock(&sockets.mutex);
    if (fd >= 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    errno = code;
    return fd;
}

void zi_control_close(int fd)
{
    if (fd < 0) {
        return;
    }
    (void)pthread_mutex_lock(&sockets.mutex);
    if (fd < FD_SETSIZE) {
        FD_CLR(fd, &sockets.open);
    }
    (void)close(fd);
    (void)pthread_mutex_unlock(&sockets.mutex);
}

void zi_control_own_name(uint32_t rank, uint32_t size, zi_control_name *name)
{
    *name = (zi_control_name){.rank = rank, .size = size, .pid = (uint64_t)getpid()};
    char host[ZI_HOST_NAME_BYTES];
    zi_host_name(host);
    (void)snprintf(name->host, sizeof name->host, "%.39s", host);
}

zero_status zi_control_random(void *words, size_t bytes)
{
    if (getrandom(words, bytes, 0) != (ssize_t)bytes) {
        ZI_FAIL_NATIVE(ZERO_ERR_DEVICE, errno, "getrandom: %s", strerror(errno));
    }
    return ZERO_OK;
}

/* ---- addresses ---- */

static bool control_endpoint_is_loopback(const struct sockaddr *at)
{
    if (at->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const void *)at;
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *six = (const void *)at;
    return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

_Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port),
               "the port of either family");

/* Put an address behind the others, but before those of the loopback. */
static void add_address(const struct addrinfo *found, uint32_t port, zi_control_address *addresses,
                        uint32_t *count)
{
    const in_port_t number = htons((uint16_t)port);
    char host[64] = "?";
    zi_control_address added = {.bytes = found->ai_addrlen,
                                .loopback = control_endpoint_is_loopback(found->ai_addr)};
    memcpy(&added.at, found->ai_addr, found->ai_addrlen);
    memcpy((char *)&added.at + offsetof(struct sockaddr_in6, sin6_port), &number, sizeof number);
    (void)getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, NULL, 0,
                      NI_NUMERICHOST);
    (void)snprintf(added.text, sizeof added.text, "%s port %u", host, port);
    uint32_t endpoint = (*count)++;
    for (; endpoint > 0 && addresses[endpoint - 1].loopback && !added.loopback; endpoint--) {
        addresses[endpoint] = addresses[endpoint - 1];
    }
    addresses[endpoint] = added;
}

static zero_status resolve_host(const char *host, uint32_t port, zi_control_address *addresses,
                                uint32_t *count)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const int code = getaddrinfo(host, NULL, &hints, &found);
    if (code != 0) {
        ZI_FAIL_NATIVE(
            ZERO_ERR_COMM, code,
            "the name of rank 0's host, '%.60s', cannot be resolved: %s; set MASTER_ADDR "
            "to a name or address that all hosts know",
            host, code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code));
    }
    for (const struct addrinfo *at = found; at != NULL && *count < ZI_CONTROL_ADDRESSES;
         at = at->ai_next) {
        if (at->ai_family == AF_INET || at->ai_family == AF_INET6) {
            add_address(at, port, addresses, count);
        }
    }
    freeaddrinfo(found);
    return ZERO_OK;
}

zero_status zi_control_resolve(const zi_control_endpoint *endpoint, zi_control_address *addresses,
                               uint32_t *count)
{
    char hosts[sizeof endpoint->hosts + 1] = "";
    char *rest = hosts;
    *count = 0;
    memcpy(hosts, endpoint->hosts, sizeof endpoint->hosts);
    for (const char *host = strsep(&rest, " "); host != NULL; host = strsep(&rest, " ")) {
        ZI_TRY(resolve_host(host, endpoint->port, addresses, count));
    }
    return ZERO_OK;
}

/* The port that the system chose. */
static uint32_t port_of(int listener)
{
    struct sockaddr_in6 at = {0};
    socklen_t bytes = sizeof at;
    (void)getsockname(listener, (void *)&at, &bytes);
    return ntohs(at.sin6_port); /* at the same offset for both families */
}

/* The addresses of this host that others may reach it at. */
static zero_status own_hosts(char *hosts, size_t bytes)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_COMM, errno, "cannot list this host's addresses: %s",
                       strerror(errno));
    }
    for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        char text[64];
        const struct sockaddr_in6 *six = (const void *)at->ifa_addr;
        const int family = six != NULL ? six->sin6_family : AF_UNSPEC;
        const size_t used = strlen(hosts);
        if ((family == AF_INET ||
             (family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))) &&
            (at->ifa_flags & IFF_UP) != 0 &&
            getnameinfo(at->ifa_addr, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof *six,
                        text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0 &&
            used + strlen(text) + 2 <= bytes) {
            (void)snprintf(hosts + used, bytes - used, "%s%s", used != 0 ? " " : "", text);
        }
    }
    freeifaddrs(all);
    return ZERO_OK;
}

/* A listening socket; -1 with errno. */
static int listen_at(const zi_control_address *address)
{
    const int on = 1;
    const int off = 0;
    const int fd = make_socket(address->at.ss_family, -1);
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->at.ss_family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(fd, (const void *)&address->at, address->bytes) != 0 || listen(fd, SOMAXCONN) != 0) {
        const int code = errno;
        zi_control_close(fd);
        errno = code;
        return -1;
    }
    return fd;
}

zero_status zi_control_listen(zi_control_endpoint *endpoint, int *listener)
{
    zi_control_address addresses[ZI_CONTROL_ADDRESSES];
    zi_control_endpoint anywhere = {.port = endpoint->port, .hosts = ":: 0.0.0.0"};
    const bool given = endpoint->hosts[0] != '\0';
    const zi_control_address *refused = addresses;
    uint32_t count = 0;
    int code = EADDRNOTAVAIL;
    *listener = -1;
    if (!given) {
        ZI_TRY(zi_control_random(&endpoint->key, sizeof endpoint->key));
        ZI_TRY(own_hosts(endpoint->hosts, sizeof endpoint->hosts));
    }
    ZI_TRY(zi_control_resolve(given ? endpoint : &anywhere, addresses, &count));
    for (const zi_control_address *at = addresses; at < addresses + count; at++) {
        *listener = listen_at(at);
        if (*listener >= 0) {
            endpoint->port = port_of(*listener);
            if (at->loopback) {
                zi_log(ZERO_LOG_WARN,
                       "rank 0 listens at %s ('%.60s'), which other hosts cannot reach; see "
                       "/etc/hosts",
                       at->text, endpoint->hosts);
            }
            return ZERO_OK;
        }
        if (code == EADDRNOTAVAIL) { /* a name that is no address of this host matters least */
            refused = at;
            code = errno;
        }
    }
    ZI_FAIL_NATIVE(ZERO_ERR_COMM, code, "rank 0 cannot listen at '%.60s': %s%s%s", endpoint->hosts,
                   refused->text, code == EADDRNOTAVAIL ? " is no address of its host" : ": ",
                   code == EADDRNOTAVAIL ? "; set MASTER_ADDR to the host that rank 0 runs on"
                   : code == EADDRINUSE  ? "another program does; choose another MASTER_PORT, "
                                           "whose next port is free"
                                         : strerror(code));
}

int zi_control_connect(const zi_control_address *address, int *socket)
{
    *socket = make_socket(address->at.ss_family, -1);
    if (*socket >= 0 && (connect(*socket, (const void *)&address->at, address->bytes) == 0 ||
                         errno == EINPROGRESS)) {
        return 0;
    }
    const int code = errno;
    zi_control_close(*socket);
    return code;
}

int zi_control_accept(int listener)
{
    return make_socket(0, listener);
}

bool zi_control_is_full(int code, bool first)
{
    const bool full = code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
    if (full && first) {
        zi_log(ZERO_LOG_WARN,
               "rank 0 cannot accept a connection of the control plane: %s; ranks that are not yet "
               "connected wait; raise the limit of open files (ulimit -n)",
               strerror(code));
    }
    return full;
}
