/* In-process ranks when something breaks: every injected fault in turn, ranks that give up, threads
 * that cannot start. Always a status, never a hang, nothing left behind. */
#include <stdatomic.h>
#include <sys/resource.h>

#include "comm/self/self.h"
#include "comm/world.h"
#include "conformance.h"
#include "core/fault.h"
#include "core/thread.h"
#include "core/thread_limit.h"

#define LONG_MS 60000
/* No failure may take longer; the deadline is far above. */
#define SOON_MS 20000

/* Make two groups and two pieces of shared memory, use them, pass every status up. */
static zero_status small_life(zero_world *world, void *user)
{
    (void)user;
    enum { PIECES = 2, BYTES = 2 << 20 };
    zi_comm *comm = world->comm;
    zi_group *groups[2] = {NULL, NULL};
    void *pieces[PIECES] = {NULL, NULL};
    uint32_t members[CONF_RANKS_MAX];
    uint32_t half[CONF_RANKS_MAX];
    uint32_t half_size = 0;
    for (uint32_t i = 0; i < comm->size; i++) {
        members[i] = i;
        if (i % 2 == comm->rank % 2) {
            half[half_size++] = i;
        }
    }
    zero_status status =
        comm->ops->group_create(comm, &world->kernels, members, comm->size, "all", &groups[0]);
    if (status == ZERO_OK) {
        status =
            comm->ops->group_create(comm, &world->kernels, half, half_size, "half", &groups[1]);
    }
    for (int i = 0; i < PIECES && status == ZERO_OK; i++) {
        status = comm->ops->memory_alloc(comm, BYTES, &pieces[i]);
    }
    zi_stream *host = NULL;
    CHECK_OK(world->device.ops->stream_wrap(world->device.self, zero_stream_host(), &host));
    for (int round = 0; round < 6 && status == ZERO_OK; round++) {
        const zi_collective batch[2] = {{ZI_ALL_REDUCE, 0, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 1, 1000,
                                         pieces[0], pieces[1], NULL, 0, 0, 0},
                                        {ZI_REDUCE_SCATTER, 0, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, 1,
                                         100, (unsigned char *)pieces[0] + 4096,
                                         (unsigned char *)pieces[1] + 4096, NULL, 0, 0, 0}};
        status = zi_group_submit(groups[round % 2], host, batch, 2);
    }
    if (status == ZERO_OK) {
        status = zero_world_barrier(world);
    }
    const zero_error error = *zero_last_error();
    for (int i = 0; i < PIECES; i++) {
        comm->ops->memory_free(comm, pieces[i], BYTES);
    }
    zi_group_destroy(groups[1]);
    zi_group_destroy(groups[0]);
    return status == ZERO_OK ? ZERO_OK : zi_error_adopt(&error);
}

/* Pages of this process, as the kernel counts them. */
static uint64_t process_pages(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages;
}

/* Fail the n-th event for every n until one run has fewer. Returns the number of failures. */
static uint64_t sweep(zi_fault_kind kind, uint32_t rank_count, zero_status expected)
{
    uint64_t nth = 1;
    for (;; nth++) {
        zi_fault_arm(kind, nth);
        const uint64_t start_ns = zi_clock_ns();
        const zero_status status = zero_world_run(rank_count, LONG_MS, small_life, NULL);
        const uint64_t count = zi_fault_count(kind);
        zi_fault_arm(kind, 0);
        CHECK(in_time(start_ns, SOON_MS));
        if (count < nth) {
            CHECK_EQ(status, ZERO_OK);
            return nth - 1;
        }
        /* The rank that was hit, or one that heard of it first. */
        CHECK(status == expected || status == ZERO_ERR_COMM);
        CHECK(zero_last_error()->message[0] != '\0');
        CHECK(strstr(zero_last_error()->message, "rank ") != NULL || rank_count == 1 ||
              kind == ZI_FAULT_ALLOC);
    }
}

TEST(every_allocation)
{
    static const uint32_t worlds[] = {1, 2, 3, 4};
    uint64_t pages = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
            CHECK(sweep(ZI_FAULT_ALLOC, worlds[i], ZERO_ERR_OUT_OF_MEMORY) >= 5 * worlds[i]);
        }
        if (round == 1) {
            pages = process_pages();
        }
    }
    /* A piece of shared memory that was not given back would be 512 pages, many times. Sanitizers
     * keep memory of their own. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(process_pages() < pages + 4096);
#endif
    CHECK(pages != 0);
}

TEST(every_collective)
{
    static const uint32_t worlds[] = {1, 2, 3, 5};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        /* One while the world is made, six rounds, the barrier. */
        CHECK_EQ(sweep(ZI_FAULT_COLLECTIVE, worlds[i], ZERO_ERR_COMM), 8 * worlds[i]);
    }
}

TEST(every_thread)
{
    CHECK_EQ(sweep(ZI_FAULT_THREAD, 4, ZERO_ERR_DEVICE), 4);
    zi_fault_arm(ZI_FAULT_THREAD, 3);
    CHECK_FAILS(zero_world_run(4, LONG_MS, small_life, NULL), ZERO_ERR_DEVICE,
                "rank 2: cannot start a thread");
    zi_fault_arm(ZI_FAULT_THREAD, 0);
}

/* One allocation of shared memory fails: all hear whose, and the world goes on. */
static zero_status one_allocation_fails(zero_world *world, void *user)
{
    atomic_uint *failures = user;
    zi_comm *comm = world->comm;
    void *piece = NULL;
    CHECK_OK(zero_world_barrier(world));
    if (comm->rank == 0) {
        zi_fault_arm(ZI_FAULT_ALLOC, 1);
    }
    CHECK_OK(zero_world_barrier(world));
    const zero_status status = comm->ops->memory_alloc(comm, ZI_PAGE_BYTES, &piece);
    CHECK(piece == NULL);
    CHECK_EQ(status, ZERO_ERR_OUT_OF_MEMORY);
    CHECK_SAID("no 4096 bytes");
    CHECK_EQ(strncmp(zero_last_error()->message, "rank ", 5) == 0, zero_last_error()->of_other);
    atomic_fetch_add(failures, zero_last_error()->of_other == 0);
    CHECK_OK(zero_world_barrier(world));
    zi_fault_arm(ZI_FAULT_ALLOC, 0);
    CHECK_OK(zero_world_barrier(world));
    CHECK_OK(comm->ops->memory_alloc(comm, ZI_PAGE_BYTES, &piece));
    comm->ops->memory_free(comm, piece, ZI_PAGE_BYTES);
    return ZERO_OK;
}

TEST(allocation_is_agreed)
{
    atomic_uint failures;
    atomic_init(&failures, 0);
    CHECK_OK(zero_world_run(4, LONG_MS, one_allocation_fails, &failures));
    CHECK_EQ(atomic_load(&failures), 1);
}

static zero_status different_sizes(zero_world *world, void *user)
{
    (void)user;
    void *piece = NULL;
    zi_comm *comm = world->comm;
    const size_t bytes = (comm->rank == 2 ? 2 : 1) * ZI_PAGE_BYTES;
    CHECK_FAILS(comm->ops->memory_alloc(comm, bytes, &piece), ZERO_ERR_MISMATCH, "rank 2");
    CHECK(piece == NULL);
    return zero_world_barrier(world);
}

TEST_CALL(allocation_sizes, CHECK_OK(zero_world_run(3, LONG_MS, different_sizes, NULL)));

static zero_status no_allocation(zero_world *world, void *user)
{
    const uint32_t absent = *(const uint32_t *)user;
    if (zero_world_rank(world) == absent) {
        const struct timespec span = {.tv_sec = 1};
        (void)nanosleep(&span, NULL); /* one that returned would be known to have left */
        return ZERO_OK;
    }
    void *piece = NULL;
    zi_comm *comm = world->comm;
    const char *words = test_text("rank %u", absent);
    const zero_status status = comm->ops->memory_alloc(comm, ZI_PAGE_BYTES, &piece);
    CHECK(status == ZERO_ERR_TIMEOUT || status == ZERO_ERR_COMM);
    CHECK_SAID(words);
    CHECK(piece == NULL);
    return status;
}

TEST(allocation_is_awaited)
{
    uint32_t absent = 1;
    CHECK_FAILS(zero_world_run(3, 200, no_allocation, &absent), ZERO_ERR_TIMEOUT,
                "memory_alloc: rank 1 did not come within 200 ms");
}

/* One rank returns an error while the others wait for it in a collective. */
static zero_status one_gives_up(zero_world *world, void *user)
{
    atomic_uint *heard = user;
    const uint32_t size = zero_world_size(world);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(zero_world_barrier(world));
    }
    if (zero_world_rank(world) == size / 2) {
        return zi_error_set(ZERO_ERR_CORRUPT, 3, __FILE__, __LINE__, "a bit flipped");
    }
    const char *words = test_text("rank %u: a bit flipped", size / 2);
    CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_COMM, words);
    zi_group *group = NULL;
    const uint32_t members[2] = {0, size - 1};
    if (zero_world_rank(world) == 0 && size > 2) {
        CHECK_FAILS(world->comm->ops->group_create(world->comm, &world->kernels, members, 2, "late",
                                                   &group),
                    ZERO_ERR_COMM, words);
    }
    atomic_fetch_add(heard, 1);
    return ZERO_ERR_COMM;
}

TEST(rank_gives_up)
{
    for (uint32_t size = 2; size <= 8; size += 2) {
        atomic_uint heard;
        atomic_init(&heard, 0);
        const char *words = test_text("rank %u: a bit flipped", size / 2);
        const uint64_t start_ns = zi_clock_ns();
        CHECK_FAILS(zero_world_run(size, LONG_MS, one_gives_up, &heard), ZERO_ERR_CORRUPT, words);
        CHECK(in_time(start_ns, SOON_MS));
        CHECK_EQ(zero_last_error()->native, 3);
        CHECK_EQ(atomic_load(&heard), size - 1);
    }
}

/* Give up without having set an error. */
static zero_status plain_failure(zero_world *world, void *user)
{
    (void)user;
    return zero_world_rank(world) == 1 ? ZERO_ERR_UNSUPPORTED : zero_world_barrier(world);
}

TEST_CALL(rank_gives_up_silently,
          CHECK_FAILS(zero_world_run(3, LONG_MS, plain_failure, NULL), ZERO_ERR_UNSUPPORTED,
                      "rank 1: the rank's function returned UNSUPPORTED"));

/* A rank ends the world in the middle of a large batch and frees its buffers at once: no peer may
 * still be reading them. */
static zero_status free_in_flight(zero_world *world, void *user)
{
    const uint64_t delay_ns = *(const uint64_t *)user;
    const zi_device_ops *ops = world->device.ops;
    void *device = world->device.self;
    conf test = {.world = world};
    conf_members_all(&test, world);
    const size_t count = 200000;
    conf_open(&test, count * sizeof(float) * test.size, "flight");
    zi_stream *stream = NULL;
    CHECK_OK(ops->stream_create(device, "flight", &stream));
    const zi_collective job = {ZI_REDUCE_SCATTER,
                               0,
                               ZERO_DTYPE_F32,
                               ZERO_DTYPE_F32,
                               0,
                               count,
                               test.send,
                               test.recv,
                               NULL,
                               0,
                               0,
                               0};
    for (int i = 0; i < 20; i++) {
        CHECK_OK(zi_group_submit(test.group, stream, &job, 1));
    }
    if (zero_world_rank(world) == 1) {
        const struct timespec span = {.tv_nsec = (long)delay_ns};
        (void)nanosleep(&span, NULL);
        (void)zi_error_set(ZERO_ERR_IO, 0, __FILE__, __LINE__, "enough");
        zero_world_abort(world);
    }
    ops->stream_destroy(device, stream);
    conf_close(&test);
    return ZERO_OK;
}

TEST(buffers_freed_after_abort)
{
    uint64_t delay_ns = 0;
    for (uint32_t i = 0; i < 40; i++) {
        delay_ns = i * 97000;
        CHECK_FAILS(zero_world_run(2 + i % 3, LONG_MS, free_in_flight, &delay_ns), ZERO_ERR_IO,
                    "rank 1: enough");
    }
}

static zero_status count_calls(zero_world *world, void *user)
{
    conf test = {.world = world};
    conf_open_all(&test, world, 1000, "calls");
    unsigned char bytes[300] = {0};
    unsigned char all[4 * 300];
    CHECK_OK(zero_world_barrier(world));
    const uint64_t before = zi_memory_calls();
    CHECK_OK(zero_world_barrier(world));
    for (int i = 0; i < 20; i++) {
        conf_run(&test,
                 (conf_shape){ZI_ALL_REDUCE, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, 1000, 0, 0, 0, 1});
        CHECK_OK(zero_world_gather(world, bytes, all, sizeof bytes));
    }
    CHECK_OK(zero_world_barrier(world));
    CHECK_EQ(zi_memory_calls(), before);
    CHECK_OK(zero_world_barrier(world));
    conf_close(&test);
    ((uint32_t *)user)[zero_world_rank(world)] = 1;
    return ZERO_OK;
}

TEST(no_allocation_in_collectives)
{
    uint32_t ran[4] = {0};
    CHECK_OK(zero_world_run(4, LONG_MS, count_calls, ran));
    CHECK_EQ(ran[0] + ran[1] + ran[2] + ran[3], 4);
}

static zero_status different_gathers(zero_world *world, void *user)
{
    (void)user;
    unsigned char send[64] = {0};
    unsigned char recv[3 * 64];
    const uint32_t bytes = zero_world_rank(world) == 1 ? 31 : 32;
    CHECK_FAILS(zero_world_gather(world, send, recv, bytes), ZERO_ERR_MISMATCH,
                "zero_world_gather's");
    return ZERO_OK;
}

TEST_CALL(gather_sizes, CHECK_OK(zero_world_run(3, LONG_MS, different_gathers, NULL)));

TEST(bad_arguments)
{
    CHECK_FAILS(zero_world_run(0, 0, small_life, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "rank_count is 0");
    CHECK_FAILS(zero_world_run(2, 0, NULL, NULL), ZERO_ERR_INVALID_ARGUMENT, "fn is NULL");
}

/* Refused before anything is taken, by the bound that applies. */
TEST(more_ranks_than_threads)
{
    const uint64_t start_ns = zi_clock_ns();
    const uint64_t calls = zi_memory_calls();
    const zi_limit limit = zi_limit_threads();
    CHECK(limit.most > 0 && limit.by[0] != '\0');
    CHECK_FAILS(zero_world_run(2000000, 0, small_life, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "rank_count 2000000 is more than the 65536");
    CHECK_FAILS(zero_world_run(UINT32_MAX, 0, small_life, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "65536");
    if (limit.most < 65536) {
        CHECK_FAILS(zero_world_run(65536, 0, small_life, NULL), ZERO_ERR_INVALID_ARGUMENT,
                    limit.by);
    }
    /* As an ordinary user with a limit of its own. */
    struct rlimit usual;
    const uid_t user = geteuid();
    CHECK_EQ(getrlimit(RLIMIT_NPROC, &usual), 0);
    const struct rlimit few = {.rlim_cur = 5, .rlim_max = usual.rlim_max};
    if (user == 0) {
        CHECK_EQ(seteuid(65534), 0);
    }
    CHECK_EQ(setrlimit(RLIMIT_NPROC, &few), 0);
    CHECK_FAILS(zero_world_run(6, 0, small_life, NULL), ZERO_ERR_INVALID_ARGUMENT, "ulimit -u");
    CHECK_EQ(zi_limit_threads().most, 5);
    CHECK_EQ(zi_memory_calls(), calls);
    CHECK(in_time(start_ns, SOON_MS));
    /* Leak checkers start a process at the end. */
    CHECK_EQ(setrlimit(RLIMIT_NPROC, &usual), 0);
    CHECK_EQ(seteuid(user), 0);
}

TEST(self_world_faults)
{
    for (uint64_t nth = 1;; nth++) {
        zero_world *world = NULL;
        zi_fault_arm(ZI_FAULT_ALLOC, nth);
        const zero_status status = zero_world_create_self(&world);
        const uint64_t count = zi_fault_count(ZI_FAULT_ALLOC);
        zi_fault_arm(ZI_FAULT_ALLOC, 0);
        if (count < nth) {
            CHECK_EQ(status, ZERO_OK);
            CHECK(nth > 3);
            zero_world_destroy(world);
            return;
        }
        CHECK_EQ(status, ZERO_ERR_OUT_OF_MEMORY);
        CHECK(world == NULL);
    }
}
