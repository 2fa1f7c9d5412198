/* Sleeping on a word of memory until another thread wakes who sleeps there: futex(2). A wait may
 * also end for no reason. */
#ifndef ZI_CORE_FUTEX_H
#define ZI_CORE_FUTEX_H

#include <stdbool.h>
#include <stdint.h>

/* Whose threads meet at the word. Both sides say the same. */
typedef enum zi_futex_scope {
    ZI_FUTEX_PROCESS, /* threads of this process: cheaper, since the kernel looks up no page */
    ZI_FUTEX_SHARED   /* processes that map the word */
} zi_futex_scope;

/* Sleep while *word is `seen`, for no longer than limit_ns; 0: no limit. */
void zi_futex_wait(const void *word, uint32_t seen, uint64_t limit_ns, zi_futex_scope scope);

/* Wake all who sleep there. The word is not read: it may be gone. */
void zi_futex_wake_all(const void *word, zi_futex_scope scope);

#endif
