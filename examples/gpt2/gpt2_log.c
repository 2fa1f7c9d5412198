/* Standard output and the two log files of rank 0. */
#include "gpt2_log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
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

static bool open_file(FILE **file, const char *path, gpt2_error *error)
{
    if (path == NULL) {
        return true;
    }
    *file = fopen(path, "w");
    return *file != NULL || gpt2_fail(error, "cannot write %s: %s", path, strerror(errno));
}

static void print_facts(const gpt2_log *log, const gpt2_run_facts *facts)
{
    const gpt2_options *o = log->options;
    printf("GPT-2: %u layers, %u heads, width %u, %u positions: %.2f M parameters in %s\n",
           o->layers, o->heads, o->width, o->seq, (double)facts->parameters / 1e6,
           zero_dtype_name(o->dtype));
    printf("ranks: %u (%s, %u on this host, %u thread%s each, %s), stage %d\n", facts->ranks,
           facts->backend, facts->local_ranks, facts->threads, facts->threads == 1 ? "" : "s",
           facts->isa, (int)o->stage - (int)ZERO_STAGE_0);
    printf("between ranks: parameters by %s, gradients by %s\n", facts->gather, facts->reduce);
    if (facts->disk != NULL) {
        printf("state on disk by %s\n", facts->disk);
    }
    printf("data: %llu tokens to train on, %llu to validate on; %u samples of %u tokens a step\n",
           (unsigned long long)facts->train_tokens, (unsigned long long)facts->val_tokens, o->batch,
           o->seq);
    if (!isnan(facts->bigram)) {
        printf("bigram model: %.4f nats/byte\n", facts->bigram);
    }
}

static void open_json(gpt2_log *log, const gpt2_run_facts *facts)
{
    (void)fprintf(log->json, "{\"settings\": {");
    gpt2_options_json(log->options, log->json);
    (void)fprintf(log->json,
                  "},\n\"world\": %u, \"backend\": \"%s\", \"gather\": \"%s\", \"reduce\": \"%s\", "
                  "\"isa\": \"%s\", \"parameters\": %llu, \"train_tokens\": %llu, \"val_tokens\": "
                  "%llu, \"bigram\": ",
                  facts->ranks, facts->backend, facts->gather, facts->reduce, facts->isa,
                  (unsigned long long)facts->parameters, (unsigned long long)facts->train_tokens,
                  (unsigned long long)facts->val_tokens);
    json_number(log->json, facts->bigram);
    (void)fprintf(log->json, ",\n\"steps\": [");
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
    memset(log, 0, sizeof *log);
    log->options = options;
    /* mpirun gives its ranks a terminal of its own, wherever its output really goes. */
    log->live = isatty(STDOUT_FILENO) == 1 && strcmp(facts->backend, "mpi") != 0;
    log->started = gpt2_seconds();
    log->val_loss = (double)NAN;
    log->flops_a_token = flops_a_token(options, facts->parameters);
    log->peak_flops = options->peak_tflops * 1e12 * facts->gpus;
    if (!open_file(&log->csv, options->csv, error) ||
        !open_file(&log->json, options->json, error)) {
        return false;
    }
    if (log->csv != NULL) {
        (void)fprintf(log->csv, "step,loss,val_loss,norm,lr,loss_scale,skipped,tokens_per_second,"
                                "ms,memory_bytes,disk_bytes\n");
    }
    if (log->json != NULL) {
        open_json(log, facts);
    }
    print_facts(log, facts);
    (void)fflush(stdout);
    return true;
}

void gpt2_log_line(gpt2_log *log, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (log->live) {
        (void)fputs("\r\033[K", stdout);
    }
    (void)vprintf(format, values);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    va_end(values);
}

/* --- steps ------------------------------------------------------------------------------------ */

static void print_row(const gpt2_log *log, const gpt2_step_row *row)
{
    const double left = log->seconds_a_step * (log->options->steps - row->step);
    const unsigned eta = (unsigned)(left + 0.5);
    char validation[32] = "";
    if (!isnan(log->val_loss)) {
        (void)snprintf(validation, sizeof validation, "  val %.4f", log->val_loss);
    }
    const double rate = (double)row->tokens / log->seconds_a_step;
    char utilisation[32] = "";
    if (log->peak_flops > 0) {
        (void)snprintf(utilisation, sizeof utilisation, "  MFU %.1f %%",
                       100 * rate * log->flops_a_token / log->peak_flops);
    }
    char disk[64] = "";
    if (log->disk_a_step > 0) {
        (void)snprintf(disk, sizeof disk, "  disk %.3f GB/s/rank, bound by %s",
                       1e-9 * log->disk_a_step / log->seconds_a_step, zero_bound_name(row->bound));
    }
    printf("step %*u/%u  loss %.4f%s  %.0f tok/s%s  %.1f ms/step  %s/rank%s  ETA %u:%02u%s", 4,
           row->step, log->options->steps, row->loss, validation, rate, utilisation,
           log->seconds_a_step * 1e3, gpt2_size(row->memory_bytes).text, disk, eta / 60, eta % 60,
           row->skipped ? "  skipped" : "");
}

static void show_row(gpt2_log *log, const gpt2_step_row *row)
{
    const gpt2_options *o = log->options;
    const bool keep = !isnan(row->val_loss) || row->step == o->steps;
    const double now = gpt2_seconds();
    if (log->live) {
        if (keep || now - log->shown > 0.1) {
            (void)fputs("\r\033[K", stdout);
            print_row(log, row);
            (void)fputs(keep ? "\n" : "", stdout);
            log->shown = now;
        }
    } else if (keep || row->step == 1 || row->step % o->log_every == 0) {
        print_row(log, row);
        (void)fputc('\n', stdout);
    }
    (void)fflush(stdout);
}

static void write_row(gpt2_log *log, const gpt2_step_row *row)
{
    const double rate = (double)row->tokens / row->seconds;
    if (log->csv != NULL) {
        (void)fprintf(log->csv, "%u,%.9g,", row->step, row->loss);
        if (!isnan(row->val_loss)) {
            (void)fprintf(log->csv, "%.9g", row->val_loss);
        }
        (void)fprintf(log->csv, ",%.9g,%.9g,%g,%d,%.1f,%.3f,%llu,%llu\n", row->norm, row->lr,
                      row->loss_scale, row->skipped, rate, row->seconds * 1e3,
                      (unsigned long long)row->memory_bytes, (unsigned long long)row->disk_bytes);
    }
    if (log->json != NULL) {
        (void)fprintf(log->json, "%s\n{\"step\": %u, \"loss\": ", log->rows == 0 ? "" : ",",
                      row->step);
        json_number(log->json, row->loss);
        (void)fputs(", \"val_loss\": ", log->json);
        json_number(log->json, row->val_loss);
        (void)fputs(", \"norm\": ", log->json);
        json_number(log->json, row->norm);
        (void)fprintf(log->json,
                      ", \"lr\": %.9g, \"loss_scale\": %g, \"skipped\": %s, "
                      "\"tokens_per_second\": %.1f, \"ms\": %.3f, \"memory_bytes\": %llu, "
                      "\"disk_bytes\": %llu",
                      row->lr, row->loss_scale, row->skipped ? "true" : "false", rate,
                      row->seconds * 1e3, (unsigned long long)row->memory_bytes,
                      (unsigned long long)row->disk_bytes);
        if (log->peak_flops > 0) {
            (void)fprintf(log->json, ", \"mfu\": %.6f",
                          rate * log->flops_a_token / log->peak_flops);
        }
        (void)fputc('}', log->json);
    }
}

void gpt2_log_step(gpt2_log *log, const gpt2_step_row *row)
{
    const double weight = log->rows == 0 ? 1 : log->rows < 20 ? 1.0 / (log->rows + 1.0) : 0.05;
    log->seconds_a_step += weight * (row->seconds - log->seconds_a_step);
    log->disk_a_step += weight * ((double)row->disk_bytes - log->disk_a_step);
    if (!isnan(row->val_loss)) {
        log->val_loss = row->val_loss;
    }
    if (log->options->losses_exact != 0) {
        gpt2_log_line(log, "exact %u loss %a norm %a val %a", row->step, row->loss, row->norm,
                      row->val_loss);
    }
    show_row(log, row);
    write_row(log, row);
    log->rows++;
}

/* --- the end ---------------------------------------------------------------------------------- */

void gpt2_log_memory(gpt2_log *log, const zero_memory *planned, const zero_memory *measured,
                     uint64_t own_bytes)
{
    if (log->options->memory != 0) {
        printf("\nmemory of a rank, in bytes  %14s %14s\n", "planned", "measured");
    }
    if (log->json != NULL) {
        (void)fprintf(log->json, "],\n\"memory\": {");
    }
    for (int i = 0; i <= ZERO_ROLE_COUNT; i++) {
        const bool total = i == ZERO_ROLE_COUNT;
        const char *name = total ? "total" : zero_role_name((zero_role)i);
        const uint64_t plan = total ? planned->total_bytes : planned->bytes[i];
        const uint64_t seen = total ? measured->total_bytes : measured->bytes[i];
        if (log->options->memory != 0) {
            printf("  %-25s %14llu %14llu\n", name, (unsigned long long)plan,
                   (unsigned long long)seen);
        }
        if (log->json != NULL) {
            (void)fprintf(log->json, "\"%s\": {\"planned\": %llu, \"measured\": %llu}, ", name,
                          (unsigned long long)plan, (unsigned long long)seen);
        }
    }
    if (log->options->memory != 0) {
        printf("  %-25s %14s %14llu\n", "activations, fp32 copies", "",
               (unsigned long long)own_bytes);
    }
    if (log->json != NULL) {
        (void)fprintf(log->json, "\"activations\": %llu}", (unsigned long long)own_bytes);
    }
    (void)fflush(stdout);
}

static bool close_file(FILE **file, const char *path, gpt2_error *error)
{
    if (*file == NULL) {
        return true;
    }
    const bool bad = ferror(*file) != 0;
    const bool unclosed = fclose(*file) != 0;
    *file = NULL;
    return (!bad && !unclosed) || gpt2_fail(error, "could not write all of %s", path);
}

bool gpt2_log_close(gpt2_log *log, gpt2_error *error)
{
    if (log->json != NULL) {
        (void)fprintf(log->json, ",\n\"seconds\": %.3f}\n", gpt2_seconds() - log->started);
    }
    const bool good = close_file(&log->csv, log->options->csv, error);
    return close_file(&log->json, log->options->json, error) && good;
}
