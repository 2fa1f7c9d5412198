/* The files that gpt2_train leaves behind, whatever ends it: its log files are whole, its one line
 * of error names the file, and its ranks end together. jansson reads its JSON. */
#include "gpt2_program.h"

#include <jansson.h>

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *document = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (document == NULL) {
        TEST_FAIL("%s:%d: %s", path, error.line, error.text);
    }
    return document;
}

/* The file is one document whose steps count from 1; returns how many. ended_by: what it says of
 * the end, NULL: nothing. */
static size_t check_json(const char *ended_by)
{
    json_t *document = load(json);
    const json_t *steps = json_object_get(document, "steps");
    const size_t count = json_array_size(steps);
    for (size_t i = 0; i < count; i++) {
        const json_t *step = json_array_get(steps, i);
        CHECK_EQ(json_integer_value(json_object_get(step, "step")), i + 1);
        CHECK(json_is_number(json_object_get(step, "ms")));
    }
    CHECK(json_is_object(json_object_get(document, "settings")));
    const char *by = json_string_value(json_object_get(document, "ended_by"));
    if ((by == NULL) != (ended_by == NULL) || (by != NULL && strcmp(by, ended_by) != 0)) {
        TEST_FAIL("ended by %s, expected %s", by == NULL ? "nothing" : by,
                  ended_by == NULL ? "nothing" : ended_by);
    }
    json_decref(document);
    return count;
}

static uint32_t lines_of(const char *path)
{
    FILE *file = fopen(path, "r");
    uint32_t count = 0;
    int last = '\n';
    for (int at = file != NULL ? getc(file) : EOF; at != EOF; at = getc(file)) {
        count += at == '\n';
        last = at;
    }
    if (file != NULL) {
        CHECK_EQ(fclose(file), 0);
    }
    CHECK_EQ(last, '\n'); /* no line is cut */
    return count;
}

/* Until the child has written so many steps. */
static void wait_for_steps(pid_t child, uint32_t steps)
{
    while (lines_of(csv) < steps + 1) {
        int state = 0;
        if (waitpid(child, &state, WNOHANG) != 0) {
            read_text(output_path, output);
            TEST_FAIL("it ended early, status %x: %s", (unsigned)state, output);
        }
        (void)usleep(1000);
    }
}

static pid_t start_for_ever(const char *rank)
{
    return start(test_text("%s --steps 1000000 --val-every 0 --csv %s --json %s",
                           rank == NULL ? "--ranks 2" : "", csv, json),
                 rank);
}

/* --- signals ---------------------------------------------------------------------------------- */

static void check_stopped(int number, const char *name)
{
    begin();
    const pid_t child = start_for_ever(NULL);
    wait_for_steps(child, 3);
    CHECK_EQ(kill(child, number), 0);
    CHECK_EQ(finish(child), 128 + number);
    const size_t steps = check_json(name);
    check_output(test_text("stopped by %s after step %zu of 1000000\n", name, steps));
    CHECK(steps >= 3);
    CHECK_EQ(lines_of(csv), steps + 1);
}

TEST_CALL(an_interrupt_ends_it_after_the_step, check_stopped(SIGINT, "SIGINT"));
TEST_CALL(a_termination_ends_it_after_the_step, check_stopped(SIGTERM, "SIGTERM"));

/* Only one of two processes gets the signal; the other agrees, and neither waits for the other. */
TEST(processes_stop_together)
{
    begin();
    launch_environment("2");
    for (int which = 0; which < 2; which++) {
        pid_t children[2];
        children[0] = start_for_ever("0");
        children[1] = start_for_ever("1");
        wait_for_steps(children[0], 3);
        CHECK_EQ(kill(children[which], SIGTERM), 0);
        CHECK_EQ(finish(children[1]), 128 + SIGTERM);
        CHECK_EQ(finish(children[0]), 128 + SIGTERM);
        CHECK_EQ(lines_of(csv), check_json("SIGTERM") + 1);
        CHECK_EQ(unlink(csv) + unlink(json), 0);
    }
}

/* A text that is being generated ends too. */
TEST(a_signal_ends_the_sample)
{
    begin();
    const pid_t child =
        start(test_text("--ranks 2 --steps 3 --val-every 0 --csv %s --json %s --sample 1000000",
                        csv, json),
              NULL);
    wait_for_steps(child, 3);
    CHECK_EQ(kill(child, SIGTERM), 0);
    CHECK_EQ(finish(child), 128 + SIGTERM);
    CHECK_EQ(check_json("SIGTERM"), 3);
}

/* A line of /proc/PID/status that is a mask of signals. */
static bool has_signal(pid_t child, const char *line, int number)
{
    char path[64];
    char text[256];
    uint64_t mask = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)child);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(text, sizeof text, file) != NULL) {
        if (strncmp(text, line, strlen(line)) == 0) {
            mask = strtoull(text + strlen(line), NULL, 16);
        }
    }
    CHECK_EQ(fclose(file), 0);
    return (mask >> (number - 1) & 1) != 0;
}

/* A rank whose world never comes together cannot end after a step. */
TEST(a_second_interrupt_ends_it_at_once)
{
    begin();
    launch_environment("2");
    const pid_t child = start_for_ever("0");
    while (!has_signal(child, "SigCgt:", SIGINT)) {
        (void)usleep(1000);
    }
    CHECK_EQ(kill(child, SIGINT), 0);
    while (has_signal(child, "ShdPnd:", SIGINT)) {
        (void)usleep(1000);
    }
    int state = 0;
    (void)usleep(200000);
    CHECK_EQ(waitpid(child, &state, WNOHANG), 0);
    CHECK_EQ(kill(child, SIGINT), 0);
    CHECK(waitpid(child, &state, 0) == child);
    CHECK(WIFSIGNALED(state) && WTERMSIG(state) == SIGINT);
}

/* --- faults ----------------------------------------------------------------------------------- */

TEST(files_are_whole_when_it_is_killed)
{
    begin();
    const pid_t child = start_for_ever(NULL);
    wait_for_steps(child, 20);
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(finish(child), 128 + SIGKILL);
    CHECK(check_json(NULL) + 2 >= lines_of(csv)); /* it may have died between the two */
}

/* The longer run before leaves nothing in the file. */
TEST(files_are_written_anew)
{
    begin();
    run_well(test_text("--csv %s --json %s --steps 9 --val-every 0", csv, json));
    CHECK_EQ(check_json("steps"), 9);
    run_well(test_text("--csv %s --json %s --steps 2 --val-every 0", csv, json));
    CHECK_EQ(check_json("steps"), 2);
    CHECK_EQ(lines_of(csv), 3);
}

TEST(data_that_gets_shorter_is_an_error)
{
    begin();
    const pid_t child = start_for_ever(NULL);
    wait_for_steps(child, 3);
    CHECK_EQ(truncate(text_path, 100), 0);
    CHECK_EQ(finish(child), 1);
    check_output("became shorter while it was used: token ");
    CHECK_EQ(lines_of(csv), check_json("error") + 1);
}

static void limit_files(rlim_t bytes)
{
    const struct rlimit limit = {bytes, bytes};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(a_file_that_may_not_grow_is_an_error)
{
    begin();
    limit_files(8192);
    CHECK_EQ(run(test_text("--steps 1000 --val-every 0 --csv %s", csv)), 1);
    check_output("cannot write ");
    check_output(": File too large");
    CHECK(lines_of(csv) > 10);
    CHECK_EQ(run(test_text("--steps 1000 --val-every 0 --json %s", json)), 1);
    check_output("cannot write ");
    check_output(": File too large");
    CHECK(check_json(NULL) > 10);
}

TEST(a_full_disk_is_an_error)
{
    if (access("/dev/full", W_OK) != 0) {
        SKIP("there is no /dev/full here");
    }
    begin();
    CHECK_EQ(run("--steps 2 --csv /dev/full"), 1);
    check_output("cannot write /dev/full: No space left on device");
    CHECK_EQ(run("--steps 2 --json /dev/full"), 1);
    check_output("cannot write /dev/full: No space left on device");
    CHECK_EQ(run_shell(test_text("{ '%s' --plan > /dev/full; }", GPT2_TRAIN)), 1);
    check_output("cannot write to standard output: No space left");
}

/* Nobody is at the pipe's other end: neither reading nor writing may wait for that. */
TEST(pipes_are_refused_at_once)
{
    char pipe_path[96];
    begin();
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    CHECK_EQ(mkfifo(pipe_path, 0600), 0);
    static const char *const names[] = {"--data", "--val", "--csv", "--json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_EQ(run(test_text("--steps 2 %s %s", names[i], pipe_path)), 1);
        check_output(pipe_path);
        check_output(" pipe");
    }
    CHECK_EQ(unlink(pipe_path), 0);
}

/* With a reader a pipe is as good as a file; when the reader goes, that is an error and no death.
 */
TEST(a_pipe_with_a_reader_is_written_to)
{
    static char text[4096];
    begin();
    CHECK_EQ(mkfifo(csv, 0600), 0);
    const int reader = open(csv, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    run_well(test_text("--steps 3 --val-every 0 --csv %s", csv));
    CHECK(read(reader, text, sizeof text - 1) > 0);
    CHECK(strncmp(text, "step,loss,val_loss", 18) == 0 && strstr(text, "\n3,") != NULL);
    (void)unlink(output_path);
    const pid_t child = start(test_text("--steps 1000000 --val-every 0 --csv %s", csv), NULL);
    while (read(reader, text, 1) != 1) {
        (void)usleep(1000);
    }
    CHECK_EQ(close(reader), 0);
    CHECK_EQ(finish(child), 1);
    check_output(": Broken pipe");
}

TEST(standard_output_takes_a_file_too)
{
    begin();
    run_well("--steps 3 --val-every 0 --csv /dev/stdout");
    check_output("step,loss,val_loss,norm");
    check_output("\n3,");
    check_output("\nranks: 4");
    run_well("--steps 3 --val-every 0 --csv /dev/null --json /dev/null");
}

/* A file that it reads, or that the other one is, would be lost. */
TEST(files_are_not_written_over_one_another)
{
    begin();
    check_refused(test_text("--csv %s", text_path), "would write over --data");
    check_refused(test_text("--json %s/../%s/text", folder, folder + 5), "would write over --data");
    check_refused(test_text("--csv %s --json %s", csv, csv), "would write over --json");
    run_well("--steps 1");
}

/* --- steps that are skipped, ranks that do not come ------------------------------------------- */

#define DIVERGES \
    "--lr 10 --min-lr 10 --warmup 0 --clip 0 --weight-decay 10 --steps 40 --val-every 0"

TEST(skipped_steps_in_a_row_end_it)
{
    begin();
    CHECK_EQ(run(test_text(DIVERGES " --skips-max 5 --json %s", json)), 1);
    const size_t steps = check_json("error");
    check_output(test_text("steps %zu to %zu were skipped", steps - 4, steps));
    CHECK_EQ(run(test_text(DIVERGES " --json %s", json)), 1); /* 20 by default */
    CHECK_EQ(check_json("error"), steps + 15);
    run_well(test_text(DIVERGES " --skips-max 0 --json %s", json));
    CHECK_EQ(check_json("steps"), 40);
}

TEST(a_rank_that_does_not_come_is_missed_at_the_deadline)
{
    begin();
    launch_environment("2");
    CHECK_EQ(finish(start("--deadline 1", "0")), 1);
    check_output("rank 1 did not come within 1000 ms");
}

/* --- plans ------------------------------------------------------------------------------------ */

static void check_plan_json(json_t *plan)
{
    const json_t *memory = json_object_get(plan, "memory");
    json_int_t sum = 0;
    const char *role = NULL;
    json_t *row = NULL;
    json_object_foreach(json_object_get(plan, "memory"), role, row)
    {
        sum += json_integer_value(json_object_get(row, "planned"));
    }
    const json_int_t total =
        json_integer_value(json_object_get(json_object_get(memory, "total"), "planned"));
    CHECK_EQ(sum, 2 * total);
    CHECK(total > 124439808);
    const json_t *moment = json_object_get(memory, "moment1");
    CHECK(strcmp(json_string_value(json_object_get(moment, "tier")), "disk") == 0);
    CHECK_EQ(json_integer_value(json_object_get(moment, "planned")),
             json_integer_value(json_object_get(json_object_get(plan, "tiers"), "disk")) / 2);
    CHECK_EQ(json_integer_value(json_object_get(plan, "parameters")), 124439808);
    CHECK_EQ(json_integer_value(json_object_get(plan, "vocab")), 50257);
    CHECK_EQ(json_integer_value(json_object_get(plan, "world")), 3);
    CHECK_EQ(json_integer_value(json_object_get(json_object_get(plan, "sharding"), "grad")), 3);
    json_decref(plan);
}

TEST(a_plan_is_json_too)
{
    begin();
    const char *plan =
        test_text("'%s' --plan --preset gpt2-124m --ranks 3 --moment-tier disk", GPT2_TRAIN);
    CHECK_EQ(run_shell(test_text("%s --stage 2 --json -", plan)), 0);
    check_plan_json(load(output_path));
    CHECK_EQ(run_shell(test_text("%s --json %s", plan, json)), 0);
    check_plan_json(load(json));
    check_output("param slots");
}

static void check_setting(const json_t *plan, const char *name, const char *text)
{
    const json_t *setting = json_object_get(json_object_get(plan, "settings"), name);
    setting = json_is_array(setting) ? json_array_get(setting, 0) : setting;
    if (setting == NULL || strcmp(json_string_value(setting), text) != 0) {
        TEST_FAIL("%s is %s, expected %s", name, json_string_value(setting), text);
    }
}

/* Text that is no UTF-8 is taken for Latin-1. */
TEST(paths_are_json_whatever_they_are)
{
    begin();
    CHECK_EQ(run_shell(test_text("'%s' --plan --json - --val 'é\"\\\n' --trace '\xe9\x80\xff' "
                                 "--hang-directory '%s/a\"é' --disk '\"\xff'",
                                 GPT2_TRAIN, folder)),
             0);
    json_t *plan = load(output_path);
    check_setting(plan, "val", "é\"\\\n");
    check_setting(plan, "trace", "é\xc2\x80ÿ");
    check_setting(plan, "hang-directory", test_text("%s/a\"é", folder));
    check_setting(plan, "disk", "\"ÿ");
    json_decref(plan);
}
