/* Owns the end of a process whose own invariant broke: one line on stderr, then abort. */
#include "core/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

_Noreturn void zi_assert_failed(const char *condition, uint64_t left, uint64_t right,
                                const char *file, int line)
{
    (void)fprintf(stderr, "libzero: %s:%d: broken invariant: %s (%" PRIu64 ", %" PRIu64 ")\n", file,
                  line, condition, left, right);
    abort();
}
