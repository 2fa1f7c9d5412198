/* Owns `zero bench`: reads its line, runs the runners, prints the report. Invariant: with --json -
 * nothing but one JSON object goes to stdout. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "bench_report.h"
#include "command_line.h"
#include "commands.h"
#include "line_table.h"
#include "script.h"
#include "zero/world.h"

/* Groups of options that not every runner takes, and sets of them. */
enum { GROUP_DIR = 1, GROUP_LAYERS, GROUP_SLICE, GROUP_MODEL, GROUPS };
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
     "adamw_vs_limit, lamb_vs_limit, lars_vs_limit: the fused optimizer pass against reading and "
     "writing the same bytes; norm_extra: folds that add squares",
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
    {"start", "start_vs_touch: engines made and filled, against touching their memory once",
     bench_start, TAKES_NOTHING},
    {"memory",
     "bytes of a rank as planned and as measured, by role and tier, at every stage, with small "
     "states, and with state, gradients and parameters on disk, beside the paper's formulas; a "
     "byte that differs is a failure",
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
    bool any;                 /* a name was given */
    const char *json_path;    /* NULL: none; "-": stdout; of ranks: where rank 0 leaves its rows */
} bench_line;

static int print_help(void)
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
           "  --master TYPE  offload, overlap, checks: f32 (default), remainder16, remainder8\n"
           "  --moments TYPE offload, overlap, checks: f32 (default), bf16 or i8\n"
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
    return fflush(stdout) == 0 ? 0 : 1;
}

static int read_directory(void *line, const char *name, const char *value)
{
    bench_offload_options *options = &((bench_line *)line)->options.offload;
    if (options->directory_count == BENCH_DIRECTORIES_MAX) {
        return bench_fail("--%s %s: more than %d directories", name, value, BENCH_DIRECTORIES_MAX);
    }
    options->directories[options->directory_count++] = value;
    return 0;
}

/* One of two values, of which a bool says whether it is the second. */
static int read_choice(void *line, const char *name, const char *value)
{
    static const struct {
        const char *name;
        const char *first;
        const char *second;
        size_t at;
    } choices[] = {{"sums", "f32", "bf16", offsetof(bench_line, options.memory.bf16_sums)},
                   {"device", "cpu", "cuda", offsetof(bench_line, options.memory.on_gpu)}};
    size_t i = 0;
    while (strcmp(choices[i].name, name) != 0) {
        i++;
    }
    const bool is_second = strcmp(value, choices[i].second) == 0;
    *(bool *)((unsigned char *)line + choices[i].at) = is_second;
    return is_second || strcmp(value, choices[i].first) == 0
               ? 0
               : bench_fail("--%s %s: expected %s or %s", name, value, choices[i].first,
                            choices[i].second);
}

/* The type of masters or moments, by name. */
static int read_state_type(void *line, const char *name, const char *value)
{
    static const zero_dtype masters[] = {ZERO_DTYPE_F32, ZERO_DTYPE_REMAINDER16,
                                         ZERO_DTYPE_REMAINDER8};
    static const zero_dtype moments[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_I8};
    bench_offload_options *options = &((bench_line *)line)->options.offload;
    const bool master = strcmp(name, "master") == 0;
    const zero_dtype *types = master ? masters : moments;
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(value, zero_dtype_name(types[i])) == 0) {
            *(master ? &options->master : &options->moments) = types[i];
            return 0;
        }
    }
    return bench_fail("--%s %s: expected %s, %s or %s", name, value, zero_dtype_name(types[0]),
                      zero_dtype_name(types[1]), zero_dtype_name(types[2]));
}

/* A picture on stdout would be in the middle of the table. */
static int read_picture(void *line, const char *name, const char *value)
{
    bench_memory_options *memory = &((bench_line *)line)->options.memory;
    *(strcmp(name, "svg") == 0 ? &memory->svg_path : &memory->html_path) = value;
    return strcmp(value, "-") != 0 ? 0 : bench_fail("--%s -: name a file", name);
}

/* For bench_spawn_ranks. */
static int read_as_rank(void *line, const char *name, const char *value)
{
    (void)name;
    ((bench_line *)line)->options.as_rank = true;
    ((bench_line *)line)->json_path = value;
    return 0;
}

static int read_name(void *words, const char *name)
{
    bench_line *line = words;
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

#define AT(field) offsetof(bench_line, options.field)
#define BY(name, read, group)                  \
    {                                          \
        name, LINE_OTHER, 0, 0, 0, read, group \
    }

static const line_row line_rows[] = {
    LINE_NUMBER("quick", LINE_SET, AT(scale), BENCH_QUICK, 0),
    LINE_NUMBER("tiny", LINE_SET, AT(scale), BENCH_TINY, 0),
    LINE_NUMBER("repeat", LINE_U32, AT(repetitions), BENCH_REPETITIONS_MIN, BENCH_REPETITIONS_MAX),
    LINE_NUMBER("ranks", LINE_U32, AT(ranks), 1, 256),
    LINE_NUMBER("threads", LINE_U32, AT(threads), 1, 256),
    LINE_VALUE("case", LINE_TEXT, AT(case_filter)),
    LINE_VALUE("json", LINE_TEXT, offsetof(bench_line, json_path)),
    BY("as-rank", read_as_rank, 0),
    BY("dir", read_directory, GROUP_DIR),
    {"layers", LINE_U32, AT(offload.layers), 1, 128, NULL, GROUP_LAYERS},
    BY("master", read_state_type, GROUP_LAYERS),
    BY("moments", read_state_type, GROUP_LAYERS),
    {"slice", LINE_U32, AT(offload.slice_steps), 1, 1000, NULL, GROUP_SLICE},
    {"model", LINE_TEXT, AT(memory.model), 0, 0, NULL, GROUP_MODEL},
    {"shrink", LINE_U32, AT(memory.shrink), 1, 65536, NULL, GROUP_MODEL},
    BY("sums", read_choice, GROUP_MODEL),
    BY("device", read_choice, GROUP_MODEL),
    BY("svg", read_picture, GROUP_MODEL),
    BY("html", read_picture, GROUP_MODEL),
};

static int read_word(void *line, const char *value)
{
    ((bench_line *)line)->any = true;
    return read_name(line, value);
}

/* An option that none of the chosen runners takes is a mistake. */
static int check_group(const bench_line *line, int group, const char *given)
{
    char takers[128] = "";
    bool taken = given == NULL;
    for (size_t i = 0; i < RUNNER_COUNT; i++) {
        if ((runners[i].takes & TAKES(group)) != 0) {
            const size_t used = strlen(takers);
            (void)snprintf(takers + used, sizeof takers - used, "%s`%s`", used != 0 ? ", " : "",
                           runners[i].name);
            taken = taken || line->chosen[i];
        }
    }
    return taken ? 0 : bench_fail("--%s is for %s, not for what is to be measured", given, takers);
}

/* As line_read. */
static int read_line(int argc, char **argv, bench_line *line)
{
    static const line_table table = {line_rows, sizeof line_rows / sizeof line_rows[0], read_word};
    const char *given[LINE_GROUPS_MAX] = {NULL};
    int status = line_read(&table, argc, argv, line, given);
    if (line->options.repetitions == 0) {
        line->options.repetitions = line->options.scale == BENCH_FULL ? 15 : BENCH_REPETITIONS_MIN;
    }
    if (status == 0 && !line->any) {
        status = read_name(line, "all");
    }
    for (int group = GROUP_DIR; group < GROUPS && status == 0; group++) {
        status = check_group(line, group, given[group]);
    }
    return status;
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
    const int read = read_line(argc, argv, &line);
    if (read != 0) {
        return read == LINE_HELP ? print_help() : 1;
    }
    if (zero_world_is_launched() && !line.options.as_rank) {
        return bench_fail("started by a launcher; run it alone, it starts the ranks it needs");
    }
    bench_report report;
    if (bench_report_open(&report, line.json_path, line.options.scale) != 0 ||
        (!line.options.as_rank && bench_report_has_table(&report) && script_check() != 0)) {
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
        failed = bench_report_print(&report, "bench_table") || failed;
    }
    return bench_report_close(&report) || failed;
}
