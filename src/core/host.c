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

void zi_host_name(char name[ZI_HOST_NAME_BYTES])
{
    memset(name, 0, ZI_HOST_NAME_BYTES);
    (void)gethostname(name, ZI_HOST_NAME_BYTES - 1);
}

uint64_t zi_host_id(void)
{
    char name[ZI_HOST_NAME_BYTES];
    char boot[64] = "";
    if (zi_host_read("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) {
        return zi_hash_text(ZI_HASH_START, boot);
    }
    zi_host_name(name);
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

/* --- cgroups ---------------------------------------------------------------------------------- */

/* A cgroup's folder, of version 2 or 1, and what is known so far. */
typedef void (*cgroup_visit)(const char *folder, bool v2, void *known);

/* A controller of cgroups: its name, where version 1 has it, and what is read of it. */
typedef struct cgroup_controller {
    const char *name;
    const char *mounts_v1[2];
    cgroup_visit visit;
} cgroup_controller;

/* From `folder` up to its first `mount_chars` characters. A container may see its cgroup's files at
 * the mount alone, though the path is that of the host: what is not there limits nothing. */
static void visit_up(char *folder, size_t mount_chars, bool v2, cgroup_visit visit, void *known)
{
    for (;;) {
        visit(folder, v2, known);
        char *last = strrchr(folder, '/');
        if (last == NULL || (size_t)(last - folder) < mount_chars) {
            return;
        }
        *last = '\0';
    }
}

/* True if a name is in a list such as "cpu,cpuacct". */
static bool lists_name(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        if (strcspn(at, ",") == length && strncmp(at, name, length) == 0) {
            return true;
        }
    }
    return false;
}

/* A line of /proc/self/cgroup: "number:controllers:path"; version 2 has no controllers. */
static void read_line(const char *root, char *line, const cgroup_controller *wanted, void *known)
{
    static const char *const mounts_v2[] = {"", "/unified"};
    char *list = strchr(line, ':');
    char *path = list != NULL ? strchr(list + 1, ':') : NULL;
    if (path == NULL) {
        return;
    }
    list++;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    const bool v2 = *list == '\0';
    if (!v2 && !lists_name(list, wanted->name)) {
        return;
    }
    const char *const *mounts = v2 ? mounts_v2 : wanted->mounts_v1;
    for (int i = 0; i < 2; i++) {
        char folder[PATH_BYTES];
        const int mount_chars =
            snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root, mounts[i]);
        const int chars =
            snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s", root, mounts[i], path);
        if (chars > 0 && (size_t)chars < sizeof folder) {
            visit_up(folder, (size_t)mount_chars, v2, wanted->visit, known);
        }
    }
}

static void visit_cgroups(const char *root, const cgroup_controller *wanted, void *known)
{
    char line[PATH_BYTES];
    (void)snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    if (file == NULL) {
        return;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        read_line(root, line, wanted, known);
    }
    (void)fclose(file);
}

/* The text of a file in a folder; false where there is none. */
static bool read_in(const char *folder, const char *name, char *text, size_t text_bytes)
{
    char path[PATH_BYTES + 32];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return zi_host_read(path, text, text_bytes);
}

/* Microseconds of CPU time in so many of real time. false: no limit here. */
static bool read_quota(const char *folder, bool v2, uint64_t *quota, uint64_t *period)
{
    char text[64];
    if (v2) {
        return read_in(folder, "cpu.max", text, sizeof text) &&
               sscanf(text, "%" SCNu64 " %" SCNu64, quota, period) == 2;
    }
    /* -1: no limit. */
    if (!read_in(folder, "cpu.cfs_quota_us", text, sizeof text) || text[0] == '-' ||
        sscanf(text, "%" SCNu64, quota) != 1) {
        return false;
    }
    return read_in(folder, "cpu.cfs_period_us", text, sizeof text) &&
           sscanf(text, "%" SCNu64, period) == 1;
}

static void visit_quota(const char *folder, bool v2, void *known)
{
    zi_cpu_pool *pool = known;
    uint64_t quota = 0;
    uint64_t period = 0;
    struct stat found;
    if (read_quota(folder, v2, &quota, &period) && quota != 0 && period != 0 &&
        stat(folder, &found) == 0) {
        const uint64_t cpus = quota / period + (quota % period != 0);
        /* Of equal ones the upper: more processes share it. */
        if (cpus <= pool->cpus) {
            const uint64_t place = zi_hash_u64(zi_host_id(), (uint64_t)found.st_dev);
            *pool = (zi_cpu_pool){zi_hash_u64(place, (uint64_t)found.st_ino), cpus};
        }
    }
}

zi_cpu_pool zi_cpu_quota(const char *root)
{
    static const cgroup_controller cpu = {"cpu", {"/cpu", "/cpu,cpuacct"}, visit_quota};
    zi_cpu_pool pool = {0, ZI_CPUS_UNLIMITED};
    visit_cgroups(root, &cpu, &pool);
    return pool;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* "max": no limit. Version 1 says so with a number that is larger than any memory. UINT64_MAX where
 * there is none. */
static uint64_t read_limit(const char *folder, const char *name)
{
    uint64_t bytes = 0;
    char text[64];
    const bool found = read_in(folder, name, text, sizeof text) &&
                       sscanf(text, "%" SCNu64, &bytes) == 1 && bytes != 0;
    return found ? bytes : UINT64_MAX;
}

static void visit_memory(const char *folder, bool v2, void *known)
{
    uint64_t *least = known;
    *least = zi_min_u64(*least, read_limit(folder, v2 ? "memory.max" : "memory.limit_in_bytes"));
}

static const cgroup_controller memory_limits = {"memory", {"/memory", ""}, visit_memory};

uint64_t zi_memory_limit(const char *root)
{
    uint64_t least = UINT64_MAX;
    visit_cgroups(root, &memory_limits, &least);
    return least;
}

/* The sum of the numbers behind two names, each at the start of a line of its own. */
static uint64_t add_named(const char *path, const char *first, const char *second)
{
    char line[128];
    uint64_t sum = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        const size_t name_chars = strcspn(line, ": ");
        const bool wanted =
            (strlen(first) == name_chars && strncmp(line, first, name_chars) == 0) ||
            (strlen(second) == name_chars && strncmp(line, second, name_chars) == 0);
        uint64_t value = 0;
        if (wanted && sscanf(line + name_chars, "%*[: ]%" SCNu64, &value) == 1) {
            sum += value;
        }
    }
    (void)fclose(file);
    return sum;
}

/* Pools found so far. */
typedef struct pool_list {
    zi_memory_pool *pools;
    uint32_t count;
} pool_list;

static void add_pool(pool_list *list, const zi_memory_pool *pool, const char *path)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->pools[i].id == pool->id) {
            return; /* one folder under two names */
        }
    }
    if (list->count < ZI_MEMORY_POOLS) {
        const size_t chars = strlen(path);
        zi_memory_pool *added = &list->pools[list->count++];
        *added = *pool;
        (void)snprintf(added->source, sizeof added->source, "%s",
                       path +
                           (chars < sizeof added->source ? 0 : chars + 1 - sizeof added->source));
    }
}

/* Without the page cache: the kernel drops it before it refuses or kills. */
static uint64_t used_of(const char *folder, bool v2)
{
    char path[PATH_BYTES + 32];
    (void)snprintf(path, sizeof path, "%s/memory.stat", folder);
    const uint64_t current = read_limit(folder, v2 ? "memory.current" : "memory.usage_in_bytes");
    const uint64_t cache = v2 ? add_named(path, "inactive_file", "active_file")
                              : add_named(path, "total_inactive_file", "total_active_file");
    return current == UINT64_MAX || current < cache ? 0 : current - cache;
}

static void visit_pool(const char *folder, bool v2, void *known)
{
    const uint64_t most = read_limit(folder, v2 ? "memory.max" : "memory.limit_in_bytes");
    const uint64_t high = v2 ? read_limit(folder, "memory.high") : UINT64_MAX;
    zi_memory_pool pool = {.limit = zi_min_u64(most, high)};
    struct stat found;
    if (pool.limit >= (uint64_t)INT64_MAX / 2 || stat(folder, &found) != 0) {
        return; /* of version 1 a number that is larger than any memory */
    }
    char path[PATH_BYTES + 32];
    (void)snprintf(path, sizeof path, "%s/%s", folder,
                   high < most ? "memory.high"
                   : v2        ? "memory.max"
                               : "memory.limit_in_bytes");
    const uint64_t place = zi_hash_u64(zi_host_id(), (uint64_t)found.st_dev);
    pool.id = zi_hash_u64(place, (uint64_t)found.st_ino);
    pool.used = used_of(folder, v2);
    add_pool(known, &pool, path);
}

uint32_t zi_memory_pools(const char *root, zi_memory_pool pools[ZI_MEMORY_POOLS])
{
    static const cgroup_controller memory = {"memory", {"/memory", ""}, visit_pool};
    pool_list list = {pools, 0};
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
    const uint64_t total_kib = add_named(path, "MemTotal", "");
    const uint64_t available_kib = add_named(path, "MemAvailable", "");
    if (available_kib != 0 && available_kib <= total_kib) {
        const zi_memory_pool host = {.id = zi_host_id(),
                                     .limit = total_kib * 1024,
                                     .used = (total_kib - available_kib) * 1024};
        add_pool(&list, &host, path);
    }
    visit_cgroups(root, &memory, &list);
    return list.count;
}

uint32_t zi_cpu_count(void)
{
    return (uint32_t)zi_min_u64(zi_cpu_affinity().cpus, zi_cpu_quota("").cpus);
}
