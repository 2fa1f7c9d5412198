/* Groups as processes of one host use them, played by threads: peers are read only through windows,
 * and what lies outside goes through the stages of the block. */
#include "comm/peer/peer.h"
#include "conformance.h"

#define LONG_MS 60000
#define RANKS 4
#define BUFFER_BYTES (CONF_LONGEST * sizeof(float) * RANKS + GUARD_BYTES)
#define WINDOW_BYTES ((size_t)128 << 10)

/* Which buffers of which ranks lie in the window: bit 0 send, bit 1 recv. */
typedef struct layout {
    unsigned inside[RANKS];
    size_t stage_bytes;
} layout;

/* The state that the threads of one world share. */
typedef struct stage_play {
    layout where;
    uint32_t size;
    zi_peer_block *block;
    size_t block_bytes;
    unsigned char *window; /* a part of WINDOW_BYTES for each rank */
    uint32_t freed;
} stage_play;

static const uint32_t all_ranks[RANKS] = {0, 1, 2, 3};

static void block_free(void *owner, zi_peer_block *block)
{
    stage_play *play = owner;
    CHECK(block == play->block);
    __atomic_fetch_add(&play->freed, 1, __ATOMIC_SEQ_CST);
}

/* Build this rank's view of the world: the first rank makes the block and the window. */
static zi_peer_space *enter(stage_play *play, zero_world *world, conf *test)
{
    zi_peer_space *space = calloc(1, sizeof *space);
    CHECK(space != NULL);
    const uint32_t me = zero_world_rank(world);
    if (me == 0) {
        CHECK_OK(zi_pages_alloc(play->size * WINDOW_BYTES, (void **)&play->window));
        play->block_bytes = zi_peer_block_bytes(play->size, play->where.stage_bytes);
        CHECK_OK(zi_pages_alloc(play->block_bytes, (void **)&play->block));
        zi_peer_block_init(play->block, play->size, play->where.stage_bytes, ZI_FUTEX_PROCESS);
    }
    CHECK_OK(zero_world_barrier(world));
    unsigned char *own = play->window + me * WINDOW_BYTES;
    space->world_rank = me;
    space->part = me;
    space->ranks = all_ranks;
    space->rank_count = play->size;
    space->window_count = 2; /* the first is free */
    space->windows[1] = (zi_peer_window){.bytes = WINDOW_BYTES, .base = play->window};
    conf_members_all(test, world);
    for (uint32_t i = 0; i < play->size; i++) {
        test->members[i] = (i + 1) % play->size;
        test->sorted[test->members[i]] = i;
    }
    const zi_peer_group_desc desc = {.kernels = &world->kernels,
                                     .block = play->block,
                                     .space = space,
                                     .members = test->members,
                                     .size = play->size,
                                     .deadline_ms = LONG_MS,
                                     .crowded = &world->comm->crowded,
                                     .name = "windows",
                                     .block_free = block_free,
                                     .owner = play};
    CHECK_OK(zi_peer_group_create(&desc, &test->group));
    CHECK_OK(world->device.ops->stream_wrap(world->device.self, zero_stream_host(), &test->host));
    const unsigned inside = play->where.inside[me];
    test->bytes = BUFFER_BYTES;
    test->send = (inside & 1) != 0 ? own + 64 : calloc(1, BUFFER_BYTES);
    test->recv = (inside & 2) != 0 ? own + WINDOW_BYTES - BUFFER_BYTES : calloc(1, BUFFER_BYTES);
    CHECK(test->send != NULL && test->recv != NULL);
    return space;
}

static void leave(stage_play *play, zero_world *world, zi_peer_space *space, conf *test)
{
    const uint32_t me = zero_world_rank(world);
    zi_group_destroy(test->group);
    if ((play->where.inside[me] & 1) == 0) {
        free(test->send);
    }
    if ((play->where.inside[me] & 2) == 0) {
        free(test->recv);
    }
    CHECK_OK(zero_world_barrier(world));
    CHECK_EQ(play->freed, play->size);
    if (me == 0) {
        zi_pages_free(play->window, play->size * WINDOW_BYTES);
        zi_pages_free(play->block, play->block_bytes);
    }
    free(space);
}

static zero_status all_forms(zero_world *world, void *user)
{
    conf test = {0};
    zi_peer_space *space = enter(user, world, &test);
    conf_run_counts(&test);
    leave(user, world, space, &test);
    return ZERO_OK;
}

static void play_all(const layout *where)
{
    for (uint32_t size = 2; size <= RANKS; size++) {
        stage_play play = {.where = *where, .size = size};
        CHECK_OK(zero_world_run(size, LONG_MS, all_forms, &play));
    }
}

TEST_CALL(all_in_windows, play_all(&(layout){{3, 3, 3, 3}, 0}));
TEST_CALL(none_in_windows, play_all(&(layout){{0, 0, 0, 0}, 4096}));
TEST_CALL(one_rank_outside, play_all(&(layout){{3, 0, 3, 3}, 16384}));
TEST_CALL(some_buffers_outside, play_all(&(layout){{1, 2, 3, 0}, 1000}));

/* One element of each slice at a time. */
TEST_CALL(smallest_stage, play_all(&(layout){{3, 3, 1, 0}, RANKS * sizeof(float)}));

static zero_status no_stage(zero_world *world, void *user)
{
    conf test = {0};
    zi_peer_space *space = enter(user, world, &test);
    const zi_collective job = conf_job(&test, ZI_ALL_REDUCE, 10);
    for (int i = 0; i < 2; i++) {
        CHECK_FAILS(zi_group_submit(test.group, test.host, &job, 1), ZERO_ERR_UNSUPPORTED,
                    "outside the shared memory");
    }
    leave(user, world, space, &test);
    return ZERO_OK;
}

TEST(stage_too_small)
{
    stage_play play = {.where = {{3, 1, 3, 3}, 0}, .size = 3};
    CHECK_OK(zero_world_run(3, LONG_MS, no_stage, &play));
}
