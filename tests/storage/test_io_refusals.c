/* A kernel that refuses io_uring or locked memory: a working way below, which says so. */
#include "storage_rig.h"

#include <sys/resource.h>

#include "refuse_call.h"
#include "zero/log.h"

static int warnings;

static void count_warning(void *user, zero_log_level level, const char *message)
{
    (void)user;
    warnings += level == ZERO_LOG_WARN && strstr(message, "goes on without") != NULL;
}

typedef struct refusal_case {
    char *folder;
    zi_store *store;
    unsigned char *memory;
} refusal_case;

/* Of this case's store. */
static zero_status make_queue(const refusal_case *io, zi_io_backend_kind backend, zi_io **queue)
{
    const zi_io_options options = {.store = io->store, .kind = backend};
    *queue = NULL;
    return zi_io_create(&options, queue);
}

static void open_case(refusal_case *io)
{
    io->folder = rig_folder(false);
    const char *folders[] = {io->folder};
    io->store = rig_store(folders, 1, 4 * MIB);
    io->memory = rig_memory(4 * MIB);
    warnings = 0;
    zero_log_set(count_warning, NULL);
}

static void close_case(refusal_case *io)
{
    zero_log_set(NULL, NULL);
    zi_store_destroy(io->store);
    munmap(io->memory, 4 * MIB);
    rig_remove(io->folder);
}

/* The best queue works and is `backend`; how many better ones were refused, with `text`. */
static void check_falls(zi_io_backend_kind backend, int refused, const char *text)
{
    refusal_case io;
    open_case(&io);
    zi_io *queue = NULL;
    CHECK_OK(make_queue(&io, ZI_IO_BACKEND_BEST, &queue));
    const zi_io_report *report = zi_io_report_of(queue);
    CHECK_EQ(report->kind, backend);
    CHECK_EQ(warnings, refused);
    if (strstr(report->refusals, text) == NULL) {
        TEST_FAIL("\"%s\" is not in: %s", text, report->refusals);
    }
    rig_round_trip(queue, io.memory, 4 * MIB, 1);
    zi_io_destroy(queue);
    close_case(&io);
}

/* Asked for by name it is an error and no fall. */
static void check_refused(zi_io_backend_kind backend, const char *text)
{
    refusal_case io;
    open_case(&io);
    zi_io *queue = NULL;
    CHECK_FAILS(make_queue(&io, backend, &queue), ZERO_ERR_UNSUPPORTED, text);
    CHECK(queue == NULL);
    CHECK_EQ(warnings, 0);
    close_case(&io);
}

static void need_uring(zi_io_backend_kind backend)
{
    refusal_case io;
    open_case(&io);
    zi_io *queue = NULL;
    const bool had = make_queue(&io, backend, &queue) == ZERO_OK;
    zi_io_destroy(queue);
    close_case(&io);
    if (!had) {
        SKIP("io_uring is refused here without our doing");
    }
}

TEST(a_container_that_forbids_io_uring)
{
    need_uring(ZI_IO_BACKEND_URING);
    refuse_call(SYS_io_uring_setup, EPERM);
    check_falls(ZI_IO_BACKEND_POSIX, 2, "uring: io_uring_setup: Operation not permitted");
    check_refused(ZI_IO_BACKEND_URING, "kernel.io_uring_disabled");
    check_refused(ZI_IO_BACKEND_FIXED, "io_uring_setup");
}

TEST(a_kernel_without_io_uring)
{
    need_uring(ZI_IO_BACKEND_URING);
    refuse_call(SYS_io_uring_setup, ENOSYS);
    check_falls(ZI_IO_BACKEND_POSIX, 2, "Function not implemented");
}

TEST(a_kernel_that_registers_nothing)
{
    need_uring(ZI_IO_BACKEND_FIXED);
    refuse_call(SYS_io_uring_register, EINVAL);
    check_falls(ZI_IO_BACKEND_URING, 1, "fixed: registering files");
    check_refused(ZI_IO_BACKEND_FIXED, "registering files");
}

TEST(a_ring_that_cannot_be_entered)
{
    need_uring(ZI_IO_BACKEND_URING);
    refuse_call(SYS_io_uring_enter, EPERM);
    check_falls(ZI_IO_BACKEND_POSIX, 2, "io_uring_enter: Operation not permitted");
}

/* A build without liburing comes here. */
TEST(without_io_uring_posix_is_taken_with_a_reason)
{
    refusal_case io;
    open_case(&io);
    zi_io *queue = NULL;
    if (make_queue(&io, ZI_IO_BACKEND_URING, &queue) == ZERO_OK) {
        zi_io_destroy(queue);
        close_case(&io);
        SKIP("io_uring is had here");
    }
    CHECK_EQ(zero_last_error()->status, ZERO_ERR_UNSUPPORTED);
    char reason[256];
    (void)snprintf(reason, sizeof reason, "%.60s", zero_last_error()->message);
    close_case(&io);
    check_falls(ZI_IO_BACKEND_POSIX, 2, reason);
}

/* Three regions of 4 MiB where 8 MiB may be locked: what does not fit works unregistered. */
TEST(a_low_limit_on_locked_memory)
{
    enum { REGIONS = 3 };
    need_uring(ZI_IO_BACKEND_FIXED);
    refusal_case io;
    open_case(&io);
    const struct rlimit limit = {8 * MIB, 8 * MIB};
    const bool root = getuid() == 0;
    if (root && setresuid(65534, 65534, 0) != 0) {
        SKIP("cannot become a user to whom the limit applies");
    }
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    zi_io_region regions[REGIONS];
    for (int i = 0; i < REGIONS; i++) {
        regions[i] = (zi_io_region){rig_memory(4 * MIB), 4 * MIB};
    }
    const zi_io_options options = {.store = io.store,
                                   .regions = regions,
                                   .region_count = REGIONS,
                                   .kind = ZI_IO_BACKEND_FIXED};
    zi_io *queue = NULL;
    CHECK_OK(zi_io_create(&options, &queue));
    const zi_io_report *report = zi_io_report_of(queue);
    CHECK_EQ(report->region_bytes, 12 * MIB);
    CHECK(report->registered_bytes < 12 * MIB);
    CHECK(strstr(report->flags, "ulimit -l") != NULL);
    printf("  %s\n", report->flags);
    for (uint64_t i = 0; i < REGIONS; i++) {
        rig_round_trip(queue, regions[i].memory, 4 * MIB, i);
    }
    zi_io_destroy(queue);
    /* Root again, to whom the folder belongs. Everybody else has stayed who they are. */
    CHECK(!root || setresuid(0, 0, 0) == 0);
    close_case(&io);
}
