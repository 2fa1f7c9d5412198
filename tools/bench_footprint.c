/* Owns `zero bench memory`: engines of every stage and of mixes of tiers for a transformer that is
 * made small enough, and their bytes by role and tier beside the plan's. Invariant: a byte that
 * differs is a failure. */
#include "bench_footprint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_report.h"
#include "offload_rank.h"
#include "out_file.h"
#include "script.h"

#define METRIC_ROLE "memory_role_vs_plan"
#define METRIC_TIER "memory_tier_vs_plan"
#define METRIC_USED "memory_used_vs_plan"
#define METRIC_PAPER "memory_vs_paper"

/* ---- the model ---- */

static bool names_file(const char *word)
{
    const size_t length = strlen(word);
    return strchr(word, '/') != NULL || (length > 5 && strcmp(word + length - 5, ".json") == 0);
}

/* "12x768x50257": layers, width and vocabulary of a model like GPT-2. False: it is not that. */
static bool read_dimensions(const char *word, zero_transformer *t)
{
    uint64_t *const numbers[] = {&t->layers, &t->width, &t->vocab};
    const char *at = word;
    for (int i = 0; i < 3; i++) {
        char *end = NULL;
        *numbers[i] = strtoull(at, &end, 10);
        if (*at < '0' || *at > '9' || *end != (i < 2 ? 'x' : '\0')) {
            return false;
        }
        at = end + 1;
    }
    t->heads = 1;
    t->sequence = 1024;
    t->flags = ZERO_TRANSFORMER_TIED_HEAD | ZERO_TRANSFORMER_BIASES;
    t->dtype = ZERO_DTYPE_BF16;
    return true;
}

static int read_model(const char *word, zero_transformer *t)
{
    *t = zero_transformer_init();
    if (read_dimensions(word, t)) {
        return zero_transformer_check(t) == ZERO_OK ? 0
                                                    : bench_fail("%s", zero_last_error()->message);
    }
    *t = zero_transformer_init();
    const zero_status status =
        names_file(word) ? zero_transformer_read(word, t) : zero_transformer_preset(word, t);
    return status == ZERO_OK ? 0 : bench_fail("--model %s: %s", word, zero_last_error()->message);
}

static uint64_t part_of(uint64_t dimension, uint32_t shrink)
{
    return (dimension + shrink - 1) / shrink;
}

/* A `shrink`th of every dimension but the numbers of blocks, heads and experts: matrices have a
 * shrink^2th of their elements, so that the embedding stays as large beside blocks as it was. */
static zero_transformer shrunk(const zero_transformer *whole, uint32_t shrink)
{
    zero_transformer t = *whole;
    const uint64_t head = t.head_width != 0 ? t.head_width : t.width / t.heads;
    t.width = part_of(t.width, shrink);
    t.head_width = part_of(head, shrink);
    t.ffn_width = part_of(t.ffn_width, shrink);
    t.dense_ffn_width = part_of(t.dense_ffn_width, shrink);
    t.shared_ffn_width = part_of(t.shared_ffn_width, shrink);
    t.kv_rank = part_of(t.kv_rank, shrink);
    t.query_rank = part_of(t.query_rank, shrink);
    t.rope_width = part_of(t.rope_width, shrink);
    t.value_width = part_of(t.value_width, shrink);
    t.window = part_of(t.window, shrink);
    t.vocab = part_of(t.vocab, shrink);
    t.positions = part_of(t.positions, shrink);
    t.sequence = part_of(t.sequence, shrink);
    return t;
}

/* ---- mixes ---- */

#define DEVICE ZERO_TIER_DEVICE
#define HOST ZERO_TIER_HOST
#define DISK ZERO_TIER_DISK

static const struct {
    const char *name;
    zero_stage stage;
    zero_tier param;
    zero_tier grad;
    zero_tier state;
    bool gpu;   /* on the CPU it is the same memory as the one before */
    bool small; /* only of bf16 parameters */
} kinds[FOOTPRINT_MIXES] = {
    {"0", ZERO_STAGE_0, DEVICE, DEVICE, DEVICE, false, false},
    {"1", ZERO_STAGE_1, DEVICE, DEVICE, DEVICE, false, false},
    {"2", ZERO_STAGE_2, DEVICE, DEVICE, DEVICE, false, false},
    {"3", ZERO_STAGE_3, DEVICE, DEVICE, DEVICE, false, false},
    {"3, small states", ZERO_STAGE_3, DEVICE, DEVICE, DEVICE, false, true},
    {"3, state host", ZERO_STAGE_3, DEVICE, DEVICE, HOST, true, false},
    {"3, state disk", ZERO_STAGE_3, DEVICE, DEVICE, DISK, false, false},
    {"3, small states disk", ZERO_STAGE_3, DEVICE, DEVICE, DISK, false, true},
    {"3, state, grads disk", ZERO_STAGE_3, DEVICE, DISK, DISK, false, false},
    {"3, all disk", ZERO_STAGE_3, DISK, DISK, DISK, false, false},
};

static zero_engine_options options_of(const footprint *f, const footprint_mix *mix,
                                      const bench_target *target, const bench_options *line,
                                      zero_tuning *tuning)
{
    static const char *const here[] = {"."};
    const bench_offload_options *o = &line->offload;
    zero_engine_options options = memory_run_options(target, tuning);
    options.stage = mix->stage;
    memcpy(options.tier, mix->tier, sizeof mix->tier);
    options.disk_directories = o->directory_count != 0 ? o->directories : here;
    options.disk_directory_count = o->directory_count != 0 ? o->directory_count : 1;
    options.master_dtype = mix->small ? ZERO_DTYPE_REMAINDER8 : ZERO_DTYPE_DEFAULT;
    options.moment_dtype = mix->small ? ZERO_DTYPE_I8 : ZERO_DTYPE_DEFAULT;
    tuning->accum_dtype = f->bf16_sums ? ZERO_DTYPE_BF16 : ZERO_DTYPE_F32;
    /* So that the I/O window is much smaller than the state of a small model. */
    tuning->extent_bytes = 65536;
    return options;
}

static void make_mixes(footprint *f, const bench_target *target)
{
    const bool formula = zero_dtype_bytes(f->transformer.dtype) == 2;
    for (size_t i = 0; i < FOOTPRINT_MIXES; i++) {
        footprint_mix *mix = &f->mixes[f->mix_count];
        if ((kinds[i].gpu && target->device != ZERO_DEVICE_CUDA) ||
            (kinds[i].small && f->transformer.dtype != ZERO_DTYPE_BF16)) {
            continue;
        }
        *mix = (footprint_mix){
            .name = kinds[i].name, .stage = kinds[i].stage, .small = kinds[i].small};
        for (int role = 0; role < ZERO_ROLE_SHARDS_MAX; role++) {
            const zero_tier tier = role == ZERO_ROLE_PARAM  ? kinds[i].param
                                   : role == ZERO_ROLE_GRAD ? kinds[i].grad
                                                            : kinds[i].state;
            mix->tier[role] = zero_role_exists((zero_role)role) != 0 ? tier : ZERO_TIER_DEFAULT;
        }
        const bool plain = strchr(mix->name, ',') == NULL;
        mix->paper = plain && formula ? footprint_paper(mix->stage, f->parameters, f->ranks) : 0;
        f->mix_count++;
    }
}

/* ---- what fits ---- */

static int plan_mix(const footprint *f, const footprint_mix *mix, const bench_target *target,
                    const bench_options *line, zero_memory *planned)
{
    zero_model *model = NULL;
    zero_tuning tuning;
    const zero_engine_options options = options_of(f, mix, target, line, &tuning);
    int failed = BENCH_TRY(zero_transformer_model(&f->transformer, &model));
    memory_run run = {.target = target, .model = model, .options = &options, .ranks = f->ranks};
    failed = failed || memory_run_plan(&run);
    *planned = run.planned;
    zero_model_destroy(model);
    return failed;
}

/* Memory of the machine; 0: not told, or it is a GPU's, which says so itself. */
static uint64_t available_bytes(const bench_target *target)
{
    return target->device == ZERO_DEVICE_CUDA ? 0
                                              : bench_proc_bytes("/proc/meminfo", "MemAvailable:");
}

/* Shrink the model until stage 0, which takes most, fits all ranks at once; or as the line says. */
static int choose_shrink(footprint *f, const bench_target *target, const bench_options *line)
{
    static const uint64_t budgets[] = {UINT64_C(1) << 30, UINT64_C(1) << 28, UINT64_C(1) << 23};
    const zero_transformer whole = f->transformer;
    const uint32_t wanted = line->memory.shrink;
    const uint64_t available = available_bytes(target);
    const uint64_t most = budgets[line->scale];
    const uint64_t budget = available != 0 && available / 2 < most ? available / 2 : most;
    const footprint_mix zero = {.stage = ZERO_STAGE_0};
    uint32_t shrink = wanted != 0 ? wanted : 1;
    for (;; shrink *= 2) {
        zero_memory planned;
        f->transformer = shrunk(&whole, shrink);
        if (plan_mix(f, &zero, target, line, &planned) != 0) {
            return 1;
        }
        const uint64_t all = footprint_memory(&planned) * f->ranks;
        const bool last = wanted != 0 || shrink >= whole.width;
        if (last && available != 0 && all > available) {
            return bench_fail("memory: %" PRIu64 " bytes of memory wanted by %" PRIu32
                              " ranks at stage 0, %" PRIu64
                              " available; give fewer --ranks or a larger --shrink",
                              all, f->ranks, available);
        }
        if (last || all <= budget) {
            break;
        }
    }
    (void)snprintf(f->model, sizeof f->model, shrink > 1 ? "%s, every dimension 1/%" PRIu32 : "%s",
                   line->memory.model != NULL ? line->memory.model : "gpt2", shrink);
    return BENCH_TRY(zero_transformer_parameters(&f->transformer, &f->parameters, NULL));
}

/* False, with the reason: a directory has no room for all ranks' files. */
static bool has_room(const footprint *f, const memory_run *run, char *reason, size_t reason_bytes)
{
    const offload_rank_desc disks = {.directories = run->options->disk_directories,
                                     .directory_count = run->options->disk_directory_count};
    return bench_disks_suffice(&disks, run->planned.tier_bytes[ZERO_TIER_DISK] * f->ranks, reason,
                               reason_bytes);
}

/* ---- rows ---- */

static int add_row(const char *metric, const char *name, const char *what, uint64_t measured,
                   double reference, bench_report *report)
{
    char text[320];
    const double value = (double)measured;
    const bench_stat stat = {value, value, value, 1};
    (void)snprintf(text, sizeof text, "%s, %s", name, what);
    return measured == 0 || reference <= 0
               ? 0
               : bench_add(report, metric, text, "bytes", &stat, reference);
}

static uint64_t shard_bytes(const zero_memory *memory)
{
    uint64_t bytes = 0;
    for (int role = 0; role < ZERO_ROLE_SHARDS_MAX; role++) {
        bytes += memory->bytes[role];
    }
    return bytes;
}

static int add_rows(const footprint *f, const footprint_mix *mix, const char *name,
                    bench_report *report)
{
    int failed = 0;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX && !failed; role++) {
        char what[64];
        const zero_tier tier = footprint_tier(mix, role);
        (void)snprintf(what, sizeof what, "%s on %s", zero_role_name((zero_role)role),
                       zero_tier_name(tier));
        failed = tier != DISK && zero_role_exists((zero_role)role) != 0 &&
                 add_row(METRIC_ROLE, name, what, mix->held.bytes[role],
                         (double)mix->planned.bytes[role], report);
    }
    for (int tier = DEVICE; tier <= DISK && !failed; tier++) {
        const uint64_t measured = tier == DISK ? mix->file_bytes : mix->held.tier_bytes[tier];
        failed = add_row(METRIC_TIER, name, zero_tier_name((zero_tier)tier), measured,
                         (double)mix->planned.tier_bytes[tier], report);
    }
    return failed ||
           add_row(METRIC_USED, name, f->used, mix->used_bytes,
                   (double)footprint_memory(&mix->planned), report) ||
           add_row(METRIC_PAPER, name, "the paper's formula", shard_bytes(&mix->held), mix->paper,
                   report);
}

static int measure_mix(footprint *f, footprint_mix *mix, const bench_target *target,
                       const bench_options *line, bench_report *report)
{
    char name[192];
    char reason[512];
    zero_model *model = NULL;
    zero_tuning tuning;
    const zero_engine_options options = options_of(f, mix, target, line, &tuning);
    (void)snprintf(name, sizeof name, "%s, %" PRIu32 " ranks%s, stage %s", f->model, f->ranks,
                   target->suffix, mix->name);
    if (!bench_wants(line, name)) {
        return 0;
    }
    memory_run run = {.target = target, .options = &options, .ranks = f->ranks};
    run.by_rank = calloc(f->ranks, sizeof *run.by_rank);
    if (run.by_rank == NULL) {
        return bench_fail("no memory left for the figures of %" PRIu32 " ranks", f->ranks);
    }
    int failed = BENCH_TRY(zero_transformer_model(&f->transformer, &model));
    run.model = model;
    failed = failed || memory_run_plan(&run);
    if (!failed && !has_room(f, &run, reason, sizeof reason)) {
        failed =
            line->named ? bench_fail("%s", reason) : bench_skip(report, METRIC_TIER, name, reason);
    } else if (!failed) {
        failed = memory_run_measure(&run);
        if (!failed) {
            footprint_compare(f, mix, &run);
            failed = add_rows(f, mix, name, report);
        }
    }
    zero_model_destroy(model);
    free(run.by_rank);
    return failed;
}

/* Nothing is measured for a picture that cannot be written; what is in the file stays until then.
 */
static int check_file(const char *path)
{
    const int file = path != NULL ? bench_open_file(path) : -1;
    if (file >= 0) {
        (void)close(file);
    }
    return path != NULL && file < 0;
}

static json_t *tiers_json(const zero_memory *memory)
{
    return json_pack("{s:I, s:I, s:I}", "device", (json_int_t)memory->tier_bytes[DEVICE], "host",
                     (json_int_t)memory->tier_bytes[HOST], "disk",
                     (json_int_t)memory->tier_bytes[DISK]);
}

static json_t *roles_json(const footprint_mix *mix)
{
    json_t *roles = json_object();
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        if (zero_role_exists((zero_role)role) != 0) {
            (void)json_object_set_new(roles, zero_role_name((zero_role)role),
                                      json_pack("{s:s, s:I, s:I}", "tier",
                                                zero_tier_name(footprint_tier(mix, role)),
                                                "planned", (json_int_t)mix->planned.bytes[role],
                                                "measured", (json_int_t)mix->held.bytes[role]));
        }
    }
    return roles;
}

/* A number, or null for what the system does not tell. */
static json_t *told_json(bool told, uint64_t bytes)
{
    return told ? json_integer((json_int_t)bytes) : json_null();
}

static json_t *mix_json(const footprint_mix *mix)
{
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:f}", "name", mix->name, "stage",
                     (int)mix->stage, "roles", roles_json(mix), "planned",
                     tiers_json(&mix->planned), "measured", tiers_json(&mix->held), "file_bytes",
                     told_json(mix->files_told, mix->file_bytes), "used_bytes",
                     told_json(mix->used_bytes != 0, mix->used_bytes), "paper", mix->paper);
}

/* The figures of the picture in text and of the charts. */
static json_t *footprint_json(const footprint *f)
{
    json_t *mixes = json_array();
    for (uint32_t i = 0; i < f->mix_count; i++) {
        if (f->mixes[i].measured) {
            (void)json_array_append_new(mixes, mix_json(&f->mixes[i]));
        }
    }
    return json_pack("{s:o, s:I, s:s, s:i, s:b, s:s, s:i, s:i, s:o}", "model",
                     json_string_nocheck(f->model), "parameters", (json_int_t)f->parameters,
                     "dtype", zero_dtype_name(f->transformer.dtype), "ranks", (int)f->ranks,
                     "bf16_sums", (int)f->bf16_sums, "used", f->used, "figures", (int)f->figures,
                     "differ", (int)f->differ, "mixes", mixes);
}

static int draw_chart(const char *form, json_t *memory, const char *path)
{
    if (path == NULL) {
        return 0;
    }
    char *text = script_text("memory_chart", form, json_pack("{s:O}", "memory", memory));
    return out_text(text, path);
}

static int draw(const footprint *f, const bench_options *line, bench_report *report)
{
    json_t *memory = footprint_json(f);
    const int failed = draw_chart("svg", memory, line->memory.svg_path) ||
                       draw_chart("html", memory, line->memory.html_path);
    return bench_report_more(report, "memory", memory) || failed;
}

int bench_footprint_at(const bench_target *target, const bench_options *line, bench_report *report)
{
    static footprint f;
    const char *model = line->memory.model != NULL ? line->memory.model : "gpt2";
    f = (footprint){.used = target->used,
                    .ranks = line->ranks != 0 ? line->ranks : 4,
                    .bf16_sums = line->memory.bf16_sums};
    if (check_file(line->memory.svg_path) != 0 || check_file(line->memory.html_path) != 0 ||
        read_model(model, &f.transformer) != 0 || choose_shrink(&f, target, line) != 0) {
        return 1;
    }
    make_mixes(&f, target);
    for (uint32_t i = 0; i < f.mix_count; i++) {
        if (measure_mix(&f, &f.mixes[i], target, line, report) != 0) {
            return 1;
        }
    }
    return f.figures != 0 && (draw(&f, line, report) != 0 || f.differ != 0);
}

int bench_footprint(const bench_options *options, bench_report *report)
{
    return options->memory.on_gpu ? bench_footprint_gpu(options, report)
                                  : bench_footprint_at(&bench_cpu_target, options, report);
}
