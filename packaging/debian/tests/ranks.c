/* Says how many ranks a launcher made, and over what they talk. */
#include <stdio.h>
#include <zero/zero.h>

int main(void)
{
    zero_world *world = NULL;
    if (zero_world_create_launched(30000, &world) != ZERO_OK) {
        fprintf(stderr, "ranks: %s\n", zero_last_error()->message);
        return 1;
    }
    if (zero_world_rank(world) == 0) {
        printf("%u ranks over %s\n", zero_world_size(world), zero_world_backend(world));
    }
    zero_world_destroy(world);
    return 0;
}
