/* core: how many CPUs and how much memory a process may use, by its affinity and by limits in a
 * made-up root folder. */
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <sys/stat.h>

#include "core/host.h"
#include "harness.h"

static char root[64];

static int remove_one(const char *path, const struct stat *found, int kind, struct FTW *at)
{
    (void)found;
    (void)kind;
    (void)at;
    return remove(path);
}

static void close_root(void)
{
    CHECK_EQ(nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* The folder, to the end of the test. */
static void open_root(void)
{
    (void)snprintf(root, sizeof root, "/tmp/zero-test-host-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    CHECK_EQ(atexit(close_root), 0);
}

/* A file below the root, and the folders that it is in. */
static void put(const char *name, const char *text)
{
    char path[256];
    CHECK(snprintf(path, sizeof path, "%s%s", root, name) < (int)sizeof path);
    for (char *at = strchr(path + strlen(root) + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK(fputs(text, file) >= 0);
    CHECK_EQ(fclose(file), 0);
}

static uint64_t quota(void)
{
    return zi_cpu_quota(root).cpus;
}

TEST(affinity_is_counted)
{
    cpu_set_t all;
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    const zi_cpu_pool before = zi_cpu_affinity();
    CHECK_EQ(before.cpus, CPU_COUNT(&all));
    CHECK_EQ(zi_cpu_affinity().id, before.id);
    uint64_t last_id = before.id;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) {
            continue;
        }
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
        const zi_cpu_pool pinned = zi_cpu_affinity();
        CHECK_EQ(pinned.cpus, 1);
        CHECK_EQ(zi_cpu_count(), 1);
        CHECK(before.cpus == 1 || pinned.id != last_id);
        last_id = pinned.id;
    }
}

TEST(the_count_is_within_both_limits)
{
    CHECK(zi_cpu_count() >= 1);
    CHECK(zi_cpu_count() <= zi_cpu_affinity().cpus);
    CHECK(zi_cpu_count() <= zi_cpu_quota("").cpus);
}

TEST_CALL(a_host_is_itself, CHECK_EQ(zi_host_id(), zi_host_id()));

TEST(no_cgroups_limit_nothing)
{
    open_root();
    CHECK_EQ(quota(), ZI_CPUS_UNLIMITED);
    put("/proc/self/cgroup", "0::/job\n");
    CHECK_EQ(quota(), ZI_CPUS_UNLIMITED);
    put("/proc/self/cgroup", "nonsense\n0:\n\n:::\n");
    CHECK_EQ(quota(), ZI_CPUS_UNLIMITED);
}

TEST(version_2)
{
    open_root();
    put("/proc/self/cgroup", "0::/jobs/one\n");
    put("/sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
    CHECK_EQ(quota(), ZI_CPUS_UNLIMITED);
    static const struct {
        const char *text;
        uint64_t cpus;
    } rows[] = {{"200000 100000\n", 2}, {"150000 100000\n", 2}, {"100001 100000\n", 2},
                {"100000 100000\n", 1}, {"1000 100000\n", 1},   {"1000000 50000\n", 20}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put("/sys/fs/cgroup/jobs/one/cpu.max", rows[i].text);
        CHECK_EQ(quota(), rows[i].cpus);
    }
    static const char *const nothing[] = {"", "max", "0 100000", "100000 0", "many 100000"};
    for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
        put("/sys/fs/cgroup/jobs/one/cpu.max", nothing[i]);
        CHECK_EQ(quota(), ZI_CPUS_UNLIMITED);
    }
}

/* The least on the way up; and who shares a limit names the same pool. */
TEST(the_least_above_counts)
{
    open_root();
    put("/proc/self/cgroup", "0::/jobs/one/step\n");
    put("/sys/fs/cgroup/jobs/one/step/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/jobs/one/cpu.max", "300000 100000\n");
    put("/sys/fs/cgroup/jobs/cpu.max", "max 100000\n");
    const zi_cpu_pool one = zi_cpu_quota(root);
    CHECK_EQ(one.cpus, 3);
    put("/proc/self/cgroup", "0::/jobs/one/other\n");
    CHECK_EQ(zi_cpu_quota(root).id, one.id);
    put("/sys/fs/cgroup/jobs/two/cpu.max", "300000 100000\n");
    put("/proc/self/cgroup", "0::/jobs/two\n");
    CHECK_EQ(zi_cpu_quota(root).cpus, 3);
    CHECK(zi_cpu_quota(root).id != one.id);
    /* An equal limit above both is the one that they share. */
    put("/sys/fs/cgroup/jobs/cpu.max", "300000 100000\n");
    const uint64_t shared = zi_cpu_quota(root).id;
    put("/proc/self/cgroup", "0::/jobs/one/step\n");
    CHECK_EQ(zi_cpu_quota(root).id, shared);
}

/* The path is the host's, the files are those of the container. */
TEST(a_container_without_a_namespace)
{
    open_root();
    put("/proc/self/cgroup", "0::/system.slice/docker-0123456789abcdef.scope\n");
    put("/sys/fs/cgroup/cpu.max", "250000 100000\n");
    CHECK_EQ(quota(), 3);
}

TEST(version_1)
{
    open_root();
    put("/proc/self/cgroup", "9:cpuset:/else\n4:cpuacct,cpu:/job\n3:memory:/job\n0::/\n");
    put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    CHECK_EQ(quota(), ZI_CPUS_UNLIMITED);
    put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
    CHECK_EQ(quota(), 3);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
    CHECK_EQ(quota(), 1);
    /* Not the CPU's controller. */
    put("/proc/self/cgroup", "9:cpuset,cpuacct:/job\n");
    CHECK_EQ(quota(), ZI_CPUS_UNLIMITED);
}

TEST(a_path_that_is_too_long_is_left_out)
{
    open_root();
    char line[2048] = "0::/";
    memset(line + 4, 'x', sizeof line - 6);
    line[sizeof line - 2] = '\n';
    line[sizeof line - 1] = '\0';
    put("/proc/self/cgroup", line);
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
    (void)quota();
}

/* Of a cgroup and of those above it, by both versions; what is no number limits nothing. */
TEST(the_least_limit_of_memory_counts)
{
    open_root();
    CHECK_EQ(zi_memory_limit(root), UINT64_MAX);
    put("/proc/self/cgroup", "0::/jobs/one\n");
    put("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
    CHECK_EQ(zi_memory_limit(root), UINT64_MAX);
    put("/sys/fs/cgroup/jobs/one/memory.max", "8589934592\n");
    CHECK_EQ(zi_memory_limit(root), UINT64_C(8589934592));
    put("/sys/fs/cgroup/jobs/memory.max", "4294967296\n");
    CHECK_EQ(zi_memory_limit(root), UINT64_C(4294967296));
    put("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/b\n");
    CHECK_EQ(zi_memory_limit(root), UINT64_MAX);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "1073741824\n");
    CHECK_EQ(zi_memory_limit(root), UINT64_C(1073741824));
}

static uint32_t pools_of(zi_memory_pool *pools)
{
    memset(pools, 0, ZI_MEMORY_POOLS * sizeof *pools);
    return zi_memory_pools(root, pools);
}

static void check_pool(const zi_memory_pool *pool, uint64_t limit, uint64_t used,
                       const char *source)
{
    CHECK_EQ(pool->limit, limit);
    CHECK_EQ(pool->used, used);
    if (strstr(pool->source, source) == NULL) {
        TEST_FAIL("%s does not name %s", pool->source, source);
    }
}

TEST(the_host_is_a_pool_by_what_is_available)
{
    zi_memory_pool pools[ZI_MEMORY_POOLS];
    open_root();
    CHECK_EQ(pools_of(pools), 0);
    put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:         1 kB\n");
    CHECK_EQ(pools_of(pools), 0);
    put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:         1 kB\n"
                         "MemAvailable:    300 kB\nSwapTotal:       7 kB\n");
    CHECK_EQ(pools_of(pools), 1);
    check_pool(&pools[0], 1000 * 1024, 700 * 1024, "/proc/meminfo");
}

/* Every level that has a limit, with the page cache counted as free. */
TEST(cgroups_of_version_2_are_pools)
{
    zi_memory_pool pools[ZI_MEMORY_POOLS];
    open_root();
    put("/proc/self/cgroup", "0::/pod/one\n");
    put("/sys/fs/cgroup/pod/one/memory.max", "max\n");
    put("/sys/fs/cgroup/pod/one/memory.high", "max\n");
    CHECK_EQ(pools_of(pools), 0);
    put("/sys/fs/cgroup/pod/one/memory.high", "5000\n");
    put("/sys/fs/cgroup/pod/one/memory.current", "900\n");
    put("/sys/fs/cgroup/pod/one/memory.stat",
        "anon 600\nfile 400\ninactive_file 200\nactive_file 50\nworkingset_active_file 9\n");
    put("/sys/fs/cgroup/pod/memory.max", "7000\n");
    put("/sys/fs/cgroup/pod/memory.high", "8000\n");
    CHECK_EQ(pools_of(pools), 2);
    check_pool(&pools[0], 5000, 650, "/pod/one/memory.high");
    check_pool(&pools[1], 7000, 0, "/pod/memory.max");
    const uint64_t pod = pools[1].id;
    put("/proc/self/cgroup", "0::/pod/two\n");
    put("/sys/fs/cgroup/pod/two/memory.max", "4000\n");
    CHECK_EQ(pools_of(pools), 2);
    check_pool(&pools[0], 4000, 0, "/pod/two/memory.max");
    CHECK_EQ(pools[1].id, pod);
    CHECK(pools[0].id != pod);
}

TEST(cgroups_of_version_1_are_pools)
{
    zi_memory_pool pools[ZI_MEMORY_POOLS];
    open_root();
    put("/proc/self/cgroup", "4:memory:/b\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "6000\n");
    put("/sys/fs/cgroup/memory/b/memory.usage_in_bytes", "3000\n");
    put("/sys/fs/cgroup/memory/b/memory.stat",
        "inactive_file 1\nactive_file 1\ntotal_inactive_file 700\ntotal_active_file 300\n");
    CHECK_EQ(pools_of(pools), 1);
    check_pool(&pools[0], 6000, 2000, "/b/memory.limit_in_bytes");
}

TEST(more_levels_than_pools_are_left_out)
{
    zi_memory_pool pools[ZI_MEMORY_POOLS];
    char folder[128] = "/sys/fs/cgroup";
    open_root();
    put("/proc/self/cgroup", "0::/a/a/a/a/a/a/a/a/a\n");
    for (int level = 0; level < 9; level++) {
        char name[160];
        strcat(folder, "/a");
        (void)snprintf(name, sizeof name, "%s/memory.max", folder);
        put(name, "4096\n");
    }
    CHECK_EQ(pools_of(pools), ZI_MEMORY_POOLS);
}
