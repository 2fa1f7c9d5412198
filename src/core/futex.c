/* Owns the calls of futex(2). */
#include "core/futex.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S UINT64_C(1000000000)

static int operation(int what, zi_futex_scope scope)
{
    return scope == ZI_FUTEX_PROCESS ? what | FUTEX_PRIVATE_FLAG : what;
}

void zi_futex_wait(const void *word, uint32_t seen, uint64_t limit_ns, zi_futex_scope scope)
{
    const struct timespec span = {.tv_sec = (time_t)(limit_ns / NS_PER_S),
                                  .tv_nsec = (long)(limit_ns % NS_PER_S)};
    (void)syscall(SYS_futex, word, operation(FUTEX_WAIT, scope), seen, limit_ns != 0 ? &span : NULL,
                  NULL, 0);
}

void zi_futex_wake_all(const void *word, zi_futex_scope scope)
{
    (void)syscall(SYS_futex, word, operation(FUTEX_WAKE, scope), INT_MAX, NULL, NULL, 0);
}
