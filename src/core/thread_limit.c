/* Owns the reading of limits on threads. What cannot be read is no limit. */
#include "core/thread_limit.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The start of a file as text; false where it cannot be read. */
static bool thread_limit_read_text(const char *path, char *text, size_t text_bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    const ssize_t bytes = read(fd, text, text_bytes - 1);
    (void)close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0;
}

static void lower(zi_limit *limit, uint64_t most, const char *by)
{
    if (most != 0 && most < limit->most) {
        *limit = (zi_limit){most, by};
    }
}

static void lower_by_file(zi_limit *limit, const char *path, uint64_t per_thread, const char *by)
{
    char text[32];
    if (thread_limit_read_text(path, text, sizeof text)) {
        lower(limit, strtoull(text, NULL, 10) / per_thread, by); /* "max" reads as 0: none */
    }
}

/* The cgroup's own limit; those above it may be lower. */
static void lower_by_cgroup(zi_limit *limit)
{
    static const char by[] = "pids.max of the cgroup; raise it (docker --pids-limit, "
                             "systemd TasksMax)";
    char groups[4096];
    if (!thread_limit_read_text("/proc/self/cgroup", groups, sizeof groups)) {
        return;
    }
    char *rest = groups;
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        /* "0::/path" of version 2, "8:pids:/path" of version 1. */
        const char *path = strchr(line, '/');
        const bool second = strncmp(line, "0::", 3) == 0;
        char file[1100];
        if (path == NULL || (!second && strstr(line, ":pids:") == NULL)) {
            continue;
        }
        (void)snprintf(file, sizeof file, "/sys/fs/cgroup%s%.1000s/pids.max", second ? "" : "/pids",
                       path);
        lower_by_file(limit, file, 1, by);
    }
}

zi_limit zi_limit_threads(void)
{
    zi_limit limit = {UINT64_MAX, "nothing"};
    struct rlimit processes;
    lower_by_file(&limit, "/proc/sys/kernel/threads-max", 1, "sysctl kernel.threads-max; raise it");
    lower_by_file(&limit, "/proc/sys/kernel/pid_max", 1, "sysctl kernel.pid_max; raise it");
    /* A thread's stack and the page that guards it. */
    lower_by_file(&limit, "/proc/sys/vm/max_map_count", 2, "sysctl vm.max_map_count; raise it");
    if (geteuid() != 0 && getrlimit(RLIMIT_NPROC, &processes) == 0) {
        lower(&limit, processes.rlim_cur, "the user's limit on processes; raise it (ulimit -u)");
    }
    lower_by_cgroup(&limit);
    return limit;
}
