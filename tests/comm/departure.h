/* Ranks that go while others wait for them: the calls in which the others wait, and what they hear.
 */
#ifndef TESTS_COMM_DEPARTURE_H
#define TESTS_COMM_DEPARTURE_H

#include "conformance.h"

/* No news may take longer, however loaded the machine; the aim is 1 s. */
#define SOON_MS 10000
#define WAIT_COUNT 100000 /* elements of a collective: more than fit a stage */

/* A call in which ranks wait: it is made again and again until it fails. */
typedef zero_status (*blocking_fn)(zero_world *world, conf *test);

static inline zero_status in_barrier(zero_world *world, conf *test)
{
    (void)test;
    return zero_world_barrier(world);
}

static inline zero_status in_gather(zero_world *world, conf *test)
{
    (void)test;
    unsigned char send[300] = {1};
    unsigned char recv[4 * sizeof send];
    CHECK(zero_world_size(world) <= 4);
    return zero_world_gather(world, send, recv, sizeof send);
}

static inline zero_status in_memory(zero_world *world, conf *test)
{
    (void)test;
    void *piece = NULL;
    const zero_status status = world->comm->ops->memory_alloc(world->comm, ZI_PAGE_BYTES, &piece);
    world->comm->ops->memory_free(world->comm, piece, ZI_PAGE_BYTES);
    return status;
}

static inline zero_status in_group_create(zero_world *world, conf *test)
{
    zi_group *group = NULL;
    const zero_status status = world->comm->ops->group_create(
        world->comm, &world->kernels, test->members, test->size, "other", &group);
    zi_group_destroy(group);
    return status;
}

static inline zero_status run_kind(conf *test, zi_collective_kind kind)
{
    const conf_shape shape = {kind, ZERO_DTYPE_F32, ZERO_DTYPE_F32, WAIT_COUNT, 0, false, 0, 1};
    const zi_collective job = conf_prepare(test, &shape);
    return zi_group_submit(test->group, test->host, &job, 1);
}

static inline zero_status in_all_gather(zero_world *world, conf *test)
{
    (void)world;
    return run_kind(test, ZI_ALL_GATHER);
}

static inline zero_status in_reduce_scatter(zero_world *world, conf *test)
{
    (void)world;
    return run_kind(test, ZI_REDUCE_SCATTER);
}

static inline zero_status in_all_reduce(zero_world *world, conf *test)
{
    (void)world;
    return run_kind(test, ZI_ALL_REDUCE);
}

typedef struct blocking_call {
    const char *name;
    blocking_fn fn;
} blocking_call;

static const blocking_call blocking_calls[] = {
    {"barrier", in_barrier},       {"gather", in_gather},
    {"memory_alloc", in_memory},   {"group_create", in_group_create},
    {"all_gather", in_all_gather}, {"reduce_scatter", in_reduce_scatter},
    {"all_reduce", in_all_reduce},
};
#define BLOCKING_CALLS (sizeof blocking_calls / sizeof blocking_calls[0])

/* The group of all ranks in which they wait. Collective. */
static inline void blocking_open(conf *test, zero_world *world)
{
    conf_open_all(test, world, WAIT_COUNT, "big");
    CHECK_OK(zero_world_barrier(world));
}

/* Repeat the call until it fails: COMM with these words in it, in time. */
static inline void wait_in(zero_world *world, conf *test, blocking_fn fn, const char *words)
{
    const uint64_t start_ns = zi_clock_ns();
    zero_status status = ZERO_OK;
    while (status == ZERO_OK && in_time(start_ns, SOON_MS)) {
        status = fn(world, test);
    }
    if (status != ZERO_ERR_COMM || strstr(zero_last_error()->message, words) == NULL) {
        TEST_FAIL("rank %u: %s instead of COMM with \"%s\": %s", zero_world_rank(world),
                  zero_status_name(status), words,
                  status == ZERO_OK ? "" : zero_last_error()->message);
    }
    CHECK(in_time(start_ns, SOON_MS));
}

#endif
