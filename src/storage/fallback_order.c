/* Owns the order in which I/O backends are tried. Invariant: a backend is taken only after every
 * better one was refused, and the report holds each refusal. */
#include "storage/fallback_order.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"

typedef struct io_backend_choice {
    zi_io_backend_kind kind;
    zero_status (*create)(const zi_io_setup *setup, zi_io_backend_kind kind, zi_io_backend *backend,
                          zi_io_report *report);
} io_backend_choice;

static const io_backend_choice fallback_order[ZI_IO_BACKENDS] = {
    {ZI_IO_BACKEND_FIXED, zi_uring_create},
    {ZI_IO_BACKEND_URING, zi_uring_create},
    {ZI_IO_BACKEND_POSIX, zi_posix_create},
};

const char *zi_io_backend_name(zi_io_backend_kind kind)
{
    static const char *const names[] = {"best", "fixed", "uring", "posix", "given"};
    zi_assert_cmp(kind, <, sizeof names / sizeof names[0]);
    return names[kind];
}

static void note_refusal(zi_io_backend_kind kind, zi_io_report *report)
{
    const char *reason = zero_last_error()->message;
    const size_t used = strlen(report->refusals);
    (void)snprintf(report->refusals + used, sizeof report->refusals - used, "%s%s: %s",
                   used > 0 ? "; " : "", zi_io_backend_name(kind), reason);
    zi_log(ZERO_LOG_WARN, "storage: goes on without '%s': %s", zi_io_backend_name(kind), reason);
}

zero_status zi_io_open_backend(const zi_io_setup *setup, zi_io_backend_kind kind,
                               zi_io_backend *backend, zi_io_report *report)
{
    zero_status status = ZERO_UNSUPPORTED;
    for (uint32_t i = 0; i < ZI_IO_BACKENDS; i++) {
        const io_backend_choice *tried = &fallback_order[i];
        if (kind != ZI_IO_BACKEND_BEST && kind != tried->kind) {
            continue;
        }
        report->kind = tried->kind;
        report->registered_bytes = 0;
        report->flags[0] = '\0';
        status = tried->create(setup, tried->kind, backend, report);
        /* An error that is no refusal would fail the next backend too. */
        if (status != ZERO_UNSUPPORTED || kind != ZI_IO_BACKEND_BEST) {
            return status;
        }
        note_refusal(tried->kind, report);
    }
    return status;
}
