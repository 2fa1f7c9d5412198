/* gpt2_train on terminals of several widths: nothing wraps, nothing stale is left, and what it says
 * of a step is there where there is room. */
#include "gpt2_program.h"
#include "terminal.h"

/* The screen at the end; *text: all that was drawn. The caller frees both. */
static char *screen_of(unsigned columns, const char *options, char **text)
{
    const char *line = with_model(test_text("--ranks 2 %s", options));
    const int code = terminal_run(columns, split(line), text);
    if (code != 0) {
        TEST_FAIL("%u columns, %s: status %d: %s", columns, options, code, *text);
    }
    return terminal_screen(*text, columns);
}

static uint32_t rows_with(const char *screen, const char *start)
{
    uint32_t count = 0;
    for (const char *row = screen; row != NULL; row = strchr(row, '\n')) {
        row += *row == '\n' ? 1 : 0;
        count += strncmp(row, start, strlen(start)) == 0;
    }
    return count;
}

TEST(steps_fit_any_terminal)
{
    begin();
    char options[512];
    snprintf(options, sizeof options,
             "--steps 9 --val-every 3 --memory --master-tier disk --moment-tier disk "
             "--extent-bytes 16K --disk %s",
             folder);
    static const unsigned widths[] = {16, 40, 60, 80, 100, 132, 250};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        const unsigned columns = widths[i];
        char *text = NULL;
        /* The table of --memory has 57 columns. */
        char *screen =
            screen_of(columns, columns < 60 ? "--steps 9 --val-every 3" : options, &text);
        CHECK_EQ(rows_with(screen, "step "), 3);
        CHECK_EQ(rows_with(screen, "step    3/9"), 1);
        CHECK_EQ(rows_with(screen, "step    9/9"), 1);
        CHECK(strstr(screen, "validating") == NULL && strstr(screen, "initial") == NULL);
        CHECK(columns < 40 || strstr(screen, "  loss ") != NULL);
        CHECK(columns < 60 || (strstr(screen, " at 3  ") != NULL && strstr(screen, "ETA ")));
        CHECK(columns < 100 || strstr(screen, "  compute ") || strstr(screen, ", compute "));
        CHECK(columns < 250 || strstr(screen, " ms/step  ") != NULL);
        CHECK(strstr(text, "reading the data") != NULL || columns < 18);
        free(screen);
        free(text);
    }
}

TEST(a_plan_fits_eighty_columns)
{
    begin();
    char *text = NULL;
    char *screen = screen_of(80,
                             "--plan --preset gpt2-124m --param-tier disk --grad-tier disk "
                             "--master-tier disk --moment-tier disk --speculative",
                             &text);
    CHECK_EQ(rows_with(screen, "total "), 1);
    CHECK(rows_with(screen, "    ") >= 1); /* lines that were too long */
    free(screen);
    free(text);
}

/* Nothing but lines goes to a pipe or a file. */
TEST(without_a_terminal_there_are_plain_lines)
{
    begin();
    run_well("--ranks 2 --steps 9 --val-every 3 --log-every 1");
    CHECK(strchr(output, '\r') == NULL && strchr(output, '\033') == NULL);
    CHECK_EQ(rows_with(output, "step "), 9);
    CHECK(strstr(output, "validating") == NULL);
    CHECK(strstr(output, "step    5/9") != NULL && strstr(output, " at 3  ") != NULL);
}

/* An error is said on a line of its own. */
TEST(an_error_stands_alone)
{
    begin();
    char *text = NULL;
    const char *line = test_text("--data %s --seq 60000 --width 4 --heads 1", text_path);
    CHECK_EQ(terminal_run(200, split(line), &text), 1);
    char *screen = terminal_screen(text, 200);
    CHECK(strncmp(screen, "gpt2_train: ", 12) == 0);
    free(screen);
    free(text);
}
