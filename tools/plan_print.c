/* Owns what `zero plan` prints: a table with a bar for the device's memory, and JSON. Every figure
 * is one of the library's. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "bench_report.h"
#include "plan_report.h"

#define GIB ((double)(UINT64_C(1) << 30))
#define BAR 12

/* 124 M, 1.01 T: three digits. */
static const char *count_text(uint64_t count, char text[16])
{
    static const char units[] = {' ', 'K', 'M', 'B', 'T'};
    double value = (double)count;
    size_t unit = 0;
    while (value >= 999.5 && unit < sizeof units - 1) {
        value /= 1000;
        unit++;
    }
    const int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    (void)snprintf(text, 16, "%.*f %c", unit == 0 ? 0 : digits, value, units[unit]);
    return text;
}

/* Bytes in GiB, in seven columns. */
static const char *gib_text(uint64_t bytes, char text[16])
{
    const double value = (double)bytes / GIB;
    (void)snprintf(text, 16, "%7.*f", value >= 999.95 ? 0 : value >= 9.995 ? 1 : 2, value);
    return text;
}

/* '#' for each twelfth of what the rank has; what it lacks ends in '>'. */
static void bar_text(uint64_t need, uint64_t have, char text[BAR + 1])
{
    const double share = (double)need / (double)have;
    const int full = share >= 1 ? BAR : (int)(share * BAR + 0.5);
    memset(text, '.', BAR);
    memset(text, '#', (size_t)full);
    text[BAR - 1] = need > have ? '>' : text[BAR - 1];
    text[BAR] = '\0';
}

/* "fits", or what the rank lacks most of, by its share. */
static const char *verdict(const plan_mix *mix, char text[32])
{
    const zero_footprint *f = &mix->footprint;
    int worst = 0;
    double most = 1;
    for (int tier = ZERO_TIER_DEVICE; tier <= ZERO_TIER_DISK; tier++) {
        const double share = f->need_bytes[tier] <= f->have_bytes[tier]
                                 ? 0
                                 : (double)f->need_bytes[tier] / (double)(f->have_bytes[tier] + 1);
        worst = share > most ? tier : worst;
        most = share > most ? share : most;
    }
    if (mix->fits || worst == 0) {
        return mix->fits ? "fits" : "no";
    }
    char lack[16];
    (void)snprintf(text, 32, "%s +%s", zero_tier_name((zero_tier)worst),
                   gib_text(f->need_bytes[worst] - f->have_bytes[worst], lack) + strspn(lack, " "));
    return text;
}

void plan_print_mesh(const plan_report *r, FILE *out)
{
    const zero_transformer *t = &r->transformer;
    const zero_batch *b = &r->batch;
    if (r->world != r->ranks || b->context_parallel > 1) {
        fprintf(out, "mesh: tensor %" PRIu64 " x pipeline %" PRIu64, t->tensor_parallel,
                t->pipeline_parallel);
        if (b->interleave > 1) {
            fprintf(out, " (%" PRIu64 " groups of blocks)", b->interleave);
        }
        fprintf(out, ", engines of %" PRIu32 " ranks", r->world);
        if (b->context_parallel > 1) {
            fprintf(out, ", %" PRIu64 " to a sample", b->context_parallel);
        }
        fprintf(out, "%s\n", b->sequence_parallel != 0 ? ", stream split" : "");
    }
    if (b->fp8 != 0 || b->wire != ZERO_WIRE_ENGINE) {
        fprintf(out, "as a peer does:%s%s\n", b->fp8 != 0 ? " matrices of blocks in fp8" : "",
                b->wire == ZERO_WIRE_ENGINE ? ""
                : b->fp8 != 0               ? ", ZeRO++ on the wire"
                                            : " ZeRO++ on the wire");
    }
}

static void print_head(const plan_report *r, FILE *out)
{
    char total[16];
    char used[16];
    const zero_cluster *c = &r->cluster;
    fprintf(out, "%s: %s parameters", r->model, count_text(r->parameters, total));
    if (r->parameters_used != r->parameters) {
        fprintf(out, ", %s used by a token", count_text(r->parameters_used, used));
    }
    fprintf(out, ", %s, %" PRIu64 " layers of width %" PRIu64 "\n",
            zero_dtype_name(r->transformer.dtype), r->transformer.layers, r->transformer.width);
    fprintf(out, "%s: %" PRIu32 " rank%s, %" PRIu64 " node%s of %" PRIu64 "\n", r->cluster_name,
            r->ranks, r->ranks == 1 ? "" : "s", c->nodes, c->nodes == 1 ? "" : "s",
            c->ranks_per_node);
    plan_print_mesh(r, out);
    fprintf(out, "batch of a rank: %" PRIu64 " x %" PRIu64 " tokens, activations %s: %.2f GiB\n\n",
            r->batch.samples, r->batch.sequence, r->batch.recompute != 0 ? "recomputed" : "kept",
            (double)r->mixes[0].footprint.activation_bytes / GIB);
}

static void print_mix(const plan_mix *mix, FILE *out)
{
    char device[16];
    char host[16];
    char disk[16];
    char lack[32];
    char bar[BAR + 1];
    char largest[16];
    const zero_footprint *f = &mix->footprint;
    bar_text(f->need_bytes[ZERO_TIER_DEVICE], f->have_bytes[ZERO_TIER_DEVICE], bar);
    fprintf(out, "%-20s%s %s %s %s %-14s%6s%s\n", mix->name,
            gib_text(f->need_bytes[ZERO_TIER_DEVICE], device), bar,
            gib_text(f->need_bytes[ZERO_TIER_HOST], host),
            gib_text(f->need_bytes[ZERO_TIER_DISK], disk), verdict(mix, lack),
            mix->largest == 0 ? "-" : count_text(mix->largest, largest),
            mix->deepest == ZERO_FOOTPRINT_LAYERS_MAX ? "+" : "");
}

void plan_print_options(const plan_report *report, const plan_mix *mix, FILE *out)
{
    static const char *const tiers[] = {"DEFAULT", "DEVICE", "HOST", "DISK"};
    fprintf(out,
            "  zero_engine_options options = zero_engine_options_init();\n"
            "  options.device = ZERO_DEVICE_CUDA;\n"
            "  options.stage = ZERO_STAGE_%d;\n",
            (int)mix->options.stage);
    if (report->world != report->ranks) {
        fputs("  options.model_parallel = row; /* the ranks of a sample's parts: docs/mesh.md */\n",
              out);
    }
    if (mix->options.shard_group != 0) {
        fprintf(out, "  options.shard_group = %" PRIu32 ";\n", mix->options.shard_group);
    }
    for (int role = 0; role < ZERO_ROLE_SHARDS_MAX; role++) {
        if (mix->options.tier[role] > ZERO_TIER_DEVICE) {
            fputs("  options.tier[ZERO_ROLE_", out);
            for (const char *c = zero_role_name((zero_role)role); *c != '\0'; c++) {
                fputc(toupper((unsigned char)*c), out);
            }
            fprintf(out, "] = ZERO_TIER_%s;\n", tiers[mix->options.tier[role]]);
        }
    }
    if (report->setting_count != 0) {
        fprintf(out, "  zero_tuning tuning = zero_tuning_init();\n"
                     "  options.tuning = &tuning;\n");
    }
    for (uint32_t i = 0; i < report->setting_count; i++) {
        fprintf(out, "  (void)zero_option_set(&options, &tuning, \"%s\", \"%s\");\n",
                report->settings[i].name, report->settings[i].value);
    }
}

/* The same as words of a command line, which `zero sim` and others read. */
static void print_words(const plan_report *report, const plan_mix *mix, FILE *out)
{
    const char *separator = "\n  --set tier=";
    fprintf(out, "\nThe same for `zero sim`:\n\n  --set stage=%d", (int)mix->options.stage);
    if (mix->options.shard_group != 0) {
        fprintf(out, " --set shard_group=%" PRIu32, mix->options.shard_group);
    }
    for (int role = 0; role < ZERO_ROLE_SHARDS_MAX; role++) {
        if (mix->options.tier[role] > ZERO_TIER_DEVICE) {
            fprintf(out, "%s%s=%s", separator, zero_role_name((zero_role)role),
                    zero_tier_name(mix->options.tier[role]));
            separator = ",";
        }
    }
    for (uint32_t i = 0; i < report->setting_count; i++) {
        fprintf(out, "\n  --set %s=%s", report->settings[i].name, report->settings[i].value);
    }
    fputs("\n", out);
}

static void print_roles(const plan_mix *mix, FILE *out)
{
    char text[16];
    fprintf(out, "\nIts bytes on a rank, in GiB:\n\n");
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (mix->footprint.role_bytes[role] != 0) {
            const zero_tier tier = mix->options.tier[role];
            fprintf(out, "  %-12s %s%s%s\n", zero_role_name((zero_role)role),
                    gib_text(mix->footprint.role_bytes[role], text),
                    tier > ZERO_TIER_DEVICE ? " on " : "",
                    tier > ZERO_TIER_DEVICE ? zero_tier_name(tier) : "");
        }
    }
    fprintf(out, "  %-12s %s\n", "activations", gib_text(mix->footprint.activation_bytes, text));
}

int plan_print(const plan_report *report, FILE *out)
{
    char device[16];
    char host[16];
    char disk[16];
    const zero_footprint *f = &report->mixes[0].footprint;
    print_head(report, out);
    fprintf(out, "%-20s%7s %-12s %7s %7s %-13s%7s\n", "GiB of a rank; stage", "device", "", "host",
            "disk", "", "deepest");
    fprintf(out, "%-20s%s %-12s %s %s\n", "it has",
            gib_text(f->have_bytes[ZERO_TIER_DEVICE], device), "",
            gib_text(f->have_bytes[ZERO_TIER_HOST], host),
            gib_text(f->have_bytes[ZERO_TIER_DISK], disk));
    for (uint32_t i = 0; i < report->mix_count; i++) {
        print_mix(&report->mixes[i], out);
    }
    fprintf(out,
            "\nDevice counts activations and %.1f GiB of CUDA, NCCL and cuBLAS. Deepest: the\n"
            "parameters of this width with as many layers as fit (+: %d, or more).\n",
            (double)report->cluster.device_reserve_bytes / GIB, ZERO_FOOTPRINT_LAYERS_MAX);
    plan_print_times(report, out);
    if (report->recommended != NULL) {
        fprintf(out, "\nThe first that fits, as options of the engine:\n\n");
        plan_print_options(report, report->recommended, out);
        if (report->world == report->ranks) { /* it simulates no mesh */
            print_words(report, report->recommended, out);
        }
        print_roles(report->recommended, out);
        if (report->untimed[0] == '\0') {
            plan_print_terms(report->recommended, out);
        }
    } else if (report->advised != NULL) {
        fprintf(out, "\nNothing fits as asked, but stage %s does with:\n\n  %s\n", report->advised,
                report->advice);
    } else {
        fprintf(out, "\nNothing fits: more nodes (--nodes), recomputation (--recompute), smaller "
                     "units\n(--units), or fewer tokens (--samples, --sequence) need less.\n");
    }
    return fflush(out) == 0 ? 0 : 1;
}

/* ---- JSON ---- */

static json_t *tiers_json(const uint64_t bytes[ZERO_TIER_COUNT_MAX])
{
    return json_pack("{s:I, s:I, s:I}", "device", (json_int_t)bytes[ZERO_TIER_DEVICE], "host",
                     (json_int_t)bytes[ZERO_TIER_HOST], "disk", (json_int_t)bytes[ZERO_TIER_DISK]);
}

static json_t *roles_json(const uint64_t bytes[ZERO_ROLE_COUNT_MAX])
{
    json_t *roles = json_object();
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (zero_role_exists((zero_role)role) != 0 &&
            json_object_set_new(roles, zero_role_name((zero_role)role),
                                json_integer((json_int_t)bytes[role])) != 0) {
            json_decref(roles);
            return NULL;
        }
    }
    return roles;
}

static json_t *mix_json(const plan_mix *mix)
{
    const zero_footprint *f = &mix->footprint;
    return json_pack("{s:s, s:i, s:b, s:o, s:o, s:o, s:I, s:I, s:I, s:o}", "name", mix->name,
                     "stage", (int)mix->options.stage, "fits", mix->fits, "role_bytes",
                     roles_json(f->role_bytes), "need_bytes", tiers_json(f->need_bytes),
                     "have_bytes", tiers_json(f->have_bytes), "activation_bytes",
                     (json_int_t)f->activation_bytes, "deepest_layers", (json_int_t)mix->deepest,
                     "deepest_parameters", (json_int_t)mix->largest, "time", plan_time_json(mix));
}

static json_t *cluster_json(const zero_cluster *cluster)
{
    const zero_cluster_field *field = NULL;
    json_t *json = json_object();
    for (uint32_t i = 0; (field = zero_cluster_field_at(i)) != NULL; i++) {
        uint64_t value = 0;
        memcpy(&value, (const unsigned char *)cluster + field->offset, sizeof value);
        if (json_object_set_new(json, field->name, json_integer((json_int_t)value)) != 0) {
            json_decref(json);
            return NULL;
        }
    }
    return json;
}

static json_t *mesh_json(const plan_report *r)
{
    const zero_batch *b = &r->batch;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:s}", "tensor",
                     (json_int_t)r->transformer.tensor_parallel, "pipeline",
                     (json_int_t)r->transformer.pipeline_parallel, "interleave",
                     (json_int_t)(b->interleave != 0 ? b->interleave : 1), "context",
                     (json_int_t)(b->context_parallel != 0 ? b->context_parallel : 1),
                     "engine_ranks", (json_int_t)r->world, "sequence_parallel",
                     (int)b->sequence_parallel, "fp8", (int)b->fp8, "wire",
                     b->wire == ZERO_WIRE_ZEROPP ? "zero++" : "engine");
}

static json_t *report_json(const plan_report *r)
{
    json_t *mixes = json_array();
    for (uint32_t i = 0; i < r->mix_count; i++) {
        if (json_array_append_new(mixes, mix_json(&r->mixes[i])) != 0) {
            json_decref(mixes);
            return NULL;
        }
    }
    return json_pack("{s:s, s:I, s:I, s:s, s:I, s:o, s:o, s:I, s:I, s:i, s:b, s:o, s:s?, s:s?}",
                     "model", r->model, "parameters", (json_int_t)r->parameters, "parameters_used",
                     (json_int_t)r->parameters_used, "cluster_name", r->cluster_name, "ranks",
                     (json_int_t)r->ranks, "cluster", cluster_json(&r->cluster), "mesh",
                     mesh_json(r), "samples", (json_int_t)r->batch.samples, "sequence",
                     (json_int_t)r->batch.sequence, "micro_steps", (int)r->batch.micro_steps,
                     "recompute", r->batch.recompute != 0, "mixes", mixes, "recommended",
                     r->recommended != NULL ? r->recommended->name : NULL, "advice", r->advice);
}

FILE *plan_open(const char *path)
{
    const int file = bench_open_file(path);
    if (file >= 0 && ftruncate(file, 0) != 0 && errno != EINVAL) { /* of a pipe */
        (void)bench_fail("cannot write %s: %s", path, strerror(errno));
    }
    return file >= 0 ? fdopen(file, "w") : NULL;
}

int plan_close(FILE *file, const char *path, bool failed)
{
    struct stat kind;
    const int reported = errno;
    int reason = ferror(file) != 0 ? reported : 0;
    const bool regular = lstat(path, &kind) == 0 && S_ISREG(kind.st_mode);
    failed = failed || ferror(file) != 0;
    if (fclose(file) != 0) {
        reason = errno;
        failed = true;
    }
    if (!failed) {
        return 0;
    }
    if (regular) {
        (void)unlink(path); /* half of it is of no use, and reads like a whole one */
    }
    return bench_fail("%s cannot be written: %s", path,
                      reason != 0 ? strerror(reason) : "no memory left, or a name is not UTF-8");
}

int plan_write_json(const plan_report *report, const char *path)
{
    FILE *file = plan_open(path);
    json_t *json = report_json(report);
    const int failed = file == NULL || json == NULL ||
                       json_dumpf(json, file, JSON_INDENT(2)) != 0 || fputc('\n', file) == EOF;
    json_decref(json);
    if (file == NULL) {
        return 1; /* it was said why */
    }
    return plan_close(file, path, failed != 0);
}
