/* Owns the count of forks. What clones a process without fork (vfork, a bare clone) is not seen. */
#include "core/fork.h"

#include <pthread.h>

uint32_t zi_fork_generation = 1;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fork_in_child(void)
{
    zi_fork_generation++;
}

static void fork_watch(void)
{
    (void)pthread_atfork(NULL, NULL, fork_in_child);
}

void zi_fork_watch(void)
{
    (void)pthread_once(&once, fork_watch);
}
