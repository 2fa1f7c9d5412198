/* Owns the threads of a deterministic machine (machine.h). Each is a fiber: a stack, and where it
 * stopped. What a fiber waits for is an address: of a condition, a mutex, a futex word, a fiber.
 * Invariant: exactly one fiber runs, and the thread-local variables of the program are its own, and
 * errno. */
#include "machine.h"

#include <errno.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "machine_internal.h"

/* What meson.build lets the linker put in place of them. */
#define IN_PLACE_OF(name) __typeof__(name) __wrap_##name, __real_##name
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
IN_PLACE_OF(pthread_create);
IN_PLACE_OF(pthread_detach);
IN_PLACE_OF(pthread_getspecific);
IN_PLACE_OF(pthread_join);
IN_PLACE_OF(pthread_key_create);
IN_PLACE_OF(pthread_mutex_destroy);
IN_PLACE_OF(pthread_mutex_init);
IN_PLACE_OF(pthread_mutex_lock);
IN_PLACE_OF(pthread_mutex_trylock);
IN_PLACE_OF(pthread_mutex_unlock);
IN_PLACE_OF(pthread_once);
IN_PLACE_OF(pthread_self);
IN_PLACE_OF(pthread_setname_np);
IN_PLACE_OF(pthread_setspecific);
IN_PLACE_OF(sched_getaffinity);
IN_PLACE_OF(sched_yield);
IN_PLACE_OF(syscall);

/* Before machine_begin threads are the system's. */
#define BEFORE_IT(call)                \
    do {                               \
        if (machine.current == NULL) { \
            return __real_##call;      \
        }                              \
    } while (0)

#define STACK_BYTES ((size_t)1 << 20)
#define NS_PER_S UINT64_C(1000000000)
#define NEVER UINT64_MAX
/* The clock's first value; what asking for the time takes. */
#define START_NS (1000 * NS_PER_S)
#define TICK_NS 50
/* What CLOCK_REALTIME is ahead of CLOCK_MONOTONIC. */
#define EPOCH_NS (1700000000 * NS_PER_S)

#define CPUS 2
/* Fibers that wait are counted by so many classes of addresses. */
#define CLASSES 1024

/* Of pthread_key_create, beyond the system's, which are there before the machine is. */
#define KEYS 8
#define KEY_FIRST 4096

typedef enum fiber_state { READY, WAITING, OVER } fiber_state;

typedef struct fiber {
    struct fiber *next;  /* of all, in the order of their making */
    struct fiber *later; /* of those that are ready, or that are free */
    uint64_t number;
    fiber_state state;
    const void *awaited; /* while WAITING; NULL: time alone */
    uint64_t until_ns;   /* while WAITING; NEVER: no deadline */
    bool timed_out;
    bool stands; /* while WAITING: machine_stop has stopped it */
    bool detached;
    bool started;
    void *(*run)(void *);
    void *argument;
    void *result;
    void *stack;
    jmp_buf at;
    void *values[KEYS];    /* of pthread_setspecific */
    unsigned char *locals; /* the program's thread-local variables, while it does not run */
    int code;              /* errno */
} fiber;

static struct {
    fiber first; /* the program's first thread */
    fiber *current;
    fiber *all;
    fiber **end;
    fiber *ready;
    fiber **ready_end;
    uint32_t ready_count;
    uint32_t waiting[CLASSES];
    fiber *spare;
    uint64_t made;
    uint64_t seed;
    uint64_t drawn;
    uint64_t now_ns;
    uint64_t hash;
    uint64_t switches;
    uint64_t stop_in; /* so many turns; 0: never */
    uint64_t stop_ns;
    uint64_t stopped_ns;
    const fiber *stopped;
    void (*close[KEYS])(void *); /* of pthread_key_create */
    uint32_t keys;
    unsigned char *locals;      /* where the program's thread-local variables are */
    const unsigned char *image; /* with which they begin, and zeros behind it */
    size_t locals_bytes;
    size_t image_bytes;
} machine;

/* The first of all loaded objects is the program, which has the library in it. */
static int find_locals(struct dl_phdr_info *info, size_t bytes, void *user)
{
    (void)bytes;
    (void)user;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            machine.locals = info->dlpi_tls_data;
            machine.image =
                (const unsigned char *)(uintptr_t)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
            machine.locals_bytes = info->dlpi_phdr[i].p_memsz;
            machine.image_bytes = info->dlpi_phdr[i].p_filesz;
        }
    }
    return 1;
}

static unsigned char *make_locals(void)
{
    unsigned char *locals = malloc(machine.locals_bytes + 1);
    if (locals == NULL) {
        abort();
    }
    return locals;
}

static void start(void)
{
    machine.current = &machine.first;
    machine.all = &machine.first;
    machine.end = &machine.first.next;
    machine.ready_end = &machine.ready;
    machine.now_ns = START_NS;
    machine.first.started = true;
    (void)dl_iterate_phdr(find_locals, NULL);
    machine.first.locals = make_locals();
}

static uint64_t draw(void)
{
    uint64_t x = machine.seed + ++machine.drawn * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

bool machine_is_on(void)
{
    return machine.current != NULL;
}

uint32_t machine_choose(uint32_t count)
{
    return machine.seed != 0 && count > 1 ? (uint32_t)(draw() % count) : 0;
}

void machine_begin(uint64_t seed)
{
    if (machine.current == NULL) {
        start();
    }
    machine.seed = seed;
    machine.drawn = 0;
    machine.made = 0;
    machine.now_ns = START_NS;
    machine.hash = 0;
    machine.switches = 0;
    machine_stop(0, 0);
}

void machine_stop(uint64_t nth, uint64_t ns)
{
    machine.stop_in = nth;
    machine.stop_ns = ns;
    machine.stopped_ns = 0;
}

uint64_t machine_stopped_ns(void)
{
    return machine.stopped_ns;
}

bool machine_has_stopped(pthread_t thread)
{
    return machine.stopped_ns != 0 &&
           (const fiber *)(uintptr_t)thread == machine.stopped; /* NOLINT */
}

uint64_t machine_log_hash(void)
{
    return machine.hash;
}

uint64_t machine_switches(void)
{
    return machine.switches;
}

static void log_turn(const fiber *of)
{
    machine.switches++;
    machine.hash = (machine.hash ^ of->number ^ machine.now_ns) * UINT64_C(0x100000001B3);
    machine.hash ^= machine.hash >> 29;
}

/* ---- turns ---- */

/* How many wait for what is in the address's class: mostly none. */
static uint32_t *waiting_for(const void *awaited)
{
    const uintptr_t address = (uintptr_t)awaited;
    return &machine.waiting[(address >> 3 ^ address >> 13) % CLASSES];
}

static void make_waiting(fiber *it, const void *awaited, uint64_t until_ns)
{
    it->state = WAITING;
    it->awaited = awaited;
    it->until_ns = until_ns;
    ++*waiting_for(awaited);
}

static void make_ready(fiber *it)
{
    *waiting_for(it->awaited) -= it->state == WAITING;
    it->state = READY;
    it->later = NULL;
    *machine.ready_end = it;
    machine.ready_end = &it->later;
    machine.ready_count++;
}

static fiber *take_ready(void)
{
    fiber **place = &machine.ready;
    for (uint32_t i = machine_choose(machine.ready_count); i > 0; i--) {
        place = &(*place)->later;
    }
    fiber *it = *place;
    *place = it->later;
    if (it->later == NULL) {
        machine.ready_end = place;
    }
    machine.ready_count--;
    return it;
}

static void report_deadlock(void)
{
    fprintf(stderr, "machine: all threads wait and none has a deadline (seed %llu):\n",
            (unsigned long long)machine.seed);
    for (const fiber *it = machine.all; it != NULL; it = it->next) {
        if (it->state == WAITING) {
            fprintf(stderr, "  thread %llu waits for %p\n", (unsigned long long)it->number,
                    it->awaited);
        }
    }
    fflush(NULL);
    abort();
}

/* Nobody can run: it becomes as late as the first deadline, and whoever has it is ready. */
static void pass_time(void)
{
    uint64_t first_ns = NEVER;
    for (const fiber *it = machine.all; it != NULL; it = it->next) {
        if (it->state == WAITING && it->until_ns < first_ns) {
            first_ns = it->until_ns;
        }
    }
    if (first_ns == NEVER) {
        report_deadlock();
    }
    machine.now_ns = first_ns > machine.now_ns ? first_ns : machine.now_ns;
    for (fiber *it = machine.all; it != NULL; it = it->next) {
        if (it->state == WAITING && it->until_ns <= machine.now_ns) {
            it->timed_out = !it->stands;
            it->stands = false;
            make_ready(it);
        }
    }
}

static void fiber_main(void);

static void enter(fiber *it)
{
    if (it->started) {
        _longjmp(it->at, 1);
    }
    it->started = true;
    ucontext_t context;
    (void)getcontext(&context);
    context.uc_stack.ss_sp = it->stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = NULL;
    makecontext(&context, fiber_main, 0);
    (void)setcontext(&context);
}

/* Whether it is the one that stops here. */
static bool stops(fiber *it)
{
    if (machine.stop_in == 0 || --machine.stop_in != 0) {
        return false;
    }
    machine.stopped_ns = machine.now_ns;
    machine.stopped = it;
    make_waiting(it, NULL, machine.now_ns + machine.stop_ns);
    it->stands = true;
    return true;
}

/* Whose turn is next. */
static fiber *draw_turn(void)
{
    fiber *to = NULL;
    do {
        while (machine.ready_count == 0) {
            pass_time();
        }
        to = take_ready();
    } while (stops(to));
    log_turn(to);
    return to;
}

/* Never returns: what was current has been left, or is over. */
static void switch_to(fiber *to)
{
    machine.current = to;
    memcpy(machine.locals, to->locals, machine.locals_bytes);
    enter(to);
}

/* Let somebody have the turn; returns when this fiber has it again. */
static void give_turn(void)
{
    fiber *from = machine.current;
    fiber *to = draw_turn();
    if (to == from) {
        return;
    }
    from->code = errno;
    memcpy(from->locals, machine.locals, machine.locals_bytes);
    if (_setjmp(from->at) == 0) {
        switch_to(to);
    }
    errno = machine.current->code;
}

static void yield_turn(void)
{
    make_ready(machine.current);
    give_turn();
}

/* Whether the deadline came first. */
static bool wait_for(const void *awaited, uint64_t until_ns)
{
    fiber *it = machine.current;
    make_waiting(it, awaited, until_ns);
    it->timed_out = false;
    give_turn();
    return it->timed_out;
}

/* Wake up to `most` of those that wait for it; returns how many. */
static uint32_t wake(const void *awaited, uint32_t most)
{
    uint32_t waiting = 0;
    uint32_t woken = 0;
    if (*waiting_for(awaited) == 0) {
        return 0;
    }
    for (const fiber *it = machine.all; it != NULL; it = it->next) {
        waiting += it->state == WAITING && it->awaited == awaited;
    }
    for (; woken < most && waiting > 0; woken++, waiting--) {
        uint32_t pick = machine_choose(waiting);
        for (fiber *it = machine.all; it != NULL; it = it->next) {
            if (it->state == WAITING && it->awaited == awaited && pick-- == 0) {
                make_ready(it);
                break;
            }
        }
    }
    return woken;
}

/* ---- threads ---- */

static void forget(fiber *it)
{
    fiber **place = &machine.all;
    while (*place != it) {
        place = &(*place)->next;
    }
    *place = it->next;
    if (it->next == NULL) {
        machine.end = place;
    }
    it->later = machine.spare;
    machine.spare = it;
}

static void close_values(fiber *it)
{
    for (uint32_t i = 0; i < machine.keys; i++) {
        if (it->values[i] != NULL && machine.close[i] != NULL) {
            void *value = it->values[i];
            it->values[i] = NULL;
            machine.close[i](value);
        }
    }
}

static void fiber_main(void)
{
    fiber *it = machine.current;
    errno = it->code;
    it->result = it->run(it->argument);
    close_values(it);
    it->state = OVER;
    (void)wake(it, UINT32_MAX);
    if (it->detached) {
        forget(it); /* its stack is not taken before another fiber runs */
    }
    switch_to(draw_turn());
}

static fiber *make_fiber(void)
{
    fiber *it = machine.spare;
    if (it != NULL) {
        machine.spare = it->later;
        const fiber old = *it;
        memset(it, 0, sizeof *it);
        it->stack = old.stack;
        it->locals = old.locals;
        return it;
    }
    it = calloc(1, sizeof *it);
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (it == NULL || stack == MAP_FAILED) {
        abort();
    }
    it->stack = stack;
    it->locals = make_locals();
    return it;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *argument)
{
    BEFORE_IT(pthread_create(thread, attr, run, argument));
    (void)attr;
    fiber *it = make_fiber();
    it->number = ++machine.made;
    it->run = run;
    it->argument = argument;
    memset(it->locals, 0, machine.locals_bytes);
    memcpy(it->locals, machine.image, machine.image_bytes);
    *machine.end = it;
    machine.end = &it->next;
    *thread = (pthread_t)(uintptr_t)it;
    make_ready(it);
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    BEFORE_IT(pthread_join(thread, result));
    fiber *it = (fiber *)(uintptr_t)thread; /* NOLINT */
    while (it->state != OVER) {
        (void)wait_for(it, NEVER);
    }
    if (result != NULL) {
        *result = it->result;
    }
    forget(it);
    return 0;
}

int __wrap_pthread_detach(pthread_t thread)
{
    BEFORE_IT(pthread_detach(thread));
    fiber *it = (fiber *)(uintptr_t)thread; /* NOLINT */
    it->detached = true;
    if (it->state == OVER) {
        forget(it);
    }
    return 0;
}

pthread_t __wrap_pthread_self(void)
{
    BEFORE_IT(pthread_self());
    return (pthread_t)(uintptr_t)machine.current;
}

int __wrap_pthread_setname_np(pthread_t thread, const char *name)
{
    BEFORE_IT(pthread_setname_np(thread, name));
    (void)thread;
    (void)name;
    return 0;
}

int __wrap_pthread_key_create(pthread_key_t *key, void (*close)(void *))
{
    BEFORE_IT(pthread_key_create(key, close));
    if (machine.keys == KEYS) {
        return EAGAIN;
    }
    machine.close[machine.keys] = close;
    *key = KEY_FIRST + machine.keys++;
    return 0;
}

void *__wrap_pthread_getspecific(pthread_key_t key)
{
    if (key < KEY_FIRST) {
        return __real_pthread_getspecific(key);
    }
    return machine.current->values[key - KEY_FIRST];
}

int __wrap_pthread_setspecific(pthread_key_t key, const void *value)
{
    if (key < KEY_FIRST) {
        return __real_pthread_setspecific(key, value);
    }
    machine.current->values[key - KEY_FIRST] = (void *)(uintptr_t)value;
    return 0;
}

/* ---- mutexes and conditions: the first word of either is the machine's ---- */

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

static void take_mutex(pthread_mutex_t *mutex)
{
    while (*word_of(mutex) != 0) {
        (void)wait_for(mutex, NEVER);
    }
    *word_of(mutex) = 1;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    BEFORE_IT(pthread_mutex_lock(mutex));
    /* Others may come first. */
    if (machine.seed != 0 && draw() % 4 == 0) {
        yield_turn();
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
    *word_of(mutex) = 1;
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    BEFORE_IT(pthread_mutex_unlock(mutex));
    *word_of(mutex) = 0;
    (void)wake(mutex, 1);
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
    const bool late = wait_for(cond, until_ns);
    take_mutex(mutex);
    return late ? ETIMEDOUT : 0;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    BEFORE_IT(pthread_cond_wait(cond, mutex));
    return cond_wait(cond, mutex, NEVER);
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
    (void)wake(cond, 1);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    BEFORE_IT(pthread_cond_broadcast(cond));
    (void)wake(cond, UINT32_MAX);
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
        (void)wake(barrier, UINT32_MAX);
        return PTHREAD_BARRIER_SERIAL_THREAD;
    }
    while (words[2] == generation) {
        (void)wait_for(barrier, NEVER);
    }
    return 0;
}

/* In glibc's own words, 1 while it runs and 2 when it is done: some are done before the machine is.
 */
int __wrap_pthread_once(pthread_once_t *once, void (*run)(void))
{
    BEFORE_IT(pthread_once(once, run));
    while (*once == 1) {
        (void)wait_for(once, NEVER);
    }
    if (*once == PTHREAD_ONCE_INIT) {
        *once = 1;
        run();
        *once = 2;
        (void)wake(once, UINT32_MAX);
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
    yield_turn();
    return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    BEFORE_IT(clock_gettime(clock, out));
    machine.now_ns += TICK_NS;
    const uint64_t ns = machine.now_ns + (clock == CLOCK_REALTIME ? EPOCH_NS : 0);
    *out = (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    return 0;
}

void machine_pause(uint64_t ns)
{
    (void)wait_for(NULL, machine.now_ns + ns);
}

int __wrap_nanosleep(const struct timespec *span, struct timespec *rest)
{
    BEFORE_IT(nanosleep(span, rest));
    (void)rest;
    machine_pause(ns_of(span));
    return 0;
}

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *span)
{
    switch (operation & ~FUTEX_PRIVATE_FLAG) {
    case FUTEX_WAIT:
        if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
            errno = EAGAIN;
            return -1;
        }
        if (wait_for(word, span == NULL ? NEVER : machine.now_ns + ns_of(span))) {
            errno = ETIMEDOUT;
            return -1;
        }
        return 0;
    case FUTEX_WAKE:
        return (long)wake(word, value);
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
