/* Owns the tests of the machine's connections: what one thread sends arrives at another one, a
 * thread that polls has its deadline, and the same seed is the same run. */
#include "harness.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "core/clock.h"
#include "machine.h"
#include "machine_internal.h"
#include "machine_network.h"

#define SENT_BYTES 5000

static struct sockaddr_in listening;

static int listen_somewhere(void)
{
    socklen_t bytes = sizeof listening;
    const struct sockaddr_in anywhere = {.sin_family = AF_INET};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0 && bind(fd, (const void *)&anywhere, sizeof anywhere) == 0);
    CHECK(listen(fd, 4) == 0 && getsockname(fd, (void *)&listening, &bytes) == 0);
    CHECK(listening.sin_port != 0);
    return fd;
}

static void await(int fd, short events)
{
    struct pollfd wanted = {.fd = fd, .events = events};
    CHECK_EQ(poll(&wanted, 1, 60000), 1);
}

static void *send_all(void *argument)
{
    (void)argument;
    unsigned char data[SENT_BYTES];
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0 && connect(fd, (const void *)&listening, sizeof listening) == 0);
    memset(data, 7, sizeof data);
    for (size_t done = 0; done < sizeof data;) {
        const ssize_t sent = send(fd, data + done, sizeof data - done, MSG_NOSIGNAL);
        CHECK(sent > 0);
        done += (size_t)sent;
        (void)sched_yield();
    }
    CHECK_EQ(close(fd), 0);
    return NULL;
}

/* How often bytes came. */
static uint32_t receive_all(int fd)
{
    unsigned char data[SENT_BYTES];
    uint32_t times = 0;
    size_t bytes = 0;
    for (ssize_t got = 1; got != 0;) {
        await(fd, POLLIN);
        got = recv(fd, data, sizeof data, 0);
        CHECK(got >= 0);
        bytes += (size_t)got;
        times += got != 0;
    }
    CHECK_EQ(bytes, SENT_BYTES);
    return times;
}

static uint32_t send_and_receive(uint64_t seed, uint64_t *hash)
{
    pthread_t sender;
    machine_begin(seed);
    const int listener = listen_somewhere();
    CHECK_EQ(pthread_create(&sender, NULL, send_all, NULL), 0);
    await(listener, POLLIN);
    const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    CHECK(fd >= 0);
    const uint32_t times = receive_all(fd);
    CHECK_EQ(close(fd), 0);
    CHECK_EQ(close(listener), 0);
    CHECK_EQ(pthread_join(sender, NULL), 0);
    *hash = machine_log_hash();
    return times;
}

TEST(what_is_sent_arrives_in_parts_that_the_seed_decides)
{
    uint32_t parts = 0;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        uint64_t hash = 0;
        uint64_t again = 0;
        const uint32_t times = send_and_receive(seed, &hash);
        CHECK_EQ(send_and_receive(seed, &again), times);
        CHECK_EQ(hash, again);
        parts += times > 1;
    }
    CHECK(parts > 0 && parts < 50);
}

TEST(a_poll_ends_at_its_deadline)
{
    machine_begin(3);
    const int listener = listen_somewhere();
    struct pollfd wanted = {.fd = listener, .events = POLLIN};
    const uint64_t begun_ns = zi_clock_ns();
    CHECK_EQ(poll(&wanted, 1, 0), 0);
    CHECK_EQ(poll(&wanted, 1, 3600000), 0);
    const uint64_t took_ns = zi_clock_ns() - begun_ns;
    CHECK(took_ns >= UINT64_C(3600000000000) && took_ns < UINT64_C(3600100000000));
    CHECK_EQ(close(listener), 0);
}

/* Its sends break at the second one; returns the bytes that were sent before. */
static void *send_until_broken(void *argument)
{
    unsigned char data[100] = {0};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0 && connect(fd, (const void *)&listening, sizeof listening) == 0);
    machine_network_break(2);
    *(ssize_t *)argument = send(fd, data, sizeof data, MSG_NOSIGNAL);
    CHECK(send(fd, data, sizeof data, MSG_NOSIGNAL) < 0 && errno == EPIPE);
    CHECK(send(fd, data, sizeof data, MSG_NOSIGNAL) < 0 && errno == EPIPE);
    CHECK_EQ(machine_network_sends(), 3);
    CHECK(machine_network_broken_ns() != 0);
    CHECK_EQ(close(fd), 0);
    return NULL;
}

TEST(a_connection_breaks_within_what_is_sent)
{
    uint32_t parts = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        pthread_t sender;
        ssize_t sent = 0;
        ssize_t bytes = 0;
        unsigned char data[300];
        machine_begin(seed);
        const int listener = listen_somewhere();
        CHECK_EQ(pthread_create(&sender, NULL, send_until_broken, &sent), 0);
        await(listener, POLLIN);
        const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        CHECK(fd >= 0);
        for (ssize_t got = 1; got != 0; bytes += got) {
            await(fd, POLLIN);
            got = recv(fd, data, sizeof data, 0);
            CHECK(got >= 0);
        }
        CHECK_EQ(close(fd), 0);
        CHECK_EQ(close(listener), 0);
        CHECK_EQ(pthread_join(sender, NULL), 0);
        CHECK(sent > 0 && bytes >= sent && bytes < sent + 100);
        parts += bytes > sent;
    }
    CHECK(parts > 0);
}

/* A process of two threads, each of which takes a mutex again and again. */
typedef struct endless {
    pthread_mutex_t mutex;
    uint32_t rounds[2];
} endless;

static void go_on_forever(endless *e, int thread)
{
    for (;;) {
        CHECK_EQ(pthread_mutex_lock(&e->mutex), 0);
        (void)sched_yield();
        e->rounds[thread]++;
        CHECK_EQ(pthread_mutex_unlock(&e->mutex), 0);
        (void)sched_yield();
    }
}

static void *be_the_child(void *argument)
{
    go_on_forever(argument, 1);
    return NULL;
}

static void *be_a_process(void *argument)
{
    pthread_t child;
    machine_process();
    CHECK_EQ(pthread_create(&child, NULL, be_the_child, argument), 0);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0 && connect(fd, (const void *)&listening, sizeof listening) == 0);
    go_on_forever(argument, 0);
    return NULL;
}

/* The mutex is free, the connection is closed, and neither thread goes on. */
TEST(a_killed_process_closes_its_connections)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        pthread_t first;
        unsigned char byte;
        endless e = {.mutex = PTHREAD_MUTEX_INITIALIZER};
        machine_begin(seed);
        const int listener = listen_somewhere();
        CHECK_EQ(pthread_create(&first, NULL, be_a_process, &e), 0);
        await(listener, POLLIN);
        const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        CHECK(fd >= 0);
        machine_kill(10 + machine_choose(100));
        CHECK_EQ(machine_killed_ns(), 0);
        await(fd, POLLIN);
        CHECK_EQ(recv(fd, &byte, 1, 0), 0);
        CHECK(machine_killed_ns() != 0);
        CHECK_EQ(pthread_join(first, NULL), 0);
        const endless then = e;
        for (int i = 0; i < 50; i++) {
            (void)sched_yield();
        }
        CHECK(then.rounds[0] + then.rounds[1] > 0);
        CHECK(e.rounds[0] == then.rounds[0] && e.rounds[1] == then.rounds[1]);
        CHECK_EQ(pthread_mutex_trylock(&e.mutex), 0);
        CHECK_EQ(pthread_mutex_unlock(&e.mutex), 0);
        CHECK_EQ(close(fd), 0);
        CHECK_EQ(close(listener), 0);
    }
}

TEST(nobody_listens_at_a_port_that_was_closed)
{
    machine_begin(4);
    CHECK_EQ(close(listen_somewhere()), 0);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(fd, (const void *)&listening, sizeof listening) != 0 && errno == ECONNREFUSED);
    CHECK_EQ(close(fd), 0);
}
