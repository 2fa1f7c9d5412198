/* The table of CPU kernels: on a stream and on the host's, with and without a pool, and two streams
 * at once; always the bits of the direct functions. */
#include "update_case.h"

#include "core/fault.h"
#include "core/thread.h"

typedef struct rig {
    zi_device device;
    zi_pool *pool;
    zi_kernels kernels;
    zi_stream *streams[2];
    zi_stream *host;
    zi_event *events[2];
} rig;

static void rig_create(rig *all, uint32_t threads)
{
    memset(all, 0, sizeof *all);
    CHECK_OK(zi_cpu_device_create(&all->device));
    if (threads > 0) {
        CHECK_OK(zi_pool_create(threads, &all->pool));
    }
    CHECK_OK(zi_cpu_kernels_create(&all->device, all->pool, &all->kernels));
    CHECK_OK(all->device.ops->stream_wrap(all->device.self, zero_stream_host(), &all->host));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(all->device.ops->stream_create(all->device.self, "kernels", &all->streams[i]));
        CHECK_OK(all->device.ops->event_create(all->device.self, &all->events[i]));
    }
}

static void rig_wait(rig *all, int i)
{
    CHECK_OK(all->device.ops->event_record(all->device.self, all->events[i], all->streams[i]));
    CHECK_OK(all->device.ops->event_wait(all->device.self, all->events[i], NULL));
}

static void rig_destroy(rig *all)
{
    for (int i = 0; i < 2; i++) {
        all->device.ops->event_destroy(all->device.self, all->events[i]);
        all->device.ops->stream_destroy(all->device.self, all->streams[i]);
    }
    zi_kernels_destroy(&all->kernels);
    zi_pool_destroy(all->pool);
    zi_device_destroy(&all->device);
}

static const uint32_t thread_counts[] = {0, 1, 2, 3};
static const size_t long_counts[] = {40000, 63, 9001};

TEST(update_on_streams_equals_the_lane_function)
{
    const update_types types = {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_NONE,
                                ZERO_OPTIMIZER_ADAMW};
    for (size_t t = 0; t < 4; t++) {
        rig all;
        rig_create(&all, thread_counts[t]);
        for (int callback = 0; callback < 2; callback++) {
            update_case one;
            case_create(&one, types, long_counts, 3, true);
            unsigned char *before = case_copy(&one);
            unsigned char *expected = case_expected(&one);
            if (callback) {
                one.job.optimizer = ZERO_OPTIMIZER_CALLBACK;
                one.job.update_states = 2;
                one.job.update = case_callback;
                one.job.update_user = &one.decision;
            }
            CHECK_OK(all.kernels.ops->update(all.kernels.self, all.streams[0], &one.job));
            rig_wait(&all, 0);
            CHECK_BYTES(one.memory, expected, one.bytes);
            memcpy(one.memory, before, one.bytes);
            CHECK_OK(all.kernels.ops->update(all.kernels.self, all.host, &one.job));
            CHECK_BYTES(one.memory, expected, one.bytes);
            free(before);
            free(expected);
            case_destroy(&one);
        }
        rig_destroy(&all);
    }
}

/* The decision is read when the job runs, not when it is enqueued. */
static zero_status decide_to_skip(void *argument)
{
    zi_step_decision *decision = *(zi_step_decision **)argument;
    decision->skip = 1;
    return ZERO_OK;
}

TEST(update_reads_the_decision_when_it_runs)
{
    rig all;
    rig_create(&all, 2);
    update_case one;
    case_create(&one,
                (update_types){ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_DTYPE_F32,
                               ZERO_OPTIMIZER_ADAMW},
                long_counts, 3, false);
    unsigned char *before = case_copy(&one);
    zi_step_decision *decision = &one.decision;
    CHECK_OK(all.device.ops->task(all.device.self, all.streams[0], decide_to_skip, &decision,
                                  sizeof decision));
    CHECK_OK(all.kernels.ops->update(all.kernels.self, all.streams[0], &one.job));
    rig_wait(&all, 0);
    CHECK_EQ(one.decision.skip, 1);
    CHECK_BYTES(one.memory, before, one.bytes);
    free(before);
    case_destroy(&one);
    rig_destroy(&all);
}

TEST(norm_and_cast_equal_the_direct_functions)
{
    enum { COUNT = 200001 };
    float *values = malloc(COUNT * sizeof *values);
    uint16_t *expected = malloc(COUNT * sizeof *expected);
    uint16_t *got = malloc(COUNT * sizeof *got);
    CHECK(values != NULL && expected != NULL && got != NULL);
    zero_random_normal(test_seed, 30, 0, COUNT, 0.0f, 1.0f, values);
    zi_norm_sum direct = {{0}, 0, 0};
    zi_cpu_square_sum(values, ZERO_DTYPE_F32, COUNT, &direct);
    for (size_t t = 0; t < 4; t++) {
        rig all;
        rig_create(&all, thread_counts[t]);
        const zi_kernels_ops *ops = all.kernels.ops;
        zi_norm_sum sum = {{0}, 0, 0};
        CHECK_OK(
            ops->square_sum(all.kernels.self, all.streams[0], values, ZERO_DTYPE_F32, COUNT, &sum));
        rig_wait(&all, 0);
        CHECK_BYTES(&sum, &direct, sizeof sum);
        zi_cpu_cast(expected, ZERO_DTYPE_BF16, values, ZERO_DTYPE_F32, COUNT);
        CHECK_OK(ops->cast(all.kernels.self, all.streams[0], got, ZERO_DTYPE_BF16, values,
                           ZERO_DTYPE_F32, COUNT));
        rig_wait(&all, 0);
        CHECK_BYTES(got, expected, COUNT * sizeof *got);
        rig_destroy(&all);
    }
    free(values);
    free(expected);
    free(got);
}

TEST(encode_and_decode_equal_the_direct_functions)
{
    enum { COUNT = 200001, SCALES_MOST = COUNT / 16 };
    const zero_dtype kinds[] = {ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK};
    float *values = malloc(COUNT * sizeof *values);
    float *back[2] = {malloc(COUNT * sizeof *values), malloc(COUNT * sizeof *values)};
    uint8_t *codes[2] = {malloc(COUNT), malloc(COUNT)};
    uint16_t *scales[2] = {calloc(SCALES_MOST, 2), calloc(SCALES_MOST, 2)};
    CHECK(values != NULL && back[0] != NULL && back[1] != NULL);
    CHECK(codes[0] != NULL && codes[1] != NULL && scales[0] != NULL && scales[1] != NULL);
    zero_random_normal(test_seed, 33, 0, COUNT, 0.0f, 1.0f, values);
    for (size_t t = 0; t < 4 * 2; t++) {
        const zero_dtype kind = kinds[t % 2];
        rig all;
        rig_create(&all, thread_counts[t / 2]);
        const zi_kernels_ops *ops = all.kernels.ops;
        memset(scales[0], 0, (size_t)SCALES_MOST * 2);
        memset(scales[1], 0, (size_t)SCALES_MOST * 2);
        zi_cpu_encode_blocks(codes[0], scales[0], kind, values, ZERO_DTYPE_F32, COUNT);
        zi_cpu_decode_blocks(back[0], ZERO_DTYPE_F32, codes[0], scales[0], kind, COUNT);
        CHECK_OK(ops->encode(all.kernels.self, all.streams[0], codes[1], scales[1], kind, values,
                             ZERO_DTYPE_F32, COUNT));
        CHECK_OK(ops->decode(all.kernels.self, all.streams[0], back[1], ZERO_DTYPE_F32, codes[1],
                             scales[1], kind, COUNT));
        rig_wait(&all, 0);
        CHECK_BYTES(codes[1], codes[0], COUNT);
        CHECK_BYTES(scales[1], scales[0], (size_t)SCALES_MOST * 2);
        CHECK_BYTES(back[1], back[0], COUNT * sizeof *values);
        rig_destroy(&all);
    }
    free(values);
    for (int i = 0; i < 2; i++) {
        free(back[i]);
        free(codes[i]);
        free(scales[i]);
    }
}

TEST(fold_equals_the_direct_function_and_adds_squares)
{
    enum { COUNT = 200001 };
    float *values = malloc(COUNT * sizeof *values);
    uint16_t *expected = malloc(COUNT * sizeof *expected);
    uint16_t *got = malloc(COUNT * sizeof *got);
    CHECK(values != NULL && expected != NULL && got != NULL);
    zero_random_normal(test_seed, 32, 0, COUNT, 0.0f, 1.0f, values);
    const void *sources[] = {values, NULL, values};
    zi_fold fold = case_fold(expected, ZERO_DTYPE_BF16, sources, ZERO_DTYPE_F32, 3, COUNT);
    zi_norm_sum direct = {{0}, 0, 0};
    zi_cpu_fold(&fold);
    zi_cpu_square_sum(expected, ZERO_DTYPE_BF16, COUNT, &direct);
    fold.dst = got;
    for (size_t t = 0; t < 4; t++) {
        rig all;
        rig_create(&all, thread_counts[t]);
        for (int adds = 0; adds < 2; adds++) {
            zi_norm_sum sum = {{0}, 0, 0};
            fold.squares = adds ? &sum : NULL;
            memset(got, 0, COUNT * sizeof *got);
            CHECK_OK(all.kernels.ops->fold(all.kernels.self, all.streams[0], &fold));
            rig_wait(&all, 0);
            CHECK_BYTES(got, expected, COUNT * sizeof *got);
            CHECK(!adds || memcmp(&sum, &direct, sizeof sum) == 0);
        }
        rig_destroy(&all);
    }
    free(values);
    free(expected);
    free(got);
}

TEST(folds_of_packed_granules_equal_the_direct_function)
{
    enum { GRANULES = 781, COUNT = GRANULES * 256, BYTES_MOST = GRANULES * 260 };
    const zero_dtype kinds[] = {ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK};
    float *values = malloc(COUNT * sizeof *values);
    float *back[2] = {malloc(COUNT * sizeof *values), malloc(COUNT * sizeof *values)};
    uint8_t *codes[2] = {calloc(BYTES_MOST, 1), calloc(BYTES_MOST, 1)};
    CHECK(values != NULL && back[0] != NULL && back[1] != NULL);
    CHECK(codes[0] != NULL && codes[1] != NULL);
    zero_random_normal(test_seed, 34, 0, COUNT, 0.0f, 1.0f, values);
    const void *sources[] = {values, NULL, values};
    const void *packed[] = {codes[0], codes[0]};
    for (size_t t = 0; t < 4 * 2; t++) {
        const zero_dtype kind = kinds[t % 2];
        zi_norm_sum sums[2] = {{{0}, 0, 0}, {{0}, 0, 0}};
        rig all;
        rig_create(&all, thread_counts[t / 2]);
        zi_fold encode = case_fold(codes[0], kind, sources, ZERO_DTYPE_F32, 3, COUNT);
        zi_fold decode = case_fold(back[0], ZERO_DTYPE_F32, packed, kind, 2, COUNT);
        encode.key = 3;
        encode.first = 7 * ZI_GRANULE;
        decode.squares = &sums[0];
        zi_cpu_fold(&encode);
        zi_cpu_fold(&decode);
        encode.dst = codes[1];
        decode.dst = back[1];
        decode.squares = &sums[1];
        CHECK_OK(all.kernels.ops->fold(all.kernels.self, all.streams[0], &encode));
        CHECK_OK(all.kernels.ops->fold(all.kernels.self, all.streams[0], &decode));
        rig_wait(&all, 0);
        CHECK_BYTES(codes[1], codes[0], zi_packed_bytes(kind, COUNT));
        CHECK_BYTES(back[1], back[0], COUNT * sizeof *values);
        CHECK_BYTES(&sums[1], &sums[0], sizeof sums[0]);
        rig_destroy(&all);
    }
    free(values);
    for (int i = 0; i < 2; i++) {
        free(back[i]);
        free(codes[i]);
    }
}

/* Updates and norms of two streams share a pool and its scratch without waiting for each other
 * forever. */
TEST(two_streams_at_once)
{
    enum { COUNT = 100000, ROUNDS = 20 };
    rig all;
    rig_create(&all, 2);
    const size_t counts[] = {50000};
    update_case one;
    update_case two;
    const update_types types = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32,
                                ZERO_OPTIMIZER_ADAMW};
    case_create(&one, types, counts, 1, false);
    case_create(&two, types, counts, 1, false);
    one.job.optimizer = two.job.optimizer = ZERO_OPTIMIZER_CALLBACK;
    one.job.update_states = two.job.update_states = 2;
    one.job.update = two.job.update = case_callback;
    one.job.update_user = &one.decision;
    two.job.update_user = &two.decision;
    float *values = malloc(COUNT * sizeof *values);
    CHECK(values != NULL);
    zero_random_normal(test_seed, 31, 0, COUNT, 0.0f, 1.0f, values);
    zi_norm_sum expected = {{0}, 0, 0};
    zi_norm_sum sum = {{0}, 0, 0};
    for (int i = 0; i < ROUNDS; i++) {
        zi_cpu_square_sum(values, ZERO_DTYPE_F32, COUNT, &expected);
        zi_cpu_square_sum(values, ZERO_DTYPE_F32, COUNT, &expected);
        for (int k = 0; k < 2; k++) {
            const zi_update_job *job = k == 0 ? &one.job : &two.job;
            CHECK_OK(all.kernels.ops->update(all.kernels.self, all.streams[k], job));
            CHECK_OK(all.kernels.ops->square_sum(all.kernels.self, all.streams[k], values,
                                                 ZERO_DTYPE_F32, COUNT, &sum));
        }
    }
    rig_wait(&all, 0);
    rig_wait(&all, 1);
    CHECK_BYTES(&sum, &expected, sizeof sum);
    CHECK_BYTES(one.memory, two.memory, one.bytes);
    free(values);
    case_destroy(&one);
    case_destroy(&two);
    rig_destroy(&all);
}

TEST(kernels_allocate_only_when_created)
{
    rig all;
    rig_create(&all, 2);
    update_case one;
    case_create(&one,
                (update_types){ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32,
                               ZERO_OPTIMIZER_ADAMW},
                long_counts, 3, false);
    const uint64_t calls = zi_memory_calls();
    zi_norm_sum sum = {{0}, 0, 0};
    for (int i = 0; i < 10; i++) {
        one.job.update = i % 2 == 0 ? NULL : case_callback;
        one.job.update_user = &one.decision;
        CHECK_OK(all.kernels.ops->update(all.kernels.self, all.streams[0], &one.job));
        CHECK_OK(all.kernels.ops->square_sum(all.kernels.self, all.streams[0], one.job.grad,
                                             ZERO_DTYPE_BF16, 40000, &sum));
        rig_wait(&all, 0);
    }
    CHECK_EQ(zi_memory_calls(), calls);
    CHECK(zi_norm_value(&sum) > 0.0);
    case_destroy(&one);
    rig_destroy(&all);
}

TEST(create_survives_every_failing_allocation)
{
    zi_device device;
    CHECK_OK(zi_cpu_device_create(&device));
    for (uint64_t nth = 1;; nth++) {
        zi_kernels kernels;
        zi_fault_arm(ZI_FAULT_ALLOC, nth);
        const zero_status status = zi_cpu_kernels_create(&device, NULL, &kernels);
        zi_fault_arm(ZI_FAULT_ALLOC, 0);
        if (status == ZERO_OK) {
            CHECK_EQ(nth, 3);
            zi_kernels_destroy(&kernels);
            break;
        }
        CHECK_EQ(status, ZERO_ERR_OUT_OF_MEMORY);
        CHECK(kernels.ops == NULL);
        zi_kernels_destroy(&kernels);
    }
    zi_device_destroy(&device);
}
