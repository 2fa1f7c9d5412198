/* The options struct may be shorter or longer than the library's: an older caller's is filled up
 * with zeros, a newer caller's is accepted as long as the library need not know what it adds. */
#include <stddef.h>

#include "../harness.h"
#include "zero/zero.h"

static zero_model *one_tensor_model(void)
{
    zero_model *model = NULL;
    uint32_t unit = 0;
    uint32_t tensor = 0;
    const zero_tensor_desc desc = {.name = "weight", .shape = {300}, .dims = 1};
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, "unit", &unit));
    CHECK_OK(zero_tensor_add(model, unit, &desc, &tensor));
    return model;
}

/* A caller's struct of another size, at the end of its own block, so that ASAN sees a read past
 * it. */
static zero_engine_options *options_of_bytes(size_t bytes)
{
    const zero_engine_options full = zero_engine_options_init();
    unsigned char *block = calloc(1, bytes);
    CHECK(block != NULL);
    memcpy(block, &full, bytes < sizeof full ? bytes : sizeof full);
    zero_engine_options *options = (zero_engine_options *)(void *)block;
    options->struct_bytes = bytes;
    return options;
}

static uint64_t total_bytes(const zero_model *model, const zero_engine_options *options)
{
    zero_plan *plan = NULL;
    CHECK_OK(zero_plan_create(model, options, 4, &plan));
    const uint64_t total = zero_plan_memory(plan).total_bytes;
    const zero_engine_options resolved = zero_plan_options(plan);
    CHECK_EQ(resolved.struct_bytes, sizeof resolved);
    zero_plan_destroy(plan);
    CHECK(total > 0);
    return total;
}

TEST(every_shorter_struct_reads_as_zero_filled)
{
    zero_model *model = one_tensor_model();
    zero_engine_options stage0 = zero_engine_options_init();
    stage0.stage = ZERO_STAGE_0;
    const uint64_t by_default = total_bytes(model, NULL);
    const uint64_t at_stage0 = total_bytes(model, &stage0);
    CHECK(by_default != at_stage0);
    /* From the shortest that still holds the stage, the way structs grow: by whole fields. */
    const size_t first = offsetof(zero_engine_options, stage) + sizeof stage0.stage;
    for (size_t bytes = first; bytes <= sizeof stage0; bytes += 4) {
        zero_engine_options *options = options_of_bytes(bytes);
        CHECK_EQ(total_bytes(model, options), by_default);
        options->stage = ZERO_STAGE_0;
        CHECK_EQ(total_bytes(model, options), at_stage0);
        free(options);
    }
    zero_model_destroy(model);
}

TEST(longer_struct_with_a_zero_tail_is_accepted)
{
    zero_model *model = one_tensor_model();
    for (size_t more = 8; more <= 2048; more *= 2) {
        zero_engine_options *options = options_of_bytes(sizeof *options + more);
        CHECK_EQ(total_bytes(model, options), total_bytes(model, NULL));
        free(options);
    }
    zero_model_destroy(model);
}

TEST(longer_struct_with_a_set_tail_is_unsupported)
{
    zero_model *model = one_tensor_model();
    const size_t more = 24;
    for (size_t at = 0; at < more; at++) {
        zero_engine_options *options = options_of_bytes(sizeof *options + more);
        ((unsigned char *)options)[sizeof *options + at] = 1;
        zero_plan *plan = NULL;
        CHECK_FAILS(zero_plan_create(model, options, 4, &plan), ZERO_UNSUPPORTED, "newer library");
        CHECK(plan == NULL);
        free(options);
    }
    zero_model_destroy(model);
}

TEST(struct_that_was_never_initialised_is_refused)
{
    zero_model *model = one_tensor_model();
    zero_engine_options options;
    memset(&options, 0, sizeof options);
    zero_plan *plan = NULL;
    CHECK_FAILS(zero_plan_create(model, &options, 4, &plan), ZERO_INVALID_ARGUMENT, "struct_bytes");
    zero_model_destroy(model);
}

TEST_MAIN()
