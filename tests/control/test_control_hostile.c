/* Strangers at the server's port, and ranks that break the rules: each is dropped, and the ranks of
 * the world, which gather all the while, notice nothing. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include "control_rig.h"

#define RANKS 3 /* of 4: one rank is left for who pretends to be a rank */
#define SIZE 4

/* ---- a world that goes on ---- */

typedef struct busy {
    rig g;
    _Atomic uint32_t checks; /* of each rank's health, all together */
    _Atomic int stop;
    rig_rank ranks[RANKS];
} busy;

/* Rank 3 never comes, so ranks check that nobody has failed. */
static void *busy_main(void *argument)
{
    rig_rank *r = argument;
    busy *b = (busy *)r->g;
    const zi_control_desc desc = rig_desc(r->g, r->rank);
    zi_control *control = NULL;
    char silent[ZI_SILENCE_TEXT_BYTES];
    CHECK_OK(zi_control_join(&desc, &control));
    (void)pthread_barrier_wait(&b->g.met);
    while (atomic_load(&b->stop) == 0) {
        CHECK_OK(zi_control_check(control));
        CHECK_EQ(*zi_silence_text(desc.silence, silent, sizeof silent), 0);
        atomic_fetch_add(&b->checks, 1);
        sleep_ms(1);
    }
    if (r->rank == 1) { /* the one that was missing comes: everything still works */
        const zi_control_desc last = rig_desc(r->g, 3);
        zi_control *fourth = NULL;
        CHECK_OK(zi_control_join(&last, &fourth));
        zi_control_leave(fourth);
    }
    (void)pthread_barrier_wait(&b->g.met);
    CHECK_FAILS(zi_control_gather(control, NULL, 0, "a barrier"), ZERO_ERR_COMM,
                "rank 3 left the world");
    zi_control_leave(control);
    return NULL;
}

static void busy_start(busy *b)
{
    memset(b, 0, sizeof *b);
    b->g.size = SIZE;
    b->g.deadline_ms = LONG_MS;
    b->g.endpoint = local_endpoint("127.0.0.1");
    CHECK_OK(zi_control_serve(&b->g.endpoint, SIZE, LONG_MS, &b->g.server));
    CHECK_EQ(pthread_barrier_init(&b->g.met, NULL, RANKS), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        b->ranks[i] = (rig_rank){.g = &b->g, .rank = i};
        CHECK_EQ(pthread_create(&b->ranks[i].thread, NULL, busy_main, &b->ranks[i]), 0);
    }
    AWAIT(atomic_load(&b->checks) > 10);
}

static void busy_end(busy *b)
{
    const uint32_t before = atomic_load(&b->checks);
    AWAIT(atomic_load(&b->checks) > before + 20);
    atomic_store(&b->stop, 1);
    for (uint32_t i = 0; i < RANKS; i++) {
        CHECK_EQ(pthread_join(b->ranks[i].thread, NULL), 0);
    }
    CHECK_EQ(pthread_barrier_destroy(&b->g.met), 0);
    rig_end(&b->g);
}

/* ---- strangers ---- */

static struct sockaddr_in address_of(const busy *b)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_addr = {htonl(INADDR_LOOPBACK)},
                                .sin_port = htons((uint16_t)b->g.endpoint.port)};
}

/* -1 where the system has no port left, or the server is gone. */
static int try_stranger(const busy *b)
{
    const struct sockaddr_in at = address_of(b);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    if (connect(fd, (const void *)&at, sizeof at) != 0) {
        CHECK_EQ(close(fd), 0);
        return -1;
    }
    return fd;
}

static int stranger(const busy *b)
{
    const int fd = try_stranger(b);
    CHECK(fd >= 0);
    return fd;
}

/* Read until the server closes: within its two seconds, and some. */
static void expect_close(int fd)
{
    char bytes[256];
    const uint64_t start_ns = zi_clock_ns();
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    for (;;) {
        CHECK_EQ(poll(&polled, 1, 20000), 1);
        const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        if (got <= 0) {
            break;
        }
    }
    CHECK(in_time(start_ns, 4000));
    CHECK_EQ(close(fd), 0);
}

static void say(int fd, const void *bytes, size_t count)
{
    (void)send(fd, bytes, count, MSG_NOSIGNAL);
}

static void say_frame(int fd, uint16_t kind, uint32_t bytes, uint64_t number)
{
    const zi_control_frame frame = {.kind = kind, .bytes = bytes, .number = number};
    say(fd, &frame, sizeof frame);
}

static zi_control_challenge hear_challenge(int fd)
{
    zi_control_frame frame;
    zi_control_challenge challenge;
    CHECK_EQ(recv(fd, &frame, sizeof frame, MSG_WAITALL), (ssize_t)sizeof frame);
    CHECK_EQ(frame.kind, ZI_CONTROL_CHALLENGE);
    CHECK_EQ(recv(fd, &challenge, sizeof challenge, MSG_WAITALL), (ssize_t)sizeof challenge);
    return challenge;
}

/* A right hello, but for what the caller changes after the proof. */
static zi_control_hello make_hello(const busy *b, const zi_control_challenge *challenge,
                                   uint32_t rank, uint32_t size)
{
    zi_control_hello hello = {.own = *challenge, .name = {.rank = rank, .size = size, .pid = 1}};
    hello.proof = zi_control_proof(&b->g.endpoint.key, &challenge->nonce, &hello.name);
    return hello;
}

static void say_hello(int fd, const zi_control_hello *hello)
{
    say_frame(fd, ZI_CONTROL_HELLO, sizeof *hello, 0);
    say(fd, hello, sizeof *hello);
}

/* The server answers with this refusal and closes. */
static void expect_refusal(int fd, uint16_t why)
{
    zi_control_frame frame;
    CHECK_EQ(recv(fd, &frame, sizeof frame, MSG_WAITALL), (ssize_t)sizeof frame);
    CHECK_EQ(frame.kind, ZI_CONTROL_REFUSAL);
    CHECK_EQ(frame.status, why);
    expect_close(fd);
}

TEST(hellos_that_are_refused)
{
    busy b;
    busy_start(&b);
    for (int turn = 0; turn < 6; turn++) {
        const int fd = stranger(&b);
        const zi_control_challenge challenge = hear_challenge(fd);
        zi_control_hello hello =
            make_hello(&b, &challenge, turn == 3 ? 1 : 3, turn == 2 ? 5 : SIZE);
        uint16_t why = ZI_CONTROL_OTHER_JOB;
        if (turn == 0) {
            hello.proof ^= 1; /* a wrong token */
        } else if (turn == 1) {
            hello.own.version++;
            why = ZI_CONTROL_OTHER_VERSION;
        } else if (turn == 2) {
            why = ZI_CONTROL_OTHER_SIZE;
        } else if (turn == 3) {
            why = ZI_CONTROL_RANK_TAKEN;
        } else if (turn == 4) {
            hello.name.rank = 2; /* not what was proved */
        } else {
            zi_control_nonce old = {{7, 7}}; /* a proof that was heard elsewhere */
            hello.proof = zi_control_proof(&b.g.endpoint.key, &old, &hello.name);
        }
        say_hello(fd, &hello);
        expect_refusal(fd, why);
    }
    busy_end(&b);
}

/* Frames that may not come before a hello, or not at all, and hellos of other sizes. */
TEST(frames_of_strangers)
{
    static const struct {
        uint16_t kind;
        uint32_t bytes;
    } rows[] = {
        {ZI_CONTROL_HELLO, UINT32_MAX}, {ZI_CONTROL_HELLO, sizeof(zi_control_hello) + 1},
        {ZI_CONTROL_HELLO, 0},          {ZI_CONTROL_GATHER, 16},
        {ZI_CONTROL_HEARTBEAT, 0},      {ZI_CONTROL_NOTICE, 10},
        {ZI_CONTROL_GOODBYE, 0},        {ZI_CONTROL_FAILED, 0},
        {ZI_CONTROL_GATHERED, 1 << 30}, {ZI_CONTROL_KINDS, 0},
        {UINT16_MAX, UINT32_MAX},
    };
    busy b;
    busy_start(&b);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int fd = stranger(&b);
        say_frame(fd, rows[i].kind, rows[i].bytes, 1);
        expect_close(fd);
    }
    busy_end(&b);
}

TEST(garbage)
{
    busy b;
    unsigned char bytes[4096];
    busy_start(&b);
    for (uint32_t turn = 0; turn < 50; turn++) {
        const int fd = stranger(&b);
        const size_t count = 24 + test_chance(turn + test_seed, sizeof bytes - 24);
        for (size_t i = 0; i < count; i++) {
            bytes[i] = (unsigned char)test_chance(test_seed * 4096 + turn * 4096 + i, 256);
        }
        say(fd, turn == 0 ? (const void *)"GET / HTTP/1.1\r\nHost: node0\r\n\r\n" : bytes,
            turn == 0 ? 31 : count);
        expect_close(fd);
    }
    busy_end(&b);
}

/* Half a frame, nothing at all, and a byte now and then: none may stay for longer than 2 s. */
TEST(slow_strangers)
{
    busy b;
    int fds[3];
    busy_start(&b);
    for (int i = 0; i < 3; i++) {
        fds[i] = stranger(&b);
    }
    say(fds[0], "half", 4);
    const uint64_t start_ns = zi_clock_ns();
    while (elapsed_ms(start_ns) < 1500) {
        const zi_control_frame frame = {.kind = ZI_CONTROL_HELLO,
                                        .bytes = sizeof(zi_control_hello)};
        const size_t at = elapsed_ms(start_ns) / 100;
        say(fds[1], (const char *)&frame + at, 1);
        sleep_ms(100);
    }
    for (int i = 0; i < 3; i++) {
        expect_close(fds[i]);
    }
    busy_end(&b);
}

/* More connections than there are places for newcomers: the oldest go, and a rank still comes in.
 */
TEST(a_flood)
{
    enum { MANY = 300 };
    busy b;
    int fds[MANY];
    busy_start(&b);
    for (int i = 0; i < MANY; i++) {
        fds[i] = stranger(&b);
    }
    const int fd = stranger(&b);
    const zi_control_challenge challenge = hear_challenge(fd);
    const zi_control_hello hello = make_hello(&b, &challenge, 3, SIZE + 1);
    say_hello(fd, &hello);
    expect_refusal(fd, ZI_CONTROL_OTHER_SIZE);
    for (int i = 0; i < MANY; i++) {
        expect_close(fds[i]);
    }
    busy_end(&b);
}

/* ---- connections without end ---- */

/* While it is on, there is always one more connection, of a stranger that has gone. */
static struct {
    _Atomic int on;
    _Atomic uint32_t accepted;
    _Atomic uint32_t asked; /* calls, whether it is on or not */
} endless;

/* More than the turns that the test's gathers take can accept. */
#define ENDLESS_MAX 200000

int __real_zi_control_accept(int listener);
int __wrap_zi_control_accept(int listener);

int __wrap_zi_control_accept(int listener)
{
    int pair[2];
    atomic_fetch_add(&endless.asked, 1);
    if (atomic_load(&endless.on) == 0) {
        return __real_zi_control_accept(listener);
    }
    if (atomic_fetch_add(&endless.accepted, 1) >= ENDLESS_MAX) {
        TEST_FAIL("%d connections were accepted while ranks wait", ENDLESS_MAX);
    }
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    CHECK_EQ(close(pair[1]), 0);
    return pair[0];
}

/* A connection that nobody accepts keeps the listener readable. */
static void amid_endless(zi_control *control, uint32_t rank, rig *g)
{
    const zero_error error = {.status = ZERO_ERR_IO, .message = "the disk is full"};
    busy *b = g->user;
    gather_once(control, rank, g->size, 0);
    if (rank == 0) {
        atomic_store(&endless.on, 1);
        (void)stranger(b); /* until the process ends */
    }
    (void)pthread_barrier_wait(&g->met);
    for (uint32_t round = 1; round < 50; round++) {
        gather_once(control, rank, g->size, round);
        CHECK_OK(zi_control_check(control));
    }
    (void)pthread_barrier_wait(&g->met);
    if (rank == g->size - 1) {
        zi_control_abort(control, &error);
    }
    AWAIT(zi_control_check(control) != ZERO_OK);
    CHECK_FAILS(zi_control_check(control), ZERO_ERR_COMM, "rank 3: the disk is full");
    (void)pthread_barrier_wait(&g->met);
    atomic_store(&endless.on, 0);
}

/* However many connections there are, each turn serves the ranks, and none waits for the mutex. */
TEST(more_connections_than_can_be_accepted)
{
    static busy b;
    b.g.user = &b;
    rig_serve(&b.g, SIZE, LONG_MS);
    rig_run(&b.g, amid_endless);
    CHECK(atomic_load(&endless.accepted) > 50);
    printf("  %u connections amid 50 gathers\n", atomic_load(&endless.accepted));
}

#define FLOODERS 4
#define HELD 32          /* connections of each that stay open */
#define FLOOD_ROUNDS 100 /* gathers meanwhile */

typedef struct flood {
    busy b; /* of which the endpoint */
    _Atomic uint32_t connections;
    _Atomic uint32_t worst_ms; /* that a rank waited for anything */
    _Atomic uint64_t aborted_ns;
    _Atomic int stop;
} flood;

/* Connect as fast as the system takes it. */
static void *flood_main(void *argument)
{
    flood *f = argument;
    const struct linger at_once = {.l_onoff = 1};
    int held[HELD];
    for (uint32_t i = 0; i < HELD; i++) {
        held[i] = -1;
    }
    for (uint32_t i = 0; atomic_load(&f->stop) == 0; i = (i + 1) % HELD) {
        if (held[i] >= 0) {
            CHECK_EQ(close(held[i]), 0);
        }
        held[i] = try_stranger(&f->b);
        if (held[i] >= 0) {
            CHECK_EQ(setsockopt(held[i], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
            atomic_fetch_add(&f->connections, 1);
        }
    }
    for (uint32_t i = 0; i < HELD; i++) {
        (void)close(held[i]);
    }
    return NULL;
}

static void note_wait(flood *f, uint64_t start_ns)
{
    const uint32_t ms = (uint32_t)elapsed_ms(start_ns);
    uint32_t worst = atomic_load(&f->worst_ms);
    while (ms > worst && !atomic_compare_exchange_weak(&f->worst_ms, &worst, ms)) {
    }
}

/* Gathers, then the last rank gives up, and the others ask until they know. */
static void amid_flood(zi_control *control, uint32_t rank, rig *g)
{
    flood *f = g->user;
    const zero_error error = {.status = ZERO_ERR_IO, .message = "the disk is full"};
    for (uint32_t round = 0; round < FLOOD_ROUNDS; round++) {
        const uint64_t start_ns = zi_clock_ns();
        gather_once(control, rank, g->size, round);
        CHECK_OK(zi_control_check(control));
        note_wait(f, start_ns);
    }
    (void)pthread_barrier_wait(&g->met);
    if (rank == g->size - 1) {
        atomic_store(&f->aborted_ns, zi_clock_ns());
        zi_control_abort(control, &error);
    }
    AWAIT(zi_control_check(control) != ZERO_OK);
    CHECK_FAILS(zi_control_check(control), ZERO_ERR_COMM, "rank 3: the disk is full");
    note_wait(f, atomic_load(&f->aborted_ns));
    (void)pthread_barrier_wait(&g->met);
}

/* Whoever connects as fast as he can delays neither the meeting of the ranks nor what they say. */
TEST(a_flood_without_end)
{
    pthread_t threads[FLOODERS];
    flood *f = calloc(1, sizeof *f);
    CHECK(f != NULL);
    rig *g = &f->b.g;
    g->user = f;
    rig_serve(g, SIZE, LONG_MS);
    for (uint32_t i = 0; i < FLOODERS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, flood_main, f), 0);
    }
    AWAIT(atomic_load(&f->connections) > 1000);
    const uint64_t start_ns = zi_clock_ns();
    rig_run(g, amid_flood);
    printf("  %u connections, ranks amid them for %u ms, the longest wait %u ms\n",
           atomic_load(&f->connections), (uint32_t)elapsed_ms(start_ns), atomic_load(&f->worst_ms));
    CHECK(atomic_load(&f->worst_ms) < allowed_ms(2 * SOON_MS));
    atomic_store(&f->stop, 1);
    for (uint32_t i = 0; i < FLOODERS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    free(f);
}

/* ---- a process that is out of file descriptors ---- */

static void count_full(void *user, zero_log_level level, const char *message)
{
    if (level == ZERO_LOG_WARN && strstr(message, "ulimit -n") != NULL) {
        CHECK(strstr(message, strerror(EMFILE)) != NULL);
        atomic_fetch_add((_Atomic uint32_t *)user, 1);
    }
}

static uint64_t cpu_ms(void)
{
    struct timespec spent;
    CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent), 0);
    return (uint64_t)spent.tv_sec * 1000 + (uint64_t)spent.tv_nsec / 1000000;
}

/* A stranger that cannot be accepted waits in the listener's queue; the thread does not spin for
 * it, the world goes on, and the stranger is served when there are descriptors again. */
TEST(no_descriptor_left)
{
    enum { WATCHED_MS = 1500, DESCRIPTORS = 512 };
    busy b;
    _Atomic uint32_t warnings = 0;
    struct rlimit limit;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    busy_start(&b);
    zero_log_set(count_full, &warnings);
    const int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(own >= 0);
    int taken[DESCRIPTORS]; /* all below the limit are: poll refuses to look at more than that */
    uint32_t count = 0;
    while ((taken[count] = dup(own)) < DESCRIPTORS) {
        CHECK(taken[count++] >= 0);
    }
    CHECK_EQ(close(taken[count]), 0);
    const struct rlimit full = {.rlim_cur = DESCRIPTORS, .rlim_max = limit.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
    const struct sockaddr_in at = address_of(&b);
    CHECK_EQ(connect(own, (const void *)&at, sizeof at), 0);
    AWAIT(atomic_load(&warnings) != 0);
    const uint32_t asked = atomic_load(&endless.asked);
    const uint64_t cpu = cpu_ms();
    sleep_ms(WATCHED_MS);
    CHECK(atomic_load(&endless.asked) - asked <= 5);
    CHECK(cpu_ms() - cpu < WATCHED_MS / (UNDER_SANITIZER ? 1 : 3));
    CHECK_EQ(atomic_load(&warnings), 1);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    (void)hear_challenge(own);
    expect_close(own);
    while (count > 0) {
        CHECK_EQ(close(taken[--count]), 0);
    }
    zero_log_set(NULL, NULL);
    busy_end(&b);
}

/* ---- a rank that breaks the rules ---- */

/* A rank of the job that breaks the rules is taken for dead: the others are told. */
static void break_rule(uint16_t kind, uint32_t bytes, uint64_t number)
{
    zi_control *server = NULL;
    zi_control *zero = NULL;
    busy b = {.stop = 0};
    b.g.endpoint = local_endpoint("127.0.0.1");
    CHECK_OK(zi_control_serve(&b.g.endpoint, 2, LONG_MS, &server));
    b.g.size = 2;
    b.g.deadline_ms = LONG_MS;
    b.g.server = server;
    const zi_control_desc desc = rig_desc(&b.g, 0);
    CHECK_OK(zi_control_join(&desc, &zero));
    const int fd = stranger(&b);
    const zi_control_challenge challenge = hear_challenge(fd);
    const zi_control_hello hello = make_hello(&b, &challenge, 1, 2);
    say_hello(fd, &hello);
    say_frame(fd, kind, bytes, number);
    expect_close(fd);
    CHECK_FAILS(zi_control_gather(zero, NULL, 0, "a barrier"), ZERO_ERR_COMM,
                "rank 1: process 1 on ");
    zi_control_leave(zero);
    rig_end(&b.g);
}

TEST_CALL(a_second_hello, break_rule(ZI_CONTROL_HELLO, sizeof(zi_control_hello), 0));
TEST_CALL(a_record_that_is_too_long, break_rule(ZI_CONTROL_GATHER, 65537, 1));
TEST_CALL(a_record_of_another_gather, break_rule(ZI_CONTROL_GATHER, 0, 2));
TEST_CALL(a_result_from_a_rank, break_rule(ZI_CONTROL_GATHERED, 0, 1));
