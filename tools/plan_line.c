/* Owns `zero plan`: reads its line, makes the mixes of stage and tiers, and asks the library what a
 * rank needs with each. */
#include "plan_report.h"

#include <inttypes.h>
#include <string.h>

#include "bench_report.h"
#include "commands.h"
#include "line_table.h"
#include "out_file.h"
#include "script.h"

static uint64_t plan_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void print_names(const char *title, const char *(*name_at)(uint32_t index))
{
    int column = printf("  %s:", title);
    const char *name = NULL;
    for (uint32_t i = 0; (name = name_at(i)) != NULL; i++) {
        if (column + (int)strlen(name) > 76) {
            column = printf("\n   ") - 1;
        }
        column += printf(" %s", name);
    }
    printf("\n");
}

void plan_line_print_names(void)
{
    print_names("models", zero_transformer_preset_name);
    plan_model_print_help();
    print_names("clusters", zero_cluster_preset_name);
}

static int print_help(void)
{
    printf("usage: zero plan MODEL [CLUSTER] [OPTIONS]\n"
           "       zero plan --largest CLUSTER [OPTIONS]\n\n"
           "Says what a rank needs of each tier to train MODEL on CLUSTER, at every ZeRO\n"
           "stage and with state, gradients and parameters offloaded, what fits, and how long\n"
           "a step takes. Bytes of parameters, gradients and optimizer state are those that an\n"
           "engine allocates.\n\n"
           "MODEL is a preset, or a config.json, a .safetensors or its .index.json as model\n"
           "hubs publish them, or dimensions, alone or behind a preset: gpt2,layers=24, or\n"
           "layers=32,width=4096,heads=32,vocab=32000,sequence=4096,gated=1; they are fields\n"
           "and flags of zero/transformer.h, and those left out are 0, their dtype bf16.\n"
           "CLUSTER is a preset (default dgx-h100) or a file of JSON with the fields of\n"
           "zero/cluster.h.\n\n");
    plan_line_print_names();
    printf("\noptions:\n"
           "  --nodes N      nodes of the cluster; default: its own number, a preset's is 1\n"
           "  --samples N    that a rank computes at once; default 1\n"
           "  --sequence N   tokens of a sample; default: the model's longest\n"
           "  --micro-steps N  of a step; default 1\n"
           "  --units WHAT   that are gathered at once: blocks (default), layers (a block's\n"
           "                 attention, its feed-forward layer), or matrices\n"
           "  --set NAME=VALUE  an option of the engine, as `zero options` lists them, but those\n"
           "                 that the table compares: stage, shard_group, tier and device\n"
           "  --recompute    activations within blocks are computed again in backward\n"
           "  --recompute-selective  those of every second block, or half of each one's products\n"
           "  --fused        operations between products are fused: compiled, or by kernels\n"
           "                 written for them; else they run one by one, as in PyTorch by itself\n"
           "  --attention HOW  flash (default), or stored: it stores its scores\n"
           "  --logit-rows N tokens whose logits exist at once; default: all of a micro-step\n"
           "  --tensor T     ranks that split each matrix, around the engine\n"
           "  --pipeline P   stages that the blocks are split over, likewise\n"
           "  --interleave V groups of blocks that a stage has\n"
           "  --context C    ranks that split the tokens of a sample; --samples is of them all\n"
           "  --expert E     ranks that share a block's experts, and send tokens to one another\n"
           "  --sequence-parallel  ranks of --tensor split the stream between matrices too\n"
           "  --mesh-overlap  what ranks of a mesh send goes in parts, while products run\n"
           "  --fp8          matrices of blocks are multiplied in fp8\n"
           "  --wire zero++  parameters and gradients are sent as that peer quantises them, which\n"
           "                 libzero does not: to compare\n"
           "  --search       look for the fastest plan instead: stage, tiers, formats of states,\n"
           "                 mesh and batch vary, but for what options here give\n"
           "  --no-search    say so where nothing fits, and do not look for what does\n"
           "  --tokens-per-step N  of all ranks, for --search; default: those of --samples and\n"
           "                 --micro-steps\n"
           "  --tokens N     of the whole run, for example 15e12: days and GPU-hours\n"
           "  --price P      of a GPU and an hour, in money\n"
           "  --watts W      of a GPU with its share of all else\n"
           "  --mtbf HOURS   between failures of one node: saves, restarts and what they leave\n"
           "  --save-seconds S     of a checkpoint; default: its bytes at the disks' rate\n"
           "  --restart-seconds S  after a failure; default 600\n"
           "  --largest      of the machines of CLUSTER instead: how many parameters fit, by\n"
           "                 tiers and formats of states, in models like Llama\n"
           "  --json FILE    write all figures as JSON too; - for stdout, without the table\n"
           "  --html FILE    write a page with charts, which needs no network\n"
           "  -h, --help     this text\n\n"
           "Exit status: 0 when the plan was made, whether or not anything fits; else 1.\n");
    return fflush(stdout) == 0 ? 0 : 1;
}

const char *plan_units_name(zero_transformer_units units)
{
    static const char *const names[] = {"blocks", "layers", "matrices"};
    return names[units];
}

static int read_units(void *line, const char *name, const char *value)
{
    for (int i = 0; i < ZERO_TRANSFORMER_UNITS_COUNT; i++) {
        if (strcmp(value, plan_units_name((zero_transformer_units)i)) == 0) {
            ((plan_line *)line)->units = (zero_transformer_units)i;
            return 0;
        }
    }
    return bench_fail("--%s %s: expected blocks, layers or matrices", name, value);
}

/* "NAME=VALUE". */
static int read_setting(void *words, const char *name, const char *text)
{
    plan_line *line = words;
    const char *equals = strchr(text, '=');
    plan_setting *setting = &line->settings[line->setting_count];
    if (equals == NULL || (size_t)(equals - text) >= sizeof setting->name) {
        return bench_fail("--%s %s: expected NAME=VALUE; see `zero options`", name, text);
    }
    if (line->setting_count == PLAN_SETTINGS) {
        return bench_fail("--%s %s: %d options are set already", name, text, PLAN_SETTINGS);
    }
    (void)snprintf(setting->name, sizeof setting->name, "%.*s", (int)(equals - text), text);
    setting->value = equals + 1;
    if (zero_option_set(&line->options, &line->tuning, setting->name, setting->value) != ZERO_OK) {
        return bench_fail("--%s %s: %s", name, text, zero_last_error()->message);
    }
    line->setting_count++;
    return 0;
}

static int read_attention(void *line, const char *name, const char *value)
{
    const bool stored = strcmp(value, "stored") == 0;
    ((plan_line *)line)->mesh.stored_attention = stored;
    return stored || strcmp(value, "flash") == 0
               ? 0
               : bench_fail("--%s %s: expected flash or stored", name, value);
}

static int read_wire(void *line, const char *name, const char *value)
{
    ((plan_line *)line)->mesh.wire = ZERO_WIRE_ZEROPP;
    return strcmp(value, "zero++") == 0 ? 0 : bench_fail("--%s %s: expected zero++", name, value);
}

static int read_word(void *words, const char *value)
{
    plan_line *line = words;
    if (line->word_count == 2) {
        return bench_fail("%s: a model and a cluster were named; see `zero %s --help`", value,
                          line->simulates ? "sim" : "plan");
    }
    line->words[line->word_count++] = value;
    return 0;
}

/* Options that only one of the two commands knows. */
enum { OF_PLAN = 1, OF_SIM, OF_MESH };

#define AT(field) offsetof(plan_line, field)
#define NUMBER_OF(group, name, field, low, high)          \
    {                                                     \
        name, LINE_U64, AT(field), low, high, NULL, group \
    }

#define REAL_OF(name, field)                                                        \
    {                                                                               \
        name, LINE_REAL, AT(field), 0, UINT64_C(1000000000000000000), NULL, OF_PLAN \
    }

static const line_row line_rows[] = {
    NUMBER_OF(0, "nodes", nodes, 1, 65536),
    NUMBER_OF(0, "samples", samples, 1, 1 << 20),
    NUMBER_OF(0, "sequence", sequence, 1, 1 << 24),
    NUMBER_OF(0, "micro-steps", micro_steps, 1, 65536),
    LINE_BY("set", read_setting),
    LINE_BY("units", read_units),
    {"recompute", LINE_SET, AT(mesh.recompute), 1, 0, NULL, 0},
    {"recompute-selective", LINE_SET, AT(mesh.recompute), 2, 0, NULL, 0},
    {"fused", LINE_SET, AT(mesh.fused), 1, 0, NULL, 0},
    LINE_BY("attention", read_attention),
    NUMBER_OF(0, "logit-rows", mesh.logit_rows, 1, UINT64_C(1) << 32),
    LINE_VALUE("json", LINE_TEXT, AT(json_path)),
    {"html", LINE_TEXT, AT(html_path), 0, 0, NULL, OF_PLAN},
    NUMBER_OF(OF_MESH, "tensor", tensor, 1, 65536),
    NUMBER_OF(OF_MESH, "pipeline", pipeline, 1, 65536),
    NUMBER_OF(OF_MESH, "interleave", mesh.interleave, 1, 65536),
    NUMBER_OF(OF_MESH, "context", mesh.context_parallel, 1, 65536),
    NUMBER_OF(OF_MESH, "expert", expert, 1, 65536),
    {"sequence-parallel", LINE_SET, AT(mesh.sequence_parallel), 1, 0, NULL, OF_MESH},
    {"mesh-overlap", LINE_SET, AT(mesh.mesh_overlap), 1, 0, NULL, OF_MESH},
    {"fp8", LINE_SET, AT(mesh.fp8), 1, 0, NULL, OF_MESH},
    {"wire", LINE_OTHER, 0, 0, 0, read_wire, OF_MESH},
    {"largest", LINE_FLAG, AT(largest), 0, 0, NULL, OF_PLAN},
    {"search", LINE_FLAG, AT(searches), 0, 0, NULL, OF_PLAN},
    {"no-search", LINE_FLAG, AT(searches_never), 0, 0, NULL, OF_PLAN},
    NUMBER_OF(OF_PLAN, "tokens-per-step", step_tokens, 1, UINT64_C(1) << 50),
    REAL_OF("tokens", run.tokens),
    REAL_OF("price", run.gpu_hour_price),
    REAL_OF("watts", run.gpu_watts),
    REAL_OF("mtbf", run.node_mtbf_hours),
    REAL_OF("save-seconds", run.save_seconds),
    REAL_OF("restart-seconds", run.restart_seconds),
    NUMBER_OF(OF_SIM, "steps", sim.steps, 1, 1024),
    NUMBER_OF(OF_SIM, "jitter-ns", sim.jitter_ns, 1, UINT64_C(1) << 40),
    NUMBER_OF(OF_SIM, "seed", sim.seed, 1, UINT64_MAX),
    {"trace", LINE_TEXT, AT(sim.trace_path), 0, 0, NULL, OF_SIM},
};

/* Of --largest: no time, and one engine of all ranks. */
static int check_largest(const plan_line *line, const char *const given[LINE_GROUPS_MAX])
{
    const bool timed = line->searches || line->step_tokens != 0 || line->run.tokens > 0 ||
                       line->html_path != NULL || line->micro_steps != 0;
    if (line->word_count == 2) {
        return bench_fail("%s: --largest finds the model, so only a cluster is named",
                          line->words[1]);
    }
    if (given[OF_MESH] != NULL) {
        return bench_fail("--%s: the models of --largest are in one part; leave it out",
                          given[OF_MESH]);
    }
    return timed ? bench_fail("--largest says what fits, and takes no option of time or search: "
                              "--search, --tokens, --tokens-per-step, --micro-steps, --html")
                 : 0;
}

/* Options of the engine that a table compares, a line for each; a search takes them as given. */
static int check_settings(const plan_line *line)
{
    enum { TABLE = 1, SEARCH = 2, LARGEST = 4 };
    static const struct {
        const char *name;
        int refused;
    } compared[] = {{"stage", TABLE | LARGEST}, {"shard_group", TABLE | LARGEST},
                    {"tier", TABLE | LARGEST},  {"device", TABLE | SEARCH},
                    {"master_dtype", LARGEST},  {"moment_dtype", LARGEST}};
    const int asked = line->largest ? LARGEST : line->searches ? SEARCH : TABLE;
    for (uint32_t i = 0; i < line->setting_count; i++) {
        const plan_setting *setting = &line->settings[i];
        const char *name = zero_option_find(setting->name)->name;
        for (size_t c = 0; c < sizeof compared / sizeof compared[0]; c++) {
            if (strcmp(name, compared[c].name) == 0 && (compared[c].refused & asked) != 0) {
                return bench_fail("--set %s=%s: %s", setting->name, setting->value,
                                  asked != SEARCH ? "the table compares it, a line for each; see "
                                                    "--search"
                                                  : "a cluster's ranks have a GPU each");
            }
        }
    }
    return 0;
}

/* Options that say something of others. */
static int check_line(const plan_line *line)
{
    const zero_run *run = &line->run;
    if (!line->simulates && check_settings(line) != 0) {
        return 1;
    }
    if (line->searches && line->searches_never) {
        return bench_fail("--search and --no-search: give one of them");
    }
    if (line->step_tokens != 0 && !line->searches) {
        return bench_fail("--tokens-per-step is for --search; else --samples and --micro-steps say "
                          "it");
    }
    if (run->tokens <= 0 &&
        (run->gpu_hour_price > 0 || run->gpu_watts > 0 || run->node_mtbf_hours > 0)) {
        return bench_fail("--price, --watts and --mtbf are of a run; say how long it is: --tokens");
    }
    if (run->node_mtbf_hours <= 0 && (run->save_seconds > 0 || run->restart_seconds > 0)) {
        return bench_fail("--save-seconds and --restart-seconds count where nodes fail: --mtbf");
    }
    return 0;
}

int plan_line_read(int argc, char **argv, plan_line *line)
{
    static const line_table table = {line_rows, sizeof line_rows / sizeof line_rows[0], read_word};
    const char *given[LINE_GROUPS_MAX] = {NULL};
    const int status = line_read(&table, argc, argv, line, given);
    const char *other = given[line->simulates ? OF_PLAN : OF_SIM];
    if (status == 0 && line->simulates && given[OF_MESH] != NULL) {
        return bench_fail("--%s is an option of `zero plan`, which estimates such a step; a "
                          "simulated rank has the whole model in the engine's types: leave it out",
                          given[OF_MESH]);
    }
    if (status == 0 && other != NULL) {
        return bench_fail("--%s is an option of `zero %s`", other,
                          line->simulates ? "plan" : "sim");
    }
    if (status == 0 && line->word_count == 0) {
        return bench_fail("which %s? see `zero %s --help`", line->largest ? "cluster" : "model",
                          line->simulates ? "sim" : "plan");
    }
    if (status == 0 && line->largest && check_largest(line, given) != 0) {
        return 1;
    }
    return status == 0 ? check_line(line) : status;
}

/* ---- mixes ---- */

/* A row of the table, before the cluster is known. */
typedef struct mix_kind {
    const char *name;
    zero_stage stage;
    bool hybrid; /* parameters are split within a node */
    zero_tier state;
    zero_tier grad;
    zero_tier param;
} mix_kind;

#define DEVICE ZERO_TIER_DEVICE
#define HOST ZERO_TIER_HOST
#define DISK ZERO_TIER_DISK

/* In the order in which they are recommended: what moves fewer bytes a step comes first. */
static const mix_kind kinds[PLAN_MIXES] = {
    {"0", ZERO_STAGE_0, false, DEVICE, DEVICE, DEVICE},
    {"1", ZERO_STAGE_1, false, DEVICE, DEVICE, DEVICE},
    {"2", ZERO_STAGE_2, false, DEVICE, DEVICE, DEVICE},
    {"3 in a node", ZERO_STAGE_3, true, DEVICE, DEVICE, DEVICE},
    {"3", ZERO_STAGE_3, false, DEVICE, DEVICE, DEVICE},
    {"3, state host", ZERO_STAGE_3, false, HOST, DEVICE, DEVICE},
    {"2, state, grads host", ZERO_STAGE_2, false, HOST, HOST, DEVICE}, /* ZeRO-Offload */
    {"3, state, grads host", ZERO_STAGE_3, false, HOST, HOST, DEVICE},
    {"3, all host", ZERO_STAGE_3, false, HOST, HOST, HOST},
    {"3, state disk", ZERO_STAGE_3, false, DISK, DEVICE, DEVICE},
    {"3, all disk", ZERO_STAGE_3, false, DISK, DISK, DISK},
};

/* Ranks of a node that hold the same part of the model. */
static uint32_t node_of_column(const plan_report *report)
{
    const uint64_t tensor = plan_max(report->transformer.tensor_parallel, 1);
    const uint64_t ranks = report->cluster.ranks_per_node;
    return ranks % tensor == 0 ? (uint32_t)(ranks / tensor) : 1;
}

static zero_engine_options options_of(const mix_kind *kind, const plan_report *report)
{
    zero_engine_options options = report->options;
    options.tuning = &report->tuning;
    options.stage = kind->stage;
    options.device = ZERO_DEVICE_CUDA;
    options.shard_group = kind->hybrid ? node_of_column(report) : 0;
    options.tier[ZERO_ROLE_PARAM] = kind->param;
    options.tier[ZERO_ROLE_GRAD] = kind->grad;
    for (int role = ZERO_ROLE_MASTER; zero_role_exists((zero_role)role) != 0; role++) {
        options.tier[role] = kind->state;
    }
    return options;
}

/* One node is one group: "in a node" would be stage 3 again; and tensor parallelism may leave a
 * node no group at all. */
static bool has_mix(const mix_kind *kind, const plan_report *report)
{
    const bool on_disk = kind->state == DISK;
    const uint32_t near = node_of_column(report);
    const bool grouped = near > 1 || report->transformer.tensor_parallel == 1;
    const bool divides = grouped && report->world > near && report->world % near == 0;
    const bool whole = report->transformer.expert_parallel == 1;
    return (!kind->hybrid || (divides && whole)) && (!on_disk || report->cluster.disk_bytes != 0);
}

/* A cluster without rates is planned without times. */
static int time_mix(plan_report *report, plan_mix *mix)
{
    mix->estimate = zero_estimate_init();
    mix->cost = zero_run_cost_init();
    if (zero_estimate_of(&report->transformer, &report->cluster, &mix->options, &report->batch,
                         &mix->estimate) != ZERO_OK) {
        (void)snprintf(report->untimed, sizeof report->untimed, "%s", zero_last_error()->message);
        return report->run.tokens > 0 ? bench_fail("%s", report->untimed) : 0;
    }
    if (report->run.tokens > 0 &&
        zero_run_cost_of(&report->run, &report->transformer, &report->cluster, &mix->options,
                         &report->batch, &mix->cost) != ZERO_OK) {
        return bench_fail("%s", zero_last_error()->message);
    }
    return 0;
}

/* Notes what an engine has just refused. */
static void refuse(plan_report *report, const char *name)
{
    plan_refusal *refusal = &report->refused[report->refused_count++];
    refusal->name = name;
    (void)snprintf(refusal->why, sizeof refusal->why, "%s", zero_last_error()->message);
}

/* No name: no engine takes these tiers with the line's options. */
static int make_mix(plan_report *report, const mix_kind *kind, plan_mix *mix)
{
    *mix = (plan_mix){.name = kind->name,
                      .options = options_of(kind, report),
                      .footprint = zero_footprint_init()};
    const zero_status status = zero_footprint_of(&report->transformer, &report->cluster,
                                                 &mix->options, &report->batch, &mix->footprint);
    if (status == ZERO_ERR_UNSUPPORTED) {
        refuse(report, kind->name);
        mix->name = NULL;
        return 0;
    }
    if (time_mix(report, mix) != 0) {
        return 1;
    }
    if (status != ZERO_OK ||
        zero_footprint_layers(&report->transformer, &report->cluster, &mix->options, &report->batch,
                              &mix->deepest) != ZERO_OK) {
        return bench_fail_zero(kind->name);
    }
    mix->fits = zero_footprint_fits(&mix->footprint) != 0;
    if (mix->deepest > 0) {
        zero_transformer deepest = report->transformer;
        deepest.layers = mix->deepest;
        if (zero_transformer_parameters(&deepest, &mix->largest, NULL) != ZERO_OK) {
            return bench_fail_zero(kind->name);
        }
    }
    return 0;
}

static int make_mixes(plan_report *report)
{
    for (size_t i = 0; i < PLAN_MIXES; i++) {
        if (has_mix(&kinds[i], report)) {
            plan_mix *mix = &report->mixes[report->mix_count++];
            if (make_mix(report, &kinds[i], mix) != 0) {
                return 1;
            }
            if (mix->name == NULL) {
                report->mix_count--;
                continue;
            }
            if (mix->fits && report->recommended == NULL) {
                report->recommended = mix;
            }
        }
    }
    return report->mix_count != 0 ? 0 : bench_fail("%s", report->refused[0].why);
}

/* ---- what a search leaves out ---- */

/* Each tier with the others that it needs least of. */
static const mix_kind reaches[] = {
    {"gradients host", ZERO_STAGE_3, false, HOST, HOST, DEVICE},
    {"parameters host", ZERO_STAGE_3, false, HOST, DEVICE, HOST},
    {"state disk", ZERO_STAGE_3, false, DISK, DEVICE, DEVICE},
    {"gradients disk", ZERO_STAGE_3, false, DISK, DISK, DEVICE},
    {"parameters disk", ZERO_STAGE_3, false, DISK, DEVICE, DISK},
};

static bool is_refused(const plan_report *report, const zero_transformer *transformer,
                       const mix_kind *kind)
{
    const zero_engine_options options = options_of(kind, report);
    zero_footprint footprint = zero_footprint_init();
    return zero_footprint_of(transformer, &report->cluster, &options, &report->batch, &footprint) ==
           ZERO_ERR_UNSUPPORTED;
}

/* Of the axes that a search varies. A pipeline of two stages stands for all meshes. */
static void list_refused(plan_report *report)
{
    static const mix_kind near = {"", ZERO_STAGE_0, false, DEVICE, DEVICE, DEVICE};
    zero_transformer halves = report->transformer;
    halves.pipeline_parallel = 2;
    for (size_t i = 0; i < sizeof reaches / sizeof reaches[0]; i++) {
        if ((report->held & ZERO_SEARCH_TIERS) == 0 && has_mix(&reaches[i], report) &&
            is_refused(report, &report->transformer, &reaches[i])) {
            refuse(report, reaches[i].name);
        }
    }
    if ((report->held & ZERO_SEARCH_PIPELINE) == 0 && is_refused(report, &halves, &near)) {
        refuse(report, "tensor and pipeline parallelism");
    }
}

/* ---- the line's model and cluster ---- */

int plan_cluster_read(const char *word, uint64_t nodes, zero_cluster *cluster)
{
    *cluster = zero_cluster_init();
    if ((plan_names_file(word) ? zero_cluster_read(word, cluster)
                               : zero_cluster_preset(word, cluster)) != ZERO_OK) {
        return bench_fail("%s", zero_last_error()->message);
    }
    cluster->nodes = nodes != 0 ? nodes : cluster->nodes;
    return zero_cluster_check(cluster) == ZERO_OK ? 0
                                                  : bench_fail("%s", zero_last_error()->message);
}

int plan_line_describe(const plan_line *line, plan_report *report)
{
    const char *model = line->words[0];
    const char *cluster = line->word_count > 1 ? line->words[1] : "dgx-h100";
    *report = (plan_report){
        .model = model, .cluster_name = cluster, .transformer = zero_transformer_init()};
    if (plan_model_read(model, &report->transformer) != 0 ||
        plan_cluster_read(cluster, line->nodes, &report->cluster) != 0) {
        return 1;
    }
    if (zero_transformer_parameters(&report->transformer, &report->parameters,
                                    &report->parameters_used) != ZERO_OK) {
        return bench_fail("%s", zero_last_error()->message);
    }
    report->transformer.units = line->units;
    report->transformer.tensor_parallel = plan_max(line->tensor, 1);
    report->transformer.pipeline_parallel = plan_max(line->pipeline, 1);
    report->transformer.expert_parallel = plan_max(line->expert, 1);
    if (zero_transformer_check(&report->transformer) != ZERO_OK) {
        return bench_fail("%s", zero_last_error()->message);
    }
    report->ranks = (uint32_t)(report->cluster.nodes * report->cluster.ranks_per_node);
    report->world = (uint32_t)(report->ranks / (report->transformer.tensor_parallel *
                                                report->transformer.pipeline_parallel));
    report->batch = line->mesh;
    report->batch.samples = line->samples != 0 ? line->samples : 1;
    report->batch.sequence = line->sequence != 0 ? line->sequence : report->transformer.sequence;
    report->batch.micro_steps = line->micro_steps != 0 ? (uint32_t)line->micro_steps : 1;
    report->options = line->options;
    report->tuning = line->tuning;
    memcpy(report->settings, line->settings, sizeof report->settings);
    report->setting_count = line->setting_count;
    return 0;
}

/* Axes that options of the line decide. */
static uint32_t held_axes(const plan_line *line)
{
    static const struct {
        const char *option;
        zero_search_axis axis;
    } settings[] = {{"stage", ZERO_SEARCH_STAGE},         {"shard_group", ZERO_SEARCH_STAGE},
                    {"tier", ZERO_SEARCH_TIERS},          {"updater", ZERO_SEARCH_TIERS},
                    {"master_dtype", ZERO_SEARCH_STATES}, {"moment_dtype", ZERO_SEARCH_STATES},
                    {"param_slots", ZERO_SEARCH_UNITS},   {"grad_slots", ZERO_SEARCH_UNITS}};
    const bool counted = line->step_tokens != 0;
    uint32_t held = 0;
    held |= line->tensor != 0 ? ZERO_SEARCH_TENSOR : 0;
    held |= line->pipeline != 0 ? ZERO_SEARCH_PIPELINE : 0;
    held |= line->mesh.context_parallel != 0 ? ZERO_SEARCH_CONTEXT : 0;
    held |= line->mesh.interleave != 0 ? ZERO_SEARCH_INTERLEAVE : 0;
    held |= line->mesh.recompute != 0 ? ZERO_SEARCH_RECOMPUTE : 0;
    held |= counted && line->samples != 0 ? ZERO_SEARCH_SAMPLES : 0;
    held |= counted && line->micro_steps != 0 ? ZERO_SEARCH_MICRO_STEPS : 0;
    held |= line->units != ZERO_TRANSFORMER_UNITS_BLOCK ? ZERO_SEARCH_UNITS : 0;
    for (uint32_t i = 0; i < line->setting_count; i++) {
        const zero_option *option = zero_option_find(line->settings[i].name);
        for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
            held |= strcmp(option->name, settings[s].option) == 0 ? (uint32_t)settings[s].axis : 0;
        }
    }
    return held;
}

static int describe_search(const plan_line *line, plan_report *report)
{
    report->held = held_axes(line);
    report->options.device = ZERO_DEVICE_CUDA;
    report->run = line->run;
    report->step_samples = line->step_tokens / report->batch.sequence;
    if (line->step_tokens % report->batch.sequence != 0) {
        return bench_fail("--tokens-per-step %" PRIu64 ": samples have %" PRIu64 " tokens; %" PRIu64
                          " and %" PRIu64 " are whole samples",
                          line->step_tokens, report->batch.sequence,
                          report->step_samples * report->batch.sequence,
                          (report->step_samples + 1) * report->batch.sequence);
    }
    return 0;
}

int command_plan(int argc, char **argv)
{
    plan_line line = {.options = zero_engine_options_init(),
                      .tuning = zero_tuning_init(),
                      .mesh = zero_batch_init(),
                      .run = zero_run_init()};
    static plan_report report;
    bench_speak_as("zero plan");
    const int read = plan_line_read(argc, argv, &line);
    if (read != 0) {
        return read == LINE_HELP ? print_help() : 1;
    }
    if (line.largest) {
        return plan_largest(&line);
    }
    if (plan_line_describe(&line, &report) != 0 || describe_search(&line, &report) != 0 ||
        (!line.searches && make_mixes(&report) != 0)) {
        return 1;
    }
    if (line.searches) {
        list_refused(&report);
    }
    if ((report.recommended == NULL && !line.searches_never && plan_search(&report) != 0)) {
        return 1;
    }
    const bool json_only = line.json_path != NULL && strcmp(line.json_path, "-") == 0;
    json_t *json = plan_json(&report);
    int failed = !json_only && script_print("plan_table", NULL, json_incref(json)) != 0;
    if (line.html_path != NULL && !failed) {
        failed = out_text(script_text("plan_page", NULL, json_incref(json)), line.html_path);
    }
    if (line.json_path != NULL && !failed) {
        failed = out_json(json_incref(json), line.json_path);
    }
    json_decref(json);
    plan_search_close(&report);
    return failed;
}
