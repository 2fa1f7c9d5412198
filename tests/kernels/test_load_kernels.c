/* The launch functions as nvcc's host code has them, without a GPU: every kernel that a launch can
 * choose was loaded before, and every grid is one that CUDA takes. */
#include "harness.h"

#include "core/sizes.h"
#include "kernels/cuda/launch.h"
#include "kernels/math/packed.h"

#define KERNELS_MAX 512

typedef struct kernel_set {
    size_t count;
    const void *kernels[KERNELS_MAX];
} kernel_set;

static kernel_set loaded;
static kernel_set launched;
static uint64_t blocks; /* of the last launch */
static size_t refused;  /* the kernel that is not to be had; 0: all are */

static bool holds(const kernel_set *set, const void *kernel)
{
    for (size_t i = 0; i < set->count; i++) {
        if (set->kernels[i] == kernel) {
            return true;
        }
    }
    return false;
}

static void put(kernel_set *set, const void *kernel)
{
    CHECK(set->count < KERNELS_MAX);
    set->kernels[set->count++] = kernel;
}

/* ---- of the runtime's functions these two; a program's own come before a library's ---- */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    if (loaded.count + 1 == refused) {
        return cudaErrorNoKernelImageForDevice;
    }
    memset(attributes, 0, sizeof *attributes);
    CHECK(!holds(&loaded, kernel));
    put(&loaded, kernel);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream)
{
    (void)stream;
    CHECK(arguments[0] != NULL);
    CHECK(grid.x >= 1 && grid.x <= INT32_MAX);
    CHECK(grid.y == 1 && grid.z == 1 && block.y == 1 && block.z == 1);
    CHECK_EQ(block.x, ZI_BLOCK_THREADS);
    CHECK_EQ(shared_bytes, 0);
    blocks = grid.x;
    if (!holds(&launched, kernel)) {
        put(&launched, kernel);
    }
    return cudaSuccess;
}

/* ---- launches of all types ---- */

/* Launches something unless `count`, of whoever calls, is 0. */
#define LAUNCH(call)                          \
    do {                                      \
        blocks = 0;                           \
        CHECK_EQ((call), cudaSuccess);        \
        CHECK((blocks == 0) == (count == 0)); \
    } while (0)

static const zero_dtype elements[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
#define ELEMENTS (sizeof elements / sizeof elements[0])
#define OPTIMIZERS 5
/* Of an optimizer: five kinds of parameters and masters with moments of two types, for each type of
 * gradients; those with codes, and two kinds of remainders with moments of each type. */
#define UPDATES ((5 * 2 * 3 + 5 + 2 * 3) * OPTIMIZERS)
/* Of five ways in which parameters are exact, LAMB's for each type of moments; what is sent, and
 * what comes of it. */
#define MEASUREMENTS (5 * 3 + 5 + 2)

/* master: NONE is the parameter itself. */
static void launch_update(zero_optimizer optimizer, zero_dtype master, zero_dtype param,
                          zero_dtype moment, uint64_t count)
{
    static float place[4];
    for (size_t i = 0; i < ELEMENTS; i++) {
        const zi_update_job job = {.optimizer = optimizer,
                                   .count = count,
                                   .param = place,
                                   .state[ZI_STATE_MASTER] =
                                       master == ZERO_DTYPE_NONE ? NULL : place,
                                   .master_dtype = master,
                                   .grad_dtype = elements[i],
                                   .param_dtype = param,
                                   .moment_dtype = moment};
        LAUNCH(zi_cuda_launch_update(NULL, &job));
        if (zi_optimizer_is_layerwise(optimizer)) {
            LAUNCH(zi_cuda_launch_measure(NULL, &job));
        }
    }
}

static void launch_updates(uint64_t count)
{
    static const zero_optimizer optimizers[OPTIMIZERS] = {ZERO_OPTIMIZER_ADAMW, ZERO_OPTIMIZER_LION,
                                                          ZERO_OPTIMIZER_SGD, ZERO_OPTIMIZER_LAMB,
                                                          ZERO_OPTIMIZER_LARS};
    static const zero_dtype moments[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_I8};
    static const zero_dtype masters[] = {ZERO_DTYPE_NONE, ZERO_DTYPE_F32, ZERO_DTYPE_REMAINDER16,
                                         ZERO_DTYPE_REMAINDER8};
    for (size_t i = 0; i < OPTIMIZERS * 3 * 4 * ELEMENTS; i++) {
        const zero_dtype master = masters[i / OPTIMIZERS / 3 % 4];
        const zero_dtype param = elements[i / OPTIMIZERS / 3 / 4];
        if (param == ZERO_DTYPE_BF16 || !zi_dtype_is_remainder(master)) {
            launch_update(optimizers[i % OPTIMIZERS], master, param, moments[i / OPTIMIZERS % 3],
                          count);
        }
    }
}

static void launch_folds(uint64_t count)
{
    static float place[4];
    static zi_norm_sum sum;
    for (size_t i = 0; i < ELEMENTS * ELEMENTS * 2; i++) {
        const zero_dtype to = elements[i / 2 % ELEMENTS];
        const zero_dtype from = elements[i / 2 / ELEMENTS];
        const zi_fold fold = {.dst = place,
                              .count = count,
                              .dst_dtype = to,
                              .source_dtype = from,
                              .squares = i % 2 == 0 ? NULL : &sum};
        LAUNCH(zi_cuda_launch_fold(NULL, &fold));
        if (to != from) {
            LAUNCH(zi_cuda_launch_cast(NULL, place, to, place, from, count));
        }
    }
}

static void launch_blocks(uint64_t count)
{
    static float place[4];
    static const zero_dtype kinds[] = {ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK};
    for (size_t i = 0; i < ELEMENTS * 2; i++) {
        const zero_dtype type = elements[i / 2];
        const zero_dtype block = kinds[i % 2];
        LAUNCH(zi_cuda_launch_encode(NULL, place, place, block, place, type, count));
        LAUNCH(zi_cuda_launch_decode(NULL, place, type, place, place, block, count));
    }
}

#define PACKED_FOLDS (2 * (ELEMENTS + 1) + 2 * ELEMENTS)

/* Of the types that are known; with squares the kernel of the sum of squares comes behind. */
static void launch_packed_folds(uint64_t count)
{
    static float place[4];
    static const void *const sources[] = {place};
    static zi_norm_sum sum;
    static const zero_dtype dtypes[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16,
                                        ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK};
    size_t known = 0;
    for (size_t i = 0; i < 5 * 5; i++) {
        zi_fold fold = {.dst = place,
                        .sources = sources,
                        .source_count = 1,
                        .count = zi_align_up(count, ZI_GRANULE),
                        .dst_dtype = dtypes[i / 5],
                        .source_dtype = dtypes[i % 5]};
        fold.squares = zi_dtype_is_packed(fold.dst_dtype) ? NULL : &sum;
        if (zi_fold_is_packed(&fold) &&
            zi_packed_fold_is_known(fold.dst_dtype, fold.source_dtype)) {
            known++;
            LAUNCH(zi_cuda_launch_fold(NULL, &fold));
        }
    }
    CHECK_EQ(known, PACKED_FOLDS);
}

static void launch_norms(uint64_t count)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        LAUNCH(zi_cuda_launch_square_sum(NULL, NULL, elements[i], count, NULL));
    }
}

static void launch_layers(uint64_t count)
{
    zi_layers_job job = {.layers = (uint32_t)zi_min_u64(count, 1000)};
    for (job.phase = ZI_LAYERS_PACK; job.phase <= ZI_LAYERS_MERGE; job.phase++) {
        LAUNCH(zi_cuda_launch_layers(NULL, &job));
    }
}

static void load_all(void)
{
    CHECK_EQ(zi_cuda_load_update(), cudaSuccess);
    CHECK_EQ(zi_cuda_load_measure(), cudaSuccess);
    CHECK_EQ(zi_cuda_load_norm(), cudaSuccess);
    CHECK_EQ(zi_cuda_load_fold(), cudaSuccess);
    CHECK_EQ(zi_cuda_load_block(), cudaSuccess);
    CHECK_EQ(zi_cuda_load_packed(), cudaSuccess);
}

TEST(what_is_launched_is_what_was_loaded)
{
    /* The last: as many as 2 TiB of fp32. */
    const uint64_t counts[] = {0, 1, 100000, UINT64_C(1) << 39};
    const zi_decide_job decide = {.messages = {.count = 1, .peer_stride = 1}};
    load_all();
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        launch_updates(counts[i]);
        launch_layers(counts[i]);
        launch_folds(counts[i]);
        launch_norms(counts[i]);
        launch_blocks(counts[i]);
        launch_packed_folds(counts[i]);
    }
    CHECK_EQ(zi_cuda_launch_decide(NULL, &decide), cudaSuccess);
    for (size_t i = 0; i < launched.count; i++) {
        CHECK(holds(&loaded, launched.kernels[i]));
    }
    CHECK_EQ(launched.count, loaded.count);
    /* Updates; measurements; folds without squares and with them; casts; sums; the decision;
     * blocks; packed folds. */
    CHECK_EQ(loaded.count, UPDATES + MEASUREMENTS + 9 + 9 + 6 + 3 + 1 + 12 + PACKED_FOLDS);
}

TEST(a_kernel_that_is_not_to_be_had_is_told)
{
    for (refused = 1; refused <= UPDATES; refused++) {
        loaded.count = 0;
        CHECK_EQ(zi_cuda_load_update(), cudaErrorNoKernelImageForDevice);
    }
    for (refused = 1; refused <= MEASUREMENTS; refused++) {
        loaded.count = 0;
        CHECK_EQ(zi_cuda_load_measure(), cudaErrorNoKernelImageForDevice);
    }
    for (refused = 1; refused <= 4; refused++) {
        loaded.count = 0;
        CHECK_EQ(zi_cuda_load_norm(), cudaErrorNoKernelImageForDevice);
    }
    for (refused = 1; refused <= 24; refused++) {
        loaded.count = 0;
        CHECK_EQ(zi_cuda_load_fold(), cudaErrorNoKernelImageForDevice);
    }
    for (refused = 1; refused <= 12; refused++) {
        loaded.count = 0;
        CHECK_EQ(zi_cuda_load_block(), cudaErrorNoKernelImageForDevice);
    }
    for (refused = 1; refused <= PACKED_FOLDS; refused++) {
        loaded.count = 0;
        CHECK_EQ(zi_cuda_load_packed(), cudaErrorNoKernelImageForDevice);
    }
    loaded.count = 0;
    refused = 1;
    zi_kernels kernels;
    CHECK_FAILS(zi_cuda_kernels_create(NULL, &kernels), ZERO_ERR_DEVICE, "loading update");
}

TEST(the_callers_own_optimizer_has_no_kernel)
{
    const zi_update_job job = {.optimizer = ZERO_OPTIMIZER_CALLBACK,
                               .count = 1,
                               .grad_dtype = ZERO_DTYPE_F32,
                               .param_dtype = ZERO_DTYPE_F32,
                               .moment_dtype = ZERO_DTYPE_F32};
    CHECK_EQ(zi_cuda_launch_update(NULL, &job), cudaErrorInvalidValue);
    CHECK_EQ(launched.count, 0);
}

/* Asked of granules, each by itself, what they have not. */
TEST(folds_of_packed_granules_that_have_no_kernel_are_refused)
{
    static const void *const sources[] = {NULL};
    zi_norm_sum sum;
    const zi_fold right = {.sources = sources,
                           .source_count = 1,
                           .count = 2 * ZI_GRANULE,
                           .dst_dtype = ZERO_DTYPE_INT8_BLOCK,
                           .source_dtype = ZERO_DTYPE_F32,
                           .first = 3 * ZI_GRANULE};
    zi_fold wrong[8];
    for (size_t i = 0; i < 8; i++) {
        wrong[i] = right;
    }
    wrong[0].count = ZI_GRANULE + 1;
    wrong[1].first = 1;
    wrong[2].accumulate = 1;
    wrong[3].squares = &sum;
    wrong[4].source_dtype = ZERO_DTYPE_INT4_BLOCK;
    wrong[5].source_dtype = ZERO_DTYPE_MXFP8;
    wrong[6].dst_dtype = ZERO_DTYPE_I8;
    wrong[6].source_dtype = ZERO_DTYPE_INT4_BLOCK;
    wrong[7].source_count = ZI_CUDA_SOURCES_MAX + 1;
    for (size_t i = 0; i < 8; i++) {
        CHECK_EQ(zi_cuda_launch_fold(NULL, &wrong[i]), cudaErrorInvalidValue);
    }
    CHECK_EQ(launched.count, 0);
    CHECK_EQ(zi_cuda_launch_fold(NULL, &right), cudaSuccess);
    CHECK_EQ(launched.count, 1);
}

TEST(more_blocks_than_a_grid_has_are_refused)
{
    const uint64_t count = UINT64_C(1) << 45;
    CHECK_EQ(zi_cuda_launch_cast(NULL, NULL, ZERO_DTYPE_F32, NULL, ZERO_DTYPE_BF16, count),
             cudaErrorInvalidValue);
    CHECK_EQ(launched.count, 0);
}
