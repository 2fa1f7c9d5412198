/* Owns `zero sim`: reads its line, lets the library simulate the steps, and prints what they take.
 */
#include <jansson.h>
#include <string.h>

#include "bench_report.h"
#include "commands.h"
#include "line_table.h"
#include "out_file.h"
#include "plan_report.h"
#include "script.h"

static int print_help(void)
{
    printf("usage: zero sim MODEL [CLUSTER] [OPTIONS]\n\n"
           "Says how long a step takes to train MODEL on CLUSTER, what it waits for, and what\n"
           "each link carries. It runs the engine itself on a simulated machine: one rank,\n"
           "which stands for all.\n\n"
           "MODEL and CLUSTER are those of `zero plan`:\n\n");
    plan_line_print_names();
    printf("\noptions:\n"
           "  --nodes N      nodes of the cluster; default: its own number, a preset's is 1\n"
           "  --samples N    that a rank computes at once; default 1\n"
           "  --sequence N   tokens of a sample; default: the model's longest\n"
           "  --micro-steps N  of a step; default 1\n"
           "  --units WHAT   that are gathered at once: blocks (default), layers, or matrices\n"
           "  --set NAME=VALUE  an option of the engine, as `zero options` lists them; the\n"
           "                 device is a GPU where it is not set\n"
           "  --recompute    activations within blocks are computed again in backward\n"
           "  --recompute-selective  those of every second block, or half of each one's products\n"
           "  --fused        operations between products are fused\n"
           "  --attention HOW  flash (default), or stored: it stores its scores\n"
           "  --logit-rows N tokens whose logits exist at once; default: all of a micro-step\n"
           "  --steps N      that are reported, as their mean; default 2\n"
           "  --jitter-ns N  how late a rank comes to a collective, on average; default 0\n"
           "  --seed N       of the jitter\n"
           "  --trace FILE   write the rank's timeline, in virtual time\n"
           "  --json FILE    write all figures as JSON too; - for stdout, without the table\n"
           "  -h, --help     this text\n");
    return fflush(stdout) == 0 ? 0 : 1;
}

/* A member for each name. */
static json_t *figures(const uint64_t *values, int first, int count, const char *(*name)(int))
{
    json_t *object = json_object();
    for (int i = first; i < count; i++) {
        (void)json_object_set_new(object, name(i), json_integer((json_int_t)values[i]));
    }
    return object;
}

static const char *cause_at(int i)
{
    return zero_sim_cause_name((zero_sim_cause)i);
}

static const char *link_at(int i)
{
    return zero_sim_link_name((zero_sim_link)i);
}

static const char *tier_at(int i)
{
    return zero_tier_name((zero_tier)i);
}

static json_t *report_json(const plan_report *plan, const zero_sim_report *r,
                           const zero_footprint *footprint)
{
    return json_pack(
        "{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:f, s:f}",
        "model", json_string_nocheck(plan->model), "cluster",
        json_string_nocheck(plan->cluster_name), "nodes", (json_int_t)plan->cluster.nodes,
        "ranks_per_node", (json_int_t)plan->cluster.ranks_per_node, "ranks",
        (json_int_t)plan->ranks, "step_ns", (json_int_t)r->step_ns, "compute_ns",
        (json_int_t)r->compute_ns, "wait_ns",
        figures(r->wait_ns, 0, ZERO_SIM_CAUSE_COUNT, cause_at), "link_bytes",
        figures(r->link_bytes, 0, ZERO_SIM_LINK_COUNT, link_at), "link_busy_ns",
        figures(r->link_busy_ns, 0, ZERO_SIM_LINK_COUNT, link_at), "peak_bytes",
        figures(r->peak_bytes, ZERO_TIER_DEVICE, ZERO_TIER_COUNT, tier_at), "planned_bytes",
        figures(r->planned_bytes, ZERO_TIER_DEVICE, ZERO_TIER_COUNT, tier_at), "need_bytes",
        figures(footprint->need_bytes, ZERO_TIER_DEVICE, ZERO_TIER_COUNT, tier_at), "have_bytes",
        figures(footprint->have_bytes, ZERO_TIER_DEVICE, ZERO_TIER_COUNT, tier_at), "fits",
        zero_footprint_fits(footprint), "tokens_per_s", r->tokens_per_s, "flops_per_s",
        r->flops_per_s);
}

int command_sim(int argc, char **argv)
{
    plan_line line = {.options = zero_engine_options_init(),
                      .mesh = zero_batch_init(),
                      .tuning = zero_tuning_init(),
                      .simulates = true,
                      .sim = zero_sim_options_init()};
    static plan_report plan;
    zero_sim_report report = zero_sim_report_init();
    zero_footprint footprint = zero_footprint_init();
    bench_speak_as("zero sim");
    const int read = plan_line_read(argc, argv, &line);
    if (read != 0) {
        return read == LINE_HELP ? print_help() : 1;
    }
    if (plan_line_describe(&line, &plan) != 0) {
        return 1;
    }
    plan.options.tuning = &plan.tuning;
    plan.options.device =
        plan.options.device != ZERO_DEVICE_DEFAULT ? plan.options.device : ZERO_DEVICE_CUDA;
    if (zero_sim_run(&plan.transformer, &plan.cluster, &plan.options, &plan.batch, &line.sim,
                     &report) != ZERO_OK ||
        zero_footprint_of(&plan.transformer, &plan.cluster, &plan.options, &plan.batch,
                          &footprint) != ZERO_OK) {
        return bench_fail("%s", zero_last_error()->message);
    }
    const bool json_only = line.json_path != NULL && strcmp(line.json_path, "-") == 0;
    json_t *json = report_json(&plan, &report, &footprint);
    int failed = !json_only && script_print("sim_table", NULL, json_incref(json)) != 0;
    if (line.json_path != NULL && !failed) {
        failed = out_json(json_incref(json), line.json_path);
    }
    json_decref(json);
    return failed;
}
