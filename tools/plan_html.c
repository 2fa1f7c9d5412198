/* Owns the report of `zero plan` as one page of HTML: a chart for each tier, the table, and the
 * options. Nothing is loaded from anywhere, so it can be mailed and kept. */
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "bench.h"
#include "chart.h"
#include "plan_report.h"

#define GIB ((double)(UINT64_C(1) << 30))
/* Of a chart, in its own units: where bars begin, how long one is that just fits, where all end. */
#define BAR_X 170.0
#define BAR_FULL 400.0
#define BAR_END 700.0
#define ROW 26

/* What a bar is made of: the roles, then what is no role's. */
enum { PART_ACTIVATIONS = ZERO_ROLE_COUNT_MAX, PART_RESERVE, PARTS };

static const char *part_name(int part)
{
    return part == PART_ACTIVATIONS ? "activations"
           : part == PART_RESERVE   ? "reserve"
                                    : zero_role_name((zero_role)part);
}

static const char *part_colour(int part)
{
    return part == PART_ACTIVATIONS ? "#d62728"
           : part == PART_RESERVE   ? "#bdbdbd"
                                    : chart_role_colour((zero_role)part);
}

static zero_tier tier_of(const plan_mix *mix, int role)
{
    if (role == ZERO_ROLE_IO_WINDOW || role == ZERO_ROLE_SAVE_STAGING) {
        return ZERO_TIER_HOST;
    }
    return role < ZERO_ROLE_SHARDS_MAX ? mix->options.tier[role] : ZERO_TIER_DEVICE;
}

/* A part's bytes on a tier. The reserve is what need has beyond all that is named. */
static uint64_t part_bytes(const plan_mix *mix, int part, zero_tier tier)
{
    const zero_footprint *f = &mix->footprint;
    if (part < ZERO_ROLE_COUNT_MAX) {
        return tier_of(mix, part) == tier ? f->role_bytes[part] : 0;
    }
    if (part == PART_ACTIVATIONS) {
        return tier == ZERO_TIER_DEVICE ? f->activation_bytes : 0;
    }
    uint64_t named = 0;
    for (int i = 0; i < PART_RESERVE; i++) {
        named += part_bytes(mix, i, tier);
    }
    return f->need_bytes[tier] > named ? f->need_bytes[tier] - named : 0;
}

static void print_head(const plan_report *r, FILE *out)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>zero "
          "plan ",
          out);
    chart_text(r->model, out);
    fputs("</title>\n<style>\n"
          ":root { color-scheme: light dark; }\n"
          "body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; "
          "padding: 0 1em; }\n"
          "table { border-collapse: collapse; width: 100%; }\n"
          "td, th { padding: .2em .7em; text-align: right; border-bottom: 1px solid #8884; }\n"
          "td:first-child, th:first-child { text-align: left; }\n"
          "svg { width: 100%; height: auto; font: 13px system-ui, sans-serif; }\n"
          "svg text { fill: currentColor; }\n"
          "pre { padding: 1em; border: 1px solid #8884; overflow-x: auto; }\n"
          ".no { color: #d62728; }\n.legend span { margin-right: 1.2em; white-space: nowrap; }\n"
          ".legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }\n"
          "</style>\n</head>\n<body>\n<h1>",
          out);
    chart_text(r->model, out);
    fputs(" on ", out);
    chart_text(r->cluster_name, out);
    fprintf(out,
            "</h1>\n<p>%.4g billion parameters (%.4g billion used by a token), %s, %" PRIu64
            " layers of width %" PRIu64 "; %" PRIu32 " ranks on %" PRIu64 " nodes; %" PRIu64
            " x %" PRIu64 " tokens of a rank at once, activations %s.\n",
            (double)r->parameters / 1e9, (double)r->parameters_used / 1e9,
            zero_dtype_name(r->transformer.dtype), r->transformer.layers, r->transformer.width,
            r->ranks, r->cluster.nodes, r->batch.samples, r->batch.sequence,
            r->batch.recompute != 0 ? "recomputed" : "kept");
    plan_print_mesh(r, out);
    fputs("</p>\n", out);
}

static void print_legend(FILE *out)
{
    fputs("<p class=\"legend\">", out);
    for (int part = 0; part < PARTS; part++) {
        if (part < PART_ACTIVATIONS && zero_role_exists((zero_role)part) == 0) {
            continue;
        }
        fprintf(out, "<span><i style=\"background:%s\"></i>%s</span>\n", part_colour(part),
                part_name(part));
    }
    fputs("</p>\n", out);
}

/* One mix's bar: its parts end to end, cut where the chart ends. */
static void print_bar(const plan_mix *mix, zero_tier tier, uint32_t row, FILE *out)
{
    const double have = (double)mix->footprint.have_bytes[tier];
    const double need = (double)mix->footprint.need_bytes[tier];
    const uint32_t y = row * ROW + 6;
    double x = BAR_X;
    fprintf(out, "<text x=\"0\" y=\"%" PRIu32 "\">stage %s</text>\n", y + 13, mix->name);
    for (int part = 0; part < PARTS; part++) {
        const double bytes = (double)part_bytes(mix, part, tier);
        const double full = bytes / have * BAR_FULL;
        const double width = x + full > BAR_END ? BAR_END - x : full;
        if (width > 0) {
            chart_part(x, y, width, ROW - 9, part_colour(part), out);
            fprintf(out, "%s: %s %.2f GiB", mix->name, part_name(part), bytes / GIB);
            chart_part_end(out);
        }
        x += width > 0 ? width : 0;
    }
    const bool cut = need / have * BAR_FULL > BAR_END - BAR_X;
    fprintf(out, "<text x=\"%.2f\" y=\"%" PRIu32 "\"%s>%.*f%s</text>\n", x + 6, y + 13,
            need > have ? " class=\"no\" style=\"fill:#d62728\"" : "", need < 100 * GIB ? 1 : 0,
            need / GIB, cut ? " \u2192" : "");
}

static void print_chart(const plan_report *r, zero_tier tier, FILE *out)
{
    const double have = (double)r->mixes[0].footprint.have_bytes[tier];
    const uint32_t height = r->mix_count * ROW + 10;
    if (have <= 0) {
        return;
    }
    fprintf(out,
            "<h2>%c%s</h2>\n<p>GiB of a rank; the line is what it has: %.1f.</p>\n"
            "<svg viewBox=\"0 0 780 %" PRIu32 "\" role=\"img\" aria-label=\"%s memory by mix\">\n",
            zero_tier_name(tier)[0] - 'a' + 'A', zero_tier_name(tier) + 1, have / GIB, height,
            zero_tier_name(tier));
    for (uint32_t i = 0; i < r->mix_count; i++) {
        print_bar(&r->mixes[i], tier, i, out);
    }
    fprintf(out,
            "<line x1=\"%.1f\" y1=\"0\" x2=\"%.1f\" y2=\"%" PRIu32
            "\" stroke=\"currentColor\" stroke-dasharray=\"4 3\"/>\n</svg>\n",
            BAR_X + BAR_FULL, BAR_X + BAR_FULL, height);
}

/* One mix's step: its terms end to end, and a mark at the lower end of the interval. */
static void print_step(const plan_mix *mix, double longest, uint32_t row, FILE *out)
{
    const zero_estimate *e = &mix->estimate;
    const double scale = (BAR_END - BAR_X) / longest;
    const uint32_t y = row * ROW + 6;
    double x = BAR_X;
    fprintf(out, "<text x=\"0\" y=\"%" PRIu32 "\">stage %s</text>\n", y + 13, mix->name);
    for (int term = 0; term < ZERO_ESTIMATE_TERMS; term++) {
        const double width = scale * (double)e->term_ns[term];
        chart_part(x, y, width, ROW - 9, chart_colour((uint32_t)term), out);
        fprintf(out, "%s: %s %.4g s", mix->name, zero_estimate_term_name((zero_estimate_term)term),
                plan_seconds(e->term_ns[term]));
        chart_part_end(out);
        x += width;
    }
    fprintf(out,
            "<rect x=\"%.2f\" y=\"%" PRIu32 "\" width=\"2\" height=\"%d\" "
            "fill=\"currentColor\"/>\n<text x=\"%.2f\" y=\"%" PRIu32 "\">%.3g</text>\n",
            BAR_X + scale * (double)e->low_ns, y - 3, ROW - 3, x + 6, y + 13,
            plan_seconds(e->high_ns));
}

static void print_times(const plan_report *r, FILE *out)
{
    double longest = 1;
    for (uint32_t i = 0; i < r->mix_count; i++) {
        const double high = (double)r->mixes[i].estimate.high_ns;
        longest = high > longest ? high : longest;
    }
    fputs("<h2>Time of a step</h2>\n<p>Seconds, if nothing overlaps and rates are what the cluster "
          "says is reached; the mark is where a step would be at full rates if everything "
          "overlapped.</p>\n<p class=\"legend\">",
          out);
    for (int term = 0; term < ZERO_ESTIMATE_TERMS; term++) {
        fprintf(out, "<span><i style=\"background:%s\"></i>%s</span>\n",
                chart_colour((uint32_t)term), zero_estimate_term_name((zero_estimate_term)term));
    }
    fprintf(out,
            "</p>\n<svg viewBox=\"0 0 780 %" PRIu32 "\" role=\"img\" aria-label=\"time of a "
            "step by mix\">\n",
            r->mix_count * ROW + 10);
    for (uint32_t i = 0; i < r->mix_count; i++) {
        print_step(&r->mixes[i], longest, i, out);
    }
    fputs("</svg>\n", out);
}

static void print_table(const plan_report *r, FILE *out)
{
    fputs("<h2>All figures</h2>\n<table>\n<tr><th>stage and tiers</th><th>device GiB</th>"
          "<th>host GiB</th><th>disk GiB</th><th>fits</th><th>deepest that fits, billion "
          "parameters</th><th>seconds of a step</th><th>most of it</th></tr>\n",
          out);
    for (uint32_t i = 0; i < r->mix_count; i++) {
        const plan_mix *mix = &r->mixes[i];
        fprintf(out, "<tr><td>%s</td>", mix->name);
        for (int tier = ZERO_TIER_DEVICE; tier <= ZERO_TIER_DISK; tier++) {
            const zero_footprint *f = &mix->footprint;
            fprintf(out, "<td%s>%.2f</td>",
                    f->need_bytes[tier] > f->have_bytes[tier] ? " class=\"no\"" : "",
                    (double)f->need_bytes[tier] / GIB);
        }
        fprintf(out, "<td>%s</td><td>%.4g</td>", mix->fits ? "yes" : "no",
                (double)mix->largest / 1e9);
        if (r->untimed[0] == '\0') {
            fprintf(out, "<td>%.3g to %.3g</td><td>%s</td></tr>\n",
                    plan_seconds(mix->estimate.low_ns), plan_seconds(mix->estimate.high_ns),
                    zero_estimate_term_name(mix->estimate.bound));
        } else {
            fputs("<td></td><td></td></tr>\n", out);
        }
    }
    fputs("</table>\n", out);
}

static void print_page(const plan_report *report, FILE *out)
{
    print_head(report, out);
    print_legend(out);
    for (int tier = ZERO_TIER_DEVICE; tier <= ZERO_TIER_DISK; tier++) {
        print_chart(report, (zero_tier)tier, out);
    }
    if (report->untimed[0] == '\0') {
        print_times(report, out);
    }
    print_table(report, out);
    if (report->recommended != NULL) {
        fprintf(out, "<h2>The first that fits: stage %s</h2>\n<pre>", report->recommended->name);
        plan_print_options(report, report->recommended, out);
        fputs("</pre>\n", out);
    } else {
        fputs("<h2>Nothing fits</h2>\n<p>More nodes, recomputation, smaller units or fewer tokens "
              "need less.</p>\n",
              out);
    }
    fputs("</body>\n</html>\n", out);
}

int plan_write_html(const plan_report *report, const char *path)
{
    FILE *file = plan_open(path);
    if (file == NULL) {
        return 1;
    }
    print_page(report, file);
    return plan_close(file, path, false);
}
