/* Owns the rows of a report and its two forms, table and JSON. Invariant: every row holds finite
 * numbers, and the file of the JSON holds a whole report whenever the program is ended. */
#include "bench_report.h"
#include "live_line.h"

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
    return 0;
}

bool bench_report_has_table(const bench_report *report)
{
    return report->json_path == NULL || strcmp(report->json_path, "-") != 0;
}

/* The whole report as text that ends with a newline instead of a 0; NULL when memory is out. */
static char *json_text(const bench_report *report, size_t *bytes)
{
    static const char *const scales[] = {"full", "quick", "tiny"};
    json_t *json = bench_head_json(report);
    json_t *rest = json_pack("{s:s, s:O, s:O, s:O}", "scale", scales[report->scale], "results",
                             report->results, "skipped", report->skipped, "failed", report->failed);
    int lost = json_object_update(json, rest);
    json_decref(rest);
    if (report->unfinished) {
        lost = lost || json_object_set_new(json, "unfinished", json_true());
    }
    char *text = lost ? NULL : json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
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
    int failed =
        fflush(stdout) == 0 ? 0 : bench_fail("cannot write the table: %s", strerror(errno));
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
    free(report->drawing);
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

void bench_report_draw(bench_report *report, char *text, const char *shows)
{
    free(report->drawing);
    report->drawing = text;
    report->drawn = shows;
}

int bench_add_times(bench_report *report, const char *metric, const char *name,
                    const bench_stat *ours, const bench_stat *reference)
{
    const bench_stat ms = {ours->median * 1e3, ours->min * 1e3, ours->max * 1e3, ours->repetitions};
    return bench_add(report, metric, name, "ms", &ms, reference->median * 1e3);
}

bool bench_row_read(const json_t *json, bench_row *row)
{
    json_int_t repetitions = 0;
    const bool whole =
        json_unpack((json_t *)(uintptr_t)json, "{s:s, s:s, s:F, s:s, s:F, s:F, s:F, s:F, s:I}",
                    "metric", &row->metric, "case", &row->name, "value", &row->value, "unit",
                    &row->unit, "reference", &row->reference, "ratio", &row->ratio, "min",
                    &row->min, "max", &row->max, "repetitions", &repetitions) == 0;
    row->repetitions = (uint32_t)repetitions;
    return whole;
}

int bench_report_take(bench_report *report, const json_t *json)
{
    size_t i;
    json_t *entry;
    bench_row row;
    json_t *results = json_object_get(json, "results");
    json_t *skipped = json_object_get(json, "skipped");
    if (!json_is_array(results) || !json_is_array(skipped)) {
        return bench_fail("the ranks left no report");
    }
    json_array_foreach(results, i, entry)
    {
        if (!bench_row_read(entry, &row)) {
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

/* Large numbers whole, small ones with four significant digits. */
static const char *number_text(double number, char *text, size_t text_bytes)
{
    (void)snprintf(text, text_bytes, fabs(number) >= 1e4 ? "%.0f" : "%.4g", number);
    return text;
}

/* name_width 0: the numbers have a line of their own, for terminals that are too narrow. */
static void print_row(const bench_row *row, int metric_width, int name_width, FILE *out)
{
    char value[32];
    char reference[32];
    char min[32];
    char max[32];
    fprintf(out, "%-*s  %-*s%s  %12s %-5s  %12s  %6.3f  %s..%s\n", metric_width, row->metric,
            name_width, row->name, name_width == 0 ? "\n " : "",
            number_text(row->value, value, sizeof value), row->unit,
            number_text(row->reference, reference, sizeof reference), row->ratio,
            number_text(row->min, min, sizeof min), number_text(row->max, max, sizeof max));
}

static int wider(int width, const char *text)
{
    const int own = (int)strnlen(text, 100);
    return own > width ? own : width;
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static void print_gpu(const json_t *gpu, FILE *out)
{
    fprintf(out,
            "gpu: %s, %.0f SMs, %.1f GiB, L2 %.0f MiB, driver %s, runtime %s\n"
            "pinned copies in GB/s: %.1f to the GPU, %.1f back, %.1f both at once\n",
            text_of(gpu, "name"), number_of(gpu, "sm_count"),
            number_of(gpu, "memory_bytes") / 0x1p30, number_of(gpu, "l2_bytes") / 0x1p20,
            text_of(gpu, "driver"), text_of(gpu, "runtime"),
            number_of(gpu, "pinned_to_gpu_gb_per_s"), number_of(gpu, "pinned_to_host_gb_per_s"),
            number_of(gpu, "pinned_both_gb_per_s"));
}

/* Whether the drawing shows the row. */
static bool is_drawn(const bench_report *report, const json_t *row)
{
    return report->drawing != NULL &&
           strncmp(text_of(row, "metric"), report->drawn, strlen(report->drawn)) == 0;
}

/* The rows that are to be listed. */
static json_t *listed_rows(const bench_report *report)
{
    size_t i;
    json_t *json;
    json_t *listed = json_array();
    json_array_foreach(report->results, i, json)
    {
        if (!is_drawn(report, json)) {
            (void)json_array_append(listed, json);
        }
    }
    return listed;
}

static void print_rows(const json_t *results, FILE *out)
{
    size_t i;
    const json_t *json;
    bench_row row;
    int metric_width = (int)strlen("metric");
    int name_width = (int)strlen("case");
    json_array_foreach(results, i, json)
    {
        metric_width = wider(metric_width, text_of(json, "metric"));
        name_width = wider(name_width, text_of(json, "case"));
    }
    /* Behind both: 46 columns and the range. */
    const unsigned columns = live_line_columns(out);
    if (columns != 0 && (unsigned)(metric_width + name_width) + 72 > columns) {
        metric_width = 0;
        name_width = 0;
    }
    fprintf(out, "%-*s  %-*s%s  %12s %-5s  %12s  %6s  %s\n", metric_width, "metric", name_width,
            "case", name_width == 0 ? "\n " : "", "value", "unit", "reference", "ratio",
            "min..max");
    json_array_foreach(results, i, json)
    {
        if (bench_row_read(json, &row)) {
            print_row(&row, metric_width, name_width, out);
        }
    }
}

void bench_report_print(const bench_report *report, FILE *out)
{
    size_t i;
    const json_t *entry;
    if (report->gpu != NULL) {
        print_gpu(report->gpu, out);
    }
    if (report->drawing != NULL) {
        fputs(report->drawing, out);
    }
    json_t *listed = listed_rows(report);
    if (json_array_size(listed) > 0) {
        print_rows(listed, out);
    }
    json_decref(listed);
    json_array_foreach(report->skipped, i, entry)
    {
        const char *name = text_of(entry, "case");
        fprintf(out, "skipped: %s%s%s: %s\n", text_of(entry, "metric"), name != NULL ? ", " : "",
                name != NULL ? name : "", text_of(entry, "reason"));
    }
    json_array_foreach(report->failed, i, entry)
    {
        fprintf(out, "failed: %s\n", json_string_value(entry));
    }
}
