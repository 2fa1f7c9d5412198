/* Owns the tests of the deterministic machine itself: that a seed is a run, that seeds differ, and
 * that what threads wait for and keep for themselves is as it is with threads of the system. */
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "machine.h"
#include "machine_internal.h"
#include "zero/zero.h"

#define THREADS 4

/* ---- turns ---- */

typedef struct counter {
    pthread_mutex_t mutex;
    bool guarded;
    uint32_t count;
} counter;

/* Adds 1 in two steps, between which others may have their turn. */
static void *add_slowly(void *argument)
{
    counter *c = argument;
    for (int i = 0; i < 3; i++) {
        if (c->guarded) {
            CHECK_EQ(pthread_mutex_lock(&c->mutex), 0);
        }
        const uint32_t seen = c->count;
        (void)sched_yield();
        c->count = seen + 1;
        if (c->guarded) {
            CHECK_EQ(pthread_mutex_unlock(&c->mutex), 0);
        }
    }
    return NULL;
}

/* The counter after threads have added to it; hash: of their turns. */
static uint32_t count_together(uint64_t seed, bool guarded, uint64_t *hash)
{
    counter c = {.mutex = PTHREAD_MUTEX_INITIALIZER, .guarded = guarded};
    pthread_t threads[THREADS];
    machine_begin(seed);
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, add_slowly, &c), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    CHECK(machine_switches() > 0);
    *hash = machine_log_hash();
    return c.count;
}

TEST(a_seed_is_a_run)
{
    uint64_t hash = 0;
    uint64_t again = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        const uint32_t count = count_together(seed, false, &hash);
        CHECK_EQ(count_together(seed, false, &again), count);
        CHECK_EQ(hash, again);
    }
}

/* A counter without its mutex loses additions, in other ways by other seeds; with it, by none. */
TEST(seeds_find_what_a_mutex_is_for)
{
    bool seen[3 * THREADS + 1] = {false};
    uint32_t kinds = 0;
    uint64_t hash = 0;
    uint64_t last = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        seen[count_together(seed, false, &hash)] = true;
        CHECK(hash != last);
        last = hash;
        CHECK_EQ(count_together(seed, true, &hash), 3 * THREADS);
    }
    for (uint32_t i = 0; i <= 3 * THREADS; i++) {
        kinds += seen[i];
    }
    CHECK(kinds >= 4);
}

/* A thread that stops is alone if others need not wait for its mutex. */
TEST(who_stops_with_a_mutex_is_not_alone)
{
    uint32_t alone[2] = {0, 0};
    for (uint64_t seed = 1; seed <= 50; seed++) {
        for (int guarded = 0; guarded < 2; guarded++) {
            counter c = {.mutex = PTHREAD_MUTEX_INITIALIZER, .guarded = guarded != 0};
            pthread_t thread;
            machine_begin(seed);
            CHECK_EQ(pthread_create(&thread, NULL, add_slowly, &c), 0);
            machine_stop(1 + machine_choose(3), 1000);
            CHECK_EQ(pthread_join(thread, NULL), 0);
            CHECK(machine_stopped_ns() != 0 && machine_has_stopped(thread));
            alone[guarded] += machine_stopped_alone();
        }
    }
    CHECK_EQ(alone[false], 50);
    CHECK(alone[true] > 0 && alone[true] < 50);
}

/* ---- waits ---- */

typedef struct meeting {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_barrier_t barrier;
    uint32_t tokens;
    uint32_t taken;
} meeting;

static void *take_token(void *argument)
{
    meeting *m = argument;
    (void)pthread_mutex_lock(&m->mutex);
    while (m->tokens == 0) {
        (void)pthread_cond_wait(&m->changed, &m->mutex);
    }
    m->tokens--;
    m->taken++;
    (void)pthread_mutex_unlock(&m->mutex);
    (void)pthread_barrier_wait(&m->barrier);
    CHECK_EQ(m->taken, THREADS);
    return NULL;
}

TEST(signals_broadcasts_and_barriers)
{
    for (uint64_t seed = 0; seed < 100; seed++) {
        meeting m = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
        pthread_t threads[THREADS];
        machine_begin(seed);
        CHECK_EQ(pthread_barrier_init(&m.barrier, NULL, THREADS), 0);
        for (int i = 0; i < THREADS; i++) {
            CHECK_EQ(pthread_create(&threads[i], NULL, take_token, &m), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            (void)pthread_mutex_lock(&m.mutex);
            m.tokens += i < THREADS - 2 ? 1 : i == THREADS - 1 ? 2 : 0;
            (void)(i < THREADS - 2 ? pthread_cond_signal : pthread_cond_broadcast)(&m.changed);
            (void)pthread_mutex_unlock(&m.mutex);
            (void)sched_yield();
        }
        for (int i = 0; i < THREADS; i++) {
            CHECK_EQ(pthread_join(threads[i], NULL), 0);
        }
        CHECK_EQ(m.tokens, 0);
        (void)pthread_barrier_destroy(&m.barrier);
    }
}

static uint64_t now_s(void)
{
    struct timespec now;
    CHECK_EQ(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (uint64_t)now.tv_sec;
}

/* Hours pass at once where all wait, and no earlier deadline is passed over. */
static void *sleep_hours(void *hours)
{
    const uint64_t before_s = now_s();
    const struct timespec span = {.tv_sec = (time_t)(3600 * *(uint64_t *)hours)};
    (void)nanosleep(&span, NULL);
    CHECK_EQ((now_s() - before_s + 1800) / 3600, *(uint64_t *)hours);
    return NULL;
}

TEST(a_deadline_costs_no_time)
{
    uint64_t hours[THREADS];
    pthread_t threads[THREADS];
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    alarm(20);
    for (uint64_t i = 0; i < THREADS; i++) {
        hours[i] = 1 + (i * 5) % 7;
        CHECK_EQ(pthread_create(&threads[i], NULL, sleep_hours, &hours[i]), 0);
    }
    struct timespec until;
    CHECK_EQ(clock_gettime(CLOCK_MONOTONIC, &until), 0);
    until.tv_sec += 24 * 3600;
    (void)pthread_mutex_lock(&mutex);
    CHECK_EQ(pthread_cond_timedwait(&never, &mutex, &until), ETIMEDOUT);
    (void)pthread_mutex_unlock(&mutex);
    CHECK_EQ(now_s(), (uint64_t)until.tv_sec);
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
}

/* All wait for ever: the program ends, and says so. */
TEST(a_deadlock_ends_the_program)
{
    const pid_t child = fork();
    if (child == 0) {
        pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
        pthread_cond_t never = PTHREAD_COND_INITIALIZER;
        (void)pthread_mutex_lock(&mutex);
        (void)pthread_cond_wait(&never, &mutex);
        _exit(0);
    }
    int state = 0;
    CHECK_EQ(waitpid(child, &state, 0), child);
    CHECK(WIFSIGNALED(state));
    CHECK_EQ(WTERMSIG(state), SIGABRT);
}

/* ---- what is a thread's own ---- */

static pthread_key_t own_key;
static _Thread_local uint32_t own_local = 7;
static uint32_t closed;

static void close_own(void *value)
{
    closed += *(uint32_t *)value;
}

static void *keep_own(void *argument)
{
    uint32_t *mine = argument;
    char name[32];
    (void)snprintf(name, sizeof name, "value %u", *mine);
    CHECK_EQ(pthread_setspecific(own_key, mine), 0);
    CHECK_EQ(own_local, 7);
    own_local = *mine;
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    for (int i = 0; i < 5; i++) {
        CHECK(zero_option_set(&options, &tuning, name, "1") != ZERO_OK);
        (void)sched_yield();
        CHECK_SAID(name);
        CHECK(pthread_getspecific(own_key) == mine);
        CHECK_EQ(own_local, *mine);
    }
    return NULL;
}

TEST(errors_locals_and_values_of_keys_are_a_threads_own)
{
    uint32_t values[THREADS] = {1, 2, 4, 8};
    pthread_t threads[THREADS];
    machine_begin(test_seed);
    CHECK_EQ(pthread_key_create(&own_key, close_own), 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, keep_own, &values[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    CHECK_EQ(closed, 15);
}

/* ---- an engine ---- */

#define RANKS 3
#define UNITS 4
#define COUNT 70

/* Three steps at stage 3; rank 0 keeps the norm of the last. */
static zero_status train(zero_world *world, void *user)
{
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    zero_engine_options options = zero_engine_options_init();
    options.threads = 1;
    CHECK_OK(zero_model_create(&model));
    for (int u = 0; u < UNITS; u++) {
        char name[16];
        (void)snprintf(name, sizeof name, "unit%d", u);
        const zero_tensor_desc desc = {.name = name, .dims = 1, .shape = {COUNT + (unsigned)u}};
        CHECK_OK(zero_unit_add(model,
                               &(zero_unit_desc){.name = name, .tensors = &desc, .tensor_count = 1},
                               NULL, NULL));
    }
    CHECK_OK(zero_engine_create(world, model, &options, &engine));
    zero_step_result result = zero_step_result_init();
    for (int step = 0; step < 3; step++) {
        zero_step_params params = zero_step_params_init();
        params.hyper.adamw = (zero_adamw){1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f};
        CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
        for (uint32_t u = 0; u < UNITS; u++) {
            CHECK_OK(zero_unit_acquire(engine, u, ZERO_PASS_FORWARD, zero_stream_host(), NULL));
            CHECK_OK(zero_unit_release(engine, u, zero_stream_host()));
        }
        for (uint32_t u = UNITS; u-- > 0;) {
            const zero_unit_view *view = NULL;
            CHECK_OK(zero_unit_acquire(engine, u, ZERO_PASS_BACKWARD, zero_stream_host(), &view));
            float *grad = view->grads[0].data;
            for (uint64_t i = 0; i < view->grads[0].count; i++) {
                grad[i] += (float)(i + u + (unsigned)step + zero_world_rank(world));
            }
            CHECK_OK(zero_unit_release(engine, u, zero_stream_host()));
        }
        CHECK_OK(zero_micro_end(engine));
        CHECK_OK(zero_step(engine, &params, zero_stream_host()));
    }
    CHECK_OK(zero_step_wait(engine, &result));
    if (zero_world_rank(world) == 0) {
        *(double *)user = result.norm;
    }
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    return ZERO_OK;
}

/* The turns of all threads of an engine follow from the seed, and its numbers from none. */
TEST(an_engine_is_the_same_run_again)
{
    double norm = 0;
    uint64_t last = 0;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        uint64_t hash[2];
        for (int again = 0; again < 2; again++) {
            double found = 0;
            machine_begin(seed);
            CHECK_OK(zero_world_run(RANKS, 0, train, &found));
            hash[again] = machine_log_hash();
            norm = norm == 0 ? found : norm;
            CHECK_SAME(found, norm);
        }
        CHECK_EQ(hash[0], hash[1]);
        CHECK(hash[0] != last);
        last = hash[0];
    }
    printf("  seed 50: hash %016" PRIx64 ", %" PRIu64 " turns\n", last, machine_switches());
}
