/* The host this process runs on: which one it is, and how many CPUs and how
 * much memory the process may use of it. */
#ifndef ZI_CORE_HOST_H
#define ZI_CORE_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZI_HOST_NAME_BYTES 256

/* The name that the host has; "" where it has none. */
void zi_host_name(char name[ZI_HOST_NAME_BYTES]);

/* The same for all processes of a host, in containers too, and for no other host. */
uint64_t zi_host_id(void);

/* The beginning of a file as text; false where there is none. */
bool zi_host_read(const char *path, char *text, size_t text_bytes);

/* CPUs that everybody who names the same pool shares. */
typedef struct zi_cpu_pool {
    uint64_t id;
    uint64_t cpus; /* at least 1; ZI_CPUS_UNLIMITED where nothing limits */
} zi_cpu_pool;

#define ZI_CPUS_UNLIMITED UINT64_MAX

/* The CPUs that the calling thread may run on (sched_getaffinity). Ranks with the same set of a
 * host's CPUs have the same pool. */
zi_cpu_pool zi_cpu_affinity(void);

/* The least CPU quota of this process's cgroup and of those above it, rounded up to whole CPUs:
 * version 2 in `root`/sys/fs/cgroup, version 1 in its folder cpu or cpu,cpuacct, of the cgroups
 * that `root`/proc/self/cgroup names. root: "" but for tests. */
zi_cpu_pool zi_cpu_quota(const char *root);

/* The lesser of the two: at least 1, and what a process alone on its host should use. */
uint32_t zi_cpu_count(void);

/* The least limit on the memory of this process's cgroup and of those above it, in bytes, where
 * zi_cpu_quota looks and version 1 in its folder memory; UINT64_MAX where nothing limits. */
uint64_t zi_memory_limit(const char *root);

#define ZI_MEMORY_SOURCE_BYTES 88
/* More than a hierarchy of cgroups has limits; those of the innermost are kept. */
#define ZI_MEMORY_POOLS 7

/* Memory that everybody who names the same pool shares. */
typedef struct zi_memory_pool {
    uint64_t id;
    uint64_t limit; /* bytes */
    uint64_t used;  /* bytes of it that the kernel cannot take back without writing them out */
    char source[ZI_MEMORY_SOURCE_BYTES]; /* the file that says the limit, or the end of its path */
} zi_memory_pool;

/* The pools that this process takes memory from: the host (`root`/proc/meminfo), then every cgroup
 * that limits it, where zi_memory_limit looks; of version 2 by memory.max or memory.high, whichever
 * is less. Returns how many. What cannot be read is no pool. */
uint32_t zi_memory_pools(const char *root, zi_memory_pool pools[ZI_MEMORY_POOLS]);

#endif
