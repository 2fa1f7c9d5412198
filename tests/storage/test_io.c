/* The conformance list of queues, run over every backend on a disk and in memory. A backend that
 * this machine refuses is skipped with its reason; posix never is. */
#include "storage_rig.h"

#include <pthread.h>

#include "core/fault.h"
#include "core/memory.h"

#define BLOCK MIB /* an access at most */
#define STORE_BYTES (24 * MIB)

typedef struct io_case {
    char *folders[3];
    zi_store *store;
    zi_io *queue;
    unsigned char *memory; /* STORE_BYTES, registered */
} io_case;

static void open_queue(io_case *io, zi_io_backend_kind backend)
{
    const zi_io_region region = {io->memory, STORE_BYTES};
    const zi_io_options options = {.store = io->store,
                                   .regions = &region,
                                   .region_count = 1,
                                   .kind = backend,
                                   .segment_bytes = BLOCK};
    if (zi_io_create(&options, &io->queue) != ZERO_OK) {
        CHECK(backend != ZI_IO_BACKEND_POSIX);
        CHECK_EQ(zero_last_error()->status, ZERO_ERR_UNSUPPORTED);
        printf("  %s: %s\n", zi_io_backend_name(backend), zero_last_error()->message);
    }
}

static void open_case(io_case *io, zi_io_backend_kind backend, bool in_memory, bool buffered)
{
    static const uint32_t rates[] = {2, 1, 1};
    memset(io, 0, sizeof *io);
    for (int i = 0; i < 3; i++) {
        io->folders[i] = rig_folder(in_memory);
    }
    const zi_store_options options = {.directories = (const char *const *)io->folders,
                                      .rates = rates,
                                      .directory_count = 3,
                                      .bytes = STORE_BYTES,
                                      .unit_bytes = BLOCK / 2,
                                      .buffered = buffered};
    CHECK_OK(zi_store_create(&options, &io->store));
    io->memory = rig_memory(STORE_BYTES);
    open_queue(io, backend);
}

static void close_case(io_case *io)
{
    zi_io_destroy(io->queue);
    zi_store_destroy(io->store);
    munmap(io->memory, STORE_BYTES);
    for (int i = 0; i < 3; i++) {
        rig_remove(io->folders[i]);
    }
}

/* Sizes around every boundary, at offsets that straddle stripes. */
static void part_sizes(io_case *io)
{
    static const uint64_t sizes[] = {PAGE,         2 * PAGE,  BLOCK - PAGE,     BLOCK,
                                     BLOCK + PAGE, 3 * BLOCK, 16 * BLOCK + PAGE};
    unsigned char *loose = rig_memory(STORE_BYTES); /* not registered */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (uint64_t offset = 0; offset <= BLOCK; offset += BLOCK - PAGE) {
            const uint64_t round = i * 100 + offset;
            rig_fill(io->memory, offset, sizes[i], round);
            CHECK_OK(rig_move(io->queue, ZI_IO_WRITE, io->memory, offset, sizes[i]));
            memset(io->memory, 0xee, sizes[i]);
            CHECK_OK(rig_move(io->queue, ZI_IO_READ, loose, offset, sizes[i]));
            rig_check(loose, offset, sizes[i], round);
            CHECK_OK(rig_move(io->queue, ZI_IO_READ, io->memory, offset, sizes[i]));
            rig_check(io->memory, offset, sizes[i], round);
        }
    }
    munmap(loose, STORE_BYTES);
}

/* Many operations at once, waited for out of order; neighbours stay what they were. */
static void part_many(io_case *io)
{
    enum { OPS = 96 };
    const uint64_t bytes = STORE_BYTES / OPS;
    zi_io_op ops[OPS];
    rig_fill(io->memory, 0, STORE_BYTES, 7);
    for (uint64_t i = 0; i < OPS; i++) {
        rig_start(io->queue, ops, ZI_IO_WRITE, io->memory, i, bytes);
    }
    CHECK_FAILS(zi_io_start(io->queue, &ops[OPS - 1]), ZERO_ERR_STATE, "runs already");
    for (uint64_t i = OPS; i-- > 0;) {
        CHECK_OK(zi_io_wait(io->queue, &ops[i]));
        CHECK_EQ(ops[i].phase, ZI_IO_DONE);
    }
    /* Every second one anew, then all read at once. */
    for (uint64_t i = 0; i < OPS; i += 2) {
        rig_fill(ops[i].memory, ops[i].offset, bytes, 8);
        CHECK_OK(zi_io_start(io->queue, &ops[i]));
    }
    for (uint64_t i = 0; i < OPS; i++) {
        CHECK_OK(zi_io_wait(io->queue, &ops[i]));
    }
    memset(io->memory, 0, STORE_BYTES);
    for (uint64_t i = 0; i < OPS; i++) {
        rig_start(io->queue, ops, ZI_IO_READ, io->memory, i, bytes);
    }
    while (ops[OPS - 1].phase == ZI_IO_RUNNING) {
        zi_io_poll(io->queue);
    }
    for (uint64_t i = 0; i < OPS; i++) {
        CHECK_OK(zi_io_wait(io->queue, &ops[i]));
        rig_check(ops[i].memory, ops[i].offset, bytes, i % 2 == 0 ? 8 : 7);
    }
}

static void part_nothing_to_wait_for(io_case *io)
{
    zi_io_op op = {.kind = ZI_IO_READ, .memory = io->memory, .bytes = 0};
    CHECK_OK(zi_io_wait(io->queue, &op));
    CHECK_EQ(op.phase, ZI_IO_IDLE);
    CHECK_OK(zi_io_start(io->queue, &op));
    CHECK_OK(zi_io_wait(io->queue, &op));
    CHECK_OK(zi_io_wait(io->queue, &op));
    CHECK_EQ(op.phase, ZI_IO_DONE);
    zi_io_poll(io->queue);
}

static void part_misuse(io_case *io)
{
    zi_io *queue = io->queue;
    unsigned char *memory = io->memory;
    const zi_io_kind read_kind = ZI_IO_READ;
    CHECK_FAILS(rig_move(queue, read_kind, memory + 512, 0, PAGE), ZERO_ERR_INVALID_ARGUMENT,
                "multiples of 4096");
    CHECK_FAILS(rig_move(queue, read_kind, memory, 512, PAGE), ZERO_ERR_INVALID_ARGUMENT, "512");
    CHECK_FAILS(rig_move(queue, read_kind, memory, 0, 100), ZERO_ERR_INVALID_ARGUMENT, "100 bytes");
    CHECK_FAILS(rig_move(queue, read_kind, memory, STORE_BYTES, PAGE), ZERO_ERR_INVALID_ARGUMENT,
                "do not lie in");
    CHECK_FAILS(rig_move(queue, read_kind, memory, 2 * PAGE, UINT64_MAX - PAGE + 1),
                ZERO_ERR_INVALID_ARGUMENT, "do not lie in");
    CHECK_FAILS(rig_move(queue, read_kind, NULL, 0, PAGE), ZERO_ERR_INVALID_ARGUMENT,
                "without memory");
    zi_io_op op = {.kind = (zi_io_kind)7, .memory = memory, .bytes = PAGE};
    CHECK_FAILS(zi_io_start(queue, &op), ZERO_ERR_INVALID_ARGUMENT, "7 is neither");
    CHECK_OK(rig_move(queue, read_kind, memory, STORE_BYTES - PAGE, PAGE));
}

/* Nothing grows: no allocation, no descriptor, and the counts are exact. */
static void part_no_growth(io_case *io)
{
    const zi_io_stats before = *zi_io_stats_of(io->queue);
    const uint64_t calls = zi_memory_calls();
    const unsigned descriptors = rig_descriptors();
    for (uint64_t i = 0; i < 1000; i++) {
        const uint64_t offset = i * 3 % 64 * PAGE;
        const zi_io_kind kind = i % 4 == 0 ? ZI_IO_WRITE : ZI_IO_READ;
        CHECK_OK(rig_move(io->queue, kind, io->memory, offset, (1 + i % 3) * PAGE));
    }
    const zi_io_stats *after = zi_io_stats_of(io->queue);
    CHECK_EQ(zi_memory_calls(), calls);
    CHECK_EQ(rig_descriptors(), descriptors);
    CHECK_EQ(after->ops[ZI_IO_WRITE] - before.ops[ZI_IO_WRITE], 250);
    CHECK_EQ(after->ops[ZI_IO_READ] - before.ops[ZI_IO_READ], 750);
    CHECK_EQ(after->bytes[ZI_IO_WRITE] - before.bytes[ZI_IO_WRITE] + after->bytes[ZI_IO_READ] -
                 before.bytes[ZI_IO_READ],
             (334 * 1 + 333 * 2 + 333 * 3) * PAGE);
    CHECK_EQ(after->failed, 0);
    CHECK(after->waited_ns > before.waited_ns);
}

static void part_report(io_case *io, zi_io_backend_kind backend, bool buffered)
{
    const zi_io_report *report = zi_io_report_of(io->queue);
    CHECK_EQ(report->kind, backend);
    CHECK_EQ(report->depth, 3 * ZI_IO_DEPTH);
    CHECK_EQ(report->region_bytes, STORE_BYTES);
    CHECK(!(buffered && report->direct));
    CHECK_EQ(report->refusals[0], '\0');
    CHECK(backend == ZI_IO_BACKEND_FIXED || report->registered_bytes == 0);
}

static void run_list(zi_io_backend_kind backend, bool in_memory, bool buffered)
{
    const unsigned descriptors = rig_descriptors();
    io_case io;
    open_case(&io, backend, in_memory, buffered);
    const bool had = io.queue != NULL;
    if (had) {
        part_report(&io, backend, buffered);
        part_sizes(&io);
        part_many(&io);
        part_nothing_to_wait_for(&io);
        part_misuse(&io);
        part_no_growth(&io);
    }
    close_case(&io);
    CHECK_EQ(rig_descriptors(), descriptors);
    if (!had) {
        SKIP("this backend is refused here");
    }
}

TEST_CALL(fixed_on_disk, run_list(ZI_IO_BACKEND_FIXED, false, false));
TEST_CALL(uring_on_disk, run_list(ZI_IO_BACKEND_URING, false, false));
TEST_CALL(posix_on_disk, run_list(ZI_IO_BACKEND_POSIX, false, false));
TEST_CALL(fixed_in_memory, run_list(ZI_IO_BACKEND_FIXED, true, false));
TEST_CALL(uring_in_memory, run_list(ZI_IO_BACKEND_URING, true, false));
TEST_CALL(posix_in_memory, run_list(ZI_IO_BACKEND_POSIX, true, false));
TEST_CALL(fixed_buffered, run_list(ZI_IO_BACKEND_FIXED, false, true));
TEST_CALL(posix_buffered, run_list(ZI_IO_BACKEND_POSIX, false, true));

TEST(the_best_backend_is_found)
{
    io_case io;
    open_case(&io, ZI_IO_BACKEND_BEST, false, false);
    CHECK(io.queue != NULL);
    const zi_io_report *report = zi_io_report_of(io.queue);
    CHECK(report->kind >= ZI_IO_BACKEND_FIXED && report->kind <= ZI_IO_BACKEND_POSIX);
    /* A better kind that was not taken has a reason. */
    CHECK_EQ(report->kind != ZI_IO_BACKEND_FIXED, report->refusals[0] != '\0');
    part_sizes(&io);
    close_case(&io);
}

/* Offsets above 4 GiB are not folded onto lower ones. */
TEST(large_offsets)
{
    const uint64_t bytes = UINT64_C(5) << 30;
    char *folder = rig_folder(false);
    struct statvfs space;
    CHECK(statvfs(folder, &space) == 0);
    if ((uint64_t)space.f_bavail * space.f_frsize < bytes + (bytes >> 2)) {
        rig_remove(folder);
        SKIP("there are no 6 GiB of free space here");
    }
    const char *folders[] = {folder};
    zi_store *store = rig_store(folders, 1, bytes);
    unsigned char *memory = rig_memory(MIB);
    for (int backend = ZI_IO_BACKEND_FIXED; backend <= (int)ZI_IO_BACKEND_POSIX; backend++) {
        const zi_io_options options = {.store = store, .kind = (zi_io_backend_kind)backend};
        zi_io *queue = NULL;
        if (zi_io_create(&options, &queue) != ZERO_OK) {
            CHECK(backend != (int)ZI_IO_BACKEND_POSIX);
            continue;
        }
        for (uint64_t at = 0; at < bytes; at += UINT64_C(1) << 30) {
            rig_fill(memory, at, MIB, (uint64_t)backend);
            CHECK_OK(rig_move(queue, ZI_IO_WRITE, memory, at, MIB));
        }
        const uint64_t last = bytes - MIB;
        rig_fill(memory, last, MIB, (uint64_t)backend);
        CHECK_OK(rig_move(queue, ZI_IO_WRITE, memory, last, MIB));
        for (uint64_t at = 0; at < bytes; at += UINT64_C(1) << 30) {
            CHECK_OK(rig_move(queue, ZI_IO_READ, memory, at, MIB));
            rig_check(memory, at, MIB, (uint64_t)backend);
        }
        CHECK_OK(rig_move(queue, ZI_IO_READ, memory, last, MIB));
        rig_check(memory, last, MIB, (uint64_t)backend);
        zi_io_destroy(queue);
    }
    zi_store_destroy(store);
    munmap(memory, MIB);
    rig_remove(folder);
}

/* segments end where a registered slice ends, so an operation may cross from one to the next. */
TEST(regions_above_a_gibibyte)
{
    const uint64_t bytes = ZI_IO_SLICE_BYTES + 8 * MIB;
    rig_folders(0, 1);
    zi_store *store = rig_store(rig_paths, 1, 16 * MIB);
    unsigned char *memory = rig_memory(bytes);
    /* Untouched pages cost nothing, but registering touches them; huge ones make that quick. */
    CHECK(madvise(memory, bytes, MADV_HUGEPAGE) == 0 || errno == EINVAL);
    const zi_io_region region = {memory, bytes};
    const zi_io_options options = {.store = store,
                                   .regions = &region,
                                   .region_count = 1,
                                   .kind = ZI_IO_BACKEND_FIXED,
                                   .segment_bytes = 3 * MIB};
    zi_io *queue = NULL;
    if (zi_io_create(&options, &queue) != ZERO_OK) {
        zi_store_destroy(store);
        rig_folders_remove();
        SKIP("registered memory is refused here");
    }
    unsigned char *across = memory + ZI_IO_SLICE_BYTES - 5 * MIB;
    rig_fill(across, 0, 12 * MIB, 1);
    CHECK_OK(rig_move(queue, ZI_IO_WRITE, across, 0, 12 * MIB));
    /* 3 and 2 MiB before the edge, 3, 3 and 1 behind. */
    CHECK_EQ(zi_io_stats_of(queue)->segments[ZI_IO_WRITE], 5);
    memset(across, 0, 12 * MIB);
    CHECK_OK(rig_move(queue, ZI_IO_READ, across, 0, 12 * MIB));
    rig_check(across, 0, 12 * MIB, 1);
    zi_io_destroy(queue);
    zi_store_destroy(store);
    munmap(memory, bytes);
}

typedef struct thread_case {
    zi_store *store;
    zi_io *queue;
    uint64_t offset;
} thread_case;

static void *use_queue(void *argument)
{
    const thread_case *mine = argument;
    unsigned char *memory = rig_memory(4 * MIB);
    for (uint64_t round = 0; round < 8; round++) {
        rig_fill(memory, mine->offset, 4 * MIB, round);
        CHECK_OK(rig_move(mine->queue, ZI_IO_WRITE, memory, mine->offset, 4 * MIB));
        memset(memory, 0, 4 * MIB);
        CHECK_OK(rig_move(mine->queue, ZI_IO_READ, memory, mine->offset, 4 * MIB));
        rig_check(memory, mine->offset, 4 * MIB, round);
    }
    munmap(memory, 4 * MIB);
    return NULL;
}

/* Queues are made here and used, each by a thread of its own, over one store. */
static void share_store(zi_io_backend_kind backend)
{
    enum { THREADS = 4 };
    rig_folders(1, 0);
    zi_store *store = rig_store(rig_paths, 1, 16 * MIB);
    thread_case cases[THREADS];
    pthread_t threads[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) {
        const zi_io_options options = {.store = store, .kind = backend, .segment_bytes = MIB / 4};
        cases[i] = (thread_case){.store = store, .offset = i * 4 * MIB};
        CHECK_OK(zi_io_create(&options, &cases[i].queue));
        CHECK(pthread_create(&threads[i], NULL, use_queue, &cases[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        zi_io_destroy(cases[i].queue);
    }
    zi_store_destroy(store);
}

TEST_CALL(queues_share_a_store, share_store(ZI_IO_BACKEND_BEST));
TEST_CALL(posix_queues_share_a_store, share_store(ZI_IO_BACKEND_POSIX));

TEST(destroy_awaits_what_is_in_flight)
{
    for (int backend = ZI_IO_BACKEND_BEST; backend <= (int)ZI_IO_BACKEND_POSIX;
         backend += ZI_IO_BACKEND_POSIX) {
        io_case io;
        open_case(&io, (zi_io_backend_kind)backend, false, false);
        rig_fill(io.memory, 0, STORE_BYTES, 3);
        zi_io_op op = {.kind = ZI_IO_WRITE, .memory = io.memory, .bytes = STORE_BYTES};
        CHECK_OK(zi_io_start(io.queue, &op));
        zi_io_destroy(io.queue);
        CHECK(op.phase == ZI_IO_FAILED || op.phase == ZI_IO_DONE);
        CHECK_EQ(op.in_flight, 0);
        io.queue = NULL;
        close_case(&io);
    }
}

TEST(bad_options_are_refused)
{
    rig_folders(1, 0);
    zi_store *store = rig_store(rig_paths, 1, MIB);
    unsigned char *memory = rig_memory(2 * PAGE);
    zi_io *queue = NULL;
    zi_io_options options = {.store = store, .segment_bytes = 1000};
    CHECK_FAILS(zi_io_create(&options, &queue), ZERO_ERR_INVALID_ARGUMENT, "1000");
    options.segment_bytes = UINT64_C(2) << 30;
    CHECK_FAILS(zi_io_create(&options, &queue), ZERO_ERR_INVALID_ARGUMENT, "2147483648");
    options = (zi_io_options){.store = store, .file_depth = 1025};
    CHECK_FAILS(zi_io_create(&options, &queue), ZERO_ERR_INVALID_ARGUMENT, "1025");
    options = (zi_io_options){.store = store, .kind = (zi_io_backend_kind)9};
    CHECK_FAILS(zi_io_create(&options, &queue), ZERO_ERR_INVALID_ARGUMENT, "9");
    const zi_io_region region = {memory + 8, PAGE};
    options = (zi_io_options){.store = store, .regions = &region, .region_count = 1};
    CHECK_FAILS(zi_io_create(&options, &queue), ZERO_ERR_INVALID_ARGUMENT, "region 0");
    CHECK(queue == NULL);
    munmap(memory, 2 * PAGE);
    zi_store_destroy(store);
}

/* The n-th allocation or thread fails, for every n until none does. */
static void fail_each(zi_io_backend_kind backend, zi_fault_kind kind, zero_status expected)
{
    char *folder = rig_folder(false);
    const char *folders[] = {folder};
    zi_store *store = rig_store(folders, 1, MIB);
    const unsigned descriptors = rig_descriptors();
    const zi_io_options options = {.store = store, .kind = backend};
    zi_io *queue = NULL;
    uint64_t nth = 0;
    do {
        zi_fault_arm(kind, ++nth);
        const zero_status status = zi_io_create(&options, &queue);
        zi_fault_arm(kind, 0);
        CHECK(status == ZERO_OK || status == expected);
        CHECK((queue != NULL) == (status == ZERO_OK));
        CHECK_EQ(queue != NULL || rig_descriptors() == descriptors, true);
    } while (queue == NULL);
    CHECK(nth >= 4);
    zi_io_destroy(queue);
    zi_store_destroy(store);
    rig_remove(folder);
}

TEST(every_allocation_may_fail)
{
    fail_each(ZI_IO_BACKEND_BEST, ZI_FAULT_ALLOC, ZERO_ERR_OUT_OF_MEMORY);
    fail_each(ZI_IO_BACKEND_POSIX, ZI_FAULT_ALLOC, ZERO_ERR_OUT_OF_MEMORY);
}
TEST_CALL(every_thread_may_fail, fail_each(ZI_IO_BACKEND_POSIX, ZI_FAULT_THREAD, ZERO_ERR_DEVICE));
