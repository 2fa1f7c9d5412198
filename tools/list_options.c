/* `zero options`: the table of an engine's options (zero/option.h), of which a script makes a list
 * for people and the page docs/options.md. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "commands.h"
#include "line_table.h"
#include "out_file.h"
#include "script.h"
#include "zero/option.h"

static const char help[] =
    "usage: zero options [--markdown] [--json FILE]\n\n"
    "Lists the options of an engine: the fields of zero_engine_options, then those of\n"
    "zero_tuning, with their values, their defaults and what they do.\n\n"
    "  --markdown   as the page docs/options.md\n"
    "  --json FILE  write them as JSON too; - for stdout, without the list\n"
    "  --help       this text\n";

static json_t *choices_json(const zero_option *option)
{
    json_t *choices = json_array();
    for (uint32_t i = 0; i < option->choice_count; i++) {
        if (option->choices[i] != NULL) {
            (void)json_array_append_new(choices, json_string(option->choices[i]));
        }
    }
    return choices;
}

static json_t *option_json(const zero_option *option)
{
    static const char *const kinds[] = {
        [ZERO_OPTION_FLAG] = "flag",       [ZERO_OPTION_COUNT] = "count",
        [ZERO_OPTION_BYTES] = "bytes",     [ZERO_OPTION_NUMBER] = "number",
        [ZERO_OPTION_REAL] = "real",       [ZERO_OPTION_CHOICE] = "choice",
        [ZERO_OPTION_TIERS] = "tiers",     [ZERO_OPTION_GROUPS] = "groups",
        [ZERO_OPTION_POINTER] = "pointer", [ZERO_OPTION_TEXT] = "text"};
    const uint64_t most = option->bytes == sizeof(uint32_t) ? UINT32_MAX : UINT64_MAX;
    return json_pack("{s:s, s:b, s:s, s:s, s:I, s:o, s:o, s:s, s:b}", "name", option->name,
                     "tuning", (int)option->is_tuning, "text", option->text, "kind",
                     kinds[option->kind], "low", (json_int_t)option->low, "high",
                     option->high == most ? json_null() : json_integer((json_int_t)option->high),
                     "choices", choices_json(option), "default", option->fallback, "same_on_ranks",
                     (int)option->same_on_ranks);
}

static json_t *options_json(void)
{
    const zero_option *option = NULL;
    json_t *options = json_array();
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        (void)json_array_append_new(options, option_json(option));
    }
    return json_pack("{s:o}", "options", options);
}

typedef struct options_line {
    bool markdown;
    const char *json_path;
} options_line;

static int refuse_word(void *line, const char *value)
{
    (void)line;
    return bench_fail("\"%s\" is no option; --help lists them all", value);
}

int command_options(int argc, char **argv)
{
    static const line_row rows[] = {
        LINE_VALUE("markdown", LINE_FLAG, offsetof(options_line, markdown)),
        LINE_VALUE("json", LINE_TEXT, offsetof(options_line, json_path))};
    static const line_table table = {rows, 2, refuse_word};
    options_line line = {0};
    bench_speak_as("zero options");
    const int read = line_read(&table, argc, argv, &line, NULL);
    if (read != 0) {
        return read == LINE_HELP && fputs(help, stdout) >= 0 && fflush(stdout) == 0 ? 0 : 1;
    }
    const bool has_text = line.json_path == NULL || strcmp(line.json_path, "-") != 0;
    const char *form = line.markdown ? "page" : "list";
    int failed = has_text ? script_print("options_list", form, options_json()) : 0;
    if (line.json_path != NULL && !failed) {
        failed = out_json(options_json(), line.json_path);
    }
    return failed;
}
