/* device: the kernels' launches over the fake. They declare what their bodies touch and no more:
 * every array ends where its memory does, so a body that went beyond would die. */
#include "harness.h"

#include "core/codec.h"
#include "fake_cuda.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/launch.h"

#define PAGE ((size_t)4096)
#define COUNT 1001
#define CUDA_OK(call) CHECK_EQ((call), cudaSuccess)

static cudaStream_t open_stream(void)
{
    cudaStream_t stream = NULL;
    CUDA_OK(zi_cuda_load_update());
    CUDA_OK(zi_cuda_load_norm());
    CUDA_OK(zi_cuda_load_fold());
    CUDA_OK(zi_cuda_load_block());
    CUDA_OK(zi_cuda_load_packed());
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* Device memory whose end is that of a page; behind it comes one that nobody reaches. */
static void *open_at_end(size_t bytes)
{
    const size_t room = (bytes + PAGE - 1) / PAGE * PAGE;
    void *memory = NULL;
    CUDA_OK(cudaMalloc(&memory, room));
    return (unsigned char *)memory + (room - bytes);
}

/* A device's copy of host memory. */
static void *put(cudaStream_t stream, const void *source, size_t bytes)
{
    void *target = open_at_end(bytes);
    CUDA_OK(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, stream));
    return target;
}

static void check_same(const void *device, const void *host, size_t bytes)
{
    unsigned char *seen = malloc(bytes);
    CHECK(seen != NULL);
    fake_cuda_peek(seen, device, bytes);
    CHECK_BYTES(seen, (const unsigned char *)host, bytes);
    free(seen);
}

static void make_values(float *values, size_t count, float first)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = first + (float)(i % 97) * 0.03125f;
    }
}

TEST(fold_cast_and_norm_stay_within_what_they_declare)
{
    float ones[COUNT];
    make_values(ones, COUNT, 1.0f);
    const cudaStream_t a = open_stream();
    const cudaStream_t b = open_stream();
    float *x = put(a, ones, sizeof ones);
    uint16_t *half = open_at_end(COUNT * sizeof(uint16_t));
    zi_norm_sum *sum = open_at_end(sizeof *sum);
    CUDA_OK(cudaMemsetAsync(sum, 0, sizeof *sum, a));
    CUDA_OK(zi_cuda_launch_cast(a, half, ZERO_DTYPE_BF16, x, ZERO_DTYPE_F32, COUNT));
    const void *sources[3] = {half, NULL, half};
    const zi_fold fold = {x, sources, 3, COUNT, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, 1, 0, NULL, 0, 0};
    CUDA_OK(zi_cuda_launch_fold(a, &fold));
    memset(sources, 0, sizeof sources); /* they were read */
    CUDA_OK(zi_cuda_launch_square_sum(a, x, ZERO_DTYPE_F32, COUNT, sum));
    const void *again[1] = {half};
    const zi_fold squares = {x, again, 1, COUNT, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, 1, 0, sum, 0, 0};
    CUDA_OK(zi_cuda_launch_fold(a, &squares));
    CUDA_OK(cudaStreamSynchronize(a));
    uint16_t half_expected[COUNT];
    zi_norm_sum sum_expected = {{0}, 0, 0};
    const void *same[3] = {half_expected, NULL, half_expected};
    const zi_fold here = {ones, same, 3, COUNT, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, 1, 0, NULL, 0, 0};
    const zi_fold last = {ones, same, 1, COUNT, ZERO_DTYPE_F32, ZERO_DTYPE_BF16, 1, 0, NULL, 0, 0};
    zi_cpu_cast(half_expected, ZERO_DTYPE_BF16, ones, ZERO_DTYPE_F32, COUNT);
    zi_cpu_fold(&here);
    zi_cpu_square_sum(ones, ZERO_DTYPE_F32, COUNT, &sum_expected);
    zi_cpu_fold(&last);
    zi_cpu_square_sum(ones, ZERO_DTYPE_F32, COUNT, &sum_expected);
    check_same(half, half_expected, sizeof half_expected);
    check_same(x, ones, sizeof ones);
    zi_norm_sum seen;
    fake_cuda_peek(&seen, sum, sizeof seen);
    CHECK_SAME(zi_norm_value(&seen), zi_norm_value(&sum_expected));
    CHECK(fake_cuda_check());
    /* One that reads what another stream still writes. */
    CUDA_OK(cudaMemsetAsync(x, 0, sizeof ones, a));
    CUDA_OK(zi_cuda_launch_cast(b, half, ZERO_DTYPE_BF16, x, ZERO_DTYPE_F32, COUNT));
    CHECK_EQ(fake_cuda_races(), 1);
    CHECK(strstr(fake_cuda_fault_text(0), "zi_cuda_launch_cast #1 of stream") != NULL);
    CUDA_OK(cudaDeviceSynchronize());
}

TEST(encode_and_decode_stay_within_what_they_declare)
{
    const zero_dtype kinds[] = {ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK};
    float values[COUNT];
    make_values(values, COUNT, 1.0f);
    const cudaStream_t a = open_stream();
    const cudaStream_t b = open_stream();
    float *source = put(a, values, sizeof values);
    float *target = open_at_end(sizeof values);
    for (size_t k = 0; k < 2; k++) {
        const size_t scales_bytes = zi_block_scales_bytes(kinds[k], COUNT);
        uint8_t codes_here[COUNT];
        uint16_t scales_here[COUNT];
        float back[COUNT];
        void *codes = open_at_end(COUNT);
        void *scales = open_at_end(scales_bytes);
        CUDA_OK(zi_cuda_launch_encode(a, codes, scales, kinds[k], source, ZERO_DTYPE_F32, COUNT));
        CUDA_OK(zi_cuda_launch_decode(a, target, ZERO_DTYPE_F32, codes, scales, kinds[k], COUNT));
        CUDA_OK(cudaStreamSynchronize(a));
        zi_cpu_encode_blocks(codes_here, scales_here, kinds[k], values, ZERO_DTYPE_F32, COUNT);
        zi_cpu_decode_blocks(back, ZERO_DTYPE_F32, codes_here, scales_here, kinds[k], COUNT);
        check_same(codes, codes_here, COUNT);
        check_same(scales, scales_here, scales_bytes);
        check_same(target, back, sizeof back);
    }
    CHECK(fake_cuda_check());
    /* Scales that another stream still writes. */
    void *codes = open_at_end(COUNT);
    void *scales = open_at_end(COUNT);
    CUDA_OK(cudaMemsetAsync(codes, 0, COUNT, b));
    CUDA_OK(cudaMemsetAsync(scales, 0, COUNT, a));
    CUDA_OK(zi_cuda_launch_decode(b, target, ZERO_DTYPE_F32, codes, scales, kinds[0], COUNT));
    CHECK_EQ(fake_cuda_races(), 1);
    CHECK(strstr(fake_cuda_fault_text(0), "zi_cuda_launch_decode #2 of stream") != NULL);
    CUDA_OK(cudaDeviceSynchronize());
}

TEST(folds_of_packed_granules_stay_within_what_they_declare)
{
    enum { GRANULES = 3, ELEMENTS = GRANULES * 256 };
    const zero_dtype kinds[] = {ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK};
    float values[ELEMENTS];
    make_values(values, ELEMENTS, 1.0f);
    const cudaStream_t a = open_stream();
    const cudaStream_t b = open_stream();
    float *source = put(a, values, sizeof values);
    float *target = open_at_end(sizeof values);
    zi_norm_sum *sum = open_at_end(sizeof *sum);
    for (size_t k = 0; k < 2; k++) {
        _Alignas(4) uint8_t codes_here[GRANULES * 260];
        float back[ELEMENTS];
        const size_t bytes = zi_packed_bytes(kinds[k], ELEMENTS);
        const void *codes = open_at_end(bytes);
        const void *from[] = {source};
        const void *from_here[] = {values};
        zi_fold encode = {.sources = from,
                          .source_count = 1,
                          .count = ELEMENTS,
                          .dst_dtype = kinds[k],
                          .source_dtype = ZERO_DTYPE_F32,
                          .key = 5,
                          .first = 512};
        zi_fold decode = {.sources = &codes,
                          .source_count = 1,
                          .count = ELEMENTS,
                          .dst_dtype = ZERO_DTYPE_F32,
                          .source_dtype = kinds[k],
                          .squares = sum};
        encode.dst = (void *)(uintptr_t)codes;
        decode.dst = target;
        CUDA_OK(cudaMemsetAsync(sum, 0, sizeof *sum, a));
        CUDA_OK(zi_cuda_launch_fold(a, &encode));
        CUDA_OK(zi_cuda_launch_fold(a, &decode));
        CUDA_OK(cudaStreamSynchronize(a));
        const void *codes_list[] = {codes_here};
        zi_norm_sum squares = {{0}, 0, 0};
        zi_norm_sum seen;
        encode.sources = from_here;
        encode.dst = codes_here;
        decode.sources = codes_list;
        decode.dst = back;
        decode.squares = &squares;
        zi_cpu_fold(&encode);
        zi_cpu_fold(&decode);
        check_same(codes, codes_here, bytes);
        check_same(target, back, sizeof back);
        fake_cuda_peek(&seen, sum, sizeof seen);
        CHECK_SAME(zi_norm_value(&seen), zi_norm_value(&squares));
    }
    CHECK(fake_cuda_check());
    /* A granule that another stream still writes. */
    const void *codes[] = {open_at_end(260)};
    const zi_fold early = {.dst = target,
                           .sources = codes,
                           .source_count = 1,
                           .count = 256,
                           .dst_dtype = ZERO_DTYPE_F32,
                           .source_dtype = ZERO_DTYPE_INT8_BLOCK};
    CUDA_OK(cudaMemsetAsync((unsigned char *)(uintptr_t)codes[0] + 259, 0, 1, a));
    CUDA_OK(zi_cuda_launch_fold(b, &early));
    CHECK_EQ(fake_cuda_races(), 1);
    CHECK(strstr(fake_cuda_fault_text(0), "zi_cuda_launch_fold #1 of stream") != NULL);
    CUDA_OK(cudaDeviceSynchronize());
}

/* The arrays that an update works on; of the host, and its copy on the device. */
typedef struct shard {
    float grad[COUNT];
    float param[COUNT];
    float moment1[COUNT];
    float moment2[COUNT];
    zi_segment segments[2];
    zi_step_message message;
    zi_step_part part;
    zi_step_state state;
    zi_step_decision decision;
} shard;

static zi_update_job job_of(shard *s)
{
    return (zi_update_job){.optimizer = ZERO_OPTIMIZER_ADAMW,
                           .segments = s->segments,
                           .segment_count = 2,
                           .count = COUNT,
                           .grad = s->grad,
                           .param = s->param,
                           .state[ZI_STATE_MOMENT1] = s->moment1,
                           .state[ZI_STATE_MOMENT2] = s->moment2,
                           .grad_dtype = ZERO_DTYPE_F32,
                           .param_dtype = ZERO_DTYPE_F32,
                           .moment_dtype = ZERO_DTYPE_F32,
                           .seed = 3,
                           .decision = &s->decision};
}

static void make_shard(shard *s)
{
    memset(s, 0, sizeof *s);
    make_values(s->grad, COUNT, -1.0f);
    make_values(s->param, COUNT, 0.5f);
    s->segments[0] = (zi_segment){.count = 500};
    s->segments[1] = (zi_segment){.offset = 512, .count = COUNT - 512, .tensor = 1};
    zi_cpu_square_sum(s->grad, ZERO_DTYPE_F32, COUNT, &s->message.squares);
    zi_step_state_init(&s->state, (zi_loss_scaler){.scale = 1.0f});
}

TEST(decide_and_update_stay_within_what_they_declare)
{
    static union {
        zi_step_input input;
        unsigned char page[PAGE];
    } pinned;
    static shard host;
    make_shard(&host);
    pinned.input = (zi_step_input){.divisor = 2.0, .max_norm = 1.0, .group_count = 1};
    pinned.input.groups[0] =
        (zi_hyper){.kind = ZERO_OPTIMIZER_ADAMW, .adamw = {0.01f, 0.9f, 0.99f, 1e-8f, 0.1f}};
    CUDA_OK(cudaHostRegister(&pinned, sizeof pinned, cudaHostRegisterMapped));
    const cudaStream_t stream = open_stream();
    zi_step_part *const part = put(stream, &host.part, sizeof host.part);
    const zi_decide_job decide = {
        .input = &pinned.input,
        .messages = {.first = put(stream, &host.message, sizeof host.message),
                     .count = 1,
                     .bytes = sizeof host.message,
                     .peer_stride = 1},
        .part = part,
        .parts = part,
        .part_count = 1,
        .phases = ZI_DECIDE_COLLECT | ZI_DECIDE_CONCLUDE,
        .state = put(stream, &host.state, sizeof host.state),
        .decision = put(stream, &host.decision, sizeof host.decision)};
    zi_update_job job = job_of(&host);
    job.segments = put(stream, host.segments, sizeof host.segments);
    job.grad = put(stream, host.grad, sizeof host.grad);
    job.param = put(stream, host.param, sizeof host.param);
    job.state[ZI_STATE_MOMENT1] = put(stream, host.moment1, sizeof host.moment1);
    job.state[ZI_STATE_MOMENT2] = put(stream, host.moment2, sizeof host.moment2);
    job.decision = decide.decision;
    CUDA_OK(zi_cuda_launch_decide(stream, &decide));
    CUDA_OK(zi_cuda_launch_update(stream, &job));
    const zi_update_job given = job;
    memset(&job, 0, sizeof job); /* it was read */
    CUDA_OK(cudaStreamSynchronize(stream));
    zi_step_decide(&pinned.input, 2.0, &host.message.squares, &host.state, &host.decision);
    const zi_update_job here = job_of(&host);
    zi_cpu_update(&here, NULL, 0, 1);
    check_same(given.param, host.param, sizeof host.param);
    check_same(given.state[ZI_STATE_MOMENT1], host.moment1, sizeof host.moment1);
    check_same(given.state[ZI_STATE_MOMENT2], host.moment2, sizeof host.moment2);
    check_same(decide.state, &host.state, sizeof host.state);
    CHECK(fake_cuda_check());
    /* The input must stay as it is until the decision has run. */
    CUDA_OK(zi_cuda_launch_decide(stream, &decide));
    pinned.input.divisor = 4.0;
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK_EQ(fake_cuda_faults(), 1);
    CHECK(strstr(fake_cuda_fault_text(0), "changed: host memory that zi_cuda_launch_decide") !=
          NULL);
}

TEST(launches_refuse_what_the_kernels_cannot_do)
{
    static const void *sources[ZI_CUDA_SOURCES_MAX + 1];
    const zi_fold many = {.sources = sources, .source_count = ZI_CUDA_SOURCES_MAX + 1};
    CHECK_EQ(zi_cuda_launch_fold(NULL, &many), cudaErrorInvalidValue);
    CHECK_EQ(zi_cuda_launch_encode(NULL, NULL, NULL, ZERO_DTYPE_I8, NULL, ZERO_DTYPE_F32, 0),
             cudaErrorInvalidValue);
    CHECK_EQ(zi_cuda_launch_decode(NULL, NULL, ZERO_DTYPE_MXFP8, NULL, NULL, ZERO_DTYPE_MXFP8, 0),
             cudaErrorInvalidValue);
    fake_cuda_fail("zi_cuda_launch_cast", 1, cudaErrorLaunchFailure);
    CHECK_EQ(zi_cuda_launch_cast(NULL, NULL, ZERO_DTYPE_F32, NULL, ZERO_DTYPE_F32, 0),
             cudaErrorLaunchFailure);
}

/* Each file's on each device. */
TEST(launches_come_after_their_kernels_are_loaded)
{
    const cudaStream_t stream = open_stream();
    float *x = put(stream, &(float){1.0f}, sizeof *x);
    uint16_t *half = open_at_end(sizeof *half);
    CUDA_OK(zi_cuda_launch_cast(stream, half, ZERO_DTYPE_BF16, x, ZERO_DTYPE_F32, 1));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(fake_cuda_check());
    fake_cuda_devices(2);
    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(zi_cuda_load_norm());
    CUDA_OK(zi_cuda_launch_cast(NULL, NULL, ZERO_DTYPE_BF16, NULL, ZERO_DTYPE_F32, 0));
    CHECK_EQ(fake_cuda_faults(), 1);
    CHECK(strstr(fake_cuda_fault_text(0), "cast before its kernels were loaded on device 1") !=
          NULL);
}

/* A copy reaches it. */
TEST(kernels_reach_host_memory_that_is_mapped)
{
    static union {
        float value;
        unsigned char page[PAGE];
    } pinned;
    CUDA_OK(cudaHostRegister(&pinned, sizeof pinned, cudaHostRegisterPortable));
    const cudaStream_t stream = open_stream();
    uint16_t *half = open_at_end(sizeof *half);
    float *x = put(stream, &pinned.value, sizeof pinned.value);
    CUDA_OK(zi_cuda_launch_cast(stream, half, ZERO_DTYPE_BF16, x, ZERO_DTYPE_F32, 1));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(fake_cuda_check());
    CHECK_EQ(zi_cuda_launch_cast(stream, half, ZERO_DTYPE_BF16, &pinned.value, ZERO_DTYPE_F32, 1),
             cudaErrorInvalidValue);
    CHECK(strstr(fake_cuda_fault_text(0), "host memory that is not mapped") != NULL);
}
