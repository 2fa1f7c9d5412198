/* A checkpoint as so many ranks save it, of a model that test_ckpt.py knows: three flats, of bf16
 * with masters, f32 without, and frozen f16. With PARTS the model is in so many, of WORLD ranks
 * each. With BETA the second part's products of betas are others in group 0. The loss scale was
 * static or dynamic, else the manifest does not say. With --small masters are remainders and
 * moments codes.
 *
 * Usage: write_checkpoint [--static | --dynamic | --small] RUN NAME WORLD STEP SEED [PARTS [BETA]]
 */
#include "../checkpoint/checkpoint_case.h"

#define TENSORS 6

static zi_checkpoint_tensor tensors[TENSORS] = {
    {.name = "embed", .dims = 2, .shape = {700, 1000}},
    {.name = "h.0.weight", .dims = 2, .shape = {300, 257}, .group = 1},
    {.name = "h.0.bias", .dims = 1, .shape = {257}, .flags = ZERO_TENSOR_NO_DECAY},
    {.name = "scale"},
    {.name = "norm.weight", .dims = 1, .shape = {1000}},
    {.name = "frozen", .dims = 2, .shape = {5, 100}, .flags = ZERO_TENSOR_FROZEN},
};
/* The end of each flat, and its types. */
static const struct {
    uint32_t end;
    zero_dtype param;
    zero_dtype master;
    zero_dtype moment;
} flats[] = {{4, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32},
             {5, ZERO_DTYPE_F32, ZERO_DTYPE_NONE, ZERO_DTYPE_F32},
             {6, ZERO_DTYPE_F16, ZERO_DTYPE_NONE, ZERO_DTYPE_NONE}};

int main(int argc, char **argv)
{
    bool scale_dynamic = false;
    bool small = false;
    if (argc > 1 && argv[1][0] == '-') {
        scale_dynamic = strcmp(argv[1], "--dynamic") == 0;
        small = strcmp(argv[1], "--small") == 0;
        argc--;
        argv++;
    }
    CHECK(argc >= 6 && argc <= 8);
    case_model c = {.scale_dynamic = scale_dynamic,
                    .world = (uint32_t)strtoul(argv[3], NULL, 10),
                    .seed = strtoull(argv[5], NULL, 10),
                    .own_beta = argc > 7 ? strtod(argv[7], NULL) : 0,
                    .map = {.tensors = calloc(TENSORS, sizeof *tensors), .tensor_count = TENSORS}};
    for (uint32_t flat = 0, i = 0; flat < 3; flat++) {
        const uint32_t first = i;
        for (; i < flats[flat].end; i++) {
            tensors[i].count = 1;
            for (uint32_t d = 0; d < tensors[i].dims; d++) {
                tensors[i].count *= tensors[i].shape[d];
            }
            tensors[i].role[ZERO_ROLE_PARAM].dtype = flats[flat].param;
            tensors[i].role[ZERO_ROLE_GRAD].dtype = ZERO_DTYPE_NONE;
            tensors[i].role[ZERO_ROLE_MASTER].dtype = flats[flat].master;
            tensors[i].role[ZERO_ROLE_MOMENT1].dtype = flats[flat].moment;
            tensors[i].role[ZERO_ROLE_MOMENT2].dtype = flats[flat].moment;
        }
        CHECK(c.map.tensors != NULL);
        memcpy(c.map.tensors, tensors, sizeof tensors);
        case_cut(&c.map, first, i, c.world);
        memcpy(tensors, c.map.tensors, sizeof tensors);
    }
    CHECK_OK(zi_checkpoint_map_make(&c.map));
    if (argc > 6) {
        case_split(&c, (uint32_t)strtoul(argv[6], NULL, 10));
    }
    if (small) {
        case_shrink(&c);
    }
    case_write(&c, argv[1], argv[2], strtoull(argv[4], NULL, 10));
    case_free(&c);
    return 0;
}
