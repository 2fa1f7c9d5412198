/* Owns the file of a timeline: Chrome's trace event format, its object form. One event a line. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/timeline.h"
#include "core/utf8.h"

/* Times of a GPU are read from events, and tied to the host's clock anew once a second. Where spans
 * of a track overlap by no more than that can explain, the second begins when the first ends. */
#define SLACK_NS 20000
#define LINE_BYTES 512

__attribute__((format(printf, 2, 3))) static void put(FILE *out, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    (void)fputs(line, out);
}

/* The inside of a JSON string. A byte that is no UTF-8 is written as the character of its number.
 */
static void timeline_write_put_text(FILE *out, const char *name)
{
    const unsigned char *text = (const unsigned char *)name;
    while (*text != '\0') {
        const size_t bytes = zi_utf8_bytes(text);
        if (bytes == 0 || *text < 0x20 || *text == 0x7f) {
            put(out, "\\u%04x", *text);
        } else {
            if (*text == '"' || *text == '\\') {
                (void)fputc('\\', out);
            }
            (void)fwrite(text, 1, bytes, out);
        }
        text += bytes != 0 ? bytes : 1;
    }
}

/* By track, then time; of two that begin together the one that ends later is around the other. */
static int timeline_write_compare(const void *left, const void *right)
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
    qsort(marks, count, sizeof *marks, timeline_write_compare);
    return count;
}

/* Ends of the spans of a track that are open at a time, outermost first. */
typedef struct open_spans {
    uint64_t ends[2 * ZI_SPAN_DEPTH];
    uint32_t depth;
    uint32_t track;
    uint64_t last_ns; /* begin of the last */
} open_spans;

static void timeline_write_fit(open_spans *open, zi_mark *mark)
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
static uint64_t timeline_write_process(const zi_timeline_file *file)
{
    return (uint64_t)file->part * file->world + file->rank + 1;
}

static uint32_t thread(uint32_t track)
{
    return track + 1;
}

static void put_mark(FILE *out, const zi_timeline_file *file, const zi_mark *mark)
{
    const uint64_t duration_ns = mark->end_ns - mark->begin_ns;
    const char *text = zi_span_text((zi_span)mark->span);
    const char *separator = "";
    put(out,
        ",\n{\"ph\":\"X\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu32 ",\"ts\":%" PRIu64 ".%03u"
        ",\"dur\":%" PRIu64 ".%03u,\"cat\":\"%s\",\"name\":\"%s%s",
        timeline_write_process(file), thread(mark->track), mark->begin_ns / 1000,
        (unsigned)(mark->begin_ns % 1000), duration_ns / 1000, (unsigned)(duration_ns % 1000), text,
        text, mark->name[0] != '\0' ? " " : "");
    timeline_write_put_text(out, mark->name);
    put(out, "\",\"args\":{");
    if (mark->name[0] != '\0') {
        put(out, "\"of\":\"");
        timeline_write_put_text(out, mark->name);
        put(out, "\"");
        separator = ",";
    }
    if (mark->bytes != 0) {
        put(out, "%s\"bytes\":%" PRIu64, separator, mark->bytes);
        separator = ",";
    }
    if (mark->batch.group != NULL) {
        put(out, "%s\"group\":\"", separator);
        timeline_write_put_text(out, mark->batch.group);
        put(out, "\",\"leader\":%" PRIu32 ",\"ranks\":%" PRIu32 ",\"batch\":%" PRIu64,
            mark->batch.leader, mark->batch.ranks, mark->batch.number);
    }
    put(out, "}}");
}

static void timeline_write_put_name(FILE *out, const zi_timeline_file *file, uint32_t track,
                                    const char *what, const char *name)
{
    put(out, ",\n{\"ph\":\"M\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu32 ",\"name\":\"%s\",\"args\":{",
        timeline_write_process(file), thread(track), what);
    put(out, "\"name\":\"");
    timeline_write_put_text(out, name);
    put(out, "\"}}");
}

static void put_order(FILE *out, const zi_timeline_file *file, uint32_t track)
{
    put(out,
        ",\n{\"ph\":\"M\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu32
        ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}",
        timeline_write_process(file), thread(track), track);
}

static void timeline_write_put_file(FILE *out, const zi_timeline *timeline,
                                    const zi_timeline_file *file, zi_mark *marks)
{
    const size_t count = list_marks(timeline, marks);
    const uint64_t begun = atomic_load_explicit(&timeline->head, memory_order_relaxed);
    const uint32_t tracks = atomic_load_explicit(&timeline->track_count, memory_order_acquire);
    char rank[32];
    open_spans open = {.track = ZI_TRACKS_MAX};
    put(out,
        "{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"producer\":\"libzero %s\",\"rank\":%" PRIu32
        ",\"world\":%" PRIu32 ",\"part\":%" PRIu32 ",\"parts\":%" PRIu32
        ",\"clock_offset_ns\":%" PRId64 ",\"clock_error_ns\":%" PRIu64 ",\"lost\":%" PRIu64
        "},\n\"traceEvents\":[\n",
        file->version, file->rank, file->world, file->part, file->parts, file->clock_offset_ns,
        file->clock_error_ns, begun - count);
    put(out,
        "{\"ph\":\"M\",\"pid\":%" PRIu64
        ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%" PRIu64 "}}",
        timeline_write_process(file), timeline_write_process(file));
    (void)snprintf(rank, sizeof rank,
                   file->parts > 1 ? "rank %" PRIu32 " of part %" PRIu32 : "rank %" PRIu32,
                   file->rank, file->part);
    timeline_write_put_name(out, file, ZI_TRACK_HOST, "process_name", rank);
    for (uint32_t i = 0; i < tracks; i++) {
        timeline_write_put_name(out, file, i, "thread_name", timeline->tracks[i].text);
        put_order(out, file, i);
    }
    for (size_t i = 0; i < count; i++) {
        timeline_write_fit(&open, &marks[i]);
        put_mark(out, file, &marks[i]);
    }
    put(out, "\n]}\n");
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
    timeline_write_put_file(out, timeline, file, marks);
    zi_free(marks);
    errno = 0;
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        return write_failed(path, errno != 0 ? errno : EIO);
    }
    return ZERO_OK;
}
