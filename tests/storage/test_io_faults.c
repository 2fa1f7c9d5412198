/* Faults below a queue: each is mended, or the operation fails by name; never wrong data, never
 * memory that is still in use. */
#include "storage_rig.h"

#include "core/clock.h"
#include "faulty_backend.h"

#define PIECE (16 * PAGE)
#define STORE_BYTES (64 * PIECE)

typedef struct fault_case {
    char *folders[2];
    zi_store *store;
    zi_io *queue;
    unsigned char *memory;
    faulty below;
} fault_case;

/* `below` is filled in but for its inner backend. */
static void open_case(fault_case *io, uint32_t folders, uint64_t retry_ns)
{
    for (uint32_t i = 0; i < 2; i++) {
        io->folders[i] = rig_folder(i != 0); /* the first where O_DIRECT is likely strict */
    }
    const zi_store_options place = {.directories = (const char *const *)io->folders,
                                    .directory_count = folders,
                                    .bytes = STORE_BYTES,
                                    .unit_bytes = 2 * PIECE};
    CHECK_OK(zi_store_create(&place, &io->store));
    io->memory = rig_memory(STORE_BYTES);
    zi_io_backend backend;
    faulty_open(&io->below, io->store, &backend);
    const zi_io_options options = {.store = io->store,
                                   .segment_bytes = PIECE,
                                   .file_depth = 6,
                                   .depth = 9,
                                   .retry_ns = retry_ns,
                                   .backend = &backend};
    CHECK_OK(zi_io_create(&options, &io->queue));
    CHECK_EQ(zi_io_report_of(io->queue)->kind, ZI_IO_BACKEND_GIVEN);
}

static void close_case(fault_case *io)
{
    zi_io_destroy(io->queue);
    zi_store_destroy(io->store);
    munmap(io->memory, STORE_BYTES);
    rig_remove(io->folders[0]);
    rig_remove(io->folders[1]);
}

static void no_more_faults(fault_case *io)
{
    io->below.nth = 0;
    io->below.kind = FAULTY_NONE;
    io->below.always = false;
    io->below.percent = 0;
}

/* Each kind that can be mended, at the first, a middle and the last segment of writing and reading.
 */
TEST(what_can_be_mended_is)
{
    static const int kinds[] = {FAULTY_SHORT, FAULTY_TORN, FAULTY_ERRNO + EINTR,
                                FAULTY_ERRNO + EAGAIN};
    fault_case io = {.below = {.hold_file = -1, .seed = test_seed}};
    open_case(&io, 2, 0);
    uint64_t round = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        for (int nth = 1; nth <= 128; nth += nth == 1 ? 30 : 32) {
            const uint64_t retries = zi_io_stats_of(io.queue)->retries;
            const uint64_t moved = zi_io_stats_of(io.queue)->bytes[ZI_IO_WRITE];
            io.below.nth = nth;
            io.below.kind = kinds[i];
            io.below.segments = 0;
            io.below.faults = 0;
            rig_round_trip(io.queue, io.memory, STORE_BYTES, ++round);
            CHECK_EQ(io.below.faults, 1);
            CHECK_EQ(zi_io_stats_of(io.queue)->retries, retries + 1);
            CHECK_EQ(zi_io_stats_of(io.queue)->bytes[ZI_IO_WRITE], moved + STORE_BYTES);
        }
    }
    CHECK_EQ(zi_io_stats_of(io.queue)->failed, 0);
    close_case(&io);
}

TEST(a_storm_of_faults_in_any_order)
{
    enum { OPS = 16 };
    fault_case io = {.below = {.hold_file = -1, .seed = test_seed, .percent = 30, .shuffle = true}};
    open_case(&io, 2, 0);
    const uint64_t bytes = STORE_BYTES / OPS;
    zi_io_op ops[OPS];
    for (uint64_t round = 0; round < 40; round++) {
        const bool writes = round % 2 == 0;
        for (uint64_t i = 0; i < OPS; i++) {
            unsigned char *memory = io.memory + i * bytes;
            if (writes) {
                rig_fill(memory, i * bytes, bytes, round);
            } else {
                memset(memory, 0, bytes);
            }
            rig_start(io.queue, ops, writes ? ZI_IO_WRITE : ZI_IO_READ, io.memory, i, bytes);
        }
        for (uint64_t i = 0; i < OPS; i++) {
            CHECK_OK(zi_io_wait(io.queue, &ops[(i * 5) % OPS]));
        }
        for (uint64_t i = 0; i < OPS && !writes; i++) {
            rig_check(ops[i].memory, ops[i].offset, bytes, round - 1);
        }
    }
    CHECK(io.below.faults > 100);
    CHECK(io.below.out_max <= 9 && io.below.out_max > 6);
    CHECK_EQ(io.below.file_out_max, 6);
    CHECK_EQ(io.below.out, 0);
    close_case(&io);
}

/* The failure is named, the operation's memory is free when it is reported, the queue goes on. */
static void fail_one(zi_io_kind kind, int fault, zero_status expected, int native, const char *text)
{
    fault_case io = {.below = {.hold_file = -1, .seed = test_seed, .shuffle = true}};
    open_case(&io, 2, 0);
    rig_round_trip(io.queue, io.memory, STORE_BYTES, 1);
    io.below.nth = 4; /* segments of 16 pages, stripes of two: the second of the second directory */
    io.below.kind = fault;
    io.below.segments = 0;
    CHECK_FAILS(rig_move(io.queue, kind, io.memory, 0, STORE_BYTES), expected, text);
    CHECK_EQ(zero_last_error()->native, native);
    CHECK_EQ(io.below.out, 0);
    const char *message = zero_last_error()->message;
    CHECK(strstr(message, io.folders[1]) != NULL);
    CHECK(strstr(message, "65536 bytes at 65536 of the file") != NULL);
    CHECK(strstr(message, "checkpoint") != NULL);
    if (expected == ZERO_ERR_IO) {
        CHECK(strstr(message, kind == ZI_IO_READ ? "reading" : "writing") != NULL);
    }
    CHECK_EQ(zi_io_stats_of(io.queue)->failed, 1);
    no_more_faults(&io);
    rig_round_trip(io.queue, io.memory, STORE_BYTES, 2);
    close_case(&io);
}

TEST(io_errors_fail_the_operation)
{
    fail_one(ZI_IO_READ, FAULTY_ERRNO + EIO, ZERO_ERR_IO, EIO, "Input/output error");
    fail_one(ZI_IO_WRITE, FAULTY_ERRNO + EIO, ZERO_ERR_IO, EIO, "errno 5");
    fail_one(ZI_IO_WRITE, FAULTY_ERRNO + ENOSPC, ZERO_ERR_IO, ENOSPC, "No space left");
    fail_one(ZI_IO_READ, FAULTY_ERRNO + EBADF, ZERO_ERR_IO, EBADF, "Bad file");
    fail_one(ZI_IO_READ, FAULTY_NOTHING, ZERO_ERR_CORRUPT, ENODATA, "cut short");
    fail_one(ZI_IO_WRITE, FAULTY_NOTHING, ZERO_ERR_IO, EIO, "Input/output error");
}

TEST(a_failed_operation_says_so_again_until_it_is_restarted)
{
    fault_case io = {.below = {.hold_file = -1, .nth = 1, .kind = FAULTY_ERRNO + EIO}};
    open_case(&io, 1, 0);
    zi_io_op op = {.kind = ZI_IO_WRITE, .memory = io.memory, .bytes = PIECE};
    CHECK_OK(zi_io_start(io.queue, &op));
    CHECK_FAILS(zi_io_wait(io.queue, &op), ZERO_ERR_IO, "errno 5");
    CHECK_FAILS(zi_io_wait(io.queue, &op), ZERO_ERR_IO, "errno 5");
    CHECK_EQ(op.phase, ZI_IO_FAILED);
    CHECK_OK(zi_io_start(io.queue, &op));
    CHECK_OK(zi_io_wait(io.queue, &op));
    close_case(&io);
}

TEST(others_do_not_fail_with_it)
{
    enum { OPS = 8 };
    fault_case io = {
        .below = {.hold_file = -1, .seed = test_seed, .nth = 20, .kind = FAULTY_ERRNO + EIO}};
    open_case(&io, 2, 0);
    zi_io_op ops[OPS];
    const uint64_t bytes = STORE_BYTES / OPS;
    rig_fill(io.memory, 0, STORE_BYTES, 1);
    for (uint64_t i = 0; i < OPS; i++) {
        rig_start(io.queue, ops, ZI_IO_WRITE, io.memory, i, bytes);
    }
    uint64_t failed = OPS;
    for (uint64_t i = 0; i < OPS; i++) {
        if (zi_io_wait(io.queue, &ops[i]) != ZERO_OK) {
            CHECK_EQ(failed, OPS);
            failed = i;
        }
    }
    CHECK(failed < OPS);
    memset(io.memory, 0, STORE_BYTES);
    CHECK_OK(rig_move(io.queue, ZI_IO_READ, io.memory, 0, STORE_BYTES));
    for (uint64_t i = 0; i < OPS; i++) {
        if (i != failed) {
            rig_check(io.memory + i * bytes, i * bytes, bytes, 1);
        }
    }
    close_case(&io);
}

/* Not for ever: neither where the kernel never has time, nor where it always moves less than a
 * block, nor where signals never end. */
TEST(trying_again_ends)
{
    static const int kinds[] = {FAULTY_ERRNO + EAGAIN, FAULTY_ERRNO + EINTR, FAULTY_TORN};
    static const int native[] = {EAGAIN, EINTR, EIO};
    const uint64_t retry_ns = 50000000;
    for (int i = 0; i < 3; i++) {
        fault_case io = {
            .below = {.hold_file = -1, .seed = test_seed, .always = true, .kind = kinds[i]}};
        open_case(&io, 1, retry_ns);
        const uint64_t start = zi_clock_ns();
        CHECK_FAILS(rig_move(io.queue, ZI_IO_WRITE, io.memory, 0, PAGE), ZERO_ERR_IO, "writing");
        CHECK_EQ(zero_last_error()->native, native[i]);
        CHECK(zi_clock_ns() - start >= retry_ns);
        CHECK(zi_io_stats_of(io.queue)->retries >= 2);
        /* Pauses grow, so a refusing kernel is not asked a thousand times. */
        CHECK(kinds[i] == FAULTY_ERRNO + EINTR || zi_io_stats_of(io.queue)->retries < 100);
        no_more_faults(&io);
        rig_round_trip(io.queue, io.memory, STORE_BYTES, 3);
        close_case(&io);
    }
}

/* A disk that answers nothing keeps its own operations waiting and no others. */
TEST(a_slow_disk_does_not_hold_up_the_other)
{
    fault_case io = {.below = {.hold_file = 0, .seed = test_seed}};
    open_case(&io, 2, 0);
    zi_io_op slow = {.kind = ZI_IO_READ, .memory = io.memory, .bytes = 32 * PIECE};
    zi_io_op other = {.kind = ZI_IO_READ,
                      .memory = io.memory + 32 * PIECE,
                      .offset = 34 * PIECE, /* a stripe of the second directory */
                      .bytes = 2 * PIECE};
    CHECK_EQ(zi_stripe_find(zi_store_map(io.store), other.offset).file, 1);
    CHECK_OK(zi_io_start(io.queue, &slow));
    CHECK_OK(zi_io_start(io.queue, &other));
    CHECK_OK(zi_io_wait(io.queue, &other));
    CHECK_EQ(slow.phase, ZI_IO_RUNNING);
    CHECK_EQ(io.below.file_out[0], 6);
    io.below.hold_file = -1;
    CHECK_OK(zi_io_wait(io.queue, &slow));
    close_case(&io);
}

TEST(a_broken_backend_fails_everything)
{
    fault_case io = {.below = {.hold_file = -1, .seed = test_seed}};
    open_case(&io, 2, 0);
    zi_io_op first = {.kind = ZI_IO_READ, .memory = io.memory, .bytes = 8 * PIECE};
    zi_io_op second = {.kind = ZI_IO_READ,
                       .memory = io.memory + 8 * PIECE,
                       .offset = 8 * PIECE,
                       .bytes = 40 * PIECE};
    CHECK_OK(zi_io_start(io.queue, &first));
    CHECK_OK(zi_io_start(io.queue, &second));
    io.below.broken = EBADFD;
    CHECK_FAILS(zi_io_wait(io.queue, &second), ZERO_ERR_IO, strerror(EBADFD));
    CHECK_FAILS(zi_io_wait(io.queue, &first), ZERO_ERR_IO, strerror(EBADFD));
    CHECK_FAILS(zi_io_start(io.queue, &first), ZERO_ERR_IO, strerror(EBADFD));
    /* Whom it concerns has never heard of queues. */
    const char *message = zero_last_error()->message;
    CHECK(strstr(message, "queue") == NULL && strstr(message, "checkpoint") != NULL);
    CHECK(strstr(message, io.folders[0]) != NULL && strstr(message, "the others") != NULL);
    zi_io_poll(io.queue);
    close_case(&io);
}
