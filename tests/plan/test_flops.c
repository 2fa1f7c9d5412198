/* Owns the tests of how many operations a transformer takes. Expected figures are added up by hand
 * from the published dimensions. */
#include "harness.h"

#include "plan/batch.h"
#include "plan/flops.h"
#include "zero/planner.h"
#include "zero/zero.h"

static zero_transformer preset(const char *name)
{
    zero_transformer t = zero_transformer_init();
    CHECK_OK(zero_transformer_preset(name, &t));
    return t;
}

static uint64_t flops_of(const zero_transformer *t, const zero_batch *batch, uint64_t unit)
{
    uint64_t flops = 0;
    CHECK_OK(zi_transformer_flops(t, batch, unit, &flops));
    return flops;
}

/* Of all units. */
static double forward_of(const zero_transformer *t, const zero_batch *batch)
{
    zero_model *model = NULL;
    double all = 0;
    CHECK_OK(zero_transformer_model(t, &model));
    for (uint32_t unit = 0; unit < zero_model_unit_count(model); unit++) {
        all += (double)flops_of(t, batch, unit);
    }
    zero_model_destroy(model);
    return all;
}

/* Twelve squares of the width in a block's matrices, attention over 1024 tokens, a tied head. */
TEST(a_unit_of_gpt2_takes_what_its_matrices_and_attention_take)
{
    const zero_transformer t = preset("gpt2");
    const uint64_t tokens = 1024;
    const uint64_t block = 2 * 12 * UINT64_C(768) * 768 + 4 * 1024 * 768;
    CHECK_EQ(flops_of(&t, NULL, 0), 0);
    CHECK_EQ(flops_of(&t, NULL, 1), tokens * block);
    CHECK_EQ(flops_of(&t, NULL, 12), tokens * block);
    CHECK_EQ(flops_of(&t, NULL, 13), tokens * 2 * 768 * 50257);
}

/* 41 943 040 elements in attention's matrices, with keys and values of a quarter; a router; two of
 * eight experts of three matrices. */
TEST(of_experts_only_those_used_are_counted)
{
    const zero_transformer t = preset("mixtral-8x7b");
    const uint64_t elements = 41943040 + UINT64_C(8) * 4096 + UINT64_C(2) * 3 * 4096 * 14336;
    CHECK_EQ(flops_of(&t, NULL, 1), 32768 * (2 * elements + UINT64_C(4) * 32768 * 4096));
}

/* Queries and keys of 192 elements and values of 128 in each of 128 heads, made of latents of 1536
 * and 512 and 64 elements that all heads share; a dense layer, then eight of 256 experts, a shared
 * one and the router. */
TEST(latents_shared_experts_and_dense_layers_are_counted)
{
    const zero_transformer t = preset("deepseek-v3");
    const uint64_t attention = UINT64_C(7168) * 1536 + UINT64_C(1536) * 128 * 192 +
                               UINT64_C(7168) * (512 + 64) + UINT64_C(512) * 128 * (128 + 128) +
                               UINT64_C(128) * 128 * 7168;
    const uint64_t pairs = UINT64_C(4096) * 128 * (192 + 128);
    const uint64_t dense = UINT64_C(3) * 7168 * 18432;
    const uint64_t experts = UINT64_C(9) * 3 * 7168 * 2048 + UINT64_C(256) * 7168;
    CHECK_EQ(flops_of(&t, NULL, 3), 2 * 4096 * (attention + pairs + dense));
    CHECK_EQ(flops_of(&t, NULL, 4), 2 * 4096 * (attention + pairs + experts));
}

/* Each third block has experts: the third, the sixth and so on. */
TEST(experts_are_in_each_nth_block)
{
    zero_transformer t = preset("llama-4-scout");
    t.expert_every = 3;
    const uint64_t dense = flops_of(&t, NULL, 1);
    const uint64_t experts = flops_of(&t, NULL, 3);
    CHECK_EQ(flops_of(&t, NULL, 2), dense);
    CHECK_EQ(flops_of(&t, NULL, 6), experts);
    CHECK_EQ(experts - dense, UINT64_C(2) * 8192 * 5120 * 16); /* the router's: both have 16384 */
}

/* Of a window of 128 tokens in 4096 each query meets 128 keys, less at the start; without one half
 * of 4096 on average, and both count twice. A chunk is a sample of its own. */
TEST(a_window_leaves_few_pairs)
{
    zero_transformer t = preset("gpt-oss-20b");
    const uint64_t element = UINT64_C(2) * 64 * (64 + 64); /* operations of a pair */
    CHECK_EQ(flops_of(&t, NULL, 2) - flops_of(&t, NULL, 1),
             element * (UINT64_C(4096) * 4096 - (UINT64_C(2) * 4096 * 128 - 128 * 128)));
    t.flags |= ZERO_TRANSFORMER_CHUNKED;
    CHECK_EQ(flops_of(&t, NULL, 2) - flops_of(&t, NULL, 1),
             element * (UINT64_C(4096) * 4096 - UINT64_C(32) * 128 * 128));
    t.window = 3000;
    CHECK_EQ(flops_of(&t, NULL, 2) - flops_of(&t, NULL, 1),
             element * (UINT64_C(4096) * 4096 - 3000 * 3000 - 1096 * 1096));
    t.window = 4096;
    CHECK_EQ(flops_of(&t, NULL, 1), flops_of(&t, NULL, 2));
}

/* Sums over a stage are those of its units. */
TEST(a_step_takes_what_its_units_take)
{
    const char *name = NULL;
    for (uint32_t i = 0; (name = zero_transformer_preset_name(i)) != NULL; i++) {
        zero_transformer t = zero_transformer_init();
        zero_batch b = zero_batch_init();
        zi_transformer_counts counts;
        const zero_transformer given = preset(name);
        CHECK_OK(zi_transformer_resolve(&given, &t, &counts));
        CHECK_OK(zi_batch_resolve(NULL, &t, &b));
        const zi_micro_flops all = zi_micro_flops_of(&t, &b, zi_transformer_all(&t));
        CHECK_NEAR(all.model / (3 * forward_of(&given, NULL)), 1.0, 1e-12);
    }
}

/* Narayanan et al., 2021, equation 3, which counts forward of blocks four times, backward being
 * twice as much and recomputation once, and the head three times. */
TEST(sums_are_those_of_the_published_formula)
{
    static const char *const names[] = {"gpt3-175b", "1t"};
    for (size_t i = 0; i < 2; i++) {
        const zero_transformer t = preset(names[i]);
        zero_batch batch = zero_batch_init();
        const double B = 4;
        const double s = 2048;
        const double l = (double)t.layers;
        const double h = (double)t.width;
        const double V = (double)t.vocab;
        batch.samples = 4;
        const double head = (double)flops_of(&t, &batch, t.layers + 1);
        const double have = 4 * forward_of(&t, &batch) - head;
        const double want = 96 * B * s * l * h * h * (1 + s / (6 * h) + V / (16 * l * h));
        CHECK_NEAR(have / want, 1.0, 1e-9);
    }
}

/* Six operations a parameter and token, and attention's, Kaplan et al., 2020: norms, biases and
 * positions, which it has too, are a thousandth. */
TEST(training_takes_six_operations_a_parameter_and_token)
{
    const zero_transformer t = preset("gpt3-175b");
    uint64_t parameters = 0;
    CHECK_OK(zero_transformer_parameters(&t, &parameters, NULL));
    const double want = 6.0 * (double)parameters + 12.0 * 96 * 2048 * 12288;
    CHECK_NEAR(3 * forward_of(&t, NULL) / 2048 / want, 1.0, 0.01);
}

/* However a block is cut, its units take together what it takes. */
TEST(smaller_units_take_the_same_together)
{
    static const char *const names[] = {"gpt2",        "llama-7b",         "qwen3-235b",
                                        "deepseek-v3", "llama-4-maverick", "gpt-oss-20b"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        zero_transformer t = preset(names[i]);
        const double whole = forward_of(&t, NULL);
        t.units = ZERO_TRANSFORMER_UNITS_LAYER;
        CHECK(forward_of(&t, NULL) == whole);
        t.units = ZERO_TRANSFORMER_UNITS_MATRIX;
        CHECK(forward_of(&t, NULL) == whole);
    }
}

/* Attention runs in the unit of the matrix that follows it. */
TEST(attention_is_of_the_output_matrix)
{
    zero_transformer t = preset("llama-7b");
    const uint64_t square = UINT64_C(2) * 4096 * 4096 * 4096; /* a matrix, 4096 tokens */
    t.units = ZERO_TRANSFORMER_UNITS_MATRIX;
    CHECK_EQ(flops_of(&t, NULL, 1), square);
    CHECK_EQ(flops_of(&t, NULL, 3), square);
    CHECK_EQ(flops_of(&t, NULL, 4), square + UINT64_C(4) * 4096 * 4096 * 4096);
}

TEST(what_cannot_be_counted_is_refused)
{
    zero_transformer t = preset("gpt2");
    zero_batch batch = zero_batch_init();
    uint64_t flops = 0;
    CHECK_FAILS(zi_transformer_flops(&t, NULL, 14, &flops), ZERO_ERR_INVALID_ARGUMENT,
                "no unit 14");
    batch.sequence = 2048;
    CHECK_FAILS(zi_transformer_flops(&t, &batch, 1, &flops), ZERO_ERR_INVALID_ARGUMENT,
                "2048 tokens");
    t.positions = 0;
    t.sequence = UINT64_C(1) << 24;
    t.head_width = UINT64_C(1) << 20;
    batch = zero_batch_init();
    CHECK_FAILS(zi_transformer_flops(&t, &batch, 1, &flops), ZERO_ERR_INVALID_ARGUMENT, "2^63");
}
