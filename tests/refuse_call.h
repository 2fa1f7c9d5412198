/* A kernel that refuses a system call: what a container, a sysctl or a file system may do. */
#ifndef TESTS_REFUSE_CALL_H
#define TESTS_REFUSE_CALL_H

#include "harness.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static inline void refuse_by(const struct sock_filter *filter, size_t count)
{
    struct sock_filter copy[8];
    CHECK(count <= sizeof copy / sizeof copy[0]);
    memcpy(copy, filter, count * sizeof *filter);
    const struct sock_fprog program = {.len = (unsigned short)count, .filter = copy};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        SKIP("system calls cannot be filtered here");
    }
}

/* From now on this thread, and those it starts, get `code` from the system call. */
static inline void refuse_call(long call, int code)
{
    const struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    refuse_by(filter, sizeof filter / sizeof filter[0]);
}

/* The same for O_DIRECT: setting the flag is refused, as by a file system that does not have it. */
static inline void refuse_direct(void)
{
    const uint32_t low = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 4; /* half of a word */
    const struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1]) + low),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_SETFL, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2]) + low),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    refuse_by(filter, sizeof filter / sizeof filter[0]);
}

#endif
