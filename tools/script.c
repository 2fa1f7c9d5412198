/* Owns how `zero` finds and starts its Python scripts. They lie beside the program in a build tree
 * and below the library's folder in an installation, whichever place that was moved to. */
#include "script.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "bench_child.h"

/* Below the program's own folder; meson makes the first one. ZERO_SCRIPTS: tools/meson.build. */
static const char *const script_folders[] = {"zero-python", ZERO_SCRIPTS};

/* The program's folder, with a '/' at its end. */
static bool find_program(char folder[PATH_MAX])
{
    const ssize_t bytes = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    if (bytes <= 0) {
        return false;
    }
    folder[bytes] = '\0';
    strrchr(folder, '/')[1] = '\0';
    return true;
}

/* The file that Python is to run, start.py. */
static bool find_start(char start[PATH_MAX])
{
    char program[PATH_MAX];
    if (!find_program(program)) {
        return false;
    }
    for (size_t i = 0; i < sizeof script_folders / sizeof script_folders[0]; i++) {
        const char *folder = script_folders[i];
        const int bytes =
            snprintf(start, PATH_MAX, "%s%s/start.py", folder[0] == '/' ? "" : program, folder);
        if (bytes < PATH_MAX && access(start, R_OK) == 0) {
            return true;
        }
    }
    return false;
}

/* The line that starts a module, with `start` among its words; NULL after bench_fail. */
static const char **make_line(const char *module, int argc, char **argv, char start[PATH_MAX])
{
    /* These use Python's library alone: a user's own settings of Python are not for them. */
    static const char *const first[] = {"python3", "-BEsS", "-Xutf8"};
    enum { FIRST = sizeof first / sizeof first[0] };
    if (!find_start(start)) {
        (void)bench_fail("the scripts of the program are not beside it, in %s; install it again",
                         ZERO_SCRIPTS);
        return NULL;
    }
    const char **words = calloc((size_t)argc + FIRST + 4, sizeof *words);
    if (words == NULL) {
        (void)bench_fail("no memory for the line");
        return NULL;
    }
    memcpy(words, first, sizeof first);
    words[FIRST] = start;
    words[FIRST + 1] = bench_speaker();
    words[FIRST + 2] = module;
    for (int i = 1; i < argc; i++) {
        words[FIRST + 2 + i] = argv[i];
    }
    return words;
}

static int fail_to_start(int reason)
{
    return reason == ENOENT
               ? bench_fail("it needs Python 3.11 or newer, and there is no python3; install it "
                            "(Debian: python3)")
               : bench_fail("python3 cannot be started: %s", strerror(reason));
}

int script_run(const char *speaker, const char *module, int argc, char **argv)
{
    char start[PATH_MAX];
    bench_speak_as(speaker);
    const char **words = make_line(module, argc, argv, start);
    if (words == NULL) {
        return 1;
    }
    (void)execvp(words[0], (char **)(uintptr_t)words);
    const int reason = errno;
    free(words);
    return fail_to_start(reason);
}

/* ---- reports ---- */

/* jansson writes no bytes that are no UTF-8. Each of these goes as a character of a range that
 * nobody uses, U+EF80 to U+EFFF, and output.py makes a byte of it again. */
static json_t *sendable_text(const char *text)
{
    json_t *whole = json_string(text);
    if (whole != NULL && strstr(text, "\xee\xbe") == NULL && strstr(text, "\xee\xbf") == NULL) {
        return whole;
    }
    json_decref(whole);
    char *sent = malloc(3 * strlen(text) + 1);
    size_t used = 0;
    for (const char *at = text; sent != NULL && *at != '\0'; at++) {
        const unsigned char byte = (unsigned char)*at;
        if (byte >= 0x80) {
            sent[used++] = '\xee';
            sent[used++] = byte < 0xc0 ? '\xbe' : '\xbf';
        }
        sent[used++] = (char)(byte >= 0xc0 ? byte - 0x40 : byte);
    }
    whole = sent != NULL ? json_stringn(sent, used) : NULL;
    free(sent);
    return whole;
}

/* Of all texts below; reports are not deep. 1: no memory. */
static int make_sendable(json_t *json)
{
    size_t i = 0;
    const char *key = NULL;
    json_t *value = NULL;
    int lost = 0;
    json_object_foreach(json, key, value)
    {
        const char *text = json_string_value(value);
        lost |= text != NULL ? json_object_set_new(json, key, sendable_text(text))
                             : make_sendable(value);
    }
    json_array_foreach(json, i, value)
    {
        const char *text = json_string_value(value);
        lost |=
            text != NULL ? json_array_set_new(json, i, sendable_text(text)) : make_sendable(value);
    }
    return lost;
}

/* The report as Python reads it; NULL after bench_fail. Its reference is taken. */
static char *sent_text(json_t *report)
{
    json_t *sent = json_deep_copy(report);
    char *text = sent != NULL && make_sendable(sent) == 0 ? json_dumps(sent, 0) : NULL;
    json_decref(sent);
    json_decref(report);
    if (text == NULL) {
        (void)bench_fail("no memory left for the report");
    }
    return text;
}

static int fail_without_python(void)
{
    return bench_fail("text is made by Python 3.11 or newer, and there is no python3; install it "
                      "(Debian: python3), or ask for JSON alone");
}

int script_check(void)
{
    char *version = NULL;
    const int status = child_version("python3", &version);
    free(version);
    return status == CHILD_MISSING || status == -ENOENT ? fail_without_python() : 0;
}

/* child_talk with a module; what could not be started or ended otherwise is a 1 after bench_fail.
 * Who asks for text can have JSON without Python. */
static int talk(const char *module, const char *word, json_t *report, char **text)
{
    char start[PATH_MAX];
    char *argv[] = {NULL, (char *)(uintptr_t)word};
    char *sent = sent_text(report);
    const char **words = sent != NULL ? make_line(module, word != NULL ? 2 : 1, argv, start) : NULL;
    const int status = words != NULL ? child_talk(words, sent, text) : 1;
    free(words);
    free(sent);
    if (status < 0) {
        return status == -ENOENT && text != NULL ? fail_without_python() : fail_to_start(-status);
    }
    return status >= 128 ? bench_fail("python3 was ended by signal %d", status - 128) : status;
}

char *script_text(const char *module, const char *word, json_t *report)
{
    char *text = NULL;
    if (talk(module, word, report, &text) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

int script_status(const char *module, const char *word, json_t *report)
{
    return talk(module, word, report, NULL);
}

int script_print(const char *module, const char *word, json_t *report)
{
    char *text = script_text(module, word, report);
    const bool refused = text != NULL && (fputs(text, stdout) < 0 || fflush(stdout) != 0);
    const int reason = errno;
    const bool lacking = text == NULL;
    free(text);
    return refused ? bench_fail("stdout cannot be written: %s", strerror(reason)) : lacking;
}
