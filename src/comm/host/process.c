/* Owns reading a process's state from /proc. Without /proc every process but the caller counts as
 * ended, and the caller's start is 1. */
#include "comm/host/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/hash.h"

/* After the name, which ends with the line's last ')', the state is the first field, the parent the
 * second, the number of threads the 18th, the start time the 20th. */
#define FIELDS_TO_PARENT 1
#define FIELDS_TO_THREADS 17
#define FIELDS_TO_START 19

static uint64_t number_at(const char *field, int fields)
{
    for (int i = 0; i < fields && field != NULL; i++) {
        field = strchr(field + 1, ' ');
    }
    return field != NULL ? strtoull(field, NULL, 10) : 0;
}

/* Read the fields of a process after its name into `text`; NULL: there is no such process. */
static const char *read_fields(uint64_t pid, char *text, size_t text_bytes)
{
    char path[48];
    (void)snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    const ssize_t bytes = read(fd, text, text_bytes - 1);
    (void)close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    const char *field = strrchr(text, ')');
    return field != NULL && field[1] == ' ' ? field + 2 : "";
}

uint64_t zi_process_look(uint64_t pid, bool *stopped)
{
    if (stopped != NULL) {
        *stopped = false;
    }
    char text[1024];
    const char *field = read_fields(pid, text, sizeof text);
    if (field == NULL) {
        return pid == (uint64_t)getpid() ? 1 : 0;
    }
    if (field[0] == '\0') {
        return 0;
    }
    /* The thread that ran main alone is a zombie where it ends before the others. */
    const bool ended = strchr("ZXx", field[0]) != NULL && number_at(field, FIELDS_TO_THREADS) <= 1;
    if (stopped != NULL) {
        *stopped = strchr("Tt", field[0]) != NULL;
    }
    return ended ? 0 : number_at(field, FIELDS_TO_START);
}

uint64_t zi_process_start(uint64_t pid)
{
    return zi_process_look(pid, NULL);
}

bool zi_process_alive(uint64_t pid, uint64_t start)
{
    const uint64_t now = zi_process_start(pid);
    return now != 0 && now == start;
}

/* True if the process was started with the variable; false when that cannot be read. */
static bool started_with(uint64_t pid, const char *variable)
{
    char path[48];
    (void)snprintf(path, sizeof path, "/proc/%llu/environ", (unsigned long long)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    /* Entries NAME=VALUE, each with a zero behind it. */
    const size_t length = strlen(variable);
    size_t at = 0;
    bool same = true;
    bool found = false;
    for (int c = getc(file); c != EOF && !found; c = getc(file)) {
        if (c == '\0') {
            at = 0;
            same = true;
        } else if (same) {
            found = at == length && c == '=';
            same = at < length && c == variable[at];
            at++;
        }
    }
    (void)fclose(file);
    return found;
}

uint64_t zi_process_launcher(const char *variable)
{
    char text[1024];
    uint64_t pid = (uint64_t)getpid();
    do {
        const char *field = read_fields(pid, text, sizeof text);
        pid = field != NULL ? number_at(field, FIELDS_TO_PARENT) : 0;
    } while (pid != 0 && started_with(pid, variable));
    const uint64_t start = pid != 0 ? zi_process_start(pid) : 0;
    return start != 0 ? zi_hash_u64(zi_hash_u64(ZI_HASH_START, pid), start) : 0;
}
