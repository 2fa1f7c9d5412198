/* The system's limits on this process, as far as it tells them. */
#ifndef ZI_CORE_THREAD_LIMIT_H
#define ZI_CORE_THREAD_LIMIT_H

#include <stdint.h>

typedef struct zi_limit {
    uint64_t most;
    const char *by; /* static text: what sets it, and how it is raised */
} zi_limit;

/* The smallest of what is known to bound the number of threads: an upper bound, for other processes
 * count too. */
zi_limit zi_limit_threads(void);

#endif
