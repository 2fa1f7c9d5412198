/* Owns what a build without liburing says of io_uring. */
#include "core/error.h"
#include "storage/io_backend.h"

zero_status zi_uring_create(const zi_io_setup *setup, zi_io_backend_kind kind,
                            zi_io_backend *backend, zi_io_report *report)
{
    (void)setup;
    (void)kind;
    (void)backend;
    (void)report;
    ZI_FAIL(ZERO_ERR_UNSUPPORTED,
            "this build has no io_uring; install liburing (Debian: liburing-dev) "
            "and configure with -During=enabled");
}
