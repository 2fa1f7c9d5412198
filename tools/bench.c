/* Owns `zero bench`: reads its line, runs the runners, prints the report. Invariant: with --json -
 * nothing but one JSON object goes to stdout. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "bench_report.h"
#include "command_line.h"
#include "commands.h"
#include "zero/world.h"

typedef struct bench_runner {
    const char *name;
    const char *summary;
    int (*run)(const bench_options *options, bench_report *report);
    bool on_disk; /* --dir, --layers and --moments are for it */
} bench_runner;

static const bench_runner runners[] = {
    {"adam",
     "adamw_vs_limit: the fused optimizer pass against reading and writing the same bytes; "
     "norm_extra: folds that add squares",
     bench_adam, false},
    {"comm",
     "reduce_scatter_vs_mpi, all_gather_vs_mpi, ..._vs_limit: collectives against the MPI "
     "library's own, and against reading and writing the same bytes",
     bench_comm, false},
    {"step", "stage3_vs_stage0: whole steps by stage; peak_memory_vs_plan", bench_step, false},
    {"hooks", "hook_ns: calls inside forward and backward with nothing to do", bench_hooks, false},
    {"offload",
     "offload_step_vs_io: steps with optimizer state on disk against moving the same bytes; "
     "offload_overhead_bytes; storage_vs_fio",
     bench_offload, true},
    {"overlap",
     "overlap_vs_plain: steps with optimizer state on disk that begin during backward against "
     "the same steps after it; overlap_step_exposed",
     bench_overlap, true},
    {"checks",
     "checked_vs_unchecked: steps with optimizer state on disk against the same without "
     "checksums of it; checked_cpu_vs_unchecked",
     bench_checks, true},
    {"gpu", "on a GPU: kernels against device copies, and all of the above that it can do",
     bench_gpu, false},
};
#define RUNNER_COUNT (sizeof runners / sizeof runners[0])

/* What the line asks for. */
typedef struct bench_line {
    bench_options options;
    bool chosen[RUNNER_COUNT];
    bool named[RUNNER_COUNT]; /* chosen by its own name */
    bool help;
    const char *for_offload; /* an option of `offload`, `overlap`, `checks`; NULL: none was given */
    const char *json_path;   /* NULL: none; "-": stdout; of ranks: where rank 0 leaves its rows */
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

/* Options whose value is a whole number. */
static const struct {
    int option;
    uint32_t low;
    uint32_t high;
    size_t at; /* in bench_options */
} numbers[] = {
    {OPTION_REPEAT, BENCH_REPETITIONS_MIN, BENCH_REPETITIONS_MAX,
     offsetof(bench_options, repetitions)},
    {OPTION_RANKS, 1, 256, offsetof(bench_options, ranks)},
    {OPTION_THREADS, 1, 256, offsetof(bench_options, threads)},
    {OPTION_LAYERS, 1, 128, offsetof(bench_options, offload.layers)},
    {OPTION_SLICE, 1, 1000, offsetof(bench_options, offload.slice_steps)},
};

static const char *name_of(int option)
{
    const struct option *row = line_options;
    while (row->val != option) {
        row++;
    }
    return row->name;
}

/* 1 after bench_fail when the value is not within the option's bounds; so for what follows. */
static int read_number(bench_options *options, int option, const char *text)
{
    size_t i = 0;
    uint64_t value = 0;
    while (numbers[i].option != option) {
        i++;
    }
    if (!command_line_whole(text, numbers[i].low, numbers[i].high, &value)) {
        return bench_fail("--%s %s: expected a whole number in [%u, %u]", name_of(option), text,
                          numbers[i].low, numbers[i].high);
    }
    *(uint32_t *)(void *)((unsigned char *)options + numbers[i].at) = (uint32_t)value;
    return 0;
}

static int read_directory(bench_offload_options *options, const char *directory)
{
    if (options->directory_count == BENCH_DIRECTORIES_MAX) {
        return bench_fail("--dir %s: more than %d directories", directory, BENCH_DIRECTORIES_MAX);
    }
    options->directories[options->directory_count++] = directory;
    return 0;
}

static int read_option(bench_line *line, int option, const char *value)
{
    bench_options *options = &line->options;
    line->for_offload = option >= OPTION_OFFLOAD ? name_of(option) : line->for_offload;
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
    case OPTION_CASE:
        options->case_filter = value;
        return 0;
    case OPTION_AS_RANK:
        options->as_rank = true;
        line->json_path = value;
        return 0;
    case OPTION_JSON:
        line->json_path = value;
        return 0;
    case OPTION_DIR:
        return read_directory(&options->offload, value);
    case OPTION_MOMENTS:
        options->offload.bf16_moments = strcmp(value, "bf16") == 0;
        return options->offload.bf16_moments || strcmp(value, "f32") == 0
                   ? 0
                   : bench_fail("--moments %s: expected f32 or bf16", value);
    default:
        return read_number(options, option, value);
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
    const bool slice = line->options.offload.slice_steps != 0; /* `offload` alone knows it */
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        if (line->chosen[i] && (slice ? runners[i].run == bench_offload : runners[i].on_disk)) {
            return 0;
        }
    }
    return bench_fail("--%s is for `offload`%s, which is not among what is to be measured",
                      line->for_offload, slice ? "" : ", `overlap` or `checks`");
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
            failed = 1;
            if (json_array_append_new(report->failed, json_string(runners[i].name)) != 0) {
                (void)bench_fail("no memory left to say that %s failed", runners[i].name);
            }
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
    bench_report report;
    if (bench_report_open(&report, line.json_path, line.options.scale) != 0) {
        return 1;
    }
    int failed = run_chosen(&line, &report);
    bench_progress_end();
    report.unfinished = false;
    const bool empty = json_array_size(report.results) == 0 && json_array_size(report.skipped) == 0;
    if (line.options.as_rank) {
        report.json_path = empty ? NULL : report.json_path; /* of the ranks only one writes */
    } else if (!failed && line.options.case_filter != NULL && empty) {
        failed = bench_fail("--case %s: no case of that name", line.options.case_filter);
    }
    if (!line.options.as_rank && bench_report_has_table(&report)) {
        bench_report_print(&report, stdout);
    }
    return bench_report_close(&report) || failed;
}
