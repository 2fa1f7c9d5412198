/* Owns the tests of transformers by their dimensions: how many parameters they have, the models
 * that are made of them, files of model hubs, and what is refused. */
#include "counted_files.h"
#include "one_file.h"

#include "zero/planner.h"
#include "zero/zero.h"

/* Totals that the hubs count in the weights; from deepseek-v3 on, those of the models that
 * transformers makes (scripts/check_configs.py --presets). Those of gpt3-175b and 1t, and what a
 * token passes through with experts, were added up by hand from the published dimensions: of
 * deepseek-v3, for one, 37.0e9 in the report, without the embedding. */
typedef struct published {
    const char *name;
    uint64_t total;
    uint64_t used;
} published;

static const published counts[] = {
    {"gpt2", 124439808, 124439808},
    {"gpt2-medium", 354823168, 354823168},
    {"gpt2-large", 774030080, 774030080},
    {"gpt2-xl", 1557611200, 1557611200},
    {"llama-7b", 6738415616, 6738415616},
    {"llama-13b", 13015864320, 13015864320},
    {"llama-70b", 68976648192, 68976648192},
    {"llama-405b", 405853388800, 405853388800},
    {"gpt3-175b", 174604259328, 174604259328},
    {"1t", 1008038758400, 1008038758400},
    {"mixtral-8x7b", 46702792704, 12879925248},
    {"qwen3-235b", 235093634560, 22190763520},
    {"deepseek-v3", 671026404352, 37552282624},
    {"kimi-k2", 1026408209408, 32861477888},
    {"llama-4-scout", 107769861120, 17172894720},
    {"llama-4-maverick", 400711848960, 17184691200},
    {"gpt-oss-20b", 20914757184, 4187440704},
    {"gpt-oss-120b", 116829156672, 5711982912},
    {"gemma-3-27b", 27009346304, 27009346304},
    {"phi-4", 14659507200, 14659507200},
};
#define COUNTED (sizeof counts / sizeof counts[0])

TEST(presets_have_the_parameters_of_their_models)
{
    for (size_t i = 0; i < COUNTED; i++) {
        zero_transformer t = zero_transformer_init();
        uint64_t total = 0;
        uint64_t used = 0;
        CHECK_OK(zero_transformer_preset(counts[i].name, &t));
        CHECK_OK(zero_transformer_parameters(&t, &total, &used));
        if (total != counts[i].total || used != counts[i].used) {
            TEST_FAIL("%s: %" PRIu64 " and %" PRIu64, counts[i].name, total, used);
        }
        CHECK(strcmp(zero_transformer_preset_name((uint32_t)i), counts[i].name) == 0);
    }
    CHECK(zero_transformer_preset_name(COUNTED) == NULL);
}

TEST(a_model_has_the_tensors_that_were_counted)
{
    for (size_t i = 0; i < COUNTED; i++) {
        zero_transformer t = zero_transformer_init();
        zero_model *model = NULL;
        CHECK_OK(zero_transformer_preset(counts[i].name, &t));
        CHECK_OK(zero_transformer_model(&t, &model));
        CHECK_EQ(zero_model_element_count(model), counts[i].total);
        CHECK_EQ(zero_model_unit_count(model), t.layers + 2);
        zero_model_destroy(model);
    }
}

/* Units of blocks, layers and matrices hold the same tensors in the same order. */
TEST(blocks_are_cut_into_smaller_units)
{
    static const struct {
        const char *name;
        uint32_t units[ZERO_TRANSFORMER_UNITS_COUNT];
    } cases[] = {{"gpt2", {1, 2, 6}},
                 {"llama-7b", {1, 2, 7}},
                 {"qwen3-235b", {1, 2, 8}},
                 {"gpt-oss-20b", {1, 2, 8}},
                 {"gemma-3-27b", {1, 2, 7}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zero_transformer t = zero_transformer_init();
        zero_model *models[ZERO_TRANSFORMER_UNITS_COUNT];
        CHECK_OK(zero_transformer_preset(cases[i].name, &t));
        for (int units = 0; units < ZERO_TRANSFORMER_UNITS_COUNT; units++) {
            t.units = (zero_transformer_units)units;
            CHECK_OK(zero_transformer_model(&t, &models[units]));
            CHECK_EQ(zero_model_unit_count(models[units]), 2 + t.layers * cases[i].units[units]);
            CHECK_EQ(zero_model_tensor_count(models[units]), zero_model_tensor_count(models[0]));
            for (uint32_t k = 0; k < zero_model_tensor_count(models[0]); k++) {
                CHECK(strcmp(zero_model_tensor_name(models[units], k),
                             zero_model_tensor_name(models[0], k)) == 0);
                CHECK_EQ(zero_model_tensor_count_of(models[units], k),
                         zero_model_tensor_count_of(models[0], k));
            }
        }
        for (int units = 0; units < ZERO_TRANSFORMER_UNITS_COUNT; units++) {
            zero_model_destroy(models[units]);
        }
    }
}

/* Three blocks have one layer instead of experts, four matrices fewer: a router, and those of the
 * shared expert. */
TEST(blocks_that_differ_are_units_of_their_own)
{
    static const uint32_t counts_of[] = {61, 2 * 61, 3 * 8 + 58 * 12};
    for (int units = 0; units < ZERO_TRANSFORMER_UNITS_COUNT; units++) {
        zero_transformer t = zero_transformer_init();
        zero_model *model = NULL;
        CHECK_OK(zero_transformer_preset("deepseek-v3", &t));
        t.units = (zero_transformer_units)units;
        CHECK_OK(zero_transformer_model(&t, &model));
        CHECK_EQ(zero_model_unit_count(model), 2 + counts_of[units]);
        CHECK_EQ(zero_model_element_count(model), UINT64_C(671026404352));
        const uint32_t tensors = zero_model_tensor_count(model);
        CHECK_EQ(tensors, 1 + 3 * 12 + 58 * 16 + 2);
        CHECK(strcmp(zero_model_tensor_name(model, 12), "block.0.down.weight") == 0);
        CHECK(strcmp(zero_model_tensor_name(model, tensors - 3), "block.60.shared_down.weight") ==
              0);
        zero_model_destroy(model);
    }
}

TEST(tensors_decay_unless_they_are_norms_or_biases)
{
    zero_transformer t = zero_transformer_init();
    zero_model *model = NULL;
    CHECK_OK(zero_transformer_preset("mixtral-8x7b", &t));
    t.flags |= ZERO_TRANSFORMER_BIASES;
    CHECK_OK(zero_transformer_model(&t, &model));
    uint32_t plain = 0;
    for (uint32_t i = 0; i < zero_model_tensor_count(model); i++) {
        zero_tensor_desc desc;
        CHECK_OK(zero_model_tensor_desc(model, i, &desc));
        const bool small = strstr(desc.name, "bias") != NULL || strstr(desc.name, "norm") != NULL;
        CHECK_EQ(desc.flags, small ? ZERO_TENSOR_NO_DECAY : ZERO_TENSOR_PLAIN);
        CHECK_EQ(desc.dtype, ZERO_DTYPE_BF16);
        plain += !small;
    }
    /* Embedding and head; query, key, value, output, router, gate, up and down of each block. */
    CHECK_EQ(plain, 2 + 8 * t.layers);
    zero_model_destroy(model);
}

/* Parameters and optimizer state of a rank, in bf16 with fp32 masters and moments as in mixed
 * precision training, and gradients of `accum`. */
static double states_of(const zero_model *model, zero_stage stage, uint32_t world, zero_dtype accum)
{
    zero_plan *plan = NULL;
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    zero_memory memory = zero_memory_init();
    uint64_t states = 0;
    tuning.accum_dtype = accum;
    options.stage = stage;
    options.tuning = &tuning;
    CHECK_OK(zero_plan_create(model, &options, world, &plan));
    CHECK_OK(zero_plan_memory(plan, &memory));
    for (int role = ZERO_ROLE_PARAM; role <= ZERO_ROLE_MOMENT2; role++) {
        states += memory.bytes[role];
    }
    zero_plan_destroy(plan);
    return (double)states;
}

TEST(a_trillion_parameters_take_16_bytes_each)
{
    zero_transformer t = zero_transformer_init();
    zero_model *model = NULL;
    CHECK_OK(zero_transformer_preset("1t", &t));
    CHECK_OK(zero_transformer_model(&t, &model));
    const double share = 1008038758400.0 / 1024.0;
    CHECK_NEAR(states_of(model, ZERO_STAGE_3, 1024, ZERO_DTYPE_BF16), 16 * share, 1e-3 * share);
    CHECK_NEAR(states_of(model, ZERO_STAGE_3, 1024, ZERO_DTYPE_F32), 18 * share, 1e-3 * share);
    zero_model_destroy(model);
}

/* Rajbhandari et al., "ZeRO", 2020, figure 1: 7.5e9 parameters on 64 GPUs, in GB. */
TEST(the_published_table_of_memory_is_planned)
{
    static const double table[] = {120.0, 31.4, 16.6, 1.9};
    zero_model *model = NULL;
    const zero_tensor_desc desc = {
        .name = "weight", .shape = {100000000}, .dims = 1, .dtype = ZERO_DTYPE_BF16};
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(
        model,
        &(zero_unit_desc){.name = "layer", .layers = 75, .tensors = &desc, .tensor_count = 1}, NULL,
        NULL));
    for (int stage = 0; stage < 4; stage++) {
        const double bytes = states_of(model, (zero_stage)stage, 64, ZERO_DTYPE_BF16);
        CHECK_NEAR(bytes / 1e9, table[stage], 0.05);
    }
    zero_model_destroy(model);
}

/* ---- parts ---- */

static zero_tensor_desc desc_at(const zero_model *model, uint32_t tensor)
{
    zero_tensor_desc desc;
    CHECK_OK(zero_model_tensor_desc(model, tensor, &desc));
    return desc;
}

/* Each tensor is a box at the start of the whole model's; what one extent lacks the other ranks
 * have, and norms and biases that are added after the sum are whole. */
TEST(a_part_has_a_box_of_each_tensor)
{
    static const char *const names[] = {"llama-70b",  "gpt2-xl",     "mixtral-8x7b",
                                        "qwen3-235b", "deepseek-v3", "gpt-oss-20b"};
    static const uint64_t ranks[] = {16, 5, 8, 8, 8, 8}; /* of keys: 8, 25, 8, 4, 128, 8 heads */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        zero_transformer t = zero_transformer_init();
        zero_model *whole = NULL;
        zero_model *part = NULL;
        uint32_t cut = 0;
        CHECK_OK(zero_transformer_preset(names[i], &t));
        t.kv_heads = t.kv_heads != 0 ? t.kv_heads : t.heads;
        CHECK_OK(zero_transformer_model(&t, &whole));
        t.tensor_parallel = ranks[i];
        CHECK_OK(zero_transformer_model(&t, &part));
        CHECK_EQ(zero_model_tensor_count(part), zero_model_tensor_count(whole));
        for (uint32_t k = 0; k < zero_model_tensor_count(part); k++) {
            const zero_tensor_desc own = desc_at(part, k);
            const zero_tensor_desc all = desc_at(whole, k);
            uint32_t smaller = 0;
            CHECK_BYTES(own.global_shape, all.shape, sizeof all.shape);
            for (uint32_t d = 0; d < own.dims; d++) {
                const bool keys =
                    strstr(own.name, "key.") != NULL || strstr(own.name, "value.") != NULL;
                const uint64_t parts = keys && t.kv_heads < ranks[i] ? t.kv_heads : ranks[i];
                smaller += own.shape[d] != all.shape[d];
                CHECK(own.shape[d] == all.shape[d] ||
                      own.shape[d] == (all.shape[d] + parts - 1) / parts);
                CHECK_EQ(own.box_first[d], 0);
            }
            CHECK(smaller <= 1);
            CHECK(smaller == 1 || own.flags == ZERO_TENSOR_NO_DECAY ||
                  strstr(own.name, "position") != NULL || strstr(own.name, "router") != NULL ||
                  strstr(own.name, "query_down") != NULL || strstr(own.name, "kv_down") != NULL);
            CHECK_EQ(smaller == 1 && strcmp(own.name + strlen(own.name) - 5, "sinks") == 0,
                     strstr(own.name, "sinks") != NULL);
            cut += smaller;
        }
        CHECK(cut > 4 * t.layers);
        zero_model_destroy(whole);
        zero_model_destroy(part);
    }
}

/* The embedding and as many blocks as the fullest stage has, however blocks are cut. */
TEST(a_stage_is_the_first_one)
{
    for (int units = 0; units < ZERO_TRANSFORMER_UNITS_COUNT; units++) {
        zero_transformer t = zero_transformer_init();
        zero_model *whole = NULL;
        zero_model *stage = NULL;
        uint64_t total = 0;
        CHECK_OK(zero_transformer_preset("llama-405b", &t));
        t.units = (zero_transformer_units)units;
        CHECK_OK(zero_transformer_model(&t, &whole));
        t.pipeline_parallel = 16;
        CHECK_OK(zero_transformer_model(&t, &stage));
        CHECK_OK(zero_transformer_parameters(&t, &total, NULL));
        CHECK_EQ(total, zero_model_element_count(whole));
        const uint64_t ends = UINT64_C(2) * 128256 * 16384 + 16384;
        const uint64_t block = (total - ends) / 126;
        CHECK_EQ(zero_model_element_count(stage), 8 * block + UINT64_C(128256) * 16384);
        zero_model_destroy(whole);
        zero_model_destroy(stage);
    }
}

/* Of 61 blocks over 16 stages the first has three without experts and one with, and the second four
 * with. */
TEST(of_stages_that_differ_the_fullest_is_planned)
{
    zero_transformer t = zero_transformer_init();
    zero_model *stage = NULL;
    CHECK_OK(zero_transformer_preset("deepseek-v3", &t));
    t.pipeline_parallel = 16;
    CHECK_OK(zero_transformer_model(&t, &stage));
    CHECK_EQ(zero_model_unit_count(stage), 5);
    CHECK(strcmp(zero_model_tensor_name(stage, 1), "block.4.attention_norm.weight") == 0);
    CHECK(strcmp(zero_model_tensor_name(stage, 64), "block.7.shared_down.weight") == 0);
    const uint64_t experts = UINT64_C(257) * 3 * 7168 * 2048 + UINT64_C(256) * 7168;
    const uint64_t attention = 7168 * UINT64_C(1536) + 1536 + 1536 * UINT64_C(128) * 192 +
                               7168 * UINT64_C(576) + 512 + 512 * UINT64_C(128) * 256 +
                               UINT64_C(128) * 128 * 7168;
    CHECK_EQ(zero_model_element_count(stage),
             UINT64_C(129280) * 7168 + 4 * (experts + attention + UINT64_C(2) * 7168));
    zero_model_destroy(stage);
}

/* An eighth of the experts of each block that has some, and a half of each of their matrices. */
TEST(experts_are_a_model_of_their_own)
{
    zero_transformer t = zero_transformer_init();
    zero_model *models[3] = {NULL, NULL, NULL}; /* all, all but experts, experts */
    CHECK_OK(zero_transformer_preset("llama-4-maverick", &t));
    t.tensor_parallel = 2;
    CHECK_OK(zero_transformer_model(&t, &models[0]));
    CHECK_OK(zero_transformer_experts(&t, &models[2]));
    CHECK(models[2] == NULL);
    t.expert_parallel = 8;
    CHECK_OK(zero_transformer_model(&t, &models[1]));
    CHECK_OK(zero_transformer_experts(&t, &models[2]));
    CHECK_EQ(zero_model_unit_count(models[2]), 24);
    CHECK_EQ(zero_model_tensor_count(models[2]), 24 * 3);
    CHECK(strcmp(zero_model_tensor_name(models[2], 0), "block.1.gate.weight") == 0);
    const zero_tensor_desc down = desc_at(models[2], 2);
    CHECK_BYTES(down.shape, ((const uint64_t[]){16, 5120, 4096}), 3 * sizeof(uint64_t));
    CHECK_BYTES(down.global_shape, ((const uint64_t[]){128, 5120, 8192}), 3 * sizeof(uint64_t));
    CHECK_EQ(zero_model_element_count(models[1]) + 8 * zero_model_element_count(models[2]),
             zero_model_element_count(models[0]));
    t.dense_layers = 48;
    zero_model *none = NULL;
    CHECK_OK(zero_transformer_experts(&t, &none));
    CHECK(none == NULL);
    CHECK_FAILS(zero_transformer_experts(&t, NULL), ZERO_ERR_INVALID_ARGUMENT, "model is NULL");
    t.expert_parallel = 3;
    CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT,
                "expert_parallel 3 does not divide experts, 128");
    for (int i = 0; i < 3; i++) {
        zero_model_destroy(models[i]);
    }
}

/* ---- files ---- */

/* A family's file, and the preset that it describes. */
typedef struct hub_file {
    const char *preset;
    const char *text;
} hub_file;

#define LLAMA_7B                                                                         \
    "\"model_type\": \"llama\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, "      \
    "\"num_attention_heads\": 32, \"intermediate_size\": 11008, \"vocab_size\": 32000, " \
    "\"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\""

static const hub_file files[] = {
    {"gpt2", "{\"model_type\": \"gpt2\", \"n_embd\": 768, \"n_head\": 12, \"n_layer\": 12, "
             "\"n_positions\": 1024, \"n_inner\": null, \"vocab_size\": 50257, "
             "\"torch_dtype\": \"bfloat16\"}"},
    {"llama-7b", "{" LLAMA_7B ", \"num_key_value_heads\": 32}"},
    {"mixtral-8x7b",
     "{\"model_type\": \"mixtral\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"intermediate_size\": 14336, "
     "\"vocab_size\": 32000, \"max_position_embeddings\": 32768, \"num_local_experts\": 8, "
     "\"num_experts_per_tok\": 2, \"dtype\": \"bfloat16\"}"},
    {"qwen3-235b",
     "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 4096, \"num_hidden_layers\": 94, "
     "\"num_attention_heads\": 64, \"num_key_value_heads\": 4, \"head_dim\": 128, "
     "\"intermediate_size\": 12288, \"moe_intermediate_size\": 1536, \"num_experts\": 128, "
     "\"num_experts_per_tok\": 8, \"vocab_size\": 151936, \"max_position_embeddings\": 32768, "
     "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"torch_dtype\": \"bfloat16\"}"},
};
#define FILES (sizeof files / sizeof files[0])

TEST(files_of_model_hubs_are_read)
{
    folder home = folder_create("config.json");
    for (size_t i = 0; i < FILES; i++) {
        zero_transformer read = zero_transformer_init();
        zero_transformer known = zero_transformer_init();
        uint64_t total = 0;
        uint64_t expected = 0;
        write_bytes(&home, files[i].text, strlen(files[i].text));
        CHECK_OK(zero_transformer_read(home.file, &read));
        CHECK_OK(zero_transformer_preset(files[i].preset, &known));
        CHECK_OK(zero_transformer_parameters(&read, &total, NULL));
        CHECK_OK(zero_transformer_parameters(&known, &expected, NULL));
        CHECK_EQ(total, expected);
        CHECK_EQ(read.sequence, known.sequence);
        CHECK_EQ(read.flags, known.flags);
        CHECK_EQ(read.dtype, known.dtype);
        CHECK_EQ(read.experts_used, known.experts_used);
    }
    folder_destroy(&home);
}

TEST(files_have_the_parameters_that_transformers_counts)
{
    folder home = folder_create("config.json");
    for (size_t i = 0; i < sizeof counted_files / sizeof counted_files[0]; i++) {
        zero_transformer t = zero_transformer_init();
        uint64_t total = 0;
        write_bytes(&home, counted_files[i].text, strlen(counted_files[i].text));
        CHECK_OK(zero_transformer_read(home.file, &t));
        CHECK_OK(zero_transformer_parameters(&t, &total, NULL));
        if (total != counted_files[i].total) {
            TEST_FAIL("%s: %" PRIu64 " instead of %" PRIu64, counted_files[i].text, total,
                      counted_files[i].total);
        }
    }
    folder_destroy(&home);
}

/* Parts of a file's model that are not planned are named. */
TEST(what_is_left_out_is_said)
{
    static const struct {
        const char *text;
        uint64_t left_out;
    } cases[] = {
        {"{\"model_type\": \"gemma3_text\", " SMALL "}", 0},
        {"{\"model_type\": \"gemma3\", \"text_config\": {" SMALL "}, \"architectures\": "
         "[\"Gemma3ForConditionalGeneration\"]}",
         ZERO_TRANSFORMER_PART_TOWERS},
        {"{\"model_type\": \"glm4_moe\", " SMALL
         ", \"num_key_value_heads\": 4, \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, "
         "\"moe_intermediate_size\": 24, \"num_nextn_predict_layers\": 1, "
         "\"quantization_config\": {\"quant_method\": \"fp8\"}}",
         ZERO_TRANSFORMER_PART_PREDICTORS | ZERO_TRANSFORMER_PART_QUANTIZED},
    };
    folder home = folder_create("config.json");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zero_transformer t = zero_transformer_init();
        write_bytes(&home, cases[i].text, strlen(cases[i].text));
        CHECK_OK(zero_transformer_read(home.file, &t));
        CHECK_EQ(t.left_out, cases[i].left_out);
    }
    folder_destroy(&home);
    CHECK(strstr(zero_transformer_part_name(ZERO_TRANSFORMER_PART_TOWERS), "images") != NULL);
    CHECK(zero_transformer_part_name(0) == NULL && zero_transformer_part_name(8) == NULL);
}

/* The file's list, or what its type does without one. */
TEST(windows_are_read)
{
    static const struct {
        const char *text;
        uint64_t window;
        uint64_t full_every;
    } cases[] = {
        {"{\"model_type\": \"gemma2\", " SMALL "}", 4096, 2},
        {"{\"model_type\": \"gemma2\", " SMALL ", \"sliding_window\": null}", 0, 0},
        {"{\"model_type\": \"gemma3_text\", " SMALL ", \"sliding_window\": 8}", 8, 6},
        {"{\"model_type\": \"gemma3_text\", " SMALL ", \"sliding_window_pattern\": 2}", 4096, 2},
        {"{\"model_type\": \"gemma3_text\", " SMALL
         ", \"layer_types\": [\"sliding_attention\", \"sliding_attention\", "
         "\"full_attention\"]}",
         4096, 3},
        {"{\"model_type\": \"gemma3_text\", " SMALL
         ", \"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]}",
         0, 0},
        {"{\"model_type\": \"phi3\", " SMALL "}", 0, 0},
        {"{\"model_type\": \"phi3\", " SMALL ", \"sliding_window\": 2047}", 2047, 0},
    };
    folder home = folder_create("config.json");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zero_transformer t = zero_transformer_init();
        write_bytes(&home, cases[i].text, strlen(cases[i].text));
        CHECK_OK(zero_transformer_read(home.file, &t));
        CHECK_EQ(t.window, cases[i].window);
        CHECK_EQ(t.full_every, cases[i].full_every);
    }
    folder_destroy(&home);
}

/* A text and what the refusal says. */
typedef struct refusal {
    const char *text;
    const char *words;
} refusal;

static const refusal refused_files[] = {
    {"", "line 1"},
    {"[]", "no JSON object"},
    {"{\"model_type\": \"gpt2\", \"model_type\": \"gpt2\"}", "duplicate"},
    {"{}", "no \"model_type\""},
    {"{\"model_type\": 7}", "\"model_type\""},
    {"{\"model_type\": \"t5\"}", "\"t5\""},
    {"{\"model_type\": \"gpt2\", \"n_layer\": 1}", "no \"n_embd\""},
    {"{" LLAMA_7B ", \"num_key_value_heads\": 5}", "kv_heads 5 does not divide"},
    {"{" LLAMA_7B ", \"num_key_value_heads\": -1}", "\"num_key_value_heads\""},
    {"{" LLAMA_7B ", \"num_key_value_heads\": 8.5}", "\"num_key_value_heads\""},
    {"{" LLAMA_7B ", \"num_key_value_heads\": \"8\"}", "\"num_key_value_heads\""},
    {"{" LLAMA_7B ", \"head_dim\": 1000000000000}", "head_width"},
    {"{" LLAMA_7B ", \"attention_bias\": true}", "\"attention_bias\""},
    {"{" LLAMA_7B ", \"mlp_bias\": true}", "\"mlp_bias\""},
    {"{" LLAMA_7B ", \"mlp_bias\": \"no\"}", "\"mlp_bias\""},
    {"{" LLAMA_7B ", \"decoder_sparse_step\": 2}", "decoder_sparse_step"},
    {"{" LLAMA_7B ", \"mlp_only_layers\": [1]}", "\"mlp_only_layers\""},
    {"{" LLAMA_7B ", \"add_cross_attention\": true}", "\"add_cross_attention\""},
    {"{" LLAMA_7B ", \"quantization_config\": {\"bits\": 4}}", "\"quantization_config\""},
    {"{" LLAMA_7B ", \"pruned_heads\": {\"0\": [1]}}", "\"pruned_heads\""},
    {"{" LLAMA_7B ", \"architectures\": [\"LlamaModel\"]}", "\"LlamaModel\""},
    {"{" LLAMA_7B ", \"head_dim\": 0}", "\"head_dim\""},
    {"{\"model_type\": \"qwen3_moe\", " SMALL ", \"num_experts\": 4, \"num_local_experts\": 6}",
     "\"num_local_experts\" 6"},
    {"{\"model_type\": \"mixtral\", " SMALL "}", "\"num_local_experts\""},
    {"{" LLAMA_7B ", \"dtype\": \"int8\"}", "\"int8\""},
    {"{" LLAMA_7B ", \"quantization_config\": {\"quant_method\": \"gptq\"}}", "\"gptq\""},
    {"{\"model_type\": \"llama4\"}", "no \"text_config\""},
    {"{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"t5\"}}", "\"t5\""},
    {"{\"model_type\": \"gemma3\", \"text_config\": {" SMALL "}, \"architectures\": "
     "[\"Gemma3ForSequenceClassification\"]}",
     "\"Gemma3ForSequenceClassification\""},
    {"{\"model_type\": \"gemma2\", " SMALL
     ", \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"]}",
     "block 1 breaks the pattern"},
    {"{\"model_type\": \"gemma2\", " SMALL ", \"layer_types\": [\"full_attention\"]}",
     "1 entries for 3 blocks"},
    {"{\"model_type\": \"gemma2\", " SMALL
     ", \"layer_types\": [\"linear_attention\", \"full_attention\", \"full_attention\"]}",
     "\"linear_attention\""},
    {"{\"model_type\": \"opt\", " SMALL ", \"ffn_dim\": 80, \"do_layer_norm_before\": false}",
     "\"do_layer_norm_before\""},
    {"{\"model_type\": \"opt\", " SMALL ", \"ffn_dim\": 80, \"word_embed_proj_dim\": 24}",
     "\"word_embed_proj_dim\""},
    {"{\"model_type\": \"llama4_text\", " SMALL
     ", \"num_local_experts\": 4, \"num_experts_per_tok\": 1, \"intermediate_size_mlp\": 80, "
     "\"moe_layers\": [1]}",
     "\"moe_layers\""},
    {"{\"model_type\": \"deepseek_v3\", " SMALL "}", "\"n_routed_experts\""},
    {"{\"model_type\": \"deepseek_v3\", " SMALL
     ", \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"moe_layer_freq\": 2}",
     "\"moe_layer_freq\""},
};

TEST(files_that_describe_no_transformer_are_refused)
{
    folder home = folder_create("config.json");
    zero_transformer t = zero_transformer_init();
    for (size_t i = 0; i < sizeof refused_files / sizeof refused_files[0]; i++) {
        write_bytes(&home, refused_files[i].text, strlen(refused_files[i].text));
        CHECK_FAILS(zero_transformer_read(home.file, &t), ZERO_ERR_INVALID_ARGUMENT,
                    refused_files[i].words);
    }
    CHECK(truncate(home.file, 2 << 20) == 0);
    CHECK_FAILS(zero_transformer_read(home.file, &t), ZERO_ERR_INVALID_ARGUMENT, "at most 1 MiB");
    folder_destroy(&home);
    CHECK_FAILS(zero_transformer_read(home.file, &t), ZERO_ERR_IO, "config.json");
    CHECK_FAILS(zero_transformer_read("/dev/zero", &t), ZERO_ERR_INVALID_ARGUMENT,
                "no regular file");
    CHECK_FAILS(zero_transformer_read("/", &t), ZERO_ERR_INVALID_ARGUMENT, "no regular file");
}

static uint64_t random_state;

static uint64_t random_below(uint64_t bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (random_state >> 33) % bound;
}

/* Files with bytes changed, left out and put in: a transformer that passes its check, or a refusal
 * with words. */
TEST(damaged_files_are_read_or_refused)
{
    static const char signs[] = "0123456789{}[],:\"-.e";
    folder home = folder_create("config.json");
    unsigned refused = 0;
    random_state = test_seed;
    for (int round = 0; round < 3000; round++) {
        char text[1024];
        const char *good = files[random_below(FILES)].text;
        size_t bytes = strlen(good);
        memcpy(text, good, bytes);
        for (uint64_t k = random_below(4) + 1; k > 0; k--) {
            const size_t place = (size_t)random_below(bytes);
            if (random_below(4) == 0) {
                bytes = place + 1;
            } else {
                const char any = (char)random_below(256);
                text[place] = random_below(2) == 0 ? any : signs[random_below(sizeof signs - 1)];
            }
        }
        zero_transformer t = zero_transformer_init();
        write_bytes(&home, text, bytes);
        const zero_status status = zero_transformer_read(home.file, &t);
        if (status == ZERO_OK) {
            CHECK_OK(zero_transformer_check(&t));
        } else {
            CHECK_EQ(status, ZERO_ERR_INVALID_ARGUMENT);
            CHECK(strlen(zero_last_error()->message) > 10);
            refused++;
        }
    }
    CHECK(refused > 1000 && refused < 3000);
    folder_destroy(&home);
}

/* ---- dimensions that describe nothing ---- */

typedef struct change {
    size_t offset;
    uint64_t value;
    const char *words;
} change;

#define SET(field, value, words)                        \
    {                                                   \
        offsetof(zero_transformer, field), value, words \
    }

static const change changes[] = {
    SET(layers, 0, "layers of the transformer is 0"),
    SET(layers, 65537, "[1, 65536]"),
    SET(width, 0, "width of the transformer is 0"),
    SET(width, (UINT64_C(1) << 20) + 1, "width"),
    SET(heads, 0, "heads"),
    SET(heads, 7, "no multiple of heads, 7"),
    SET(kv_heads, 5, "kv_heads 5 does not divide heads"),
    SET(head_width, UINT64_MAX, "head_width"),
    SET(ffn_width, UINT64_MAX, "ffn_width"),
    SET(vocab, 0, "vocab"),
    SET(positions, 1000, "longer than the 1000 positions"),
    SET(sequence, 0, "sequence"),
    SET(experts, 8, "experts_used 0 is not in [1, experts]"),
    SET(experts_used, 2, "experts_used 2"),
    SET(tensor_parallel, 5, "tensor_parallel 5 does not divide heads, 12"),
    SET(tensor_parallel, 24, "tensor_parallel 24 does not divide heads, 12"),
    SET(tensor_parallel, UINT64_MAX, "tensor_parallel"),
    SET(pipeline_parallel, 13, "pipeline_parallel of the transformer is 13; it is in [0, 12]"),
    SET(dense_layers, 1, "dense_layers of the transformer is 1 without experts"),
    SET(expert_every, 2, "expert_every of the transformer is 2 without experts"),
    SET(shared_ffn_width, 8, "shared_ffn_width of the transformer is 8 without experts"),
    SET(query_rank, 8, "query_rank of the transformer is 8 without kv_rank"),
    SET(rope_width, 8, "rope_width of the transformer is 8 without kv_rank"),
    SET(kv_rank, 8, "rope_width 0 is not in [1, 63]"),
    SET(full_every, 2, "full_every of the transformer is 2 without window"),
    SET(window, UINT64_MAX, "window"),
};

TEST(dimensions_that_describe_nothing_are_refused)
{
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        zero_transformer t = zero_transformer_init();
        zero_model *model = NULL;
        CHECK_OK(zero_transformer_preset("gpt2", &t));
        memcpy((unsigned char *)&t + changes[i].offset, &changes[i].value, sizeof(uint64_t));
        CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT, changes[i].words);
        CHECK_FAILS(zero_transformer_model(&t, &model), ZERO_ERR_INVALID_ARGUMENT,
                    changes[i].words);
        CHECK(model == NULL);
    }
    zero_transformer t = zero_transformer_init();
    CHECK_OK(zero_transformer_preset("gpt2", &t));
    t.flags = 1 << 14;
    CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT, "flags 0x4000");
    t.flags = ZERO_TRANSFORMER_ONE_NORM;
    CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT, "without the flag parallel");
    t.flags = ZERO_TRANSFORMER_HEAD_NORMS;
    t.kv_rank = t.rope_width = 16;
    CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT, "leave biases");
    t.kv_rank = t.rope_width = 0;
    t.flags = 0;
    t.units = ZERO_TRANSFORMER_UNITS_COUNT;
    CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT, "units is 3");
    t.units = ZERO_TRANSFORMER_UNITS_BLOCK;
    t.dtype = ZERO_DTYPE_NONE;
    CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT, "dtype");
    t.dtype = ZERO_DTYPE_MXFP8;
    CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT, "dtype 10 (mxfp8)");
    CHECK_FAILS(zero_transformer_preset("gpt5", &t), ZERO_ERR_INVALID_ARGUMENT, "qwen3-235b");
}

TEST(the_largest_dimensions_are_refused_without_overflow)
{
    zero_transformer t = zero_transformer_init();
    t.layers = 65536;
    t.width = UINT64_C(1) << 20;
    t.heads = 65536;
    t.head_width = UINT64_C(1) << 20;
    t.ffn_width = UINT64_C(1) << 24;
    t.vocab = t.positions = t.sequence = UINT64_C(1) << 24;
    t.experts = t.experts_used = 65536;
    t.shared_ffn_width = t.dense_ffn_width = UINT64_C(1) << 24;
    t.value_width = UINT64_C(1) << 20;
    t.flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_BIASES;
    CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT, "more than 2^50 parameters");
    t.kv_rank = t.query_rank = UINT64_C(1) << 20;
    t.rope_width = 1;
    t.flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_FFN_BIASES;
    CHECK_FAILS(zero_transformer_check(&t), ZERO_ERR_INVALID_ARGUMENT, "more than 2^50 parameters");
}
