/* Files that hold together after each addition: what closes them, what a failed addition leaves,
 * and what is no file. */
#include "gpt2_file.h"
#include "harness.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char path[64];

static gpt2_file open_new(void)
{
    gpt2_file file;
    gpt2_error error = {""};
    snprintf(path, sizeof path, "/tmp/gpt2-file-XXXXXX");
    const int made = mkstemp(path);
    CHECK(made >= 0 && write(made, "what was there before", 21) == 21 && close(made) == 0);
    CHECK(gpt2_file_open(&file, path, 0, &error));
    return file;
}

static void check_holds(const char *expected)
{
    char text[256] = "";
    const int file = open(path, O_RDONLY | O_NONBLOCK);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) >= 0 && close(file) == 0);
    if (strcmp(text, expected) != 0) {
        TEST_FAIL("it holds \"%s\", expected \"%s\"", text, expected);
    }
}

static void add(gpt2_file *file, const char *text, const char *closing)
{
    gpt2_error error = {""};
    if (!gpt2_file_add(file, text, strlen(text), closing, &error)) {
        TEST_FAIL("%s: %s", text, error.text);
    }
}

TEST(what_closes_it_moves_behind_each_addition)
{
    gpt2_error error = {""};
    gpt2_file file = open_new();
    check_holds("");
    add(&file, "[", " ]   ");
    check_holds("[ ]   ");
    add(&file, "1", "]"); /* both are shorter than what closed it */
    check_holds("[1]");
    add(&file, ",2", "]\n");
    check_holds("[1,2]\n");
    add(&file, "]", "");
    check_holds("[1,2]");
    CHECK(gpt2_file_close(&file, &error));
    CHECK(gpt2_file_close(&file, &error)); /* once more is nothing */
    check_holds("[1,2]");
    CHECK_EQ(unlink(path), 0);
}

TEST(an_addition_that_fails_leaves_what_was_there)
{
    const struct rlimit limit = {10, 10};
    gpt2_error error = {""};
    gpt2_file file = open_new();
    (void)signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    add(&file, "[1,2", "]}\n");
    CHECK(!gpt2_file_add(&file, ",3,4,5,6", 8, "]}\n", &error));
    CHECK(strstr(error.text, path) != NULL && strstr(error.text, "File too large") != NULL);
    check_holds("[1,2]}\n");
    CHECK(gpt2_file_add(&file, "x", 1, "", &error)); /* it is no file any more */
    CHECK(gpt2_file_close(&file, &error));
    check_holds("[1,2]}\n");
    CHECK_EQ(unlink(path), 0);
}

TEST(no_path_is_no_file)
{
    gpt2_file file;
    gpt2_error error = {""};
    CHECK(gpt2_file_open(&file, NULL, 0, &error));
    CHECK_EQ(file.file, -1);
    add(&file, "text", "");
    CHECK(gpt2_file_close(&file, &error));
}

TEST(what_cannot_be_written_is_refused)
{
    gpt2_file file;
    gpt2_error error = {""};
    CHECK(!gpt2_file_open(&file, "/nonexistent/file", 0, &error));
    CHECK(strcmp(error.text, "cannot write /nonexistent/file: No such file or directory") == 0);
    CHECK_EQ(file.file, -1);
    CHECK(!gpt2_file_open(&file, "/tmp", 0, &error));
    CHECK(strcmp(error.text, "cannot write /tmp: Is a directory") == 0);
    file = open_new();
    CHECK(gpt2_file_close(&file, &error));
    CHECK_EQ(unlink(path) + mkfifo(path, 0600), 0);
    CHECK(!gpt2_file_open(&file, path, 0, &error));
    CHECK(strstr(error.text, "it is a pipe or device that nobody reads") != NULL);
    CHECK_EQ(unlink(path), 0);
}

/* A pipe cannot go back: what closes it comes once, at the end. */
TEST(a_pipe_is_closed_at_the_end)
{
    char text[64] = "";
    gpt2_error error = {""};
    gpt2_file file = open_new();
    CHECK(gpt2_file_close(&file, &error));
    CHECK_EQ(unlink(path) + mkfifo(path, 0600), 0);
    const int reader = open(path, O_RDONLY | O_NONBLOCK);
    CHECK(reader >= 0 && gpt2_file_open(&file, path, 0, &error));
    add(&file, "[1", "]");
    add(&file, ",2", "]\n");
    CHECK(gpt2_file_close(&file, &error));
    CHECK(read(reader, text, sizeof text - 1) == 6 && strcmp(text, "[1,2]\n") == 0);
    CHECK_EQ(close(reader) + unlink(path), 0);
}
