/* Owns the report of an engine's paths: the carrier of bytes between ranks, and the I/O backend. */
#include "zero/path.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "engine/guard.h"

/* The first group with several ranks that carries the traffic; else a group of one rank. */
static const zi_group *carrier_of(const zero_engine *engine, zero_traffic traffic)
{
    const engine_groups *groups = &engine->groups;
    const bool gathers = traffic == ZERO_TRAFFIC_GATHER;
    for (uint32_t i = 0; i < engine->layout->sharding_count * ZI_HOPS; i++) {
        const zi_hop *hop = &engine->layout->routes[i / ZI_HOPS][i % ZI_HOPS];
        if (hop->sums != gathers && zi_hop_crosses(hop)) {
            return groups->hops[i / ZI_HOPS][i % ZI_HOPS];
        }
    }
    return groups->hops[0][gathers ? ZI_HOP_GATHER : ZI_HOP_SCATTER];
}

zero_status zero_engine_path(const zero_engine *engine, zero_traffic traffic, zero_path *out)
{
    zero_path path = zero_path_init();
    ZI_TRY(zi_engine_check_given(engine));
    if (traffic != ZERO_TRAFFIC_GATHER && traffic != ZERO_TRAFFIC_REDUCE) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "traffic %d is not a zero_traffic", (int)traffic);
    }
    const bool in_levels = traffic == ZERO_TRAFFIC_REDUCE &&
                           engine->layout->tuning.reduction == ZERO_REDUCTION_DEFAULT;
    zi_world_group_path(engine->world, carrier_of(engine, traffic), in_levels, &path);
    return ZI_SIZED_OUT(zero_path, out, &path);
}

static zero_io_backend backend_of(zi_io_backend_kind kind)
{
    switch (kind) {
    case ZI_IO_BACKEND_FIXED:
        return ZERO_IO_BACKEND_FIXED;
    case ZI_IO_BACKEND_URING:
        return ZERO_IO_BACKEND_URING;
    case ZI_IO_BACKEND_POSIX:
        return ZERO_IO_BACKEND_POSIX;
    case ZI_IO_BACKEND_BEST:
    case ZI_IO_BACKEND_GIVEN:
        break;
    }
    return ZERO_IO_BACKEND_NONE;
}

/* Add a refusal. Text that does not fit ends in "..."; the log has all of it. */
static void note_refused(zero_disk_path *path, const char *where, const char *reason)
{
    const size_t used = strlen(path->refused);
    const size_t left = sizeof path->refused - used;
    const int length = snprintf(path->refused + used, left, "%s%s%s%s", used > 0 ? "; " : "", where,
                                where[0] != '\0' ? ": " : "", reason);
    if (length >= (int)left) {
        memcpy(path->refused + sizeof path->refused - 4, "...", 4);
    }
}

/* How the engine's windows reach files. All are made alike, so the first one's report is that of
 * all, with the memory of all added up. false: nothing is on disk. */
static bool path_report_of(const zero_engine *engine, zi_io_report *report)
{
    bool found = false;
    for (int i = 0; i < ENGINE_WINDOWS; i++) {
        const zi_window *window = engine->windows[i];
        const zi_io_report *own = window != NULL ? zi_window_report(window) : NULL;
        if (own != NULL && !found) {
            *report = *own;
            found = true;
        } else if (own != NULL) {
            report->region_bytes += own->region_bytes;
            report->registered_bytes += own->registered_bytes;
        }
    }
    return found;
}

static void print_striping(zero_disk_path *path, const engine_striping *striping, uint32_t count)
{
    static const char *const by[] = {"equally", "by disk_weights ", "by measured MB/s "};
    const char *text = count == 1 ? "to one directory" : by[striping->by];
    size_t used = (size_t)snprintf(path->striped, sizeof path->striped, "%s", text);
    for (uint32_t i = 0; i < count && count > 1 && striping->by != ENGINE_STRIPED_EQUALLY; i++) {
        (void)snprintf(path->striped + used, sizeof path->striped - used, "%s%" PRIu32,
                       i > 0 ? ":" : "", striping->rates[i]);
        used = strlen(path->striped);
    }
}

static void report_files(const zero_engine *engine, zero_disk_path *path)
{
    const uint32_t files = zi_store_map(engine->store)->file_count;
    print_striping(path, &engine->striping, files);
    for (uint32_t i = 0; i < files; i++) {
        const zi_store_directory *directory = zi_store_directory_of(engine->store, i);
        if (directory->note[0] != '\0') {
            note_refused(path, directory->path, directory->note);
        }
    }
}

zero_status zero_engine_disk_path(const zero_engine *engine, zero_disk_path *out)
{
    zero_disk_path path = zero_disk_path_init();
    zi_io_report report;
    ZI_TRY(zi_engine_check_given(engine));
    if (!path_report_of(engine, &report)) {
        return ZI_SIZED_OUT(zero_disk_path, out, &path);
    }
    path.backend = backend_of(report.kind);
    path.direct = report.direct;
    path.window_bytes = report.region_bytes;
    path.registered_bytes = report.registered_bytes;
    (void)snprintf(path.text, sizeof path.text, "%s%s%s%s, %s", zi_io_backend_name(report.kind),
                   report.flags[0] != '\0' ? " (" : "", report.flags,
                   report.flags[0] != '\0' ? ")" : "", report.direct ? "direct" : "buffered");
    if (report.refusals[0] != '\0') {
        note_refused(&path, "", report.refusals);
    }
    report_files(engine, &path);
    return ZI_SIZED_OUT(zero_disk_path, out, &path);
}
