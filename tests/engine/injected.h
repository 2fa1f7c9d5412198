/* Backends that no option names, to be injected. zero_engine_create of a program that is linked
 * with
 * --wrap=zero_engine_create takes the one in use. */
#ifndef TESTS_ENGINE_INJECTED_H
#define TESTS_ENGINE_INJECTED_H

#include <stdatomic.h>

typedef enum injected {
    INJECTED_NONE = 0,   /* the backend that the options name */
    INJECTED_COUNTED,    /* the CPU, its calls counted; storage in memory */
    INJECTED_OWN_MEMORY, /* the same as a device with memory of its own, as a GPU */
    INJECTED_SIMULATED /* memory is reserved but never touched, and nothing is computed or moved */
} injected;

/* Set the backend that engines are created on from here on. At first INJECTED_NONE, or what the
 * environment says: INJECTED=counted, INJECTED=own_memory. */
void injected_use(injected backend);
injected injected_in_use(void);

/* Since the process began; what is allocated now. */
typedef struct injected_counts {
    atomic_uint_fast64_t device_bytes;
    atomic_uint_fast64_t host_bytes;
    atomic_uint_fast64_t updates;
    atomic_uint_fast64_t host_updates; /* by the kernels of the host */
    atomic_uint_fast64_t groups;
    atomic_uint_fast64_t read_bytes;
    atomic_uint_fast64_t write_bytes;
} injected_counts;

extern injected_counts injected_counted;

#endif
