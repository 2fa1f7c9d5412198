/* One table of options serves parsing, --help and the JSON log: this program's own rows, then the
 * library's options by their own names (zero/option.h). */
#include "gpt2_options.h"
#include "gpt2_option_rows.h"
#include "tools/command_line.h"
#include "zero/option.h"
#include "zero/status.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A warm-up that was not given follows the number of steps. */
#define WARMUP_UNSET UINT32_MAX
enum { WARMUP_DEFAULT = 50 };

enum { OWN_ROWS = sizeof own_rows / sizeof own_rows[0], TABLE_ROWS_MAX = OWN_ROWS + 64 };

/* Own rows, then those options of the library that have none. */
static gpt2_option table[TABLE_ROWS_MAX];
static size_t table_rows;

/* Shorter names for some of the library's options. */
static const struct alias {
    const char *name;
    const char *option;
    const char *role; /* of `tier`; the moments are set together */
} aliases[] = {
    {"zero-cta", "nccl_zero_cta", NULL},       {"accum", "accum_dtype", NULL},
    {"master", "master_dtype", NULL},          {"moments", "moment_dtype", NULL},
    {"speculative", "speculative_step", NULL}, {"budget", "device_budget_bytes", NULL},
    {"param-tier", "tier", "param"},           {"grad-tier", "tier", "grad"},
    {"master-tier", "tier", "master"},         {"moment-tier", "tier", "moment1"},
};

/* NULL: the row's name is the option's own. */
static const struct alias *alias_of(const gpt2_option *row)
{
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (strcmp(aliases[i].name, row->name) == 0) {
            return &aliases[i];
        }
    }
    return NULL;
}

/* Of a row of KIND_ENGINE. */
static const zero_option *engine_option(const gpt2_option *row)
{
    const struct alias *alias = alias_of(row);
    return zero_option_find(alias != NULL ? alias->option : row->name);
}

/* True if a command line gives the option by another row, or cannot give it. */
static bool is_left_out(const zero_option *option)
{
    static const char *const others[] = {
        "group_optimizer", "update_states",  "disk_directory_count",
        "disk_path",       "hang_directory", "seed",
        "threads"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(option->name, others[i]) == 0) {
            return true;
        }
    }
    for (size_t r = 0; r < OWN_ROWS; r++) {
        if (own_rows[r].kind == KIND_ENGINE && engine_option(&own_rows[r]) == option) {
            return true;
        }
    }
    return option->kind == ZERO_OPTION_POINTER;
}

static void make_table(void)
{
    static char names[TABLE_ROWS_MAX][32];
    const zero_option *option = NULL;
    memcpy(table, own_rows, sizeof own_rows);
    table_rows = OWN_ROWS;
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        if (is_left_out(option) || table_rows == TABLE_ROWS_MAX) {
            continue;
        }
        char *name = names[table_rows];
        (void)snprintf(name, sizeof names[0], "%s", option->name);
        for (char *at = name; (at = strchr(at, '_')) != NULL;) {
            *at = '-'; /* as command lines have it */
        }
        table[table_rows++] = (gpt2_option){name, KIND_ENGINE, 0, 0, 0, option->text};
    }
}

static gpt2_options defaults(void)
{
    gpt2_options options;
    memset(&options, 0, sizeof options);
    options.prompt = "\n";
    options.deadline = 600;
    options.skips_max = 20;
    options.engine = zero_engine_options_init();
    options.tuning = zero_tuning_init();
    options.engine.device = ZERO_DEVICE_CPU;
    options.dtype = ZERO_DTYPE_BF16;
    for (int role = 0; role < ZERO_ROLE_SHARDS_MAX; role++) {
        if (zero_role_exists((zero_role)role)) {
            options.engine.tier[role] = ZERO_TIER_DEVICE;
        }
    }
    options.evict = ZERO_TIER_DEVICE;
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
    options.trust = 1e-3;
    options.clip = 1;
    options.seed = 1;
    options.val_every = 250;
    options.val_batches = 8;
    options.keep = 2;
    options.log_every = 50;
    options.temperature = 0.8;
    return options;
}

static bool is_row(const gpt2_option *row, const char *name)
{
    return strcmp(row->name, name) == 0;
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
        return gpt2_fail(error, "--%s %.100s: give a whole number in [%.0f, %.0f]", row->name, text,
                         row->low, row->high);
    }
    const uint32_t count = (uint32_t)value;
    memcpy(field, &count, sizeof count);
    return true;
}

static bool set_seed(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    uint64_t value = 0;
    if (!command_line_whole(text, 0, UINT64_MAX, &value)) {
        return gpt2_fail(error, "--%s %.100s: give a whole number below 2^64", row->name, text);
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
        return gpt2_fail(error, "--%s %.100s: give a number in [%g, %g]", row->name, text, row->low,
                         row->high);
    }
    memcpy(field, &value, sizeof value);
    return true;
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
    return gpt2_fail(error, "--%s %.100s: give device, host or disk", row->name, text);
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
        return gpt2_fail(error, "--%s %.100s: at most %d directories", row->name, text,
                         GPT2_DISKS_MAX);
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
    return gpt2_fail(error, "--%s %.100s: give one of %s", row->name, text, row->help);
}

static bool set_dtype(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    for (int i = ZERO_DTYPE_F32; i <= ZERO_DTYPE_F16; i++) {
        const zero_dtype dtype = (zero_dtype)i;
        if (strcmp(text, zero_dtype_name(dtype)) == 0) {
            memcpy(field, &dtype, sizeof dtype);
            return true;
        }
    }
    return gpt2_fail(error, "--%s %.100s: give one of f32, bf16, f16", row->name, text);
}

static const char *const library_names[] = {"auto", "blas", "dnnl"};
_Static_assert(sizeof library_names / sizeof library_names[0] == GPT2_LIBRARY_COUNT,
               "each library has its name");

static bool set_library(void *field, const gpt2_option *row, const char *text, gpt2_error *error)
{
    for (int i = 0; i < GPT2_LIBRARY_COUNT; i++) {
        const gpt2_library library = (gpt2_library)i;
        if (strcmp(text, library_names[i]) == 0) {
            memcpy(field, &library, sizeof library);
            return true;
        }
    }
    return gpt2_fail(error, "--%s %.100s: give auto, blas or dnnl", row->name, text);
}

static bool set_engine(gpt2_options *options, const gpt2_option *row, const char *text,
                       gpt2_error *error)
{
    const struct alias *alias = alias_of(row);
    const char *value = text;
    char tiers[128];
    if (alias != NULL && alias->role != NULL) {
        const bool moments = strcmp(alias->role, "moment1") == 0;
        (void)snprintf(tiers, sizeof tiers, "%s=%.40s%s%.40s", alias->role, text,
                       moments ? ",moment2=" : "", moments ? text : "");
        value = tiers;
    }
    if (zero_option_set(&options->engine, &options->tuning, engine_option(row)->name, value) !=
        ZERO_OK) {
        return gpt2_fail(error, "--%s %.100s: %s", row->name, text, zero_last_error()->message);
    }
    return true;
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
        return set_seed(field, row, text, error);
    case KIND_REAL:
        return set_real(field, row, text, error);
    case KIND_TIER:
        return set_tier(field, row, text, error);
    case KIND_DISK:
        return add_disk(options, row, text, error);
    case KIND_PRESET:
        return set_preset(options, row, text, error);
    case KIND_DTYPE:
        return set_dtype(field, row, text, error);
    case KIND_LIBRARY:
        return set_library(field, row, text, error);
    case KIND_ENGINE:
        return set_engine(options, row, text != NULL ? text : "1", error);
    case KIND_FLAG:
        break;
    }
    const uint32_t yes = 1;
    memcpy(field, &yes, sizeof yes);
    return true;
}

/* --- checks ----------------------------------------------------------------------------------- */

/* Check that the GPU's kernels and products take the options. */
static bool check_cuda(const gpt2_options *o, gpt2_error *error)
{
    const uint32_t depth = o->width / o->heads;
    const zero_dtype grads =
        o->engine.grad_dtype == ZERO_DTYPE_DEFAULT ? o->dtype : o->engine.grad_dtype;
    if (o->products != GPT2_LIBRARY_AUTO) {
        return gpt2_fail(error, "--products %s is for --device cpu; leave it out",
                         library_names[o->products]);
    }
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
    if (o->engine.device == ZERO_DEVICE_CUDA && !check_cuda(o, error)) {
        return false;
    }
    if (o->products == GPT2_LIBRARY_DNNL && o->dtype != ZERO_DTYPE_BF16) {
        return gpt2_fail(error, "--products dnnl is for --dtype bf16, not %s; give bf16, or blas",
                         zero_dtype_name(o->dtype));
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
    if (o->engine.master_dtype == ZERO_DTYPE_NONE && o->dtype == ZERO_DTYPE_F32) {
        return gpt2_fail(error, "--master none is for bf16 or f16 parameters; --dtype is f32");
    }
    if (o->dtype != ZERO_DTYPE_BF16 && (o->engine.master_dtype == ZERO_DTYPE_REMAINDER16 ||
                                        o->engine.master_dtype == ZERO_DTYPE_REMAINDER8)) {
        return gpt2_fail(error, "--master %s is for bf16 parameters; --dtype is %s",
                         zero_dtype_name(o->engine.master_dtype), zero_dtype_name(o->dtype));
    }
    bool disk = o->evict == ZERO_TIER_DISK;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        disk = disk || o->engine.tier[role] == ZERO_TIER_DISK;
    }
    if (disk && o->disks[0] == NULL && o->plan == 0) {
        return gpt2_fail(error, "no directory for what lives on disk: give --disk DIR");
    }
    if (o->evict == ZERO_TIER_HOST && o->engine.device == ZERO_DEVICE_CPU) {
        return gpt2_fail(error, "--evict host frees nothing with --device cpu; give disk");
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
    const uint32_t group = options->engine.shard_group;
    if (group != 0 && ranks % group != 0) {
        return gpt2_fail(error, "--shard-group %u does not divide %u ranks; choose a divisor",
                         group, ranks);
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

bool gpt2_trace_path(const gpt2_options *options, uint32_t rank, char *path, size_t bytes)
{
    const char *name = options->trace;
    const size_t length = strlen(name);
    const bool json = length > 5 && strcmp(name + length - 5, ".json") == 0;
    const int end = (int)(json ? length - 5 : length);
    const int written =
        snprintf(path, bytes, "%.*s.%u%s", end, name, (unsigned)rank, json ? ".json" : "");
    return written > 0 && (size_t)written < bytes;
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
    for (size_t r = 0; r < table_rows; r++) {
        const bool flag =
            table[r].kind == KIND_FLAG ||
            (table[r].kind == KIND_ENGINE && engine_option(&table[r])->kind == ZERO_OPTION_FLAG);
        rows[r].name = table[r].name;
        rows[r].has_arg = flag ? no_argument : required_argument;
        rows[r].flag = NULL;
        rows[r].val = is_row(&table[r], "help") ? COMMAND_LINE_HELP : COMMAND_LINE_OPTIONS + (int)r;
    }
    memset(&rows[table_rows], 0, sizeof *rows);
}

/* Takes the presets of a line, or all but these. */
static bool read_line(gpt2_options *options, int argc, char **argv, bool presets_only,
                      gpt2_error *error)
{
    struct option rows[TABLE_ROWS_MAX + 1];
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
    make_table();
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

/* A path may be no UTF-8: then its bytes are taken for Latin-1. */
static json_t *text_json(const char *text)
{
    json_t *json = json_string(text);
    char *latin = json == NULL ? calloc(strlen(text) + 1, 2) : NULL;
    char *to = latin;
    for (const char *at = text; latin != NULL && *at != '\0'; at++) {
        const unsigned byte = (unsigned char)*at;
        if (byte < 0x80) {
            *to++ = *at;
        } else {
            *to++ = (char)(0xc0 | byte >> 6);
            *to++ = (char)(0x80 | (byte & 0x3f));
        }
    }
    json = latin != NULL ? json_string(latin) : json;
    free(latin);
    return json;
}

/* False, and nothing is written: there is no memory for the value. */
static bool put_json(FILE *file, json_t *json)
{
    const bool good = json_dumpf(json, file, JSON_ENCODE_ANY) == 0;
    json_decref(json);
    return good;
}

static bool print_disks(const gpt2_options *options, FILE *file)
{
    json_t *array = json_array();
    bool good = true;
    for (uint32_t i = 0; i < gpt2_options_disks(options); i++) {
        good = json_array_append_new(array, text_json(options->disks[i])) == 0 && good;
    }
    return put_json(file, array) && good;
}

/* A number as it is, anything else by its name. */
static bool print_engine(const gpt2_options *options, const gpt2_option *row, FILE *file, bool json)
{
    const struct alias *alias = alias_of(row);
    const zero_option *option = engine_option(row);
    const char *field = (const char *)(option->is_tuning != 0 ? (const void *)&options->tuning
                                                              : (const void *)&options->engine) +
                        option->offset;
    char text[128];
    uint64_t bytes = 0;
    (void)zero_option_print(option, &options->engine, &options->tuning, text, sizeof text);
    if (alias != NULL && alias->role != NULL) {
        zero_tier tier = ZERO_TIER_DEFAULT;
        for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
            if (strcmp(alias->role, zero_role_name((zero_role)role)) == 0) {
                tier = options->engine.tier[role];
            }
        }
        (void)snprintf(text, sizeof text, "%s", zero_tier_name(tier));
    }
    if (option->kind == ZERO_OPTION_BYTES && json) {
        memcpy(&bytes, field, sizeof bytes);
        (void)snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
    }
    if (json && text[strspn(text, "0123456789.e+-")] != '\0') {
        return put_json(file, text_json(text));
    }
    (void)fputs(text, file);
    return true;
}

/* The value as it is written on a command line; JSON quotes texts and names.
 * False: there is no memory for it. */
static bool print_value(const gpt2_options *options, const gpt2_option *row, FILE *file, bool json)
{
    const void *field = field_of(options, row);
    const char *quote = json ? "\"" : "";
    switch (row->kind) {
    case KIND_PRESET:
    case KIND_TEXT: {
        const char *text = NULL;
        memcpy(&text, field, sizeof text);
        return put_json(file, text == NULL ? json_null() : text_json(text));
    }
    case KIND_SEED: {
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
    case KIND_DISK:
        return print_disks(options, file);
    case KIND_TIER:
    case KIND_LIBRARY:
    case KIND_DTYPE: {
        int value = 0;
        memcpy(&value, field, sizeof value);
        (void)fprintf(file, "%s%s%s", quote,
                      row->kind == KIND_TIER      ? zero_tier_name((zero_tier)value)
                      : row->kind == KIND_LIBRARY ? library_names[value]
                                                  : zero_dtype_name((zero_dtype)value),
                      quote);
        break;
    }
    case KIND_ENGINE:
        return print_engine(options, row, file, json);
    case KIND_COUNT:
    case KIND_FLAG: {
        uint32_t value = 0;
        memcpy(&value, field, sizeof value);
        (void)fprintf(file, "%u", value);
        break;
    }
    }
    return true;
}

/* True if the help shows the row's default, which its text or another option does not give. */
static bool shows_default(const gpt2_option *row)
{
    static const char *const derived[] = {"ranks",  "vocab",  "threads",
                                          "warmup", "min-lr", "peak-tflops"};
    for (size_t i = 0; i < sizeof derived / sizeof derived[0]; i++) {
        if (is_row(row, derived[i])) {
            return false;
        }
    }
    return row->kind == KIND_REAL || row->kind == KIND_SEED || row->kind == KIND_TIER ||
           row->kind == KIND_COUNT || row->kind == KIND_DTYPE || row->kind == KIND_LIBRARY ||
           is_row(row, "stage") || is_row(row, "device") || is_row(row, "nccl-memory") ||
           strstr(row->name, "-tier") != NULL;
}

void gpt2_options_usage(FILE *file)
{
    make_table();
    const gpt2_options options = defaults();
    (void)fprintf(file, "usage: gpt2_train --data FILE [options]\n"
                        "Trains a GPT-2 whose state is sharded over ranks: threads of this process "
                        "(--ranks),\nor the processes of mpirun, srun or torchrun.\n\n");
    for (size_t r = 0; r < OWN_ROWS; r++) {
        const gpt2_option *row = &table[r];
        (void)fprintf(file, "  --%-13s %s", row->name, row->help);
        if (shows_default(row)) {
            (void)fputs(" [", file);
            (void)print_value(&options, row, file, false);
            (void)fputs("]", file);
        }
        (void)fputc('\n', file);
    }
    (void)fputs("\nThe engine's other options, by the names that docs/options.md has:\n\n", file);
    for (size_t r = OWN_ROWS; r < table_rows; r++) {
        (void)fprintf(file, "  --%s\n      %s [%s]\n", table[r].name, table[r].help,
                      engine_option(&table[r])->fallback);
    }
}

bool gpt2_options_json(const gpt2_options *options, FILE *file)
{
    bool good = true;
    for (size_t r = 0; r < table_rows; r++) {
        if (is_row(&table[r], "help") || is_row(&table[r], "version")) {
            continue;
        }
        (void)fprintf(file, "%s\"%s\": ", r == 0 ? "" : ", ", table[r].name);
        good = print_value(options, &table[r], file, true) && good;
    }
    return good;
}
