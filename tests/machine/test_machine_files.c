/* Owns the tests of the machine's files: what is lost when the power goes, and the faults of single
 * calls. */
#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "folders.h"
#include "machine.h"
#include "machine_files.h"

#define SEEDS 200

static char *watched;

static const char *in_watched(const char *name)
{
    return test_text("%s/%s", watched, name);
}

static void watch_new_folder(void)
{
    watched = rig_folder(true);
    machine_power_watch(watched);
}

/* All is removed. */
static void end_watch(void)
{
    (void)machine_power_return();
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"a", "b", "c", "d"};
        (void)unlink(in_watched(names[i]));
    }
    rig_remove(watched);
}

static void write_text(const char *name, const char *text, bool syncs)
{
    const int file = open(in_watched(name), O_WRONLY | O_CREAT, 0666);
    CHECK(file >= 0);
    CHECK_EQ(pwrite(file, text, strlen(text), 0), (ssize_t)strlen(text));
    CHECK(!syncs || fsync(file) == 0);
    CHECK_EQ(close(file), 0);
}

static void sync_watched(void)
{
    const int folder = open(watched, O_RDONLY | O_DIRECTORY);
    CHECK(folder >= 0 && fsync(folder) == 0);
    CHECK_EQ(close(folder), 0);
}

/* "" where there is no such file. */
static const char *text_of(const char *name)
{
    static char text[64];
    memset(text, 0, sizeof text);
    const int file = open(in_watched(name), O_RDONLY);
    if (file >= 0) {
        CHECK(read(file, text, sizeof text - 1) >= 0);
        CHECK_EQ(close(file), 0);
    }
    return text;
}

static bool is_there(const char *name)
{
    struct stat info;
    return stat(in_watched(name), &info) == 0;
}

TEST(what_was_synced_stays)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        machine_begin(seed);
        watch_new_folder();
        write_text("a", "first", true);
        sync_watched();
        CHECK_EQ(machine_power_return(), 0);
        CHECK(strcmp(text_of("a"), "first") == 0);
        end_watch();
    }
}

/* Each of the states in which a disk may be, and no other. */
TEST(what_was_not_synced_may_be_lost)
{
    uint32_t gone = 0;
    uint32_t empty = 0;
    uint32_t whole = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        machine_begin(seed);
        watch_new_folder();
        write_text("a", "first", false);
        (void)machine_power_return();
        const bool there = is_there("a");
        const char *text = text_of("a");
        gone += !there;
        empty += there && text[0] == '\0';
        whole += strcmp(text, "first") == 0;
        end_watch();
    }
    CHECK_EQ(gone + empty + whole, SEEDS);
    CHECK(gone > 0 && empty > 0 && whole > 0);
}

/* A file's fsync puts no name on the disk, and a folder's no contents. */
TEST(a_file_and_its_name_are_synced_apart)
{
    uint32_t gone = 0;
    uint32_t lost = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        machine_begin(seed);
        watch_new_folder();
        write_text("a", "first", true);
        (void)machine_power_return();
        gone += !is_there("a");
        CHECK(!is_there("a") || strcmp(text_of("a"), "first") == 0);
        end_watch();
        watch_new_folder();
        write_text("a", "first", false);
        sync_watched();
        (void)machine_power_return();
        CHECK(is_there("a"));
        lost += text_of("a")[0] == '\0';
        end_watch();
    }
    CHECK(gone > 0 && gone < SEEDS && lost > 0 && lost < SEEDS);
}

/* The old text or the new one, under the name; in the order in which names were changed. */
TEST(a_rename_is_there_whole_or_not)
{
    uint32_t old = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        machine_begin(seed);
        watch_new_folder();
        write_text("a", "old", true);
        write_text("b", "new", true);
        sync_watched();
        CHECK_EQ(rename(in_watched("b"), in_watched("a")), 0);
        CHECK(strcmp(text_of("a"), "new") == 0 && !is_there("b"));
        CHECK_EQ(mkdir(in_watched("c"), 0777), 0);
        (void)machine_power_return();
        const bool renamed = strcmp(text_of("a"), "new") == 0;
        CHECK(renamed || strcmp(text_of("a"), "old") == 0);
        CHECK(is_there("b") == !renamed);
        CHECK(renamed || !is_there("c"));
        old += !renamed;
        (void)rmdir(in_watched("c"));
        end_watch();
    }
    CHECK(old > 0 && old < SEEDS);
}

TEST(what_was_removed_may_be_back)
{
    uint32_t back = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        machine_begin(seed);
        watch_new_folder();
        CHECK_EQ(mkdir(in_watched("c"), 0777), 0);
        write_text("c/a", "text", true);
        CHECK(rmdir(in_watched("c")) != 0 && errno == ENOTEMPTY);
        sync_watched();
        CHECK_EQ(unlink(in_watched("c/a")), 0);
        CHECK_EQ(rmdir(in_watched("c")), 0);
        CHECK(!is_there("c"));
        (void)machine_power_return();
        back += is_there("c");
        (void)unlink(in_watched("c/a"));
        (void)rmdir(in_watched("c"));
        end_watch();
    }
    CHECK(back > 0 && back < SEEDS);
}

/* Pages of one file go one by one, behind the last sync alone. */
TEST(pages_are_torn)
{
    enum { PAGES = 8, BYTES = PAGES * 4096 };
    static char ones[BYTES];
    static char twos[BYTES];
    static char found[BYTES];
    uint32_t torn = 0;
    memset(ones, '1', BYTES);
    memset(twos, '2', BYTES);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        machine_begin(seed);
        watch_new_folder();
        const int file = open(in_watched("a"), O_RDWR | O_CREAT, 0666);
        CHECK(file >= 0);
        CHECK_EQ(pwrite(file, ones, BYTES, 0), BYTES);
        CHECK_EQ(fdatasync(file), 0);
        CHECK_EQ(pwrite(file, twos, BYTES, 0), BYTES);
        sync_watched();
        (void)machine_power_return();
        CHECK_EQ(pread(file, found, BYTES, 0), BYTES);
        uint32_t new_pages = 0;
        for (int page = 0; page < PAGES; page++) {
            const char *of = found[page * 4096] == '2' ? twos : ones;
            CHECK_EQ(memcmp(found + page * 4096, of, 4096), 0);
            new_pages += of == twos;
        }
        torn += new_pages != 0 && new_pages != PAGES;
        CHECK_EQ(close(file), 0);
        end_watch();
    }
    CHECK(torn > SEEDS / 10 && torn < SEEDS);
}

TEST(without_power_nothing_changes)
{
    machine_begin(3);
    watch_new_folder();
    write_text("a", "first", true);
    sync_watched();
    machine_power_cut(1);
    CHECK(open(in_watched("b"), O_WRONLY | O_CREAT, 0666) < 0 && errno == EIO);
    CHECK(machine_power_is_off());
    CHECK(rename(in_watched("a"), in_watched("b")) < 0 && errno == EIO);
    CHECK(unlink(in_watched("a")) < 0 && mkdir(in_watched("c"), 0777) < 0);
    CHECK(open(in_watched("a"), O_WRONLY) < 0);
    CHECK_EQ(machine_power_return(), 0);
    CHECK(strcmp(text_of("a"), "first") == 0);
    end_watch();
}

/* ---- single calls ---- */

TEST(accesses_are_interrupted_and_short)
{
    char read_back[64] = "";
    uint32_t odd = 0;
    machine_begin(5);
    machine_files_set(&(machine_files){.short_percent = 50});
    char *folder = rig_folder(true);
    const int file = open(test_text("%s/a", folder), O_RDWR | O_CREAT, 0666);
    CHECK_EQ(unlink(test_text("%s/a", folder)), 0);
    for (int i = 0; i < 100; i++) {
        const ssize_t wrote = pwrite(file, "0123456789", 10, 0);
        CHECK(wrote > 0 ? wrote <= 10 : errno == EINTR);
        const ssize_t got = pread(file, read_back, 10, 0);
        CHECK(got > 0 ? memcmp(read_back, "0123456789", (size_t)got) == 0 : errno == EINTR);
        odd += (wrote != 10 ? 1U : 0U) + (got != 10 ? 1U : 0U);
    }
    CHECK(odd > 50 && odd < 150);
    machine_files_set(&(machine_files){0});
    CHECK_EQ(pwrite(file, "0123456789", 10, 0), 10);
    CHECK_EQ(close(file), 0);
    rig_remove(folder);
}

TEST(one_read_brings_one_wrong_bit)
{
    char text[600];
    char wrote[600];
    machine_begin(6);
    char *folder = rig_folder(true);
    const int file = open(test_text("%s/a", folder), O_RDWR | O_CREAT, 0666);
    CHECK_EQ(unlink(test_text("%s/a", folder)), 0);
    memset(wrote, 'x', sizeof wrote);
    CHECK_EQ(pwrite(file, wrote, sizeof wrote, 0), (ssize_t)sizeof wrote);
    machine_files_set(&(machine_files){.flip_read = 2, .full_at = 1});
    for (uint32_t nth = 1; nth <= 3; nth++) {
        uint32_t bits = 0;
        CHECK_EQ(pread(file, text, 10, 0), 10); /* too small to count */
        CHECK_EQ(pread(file, text, sizeof text, 0), (ssize_t)sizeof text);
        for (int i = 0; i < 600; i++) {
            bits += (uint32_t)__builtin_popcount((unsigned)(text[i] ^ wrote[i]));
        }
        CHECK_EQ(bits, nth == 2);
    }
    CHECK_EQ(machine_files_reads(), 3);
    CHECK(fallocate(file, 0, 0, 4096) < 0 && errno == ENOSPC);
    CHECK_EQ(fallocate(file, 0, 0, 4096), 0);
    CHECK_EQ(machine_files_reservations(), 2);
    CHECK_EQ(close(file), 0);
    rig_remove(folder);
}
