/* Owns `zero bench`: reads its line, runs the runners, prints the report. Invariant: with --json -
 * nothing but one JSON object goes to stdout. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_report.h"
#include "command_line.h"
#include "commands.h"
#include "zero/world.h"

typedef struct bench_runner {
    const char *name;
    const char *summary;
    int (*run)(const bench_options *options, bench_report *report);
} bench_runner;

static const bench_runner runners[] = {
    {"adam",
     "adamw_vs_limit: the fused optimizer pass against reading and writing the same bytes; "
     "norm_extra: folds that add squares",
     bench_adam},
    {"comm",
     "reduce_scatter_vs_mpi, all_gather_vs_mpi, ..._vs_limit: collectives against the MPI "
     "library's own, and against reading and writing the same bytes",
     bench_comm},
    {"step", "stage3_vs_stage0: whole steps by stage; peak_memory_vs_plan", bench_step},
    {"hooks", "hook_ns: calls inside forward and backward with nothing to do", bench_hooks},
    {"offload",
     "offload_step_vs_io: steps with optimizer state on disk against moving the same bytes; "
     "offload_overhead_bytes; storage_vs_fio",
     bench_offload},
    {"overlap",
     "overlap_vs_plain: steps with optimizer state on disk that begin during backward against "
     "the same steps after it; overlap_step_exposed",
     bench_overlap},
    {"checks",
     "checked_vs_unchecked: steps with optimizer state on disk against the same without "
     "checksums of it; checked_cpu_vs_unchecked",
     bench_checks},
    {"gpu", "on a GPU: kernels against device copies, and all of the above that it can do",
     bench_gpu},
};
#define RUNNER_COUNT (sizeof runners / sizeof runners[0])

/* What the line asks for. */
typedef struct bench_line {
    bench_options options;
    bool chosen[RUNNER_COUNT];
    bool named[RUNNER_COUNT]; /* chosen by its own name */
    bool help;
    const char *for_offload; /* an option of `offload`, `overlap`, `checks`; NULL: none was given */
    const char *json_path;   /* NULL: none; "-": stdout */
    const char *rank_path;   /* where rank 0 of bench_spawn_ranks leaves its rows, or NULL */
} bench_line;

static void print_help(void)
{
    printf("usage: zero bench [NAME ...] [OPTIONS]\n\n"
           "Measures each NAME (default: all), checks its results, and prints a row per case. A\n"
           "ratio above 1 means better than the reference; min..max are those of the value.\n\n"
           "names:\n");
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        printf("  %-8s%s\n", runners[i].name, runners[i].summary);
    }
    printf("  %-8s%s\n", "all", "all of these");
    printf("\noptions:\n"
           "  --quick        a few seconds each; shows the tendency\n"
           "  --tiny         smallest sizes; shows that the cases run, the numbers say nothing\n"
           "  --repeat N     measurements per side of a case, in [%d, %d]; default 15, 7 with\n"
           "                 --quick and --tiny; half of them, at least 7, where one takes long:\n"
           "                 steps by stage, collectives of 256 MiB\n"
           "  --ranks N      ranks, in [1, 256]; default: the case's own\n"
           "  --threads N    threads per rank, in [1, 256]; default: the case's own\n"
           "  --case TEXT    only cases whose name contains TEXT\n"
           "  --dir DIR      offload, overlap, checks: where state on disk lies; again for more\n"
           "                 disks; default: the current directory\n"
           "  --layers N     offload, overlap, checks: layers of a rank, in [1, 128]; default\n"
           "                 16, 2 with --quick\n"
           "  --moments TYPE offload, overlap, checks: f32 (default) or bf16\n"
           "  --slice N      offload: N steps of all that 1 of 512 ranks has of a model of 1e12\n"
           "                 parameters, 28 GB of disk and 8 of memory with moments in f32\n"
           "  --json FILE    write the report as JSON too; - for stdout, without the table\n"
           "  -h, --help     this text\n\n"
           "Exit status: 0 when everything asked for was measured or skipped with a reason, 1\n"
           "when a result was wrong, a call failed or the line was refused.\n",
           BENCH_REPETITIONS_MIN, BENCH_REPETITIONS_MAX);
}

enum {
    OPTION_QUICK = COMMAND_LINE_OPTIONS,
    OPTION_TINY,
    OPTION_REPEAT,
    OPTION_RANKS,
    OPTION_THREADS,
    OPTION_CASE,
    OPTION_JSON,
    OPTION_AS_RANK, /* for bench_spawn_ranks */
    OPTION_OFFLOAD, /* those that follow are for `offload`, `overlap`, `checks` */
    OPTION_DIR = OPTION_OFFLOAD,
    OPTION_LAYERS,
    OPTION_MOMENTS,
    OPTION_SLICE
};

static const struct option line_options[] = {
    {"help", no_argument, NULL, COMMAND_LINE_HELP},
    {"quick", no_argument, NULL, OPTION_QUICK},
    {"tiny", no_argument, NULL, OPTION_TINY},
    {"repeat", required_argument, NULL, OPTION_REPEAT},
    {"ranks", required_argument, NULL, OPTION_RANKS},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"case", required_argument, NULL, OPTION_CASE},
    {"json", required_argument, NULL, OPTION_JSON},
    {"as-rank", required_argument, NULL, OPTION_AS_RANK},
    {"dir", required_argument, NULL, OPTION_DIR},
    {"layers", required_argument, NULL, OPTION_LAYERS},
    {"moments", required_argument, NULL, OPTION_MOMENTS},
    {"slice", required_argument, NULL, OPTION_SLICE},
    {0},
};

/* A whole number within bounds; 1 after bench_fail. */
static int read_number(const char *option, const char *text, uint32_t low, uint32_t high,
                       uint32_t *number)
{
    uint64_t value = 0;
    if (!command_line_whole(text, low, high, &value)) {
        return bench_fail("%s %s: expected a whole number in [%u, %u]", option, text, low, high);
    }
    *number = (uint32_t)value;
    return 0;
}

static int read_for_offload(bench_line *line, int option, const char *value)
{
    bench_offload_options *options = &line->options.offload;
    switch (option) {
    case OPTION_LAYERS:
        line->for_offload = "--layers";
        return read_number("--layers", value, 1, 128, &options->layers);
    case OPTION_SLICE:
        line->for_offload = "--slice";
        return read_number("--slice", value, 1, 1000, &options->slice_steps);
    case OPTION_MOMENTS:
        line->for_offload = "--moments";
        options->bf16_moments = strcmp(value, "bf16") == 0;
        return options->bf16_moments || strcmp(value, "f32") == 0
                   ? 0
                   : bench_fail("--moments %s: expected f32 or bf16", value);
    default:
        break;
    }
    line->for_offload = "--dir";
    if (options->directory_count == BENCH_DIRECTORIES_MAX) {
        return bench_fail("--dir %s: more than %d directories", value, BENCH_DIRECTORIES_MAX);
    }
    options->directories[options->directory_count++] = value;
    return 0;
}

static int read_option(bench_line *line, int option, const char *value)
{
    bench_options *options = &line->options;
    switch (option) {
    case COMMAND_LINE_HELP:
        line->help = true;
        return 0;
    case OPTION_QUICK:
        options->scale = BENCH_QUICK;
        return 0;
    case OPTION_TINY:
        options->scale = BENCH_TINY;
        return 0;
    case OPTION_REPEAT:
        return read_number("--repeat", value, BENCH_REPETITIONS_MIN, BENCH_REPETITIONS_MAX,
                           &options->repetitions);
    case OPTION_RANKS:
        return read_number("--ranks", value, 1, 256, &options->ranks);
    case OPTION_THREADS:
        return read_number("--threads", value, 1, 256, &options->threads);
    case OPTION_CASE:
        options->case_filter = value;
        return 0;
    case OPTION_JSON:
        line->json_path = value;
        return 0;
    case OPTION_AS_RANK:
        line->rank_path = value;
        options->as_rank = true;
        return 0;
    default:
        return read_for_offload(line, option, value);
    }
}

static int read_name(bench_line *line, const char *name)
{
    bool known = false;
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        const bool named = strcmp(name, runners[i].name) == 0;
        const bool chosen = named || strcmp(name, "all") == 0;
        line->named[i] = line->named[i] || named;
        line->chosen[i] = line->chosen[i] || chosen;
        known = known || chosen;
    }
    if (known) {
        return 0;
    }
    const char *names[RUNNER_COUNT + 1] = {"all"};
    char advice[128];
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        names[i + 1] = runners[i].name;
    }
    command_line_advice(name, names, RUNNER_COUNT + 1, "", "zero bench --help", advice,
                        sizeof advice);
    return bench_fail("unknown benchmark \"%s\"%s", name, advice);
}

static int check_for_offload(const bench_line *line)
{
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        const bool offload = runners[i].run == bench_offload;
        const bool other = runners[i].run == bench_overlap || runners[i].run == bench_checks;
        if (line->chosen[i] && (offload || (other && line->options.offload.slice_steps == 0))) {
            return 0;
        }
    }
    return bench_fail("%s is for `offload`%s, which is not among what is to be measured",
                      line->for_offload,
                      line->options.offload.slice_steps == 0 ? ", `overlap` or `checks`" : "");
}

static int read_line(int argc, char **argv, bench_line *line)
{
    bool any = false;
    command_line words = command_line_begin(argc, argv, line_options);
    const char *value = NULL;
    int found = 0;
    while ((found = command_line_next(&words, &value)) != COMMAND_LINE_END) {
        if (found == COMMAND_LINE_BAD) {
            return bench_fail("%s", words.error);
        }
        any = any || found == COMMAND_LINE_WORD;
        if (found == COMMAND_LINE_WORD ? read_name(line, value) != 0
                                       : read_option(line, found, value) != 0) {
            return 1;
        }
    }
    if (line->options.repetitions == 0) {
        line->options.repetitions = line->options.scale == BENCH_FULL ? 15 : BENCH_REPETITIONS_MIN;
    }
    if (!any && read_name(line, "all") != 0) {
        return 1;
    }
    return line->for_offload == NULL || line->help ? 0 : check_for_offload(line);
}

/* O_NONBLOCK: a pipe that nobody reads is refused at once; what is written later may wait. */
int bench_open_json(const char *path, int *file)
{
    *file = strcmp(path, "-") == 0 ? dup(STDOUT_FILENO)
                                   : open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    const int flags = *file < 0 ? -1 : fcntl(*file, F_GETFL);
    if (flags < 0 || fcntl(*file, F_SETFL, flags & ~O_NONBLOCK) != 0) {
        return bench_fail("cannot write %s: %s", path,
                          errno == ENXIO ? "it is a pipe that nobody reads" : strerror(errno));
    }
    return 0;
}

static bool is_on_disk(const char *path, int file)
{
    struct stat kind;
    return path != NULL && strcmp(path, "-") != 0 && fstat(file, &kind) == 0 &&
           S_ISREG(kind.st_mode);
}

/* The open file as a stream, emptied where it is a file on disk; NULL after bench_fail. */
static FILE *open_stream(const char *path, int file)
{
    FILE *out = is_on_disk(path, file) && ftruncate(file, 0) != 0 ? NULL : fdopen(file, "w");
    if (out == NULL) {
        (void)bench_fail("cannot write %s: %s", path, strerror(errno));
        (void)close(file);
    }
    return out;
}

static int close_stream(const char *path, FILE *out)
{
    int failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    return failed ? bench_fail("cannot write %s: %s", path, strerror(errno)) : 0;
}

static int write_json(const bench_report *report, bench_scale scale, FILE *out)
{
    static const char *const scales[] = {"full", "quick", "tiny"};
    json_t *json =
        json_pack("{s:o, s:o, s:s, s:o, s:s}", "machine", bench_machine_json(&report->gpu), "date",
                  bench_date_json(), "commit", bench_commit_text(), "build", bench_build_json(),
                  "scale", scales[scale]);
    json_t *rows = bench_report_json(report);
    int failed = json_object_update(json, rows) != 0;
    if (report->unfinished) {
        failed = json_object_set_new(json, "unfinished", json_true()) != 0 || failed;
    }
    failed = failed || json_dumpf(json, out, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) != 0 ||
             fputc('\n', out) == EOF;
    json_decref(rows);
    json_decref(json);
    return failed;
}

int bench_write_json(const bench_report *report, bench_scale scale, const char *path, int file)
{
    FILE *out = open_stream(path, file);
    if (out == NULL) {
        return 1;
    }
    const int failed = write_json(report, scale, out);
    return close_stream(path, out) || (failed && bench_fail("cannot write %s", path));
}

/* In one write over what is there, so that the file is whole when the program is killed between
 * rows. */
int bench_report_keep(const bench_report *report)
{
    if (report->json_path == NULL) {
        return 0;
    }
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    const bool whole = out != NULL && write_json(report, report->scale, out) == 0;
    const bool kept = out != NULL && fclose(out) == 0 && whole &&
                      pwrite(report->json_file, text, bytes, 0) == (ssize_t)bytes &&
                      ftruncate(report->json_file, (off_t)bytes) == 0;
    const int reason = errno;
    free(text);
    return kept ? 0 : bench_fail("cannot write %s: %s", report->json_path, strerror(reason));
}

static int write_report(const bench_report *report, const bench_line *line, int file)
{
    if (line->json_path == NULL || strcmp(line->json_path, "-") != 0) {
        bench_report_print(report, stdout);
        if (fflush(stdout) != 0) {
            return bench_fail("cannot write the table: %s", strerror(errno));
        }
    }
    return line->json_path == NULL
               ? 0
               : bench_write_json(report, line->options.scale, line->json_path, file);
}

/* As one of several ranks: only rank 0 has rows, and only it writes. */
static int write_rank_report(const bench_report *report, const char *path)
{
    if (report->row_count == 0 && report->omission_count == 0) {
        return 0;
    }
    int file = -1;
    FILE *out = bench_open_json(path, &file) == 0 ? open_stream(path, file) : NULL;
    if (out == NULL) {
        return 1;
    }
    json_t *json = bench_report_json(report);
    const int failed = json_dumpf(json, out, JSON_COMPACT);
    json_decref(json);
    return close_stream(path, out) || (failed != 0 && bench_fail("cannot write %s", path));
}

static int run_chosen(const bench_line *line, bench_report *report)
{
    int failed = 0;
    uint32_t chosen = 0;
    uint32_t begun = 0;
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        chosen += line->chosen[i] ? 1 : 0;
    }
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        bench_options options = line->options;
        options.named = line->named[i];
        if (line->chosen[i] && !options.as_rank) {
            bench_progress_runner(runners[i].name, ++begun, chosen);
        }
        if (line->chosen[i] && runners[i].run(&options, report) != 0) {
            report->failed[report->failed_count++] = runners[i].name;
            failed = 1;
        }
    }
    return failed;
}

static const char *own_path(char *fallback, char *path, size_t path_bytes)
{
    const ssize_t bytes = readlink("/proc/self/exe", path, path_bytes - 1);
    if (bytes <= 0) {
        return fallback;
    }
    path[bytes] = '\0';
    return path;
}

int command_bench(int argc, char **argv)
{
    char path[4096];
    bench_line line = {.options.program = own_path("zero", path, sizeof path)};
    if (read_line(argc, argv, &line) != 0) {
        return 1;
    }
    if (line.help) {
        print_help();
        return fflush(stdout) == 0 ? 0 : 1;
    }
    if (zero_world_is_launched() && !line.options.as_rank) {
        return bench_fail("started by a launcher; run it alone, it starts the ranks it needs");
    }
    int file = -1;
    if (line.json_path != NULL && bench_open_json(line.json_path, &file) != 0) {
        return 1;
    }
    bench_report report = {.scale = line.options.scale, .unfinished = true};
    if (is_on_disk(line.json_path, file)) {
        report.json_path = line.json_path;
        report.json_file = file;
    }
    int failed = run_chosen(&line, &report);
    bench_progress_end();
    report.unfinished = false;
    if (!failed && !line.options.as_rank && line.options.case_filter != NULL &&
        report.row_count + report.omission_count == 0) {
        failed = bench_fail("--case %s: no case of that name", line.options.case_filter);
    }
    const int unwritten = line.options.as_rank ? write_rank_report(&report, line.rank_path)
                                               : write_report(&report, &line, file);
    bench_report_clear(&report);
    return failed || unwritten;
}
