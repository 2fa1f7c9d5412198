/* Owns the file of a timeline: Chrome's trace event format, its object form. One event a line. */
#include "format/timeline_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "format/json.h"

/* Of the format. */
#define TIMELINE_VERSION 1
/* Times of a GPU are read from events, and tied to the host's clock anew once a second. Where spans
 * of a track overlap by no more than that can explain, the second begins when the first ends. */
#define SLACK_NS 20000
#define LINE_BYTES 512

__attribute__((format(printf, 2, 3))) static void put(zi_json_writer *out, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    zi_json_raw(out, line);
}

/* By track, then time; of two that begin together the one that ends later is around the other. */
static int timeline_file_compare(const void *left, const void *right)
{
    const zi_mark *a = left;
    const zi_mark *b = right;
    if (a->track != b->track) {
        return a->track < b->track ? -1 : 1;
    }
    if (a->begin_ns != b->begin_ns) {
        return a->begin_ns < b->begin_ns ? -1 : 1;
    }
    return a->end_ns > b->end_ns ? -1 : a->end_ns < b->end_ns;
}

/* Copies of the marks whose times are known, in order. */
static size_t list_marks(const zi_timeline *timeline, zi_mark *marks)
{
    size_t count = 0;
    for (uint32_t i = 0; i < timeline->desc.marks; i++) {
        zi_mark mark = timeline->marks[i];
        mark.begin_ns = zi_timestamp_get(&timeline->marks[i].begin_ns);
        mark.end_ns = zi_timestamp_get(&timeline->marks[i].end_ns);
        if (mark.begin_ns - 1 < ZI_NO_TIME - 1 && mark.end_ns - 1 < ZI_NO_TIME - 1) {
            mark.end_ns = zi_max_u64(mark.begin_ns, mark.end_ns);
            marks[count++] = mark;
        }
    }
    qsort(marks, count, sizeof *marks, timeline_file_compare);
    return count;
}

/* Ends of the spans of a track that are open at a time, outermost first. */
typedef struct open_spans {
    uint64_t ends[2 * ZI_SPAN_DEPTH];
    uint32_t depth;
    uint32_t track;
    uint64_t last_ns; /* begin of the last */
} open_spans;

static void timeline_file_fit(open_spans *open, zi_mark *mark)
{
    if (open->track != mark->track) {
        *open = (open_spans){.track = mark->track};
    }
    while (open->depth != 0 && open->ends[open->depth - 1] <= mark->begin_ns + SLACK_NS &&
           open->ends[open->depth - 1] < mark->end_ns) {
        mark->begin_ns = zi_max_u64(mark->begin_ns, open->ends[--open->depth]);
    }
    while (open->depth != 0 && open->ends[open->depth - 1] <= mark->begin_ns) {
        open->depth--;
    }
    mark->begin_ns = zi_max_u64(mark->begin_ns, open->last_ns);
    mark->end_ns = zi_max_u64(mark->begin_ns, mark->end_ns);
    if (open->depth != 0 && mark->end_ns > open->ends[open->depth - 1] &&
        mark->end_ns <= open->ends[open->depth - 1] + SLACK_NS) {
        mark->end_ns = open->ends[open->depth - 1];
    }
    if (open->depth < sizeof open->ends / sizeof open->ends[0]) {
        open->ends[open->depth++] = mark->end_ns;
    }
    open->last_ns = mark->begin_ns;
}

/* Ranks of all parts of a model are processes of one file. Process 0 and thread 0 are the kernel's
 * to some readers, so numbers begin at 1. */
static uint64_t timeline_file_process(const zi_timeline_file *file)
{
    return (uint64_t)file->part * file->world + file->rank + 1;
}

static uint32_t thread(uint32_t track)
{
    return track + 1;
}

static void put_mark(zi_json_writer *out, const zi_timeline_file *file, const zi_mark *mark)
{
    const uint64_t duration_ns = mark->end_ns - mark->begin_ns;
    const char *text = zi_span_text((zi_span)mark->span);
    json_t *args = json_object();
    char name[LINE_BYTES];
    (void)snprintf(name, sizeof name, mark->name[0] != '\0' ? "%s %s" : "%s", text, mark->name);
    put(out,
        ",\n{\"ph\":\"X\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu32 ",\"ts\":%" PRIu64 ".%03u"
        ",\"dur\":%" PRIu64 ".%03u,\"cat\":\"%s\",\"name\":",
        timeline_file_process(file), thread(mark->track), mark->begin_ns / 1000,
        (unsigned)(mark->begin_ns % 1000), duration_ns / 1000, (unsigned)(duration_ns % 1000),
        text);
    zi_json_put(out, zi_json_of_text(name));
    put(out, ",\"args\":");
    if (mark->name[0] != '\0') {
        zi_json_set(&args, "of", zi_json_of_text(mark->name));
    }
    if (mark->bytes != 0) {
        zi_json_set(&args, "bytes", zi_json_of_number(mark->bytes));
    }
    if (mark->batch.group != NULL) {
        zi_json_set(&args, "group", zi_json_of_text(mark->batch.group));
        zi_json_set(&args, "leader", zi_json_of_number(mark->batch.leader));
        zi_json_set(&args, "ranks", zi_json_of_number(mark->batch.ranks));
        zi_json_set(&args, "batch", zi_json_of_number(mark->batch.number));
    }
    zi_json_put(out, args);
    put(out, "}");
}

static void timeline_file_put_name(zi_json_writer *out, const zi_timeline_file *file,
                                   uint32_t track, const char *what, const char *name)
{
    put(out,
        ",\n{\"ph\":\"M\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu32
        ",\"name\":\"%s\",\"args\":{\"name\":",
        timeline_file_process(file), thread(track), what);
    zi_json_put(out, zi_json_of_text(name));
    put(out, "}}");
}

static void put_order(zi_json_writer *out, const zi_timeline_file *file, uint32_t track)
{
    put(out,
        ",\n{\"ph\":\"M\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu32
        ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}",
        timeline_file_process(file), thread(track), track);
}

/* All but the spans. */
static void put_head(zi_json_writer *out, const zi_timeline *timeline, const zi_timeline_file *file,
                     uint64_t lost)
{
    const uint32_t tracks = atomic_load_explicit(&timeline->track_count, memory_order_acquire);
    char rank[32];
    put(out,
        "{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"version\":%d,\"producer\":\"libzero %s\","
        "\"rank\":%" PRIu32 ",\"world\":%" PRIu32 ",\"part\":%" PRIu32 ",\"parts\":%" PRIu32
        ",\"clock_offset_ns\":%" PRId64 ",\"clock_error_ns\":%" PRIu64 ",\"lost\":%" PRIu64
        "},\n\"traceEvents\":[\n",
        TIMELINE_VERSION, file->version, file->rank, file->world, file->part, file->parts,
        file->clock_offset_ns, file->clock_error_ns, lost);
    put(out,
        "{\"ph\":\"M\",\"pid\":%" PRIu64
        ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%" PRIu64 "}}",
        timeline_file_process(file), timeline_file_process(file));
    (void)snprintf(rank, sizeof rank,
                   file->parts > 1 ? "rank %" PRIu32 " of part %" PRIu32 : "rank %" PRIu32,
                   file->rank, file->part);
    timeline_file_put_name(out, file, ZI_TRACK_HOST, "process_name", rank);
    for (uint32_t i = 0; i < tracks; i++) {
        timeline_file_put_name(out, file, i, "thread_name", timeline->tracks[i].text);
        put_order(out, file, i);
    }
}

/* Line by line, so that no more than one is in memory. */
static zero_status write_lines(FILE *out, const zi_timeline *timeline, const zi_timeline_file *file,
                               zi_mark *marks)
{
    const size_t count = list_marks(timeline, marks);
    const uint64_t begun = atomic_load_explicit(&timeline->head, memory_order_relaxed);
    open_spans open = {.track = ZI_TRACKS_MAX};
    zi_json_writer json;
    char *text = NULL;
    size_t bytes = 0;
    zi_json_begin(&json, JSON_COMPACT);
    put_head(&json, timeline, file, begun - count);
    for (size_t i = 0; i < count && !json.lost; i++) {
        timeline_file_fit(&open, &marks[i]);
        put_mark(&json, file, &marks[i]);
        (void)fwrite(json.text, 1, json.bytes, out);
        json.bytes = 0;
    }
    put(&json, "\n]}\n");
    ZI_TRY(zi_json_end(&json, &text, &bytes));
    (void)fwrite(text, 1, bytes, out);
    zi_free(text);
    return ZERO_OK;
}

static zero_status write_failed(const char *path, int code)
{
    ZI_FAIL_NATIVE(ZERO_ERR_IO, code, "the timeline cannot be written to %s: %s", path,
                   strerror(code));
}

zero_status zi_timeline_write(const zi_timeline *timeline, const zi_timeline_file *file,
                              const char *path)
{
    zi_mark *marks = NULL;
    FILE *out = NULL;
    ZI_TRY(zi_calloc(timeline->desc.marks, sizeof *marks, (void **)&marks));
    out = fopen(path, "we");
    if (out == NULL) {
        zi_free(marks);
        return write_failed(path, errno);
    }
    const zero_status status = write_lines(out, timeline, file, marks);
    zi_free(marks);
    errno = 0;
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        return write_failed(path, errno != 0 ? errno : EIO);
    }
    /* No half of it stays. */
    return status == ZERO_OK || truncate(path, 0) == 0 ? status : write_failed(path, errno);
}
