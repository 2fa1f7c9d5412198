/* Owns opening, reading and hashing single files. */
#include "checkpoint/checkpoint_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "checkpoint/checkpoint_map.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

#define HASH_BLOCK_BYTES ((size_t)1 << 20)

zero_status zi_checkpoint_path(char path[ZI_CHECKPOINT_PATH_BYTES], const char *folder,
                               const char *name)
{
    const int length = snprintf(path, ZI_CHECKPOINT_PATH_BYTES, "%s/%s", folder, name);
    if (length < 0 || length >= ZI_CHECKPOINT_PATH_BYTES) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "the path of %.80s in %.100s is longer than %d bytes",
                name, folder, ZI_CHECKPOINT_PATH_BYTES - 1);
    }
    return ZERO_OK;
}

zero_status zi_checkpoint_open(zi_regular_file *file, const char *path)
{
    struct stat status;
    *file = (zi_regular_file){.path = path};
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (file->descriptor < 0 && errno == ELOOP) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s is a symbolic link; a checkpoint has its files in its own folder", path);
    }
    if (file->descriptor < 0 || fstat(file->descriptor, &status) != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, errno, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s is no regular file; it is not of a checkpoint",
                path);
    }
    file->bytes = (uint64_t)status.st_size;
    return ZERO_OK;
}

bool zi_checkpoint_clone(int from, uint64_t from_at, int to, uint64_t to_at, uint64_t bytes)
{
    struct file_clone_range range = {
        .src_fd = from, .src_offset = from_at, .src_length = bytes, .dest_offset = to_at};
    return ioctl(to, FICLONERANGE, &range) == 0;
}

uint64_t zi_checkpoint_direct_align(const char *path)
{
#ifdef STATX_DIOALIGN
    struct statx info;
    if (statx(AT_FDCWD, path, 0, STATX_DIOALIGN, &info) == 0 &&
        (info.stx_mask & STATX_DIOALIGN) != 0 && info.stx_dio_mem_align != 0) {
        return zi_min_u64(info.stx_dio_mem_align, ZI_CHECKPOINT_ALIGN);
    }
#else
    (void)path;
#endif
    return ZI_CHECKPOINT_ALIGN;
}

/* True if both are one file: its name may be another's by now. */
static bool is_same(int a, int b)
{
    struct stat status[2];
    return fstat(a, &status[0]) == 0 && fstat(b, &status[1]) == 0 &&
           status[0].st_dev == status[1].st_dev && status[0].st_ino == status[1].st_ino;
}

int zi_checkpoint_open_direct(const zi_regular_file *file)
{
    const int direct = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    if (direct >= 0 && is_same(direct, file->descriptor)) {
        return direct;
    }
    if (direct >= 0) {
        (void)close(direct);
        errno = ESTALE; /* another file has its name now */
    }
    return -1;
}

uint64_t zi_checkpoint_read_direct(int direct, uint64_t at, void *pages, uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        const ssize_t count = pread(direct, (unsigned char *)pages + done, (size_t)(bytes - done),
                                    (off_t)(at + done));
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < (ssize_t)ZI_CHECKPOINT_ALIGN) {
            break;
        }
        done += (uint64_t)count / ZI_CHECKPOINT_ALIGN * ZI_CHECKPOINT_ALIGN;
    }
    return done;
}

uint64_t zi_checkpoint_hash(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

static zero_status hash_blocks(const zi_regular_file *file, uint64_t bytes, void *block,
                               XXH3_state_t *state)
{
    for (uint64_t at = 0; at < bytes;) {
        size_t count = bytes - at < HASH_BLOCK_BYTES ? (size_t)(bytes - at) : HASH_BLOCK_BYTES;
        ZI_TRY(zi_regular_file_read(file, at, block, &count));
        if (count == 0) {
            ZI_FAIL(ZERO_ERR_CORRUPT,
                    "%s ends at byte %" PRIu64 "; at least %" PRIu64 " are expected", file->path,
                    at, bytes);
        }
        (void)XXH3_64bits_update(state, block, count);
        at += count;
    }
    return ZERO_OK;
}

zero_status zi_checkpoint_hash_file(const zi_regular_file *file, uint64_t bytes, uint64_t *hash)
{
    XXH3_state_t state;
    void *block = NULL;
    ZI_TRY(zi_calloc(1, HASH_BLOCK_BYTES, &block));
    (void)XXH3_64bits_reset(&state);
    const zero_status status = hash_blocks(file, bytes, block, &state);
    *hash = XXH3_64bits_digest(&state);
    zi_free(block);
    return status;
}
