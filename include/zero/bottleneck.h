/** @file
 *  What held up training between two readings of the counters: the CPU, a disk, or other ranks. */
#ifndef ZERO_BOTTLENECK_H
#define ZERO_BOTTLENECK_H

#include "zero/engine.h"
#include "zero/export.h"
#include "zero/status.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** The cause of most of the time that the library computed or waited. */
typedef enum zero_bottleneck {
    ZERO_BOTTLENECK_NONE = 0, /**< nothing was counted, as on a GPU, whose waits the host does not
                                 see */
    ZERO_BOTTLENECK_CPU = 1,  /**< the update itself, and checksums of what is on disk */
    ZERO_BOTTLENECK_DISK_READ = 2,  /**< updates waited for state to be read */
    ZERO_BOTTLENECK_DISK_WRITE = 3, /**< updates waited for state to be written */
    ZERO_BOTTLENECK_LINK = 4        /**< the caller waited for gathers and reductions */
} zero_bottleneck;

/** "none", "CPU", "disk read", "disk write", "link"; "unknown" for another value. */
ZERO_API const char *zero_bottleneck_name(zero_bottleneck bottleneck);

/** An interval between two readings of one engine's counters. Bytes per ns are GB (1e9 bytes) per
 *  second, and are over the whole interval, forward and backward included. Grows at its end. */
typedef struct zero_bottleneck_report {
    size_t struct_bytes;        /**< set by zero_bottleneck_report_init() */
    zero_bottleneck bottleneck; /**< the largest of the four times below; of equal ones the first */
    uint64_t interval_ns;       /**< taken_ns of the second reading less that of the first */
    uint64_t cpu_ns;            /**< update_ns + disk_check_ns */
    uint64_t disk_read_ns;      /**< disk_read_wait_ns */
    uint64_t disk_write_ns;     /**< disk_write_wait_ns */
    uint64_t link_ns; /**< the caller's waits (acquire_wait_ns + grad_wait_ns + step_wait_ns) less
                         the three times above, any of which may have caused them: the least
                         that gathers and reductions cost, late ranks included. 0 where no bytes
                         went between ranks */
    double disk_read_gb_s;  /**< bytes read from disk over the interval */
    double disk_write_gb_s; /**< bytes written */
    double link_gb_s;       /**< bytes gathered and sent to reductions */
} zero_bottleneck_report;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_bottleneck_report_init_sized(zero_bottleneck_report *report,
                                                size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_bottleneck_report zero_bottleneck_report_init(void)
{
    zero_bottleneck_report report;
    zero_bottleneck_report_init_sized(&report, sizeof report);
    return report;
}

/** Say what held up the steps between two readings. Arithmetic on its arguments alone: no engine,
 *  no clock.
 *  - before, after: two results of zero_engine_stats() for one engine, in this order.
 *  - report: in: struct_bytes, of zero_bottleneck_report_init(); out: the rest, as far as the
 *    struct goes.
 *  - Errors: INVALID_ARGUMENT for NULL, and where a counter that only grows is smaller in `after`.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_stats_bottleneck(const zero_stats *before,
                                                           const zero_stats *after,
                                                           zero_bottleneck_report *report);

ZERO_END

#endif
