/* Meshes on the caller's own MPI communicators, which MPI_Comm_split makes of the launched ranks:
 * the parts of a model come to the bits of the whole. Run by mpirun; a check that fails ends the
 * job. */
#include <mpi.h>

#include "mesh_course.h"
#include "zero/mpi.h"

static zero_world *join(int color, uint32_t rank)
{
    MPI_Comm comm = MPI_COMM_NULL;
    zero_world *world = NULL;
    CHECK_EQ(MPI_Comm_split(MPI_COMM_WORLD, color, (int)rank, &comm), MPI_SUCCESS);
    CHECK_OK(zero_world_create_mpi(comm, TOY_DEADLINE_MS, &world));
    CHECK_EQ(MPI_Comm_free(&comm), MPI_SUCCESS);
    CHECK_EQ(zero_world_rank(world), rank);
    return world;
}

static zero_status run_mesh(uint32_t data, uint32_t parts, mesh_fn fn, void *user)
{
    int rank = 0;
    CHECK_EQ(MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_SUCCESS);
    mesh_rank at = {.data = (uint32_t)rank % data, .part = (uint32_t)rank / data};
    CHECK(at.part < parts);
    at.world = join((int)at.part, at.data);
    at.parts = join((int)at.data, at.part);
    const zero_status status = fn(&at, user);
    zero_world_destroy(at.parts);
    zero_world_destroy(at.world);
    return status;
}

int main(int argc, char **argv)
{
    alarm(280);
    int level = 0;
    int rank = 0;
    int size = 0;
    CHECK_EQ(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level), MPI_SUCCESS);
    CHECK_EQ(MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_SUCCESS);
    CHECK_EQ(MPI_Comm_size(MPI_COMM_WORLD, &size), MPI_SUCCESS);
    compare_splits(ZERO_DTYPE_F32, NONE, (uint32_t)size);
    compare_splits(ZERO_DTYPE_BF16, NONE, (uint32_t)size);
    compare_splits(ZERO_DTYPE_F32, 2 * (UNITS - 1), (uint32_t)size);
    CHECK_EQ(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
    if (rank == 0) {
        printf("3 passed, 0 failed, 0 skipped\n");
    }
    return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
