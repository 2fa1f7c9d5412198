/* Owns the check that planned activations are those of a real trainer: what the example allocates
 * for a micro-batch, over its shapes, within a twentieth. */
#include "harness.h"

#include "gpt2_model.h"
#include "zero/planner.h"
#include "zero/zero.h"

typedef struct shape_case {
    gpt2_config config;
    uint32_t samples;
} shape_case;

static const shape_case cases[] = {
    {{.layers = 6, .heads = 6, .width = 192, .seq = 128, .vocab = 4096}, 8},
    {{.layers = 12, .heads = 12, .width = 768, .seq = 256, .vocab = 50257}, 4},
    {{.layers = 24, .heads = 16, .width = 512, .seq = 512, .vocab = 1024}, 2},
};

static zero_transformer transformer_of(const gpt2_config *config)
{
    zero_transformer t = zero_transformer_init();
    t.layers = config->layers;
    t.heads = config->heads;
    t.width = config->width;
    t.vocab = config->vocab;
    t.positions = config->seq;
    t.sequence = config->seq;
    t.flags = ZERO_TRANSFORMER_TIED_HEAD | ZERO_TRANSFORMER_BIASES;
    return t;
}

TEST(planned_activations_are_within_a_twentieth_of_the_examples)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (uint32_t recompute = 0; recompute < 2; recompute++) {
            const shape_case *c = &cases[i];
            const zero_transformer t = transformer_of(&c->config);
            gpt2_space *space = gpt2_space_create(&c->config, c->samples, recompute != 0);
            zero_batch batch = zero_batch_init();
            uint64_t bytes = 0;
            CHECK(space != NULL);
            batch.samples = c->samples;
            batch.logit_rows = space->logits_rows;
            batch.recompute = recompute;
            CHECK_OK(zero_activation_bytes(&t, &batch, &bytes));
            CHECK_NEAR((double)bytes, (double)space->bytes, 0.05 * (double)space->bytes);
            gpt2_space_destroy(space);
        }
    }
}
