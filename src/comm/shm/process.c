/* Owns reading a process's state from /proc. Without /proc every process counts as gone but the
 * caller itself, whose start is then 1. */
#include "comm/shm/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The state's letter, the number of threads and the start time stand first, 18th and 20th after the
 * name, which ends with the last ')' of the line. */
#define FIELDS_TO_THREADS 17
#define FIELDS_TO_START 19

static uint64_t number_at(const char *field, int fields)
{
    for (int i = 0; i < fields && field != NULL; i++) {
        field = strchr(field + 1, ' ');
    }
    return field != NULL ? strtoull(field, NULL, 10) : 0;
}

uint64_t zi_process_start(uint64_t pid)
{
    char path[48];
    (void)snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return pid == (uint64_t)getpid() ? 1 : 0;
    }
    char text[1024];
    const ssize_t bytes = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    const char *field = strrchr(text, ')');
    if (field == NULL || field[1] != ' ') {
        return 0;
    }
    field += 2;
    /* The thread that ran main may end before the others: then it alone is a zombie. */
    const bool ended = strchr("ZXx", field[0]) != NULL && number_at(field, FIELDS_TO_THREADS) <= 1;
    return ended ? 0 : number_at(field, FIELDS_TO_START);
}

bool zi_process_alive(uint64_t pid, uint64_t start)
{
    const uint64_t now = zi_process_start(pid);
    return now != 0 && now == start;
}
