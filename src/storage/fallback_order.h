/* Which backend a queue gets. */
#ifndef ZI_STORAGE_FALLBACK_ORDER_H
#define ZI_STORAGE_FALLBACK_ORDER_H

#include "storage/io_backend.h"

/* The first kind that works, or `kind` alone unless it is BEST. Each refusal on the way is logged
 * and added to report->refusals. */
zero_status zi_io_open_backend(const zi_io_setup *setup, zi_io_backend_kind kind,
                               zi_io_backend *backend, zi_io_report *report);

#endif
