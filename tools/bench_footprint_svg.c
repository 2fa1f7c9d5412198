/* Owns the chart of `zero bench memory`: two stacked bars for each mix, as planned and as measured,
 * with the paper's formulas as marks. It has what is the same on every run, so that a document's
 * picture can be made again. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "bench_footprint.h"
#include "chart.h"
#include "plan_report.h"

/* In units of the chart. */
#define WIDTH 900.0
#define PLOT_X 150.0
#define PLOT_WIDTH 445.0 /* of both panels */
#define LABEL 150.0      /* behind a bar */
#define LEGEND_Y 62.0
#define LEGEND_ROW 20.0
#define ROW 48.0
#define BAR 15.0
#define FILES "#8c6bb1"
#define MARK "#d62728"

typedef struct chart {
    const footprint *f;
    FILE *out;
    double scale;  /* units a byte */
    double disk_x; /* where the disk's panel begins */
    double top;    /* where bars begin */
    double bottom;
} chart;

static double largest(const footprint *f, bool disk)
{
    double most = 0;
    for (uint32_t i = 0; i < f->mix_count; i++) {
        const footprint_mix *mix = &f->mixes[i];
        const zero_memory *both[] = {&mix->planned, &mix->held};
        for (int m = 0; m < 2 && mix->measured; m++) {
            const uint64_t bytes =
                disk ? both[m]->tier_bytes[ZERO_TIER_DISK] : footprint_memory(both[m]);
            most = (double)bytes > most ? (double)bytes : most;
        }
        most = !disk && mix->measured && mix->paper > most ? mix->paper : most;
    }
    return most;
}

/* ---- the legend ---- */

static bool has_role(const footprint *f, int role)
{
    for (uint32_t i = 0; i < f->mix_count; i++) {
        if (f->mixes[i].measured && f->mixes[i].planned.bytes[role] != 0) {
            return true;
        }
    }
    return false;
}

/* One entry; texts have at most 7.6 units a character. */
static void print_entry(const chart *c, const char *colour, const char *text, double *x, double *y)
{
    const double width = 32 + 7.6 * (double)strlen(text);
    if (*x + width > WIDTH) {
        *x = 0;
        *y += LEGEND_ROW;
    }
    if (c->out == NULL) {
        *x += width;
        return;
    }
    if (colour != NULL) {
        fprintf(c->out, "<rect x=\"%.2f\" y=\"%.10g\" width=\"11\" height=\"11\" fill=\"%s\"/>\n",
                *x, *y, colour);
    } else {
        fprintf(c->out, "<path d=\"M%.2f %.10gv15\" stroke=\"" MARK "\" stroke-width=\"3\"/>\n",
                *x + 5, *y - 2);
    }
    fprintf(c->out, "<text x=\"%.2f\" y=\"%.10g\">%s</text>\n", *x + 17, *y + 10, text);
    *x += width;
}

/* Returns where it ends; out NULL: where it would. */
static double print_legend(const chart *c)
{
    double x = 0;
    double y = LEGEND_Y;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (has_role(c->f, role)) {
            print_entry(c, chart_role_colour((zero_role)role), zero_role_name((zero_role)role), &x,
                        &y);
        }
    }
    if (largest(c->f, true) > 0) {
        print_entry(c, FILES, "files, as the file system has them", &x, &y);
    }
    if (c->f->mixes[0].paper > 0) {
        print_entry(c, NULL, "the paper's formula for the shards", &x, &y);
    }
    return y + LEGEND_ROW;
}

/* ---- bars ---- */

static void print_part(const chart *c, double y, uint64_t bytes, const char *colour,
                       const char *name, double *x)
{
    const double width = (double)bytes * c->scale;
    if (bytes != 0) {
        chart_part(*x, y, width, BAR, colour, c->out);
        fprintf(c->out, "%s: %" PRIu64 " bytes", name, bytes);
        chart_part_end(c->out);
    }
    *x += width;
}

static void print_label(const chart *c, double x, double y, double bytes, const char *word)
{
    fprintf(c->out, "<text x=\"%.2f\" y=\"%.10g\" font-size=\"12\">%.2f MiB %s</text>\n", x + 6,
            y + 12, bytes / FOOTPRINT_MIB, word);
}

/* Roles of memory or on disk, end to end; what is theirs together comes last. */
static void print_stack(const chart *c, const footprint_mix *mix, const zero_memory *memory,
                        bool disk, double y, const char *word)
{
    const double all =
        (double)(disk ? memory->tier_bytes[ZERO_TIER_DISK] : footprint_memory(memory));
    const double begin = disk ? c->disk_x : PLOT_X;
    double x = begin;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if ((footprint_tier(mix, role) == ZERO_TIER_DISK) == disk) {
            print_part(c, y, memory->bytes[role], chart_role_colour((zero_role)role),
                       zero_role_name((zero_role)role), &x);
        }
    }
    const double end = begin + all * c->scale;
    if (end - x > 0.005) {
        print_part(c, y, (uint64_t)((end - x) / c->scale), "#bdbdbd", "padding of extents", &x);
    }
    print_label(c, end, y, all, word);
}

static void print_mix(const chart *c, const footprint_mix *mix, double y)
{
    const char *detail = strstr(mix->name, ", ");
    fprintf(c->out, "<text x=\"0\" y=\"%.10g\" font-size=\"14\">stage %d</text>\n", y + 16,
            (int)mix->stage);
    if (detail != NULL) {
        const char *tier = strrchr(detail, ' '); /* "state, grads disk" */
        fprintf(c->out, "<text x=\"0\" y=\"%.10g\">%.*s on%s</text>\n", y + 32,
                (int)(tier - detail) - 2, detail + 2, tier);
    }
    print_stack(c, mix, &mix->planned, false, y + 4, "planned");
    print_stack(c, mix, &mix->held, false, y + 20, "measured");
    if (mix->paper > 0) {
        const double x = PLOT_X + mix->paper * c->scale;
        fprintf(c->out,
                "<path d=\"M%.2f %.10gv38\" stroke=\"" MARK "\" stroke-width=\"3\"><title>the "
                "paper: %.0f bytes</title></path>\n",
                x, y, mix->paper);
    }
    if (mix->planned.tier_bytes[ZERO_TIER_DISK] != 0) {
        double x = c->disk_x;
        print_stack(c, mix, &mix->planned, true, y + 4, "planned");
        print_part(c, y + 20, mix->file_bytes, FILES, "files", &x);
        print_label(c, x, y + 20, (double)mix->file_bytes, "measured");
    }
}

/* ---- the plot ---- */

/* 1, 2 or 5 times a power of ten, for a handful of lines. */
static double step_of(double most)
{
    const double power = pow(10, floor(log10(most / 4)));
    const double times = most / 4 / power;
    return power * (times < 2 ? 1 : times < 5 ? 2 : 5);
}

static void print_axis(const chart *c, double begin, double most, const char *title)
{
    const double step = step_of(largest(c->f, false) / FOOTPRINT_MIB);
    fprintf(c->out, "<text x=\"%.2f\" y=\"%.10g\">%s</text>\n", begin, c->top - 10, title);
    for (double at = 0; at <= most / FOOTPRINT_MIB; at += step) {
        const double x = begin + at * FOOTPRINT_MIB * c->scale;
        fprintf(c->out,
                "<path d=\"M%.2f %.10gV%.10g\" stroke=\"#888\" stroke-opacity=\".35\"/>\n"
                "<text x=\"%.2f\" y=\"%.10g\" text-anchor=\"middle\" font-size=\"12\">%g</text>\n",
                x, c->top, c->bottom, x, c->bottom + 15, at);
    }
}

static void print_title(const chart *c)
{
    fputs("<text x=\"0\" y=\"20\" font-size=\"17\">Memory of a rank: ", c->out);
    chart_text(c->f->model, c->out);
    fprintf(
        c->out,
        ", %.4g million parameters in %s, %" PRIu32 " rank%s</text>\n"
        "<text x=\"0\" y=\"42\">MiB; of each pair of bars the upper one is planned, the lower one "
        "is what engines held.</text>\n",
        (double)c->f->parameters / 1e6, zero_dtype_name(c->f->transformer.dtype), c->f->ranks,
        c->f->ranks == 1 ? "" : "s");
}

/* colour: of text, as an attribute; "": that of the page around it. */
static void print_svg(const footprint *f, const char *colour, FILE *out)
{
    const double memory = largest(f, false);
    const double disk = largest(f, true);
    uint32_t rows = 0;
    for (uint32_t i = 0; i < f->mix_count; i++) {
        rows += f->mixes[i].measured;
    }
    chart c = {.f = f, .scale = memory > 0 ? PLOT_WIDTH / (memory + disk) : 1};
    c.disk_x = PLOT_X + memory * c.scale + LABEL;
    c.top = print_legend(&c) + 24;
    c.bottom = c.top + rows * ROW;
    c.out = out;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.10g %.10g\" "
            "font-family=\"sans-serif\" font-size=\"13\" fill=\"currentColor\"%s role=\"img\" "
            "aria-label=\"memory of a rank by stage\">\n",
            WIDTH, c.bottom + 22, colour);
    print_title(&c);
    (void)print_legend(&c);
    if (memory > 0) {
        print_axis(&c, PLOT_X, memory, "in memory");
    }
    if (disk > 0) {
        print_axis(&c, c.disk_x, disk, "on disk");
    }
    double y = c.top;
    for (uint32_t i = 0; i < f->mix_count; i++) {
        if (f->mixes[i].measured) {
            print_mix(&c, &f->mixes[i], y);
            y += ROW;
        }
    }
    fputs("</svg>\n", out);
}

static int close_file(FILE *file, const char *path)
{
    return plan_close(file, path, false);
}

int footprint_write_svg(const footprint *f, const char *path)
{
    FILE *file = plan_open(path);
    if (file == NULL) {
        return 1;
    }
    /* A grey that is legible on white and on black: pages do not tell a picture which they are. */
    print_svg(f, " color=\"#777\"", file);
    return close_file(file, path);
}

/* ---- the page ---- */

static void print_table(const footprint_mix *mix, const footprint *f, FILE *out)
{
    fprintf(out,
            "<h2>Stage %s</h2>\n<table>\n<tr><th>role</th><th>tier</th><th>planned bytes</th>"
            "<th>measured bytes</th></tr>\n",
            mix->name);
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const zero_tier tier = footprint_tier(mix, role);
        if (mix->planned.bytes[role] + mix->held.bytes[role] == 0) {
            continue;
        }
        fprintf(out, "<tr><td>%s</td><td>%s</td><td>%" PRIu64 "</td>",
                zero_role_name((zero_role)role), zero_tier_name(tier), mix->planned.bytes[role]);
        if (tier == ZERO_TIER_DISK) {
            fputs("<td>in files</td></tr>\n", out);
        } else {
            fprintf(out, "<td>%" PRIu64 "</td></tr>\n", mix->held.bytes[role]);
        }
    }
    if (mix->planned.tier_bytes[ZERO_TIER_DISK] != 0) {
        fprintf(out,
                "<tr><td>files</td><td>disk</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td></tr>\n",
                mix->planned.tier_bytes[ZERO_TIER_DISK], mix->file_bytes);
    }
    fprintf(out,
            "<tr><td>all</td><td>device, host</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td></tr>\n",
            footprint_memory(&mix->planned), footprint_memory(&mix->held));
    if (mix->used_bytes != 0) {
        fprintf(out, "<tr><td>%s, grown by</td><td></td><td></td><td>%" PRIu64 "</td></tr>\n",
                f->used, mix->used_bytes);
    }
    if (mix->paper > 0) {
        fprintf(out, "<tr><td>the paper's formula</td><td></td><td>%.0f</td><td></td></tr>\n",
                mix->paper);
    }
    fputs("</table>\n", out);
}

int footprint_write_html(const footprint *f, const char *path)
{
    FILE *file = plan_open(path);
    if (file == NULL) {
        return 1;
    }
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<title>zero bench memory</title>\n<style>\n"
          ":root { color-scheme: light dark; }\n"
          "body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; "
          "padding: 0 1em; }\n"
          "table { border-collapse: collapse; width: 100%; }\n"
          "td, th { padding: .2em .7em; text-align: right; border-bottom: 1px solid #8884; }\n"
          "td:first-child, th:first-child { text-align: left; }\n"
          "svg { width: 100%; height: auto; }\n</style>\n</head>\n<body>\n<h1>Planned and measured "
          "memory</h1>\n",
          file);
    print_svg(f, "", file);
    fputs("<p>", file);
    footprint_print_notes(f, file);
    fprintf(file,
            "</p>\n<p>%" PRIu32 " figures by role, tier and rank were measured; %" PRIu32
            " differ from the plan.</p>\n",
            f->figures, f->differ);
    for (uint32_t i = 0; i < f->mix_count; i++) {
        if (f->mixes[i].measured) {
            print_table(&f->mixes[i], f, file);
        }
    }
    fputs("</body>\n</html>\n", file);
    return close_file(file, path);
}
