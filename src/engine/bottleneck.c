/* Owns the conclusion from counters: which of the counted times is a step's bottleneck. Invariant:
 * the result depends on the arguments only. */
#include "zero/bottleneck.h"

#include <inttypes.h>
#include <stddef.h>

#include "core/error.h"
#include "core/sized.h"

const char *zero_bottleneck_name(zero_bottleneck bottleneck)
{
    static const char *const names[] = {"none", "CPU", "disk read", "disk write", "link"};
    return (unsigned)bottleneck < sizeof names / sizeof names[0] ? names[bottleneck] : "unknown";
}

/* A counter of zero_stats that is used here. */
typedef struct used_counter {
    const char *name;
    size_t at;
} used_counter;

/* clang-format off */
#define COUNTER(field) {#field, offsetof(zero_stats, field)}
/* clang-format on */

static const used_counter counters[] = {
    COUNTER(taken_ns),        COUNTER(update_ns),          COUNTER(disk_read_wait_ns),
    COUNTER(acquire_wait_ns), COUNTER(disk_write_wait_ns), COUNTER(grad_wait_ns),
    COUNTER(step_wait_ns),    COUNTER(disk_read_bytes),    COUNTER(disk_write_bytes),
    COUNTER(gather_bytes),    COUNTER(reduce_bytes),       COUNTER(disk_check_ns),
};

static uint64_t value_of(const zero_stats *stats, const used_counter *counter)
{
    return *(const uint64_t *)(const void *)((const unsigned char *)stats + counter->at);
}

static zero_status bottleneck_check(const zero_stats *before, const zero_stats *after)
{
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        const uint64_t first = value_of(before, &counters[i]);
        const uint64_t second = value_of(after, &counters[i]);
        if (second < first) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s is %" PRIu64 " before and %" PRIu64
                    " after; give two readings of one engine, the earlier one first",
                    counters[i].name, first, second);
        }
    }
    return ZERO_OK;
}

static double rate(uint64_t bytes, uint64_t ns)
{
    return ns != 0 ? (double)bytes / (double)ns : 0.0;
}

/* The largest; of equal ones the first. */
static zero_bottleneck largest(const zero_bottleneck_report *report)
{
    const uint64_t times[] = {0, report->cpu_ns, report->disk_read_ns, report->disk_write_ns,
                              report->link_ns};
    uint32_t most = ZERO_BOTTLENECK_NONE;
    for (uint32_t i = ZERO_BOTTLENECK_CPU; i <= ZERO_BOTTLENECK_LINK; i++) {
        most = times[i] > times[most] ? i : most;
    }
    return (zero_bottleneck)most;
}

static zero_bottleneck_report bottleneck_report_of(const zero_stats *before,
                                                   const zero_stats *after)
{
    const uint64_t link_bytes =
        after->gather_bytes - before->gather_bytes + after->reduce_bytes - before->reduce_bytes;
    const uint64_t waited = after->acquire_wait_ns - before->acquire_wait_ns + after->grad_wait_ns -
                            before->grad_wait_ns + after->step_wait_ns - before->step_wait_ns;
    zero_bottleneck_report found = {
        .interval_ns = after->taken_ns - before->taken_ns,
        .cpu_ns =
            after->update_ns - before->update_ns + after->disk_check_ns - before->disk_check_ns,
        .disk_read_ns = after->disk_read_wait_ns - before->disk_read_wait_ns,
        .disk_write_ns = after->disk_write_wait_ns - before->disk_write_wait_ns,
    };
    const uint64_t explained = found.cpu_ns + found.disk_read_ns + found.disk_write_ns;
    found.link_ns = link_bytes != 0 && waited > explained ? waited - explained : 0;
    found.disk_read_gb_s =
        rate(after->disk_read_bytes - before->disk_read_bytes, found.interval_ns);
    found.disk_write_gb_s =
        rate(after->disk_write_bytes - before->disk_write_bytes, found.interval_ns);
    found.link_gb_s = rate(link_bytes, found.interval_ns);
    found.bottleneck = largest(&found);
    return found;
}

zero_status zero_stats_bottleneck(const zero_stats *before, const zero_stats *after,
                                  zero_bottleneck_report *report)
{
    if (before == NULL || after == NULL || report == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s is NULL; zero_stats_bottleneck needs two readings and a "
                "place for its report",
                before == NULL  ? "before"
                : after == NULL ? "after"
                                : "report");
    }
    zero_stats first = zero_stats_init();
    zero_stats second = zero_stats_init();
    ZI_TRY(ZI_SIZED_IN(zero_stats, before, &first));
    ZI_TRY(ZI_SIZED_IN(zero_stats, after, &second));
    ZI_TRY(bottleneck_check(&first, &second));
    zero_bottleneck_report found = bottleneck_report_of(&first, &second);
    return ZI_SIZED_OUT(zero_bottleneck_report, report, &found);
}
