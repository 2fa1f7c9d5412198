/* Owns the making of a checkpoint's files. Invariant: after that no file grows, so ranks only
 * overwrite. */
#include "checkpoint/checkpoint_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/manifest.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/memory.h"

static zero_status checkpoint_files_failed(const char *path, const char *doing)
{
    const int code = errno;
    ZI_FAIL_NATIVE(ZERO_ERR_IO, code, "%s: %s %s", strerror(code), doing, path);
}

/* Reserve the bytes, where the file system can; else only set the size. */
static zero_status checkpoint_files_reserve(int descriptor, const char *path, uint64_t bytes)
{
    int code = 0;
    do {
        code = bytes != 0 && fallocate(descriptor, 0, 0, (off_t)bytes) != 0 ? errno : 0;
    } while (code == EINTR);
    if (code == EOPNOTSUPP || code == ENOSYS) {
        code = ftruncate(descriptor, (off_t)bytes) != 0 ? errno : 0;
    }
    if (code != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, code, "%s: reserving %" PRIu64 " bytes for %s", strerror(code),
                       bytes, path);
    }
    return ZERO_OK;
}

static zero_status checkpoint_files_write_all(int descriptor, const char *path, const char *data,
                                              uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        const ssize_t wrote = zi_fault_hit(ZI_FAULT_IO)
                                  ? (errno = EIO, -1)
                                  : pwrite(descriptor, data + at, (size_t)(bytes - at), (off_t)at);
        if (wrote > 0) {
            at += (uint64_t)wrote;
            continue;
        }
        errno = wrote == 0 ? EIO : errno;
        if (errno != EINTR) {
            return checkpoint_files_failed(path, "writing the header of");
        }
    }
    return ZERO_OK;
}

/* Make one file. */
static zero_status checkpoint_files_make(const char *folder, const char *name, const char *header,
                                         uint64_t data_at, uint64_t bytes)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    ZI_TRY(zi_checkpoint_path(path, folder, name));
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        return checkpoint_files_failed(path, "making");
    }
    zero_status status = checkpoint_files_reserve(descriptor, path, bytes);
    status =
        status == ZERO_OK ? checkpoint_files_write_all(descriptor, path, header, data_at) : status;
    if (close(descriptor) != 0 && status == ZERO_OK) {
        status = checkpoint_files_failed(
            path, "closing"); /* some file systems say only here that they are full */
    }
    return status;
}

static zero_status checkpoint_files_make_file(const char *folder, const zi_checkpoint_map *map,
                                              uint32_t file, uint64_t *header_hash)
{
    const zi_checkpoint_file *made = &map->files[file];
    char *header = NULL;
    ZI_TRY(zi_checkpoint_header(map, file, &header));
    header_hash[file] = zi_checkpoint_hash(header, made->data_at);
    const zero_status status =
        checkpoint_files_make(folder, made->name, header, made->data_at, made->bytes);
    zi_free(header);
    return status;
}

zero_status zi_checkpoint_files_make(const char *folder, const zi_checkpoint_map *map,
                                     uint64_t *header_hash)
{
    for (uint32_t file = 0; file < map->file_count; file++) {
        ZI_TRY(checkpoint_files_make_file(folder, map, file, header_hash));
    }
    return checkpoint_files_make(folder, ZI_SUMS_NAME, NULL, 0,
                                 map->piece_count * sizeof(uint64_t));
}

static zero_status sync_file(const char *folder, const char *name)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    ZI_TRY(zi_checkpoint_path(path, folder, name));
    const int descriptor = open(path, O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return checkpoint_files_failed(path, "opening");
    }
    const zero_status status =
        fsync(descriptor) == 0 ? ZERO_OK : checkpoint_files_failed(path, "syncing");
    (void)close(descriptor);
    return status;
}

zero_status zi_checkpoint_files_sync(const char *folder, const zi_checkpoint_map *map)
{
    for (uint32_t file = 0; file < map->file_count; file++) {
        ZI_TRY(sync_file(folder, map->files[file].name));
    }
    return sync_file(folder, ZI_SUMS_NAME);
}

zero_status zi_checkpoint_sums_hash(const char *folder, const zi_checkpoint_map *map,
                                    uint64_t *hash)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    zi_regular_file sums;
    ZI_TRY(zi_checkpoint_path(path, folder, ZI_SUMS_NAME));
    zero_status status = zi_checkpoint_open(&sums, path);
    if (status == ZERO_OK) {
        status = zi_checkpoint_hash_file(&sums, map->piece_count * sizeof(uint64_t), hash);
    }
    zi_regular_file_close(&sums);
    return status;
}
