/* The model through the hooks: training over in-process ranks follows PyTorch's reference, and
 * every way of sharding it gives the same bits. */
#include "gpt2_training.h"

TEST(one_two_and_four_ranks_follow_pytorch)
{
    for (uint32_t ranks = 1; ranks <= SAMPLES; ranks *= 2) {
        const history past =
            train((setting){.stage = ZERO_STAGE_3, .ranks = ranks, .dtype = ZERO_DTYPE_F32});
        check_reference(&past, 1e-5, 1e-4);
    }
}

/* Rounding of parameters and gradients moves the losses, but not offloaded. */
TEST(low_precision_stays_near_pytorch)
{
    const history bf16 =
        train((setting){.stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_BF16});
    check_reference(&bf16, 0.05, 0.5);
    const history f16 =
        train((setting){.stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_F16});
    check_reference(&f16, 0.01, 0.1);
    const history mixed = train((setting){
        .stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_BF16, .grad_dtype = ZERO_DTYPE_F32});
    check_reference(&mixed, 0.05, 0.5);
}

static void check_stages(uint32_t ranks, zero_dtype dtype)
{
    const history zero = train((setting){.ranks = ranks, .dtype = dtype, .stage = ZERO_STAGE_0});
    for (int stage = ZERO_STAGE_1; stage <= ZERO_STAGE_3; stage++) {
        const history other =
            train((setting){.ranks = ranks, .dtype = dtype, .stage = (zero_stage)stage});
        check_same(&zero, &other);
    }
    const history recomputed =
        train((setting){.ranks = ranks, .dtype = dtype, .stage = ZERO_STAGE_3, .recompute = true});
    check_same(&zero, &recomputed);
}

TEST_CALL(every_stage_gives_the_same_bits_with_two_ranks, check_stages(2, ZERO_DTYPE_F32));
TEST_CALL(every_stage_gives_the_same_bits_with_four_ranks, check_stages(4, ZERO_DTYPE_F32));
TEST_CALL(every_stage_gives_the_same_bits_in_bf16, check_stages(4, ZERO_DTYPE_BF16));

/* Shards of two ranks, two replicas: gradients are added as (0 + 1) + (2 + 3), so the bits may
 * differ from ((0 + 1) + 2) + 3, and nothing else. With replicas of one rank the order is the same.
 */
TEST(hybrid_sharding_follows_too)
{
    const history pairs = train(
        (setting){.stage = ZERO_STAGE_3, .ranks = 4, .dtype = ZERO_DTYPE_F32, .shard_group = 2});
    check_reference(&pairs, 1e-5, 1e-4);
    const history whole =
        train((setting){.stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_F32});
    const history single = train(
        (setting){.stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_F32, .shard_group = 1});
    check_same(&whole, &single);
}

TEST(a_run_repeats_itself)
{
    const history once =
        train((setting){.stage = ZERO_STAGE_3, .ranks = 4, .dtype = ZERO_DTYPE_BF16});
    const history twice =
        train((setting){.stage = ZERO_STAGE_3, .ranks = 4, .dtype = ZERO_DTYPE_BF16});
    check_same(&once, &twice);
}
