/* Groups over NCCL that cannot be made or that fail: ranks that do not connect, errors that NCCL
 * reports, batches that never finish, ranks that give up elsewhere. */
#include <stdatomic.h>
#include <time.h>

#include "comm/nccl/nccl_state.h"
#include "comm/peer/peer.h"
#include "core/fault.h"
#include "core/memory.h"
#include "device/cuda/cuda_device.h"
#include "nccl_rig.h"
#include "waits.h"
#include "zero/log.h"

static zi_collective gather_of(unsigned char *memory)
{
    return (zi_collective){.kind = ZI_ALL_GATHER,
                           .send_dtype = ZERO_DTYPE_BF16,
                           .recv_dtype = ZERO_DTYPE_BF16,
                           .tag = 3,
                           .count = 64,
                           .send = memory,
                           .recv = memory + 1024};
}

/* Wait until the group has failed. */
static zero_status await_failure(zi_group *group)
{
    AWAIT(zi_group_check(group) != ZERO_OK);
    return zi_group_check(group);
}

/* A graph of one batch. */
static cudaGraphExec_t capture(zi_group *group, const zi_collective *job)
{
    const cudaStream_t native = zi_cuda_stream_native(own.stream);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t graph_exec = NULL;
    CHECK_EQ(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_OK(zi_group_submit(group, own.stream, job, 1));
    CHECK_EQ(cudaStreamEndCapture(native, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphInstantiate(&graph_exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return graph_exec;
}

/* The graph goes, and with it what NCCL has kept for it. */
static void destroy_graph(cudaGraphExec_t graph_exec, uint64_t left)
{
    CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
    AWAIT(fake_nccl_live() <= left);
}

/* The holder of another group beside the one that fails. */
typedef enum holder {
    NOTHING,
    A_GRAPH,        /* for longer than the group is there */
    A_GRAPH_IN_TIME /* until before it is destroyed */
} holder;

/* Rank 0 makes a batch that never finishes; the other rank as well, or not at all. What user points
 * to: a holder. */
static zero_status stall(zero_world *world, void *user)
{
    const holder held = *(const holder *)user;
    cudaGraphExec_t graph_exec = NULL;
    const uint32_t rank = zero_world_rank(world);
    pair p = pair_open(world, "gather", ZI_PAGE_BYTES);
    zi_group *other = NULL;
    CHECK_OK(make_group(world, pair_ranks, 2, "reduce", &other));
    const zi_collective job = gather_of(own.known != NULL ? own.known : p.memory);
    CHECK_OK(zi_group_submit(p.group, own.stream, &job, 1));
    CHECK_OK(gpu_wait(&own));
    if (held != NOTHING) {
        graph_exec = capture(other, &job);
    }
    CHECK_OK(zero_world_barrier(world));
    if (rank == 0) {
        fake_nccl_stall();
    }
    CHECK_OK(zero_world_barrier(world));
    const uint64_t start_ns = zi_clock_ns();
    CHECK_OK(zi_group_submit(p.group, own.stream, &job, 1));
    /* The stream is freed: the wait ends, and the check tells. */
    (void)gpu_wait(&own);
    CHECK(elapsed_ms(start_ns) + 1 >= SHORT_MS);
    CHECK(in_time(start_ns, SHORT_MS + 10000));
    const zero_status status = await_failure(p.group);
    CHECK(status == ZERO_ERR_TIMEOUT || status == ZERO_ERR_COMM);
    CHECK_SAID("all_gather of unit 3, 64 x bf16");
    CHECK_SAID("did not finish within 1500 ms");
    CHECK_SAID("group gather");
    CHECK(zi_group_submit(p.group, own.stream, &job, 1) == status);
    /* The other group of the world goes with it. */
    (void)await_failure(other);
    CHECK_SAID("did not finish within 1500 ms");
    if (held == A_GRAPH_IN_TIME) {
        CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
    }
    zi_group_destroy(other);
    zi_group_destroy(p.group);
    p.group = NULL;
    if (held == A_GRAPH) {
        CHECK(fake_nccl_live() != 0);
        destroy_graph(graph_exec, 2); /* the other rank has a base and a graph */
    }
    return pair_close(&p, NULL);
}

static void run_stall(holder held)
{
    common.deadline_ms = SHORT_MS;
    CHECK(run_world(2, stall, &held) != ZERO_OK);
    fake_nccl_unstall();
    AWAIT(held != A_GRAPH || fake_nccl_live() == 0);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 6); /* the base too, once on each rank */
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_DESTROY), 0);
    CHECK_EQ(fake_nccl_live(), 0);
    CHECK_EQ(fake_nccl_memory_live(), 0);
    CHECK(fake_nccl_check());
}

TEST_CALL(a_batch_that_never_finishes, run_stall(NOTHING));

/* NCCL's abort of the one that is captured is over when the graph is destroyed; that of the others,
 * and whoever waits for them, must not have to wait for it. */
TEST_CALL(a_batch_that_never_finishes_beside_a_graph, run_stall(A_GRAPH));

static void keep_message(void *user, zero_log_level level, const char *message)
{
    if (level == ZERO_LOG_WARN && strstr(message, "destroy graphs before their engine") != NULL) {
        atomic_fetch_add((atomic_uint *)user, 1);
    }
}

/* A group is destroyed before a graph that has captured it: NCCL keeps its communicator. */
static zero_status outlive(zero_world *world, void *user)
{
    (void)user;
    pair p = pair_open(world, "gather", ZI_PAGE_BYTES);
    const zi_collective job = gather_of(p.memory);
    cudaGraphExec_t graph_exec = capture(p.group, &job);
    CHECK_EQ(cudaGraphLaunch(graph_exec, zi_cuda_stream_native(own.stream)), cudaSuccess);
    CHECK_OK(gpu_wait(&own));
    CHECK_OK(zero_world_barrier(world));
    const uint64_t start_ns = zi_clock_ns();
    zi_group_destroy(p.group);
    p.group = NULL;
    const uint64_t waited_ms = elapsed_ms(start_ns);
    CHECK(waited_ms + 1 >= ZI_NCCL_END_MS && waited_ms < ZI_NCCL_END_MS + 10000);
    CHECK_OK(zero_world_barrier(world));
    CHECK_EQ(fake_nccl_live(), 4);
    CHECK_OK(zero_world_barrier(world));
    destroy_graph(graph_exec, 2); /* the bases are left */
    return pair_close(&p, world);
}

TEST(a_graph_that_outlives_its_group)
{
    atomic_uint warnings = 0;
    zero_log_set(keep_message, &warnings);
    common.deadline_ms = SHORT_MS;
    common.gathers_only = true;
    CHECK_OK(run_world(2, outlive, NULL));
    CHECK_EQ(warnings, 2);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 0);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_DESTROY), 4);
    finish();
}

/* The abort takes what is registered with it, before the memory goes. */
static void run_stall_in_windows(holder held)
{
    common.registered = true;
    common.gathers_only = true;
    run_stall(held);
    CHECK_EQ(fake_nccl_registered(FAKE_NCCL_SYMMETRIC), 6); /* two of them to find out */
}

TEST_CALL(a_batch_that_never_finishes_in_windows, run_stall_in_windows(NOTHING));
TEST_CALL(a_batch_that_never_finishes_in_windows_that_were_captured,
          run_stall_in_windows(A_GRAPH_IN_TIME));

/* Rank 1 never makes the batch: while NCCL connects them, rank 0 waits within submit. */
static zero_status miss(zero_world *world, void *user)
{
    (void)user;
    const pair p = pair_open(world, "gather", ZI_PAGE_BYTES);
    const zi_collective job = gather_of(p.memory);
    if (zero_world_rank(world) == 0) {
        CHECK_FAILS(
            zi_group_submit(p.group, own.stream, &job, 1), ZERO_ERR_TIMEOUT,
            "group gather, rank 0: ncclGroupEnd of 2 members did not finish within 1500 ms");
        CHECK_FAILS(zi_group_submit(p.group, own.stream, &job, 1), ZERO_ERR_TIMEOUT,
                    "ncclGroupEnd");
    } else {
        (void)await_failure(p.group);
        CHECK_SAID("ncclGroupEnd of 2 members");
    }
    return pair_close(&p, NULL);
}

TEST(a_rank_that_makes_other_calls)
{
    common.deadline_ms = SHORT_MS;
    common.gathers_only = true;
    CHECK(run_world(2, miss, NULL) != ZERO_OK);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 4);
    CHECK_EQ(fake_nccl_live(), 0);
    CHECK(fake_nccl_check());
}

/* Rank 0 is in a call that connects when rank 1 gives up: the call ends long before the deadline.
 */
static zero_status leave_alone(zero_world *world, void *user)
{
    (void)user;
    const pair p = pair_open(world, "gather", ZI_PAGE_BYTES);
    const zi_collective job = gather_of(p.memory);
    const uint64_t start_ns = zi_clock_ns();
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 0) {
        CHECK(zi_group_submit(p.group, own.stream, &job, 1) == ZERO_ERR_COMM);
        CHECK_SAID("the disk is on fire");
        CHECK(in_time(start_ns, LONG_MS / 2));
    } else {
        const struct timespec span = {.tv_nsec = 100000000}; /* rank 0 is in its call by then */
        (void)nanosleep(&span, NULL);
        (void)zi_error_set(ZERO_ERR_IO, 5, __FILE__, __LINE__, "the disk is on fire");
        zero_world_abort(world);
        (void)await_failure(p.group);
    }
    return pair_close(&p, NULL);
}

TEST(a_rank_that_gives_up_while_another_connects)
{
    common.gathers_only = true;
    CHECK(run_world(2, leave_alone, NULL) != ZERO_OK);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_GROUP), 0);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 4);
    finish();
}

/* NCCL finds an error on rank 1 by itself. */
static zero_status go_wrong(zero_world *world, void *user)
{
    (void)user;
    const pair p = pair_open(world, "scatter", ZI_PAGE_BYTES);
    CHECK_OK(zi_group_check(p.group));
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 1) {
        fake_nccl_break(1, ncclRemoteError);
    }
    CHECK(await_failure(p.group) == ZERO_ERR_COMM);
    CHECK_SAID(": communication: a fake error: a fake detail");
    return pair_close(&p, NULL);
}

TEST(an_error_that_nccl_reports)
{
    CHECK_FAILS(run_world(2, go_wrong, NULL), ZERO_ERR_COMM, "a fake detail");
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 4);
    finish();
}

/* A rank that gives up elsewhere frees the others. */
static zero_status give_up(zero_world *world, void *user)
{
    (void)user;
    const pair p = pair_open(world, "gather", ZI_PAGE_BYTES);
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 1) {
        (void)zi_error_set(ZERO_ERR_IO, 5, __FILE__, __LINE__, "the disk is on fire");
        zero_world_abort(world);
    }
    (void)await_failure(p.group);
    CHECK_SAID("the disk is on fire");
    return pair_close(&p, NULL);
}

TEST(a_rank_that_gives_up_elsewhere)
{
    CHECK(run_world(2, give_up, NULL) != ZERO_OK);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 4);
    finish();
}

/* A create that must fail on every rank. */
typedef struct failing {
    zero_status status;
    const char *words;
} failing;

static zero_status fail_to_create(zero_world *world, void *user)
{
    const failing *expected = user;
    zi_group *group = NULL;
    gpu_open(&own);
    CHECK_FAILS(make_group(world, pair_ranks, 2, "gather", &group), expected->status,
                expected->words);
    CHECK(group == NULL);
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

TEST(ranks_that_never_connect)
{
    failing expected = {ZERO_ERR_TIMEOUT,
                        "ncclCommInitRankConfig of 2 members did not finish within 1500 ms"};
    fake_nccl_hold_init(true);
    common.deadline_ms = SHORT_MS;
    CHECK_OK(run_world(2, fail_to_create, &expected));
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 2);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 2);
    CHECK_EQ(fake_nccl_live(), 0);
    CHECK(fake_nccl_check());
}

static zero_status share_gpu(zero_world *world, void *user)
{
    (void)user;
    zi_group *group = NULL;
    gpu_open(&own);
    CHECK_FAILS(make_group(world, pair_ranks, 2, "gather", &group), ZERO_ERR_COMM,
                "a fake error: Duplicate GPU detected");
    CHECK(group == NULL);
    gpu_close(&own);
    return ZERO_OK;
}

TEST(ranks_on_one_gpu)
{
    zi_nccl_api_replace(fake_nccl_api());
    /* It is up to who finds out first whether the world fails with it. */
    const zero_status status = zero_world_run(2, LONG_MS, share_gpu, NULL);
    CHECK(status == ZERO_OK || status == ZERO_ERR_COMM);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 2);
    finish();
}

TEST(a_version_that_is_too_old)
{
    failing expected = {ZERO_ERR_UNSUPPORTED, "NCCL 2.18.5 is too old"};
    fake_nccl_set_version(21805);
    CHECK_OK(run_world(2, fail_to_create, &expected));
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 0);
    finish();
}

TEST(too_little_scratch)
{
    failing expected = {ZERO_ERR_INVALID_ARGUMENT, "scratch memory are too few for 2 ranks"};
    common.scratch_bytes = 9 * ZI_PAGE_BYTES - 1;
    CHECK_OK(run_world(2, fail_to_create, &expected));
    finish();
}

TEST(a_library_that_is_missing)
{
    zi_nccl_api api;
    CHECK_FAILS(zi_nccl_api_load("libnccl-is-not-here.so.2", &api), ZERO_ERR_UNSUPPORTED,
                "cannot load libnccl-is-not-here.so.2");
    CHECK_SAID("ZERO_TRANSPORT_HOST");
    CHECK_FAILS(zi_nccl_api_load("libc.so.6", &api), ZERO_ERR_UNSUPPORTED,
                "libc.so.6 has no ncclGetVersion");
}

/* The real library, where there is one: its functions are all found, and it can make an id. */
TEST(the_library_of_this_machine)
{
    const zi_nccl_api *api = NULL;
    int found = 0;
    if (zi_nccl_api_get(&api, &found) != ZERO_OK) {
        CHECK_SAID("NCCL");
        SKIP(zero_last_error()->message);
    }
    CHECK(found >= ZI_NCCL_VERSION_MIN);
    CHECK(api->all_gather != NULL && api->comm_init_rank_config != NULL);
}

/* More ranks than a kernel adds up, but for their lists. */
static zero_status make_wide(zero_world *world, void *user)
{
    (void)user;
    uint32_t members[300];
    zi_group *group = NULL;
    for (uint32_t i = 0; i < 300; i++) {
        members[i] = i % zero_world_size(world);
    }
    gpu_open(&own);
    CHECK_EQ(own.kernels.ops->sources_max, 256);
    CHECK_FAILS(make_group(world, members, 300, "wide", &group), ZERO_ERR_MISMATCH,
                "2 of the 300 members");
    const zi_peer_group_desc peers = {
        .kernels = &own.kernels, .members = members, .size = 300, .name = "peers"};
    CHECK_FAILS(zi_peer_group_create(&peers, &group), ZERO_ERR_UNSUPPORTED,
                "group peers: its sums are of 300 ranks");
    CHECK(group == NULL);
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

/* Four ranks, of which a kernel adds up three: that is enough for two hosts of two. */
static zero_status make_narrow(zero_world *world, void *user)
{
    static const uint32_t members[] = {0, 1, 2, 3};
    const bool refused = *(const bool *)user;
    zi_group *group = NULL;
    gpu_open(&own);
    const zi_kernels_ops *ops = own.kernels.ops;
    zi_kernels_ops few = *ops;
    few.sources_max = 3;
    own.kernels.ops = &few;
    if (refused) {
        CHECK_FAILS(make_group(world, members, 4, "narrow", &group), ZERO_ERR_UNSUPPORTED,
                    "group narrow: its sums are of 4 ranks, and a kernel adds up 3 at most; let "
                    "NCCL add: ZERO_REDUCTION_NATIVE, or");
    } else {
        CHECK_OK(make_group(world, members, 4, "narrow", &group));
        zero_path path;
        zi_world_group_path(world, group, true, &path);
        CHECK_EQ(path.hosts, common.per_host == 0 ? 0 : 2);
        CHECK(common.per_host == 0 || strstr(path.text, ", then 2 hosts") != NULL);
    }
    CHECK_OK(zero_world_barrier(world));
    zi_group_destroy(group);
    own.kernels.ops = ops;
    gpu_close(&own);
    return ZERO_OK;
}

TEST(levels_need_no_more_than_a_kernel_adds_up)
{
    bool refused = false;
    common.per_host = 2;
    CHECK_OK(run_world(4, make_narrow, &refused));
    common.per_host = 0;
    common.reduction = ZERO_REDUCTION_NATIVE;
    CHECK_OK(run_world(4, make_narrow, &refused));
    refused = true;
    common.reduction = ZERO_REDUCTION_DEFAULT;
    CHECK_OK(run_world(4, make_narrow, &refused));
    common.per_host = 2;
    common.reduction = ZERO_REDUCTION_EXACT;
    CHECK_OK(run_world(4, make_narrow, &refused));
    finish();
}

TEST(more_ranks_than_a_kernel_adds_up)
{
    CHECK_OK(run_world(2, make_wide, NULL));
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SPLIT), 0);
    finish();
}

/* Every event of create may fail to be made, on one rank of two: both are told. */
static zero_status create_without_memory(zero_world *world, void *user)
{
    const uint64_t nth = *(const uint64_t *)user;
    zi_group *group = NULL;
    gpu_open(&own);
    CHECK_OK(zi_nccl_base_get(world));
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 0) {
        fake_cuda_fail("cudaEventCreateWithFlags", nth, cudaErrorMemoryAllocation);
    }
    CHECK_OK(zero_world_barrier(world));
    const zero_status status = make_group(world, pair_ranks, 2, "gather", &group);
    CHECK(status == ZERO_ERR_OUT_OF_MEMORY);
    CHECK(strstr(zero_last_error()->message, "cudaEventCreateWithFlags") != NULL ||
          strstr(zero_last_error()->message, "could not get ready") != NULL);
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

TEST(a_rank_without_memory)
{
    for (uint64_t nth = 1; nth <= 2; nth++) {
        CHECK_OK(run_world(2, create_without_memory, &nth));
    }
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SPLIT), 0);
    finish();
}

/* A batch that fails on one rank before NCCL hears of it. */
static zero_status fail_a_batch(zero_world *world, void *user)
{
    (void)user;
    const pair p = pair_open(world, "gather", ZI_PAGE_BYTES);
    const zi_collective job = gather_of(p.memory);
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 0) {
        zi_fault_arm(ZI_FAULT_COLLECTIVE, 1);
        CHECK_FAILS(zi_group_submit(p.group, own.stream, &job, 1), ZERO_ERR_COMM, "injected fault");
    } else {
        (void)await_failure(p.group);
        CHECK_SAID("rank 0: group gather: injected fault");
    }
    return pair_close(&p, NULL);
}

TEST(a_batch_that_fails_on_one_rank)
{
    common.gathers_only = true;
    CHECK_FAILS(run_world(2, fail_a_batch, NULL), ZERO_ERR_COMM, "injected fault");
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 4);
    finish();
}

/* The system refuses the watcher to the rank that comes first: both are told, before they connect.
 */
static zero_status create_without_thread(zero_world *world, void *user)
{
    atomic_uint *refused = user;
    zi_group *group = NULL;
    gpu_open(&own);
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 0) {
        zi_fault_arm(ZI_FAULT_THREAD, 1);
    }
    CHECK_OK(zero_world_barrier(world));
    CHECK(make_group(world, pair_ranks, 2, "gather", &group) == ZERO_ERR_DEVICE);
    CHECK(strstr(zero_last_error()->message, "cannot start a thread") != NULL);
    atomic_fetch_add(refused, strncmp(zero_last_error()->message, "rank ", 5) != 0);
    CHECK(group == NULL);
    CHECK_OK(zero_world_barrier(world));
    CHECK_OK(make_group(world, pair_ranks, 2, "gather", &group));
    zi_group_destroy(group);
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

TEST(a_rank_without_a_watcher)
{
    atomic_uint refused = 0;
    CHECK_OK(run_world(2, create_without_thread, &refused));
    CHECK_EQ(refused, 1);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 2);
    finish();
}

/* Many groups, one base; what they are split into fits hybrid sharding. */
static zero_status make_many(zero_world *world, void *user)
{
    (void)user;
    const uint32_t me = zero_world_rank(world);
    const uint32_t shard[] = {me / 2 * 2, me / 2 * 2 + 1};
    const uint32_t replica[] = {me % 2 + 2, me % 2};
    zi_group *groups[8];
    gpu_open(&own);
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t *members = i % 2 == 0 ? shard : replica;
        CHECK_OK(make_group(world, members, 2, i % 2 == 0 ? "scatter" : "replica", &groups[i]));
        CHECK_EQ(members[groups[i]->rank], me);
    }
    for (uint32_t i = 8; i > 0; i--) {
        zi_group_destroy(groups[i - 1]);
    }
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

TEST(many_groups_have_one_base)
{
    common.gathers_only = true;
    CHECK_OK(run_world(4, make_many, NULL));
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 4);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SPLIT), 32);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_DESTROY), 36);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 0);
    finish();
}

/* A group is there already; the split for the next does not come off. */
static zero_status fail_to_split(zero_world *world, void *user)
{
    const failing *expected = user;
    zi_group *group = NULL;
    zi_group *next = NULL;
    gpu_open(&own);
    CHECK_OK(make_group(world, pair_ranks, 2, "gather", &group));
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 0) {
        if (expected->status == ZERO_ERR_COMM) {
            fake_nccl_fail_split(0);
        } else {
            fake_nccl_hold_split(true);
        }
    }
    CHECK_OK(zero_world_barrier(world));
    const zero_status status = make_group(world, pair_ranks, 2, "reduce", &next);
    /* The one that is faster tells the other through the first group's failure. */
    CHECK(status == expected->status || status == ZERO_ERR_COMM || status == ZERO_ERR_TIMEOUT);
    CHECK(next == NULL);
    if (zero_world_rank(world) == 0 && expected->status == ZERO_ERR_COMM) {
        CHECK_SAID(expected->words);
    }
    /* With the base goes what was split off it before. */
    (void)await_failure(group);
    CHECK(make_group(world, pair_ranks, 2, "norm", &next) != ZERO_OK);
    zi_group_destroy(group);
    gpu_close(&own);
    return ZERO_OK;
}

TEST(a_split_that_fails_on_one_rank)
{
    /* Of the split; or of the base, where the watcher looks first. */
    failing expected = {ZERO_ERR_COMM, "a fake error"};
    common.deadline_ms = SHORT_MS;
    CHECK(run_world(2, fail_to_split, &expected) != ZERO_OK);
    /* Two bases, two groups, and the child that was left behind; each once. */
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 5);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_DESTROY), 0);
    finish();
}

TEST(a_split_that_never_finishes)
{
    failing expected = {ZERO_ERR_TIMEOUT,
                        "ncclCommSplit of 2 members did not finish within 1500 ms"};
    common.deadline_ms = SHORT_MS;
    CHECK_FAILS(run_world(2, fail_to_split, &expected), ZERO_ERR_TIMEOUT, expected.words);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 4);
    finish();
}

/* Ranks whose groups do not fit together are told before NCCL is; the world stays usable. */
static zero_status make_unlike(zero_world *world, void *user)
{
    (void)user;
    static const uint32_t swapped[] = {1, 0};
    static const uint32_t all[] = {0, 1, 2};
    static const uint32_t last[] = {2};
    const uint32_t me = zero_world_rank(world);
    zi_group *group = NULL;
    gpu_open(&own);
    CHECK_FAILS(make_group(world, all, 3, me == 1 ? "reduce" : "gather", &group), ZERO_ERR_MISMATCH,
                "rank 1 makes group reduce, rank 0 group gather");
    CHECK_FAILS(make_group(world, me == 0 ? pair_ranks : all, me == 0 ? 2 : 3, "sizes", &group),
                ZERO_ERR_MISMATCH, "rank 1's members are not those of rank 0");
    CHECK_FAILS(make_group(world,
                           me == 0   ? pair_ranks
                           : me == 1 ? swapped
                                     : last,
                           me == 2 ? 1 : 2, "order", &group),
                ZERO_ERR_MISMATCH, "rank 1's members are not those of rank 0");
    CHECK_FAILS(make_group(world, me == 2 ? last : all, me == 2 ? 1 : 3, "count", &group),
                ZERO_ERR_MISMATCH, "2 of the 3 members of rank 0 make it");
    CHECK(group == NULL);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SPLIT), 0);
    CHECK_OK(make_group(world, all, 3, "gather", &group));
    zi_group_destroy(group);
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

TEST(groups_that_do_not_fit_together)
{
    common.gathers_only = true;
    CHECK_OK(run_world(3, make_unlike, NULL));
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 0);
    finish();
}

static const zi_transport *transport_of(const zero_world *world, zero_transport asked)
{
    const zi_transport *transport = NULL;
    CHECK_OK(zi_transport_choose(world, asked, &transport));
    return transport;
}

static void check_group(zero_world *world, const zi_transport *transport, const zi_group_desc *desc)
{
    zi_group *group = NULL;
    CHECK_OK(transport->group_create(world, desc, &group));
    CHECK_EQ(group->submit_waits, desc->size > 1 && transport == &zi_world_transport);
    CHECK_OK(zi_group_check(group));
    CHECK_OK(zero_world_barrier(world));
    zi_group_destroy(group);
}

/* A rank alone may ask for NCCL by name, and needs none. */
TEST(transport_of_one_rank)
{
    static const uint32_t members[] = {0};
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_self(&world));
    const zi_group_desc desc = {
        .kernels = &world->kernels, .members = members, .size = 1, .name = "gather"};
    check_group(world, transport_of(world, ZERO_TRANSPORT_NCCL), &desc);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 0);
    zero_world_destroy(world);
}

/* Threads of one process read one another's memory: NCCL is refused, the default is not NCCL. */
static zero_status choose(zero_world *world, void *user)
{
    (void)user;
    const zi_transport *chosen = NULL;
    gpu_open(&own);
    gpu_lend(&own);
    zi_group_desc desc = {.kernels = &own.kernels,
                          .members = pair_ranks,
                          .size = 2,
                          .name = "gather",
                          .scratch = own.scratch,
                          .scratch_bytes = own.scratch_bytes};
    CHECK_FAILS(zi_transport_choose(world, ZERO_TRANSPORT_NCCL, &chosen), ZERO_ERR_UNSUPPORTED,
                "threads");
    CHECK(transport_of(world, ZERO_TRANSPORT_HOST) == &zi_world_transport);
    CHECK(transport_of(world, ZERO_TRANSPORT_PEER) == &zi_world_transport);
    CHECK(transport_of(world, ZERO_TRANSPORT_DEFAULT) == &zi_world_transport);
    check_group(world, &zi_world_transport, &desc);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 0);
    CHECK_OK(zero_world_barrier(world));
    /* The same for a world that says its ranks are processes. */
    world->comm->one_process = false;
    CHECK(transport_of(world, ZERO_TRANSPORT_NCCL) == &zi_nccl_transport);
    CHECK(transport_of(world, ZERO_TRANSPORT_DEFAULT) == &zi_nccl_transport);
    check_group(world, &zi_nccl_transport, &desc);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 2);
    CHECK_FAILS(zi_transport_choose(world, ZERO_TRANSPORT_PEER, &chosen), ZERO_ERR_UNSUPPORTED,
                "processes");
    CHECK(transport_of(world, ZERO_TRANSPORT_HOST) == &zi_world_transport);
    check_group(world, &zi_world_transport, &desc);
    desc.kernels = &world->kernels;
    check_group(world, &zi_world_transport, &desc);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 2);
    world->comm->one_process = true;
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

TEST(what_carries_a_group)
{
    CHECK_OK(run_world(2, choose, NULL));
    finish();
}
