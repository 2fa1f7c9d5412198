/* Owns the faults of files, and the changes of a directory that are not on the disk yet. Invariant:
 * undoing the changes from the newest to the oldest gives the directory as it was on the disk; what
 * a change removed or replaced lies in the folder `lost` meanwhile. The machine's threads are one
 * thread, so nothing is guarded. */
#include "machine_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine_internal.h"

struct io_uring_params;
struct io_uring;

/* The calls of the system that meson.build lets the linker replace. The names are those of 64-bit
 * offsets. */
int __real_fallocate64(int fd, int mode, off_t offset, off_t bytes);
int __real_fdatasync(int fd);
int __real_fsync(int fd);
int __real_ftruncate64(int fd, off_t bytes);
int __real_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params) __attribute__((weak));
int __real_mkdir(const char *path, mode_t mode);
int __real_open64(const char *path, int flags, ...);
int __real_rename(const char *from, const char *to);
int __real_rmdir(const char *path);
int __real_unlink(const char *path);
ssize_t __real_pread64(int fd, void *memory, size_t bytes, off_t offset);
ssize_t __real_pwrite64(int fd, const void *memory, size_t bytes, off_t offset);
ssize_t __real_write(int fd, const void *memory, size_t bytes);

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fdatasync(int fd);
int __wrap_fsync(int fd);
int __wrap_ftruncate64(int fd, off_t bytes);
int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_rename(const char *from, const char *to);
int __wrap_rmdir(const char *path);
int __wrap_unlink(const char *path);
ssize_t __wrap_pread64(int fd, void *memory, size_t bytes, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *memory, size_t bytes, off_t offset);
ssize_t __wrap_write(int fd, const void *memory, size_t bytes);

#define PAGE 4096
#define SECTOR 512
#define NAME_BYTES 256
#define PATH_BYTES 4096
#define NODES_MAX 512
/* The time that one access takes at most. */
#define ACCESS_NS_MAX 200000

/* A file or folder of which changes are noted. It is kept open, so that its inode stays its own. */
typedef struct node {
    dev_t device;
    ino_t inode;
    int fd;
    uint32_t keeps; /* of a folder, at the power's return: so many more changes of its names */
} node;

typedef enum change_kind { MADE, REMOVED, MOVED, EXCHANGED, WROTE } change_kind;

typedef struct change {
    change_kind kind;
    bool on_disk;
    uint32_t node;          /* whose fsync puts it on the disk: the folder of a name, or the file */
    char name[NAME_BYTES];  /* of a name's change */
    char other[NAME_BYTES]; /* MOVED, EXCHANGED: the new one */
    uint32_t lost; /* number in the folder `lost` of what was removed or replaced; 0: none */
    off_t size;    /* WROTE: the file's, before */
    off_t at;      /* WROTE: of the bytes that were there */
    size_t bytes;
    unsigned char *before;
} change;

static struct {
    machine_files faults;
    uint64_t reads;
    uint64_t reservations;
    char directory[PATH_BYTES]; /* empty: none is watched */
    char lost_path[PATH_BYTES];
    int lost;
    uint32_t lost_count;
    uint64_t events;
    uint64_t cut_at;
    bool off;
    node nodes[NODES_MAX];
    uint32_t node_count;
    change *changes;
    uint32_t change_count;
    uint32_t change_room;
} files;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "machine: files: %s: %s\n", what, strerror(errno));
        abort();
    }
}

static bool is_on(void)
{
    return machine_is_on != NULL && machine_is_on();
}

/* ---- faults of accesses ---- */

void machine_files_set(const machine_files *faults)
{
    files.faults = *faults;
    files.reads = 0;
    files.reservations = 0;
}

uint64_t machine_files_reads(void)
{
    return files.reads;
}

uint64_t machine_files_reservations(void)
{
    return files.reservations;
}

/* An access takes its time. How many of its bytes move; 0: a signal came first. */
static size_t begin_access(size_t bytes)
{
    const uint32_t ns = machine_choose(2) == 0 ? 0 : 1 + machine_choose(ACCESS_NS_MAX);
    if (ns != 0) {
        machine_pause(ns);
    }
    const uint32_t percent = files.faults.short_percent;
    if (bytes == 0 || machine_choose(100) < 100 - percent) {
        return bytes;
    }
    return machine_choose(2) == 0 ? 0 : 1 + machine_choose((uint32_t)bytes);
}

static ssize_t interrupted(void)
{
    errno = EINTR;
    return -1;
}

ssize_t __wrap_pread64(int fd, void *memory, size_t bytes, off_t offset)
{
    if (!is_on()) {
        return __real_pread64(fd, memory, bytes, offset);
    }
    const size_t moves = begin_access(bytes);
    if (moves == 0 && bytes != 0) {
        return interrupted();
    }
    /* All is read, for direct access may refuse another length; what is short is the answer. */
    const ssize_t read = __real_pread64(fd, memory, bytes, offset);
    if (read > 0 && bytes >= SECTOR && ++files.reads == files.faults.flip_read) {
        const uint32_t bit = machine_choose(8 * (uint32_t)read);
        ((unsigned char *)memory)[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    return read > (ssize_t)moves ? (ssize_t)moves : read;
}

/* ---- what is noted ---- */

static bool is_watched(const char *path)
{
    const size_t bytes = strlen(files.directory);
    return bytes != 0 && strncmp(path, files.directory, bytes) == 0 &&
           (path[bytes] == '/' || path[bytes] == '\0');
}

/* UINT32_MAX: none. */
static uint32_t find_node(int fd)
{
    struct stat info;
    if (files.directory[0] == '\0' || fstat(fd, &info) != 0) {
        return UINT32_MAX;
    }
    for (uint32_t n = 0; n < files.node_count; n++) {
        if (files.nodes[n].device == info.st_dev && files.nodes[n].inode == info.st_ino) {
            return n;
        }
    }
    return UINT32_MAX;
}

/* Takes the descriptor. */
static uint32_t add_node(int fd)
{
    struct stat info;
    must(fd >= 0, "opening what is watched");
    const uint32_t known = find_node(fd);
    if (known != UINT32_MAX) {
        (void)close(fd);
        return known;
    }
    must(files.node_count < NODES_MAX && fstat(fd, &info) == 0, "noting a file");
    files.nodes[files.node_count] = (node){.device = info.st_dev, .inode = info.st_ino, .fd = fd};
    return files.node_count++;
}

/* The folder that a path's last name is in, and the name. */
static uint32_t split(const char *path, char name[NAME_BYTES])
{
    char folder[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    must(slash != NULL && strlen(path) < PATH_BYTES && strlen(slash + 1) < NAME_BYTES, path);
    (void)snprintf(name, NAME_BYTES, "%s", slash + 1);
    (void)snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    return add_node(__real_open64(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

static change *add_change(change_kind kind, uint32_t of)
{
    if (files.change_count == files.change_room) {
        files.change_room = 2 * files.change_room + 64;
        files.changes = realloc(files.changes, files.change_room * sizeof *files.changes);
        must(files.changes != NULL, "noting a change");
    }
    change *c = &files.changes[files.change_count++];
    *c = (change){.kind = kind, .node = of};
    return c;
}

/* True if the power is there for one more change or fsync of what is watched. */
static bool has_power(void)
{
    files.events++;
    files.off = files.off || files.events == files.cut_at;
    errno = EIO;
    return !files.off;
}

static void note_write(uint32_t file, off_t at, size_t bytes)
{
    struct stat info;
    const int fd = files.nodes[file].fd;
    must(fstat(fd, &info) == 0, "the size of a file");
    change *c = add_change(WROTE, file);
    c->size = info.st_size;
    c->at = at;
    if (bytes != 0 && at < info.st_size) {
        c->before = malloc(bytes);
        must(c->before != NULL, "noting what was there");
        const ssize_t had = __real_pread64(fd, c->before, bytes, at);
        must(had >= 0, "reading what was there");
        c->bytes = (size_t)had;
    }
}

/* ---- calls that change files ---- */

int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params)
{
    return is_on() ? -ENOSYS : __real_io_uring_queue_init_params(entries, ring, params);
}

ssize_t __wrap_pwrite64(int fd, const void *memory, size_t bytes, off_t offset)
{
    if (files.faults.refuses_write && (fcntl(fd, F_GETFL) & O_DIRECT) != 0) {
        errno = EINVAL;
        return -1;
    }
    if (!is_on()) {
        return __real_pwrite64(fd, memory, bytes, offset);
    }
    size_t moves = begin_access(bytes);
    if (moves == 0 && bytes != 0) {
        return interrupted();
    }
    const uint32_t file = find_node(fd);
    if (file != UINT32_MAX) {
        if (!has_power()) {
            return -1;
        }
        note_write(file, offset, bytes);
    }
    /* As for reads. */
    const ssize_t wrote = __real_pwrite64(fd, memory, bytes, offset);
    return wrote > (ssize_t)moves ? (ssize_t)moves : wrote;
}

ssize_t __wrap_write(int fd, const void *memory, size_t bytes)
{
    const uint32_t file = find_node(fd);
    if (file != UINT32_MAX) {
        if (!has_power()) {
            return -1;
        }
        note_write(file, lseek(fd, 0, SEEK_CUR), bytes);
    }
    const ssize_t wrote = __real_write(fd, memory, bytes);
    if (is_on()) {
        machine_moved(); /* it may be a pipe */
    }
    return wrote;
}

int __wrap_ftruncate64(int fd, off_t bytes)
{
    const uint32_t file = find_node(fd);
    if (file != UINT32_MAX) {
        if (!has_power()) {
            return -1;
        }
        struct stat info;
        must(fstat(fd, &info) == 0, "the size of a file");
        note_write(file, bytes, info.st_size > bytes ? (size_t)(info.st_size - bytes) : 0);
    }
    return __real_ftruncate64(fd, bytes);
}

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t bytes)
{
    const uint32_t file = find_node(fd);
    if (is_on() && ++files.reservations == files.faults.full_at) {
        errno = ENOSPC;
        return -1;
    }
    if (file != UINT32_MAX) {
        if (!has_power()) {
            return -1;
        }
        note_write(file, offset, 0);
    }
    return __real_fallocate64(fd, mode, offset, bytes);
}

static int sync_node(int fd, int (*does)(int fd))
{
    const uint32_t of = find_node(fd);
    if (of == UINT32_MAX) {
        return does(fd);
    }
    if (!has_power()) {
        return -1;
    }
    for (uint32_t i = 0; i < files.change_count; i++) {
        files.changes[i].on_disk |= files.changes[i].node == of;
    }
    return 0; /* the disk is ours: the system's need not wait for its own */
}

int __wrap_fsync(int fd)
{
    return sync_node(fd, __real_fsync);
}

int __wrap_fdatasync(int fd)
{
    return sync_node(fd, __real_fdatasync);
}

/* ---- calls that change names ---- */

int __wrap_open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (files.faults.refuses_open && (flags & O_DIRECT) != 0) {
        errno = EINVAL;
        return -1;
    }
    if ((flags & O_ACCMODE) == O_RDONLY || !is_watched(path)) {
        return __real_open64(path, flags, mode);
    }
    struct stat info;
    const bool was = lstat(path, &info) == 0;
    const bool changes = !was || (flags & O_TRUNC) != 0;
    if (files.off || (changes && !has_power())) {
        errno = EIO;
        return -1;
    }
    if (was && (flags & O_TRUNC) != 0) {
        note_write(add_node(__real_open64(path, O_RDWR | O_CLOEXEC)), 0, (size_t)info.st_size);
    }
    const int fd = __real_open64(path, flags, mode);
    if (fd >= 0) {
        const int code = errno;
        (void)add_node(__real_open64(path, O_RDWR | O_CLOEXEC));
        if (!was) {
            char name[NAME_BYTES];
            change *c = add_change(MADE, split(path, name));
            memcpy(c->name, name, sizeof name);
        }
        errno = code;
    }
    return fd;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    if (!is_watched(path)) {
        return __real_mkdir(path, mode);
    }
    if (!has_power()) {
        return -1;
    }
    const int code = __real_mkdir(path, mode);
    if (code == 0) {
        char name[NAME_BYTES];
        change *c = add_change(MADE, split(path, name));
        memcpy(c->name, name, sizeof name);
    }
    return code;
}

/* Keep what a name stands for, under a number. */
static uint32_t lose(uint32_t folder, const char *name)
{
    char number[16];
    (void)snprintf(number, sizeof number, "%u", ++files.lost_count);
    must(renameat(files.nodes[folder].fd, name, files.lost, number) == 0, "keeping what is lost");
    return files.lost_count;
}

static bool is_empty(const char *path)
{
    unsigned entries = 0;
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL) {
        entries++;
    }
    (void)(folder != NULL && closedir(folder));
    return entries <= 2; /* itself and the one that it is in */
}

/* A name of this kind goes; kind: of st_mode. */
static int remove_name(const char *path, bool folder)
{
    struct stat info;
    char name[NAME_BYTES];
    if (!has_power() || lstat(path, &info) != 0) {
        return -1;
    }
    errno = folder ? ENOTDIR : EISDIR;
    if (S_ISDIR(info.st_mode) != folder) {
        return -1;
    }
    errno = ENOTEMPTY;
    if (folder && !is_empty(path)) {
        return -1;
    }
    const uint32_t of = split(path, name);
    change *c = add_change(REMOVED, of);
    memcpy(c->name, name, sizeof name);
    c->lost = lose(of, name);
    return 0;
}

int __wrap_unlink(const char *path)
{
    return is_watched(path) ? remove_name(path, false) : __real_unlink(path);
}

int __wrap_rmdir(const char *path)
{
    return is_watched(path) ? remove_name(path, true) : __real_rmdir(path);
}

/* Both names are in one folder. */
static change *add_move(change_kind kind, const char *from, const char *to)
{
    char name[NAME_BYTES];
    char other[NAME_BYTES];
    const uint32_t folder = split(from, name);
    must(split(to, other) == folder, "a move between folders, which is not noted");
    change *c = add_change(kind, folder);
    memcpy(c->name, name, sizeof name);
    memcpy(c->other, other, sizeof other);
    return c;
}

int __wrap_rename(const char *from, const char *to)
{
    struct stat info;
    if (!is_watched(from)) {
        return __real_rename(from, to);
    }
    if (!has_power() || lstat(from, &info) != 0) {
        return -1;
    }
    const bool folder = S_ISDIR(info.st_mode);
    const bool replaces = lstat(to, &info) == 0;
    errno = ENOTEMPTY;
    if (replaces && (folder != S_ISDIR(info.st_mode) || (folder && !is_empty(to)))) {
        return -1;
    }
    change *c = add_move(MOVED, from, to);
    if (replaces) {
        c->lost = lose(c->node, c->other);
    }
    return __real_rename(from, to);
}

int machine_exchange(const char *one, const char *other)
{
    if (is_watched(one) && !has_power()) {
        return -1;
    }
    const int code = renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
    if (code == 0 && is_watched(one)) {
        (void)add_move(EXCHANGED, one, other);
    }
    return code;
}

/* ---- power ---- */

static void drop_changes(void)
{
    for (uint32_t i = 0; i < files.change_count; i++) {
        free(files.changes[i].before);
    }
    for (uint32_t n = 0; n < files.node_count; n++) {
        (void)close(files.nodes[n].fd);
    }
    files.change_count = 0;
    files.node_count = 0;
}

void machine_power_watch(const char *directory)
{
    must(strlen(directory) < PATH_BYTES - 8, directory);
    drop_changes();
    (void)snprintf(files.directory, sizeof files.directory, "%s", directory);
    (void)snprintf(files.lost_path, sizeof files.lost_path, "%s.lost", directory);
    must(__real_mkdir(files.lost_path, 0700) == 0, files.lost_path);
    files.lost = __real_open64(files.lost_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(files.lost >= 0, files.lost_path);
    files.lost_count = 0;
    machine_power_cut(0);
}

void machine_power_cut(uint64_t nth)
{
    files.cut_at = nth;
    files.events = 0;
    files.off = false;
}

uint64_t machine_power_events(void)
{
    return files.events;
}

bool machine_power_is_off(void)
{
    return files.off;
}

static void find_again(uint32_t number, uint32_t folder, const char *name)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%u", number);
    must(renameat(files.lost, text, files.nodes[folder].fd, name) == 0, "bringing a name back");
}

/* Each page of what was there is back, or the new one stays. */
static void undo_write(const change *c)
{
    const int fd = files.nodes[c->node].fd;
    const uint32_t losing = machine_choose(3); /* all of it, none, or as it comes */
    for (size_t done = 0; done < c->bytes;) {
        size_t bytes = PAGE - (size_t)(c->at + (off_t)done) % PAGE;
        bytes = bytes < c->bytes - done ? bytes : c->bytes - done;
        if (losing == 0 || (losing == 2 && machine_choose(2) == 0)) {
            must(__real_pwrite64(fd, c->before + done, bytes, c->at + (off_t)done) ==
                     (ssize_t)bytes,
                 "writing what was there");
        }
        done += bytes;
    }
    if (losing == 0) {
        must(__real_ftruncate64(fd, c->size) == 0, "the size that was");
    }
}

static void undo_name(const change *c)
{
    const int folder = files.nodes[c->node].fd;
    switch (c->kind) {
    case MADE:
        (void)lose(c->node, c->name);
        break;
    case REMOVED:
        find_again(c->lost, c->node, c->name);
        break;
    case MOVED:
        must(renameat(folder, c->other, folder, c->name) == 0, "moving a name back");
        if (c->lost != 0) {
            find_again(c->lost, c->node, c->other);
        }
        break;
    case EXCHANGED:
        must(renameat2(folder, c->name, folder, c->other, RENAME_EXCHANGE) == 0, "exchanging");
        break;
    case WROTE:
    default:
        break;
    }
}

/* How many of the names' changes of each folder that are not on the disk are there all the same. */
static void draw_kept(void)
{
    for (uint32_t n = 0; n < files.node_count; n++) {
        uint32_t open = 0;
        for (uint32_t i = 0; i < files.change_count; i++) {
            open += files.changes[i].node == n && files.changes[i].kind != WROTE &&
                    !files.changes[i].on_disk;
        }
        files.nodes[n].keeps = machine_choose(open + 1);
    }
    for (uint32_t i = 0; i < files.change_count; i++) {
        change *c = &files.changes[i];
        if (!c->on_disk && c->kind != WROTE && files.nodes[c->node].keeps > 0) {
            files.nodes[c->node].keeps--;
            c->on_disk = true;
        }
    }
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

uint32_t machine_power_return(void)
{
    uint32_t lost = 0;
    if (files.directory[0] == '\0') {
        return 0;
    }
    draw_kept();
    for (uint32_t i = files.change_count; i-- > 0;) {
        const change *c = &files.changes[i];
        if (!c->on_disk) {
            lost++;
            c->kind == WROTE ? undo_write(c) : undo_name(c);
        }
    }
    drop_changes();
    files.directory[0] = '\0';
    files.off = false;
    (void)close(files.lost);
    must(nftw(files.lost_path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0, files.lost_path);
    return lost;
}
