/* The duties of every backend of collectives, as rank functions: run them with zero_world_run, or
 * in each process of a launched world. Each is collective over the world and leaves it usable,
 * except case_abort. A check that fails ends the process. */
#ifndef TESTS_COMM_CONFORMANCE_H
#define TESTS_COMM_CONFORMANCE_H

#include "comm/comm.h"
#include "conformance_values.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "harness.h"
#include "kernels/cpu/cpu_kernels.h"
#include "waits.h"
#include "zero/world.h"

/* Bytes behind a receive buffer that must stay as they are. */
#define GUARD_BYTES ((size_t)256)
#define GUARD_BYTE 0x5a

/* Largest world under test. */
#define CONF_RANKS_MAX 512

/* How the sums under test are added: one of ZI_COLLECTIVE_EXACT and 0. */
static uint32_t conf_how = ZI_COLLECTIVE_EXACT;
/* So many neighbouring ranks are on one host; 0: all are. */
static uint32_t conf_per_host;

/* A group under test and this rank's two buffers. */
typedef struct conf {
    zero_world *world;
    zi_group *group;
    zi_stream *host;
    uint32_t members[CONF_RANKS_MAX];
    uint32_t sorted[CONF_RANKS_MAX]; /* group ranks by world rank */
    uint32_t size;
    bool plain; /* buffers from malloc, not from the world */
    size_t bytes;
    unsigned char *send;
    unsigned char *recv;
    zi_norm_sum squares; /* collectives add to it; holds something before */
    uint32_t runs;       /* how often a collective is run before it is checked; 0: once */
} conf;

/* One collective under test. */
typedef struct conf_shape {
    zi_collective_kind kind;
    zero_dtype send_dtype;
    zero_dtype recv_dtype;
    size_t count;
    uint32_t flags;
    bool in_place;
    uint32_t silent; /* every silent-th member by world rank sends NULL; 0: none */
    uint64_t stride; /* elements from one that is checked to the next */
} conf_shape;

static const zero_dtype conf_dtypes[3] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};

/* The type that hosts send their sums in: that of what is sent, or fp32. */
static inline zero_dtype conf_sum_dtype(const conf_shape *shape)
{
    const size_t any = (size_t)shape->send_dtype + (size_t)shape->recv_dtype + shape->count;
    return any % 2 == 0 ? shape->send_dtype : ZERO_DTYPE_F32;
}

/* A collective within a type. */
static inline conf_shape conf_within(zi_collective_kind kind, zero_dtype dtype, size_t count)
{
    return (conf_shape){kind, dtype, dtype, count, conf_how, false, 0, 1};
}

static inline void conf_members_all(conf *test, zero_world *world)
{
    test->world = world;
    test->size = zero_world_size(world);
    CHECK(test->size <= CONF_RANKS_MAX);
    for (uint32_t i = 0; i < test->size; i++) {
        test->members[i] = i;
    }
}

/* Make the group, and buffers of `bytes` each. Collective over the world if not plain. */
static inline void conf_open(conf *test, size_t bytes, const char *name)
{
    zi_comm *comm = test->world->comm;
    zi_device *device = &test->world->device;
    test->bytes = zi_align_up(bytes + GUARD_BYTES, ZI_PAGE_BYTES);
    CHECK_OK(comm->ops->group_create(comm, &test->world->kernels, test->members, test->size, name,
                                     &test->group));
    CHECK_OK(device->ops->stream_wrap(device->self, zero_stream_host(), &test->host));
    if (test->plain) {
        test->send = calloc(1, test->bytes);
        test->recv = calloc(1, test->bytes);
        CHECK(test->send != NULL && test->recv != NULL);
    } else {
        CHECK_OK(comm->ops->memory_alloc(comm, test->bytes, (void **)&test->send));
        CHECK_OK(comm->ops->memory_alloc(comm, test->bytes, (void **)&test->recv));
    }
    for (uint32_t i = 0; i < test->size; i++) {
        uint32_t below = 0;
        for (uint32_t k = 0; k < test->size; k++) {
            below += test->members[k] < test->members[i];
        }
        test->sorted[below] = i;
    }
}

/* The group of all ranks, with room in each buffer for `count` fp32 elements of every rank. */
static inline void conf_open_all(conf *test, zero_world *world, size_t count, const char *name)
{
    conf_members_all(test, world);
    conf_open(test, count * sizeof(float) * test->size, name);
}

/* A collective of fp32 elements from buffer to buffer; the caller may change it. */
static inline zi_collective conf_job(const conf *test, zi_collective_kind kind, size_t count)
{
    return (zi_collective){.kind = kind,
                           .send_dtype = ZERO_DTYPE_F32,
                           .recv_dtype = ZERO_DTYPE_F32,
                           .count = count,
                           .send = test->send,
                           .recv = test->recv};
}

static inline void conf_close(conf *test)
{
    zi_comm *comm = test->world->comm;
    zi_group_destroy(test->group);
    if (test->plain) {
        free(test->send);
        free(test->recv);
    } else {
        comm->ops->memory_free(comm, test->recv, test->bytes);
        comm->ops->memory_free(comm, test->send, test->bytes);
    }
}

UNWATCHED static inline bool conf_is_silent(const conf_shape *shape, uint32_t world_rank)
{
    return shape->silent != 0 && world_rank % shape->silent == 0;
}

UNWATCHED static inline uint64_t conf_seed(const conf_shape *shape)
{
    return test_seed + (uint64_t)shape->kind * 31 + (uint64_t)shape->send_dtype * 7 +
           shape->count * 1009;
}

/* Elements of the send buffer. */
static inline uint64_t conf_send_count(const conf *test, const conf_shape *shape)
{
    return shape->kind == ZI_REDUCE_SCATTER ? shape->count * test->size : shape->count;
}

static inline uint64_t conf_recv_count(const conf *test, const conf_shape *shape)
{
    return shape->kind == ZI_ALL_GATHER ? shape->count * test->size : shape->count;
}

static inline zi_norm_sum conf_squares_before(void)
{
    zi_norm_sum sum = {{0}, 0, 0};
    zi_norm_add(&sum, 0x1.23456789p-5);
    zi_norm_normalise(&sum);
    return sum;
}

/* Some members of some reductions leave the squares out. */
static inline bool conf_wants_squares(const conf *test, const conf_shape *shape)
{
    return shape->kind != ZI_ALL_GATHER &&
           (test->members[test->group->rank] + shape->count) % 4 != 3;
}

/* Fill the buffers and describe the collective. */
static inline zi_collective conf_prepare(conf *test, const conf_shape *shape)
{
    const uint32_t rank = test->group->rank;
    const uint32_t me = test->members[rank];
    const size_t offset = rank * shape->count * zero_dtype_bytes(shape->send_dtype);
    zi_collective job = {.kind = shape->kind,
                         .flags = shape->flags,
                         .send_dtype = shape->send_dtype,
                         .recv_dtype = shape->recv_dtype,
                         .tag = 7,
                         .count = shape->count,
                         .send = test->send,
                         .recv = test->recv,
                         .sum_dtype = conf_sum_dtype(shape),
                         .squares = conf_wants_squares(test, shape) ? &test->squares : NULL};
    unsigned char *send = test->send;
    test->squares = conf_squares_before();
    memset(test->recv, GUARD_BYTE, test->bytes);
    if (shape->in_place && shape->kind == ZI_ALL_GATHER) {
        send = test->recv + offset;
        job.send = send;
    } else if (shape->in_place) {
        job.recv = test->send + (shape->kind == ZI_REDUCE_SCATTER ? offset : 0);
    }
    for (uint64_t i = 0; i < conf_send_count(test, shape); i++) {
        value_store(send, shape->send_dtype, i, value_of(conf_seed(shape), me, i));
    }
    if (conf_is_silent(shape, me)) {
        job.send = NULL;
    }
    for (uint64_t i = 0; i < shape->count && (shape->flags & ZI_COLLECTIVE_ACCUMULATE) != 0; i++) {
        value_store(job.recv, shape->recv_dtype, i, value_of(99, me, i));
    }
    return job;
}

UNWATCHED static inline uint32_t conf_host_of(uint32_t world_rank)
{
    return conf_per_host == 0 ? 0 : world_rank / conf_per_host;
}

/* Members on the host of world rank `rank`. */
UNWATCHED static inline uint32_t conf_near(const conf *test, uint32_t rank)
{
    uint32_t near = 0;
    for (uint32_t i = 0; i < test->size; i++) {
        near += conf_host_of(test->members[i]) == conf_host_of(rank);
    }
    return near;
}

/* True if the members add up within hosts first. */
UNWATCHED static inline bool conf_in_levels(const conf *test, const conf_shape *shape)
{
    const uint32_t near = conf_near(test, test->members[0]);
    const bool shared = shape->kind == ZI_REDUCE_SCATTER || shape->count >= 256 * test->size;
    bool even = shared && (shape->flags & ZI_COLLECTIVE_EXACT) == 0 && near > 1;
    even = even && near < test->size;
    for (uint32_t i = 0; i < test->size; i++) {
        even = even && conf_near(test, test->members[i]) == near;
    }
    return even;
}

/* The sum of element `index` of what the members on one host send, or all: of those from `begin` on
 * in ascending world rank. */
UNWATCHED static inline float conf_sum_from(const conf *test, const conf_shape *shape,
                                            uint64_t index, uint32_t begin, bool one_host)
{
    const uint32_t host = conf_host_of(test->members[test->sorted[begin]]);
    float sum = 0.0f;
    for (uint32_t i = begin; i < test->size; i++) {
        const uint32_t from = test->members[test->sorted[i]];
        if ((!one_host || conf_host_of(from) == host) && !conf_is_silent(shape, from)) {
            sum += value_held(conf_seed(shape), from, index, shape->send_dtype);
        }
    }
    return sum;
}

UNWATCHED static inline float conf_sum(const conf *test, const conf_shape *shape, uint64_t index)
{
    if (!conf_in_levels(test, shape)) {
        return conf_sum_from(test, shape, index, 0, false);
    }
    const zero_dtype dtype = conf_sum_dtype(shape);
    float headroom = 1.0f; /* sums of f16 are made smaller, by a power of two */
    while (dtype == ZERO_DTYPE_F16 && headroom < (float)conf_near(test, test->members[0])) {
        headroom *= 2.0f;
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < test->size; i++) {
        bool first = true; /* of its host */
        for (uint32_t k = 0; k < i; k++) {
            first = first && conf_host_of(test->members[test->sorted[k]]) !=
                                 conf_host_of(test->members[test->sorted[i]]);
        }
        if (first) {
            const float of_host = conf_sum_from(test, shape, index, i, true) / headroom;
            sum += value_from_bits(dtype, value_to_bits(dtype, of_host));
        }
    }
    return sum * headroom;
}

/* Compute what element `index` of this rank's receive buffer should hold; *cell gets its bits. */
UNWATCHED static inline void conf_expect(const conf *test, const conf_shape *shape, uint64_t index,
                                         uint32_t *cell)
{
    const uint64_t seed = conf_seed(shape);
    const uint32_t me = test->members[test->group->rank];
    if (shape->kind == ZI_ALL_GATHER) {
        const uint32_t from = test->members[index / shape->count];
        *cell = value_to_bits(shape->recv_dtype, value_of(seed, from, index % shape->count));
        return;
    }
    const uint64_t first = shape->kind == ZI_REDUCE_SCATTER ? test->group->rank * shape->count : 0;
    float sum = conf_sum(test, shape, first + index);
    if ((shape->flags & ZI_COLLECTIVE_ACCUMULATE) != 0) {
        sum = value_held(99, me, index, shape->recv_dtype) + sum;
    }
    *cell = value_to_bits(shape->recv_dtype, sum);
}

/* The squares are those of recv as it is now, read in one piece. */
static inline void conf_verify_squares(const conf *test, const conf_shape *shape,
                                       const zi_collective *job)
{
    zi_norm_sum expected = conf_squares_before();
    zi_norm_sum actual = test->squares;
    const uint32_t runs = test->runs == 0 ? 1 : test->runs;
    for (uint32_t i = 0; i < runs && conf_wants_squares(test, shape); i++) {
        zi_cpu_square_sum(job->recv, shape->recv_dtype, shape->count, &expected);
    }
    zi_norm_normalise(&actual); /* a GPU leaves carries */
    if (memcmp(&actual, &expected, sizeof actual) != 0) {
        char text[96];
        TEST_FAIL("rank %u of %u, %s: the squares come to %a, not %a", test->group->rank,
                  test->size, zi_collective_text(job, text, sizeof text), zi_norm_value(&actual),
                  zi_norm_value(&expected));
    }
}

static inline void conf_verify(const conf *test, const conf_shape *shape, const zi_collective *job)
{
    conf_verify_squares(test, shape, job);
    const size_t element_bytes = zero_dtype_bytes(shape->recv_dtype);
    const uint64_t count = conf_recv_count(test, shape);
    const unsigned char *recv = job->recv;
    for (uint64_t i = 0; i < count; i += shape->stride) {
        uint32_t expected;
        uint32_t actual = 0;
        conf_expect(test, shape, i, &expected);
        memcpy(&actual, recv + i * element_bytes, element_bytes);
        if (actual != expected) {
            char text[96];
            TEST_FAIL("rank %u of %u, %s: element %" PRIu64 " is %08x, not %08x", test->group->rank,
                      test->size, zi_collective_text(job, text, sizeof text), i, actual, expected);
        }
    }
    for (size_t i = 0; i < GUARD_BYTES && !(shape->in_place && shape->kind != ZI_ALL_GATHER); i++) {
        CHECK_EQ(recv[count * element_bytes + i], GUARD_BYTE);
    }
    const uint32_t me = test->members[test->group->rank];
    for (uint64_t i = 0; i < conf_send_count(test, shape) && !shape->in_place; i += shape->stride) {
        CHECK_SAME(value_load(test->send, shape->send_dtype, i),
                   value_held(conf_seed(shape), me, i, shape->send_dtype));
    }
}

static inline void conf_run(conf *test, conf_shape shape)
{
    shape.stride = shape.stride == 0 ? 1 : shape.stride;
    const zi_collective job = conf_prepare(test, &shape);
    CHECK_OK(zi_group_submit(test->group, test->host, &job, 1));
    conf_verify(test, &shape, &job);
}

/* A collective in all its forms. */
static inline void conf_run_forms(conf *test, conf_shape shape)
{
    const bool same = shape.send_dtype == shape.recv_dtype;
    conf_run(test, shape);
    if (same) {
        shape.in_place = true;
        conf_run(test, shape);
        shape.in_place = false;
    }
    if (shape.kind == ZI_ALL_GATHER) {
        return;
    }
    for (uint32_t silent = 1; silent <= 3; silent++) {
        shape.silent = silent;
        conf_run(test, shape);
    }
    if (shape.kind == ZI_REDUCE_SCATTER) {
        shape.flags |= ZI_COLLECTIVE_ACCUMULATE;
        conf_run(test, shape);
        shape.silent = 0;
        conf_run(test, shape);
    }
}

/* Every kind, in every pair of types it takes, at one count; the pairs of one `turn` that a
 * sanitizer's build leaves out are those of the next. */
static inline void conf_run_types(conf *test, size_t count, uint64_t stride, size_t turn)
{
    for (int s = 0; s < 3; s++) {
        for (int r = 0; r < 3; r++) {
            if (!IN_SMALL_SAMPLE((size_t)(s + r) + turn)) {
                continue;
            }
            conf_shape shape = {.send_dtype = conf_dtypes[s],
                                .recv_dtype = conf_dtypes[r],
                                .count = count,
                                .flags = conf_how,
                                .stride = stride};
            if (s == r) {
                shape.kind = ZI_ALL_GATHER;
                conf_run_forms(test, shape);
            }
            shape.kind = ZI_REDUCE_SCATTER;
            conf_run_forms(test, shape);
            shape.kind = ZI_ALL_REDUCE;
            conf_run_forms(test, shape);
        }
    }
}

/* With the longest all of 4 members have a part of an ALL_REDUCE; those of more have one in
 * case_packed. */
#define CONF_LONGEST 1100
static const size_t conf_counts[] = {0, 1, 63, 64, 65, CONF_LONGEST};
#define CONF_COUNTS (sizeof conf_counts / sizeof conf_counts[0])

/* Under a sanitizer every pair of types and count is of buffers of one kind, plain or not. */
static inline void conf_run_counts(conf *test)
{
    for (size_t i = 0; i < CONF_COUNTS; i++) {
        conf_run_types(test, conf_counts[i], 1, i + (test->plain ? 1 : 0));
    }
}

/* Kinds, types, counts, in place or not, added or not, without some senders. */
static inline zero_status case_kinds(zero_world *world, void *user)
{
    (void)user;
    for (int plain = 0; plain < 2; plain++) {
        conf test = {.plain = plain == 1};
        conf_open_all(&test, world, CONF_LONGEST, "all");
        conf_run_counts(&test);
        conf_close(&test);
    }
    return ZERO_OK;
}

/* A million elements a rank; half under a sanitizer, and still copies that bypass the caches, each
 * kind in buffers of one kind. */
#define CONF_LARGE ((size_t)(UNDER_SANITIZER ? (1 << 19) + 1000 : 1 << 20))
static inline zero_status case_large(zero_world *world, void *user)
{
    (void)user;
    const size_t count = CONF_LARGE;
    for (int plain = 0; plain < 2; plain++) {
        conf test = {.plain = plain == 1};
        conf_open_all(&test, world, count, "large");
        for (int kind = ZI_ALL_GATHER; kind <= ZI_ALL_REDUCE; kind++) {
            if (!IN_SAMPLE((size_t)(kind + plain))) {
                continue;
            }
            conf_shape shape = conf_within((zi_collective_kind)kind, ZERO_DTYPE_F32, count);
            shape.stride = 61;
            conf_run(&test, shape);
            shape.count = count - 17;
            shape.in_place = true;
            conf_run(&test, shape);
            shape.send_dtype = ZERO_DTYPE_BF16;
            shape.recv_dtype = ZERO_DTYPE_BF16;
            conf_run(&test, shape);
        }
        conf_close(&test);
    }
    return ZERO_OK;
}

/* Even and odd ranks apart; all ranks backwards: parts follow the group, sums the world. */
static inline zero_status case_subgroups(zero_world *world, void *user)
{
    (void)user;
    const uint32_t me = zero_world_rank(world);
    const uint32_t size = zero_world_size(world);
    conf half = {.world = world};
    for (uint32_t rank = me % 2; rank < size; rank += 2) {
        half.members[half.size++] = rank;
    }
    conf_open(&half, 1000 * sizeof(float) * size, "half");
    conf back = {.world = world, .size = size};
    for (uint32_t i = 0; i < size; i++) {
        back.members[i] = size - 1 - i;
    }
    conf_open(&back, CONF_LONGEST * sizeof(float) * size, "backwards");
    conf_run_types(&half, 65, 1, 0);
    conf_run_counts(&back);
    conf_run_types(&half, 1000, 1, 1);
    conf_close(&back);
    conf_close(&half);
    return ZERO_OK;
}

/* Batches of one of each kind, on their own parts of the buffers, many times over. */
static inline zero_status case_batches(zero_world *world, void *user)
{
    (void)user;
    enum { COUNT = 130, KINDS = 3 };
    conf whole = {.world = world};
    conf_members_all(&whole, world);
    const size_t part = zi_align_up(COUNT * sizeof(float) * whole.size + GUARD_BYTES, 64);
    conf_open(&whole, part * KINDS, "batches");
    for (uint32_t round = 0; round < 60; round++) {
        conf tests[KINDS];
        conf_shape shapes[KINDS];
        zi_collective batch[KINDS];
        for (uint32_t i = 0; i < KINDS; i++) {
            tests[i] = whole;
            tests[i].send += i * part;
            tests[i].recv += i * part;
            tests[i].bytes = part;
            shapes[i] = conf_within((zi_collective_kind)(1 + (round + i) % KINDS),
                                    conf_dtypes[round % 3], COUNT - round % 5);
            shapes[i].in_place = (round & 1) != 0;
            batch[i] = conf_prepare(&tests[i], &shapes[i]);
        }
        CHECK_OK(zi_group_submit(whole.group, whole.host, batch, round % (KINDS + 1)));
        for (uint32_t i = 0; i < round % (KINDS + 1); i++) {
            conf_verify(&tests[i], &shapes[i], &batch[i]);
        }
    }
    conf_close(&whole);
    return ZERO_OK;
}

/* Two groups of the same ranks, each on a stream of its own, at the same time. */
static inline zero_status case_streams(zero_world *world, void *user)
{
    (void)user;
    enum { GROUPS = 2, ROUNDS = 40 };
    const zi_device_ops *ops = world->device.ops;
    void *device = world->device.self;
    conf tests[GROUPS] = {0};
    conf_shape shapes[GROUPS];
    zi_collective jobs[GROUPS];
    zi_stream *streams[GROUPS];
    zi_event *done = NULL;
    CHECK_OK(ops->event_create(device, &done));
    for (uint32_t i = 0; i < GROUPS; i++) {
        conf_members_all(&tests[i], world);
        tests[i].runs = ROUNDS;
        conf_open(&tests[i], 500 * sizeof(float) * tests[i].size, i == 0 ? "first" : "second");
        CHECK_OK(ops->stream_create(device, i == 0 ? "first" : "second", &streams[i]));
        shapes[i] =
            conf_within(i == 0 ? ZI_REDUCE_SCATTER : ZI_ALL_REDUCE, ZERO_DTYPE_F32, 500 - i);
        jobs[i] = conf_prepare(&tests[i], &shapes[i]);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        /* Ranks enqueue the two in different orders; only the order within a group counts. */
        const uint32_t first = (round + zero_world_rank(world)) % GROUPS;
        CHECK_OK(zi_group_submit(tests[first].group, streams[first], &jobs[first], 1));
        CHECK_OK(zi_group_submit(tests[1 - first].group, streams[1 - first], &jobs[1 - first], 1));
    }
    for (uint32_t i = 0; i < GROUPS; i++) {
        CHECK_OK(ops->event_record(device, done, streams[i]));
        CHECK_OK(ops->event_wait(device, done, NULL));
        conf_verify(&tests[i], &shapes[i], &jobs[i]);
    }
    for (uint32_t i = 0; i < GROUPS; i++) {
        ops->stream_destroy(device, streams[i]);
    }
    ops->event_destroy(device, done);
    for (uint32_t i = GROUPS; i > 0; i--) {
        conf_close(&tests[i - 1]);
    }
    return ZERO_OK;
}

/* The last rank submits something else: everybody gets MISMATCH with the same words, and again. */
static inline void conf_mismatch(zero_world *world, const zi_collective *usual,
                                 const zi_collective *other, size_t other_count, const char *words)
{
    conf test = {.world = world};
    conf_members_all(&test, world);
    conf_open(&test, 4096 * test.size, "mismatch");
    const bool deviant = zero_world_rank(world) == test.size - 1;
    zi_collective batch[2] = {deviant ? *other : *usual, deviant ? *other : *usual};
    for (int i = 0; i < 2; i++) {
        batch[i].send = test.send;
        batch[i].recv = test.recv;
    }
    const char *name = test_text("rank %u has ", test.size - 1);
    const size_t count = deviant ? other_count : 1;
    CHECK_FAILS(zi_group_submit(test.group, test.host, batch, count), ZERO_ERR_MISMATCH, name);
    CHECK_SAID("rank 0");
    CHECK_SAID(words);
    CHECK_FAILS(zi_group_submit(test.group, test.host, batch, 1), ZERO_ERR_MISMATCH, name);
    conf_close(&test);
}

static inline zero_status case_mismatch(zero_world *world, void *user)
{
    (void)user;
    if (zero_world_size(world) == 1) {
        return ZERO_OK;
    }
    static const zi_collective usual = {.kind = ZI_REDUCE_SCATTER,
                                        .send_dtype = ZERO_DTYPE_BF16,
                                        .recv_dtype = ZERO_DTYPE_BF16,
                                        .tag = 3,
                                        .count = 64};
    static const char *const words[] = {
        "all_gather of unit 3", "64 x f16 to bf16", "64 x bf16 to f32",
        "128 x bf16",           "of unit 4",        "added"};
    zi_collective others[] = {usual, usual, usual, usual, usual, usual};
    others[0].kind = ZI_ALL_GATHER;
    others[1].send_dtype = ZERO_DTYPE_F16;
    others[2].recv_dtype = ZERO_DTYPE_F32;
    others[3].count = 128;
    others[4].tag = 4;
    others[5].flags = ZI_COLLECTIVE_ACCUMULATE;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        conf_mismatch(world, &usual, &others[i], 1, words[i]);
    }
    conf_mismatch(world, &usual, &usual, 2, "a batch of 2 collectives");
    conf_mismatch(world, &usual, &usual, 0, "a batch of 0 collectives");
    return ZERO_OK;
}

/* The last rank comes too late to a group whose deadline is *user ms. The world's own deadline may
 * be longer, so that a loaded machine has time for everything around it; where a backend knows only
 * the world's, *user must be that. */
static inline zero_status case_late(zero_world *world, void *user)
{
    const uint32_t deadline_ms = *(const uint32_t *)user;
    const uint32_t world_deadline_ms = world->comm->deadline_ms;
    conf test = {.plain = true};
    conf_members_all(&test, world);
    if (test.size == 1) {
        return ZERO_OK;
    }
    CHECK_OK(zero_world_barrier(world));
    world->comm->deadline_ms = deadline_ms;
    conf_open(&test, 4096 * test.size, "late");
    world->comm->deadline_ms = world_deadline_ms;
    const uint64_t before_ns = zi_clock_ns(); /* nobody waits yet, and this rank may be slow */
    CHECK_OK(zero_world_barrier(world));
    zi_collective job = conf_job(&test, ZI_ALL_GATHER, 9);
    job.tag = 5;
    const char *words =
        test_text("rank %u did not arrive at all_gather of unit 5, 9 x f32", test.size - 1);
    const uint64_t start_ns = zi_clock_ns();
    if (zero_world_rank(world) == test.size - 1) {
        sleep_ms(deadline_ms * 3 / 2);
        CHECK_FAILS(zi_group_submit(test.group, test.host, &job, 1), ZERO_ERR_TIMEOUT, words);
    } else {
        CHECK_FAILS(zi_group_submit(test.group, test.host, &job, 1), ZERO_ERR_TIMEOUT, words);
        /* Half a deadline of grace for a loaded machine; the late rank is not waited for. */
        CHECK(elapsed_ms(before_ns) + 1 >= deadline_ms);
        CHECK(in_time(start_ns, deadline_ms + deadline_ms / 2 + 1000));
        CHECK_FAILS(zi_group_submit(test.group, test.host, &job, 1), ZERO_ERR_TIMEOUT, words);
    }
    conf_close(&test);
    return ZERO_OK;
}

/* Barriers and gathers of any number of bytes. */
static inline zero_status case_gather(zero_world *world, void *user)
{
    (void)user;
    static const uint32_t sizes[] = {0, 1, 3, 4, 5, 127, 128, 129, 1000};
    const uint32_t me = zero_world_rank(world);
    const uint32_t size = zero_world_size(world);
    unsigned char send[1000];
    unsigned char *recv = malloc(1000 * (size_t)size + 8);
    CHECK(recv != NULL);
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        const uint32_t bytes = sizes[k];
        for (uint32_t i = 0; i < bytes; i++) {
            send[i] = (unsigned char)(me * 31 + i);
        }
        memset(recv, GUARD_BYTE, 1000 * (size_t)size + 8);
        CHECK_OK(zero_world_gather(world, send, recv, bytes));
        for (uint32_t i = 0; i < bytes * size; i++) {
            CHECK_EQ(recv[i], (unsigned char)(i / bytes * 31 + i % bytes));
        }
        for (uint32_t i = 0; i < 8; i++) {
            CHECK_EQ(recv[bytes * size + i], GUARD_BYTE);
        }
        CHECK_OK(zero_world_barrier(world));
    }
    free(recv);
    return ZERO_OK;
}

/* Shared memory arrives zeroed, at this rank's own address. */
static inline zero_status case_memory(zero_world *world, void *user)
{
    (void)user;
    zi_comm *comm = world->comm;
    void *pieces[4];
    for (uint32_t i = 0; i < 4; i++) {
        const size_t bytes = (i + 1) * ZI_PAGE_BYTES;
        CHECK_OK(comm->ops->memory_alloc(comm, bytes, &pieces[i]));
        const unsigned char *byte = pieces[i];
        for (size_t k = 0; k < bytes; k++) {
            CHECK_EQ(byte[k], 0);
        }
        memset(pieces[i], 0x11, bytes);
    }
    CHECK_OK(zero_world_barrier(world));
    for (uint32_t i = 0; i < 4; i++) {
        comm->ops->memory_free(comm, pieces[i], (i + 1) * ZI_PAGE_BYTES);
    }
    return ZERO_OK;
}

/* A few collectives of each kind, for worlds so large that every form would take too long. */
static inline zero_status case_many(zero_world *world, void *user)
{
    (void)user;
    static const conf_shape shapes[] = {
        {ZI_ALL_GATHER, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, 65, 0, 0, 0, 1},
        {ZI_REDUCE_SCATTER, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 65, ZI_COLLECTIVE_EXACT, 0, 5, 1},
        {ZI_ALL_REDUCE, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, 65, ZI_COLLECTIVE_EXACT, 0, 0, 1},
    };
    const uint32_t size = zero_world_size(world);
    for (int plain = 0; plain < 2; plain++) {
        conf test = {.plain = plain == 1};
        conf_open_all(&test, world, 65, "many");
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            conf_run(&test, shapes[i]);
        }
        conf_close(&test);
    }
    const uint32_t mine = zero_world_rank(world) * 7 + 1;
    uint32_t seen[CONF_RANKS_MAX];
    CHECK_OK(zero_world_gather(world, &mine, seen, sizeof mine));
    for (uint32_t i = 0; i < size; i++) {
        CHECK_EQ(seen[i], i * 7 + 1);
    }
    return ZERO_OK;
}

/* The last rank aborts while the others wait; ends the world. */
static inline zero_status case_abort(zero_world *world, void *user)
{
    (void)user;
    const uint32_t last = zero_world_size(world) - 1;
    if (last == 0) {
        return ZERO_OK;
    }
    if (zero_world_rank(world) == last) {
        (void)zi_error_set(ZERO_ERR_IO, 5, __FILE__, __LINE__, "the disk is on fire");
        zero_world_abort(world);
        return ZERO_OK;
    }
    const char *words = test_text("rank %u: the disk is on fire", last);
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_COMM, words);
    CHECK(in_time(start_ns, 5000));
    CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_COMM, words);
    CHECK_FAILS(world->comm->ops->check(world->comm), ZERO_ERR_COMM, words);
    return ZERO_OK;
}

/* The others' records say where the cause was found: of ranks that share memory. */
static inline zero_status case_abort_at(zero_world *world, void *user)
{
    CHECK_OK(case_abort(world, user));
    if (zero_world_rank(world) != zero_world_size(world) - 1) {
        CHECK(strcmp(zero_last_error()->file, "conformance.h") == 0);
        CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_COMM, "on fire");
        CHECK(strcmp(zero_last_error()->file, "conformance.h") == 0);
    }
    return ZERO_OK;
}

/* The same once the others do wait: none must still be making the world. */
static inline zero_status case_abort_waiting(zero_world *world, void *user)
{
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == zero_world_size(world) - 1) {
        sleep_ms(100);
    }
    return case_abort(world, user);
}

static inline zero_status case_abort_waiting_at(zero_world *world, void *user)
{
    CHECK_OK(zero_world_barrier(world));
    return case_abort_at(world, user);
}

#endif
