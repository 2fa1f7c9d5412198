/* How command lines are read: every way of writing an option, what is no option, and what a mistake
 * is told. */
#include "harness.h"
#include "tools/command_line.h"

enum { STEPS = COMMAND_LINE_OPTIONS, PLAN, PRESET, PREFIX, WORDS_MAX = 16 };

static const struct option options[] = {
    {"help", no_argument, NULL, COMMAND_LINE_HELP},
    {"steps", required_argument, NULL, STEPS},
    {"plan", no_argument, NULL, PLAN},
    {"preset", required_argument, NULL, PRESET},
    {"pre", required_argument, NULL, PREFIX},
    {0},
};

/* A line whose words are separated by single blanks. */
typedef struct words {
    char text[128];
    char *argv[WORDS_MAX + 1];
    int argc;
} words;

static command_line begin(words *self, const char *text)
{
    char *rest = NULL;
    snprintf(self->text, sizeof self->text, "program %s", text);
    self->argc = 0;
    for (char *at = strtok_r(self->text, " ", &rest); at != NULL; at = strtok_r(NULL, " ", &rest)) {
        CHECK(self->argc < WORDS_MAX);
        self->argv[self->argc++] = at;
    }
    self->argv[self->argc] = NULL;
    return command_line_begin(self->argc, self->argv, options);
}

/* The next thing of the line; value: NULL where there is none. */
static void check_next(command_line *line, int expected, const char *value)
{
    const char *found = NULL;
    CHECK_EQ(command_line_next(line, &found), expected);
    if ((found == NULL) != (value == NULL) || (value != NULL && strcmp(found, value) != 0)) {
        TEST_FAIL("value %s, expected %s", found == NULL ? "NULL" : found,
                  value == NULL ? "NULL" : value);
    }
}

static void check_bad(const char *text, const char *message)
{
    words own;
    const char *value = NULL;
    command_line line = begin(&own, text);
    CHECK_EQ(command_line_next(&line, &value), COMMAND_LINE_BAD);
    if (strcmp(line.error, message) != 0) {
        TEST_FAIL("%s: \"%s\", expected \"%s\"", text, line.error, message);
    }
}

TEST(options_and_words_come_in_their_order)
{
    words own;
    command_line line = begin(&own, "first --steps 3 --plan second --steps=4 -h --preset=");
    check_next(&line, COMMAND_LINE_WORD, "first");
    check_next(&line, STEPS, "3");
    check_next(&line, PLAN, NULL);
    check_next(&line, COMMAND_LINE_WORD, "second");
    check_next(&line, STEPS, "4");
    check_next(&line, COMMAND_LINE_HELP, NULL);
    check_next(&line, PRESET, "");
    check_next(&line, COMMAND_LINE_END, NULL);
}

/* A line is read to its end, or left in the middle, and the next one begins anew. */
TEST(a_line_begins_anew)
{
    words own;
    command_line line = begin(&own, "--plan --steps 3");
    check_next(&line, PLAN, NULL);
    line = begin(&own, "--steps 5");
    check_next(&line, STEPS, "5");
    check_next(&line, COMMAND_LINE_END, NULL);
    line = begin(&own, "");
    check_next(&line, COMMAND_LINE_END, NULL);
}

TEST(values_and_words_may_look_like_options)
{
    words own;
    command_line line = begin(&own, "--steps --plan --preset -1 -- --steps -h");
    check_next(&line, STEPS, "--plan");
    check_next(&line, PRESET, "-1");
    check_next(&line, COMMAND_LINE_WORD, "--steps");
    check_next(&line, COMMAND_LINE_WORD, "-h");
    check_next(&line, COMMAND_LINE_END, NULL);
}

TEST(names_may_be_shortened_while_they_are_unique)
{
    words own;
    command_line line = begin(&own, "--st 1 --pl --pre 2 --pres 3");
    check_next(&line, STEPS, "1");
    check_next(&line, PLAN, NULL);
    check_next(&line, PREFIX, "2"); /* a whole name, though another one begins so */
    check_next(&line, PRESET, "3");
    check_bad("--p 1", "unknown option \"--p\"; --help lists them all");
}

TEST(mistakes_are_named)
{
    check_bad("--steps", "--steps needs a value");
    check_bad("--plan=yes", "--plan takes no value");
    check_bad("--help=yes", "--help takes no value");
    check_bad("-x", "unknown option \"-x\"; --help lists them all");
    check_bad("--frobnicate=1", "unknown option \"--frobnicate\"; --help lists them all");
    check_bad("--prest=gpt2", "unknown option \"--prest\"; did you mean \"--preset\"?");
    check_bad("--setps 3", "unknown option \"--setps\"; did you mean \"--steps\"?");
    check_bad("--plann", "unknown option \"--plann\"; did you mean \"--plan\"?");
}

TEST(a_long_unknown_name_is_cut)
{
    char name[400];
    char *argv[] = {name, name, NULL};
    memset(name, 'a', sizeof name - 1);
    name[0] = '-';
    name[1] = '-';
    name[sizeof name - 1] = '\0';
    const char *value = NULL;
    command_line line = command_line_begin(2, argv, options);
    CHECK_EQ(command_line_next(&line, &value), COMMAND_LINE_BAD);
    CHECK(strncmp(line.error, "unknown option \"--aaaa", 22) == 0);
    CHECK(strstr(line.error, "; --help lists them all") != NULL);
}

TEST(the_nearest_name_is_near)
{
    static const char *const names[] = {"bench", "io", "adam", "hooks"};
    static const struct {
        const char *word;
        const char *nearest;
    } rows[] = {{"bnch", "bench"}, {"benhc", "bench"}, {"ioo", "io"},   {"adamw", "adam"},
                {"hook", "hooks"}, {"xyz", NULL},      {"bcnhe", NULL}, {"", NULL}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const char *nearest = command_line_nearest(rows[r].word, names, 4);
        if (nearest != rows[r].nearest &&
            (nearest == NULL || rows[r].nearest == NULL || strcmp(nearest, rows[r].nearest) != 0)) {
            TEST_FAIL("%s: %s", rows[r].word, nearest == NULL ? "none" : nearest);
        }
    }
}

TEST(numbers_are_digits_within_bounds)
{
    uint64_t value = 0;
    CHECK(command_line_whole("0", 0, 5, &value) && value == 0);
    CHECK(command_line_whole("5", 0, 5, &value) && value == 5);
    CHECK(command_line_whole("18446744073709551615", 0, UINT64_MAX, &value));
    CHECK_EQ(value, UINT64_MAX);
    static const char *const wrong[] = {
        "", " 1", "1 ", "+1", "-1", "0x1", "1.0", "1e1", "6", "18446744073709551616", "1K", "nan"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (command_line_whole(wrong[i], 0, 5, &value)) {
            TEST_FAIL("\"%s\" was taken", wrong[i]);
        }
    }
    CHECK(!command_line_whole("0", 1, 5, &value));
}

TEST(bytes_have_units)
{
    uint64_t bytes = 0;
    CHECK(command_line_bytes("7", &bytes) && bytes == 7);
    CHECK(command_line_bytes("7K", &bytes) && bytes == 7168);
    CHECK(command_line_bytes("7M", &bytes) && bytes == 7 << 20);
    CHECK(command_line_bytes("16G", &bytes) && bytes == (uint64_t)16 << 30);
    static const char *const wrong[] = {"", "K", "1k", "1KK", "1 K", "-1K", "1KB", "99999999999G"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (command_line_bytes(wrong[i], &bytes)) {
            TEST_FAIL("\"%s\" was taken", wrong[i]);
        }
    }
}
