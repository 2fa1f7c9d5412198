/* Owns the dimensions of published models. Invariant: each is a transformer that passes its check,
 * and has the parameters of its model. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "zero/transformer.h"

typedef struct preset {
    const char *name;
    zero_transformer dimensions;
} preset;

#define GPT(layers_, width_, heads_, vocab_, positions_)                              \
    {                                                                                 \
        .layers = (layers_), .width = (width_), .heads = (heads_), .vocab = (vocab_), \
        .positions = (positions_), .sequence = (positions_),                          \
        .flags = ZERO_TRANSFORMER_TIED_HEAD | ZERO_TRANSFORMER_BIASES                 \
    }
#define LLAMA(layers_, width_, heads_, kv_heads_, ffn_width_, vocab_, sequence_)            \
    {                                                                                       \
        .layers = (layers_), .width = (width_), .heads = (heads_), .kv_heads = (kv_heads_), \
        .ffn_width = (ffn_width_), .vocab = (vocab_), .sequence = (sequence_),              \
        .flags = ZERO_TRANSFORMER_GATED                                                     \
    }

/* DeepSeek-V3, and Kimi K2, which is built like it. */
#define MLA(heads_, vocab_, dense_layers_, experts_)                                           \
    {                                                                                          \
        .layers = 61, .width = 7168, .heads = (heads_), .head_width = 192, .value_width = 128, \
        .rope_width = 64, .query_rank = 1536, .kv_rank = 512, .ffn_width = 2048,               \
        .shared_ffn_width = 2048, .dense_ffn_width = 18432, .dense_layers = (dense_layers_),   \
        .experts = (experts_), .experts_used = 8, .vocab = (vocab_), .sequence = 4096,         \
        .flags = ZERO_TRANSFORMER_GATED                                                        \
    }
#define LLAMA_4(experts_, expert_every_)                                            \
    {                                                                               \
        .layers = 48, .width = 5120, .heads = 40, .kv_heads = 8, .head_width = 128, \
        .ffn_width = 8192, .shared_ffn_width = 8192, .dense_ffn_width = 16384,      \
        .experts = (experts_), .experts_used = 1, .expert_every = (expert_every_),  \
        .vocab = 202048, .sequence = 8192, .window = 8192, .full_every = 4,         \
        .flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_CHUNKED                  \
    }
#define GPT_OSS(layers_, experts_)                                                        \
    {                                                                                     \
        .layers = (layers_), .width = 2880, .heads = 64, .kv_heads = 8, .head_width = 64, \
        .ffn_width = 2880, .experts = (experts_), .experts_used = 4, .vocab = 201088,     \
        .sequence = 4096, .window = 128, .full_every = 2,                                 \
        .flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_QKV_BIASES |                   \
                 ZERO_TRANSFORMER_OUTPUT_BIASES | ZERO_TRANSFORMER_FFN_BIASES |           \
                 ZERO_TRANSFORMER_ROUTER_BIASES | ZERO_TRANSFORMER_SINKS                  \
    }

static const preset presets[] = {
    {"gpt2", GPT(12, 768, 12, 50257, 1024)},
    {"gpt2-medium", GPT(24, 1024, 16, 50257, 1024)},
    {"gpt2-large", GPT(36, 1280, 20, 50257, 1024)},
    {"gpt2-xl", GPT(48, 1600, 25, 50257, 1024)},
    {"llama-7b", LLAMA(32, 4096, 32, 32, 11008, 32000, 4096)},
    {"llama-13b", LLAMA(40, 5120, 40, 40, 13824, 32000, 4096)},
    {"llama-70b", LLAMA(80, 8192, 64, 8, 28672, 32000, 4096)},
    {"llama-405b", LLAMA(126, 16384, 128, 8, 53248, 128256, 8192)},
    {"gpt3-175b", GPT(96, 12288, 96, 50257, 2048)},
    {"1t", GPT(128, 25600, 160, 51200, 2048)},
    {"mixtral-8x7b",
     {.layers = 32,
      .width = 4096,
      .heads = 32,
      .kv_heads = 8,
      .ffn_width = 14336,
      .vocab = 32000,
      .sequence = 32768,
      .experts = 8,
      .experts_used = 2,
      .flags = ZERO_TRANSFORMER_GATED}},
    {"qwen3-235b",
     {.layers = 94,
      .width = 4096,
      .heads = 64,
      .kv_heads = 4,
      .head_width = 128,
      .ffn_width = 1536,
      .vocab = 151936,
      .sequence = 32768,
      .experts = 128,
      .experts_used = 8,
      .flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_HEAD_NORMS}},
    {"deepseek-v3", MLA(128, 129280, 3, 256)},
    {"kimi-k2", MLA(64, 163840, 1, 384)},
    {"llama-4-scout", LLAMA_4(16, 1)},
    {"llama-4-maverick", LLAMA_4(128, 2)},
    {"gpt-oss-20b", GPT_OSS(24, 32)},
    {"gpt-oss-120b", GPT_OSS(36, 128)},
    {"gemma-3-27b",
     {.layers = 62,
      .width = 5376,
      .heads = 32,
      .kv_heads = 16,
      .head_width = 128,
      .ffn_width = 21504,
      .vocab = 262208,
      .sequence = 32768,
      .window = 1024,
      .full_every = 6,
      .flags = ZERO_TRANSFORMER_TIED_HEAD | ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_HEAD_NORMS |
               ZERO_TRANSFORMER_POST_NORMS}},
    {"phi-4", LLAMA(40, 5120, 40, 10, 17920, 100352, 4096)},
};
#define PRESET_COUNT (sizeof presets / sizeof presets[0])

const char *zero_transformer_preset_name(uint32_t index)
{
    return index < PRESET_COUNT ? presets[index].name : NULL;
}

/* All names, with commas between. */
static const char *preset_names(char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < PRESET_COUNT && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", i == 0 ? "" : ", ",
                                 presets[i].name);
    }
    return text;
}

zero_status zero_transformer_preset(const char *name, zero_transformer *transformer)
{
    char names[512];
    if (name == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "name is NULL; there are %s",
                preset_names(names, sizeof names));
    }
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            zero_transformer found = presets[i].dimensions;
            found.struct_bytes = sizeof found;
            found.dtype = ZERO_DTYPE_BF16;
            return ZI_SIZED_OUT(zero_transformer, transformer, &found);
        }
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "no preset \"%.64s\"; there are %s", name,
            preset_names(names, sizeof names));
}
