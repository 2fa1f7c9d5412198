/* Owns the tests of clusters and of what a rank needs of each tier. */
#include "one_file.h"

#include "zero/planner.h"
#include "zero/zero.h"

TEST(every_preset_is_a_cluster)
{
    const char *name = NULL;
    uint32_t count = 0;
    while ((name = zero_cluster_preset_name(count)) != NULL) {
        zero_cluster c = zero_cluster_init();
        CHECK_OK(zero_cluster_preset(name, &c));
        CHECK_OK(zero_cluster_check(&c));
        CHECK_EQ(c.nodes, 1);
        count++;
    }
    CHECK_EQ(count, 11);
    zero_cluster c = zero_cluster_init();
    CHECK_FAILS(zero_cluster_preset("tpu", &c), ZERO_ERR_INVALID_ARGUMENT, "dgx-h200");
}

/* ---- fields ---- */

static zero_cluster v100(void)
{
    zero_cluster c = zero_cluster_init();
    CHECK_OK(zero_cluster_preset("dgx-v100", &c));
    return c;
}

/* Below its lower bound and above its upper one: each names the field. */
TEST(every_field_has_bounds)
{
    const zero_cluster_field *field = NULL;
    for (uint32_t i = 0; (field = zero_cluster_field_at(i)) != NULL; i++) {
        zero_cluster c = v100();
        unsigned char *at = (unsigned char *)&c + field->offset;
        const uint64_t over = field->high + 1;
        memcpy(at, &over, sizeof over);
        CHECK_FAILS(zero_cluster_check(&c), ZERO_ERR_INVALID_ARGUMENT, field->name);
        if (field->low > 0) {
            memset(at, 0, sizeof over);
            CHECK_FAILS(zero_cluster_check(&c), ZERO_ERR_INVALID_ARGUMENT, field->name);
        }
    }
}

TEST(fields_that_contradict_one_another_are_refused)
{
    zero_cluster c = v100();
    c.nodes = 65536;
    CHECK_FAILS(zero_cluster_check(&c), ZERO_ERR_INVALID_ARGUMENT, "at most 65536");
    c = v100();
    c.device_reserve_bytes = c.device_bytes;
    CHECK_FAILS(zero_cluster_check(&c), ZERO_ERR_INVALID_ARGUMENT, "reserve");
}

/* ---- files ---- */

typedef struct file_case {
    const char *text;
    const char *words; /* of the refusal; NULL: it is read */
} file_case;

static const file_case files[] = {
    {"{\"preset\": \"dgx-h100\", \"nodes\": 64}", NULL},
    {"{\"preset\": \"dgx-h100\", \"disk_bytes\": 0}", NULL},
    {"{\"preset\": \"dgx-h100\", \"nods\": 64}", "\"nods\""},
    {"{\"preset\": \"dgx\"}", "\"dgx\""},
    {"{\"preset\": 4}", "\"preset\""},
    {"{\"preset\": \"dgx-h100\", \"nodes\": 1.5}", "\"nodes\""},
    {"{\"preset\": \"dgx-h100\", \"nodes\": \"4\"}", "\"nodes\""},
    {"{\"preset\": \"dgx-h100\", \"nodes\": -1}", "\"nodes\""},
    {"{\"preset\": \"dgx-h100\", \"nodes\": 65537}", "\"nodes\""},
    {"{\"nodes\": 1}", "ranks_per_node"},
    {"{\"nodes\": 1", "line 1"},
};
#define FILES (sizeof files / sizeof files[0])

TEST(files_are_read_or_refused_by_key)
{
    folder home = folder_create("cluster.json");
    for (size_t i = 0; i < FILES; i++) {
        zero_cluster c = zero_cluster_init();
        write_bytes(&home, files[i].text, strlen(files[i].text));
        if (files[i].words == NULL) {
            CHECK_OK(zero_cluster_read(home.file, &c));
        } else {
            CHECK_FAILS(zero_cluster_read(home.file, &c), ZERO_ERR_INVALID_ARGUMENT,
                        files[i].words);
        }
    }
    zero_cluster c = zero_cluster_init();
    write_bytes(&home, files[0].text, strlen(files[0].text));
    CHECK_OK(zero_cluster_read(home.file, &c));
    CHECK_EQ(c.nodes, 64);
    CHECK_EQ(c.ranks_per_node, 8);
    folder_destroy(&home);
    CHECK_FAILS(zero_cluster_read(home.file, &c), ZERO_ERR_IO, "cluster.json");
}

/* All fields of a preset, written and read, are what they were. */
TEST(what_is_written_is_read)
{
    folder home = folder_create("cluster.json");
    const zero_cluster c = v100();
    zero_cluster read = zero_cluster_init();
    char text[2048] = "{";
    const zero_cluster_field *field = NULL;
    for (uint32_t i = 0; (field = zero_cluster_field_at(i)) != NULL; i++) {
        uint64_t value = 0;
        const size_t used = strlen(text);
        memcpy(&value, (const unsigned char *)&c + field->offset, sizeof value);
        (void)snprintf(text + used, sizeof text - used, "%s\"%s\": %" PRIu64, i == 0 ? "" : ", ",
                       field->name, value);
    }
    strcat(text, "}");
    write_bytes(&home, text, strlen(text));
    CHECK_OK(zero_cluster_read(home.file, &read));
    CHECK_BYTES(&read, &c, sizeof c);
    folder_destroy(&home);
}

/* ---- activations ---- */

static uint64_t activations(const char *name, const zero_batch *batch)
{
    zero_transformer t = zero_transformer_init();
    uint64_t bytes = 0;
    CHECK_OK(zero_transformer_preset(name, &t));
    CHECK_OK(zero_activation_bytes(&t, batch, &bytes));
    return bytes;
}

/* Korthikanti et al., 2022, equation 1 without masks of dropout (34 becomes 32) and without scores:
 * 32 bytes for each token, element of the width and layer; what is beyond is of no block. */
TEST(activations_of_a_block_are_the_published_ones)
{
    zero_transformer t = zero_transformer_init();
    zero_batch batch = zero_batch_init();
    uint64_t bytes[2] = {0, 0};
    CHECK_OK(zero_transformer_preset("gpt3-175b", &t));
    batch.logit_rows = 1;
    for (int i = 0; i < 2; i++) {
        t.layers = (uint64_t)i + 1;
        CHECK_OK(zero_activation_bytes(&t, &batch, &bytes[i]));
    }
    const double block = (double)(bytes[1] - bytes[0]) / (double)(t.sequence * t.width);
    CHECK_NEAR(block, 32.0, 0.05); /* and the statistics of norms and softmax */
}

/* Bytes that a token keeps of block `layers` where kernels are fused: of a model with it, and of
 * one without. */
static double kept_of_block(zero_transformer *t, uint64_t layers)
{
    zero_batch batch = zero_batch_init();
    uint64_t bytes[2] = {0, 0};
    batch.logit_rows = 1;
    batch.fused = 1;
    for (int i = 0; i < 2; i++) {
        t->layers = layers + (uint64_t)i;
        CHECK_OK(zero_activation_bytes(t, &batch, &bytes[i]));
    }
    return (double)(bytes[1] - bytes[0]) / (double)t->sequence;
}

/* Latents before and after their norms, keys that all heads share, 128 heads of queries and keys of
 * 192 elements and of values and results of 128; three streams, and the one between blocks; gate,
 * up and their product of a dense layer, or of eight experts and a shared one; statistics of four
 * norms and 128 heads in fp32. */
TEST(activations_of_latents_and_shared_experts_are_counted)
{
    zero_transformer t = zero_transformer_init();
    CHECK_OK(zero_transformer_preset("deepseek-v3", &t));
    const double common = 4 * 7168 + 2 * 1536 + 2 * 512 + 64 + 128 * 2 * (192 + 128);
    const double statistics = 4 * (4 * 2 + 128);
    CHECK_NEAR(kept_of_block(&t, 1), 2 * (common + 3 * 18432) + statistics, 1e-9);
    CHECK_NEAR(kept_of_block(&t, 4), 2 * (common + 3 * 9 * 2048 + 256) + statistics, 1e-9);
}

/* Norms behind both halves keep their inputs. Halves that read the same have no stream between
 * them, and one norm. */
TEST(activations_of_norms_are_counted)
{
    zero_transformer t = zero_transformer_init();
    CHECK_OK(zero_transformer_preset("llama-7b", &t));
    const double plain = kept_of_block(&t, 2);
    t.flags |= ZERO_TRANSFORMER_POST_NORMS;
    CHECK_NEAR(kept_of_block(&t, 2) - plain, 2 * 2 * 4096 + 4 * 4, 1e-9);
    t.flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_PARALLEL;
    CHECK_NEAR(kept_of_block(&t, 2) - plain, -2 * 4096, 1e-9);
    t.flags |= ZERO_TRANSFORMER_ONE_NORM;
    CHECK_NEAR(kept_of_block(&t, 2) - plain, -2 * 2 * 4096 - 2 * 4, 1e-9);
}

TEST(recomputation_keeps_a_stream_for_each_block)
{
    zero_batch batch = zero_batch_init();
    batch.logit_rows = 1;
    const uint64_t all = activations("gpt3-175b", &batch);
    batch.recompute = 1;
    const uint64_t less = activations("gpt3-175b", &batch);
    const uint64_t streams = UINT64_C(97) * 2048 * 12288 * 2;
    CHECK(less > streams && less < streams + all / 50); /* and two blocks, about */
    batch.samples = 4;
    CHECK_NEAR((double)activations("gpt3-175b", &batch), 4.0 * (double)less, 0.001 * (double)less);
    batch.dtype = ZERO_DTYPE_F32;
    CHECK_NEAR((double)activations("gpt3-175b", &batch), 8.0 * (double)less, 0.05 * (double)less);
}

/* Of two blocks one; what is worked in is there in all cases. */
TEST(every_second_block_may_keep_nothing)
{
    zero_batch batch = zero_batch_init();
    uint64_t bytes[3];
    batch.logit_rows = 1;
    for (uint32_t i = 0; i < 3; i++) {
        batch.recompute = i;
        bytes[i] = activations("gpt3-175b", &batch);
    }
    CHECK_NEAR((double)(bytes[2] - bytes[1]) / (double)(bytes[0] - bytes[1]), 47.0 / 95, 1e-9);
}

/* A loss in 16 bits keeps logits and gradient in fp32; in fp32 it needs no more. What is not fused
 * keeps an activation's value before its gate, and queries and keys before their rotation. */
TEST(what_trainers_keep_besides_is_counted)
{
    zero_batch batch = zero_batch_init();
    const uint64_t tokens = 4096;
    batch.logit_rows = 1;
    const uint64_t few = activations("llama-7b", &batch);
    batch.logit_rows = 0;
    const uint64_t all = activations("llama-7b", &batch);
    CHECK_EQ(all - few, (tokens - 1) * 32000 * (2 + 8));
    batch.fused = 1;
    CHECK_EQ(all - activations("llama-7b", &batch), tokens * 32 * (11008 + 2 * 4096) * 2);
    batch.dtype = ZERO_DTYPE_F32;
    batch.logit_rows = 1;
    const uint64_t wide = activations("llama-7b", &batch);
    batch.logit_rows = 0;
    CHECK_EQ(activations("llama-7b", &batch) - wide, (tokens - 1) * 32000 * 4);
    batch.stored_attention = 1;
    CHECK_EQ(activations("llama-7b", &batch) - wide - (tokens - 1) * 32000 * 4,
             tokens * tokens * 32 * 32 * 4);
}

/* Korthikanti et al., 2022, section 4: of 32 bytes a token and element 8 are not of a product's
 * split side (there 10, with masks of dropout), unless tokens are split as well. A stage keeps as
 * many micro-steps as there are stages, and (P - 1) / (P V) more where blocks are interleaved. */
TEST(ranks_of_a_mesh_keep_their_parts)
{
    zero_transformer t = zero_transformer_init();
    zero_batch batch = zero_batch_init();
    uint64_t bytes[4] = {0};
    CHECK_OK(zero_transformer_preset("gpt3-175b", &t));
    t.tensor_parallel = 8;
    t.pipeline_parallel = 12;
    batch.micro_steps = 24;
    CHECK_OK(zero_activation_bytes(&t, &batch, &bytes[0]));
    batch.sequence_parallel = 1;
    CHECK_OK(zero_activation_bytes(&t, &batch, &bytes[1]));
    batch.sequence_parallel = 0;
    batch.interleave = 2;
    CHECK_OK(zero_activation_bytes(&t, &batch, &bytes[2]));
    batch.interleave = 1;
    batch.micro_steps = 1;
    CHECK_OK(zero_activation_bytes(&t, &batch, &bytes[3]));
    const double block = 2048.0 * 12288; /* a byte for each token and element */
    /* Streams at both ends, and gradients. */
    const double work = 2 * block * (1 + 1 + 2 + 4.0 / 8);
    CHECK_NEAR(((double)bytes[0] - work) / block, 96 * (8 + 24.0 / 8), 1);
    CHECK_NEAR((double)bytes[1] / block - 2, 96 * 32.0 / 8, 1);
    CHECK_NEAR((double)(bytes[2] - bytes[0]) / block, 44 * (8 + 24.0 / 8), 1);
    CHECK_NEAR(((double)bytes[3] - work) / block, 8 * (8 + 24.0 / 8), 1);
    batch.context_parallel = 4;
    CHECK_OK(zero_activation_bytes(&t, &batch, &bytes[0]));
    CHECK_EQ(4 * bytes[0], bytes[3]);
}

TEST(meshes_that_mean_nothing_are_refused)
{
    zero_transformer t = zero_transformer_init();
    zero_batch batch = zero_batch_init();
    uint64_t bytes = 0;
    CHECK_OK(zero_transformer_preset("gpt2", &t));
    batch.interleave = 2;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT,
                "interleave of the batch is 2");
    t.pipeline_parallel = 4;
    CHECK_OK(zero_activation_bytes(&t, &batch, &bytes));
    batch.interleave = 4;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT,
                "4 pipeline stages has at most 3 groups");
    batch.interleave = 0;
    batch.context_parallel = 3;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT,
                "context_parallel of the batch, 3, does not divide its sequence, 1024");
    batch.context_parallel = 0;
    batch.fp8 = 2;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT, "fp8 2");
}

TEST(batches_that_mean_nothing_are_refused)
{
    zero_transformer t = zero_transformer_init();
    zero_batch batch = zero_batch_init();
    uint64_t bytes = 0;
    CHECK_OK(zero_transformer_preset("gpt2", &t));
    batch.sequence = 1025;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT,
                "1025 tokens");
    batch = zero_batch_init();
    batch.samples = (UINT64_C(1) << 20) + 1;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT,
                "2^20 samples");
    batch = zero_batch_init();
    batch.recompute = 3;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT, "recompute");
    batch = zero_batch_init();
    batch.stored_attention = 2;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT,
                "stored_attention 2");
    batch = zero_batch_init();
    batch.dtype = ZERO_DTYPE_NONE;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT, "dtype");
    t.layers = 40000;
    t.width = 768;
    t.ffn_width = UINT64_C(1) << 24;
    t.positions = 0;
    t.sequence = UINT64_C(1) << 24;
    batch = zero_batch_init();
    batch.samples = 256;
    CHECK_FAILS(zero_activation_bytes(&t, &batch, &bytes), ZERO_ERR_INVALID_ARGUMENT, "2^63 bytes");
}

/* ---- footprints ---- */

TEST(a_footprint_is_the_plan_with_activations_and_reserves)
{
    zero_transformer t = zero_transformer_init();
    zero_cluster c = v100();
    zero_batch batch = zero_batch_init();
    zero_engine_options options = zero_engine_options_init();
    zero_footprint f = zero_footprint_init();
    zero_memory memory = zero_memory_init();
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    CHECK_OK(zero_transformer_preset("llama-13b", &t));
    c.nodes = 4;
    options.tier[ZERO_ROLE_MASTER] = ZERO_TIER_HOST;
    options.tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_DISK;
    CHECK_OK(zero_footprint_of(&t, &c, &options, &batch, &f));
    CHECK_OK(zero_transformer_model(&t, &model));
    CHECK_OK(zero_plan_create(model, &options, 64, &plan));
    CHECK_OK(zero_plan_memory(plan, &memory));
    CHECK_BYTES(f.role_bytes, memory.bytes, sizeof memory.bytes);
    CHECK_EQ(f.need_bytes[ZERO_TIER_DEVICE],
             memory.tier_bytes[ZERO_TIER_DEVICE] + f.activation_bytes + c.device_reserve_bytes);
    CHECK_EQ(f.need_bytes[ZERO_TIER_HOST],
             memory.tier_bytes[ZERO_TIER_HOST] + c.host_reserve_bytes / 16);
    CHECK_EQ(f.need_bytes[ZERO_TIER_DISK], memory.tier_bytes[ZERO_TIER_DISK]);
    CHECK_EQ(f.have_bytes[ZERO_TIER_DEVICE], c.device_bytes);
    CHECK_EQ(f.have_bytes[ZERO_TIER_HOST], c.host_bytes / 16);
    CHECK_EQ(f.have_bytes[ZERO_TIER_DISK], c.disk_bytes / 16);
    zero_plan_destroy(plan);
    zero_model_destroy(model);
}

/* Likely bytes are a share of what the trainer allocates; CUDA's reserve is no part of that. */
TEST(likely_bytes_are_around_what_is_needed)
{
    zero_transformer t = zero_transformer_init();
    zero_cluster c = v100();
    zero_engine_options options = zero_engine_options_init();
    zero_batch batch = zero_batch_init();
    zero_footprint f = zero_footprint_init();
    zero_footprint more = zero_footprint_init();
    CHECK_OK(zero_transformer_preset("llama-13b", &t));
    CHECK_OK(zero_footprint_of(&t, &c, &options, &batch, &f));
    CHECK(c.device_reserve_bytes < f.likely_low_bytes);
    CHECK(f.likely_low_bytes < f.need_bytes[ZERO_TIER_DEVICE]);
    CHECK(f.need_bytes[ZERO_TIER_DEVICE] < f.likely_high_bytes);
    c.device_reserve_bytes += 1 << 20;
    CHECK_OK(zero_footprint_of(&t, &c, &options, &batch, &more));
    CHECK_EQ(more.likely_low_bytes, f.likely_low_bytes + (1 << 20));
    CHECK_EQ(more.likely_high_bytes, f.likely_high_bytes + (1 << 20));
}

/* An engine of a column: T P ranks of the cluster hold one sample's parts. */
TEST(a_part_needs_what_the_plan_of_its_engine_says)
{
    zero_transformer t = zero_transformer_init();
    zero_cluster c = v100();
    zero_engine_options options = zero_engine_options_init();
    zero_footprint f = zero_footprint_init();
    zero_memory memory = zero_memory_init();
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    uint64_t layers = 0;
    CHECK_OK(zero_transformer_preset("gpt3-175b", &t));
    c.nodes = 24;
    t.tensor_parallel = 8;
    t.pipeline_parallel = 12;
    CHECK_OK(zero_footprint_of(&t, &c, &options, NULL, &f));
    CHECK_OK(zero_transformer_model(&t, &model));
    CHECK_OK(zero_plan_create(model, &options, 4, &plan));
    CHECK_OK(zero_plan_memory(plan, &memory));
    CHECK_BYTES(f.role_bytes, memory.bytes, sizeof memory.bytes);
    zero_plan_destroy(plan);
    zero_model_destroy(model);
    options.stage = ZERO_STAGE_3;
    CHECK_OK(zero_footprint_layers(&t, &c, &options, NULL, &layers));
    CHECK(layers != 0 && layers < ZERO_FOOTPRINT_LAYERS_MAX && layers % 12 == 0);
    for (t.layers = layers; t.layers <= layers + 12; t.layers += 12) {
        CHECK_OK(zero_footprint_of(&t, &c, &options, NULL, &f));
        CHECK_EQ(zero_footprint_fits(&f), t.layers == layers);
    }
    c.nodes = 23;
    CHECK_FAILS(zero_footprint_of(&t, &c, &options, NULL, &f), ZERO_ERR_INVALID_ARGUMENT,
                "tensor_parallel 8 x pipeline_parallel 12 x context_parallel 1 does not divide");
}

/* The deepest that fits fits, and one layer more does not; on every machine and tier. */
/* Of 16 ranks 8 share the experts, so that two hold the same ones; all 16 hold the rest. Whatever
 * is split is split over these. */
TEST(experts_are_split_over_those_that_hold_them)
{
    zero_transformer t = zero_transformer_init();
    zero_cluster c = zero_cluster_init();
    zero_engine_options options = zero_engine_options_init();
    zero_footprint f = zero_footprint_init();
    uint64_t total = 0;
    CHECK_OK(zero_transformer_preset("mixtral-8x7b", &t));
    CHECK_OK(zero_cluster_preset("dgx-h100", &c));
    c.nodes = 2;
    options.device = ZERO_DEVICE_CUDA;
    CHECK_OK(zero_transformer_parameters(&t, &total, NULL));
    const double experts = 32.0 * 8 * 3 * 4096 * 14336;
    const double rest = (double)total - experts;
    t.expert_parallel = 8;
    for (int stage = 0; stage < 4; stage += 3) {
        options.stage = (zero_stage)stage;
        CHECK_OK(zero_footprint_of(&t, &c, &options, NULL, &f));
        const double held = stage == 0 ? rest + experts / 8 : rest / 16 + experts / 8 / 2;
        CHECK_NEAR((double)f.role_bytes[ZERO_ROLE_PARAM] / (2 * held), 1.0, 1e-4);
        CHECK_NEAR((double)f.role_bytes[ZERO_ROLE_MOMENT1] / (4 * held), 1.0, 1e-4);
    }
    /* A token's two experts receive it. */
    zero_batch batch = zero_batch_init();
    uint64_t bytes[2] = {0, 0};
    CHECK_OK(zero_activation_bytes(&t, &batch, &bytes[1]));
    t.expert_parallel = 1;
    CHECK_OK(zero_activation_bytes(&t, &batch, &bytes[0]));
    CHECK_EQ(bytes[1] - bytes[0], (32 + 1) * UINT64_C(2) * 4096 * 2 * 32768);
    options.shard_group = 8;
    t.expert_parallel = 8;
    CHECK_FAILS(zero_footprint_of(&t, &c, &options, NULL, &f), ZERO_ERR_INVALID_ARGUMENT,
                "shard_group 8 with expert_parallel 8");
    options.shard_group = 0;
    t.tensor_parallel = 4;
    CHECK_FAILS(zero_footprint_of(&t, &c, &options, NULL, &f), ZERO_ERR_INVALID_ARGUMENT,
                "expert_parallel 8 does not divide the 4 ranks");
}

TEST(the_deepest_model_fits_and_no_deeper_one)
{
    static const char *const models[] = {"llama-13b", "gpt3-175b", "gpt2", "mixtral-8x7b"};
    const char *machine = NULL;
    unsigned bounded = 0;
    for (uint32_t m = 0; (machine = zero_cluster_preset_name(m)) != NULL; m++) {
        for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
            zero_cluster c = zero_cluster_init();
            zero_transformer t = zero_transformer_init();
            zero_engine_options options = zero_engine_options_init();
            zero_footprint f = zero_footprint_init();
            uint64_t layers = 0;
            CHECK_OK(zero_cluster_preset(machine, &c));
            CHECK_OK(zero_transformer_preset(models[i], &t));
            for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
                options.tier[role] = (zero_tier)(1 + (m + i) % 3);
            }
            CHECK_OK(zero_footprint_layers(&t, &c, &options, NULL, &layers));
            CHECK(layers <= ZERO_FOOTPRINT_LAYERS_MAX);
            for (t.layers = layers; layers != 0 && t.layers <= layers + 1; t.layers++) {
                CHECK_OK(zero_footprint_of(&t, &c, &options, NULL, &f));
                CHECK_EQ(zero_footprint_fits(&f),
                         t.layers == layers || layers == ZERO_FOOTPRINT_LAYERS_MAX);
            }
            bounded += layers != 0 && layers < ZERO_FOOTPRINT_LAYERS_MAX;
        }
    }
    CHECK(bounded >= 8);
}
