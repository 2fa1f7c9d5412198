/* Which tensors GPT-2 has: names, shapes, units and initial values. */
#include "gpt2_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A block tensor's name and its shape as multiples of the width; rows 0: a vector. */
typedef struct block_tensor {
    const char *name;
    uint32_t rows;
    uint32_t columns;
    bool into_residual; /* initial values scaled by 1 / sqrt(2 layers) */
} block_tensor;

static const block_tensor block_tensors[GPT2_BLOCK_TENSORS] = {
    [GPT2_LN1_W] = {"ln_1.weight", 0, 1, false},
    [GPT2_LN1_B] = {"ln_1.bias", 0, 1, false},
    [GPT2_QKV_W] = {"attn.c_attn.weight", 1, 3, false},
    [GPT2_QKV_B] = {"attn.c_attn.bias", 0, 3, false},
    [GPT2_MIX_W] = {"attn.c_proj.weight", 1, 1, true},
    [GPT2_MIX_B] = {"attn.c_proj.bias", 0, 1, false},
    [GPT2_LN2_W] = {"ln_2.weight", 0, 1, false},
    [GPT2_LN2_B] = {"ln_2.bias", 0, 1, false},
    [GPT2_EXPAND_W] = {"mlp.c_fc.weight", 1, 4, false},
    [GPT2_EXPAND_B] = {"mlp.c_fc.bias", 0, 4, false},
    [GPT2_SHRINK_W] = {"mlp.c_proj.weight", 4, 1, true},
    [GPT2_SHRINK_B] = {"mlp.c_proj.bias", 0, 1, false},
};

#define INIT_SIGMA 0.02

uint32_t gpt2_tensor_count(const gpt2_config *config)
{
    return GPT2_EMBED_TENSORS + config->layers * GPT2_BLOCK_TENSORS + 2;
}

static void describe_block(const gpt2_config *config, uint32_t index, gpt2_tensor *tensor)
{
    const uint32_t layer = index / GPT2_BLOCK_TENSORS;
    const block_tensor *row = &block_tensors[index % GPT2_BLOCK_TENSORS];
    const uint64_t width = config->width;
    snprintf(tensor->name, sizeof tensor->name, "h.%u.%s", layer, row->name);
    tensor->unit = 1 + layer;
    tensor->dims = row->rows == 0 ? 1 : 2;
    tensor->shape[0] = (row->rows == 0 ? row->columns : row->rows) * width;
    tensor->shape[1] = row->rows == 0 ? 0 : row->columns * width;
    tensor->decays = row->rows != 0;
    if (tensor->decays) {
        tensor->init_sigma =
            (float)(row->into_residual ? INIT_SIGMA / sqrt(2.0 * config->layers) : INIT_SIGMA);
    } else if (strncmp(row->name, "ln_", 3) == 0 && strstr(row->name, "weight") != NULL) {
        tensor->init_mean = 1.0f;
    }
}

void gpt2_tensor_describe(const gpt2_config *config, uint32_t index, gpt2_tensor *tensor)
{
    const uint32_t final = GPT2_EMBED_TENSORS + config->layers * GPT2_BLOCK_TENSORS;
    memset(tensor, 0, sizeof *tensor);
    if (index < GPT2_EMBED_TENSORS) {
        const bool tokens = index == GPT2_WTE;
        snprintf(tensor->name, sizeof tensor->name, "%s", tokens ? "wte.weight" : "wpe.weight");
        tensor->shape[0] = tokens ? config->vocab : config->seq;
        tensor->shape[1] = config->width;
        tensor->dims = 2;
        tensor->decays = true;
        tensor->init_sigma = (float)INIT_SIGMA;
    } else if (index < final) {
        describe_block(config, index - GPT2_EMBED_TENSORS, tensor);
    } else {
        const bool weight = index == final;
        snprintf(tensor->name, sizeof tensor->name, "%s", weight ? "ln_f.weight" : "ln_f.bias");
        tensor->shape[0] = config->width;
        tensor->dims = 1;
        tensor->unit = 1 + config->layers;
        tensor->init_mean = weight ? 1.0f : 0.0f;
    }
}

uint64_t gpt2_parameter_count(const gpt2_config *config)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < gpt2_tensor_count(config); i++) {
        gpt2_tensor tensor;
        gpt2_tensor_describe(config, i, &tensor);
        count += tensor.shape[0] * (tensor.dims == 2 ? tensor.shape[1] : 1);
    }
    return count;
}
