/* Owns the threads of a deterministic machine (machine.h). Each is a fiber: a stack, and where it
 * stopped. What a fiber waits for is an address: of a condition, a mutex, a futex word, a fiber.
 * Invariant: exactly one fiber runs, and the thread-local variables of the program are its own, and
 * errno. */
#include "machine.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "machine_internal.h"

IN_PLACE_OF(pthread_create);
IN_PLACE_OF(pthread_detach);
IN_PLACE_OF(pthread_getspecific);
IN_PLACE_OF(pthread_join);
IN_PLACE_OF(pthread_key_create);
IN_PLACE_OF(pthread_self);
IN_PLACE_OF(pthread_setname_np);
IN_PLACE_OF(pthread_setspecific);

#define STACK_BYTES ((size_t)1 << 20)
/* The clock's first value; what asking for the time and a turn take. */
#define START_NS UINT64_C(1000000000000)
#define TICK_NS 50
#define TURN_NS 100

/* Fibers that wait are kept by so many classes of addresses. */
#define CLASSES 1024

/* Of pthread_key_create, at most. */
#define KEYS 64

typedef enum fiber_state { READY, WAITING, OVER } fiber_state;

typedef struct fiber {
    struct fiber *next;  /* of all, in the order of their making */
    struct fiber *later; /* of those that are ready, that wait in its class, or that are free */
    uint64_t number;
    fiber_state state;
    const void *awaited; /* while WAITING; NULL: time alone */
    uint64_t until_ns;   /* while WAITING; MACHINE_NEVER: no deadline */
    bool timed_out;
    bool stands; /* while WAITING: machine_stop has stopped it */
    bool detached;
    bool started;
    uint32_t holds;   /* so many mutexes */
    uint32_t process; /* 0: the program's */
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
    fiber *waiting[CLASSES]; /* each in the order of their making */
    fiber *spare;
    uint64_t made;
    uint64_t seed;
    uint64_t drawn;
    uint64_t now_ns;
    uint64_t deadline_ns; /* no fiber's is before it */
    uint64_t hash;
    uint64_t switches;
    uint64_t stop_in; /* so many turns; 0: never */
    uint64_t stop_ns;
    uint64_t stopped_ns;
    const fiber *stopped;
    uint32_t stopped_holds;
    uint32_t processes; /* besides the program's */
    uint64_t kill_in;   /* so many turns; 0: never */
    uint64_t killed_ns;
    void (*close[KEYS])(void *); /* of pthread_key_create */
    unsigned char *locals;       /* the program's thread-local variables */
    const unsigned char *image;  /* with which they begin, and zeros behind it */
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
    machine.deadline_ns = MACHINE_NEVER;
    machine.hash = 0;
    machine.switches = 0;
    machine.processes = 0;
    machine_stop(0, 0);
    machine_kill(0);
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

bool machine_stopped_alone(void)
{
    return machine.stopped_ns != 0 && machine.stopped_holds == 0;
}

bool machine_has_stopped(pthread_t thread)
{
    return machine.stopped_ns != 0 &&
           (const fiber *)(uintptr_t)thread == machine.stopped; /* NOLINT */
}

void machine_process(void)
{
    machine.current->process = ++machine.processes;
}

uint32_t machine_process_of_caller(void)
{
    return machine.current->process;
}

void machine_kill(uint64_t nth)
{
    machine.kill_in = nth;
    machine.killed_ns = 0;
}

uint64_t machine_killed_ns(void)
{
    return machine.killed_ns;
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

/* The fibers that wait for what is in the address's class: mostly none. */
static fiber **waiting_for(const void *awaited)
{
    const uintptr_t address = (uintptr_t)awaited;
    return &machine.waiting[(address >> 3 ^ address >> 13) % CLASSES];
}

static void make_waiting(fiber *it, const void *awaited, uint64_t until_ns)
{
    it->state = WAITING;
    it->awaited = awaited;
    it->until_ns = until_ns;
    fiber **place = waiting_for(awaited);
    while (*place != NULL && (*place)->number < it->number) {
        place = &(*place)->later;
    }
    it->later = *place;
    *place = it;
    machine.deadline_ns = until_ns < machine.deadline_ns ? until_ns : machine.deadline_ns;
}

/* No longer in its class. */
static void leave_class(fiber *it)
{
    fiber **place = waiting_for(it->awaited);
    while (*place != it) {
        place = &(*place)->later;
    }
    *place = it->later;
}

static void make_ready(fiber *it)
{
    if (it->state == WAITING) {
        leave_class(it);
    }
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

/* The first deadline of all. */
static uint64_t find_deadline(void)
{
    uint64_t first_ns = MACHINE_NEVER;
    for (const fiber *it = machine.all; it != NULL; it = it->next) {
        if (it->state == WAITING && it->until_ns < first_ns) {
            first_ns = it->until_ns;
        }
    }
    return first_ns;
}

/* It is later now: whoever has waited until here is ready. */
static void pass_time(uint64_t now_ns)
{
    machine.now_ns = now_ns;
    if (now_ns < machine.deadline_ns) {
        return;
    }
    for (fiber *it = machine.all; it != NULL; it = it->next) {
        if (it->state == WAITING && it->until_ns <= machine.now_ns) {
            it->timed_out = !it->stands;
            it->stands = false;
            make_ready(it);
        }
    }
    machine.deadline_ns = find_deadline();
}

/* Nobody can run: it becomes as late as the first deadline. */
static void await_deadline(void)
{
    const uint64_t first_ns = find_deadline();
    if (first_ns == MACHINE_NEVER) {
        report_deadlock();
    }
    pass_time(first_ns > machine.now_ns ? first_ns : machine.now_ns);
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

/* True if it is the one that stops here. */
static bool stops(fiber *it)
{
    if (machine.stop_in == 0 || --machine.stop_in != 0) {
        return false;
    }
    machine.stopped_ns = machine.now_ns;
    machine.stopped = it;
    machine.stopped_holds = it->holds;
    make_waiting(it, NULL, machine.now_ns + machine.stop_ns);
    it->stands = true;
    return true;
}

static void forget(fiber *it);

/* True if a thread of the process has something that is no process's own. */
static bool holds_anything(uint32_t process)
{
    uint32_t holds = 0;
    for (const fiber *it = machine.all; it != NULL; it = it->next) {
        holds += it->process == process ? it->holds : 0;
    }
    return holds != 0;
}

static void remove_ready(uint32_t process)
{
    fiber *ready = machine.ready;
    machine.ready = NULL;
    machine.ready_end = &machine.ready;
    machine.ready_count = 0;
    while (ready != NULL) {
        fiber *it = ready;
        ready = it->later;
        if (it->process != process) {
            make_ready(it);
        }
    }
}

static void end_threads(uint32_t process)
{
    for (fiber *it = machine.all; it != NULL; it = it->next) {
        if (it->process == process) {
            if (it->state == WAITING) {
                leave_class(it);
            }
            it->state = OVER;
        }
    }
}

/* Who began the process is the first of its threads, and can be joined. Nobody is there to join the
 * others. */
static void forget_threads(uint32_t process)
{
    bool first = true;
    for (fiber *it = machine.all, *next = NULL; it != NULL; it = next) {
        next = it->next;
        if (it->process == process) {
            (void)machine_wake(it, UINT32_MAX);
            (!first || it->detached) ? forget(it) : (void)0;
            first = false;
        }
    }
}

/* True if the process of this one ends here. */
static bool dies(const fiber *it)
{
    if (machine.kill_in > 1) {
        machine.kill_in--;
        return false;
    }
    if (machine.kill_in == 0 || it->process == 0 || holds_anything(it->process)) {
        return false;
    }
    const uint32_t process = it->process;
    machine.kill_in = 0;
    machine.killed_ns = machine.now_ns;
    remove_ready(process);
    end_threads(process);
    forget_threads(process);
    machine_process_ended(process);
    return true;
}

/* Whose turn is next. */
static fiber *draw_turn(void)
{
    fiber *to = NULL;
    pass_time(machine.now_ns + TURN_NS);
    do {
        while (machine.ready_count == 0) {
            await_deadline();
        }
        to = take_ready();
    } while (stops(to) || dies(to));
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

void machine_yield(void)
{
    make_ready(machine.current);
    give_turn();
}

bool machine_wait(const void *awaited, uint64_t until_ns)
{
    fiber *it = machine.current;
    make_waiting(it, awaited, until_ns);
    it->timed_out = false;
    give_turn();
    return it->timed_out;
}

uint32_t machine_wake(const void *awaited, uint32_t most)
{
    uint32_t waiting = 0;
    uint32_t woken = 0;
    for (const fiber *it = *waiting_for(awaited); it != NULL; it = it->later) {
        waiting += it->awaited == awaited;
    }
    for (; woken < most && waiting > 0; woken++, waiting--) {
        uint32_t pick = machine_choose(waiting);
        for (fiber *it = *waiting_for(awaited); it != NULL; it = it->later) {
            if (it->awaited == awaited && pick-- == 0) {
                make_ready(it);
                break;
            }
        }
    }
    return woken;
}

void machine_holds(int more)
{
    machine.current->holds += (uint32_t)more;
}

uint64_t machine_time(void)
{
    machine.now_ns += TICK_NS;
    return machine.now_ns;
}

void machine_pause(uint64_t ns)
{
    (void)machine_wait(NULL, machine.now_ns + ns);
}

/* ---- threads ---- */

/* It is over, and nobody joins it. */
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

static uint32_t check_key(pthread_key_t key)
{
    if (key >= KEYS) {
        abort();
    }
    return key;
}

static void close_values(fiber *it)
{
    for (uint32_t i = 0; i < KEYS; i++) {
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
    (void)machine_wake(it, UINT32_MAX);
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
    it->process = machine.current->process;
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
        (void)machine_wait(it, MACHINE_NEVER);
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

/* Keys are the system's, and so are the first thread's values. */
int __wrap_pthread_key_create(pthread_key_t *key, void (*close)(void *))
{
    const int code = __real_pthread_key_create(key, close);
    if (code == 0) {
        machine.close[check_key(*key)] = close;
    }
    return code;
}

static bool has_own_values(void)
{
    return machine_is_on() && machine.current != &machine.first;
}

void *__wrap_pthread_getspecific(pthread_key_t key)
{
    return has_own_values() ? machine.current->values[check_key(key)]
                            : __real_pthread_getspecific(key);
}

int __wrap_pthread_setspecific(pthread_key_t key, const void *value)
{
    if (!has_own_values()) {
        return __real_pthread_setspecific(key, value);
    }
    machine.current->values[check_key(key)] = (void *)(uintptr_t)value;
    return 0;
}
