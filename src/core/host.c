/* Owns what is known of the host. Everything is read when it is asked for, since affinity belongs
 * to a thread and quotas change. What cannot be read limits nothing. */
#include "core/host.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/hash.h"
#include "core/sizes.h"

/* The kernel's own limit on x86 is 8192. */
#define CPUS_MAX 8192
#define PATH_BYTES 384

bool zi_host_read(const char *path, char *text, size_t text_bytes)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return false;
    }
    const ssize_t length = read(file, text, text_bytes - 1);
    (void)close(file);
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

uint64_t zi_host_id(void)
{
    char name[256] = "";
    char boot[64] = "";
    if (zi_host_read("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) {
        return zi_hash_text(ZI_HASH_START, boot);
    }
    (void)gethostname(name, sizeof name - 1);
    return zi_hash_text(ZI_HASH_START, name);
}

zi_cpu_pool zi_cpu_affinity(void)
{
    cpu_set_t sets[CPUS_MAX / CPU_SETSIZE];
    CPU_ZERO_S(sizeof sets, sets);
    if (sched_getaffinity(0, sizeof sets, sets) != 0) {
        const long online = sysconf(_SC_NPROCESSORS_ONLN);
        return (zi_cpu_pool){zi_host_id(), online > 0 ? (uint64_t)online : 1};
    }
    return (zi_cpu_pool){zi_hash_bytes(zi_host_id(), sets, sizeof sets),
                         (uint64_t)CPU_COUNT_S(sizeof sets, sets)};
}

/* --- quotas ----------------------------------------------------------------------------------- */

/* Microseconds of CPU time in so many of real time. false: no limit here. */
typedef bool (*quota_reader)(const char *folder, uint64_t *quota, uint64_t *period);

static bool read_v2(const char *folder, uint64_t *quota, uint64_t *period)
{
    char path[PATH_BYTES + 16];
    char text[64];
    (void)snprintf(path, sizeof path, "%s/cpu.max", folder);
    return zi_host_read(path, text, sizeof text) &&
           sscanf(text, "%" SCNu64 " %" SCNu64, quota, period) == 2;
}

static bool read_v1(const char *folder, uint64_t *quota, uint64_t *period)
{
    char path[PATH_BYTES + 32];
    char text[32];
    (void)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    /* -1: no limit. */
    if (!zi_host_read(path, text, sizeof text) || text[0] == '-' ||
        sscanf(text, "%" SCNu64, quota) != 1) {
        return false;
    }
    (void)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return zi_host_read(path, text, sizeof text) && sscanf(text, "%" SCNu64, period) == 1;
}

/* From `folder` up to its first `mount_chars` characters. A container may see its cgroup's files at
 * the mount alone, though the path is that of the host: what is not there limits nothing. */
static void least_quota(char *folder, size_t mount_chars, quota_reader read, zi_cpu_pool *pool)
{
    for (;;) {
        uint64_t quota = 0;
        uint64_t period = 0;
        struct stat found;
        if (read(folder, &quota, &period) && quota != 0 && period != 0 &&
            stat(folder, &found) == 0) {
            const uint64_t cpus = quota / period + (quota % period != 0);
            /* Of equal ones the upper: more processes share it. */
            if (cpus <= pool->cpus) {
                const uint64_t place = zi_hash_u64(zi_host_id(), (uint64_t)found.st_dev);
                *pool = (zi_cpu_pool){zi_hash_u64(place, (uint64_t)found.st_ino), cpus};
            }
        }
        char *last = strrchr(folder, '/');
        if (last == NULL || (size_t)(last - folder) < mount_chars) {
            return;
        }
        *last = '\0';
    }
}

/* Whether "cpu" is in a list such as "cpu,cpuacct". */
static bool lists_cpu(const char *list)
{
    for (const char *at = list; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        if (strcspn(at, ",") == 3 && strncmp(at, "cpu", 3) == 0) {
            return true;
        }
    }
    return false;
}

/* A line of /proc/self/cgroup: "number:controllers:path"; version 2 has no controllers. */
static void read_line(const char *root, char *line, zi_cpu_pool *pool)
{
    static const char *const mounts_v2[] = {"", "/unified"};
    static const char *const mounts_v1[] = {"/cpu", "/cpu,cpuacct"};
    char *list = strchr(line, ':');
    char *path = list != NULL ? strchr(list + 1, ':') : NULL;
    if (path == NULL) {
        return;
    }
    list++;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    const bool v2 = *list == '\0';
    if (!v2 && !lists_cpu(list)) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        char folder[PATH_BYTES];
        const int mount_chars = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root,
                                         v2 ? mounts_v2[i] : mounts_v1[i]);
        const int chars = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s", root,
                                   v2 ? mounts_v2[i] : mounts_v1[i], path);
        if (chars > 0 && (size_t)chars < sizeof folder) {
            least_quota(folder, (size_t)mount_chars, v2 ? read_v2 : read_v1, pool);
        }
    }
}

zi_cpu_pool zi_cpu_quota(const char *root)
{
    zi_cpu_pool pool = {0, ZI_CPUS_UNLIMITED};
    char line[PATH_BYTES];
    (void)snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    if (file == NULL) {
        return pool;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        read_line(root, line, &pool);
    }
    (void)fclose(file);
    return pool;
}

uint32_t zi_cpu_count(void)
{
    return (uint32_t)zi_min_u64(zi_cpu_affinity().cpus, zi_cpu_quota("").cpus);
}
