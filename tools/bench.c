/* Owns `zero bench`: reads its line, runs the runners, prints the report. Invariant: with --json -
 * nothing but one JSON object goes to stdout. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "bench_report.h"
#include "command_line.h"
#include "commands.h"
#include "zero/world.h"

/* Groups of options that not every runner takes, and sets of them. */
enum { GROUP_DIR, GROUP_LAYERS, GROUP_SLICE, GROUP_MODEL, GROUPS };
#define TAKES(group) (1u << (group))
#define TAKES_NOTHING 0u
#define TAKES_LAYERS (TAKES(GROUP_DIR) | TAKES(GROUP_LAYERS))

typedef struct bench_runner {
    const char *name;
    const char *summary;
    int (*run)(const bench_options *options, bench_report *report);
    unsigned takes; /* of these */
} bench_runner;

static const bench_runner runners[] = {
    {"adam",
     "adamw_vs_limit: the fused optimizer pass against reading and writing the same bytes; "
     "norm_extra: folds that add squares",
     bench_adam, TAKES_NOTHING},
    {"comm",
     "reduce_scatter_vs_mpi, all_gather_vs_mpi, ..._vs_limit: collectives against the MPI "
     "library's own, and against reading and writing the same bytes; host_...: between hosts",
     bench_comm, TAKES_NOTHING},
    {"step",
     "stage3_vs_stage0: whole steps by stage; traced_vs_untraced: with a timeline; "
     "peak_memory_vs_plan",
     bench_step, TAKES_NOTHING},
    {"hooks", "hook_ns: calls inside forward and backward with nothing to do", bench_hooks,
     TAKES_NOTHING},
    {"memory",
     "bytes of a rank as planned and as measured, by role and tier, at every stage and with state, "
     "gradients and parameters on disk, beside the paper's formulas; a byte that differs is a "
     "failure",
     bench_footprint, TAKES(GROUP_DIR) | TAKES(GROUP_MODEL)},
    {"offload",
     "offload_step_vs_io: steps with optimizer state on disk against moving the same bytes; "
     "offload_overhead_bytes; storage_vs_fio",
     bench_offload, TAKES_LAYERS | TAKES(GROUP_SLICE)},
    {"overlap",
     "overlap_vs_plain: steps with optimizer state on disk that begin during backward against "
     "the same steps after it; overlap_step_exposed",
     bench_overlap, TAKES_LAYERS},
    {"checks",
     "checked_vs_unchecked: steps with optimizer state on disk against the same without "
     "checksums of it; checked_cpu_vs_unchecked",
     bench_checks, TAKES_LAYERS},
    {"ckpt",
     "save_vs_direct, load_vs_direct: checkpoints against moving the same bytes past the page "
     "cache; load_read_vs_needed; save_stall: steps with a save against steps without; "
     "save_reflink_vs_copy, load_reflink_vs_write: of state on disk, where the file system shares "
     "blocks",
     bench_ckpt, TAKES(GROUP_DIR)},
    {"gpu", "on a GPU: kernels against device copies, and all of the above that it can do",
     bench_gpu, TAKES_NOTHING},
};
#define RUNNER_COUNT (sizeof runners / sizeof runners[0])

/* The requests of a command line. */
typedef struct bench_line {
    bench_options options;
    bool chosen[RUNNER_COUNT];
    bool named[RUNNER_COUNT]; /* chosen by its own name */
    bool help;
    const char *given[GROUPS]; /* an option of each group; NULL: none was given */
    const char *json_path;     /* NULL: none; "-": stdout; of ranks: where rank 0 leaves its rows */
} bench_line;

static void print_help(void)
{
    printf("usage: zero bench [NAME ...] [OPTIONS]\n"
           "       zero bench calibrate [OPTIONS]\n\n"
           "Measures each NAME (default: all), checks its results, and prints a row per case. A\n"
           "ratio above 1 means better than the reference; min..max are those of the value.\n\n"
           "names:\n");
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        printf("  %-8s%s\n", runners[i].name, runners[i].summary);
    }
    printf("  %-8s%s\n", "all", "all of these");
    printf("\ncalibrate, by itself, measures this machine as a cluster to plan for; see\n"
           "`zero bench calibrate --help`.\n");
    printf("\noptions:\n"
           "  --quick        a few seconds each; shows the tendency\n"
           "  --tiny         smallest sizes; shows that the cases run, the numbers say nothing\n"
           "  --repeat N     measurements per side of a case, in [%d, %d]; default 15, 7 with\n"
           "                 --quick and --tiny; half of them, at least 7, where one takes long:\n"
           "                 steps by stage, collectives of 256 MiB\n"
           "  --ranks N      ranks, in [1, 256]; default: the case's own\n"
           "  --threads N    threads per rank, in [1, 256]; default: the case's own\n"
           "  --case TEXT    only cases whose name contains TEXT\n"
           "  --dir DIR      memory, offload, overlap, checks, ckpt: where files lie; again for\n"
           "                 more disks, of which ckpt uses the first; default: the current\n"
           "                 directory\n"
           "  --layers N     offload, overlap, checks: layers of a rank, in [1, 128]; default\n"
           "                 16, 2 with --quick\n"
           "  --moments TYPE offload, overlap, checks: f32 (default) or bf16\n"
           "  --slice N      offload: N steps of all that 1 of 512 ranks has of a model of 1e12\n"
           "                 parameters, 28 GB of disk and 8 of memory with moments in f32\n"
           "  --model MODEL  memory: a preset of `zero plan`, a config.json, or dimensions as\n"
           "                 LAYERSxWIDTHxVOCAB; default gpt2\n"
           "  --shrink N     memory: divide width, vocabulary and the like by N, in [1, 65536];\n"
           "                 default: what makes all ranks fit 1 GiB, 256 MiB with --quick\n"
           "  --sums TYPE    memory: of gradients, f32 (default) or bf16\n"
           "  --device WHAT  memory: cpu (default) or cuda\n"
           "  --svg FILE     memory: write the chart\n"
           "  --html FILE    memory: write a page with the chart and all figures\n"
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
    OPTION_DIR,
    OPTION_LAYERS,
    OPTION_MOMENTS,
    OPTION_SLICE,
    OPTION_MODEL,
    OPTION_SHRINK,
    OPTION_SUMS,
    OPTION_DEVICE,
    OPTION_SVG,
    OPTION_HTML
};

static const struct {
    int option;
    int group;
} grouped[] = {
    {OPTION_DIR, GROUP_DIR},     {OPTION_LAYERS, GROUP_LAYERS}, {OPTION_MOMENTS, GROUP_LAYERS},
    {OPTION_SLICE, GROUP_SLICE}, {OPTION_MODEL, GROUP_MODEL},   {OPTION_SHRINK, GROUP_MODEL},
    {OPTION_SUMS, GROUP_MODEL},  {OPTION_DEVICE, GROUP_MODEL},  {OPTION_SVG, GROUP_MODEL},
    {OPTION_HTML, GROUP_MODEL},
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
    {"model", required_argument, NULL, OPTION_MODEL},
    {"shrink", required_argument, NULL, OPTION_SHRINK},
    {"sums", required_argument, NULL, OPTION_SUMS},
    {"device", required_argument, NULL, OPTION_DEVICE},
    {"svg", required_argument, NULL, OPTION_SVG},
    {"html", required_argument, NULL, OPTION_HTML},
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
    {OPTION_SHRINK, 1, 65536, offsetof(bench_options, memory.shrink)},
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

/* One of two values; *second is set where it is the second. */
static int read_choice(int option, const char *value, const char *first, const char *second,
                       bool *is_second)
{
    *is_second = strcmp(value, second) == 0;
    return *is_second || strcmp(value, first) == 0
               ? 0
               : bench_fail("--%s %s: expected %s or %s", name_of(option), value, first, second);
}

/* A picture on stdout would be in the middle of the table. */
static int read_picture(int option, const char *value, const char **path)
{
    *path = value;
    return strcmp(value, "-") != 0 ? 0 : bench_fail("--%s -: name a file", name_of(option));
}

static int read_memory_option(bench_options *options, int option, const char *value)
{
    bench_memory_options *memory = &options->memory;
    switch (option) {
    case OPTION_MODEL:
        memory->model = value;
        return 0;
    case OPTION_SUMS:
        return read_choice(option, value, "f32", "bf16", &memory->bf16_sums);
    case OPTION_DEVICE:
        return read_choice(option, value, "cpu", "cuda", &memory->on_gpu);
    case OPTION_SVG:
        return read_picture(option, value, &memory->svg_path);
    case OPTION_HTML:
        return read_picture(option, value, &memory->html_path);
    default:
        return read_number(options, option, value);
    }
}

static int read_option(bench_line *line, int option, const char *value)
{
    bench_options *options = &line->options;
    for (size_t i = 0; i < sizeof grouped / sizeof grouped[0]; i++) {
        if (grouped[i].option == option) {
            line->given[grouped[i].group] = name_of(option);
        }
    }
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
        return read_choice(option, value, "f32", "bf16", &options->offload.bf16_moments);
    default:
        return read_memory_option(options, option, value);
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

/* An option that none of the chosen runners takes is a mistake. */
static int check_group(const bench_line *line, int group)
{
    char takers[128] = "";
    bool taken = line->given[group] == NULL;
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        if ((runners[i].takes & TAKES(group)) != 0) {
            const size_t used = strlen(takers);
            (void)snprintf(takers + used, sizeof takers - used, "%s`%s`", used != 0 ? ", " : "",
                           runners[i].name);
            taken = taken || line->chosen[i];
        }
    }
    return taken ? 0
                 : bench_fail("--%s is for %s, not for what is to be measured", line->given[group],
                              takers);
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
    for (int group = 0; group < GROUPS && !line->help; group++) {
        if (check_group(line, group) != 0) {
            return 1;
        }
    }
    return 0;
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
    if (argc > 1 && strcmp(argv[1], "calibrate") == 0) {
        return command_calibrate(argc - 1, argv + 1);
    }
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
