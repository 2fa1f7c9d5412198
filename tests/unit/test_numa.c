/* core: which node memory is bound to, and what is said where it cannot be. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/numa.h"
#include "harness.h"
#include "memory_policy.h"
#include "zero/log.h"

#define PAGES 64
#define ROOM (PAGES * ZI_PAGE_BYTES)

static char logged[512];
static zero_log_level logged_level;
static int logged_count;

static void keep(void *user, zero_log_level level, const char *message)
{
    (void)user;
    logged_count++;
    logged_level = level;
    snprintf(logged, sizeof logged, "%s", message);
}

static void keep_logs(void)
{
    CHECK_EQ(setenv("ZERO_LOG", "debug", 1), 0);
    zero_log_set(keep, NULL);
}

/* Once, whatever was refused, and louder where it matters. */
static void check_said_once(int node, const char *why)
{
    const char *words = test_text("not bound to NUMA node %d", node);
    CHECK_EQ(logged_count, 1);
    CHECK(strstr(logged, words) != NULL);
    CHECK(strstr(logged, why) != NULL);
    CHECK_EQ(logged_level, zi_numa_nodes() > 1 ? ZERO_LOG_WARN : ZERO_LOG_DEBUG);
}

static void check_zeroed(const unsigned char *memory)
{
    for (size_t i = 0; i < ROOM; i++) {
        CHECK_EQ(memory[i], 0);
    }
}

TEST(nodes_are_counted)
{
    CHECK(zi_numa_nodes() >= 1);
    CHECK(zi_numa_nodes() <= POLICY_NODES);
}

TEST(no_node_is_no_policy)
{
    void *memory = NULL;
    keep_logs();
    CHECK(!zi_numa_bind(NULL, 0, 0));
    CHECK_OK(zi_pages_alloc_on(ROOM, -1, &memory));
    CHECK(!zi_numa_bind(memory, ROOM, -1));
    if (policy_known()) {
        CHECK_EQ(policy_node(memory), -1);
    }
    check_zeroed(memory);
    zi_pages_free(memory, ROOM);
    CHECK_EQ(logged_count, 0);
}

TEST(no_such_node)
{
    void *memory = NULL;
    keep_logs();
    CHECK_OK(zi_pages_alloc_on(ROOM, POLICY_NODES - 1, &memory));
    check_said_once(POLICY_NODES - 1, "(");
    CHECK(!zi_numa_bind(memory, ROOM, POLICY_NODES));
    CHECK(!zi_numa_bind(memory, ROOM, INT32_MAX));
    CHECK_EQ(logged_count, 1);
    check_zeroed(memory);
    zi_pages_free(memory, ROOM);
}

#ifdef ZI_WITH_NUMA

TEST(pages_lie_where_asked)
{
    if (!policy_known()) {
        SKIP("the kernel does not say where memory lies");
    }
    uint32_t tried = 0;
    for (int node = 0; node < POLICY_NODES; node++) {
        if (!policy_allows(node)) {
            continue;
        }
        void *memory = NULL;
        CHECK_OK(zi_pages_alloc_on(ROOM, node, &memory));
        check_zeroed(memory);
        for (size_t i = 0; i < PAGES; i++) {
            const unsigned char *page = (const unsigned char *)memory + i * ZI_PAGE_BYTES;
            CHECK_EQ(policy_node(page), node);
            CHECK_EQ(page_node(page), node);
        }
        zi_pages_free(memory, ROOM);
        tried++;
    }
    CHECK(tried >= 1);
}

/* A policy that is set after the first touch is only that: the neighbours keep theirs. */
TEST(a_part_is_bound)
{
    if (!policy_known()) {
        SKIP("the kernel does not say where memory lies");
    }
    void *memory = NULL;
    const int node = page_node(&memory); /* one that there is */
    CHECK_OK(zi_pages_alloc(ROOM, &memory));
    unsigned char *middle = (unsigned char *)memory + ZI_PAGE_BYTES;
    CHECK(zi_numa_bind(middle, ZI_PAGE_BYTES, node));
    CHECK_EQ(policy_node(memory), -1);
    CHECK_EQ(policy_node(middle), node);
    CHECK_EQ(policy_node(middle + ZI_PAGE_BYTES), -1);
    zi_pages_free(memory, ROOM);
}

/* As container runtimes do. */
static void forbid_mbind(void)
{
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = 4, .filter = lines};
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(a_container_forbids_it)
{
    void *memory = NULL;
    keep_logs();
    forbid_mbind();
    for (int i = 0; i < 3; i++) {
        CHECK_OK(zi_pages_alloc_on(ROOM, 0, &memory));
        check_zeroed(memory);
        CHECK(!zi_numa_bind(memory, ROOM, 0));
        zi_pages_free(memory, ROOM);
    }
    check_said_once(0, "Operation not permitted (a container may forbid mbind)");
}

#else

TEST(a_build_that_binds_nothing)
{
    void *memory = NULL;
    keep_logs();
    for (int i = 0; i < 3; i++) {
        CHECK_OK(zi_pages_alloc_on(ROOM, 0, &memory));
        check_zeroed(memory);
        CHECK(!zi_numa_bind(memory, ROOM, 0));
        zi_pages_free(memory, ROOM);
    }
    check_said_once(0, "-Dnuma=enabled");
}

#endif
