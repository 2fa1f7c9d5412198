/* Which backend a queue gets. */
#ifndef ZI_STORAGE_LADDER_H
#define ZI_STORAGE_LADDER_H

#include "storage/io_backend.h"

/* The first rung that works, or `rung` alone unless it is BEST. Each refusal on the way is logged
 * and added to report->refusals. */
zero_status zi_io_climb(const zi_io_setup *setup, zi_io_rung rung, zi_io_backend *backend,
                        zi_io_report *report);

#endif
