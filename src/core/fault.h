/* Injected faults for tests: the n-th event of a kind fails, once. Off unless a test arms it. */
#ifndef ZI_CORE_FAULT_H
#define ZI_CORE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum zi_fault_kind {
    ZI_FAULT_ALLOC = 0,
    ZI_FAULT_COLLECTIVE = 1,
    ZI_FAULT_THREAD = 2,
    ZI_FAULT_IO = 3 /* a segment comes back from a file with EIO */
} zi_fault_kind;
#define ZI_FAULT_KINDS 4

/* Let the nth event (1-based) of `kind` from now on fail; 0 disarms. Process-wide. */
void zi_fault_arm(zi_fault_kind kind, uint64_t nth);

/* Events of `kind` counted since it was last armed. */
uint64_t zi_fault_count(zi_fault_kind kind);

/* Let every event of `kind` take `ns` longer: a slow link for tests of overlap. 0: off. */
void zi_fault_slow(zi_fault_kind kind, uint64_t ns);

/* Sleep for as long as zi_fault_slow says. */
void zi_fault_sleep(zi_fault_kind kind);

/* Count one event; true when it is the one that must fail. */
bool zi_fault_hit(zi_fault_kind kind);

#endif
