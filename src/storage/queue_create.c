/* Owns how a queue is made from its options: depths, segments, registered memory, and the backend,
 * the first of the fallback order that this machine grants. Invariants: nothing of a queue is
 * allocated elsewhere; a backend is taken only after every better one was refused, and the report
 * holds each refusal. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "storage/queue_internal.h"

#define SEGMENT_BYTES_MAX ((uint64_t)1 << 30)

static zero_status queue_create_check_options(const zi_io_options *options)
{
    if (options->segment_bytes % ZI_STORAGE_ALIGN != 0 ||
        options->segment_bytes > SEGMENT_BYTES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "segments of %" PRIu64 " bytes; give a multiple of %" PRIu64 " up to %" PRIu64,
                options->segment_bytes, ZI_STORAGE_ALIGN, SEGMENT_BYTES_MAX);
    }
    if (options->file_depth > ZI_IO_DEPTH_MAX || options->depth > ZI_IO_DEPTH_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%u and %u segments in flight for a file and in all; at most %d",
                options->file_depth, options->depth, ZI_IO_DEPTH_MAX);
    }
    for (uint32_t i = 0; i < options->region_count; i++) {
        const zi_io_region *region = &options->regions[i];
        if (region->memory == NULL || region->bytes == 0 ||
            ((uintptr_t)region->memory | region->bytes) % ZI_STORAGE_ALIGN != 0) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "region %u is %" PRIu64 " bytes at %p; give multiples of %" PRIu64, i,
                    region->bytes, region->memory, ZI_STORAGE_ALIGN);
        }
    }
    if (options->kind > ZI_IO_BACKEND_POSIX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "there is no kind %d; give one up to %d",
                (int)options->kind, ZI_IO_BACKEND_POSIX);
    }
    return ZERO_OK;
}

static void set_depths(zi_io *queue, const zi_io_options *options)
{
    queue->file_depth = options->file_depth != 0 ? options->file_depth : ZI_IO_DEPTH;
    const uint64_t all = (uint64_t)queue->file_depth * queue->map->file_count;
    queue->depth =
        options->depth != 0 ? options->depth : (uint32_t)zi_min_u64(all, ZI_IO_DEPTH_MAX);
    queue->segment_bytes =
        options->segment_bytes != 0 ? options->segment_bytes : ZI_IO_SEGMENT_BYTES;
    queue->retry_ns = options->retry_ns != 0 ? options->retry_ns : ZI_IO_RETRY_NS;
    queue->report.depth = queue->depth;
    queue->report.direct = true;
    for (uint32_t i = 0; i < queue->map->file_count; i++) {
        const zi_store_directory *info = zi_store_directory_of(queue->store, i);
        queue->report.direct = queue->report.direct && info->direct;
    }
}

static zero_status queue_create_make_segments(zi_io *queue)
{
    ZI_TRY(zi_calloc(queue->depth, sizeof *queue->segments, (void **)&queue->segments));
    for (uint32_t i = 0; i < queue->depth; i++) {
        queue->segments[i].next = queue->free;
        queue->free = &queue->segments[i];
    }
    return ZERO_OK;
}

/* The regions' addresses, and how many slices they make. */
static zero_status keep_regions(zi_io *queue, const zi_io_options *options, uint32_t *slice_count)
{
    uint64_t slices = 0;
    ZI_TRY(zi_calloc(options->region_count, sizeof *queue->regions, (void **)&queue->regions));
    queue->region_count = options->region_count;
    for (uint32_t i = 0; i < options->region_count; i++) {
        const uint64_t start = (uint64_t)(uintptr_t)options->regions[i].memory;
        const uint64_t bytes = options->regions[i].bytes;
        queue->regions[i] = (queue_region){start, start + bytes, (uint32_t)slices};
        queue->report.region_bytes += bytes;
        slices += zi_div_up(bytes, ZI_IO_SLICE_BYTES);
    }
    if (slices > INT32_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%" PRIu64 " bytes of regions are too many",
                queue->report.region_bytes);
    }
    *slice_count = (uint32_t)slices;
    return ZERO_OK;
}

static void cut_slices(const zi_io_options *options, struct iovec *slices)
{
    for (uint32_t i = 0; i < options->region_count; i++) {
        const zi_io_region *region = &options->regions[i];
        for (uint64_t at = 0; at < region->bytes; at += ZI_IO_SLICE_BYTES) {
            slices->iov_base = (unsigned char *)region->memory + at;
            slices->iov_len = zi_min_u64(ZI_IO_SLICE_BYTES, region->bytes - at);
            slices++;
        }
    }
}

/* ---- the backend ---- */

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

/* Make the first backend that works, or `kind` alone unless it is BEST. Each refusal on the way is
 * logged and added to report->refusals. */
static zero_status open_backend(const zi_io_setup *setup, zi_io_backend_kind kind,
                                zi_io_backend *backend, zi_io_report *report)
{
    zero_status status = ZERO_ERR_UNSUPPORTED;
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
        if (status != ZERO_ERR_UNSUPPORTED || kind != ZI_IO_BACKEND_BEST) {
            return status;
        }
        note_refusal(tried->kind, report);
    }
    return status;
}

static zero_status make_backend(zi_io *queue, const zi_io_options *options)
{
    uint32_t slice_count = 0;
    ZI_TRY(keep_regions(queue, options, &slice_count));
    if (options->backend != NULL) {
        queue->report.kind = ZI_IO_BACKEND_GIVEN;
        return ZERO_OK;
    }
    struct iovec *slices = NULL;
    ZI_TRY(zi_calloc(slice_count, sizeof *slices, (void **)&slices));
    cut_slices(options, slices);
    const zi_io_setup setup = {.store = options->store,
                               .file_count = queue->map->file_count,
                               .depth = queue->depth,
                               .shared = options->shared,
                               .slices = slices,
                               .slice_count = slice_count};
    const zi_storage *storage = zi_store_storage(options->store);
    zero_status status = ZERO_OK;
    if (storage != NULL) {
        queue->report.kind = ZI_IO_BACKEND_GIVEN;
        status = storage->backend_create(storage->self, &setup, &queue->backend, &queue->report);
    } else {
        status = open_backend(&setup, options->kind, &queue->backend, &queue->report);
    }
    zi_free(slices);
    return status;
}

zero_status zi_io_create(const zi_io_options *options, zi_io **out)
{
    *out = NULL;
    zi_assert(options->store != NULL);
    zi_io *queue = NULL;
    zero_status status = zi_calloc(1, sizeof *queue, (void **)&queue);
    if (status != ZERO_OK) {
        if (options->backend != NULL) {
            options->backend->ops->destroy(options->backend->self);
        }
        return status;
    }
    if (options->backend != NULL) {
        queue->backend = *options->backend;
    }
    queue->store = options->store;
    queue->shared = options->shared;
    queue->map = zi_store_map(options->store);
    queue->waiting_end = &queue->waiting;
    queue->timeline = options->timeline;
    queue->what = options->what;
    zi_assert_cmp(options->use, <, ZI_IO_USES);
    queue->use = options->use;
    status = queue_create_check_options(options);
    if (status == ZERO_OK) {
        set_depths(queue, options);
        status = queue_create_make_segments(queue);
    }
    if (status == ZERO_OK) {
        status = make_backend(queue, options);
    }
    if (status != ZERO_OK) {
        zi_io_destroy(queue);
        return status;
    }
    *out = queue;
    return ZERO_OK;
}
