/* Owns the tests of reading past the page cache: whatever a range's ends are and whatever the
 * system answers, the caller has the bytes of the range and no byte beside it has changed. The
 * calls go through this program, which changes their answers; the linker puts it in between
 * (--wrap). */
#include "checkpoint_case.h"
#include "folders.h"
#include "sanitizer.h"

#include <pthread.h>
#include <stdatomic.h>

#include "checkpoint/checkpoint_reader.h"
#include "core/fault.h"
#include "zero/log.h"

#define PAGE 4096

/* ---- the calls ---- */

typedef enum mishap {
    NONE,
    INTERRUPTED, /* every other call */
    SHORT,       /* of a whole access a part that ends within a page */
    PAGES,       /* some whole pages of it */
    SCRAP,       /* less than a page */
    UNALIGNED,   /* the file system wants another alignment than it said */
    BROKEN,      /* the disk */
    MISHAPS
} mishap;

static _Atomic mishap now;
static atomic_bool refused; /* O_DIRECT, when a file is opened */
static atomic_uint direct_calls;
static atomic_uint cached_calls;
static _Thread_local unsigned turn;

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
    if (refused && (flags & O_DIRECT) != 0) {
        errno = EINVAL;
        return -1;
    }
    return __real_open64(path, flags, 0666);
}

static size_t cut(size_t bytes, mishap kind)
{
    const size_t pages = bytes / PAGE;
    return kind == SHORT && pages > 1   ? pages / 2 * PAGE + 100
           : kind == PAGES && pages > 1 ? pages / 2 * PAGE
           : kind == SCRAP              ? (bytes > 100 ? 100 : bytes)
                                        : bytes;
}

ssize_t __real_pread64(int file, void *data, size_t bytes, off_t at);
ssize_t __wrap_pread64(int file, void *data, size_t bytes, off_t at);
ssize_t __wrap_pread64(int file, void *data, size_t bytes, off_t at)
{
    const bool direct = (fcntl(file, F_GETFL) & O_DIRECT) != 0;
    const mishap kind = now;
    if (direct) {
        CHECK(at % PAGE == 0 && bytes % PAGE == 0 && (uintptr_t)data % PAGE == 0);
    }
    (void)(direct ? direct_calls++ : cached_calls++);
    if (kind == INTERRUPTED && turn++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    if (direct && (kind == UNALIGNED || kind == BROKEN)) {
        errno = kind == BROKEN ? EIO : EINVAL;
        return -1;
    }
    const ssize_t count = __real_pread64(file, data, bytes, at);
    return count > 0 ? (ssize_t)cut((size_t)count, kind) : count;
}

/* ---- a checkpoint ---- */

static char *home;
static case_model model;
static char folder[256];
static zi_source *reader;

static void make_home(bool in_memory)
{
    home = rig_folder(in_memory);
    case_make(&model, UNDER_SANITIZER ? 8 : 16, 400000, 3, test_seed);
    case_write(&model, home, "a", 7);
    (void)snprintf(folder, sizeof folder, "%s/a", home);
    CHECK_OK(zi_checkpoint_reader_open(folder, &reader));
    direct_calls = 0;
    cached_calls = 0;
}

static void remove_home(void)
{
    zi_source_close(reader);
    case_free(&model);
    case_remove(home, true);
    free(home);
}

/* Read a range where it can go past the page cache; beside it no byte may change. */
static void read_range(const zi_source_range *range)
{
    const zi_checkpoint_tensor *t = &model.map.tensors[range->tensor];
    const uint64_t bytes = range->count * zero_dtype_bytes(t->role[range->role].dtype);
    const uint64_t offset = zi_source_page_offset(reader, range);
    const uint64_t all = zi_align_up(offset + bytes, PAGE) + PAGE;
    unsigned char *memory = aligned_alloc(PAGE, all);
    unsigned char *written = calloc(1, bytes + 1);
    CHECK(memory != NULL && written != NULL);
    memset(memory, 0xa5, all);
    case_values(t, range->role, model.seed, range->first, range->count, written);
    CHECK_OK(zi_source_read(reader, range, memory + offset));
    CHECK_BYTES(memory + offset, written, bytes);
    for (uint64_t i = 0; i < all; i++) {
        CHECK((i >= offset && i < offset + bytes) || memory[i] == 0xa5);
    }
    free(memory);
    free(written);
}

/* Ranges of all tensors in all roles: all of each, and others that begin and end anywhere. Returns
 * their bytes. */
static uint64_t read_ranges(uint64_t chance)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model.map.tensor_count; i++) {
        const zi_checkpoint_tensor *t = &model.map.tensors[i];
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            for (uint64_t n = 0; case_has(t, role) && n < 3; n++) {
                const uint64_t random = case_random(test_seed + chance, 16 * i + 4 * role + n);
                const uint64_t first = n == 0 ? 0 : random % (t->count / 4 + 1);
                const uint64_t end =
                    n == 0 ? t->count : t->count - (random >> 32) % (t->count / 4 + 1);
                read_range(&(zi_source_range){i, role, first, end - first, false, true});
                bytes += (end - first) * zero_dtype_bytes(t->role[role].dtype);
            }
        }
    }
    return bytes;
}

/* ---- tests ---- */

TEST(ranges_that_begin_and_end_anywhere)
{
    make_home(false);
    const uint64_t before = zi_source_count(reader).read_bytes;
    const uint64_t bytes = read_ranges(1);
    const uint64_t read = zi_source_count(reader).read_bytes - before;
    CHECK(direct_calls > 0);
    CHECK(read >= bytes);
    CHECK(read <= bytes + 3 * 8 * (uint64_t)model.map.piece_count); /* and sums */
    remove_home();
}

TEST(whatever_the_system_answers)
{
    make_home(false);
    for (mishap kind = NONE; kind < MISHAPS; kind++) {
        direct_calls = 0;
        cached_calls = 0;
        now = kind;
        (void)read_ranges(kind);
        now = NONE;
        CHECK(direct_calls > 0);
        CHECK(cached_calls > 0);
    }
    remove_home();
}

static unsigned warnings;

static void count_warning(void *user, zero_log_level level, const char *message)
{
    (void)user;
    warnings += level == ZERO_LOG_WARN && strstr(message, "O_DIRECT") != NULL;
}

TEST(where_direct_access_is_refused_the_page_cache_serves)
{
    make_home(false);
    zero_log_set(count_warning, NULL);
    refused = true;
    (void)read_ranges(2);
    zero_log_set(NULL, NULL);
    CHECK_EQ(direct_calls, 0);
    CHECK_EQ(warnings, 1);
    remove_home();
}

TEST(files_in_memory)
{
    make_home(true);
    (void)read_ranges(3);
    remove_home();
}

/* The longest tensor in one role. */
static zi_source_range longest(void)
{
    zi_source_range range = {.role = ZERO_ROLE_PARAM, .direct = true};
    for (uint32_t i = 0; i < model.map.tensor_count; i++) {
        if (model.map.tensors[i].count > range.count) {
            range.tensor = i;
            range.count = model.map.tensors[i].count;
        }
    }
    return range;
}

TEST(a_file_that_is_cut_while_it_is_read)
{
    make_home(false);
    const zi_source_range range = longest();
    const zi_checkpoint_place *place = &model.map.tensors[range.tensor].role[ZERO_ROLE_PARAM];
    const uint64_t bytes = range.count * zero_dtype_bytes(place->dtype);
    unsigned char *memory = aligned_alloc(PAGE, zi_align_up(bytes, PAGE) + PAGE);
    CHECK(memory != NULL);
    read_range(&range);
    const int file = case_open(folder, model.map.files[place->file].name);
    const uint64_t cuts[] = {place->at + bytes - 1, place->at + bytes / 2, place->at + 1,
                             place->at};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        CHECK(ftruncate(file, (off_t)cuts[i]) == 0);
        CHECK_FAILS(zi_source_read(reader, &range, memory + zi_source_page_offset(reader, &range)),
                    ZERO_ERR_CORRUPT, "truncated");
    }
    CHECK(close(file) == 0);
    free(memory);
    remove_home();
}

TEST(a_read_that_fails_is_said)
{
    make_home(false);
    const zi_source_range range = longest();
    unsigned char *memory = calloc(range.count, 4);
    CHECK(memory != NULL);
    zi_fault_arm(ZI_FAULT_IO, 1);
    CHECK_FAILS(zi_source_read(reader, &range, memory), ZERO_ERR_IO, "param");
    zi_fault_arm(ZI_FAULT_IO, 0);
    read_range(&range);
    free(memory);
    remove_home();
}

static void *read_some(void *argument)
{
    (void)read_ranges(*(const uint64_t *)argument);
    return NULL;
}

TEST(reads_at_once)
{
    pthread_t threads[ZI_SOURCE_READS_MAX];
    uint64_t chances[ZI_SOURCE_READS_MAX];
    make_home(false);
    now = INTERRUPTED;
    for (uint64_t i = 0; i < ZI_SOURCE_READS_MAX; i++) {
        chances[i] = i;
        CHECK(pthread_create(&threads[i], NULL, read_some, &chances[i]) == 0);
    }
    for (uint64_t i = 0; i < ZI_SOURCE_READS_MAX; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_EQ(zi_source_count(reader).balance, 0);
    remove_home();
}
