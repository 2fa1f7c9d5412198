/* Owns how a file is written that is there whole or not at all. */
#include "out_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_report.h"

static FILE *open_anew(const char *path)
{
    const int file = bench_open_file(path);
    if (file >= 0 && ftruncate(file, 0) != 0 && errno != EINVAL) { /* of a pipe */
        (void)bench_fail("cannot write %s: %s", path, strerror(errno));
    }
    return file >= 0 ? fdopen(file, "w") : NULL;
}

static int write_file(const char *text, const char *end, const char *path)
{
    struct stat kind;
    FILE *file = open_anew(path);
    if (file == NULL) {
        return 1; /* it was said why */
    }
    int reason = fputs(text, file) < 0 || fputs(end, file) < 0 ? errno : 0;
    reason = fclose(file) != 0 && reason == 0 ? errno : reason;
    if (reason == 0) {
        return 0;
    }
    if (lstat(path, &kind) == 0 && S_ISREG(kind.st_mode)) {
        (void)unlink(path); /* half of it is of no use, and reads like a whole one */
    }
    return bench_fail("%s cannot be written: %s", path, strerror(reason));
}

int out_text(char *text, const char *path)
{
    const int failed = text == NULL || write_file(text, "", path) != 0;
    free(text);
    return failed;
}

int out_json(json_t *json, const char *path)
{
    char *text = json_dumps(json, JSON_INDENT(2));
    const int failed =
        text != NULL
            ? write_file(text, "\n", path)
            : bench_fail("%s cannot be written: no memory left, or a name is not UTF-8", path);
    free(text);
    json_decref(json);
    return failed;
}
