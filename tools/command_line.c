/* Owns the reading of command lines. Invariant: whatever is not an option, a value of the kind that
 * was asked for, or a word is an error with a text; nothing is printed here. */
#include "command_line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 40
#define NAMES_MAX 128

command_line command_line_begin(int argc, char **argv, const struct option *options)
{
    optind = 0; /* also forgets where it was within the line before */
    opterr = 0;
    return (command_line){.argc = argc, .argv = argv, .options = options};
}

/* --- names ------------------------------------------------------------------------------------ */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to insert, remove, change or swap with their neighbour: Damerau and Levenshtein's
 * distance, no letter touched twice. Both are at most NAME_MAX_BYTES long. */
static size_t distance(const char *left, const char *right)
{
    size_t rows[3][NAME_MAX_BYTES + 1]; /* of the last three letters of `left` */
    const size_t width = strlen(right);
    const size_t height = strlen(left);
    for (size_t r = 0; r <= width; r++) {
        rows[0][r] = r;
    }
    for (size_t l = 1; l <= height; l++) {
        size_t *row = rows[l % 3];
        const size_t *above = rows[(l + 2) % 3];
        const size_t *second = rows[(l + 1) % 3];
        row[0] = l;
        for (size_t r = 1; r <= width; r++) {
            const size_t changed = above[r - 1] + (left[l - 1] != right[r - 1]);
            row[r] = least(changed, least(above[r], row[r - 1]) + 1);
            if (l > 1 && r > 1 && left[l - 1] == right[r - 2] && left[l - 2] == right[r - 1]) {
                row[r] = least(row[r], second[r - 2] + 1);
            }
        }
    }
    return rows[height % 3][width];
}

const char *command_line_nearest(const char *word, const char *const *names, size_t count)
{
    const size_t length = strlen(word);
    const char *nearest = NULL;
    size_t best = (length + 2) / 3 + 1; /* a third of the letters may be wrong */
    if (length > NAME_MAX_BYTES) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (strlen(names[i]) > NAME_MAX_BYTES) {
            continue;
        }
        const size_t apart = distance(word, names[i]);
        if (apart < best) {
            best = apart;
            nearest = names[i];
        }
    }
    return nearest;
}

void command_line_advice(const char *word, const char *const *names, size_t count,
                         const char *prefix, const char *help, char *text, size_t text_bytes)
{
    const char *nearest = command_line_nearest(word, names, count);
    if (nearest != NULL) {
        (void)snprintf(text, text_bytes, "; did you mean \"%s%s\"?", prefix, nearest);
    } else {
        (void)snprintf(text, text_bytes, "; %s lists them all", help);
    }
}

/* --- options ---------------------------------------------------------------------------------- */

static const char *name_of(const command_line *line, int val)
{
    const struct option *row = line->options;
    while (row->name != NULL && row->val != val) {
        row++;
    }
    return row->name;
}

/* `word` is "--name" or "--name=value" of an option that there is not. */
static void explain_unknown(command_line *line, const char *word)
{
    const char *names[NAMES_MAX];
    size_t count = 0;
    for (const struct option *row = line->options; row->name != NULL && count < NAMES_MAX; row++) {
        names[count++] = row->name;
    }
    char name[NAME_MAX_BYTES + 2]; /* one more than a name may have, so that it is close to none */
    char advice[NAME_MAX_BYTES + 32];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    command_line_advice(name, names, count, "--", "--help", advice, sizeof advice);
    (void)snprintf(line->error, sizeof line->error, "unknown option \"--%.100s\"%s", name, advice);
}

int command_line_next(command_line *line, const char **value)
{
    /* '-': words come in their turn; ':': a missing value is told from an unknown name. */
    const int found = line->over ? COMMAND_LINE_END
                                 : getopt_long(line->argc, line->argv, "-:h", line->options, NULL);
    *value = optarg;
    if (found == COMMAND_LINE_END) {
        line->over = true;
        *value = optind < line->argc ? line->argv[optind++] : NULL;
        return *value != NULL ? COMMAND_LINE_WORD : COMMAND_LINE_END;
    }
    if (found != ':' && found != '?') {
        return found;
    }
    const char *name = optopt >= COMMAND_LINE_OPTIONS || optopt == COMMAND_LINE_HELP
                           ? name_of(line, optopt)
                           : NULL;
    if (name != NULL) {
        (void)snprintf(line->error, sizeof line->error, "--%s %s", name,
                       found == ':' ? "needs a value" : "takes no value");
    } else if (optopt != 0) {
        (void)snprintf(line->error, sizeof line->error,
                       "unknown option \"-%c\"; --help lists them all", optopt);
    } else {
        explain_unknown(line, line->argv[optind - 1]);
    }
    return COMMAND_LINE_BAD;
}

/* --- values ----------------------------------------------------------------------------------- */

/* strtoull alone would take signs and blanks. */
static bool read_digits(const char *text, uint64_t *value, const char **end)
{
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    char *stop = NULL;
    errno = 0;
    *value = strtoull(text, &stop, 10);
    *end = stop;
    return errno == 0;
}

bool command_line_whole(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    const char *end = "";
    return read_digits(text, value, &end) && *end == '\0' && *value >= low && *value <= high;
}

bool command_line_bytes(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMG";
    const char *end = "";
    if (!read_digits(text, bytes, &end)) {
        return false;
    }
    if (*end == '\0') {
        return true;
    }
    const char *at = strchr(units, *end);
    const uint32_t shift = at == NULL ? 0 : 10 * (uint32_t)(at - units + 1);
    if (at == NULL || end[1] != '\0' || *bytes > UINT64_MAX >> shift) {
        return false;
    }
    *bytes <<= shift;
    return true;
}
