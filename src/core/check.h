/* Assertions on our own mistakes. On in release builds, O(1), both sides printed, no side effects
 * inside; never on the result of a system, MPI or CUDA call. */
#ifndef ZI_CORE_CHECK_H
#define ZI_CORE_CHECK_H

#include <stdint.h>

#include "core/private_api.h"

#define zi_assert(condition) \
    ((condition) ? (void)0 : zi_assert_failed(#condition, 0, 0, __FILE__, __LINE__))
/* Compares two unsigned integers with `op`. */
#define zi_assert_cmp(left, op, right)                                                     \
    (((uint64_t)(left)op(uint64_t)(right))                                                 \
         ? (void)0                                                                         \
         : zi_assert_failed(#left " " #op " " #right, (uint64_t)(left), (uint64_t)(right), \
                            __FILE__, __LINE__))

ZI_PRIVATE_API _Noreturn void zi_assert_failed(const char *condition, uint64_t left, uint64_t right,
                                               const char *file, int line);

#endif
