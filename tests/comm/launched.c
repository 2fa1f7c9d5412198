/* A trainer as far as its launcher is concerned: linked with libzero.so alone, it joins the world
 * of the MPI that started it. Each rank prints one line. */
#include <stdio.h>
#include <zero/zero.h>

int main(void)
{
    zero_world *world = NULL;
    if (zero_world_create_launched(20000, &world) != ZERO_OK ||
        zero_world_barrier(world) != ZERO_OK) {
        printf("%s\n", zero_last_error()->message);
        return 1;
    }
    printf("rank %u of %u over %s\n", zero_world_rank(world), zero_world_size(world),
           zero_world_backend(world));
    zero_world_destroy(world);
    return 0;
}
