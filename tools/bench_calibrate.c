/* Owns `zero bench calibrate`: reads its line, says what was measured and how it spread, and writes
 * the medians as a cluster. Invariant: no file is changed before all is measured. */
#include "bench_calibrate.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_report.h"
#include "commands.h"
#include "core/host.h"
#include "line_table.h"
#include "script.h"
#include "zero/cluster.h"
#include "zero/world.h"

#define RANKS_DEFAULT_MAX 8

_Static_assert(sizeof(zero_cluster) / sizeof(uint64_t) <= CALIBRATE_FIELDS_MAX, "all its fields");

/* ---- fields ---- */

static calibrate_field *find_field(calibration *all, const char *name)
{
    uint32_t i = 0;
    while (strcmp(zero_cluster_field_at(i)->name, name) != 0) {
        i++;
    }
    return &all->fields[i];
}

void calibrate_add(calibration *all, const char *field, double value)
{
    calibrate_field *found = find_field(all, field);
    found->samples[found->count++] = value;
}

void calibrate_miss(calibration *all, const char *field, const char *reason)
{
    find_field(all, field)->missing = reason;
}

static int compare_values(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Of sorted samples: between the two that are nearest. */
static double quantile(const calibrate_field *field, double part)
{
    const double at = part * (field->count - 1);
    const uint32_t low = (uint32_t)at;
    const uint32_t high = low + 1 < field->count ? low + 1 : low;
    return field->samples[low] + (at - low) * (field->samples[high] - field->samples[low]);
}

/* The medians, within the bounds of the fields. */
static int make_cluster(calibration *all, zero_cluster *cluster)
{
    const zero_cluster_field *known = NULL;
    *cluster = zero_cluster_init();
    for (uint32_t i = 0; (known = zero_cluster_field_at(i)) != NULL; i++) {
        calibrate_field *field = &all->fields[i];
        if (field->count != 0) {
            qsort(field->samples, field->count, sizeof field->samples[0], compare_values);
            const double median = quantile(field, 0.5);
            const bool timed = field->count > 1;
            if (!isfinite(median) || median < 0.0 || (timed && median < 1.0)) {
                return bench_fail("calibrate: %s came out as %g; the machine is too busy to be "
                                  "measured",
                                  known->name, median);
            }
            const uint64_t value = (uint64_t)(median + 0.5);
            memcpy((unsigned char *)cluster + known->offset, &value, sizeof value);
        }
    }
    return BENCH_TRY(zero_cluster_check(cluster));
}

/* ---- what is known without measuring ---- */

/* A rank has a GPU's memory, or a share of it; without GPUs a share of the node's, which plans
 * count twice: as a GPU's and as the node's. */
static int add_memory(calibration *all)
{
    char text[4096];
    uint64_t available_kib = 0;
    const long pages = sysconf(_SC_PHYS_PAGES);
    const double page = (double)sysconf(_SC_PAGESIZE);
    const char *line =
        zi_host_read("/proc/meminfo", text, sizeof text) ? strstr(text, "MemAvailable:") : NULL;
    if (pages <= 0 || line == NULL || sscanf(line, "MemAvailable: %" SCNu64, &available_kib) != 1) {
        return bench_fail("calibrate: /proc/meminfo does not tell how much memory there is");
    }
    const double installed = (double)pages * page;
    const double taken = installed - (double)available_kib * 1024.0;
    const uint64_t limit = zi_memory_limit("");
    const double host = (double)limit < installed ? (double)limit : installed;
    const double reserve = taken < 0.0 ? 0.0 : taken < host ? taken : host / 2.0;
    calibrate_add(all, "nodes", 1.0);
    calibrate_add(all, "ranks_per_node", all->ranks);
    calibrate_add(all, "host_bytes", host);
    calibrate_add(all, "host_reserve_bytes", reserve);
    double bytes = host;
    double device_taken = reserve;
    uint32_t sharers = all->ranks;
    if (all->gpus != 0) {
        sharers = (all->ranks + all->gpus - 1) / all->gpus;
        if (calibrate_gpu_memory(&bytes, &device_taken) != 0) {
            return 1;
        }
    }
    calibrate_add(all, "device_bytes", bytes / sharers);
    calibrate_add(all, "device_reserve_bytes", device_taken / sharers);
    return 0;
}

/* ---- output ---- */

/* Of what was measured median and quartiles, and the reason of what was not. */
static json_t *field_json(const char *name, const calibrate_field *field)
{
    json_t *quartiles = json_array();
    for (int i = 1; i <= 3 && field->count != 0; i++) {
        (void)json_array_append_new(quartiles, json_real(quantile(field, 0.25 * i)));
    }
    return json_pack("{s:s, s:o, s:i, s:s?}", "name", name, "quartiles", quartiles, "samples",
                     (int)field->count, "missing", field->missing);
}

static int print_table(const calibration *all)
{
    json_t *fields = json_array();
    const zero_cluster_field *known = NULL;
    for (uint32_t i = 0; (known = zero_cluster_field_at(i)) != NULL; i++) {
        (void)json_array_append_new(fields, field_json(known->name, &all->fields[i]));
    }
    return script_print("calibrate_table", NULL,
                        json_pack("{s:o, s:i, s:i, s:i}", "fields", fields, "repetitions",
                                  (int)all->repetitions, "ranks", (int)all->ranks, "gpus",
                                  (int)all->gpus));
}

/* The file that the cluster goes to first: one beside the wanted file, which it replaces once it is
 * whole; or a pipe or device itself. */
typedef struct out_file {
    const char *path;
    char first[4096];
    bool replaces;
} out_file;

static out_file out_of(const char *path)
{
    struct stat kind;
    out_file out = {.path = path};
    const bool missing = lstat(path, &kind) != 0;
    out.replaces = strcmp(path, "-") != 0 && (missing || S_ISREG(kind.st_mode));
    (void)snprintf(out.first, sizeof out.first, "%s%s", path, out.replaces ? ".part" : "");
    return out;
}

/* Check that a file can be opened to be written. What was not there is not left there, so that
 * whoever ends the program finds no empty file. */
static int check_file(const char *path)
{
    const bool existed = access(path, F_OK) == 0 || strcmp(path, "-") == 0;
    const int file = bench_open_file(path);
    if (file < 0) {
        return 1;
    }
    (void)close(file);
    return existed || unlink(path) == 0 ? 0
                                        : bench_fail("cannot remove %s: %s", path, strerror(errno));
}

/* Refuse what cannot be written before anything is measured. */
static int check_out(const out_file *out)
{
    return check_file(out->path) != 0 || (out->replaces && check_file(out->first) != 0);
}

/* The fields that have values. NULL: memory is out. */
static char *cluster_text(const calibration *all, const zero_cluster *cluster)
{
    json_t *json = json_object();
    bool lost = json == NULL;
    const zero_cluster_field *known = NULL;
    for (uint32_t i = 0; (known = zero_cluster_field_at(i)) != NULL && !lost; i++) {
        uint64_t value = 0;
        memcpy(&value, (const unsigned char *)cluster + known->offset, sizeof value);
        lost = all->fields[i].count != 0 &&
               json_object_set_new(json, known->name, json_integer((json_int_t)value)) != 0;
    }
    char *text = lost ? NULL : json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    return text;
}

/* 0 or an errno. */
static int write_text(int file, bool truncates, const char *text)
{
    FILE *out = fdopen(file, "w");
    if (out == NULL) {
        return errno;
    }
    const bool refused = (truncates && ftruncate(file, 0) != 0) || fprintf(out, "%s\n", text) < 0 ||
                         fflush(out) != 0;
    const int code = refused ? errno : 0;
    return fclose(out) != 0 && code == 0 ? errno : code;
}

static int write_cluster(const calibration *all, const zero_cluster *cluster, const out_file *out)
{
    char *text = cluster_text(all, cluster);
    if (text == NULL) {
        return bench_fail("calibrate: no memory left for %s", out->path);
    }
    const int file = bench_open_file(out->first);
    if (file < 0) {
        free(text);
        return 1;
    }
    int code = write_text(file, out->replaces, text);
    free(text);
    if (code == 0 && out->replaces && rename(out->first, out->path) != 0) {
        code = errno;
    }
    if (code != 0 && out->replaces) {
        (void)unlink(out->first);
    }
    return code == 0 ? 0 : bench_fail("cannot write %s: %s", out->path, strerror(code));
}

/* ---- the line ---- */

typedef struct calibrate_line {
    calibration *all;
    const char *out; /* NULL: no file; "-": stdout, without the table */
    bool cpu;        /* asked for; neither: what there is */
    bool cuda;
    bench_scale scale; /* this and the next: as `all` has them */
    uint32_t ranks;
    uint64_t width;
    uint32_t tokens;
} calibrate_line;

static int print_help(void)
{
    printf("usage: zero bench calibrate [OPTIONS]\n\n"
           "Measures what this machine holds and moves, and writes it as a cluster that\n"
           "`zero plan` reads: memory, matrix products, copies, collectives between ranks of\n"
           "this machine, and disks. Prints the median and the quartiles of each field of\n"
           "zero/cluster.h.\n\n"
           "options:\n"
           "  --dir DIR      where a file is measured; again for more disks; default: the\n"
           "                 current directory\n"
           "  --ranks N      ranks that share the machine, in [1, 256]; default: one for each\n"
           "                 GPU, else for each CPU, at most %d; several may share a GPU\n"
           "  --device NAME  cpu, or cuda; default: cuda where there is a GPU\n"
           "  --width N      of the model, a multiple of %d up to %d: products are measured\n"
           "                 in blocks of it; default: 768, with --quick 384\n"
           "  --tokens N     of a rank, in [16, %d], likewise; default: 512\n"
           "  --out FILE     write the cluster as JSON; - for stdout, without the table\n"
           "  --quick        a few seconds; shows the tendency\n"
           "  --tiny         smallest sizes; shows that it runs, the numbers say nothing\n"
           "  -h, --help     this text\n\n"
           "Run it alone: what else runs is measured too.\n",
           RANKS_DEFAULT_MAX, CALIBRATE_HEAD_WIDTH, CALIBRATE_WIDTH_MAX, CALIBRATE_TOKENS_MAX);
    return fflush(stdout) == 0 ? 0 : 1;
}

static int read_directory(void *line, const char *name, const char *value)
{
    calibration *all = ((calibrate_line *)line)->all;
    if (all->directory_count == BENCH_DIRECTORIES_MAX) {
        return bench_fail("--%s %s: more than %d directories", name, value, BENCH_DIRECTORIES_MAX);
    }
    all->directories[all->directory_count++] = value;
    return 0;
}

static int read_width(void *words, const char *name, const char *value)
{
    calibrate_line *line = words;
    if (line_whole(name, value, CALIBRATE_HEAD_WIDTH, CALIBRATE_WIDTH_MAX, &line->width) != 0) {
        return 1;
    }
    return line->width % CALIBRATE_HEAD_WIDTH == 0
               ? 0
               : bench_fail("--width %s: expected a multiple of %d, the width of a head", value,
                            CALIBRATE_HEAD_WIDTH);
}

static int read_device(void *words, const char *name, const char *value)
{
    calibrate_line *line = words;
    line->cpu = strcmp(value, "cpu") == 0;
    line->cuda = strcmp(value, "cuda") == 0;
    return line->cpu || line->cuda ? 0 : bench_fail("--%s %s: expected cpu or cuda", name, value);
}

static int refuse_word(void *line, const char *value)
{
    (void)line;
    return bench_fail("calibrate: %s is no option; see `zero bench calibrate --help`", value);
}

#define AT(field) offsetof(calibrate_line, field)

static const line_row line_rows[] = {
    LINE_BY("dir", read_directory),
    LINE_NUMBER("ranks", LINE_U32, AT(ranks), 1, CALIBRATE_RANKS_MAX),
    LINE_BY("width", read_width),
    LINE_NUMBER("tokens", LINE_U32, AT(tokens), 16, CALIBRATE_TOKENS_MAX),
    LINE_BY("device", read_device),
    LINE_VALUE("out", LINE_TEXT, AT(out)),
    LINE_NUMBER("quick", LINE_SET, AT(scale), BENCH_QUICK, 0),
    LINE_NUMBER("tiny", LINE_SET, AT(scale), BENCH_TINY, 0),
};

/* As line_read. */
static int read_line(int argc, char **argv, calibrate_line *line)
{
    static const line_table table = {line_rows, sizeof line_rows / sizeof line_rows[0],
                                     refuse_word};
    calibration *all = line->all;
    const int status = line_read(&table, argc, argv, line, NULL);
    all->ranks = line->ranks;
    all->width = (uint32_t)line->width;
    all->tokens = line->tokens;
    all->scale = line->scale;
    if (all->directory_count == 0) {
        all->directories[all->directory_count++] = ".";
    }
    all->repetitions = all->scale == BENCH_FULL ? 15 : BENCH_REPETITIONS_MIN;
    return status;
}

/* The device and as many ranks as there are of it. */
static int choose_ranks(calibrate_line *line)
{
    calibration *all = line->all;
    const uint32_t gpus = line->cpu ? 0 : calibrate_gpu_count();
    const uint32_t cpus = zero_world_cpus(NULL);
    if (gpus == 0 && line->cuda) {
        return bench_fail("--device cuda: no GPU that CUDA can use; look at nvidia-smi");
    }
    if (all->ranks == 0) {
        const uint32_t found = gpus != 0 ? gpus : cpus;
        all->ranks = found < RANKS_DEFAULT_MAX ? found : RANKS_DEFAULT_MAX;
    }
    all->gpus = gpus;
    return 0;
}

int command_calibrate(int argc, char **argv)
{
    static calibration all;
    calibrate_line line = {.all = &all};
    zero_cluster cluster;
    const int read = read_line(argc, argv, &line);
    if (read != 0) {
        return read == LINE_HELP ? print_help() : 1;
    }
    if (zero_world_is_launched()) {
        return bench_fail("started by a launcher; run it alone, it starts the ranks it needs");
    }
    if (choose_ranks(&line) != 0) {
        return 1;
    }
    const out_file out = out_of(line.out != NULL ? line.out : "-");
    if (line.out != NULL && check_out(&out) != 0) {
        return 1;
    }
    const bool has_table = line.out == NULL || strcmp(line.out, "-") != 0;
    if (has_table && script_check() != 0) {
        return 1;
    }
    bench_progress_runner("calibrate", 1, 1);
    const int failed = add_memory(&all) || calibrate_ranks(&all) || calibrate_disks(&all) ||
                       make_cluster(&all, &cluster);
    bench_progress_end();
    if (failed) {
        return 1;
    }
    if (has_table && print_table(&all) != 0) {
        return 1;
    }
    return line.out == NULL ? 0 : write_cluster(&all, &cluster, &out);
}
