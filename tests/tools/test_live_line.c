/* The last line of a terminal: never as long as that is wide, alive while nothing is new, gone when
 * it is over; and not there at all where there is no terminal. */
#include "terminal.h"
#include "tools/live_line.h"

static const live_field fields[] = {
    {"step 1/9", 0}, {"loss 2.5", 0}, {"", 9}, {"memory", 3}, {"rate", 1}, {"time", 2},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static void check_fit(unsigned columns, const char *expected)
{
    char text[LIVE_LINE_BYTES];
    live_line_fit(fields, FIELDS, columns, text);
    if (strcmp(text, expected) != 0) {
        TEST_FAIL("%u columns: \"%s\", expected \"%s\"", columns, text, expected);
    }
}

TEST(what_matters_least_is_left_out_first)
{
    check_fit(0, "step 1/9  loss 2.5  memory  rate  time");
    check_fit(39, "step 1/9  loss 2.5  memory  rate  time");
    check_fit(38, "step 1/9  loss 2.5  rate  time");
    check_fit(31, "step 1/9  loss 2.5  rate  time");
    check_fit(30, "step 1/9  loss 2.5  rate");
    check_fit(24, "step 1/9  loss 2.5");
    check_fit(19, "step 1/9  loss 2.5");
    check_fit(18, "step 1/9  loss 2.");
    check_fit(2, "s");
    check_fit(1, "");
}

/* A stream on the program's end of a terminal. */
static FILE *open_stream(unsigned columns, int *screen)
{
    int ends[2];
    terminal_open(columns, ends);
    *screen = ends[0];
    FILE *file = fdopen(ends[1], "w");
    CHECK(file != NULL);
    return file;
}

TEST(it_counts_the_seconds_by_itself_and_goes)
{
    for (unsigned columns = 12; columns <= 80; columns += 17) {
        int end = -1;
        FILE *file = open_stream(columns, &end);
        CHECK_EQ(live_line_columns(file), columns);
        live_line *line = live_line_open(file);
        CHECK(line != NULL);
        live_line_show(line, fields, FIELDS);
        usleep(1900000); /* less than two seconds, and most of one for a thread that is late */
        live_line_clear(line);
        CHECK(fputs("a row\n", file) >= 0);
        live_line_say(line, "again %d", 7);
        live_line_close(line);
        CHECK_EQ(fclose(file), 0);
        char *text = terminal_read(end);
        char *screen = terminal_screen(text, columns);
        CHECK(strstr(text, "\rstep ") != NULL && strstr(text, "\ragain 7") != NULL);
        CHECK(columns < 29 || strstr(text, "loss 2.5  +1 s") != NULL ||
              strstr(text, "  +1 s\033[K") != NULL);
        if (strcmp(screen, "a row\n") != 0) {
            TEST_FAIL("%u columns: left on the screen: \"%s\"", columns, screen);
        }
        free(screen);
        free(text);
    }
}

/* Draws into a terminal whose width changes. */
TEST(the_width_is_asked_each_time)
{
    int ends[2];
    terminal_open(80, ends);
    FILE *file = fdopen(ends[1], "w");
    live_line *line = live_line_open(file);
    CHECK(line != NULL);
    const struct winsize narrow = {.ws_row = 24, .ws_col = 20};
    CHECK_EQ(ioctl(fileno(file), TIOCSWINSZ, &narrow), 0);
    live_line_show(line, fields, FIELDS);
    live_line_close(line);
    CHECK_EQ(fclose(file), 0);
    char *text = terminal_read(ends[0]);
    free(terminal_screen(text, 20));
    free(text);
}

TEST(long_lines_go_on_at_a_blank)
{
    static const char text[] = "one two three four five six seven eight nine ten\n"
                               "awordthatislongerthanthewholeterminaliswide\n\nend";
    for (unsigned columns = 20; columns <= 60; columns += 20) {
        int end = -1;
        FILE *file = open_stream(columns, &end);
        live_line_wrap(file, columns, text);
        CHECK_EQ(fclose(file), 0);
        char *drawn = terminal_read(end);
        char *screen = terminal_screen(drawn, columns);
        CHECK(columns != 20 ||
              strcmp(screen,
                     "one two three four\n    five six seven\n    eight nine ten\n"
                     "awordthatislongerth\n    anthewholetermi\n    naliswide\n\nend") == 0);
        CHECK(columns != 60 || strcmp(screen, text) == 0);
        free(screen);
        free(drawn);
    }
}

TEST(without_a_terminal_there_is_none)
{
    char path[] = "/tmp/live-line-XXXXXX";
    const int end = mkstemp(path);
    FILE *file = fdopen(end, "w+");
    CHECK(file != NULL && unlink(path) == 0);
    CHECK_EQ(live_line_columns(file), 0);
    CHECK(live_line_open(file) == NULL);
    live_line_show(NULL, fields, FIELDS);
    live_line_say(NULL, "nothing");
    live_line_clear(NULL);
    live_line_close(NULL);
    live_line_wrap(file, 0,
                   "a line that is longer than many terminals would be wide, and stays one\n");
    CHECK_EQ(ftell(file), 71);
    CHECK_EQ(fclose(file), 0);
}

/* `zero bench` says what it measures, on a terminal only; the table is all that is left. */
TEST(a_benchmark_says_what_it_measures)
{
    char program[4096];
    snprintf(program, sizeof program, "%s", getenv("ZERO_PROGRAM"));
    char *argv[] = {program, "bench", "hooks", "step", "--tiny", NULL};
    char *text = NULL;
    const int code = terminal_run(80, argv, &text);
    char *screen = terminal_screen(text, 80);
    if (code != 0 || strstr(text, "\r1 of 2: step  stage 0") == NULL ||
        strstr(text, "\r2 of 2: hooks") == NULL) {
        TEST_FAIL("status %d: %s", code, text);
    }
    CHECK(strstr(screen, " of 2: ") == NULL && strstr(screen, "hook_ns") != NULL);
    free(screen);
    free(text);
    FILE *pipe = popen("\"$ZERO_PROGRAM\" bench hooks --tiny 2>&1", "r");
    CHECK(pipe != NULL);
    for (int at = getc(pipe); at != EOF; at = getc(pipe)) {
        CHECK(at != '\r' && at != '\033');
    }
    CHECK_EQ(pclose(pipe), 0);
}
