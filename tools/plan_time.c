/* Owns how `zero plan` shows the time of a step: a table, the terms of a mix, and JSON. */
#include <inttypes.h>
#include <jansson.h>

#include "plan_report.h"

#define SECOND 1e9

double plan_seconds(uint64_t ns)
{
    return (double)ns / SECOND;
}

/* Of a GPU, as published rates count operations. */
static double teraflops(const zero_estimate *e, uint64_t ns)
{
    return e->flops / (plan_seconds(ns) * 1e12);
}

static double share_of(const zero_estimate *e, zero_estimate_term term)
{
    return 100.0 * (double)e->term_ns[term] / (double)e->high_ns;
}

static void print_time(const plan_mix *mix, FILE *out)
{
    const zero_estimate *e = &mix->estimate;
    fprintf(out, "%-20s%9.4g %10.4g %10.3g %9.3g  %s, %.0f %%\n", mix->name,
            plan_seconds(e->low_ns), plan_seconds(e->high_ns), teraflops(e, e->high_ns),
            teraflops(e, e->low_ns), zero_estimate_term_name(e->bound), share_of(e, e->bound));
}

void plan_print_times(const plan_report *report, FILE *out)
{
    if (report->untimed[0] != '\0') {
        fprintf(out, "\nNo time of a step: %s\n", report->untimed);
        return;
    }
    fprintf(out, "\n%-20s%9s %10s %10s %9s  %s\n", "Seconds a step; stage", "at least", "at most",
            "TFLOP/s", "at best", "most of it");
    for (uint32_t i = 0; i < report->mix_count; i++) {
        print_time(&report->mixes[i], out);
    }
    fprintf(out,
            "\nAt least: full rates, everything overlaps. At most: nothing overlaps, rates\n"
            "as the cluster's permilles say. TFLOP/s of a GPU, without what is recomputed;\n"
            "a step has %" PRIu32 " micro-step%s and %.4g tokens of all ranks.\n",
            report->batch.micro_steps, report->batch.micro_steps == 1 ? "" : "s",
            (double)report->mixes[0].estimate.tokens);
}

void plan_print_terms(const plan_mix *mix, FILE *out)
{
    const zero_estimate *e = &mix->estimate;
    fprintf(out, "\nIts step, in seconds, if nothing overlaps:\n\n");
    for (int term = 0; term < ZERO_ESTIMATE_TERMS; term++) {
        if (e->term_ns[term] != 0) {
            const double share = share_of(e, (zero_estimate_term)term);
            fprintf(out, "  %-12s %9.4g %3.0f %%%.*s\n",
                    zero_estimate_term_name((zero_estimate_term)term),
                    plan_seconds(e->term_ns[term]), share,
                    share < 1.25 ? 0 : 1 + (int)(share / 2.5 + 0.5),
                    " ########################################");
        }
    }
}

static json_t *terms_json(const zero_estimate *e)
{
    json_t *terms = json_object();
    for (int term = 0; term < ZERO_ESTIMATE_TERMS; term++) {
        if (json_object_set_new(terms, zero_estimate_term_name((zero_estimate_term)term),
                                json_integer((json_int_t)e->term_ns[term])) != 0) {
            json_decref(terms);
            return NULL;
        }
    }
    return terms;
}

json_t *plan_time_json(const plan_mix *mix)
{
    const zero_estimate *e = &mix->estimate;
    if (e->high_ns == 0) {
        return json_null();
    }
    return json_pack(
        "{s:I, s:I, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "low_ns", (json_int_t)e->low_ns,
        "high_ns", (json_int_t)e->high_ns, "bound", zero_estimate_term_name(e->bound), "term_ns",
        terms_json(e), "local_bytes", (json_int_t)e->local_bytes, "fabric_bytes",
        (json_int_t)e->fabric_bytes, "host_link_bytes", (json_int_t)e->host_link_bytes,
        "disk_read_bytes", (json_int_t)e->disk_read_bytes, "disk_write_bytes",
        (json_int_t)e->disk_write_bytes, "tokens", (json_int_t)e->tokens, "flops", e->flops);
}
