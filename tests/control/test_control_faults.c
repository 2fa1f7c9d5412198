/* Owns the property that a world drawn at random, whatever happens to one of its connections,
 * threads or ranks, tells all of its ranks in time: a connection that breaks in the middle of a
 * record, a thread that stands still, and a rank that is killed at any turn. Each rank has the
 * records of every gather that succeeded, and no rank is further than one gather ahead of another
 * that was told of a failure.
 *
 * On the deterministic machine alone (tests/machine). `--case K` tries the K-th alone, `--cases N`
 * so many. */
#include "control_rig.h"
#include "machine.h"
#include "machine_network.h"

#define CASES 200
#define SIZE_MAX_RANKS 6
#define ROUNDS_MAX 12
#define LONG_STOP_MS (10 * SHORT_MS)
#define NS_PER_MS UINT64_C(1000000)
/* The port at which rank 0 serves; ports are the machine's own. */
#define PORT 5000
/* The time allowed beyond the deadline: a second for a name server, a second in leaving. */
#define SLACK_MS (2 * SOON_MS)
/* A connection that closes is seen at once, which takes some turns. */
#define AT_ONCE_MS 1

typedef enum fault { NO_FAULT, A_BREAK, A_SHORT_STOP, A_LONG_STOP, A_DEATH, FAULTS } fault;

typedef struct outcome {
    zero_status status; /* of what failed first */
    uint32_t rounds;    /* gathers that succeeded */
    uint64_t told_ns;   /* or all was over */
    uint64_t ended_ns;  /* 0: it died */
    bool stopped;       /* one of its threads stood still */
    char message[256];
} outcome;

typedef struct world {
    rig g;
    uint64_t number;
    uint32_t rounds;
    uint64_t draws;
    outcome of[SIZE_MAX_RANKS];
} world;

static uint32_t draw(world *w, uint32_t choices)
{
    return test_chance((test_seed << 40) + (w->number << 16) + w->draws++, choices);
}

static unsigned char byte_of(uint32_t rank, uint32_t round, uint32_t at)
{
    return (unsigned char)(rank * 31 + round * 7 + at);
}

static zero_status gather_round(const world *w, zi_control *control, uint32_t rank, uint32_t round)
{
    unsigned char mine[300];
    const uint32_t bytes = test_chance(w->number * 100 + round, sizeof mine + 1);
    for (uint32_t i = 0; i < bytes; i++) {
        mine[i] = byte_of(rank, round, i);
    }
    const zero_status status = zi_control_gather(control, mine, bytes, "a round");
    for (uint32_t r = 0; status == ZERO_OK && r < w->g.size; r++) {
        const unsigned char *theirs = zi_control_record(control, r);
        for (uint32_t i = 0; i < bytes; i++) {
            CHECK_EQ(theirs[i], byte_of(r, round, i));
        }
    }
    return status;
}

typedef struct joining_rank {
    world *w;
    uint32_t rank;
    pthread_t thread;
} joining_rank;

/* Rank 0 serves. */
static zero_status join(world *w, uint32_t rank, zi_control **control)
{
    zi_control_desc desc = rig_desc(&w->g, rank);
    zi_control_endpoint served = w->g.endpoint;
    desc.join_ms = SHORT_MS;
    desc.endpoint = &served;
    if (rank == 0) {
        const zero_status status = zi_control_serve(&served, w->g.size, SHORT_MS, &desc.served);
        if (status != ZERO_OK) {
            return status;
        }
    }
    return zi_control_join(&desc, control);
}

static void *be_a_rank(void *argument)
{
    const joining_rank *at = argument;
    world *w = at->w;
    outcome *out = &w->of[at->rank];
    zi_control *control = NULL;
    machine_process();
    zero_status status = join(w, at->rank, &control);
    for (out->rounds = 0; status == ZERO_OK && out->rounds < w->rounds;) {
        status = gather_round(w, control, at->rank, out->rounds);
        out->rounds += status == ZERO_OK;
    }
    out->status = status;
    (void)snprintf(out->message, sizeof out->message, "%s", zero_last_error()->message);
    out->told_ns = zi_clock_ns();
    zi_control_leave(control);
    out->ended_ns = zi_clock_ns();
    out->stopped = machine_has_stopped(pthread_self());
    return NULL;
}

static void run_world(world *w)
{
    joining_rank ranks[SIZE_MAX_RANKS];
    const uint32_t size = w->g.size;
    w->g = (rig){.size = size, .deadline_ms = SHORT_MS, .endpoint = local_endpoint("127.0.0.1")};
    w->g.endpoint.port = PORT;
    for (uint32_t i = 0; i < size; i++) {
        w->of[i] = (outcome){0};
        ranks[i] = (joining_rank){.w = w, .rank = i};
        CHECK_EQ(pthread_create(&ranks[i].thread, NULL, be_a_rank, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < size; i++) {
        CHECK_EQ(pthread_join(ranks[i].thread, NULL), 0);
    }
    rig_end(&w->g);
}

static void fail(const world *w, fault what, uint64_t broke_ns, const char *why)
{
    fprintf(stderr, "  case %" PRIu64 ": %u ranks, %u rounds, fault %d: %s\n", w->number, w->g.size,
            w->rounds, (int)what, why);
    for (uint32_t i = 0; i < w->g.size; i++) {
        const outcome *out = &w->of[i];
        fprintf(stderr,
                "    rank %u: %u rounds, told after %" PRIu64 " ms, left after %" PRIu64
                " ms, %s%s: %s\n",
                i, out->rounds, (out->told_ns - broke_ns) / NS_PER_MS,
                (out->ended_ns - broke_ns) / NS_PER_MS,
                out->ended_ns == 0 ? "died, " : (out->stopped ? "stood still, " : ""),
                zero_status_name(out->status), out->message);
    }
    TEST_FAIL("case %" PRIu64 ": %s", w->number, why);
}

/* Nobody waits for a deadline to learn of a connection that closed, once all have joined. */
static void check_told_at_once(const world *w, fault what, uint64_t broke_ns)
{
    for (uint32_t i = 0; i < w->g.size; i++) {
        const outcome *out = &w->of[i];
        const bool told = out->ended_ns != 0 && out->status != ZERO_OK;
        if (told && out->told_ns > broke_ns + AT_ONCE_MS * NS_PER_MS) {
            fail(w, what, broke_ns, "told of a closed connection after a while");
        }
    }
}

/* broke_ns: when the fault began. */
static void check_outcomes(const world *w, fault what, uint64_t broke_ns)
{
    const uint64_t limit_ns = broke_ns + (SHORT_MS + SLACK_MS) * NS_PER_MS;
    uint32_t failed = 0;
    uint32_t alive = 0;
    uint32_t least = UINT32_MAX;
    uint32_t most = 0;
    uint32_t late = 0;
    for (uint32_t i = 0; i < w->g.size; i++) {
        const outcome *out = &w->of[i];
        alive += out->ended_ns != 0;
        failed += out->ended_ns != 0 && out->status != ZERO_OK;
        least = out->rounds < least ? out->rounds : least;
        most = out->rounds > most ? out->rounds : most;
        late += !out->stopped && out->ended_ns > limit_ns;
        if (out->status != ZERO_OK && out->status != ZERO_ERR_COMM &&
            out->status != ZERO_ERR_TIMEOUT) {
            fail(w, what, broke_ns, "another status than COMM and TIMEOUT");
        }
    }
    if (failed != 0 && (what == NO_FAULT || what == A_SHORT_STOP)) {
        fail(w, what, broke_ns, "a failure");
    }
    if (failed != 0 && failed < alive && most < w->rounds) {
        fail(w, what, broke_ns, "some ranks were told and others not");
    }
    if (alive + (what == A_DEATH) < w->g.size) {
        fail(w, what, broke_ns, "a rank that was not killed has not ended");
    }
    if (most - least > 1) {
        fail(w, what, broke_ns, "a rank is two gathers ahead of another");
    }
    if ((what == A_BREAK || what == A_DEATH) && least != 0) {
        check_told_at_once(w, what, broke_ns);
    }
    /* The one that stands may be another thread of a rank, or the one that starts them all. */
    if (late > (what == A_LONG_STOP) && !machine_has_stopped(pthread_self())) {
        fail(w, what, broke_ns, "told too late");
    }
}

/* On a new machine, when what stood still on the last one has ended: a lookup of an address that
 * came too late is left alone. */
static void begin(const world *w)
{
    sleep_ms(LONG_STOP_MS);
    test_machine_begin((test_seed << 20) + w->number + 1);
    machine_network_break(0);
}

static uint32_t try_world(uint64_t number)
{
    world w = {.number = number};
    uint32_t failures = 0;
    w.g.size = 1 + draw(&w, SIZE_MAX_RANKS);
    w.rounds = 1 + draw(&w, ROUNDS_MAX);
    begin(&w);
    run_world(&w);
    const uint64_t sends = machine_network_sends();
    const uint64_t turns = machine_switches();
    check_outcomes(&w, NO_FAULT, zi_clock_ns());
    for (fault what = A_BREAK; what < FAULTS; what++) {
        const uint64_t ms = what == A_LONG_STOP ? LONG_STOP_MS : 1 + draw(&w, SHORT_MS / 3);
        begin(&w);
        if (what == A_BREAK) {
            machine_network_break(sends == 0 ? 0 : 1 + draw(&w, (uint32_t)sends));
        } else if (what == A_DEATH) {
            machine_kill(1 + draw(&w, (uint32_t)turns));
        } else {
            machine_stop(1 + draw(&w, (uint32_t)turns), ms * NS_PER_MS);
        }
        run_world(&w);
        const uint64_t began_ns = what == A_BREAK   ? machine_network_broken_ns()
                                  : what == A_DEATH ? machine_killed_ns()
                                                    : machine_stopped_ns();
        check_outcomes(&w, what, began_ns != 0 ? began_ns : zi_clock_ns());
        failures += machine_killed_ns() != 0 || w.of[0].status != ZERO_OK;
    }
    return failures;
}

TEST(a_fault_is_told_to_all_ranks_in_time)
{
    uint64_t first = 0;
    uint32_t failures = 0;
    const uint64_t count = test_cases(CASES, &first);
    for (uint64_t i = first; i < first + count; i++) {
        test_case_begins(i);
        failures += try_world(i);
    }
    printf("  %" PRIu64 " worlds, %u ended by a fault\n", FAULTS * count, failures);
    CHECK(count < CASES || failures > count / 4);
}
