/* Owns the rows of a report and its two forms, table and JSON. Invariant: every row holds finite
 * numbers, and the file of the JSON holds a whole report whenever the program is ended. */
#include "bench_report.h"
#include "live_line.h"
#include "script.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *speaker = "zero bench";

void bench_speak_as(const char *command)
{
    speaker = command;
}

const char *bench_speaker(void)
{
    return speaker;
}

int bench_fail(const char *format, ...)
{
    va_list arguments;
    bench_progress_clear();
    va_start(arguments, format);
    fprintf(stderr, "%s: ", speaker);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return 1;
}

int bench_fail_zero(const char *what)
{
    const zero_error *error = zero_last_error();
    return bench_fail("%.*s: %s: %s", (int)strcspn(what, "("), what,
                      zero_status_name(error->status), error->message);
}

zero_status bench_rank_status(int failed)
{
    const zero_status last = zero_last_error()->status;
    return failed == 0 ? ZERO_OK : last != ZERO_OK ? last : ZERO_ERR_STATE;
}

/* --- the file of the JSON --------------------------------------------------------------------- */

/* O_NONBLOCK: a pipe that nobody reads is refused at once; what is written later may wait. */
int bench_open_file(const char *path)
{
    const int file = strcmp(path, "-") == 0
                         ? dup(STDOUT_FILENO)
                         : open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    const int flags = file < 0 ? -1 : fcntl(file, F_GETFL);
    if (flags < 0 || fcntl(file, F_SETFL, flags & ~O_NONBLOCK) != 0) {
        (void)bench_fail("cannot write %s: %s", path,
                         errno == ENXIO ? "it is a pipe that nobody reads" : strerror(errno));
        return -1;
    }
    return file;
}

int bench_report_open(bench_report *report, const char *json_path, bench_scale scale)
{
    struct stat kind;
    int file = -1;
    *report = (bench_report){.scale = scale, .json_path = json_path, .unfinished = true};
    if (json_path != NULL) {
        file = bench_open_file(json_path);
        if (file < 0) {
            return 1;
        }
        const bool to_stdout = strcmp(json_path, "-") == 0;
        report->on_disk = !to_stdout && fstat(file, &kind) == 0 && S_ISREG(kind.st_mode);
    }
    report->json_file = file;
    report->results = json_array();
    report->skipped = json_array();
    report->failed = json_array();
    report->more = json_object();
    return 0;
}

bool bench_report_has_table(const bench_report *report)
{
    return report->json_path == NULL || strcmp(report->json_path, "-") != 0;
}

/* The whole report; NULL when memory is out. */
static json_t *report_json(const bench_report *report)
{
    static const char *const scales[] = {"full", "quick", "tiny"};
    json_t *json = bench_head_json(report);
    json_t *rest = json_pack("{s:s, s:O, s:O, s:O}", "scale", scales[report->scale], "results",
                             report->results, "skipped", report->skipped, "failed", report->failed);
    int lost = json_object_update(json, rest) || json_object_update(json, report->more);
    json_decref(rest);
    if (report->unfinished) {
        lost = lost || json_object_set_new(json, "unfinished", json_true());
    }
    if (lost) {
        json_decref(json);
    }
    return lost ? NULL : json;
}

/* As text that ends with a newline instead of a 0. */
static char *json_text(const bench_report *report, size_t *bytes)
{
    json_t *json = report_json(report);
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
    json_decref(json);
    if (text != NULL) {
        *bytes = strlen(text) + 1;
        text[*bytes - 1] = '\n';
    }
    return text;
}

/* In one write over what is there, so that a file is whole when the program is killed. */
static int write_json(const bench_report *report)
{
    const int file = report->json_file;
    size_t bytes = 0;
    char *text = json_text(report, &bytes);
    if (text == NULL) {
        return bench_fail("cannot write %s: no memory left, or a name is not UTF-8",
                          report->json_path);
    }
    bool written = true;
    for (size_t done = 0; written && done < bytes;) {
        const ssize_t now = report->on_disk ? pwrite(file, text + done, bytes - done, (off_t)done)
                                            : write(file, text + done, bytes - done);
        written = now > 0 || (now < 0 && errno == EINTR);
        done += now > 0 ? (size_t)now : 0;
    }
    written = written && (!report->on_disk || ftruncate(file, (off_t)bytes) == 0);
    const int reason = errno;
    free(text);
    return written ? 0 : bench_fail("cannot write %s: %s", report->json_path, strerror(reason));
}

int bench_report_close(bench_report *report)
{
    int failed = 0;
    if (report->json_path != NULL) {
        failed = write_json(report) || failed;
        if (close(report->json_file) != 0) {
            failed = bench_fail("cannot write %s: %s", report->json_path, strerror(errno));
        }
    }
    json_decref(report->results);
    json_decref(report->skipped);
    json_decref(report->failed);
    json_decref(report->gpu);
    json_decref(report->more);
    return failed;
}

/* --- rows ------------------------------------------------------------------------------------- */

static int keep(const bench_report *report)
{
    return report->on_disk ? write_json(report) : 0;
}

/* A directory's name may be no UTF-8, and is still printed. */
int bench_add(bench_report *report, const char *metric, const char *name, const char *unit,
              const bench_stat *stat, double reference)
{
    const double ratio = reference / stat->median;
    const double numbers[] = {stat->median, reference, ratio, stat->min, stat->max};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!isfinite(numbers[i])) {
            return bench_fail("%s, %s: %g is no measurement", metric, name, numbers[i]);
        }
    }
    json_t *row = json_pack("{s:s, s:o, s:f, s:s, s:f, s:f, s:f, s:f, s:I}", "metric", metric,
                            "case", json_string_nocheck(name), "value", stat->median, "unit", unit,
                            "reference", reference, "ratio", ratio, "min", stat->min, "max",
                            stat->max, "repetitions", (json_int_t)stat->repetitions);
    if (json_array_append_new(report->results, row) != 0) {
        return bench_fail("%s, %s: no memory left for the row", metric, name);
    }
    return keep(report);
}

int bench_skip(bench_report *report, const char *metric, const char *name, const char *reason)
{
    json_t *omission = json_pack("{s:s, s:o, s:o}", "metric", metric, "case",
                                 name != NULL ? json_string_nocheck(name) : json_null(), "reason",
                                 json_string_nocheck(reason));
    return json_array_append_new(report->skipped, omission) == 0
               ? 0
               : bench_fail("%s: no memory left to say that it is skipped: %s", metric, reason);
}

int bench_report_more(bench_report *report, const char *key, json_t *value)
{
    return json_object_set_new(report->more, key, value) == 0
               ? 0
               : bench_fail("no memory left for the report's %s", key);
}

int bench_add_times(bench_report *report, const char *metric, const char *name,
                    const bench_stat *ours, const bench_stat *reference)
{
    const bench_stat ms = {ours->median * 1e3, ours->min * 1e3, ours->max * 1e3, ours->repetitions};
    return bench_add(report, metric, name, "ms", &ms, reference->median * 1e3);
}

/* True if it has all of a row. */
static bool is_row(json_t *json)
{
    return json_unpack_ex(json, NULL, JSON_VALIDATE_ONLY,
                          "{s:s, s:s, s:F, s:s, s:F, s:F, s:F, s:F, s:I}", "metric", "case",
                          "value", "unit", "reference", "ratio", "min", "max", "repetitions") == 0;
}

int bench_report_take(bench_report *report, const json_t *json)
{
    size_t i;
    json_t *entry;
    json_t *results = json_object_get(json, "results");
    json_t *skipped = json_object_get(json, "skipped");
    if (!json_is_array(results) || !json_is_array(skipped)) {
        return bench_fail("the ranks left no report");
    }
    json_array_foreach(results, i, entry)
    {
        if (!is_row(entry)) {
            return bench_fail("the ranks' report has a row that is none");
        }
    }
    json_array_foreach(skipped, i, entry)
    {
        if (!json_is_string(json_object_get(entry, "metric")) ||
            !json_is_string(json_object_get(entry, "reason"))) {
            return bench_fail("the ranks' report has an omission that is none");
        }
    }
    if (json_array_extend(report->results, results) != 0 ||
        json_array_extend(report->skipped, skipped) != 0) {
        return bench_fail("no memory left for the ranks' rows");
    }
    return keep(report);
}

/* --- the table -------------------------------------------------------------------------------- */

int bench_report_print(const bench_report *report, const char *module)
{
    char columns[16];
    (void)snprintf(columns, sizeof columns, "%u", live_line_columns(stdout));
    return script_print(module, columns, report_json(report));
}
