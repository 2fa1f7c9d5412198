/* core/counter: it only grows, nobody who waits is forgotten, and who has seen a value may free the
 * counter at once. A wake-up that is lost hangs the test, which its time limit ends. */
#include "harness.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/counter.h"

#define ROUNDS UINT64_C(20000)
#define WAITERS 4
#define COUNTERS 2000

TEST(it_only_grows)
{
    zi_counter counter = {0};
    CHECK_EQ(zi_counter_get(&counter), 0);
    zi_counter_await(&counter, 0);
    zi_counter_raise(&counter, 5);
    zi_counter_raise(&counter, 3);
    CHECK_EQ(zi_counter_get(&counter), 5);
    zi_counter_await(&counter, 5);
    zi_counter_raise(&counter, UINT64_C(1) << 60);
    CHECK_EQ(zi_counter_get(&counter), UINT64_C(1) << 60);
}

/* Two threads that raise in turn. */
typedef struct turns {
    zi_counter mine;
    zi_counter yours;
    uint64_t first;
    uint64_t sum; /* written by one, then by the other, with nothing else between them */
} turns;

static void *answer(void *argument)
{
    turns *t = argument;
    for (uint64_t i = t->first; i < t->first + ROUNDS; i++) {
        zi_counter_await(&t->mine, i);
        t->sum++;
        zi_counter_raise(&t->yours, i);
    }
    return NULL;
}

/* first: of the values; those beyond 2^31 do not fit the half that a futex has. */
static void take_turns(uint64_t first)
{
    turns t = {.first = first};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, answer, &t), 0);
    for (uint64_t i = first; i < first + ROUNDS; i++) {
        t.sum++;
        zi_counter_raise(&t.mine, i);
        zi_counter_await(&t.yours, i);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(t.sum, 2 * ROUNDS);
}

TEST(turns_are_taken)
{
    take_turns(1);
    take_turns((UINT64_C(1) << 31) - ROUNDS / 2);
}

/* One of several who wait for different values of one counter. */
typedef struct waiter {
    zi_counter *counter;
    uint64_t step;
} waiter;

static void *wait_by_steps(void *argument)
{
    const waiter *w = argument;
    for (uint64_t value = w->step; value <= ROUNDS; value += w->step) {
        zi_counter_await(w->counter, value);
        if (zi_counter_get(w->counter) < value) {
            return argument;
        }
    }
    return NULL;
}

TEST(all_who_wait_are_woken)
{
    zi_counter counter = {0};
    waiter waiters[WAITERS];
    pthread_t threads[WAITERS];
    for (uint64_t i = 0; i < WAITERS; i++) {
        waiters[i] = (waiter){&counter, i + 1};
        CHECK_EQ(pthread_create(&threads[i], NULL, wait_by_steps, &waiters[i]), 0);
    }
    for (uint64_t value = 1; value <= ROUNDS; value++) {
        zi_counter_raise(&counter, value);
    }
    for (int i = 0; i < WAITERS; i++) {
        void *early = NULL;
        CHECK_EQ(pthread_join(threads[i], &early), 0);
        CHECK(early == NULL);
    }
}

static void *raise_all(void *argument)
{
    zi_counter **counters = argument;
    for (int i = 0; i < COUNTERS; i++) {
        zi_counter_raise(counters[i], 1);
    }
    return NULL;
}

TEST(who_has_waited_may_free_it)
{
    zi_counter *counters[COUNTERS];
    pthread_t thread;
    for (int i = 0; i < COUNTERS; i++) {
        counters[i] = calloc(1, sizeof *counters[i]);
        CHECK(counters[i] != NULL);
    }
    CHECK_EQ(pthread_create(&thread, NULL, raise_all, counters), 0);
    for (int i = 0; i < COUNTERS; i++) {
        zi_counter_await(counters[i], 1);
        free(counters[i]);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
}
