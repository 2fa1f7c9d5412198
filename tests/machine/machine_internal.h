/* The functions that the machine's turns, its calls and its files ask of one another. */
#ifndef TESTS_MACHINE_MACHINE_INTERNAL_H
#define TESTS_MACHINE_MACHINE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

/* True if threads are the machine's by now. */
bool machine_is_on(void) __attribute__((weak)); /* NULL where they never are */
/* In [0, count), from the seed; 0 without a seed. */
uint32_t machine_choose(uint32_t count) __attribute__((weak));
/* Others have their turns for so long. */
void machine_pause(uint64_t ns) __attribute__((weak));

/* The rest is there on the machine alone. */

#define MACHINE_NEVER UINT64_MAX

/* The functions that meson.build lets the linker put in place of a call of the system. */
#define IN_PLACE_OF(name) __typeof__(name) __wrap_##name, __real_##name

/* Before machine_begin threads are the system's. */
#define BEFORE_IT(call)           \
    do {                          \
        if (!machine_is_on()) {   \
            return __real_##call; \
        }                         \
    } while (0)

/* Wait until somebody wakes those that wait for this address, or until a time. Returns whether the
 * time came first. */
bool machine_wait(const void *awaited, uint64_t until_ns);
/* Wake up to `most` of those that wait for it; returns how many. */
uint32_t machine_wake(const void *awaited, uint32_t most);
/* Others may have their turns. */
void machine_yield(void);
/* This thread holds so many more mutexes. */
void machine_holds(int more);
/* The time of the clock; asking takes a moment. */
uint64_t machine_time(void);

/* 0: the program's. */
uint32_t machine_process_of_caller(void);
/* Its sockets are closed. */
void machine_process_ended(uint32_t process);

/* A call has moved bytes from one thread to another: those that poll look again. */
void machine_moved(void) __attribute__((weak));

/* renameat2 of two paths with RENAME_EXCHANGE, noted where it is watched. */
int machine_exchange(const char *one, const char *other);

#endif
