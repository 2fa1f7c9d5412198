/* Owns a store: its directories, locks and files. Invariant: a directory's lock is held from before
 * its file is made until after it is closed. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "storage/storage.h"
#include "storage/store_file.h"
#include "storage/store_lock.h"

typedef struct store_file {
    int directory; /* open; -1: not yet */
    int lock;
    int fd;
    char *path;
    zi_store_directory info;
} store_file;

struct zi_store {
    zi_store_owner owner;
    zi_stripe_map map;
    const zi_storage *storage;
    store_file files[ZI_STORE_DIRECTORIES_MAX];
};

static zero_status store_check_options(const zi_store_options *options)
{
    if (options->directory_count < 1 || options->directory_count > ZI_STORE_DIRECTORIES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%u directories; give 1 to %d", options->directory_count,
                ZI_STORE_DIRECTORIES_MAX);
    }
    for (uint32_t i = 0; i < options->directory_count; i++) {
        if (options->directories[i] == NULL || options->directories[i][0] == '\0') {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "directory %u has no path", i);
        }
    }
    if (options->bytes == 0 || options->bytes % ZI_STORAGE_ALIGN != 0 ||
        options->bytes > INT64_MAX / 2) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "a store of %" PRIu64 " bytes; give a multiple of %" PRIu64, options->bytes,
                ZI_STORAGE_ALIGN);
    }
    if (options->unit_bytes % ZI_STORAGE_ALIGN != 0 || options->unit_bytes > INT64_MAX / 2) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "stripes of %" PRIu64 " bytes; give a multiple of %" PRIu64, options->unit_bytes,
                ZI_STORAGE_ALIGN);
    }
    return ZERO_OK;
}

static zero_status open_directory(store_file *file)
{
    file->directory = open(file->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file->directory < 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, errno, "cannot open it: %s; make the directory %s first",
                       strerror(errno), file->path);
    }
    return ZERO_OK;
}

/* The lock would refuse the second one too, but name this process as its owner. */
static zero_status refuse_twice(const zi_store *store, uint32_t index)
{
    struct stat ours;
    struct stat other;
    for (uint32_t i = 0; i < index; i++) {
        if (fstat(store->files[index].directory, &ours) == 0 &&
            fstat(store->files[i].directory, &other) == 0 && ours.st_dev == other.st_dev &&
            ours.st_ino == other.st_ino) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "directories %u and %u are the same: %s", i, index,
                    store->files[index].path);
        }
    }
    return ZERO_OK;
}

static zero_status open_part(zi_store *store, const zi_store_options *options, uint32_t index)
{
    store_file *file = &store->files[index];
    const size_t path_bytes = strlen(options->directories[index]) + 1;
    ZI_TRY(zi_calloc(path_bytes, 1, (void **)&file->path));
    memcpy(file->path, options->directories[index], path_bytes);
    file->info.path = file->path;
    file->info.file_bytes = zi_stripe_file_bytes(&store->map, index);
    if (store->storage != NULL) {
        return ZERO_OK;
    }
    ZI_TRY(open_directory(file));
    ZI_TRY(refuse_twice(store, index));
    ZI_TRY(zi_store_lock(file->directory, file->path, &store->owner, &file->lock));
    return zi_store_file_open(file->directory, options, &store->owner, &file->info, &file->fd);
}

zero_status zi_store_create(const zi_store_options *options, zi_store **out)
{
    *out = NULL;
    ZI_TRY(store_check_options(options));
    zi_store *store = NULL;
    ZI_TRY(zi_calloc(1, sizeof *store, (void **)&store));
    store->owner = (zi_store_owner){options->rank, options->use != NULL ? options->use : ""};
    store->storage = options->storage;
    for (uint32_t i = 0; i < ZI_STORE_DIRECTORIES_MAX; i++) {
        store->files[i].directory = -1;
        store->files[i].lock = -1;
        store->files[i].fd = -1;
    }
    const uint64_t unit_bytes =
        options->unit_bytes != 0 ? options->unit_bytes : ZI_STORE_UNIT_BYTES;
    zero_status status = zi_stripe_init(&store->map, options->bytes, unit_bytes, options->rates,
                                        options->directory_count);
    for (uint32_t i = 0; i < options->directory_count && status == ZERO_OK; i++) {
        status = open_part(store, options, i);
    }
    if (status != ZERO_OK) {
        zi_store_destroy(store);
        return status;
    }
    *out = store;
    return ZERO_OK;
}

void zi_store_destroy(zi_store *store)
{
    if (store == NULL) {
        return;
    }
    if (store->storage != NULL && store->storage->store_destroy != NULL) {
        store->storage->store_destroy(store->storage->self, store);
    }
    for (uint32_t i = 0; i < ZI_STORE_DIRECTORIES_MAX; i++) {
        store_file *file = &store->files[i];
        if (file->fd >= 0) {
            /* io_uring closes a registered file some time after its ring is gone, and the next
             * engine may need the space now. */
            if (ftruncate(file->fd, 0) != 0) {
                zi_log(ZERO_LOG_WARN, "storage: cannot empty a file: %s; in the directory %s",
                       strerror(errno), file->path);
            }
            (void)close(file->fd);
        }
        if (file->lock >= 0) {
            zi_store_unlock(file->directory, &store->owner, file->lock);
        }
        if (file->directory >= 0) {
            (void)close(file->directory);
        }
        zi_free(file->path);
    }
    zi_free(store);
}

uint64_t zi_store_bytes(const zi_store *store)
{
    return store->map.bytes;
}

const zi_stripe_map *zi_store_map(const zi_store *store)
{
    return &store->map;
}

const zi_store_directory *zi_store_directory_of(const zi_store *store, uint32_t file)
{
    zi_assert_cmp(file, <, store->map.file_count);
    return &store->files[file].info;
}

zero_status zi_store_damaged(const zi_store *store, uint64_t offset, uint64_t bytes,
                             const char *what)
{
    const zi_stripe_place place = zi_stripe_find(&store->map, offset);
    ZI_FAIL(ZERO_ERR_CORRUPT,
            "%s: %" PRIu64 " bytes at %" PRIu64
            " of the file are not what was written there; check "
            "the disk, and go on from a checkpoint; in the directory %s",
            what, bytes, place.offset, store->files[place.file].path);
}

const zi_storage *zi_store_storage(const zi_store *store)
{
    return store->storage;
}

int zi_store_fd(const zi_store *store, uint32_t file)
{
    zi_assert_cmp(file, <, store->map.file_count);
    return store->files[file].fd;
}
