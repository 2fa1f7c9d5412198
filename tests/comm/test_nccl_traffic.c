/* The bytes that a rank sends to other hosts, counted from the calls that groups really make of
 * NCCL's double: the least that a reduction in levels must send, and the table in
 * docs/tuning.md. */
#include "core/memory.h"
#include "nccl_rig.h"

#define GPUS_PER_HOST 8
#define UNLIKE_FIRST 12 /* of 16 ranks; the other host has 4 */
#define ELEMENTS ((size_t)1 << 20)
#define RANKS_MAX 32

typedef struct traffic_case {
    zi_collective_kind kind;
    zero_dtype dtype;
    uint32_t flags;
    uint32_t per_host;
    zero_dtype sum_dtype; /* of a host's sum; 0: the same */
    uint64_t crossed;     /* out: bytes that each rank has sent to other hosts; of unlike hosts 0 */
    uint64_t left;        /* and that all ranks of the host that sends most have */
} traffic_case;

static void read_crossed(traffic_case *t, uint32_t size)
{
    t->crossed = size % t->per_host == 0 ? fake_nccl_crossed(0) : 0;
    for (uint32_t first = 0; first < size; first += t->per_host) {
        uint64_t left = 0;
        for (uint32_t i = first; i < size && i < first + t->per_host; i++) {
            left += fake_nccl_crossed(i);
            CHECK(size % t->per_host != 0 || fake_nccl_crossed(i) == t->crossed);
        }
        t->left = left > t->left ? left : t->left;
    }
}

static zero_status send_unit(zero_world *world, void *user)
{
    traffic_case *t = user;
    const uint32_t size = zero_world_size(world);
    const uint32_t rank = zero_world_rank(world);
    uint32_t members[RANKS_MAX];
    unsigned char *memory = NULL;
    zi_group *group = NULL;
    for (uint32_t i = 0; i < size; i++) {
        members[i] = i;
    }
    gpu_open(&own);
    const size_t bytes = ELEMENTS * zero_dtype_bytes(t->dtype);
    const size_t part = bytes / size;
    CHECK_OK(make_group(world, members, size, "traffic", &group));
    CHECK_OK(own.device.ops->memory_alloc(own.device.self, bytes + part, (void **)&memory));
    const zi_collective job = {.kind = t->kind,
                               .flags = t->flags,
                               .send_dtype = t->dtype,
                               .recv_dtype = t->dtype,
                               .sum_dtype = t->sum_dtype,
                               .count = ELEMENTS / size,
                               .send = memory + (t->kind == ZI_ALL_GATHER ? bytes : 0),
                               .recv = memory + (t->kind == ZI_ALL_GATHER ? 0 : bytes)};
    if (rank == 0) {
        fake_nccl_hosts(t->per_host);
    }
    CHECK_OK(zero_world_barrier(world));
    CHECK_OK(zi_group_submit(group, own.stream, &job, 1));
    CHECK_OK(gpu_wait(&own));
    CHECK_OK(zero_world_barrier(world));
    if (rank == 0) {
        read_crossed(t, size);
    }
    zi_group_destroy(group);
    own.device.ops->memory_free(own.device.self, memory, bytes + part);
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

static void run_case(uint32_t ranks, traffic_case *t)
{
    fake_cuda_start(FAKE_CUDA_EAGER, test_seed);
    common.scratch_bytes = LARGE_SCRATCH;
    common.per_host = t->per_host;
    CHECK_OK(run_world(ranks, send_unit, t));
    fake_nccl_hosts(0);
    finish();
}

/* KiB that each rank sends to other hosts. */
static uint64_t kib_of(uint32_t hosts, zi_collective_kind kind, zero_dtype dtype, uint32_t flags)
{
    traffic_case t = {.kind = kind, .dtype = dtype, .flags = flags, .per_host = GPUS_PER_HOST};
    run_case(hosts * GPUS_PER_HOST, &t);
    CHECK_EQ(t.crossed % 1024, 0);
    return t.crossed / 1024;
}

/* KiB that leave the host that sends most of a reduce-scatter. */
static uint64_t kib_left(uint32_t ranks, uint32_t per_host, zero_dtype dtype, zero_dtype sum_dtype,
                         uint32_t flags)
{
    traffic_case t = {.kind = ZI_REDUCE_SCATTER,
                      .dtype = dtype,
                      .flags = flags,
                      .per_host = per_host,
                      .sum_dtype = sum_dtype};
    run_case(ranks, &t);
    CHECK_EQ(t.left % 1024, 0);
    return t.left / 1024;
}

/* The documentation has this line. */
static void check_line(const char *line)
{
    static char text[1 << 16];
    FILE *file = fopen(TUNING_MD, "r");
    CHECK(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    if (strstr(text, line) == NULL) {
        TEST_FAIL("docs/tuning.md lacks the line %s", line);
    }
}

static void check_row(uint32_t hosts, zero_dtype dtype)
{
    const uint64_t whole = ELEMENTS * zero_dtype_bytes(dtype) / 1024;
    const uint64_t least = (hosts - 1) * whole / (hosts * GPUS_PER_HOST);
    const uint64_t levels = kib_of(hosts, ZI_REDUCE_SCATTER, dtype, 0);
    const uint64_t exact = kib_of(hosts, ZI_REDUCE_SCATTER, dtype, ZI_COLLECTIVE_EXACT);
    const uint64_t native = kib_of(hosts, ZI_REDUCE_SCATTER, dtype, ZI_COLLECTIVE_NATIVE);
    const uint64_t gather = kib_of(hosts, ZI_ALL_GATHER, dtype, 0);
    CHECK(levels * 100 <= least * 105);
    CHECK_EQ(exact, least * GPUS_PER_HOST);
    char line[128];
    (void)snprintf(line, sizeof line,
                   "| %u x 8 | %s | %" PRIu64 " | %" PRIu64 " | %" PRIu64 " | %" PRIu64
                   " | %" PRIu64 " |\n",
                   hosts, zero_dtype_name(dtype), least, levels, exact, native, gather);
    check_line(line);
}

TEST(bf16_within_one_host)
{
    check_row(1, ZERO_DTYPE_BF16);
}
TEST(bf16_over_two_hosts)
{
    check_row(2, ZERO_DTYPE_BF16);
}
TEST(bf16_over_four_hosts)
{
    check_row(4, ZERO_DTYPE_BF16);
}
TEST(fp32_within_one_host)
{
    check_row(1, ZERO_DTYPE_F32);
}
TEST(fp32_over_two_hosts)
{
    check_row(2, ZERO_DTYPE_F32);
}
TEST(fp32_over_four_hosts)
{
    check_row(4, ZERO_DTYPE_F32);
}

/* Check what a host's link carries with the default and with NCCL's own sum: for gradients of fp32,
 * for those of bf16, whose sums go in fp32, and with a wire_dtype of bf16. */
static void check_links(const char *hosts, uint32_t ranks, uint32_t per_host, bool native_less)
{
    static const zero_dtype f32 = ZERO_DTYPE_F32;
    static const zero_dtype bf16 = ZERO_DTYPE_BF16;
    const uint64_t all_f32[] = {kib_left(ranks, per_host, f32, f32, 0),
                                kib_left(ranks, per_host, f32, f32, ZI_COLLECTIVE_NATIVE)};
    const uint64_t sums_f32 = kib_left(ranks, per_host, bf16, f32, 0);
    const uint64_t all_bf16[] = {kib_left(ranks, per_host, bf16, bf16, 0),
                                 kib_left(ranks, per_host, bf16, bf16, ZI_COLLECTIVE_NATIVE)};
    char line[160];
    (void)snprintf(line, sizeof line,
                   "| %s | %" PRIu64 ", %" PRIu64 " | %" PRIu64 ", %" PRIu64 " | %" PRIu64
                   ", %" PRIu64 " |\n",
                   hosts, all_f32[0], all_f32[1], sums_f32, all_f32[1], all_bf16[0], all_bf16[1]);
    CHECK_EQ(all_f32[1] < all_f32[0], native_less);
    CHECK_EQ(all_bf16[1] < all_bf16[0], native_less);
    check_line(line);
}

/* In two levels never more than NCCL's own sum; all at once more than it. */
TEST(links_of_two_hosts)
{
    check_links("8 + 8", 16, 8, false);
}
TEST(links_of_four_hosts)
{
    check_links("8 + 8 + 8 + 8", 32, 8, false);
}
TEST(links_of_unlike_hosts)
{
    check_links("12 + 4", 16, UNLIKE_FIRST, true);
}
TEST(links_of_many_small_hosts)
{
    check_links("16 of 1", 16, 1, false);
}

/* Bytes of an element of a host's sum, as the hosts send it. */
static double bytes_between(uint32_t hosts, zero_dtype sum_dtype)
{
    traffic_case t = {.kind = ZI_REDUCE_SCATTER,
                      .dtype = ZERO_DTYPE_BF16,
                      .per_host = GPUS_PER_HOST,
                      .sum_dtype = sum_dtype};
    run_case(hosts * GPUS_PER_HOST, &t);
    const uint64_t sent = (hosts - 1) * (ELEMENTS / (hosts * GPUS_PER_HOST));
    return sent == 0 ? (double)t.crossed : (double)t.crossed / (double)sent;
}

static void check_packed(uint32_t hosts)
{
    const double f32 = bytes_between(hosts, ZERO_DTYPE_F32);
    const double bf16 = bytes_between(hosts, ZERO_DTYPE_BF16);
    const double int8 = bytes_between(hosts, ZERO_DTYPE_INT8_BLOCK);
    const double int4 = bytes_between(hosts, ZERO_DTYPE_INT4_BLOCK);
    const double crossing = hosts == 1 ? 0.0 : 1.0;
    CHECK(f32 == 4 * crossing && bf16 == 2 * crossing);
    CHECK(int8 == 260.0 / 256 * crossing && int4 == 132.0 / 256 * crossing);
    char line[128];
    (void)snprintf(line, sizeof line, "| %u x 8 | %g | %g | %.4g | %.3g |\n", hosts, f32, bf16,
                   int8, int4);
    check_line(line);
}

TEST(packed_within_one_host)
{
    check_packed(1);
}
TEST(packed_over_two_hosts)
{
    check_packed(2);
}
TEST(packed_over_four_hosts)
{
    check_packed(4);
}
