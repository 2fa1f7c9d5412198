/* Runs the program `zero` as a user does and reads what it prints. ZERO_PROGRAM names it. Speed is
 * never judged here: the smallest scale shows that every case runs, is right and is reported. */
#include "folders.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define WORDS_MAX 24
#define TEXT_BYTES ((size_t)1 << 20)

/* The output of the last run, and the last report. */
static char *out;
static char *err;
static json_t *report;

/* The text written to the file, which is closed. */
static char *file_text(int file)
{
    char *text = calloc(1, TEXT_BYTES);
    CHECK(text != NULL);
    CHECK(lseek(file, 0, SEEK_SET) == 0);
    size_t used = 0;
    for (;;) {
        const ssize_t got = read(file, text + used, TEXT_BYTES - 1 - used);
        CHECK(got >= 0);
        if (got == 0) {
            break;
        }
        used += (size_t)got;
    }
    CHECK(used < TEXT_BYTES - 1);
    close(file);
    return text;
}

static int open_unnamed(void)
{
    FILE *file = tmpfile();
    CHECK(file != NULL);
    const int copy = dup(fileno(file));
    CHECK(copy >= 0);
    fclose(file);
    return copy;
}

/* Run `zero` with the words of `line`, split at single blanks; its exit status. */
static int run_zero(const char *line)
{
    const char *program = getenv("ZERO_PROGRAM");
    if (program == NULL) {
        TEST_FAIL("ZERO_PROGRAM does not name the program to test");
    }
    char words[512];
    char name[] = "zero";
    char *argv[WORDS_MAX + 2] = {name};
    int argc = 1;
    (void)snprintf(words, sizeof words, "%s", line);
    char *rest = NULL;
    for (char *word = strtok_r(words, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        CHECK(argc <= WORDS_MAX);
        argv[argc++] = word;
    }
    const int files[] = {open_unnamed(), open_unnamed()};
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(files[0], STDOUT_FILENO);
        dup2(files[1], STDERR_FILENO);
        execv(program, argv);
        _exit(99);
    }
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    CHECK(WIFEXITED(state));
    free(out);
    free(err);
    out = file_text(files[0]);
    err = file_text(files[1]);
    return WEXITSTATUS(state);
}

/* The run ends with `status`, and what it printed has the texts in it; NULL: nothing. */
static void check_run(const char *line, int status, const char *on_stdout, const char *on_stderr)
{
    const int code = run_zero(line);
    const bool said = on_stdout == NULL ? out[0] == '\0' : strstr(out, on_stdout) != NULL;
    const bool complained = on_stderr == NULL ? err[0] == '\0' : strstr(err, on_stderr) != NULL;
    if (code != status || !said || !complained) {
        TEST_FAIL("zero %s: status %d, stdout '%s', stderr '%s'", line, code, out, err);
    }
}

/* Check that its complaint is one line. */
static void check_one_line(void)
{
    CHECK(strchr(err, '\n') == err + strlen(err) - 1);
}

/* The line is refused: status 1, nothing on stdout, one line on stderr that names `value`. */
static void check_refused(const char *line, const char *value)
{
    check_run(line, 1, NULL, value);
    check_one_line();
}

static void check_prints(const char *line, const char *text)
{
    check_run(line, 0, text, NULL);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL) {
        TEST_FAIL("no text under \"%s\"", key);
    }
    return text;
}

static double number_of(const json_t *object, const char *key)
{
    const json_t *number = json_object_get(object, key);
    if (!json_is_number(number)) {
        TEST_FAIL("no number under \"%s\"", key);
    }
    return json_number_value(number);
}

/* Every documented key of a row, with values that fit together. */
static void check_row(const json_t *row)
{
    CHECK(strlen(text_of(row, "metric")) > 0);
    CHECK(strlen(text_of(row, "case")) > 0);
    CHECK(strlen(text_of(row, "unit")) > 0);
    CHECK(number_of(row, "min") <= number_of(row, "value"));
    CHECK(number_of(row, "value") <= number_of(row, "max"));
    CHECK(number_of(row, "reference") > 0.0);
    CHECK(number_of(row, "repetitions") >= 1.0);
    CHECK_NEAR(number_of(row, "ratio") * number_of(row, "value") / number_of(row, "reference"), 1.0,
               1e-6);
}

static void check_head(void)
{
    const json_t *machine = json_object_get(report, "machine");
    CHECK(strlen(text_of(machine, "cpu")) > 0);
    CHECK(number_of(machine, "cores") >= 1.0);
    CHECK(number_of(machine, "memory_bytes") >= 1.0);
    CHECK(strlen(text_of(machine, "kernel")) > 0);
    CHECK(strlen(text_of(machine, "os")) > 0);
    CHECK(strlen(text_of(report, "commit")) > 0);
    CHECK_EQ(strlen(text_of(report, "date")), strlen("2026-01-01T00:00:00Z"));
    CHECK(json_object_get(report, "unfinished") == NULL);
    CHECK_EQ(json_array_size(json_object_get(report, "failed")), 0);
}

/* Reads the report of a line that asks for `--json -`: nothing else may be on stdout. */
static void read_report(const char *line)
{
    const int code = run_zero(line);
    json_decref(report);
    report = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    if (code != 0 || report == NULL) {
        TEST_FAIL("zero %s: status %d, stdout '%s', stderr '%s'", line, code, out, err);
    }
    check_head();
    const json_t *rows = json_object_get(report, "results");
    CHECK(json_is_array(rows));
    for (size_t i = 0; i < json_array_size(rows); i++) {
        check_row(json_array_get(rows, i));
    }
}

static size_t rows_of(const char *list, const char *metric)
{
    const json_t *rows = json_object_get(report, list);
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        count += strcmp(text_of(json_array_get(rows, i), "metric"), metric) == 0;
    }
    return count;
}

/* Measured, or left out with a reason. */
static void check_reported(const char *metric)
{
    if (rows_of("results", metric) == 0 && rows_of("skipped", metric) == 0) {
        TEST_FAIL("nothing is said of %s", metric);
    }
}

TEST(help_and_version)
{
    check_prints("--help", "bench");
    check_prints("--version", "zero ");
    check_prints("bench --help", "--repeat");
    check_prints("bench --help", "adamw_vs_limit");
    check_prints("--help", "io ");
    check_prints("io --help", "--seconds");
    check_prints("-h", "bench");
    check_prints("bench -h", "--repeat");
    check_prints("io . -h", "--seconds");
}

TEST_CALL(no_command_is_refused, check_run("", 1, NULL, "usage: zero"));

TEST(unknown_words_are_refused)
{
    check_refused("frobnicate", "\"frobnicate\"");
    check_refused("--frobnicate", "\"--frobnicate\"");
    check_refused("bench frobnicate", "\"frobnicate\"");
    check_refused("bench hooks adamw", "\"adamw\"");
    check_refused("bench --frobnicate", "\"--frobnicate\"");
    check_refused("bench hooks --tiny --case frobnicate", "frobnicate");
}

TEST(a_name_that_is_nearly_right_is_suggested)
{
    check_refused("bnech", "unknown command \"bnech\"; did you mean \"bench\"?");
    check_refused("--verison", "unknown option \"--verison\"; did you mean \"--version\"?");
    check_refused("bench hoks", "unknown benchmark \"hoks\"; did you mean \"hooks\"?");
    check_refused("bench --rnks 2", "unknown option \"--rnks\"; did you mean \"--ranks\"?");
    check_refused("io . --secnods 2", "did you mean \"--seconds\"?");
    check_refused("bench --quick=1", "--quick takes no value");
    check_refused("bench -q", "unknown option \"-q\"; --help lists them all");
}

TEST(absurd_numbers_are_refused)
{
    check_refused("bench --repeat=6", "--repeat 6: expected a whole number in [7, 1000]");
    check_refused("bench --repeat +7", "--repeat +7: expected a whole number");
    check_refused("bench --repeat=", "--repeat : expected a whole number");
    check_refused("io . --seconds=0", "--seconds 0: expected a whole number in [1, 3600]");
    check_refused("io . --seconds 0x10", "--seconds 0x10");
    check_refused("bench --repeat 0", "--repeat 0");
    check_refused("bench --repeat 6", "--repeat 6");
    check_refused("bench --repeat -7", "--repeat -7");
    check_refused("bench --repeat 1001", "--repeat 1001");
    check_refused("bench --repeat 7x", "--repeat 7x");
    check_refused("bench --repeat 99999999999999999999", "--repeat 99999999999999999999");
    check_refused("bench --repeat", "--repeat needs a value");
    check_refused("bench --ranks 0", "--ranks 0");
    check_refused("bench --ranks 257", "--ranks 257");
    check_refused("bench --threads many", "--threads many");
    check_refused("bench offload --layers 129", "--layers 129");
    check_refused("bench offload --slice 0", "--slice 0");
    check_refused("bench offload --moments f16", "--moments f16: expected f32, bf16 or i8");
    check_refused("bench offload --master i8", "--master i8: expected f32, remainder16");
    check_refused("bench offload --dir", "--dir needs a value");
    check_refused("bench adam --dir .", "--dir is for `memory`, `offload`");
}

TEST_CALL(an_unwritable_file_is_refused_before_measuring,
          check_refused("bench --json /nonexistent/report.json", "/nonexistent/report.json"));

/* The limit ends a program that does not look; this one says which file. */
TEST(a_file_that_may_not_grow_is_reported)
{
    char path[] = "zero-cli-report-XXXXXX";
    const struct rlimit limit = {200, 200};
    const int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const int code = run_zero(test_text("bench hooks --tiny --json %s", path));
    CHECK(unlink(path) == 0);
    CHECK_EQ(code, 1);
    CHECK(strstr(err, path) != NULL && strstr(err, "File too large") != NULL);
}

TEST(a_pipe_that_nobody_reads_is_refused_at_once)
{
    rig_folders(1, 0);
    char path[96];
    (void)snprintf(path, sizeof path, "%s/pipe", rig_paths[0]);
    CHECK(mkfifo(path, 0600) == 0);
    check_refused(test_text("bench hooks --tiny --json %s", path),
                  "it is a pipe that nobody reads");
    check_refused(test_text("io . --json=%s", path), "it is a pipe that nobody reads");
    CHECK(unlink(path) == 0);
}

TEST(a_full_disk_is_reported)
{
    if (access("/dev/full", W_OK) != 0) {
        SKIP("there is no /dev/full here");
    }
    CHECK_EQ(run_zero("bench hooks --tiny --json /dev/full"), 1);
    CHECK(strstr(err, "/dev/full") != NULL);
}

TEST(hooks_give_json_alone_on_stdout)
{
    read_report("bench hooks --quick --json -");
    CHECK(rows_of("results", "hook_ns") >= 4);
    CHECK_EQ(rows_of("results", "hook_ns"), json_array_size(json_object_get(report, "results")));
    CHECK_EQ(strcmp(text_of(report, "scale"), "quick"), 0);
}

TEST(start_gives_its_metric)
{
    read_report("bench start --tiny --json -");
    CHECK_EQ(rows_of("results", "start_vs_touch"), 3);
}

TEST(a_file_gets_the_same_report)
{
    char path[] = "zero-cli-report-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK(write(file, "left over", 9) == 9);
    CHECK_EQ(run_zero(test_text("bench hooks --tiny --json %s", path)), 0);
    report = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    CHECK(unlink(path) == 0);
    close(file);
    CHECK(report != NULL);
    check_head();
    CHECK(strstr(out, "hook_ns") != NULL);
    CHECK(rows_of("results", "hook_ns") >= 4);
}

TEST(a_case_can_be_chosen)
{
    read_report("bench hooks --tiny --case tensor_grad --repeat 8 --json -");
    CHECK_EQ(json_array_size(json_object_get(report, "results")), 1);
    const json_t *row = json_array_get(json_object_get(report, "results"), 0);
    CHECK(strstr(text_of(row, "case"), "tensor_grad") != NULL);
    CHECK_EQ((uint64_t)number_of(row, "repetitions"), 8);
}

TEST(step_gives_speed_and_memory)
{
    read_report("bench step --tiny --json -");
    check_reported("stage3_vs_stage0");
    check_reported("traced_vs_untraced");
    CHECK(rows_of("results", "peak_memory_vs_plan") >= 16);
}

/* Whole steps take long: half the repetitions, 7 at least. What is not asked for is not run. */
TEST(step_repeats_half_as_often)
{
    read_report("bench step --tiny --case tokens --repeat 20 --json -");
    size_t index = 0;
    const json_t *row = NULL;
    json_array_foreach(json_object_get(report, "results"), index, row)
    {
        const char *metric = text_of(row, "metric");
        CHECK(strcmp(metric, "stage3_vs_stage0") == 0 || strcmp(metric, "traced_vs_untraced") == 0);
        CHECK_EQ((uint64_t)number_of(row, "repetitions"), 10);
    }
    read_report("bench step --tiny --case resident --json -");
    CHECK_EQ(rows_of("results", "stage3_vs_stage0"), 0);
    CHECK_EQ(rows_of("skipped", "stage3_vs_stage0"), 0);
    CHECK_EQ(rows_of("results", "traced_vs_untraced"), 0);
}

TEST(adam_gives_its_metrics)
{
    read_report("bench adam --tiny --json -");
    CHECK(rows_of("results", "adamw_vs_limit") >= 1);
    CHECK(rows_of("results", "lamb_vs_limit") >= 1);
    CHECK(rows_of("results", "lars_ns_per_parameter") >= 1);
    CHECK(rows_of("results", "norm_extra") >= 4);
    CHECK(rows_of("results", "fold_squares_vs_apart") >= 4);
}

TEST(comm_gives_its_metrics)
{
    read_report("bench comm --tiny --json -");
    check_reported("reduce_scatter_vs_mpi");
    check_reported("reduce_scatter_vs_limit");
    check_reported("all_gather_vs_mpi");
    check_reported("all_gather_vs_limit");
    check_reported("host_levels_vs_at_once");
}

/* A directory that cannot be measured is a failure that names it, and leaves nothing in it. */
TEST(offload_fails_where_there_is_no_room)
{
    check_run("bench offload --tiny --dir /nonexistent/zero --json /dev/null", 1, "failed: offload",
              "--dir /nonexistent/zero: ");
    char *folder = rig_folder(false);
    if (mount("tmpfs", folder, "tmpfs", 0, "size=1m") != 0) {
        rig_remove(folder);
        SKIP("mounting a small file system is not allowed here");
    }
    CHECK_EQ(run_zero(test_text("bench offload --tiny --dir %s --json /dev/null", folder)), 1);
    CHECK(strstr(err, "1048576 free") != NULL && strstr(err, "too few") != NULL);
    rig_small_disk_remove(folder);
}

TEST(offload_gives_its_metrics)
{
    static const char *const moments[] = {"f32", "bf16", "i8 --master remainder16"};
    rig_folders(2, 0);
    for (int i = 0; i < 3; i++) {
        const char *line = test_text("bench offload --tiny --json - --moments %s --dir %s",
                                     moments[i], rig_paths[0]);
        read_report(i == 0 ? line : test_text("%s --dir %s", line, rig_paths[1]));
        CHECK_EQ(
            rows_of("results", "offload_step_vs_io") + rows_of("skipped", "offload_step_vs_io"), 2);
        CHECK(rows_of("results", "offload_step_vs_io") >= 1);
        CHECK_EQ(rows_of("results", "offload_ms_per_gb"), 1);
        CHECK_EQ(rows_of("results", "offload_bound_ms") + rows_of("skipped", "offload_bound_ms"),
                 3);
        check_reported("peak_memory_vs_plan");
        check_reported("offload_overhead_bytes");
        check_reported("storage_vs_fio");
        check_reported("storage_cpu_ms_per_gb");
    }
}

TEST(overlap_gives_its_metrics)
{
    rig_folders(1, 0);
    read_report(test_text("bench overlap --tiny --json - --dir %s", rig_paths[0]));
    CHECK_EQ(rows_of("results", "overlap_vs_plain"), 1);
    CHECK_EQ(rows_of("results", "overlap_step_exposed"), 1);
}

TEST(checks_gives_its_metrics)
{
    rig_folders(1, 0);
    read_report(test_text("bench checks --tiny --json - --dir %s", rig_paths[0]));
    CHECK_EQ(rows_of("results", "checked_vs_unchecked"), 1);
    CHECK_EQ(rows_of("results", "checked_cpu_vs_unchecked"), 1);
    check_refused("bench checks --slice 1", "--slice is for `offload`");
}

TEST(ckpt_gives_its_metrics)
{
    rig_folders(1, 0);
    read_report(test_text("bench ckpt --tiny --json - --dir %s", rig_paths[0]));
    CHECK_EQ(rows_of("results", "save_vs_direct"), 1);
    CHECK_EQ(rows_of("results", "load_vs_direct"), 2);
    CHECK_EQ(rows_of("results", "load_read_vs_needed"), 1);
    CHECK_EQ(rows_of("results", "save_stall"), 4);
    CHECK_EQ(
        rows_of("results", "save_reflink_vs_copy") + rows_of("skipped", "save_reflink_vs_copy"), 1);
    CHECK(rmdir(rig_paths[0]) == 0); /* nothing stays */
    CHECK(mkdir(rig_paths[0], 0777) == 0);
}

TEST(io_refuses_what_it_cannot_measure)
{
    check_refused("io", "zero io: which directory");
    check_refused("io --frobnicate", "\"--frobnicate\"");
    check_refused("io 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17", "17: more than 16 directories");
    check_refused("io . . --size 1M", "are the same: .");
    check_refused("io . /there/is/none", "/there/is/none");
    check_refused("io . --size", "--size needs a value");
    check_refused("io . --size 4097K", "4097K");
    check_refused("io . --size 1048577", "1048577");
    check_refused("io . --size 1Q", "1Q");
    check_refused("io . --size -1G", "-1G");
    check_refused("io . --size 99999999999999999999", "99999999999999999999");
    check_refused("io . --seconds 0", "--seconds 0");
    check_refused("io . --seconds 3601", "--seconds 3601");
    check_refused("io . --io-backend libaio", "--io-backend libaio");
    check_refused("io /there/is/none", "make the directory /there/is/none first");
    check_refused("io /proc/self", "/proc/self");
    check_refused("io . --size 1000000G", "1073741824000000 bytes wanted");
    check_refused("io . --json /nonexistent/report.json", "/nonexistent/report.json");
}

TEST(io_gives_its_metrics)
{
    rig_folders(1, 0);
    read_report(test_text("io %s --size 16M --seconds 2 --json -", rig_paths[0]));
    check_reported("storage_vs_fio");
    check_reported("storage_cpu_ms_per_gb");
    /* Four sizes, three depths, three mixes; one of each mix is recommended. */
    CHECK_EQ(rows_of("results", "storage_ms_per_gb"), 36);
    CHECK_EQ(rows_of("results", "storage_recommended_ms_per_gb"), 3);
    /* A peer is named with its setting. */
    size_t index = 0;
    const json_t *row = NULL;
    json_array_foreach(json_object_get(report, "results"), index, row)
    {
        if (strcmp(text_of(row, "metric"), "storage_vs_fio") == 0) {
            const char *peer = strstr(text_of(row, "case"), "; fio ");
            CHECK(peer != NULL && strstr(peer, " KiB x ") != NULL);
        }
    }
}

/* A program that stands for fio: notes how it is called, and says that each time it read 4 MiB. */
static void make_fio(const char *folder, const char *log)
{
    const char *path = test_text("%s/fio", folder);
    FILE *script = fopen(path, "w");
    CHECK(script != NULL);
    (void)fprintf(script,
                  "#!/bin/sh\n"
                  "[ \"$1\" = --version ] && echo fio-0 && exit\n"
                  "echo \"$@\" >> %s\n"
                  "printf '3;fio;zero;0;0;4096;0;0;10'; printf ';0%%.0s' $(seq 100); echo\n",
                  log);
    CHECK(fclose(script) == 0 && chmod(path, 0755) == 0);
}

/* The value of a numeric option of fio's on a line. */
static uint64_t option_of(const char *line, const char *option)
{
    const char *at = strstr(line, option);
    CHECK(at != NULL);
    return strtoull(at + strlen(option), NULL, 10);
}

TEST(io_lets_fio_go_on_where_its_last_sample_ended)
{
    rig_folders(1, 0);
    const char *folder = rig_paths[0];
    char here[4096];
    char log[4200];
    char path[16384];
    CHECK(getcwd(here, sizeof here) != NULL);
    (void)snprintf(log, sizeof log, "%s/%s/log", here, folder);
    make_fio(folder, log);
    (void)snprintf(path, sizeof path, "%s/%s:%s", here, folder, getenv("PATH"));
    CHECK(setenv("PATH", path, 1) == 0);
    read_report(test_text("io %s --size 16M --seconds 2 --json -", folder));
    const bool measured = rows_of("results", "storage_vs_fio") > 0;
    FILE *calls = fopen(log, "r");
    bool seen[16] = {false};
    uint32_t places = 0;
    char call[1024];
    while (calls != NULL && fgets(call, sizeof call, calls) != NULL) {
        const uint64_t offset = option_of(call, "--offset=");
        const uint64_t part = option_of(call, "--offset_increment=");
        CHECK_EQ(offset + option_of(call, "--size="), part);
        CHECK_EQ(offset % option_of(call, "--bs="), 0);
        CHECK(part <= (16 << 20) && offset < part);
        places += !seen[offset >> 20];
        seen[offset >> 20] = true;
    }
    CHECK(calls == NULL || fclose(calls) == 0);
    (void)unlink(log);
    CHECK(unlink(test_text("%s/fio", folder)) == 0);
    if (!measured) {
        rig_folders_remove(); /* a test that is skipped ends at once */
        SKIP("fio is not measured here");
    }
    CHECK(seen[0] && seen[4] && seen[8] && seen[12]);
    CHECK(places >= 4);
}

TEST(io_prints_a_table_for_a_given_backend)
{
    rig_folders(1, 0);
    CHECK_EQ(run_zero(test_text("io %s --size 2M --seconds 1 --io-backend posix", rig_paths[0])),
             0);
    CHECK(strstr(out, "I/O backend: posix (") != NULL);
    CHECK(strstr(out, "recommended: segments of ") != NULL);
    CHECK(strstr(out, "as options of an engine: io_depth ") != NULL);
    CHECK(strstr(out, "disk_weights") == NULL);
}

/* Two directories on one disk are as fast as one another. */
TEST(io_gives_the_weights_of_several_directories)
{
    rig_folders(2, 0);
    CHECK_EQ(run_zero(test_text("io %s %s --size 2M --seconds 1", rig_paths[0], rig_paths[1])), 0);
    char *weights = strstr(out, "as options of an engine: disk_weights {");
    unsigned rate[2] = {0, 0};
    CHECK(weights != NULL);
    CHECK_EQ(sscanf(strchr(weights, '{'), "{%u, %u}", &rate[0], &rate[1]), 2);
    CHECK(rate[0] > 0);
    CHECK_EQ(rate[0], rate[1]);
    CHECK(strstr(out, "a part of what its disk gives 2 of them") != NULL);
    CHECK(strstr(out, "in flight for each directory") != NULL);
    CHECK(strstr(out, "skipped: storage_vs_fio: it is measured on one directory only") != NULL);
}

TEST(gpu_is_refused_with_a_remedy)
{
    if (system("nvidia-smi > /dev/null 2>&1") == 0) {
        SKIP("there is a GPU here");
    }
    check_run("bench gpu --tiny --json /dev/null", 1, "failed: gpu", "zero bench: gpu: ");
    CHECK(strstr(err, "zero bench: gpu: ") == err);
    /* The toolkit is missing, or the GPU is. */
    CHECK(strstr(err, "-Dcuda=enabled") != NULL || strstr(err, "nvidia-smi") != NULL);
    check_one_line();
}

/* Every case, with results that are checked; the figures say nothing. */
TEST(gpu_gives_its_metrics)
{
    static const char *const metrics[] = {
        "adamw_vs_copy",         "norm_extra",          "square_sum_vs_read", "fold_vs_copy",
        "cast_vs_copy",          "peak_memory_vs_plan", "stage3_vs_stage0",   "hook_ns",
        "fold_squares_vs_apart", "stream_vs_pinned"};
    const char *fake = getenv("ZERO_FAKE_PROGRAM");
    if (fake == NULL) {
        SKIP("built without CUDA");
    }
    CHECK(setenv("ZERO_PROGRAM", fake, 1) == 0);
    read_report("bench gpu --tiny --json -");
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
        CHECK(rows_of("results", metrics[i]) >= 2);
    }
    CHECK_EQ(rows_of("results", "stage3_vs_stage0"), 6);
    CHECK_EQ(rows_of("results", "norm_extra"), 6);
    CHECK_EQ(rows_of("results", "hooks_vs_direct"), 1);
    const json_t *gpu = json_object_get(json_object_get(report, "machine"), "gpu");
    CHECK_EQ(strcmp(text_of(gpu, "name"), "none, \"faked\""), 0);
    CHECK_EQ(strcmp(text_of(gpu, "driver"), "13.0"), 0);
    CHECK(number_of(gpu, "pinned_to_gpu_gb_per_s") > 0.0);
    CHECK(number_of(gpu, "sm_clock_max_mhz") > 0.0);
}

/* A file's text once it holds `text`; the file is read again and again until then. */
static char *await_text(int file, const char *text)
{
    for (;;) {
        char *seen = file_text(dup(file));
        if (strstr(seen, text) != NULL) {
            return seen;
        }
        free(seen);
        usleep(1000);
    }
}

/* Whoever ends a run has the rows until then, and sees that there was to be more. */
TEST(rows_outlive_a_run_that_is_killed)
{
    char path[] = "/tmp/zero-cli-XXXXXX";
    char *argv[] = {"zero", "bench", "hooks", "step", "--tiny", "--json", path, NULL};
    const int file = mkstemp(path);
    CHECK(file >= 0);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execv(getenv("ZERO_PROGRAM"), argv);
        _exit(99);
    }
    free(await_text(file, "hook_ns"));
    CHECK(kill(child, SIGKILL) == 0);
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    CHECK(WIFSIGNALED(state));
    char *text = file_text(file);
    report = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    CHECK(report != NULL);
    CHECK(json_is_true(json_object_get(report, "unfinished")));
    CHECK(rows_of("results", "hook_ns") >= 1);
    free(text);
    CHECK(unlink(path) == 0);
}
