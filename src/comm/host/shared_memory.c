/* Owns the memory that ranks of a host share: parts of the file without a name where they are
 * processes, memory of the process where they are threads. An offset says where a piece is: in the
 * file, or in the address space. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/host/shared_state.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/memory.h"

static bool of_threads(const zi_shared *shared)
{
    return shared->space.one_address_space;
}

static void *at_address(uint64_t offset)
{
    return (void *)(uintptr_t)offset;
}

zero_status zi_shared_back(const zi_shared *shared, uint64_t offset, uint64_t bytes)
{
    int code = 0;
    do {
        /* Reserved now, so that a full /dev/shm is an error here and not a fault at first use. */
        code = fallocate(shared->fd, 0, (off_t)offset, (off_t)bytes) == 0 ? 0 : errno;
    } while (code == EINTR);
    if (code != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, code,
                       "/dev/shm has no %llu bytes left: %s; enlarge it (mount -o "
                       "remount,size=..., docker --shm-size) or shard over more ranks",
                       (unsigned long long)bytes, strerror(code));
    }
    return ZERO_OK;
}

zero_status zi_shared_take(const zi_shared *shared, uint64_t bytes, uint64_t *offset)
{
    if (!of_threads(shared)) {
        *offset = atomic_fetch_add(&shared->header->end, bytes);
        return zi_shared_back(shared, *offset, bytes);
    }
    void *pages = NULL;
    ZI_TRY(zi_pages_alloc(bytes, &pages));
    *offset = (uintptr_t)pages;
    return ZERO_OK;
}

void zi_shared_drop(const zi_shared *shared, uint64_t offset, uint64_t bytes)
{
    if (of_threads(shared)) {
        zi_pages_free(at_address(offset), bytes);
    } else {
        (void)fallocate(shared->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                        (off_t)bytes);
    }
}

zero_status zi_shared_map(const zi_shared *shared, uint64_t offset, uint64_t bytes,
                          unsigned char **base)
{
    if (of_threads(shared)) {
        *base = at_address(offset);
        return ZERO_OK;
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, (off_t)offset);
    if (map == MAP_FAILED) {
        ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, errno, "cannot map %llu bytes of shared memory: %s",
                       (unsigned long long)bytes, strerror(errno));
    }
    *base = map;
    return ZERO_OK;
}

void zi_shared_unmap(const zi_shared *shared, unsigned char *base, uint64_t bytes)
{
    if (!of_threads(shared)) {
        (void)munmap(base, bytes);
    }
}

/* The parts of all ranks follow one another in the file. */
static zero_status map_parts(const zi_shared *shared, uint64_t offset, uint64_t bytes,
                             unsigned char **base)
{
    ZI_TRY(zi_shared_map(shared, offset, shared->size * bytes, base));
    /* So that the first step has no page faults, and no signal where there are no pages. */
    const int code = zi_pages_populate(*base + shared->index * bytes, bytes);
    if (code != 0) {
        zi_shared_unmap(shared, *base, shared->size * bytes);
        *base = NULL;
        ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, code,
                       "the host has no %llu bytes of shared memory: %s", (unsigned long long)bytes,
                       strerror(code));
    }
    return ZERO_OK;
}

zero_status zi_shared_map_window(const zi_shared *shared, uint64_t offset, uint64_t bytes,
                                 unsigned char **base)
{
    const uint64_t own = offset + shared->index * bytes;
    if (of_threads(shared)) {
        void *pages = NULL;
        ZI_TRY(zi_pages_alloc(bytes, &pages));
        *base = pages;
        return ZERO_OK;
    }
    if (zi_fault_hit(ZI_FAULT_ALLOC)) {
        ZI_FAIL(ZERO_ERR_OUT_OF_MEMORY, "no %llu bytes of shared memory (injected)",
                (unsigned long long)bytes);
    }
    ZI_TRY(zi_shared_back(shared, own, bytes));
    const zero_status status = map_parts(shared, offset, bytes, base);
    if (status != ZERO_OK) {
        zi_shared_drop(shared, own, bytes);
    }
    return status;
}

void zi_shared_unmap_window(const zi_shared *shared, uint64_t offset, uint64_t bytes,
                            unsigned char *base)
{
    if (of_threads(shared)) {
        zi_pages_free(base, bytes);
        return;
    }
    zi_shared_unmap(shared, base, shared->size * bytes);
    zi_shared_drop(shared, offset + shared->index * bytes, bytes);
}
