/* engine over the CUDA runtime's double: the caller's functions for a GPU's memory. What they are
 * asked for is the plan, what they may get wrong is told, and all that they gave comes back. */
#include "harness.h"

#include <pthread.h>

#include "fake_cuda.h"
#include "toy.h"
#include "zero/zero.h"

#define BLOCKS_MAX 256

/* The fault of the block that the pool gives. */
typedef enum fault { RIGHT, NONE, MISALIGNED, OF_HOST, OF_OTHER_GPU } fault;

typedef struct block {
    void *base; /* as cudaMalloc gave it; NULL: it did not */
    void *given;
    size_t bytes;
    int32_t device;
    pthread_t thread;
} block;

typedef struct pool {
    pthread_mutex_t lock;
    block blocks[BLOCKS_MAX]; /* that are lent */
    uint32_t lent;
    uint32_t allocs;
    uint64_t lent_bytes;
    uint64_t peak_bytes;
    uint32_t wrong_at; /* the call, from 1, whose block is wrong; 0: none */
    fault wrong;
    cudaStream_t busy; /* NULL, or where each block is still written to when it is given */
} pool;

static _Alignas(4096) unsigned char host_memory[1 << 20];

static void *pool_take(void *user, size_t bytes, int32_t device)
{
    pool *p = user;
    block b = {.bytes = bytes, .device = device, .thread = pthread_self()};
    CHECK(bytes != 0 && bytes % 4096 == 0);
    CHECK_EQ(pthread_mutex_lock(&p->lock), 0);
    const fault wrong = ++p->allocs == p->wrong_at ? p->wrong : RIGHT;
    if (wrong != NONE && wrong != OF_HOST) {
        CHECK_EQ(cudaSetDevice(wrong == OF_OTHER_GPU ? 1 : device), cudaSuccess);
        CHECK_EQ(cudaMalloc(&b.base, bytes + 256), cudaSuccess);
        CHECK_EQ(cudaSetDevice(device), cudaSuccess);
    }
    b.given = wrong == OF_HOST      ? host_memory
              : wrong == MISALIGNED ? (unsigned char *)b.base + 128
                                    : b.base;
    if (p->busy != NULL) {
        CHECK_EQ(cudaMemsetAsync(b.given, 7, bytes, p->busy), cudaSuccess);
    }
    if (b.given != NULL) {
        CHECK(p->lent < BLOCKS_MAX);
        p->blocks[p->lent++] = b;
        p->lent_bytes += bytes;
        p->peak_bytes = p->lent_bytes > p->peak_bytes ? p->lent_bytes : p->peak_bytes;
    }
    CHECK_EQ(pthread_mutex_unlock(&p->lock), 0);
    return b.given;
}

static void pool_give(void *user, void *pointer, size_t bytes, int32_t device)
{
    pool *p = user;
    int current = -1;
    CHECK_EQ(pthread_mutex_lock(&p->lock), 0);
    uint32_t at = 0;
    while (at < p->lent && p->blocks[at].given != pointer) {
        at++;
    }
    CHECK(at < p->lent);
    const block b = p->blocks[at];
    CHECK_EQ(b.bytes, bytes);
    CHECK_EQ(b.device, device);
    CHECK(pthread_equal(b.thread, pthread_self()));
    CHECK_EQ(cudaGetDevice(&current), cudaSuccess);
    CHECK_EQ(current, device);
    p->blocks[at] = p->blocks[--p->lent];
    p->lent_bytes -= bytes;
    CHECK_EQ(cudaFree(b.base), cudaSuccess);
    CHECK_EQ(pthread_mutex_unlock(&p->lock), 0);
}

static pool new_pool(void)
{
    return (pool){.lock = PTHREAD_MUTEX_INITIALIZER};
}

static void use_pool(toy_run *run, pool *p)
{
    run->options.device_alloc = pool_take;
    run->options.device_free = pool_give;
    run->options.device_memory_user = p;
}

static toy_run run_of_threads(void)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    run.steps = 3;
    run.flavour = TOY_INTEGER;
    run.tuning.transport = ZERO_TRANSPORT_PEER;
    return run;
}

/* ---- what is asked for ---- */

static zero_status train_in_pool(zero_world *world, void *user)
{
    pool own = new_pool();
    toy_run run = *(const toy_run *)user;
    toy_state plain;
    TOY_TRY(toy_train_by(&run, world, toy_step, &plain));
    use_pool(&run, &own);
    TOY_TRY(toy_train_same(&run, world, toy_step, &plain, "the caller's memory"));
    CHECK_EQ(own.peak_bytes,
             toy_planned(&run, zero_world_size(world)).tier_bytes[ZERO_TIER_DEVICE]);
    CHECK(own.allocs > 3);
    CHECK_EQ(own.lent, 0);
    toy_state_free(&plain);
    return ZERO_OK;
}

TEST(what_is_asked_for_is_the_plan_and_results_are_the_same)
{
    toy_run run = run_of_threads();
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        run.options.tier[ZERO_ROLE_MASTER] = ranks == 2 ? ZERO_TIER_HOST : ZERO_TIER_DEVICE;
        CHECK_OK(zero_world_run(ranks, TOY_DEADLINE_MS, train_in_pool, &run));
    }
}

TEST(evicted_roles_are_given_back_and_taken_again)
{
    pool p = new_pool();
    toy_run run = run_of_threads();
    toy_trainer trainer;
    use_pool(&run, &p);
    CHECK_OK(toy_open(&trainer, &run, NULL));
    const uint64_t all = p.lent_bytes;
    const uint32_t allocs = p.allocs;
    CHECK_OK(zero_engine_evict(trainer.engine, ZERO_EVICT_ALL, ZERO_TIER_HOST));
    CHECK(p.lent_bytes < all);
    p.wrong_at = p.allocs + 1;
    p.wrong = NONE;
    CHECK_FAILS(zero_engine_restore(trainer.engine), ZERO_ERR_OUT_OF_MEMORY,
                "device_alloc gave NULL");
    CHECK_OK(zero_engine_restore(trainer.engine));
    CHECK_EQ(p.lent_bytes, all);
    CHECK(p.allocs > allocs);
    CHECK_OK(toy_step(&trainer));
    toy_close(&trainer);
    CHECK_EQ(p.lent, 0);
}

/* A pool hands on what work that is under way still uses, in the order of a stream. */
TEST(memory_that_other_streams_still_write_to)
{
    pool p = new_pool();
    toy_run run = run_of_threads();
    toy_trainer trainer;
    use_pool(&run, &p);
    for (int mode = 0; mode < FAKE_CUDA_MODES; mode++) {
        fake_cuda_start((fake_cuda_mode)mode, test_seed);
        CHECK_EQ(cudaStreamCreateWithFlags(&p.busy, cudaStreamNonBlocking), cudaSuccess);
        CHECK_OK(toy_open(&trainer, &run, NULL));
        CHECK_OK(toy_step(&trainer));
        toy_close(&trainer);
        CHECK_EQ(p.lent, 0);
        CHECK_EQ(cudaStreamDestroy(p.busy), cudaSuccess);
        CHECK(fake_cuda_check());
    }
}

/* Gradients of two units of one bucket are zeroed on two streams when the engine goes. */
TEST(memory_whose_zeros_are_under_way)
{
    pool p = new_pool();
    toy_run run = toy_run_equal(2, 1000, ZERO_DTYPE_F32);
    toy_trainer trainer;
    use_pool(&run, &p);
    fake_cuda_start(FAKE_CUDA_LAZY, test_seed);
    CHECK_OK(toy_open(&trainer, &run, NULL));
    CHECK_OK(toy_micro_begin(&trainer, true));
    for (uint32_t unit = 2; unit-- > 0;) {
        toy_stream_take(unit);
        CHECK_OK(zero_unit_grads_acquire(trainer.engine, unit, toy_stream()));
    }
    toy_close(&trainer);
    CHECK_EQ(p.lent, 0);
    CHECK(fake_cuda_check());
}

/* ---- what the functions get wrong ---- */

typedef struct wrongness {
    fault wrong;
    zero_status status;
    const char *text;
    const char *value;
} wrongness;

typedef struct attempt {
    toy_run run;
    const wrongness *expected;
    bool created; /* the pool was right in every call that was made */
} attempt;

static zero_status create_with(zero_world *world, void *user)
{
    attempt *a = user;
    toy_trainer trainer;
    const zero_status status = toy_open(&trainer, &a->run, world);
    if (status == ZERO_OK) {
        a->created = true;
        toy_close(&trainer);
        return ZERO_OK;
    }
    CHECK_EQ(status, a->expected->status);
    CHECK(strstr(zero_last_error()->message, a->expected->text) != NULL);
    CHECK(strstr(zero_last_error()->message, a->expected->value) != NULL);
    return ZERO_OK;
}

static void get_wrong(uint32_t ranks, const wrongness *expected)
{
    uint32_t nth = 0;
    attempt a = {.run = run_of_threads(), .expected = expected};
    fake_cuda_devices(2);
    while (!a.created) {
        pool p = new_pool();
        p.wrong_at = ++nth;
        p.wrong = expected->wrong;
        use_pool(&a.run, &p);
        CHECK_OK(zero_world_run(ranks, TOY_DEADLINE_MS, create_with, &a));
        CHECK_EQ(p.lent, 0);
        CHECK_EQ(p.lent_bytes, 0);
        CHECK(fake_cuda_check());
        CHECK(nth < BLOCKS_MAX);
    }
    CHECK(nth > 3);
}

static const wrongness all_wrong[] = {
    {NONE, ZERO_ERR_OUT_OF_MEMORY, "device_alloc gave NULL for ", " bytes of GPU 0"},
    {MISALIGNED, ZERO_ERR_INVALID_ARGUMENT, "device_alloc gave 0x", "not a multiple of 256"},
    {OF_HOST, ZERO_ERR_INVALID_ARGUMENT, "device_alloc gave 0x", "memory of kind 0"},
    {OF_OTHER_GPU, ZERO_ERR_INVALID_ARGUMENT, "device_alloc gave 0x", "of GPU 1; give"},
};

TEST(every_call_may_be_wrong)
{
    for (size_t i = 0; i < sizeof all_wrong / sizeof all_wrong[0]; i++) {
        get_wrong(1, &all_wrong[i]);
    }
    get_wrong(2, &all_wrong[0]);
}

/* ---- where it cannot be ---- */

static void refuse_pool(const zero_engine_options *options, const char *text)
{
    zero_plan *plan = NULL;
    const toy_run run = run_of_threads();
    CHECK_FAILS(zero_plan_create(run.model->model, options, 2, &plan), ZERO_ERR_INVALID_ARGUMENT,
                text);
    CHECK(plan == NULL);
}

TEST(refused_where_memory_is_not_the_gpus_alone)
{
    toy_run run = run_of_threads();
    zero_tuning tuning = zero_tuning_init();
    use_pool(&run, NULL);
    zero_engine_options options = run.options;
    options.tuning = &tuning;
    options.device = ZERO_DEVICE_CPU;
    refuse_pool(&options, "options.device_alloc is given and options.device is 1");
    options.device = ZERO_DEVICE_CUDA;
    tuning.nccl_memory = ZERO_NCCL_MEMORY_REGISTERED;
    refuse_pool(&options, "options.device_alloc is given and tuning.nccl_memory is 1");
    tuning.nccl_memory = ZERO_NCCL_MEMORY_NONE;
    options.device_free = NULL;
    refuse_pool(&options, "options.device_alloc is given and options.device_free NULL");
    options.device_alloc = NULL;
    options.device_free = pool_give;
    refuse_pool(&options, "options.device_free is given and options.device_alloc NULL");
}
