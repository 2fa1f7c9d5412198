/* The node at which the kernel has been asked to put a page, and the one on which it lies: asked of
 * the kernel itself. */
#ifndef TESTS_MEMORY_POLICY_H
#define TESTS_MEMORY_POLICY_H

#include <linux/mempolicy.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "harness.h"

#define POLICY_NODES 1024
#define POLICY_WORD_BITS (8 * sizeof(unsigned long))

/* True if this process may ask; a container may forbid it. */
static inline bool policy_known(void)
{
    int mode = 0;
    return syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0) == 0;
}

static inline bool policy_has(const unsigned long *nodes, int node)
{
    return (nodes[(size_t)node / POLICY_WORD_BITS] >> ((size_t)node % POLICY_WORD_BITS) & 1) != 0;
}

/* True if this process may have memory on the node. */
static inline bool policy_allows(int node)
{
    unsigned long nodes[POLICY_NODES / POLICY_WORD_BITS + 1] = {0};
    CHECK_EQ(syscall(SYS_get_mempolicy, NULL, nodes, POLICY_NODES + 1, NULL, MPOL_F_MEMS_ALLOWED),
             0);
    return policy_has(nodes, node);
}

/* The one node that the page's policy prefers, or -1: it has no policy of its own. */
static inline int policy_node(const void *page)
{
    unsigned long nodes[POLICY_NODES / POLICY_WORD_BITS + 1] = {0};
    int mode = -1;
    int found = -1;
    CHECK_EQ(syscall(SYS_get_mempolicy, &mode, nodes, POLICY_NODES + 1, page, MPOL_F_ADDR), 0);
    for (int node = 0; node < POLICY_NODES; node++) {
        if (policy_has(nodes, node)) {
            CHECK_EQ(mode, MPOL_PREFERRED);
            CHECK(found == -1);
            found = node;
        }
    }
    CHECK(found >= 0 || mode == MPOL_DEFAULT);
    return found;
}

/* The node that the page lies on; negative: it is not there. */
static inline int page_node(const void *page)
{
    int status = -1;
    CHECK_EQ(syscall(SYS_move_pages, 0, 1, &page, NULL, &status, 0), 0);
    return status;
}

#endif
