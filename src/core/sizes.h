/* Checked size arithmetic: every count and byte size that comes from a caller goes through these.
 */
#ifndef ZI_CORE_SIZES_H
#define ZI_CORE_SIZES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/check.h"

/* True and *out set when the result fits. */
static inline bool zi_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool zi_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Up to the next multiple; the caller has bounded value so that this cannot wrap. */
static inline uint64_t zi_align_up(uint64_t value, uint64_t multiple)
{
    zi_assert(multiple != 0 && value <= UINT64_MAX - (multiple - 1));
    return (value + multiple - 1) / multiple * multiple;
}

static inline uint64_t zi_div_up(uint64_t value, uint64_t divisor)
{
    zi_assert(divisor != 0);
    return value / divisor + (value % divisor != 0);
}

static inline uint64_t zi_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t zi_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
