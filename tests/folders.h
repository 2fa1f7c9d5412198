/* Folders of a test's own: made empty, and empty again at their end, else the test has failed. */
#ifndef TESTS_FOLDERS_H
#define TESTS_FOLDERS_H

#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* An empty folder: of the build's file system, or in memory. */
static inline char *rig_folder(bool in_memory)
{
    char *path = calloc(1, 64);
    CHECK(path != NULL);
    (void)snprintf(path, 64, "%s/zero-storage-XXXXXX", in_memory ? "/dev/shm" : ".");
    CHECK(mkdtemp(path) != NULL);
    return path;
}

/* Files in a folder. */
static inline unsigned rig_entries(const char *path)
{
    DIR *folder = opendir(path);
    CHECK(folder != NULL);
    unsigned count = 0;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(folder);
    return count;
}

/* The folder must be empty again. */
static inline void rig_remove(char *path)
{
    CHECK_EQ(rig_entries(path), 0);
    CHECK(rmdir(path) == 0);
    free(path);
}

/* Those of rig_folders. */
#define RIG_FOLDERS_MAX 3
static char *rig_made[RIG_FOLDERS_MAX];
static const char *rig_paths[RIG_FOLDERS_MAX];

static inline void rig_folders_remove(void)
{
    for (int i = 0; i < RIG_FOLDERS_MAX && rig_made[i] != NULL; i++) {
        rig_remove(rig_made[i]);
    }
}

/* rig_paths: so many of the build's file system, then so many in memory, to the process's end. */
static inline void rig_folders(int on_disk, int in_memory)
{
    CHECK(on_disk + in_memory <= RIG_FOLDERS_MAX && rig_made[0] == NULL);
    for (int i = 0; i < on_disk + in_memory; i++) {
        rig_made[i] = rig_folder(i >= on_disk);
        rig_paths[i] = rig_made[i];
    }
    CHECK(atexit(rig_folders_remove) == 0);
}

/* A folder with a file system of its own that has room for 64 KiB; the test is skipped where that
 * is not allowed. */
static inline char *rig_small_disk(void)
{
    char *path = rig_folder(false);
    if (mount("tmpfs", path, "tmpfs", 0, "size=64k") != 0) {
        rig_remove(path);
        SKIP("mounting a small file system is not allowed here");
    }
    return path;
}

static inline void rig_small_disk_remove(char *path)
{
    CHECK(umount(path) == 0);
    rig_remove(path);
}

/* The nameless files that this process keeps in a folder: their bytes, and how many. Cut off, what
 * is read from them ends too early. */
static inline int rig_nameless(const char *folder, bool cut, uint64_t *bytes)
{
    DIR *fds = opendir("/proc/self/fd");
    int count = 0;
    *bytes = 0;
    CHECK(fds != NULL);
    char real[4096];
    CHECK(realpath(folder, real) != NULL);
    for (const struct dirent *entry = readdir(fds); entry != NULL; entry = readdir(fds)) {
        char target[4096] = "";
        const ssize_t length = readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1);
        struct stat info;
        const int fd = atoi(entry->d_name);
        if (length > 0 && strncmp(target, real, strlen(real)) == 0 && fstat(fd, &info) == 0 &&
            S_ISREG(info.st_mode) && info.st_nlink == 0) {
            *bytes += (uint64_t)info.st_size;
            CHECK(!cut || ftruncate(fd, 0) == 0);
            count++;
        }
    }
    (void)closedir(fds);
    return count;
}

#endif
