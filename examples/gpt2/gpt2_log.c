/* Standard output and the two log files of rank 0. */
#include "gpt2_log.h"
#include "gpt2_data.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double gpt2_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

gpt2_size_text gpt2_size(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    gpt2_size_text size;
    (void)snprintf(size.text, sizeof size.text, unit == 0 ? "%.0f %s" : "%.2f %s", value,
                   units[unit]);
    return size;
}

/* A JSON number, or null where there is none. */
static void json_number(FILE *file, double value)
{
    if (isfinite(value)) {
        (void)fprintf(file, "%.9g", value);
    } else {
        (void)fputs("null", file);
    }
}

/* The text that a file is to get, made in memory first. */
typedef struct staged_text {
    FILE *out;
    char *text;
    size_t bytes;
    bool lost; /* some of it */
} staged_text;

static bool begin_text(staged_text *self, gpt2_error *error)
{
    *self = (staged_text){.out = NULL};
    self->out = open_memstream(&self->text, &self->bytes);
    return self->out != NULL || gpt2_fail(error, "no memory for a line of the log");
}

/* Adds it to the file; closing: see gpt2_file_add. */
static bool end_text(staged_text *self, gpt2_file *file, const char *closing, gpt2_error *error)
{
    bool good = ferror(self->out) == 0 && !self->lost;
    good = fclose(self->out) == 0 && good;
    good = good ? gpt2_file_add(file, self->text, self->bytes, closing, error)
                : gpt2_fail(error, "no memory for a line of %s", file->path);
    free(self->text);
    return good;
}

bool gpt2_flush_output(gpt2_error *error)
{
    errno = 0;
    if (fflush(stdout) == 0 && ferror(stdout) == 0) {
        return true;
    }
    return gpt2_fail(error, "cannot write to standard output: %s",
                     errno != 0 ? strerror(errno) : "some of it was not taken");
}

/* One line, or as many as it needs: see live_line_wrap. */
__attribute__((format(printf, 2, 3))) static void print_line(unsigned columns, const char *format,
                                                             ...)
{
    char *text = NULL;
    va_list values;
    va_start(values, format);
    if (vasprintf(&text, format, values) >= 0) {
        live_line_wrap(stdout, columns, text);
        (void)fputc('\n', stdout);
        free(text);
    }
    va_end(values);
}

void gpt2_print_model(const gpt2_options *o, unsigned columns, uint32_t vocab, uint64_t parameters)
{
    print_line(
        columns,
        "GPT-2: %u layers, %u heads, width %u, %u positions, vocabulary %u: %.2f M parameters in "
        "%s",
        o->layers, o->heads, o->width, o->seq, vocab, (double)parameters / 1e6,
        zero_dtype_name(o->dtype));
    if (o->preset != NULL && o->vocab == 0 && vocab != GPT2_VOCAB) {
        print_line(columns,
                   "vocabulary: the %u bytes of %s; the public %s has %u tokens (--vocab %u)",
                   vocab, o->data, o->preset, (unsigned)GPT2_VOCAB, (unsigned)GPT2_VOCAB);
    }
}

/* 0: lines may have any length. A terminal that has no live line is none that anybody sees. */
static unsigned columns_of(const gpt2_log *log)
{
    return log->live != NULL ? live_line_columns(stdout) : 0;
}

static void print_facts(const gpt2_log *log, const gpt2_run_facts *facts)
{
    const gpt2_options *o = log->options;
    const unsigned columns = columns_of(log);
    gpt2_print_model(o, columns, facts->vocab, facts->parameters);
    print_line(columns, "ranks: %u (%s, %u on this host, %u thread%s each, %s), stage %d",
               facts->ranks, facts->backend, facts->local_ranks, facts->threads,
               facts->threads == 1 ? "" : "s", facts->isa, (int)o->engine.stage);
    print_line(columns, "matrix products: %s", facts->products);
    print_line(columns, "between ranks: parameters by %s, gradients by %s", facts->gather,
               facts->reduce);
    if (facts->disk != NULL) {
        print_line(columns, "state on disk by %s", facts->disk);
    }
    print_line(columns,
               "data: %llu tokens to train on, %llu to validate on; %u samples of %u tokens a step",
               (unsigned long long)facts->train_tokens, (unsigned long long)facts->val_tokens,
               o->batch, o->seq);
    if (!isnan(facts->bigram)) {
        print_line(columns, "bigram model: %.4f nats/byte", facts->bigram);
    }
    if (facts->resumed != NULL) {
        print_line(columns, "goes on from %s: %u steps, saved by %u rank%s", facts->resumed,
                   facts->steps_done, facts->saved_ranks, facts->saved_ranks == 1 ? "" : "s");
        if (facts->passed_over[0] != '\0') {
            print_line(columns, "not from the last one saved: %s", facts->passed_over);
        }
        if (facts->steps_done >= o->steps) {
            print_line(columns, "nothing to train: --steps %u are done; give more to go on",
                       o->steps);
        }
    }
}

/* The text that closes the JSON document while steps are added to it, and after them. */
#define CLOSE_STEPS "\n]\n}\n"
#define CLOSE_REST "\n}\n"

static bool begin_json(gpt2_log *log, const gpt2_run_facts *facts, gpt2_error *error)
{
    staged_text text;
    if (!begin_text(&text, error)) {
        return false;
    }
    (void)fprintf(text.out, "{\"settings\": {");
    text.lost = !gpt2_options_json(log->options, text.out);
    (void)fprintf(text.out,
                  "},\n\"world\": %u, \"backend\": \"%s\", \"gather\": \"%s\", \"reduce\": \"%s\", "
                  "\"isa\": \"%s\", \"products\": \"%s\", \"parameters\": %llu, \"vocab\": %u, "
                  "\"train_tokens\": %llu, "
                  "\"val_tokens\": %llu, \"bigram\": ",
                  facts->ranks, facts->backend, facts->gather, facts->reduce, facts->isa,
                  facts->products, (unsigned long long)facts->parameters, facts->vocab,
                  (unsigned long long)facts->train_tokens, (unsigned long long)facts->val_tokens);
    json_number(text.out, facts->bigram);
    (void)fprintf(text.out, ",\n\"steps\": [");
    return end_text(&text, &log->json, CLOSE_STEPS, error);
}

/* The part of a file that a run that goes on keeps. */
typedef struct kept {
    uint64_t bytes;
    uint32_t rows;
} kept;

/* How an older file looks: a line ahead of its rows, how a row begins before its step's number, and
 * what does not belong to a row at a line's end. */
typedef struct file_lines {
    const char *head;
    const char *row;
    const char *tail;
} file_lines;

/* Up to the row of `step`, as far as the file has whole lines of this kind. */
static kept find_kept(const char *path, const file_lines *lines, uint32_t step)
{
    kept found = {0, 0};
    struct stat about;
    const bool there = path != NULL && step > 0 && stat(path, &about) == 0;
    FILE *file = there && S_ISREG(about.st_mode) ? fopen(path, "re") : NULL;
    char *line = NULL;
    size_t room = 0;
    ssize_t length = 0;
    uint64_t end = 0;
    bool inside = false;
    while (file != NULL && (length = getline(&line, &room, file)) > 0 && line[length - 1] == '\n') {
        end += (uint64_t)length;
        if (inside && (strncmp(line, lines->row, strlen(lines->row)) != 0 ||
                       strtoul(line + strlen(lines->row), NULL, 10) > step)) {
            break;
        }
        found.rows += inside;
        inside = inside || strcmp(line, lines->head) == 0;
        uint64_t row_end = end;
        while (length > 0 && strchr(lines->tail, line[--length]) != NULL) {
            row_end--;
        }
        found.bytes = inside ? row_end : 0;
    }
    free(line);
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}

static bool open_files(gpt2_log *log, const gpt2_run_facts *facts, gpt2_error *error)
{
    static const char head[] = "step,loss,val_loss,norm,lr,loss_scale,skipped,tokens_per_second,"
                               "ms,memory_bytes,disk_bytes\n";
    static const file_lines csv_lines = {head, "", ""};
    static const file_lines json_lines = {"\"steps\": [\n", "{\"step\": ", ",\n"};
    const gpt2_options *o = log->options;
    const kept csv = find_kept(o->csv, &csv_lines, facts->steps_done);
    const kept json = find_kept(o->json, &json_lines, facts->steps_done);
    log->json_rows = json.rows;
    log->resumed = facts->resumed != NULL ? facts->ranks : 0;
    return gpt2_file_open(&log->csv, o->csv, csv.bytes, error) &&
           gpt2_file_open(&log->json, o->json, json.bytes, error) &&
           (csv.bytes != 0 || gpt2_file_add(&log->csv, head, sizeof head - 1, "", error)) &&
           (log->json.file < 0 ||
            (json.bytes != 0 ? gpt2_file_add(&log->json, "", 0, CLOSE_STEPS, error)
                             : begin_json(log, facts, error)));
}

/* Floating-point operations that the model needs a token: 6 for each parameter, and 12 layers x
 * positions x width for attention's two products (PaLM, Chowdhery et al. 2022, appendix B; Kaplan
 * et al. 2020, section 2.1, count forward alike). Recomputation and the half that causal attention
 * does not need change nothing about it, so the utilisation says what was achieved and not what was
 * done. */
static double flops_a_token(const gpt2_options *o, uint64_t parameters)
{
    return 6.0 * (double)parameters + 12.0 * o->layers * o->seq * o->width;
}

bool gpt2_log_open(gpt2_log *log, const gpt2_options *options, const gpt2_run_facts *facts,
                   gpt2_error *error)
{
    *log = gpt2_log_none(options, log->live);
    log->started = gpt2_seconds();
    log->flops_a_token = flops_a_token(options, facts->parameters);
    log->peak_flops = options->peak_tflops * 1e12 * facts->gpus;
    if (!open_files(log, facts, error)) {
        return false;
    }
    live_line_clear(log->live);
    print_facts(log, facts);
    const bool good = gpt2_flush_output(error);
    live_line_say(log->live, "step %u/%u", facts->steps_done + 1, options->steps);
    return good;
}

gpt2_log gpt2_log_none(const gpt2_options *options, live_line *live)
{
    return (gpt2_log){.options = options,
                      .live = live,
                      .csv = {.file = -1},
                      .json = {.file = -1},
                      .val_loss = (double)NAN};
}

void gpt2_log_line(gpt2_log *log, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    live_line_clear(log->live);
    (void)vprintf(format, values);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    va_end(values);
}

void gpt2_log_warning(gpt2_log *log, uint32_t rank, const char *text)
{
    if (text != NULL && log != NULL) {
        gpt2_log_line(log, "warning: %s", text);
    } else if (text != NULL) {
        (void)fprintf(stderr, "gpt2_train: warning: rank %u: %s\n", rank, text);
    }
}

/* --- steps ------------------------------------------------------------------------------------ */

__attribute__((format(printf, 3, 4))) static void set_field(live_field *field, int drop,
                                                            const char *format, ...)
{
    va_list values;
    va_start(values, format);
    (void)vsnprintf(field->text, sizeof field->text, format, values);
    va_end(values);
    field->drop = drop;
}

static const char *waited_for(zero_bottleneck bottleneck)
{
    return bottleneck == ZERO_BOTTLENECK_LINK  ? "other ranks"
           : bottleneck == ZERO_BOTTLENECK_CPU ? "update"
                                               : zero_bottleneck_name(bottleneck);
}

/* Show what a step's time went to, the larger share first. share: waited for the library. */
static void set_bottleneck(live_field *field, int drop, double share, zero_bottleneck bottleneck)
{
    const double waited = 100 * (share < 1 ? share : 1);
    if (bottleneck != ZERO_BOTTLENECK_NONE && waited < 0.5) {
        set_field(field, drop, "compute 100 %%");
    } else if (bottleneck != ZERO_BOTTLENECK_NONE && waited < 50) {
        set_field(field, drop, "compute %.0f %%, %s %.0f %%", 100 - waited, waited_for(bottleneck),
                  waited);
    } else if (bottleneck != ZERO_BOTTLENECK_NONE) {
        set_field(field, drop, "%s %.0f %%, compute %.0f %%", waited_for(bottleneck), waited,
                  100 - waited);
    }
}

/* In the order of the line. What a narrow terminal leaves out first is what changes least. */
enum {
    FIELD_STEP,
    FIELD_LOSS,
    FIELD_VAL,
    FIELD_RATE,
    FIELD_MFU,
    FIELD_TIME,
    FIELD_MEMORY,
    FIELD_DISK,
    FIELD_BOTTLENECK,
    FIELD_ETA,
    FIELD_SKIPPED,
    FIELDS
};

static void make_fields(const gpt2_log *log, const gpt2_step_row *row, live_field *fields)
{
    const double left = log->seconds_a_step * (log->options->steps - row->step);
    const unsigned eta = (unsigned)(left + 0.5);
    const double rate = (double)row->tokens / log->seconds_a_step;
    const double share = log->waited_a_step / log->seconds_a_step;
    memset(fields, 0, FIELDS * sizeof *fields);
    set_field(&fields[FIELD_STEP], 0, "step %4u/%u", row->step, log->options->steps);
    set_field(&fields[FIELD_LOSS], 0, "loss %.4f", row->loss);
    if (!isnan(log->val_loss)) {
        set_field(&fields[FIELD_VAL], 2, "val %.4f at %u", log->val_loss, log->val_step);
    }
    set_field(&fields[FIELD_RATE], 4, "%.0f tok/s", rate);
    if (log->peak_flops > 0) {
        set_field(&fields[FIELD_MFU], 3, "MFU %.1f %%",
                  100 * rate * log->flops_a_token / log->peak_flops);
    }
    set_field(&fields[FIELD_TIME], 6, "%.1f ms/step", log->seconds_a_step * 1e3);
    set_field(&fields[FIELD_MEMORY], 8, "%s/rank", gpt2_size(row->memory_bytes).text);
    if (log->disk_a_step > 0) {
        set_field(&fields[FIELD_DISK], 7, "disk %.3f GB/s/rank",
                  1e-9 * log->disk_a_step / log->seconds_a_step);
    }
    set_bottleneck(&fields[FIELD_BOTTLENECK], 5, share, row->bottleneck);
    set_field(&fields[FIELD_ETA], 1, "ETA %u:%02u", eta / 60, eta % 60);
    set_field(&fields[FIELD_SKIPPED], 0, "%s", row->skipped ? "skipped" : "");
}

static void show_row(gpt2_log *log, const gpt2_step_row *row)
{
    const gpt2_options *o = log->options;
    const bool live = log->live != NULL;
    const bool keep = !isnan(row->val_loss) || row->step == o->steps;
    const double now = gpt2_seconds();
    live_field fields[FIELDS];
    make_fields(log, row, fields);
    if (keep || (!live && (log->rows == 0 || row->step % o->log_every == 0))) {
        char text[LIVE_LINE_BYTES];
        live_line_clear(log->live);
        live_line_fit(fields, FIELDS, columns_of(log), text);
        (void)puts(text);
        if (row->step < o->steps) {
            live_line_say(log->live, "step %4u/%u", row->step + 1, o->steps);
        }
    } else if (now - log->shown > 0.1) {
        live_line_show(log->live, fields, FIELDS);
        log->shown = now;
    }
}

static bool write_csv(gpt2_log *log, const gpt2_step_row *row, double rate, gpt2_error *error)
{
    staged_text text;
    if (!begin_text(&text, error)) {
        return false;
    }
    (void)fprintf(text.out, "%u,%.9g,", row->step, row->loss);
    if (!isnan(row->val_loss)) {
        (void)fprintf(text.out, "%.9g", row->val_loss);
    }
    (void)fprintf(text.out, ",%.9g,%.9g,%g,%d,%.1f,%.3f,%llu,%llu\n", row->norm, row->lr,
                  row->loss_scale, row->skipped, rate, row->seconds * 1e3,
                  (unsigned long long)row->memory_bytes, (unsigned long long)row->disk_bytes);
    return end_text(&text, &log->csv, "", error);
}

static bool write_json(gpt2_log *log, const gpt2_step_row *row, double rate, gpt2_error *error)
{
    staged_text text;
    if (!begin_text(&text, error)) {
        return false;
    }
    (void)fprintf(text.out, "%s\n{\"step\": %u, \"loss\": ", log->json_rows == 0 ? "" : ",",
                  row->step);
    json_number(text.out, row->loss);
    (void)fputs(", \"val_loss\": ", text.out);
    json_number(text.out, row->val_loss);
    (void)fputs(", \"norm\": ", text.out);
    json_number(text.out, row->norm);
    (void)fprintf(text.out,
                  ", \"lr\": %.9g, \"loss_scale\": %g, \"skipped\": %s, "
                  "\"tokens_per_second\": %.1f, \"ms\": %.3f, \"memory_bytes\": %llu, "
                  "\"disk_bytes\": %llu",
                  row->lr, row->loss_scale, row->skipped ? "true" : "false", rate,
                  row->seconds * 1e3, (unsigned long long)row->memory_bytes,
                  (unsigned long long)row->disk_bytes);
    if (log->peak_flops > 0) {
        (void)fprintf(text.out, ", \"mfu\": %.6f", rate * log->flops_a_token / log->peak_flops);
    }
    if (log->resumed != 0 && log->rows == 0) {
        (void)fprintf(text.out, ", \"resumed_by_ranks\": %u", log->resumed);
    }
    (void)fputc('}', text.out);
    log->json_rows++;
    return end_text(&text, &log->json, CLOSE_STEPS, error);
}

bool gpt2_log_step(gpt2_log *log, const gpt2_step_row *row, gpt2_error *error)
{
    const double weight = log->rows == 0 ? 1 : log->rows < 20 ? 1.0 / (log->rows + 1.0) : 0.05;
    log->seconds_a_step += weight * (row->seconds - log->seconds_a_step);
    log->waited_a_step += weight * (row->waited_seconds - log->waited_a_step);
    log->disk_a_step += weight * ((double)row->disk_bytes - log->disk_a_step);
    if (!isnan(row->val_loss)) {
        log->val_loss = row->val_loss;
        log->val_step = row->step;
    }
    if (log->options->losses_exact != 0) {
        gpt2_log_line(log, "exact %u loss %a norm %a val %a", row->step, row->loss, row->norm,
                      row->val_loss);
    }
    show_row(log, row);
    const double rate = (double)row->tokens / row->seconds;
    const bool good = gpt2_flush_output(error) &&
                      (log->csv.file < 0 || write_csv(log, row, rate, error)) &&
                      (log->json.file < 0 || write_json(log, row, rate, error));
    log->rows++;
    return good;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void print_memory(const zero_memory *planned, const zero_memory *measured,
                         uint64_t own_bytes)
{
    printf("\nmemory of a rank, in bytes  %14s %14s\n", "planned", "measured");
    for (int i = 0; i <= ZERO_ROLE_COUNT_MAX; i++) {
        const bool total = i == ZERO_ROLE_COUNT_MAX;
        if (!total && !zero_role_exists((zero_role)i)) {
            continue;
        }
        printf("  %-25s %14llu %14llu\n", total ? "total" : zero_role_name((zero_role)i),
               (unsigned long long)(total ? planned->total_bytes : planned->bytes[i]),
               (unsigned long long)(total ? measured->total_bytes : measured->bytes[i]));
    }
    printf("  %-25s %14s %14llu\n", "activations, fp32 copies", "", (unsigned long long)own_bytes);
}

static bool write_memory(gpt2_log *log, const zero_memory *planned, const zero_memory *measured,
                         uint64_t own_bytes, gpt2_error *error)
{
    staged_text text;
    if (!begin_text(&text, error)) {
        return false;
    }
    (void)fputs("\n],\n\"memory\": {", text.out);
    for (int i = 0; i <= ZERO_ROLE_COUNT_MAX; i++) {
        const bool total = i == ZERO_ROLE_COUNT_MAX;
        if (!total && !zero_role_exists((zero_role)i)) {
            continue;
        }
        (void)fprintf(text.out, "\"%s\": {\"planned\": %llu, \"measured\": %llu}, ",
                      total ? "total" : zero_role_name((zero_role)i),
                      (unsigned long long)(total ? planned->total_bytes : planned->bytes[i]),
                      (unsigned long long)(total ? measured->total_bytes : measured->bytes[i]));
    }
    (void)fprintf(text.out, "\"activations\": %llu}", (unsigned long long)own_bytes);
    return end_text(&text, &log->json, CLOSE_REST, error);
}

bool gpt2_log_memory(gpt2_log *log, const zero_memory *planned, const zero_memory *measured,
                     uint64_t own_bytes, gpt2_error *error)
{
    live_line_clear(log->live);
    if (log->options->memory != 0) {
        print_memory(planned, measured, own_bytes);
    }
    return gpt2_flush_output(error) &&
           (log->json.file < 0 || write_memory(log, planned, measured, own_bytes, error));
}

bool gpt2_log_close(gpt2_log *log, const char *ended_by, gpt2_error *error)
{
    bool good = true;
    if (log->json.file >= 0) {
        staged_text text;
        good = begin_text(&text, error);
        if (good) {
            const bool in_steps = strcmp(log->json.closing, CLOSE_STEPS) == 0;
            (void)fprintf(text.out, "%s,\n\"ended_by\": \"%s\", \"seconds\": %.3f",
                          in_steps ? "\n]" : "", ended_by, gpt2_seconds() - log->started);
            good = end_text(&text, &log->json, "}\n", error);
        }
    }
    live_line_clear(log->live);
    const bool csv = gpt2_file_close(&log->csv, error);
    return gpt2_file_close(&log->json, error) && csv && good;
}
