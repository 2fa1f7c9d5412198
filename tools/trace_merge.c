/* Owns the timeline of all ranks: their events as they are, on rank 0's clock, from 0 on. */
#include "trace_read.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "plan_report.h"

/* A file that exists is most likely one of the timelines: the name of OUT was forgotten. */
static FILE *open_new(const char *path)
{
    const bool standard = strcmp(path, "-") == 0;
    const int file =
        standard ? dup(STDOUT_FILENO) : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
        (void)bench_fail("cannot write %s: %s%s", path, strerror(errno),
                         errno == EEXIST ? "; the first file is made anew, name another" : "");
    }
    return file >= 0 ? fdopen(file, "w") : NULL;
}

static int64_t first_ns(const trace_rank *ranks, size_t count)
{
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < ranks[i].span_count; k++) {
            const int64_t begin = ranks[i].spans[k].begin_ns - ranks[i].offset_ns;
            first = begin < first ? begin : first;
        }
    }
    return first;
}

static bool put(FILE *file, const json_t *json, const char *behind)
{
    return json != NULL && json_dumpf(json, file, JSON_COMPACT | JSON_REAL_PRECISION(16)) == 0 &&
           fputs(behind, file) != EOF;
}

static bool put_head(FILE *file, const trace_rank *ranks, size_t count)
{
    json_t *heads = json_array();
    for (size_t i = 0; i < count; i++) {
        (void)json_array_append(heads, json_object_get(ranks[i].root, "otherData"));
    }
    json_t *other = json_pack("{s:o}", "ranks", heads);
    const bool good = fputs("{\"displayTimeUnit\":\"ms\",\n\"otherData\":", file) != EOF &&
                      put(file, other, ",\n\"traceEvents\":[\n");
    json_decref(other);
    return good;
}

/* The times of what happens at a time are moved; names of tracks have none. */
static bool put_events(FILE *file, const trace_rank *rank, int64_t zero_ns, bool last)
{
    const json_t *events = json_object_get(rank->root, "traceEvents");
    const size_t count = json_array_size(events);
    bool good = true;
    for (size_t i = 0; i < count && good; i++) {
        json_t *event = json_array_get(events, i);
        const json_t *time = json_object_get(event, "ts");
        const uint64_t process = rank->part * rank->world + rank->rank + 1;
        good = json_object_set_new(event, "pid", json_integer((json_int_t)process)) == 0;
        if (json_is_number(time)) {
            const double ns =
                round(json_number_value(time) * 1e3) - (double)rank->offset_ns - (double)zero_ns;
            good = good && json_object_set_new(event, "ts", json_real(ns / 1e3)) == 0;
        }
        good = good && put(file, event, last && i + 1 == count ? "\n" : ",\n");
    }
    return good;
}

int trace_merge(const char *out, trace_rank *ranks, size_t count)
{
    const int64_t zero_ns = first_ns(ranks, count);
    FILE *file = open_new(out);
    if (file == NULL) {
        return 1;
    }
    bool good = put_head(file, ranks, count);
    size_t last = count; /* of those with events */
    for (size_t i = 0; i < count; i++) {
        last = json_array_size(json_object_get(ranks[i].root, "traceEvents")) != 0 ? i : last;
    }
    for (size_t i = 0; i < count && good; i++) {
        good = put_events(file, &ranks[i], zero_ns, i == last);
    }
    good = good && fputs("]}\n", file) != EOF;
    return plan_close(file, out, !good);
}
