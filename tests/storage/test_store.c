/* Stores: space, locks, leftovers, refusals. */
#include "storage_rig.h"

#include <limits.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#include "core/fault.h"
#include "storage/store_file.h"
#include "storage/store_lock.h"

static zi_store_options options_of(const char *const *folders, uint32_t count)
{
    return (zi_store_options){.directories = folders, .directory_count = count, .bytes = 4 * MIB};
}

TEST(space_is_reserved_and_given_back)
{
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        char *folder = rig_folder(in_memory);
        const char *folders[] = {folder};
        zi_store *store = rig_store(folders, 1, 4 * MIB);
        const zi_store_directory *info = zi_store_directory_of(store, 0);
        CHECK_EQ(info->file_bytes, 4 * MIB);
        CHECK_EQ(info->in_memory, in_memory);
        struct stat file;
        CHECK(fstat(zi_store_fd(store, 0), &file) == 0);
        CHECK_EQ(file.st_nlink, 0);
        if (info->reserved) {
            CHECK_EQ(file.st_size, 4 * MIB);
            CHECK((uint64_t)file.st_blocks * 512 >= 4 * MIB);
        } else {
            CHECK(strstr(info->note, "reserve") != NULL);
        }
        if (!info->direct) {
            CHECK(strstr(info->note, "buffered") != NULL);
        }
        CHECK_EQ(rig_entries(folder), 1); /* the lock alone */
        zi_store_destroy(store);
        rig_remove(folder);
    }
}

TEST(a_file_that_was_named_for_an_instant_is_nameless_too)
{
    rig_folders(1, 0);
    zi_store_options options = options_of(rig_paths, 1);
    options.named = true;
    zi_store *store = NULL;
    CHECK_OK(zi_store_create(&options, &store));
    CHECK_EQ(rig_entries(rig_paths[0]), 1);
    struct stat file;
    CHECK(fstat(zi_store_fd(store, 0), &file) == 0);
    CHECK_EQ(file.st_nlink, 0);
    zi_store_destroy(store);
}

TEST(stripes_have_the_sizes_of_their_rates)
{
    char *first = rig_folder(false);
    char *second = rig_folder(true);
    const char *folders[] = {first, second};
    static const uint32_t rates[] = {3, 1};
    zi_store_options options = options_of(folders, 2);
    options.rates = rates;
    options.bytes = 8 * MIB + PAGE;
    zi_store *store = NULL;
    CHECK_OK(zi_store_create(&options, &store));
    CHECK_EQ(zi_store_bytes(store), 8 * MIB + PAGE);
    CHECK_EQ(zi_store_directory_of(store, 0)->file_bytes, 6 * MIB + PAGE);
    CHECK_EQ(zi_store_directory_of(store, 1)->file_bytes, 2 * MIB);
    zi_store_destroy(store);
    rig_remove(first);
    rig_remove(second);
}

TEST(misuse_is_refused)
{
    char *folder = rig_folder(false);
    const char *folders[] = {folder, folder};
    zi_store *store = NULL;
    zi_store_options options = options_of(folders, 2);
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_INVALID_ARGUMENT, "are the same");
    options.directory_count = 0;
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_INVALID_ARGUMENT, "0 directories");
    options.directory_count = 17;
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_INVALID_ARGUMENT, "17 directories");
    options = options_of(folders, 1);
    options.bytes = 4097;
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_INVALID_ARGUMENT, "4097");
    options.bytes = 0;
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_INVALID_ARGUMENT, "0 bytes");
    options = options_of(folders, 1);
    options.unit_bytes = 100;
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_INVALID_ARGUMENT, "100");
    CHECK(store == NULL);
    const char *missing[] = {"./there/is/none"};
    options = options_of(missing, 1);
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_IO, "./there/is/none");
    CHECK_EQ(zero_last_error()->native, ENOENT);
    const char *no_folder[] = {"/dev/null"};
    options = options_of(no_folder, 1);
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_IO, "/dev/null");
    rig_remove(folder);
}

TEST(a_folder_that_cannot_be_written_is_refused)
{
    char *folder = rig_folder(true);
    CHECK(chmod(folder, 0555) == 0);
    const bool root = getuid() == 0;
    if (root && setresuid(65534, 65534, 0) != 0) {
        SKIP("cannot become another user");
    }
    const char *folders[] = {folder};
    zi_store_options options = options_of(folders, 1);
    zi_store *store = NULL;
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_IO, folder);
    CHECK_EQ(zero_last_error()->native, EACCES);
    CHECK(!root || setresuid(0, 0, 0) == 0);
    rig_remove(folder);
}

TEST(alignments_above_ours_are_refused)
{
    bool direct = true;
    CHECK_OK(zi_store_direct_rule(0, 0, "D", &direct));
    CHECK(!direct);
    CHECK_OK(zi_store_direct_rule(512, 512, "D", &direct));
    CHECK(direct);
    CHECK_OK(zi_store_direct_rule(4096, 4096, "D", &direct));
    CHECK(direct);
    CHECK_FAILS(zi_store_direct_rule(4, 8192, "D", &direct), ZERO_ERR_UNSUPPORTED, "8192");
    CHECK_FAILS(zi_store_direct_rule(65536, 512, "D", &direct), ZERO_ERR_UNSUPPORTED, "65536");
}

/* A process that has a store in the folder until it is killed; *pid is whom. */
static void start_owner(const char *folder, pid_t *pid)
{
    int ready[2];
    CHECK(pipe(ready) == 0);
    fflush(NULL);
    *pid = fork();
    CHECK(*pid >= 0);
    if (*pid == 0) {
        /* Nor does it outlive a test that fails. */
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        const char *folders[] = {folder};
        (void)rig_store(folders, 1, 64 * MIB);
        (void)!write(ready[1], "x", 1);
        for (;;) {
            pause();
        }
    }
    char byte = 0;
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
}

static void kill_owner(pid_t pid)
{
    int state = 0;
    CHECK(kill(pid, SIGKILL) == 0);
    CHECK(waitpid(pid, &state, 0) == pid);
}

TEST(a_second_job_is_refused_with_the_owner_s_pid)
{
    rig_folders(1, 0);
    pid_t owner = 0;
    start_owner(rig_paths[0], &owner);
    const char *text = test_text("process %ld on ", (long)owner);
    zi_store_options options = options_of(rig_paths, 1);
    zi_store *store = NULL;
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_STATE, text);
    CHECK(strstr(zero_last_error()->message, rig_paths[0]) != NULL);
    /* Another rank has its own place. */
    options.rank = 1;
    CHECK_OK(zi_store_create(&options, &store));
    zi_store_destroy(store);
    CHECK_EQ(rig_entries(rig_paths[0]), 1);
    kill_owner(owner);
    options.rank = 0;
    CHECK_OK(zi_store_create(&options, &store));
    zi_store_destroy(store);
}

/* ---- lock files ---- */

static void lock_path(const char *folder, char path[96])
{
    (void)snprintf(path, 96, "%s/zero-rank-0.lock", folder);
}

TEST(a_lock_file_is_its_user_s_alone)
{
    rig_folders(1, 0);
    char path[96];
    lock_path(rig_paths[0], path);
    static const mode_t masks[] = {000, 022, 077, 0777};
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        /* One that a killed job of an older version left. */
        const int old = i % 2 == 1 ? open(path, O_WRONLY | O_CREAT | O_EXCL, 0644) : -1;
        CHECK(old < 0 || (fchmod(old, 0644) == 0 && close(old) == 0));
        const mode_t mask = umask(masks[i]);
        zi_store *store = rig_store(rig_paths, 1, 4 * MIB);
        (void)umask(mask);
        struct stat info;
        CHECK(lstat(path, &info) == 0);
        CHECK_EQ(info.st_mode, S_IFREG | 0600);
        zi_store_destroy(store);
        CHECK_EQ(rig_entries(rig_paths[0]), 0);
    }
}

/* Whatever has the name, nothing is written to it. */
static void check_refused(const char *folder, const char *text)
{
    zi_store_options options = options_of(&folder, 1);
    zi_store *store = NULL;
    const unsigned descriptors = rig_descriptors();
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_STATE, text);
    CHECK(strstr(zero_last_error()->message, folder) != NULL);
    CHECK(strstr(zero_last_error()->message, "remove it") != NULL);
    CHECK(store == NULL);
    CHECK_EQ(rig_descriptors(), descriptors);
}

TEST(links_are_not_taken_for_lock_files)
{
    char *folder = rig_folder(false);
    char *other = rig_folder(false);
    char path[96];
    char target[96];
    char bytes[16] = {0};
    lock_path(folder, path);
    (void)snprintf(target, sizeof target, "%s/precious", other);
    const int file = open(target, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(file >= 0 && write(file, "of great value", 14) == 14);
    CHECK(link(target, path) == 0);
    check_refused(folder, "2 links");
    CHECK(unlink(path) == 0);
    char real[PATH_MAX];
    CHECK(realpath(target, real) != NULL);
    CHECK(symlink(real, path) == 0);
    check_refused(folder, "symbolic link");
    CHECK(unlink(path) == 0);
    CHECK(symlink("to/nothing", path) == 0);
    check_refused(folder, "symbolic link");
    CHECK(unlink(path) == 0);
    CHECK(pread(file, bytes, sizeof bytes, 0) == 14 && memcmp(bytes, "of great value", 14) == 0);
    CHECK(close(file) == 0 && unlink(target) == 0);
    rig_remove(folder);
    rig_remove(other);
}

TEST(nor_is_what_is_no_file_of_this_user)
{
    char *folder = rig_folder(false);
    char path[96];
    lock_path(folder, path);
    CHECK(mkfifo(path, 0600) == 0);
    check_refused(folder, "no regular file"); /* and nobody waits for its other end */
    CHECK(unlink(path) == 0);
    if (getuid() != 0) {
        rig_remove(folder);
        SKIP("only root can give files away");
    }
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    CHECK(file >= 0 && fchown(file, 12345, 0) == 0 && close(file) == 0);
    check_refused(folder, "user 12345");
    CHECK(unlink(path) == 0);
    rig_remove(folder);
}

/* The text of a lock file is shown on terminals and in logs, whoever wrote it. */
TEST(what_a_lock_file_says_is_shown_in_plain_characters)
{
    rig_folders(1, 0);
    char path[96];
    char text[4096];
    lock_path(rig_paths[0], path);
    memset(text, 'x', sizeof text);
    static const char start[] = "\033]0;owned\007\033[2J\r\t\x80\xff";
    memcpy(text, start, sizeof start - 1);
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(file >= 0 && write(file, text, sizeof text) == sizeof text);
    CHECK(flock(file, LOCK_EX | LOCK_NB) == 0);
    zi_store_options options = options_of(rig_paths, 1);
    zi_store *store = NULL;
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_STATE, "taken by ?]0;owned??[2J????xx");
    const char *message = zero_last_error()->message;
    for (const char *c = message; *c != '\0'; c++) {
        CHECK(*c >= ' ' && *c <= '~');
    }
    CHECK(strstr(message, rig_paths[0]) != NULL); /* which the text has not pushed out */
    CHECK(close(file) == 0 && unlink(path) == 0);
}

/* A tmpfs of its own, seen by this process alone. */
static char *mounted_folder(const char *size)
{
    char *folder = rig_folder(false);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", folder, "tmpfs", 0, size) != 0) {
        rig_remove(folder);
        SKIP("a file system cannot be mounted here");
    }
    return folder;
}

static uint64_t free_of(const char *folder)
{
    struct statvfs info;
    CHECK(statvfs(folder, &info) == 0);
    return (uint64_t)info.f_bfree * info.f_frsize;
}

TEST(a_killed_owner_leaves_no_bytes)
{
    char *folder = mounted_folder("size=100m");
    const char *folders[] = {folder};
    const uint64_t all = free_of(folder);
    pid_t owner = 0;
    start_owner(folder, &owner);
    CHECK(free_of(folder) <= all - 64 * MIB);
    kill_owner(owner);
    CHECK(free_of(folder) >= all - 2 * PAGE); /* the lock file is still there */
    CHECK_EQ(rig_entries(folder), 1);
    zi_store_destroy(rig_store(folders, 1, 64 * MIB));
    CHECK_EQ(free_of(folder), all);
    CHECK(umount(folder) == 0);
    rig_remove(folder);
}

TEST(leftovers_are_removed)
{
    rig_folders(1, 0);
    const char *path = test_text("%s/zero-rank-0.swap", rig_paths[0]);
    const int file = open(path, O_WRONLY | O_CREAT, 0600);
    CHECK(file >= 0);
    CHECK(ftruncate(file, 1 << 20) == 0);
    close(file);
    zi_store_options options = options_of(rig_paths, 1);
    for (int named = 0; named < 2; named++) {
        options.named = named;
        zi_store *store = NULL;
        CHECK_OK(zi_store_create(&options, &store));
        CHECK_EQ(rig_entries(rig_paths[0]), 1);
        zi_store_destroy(store);
    }
}

TEST(too_little_space_is_named)
{
    char *folder = mounted_folder("size=8m");
    char *other = rig_folder(false);
    const char *folders[] = {other, folder};
    zi_store_options options = options_of(folders, 2);
    options.bytes = 64 * MIB;
    zi_store *store = NULL;
    CHECK_FAILS(zi_store_create(&options, &store), ZERO_ERR_OUT_OF_MEMORY, folder);
    CHECK(strstr(zero_last_error()->message, "33554432 bytes wanted") != NULL);
    CHECK(strstr(zero_last_error()->message, "8388608 free") != NULL ||
          strstr(zero_last_error()->message, "8384512 free") != NULL);
    CHECK_EQ(zero_last_error()->native, ENOSPC);
    options.bytes = 4 * MIB;
    CHECK_OK(zi_store_create(&options, &store));
    zi_store_destroy(store);
    CHECK(umount(folder) == 0);
    rig_remove(folder);
    rig_remove(other);
}

TEST(every_allocation_may_fail)
{
    rig_folders(1, 0);
    const unsigned descriptors = rig_descriptors();
    zi_store_options options = options_of(rig_paths, 1);
    zi_store *store = NULL;
    uint64_t nth = 0;
    do {
        zi_fault_arm(ZI_FAULT_ALLOC, ++nth);
        const zero_status status = zi_store_create(&options, &store);
        zi_fault_arm(ZI_FAULT_ALLOC, 0);
        CHECK(status == ZERO_OK || status == ZERO_ERR_OUT_OF_MEMORY);
        CHECK((store != NULL) == (status == ZERO_OK));
        CHECK_EQ(rig_entries(rig_paths[0]), store != NULL);
    } while (store == NULL);
    CHECK(nth >= 3);
    zi_store_destroy(store);
    CHECK_EQ(rig_descriptors(), descriptors);
}
