/* The duty of every backend towards packed types: of what is sent, of hosts' sums, or of both. The
 * references are made by the kernels of the CPU, of whole arrays at once. */
#ifndef TESTS_COMM_CONFORMANCE_PACKED_H
#define TESTS_COMM_CONFORMANCE_PACKED_H

#include "conformance.h"

/* A reduction under test. */
typedef struct conf_packed {
    zi_collective_kind kind;
    zero_dtype send_dtype;
    zero_dtype sum_dtype;
    zero_dtype recv_dtype;
    size_t count;
    bool added;      /* to what recv holds */
    uint32_t silent; /* as in conf_shape */
} conf_packed;

#define CONF_KEY UINT64_C(0x5eed)

static inline zi_fold conf_fold_of(void *dst, zero_dtype dst_dtype, const void *const *sources,
                                   uint32_t source_count, zero_dtype source_dtype, size_t count)
{
    return (zi_fold){.dst = dst,
                     .sources = sources,
                     .source_count = source_count,
                     .count = count,
                     .dst_dtype = dst_dtype,
                     .source_dtype = source_dtype};
}

/* All that a world rank sends, as it sends it; NULL: it sends nothing. */
static inline unsigned char *conf_packed_send(const conf_packed *shape, uint32_t from, size_t total)
{
    if (shape->silent != 0 && from % shape->silent == 0) {
        return NULL;
    }
    unsigned char *send = malloc(total * sizeof(float));
    float *values = malloc(total * sizeof *values);
    CHECK(send != NULL && values != NULL);
    for (size_t i = 0; i < total; i++) {
        values[i] = value_of(test_seed + shape->count, from, i);
    }
    const void *const sources[1] = {values};
    zi_fold fold = conf_fold_of(send, shape->send_dtype, sources, 1, ZERO_DTYPE_F32, total);
    fold.key = from;
    zi_cpu_fold(&fold);
    free(values);
    return send;
}

/* Replace what the members of each host send by the host's sum, which the first of them has then.
 * Returns the number of sums. sends: by ascending world rank. */
static inline uint32_t conf_host_sums(const conf *test, const conf_packed *shape, size_t total,
                                      unsigned char *sends[])
{
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < test->size;) {
        const uint32_t host = conf_host_of(test->members[test->sorted[i]]);
        const void *sources[CONF_RANKS_MAX];
        uint32_t near = 0;
        bool any = false;
        for (; i + near < test->size && conf_host_of(test->members[test->sorted[i + near]]) == host;
             near++) {
            sources[near] = sends[i + near];
            any = any || sends[i + near] != NULL;
        }
        unsigned char *sum = malloc(total * sizeof(float));
        CHECK(sum != NULL);
        zi_fold fold = conf_fold_of(sum, shape->sum_dtype, sources, near, shape->send_dtype, total);
        fold.key = zi_packed_key_next(CONF_KEY, hosts);
        zi_cpu_fold(&fold);
        for (uint32_t k = 0; k < near; k++) {
            free(sends[i + k]);
        }
        i += near;
        sends[hosts++] = sum;
    }
    return hosts;
}

/* The receive buffer of group rank `rank` that the contract asks for, in `expected`. */
static inline void conf_packed_expect(const conf *test, const conf_packed *shape, uint32_t rank,
                                      unsigned char *expected, zi_norm_sum *squares)
{
    const bool scatters = shape->kind == ZI_REDUCE_SCATTER;
    const size_t total = shape->count * (scatters ? test->size : 1);
    const conf_shape like = {.kind = ZI_REDUCE_SCATTER, .count = shape->count, .flags = conf_how};
    unsigned char *sends[CONF_RANKS_MAX];
    const void *sources[CONF_RANKS_MAX];
    for (uint32_t i = 0; i < test->size; i++) {
        sends[i] = conf_packed_send(shape, test->members[test->sorted[i]], total);
    }
    const bool levels = conf_in_levels(test, &like);
    const uint32_t count = levels ? conf_host_sums(test, shape, total, sends) : test->size;
    const zero_dtype dtype = levels ? shape->sum_dtype : shape->send_dtype;
    for (uint32_t i = 0; i < count; i++) {
        const size_t first = scatters ? rank * shape->count : 0;
        sources[i] = sends[i] == NULL ? NULL : sends[i] + zi_packed_bytes(dtype, first);
    }
    zi_fold fold = conf_fold_of(expected, shape->recv_dtype, sources, count, dtype, shape->count);
    fold.accumulate = shape->added;
    fold.squares = squares;
    zi_cpu_fold(&fold);
    for (uint32_t i = 0; i < count; i++) {
        free(sends[i]);
    }
}

static inline void conf_run_packed(conf *test, const conf_packed *shape)
{
    const uint32_t rank = test->group->rank;
    const uint32_t me = test->members[rank];
    const size_t total = shape->count * (shape->kind == ZI_REDUCE_SCATTER ? test->size : 1);
    const size_t bytes = shape->count * zero_dtype_bytes(shape->recv_dtype);
    unsigned char *send = conf_packed_send(shape, me, total);
    unsigned char *expected = malloc(bytes);
    zi_norm_sum squares = conf_squares_before();
    CHECK(expected != NULL);
    test->squares = conf_squares_before();
    memset(test->recv, GUARD_BYTE, test->bytes);
    for (size_t i = 0; i < shape->count && shape->added; i++) {
        value_store(test->recv, shape->recv_dtype, i, value_of(99, me, i));
    }
    memcpy(expected, test->recv, bytes);
    if (send != NULL) {
        memcpy(test->send, send, zi_packed_bytes(shape->send_dtype, total));
    }
    const zi_collective job = {.kind = shape->kind,
                               .flags = conf_how | (shape->added ? ZI_COLLECTIVE_ACCUMULATE : 0),
                               .send_dtype = shape->send_dtype,
                               .recv_dtype = shape->recv_dtype,
                               .sum_dtype = shape->sum_dtype,
                               .tag = 7,
                               .count = shape->count,
                               .send = send == NULL ? NULL : test->send,
                               .recv = test->recv,
                               .squares = &test->squares,
                               .key = CONF_KEY};
    CHECK_OK(zi_group_submit(test->group, test->host, &job, 1));
    conf_packed_expect(test, shape, rank, expected, &squares);
    zi_norm_normalise(&test->squares);
    zi_norm_normalise(&squares);
    CHECK_BYTES(test->recv, expected, bytes);
    CHECK_BYTES(&test->squares, &squares, sizeof squares);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        CHECK_EQ(test->recv[bytes + i], GUARD_BYTE);
    }
    free(expected);
    free(send);
}

/* Packed sums of hosts, of what is packed itself and of what is not. All members have a part of
 * what an ALL_REDUCE is about. */
static inline zero_status case_packed(zero_world *world, void *user)
{
    (void)user;
    static const zero_dtype types[][2] = {{ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT8_BLOCK},
                                          {ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK},
                                          {ZERO_DTYPE_INT4_BLOCK, ZERO_DTYPE_INT4_BLOCK},
                                          {ZERO_DTYPE_BF16, ZERO_DTYPE_INT8_BLOCK},
                                          {ZERO_DTYPE_F32, ZERO_DTYPE_INT4_BLOCK}};
    static const size_t counts[] = {256, 768, 9 * 256};
    for (int plain = 0; plain < 2; plain++) {
        conf test = {.plain = plain == 1};
        conf_open_all(&test, world, counts[2], "packed");
        for (size_t i = 0; i < 2 * sizeof types / sizeof types[0]; i++) {
            const zero_dtype *of = types[i / 2];
            conf_packed shape = {.kind = i % 2 == 0 ? ZI_REDUCE_SCATTER : ZI_ALL_REDUCE,
                                 .send_dtype = of[0],
                                 .sum_dtype = of[1],
                                 .recv_dtype = i % 3 == 0 ? ZERO_DTYPE_BF16 : ZERO_DTYPE_F32};
            const conf_shape like = {.kind = ZI_REDUCE_SCATTER, .flags = conf_how};
            if (of[0] == ZERO_DTYPE_INT4_BLOCK && conf_in_levels(&test, &like)) {
                continue; /* no sum of a host is made of such */
            }
            for (size_t k = 0; k < 3; k++) {
                shape.count = counts[(i + k) % 3];
                shape.count *= shape.kind == ZI_ALL_REDUCE ? test.size : 1;
                shape.count -= shape.kind == ZI_ALL_REDUCE && shape.count > 2048 ? 256 : 0;
                shape.silent = (uint32_t)(k == 0 ? 0 : k + 1);
                shape.added = shape.kind == ZI_REDUCE_SCATTER && k == 1;
                conf_run_packed(&test, &shape);
            }
        }
        conf_close(&test);
    }
    return ZERO_OK;
}

#endif
