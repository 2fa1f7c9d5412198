/* A run's directory with two checkpoints of one model, for readers that are not of this library.
 *
 * Usage: make_checkpoint RUN SEED */
#include "checkpoint_case.h"

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "Usage: make_checkpoint RUN SEED\n");
        return 2;
    }
    const uint64_t seed = strtoull(argv[2], NULL, 10);
    for (uint32_t world = 1; world <= 3; world += 2) {
        case_model c;
        char name[32];
        case_make(&c, 24, 300000, world, seed);
        zi_checkpoint_step_name(name, sizeof name, 40 + world);
        case_write(&c, argv[1], name, 40 + world);
        case_free(&c);
    }
    return 0;
}
