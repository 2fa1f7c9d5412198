/* Owns the order in which ways to reach files are tried. Invariant: a rung below the best one is
 * taken only after the better ones were refused, and that is in the report. */
#include "storage/ladder.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"

typedef struct ladder_rung {
    zi_io_rung rung;
    zero_status (*create)(const zi_io_setup *setup, zi_io_rung rung, zi_io_backend *backend,
                          zi_io_report *report);
} ladder_rung;

static const ladder_rung ladder[ZI_IO_RUNGS] = {
    {ZI_IO_RUNG_FIXED, zi_uring_create},
    {ZI_IO_RUNG_URING, zi_uring_create},
    {ZI_IO_RUNG_POSIX, zi_posix_create},
};

const char *zi_io_rung_name(zi_io_rung rung)
{
    static const char *const names[] = {"best", "fixed", "uring", "posix", "given"};
    zi_assert_cmp(rung, <, sizeof names / sizeof names[0]);
    return names[rung];
}

static void note_refusal(zi_io_rung rung, zi_io_report *report)
{
    const char *reason = zero_last_error()->message;
    const size_t used = strlen(report->refusals);
    (void)snprintf(report->refusals + used, sizeof report->refusals - used, "%s%s: %s",
                   used > 0 ? "; " : "", zi_io_rung_name(rung), reason);
    zi_log(ZERO_LOG_WARN, "storage: goes on without '%s': %s", zi_io_rung_name(rung), reason);
}

zero_status zi_io_climb(const zi_io_setup *setup, zi_io_rung rung, zi_io_backend *backend,
                        zi_io_report *report)
{
    zero_status status = ZERO_UNSUPPORTED;
    for (uint32_t i = 0; i < ZI_IO_RUNGS; i++) {
        const ladder_rung *tried = &ladder[i];
        if (rung != ZI_IO_RUNG_BEST && rung != tried->rung) {
            continue;
        }
        report->rung = tried->rung;
        report->registered_bytes = 0;
        report->flags[0] = '\0';
        status = tried->create(setup, tried->rung, backend, report);
        /* What is not a refusal would strike the next rung too. */
        if (status != ZERO_UNSUPPORTED || rung != ZI_IO_RUNG_BEST) {
            return status;
        }
        note_refusal(tried->rung, report);
    }
    return status;
}
