/* Engines for a GPU (the CUDA runtime's double) whose ranks MPI started on several hosts, which
 * mpirun's ranks on this host pretend to be: with ZERO_TRANSPORT_HOST they come to the bits of
 * engines for the CPU, however states are split; and clocks of hosts are compared. Run by mpirun; a
 * check that fails ends the job. */
#include <mpi.h>

#include "comm/mpi/mpi_comm.h"
#include "comm/world.h"
#include "engine/engine_internal.h"
#include "fake_cuda.h"
#include "harness.h"
#include "toy.h"

#define DEADLINE_MS 60000

/* The model and options of a training. */
typedef struct training {
    const char *name;
    zero_dtype dtype;
    uint32_t micro_steps;
    uint64_t bucket_bytes; /* 1: a bucket for each unit */
} training;

static const training trainings[] = {
    {"fp32", ZERO_DTYPE_F32, 2, 1},
    {"bf16", ZERO_DTYPE_BF16, 1, 0},
    {"fp16", ZERO_DTYPE_F16, 2, 0},
};

static zero_world *make_world(uint32_t ranks_per_host)
{
    const zi_mpi_options options = {.ranks_per_host = ranks_per_host};
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    CHECK_OK(zi_mpi_comm_create(MPI_Comm_c2f(MPI_COMM_WORLD), DEADLINE_MS, &options, &comm));
    CHECK_OK(zi_world_create(comm, &world));
    CHECK(zero_world_local_size(world) < zero_world_size(world));
    return world;
}

/* Training has changed most of the model. */
static void check_moved(const toy_model *model, const toy_state *state)
{
    uint64_t moved = 0;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        for (uint64_t e = 0; e < tensor->count; e++) {
            const uint32_t initial = toy_encode(toy_initial(t, e), tensor->desc.dtype);
            moved += state->gathered[tensor->base + e] != initial;
        }
    }
    CHECK(moved * 2 > model->element_count);
}

/* On the CPU, then on the GPU. */
static zero_status compare(zero_world *world, const toy_run *given, void *user)
{
    (void)user;
    toy_run run = *given;
    toy_state cpu;
    toy_state gpu;
    toy_device_on_cpu(true);
    run.options.device = ZERO_DEVICE_CPU;
    CHECK_OK(toy_train_collect(&run, world, &cpu));
    toy_device_on_cpu(false);
    run.options.device = ZERO_DEVICE_CUDA;
    run.tuning.transport = ZERO_TRANSPORT_HOST;
    const uint64_t before = fake_cuda_operations(FAKE_CUDA_COPY);
    CHECK_OK(toy_train_collect(&run, world, &gpu));
    CHECK(fake_cuda_operations(FAKE_CUDA_COPY) > before);
    check_moved(run.model, &cpu);
    toy_state_same(run.model, &cpu, &gpu, "CPU and GPU");
    toy_state_free(&cpu);
    toy_state_free(&gpu);
    return ZERO_OK;
}

static void train(zero_world *world, const training *t, fake_cuda_mode mode)
{
    toy_run run = toy_run_mixed(t->dtype);
    run.steps = 4;
    run.micro_steps = t->micro_steps;
    run.tuning.reduction = ZERO_REDUCTION_EXACT;
    run.tuning.bucket_bytes = t->bucket_bytes;
    run.options.loss_scale = 1;
    run.params.max_norm = 0.5f;
    fake_cuda_start(mode, test_seed + zero_world_rank(world));
    CHECK_OK(toy_each_way(world, &run, compare, NULL));
    CHECK(fake_cuda_check());
}

/* The hosts are one, so their clocks are not apart: what is found is within its own bound. */
static void compare_clocks(zero_world *world)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    toy_trainer trainer;
    run.options.device = ZERO_DEVICE_CPU;
    run.tuning.trace_events = 4096;
    toy_device_on_cpu(true);
    CHECK_OK(toy_open(&trainer, &run, world));
    const int64_t offset_ns = trainer.engine->clock_offset_ns;
    const uint64_t error_ns = trainer.engine->clock_error_ns;
    CHECK((error_ns == 0) == (zero_world_rank(world) == 0));
    CHECK((uint64_t)(offset_ns < 0 ? -offset_ns : offset_ns) <= error_ns);
    CHECK(error_ns < UINT64_C(1000000000));
    CHECK_OK(toy_train(&trainer));
    toy_close(&trainer);
    toy_device_on_cpu(false);
}

int main(void)
{
    alarm(280);
    int level = 0;
    CHECK_EQ(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), MPI_SUCCESS);
    int rank = 0;
    int size = 0;
    CHECK_EQ(MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_SUCCESS);
    CHECK_EQ(MPI_Comm_size(MPI_COMM_WORLD, &size), MPI_SUCCESS);
    uint32_t passed = 0;
    for (uint32_t per_host = 1; per_host <= 2 && (int)per_host < size; per_host++) {
        zero_world *world = make_world(per_host);
        compare_clocks(world);
        for (size_t i = 0; i < sizeof trainings / sizeof trainings[0]; i++) {
            train(world, &trainings[i], (fake_cuda_mode)((i + per_host) % FAKE_CUDA_MODES));
            passed++;
            if (rank == 0) {
                printf("%-8s%s (%d ranks, %u a host)\n", "ok", trainings[i].name, size, per_host);
                fflush(stdout);
            }
        }
        zero_world_destroy(world);
    }
    CHECK_EQ(MPI_Finalize(), MPI_SUCCESS);
    if (rank == 0) {
        printf("%u passed, 0 failed, 0 skipped\n", passed);
    }
    return 0;
}
