/* Ranks that are processes of this host, started as torchrun would: the conformance cases, and what
 * happens when a rank is missing, dies, comes twice, or finds what a killed job left. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "comm/host/host_comm.h"
#include "comm/host/shared_state.h"
#include "comm/world.h"
#include "conformance_packed.h"
#include "core/fault.h"
#include "device/cpu/cpu_copy.h"
#include "process_ranks.h"

/* Wait until the file under the name exists and is complete. */
static void await_name(const char *name)
{
    for (int i = 0; i < 10000; i++) {
        const int fd = shm_open(name, O_RDONLY, 0);
        if (fd >= 0) {
            uint64_t magic = 0;
            const bool complete =
                read(fd, &magic, sizeof magic) == sizeof magic && magic == ZI_SHARED_MAGIC;
            close(fd);
            if (complete) {
                return;
            }
        }
        sleep_ms(1);
    }
    TEST_FAIL("no file %s", name);
}

/* One conformance case in each process. */
typedef struct case_run {
    zero_rank_fn fn;
    uint32_t deadline_ms;
} case_run;

static void run_case(uint32_t rank, void *user)
{
    const case_run *run = user;
    zero_world *world = NULL;
    uint32_t deadline_ms = run->deadline_ms;
    CHECK_EQ(zero_world_is_launched(), 1);
    CHECK_OK(zero_world_create_launched(deadline_ms, &world));
    CHECK_EQ(zero_world_rank(world), rank);
    CHECK(strcmp(zero_world_backend(world), "shm") == 0);
    CHECK_EQ(zero_world_local_size(world), zero_world_size(world));
    CHECK_OK(run->fn(world, &deadline_ms));
    zero_world_destroy(world);
}

static void run_case_everywhere(zero_rank_fn fn)
{
    case_run run = {fn, LONG_MS};
    for (uint32_t size = 2; size <= 4; size++) {
        run_ranks(size, run_case, &run);
    }
}

TEST_CALL(kinds, run_case_everywhere(case_kinds));

TEST(large)
{
    case_run run = {case_large, LONG_MS};
    run_ranks(2, run_case, &run);
    run_ranks(3, run_case, &run);
}

TEST_CALL(packed, run_case_everywhere(case_packed));
TEST_CALL(subgroups, run_case_everywhere(case_subgroups));
TEST_CALL(batches, run_case_everywhere(case_batches));
TEST_CALL(streams, run_case_everywhere(case_streams));
TEST_CALL(mismatch, run_case_everywhere(case_mismatch));
TEST_CALL(gather, run_case_everywhere(case_gather));
TEST_CALL(memory, run_case_everywhere(case_memory));
TEST_CALL(abort, run_case_everywhere(case_abort_waiting));
TEST_CALL(abort_says_where, run_case_everywhere(case_abort_waiting_at));

TEST(late)
{
    case_run run = {case_late, 500};
    run_ranks(2, run_case, &run);
    run_ranks(4, run_case, &run);
}

TEST(many_ranks)
{
    case_run run = {case_many, LONG_MS};
    run_ranks(MANY, run_case, &run);
}

/* The backend itself with one rank. */
TEST(one_rank)
{
    static const zero_rank_fn cases[] = {case_kinds,   case_subgroups, case_batches,
                                         case_streams, case_gather,    case_memory};
    zi_process_rank own = {.rank = 0, .size = 1};
    snprintf(own.name, sizeof own.name, "/zero-%u-%u-one", (unsigned)geteuid(), test_port());
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    CHECK_OK(zi_process_comm_create(&own, LONG_MS, &comm));
    CHECK_EQ(names_left(), 0);
    CHECK_OK(zi_world_create(comm, &world));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(cases[i](world, NULL));
    }
    zero_world_destroy(world);
}

static void many_worlds(uint32_t rank, void *user)
{
    (void)user;
    for (uint32_t i = 0; i < 30; i++) {
        zero_world *world = NULL;
        uint32_t seen[4] = {9, 9, 9, 9};
        const uint32_t mine = rank * 100 + i;
        CHECK_OK(zero_world_create_launched(LONG_MS, &world));
        CHECK_OK(zero_world_gather(world, &mine, seen, sizeof mine));
        for (uint32_t k = 0; k < zero_world_size(world); k++) {
            CHECK_EQ(seen[k], k * 100 + i);
        }
        /* Some are quick to come again, some slow. */
        if (i % 3 == rank) {
            sleep_ms(2);
        }
        zero_world_destroy(world);
    }
}

TEST_CALL(world_after_world, run_ranks(3, many_worlds, NULL));

static void miss_a_rank(uint32_t rank, void *user)
{
    const uint32_t missing = *(const uint32_t *)user;
    zero_world *world = NULL;
    const char *words = test_text("rank %u did not come", missing);
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(zero_world_create_launched(400, &world), ZERO_ERR_TIMEOUT, words);
    CHECK(elapsed_ms(start_ns) >= 300);
    CHECK(in_time(start_ns, 5000));
    CHECK(world == NULL);
    CHECK(rank != missing);
}

TEST(missing_rank)
{
    for (uint32_t missing = 0; missing < 3; missing++) {
        const pid_t first = start_rank(missing == 0 ? 1 : 0, 3, miss_a_rank, &missing);
        const pid_t second = start_rank(missing == 2 ? 1 : 2, 3, miss_a_rank, &missing);
        CHECK_EQ(end_of(first), 0);
        CHECK_EQ(end_of(second), 0);
        CHECK_EQ(names_left(), 0);
    }
}

static void join_and_meet(uint32_t rank, void *user)
{
    (void)rank;
    (void)user;
    zero_world *world = join();
    CHECK_OK(zero_world_barrier(world));
    zero_world_destroy(world);
}

/* Rank 0 of `size`, once it waits for the others. */
static pid_t start_first(uint32_t size)
{
    char name[64];
    meeting_name(size, name);
    const pid_t first = start_rank(0, size, join_and_meet, NULL);
    await_name(name);
    return first;
}

TEST(stale_file_is_replaced)
{
    const pid_t victim = start_first(2);
    CHECK_EQ(kill(victim, SIGKILL), 0);
    CHECK_EQ(end_of(victim), 128 + SIGKILL);
    CHECK_EQ(names_left(), 1);
    run_ranks(2, join_and_meet, NULL);
}

/* A killed rank 0 whose body nobody has collected yet is as dead. */
TEST(stale_file_of_a_zombie)
{
    const pid_t victim = start_first(2);
    CHECK_EQ(kill(victim, SIGKILL), 0);
    siginfo_t end;
    CHECK_EQ(waitid(P_PID, (id_t)victim, &end, WEXITED | WNOWAIT), 0);
    run_ranks(2, join_and_meet, NULL);
    CHECK_EQ(end_of(victim), 128 + SIGKILL);
    CHECK_EQ(names_left(), 0);
}

TEST(half_made_file_is_replaced)
{
    char name[64];
    meeting_name(2, name);
    for (int bytes = 0; bytes <= 1 << 20; bytes += 1 << 20) {
        const int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        CHECK(fd >= 0);
        CHECK_EQ(ftruncate(fd, bytes), 0);
        close(fd);
        run_ranks(2, join_and_meet, NULL);
    }
}

static void come_second(uint32_t rank, void *user)
{
    zero_world *world = NULL;
    const char *words = test_text("process %d runs a job", (int)*(const pid_t *)user);
    CHECK_EQ(rank, 0);
    CHECK_FAILS(zero_world_create_launched(LONG_MS, &world), ZERO_ERR_STATE, words);
    CHECK_SAID("MASTER_PORT");
    CHECK(world == NULL);
}

TEST(two_jobs_of_one_name)
{
    pid_t first = start_first(2);
    const pid_t second = start_rank(0, 2, come_second, &first);
    CHECK_EQ(end_of(second), 0);
    /* The first job is none the worse. */
    const pid_t other = start_rank(1, 2, join_and_meet, NULL);
    CHECK_EQ(end_of(other), 0);
    CHECK_EQ(end_of(first), 0);
    CHECK_EQ(names_left(), 0);
}

/* Under one name as a world of two whose rank 0 waits: worlds of another size, one that has fewer
 * lines in the file and one that has more than the file is long. */
static void come_with_another_size(uint32_t rank, void *user)
{
    zi_process_rank own = {.rank = rank};
    (void)snprintf(own.name, sizeof own.name, "%s", (const char *)user);
    for (own.size = 3; own.size <= MANY; own.size += MANY - 3) {
        zi_comm *comm = NULL;
        if (rank == 0) {
            CHECK_FAILS(zi_process_comm_create(&own, LONG_MS, &comm), ZERO_ERR_STATE, "runs a job");
        } else {
            CHECK_FAILS(zi_process_comm_create(&own, 200, &comm), ZERO_ERR_TIMEOUT,
                        "rank 0 did not");
        }
        CHECK(comm == NULL);
    }
}

TEST(worlds_of_other_sizes)
{
    char name[64];
    meeting_name(2, name);
    const pid_t first = start_first(2);
    const pid_t maker = start_rank(0, 2, come_with_another_size, name);
    const pid_t joiner = start_rank(1, 2, come_with_another_size, name);
    CHECK_EQ(end_of(maker), 0);
    CHECK_EQ(end_of(joiner), 0);
    const pid_t second = start_rank(1, 2, join_and_meet, NULL);
    CHECK_EQ(end_of(second), 0);
    CHECK_EQ(end_of(first), 0);
    CHECK_EQ(names_left(), 0);
}

static void come_from_another_launcher(uint32_t rank, void *user)
{
    zi_comm *comm = NULL;
    zi_process_rank own = {.rank = rank, .size = 2, .launcher = 1};
    (void)snprintf(own.name, sizeof own.name, "%s", (const char *)user);
    CHECK_FAILS(zi_process_comm_create(&own, LONG_MS, &comm), ZERO_ERR_STATE,
                rank == 0 ? "runs a job" : "rank 0 of another launcher");
    CHECK(comm == NULL);
}

/* Ranks of a second job that has the first one's name are refused, and the first one goes on. */
TEST(jobs_of_two_launchers)
{
    char name[64];
    meeting_name(2, name);
    const pid_t first = start_first(2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        CHECK_EQ(end_of(start_rank(rank, 2, come_from_another_launcher, name)), 0);
    }
    const pid_t second = start_rank(1, 2, join_and_meet, NULL);
    CHECK_EQ(end_of(second), 0);
    CHECK_EQ(end_of(first), 0);
    CHECK_EQ(names_left(), 0);
}

static void come_twice(uint32_t rank, void *user)
{
    (void)rank;
    (void)user;
    zero_world *world = NULL;
    CHECK_FAILS(zero_world_create_launched(LONG_MS, &world), ZERO_ERR_STATE, "rank 1 came twice");
    CHECK(world == NULL);
}

TEST(rank_comes_twice)
{
    pid_t children[3];
    for (uint32_t i = 0; i < 3; i++) {
        children[i] = start_rank(i == 0 ? 0 : 1, 3, come_twice, NULL);
    }
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ(end_of(children[i]), 0);
    }
    CHECK_EQ(names_left(), 0);
}

static void lose_rank_0(uint32_t rank, void *user)
{
    (void)rank;
    (void)user;
    zero_world *world = NULL;
    CHECK_FAILS(zero_world_create_launched(LONG_MS, &world), ZERO_ERR_COMM, "died while");
    CHECK_SAID("rank 0: process ");
}

TEST(rank_0_dies_while_meeting)
{
    const pid_t victim = start_first(3);
    const pid_t survivor = start_rank(2, 3, lose_rank_0, NULL);
    sleep_ms(100);
    CHECK_EQ(kill(victim, SIGKILL), 0);
    CHECK_EQ(end_of(survivor), 0);
    CHECK_EQ(end_of(victim), 128 + SIGKILL);
    /* The one case in which a name stays: until the next job of this name. */
    CHECK_EQ(names_left(), 1);
    run_ranks(3, join_and_meet, NULL);
}

/* Bytes of memory behind the shared file. */
static uint64_t backed_bytes(const zero_world *world)
{
    const zi_host_comm *comm = (const void *)world->comm;
    struct stat info;
    CHECK_EQ(fstat(comm->shared->fd, &info), 0);
    return (uint64_t)info.st_blocks * 512;
}

static void come_and_go(uint32_t rank, void *user)
{
    (void)rank;
    (void)user;
    zero_world *world = join();
    CHECK_OK(zero_world_barrier(world));
    const uint64_t before = backed_bytes(world);
    CHECK_OK(zero_world_barrier(world));
    for (uint32_t round = 0; round < 300; round++) {
        conf test = {.world = world};
        conf_open_all(&test, world, 64, "short");
        conf_run(&test,
                 (conf_shape){ZI_ALL_REDUCE, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 64, 0, 0, 0, 1});
        CHECK(backed_bytes(world) > before);
        conf_close(&test);
        CHECK_OK(zero_world_barrier(world));
        CHECK_EQ(backed_bytes(world), before);
        CHECK_OK(zero_world_barrier(world));
    }
    zero_world_destroy(world);
}

TEST_CALL(memory_goes_back, run_ranks(2, come_and_go, NULL));

/* More than the host has: all are told, and go on. */
static void ask_too_much(uint32_t rank, void *user)
{
    (void)user;
    zero_world *world = join();
    zi_comm *comm = world->comm;
    void *piece = NULL;
    CHECK_FAILS(comm->ops->memory_alloc(comm, (size_t)1 << 43, &piece), ZERO_ERR_OUT_OF_MEMORY, "");
    CHECK(piece == NULL);
    CHECK_FAILS(comm->ops->memory_alloc(comm, (size_t)1 << 60, &piece), ZERO_ERR_OUT_OF_MEMORY, "");
    /* One rank alone. */
    if (rank == 1) {
        zi_fault_arm(ZI_FAULT_ALLOC, 1);
    }
    CHECK_FAILS(comm->ops->memory_alloc(comm, ZI_PAGE_BYTES, &piece), ZERO_ERR_OUT_OF_MEMORY,
                rank == 1 ? "(injected)" : "rank 1: no 4096 bytes of shared memory (injected)");
    CHECK(piece == NULL);
    CHECK_FAILS(comm->ops->memory_alloc(comm, (1 + rank) * ZI_PAGE_BYTES, &piece),
                ZERO_ERR_MISMATCH, "rank 0");
    CHECK(piece == NULL);
    CHECK_OK(case_memory(world, NULL));
    zero_world_destroy(world);
}

TEST_CALL(too_much_memory, run_ranks(2, ask_too_much, NULL));

/* All windows in use, then given back in another order. */
static void use_all_windows(uint32_t rank, void *user)
{
    (void)rank;
    (void)user;
    zero_world *world = join();
    zi_comm *comm = world->comm;
    void *pieces[ZI_PEER_WINDOWS_MAX];
    void *more = NULL;
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < ZI_PEER_WINDOWS_MAX; i++) {
            CHECK_OK(comm->ops->memory_alloc(comm, ZI_PAGE_BYTES, &pieces[i]));
        }
        CHECK_FAILS(comm->ops->memory_alloc(comm, ZI_PAGE_BYTES, &more), ZERO_ERR_UNSUPPORTED,
                    "64");
        for (uint32_t i = 0; i < ZI_PEER_WINDOWS_MAX; i++) {
            const uint32_t piece = (i * 37 + rank * 11) % ZI_PEER_WINDOWS_MAX;
            comm->ops->memory_free(comm, pieces[piece], ZI_PAGE_BYTES);
        }
    }
    CHECK_OK(comm->ops->memory_alloc(comm, 0, &more));
    CHECK(more == NULL);
    comm->ops->memory_free(comm, NULL, 0);
    zero_world_destroy(world);
}

TEST_CALL(windows_run_out, run_ranks(2, use_all_windows, NULL));

/* Rank 1's allocation number *user fails while it joins. */
static void fail_nth(uint32_t rank, void *user)
{
    const uint64_t nth = *(const uint64_t *)user;
    zero_world *world = NULL;
    if (rank == 1) {
        zi_fault_arm(ZI_FAULT_ALLOC, nth);
    }
    const zero_status status = zero_world_create_launched(500, &world);
    if (status == ZERO_OK) {
        const bool spared = rank != 1 || zi_fault_count(ZI_FAULT_ALLOC) < nth;
        zi_fault_arm(ZI_FAULT_ALLOC, 0);
        const zero_status met = zero_world_barrier(world);
        zero_world_destroy(world);
        CHECK(spared);
        _exit(met == ZERO_OK ? 3 : 0);
    }
    CHECK(rank == 1 ? status == ZERO_ERR_OUT_OF_MEMORY
                    : status == ZERO_ERR_TIMEOUT || status == ZERO_ERR_COMM ||
                          status == ZERO_ERR_OUT_OF_MEMORY);
    CHECK(zero_last_error()->message[0] != '\0');
}

TEST(every_allocation)
{
    for (uint64_t nth = 1;; nth++) {
        CHECK(nth < 50);
        const pid_t first = start_rank(0, 2, fail_nth, &nth);
        const pid_t second = start_rank(1, 2, fail_nth, &nth);
        const int codes[2] = {end_of(first), end_of(second)};
        CHECK_EQ(names_left(), 0);
        if (codes[1] == 3) {
            CHECK_EQ(codes[0], 3);
            CHECK(nth > 4);
            return;
        }
        CHECK_EQ(codes[0], 0);
        CHECK_EQ(codes[1], 0);
    }
}

/* Rank 1 has no memory for its side of a group and goes on living: rank 0 hears of it at once. */
static void lack_memory_for_a_group(uint32_t rank, void *user)
{
    (void)user;
    zero_world *world = join();
    zi_comm *comm = world->comm;
    zi_group *group = NULL;
    const uint32_t both[2] = {0, 1};
    if (rank == 1) {
        zi_fault_arm(ZI_FAULT_ALLOC, 2); /* the first is before this rank has joined the group */
        CHECK_FAILS(comm->ops->group_create(comm, &world->kernels, both, 2, "pair", &group),
                    ZERO_ERR_OUT_OF_MEMORY, "bookkeeping");
        CHECK(group == NULL);
        zi_fault_arm(ZI_FAULT_ALLOC, 0);
    } else {
        zi_stream *host = NULL;
        CHECK_OK(comm->ops->group_create(comm, &world->kernels, both, 2, "pair", &group));
        CHECK_OK(world->device.ops->stream_wrap(world->device.self, zero_stream_host(), &host));
        CHECK_FAILS(zi_group_submit(group, host, NULL, 0), ZERO_ERR_COMM,
                    "rank 1: the host has no");
    }
    zi_group_destroy(group);
    CHECK_OK(zero_world_barrier(world));
    zero_world_destroy(world);
}

TEST_CALL(group_failure_is_told, run_ranks(2, lack_memory_for_a_group, NULL));

/* Ranks that make other groups than the rest. */
static void other_groups(uint32_t rank, void *user)
{
    (void)user;
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_launched(300, &world));
    zi_group *group = NULL;
    const uint32_t both[2] = {0, 1};
    CHECK_FAILS(world->comm->ops->group_create(world->comm, &world->kernels, both, 2,
                                               rank == 0 ? "gather" : "reduce", &group),
                ZERO_ERR_MISMATCH, "'gather'");
    CHECK(group == NULL);
    zero_world_destroy(world);
}

TEST_CALL(other_group, run_ranks(2, other_groups, NULL));

/* Copies around the length from which they bypass the caches, from and to any alignment. */
TEST(long_copies)
{
    const size_t room = ZI_CPU_COPY_NON_TEMPORAL + 4096;
    unsigned char *source = malloc(room);
    unsigned char *target = malloc(room);
    CHECK(source != NULL && target != NULL);
    for (size_t i = 0; i < room; i++) {
        source[i] = (unsigned char)(i * 31 + i / 4096);
    }
    for (size_t k = 0; k < 40; k++) {
        const size_t from = k * 7 % 130;
        const size_t to = k * 13 % 70;
        const size_t bytes = ZI_CPU_COPY_NON_TEMPORAL - 3 + k * 17 % 200;
        memset(target, GUARD_BYTE, room);
        zi_cpu_copy(target + to, source + from, bytes);
        CHECK_BYTES(target + to, source + from, bytes);
        for (size_t i = 0; i < 64; i++) {
            CHECK(i >= to || target[to - 1 - i] == GUARD_BYTE);
            CHECK_EQ(target[to + bytes + i], GUARD_BYTE);
        }
    }
    free(source);
    free(target);
}
