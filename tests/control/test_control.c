/* The control plane among ranks that live: gathers, aborts, ranks that are late or leave, and what
 * joining says when it cannot be. Ranks are threads. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "control_rig.h"

#include "core/error.h"

/* ---- gathers ---- */

static void gather_rounds(zi_control *control, uint32_t rank, rig *g)
{
    const uint32_t *rounds = g->user;
    for (uint32_t round = 0; round < *rounds; round++) {
        gather_once(control, rank, g->size, round);
    }
    CHECK_OK(zi_control_check(control));
}

TEST(gathers_of_many_sizes_of_worlds)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 7, 16, 33, 64};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint32_t rounds = UNDER_SANITIZER ? 15 : 60;
        rig_start(sizes[i], LONG_MS, gather_rounds, &rounds);
    }
}

TEST(a_thousand_gathers)
{
    uint32_t rounds = 1000;
    rig_start(3, LONG_MS, gather_rounds, &rounds);
}

/* A shorter record has zeros behind it. */
static void gather_unequal(zi_control *control, uint32_t rank, rig *g)
{
    static const unsigned char text[] = "0123456789";
    const unsigned char zeros[10] = {0};
    for (uint32_t round = 0; round < 3; round++) {
        CHECK_OK(zi_control_gather(control, text, rank == round ? 10 : rank, "a round"));
        for (uint32_t i = 0; i < g->size; i++) {
            const unsigned char *record = zi_control_record(control, i);
            const uint32_t length = i == round ? 10 : i;
            CHECK_BYTES(record, text, length);
            CHECK_BYTES(record + length, zeros, 10 - length);
        }
    }
    CHECK_OK(zi_control_gather(control, NULL, 0, "a barrier"));
}

TEST(records_of_different_sizes)
{
    rig_start(4, LONG_MS, gather_unequal, NULL);
}

/* ---- failures ---- */

typedef struct told {
    _Atomic uint32_t times;
    zi_failure failure;
} told;

static void be_told(void *user, const zi_failure *failure)
{
    told *t = user;
    t->failure = *failure;
    atomic_fetch_add(&t->times, 1);
}

/* Rank 1 gives up while the others gather. */
static void *give_up_main(void *argument)
{
    rig_rank *r = argument;
    told t = {.times = 0};
    zi_control_desc desc = rig_desc(r->g, r->rank);
    desc.lost = be_told;
    desc.user = &t;
    zi_control *control = NULL;
    CHECK_OK(zi_control_join(&desc, &control));
    CHECK_OK(zi_control_gather(control, NULL, 0, "the meeting"));
    if (r->rank == 1) {
        const zero_error error = {.status = ZERO_ERR_IO,
                                  .file = "disk.c",
                                  .line = 7,
                                  .native = 5,
                                  .message = "the disk is on fire"};
        zi_control_abort(control, &error);
        zi_control_abort(control, &error);
    }
    CHECK_FAILS(zi_control_gather(control, NULL, 0, "a barrier"), ZERO_ERR_COMM,
                "rank 1: the disk is on fire");
    CHECK_FAILS(zi_control_check(control), ZERO_ERR_COMM, "rank 1: the disk is on fire");
    if (r->rank != 1) {
        AWAIT(atomic_load(&t.times) == 1);
        CHECK_EQ(t.failure.rank, 1);
        CHECK(strcmp(t.failure.message, "the disk is on fire") == 0);
        CHECK(strcmp(t.failure.file, "disk.c") == 0);
        CHECK_EQ(t.failure.line, 7);
        CHECK_EQ(t.failure.native, 5);
        CHECK_EQ(t.failure.status, ZERO_ERR_IO);
        CHECK_EQ(t.failure.others, ZERO_ERR_COMM);
    }
    zi_control_leave(control);
    CHECK_EQ(atomic_load(&t.times), r->rank != 1);
    return NULL;
}

TEST(a_rank_that_aborts)
{
    rig g = {.user = NULL};
    rig_rank ranks[4];
    const uint64_t start_ns = zi_clock_ns();
    rig_serve(&g, 4, LONG_MS);
    for (uint32_t i = 0; i < g.size; i++) {
        ranks[i] = (rig_rank){.g = &g, .rank = i};
        CHECK_EQ(pthread_create(&ranks[i].thread, NULL, give_up_main, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < g.size; i++) {
        CHECK_EQ(pthread_join(ranks[i].thread, NULL), 0);
    }
    CHECK_EQ(pthread_barrier_destroy(&g.met), 0);
    rig_end(&g);
    CHECK(in_time(start_ns, 20000));
}

/* Ranks 1 and 3 do not come to the second gather; rank 3 comes too late. */
static void be_late(zi_control *control, uint32_t rank, rig *g)
{
    const uint64_t start_ns = zi_clock_ns(); /* the deadline begins when the first one waits */
    CHECK_OK(zi_control_gather(control, NULL, 0, "the meeting"));
    if (rank % 2 == 0) {
        CHECK_FAILS(zi_control_gather(control, NULL, 0, "the second gather"), ZERO_ERR_TIMEOUT,
                    "ranks 1, 3 did not arrive at the second gather within 1500 ms");
        CHECK(elapsed_ms(start_ns) + 1 >= SHORT_MS);
        CHECK(in_time(start_ns, SOON_MS + SHORT_MS));
    }
    (void)pthread_barrier_wait(&g->met);
    if (rank == 3) {
        CHECK_FAILS(zi_control_gather(control, NULL, 0, "the second gather"), ZERO_ERR_TIMEOUT,
                    "ranks 1, 3 did not arrive");
    }
    CHECK_OK(zi_control_check(control));
    CHECK(rank == 1 || zi_control_gather(control, NULL, 0, "again") == ZERO_ERR_TIMEOUT);
    (void)pthread_barrier_wait(&g->met);
}

TEST(ranks_that_are_late)
{
    rig_start(5, SHORT_MS, be_late, NULL);
}

/* Rank 2 leaves, the others wait for it; one was there before, one comes after. */
static void leave_early(zi_control *control, uint32_t rank, rig *g)
{
    CHECK_OK(zi_control_gather(control, NULL, 0, "the meeting"));
    if (rank == 2) {
        sleep_ms(100);
        return;
    }
    if (rank == 0) {
        sleep_ms(300);
    }
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(zi_control_gather(control, NULL, 0, "the second gather"), ZERO_ERR_COMM,
                "rank 2 left the world while rank");
    CHECK(in_time(start_ns, 10000));
    (void)g;
}

TEST(a_rank_that_leaves)
{
    rig_start(4, LONG_MS, leave_early, NULL);
}

/* Rank 1 of 2, in a process of its own, with a child that lives on. It reads the endpoint, and says
 * when it is there. */
static void parent_main(int endpoint, int ready)
{
    rig g = {.size = 2, .deadline_ms = LONG_MS};
    zi_control *control = NULL;
    CHECK_EQ(read(endpoint, &g.endpoint, sizeof g.endpoint), (ssize_t)sizeof g.endpoint);
    const zi_control_desc desc = rig_desc(&g, 1);
    CHECK_OK(zi_control_join(&desc, &control));
    if (fork() != 0) {
        CHECK_EQ(write(ready, "x", 1), 1);
    }
    sleep_ms(30000);
    _exit(0);
}

/* A connection ends with its process, also where a child of that process lives on. */
REAL_TEST(children_do_not_keep_connections)
{
    rig g = {.user = NULL};
    zi_control *zero = NULL;
    int endpoint[2];
    int ready[2];
    char byte = 0;
    CHECK_EQ(pipe(endpoint), 0);
    CHECK_EQ(pipe(ready), 0);
    fflush(NULL);
    const pid_t rank = fork(); /* before there are threads */
    if (rank == 0) {
        parent_main(endpoint[0], ready[1]);
    }
    rig_serve(&g, 2, LONG_MS);
    const zi_control_desc desc = rig_desc(&g, 0);
    CHECK_OK(zi_control_join(&desc, &zero));
    CHECK_EQ(write(endpoint[1], &g.endpoint, sizeof g.endpoint), (ssize_t)sizeof g.endpoint);
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK_OK(zi_control_check(zero));
    CHECK_EQ(kill(rank, SIGKILL), 0);
    const uint64_t start_ns = zi_clock_ns();
    while (zi_control_check(zero) == ZERO_OK) {
        CHECK(in_time(start_ns, 20000));
        sleep_ms(1);
    }
    CHECK_SAID(test_text("rank 1: process %d on ", (int)rank));
    CHECK(in_time(start_ns, SOON_MS));
    zi_control_leave(zero);
    CHECK_EQ(pthread_barrier_destroy(&g.met), 0);
    rig_end(&g);
}

/* ---- joining ---- */

TEST(worlds_at_other_addresses)
{
    static const char *const hosts[] = {"localhost", "::1", ""};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        rig g = {.user = &(uint32_t){5}};
        g.size = 3;
        g.deadline_ms = LONG_MS;
        g.endpoint = local_endpoint(hosts[i]);
        if (zi_control_serve(&g.endpoint, 3, LONG_MS, &g.server) != ZERO_OK) {
            CHECK(strcmp(hosts[i], "::1") == 0); /* no IPv6 here */
            continue;
        }
        CHECK(g.endpoint.hosts[0] != '\0' && g.endpoint.port != 0);
        CHECK_EQ(pthread_barrier_init(&g.met, NULL, 3), 0);
        rig_run(&g, gather_rounds);
    }
}

static zero_status try_join(const zi_control_endpoint *endpoint, uint32_t rank, uint32_t size,
                            uint32_t join_ms)
{
    zi_silence *silence = NULL;
    zi_control *control = NULL;
    CHECK_OK(zi_silence_create(size, &silence));
    const zi_control_desc desc = {.endpoint = endpoint,
                                  .rank = rank,
                                  .size = size,
                                  .deadline_ms = LONG_MS,
                                  .join_ms = join_ms,
                                  .silence = silence};
    const zero_status status = zi_control_join(&desc, &control);
    zi_control_leave(control);
    zi_silence_destroy(silence);
    return status;
}

REAL_TEST(places_that_cannot_be_served)
{
    zi_control *server = NULL;
    zi_control *second = NULL;
    zi_control_endpoint endpoint = local_endpoint("127.0.0.1");
    CHECK_OK(zi_control_serve(&endpoint, 2, LONG_MS, &server));
    CHECK_FAILS(zi_control_serve(&endpoint, 2, LONG_MS, &second), ZERO_ERR_COMM,
                test_text("127.0.0.1 port %u: another program does; choose another MASTER_PORT",
                          endpoint.port));
    CHECK(second == NULL);
    zi_control_endpoint far = local_endpoint("192.0.2.7"); /* reserved for documentation */
    CHECK_FAILS(zi_control_serve(&far, 2, LONG_MS, &second), ZERO_ERR_COMM,
                "192.0.2.7 port 0 is no address of its host; set MASTER_ADDR");
    zi_control_endpoint unknown = local_endpoint("no-such-host.invalid");
    CHECK_FAILS(zi_control_serve(&unknown, 2, LONG_MS, &second), ZERO_ERR_COMM,
                "'no-such-host.invalid', cannot be resolved");
    zi_control_leave(server);
}

TEST(servers_that_cannot_be_joined)
{
    zi_control *server = NULL;
    zi_control_endpoint endpoint = local_endpoint("127.0.0.1");
    CHECK_OK(zi_control_serve(&endpoint, 2, LONG_MS, &server));
    zi_control_endpoint other = endpoint;
    other.key = zi_control_key_of("another job");
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(try_join(&other, 1, 2, SHORT_MS), ZERO_ERR_TIMEOUT, "it serves another job");
    CHECK_SAID(test_text("rank 1 could not join rank 0 at 127.0.0.1 port %u within 1500 ms",
                         endpoint.port));
    CHECK(elapsed_ms(start_ns) + 1 >= SHORT_MS && in_time(start_ns, 10000));
    CHECK_FAILS(try_join(&endpoint, 1, 3, LONG_MS), ZERO_ERR_MISMATCH, "another size than 3");
    CHECK_OK(try_join(&endpoint, 1, 2, LONG_MS));
    CHECK_FAILS(try_join(&endpoint, 1, 2, LONG_MS), ZERO_ERR_STATE, "rank 1 is there already");
    zi_control_leave(server);
    CHECK_FAILS(try_join(&endpoint, 1, 2, SHORT_MS), ZERO_ERR_TIMEOUT,
                "refused (is rank 0 started");
    zi_control_endpoint unknown = local_endpoint("no-such-host.invalid");
    CHECK_FAILS(try_join(&unknown, 1, 2, SHORT_MS), ZERO_ERR_TIMEOUT, "cannot be resolved");
}

/* The listener says nothing, or is no server. */
TEST(listeners_that_are_no_servers)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof at;
    CHECK_EQ(bind(fd, (const void *)&at, sizeof at), 0);
    CHECK_EQ(listen(fd, 16), 0);
    CHECK_EQ(getsockname(fd, (void *)&at, &bytes), 0);
    zi_control_endpoint endpoint = local_endpoint("127.0.0.1");
    endpoint.port = ntohs(at.sin_port);
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(try_join(&endpoint, 1, 2, SHORT_MS), ZERO_ERR_TIMEOUT, "is no libzero");
    CHECK(in_time(start_ns, 10000));
    CHECK_EQ(close(fd), 0);
}

/* Rank 0 comes a while after the others. */
static void *serve_late(void *argument)
{
    rig *g = argument;
    sleep_ms(400);
    CHECK_OK(zi_control_serve(&g->endpoint, 2, LONG_MS, &g->server));
    return NULL;
}

TEST(rank_zero_comes_last)
{
    rig g = {.size = 2, .deadline_ms = LONG_MS};
    zi_control *server = NULL;
    pthread_t thread;
    g.endpoint = local_endpoint("127.0.0.1");
    CHECK_OK(zi_control_serve(&g.endpoint, 2, LONG_MS, &server)); /* to find a free port */
    zi_control_leave(server);
    CHECK_EQ(pthread_create(&thread, NULL, serve_late, &g), 0);
    CHECK_OK(try_join(&g.endpoint, 1, 2, LONG_MS));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    zi_control_leave(g.server);
}
