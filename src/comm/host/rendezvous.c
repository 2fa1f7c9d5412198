/* Owns how the ranks of a host find one another: by a name in /dev/shm that exists from rank 0's
 * arrival to the last rank's. Invariants: whoever made the name removes it, on every way out but a
 * kill; a file of that name is used only while its maker lives. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/host/process.h"
#include "comm/host/shared_state.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

/* How long a file may stay without its header: its maker writes that at once, unless it was killed.
 */
#define HEADER_NS UINT64_C(1000000000)

/* size 0: the part that is the same for every size. */
uint64_t zi_shared_header_bytes(uint32_t size)
{
    return zi_align_up(sizeof(zi_shared_header) + (uint64_t)size * sizeof(zi_shared_rank),
                       ZI_PAGE_BYTES);
}

/* Map the header of the open file; false while the file is not long enough. */
static bool map_header(int fd, uint32_t size, zi_shared_header **header)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || (uint64_t)info.st_size < zi_shared_header_bytes(size)) {
        return false;
    }
    void *base =
        mmap(NULL, zi_shared_header_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return false;
    }
    *header = base;
    return true;
}

static void unmap_header(zi_shared_header *header, uint32_t size)
{
    (void)munmap(header, zi_shared_header_bytes(size));
}

static bool header_ready(const zi_shared_header *header)
{
    return atomic_load_explicit(&header->magic, memory_order_acquire) == ZI_SHARED_MAGIC;
}

static bool maker_alive(const zi_shared_header *header)
{
    return zi_process_alive(header->maker_pid, header->maker_start);
}

/* A file of another user under our name is never touched. */
static zero_status check_owner(int fd, const char *name)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || info.st_uid != geteuid()) {
        ZI_FAIL(ZERO_ERR_STATE,
                "/dev/shm%s belongs to another user; remove it or choose another MASTER_PORT",
                name);
    }
    return ZERO_OK;
}

/* Remove the name if it still stands for this open file. The lock keeps a second job that found the
 * same leftover from removing the file that the first one has made since. */
static void remove_stale(int fd, const char *name)
{
    struct stat ours;
    struct stat named;
    if (flock(fd, LOCK_EX) != 0) {
        return;
    }
    const int now = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (now >= 0) {
        if (fstat(fd, &ours) == 0 && fstat(now, &named) == 0 && ours.st_ino == named.st_ino) {
            (void)shm_unlink(name);
        }
        (void)close(now);
    }
    (void)flock(fd, LOCK_UN);
}

/* The name exists. Remove it when its maker has ended; STATE when a living job uses it. */
static zero_status replace_leftover(const char *name)
{
    const int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0 && errno == ENOENT) {
        return ZERO_OK;
    }
    if (fd < 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_STATE, errno, "cannot open /dev/shm%s: %s; remove it", name,
                       strerror(errno));
    }
    zero_status status = check_owner(fd, name);
    zi_shared_header *header = NULL;
    const uint64_t until_ns = zi_clock_ns() + HEADER_NS;
    bool ready = false;
    while (status == ZERO_OK && !ready && zi_clock_ns() < until_ns) {
        if (header == NULL && !map_header(fd, 0, &header)) {
            header = NULL;
        }
        ready = header != NULL && header_ready(header);
        if (!ready) {
            (void)usleep(1000);
        }
    }
    if (status == ZERO_OK && ready && maker_alive(header)) {
        status = zi_error_set(ZERO_ERR_STATE, 0, __FILE__, __LINE__,
                              "process %llu runs a job with the same MASTER_PORT, run id and size "
                              "(/dev/shm%s); give each job of a host its own MASTER_PORT",
                              (unsigned long long)header->maker_pid, name);
    } else if (status == ZERO_OK) {
        remove_stale(fd, name);
    }
    if (header != NULL) {
        unmap_header(header, 0);
    }
    (void)close(fd);
    return status;
}

/* Register this process: the others check that it lives from now on. */
static void write_rank(zi_shared *shared, uint64_t pid, uint64_t start)
{
    zi_shared_rank *own = &shared->header->ranks[shared->index];
    atomic_store(&own->start, start);
    atomic_store(&own->pid, pid);
    shared->registered = true;
}

/* Make the file and its header, and register this rank there. */
static zero_status rendezvous_make_file(const zi_shared_desc *desc, zi_shared *shared)
{
    zi_shared_wait wait = zi_shared_wait_begin(desc->deadline_ms, desc->size);
    for (;;) {
        shared->fd = shm_open(desc->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (shared->fd >= 0) {
            break;
        }
        if (errno != EEXIST || !zi_shared_wait_more(&wait)) {
            ZI_FAIL_NATIVE(ZERO_ERR_COMM, errno, "cannot make /dev/shm%s: %s", desc->name,
                           strerror(errno));
        }
        ZI_TRY(replace_leftover(desc->name));
    }
    zero_status status = zi_shared_back(shared, 0, zi_shared_header_bytes(desc->size));
    if (status == ZERO_OK && !map_header(shared->fd, desc->size, &shared->header)) {
        status = zi_error_set(ZERO_ERR_OUT_OF_MEMORY, errno, __FILE__, __LINE__,
                              "cannot map /dev/shm%s: %s", desc->name, strerror(errno));
    }
    if (status != ZERO_OK) {
        (void)shm_unlink(desc->name);
        return status;
    }
    zi_shared_header *header = shared->header;
    header->maker_pid = (uint64_t)getpid();
    header->maker_start = zi_process_start(header->maker_pid);
    header->launcher = desc->launcher;
    header->size = desc->size;
    write_rank(shared, header->maker_pid, header->maker_start);
    atomic_store(&header->end, zi_shared_header_bytes(desc->size));
    atomic_store_explicit(&header->magic, ZI_SHARED_MAGIC, memory_order_release);
    return ZERO_OK;
}

/* Ranks that another launcher started are another job's, which must not be touched. */
static zero_status check_launcher(const zi_shared_desc *desc, const zi_shared_header *header)
{
    if (header->launcher != desc->launcher) {
        ZI_FAIL(ZERO_ERR_STATE,
                "rank 0 of another launcher, process %llu, uses the same MASTER_PORT "
                "(/dev/shm%s); give each job of a host its own MASTER_PORT, or, where one job's "
                "ranks are started from several shells, all of them the same ZERO_JOB_TOKEN",
                (unsigned long long)header->maker_pid, desc->name);
    }
    return ZERO_OK;
}

/* Try once to open the file of a living maker; OK with *found false: not there yet. */
static zero_status try_open(const zi_shared_desc *desc, zi_shared *shared, bool *found)
{
    *found = false;
    const int fd = shm_open(desc->name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) {
        return ZERO_OK;
    }
    zi_shared_header *header = NULL;
    zero_status status = check_owner(fd, desc->name);
    if (status == ZERO_OK && map_header(fd, desc->size, &header)) {
        /* A leftover, or a file half made: rank 0 replaces it. */
        if (header_ready(header) && maker_alive(header) && header->size == desc->size) {
            status = check_launcher(desc, header);
            if (status == ZERO_OK) {
                shared->fd = fd;
                shared->header = header;
                *found = true;
                return ZERO_OK;
            }
        }
        unmap_header(header, desc->size);
    }
    (void)close(fd);
    return status;
}

static zero_status rendezvous_open_file(const zi_shared_desc *desc, zi_shared *shared)
{
    zi_shared_wait wait = zi_shared_wait_begin(desc->deadline_ms, desc->size);
    bool found = false;
    for (;;) {
        ZI_TRY(try_open(desc, shared, &found));
        if (found) {
            return ZERO_OK;
        }
        if (!zi_shared_wait_more(&wait)) {
            ZI_FAIL(ZERO_ERR_TIMEOUT,
                    "rank %u did not come within %u ms (rank %u waits for /dev/shm%s); start all "
                    "%u ranks on this host with the same MASTER_PORT",
                    shared->world_ranks[0], desc->deadline_ms, shared->space.world_rank, desc->name,
                    desc->size);
        }
    }
}

static zero_status register_rank(zi_shared *shared)
{
    const uint64_t pid = (uint64_t)getpid();
    uint64_t nobody = 0;
    if (shared->registered) {
        return ZERO_OK;
    }
    if (!atomic_compare_exchange_strong(&shared->header->ranks[shared->index].pid, &nobody, pid)) {
        ZI_FAIL(ZERO_ERR_STATE,
                "rank %u came twice, as processes %llu and %llu; start each rank once, and give "
                "each job of a host its own MASTER_PORT",
                shared->world_ranks[shared->index], (unsigned long long)nobody,
                (unsigned long long)pid);
    }
    write_rank(shared, pid, zi_process_start(pid));
    return ZERO_OK;
}

static bool is_away(const zi_shared *shared, uint32_t index)
{
    return atomic_load(&shared->header->ranks[index].pid) == 0;
}

/* Advance *next over the ranks that are registered; true when it has passed all. */
static bool rendezvous_all_here(const zi_shared *shared, uint32_t *next)
{
    while (*next < shared->size && !is_away(shared, *next)) {
        (*next)++;
    }
    return *next == shared->size;
}

/* Rank 0 waits until all are registered, the others until rank 0 has removed the name: a rank that
 * joins again later then cannot find this file. */
static zero_status await_all(zi_shared *shared)
{
    zi_shared_header *header = shared->header;
    zi_shared_wait wait = zi_shared_wait_begin(shared->deadline_ms, shared->size);
    uint32_t next = 0;
    while (shared->index == 0 ? !rendezvous_all_here(shared, &next)
                              : atomic_load(&header->state) == ZI_SHARED_JOINING) {
        ZI_TRY(zi_shared_poll(shared, "the meeting of the ranks"));
        if (!zi_shared_wait_more(&wait)) {
            char text[96];
            /* When all are registered, it is rank 0 that has not opened the file. */
            ZI_FAIL(ZERO_ERR_TIMEOUT,
                    "of %u ranks, rank %s did not come within %u ms; start all of "
                    "them on this host with the same MASTER_PORT",
                    shared->size, zi_shared_late_text(shared, is_away, 0, text, sizeof text),
                    shared->deadline_ms);
        }
    }
    return zi_shared_check(shared);
}

static zero_status rendezvous_rendezvous(const zi_shared_desc *desc, zi_shared *shared)
{
    ZI_TRY(desc->index == 0 ? rendezvous_make_file(desc, shared)
                            : rendezvous_open_file(desc, shared));
    zero_status status = register_rank(shared);
    if (status == ZERO_OK) {
        status = await_all(shared);
    }
    if (desc->index == 0) {
        (void)shm_unlink(desc->name);
    }
    if (status != ZERO_OK) {
        return zi_shared_fail(shared);
    }
    uint32_t joining = ZI_SHARED_JOINING;
    if (desc->index == 0) {
        (void)atomic_compare_exchange_strong(&shared->header->state, &joining, ZI_SHARED_OPEN);
    }
    return zi_shared_check(shared);
}

zero_status zi_shared_join(const zi_shared_desc *desc, zi_shared **out)
{
    *out = NULL;
    zi_shared *shared = NULL;
    const size_t ranks_bytes = zi_align_up(desc->size * sizeof shared->world_ranks[0], 8);
    const size_t stops_bytes = desc->size * sizeof *shared->stopped_ns;
    ZI_TRY(zi_calloc(1, sizeof *shared + ranks_bytes + stops_bytes, (void **)&shared));
    shared->stopped_ns = (void *)((unsigned char *)shared + sizeof *shared + ranks_bytes);
    shared->stops = desc->watches_stops ? desc->silence : NULL;
    shared->space.silence = desc->silence;
    shared->fd = -1;
    shared->index = desc->index;
    shared->size = desc->size;
    shared->deadline_ms = desc->deadline_ms;
    for (uint32_t i = 0; i < desc->size; i++) {
        shared->world_ranks[i] = desc->world_ranks != NULL ? desc->world_ranks[i] : i;
    }
    shared->space.world_rank = shared->world_ranks[desc->index];
    shared->space.one_address_space = desc->header != NULL;
    shared->space.part = desc->index;
    shared->space.ranks = shared->world_ranks;
    shared->space.rank_count = desc->header != NULL ? 0 : desc->size;
    shared->header = desc->header;
    shared->registered = desc->header != NULL;
    zi_shared_watch(shared);
    (void)pthread_mutex_init(&shared->mutex, NULL);
    const zero_status status = desc->header == NULL ? rendezvous_rendezvous(desc, shared) : ZERO_OK;
    if (status != ZERO_OK) {
        zi_shared_leave(shared);
        return status;
    }
    *out = shared;
    return ZERO_OK;
}

void zi_shared_leave(zi_shared *shared)
{
    if (shared == NULL) {
        return;
    }
    if (shared->header != NULL && shared->registered) {
        zi_shared_begin_leave(shared);
        atomic_store(&shared->header->ranks[shared->index].presence, ZI_SHARED_LEFT);
    }
    if (shared->header != NULL && !shared->space.one_address_space) {
        unmap_header(shared->header, shared->size);
    }
    if (shared->fd >= 0) {
        (void)close(shared->fd);
    }
    (void)pthread_mutex_destroy(&shared->mutex);
    zi_free(shared);
}
