/* A deterministic machine: the threads of a test program take turns on one thread of the system, in
 * an order that a seed decides, and time is a number that jumps when nobody can run.
 *
 * A program that is linked with the machine (meson's machine_dep) has the functions by which
 * threads are made, wait and ask for the time replaced from machine_begin on: pthread_*,
 * sched_yield, nanosleep, clock_gettime and the futex call. Before, and so in every program that
 * never calls it, they are the system's. The library is the same: its streams, barriers, windows
 * and writers run as they are. A thread goes on until it waits, yields, takes a mutex or raises a
 * counter (core/counter.h); whose turn is next, which waiter a signal wakes and how long a mutex is
 * left to others is drawn from the seed. The same seed and program make the same choices, which
 * machine_log_hash() sums up.
 *
 * A wait with a deadline costs nothing: when all threads wait, time jumps to the first deadline.
 * While anybody can run, a turn takes 100 ns and asking for the time takes 50 ns.
 * When all wait and none has a deadline, the program ends with a list of them.
 *
 * What the machine does not see: what happens between two of those calls, which is one step; calls
 * of the system that block, which block all; other processes. Not with sanitizers, which want to
 * know of stacks. */
#ifndef TESTS_MACHINE_MACHINE_H
#define TESTS_MACHINE_MACHINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* From here on this process is on the machine: with this seed, the clock at its start, an empty
 * log. Only where no thread but the caller exists. Seed 0 draws nothing: turns are in the order in
 * which threads became ready. */
void machine_begin(uint64_t seed);

/* A hash of every choice since machine_begin: which thread ran, and at what time. */
uint64_t machine_log_hash(void);
/* How often another thread got its turn since then. */
uint64_t machine_switches(void);

/* The thread whose turn is the nth from now stands still for so long, with whatever it holds; 0:
 * none does. */
void machine_stop(uint64_t nth, uint64_t ns);
/* When it began to; 0: not yet. */
uint64_t machine_stopped_ns(void);
/* True if one has, and it held no mutex then: those that take one wait without a deadline. */
bool machine_stopped_alone(void);
/* True if it was this one. */
bool machine_has_stopped(pthread_t thread);

/* The caller is a process from here on, with the threads that it makes and their connections. */
void machine_process(void);
/* The process whose thread has the nth turn from now ends there: its threads are gone and its
 * sockets are closed. It is the first such turn of a process of which no thread holds a mutex:
 * real ones have none in common. Who began it can be joined. 0: none ends. */
void machine_kill(uint64_t nth);
/* When it ended; 0: not yet. */
uint64_t machine_killed_ns(void);

#endif
