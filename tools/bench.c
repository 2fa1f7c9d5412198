/* Owns `zero bench`: reads its line, runs the runners, prints the report. Invariant: with --json -
 * nothing but one JSON object goes to stdout. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_report.h"
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
    {"comm", "reduce_scatter_vs_mpi, all_gather_vs_mpi: collectives against the MPI library's own",
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
    const char *for_offload; /* an option of `offload` and `overlap`; NULL: none was given */
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
           "                 --quick and --tiny\n"
           "  --ranks N      ranks, in [1, 256]; default: the case's own\n"
           "  --threads N    threads per rank, in [1, 256]; default: the case's own\n"
           "  --case TEXT    only cases whose name contains TEXT\n"
           "  --dir DIR      offload, overlap: where state on disk lies; again for more disks;\n"
           "                 default: the current directory\n"
           "  --layers N     offload, overlap: layers of a rank, in [1, 128]; default 16, 2 with\n"
           "                 --quick\n"
           "  --moments TYPE offload, overlap: f32 (default) or bf16\n"
           "  --slice N      offload: N steps of all that 1 of 512 ranks has of a model of 1e12\n"
           "                 parameters, 28 GB of disk and 8 of memory with moments in f32\n"
           "  --json FILE    write the report as JSON too; - for stdout, without the table\n"
           "  --help         this text\n\n"
           "Exit status: 0 when everything asked for was measured or skipped with a reason, 1\n"
           "when a result was wrong, a call failed or the line was refused.\n",
           BENCH_REPETITIONS_MIN, BENCH_REPETITIONS_MAX);
}

/* A whole number within bounds; 1 after bench_fail. */
static int read_number(const char *option, const char *text, uint32_t low, uint32_t high,
                       uint32_t *number)
{
    char *end = NULL;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < (long)low || value > (long)high) {
        return bench_fail("%s %s: expected a whole number in [%u, %u]", option, text, low, high);
    }
    *number = (uint32_t)value;
    return 0;
}

static bool is_for_offload(const char *option)
{
    static const char *const own[] = {"--dir", "--layers", "--moments", "--slice"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (strcmp(option, own[i]) == 0) {
            return true;
        }
    }
    return false;
}

static int read_for_offload(bench_offload_options *options, const char *option, const char *value)
{
    if (strcmp(option, "--layers") == 0) {
        return read_number(option, value, 1, 128, &options->layers);
    }
    if (strcmp(option, "--slice") == 0) {
        return read_number(option, value, 1, 1000, &options->slice_steps);
    }
    if (strcmp(option, "--moments") == 0) {
        options->bf16_moments = strcmp(value, "bf16") == 0;
        return options->bf16_moments || strcmp(value, "f32") == 0
                   ? 0
                   : bench_fail("--moments %s: expected f32 or bf16", value);
    }
    if (options->directory_count == BENCH_DIRECTORIES_MAX) {
        return bench_fail("--dir %s: more than %d directories", value, BENCH_DIRECTORIES_MAX);
    }
    options->directories[options->directory_count++] = value;
    return 0;
}

/* An option that takes a value. */
static int read_valued(bench_line *line, const char *option, const char *value)
{
    if (is_for_offload(option)) {
        line->for_offload = option;
        return read_for_offload(&line->options.offload, option, value);
    }
    if (strcmp(option, "--repeat") == 0) {
        return read_number(option, value, BENCH_REPETITIONS_MIN, BENCH_REPETITIONS_MAX,
                           &line->options.repetitions);
    }
    if (strcmp(option, "--ranks") == 0) {
        return read_number(option, value, 1, 256, &line->options.ranks);
    }
    if (strcmp(option, "--threads") == 0) {
        return read_number(option, value, 1, 256, &line->options.threads);
    }
    if (strcmp(option, "--case") == 0) {
        line->options.case_filter = value;
        return 0;
    }
    if (strcmp(option, "--json") == 0) {
        line->json_path = value;
        return 0;
    }
    line->rank_path = value;
    line->options.as_rank = true;
    return 0;
}

static bool takes_value(const char *option)
{
    static const char *const valued[] = {"--repeat", "--ranks", "--threads",
                                         "--case",   "--json",  "--as-rank"};
    for (size_t i = 0; i < sizeof valued / sizeof valued[0]; i++) {
        if (strcmp(option, valued[i]) == 0) {
            return true;
        }
    }
    return is_for_offload(option);
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
    return known ? 0
                 : bench_fail("unknown benchmark '%s'; `zero bench --help` lists them all", name);
}

static int check_for_offload(const bench_line *line)
{
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        const bool offload = runners[i].run == bench_offload;
        const bool overlap = runners[i].run == bench_overlap;
        if (line->chosen[i] && (offload || (overlap && line->options.offload.slice_steps == 0))) {
            return 0;
        }
    }
    return bench_fail("%s is for `offload`%s, which is not among what is to be measured",
                      line->for_offload,
                      line->options.offload.slice_steps == 0 ? " or `overlap`" : "");
}

static int read_line(int argc, char **argv, bench_line *line)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            line->help = true;
        } else if (strcmp(word, "--quick") == 0) {
            line->options.scale = BENCH_QUICK;
        } else if (strcmp(word, "--tiny") == 0) {
            line->options.scale = BENCH_TINY;
        } else if (takes_value(word)) {
            if (i + 1 == argc) {
                return bench_fail("%s needs a value", word);
            }
            if (read_valued(line, word, argv[++i]) != 0) {
                return 1;
            }
        } else if (word[0] == '-') {
            return bench_fail("unknown option '%s'; `zero bench --help` lists them all", word);
        } else {
            any = true;
            if (read_name(line, word) != 0) {
                return 1;
            }
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

int bench_open_json(const char *path, int *file)
{
    *file = strcmp(path, "-") == 0 ? dup(STDOUT_FILENO)
                                   : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    return *file >= 0 ? 0 : bench_fail("cannot write %s: %s", path, strerror(errno));
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

static void write_json(const bench_report *report, bench_scale scale, FILE *out)
{
    static const char *const scales[] = {"full", "quick", "tiny"};
    bench_json json = {.out = out};
    bench_json_open(&json, NULL, '{');
    bench_machine_json(&report->gpu, &json);
    bench_date_json(&json);
    bench_json_text(&json, "commit", bench_commit_text());
    bench_build_json(&json);
    bench_json_text(&json, "scale", scales[scale]);
    if (report->unfinished) {
        bench_json_flag(&json, "unfinished", true);
    }
    bench_report_json(report, &json);
    bench_json_close(&json, '}');
}

int bench_write_json(const bench_report *report, bench_scale scale, const char *path, int file)
{
    FILE *out = open_stream(path, file);
    if (out == NULL) {
        return 1;
    }
    write_json(report, scale, out);
    return close_stream(path, out);
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
    if (out != NULL) {
        write_json(report, report->scale, out);
    }
    const bool kept = out != NULL && fclose(out) == 0 &&
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
    bench_report_leave(report, out);
    return close_stream(path, out);
}

static int run_chosen(const bench_line *line, bench_report *report)
{
    int failed = 0;
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        bench_options options = line->options;
        options.named = line->named[i];
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
