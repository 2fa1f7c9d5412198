/* Owns the lock of a directory for state on disk. Invariant: whoever holds the lock of the file of
 * that name owns the directory for its rank. */
#include "storage/store_lock.h"

#include <stdio.h>
#include <unistd.h>

#include "core/error.h"
#include "storage/file_lock.h"

static void lock_name(const zi_store_owner *owner, char *name, size_t name_bytes)
{
    (void)snprintf(name, name_bytes, "zero-rank-%u%s.lock", owner->rank, owner->use);
}

static zero_status store_lock_refuse(const zi_file_lock_target *target, int lock, uint32_t rank)
{
    char text[ZI_FILE_LOCK_TEXT_BYTES];
    (void)zi_file_lock_read(lock, text);
    zi_file_lock_line(text);
    ZI_FAIL(ZERO_ERR_STATE,
            "rank %u's target is taken by %.127s; end it or give each job a directory of its own: "
            "%s",
            rank, text[0] != '\0' ? text : "a process that has not written its pid yet",
            target->path);
}

static zero_status store_lock_sign(const zi_file_lock_target *target, int lock)
{
    char host[64] = "unknown";
    char text[128];
    (void)gethostname(host, sizeof host - 1);
    host[sizeof host - 1] = '\0';
    (void)snprintf(text, sizeof text, "process %ld on %s\n", (long)getpid(), host);
    return zi_file_lock_sign(target, lock, text);
}

zero_status zi_store_lock(int directory, const char *path, const zi_store_owner *owner, int *lock)
{
    char name[ZI_STORE_NAME_BYTES];
    const zi_file_lock_target target = {.directory = directory, .path = path, .name = name};
    zi_file_lock_result result = ZI_FILE_LOCK_TAKEN;
    zero_status status = ZERO_OK;
    int file = -1;
    lock_name(owner, name, sizeof name);
    *lock = -1;
    ZI_TRY(zi_file_lock_take(&target, &file, &result));
    if (result == ZI_FILE_LOCK_UNKNOWN) {
        status = zi_error_set(ZERO_ERR_IO, 0, __FILE__, __LINE__,
                              "the file system has no locks; give a directory of a local disk: %s",
                              path);
    } else {
        status = result == ZI_FILE_LOCK_HELD ? store_lock_refuse(&target, file, owner->rank)
                                             : store_lock_sign(&target, file);
    }
    if (status != ZERO_OK) {
        zi_file_lock_close(file);
        return status;
    }
    *lock = file;
    return ZERO_OK;
}

void zi_store_unlock(int directory, const zi_store_owner *owner, int lock)
{
    char name[ZI_STORE_NAME_BYTES];
    lock_name(owner, name, sizeof name);
    (void)unlinkat(directory, name, 0);
    zi_file_lock_close(lock);
}
