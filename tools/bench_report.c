/* Owns the rows of a report and its two forms, table and JSON. Invariant: every row holds finite
 * numbers and its own copies of texts. */
#include "bench_report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "zero/status.h"

int bench_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("zero bench: ", stderr);
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
    return 0;
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

/* Large numbers whole, small ones with four significant digits. */
static const char *number_text(double number, char *text, size_t text_bytes)
{
    (void)snprintf(text, text_bytes, fabs(number) >= 1e4 ? "%.0f" : "%.4g", number);
    return text;
}

static void print_row(const bench_row *row, int metric_width, int name_width, FILE *out)
{
    char value[32];
    char reference[32];
    char min[32];
    char max[32];
    fprintf(out, "%-*s  %-*s  %12s %-5s  %12s  %6.3f  %s..%s\n", metric_width, row->metric,
            name_width, row->name, number_text(row->value, value, sizeof value), row->unit,
            number_text(row->reference, reference, sizeof reference), row->ratio,
            number_text(row->min, min, sizeof min), number_text(row->max, max, sizeof max));
}

static int wider(int width, const char *text)
{
    const int own = (int)strnlen(text, 100);
    return own > width ? own : width;
}

void bench_report_print(const bench_report *report, FILE *out)
{
    int metric_width = (int)strlen("metric");
    int name_width = (int)strlen("case");
    for (size_t i = 0; i < report->row_count; i++) {
        metric_width = wider(metric_width, report->rows[i].metric);
        name_width = wider(name_width, report->rows[i].name);
    }
    if (report->row_count > 0) {
        fprintf(out, "%-*s  %-*s  %12s %-5s  %12s  %6s  %s\n", metric_width, "metric", name_width,
                "case", "value", "unit", "reference", "ratio", "min..max");
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

static json_t *omission_json(const bench_omission *omission)
{
    return json_pack("{s:s, s:s?, s:s}", "metric", omission->metric, "case", omission->name,
                     "reason", omission->reason);
}

json_t *bench_report_json(const bench_report *report)
{
    json_t *object = json_pack("{s:[], s:[], s:[]}", "results", "skipped", "failed");
    int wrong = object == NULL;
    for (size_t i = 0; i < report->row_count && !wrong; i++) {
        wrong = json_array_append_new(json_object_get(object, "results"),
                                      row_json(&report->rows[i])) != 0;
    }
    for (size_t i = 0; i < report->omission_count && !wrong; i++) {
        wrong = json_array_append_new(json_object_get(object, "skipped"),
                                      omission_json(&report->omissions[i])) != 0;
    }
    for (size_t i = 0; i < report->failed_count && !wrong; i++) {
        wrong = json_array_append_new(json_object_get(object, "failed"),
                                      json_string(report->failed[i])) != 0;
    }
    if (wrong) {
        json_decref(object);
        return NULL;
    }
    return object;
}

int bench_report_merge(bench_report *report, const json_t *object)
{
    const json_t *results = json_object_get(object, "results");
    const json_t *skipped = json_object_get(object, "skipped");
    if (!json_is_array(results) || !json_is_array(skipped)) {
        return bench_fail("the ranks' report has no rows");
    }
    for (size_t i = 0; i < json_array_size(results); i++) {
        bench_row row = {0};
        json_int_t repetitions = 0;
        if (json_unpack(json_array_get(results, i), "{s:s, s:s, s:F, s:s, s:F, s:F, s:F, s:F, s:I}",
                        "metric", &row.metric, "case", &row.name, "value", &row.value, "unit",
                        &row.unit, "reference", &row.reference, "ratio", &row.ratio, "min",
                        &row.min, "max", &row.max, "repetitions", &repetitions) != 0) {
            return bench_fail("row %zu of the ranks' report lacks a field", i);
        }
        row.repetitions = (uint32_t)repetitions;
        if (bench_add(report, &row) != 0) {
            return 1;
        }
    }
    for (size_t i = 0; i < json_array_size(skipped); i++) {
        const json_t *entry = json_array_get(skipped, i);
        const char *metric = json_string_value(json_object_get(entry, "metric"));
        const char *reason = json_string_value(json_object_get(entry, "reason"));
        if (metric == NULL || reason == NULL) {
            return bench_fail("entry %zu of what the ranks skipped lacks a field", i);
        }
        const char *name = json_string_value(json_object_get(entry, "case"));
        if (bench_skip(report, metric, name, reason) != 0) {
            return 1;
        }
    }
    return 0;
}
