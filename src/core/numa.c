/* Owns where memory lies. The policy is "preferred": a strict one would kill the process, or fail
 * to register the memory, when a node is full or outside the job's set of nodes; the wrong node
 * only costs time. Set by the system call mbind, which glibc has no function for: libnuma's other
 * calls share a policy with the whole process and print. Containers may forbid the call. */
#include "core/numa.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/host.h"
#include "core/log.h"

#ifdef ZI_WITH_NUMA

#include <limits.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024
#define WORD_BITS (CHAR_BIT * sizeof(unsigned long))

/* 0, or errno. */
static int prefer(void *pointer, size_t bytes, int node)
{
    unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
    if (node >= NODES_MAX) {
        return EINVAL;
    }
    nodes[(size_t)node / WORD_BITS] = 1ul << ((size_t)node % WORD_BITS);
    /* The kernel takes one bit less than it is told. */
    return syscall(SYS_mbind, pointer, bytes, MPOL_PREFERRED, nodes, NODES_MAX + 1, 0) == 0 ? 0
                                                                                            : errno;
}

static const char *const remedy = "a container may forbid mbind";

#else

static int prefer(void *pointer, size_t bytes, int node)
{
    (void)pointer;
    (void)bytes;
    (void)node;
    return ENOSYS;
}

static const char *const remedy = "this build binds no memory: configure with -Dnuma=enabled";

#endif

/* Numbers in a list of the kernel's, such as "0-3,8". */
static uint32_t count_list(const char *list)
{
    uint32_t count = 0;
    char *end = NULL;
    for (const char *at = list; *at >= '0' && *at <= '9'; at = *end == ',' ? end + 1 : end) {
        const unsigned long first = strtoul(at, &end, 10);
        const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        count += last >= first ? (uint32_t)(last - first + 1) : 0;
    }
    return count;
}

uint32_t zi_numa_nodes(void)
{
    char list[256];
    const bool known = zi_host_read("/sys/devices/system/node/has_memory", list, sizeof list);
    const uint32_t count = known ? count_list(list) : 0;
    return count != 0 ? count : 1;
}

bool zi_numa_bind(void *pointer, size_t bytes, int node)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (node < 0 || bytes == 0) {
        return false;
    }
    const int code = prefer(pointer, bytes, node);
    if (code == 0) {
        return true;
    }
    /* With one node there is nothing to gain. */
    if (!atomic_flag_test_and_set(&said)) {
        zi_log(zi_numa_nodes() > 1 ? ZERO_LOG_WARN : ZERO_LOG_DEBUG,
               "host memory is not bound to NUMA node %d, transfers may be slower: %s (%s)", node,
               strerror(code), remedy);
    }
    return false;
}
