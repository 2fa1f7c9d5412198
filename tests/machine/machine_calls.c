/* Owns the calls by which the machine's threads wait for one another and for time. Mutexes,
 * conditions and barriers are the caller's memory, of which the first words are the machine's:
 * zeroed is what an initializer of the system makes, too. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/counter.h"
#include "machine_internal.h"

IN_PLACE_OF(clock_gettime);
IN_PLACE_OF(nanosleep);
IN_PLACE_OF(pthread_barrier_destroy);
IN_PLACE_OF(pthread_barrier_init);
IN_PLACE_OF(pthread_barrier_wait);
IN_PLACE_OF(pthread_cond_broadcast);
IN_PLACE_OF(pthread_cond_destroy);
IN_PLACE_OF(pthread_cond_init);
IN_PLACE_OF(pthread_cond_signal);
IN_PLACE_OF(pthread_cond_timedwait);
IN_PLACE_OF(pthread_cond_wait);
IN_PLACE_OF(pthread_mutex_destroy);
IN_PLACE_OF(pthread_mutex_init);
IN_PLACE_OF(pthread_mutex_lock);
IN_PLACE_OF(pthread_mutex_trylock);
IN_PLACE_OF(pthread_mutex_unlock);
IN_PLACE_OF(pthread_once);
IN_PLACE_OF(sched_getaffinity);
IN_PLACE_OF(sched_yield);
IN_PLACE_OF(syscall);
IN_PLACE_OF(usleep);
IN_PLACE_OF(zi_counter_raise);

#define NS_PER_S UINT64_C(1000000000)
/* The time that CLOCK_REALTIME is ahead of CLOCK_MONOTONIC. */
#define EPOCH_NS (1700000000 * NS_PER_S)
#define CPUS 2

/* ---- mutexes and conditions ---- */

static uint64_t ns_of(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec;
}

static uint32_t *word_of(void *object)
{
    return object;
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
    BEFORE_IT(pthread_mutex_init(mutex, attr));
    (void)attr;
    memset(mutex, 0, sizeof *mutex);
    return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    BEFORE_IT(pthread_mutex_destroy(mutex));
    (void)mutex;
    return 0;
}

/* A thread counts as holding it from when it asks: while it waits, another one's unlock may have
 * woken it alone, and the others sleep until it unlocks. */
static void take_mutex(pthread_mutex_t *mutex)
{
    machine_holds(1);
    while (*word_of(mutex) != 0) {
        (void)machine_wait(mutex, MACHINE_NEVER);
    }
    *word_of(mutex) = 1;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    BEFORE_IT(pthread_mutex_lock(mutex));
    /* Others may come first. */
    if (machine_choose(4) == 1) {
        machine_yield();
    }
    take_mutex(mutex);
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    BEFORE_IT(pthread_mutex_trylock(mutex));
    if (*word_of(mutex) != 0) {
        return EBUSY;
    }
    take_mutex(mutex);
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    BEFORE_IT(pthread_mutex_unlock(mutex));
    *word_of(mutex) = 0;
    machine_holds(-1);
    (void)machine_wake(mutex, 1);
    return 0;
}

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
{
    BEFORE_IT(pthread_cond_init(cond, attr));
    (void)attr;
    memset(cond, 0, sizeof *cond);
    return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *cond)
{
    BEFORE_IT(pthread_cond_destroy(cond));
    (void)cond;
    return 0;
}

static int cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t until_ns)
{
    (void)__wrap_pthread_mutex_unlock(mutex);
    const bool late = machine_wait(cond, until_ns);
    take_mutex(mutex);
    return late ? ETIMEDOUT : 0;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    BEFORE_IT(pthread_cond_wait(cond, mutex));
    return cond_wait(cond, mutex, MACHINE_NEVER);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    BEFORE_IT(pthread_cond_timedwait(cond, mutex, until));
    uint64_t until_ns = ns_of(until);
    until_ns -= until_ns >= EPOCH_NS ? EPOCH_NS : 0;
    return cond_wait(cond, mutex, until_ns);
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    BEFORE_IT(pthread_cond_signal(cond));
    (void)machine_wake(cond, 1);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    BEFORE_IT(pthread_cond_broadcast(cond));
    (void)machine_wake(cond, UINT32_MAX);
    return 0;
}

int __wrap_pthread_barrier_init(pthread_barrier_t *barrier, const pthread_barrierattr_t *attr,
                                unsigned count)
{
    BEFORE_IT(pthread_barrier_init(barrier, attr, count));
    (void)attr;
    memset(barrier, 0, sizeof *barrier);
    word_of(barrier)[0] = count;
    return 0;
}

int __wrap_pthread_barrier_destroy(pthread_barrier_t *barrier)
{
    BEFORE_IT(pthread_barrier_destroy(barrier));
    (void)barrier;
    return 0;
}

int __wrap_pthread_barrier_wait(pthread_barrier_t *barrier)
{
    BEFORE_IT(pthread_barrier_wait(barrier));
    uint32_t *words = word_of(barrier); /* members, of them here, generation */
    const uint32_t generation = words[2];
    if (++words[1] == words[0]) {
        words[1] = 0;
        words[2]++;
        (void)machine_wake(barrier, UINT32_MAX);
        return PTHREAD_BARRIER_SERIAL_THREAD;
    }
    while (words[2] == generation) {
        (void)machine_wait(barrier, MACHINE_NEVER);
    }
    return 0;
}

/* In glibc's own words, 1 while it runs and 2 when it is done: some are done before the machine is.
 */
int __wrap_pthread_once(pthread_once_t *once, void (*run)(void))
{
    BEFORE_IT(pthread_once(once, run));
    while (*once == 1) {
        (void)machine_wait(once, MACHINE_NEVER);
    }
    if (*once == PTHREAD_ONCE_INIT) {
        *once = 1;
        run();
        *once = 2;
        (void)machine_wake(once, UINT32_MAX);
    }
    return 0;
}

/* ---- CPUs: the same number everywhere, for it decides how threads wait ---- */

int __wrap_sched_getaffinity(pid_t process, size_t bytes, cpu_set_t *set)
{
    BEFORE_IT(sched_getaffinity(process, bytes, set));
    memset(set, 0, bytes);
    for (size_t cpu = 0; cpu < CPUS; cpu++) {
        CPU_SET_S(cpu, bytes, set);
    }
    return 0;
}

/* ---- time ---- */

int __wrap_sched_yield(void)
{
    BEFORE_IT(sched_yield());
    machine_yield();
    return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    BEFORE_IT(clock_gettime(clock, out));
    const uint64_t ns = machine_time() + (clock == CLOCK_REALTIME ? EPOCH_NS : 0);
    *out = (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    return 0;
}

int __wrap_nanosleep(const struct timespec *span, struct timespec *rest)
{
    BEFORE_IT(nanosleep(span, rest));
    (void)rest;
    machine_pause(ns_of(span));
    return 0;
}

int __wrap_usleep(useconds_t us)
{
    BEFORE_IT(usleep(us));
    machine_pause(us * UINT64_C(1000));
    return 0;
}

/* As taking a mutex is: others may come first. */
void __wrap_zi_counter_raise(zi_counter *counter, uint64_t value)
{
    if (machine_is_on() && machine_choose(4) == 1) {
        machine_yield();
    }
    __real_zi_counter_raise(counter, value);
}

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *span)
{
    switch (operation & ~FUTEX_PRIVATE_FLAG) {
    case FUTEX_WAIT:
        if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
            errno = EAGAIN;
            return -1;
        }
        if (machine_wait(word, span == NULL ? MACHINE_NEVER : machine_time() + ns_of(span))) {
            errno = ETIMEDOUT;
            return -1;
        }
        return 0;
    case FUTEX_WAKE:
        return (long)machine_wake(word, value);
    default:
        abort();
    }
}

long __wrap_syscall(long number, ...)
{
    va_list list;
    long a[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(list, long);
    }
    va_end(list);
    if (number == SYS_futex && machine_is_on()) {
        return futex((uint32_t *)a[0], (int)a[1], (uint32_t)a[2], (const struct timespec *)a[3]);
    }
    if (number == SYS_renameat2 && a[4] == RENAME_EXCHANGE && machine_is_on()) {
        return machine_exchange((const char *)a[1], (const char *)a[3]);
    }
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
