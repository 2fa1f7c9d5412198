/* One table of options serves parsing, --help and the JSON log. */
#include "gpt2_options.h"
#include "tools/command_line.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* How an option's value is read and where it goes. */
typedef enum kind {
    KIND_TEXT,
    KIND_FLAG,  /* uint32_t, no value */
    KIND_COUNT, /* uint32_t in [low, high] */
    KIND_SEED,  /* uint64_t */
    KIND_BYTES, /* uint64_t with an optional K, M or G */
    KIND_REAL,  /* double in [low, high] */
    KIND_STAGE,
    KIND_DEVICE,
    KIND_MEMORY, /* zero_nccl_memory */
    KIND_TIER,
    KIND_DISK,   /* a text; may be given again */
    KIND_PRESET, /* a text, and the sizes it stands for */
    KIND_DTYPE   /* low: bits of the allowed types */
} kind;

typedef struct gpt2_option {
    const char *name; /* without its dashes */
    kind kind;
    size_t at; /* offset in gpt2_options */
    double low;
    double high;
    const char *help;
} gpt2_option;

#define AT(field) offsetof(gpt2_options, field)
#define F32 (1 << ZERO_DTYPE_F32)
#define BF16 (1 << ZERO_DTYPE_BF16)
#define F16 (1 << ZERO_DTYPE_F16)
#define NONE (1 << ZERO_DTYPE_NONE)

static const gpt2_option table[] = {
    {"data", KIND_TEXT, AT(data), 0, 0, "FILE: text, or llm.c's tokens (required)"},
    {"val", KIND_TEXT, AT(val), 0, 0, "FILE: validation data (else the last tenth of --data)"},
    {"vocab", KIND_COUNT, AT(vocab), 1, 65536,
     "N: tokens there are (else 256 for text, 50257 for .bin; of a plan 50257 with --preset)"},
    {"ranks", KIND_COUNT, AT(ranks), 1, 256, "N: ranks as threads of this process (4)"},
    {"deadline", KIND_COUNT, AT(deadline), 1, 4294967,
     "SECONDS: how long a rank waits for the others before it gives up"},
    {"device", KIND_DEVICE, AT(device), 0, 0, "cpu|cuda: where ranks compute, one GPU a rank"},
    {"nccl-memory", KIND_MEMORY, AT(nccl_memory), 0, 0,
     "none|registered|symmetric: what NCCL knows of memory"},
    {"zero-cta", KIND_FLAG, AT(zero_cta), 0, 0,
     "let NCCL gather by copy engines; with --nccl-memory symmetric"},
    {"stage", KIND_STAGE, AT(stage), 0, 3, "0..3: what is split over the ranks"},
    {"shard-group", KIND_COUNT, AT(shard_group), 1, 65536,
     "N: ranks that parameters are split over"},
    {"dtype", KIND_DTYPE, AT(dtype), F32 | BF16 | F16, 0, "f32|bf16|f16: parameters"},
    {"grad-dtype", KIND_DTYPE, AT(grad_dtype), F32 | BF16 | F16, 0, "gradients (as --dtype)"},
    {"accum", KIND_DTYPE, AT(accum), F32 | BF16, 0, "f32|bf16: sums of gradients (f32)"},
    {"wire-dtype", KIND_DTYPE, AT(wire_dtype), F32 | BF16 | F16, 0, "gradients on their way"},
    {"master", KIND_DTYPE, AT(master), F32 | NONE, 0, "f32|none: copy that is updated"},
    {"moments", KIND_DTYPE, AT(moments), F32 | BF16, 0, "f32|bf16: AdamW's moments"},
    {"param-tier", KIND_TIER, AT(param_tier), 0, 0, "device|host|disk: where parameters live"},
    {"grad-tier", KIND_TIER, AT(grad_tier), 0, 0, "device|host|disk: where gradients live"},
    {"master-tier", KIND_TIER, AT(master_tier), 0, 0, "device|host|disk: where the copy lives"},
    {"moment-tier", KIND_TIER, AT(moment_tier), 0, 0, "device|host|disk: where the moments live"},
    {"offload", KIND_TIER, AT(offload), 0, 0,
     "device|host|disk: where all but parameters waits while validating; device: it stays"},
    {"disk", KIND_DISK, AT(disks), 0, 0, "DIR: for what lives on disk; again for more disks"},
    {"range-bytes", KIND_BYTES, AT(range_bytes), 0, 0, "BYTES[K|M|G]: moved to disk at once (8M)"},
    {"overlap", KIND_FLAG, AT(overlap), 0, 0,
     "update during backward; with --master-tier and --moment-tier disk"},
    {"budget", KIND_BYTES, AT(budget), 0, 0, "BYTES[K|M|G]: refuse to use more a rank"},
    {"threads", KIND_COUNT, AT(threads), 1, 256, "N: threads a rank (cores / ranks)"},
    {"preset", KIND_PRESET, AT(preset), 0, 0,
     "gpt2-124m|gpt2-355m|gpt2-774m|gpt2-1558m: the public model's layers, heads, width, seq"},
    {"layers", KIND_COUNT, AT(layers), 1, 1000, "N: blocks"},
    {"heads", KIND_COUNT, AT(heads), 1, 1024, "N: attention heads; divides --width"},
    {"width", KIND_COUNT, AT(width), 1, 65536, "N: of the residual stream"},
    {"seq", KIND_COUNT, AT(seq), 1, 65536, "N: tokens of a sample"},
    {"recompute", KIND_FLAG, AT(recompute), 0, 0, "keep block inputs only; backward recomputes"},
    {"tf32", KIND_FLAG, AT(tf32), 0, 0, "CUDA: f32 products may round their factors to TF32"},
    {"batch", KIND_COUNT, AT(batch), 1, 1 << 20, "N: samples a step, over all ranks"},
    {"micro-steps", KIND_COUNT, AT(micro_steps), 1, 1 << 16, "N: parts a step is done in"},
    {"steps", KIND_COUNT, AT(steps), 1, 1e9, "N: optimizer steps"},
    {"warmup", KIND_COUNT, AT(warmup), 0, 1e9,
     "N: steps to the full learning rate (50, at most a tenth)"},
    {"lr", KIND_REAL, AT(lr), 0, 10, "X: largest learning rate"},
    {"min-lr", KIND_REAL, AT(min_lr), 0, 10, "X: last learning rate of the cosine (lr / 10)"},
    {"weight-decay", KIND_REAL, AT(weight_decay), 0, 10, "X: of matrices and embeddings"},
    {"beta1", KIND_REAL, AT(beta1), 0, 0.999999, "X: AdamW"},
    {"beta2", KIND_REAL, AT(beta2), 0, 0.999999, "X: AdamW"},
    {"clip", KIND_REAL, AT(clip), 0, 1e9, "X: largest gradient norm; 0: any"},
    {"skips-max", KIND_COUNT, AT(skips_max), 0, 1e9,
     "N: stop with an error after N skipped steps in a row; 0: never"},
    {"seed", KIND_SEED, AT(seed), 0, 0, "N: of weights, data order and sampling"},
    {"val-every", KIND_COUNT, AT(val_every), 0, 1e9, "N: steps between validations; 0: never"},
    {"val-batches", KIND_COUNT, AT(val_batches), 1, 1e6, "N: micro-batches of a validation"},
    {"log-every", KIND_COUNT, AT(log_every), 1, 1e9, "N: steps between lines of a plain log"},
    {"sample", KIND_COUNT, AT(sample), 0, 1e6, "N: tokens to generate after training"},
    {"temperature", KIND_REAL, AT(temperature), 0, 100, "X: of sampling; 0: the likeliest"},
    {"top-k", KIND_COUNT, AT(top_k), 0, 65536, "N: sample from the N likeliest; 0: from all"},
    {"prompt", KIND_TEXT, AT(prompt), 0, 0, "TEXT: what the sample goes on from"},
    {"csv", KIND_TEXT, AT(csv), 0, 0, "FILE: one line a step"},
    {"json", KIND_TEXT, AT(json), 0, 0,
     "FILE: settings, steps and memory; with --plan the plan, - for standard output"},
    {"peak-tflops", KIND_REAL, AT(peak_tflops), 0, 1e6,
     "X: of one GPU at --dtype, from its data sheet; prints MFU"},
    {"losses-exact", KIND_FLAG, AT(losses_exact), 0, 0, "print losses and norms as hex floats"},
    {"plan", KIND_FLAG, AT(plan), 0, 0, "print the memory plan of a rank and exit"},
    {"memory", KIND_FLAG, AT(memory), 0, 0, "print planned and measured bytes at the end"},
    {"version", KIND_FLAG, AT(version), 0, 0, "print the library's version and exit"},
    {"help", KIND_FLAG, AT(help), 0, 0, "print this and exit; also -h"},
};

/* A warm-up that was not given follows the number of steps. */
#define WARMUP_UNSET UINT32_MAX
enum { WARMUP_DEFAULT = 50 };

enum { TABLE_ROWS = sizeof table / sizeof table[0] };

static gpt2_options defaults(void)
{
    gpt2_options options;
    memset(&options, 0, sizeof options);
    options.prompt = "\n";
    options.deadline = 600;
    options.skips_max = 20;
    options.stage = ZERO_STAGE_3;
    options.device = ZERO_DEVICE_CPU;
    options.dtype = ZERO_DTYPE_BF16;
    options.param_tier = ZERO_TIER_DEVICE;
    options.grad_tier = ZERO_TIER_DEVICE;
    options.master_tier = ZERO_TIER_DEVICE;
    options.moment_tier = ZERO_TIER_DEVICE;
    options.offload = ZERO_TIER_DEVICE;
    options.layers = 4;
    options.heads = 4;
    options.width = 128;
    options.seq = 128;
    options.batch = 16;
    options.micro_steps = 1;
    options.steps = 1500;
    options.warmup = WARMUP_UNSET;
    options.lr = 3e-3;
    options.min_lr = -1;
    options.weight_decay = 0.1;
    options.beta1 = 0.9;
    options.beta2 = 0.95;
    options.clip = 1;
    options.seed = 1;
    options.val_every = 250;
    options.val_batches = 8;
    options.log_every = 50;
    options.temperature = 0.8;
    return options;
}

static const void *field_of(const gpt2_options *options, const gpt2_option *row)
{
    return (const char *)options + row->at;
}

/* --- reading values --------------------------------------------------------------------------- */

static bool set_count(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    uint64_t value = 0;
    if (!command_line_whole(text, (uint64_t)row->low, (uint64_t)row->high, &value)) {
        return gpt2_fail(error, "--%s %s: give a whole number in [%.0f, %.0f]", row->name, text,
                         row->low, row->high);
    }
    const uint32_t count = (uint32_t)value;
    memcpy(field, &count, sizeof count);
    return true;
}

static bool set_long(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    uint64_t value = 0;
    if (row->kind == KIND_BYTES ? !command_line_bytes(text, &value)
                                : !command_line_whole(text, 0, UINT64_MAX, &value)) {
        return gpt2_fail(error, "--%s %s: give a whole number below 2^64%s", row->name, text,
                         row->kind == KIND_BYTES ? ", with K, M or G for KiB, MiB or GiB" : "");
    }
    memcpy(field, &value, sizeof value);
    return true;
}

/* Decimal digits only: strtod alone would take blanks, hexadecimal digits and words. */
static bool set_real(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    char *end = NULL;
    const bool plain = text[strspn(text, "0123456789.eE+-")] == '\0';
    const double value = strtod(text, &end);
    if (!plain || end == text || *end != '\0' || !(value >= row->low && value <= row->high)) {
        return gpt2_fail(error, "--%s %s: give a number in [%g, %g]", row->name, text, row->low,
                         row->high);
    }
    memcpy(field, &value, sizeof value);
    return true;
}

static bool set_stage(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    if (strlen(text) != 1 || text[0] < '0' || text[0] > '3') {
        return gpt2_fail(error, "--%s %s: give 0, 1, 2 or 3", row->name, text);
    }
    const zero_stage stage = (zero_stage)(text[0] - '0');
    memcpy(field, &stage, sizeof stage);
    return true;
}

static bool set_device(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    const bool cuda = strcmp(text, "cuda") == 0;
    if (!cuda && strcmp(text, "cpu") != 0) {
        return gpt2_fail(error, "--%s %s: give cpu or cuda", row->name, text);
    }
    const zero_device device = cuda ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU;
    memcpy(field, &device, sizeof device);
    return true;
}

static const char *const memory_names[] = {"none", "registered", "symmetric"};

static bool set_memory(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    for (int i = 0; i <= ZERO_NCCL_MEMORY_SYMMETRIC; i++) {
        const zero_nccl_memory memory = (zero_nccl_memory)i;
        if (strcmp(text, memory_names[i]) == 0) {
            memcpy(field, &memory, sizeof memory);
            return true;
        }
    }
    return gpt2_fail(error, "--%s %s: give none, registered or symmetric", row->name, text);
}

static bool set_tier(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    for (int i = ZERO_TIER_DEVICE; i < ZERO_TIER_COUNT; i++) {
        const zero_tier tier = (zero_tier)i;
        if (strcmp(text, zero_tier_name(tier)) == 0) {
            memcpy(field, &tier, sizeof tier);
            return true;
        }
    }
    return gpt2_fail(error, "--%s %s: give device, host or disk", row->name, text);
}

uint32_t gpt2_options_disks(const gpt2_options *options)
{
    uint32_t count = 0;
    while (count < GPT2_DISKS_MAX && options->disks[count] != NULL) {
        count++;
    }
    return count;
}

static bool add_disk(gpt2_options *options, const gpt2_option *row, const char *text,
                     gpt2_error *error)
{
    const uint32_t count = gpt2_options_disks(options);
    if (count == GPT2_DISKS_MAX) {
        return gpt2_fail(error, "--%s %s: at most %d directories", row->name, text, GPT2_DISKS_MAX);
    }
    options->disks[count] = text;
    return true;
}

/* The sizes of the public GPT-2 checkpoints; options after --preset change them. */
static const struct preset {
    const char *name;
    uint32_t layers;
    uint32_t heads;
    uint32_t width;
} presets[] = {
    {"gpt2-124m", 12, 12, 768},
    {"gpt2-355m", 24, 16, 1024},
    {"gpt2-774m", 36, 20, 1280},
    {"gpt2-1558m", 48, 25, 1600},
};

static bool set_preset(gpt2_options *options, const gpt2_option *row, const char *text,
                       gpt2_error *error)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(text, presets[i].name) == 0) {
            options->preset = presets[i].name;
            options->layers = presets[i].layers;
            options->heads = presets[i].heads;
            options->width = presets[i].width;
            options->seq = 1024;
            return true;
        }
    }
    return gpt2_fail(error, "--%s %s: give one of %s", row->name, text, row->help);
}

static bool set_dtype(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    char allowed[64] = "";
    const uint32_t mask = (uint32_t)row->low;
    for (int i = ZERO_DTYPE_F32; i <= ZERO_DTYPE_NONE; i++) {
        const zero_dtype dtype = (zero_dtype)i;
        if ((mask >> i & 1) == 0) {
            continue;
        }
        if (strcmp(text, zero_dtype_name(dtype)) == 0) {
            memcpy(field, &dtype, sizeof dtype);
            return true;
        }
        const size_t used = strlen(allowed);
        (void)snprintf(allowed + used, sizeof allowed - used, "%s%s", used == 0 ? "" : ", ",
                       zero_dtype_name(dtype));
    }
    return gpt2_fail(error, "--%s %s: give one of %s", row->name, text, allowed);
}

static bool set_value(gpt2_options *options, const gpt2_option *row, const char *text,
                      gpt2_error *error)
{
    void *field = (char *)options + row->at;
    switch (row->kind) {
    case KIND_TEXT:
        memcpy(field, &text, sizeof text);
        return true;
    case KIND_COUNT:
        return set_count(field, row, text, error);
    case KIND_SEED:
    case KIND_BYTES:
        return set_long(field, row, text, error);
    case KIND_REAL:
        return set_real(field, row, text, error);
    case KIND_STAGE:
        return set_stage(field, row, text, error);
    case KIND_DEVICE:
        return set_device(field, row, text, error);
    case KIND_MEMORY:
        return set_memory(field, row, text, error);
    case KIND_TIER:
        return set_tier(field, row, text, error);
    case KIND_DISK:
        return add_disk(options, row, text, error);
    case KIND_PRESET:
        return set_preset(options, row, text, error);
    case KIND_DTYPE:
        return set_dtype(field, row, text, error);
    case KIND_FLAG:
        break;
    }
    const uint32_t yes = 1;
    memcpy(field, &yes, sizeof yes);
    return true;
}

/* --- checks ----------------------------------------------------------------------------------- */

/* What the GPU's kernels and products take. */
static bool check_cuda(const gpt2_options *o, gpt2_error *error)
{
    const uint32_t depth = o->width / o->heads;
    const zero_dtype grads = o->grad_dtype == ZERO_DTYPE_DEFAULT ? o->dtype : o->grad_dtype;
    if (o->dtype == ZERO_DTYPE_F16) {
        return gpt2_fail(error, "--dtype f16 is not for --device cuda; use bf16 or f32");
    }
    if (grads != ZERO_DTYPE_F32 && grads != o->dtype) {
        return gpt2_fail(error, "--grad-dtype %s with --dtype %s is not for --device cuda; use f32",
                         zero_dtype_name(grads), zero_dtype_name(o->dtype));
    }
    if (depth % 8 != 0 || depth > 128) {
        return gpt2_fail(error,
                         "--width %u / --heads %u is %u; --device cuda needs a multiple of 8, at "
                         "most 128",
                         o->width, o->heads, depth);
    }
    return true;
}

static bool check(const gpt2_options *options, gpt2_error *error)
{
    const gpt2_options *o = options;
    if (o->help != 0 || o->version != 0) {
        return true;
    }
    if (o->data == NULL && o->plan == 0) {
        return gpt2_fail(error, "no data: give --data FILE (any text)");
    }
    if (o->width % o->heads != 0) {
        return gpt2_fail(error, "--heads %u does not divide --width %u; choose a divisor", o->heads,
                         o->width);
    }
    if (o->device == ZERO_DEVICE_CUDA && !check_cuda(o, error)) {
        return false;
    }
    if (o->batch % o->micro_steps != 0 && o->plan == 0) {
        return gpt2_fail(error, "--micro-steps %u does not divide --batch %u; choose a divisor",
                         o->micro_steps, o->batch);
    }
    if (o->warmup != WARMUP_UNSET && o->warmup > o->steps) {
        return gpt2_fail(error, "--warmup %u is longer than --steps %u; make it shorter", o->warmup,
                         o->steps);
    }
    if (o->min_lr > o->lr) {
        return gpt2_fail(error, "--min-lr %g is above --lr %g; make it smaller", o->min_lr, o->lr);
    }
    if (o->master == ZERO_DTYPE_NONE && o->dtype == ZERO_DTYPE_F32) {
        return gpt2_fail(error, "--master none is for bf16 or f16 parameters; --dtype is f32");
    }
    const bool disk = o->param_tier == ZERO_TIER_DISK || o->grad_tier == ZERO_TIER_DISK ||
                      o->master_tier == ZERO_TIER_DISK || o->moment_tier == ZERO_TIER_DISK ||
                      o->offload == ZERO_TIER_DISK;
    if (disk && o->disks[0] == NULL && o->plan == 0) {
        return gpt2_fail(error, "no directory for what lives on disk: give --disk DIR");
    }
    if (o->offload == ZERO_TIER_HOST && o->device == ZERO_DEVICE_CPU) {
        return gpt2_fail(error, "--offload host frees nothing with --device cpu; give disk");
    }
    if (o->json != NULL && strcmp(o->json, "-") == 0 && o->plan == 0) {
        return gpt2_fail(error, "--json - is for --plan; give a file");
    }
    if (o->sample > 0 && o->prompt[0] == '\0') {
        return gpt2_fail(error, "--prompt is empty; give at least one character");
    }
    return true;
}

bool gpt2_options_check_ranks(const gpt2_options *options, uint32_t ranks, gpt2_error *error)
{
    const uint64_t parts = (uint64_t)ranks * options->micro_steps;
    if (options->batch % parts != 0 && options->plan == 0) {
        return gpt2_fail(error,
                         "--batch %u is no multiple of %u ranks x %u micro-steps; %llu would be",
                         options->batch, ranks, options->micro_steps,
                         (unsigned long long)((options->batch / parts + 1) * parts));
    }
    if (options->shard_group != 0 && ranks % options->shard_group != 0) {
        return gpt2_fail(error, "--shard-group %u does not divide %u ranks; choose a divisor",
                         options->shard_group, ranks);
    }
    return true;
}

/* Are both names of one file on disk? */
static bool are_same(const char *left, const char *right)
{
    struct stat about[2];
    if (strcmp(left, right) == 0 && stat(left, &about[0]) != 0) {
        return true; /* it is still to be made */
    }
    return stat(left, &about[0]) == 0 && stat(right, &about[1]) == 0 && S_ISREG(about[0].st_mode) &&
           about[0].st_dev == about[1].st_dev && about[0].st_ino == about[1].st_ino;
}

bool gpt2_options_check_files(const gpt2_options *options, gpt2_error *error)
{
    const struct {
        const char *name;
        const char *path;
    } files[] = {{"--csv", options->csv},
                 {"--json", options->json},
                 {"--data", options->data},
                 {"--val", options->val}};
    for (size_t written = 0; written < 2; written++) {
        for (size_t other = written + 1; other < 4; other++) {
            if (files[written].path != NULL && files[other].path != NULL &&
                are_same(files[written].path, files[other].path)) {
                return gpt2_fail(error, "%s %s would write over %s %s; give another file",
                                 files[written].name, files[written].path, files[other].name,
                                 files[other].path);
            }
        }
    }
    return true;
}

/* Rows of the table as getopt_long wants them; their `val`s count from COMMAND_LINE_OPTIONS. */
static void make_line_options(struct option *rows)
{
    for (size_t r = 0; r < TABLE_ROWS; r++) {
        rows[r].name = table[r].name;
        rows[r].has_arg = table[r].kind == KIND_FLAG ? no_argument : required_argument;
        rows[r].flag = NULL;
        rows[r].val = table[r].at == AT(help) ? COMMAND_LINE_HELP : COMMAND_LINE_OPTIONS + (int)r;
    }
    memset(&rows[TABLE_ROWS], 0, sizeof *rows);
}

/* Takes the presets of a line, or all but these. */
static bool read_line(gpt2_options *options, int argc, char **argv, bool presets_only,
                      gpt2_error *error)
{
    struct option rows[TABLE_ROWS + 1];
    make_line_options(rows);
    command_line line = command_line_begin(argc, argv, rows);
    const char *value = NULL;
    int found = 0;
    while ((found = command_line_next(&line, &value)) != COMMAND_LINE_END) {
        if (found == COMMAND_LINE_HELP) {
            options->help = 1;
            continue;
        }
        if (found == COMMAND_LINE_BAD) {
            return gpt2_fail(error, "%s", line.error);
        }
        if (found == COMMAND_LINE_WORD) {
            return gpt2_fail(error, "\"%s\" is no option; --help lists them all", value);
        }
        const gpt2_option *row = &table[found - COMMAND_LINE_OPTIONS];
        if ((row->kind == KIND_PRESET) == presets_only && !set_value(options, row, value, error)) {
            return false;
        }
    }
    return true;
}

bool gpt2_options_parse(gpt2_options *options, int argc, char **argv, gpt2_error *error)
{
    *options = defaults();
    if (!read_line(options, argc, argv, true, error) ||
        !read_line(options, argc, argv, false, error)) {
        return false;
    }
    if (!check(options, error)) {
        return false;
    }
    if (options->warmup == WARMUP_UNSET) {
        const uint32_t tenth = options->steps / 10;
        options->warmup = tenth < WARMUP_DEFAULT ? tenth : WARMUP_DEFAULT;
    }
    if (options->min_lr < 0) {
        options->min_lr = options->lr / 10;
    }
    return true;
}

/* --- printing --------------------------------------------------------------------------------- */

void gpt2_json_string(FILE *file, const char *text)
{
    (void)fputc('"', file);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            (void)fprintf(file, "\\%c", *at);
        } else if (*at < 0x20 || *at >= 0x7f) {
            (void)fprintf(file, "\\u%04x", *at); /* bytes beyond ASCII as if they were Latin-1 */
        } else {
            (void)fputc(*at, file);
        }
    }
    (void)fputc('"', file);
}

static void print_disks(const gpt2_options *options, FILE *file)
{
    (void)fputc('[', file);
    for (uint32_t i = 0; i < gpt2_options_disks(options); i++) {
        (void)fputs(i == 0 ? "" : ", ", file);
        gpt2_json_string(file, options->disks[i]);
    }
    (void)fputc(']', file);
}

/* What a value of these kinds is called; all of them are enumerators. */
static const char *value_name(const gpt2_option *row, const void *field)
{
    int value = 0;
    memcpy(&value, field, sizeof value);
    if (row->kind == KIND_DEVICE) {
        return value == ZERO_DEVICE_CUDA ? "cuda" : "cpu";
    }
    if (row->kind == KIND_MEMORY) {
        return memory_names[value];
    }
    return row->kind == KIND_TIER ? zero_tier_name((zero_tier)value)
                                  : zero_dtype_name((zero_dtype)value);
}

/* The value as it is written on a command line; JSON quotes texts and names. */
static void print_value(const gpt2_options *options, const gpt2_option *row, FILE *file, bool json)
{
    const void *field = field_of(options, row);
    const char *quote = json ? "\"" : "";
    switch (row->kind) {
    case KIND_PRESET:
    case KIND_TEXT: {
        const char *text = NULL;
        memcpy(&text, field, sizeof text);
        if (json && text == NULL) {
            (void)fputs("null", file);
        } else {
            gpt2_json_string(file, text == NULL ? "" : text);
        }
        break;
    }
    case KIND_SEED:
    case KIND_BYTES: {
        uint64_t value = 0;
        memcpy(&value, field, sizeof value);
        (void)fprintf(file, "%llu", (unsigned long long)value);
        break;
    }
    case KIND_REAL: {
        double value = 0;
        memcpy(&value, field, sizeof value);
        (void)fprintf(file, "%.9g", value);
        break;
    }
    case KIND_STAGE: {
        zero_stage stage = ZERO_STAGE_3;
        memcpy(&stage, field, sizeof stage);
        (void)fprintf(file, "%d", (int)stage);
        break;
    }
    case KIND_DISK:
        print_disks(options, file);
        break;
    case KIND_DEVICE:
    case KIND_MEMORY:
    case KIND_TIER:
    case KIND_DTYPE:
        (void)fprintf(file, "%s%s%s", quote, value_name(row, field), quote);
        break;
    case KIND_COUNT:
    case KIND_FLAG: {
        uint32_t value = 0;
        memcpy(&value, field, sizeof value);
        (void)fprintf(file, "%u", value);
        break;
    }
    }
}

void gpt2_options_usage(FILE *file)
{
    const gpt2_options options = defaults();
    (void)fprintf(file, "usage: gpt2_train --data FILE [options]\n"
                        "Trains a GPT-2 whose state is sharded over ranks: threads of this process "
                        "(--ranks),\nor the processes of mpirun, srun or torchrun.\n\n");
    for (size_t r = 0; r < TABLE_ROWS; r++) {
        const gpt2_option *row = &table[r];
        const bool derived = row->at == AT(ranks) || row->at == AT(vocab) ||
                             row->at == AT(threads) || row->at == AT(shard_group) ||
                             row->at == AT(warmup) || row->at == AT(min_lr) ||
                             row->at == AT(peak_tflops);
        const bool shows = row->kind == KIND_REAL || row->kind == KIND_STAGE ||
                           row->kind == KIND_DEVICE || row->kind == KIND_MEMORY ||
                           row->kind == KIND_SEED || row->kind == KIND_TIER ||
                           row->kind == KIND_COUNT || row->at == AT(dtype);
        (void)fprintf(file, "  --%-13s %s", row->name, row->help);
        if (shows && !derived) {
            (void)fputs(" [", file);
            print_value(&options, row, file, false);
            (void)fputs("]", file);
        }
        (void)fputc('\n', file);
    }
}

void gpt2_options_json(const gpt2_options *options, FILE *file)
{
    for (size_t r = 0; r < TABLE_ROWS; r++) {
        if (table[r].at == AT(help) || table[r].at == AT(version)) {
            continue;
        }
        (void)fprintf(file, "%s\"%s\": ", r == 0 ? "" : ", ", table[r].name);
        print_value(options, &table[r], file, true);
    }
}
