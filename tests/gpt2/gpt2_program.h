/* gpt2_train as a user runs it: a folder with a text, and the program started on it. Each test is a
 * process of its own, so the folder's names are globals. */
#ifndef TESTS_GPT2_PROGRAM_H
#define TESTS_GPT2_PROGRAM_H

#include "harness.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { TEXT_BYTES = 6000, OUTPUT_MAX = 1 << 16, ARGS_MAX = 64 };

static char folder[64];
static char text_path[96];
static char output_path[96];
static char csv[96]; /* for the program to write */
static char json[96];
static char output[OUTPUT_MAX]; /* standard output and error of the last run */

/* Some sentences with structure to learn. */
static inline void make_text(char *text)
{
    static const char *const words[] = {"the ", "light ", "and ", "earth ", "of ", "water ",
                                        "was ", "day ",   "he ",  "said ",  ". ",  "night "};
    size_t used = 0;
    for (uint32_t i = 0; used < TEXT_BYTES; i++) {
        const uint32_t pick = i * 2654435761u >> 20;
        const char *word = words[(pick ^ i) % 12];
        const size_t length = strlen(word);
        const size_t part = TEXT_BYTES - used < length ? TEXT_BYTES - used : length;
        memcpy(text + used, word, part);
        used += part;
    }
}

static inline void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
}

static inline void end(void)
{
    (void)unlink(text_path);
    (void)unlink(output_path);
    (void)unlink(csv);
    (void)unlink(json);
    CHECK_EQ(rmdir(folder), 0);
}

/* The folder, to the end of the test. */
static inline void begin(void)
{
    char text[TEXT_BYTES];
    make_text(text);
    snprintf(folder, sizeof folder, "/tmp/gpt2-train-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(text_path, sizeof text_path, "%s/text", folder);
    snprintf(output_path, sizeof output_path, "%s/output", folder);
    snprintf(csv, sizeof csv, "%s/csv", folder);
    snprintf(json, sizeof json, "%s/json", folder);
    write_file(text_path, text, sizeof text);
    CHECK_EQ(atexit(end), 0);
}

static inline void read_text(const char *path, char *text)
{
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    const size_t count = fread(text, 1, OUTPUT_MAX - 1, file);
    CHECK(count < OUTPUT_MAX - 1);
    text[count] = '\0';
    CHECK_EQ(fclose(file), 0);
}

/* The environment of a launcher of `count` processes on this host. */
static inline void launch_environment(const char *count)
{
    char port[16];
    snprintf(port, sizeof port, "%d", 20000 + (int)(getpid() % 30000));
    CHECK_EQ(setenv("WORLD_SIZE", count, 1) + setenv("LOCAL_WORLD_SIZE", count, 1), 0);
    CHECK_EQ(setenv("MASTER_ADDR", "127.0.0.1", 1) + setenv("MASTER_PORT", port, 1), 0);
}

/* The program's words: those of `line`, separated by spaces. */
static inline char *const *split(const char *line)
{
    static char copy[2048];
    static char program[] = GPT2_TRAIN;
    static char *words[ARGS_MAX];
    int count = 0;
    words[count++] = program;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *at = strtok(copy, " "); at != NULL && count + 1 < ARGS_MAX; at = strtok(NULL, " ")) {
        words[count++] = at;
    }
    words[count] = NULL;
    return words;
}

/* Replaces the child by the program. */
static inline void execute(const char *line, const char *rank)
{
    const int file = open(output_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK(file >= 0 && dup2(file, 1) == 1 && dup2(file, 2) == 2);
    if (rank != NULL) {
        CHECK_EQ(setenv("RANK", rank, 1) + setenv("LOCAL_RANK", rank, 1), 0);
    }
    execv(GPT2_TRAIN, split(line));
    _exit(126);
}

static inline int wait_for(pid_t child)
{
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

/* A small model, on the test's text. */
static inline const char *with_model(const char *options)
{
    return test_text("--data %s --layers 2 --heads 2 --width 32 --seq 32 --batch 8 --val-batches 2 "
                     "--threads 1 %s",
                     text_path, options);
}

/* Starts the program on the test's text. rank: of a launcher, whose environment is set; NULL: none.
 */
static inline pid_t start(const char *options, const char *rank)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)alarm(100); /* a program that waits for ever ends, with a status of its own */
        execute(with_model(options), rank);
    }
    return child;
}

/* Exit status, or 128 + signal; what was printed goes to `output`. */
static inline int finish(pid_t child)
{
    const int code = wait_for(child);
    read_text(output_path, output);
    return code;
}

static inline int run(const char *options)
{
    (void)unlink(output_path);
    return finish(start(options, NULL));
}

static inline void run_well(const char *options)
{
    const int code = run(options);
    if (code != 0) {
        TEST_FAIL("%s: status %d: %s", options, code, output);
    }
}

/* A command of the shell, whose output goes to `output`; its exit status. */
static inline int run_shell(const char *command)
{
    const int state = system(test_text("%s > %s 2>&1", command, output_path));
    read_text(output_path, output);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128;
}

/* The text that follows `mark`, which must be there. */
static inline const char *after(const char *text, const char *mark)
{
    const char *at = strstr(text, mark);
    if (at == NULL) {
        TEST_FAIL("no \"%s\" in: %s", mark, text);
    }
    return at + strlen(mark);
}

static inline void check_output(const char *text)
{
    (void)after(output, text);
}

/* Status 1, and one line with `text`. */
static inline void check_refused(const char *options, const char *text)
{
    const int code = run(options);
    if (code != 1 || strstr(output, text) == NULL) {
        TEST_FAIL("%s: status %d, expected 1 and \"%s\": %s", options, code, text, output);
    }
    CHECK(strncmp(output, "gpt2_train: ", 12) == 0);
    CHECK(strchr(output, '\n') == output + strlen(output) - 1);
}

#endif
