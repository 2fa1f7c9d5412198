/* Owns the rows of a report and its two forms, table and JSON. Invariant: every row holds finite
 * numbers and its own copies of texts. */
#include "bench_report.h"
#include "live_line.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "zero/status.h"

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
    return bench_fail("%s: %s: %s", what, zero_status_name(error->status), error->message);
}

/* Room for one more element in *array; false when memory is out. */
static bool make_room(void **array, size_t *capacity, size_t count, size_t element_bytes)
{
    if (count < *capacity) {
        return true;
    }
    const size_t grown = *capacity == 0 ? 16 : *capacity * 2;
    void *moved = realloc(*array, grown * element_bytes);
    if (moved == NULL) {
        return false;
    }
    *array = moved;
    *capacity = grown;
    return true;
}

int bench_add(bench_report *report, const bench_row *row)
{
    const double numbers[] = {row->value, row->reference, row->ratio, row->min, row->max};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!isfinite(numbers[i])) {
            return bench_fail("%s, %s: %g is no measurement", row->metric, row->name, numbers[i]);
        }
    }
    void *rows = report->rows;
    const bool room = make_room(&rows, &report->row_capacity, report->row_count, sizeof *row);
    report->rows = rows;
    char *metric = strdup(row->metric);
    char *name = strdup(row->name);
    char *unit = strdup(row->unit);
    if (!room || metric == NULL || name == NULL || unit == NULL) {
        free(metric);
        free(name);
        free(unit);
        return bench_fail("%s, %s: no memory left for the row", row->metric, row->name);
    }
    bench_row *kept = &report->rows[report->row_count++];
    *kept = *row;
    kept->metric = metric;
    kept->name = name;
    kept->unit = unit;
    return bench_report_keep(report);
}

int bench_skip(bench_report *report, const char *metric, const char *name, const char *reason)
{
    void *omissions = report->omissions;
    const bool room = make_room(&omissions, &report->omission_capacity, report->omission_count,
                                sizeof *report->omissions);
    report->omissions = omissions;
    bench_omission omission = {strdup(metric), name != NULL ? strdup(name) : NULL, strdup(reason)};
    if (!room || omission.metric == NULL || omission.reason == NULL ||
        (name != NULL && omission.name == NULL)) {
        free(omission.metric);
        free(omission.name);
        free(omission.reason);
        return bench_fail("%s: no memory left to say that it is skipped: %s", metric, reason);
    }
    report->omissions[report->omission_count++] = omission;
    return 0;
}

int bench_add_times(bench_report *report, const char *metric, const char *name,
                    const bench_stat *ours, const bench_stat *reference)
{
    const bench_row row = {.metric = metric,
                           .name = name,
                           .value = ours->median * 1e3,
                           .unit = "ms",
                           .reference = reference->median * 1e3,
                           .ratio = reference->median / ours->median,
                           .min = ours->min * 1e3,
                           .max = ours->max * 1e3,
                           .repetitions = ours->repetitions};
    return bench_add(report, &row);
}

void bench_report_clear(bench_report *report)
{
    for (size_t i = 0; i < report->row_count; i++) {
        free((void *)(uintptr_t)report->rows[i].metric);
        free((void *)(uintptr_t)report->rows[i].name);
        free((void *)(uintptr_t)report->rows[i].unit);
    }
    for (size_t i = 0; i < report->omission_count; i++) {
        free(report->omissions[i].metric);
        free(report->omissions[i].name);
        free(report->omissions[i].reason);
    }
    free(report->rows);
    free(report->omissions);
    memset(report, 0, sizeof *report);
}

bench_gpu_facts *bench_gpu_facts_of(bench_report *report)
{
    return &report->gpu;
}

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

static void print_gpu(const bench_gpu_facts *gpu, FILE *out)
{
    fprintf(out,
            "gpu: %s, %u SMs, %.1f GiB, L2 %.0f MiB, driver %s, runtime %s\n"
            "pinned copies in GB/s: %.1f to the GPU, %.1f back, %.1f both at once\n",
            gpu->name, gpu->sm_count, (double)gpu->memory_bytes / 0x1p30,
            (double)gpu->l2_bytes / 0x1p20, gpu->driver, gpu->runtime, gpu->to_gpu_gb_per_s,
            gpu->to_host_gb_per_s, gpu->both_gb_per_s);
}

void bench_report_print(const bench_report *report, FILE *out)
{
    if (report->gpu.name[0] != '\0') {
        print_gpu(&report->gpu, out);
    }
    int metric_width = (int)strlen("metric");
    int name_width = (int)strlen("case");
    for (size_t i = 0; i < report->row_count; i++) {
        metric_width = wider(metric_width, report->rows[i].metric);
        name_width = wider(name_width, report->rows[i].name);
    }
    /* Behind both: 46 columns and the range. */
    const unsigned columns = live_line_columns(out);
    if (columns != 0 && (unsigned)(metric_width + name_width) + 72 > columns) {
        metric_width = 0;
        name_width = 0;
    }
    if (report->row_count > 0) {
        fprintf(out, "%-*s  %-*s%s  %12s %-5s  %12s  %6s  %s\n", metric_width, "metric", name_width,
                "case", name_width == 0 ? "\n " : "", "value", "unit", "reference", "ratio",
                "min..max");
    }
    for (size_t i = 0; i < report->row_count; i++) {
        print_row(&report->rows[i], metric_width, name_width, out);
    }
    for (size_t i = 0; i < report->omission_count; i++) {
        const bench_omission *omission = &report->omissions[i];
        fprintf(out, "skipped: %s%s%s: %s\n", omission->metric, omission->name != NULL ? ", " : "",
                omission->name != NULL ? omission->name : "", omission->reason);
    }
    for (size_t i = 0; i < report->failed_count; i++) {
        fprintf(out, "failed: %s\n", report->failed[i]);
    }
}

static json_t *row_json(const bench_row *row)
{
    return json_pack("{s:s, s:s, s:f, s:s, s:f, s:f, s:f, s:f, s:I}", "metric", row->metric, "case",
                     row->name, "value", row->value, "unit", row->unit, "reference", row->reference,
                     "ratio", row->ratio, "min", row->min, "max", row->max, "repetitions",
                     (json_int_t)row->repetitions);
}

json_t *bench_report_json(const bench_report *report)
{
    json_t *rows = json_array();
    json_t *omissions = json_array();
    json_t *failed = json_array();
    int lost = 0;
    for (size_t i = 0; i < report->row_count; i++) {
        lost |= json_array_append_new(rows, row_json(&report->rows[i]));
    }
    for (size_t i = 0; i < report->omission_count; i++) {
        const bench_omission *omission = &report->omissions[i];
        lost |= json_array_append_new(omissions, json_pack("{s:s, s:s?, s:s}", "metric",
                                                           omission->metric, "case", omission->name,
                                                           "reason", omission->reason));
    }
    for (size_t i = 0; i < report->failed_count; i++) {
        lost |= json_array_append_new(failed, json_string(report->failed[i]));
    }
    json_t *json =
        json_pack("{s:o, s:o, s:o}", "results", rows, "skipped", omissions, "failed", failed);
    if (lost != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static int take_row(bench_report *report, json_t *json)
{
    bench_row row = {0};
    json_int_t repetitions = 0;
    if (json_unpack(json, "{s:s, s:s, s:F, s:s, s:F, s:F, s:F, s:F, s:I}", "metric", &row.metric,
                    "case", &row.name, "value", &row.value, "unit", &row.unit, "reference",
                    &row.reference, "ratio", &row.ratio, "min", &row.min, "max", &row.max,
                    "repetitions", &repetitions) != 0) {
        return bench_fail("the ranks' report has a row that is none");
    }
    row.repetitions = (uint32_t)repetitions;
    return bench_add(report, &row);
}

static int take_omission(bench_report *report, json_t *json)
{
    const char *metric;
    const char *reason;
    const char *name = json_string_value(json_object_get(json, "case"));
    if (json_unpack(json, "{s:s, s:s}", "metric", &metric, "reason", &reason) != 0) {
        return bench_fail("the ranks' report has an omission that is none");
    }
    return bench_skip(report, metric, name, reason);
}

int bench_report_take(bench_report *report, json_t *json)
{
    size_t i;
    json_t *entry;
    json_t *rows = json_object_get(json, "results");
    json_t *omissions = json_object_get(json, "skipped");
    if (!json_is_array(rows) || !json_is_array(omissions)) {
        return bench_fail("the ranks left no report");
    }
    int failed = 0;
    json_array_foreach(rows, i, entry)
    {
        failed = failed || take_row(report, entry);
    }
    json_array_foreach(omissions, i, entry)
    {
        failed = failed || take_omission(report, entry);
    }
    return failed;
}
