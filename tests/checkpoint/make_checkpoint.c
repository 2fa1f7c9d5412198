/* A run's directory with checkpoints of one model, for readers that are not of this library: of one
 * rank, of three, and of three model-parallel parts; then of the same with states in remainders and
 * codes, of three ranks and of three parts.
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
    static const uint32_t worlds[] = {1, 3, 2, 3, 2};
    static const uint32_t parts[] = {1, 1, 3, 1, 3};
    for (int i = 0; i < 5; i++) {
        case_model c;
        char name[32];
        const uint64_t step = 41 + 2 * (uint64_t)i;
        case_make(&c, 24, 300000, worlds[i], seed);
        if (parts[i] > 1) {
            case_split(&c, parts[i]);
        }
        if (i >= 3) {
            case_shrink(&c);
        }
        zi_checkpoint_step_name(name, sizeof name, step);
        case_write(&c, argv[1], name, step);
        case_free(&c);
    }
    return 0;
}
