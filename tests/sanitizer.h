/* Samples of what a build with sanitizers tries. Its programs run several times slower and there
 * look for faults that no result shows, so a sample of what other builds try in full is enough; the
 * seed says which, and every kind of case stays in it. */
#ifndef TESTS_SANITIZER_H
#define TESTS_SANITIZER_H

#include <stdbool.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define UNDER_SANITIZER 1
#else
#define UNDER_SANITIZER 0
#endif

/* True if this build tries number `i` of several things: every other one under a sanitizer, and so
 * do programs over doubles of CUDA and NCCL, whose every call takes a lock. */
#define IN_SAMPLE(i) (!(UNDER_SANITIZER || test_over_doubles) || ((i) + test_seed) % 2 == 0)
/* Of many: every fourth one. scripts/soak has other seeds. */
#define IN_SMALL_SAMPLE(i) (!(UNDER_SANITIZER || test_over_doubles) || ((i) + test_seed) % 4 == 0)
/* Set by the doubles themselves, where a program is linked with them. */
extern bool test_over_doubles;

/* Of a function that touches its thread's own copies and nothing else: ThreadSanitizer would watch
 * every element of them and find nothing. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

#endif
