/* How many calls of NCCL a reduction becomes on many ranks, and how long their messages are, by the
 * code that makes them: one rank's side of it, with calls that are counted and move nothing. The
 * table in docs/tuning.md. */
#include "comm/nccl/nccl_state.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "nccl_rig.h"
#include "reads.h"

#define GPUS_PER_HOST 8
#define ELEMENTS ((uint64_t)1 << 28)
#define RANKS_MAX 1024
/* Scratch memory for any number of ranks, as it was before it grew with them. */
#define SCRATCH_FIXED ((uint64_t)36 << 20)

static struct {
    uint64_t groups; /* of calls */
    uint64_t calls;
    uint64_t in_group; /* calls of the group that is open, and of the one that had most */
    uint64_t most_in_group;
    uint64_t sent;        /* bytes */
    uint64_t longest[2];  /* bytes of a message within the host, and to another */
    uint64_t messages[2]; /* sent */
} counted;

static ncclResult_t begin(void)
{
    counted.groups++;
    counted.in_group = 0;
    return ncclSuccess;
}

static ncclResult_t end(void)
{
    counted.calls += counted.in_group;
    counted.most_in_group = zi_max_u64(counted.most_in_group, counted.in_group);
    return ncclSuccess;
}

static ncclResult_t count_send(const void *source, size_t count, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t stream)
{
    const uint64_t bytes = count * (type == ncclFloat32 ? 4 : 2);
    const uint32_t other = (uint32_t)peer / GPUS_PER_HOST != 0;
    (void)source, (void)comm, (void)stream;
    counted.in_group++;
    counted.sent += peer == 0 ? 0 : bytes;
    counted.messages[other]++;
    counted.longest[other] = zi_max_u64(counted.longest[other], bytes);
    return ncclSuccess;
}

static ncclResult_t count_recv(void *target, size_t count, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t stream)
{
    (void)target, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    counted.in_group++;
    return ncclSuccess;
}

static zero_status fold_nothing(void *self, zi_stream *stream, const zi_fold *fold)
{
    (void)self, (void)stream, (void)fold;
    return ZERO_OK;
}

/* Rank 0 of a group over hosts of 8 GPUs. No call reads or writes what its memory points to. */
static zi_nccl_group *group_open(const zi_nccl_api *api, const zi_kernels *kernels, uint32_t ranks,
                                 uint64_t scratch_bytes)
{
    static uint64_t hosts[RANKS_MAX];
    zi_nccl_group *group = NULL;
    const size_t member_bytes = sizeof group->sources[0] + 2 * sizeof *group->order;
    CHECK_OK(zi_calloc(1, sizeof *group + ranks * member_bytes, (void **)&group));
    CHECK_OK(zi_calloc(1, sizeof *group->handle, (void **)&group->handle));
    (void)pthread_mutex_init(&group->handle->mutex, NULL);
    group->handle->api = api;
    group->order = (uint32_t *)(void *)&group->sources[ranks];
    group->by_host = group->order + ranks;
    group->base = (zi_group){.kernels = kernels, .size = ranks};
    group->chunk_limit = 1;
    for (uint32_t i = 0; i < ranks; i++) {
        group->order[i] = i;
        hosts[i] = i / GPUS_PER_HOST;
    }
    group->flat = zi_grid_flat(group->order, ranks, 0);
    group->grid = zi_grid_of_hosts(group->order, hosts, ranks, 0, group->by_host);
    group->zeros_bytes = zi_min_u64(scratch_bytes / 9, ZI_ZEROS_MAX);
    group->zeros = own.scratch;
    group->sums = own.scratch + group->zeros_bytes;
    group->sums_bytes = scratch_bytes - group->zeros_bytes;
    return group;
}

/* A unit of bf16 gradients, whose hosts' sums are sent in fp32. */
static void count_unit(uint32_t ranks, uint64_t scratch_bytes)
{
    zi_nccl_api api = *fake_nccl_api();
    api.group_start = begin;
    api.group_end = end;
    api.send = count_send;
    api.recv = count_recv;
    zi_kernels_ops ops = *own.kernels.ops;
    ops.fold = fold_nothing;
    const zi_kernels kernels = {.ops = &ops, .device = &own.device};
    zi_nccl_group *group = group_open(&api, &kernels, ranks, scratch_bytes);
    const zi_collective job = {.kind = ZI_REDUCE_SCATTER,
                               .send_dtype = ZERO_DTYPE_BF16,
                               .recv_dtype = ZERO_DTYPE_F32,
                               .sum_dtype = ZERO_DTYPE_F32,
                               .count = ELEMENTS / ranks,
                               .send = own.scratch,
                               .recv = own.scratch};
    memset(&counted, 0, sizeof counted);
    CHECK_OK(zi_nccl_move(group, own.stream, &job, 1));
    (void)pthread_mutex_destroy(&group->handle->mutex);
    zi_free(group->handle);
    zi_free(group);
}

/* As the plan of a model with such a unit has it. */
static uint64_t planned_scratch(uint32_t ranks)
{
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    uint32_t index = 0;
    zero_engine_options options = zero_engine_options_init();
    const zero_tensor_desc desc = {
        .name = "weight", .shape = {ELEMENTS}, .dims = 1, .dtype = ZERO_DTYPE_BF16};
    options.device = ZERO_DEVICE_CUDA;
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "layer"}, &index, NULL));
    CHECK_OK(zero_tensor_add(model, index, &desc, &index));
    CHECK_OK(zero_plan_create(model, &options, ranks, &plan));
    const uint64_t bytes = plan_memory(plan).bytes[ZERO_ROLE_SCRATCH];
    zero_plan_destroy(plan);
    zero_model_destroy(model);
    return bytes;
}

/* The documentation has this line. */
static void check_line(const char *line)
{
    static char text[1 << 16];
    FILE *file = fopen(TUNING_MD, "r");
    CHECK(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    printf("  %s", line);
    if (strstr(text, line) == NULL) {
        TEST_FAIL("docs/tuning.md lacks the line %s", line);
    }
}

/* Whoever sends fewer bytes than all but a rank's own part has left something out. */
static void check_sent(uint32_t ranks)
{
    const uint64_t hosts = ranks / GPUS_PER_HOST;
    const uint64_t part = ELEMENTS / ranks;
    const uint64_t within = (GPUS_PER_HOST - 1) * hosts * part * 2;
    CHECK_EQ(counted.sent, within + (hosts - 1) * part * 4);
}

static void check_row(uint32_t ranks)
{
    char line[256] = "";
    const uint64_t scratch[] = {SCRATCH_FIXED, planned_scratch(ranks)};
    uint64_t seen[2][4];
    gpu_open(&own);
    gpu_lend(&own);
    for (int i = 0; i < 2; i++) {
        count_unit(ranks, scratch[i]);
        check_sent(ranks);
        seen[i][0] = counted.most_in_group;
        seen[i][1] = counted.calls;
        seen[i][2] = counted.longest[0] >> 10;
        seen[i][3] = counted.longest[1] >> 10;
    }
    gpu_close(&own);
    (void)snprintf(line, sizeof line,
                   "| %u | %" PRIu64 ", %" PRIu64 " | %" PRIu64 ", %" PRIu64 " | %" PRIu64
                   ", %" PRIu64 " | %" PRIu64 ", %" PRIu64 " | %" PRIu64 ", %" PRIu64 " |\n",
                   ranks, scratch[0] >> 20, scratch[1] >> 20, seen[0][0], seen[1][0], seen[0][1],
                   seen[1][1], seen[0][2], seen[1][2], seen[0][3], seen[1][3]);
    /* Twice as many ranks do not halve the messages. */
    CHECK(seen[1][2] >= 192);
    CHECK(ranks == GPUS_PER_HOST || seen[1][3] >= 384);
    check_line(line);
}

TEST(calls_of_8_ranks)
{
    check_row(8);
}
TEST(calls_of_64_ranks)
{
    check_row(64);
}
TEST(calls_of_256_ranks)
{
    check_row(256);
}
TEST(calls_of_1024_ranks)
{
    check_row(1024);
}
