/* Headers of safetensors files as model hubs publish them, written anew from a transformer's
 * dimensions; and the config.json beside them. */
#ifndef TESTS_PLAN_WEIGHTS_TEXT_H
#define TESTS_PLAN_WEIGHTS_TEXT_H

#include <stdarg.h>

#include "harness.h"
#include "zero/transformer.h"

/* A header while it is written, and the whole file's beginning afterwards. */
typedef struct weights_text {
    FILE *out;
    char *text; /* length, then JSON */
    size_t bytes;
    const char *dtype;
    uint64_t element_bytes;
    uint64_t offset;
} weights_text;

static inline void weights_open(weights_text *w)
{
    w->out = open_memstream(&w->text, &w->bytes);
    CHECK(w->out != NULL && fwrite("\0\0\0\0\0\0\0\0", 1, 8, w->out) == 8);
    fprintf(w->out, "{\"__metadata__\": {\"format\": \"pt\"}");
}

/* columns 0: a vector. */
__attribute__((format(printf, 4, 5))) static inline void
weights_add(weights_text *w, uint64_t rows, uint64_t columns, const char *format, ...)
{
    const uint64_t end = w->offset + rows * (columns != 0 ? columns : 1) * w->element_bytes;
    va_list parts;
    va_start(parts, format);
    fprintf(w->out, ", \"");
    vfprintf(w->out, format, parts);
    va_end(parts);
    fprintf(w->out, "\": {\"dtype\": \"%s\", \"shape\": [%" PRIu64, w->dtype, rows);
    if (columns != 0) {
        fprintf(w->out, ", %" PRIu64, columns);
    }
    fprintf(w->out, "], \"data_offsets\": [%" PRIu64 ", %" PRIu64 "]}", w->offset, end);
    w->offset = end;
}

static inline void weights_close(weights_text *w)
{
    fprintf(w->out, "}");
    CHECK(fclose(w->out) == 0);
    for (int i = 0; i < 8; i++) {
        w->text[i] = (char)((w->bytes - 8) >> (8 * i));
    }
}

/* A tensor of a block: its name, rows and columns. */
typedef struct weights_row {
    const char *name;
    uint64_t rows;
    uint64_t columns;
} weights_row;

static inline void weights_block(weights_text *w, const char *blocks, uint64_t block,
                                 const weights_row *rows, size_t row_count)
{
    for (size_t i = 0; i < row_count; i++) {
        weights_add(w, rows[i].rows, rows[i].columns, "%s.%" PRIu64 ".%s", blocks, block,
                    rows[i].name);
    }
}

static inline void weights_gpt2(weights_text *w, const zero_transformer *t)
{
    const uint64_t width = t->width;
    const weights_row rows[] = {{"ln_1.weight", width, 0},
                                {"ln_1.bias", width, 0},
                                {"attn.c_attn.weight", width, 3 * width},
                                {"attn.c_attn.bias", 3 * width, 0},
                                {"attn.c_proj.weight", width, width},
                                {"attn.c_proj.bias", width, 0},
                                {"attn.bias", t->positions, t->positions}, /* a mask */
                                {"ln_2.weight", width, 0},
                                {"ln_2.bias", width, 0},
                                {"mlp.c_fc.weight", width, 4 * width},
                                {"mlp.c_fc.bias", 4 * width, 0},
                                {"mlp.c_proj.weight", 4 * width, width},
                                {"mlp.c_proj.bias", width, 0}};
    weights_add(w, t->vocab, width, "wte.weight");
    weights_add(w, t->positions, width, "wpe.weight");
    for (uint64_t block = 0; block < t->layers; block++) {
        weights_block(w, "h", block, rows, sizeof rows / sizeof rows[0]);
    }
    weights_add(w, width, 0, "ln_f.weight");
    weights_add(w, width, 0, "ln_f.bias");
}

static inline void weights_experts(weights_text *w, const zero_transformer *t, uint64_t block,
                                   const char *name, const char *const matrices[3])
{
    weights_add(w, t->experts, t->width, "model.layers.%" PRIu64 ".%s.gate.weight", block, name);
    for (uint64_t expert = 0; expert < t->experts; expert++) {
        for (int i = 0; i < 3; i++) {
            const bool down = i == 1;
            weights_add(w, down ? t->width : t->ffn_width, down ? t->ffn_width : t->width,
                        "model.layers.%" PRIu64 ".%s.experts.%" PRIu64 ".%s.weight", block, name,
                        expert, matrices[i]);
        }
    }
}

/* Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3 by their flags; with experts Qwen 3's where heads
 * have norms, else Mixtral's. head_width is set. */
static inline void weights_llama(weights_text *w, const zero_transformer *t)
{
    const uint64_t queries = t->heads * t->head_width;
    const uint64_t keys = (t->kv_heads != 0 ? t->kv_heads : t->heads) * t->head_width;
    const bool norms = (t->flags & ZERO_TRANSFORMER_HEAD_NORMS) != 0;
    const weights_row rows[] = {{"input_layernorm.weight", t->width, 0},
                                {"self_attn.q_proj.weight", queries, t->width},
                                {"self_attn.k_proj.weight", keys, t->width},
                                {"self_attn.v_proj.weight", keys, t->width},
                                {"self_attn.o_proj.weight", t->width, queries},
                                {"post_attention_layernorm.weight", t->width, 0}};
    const weights_row dense[] = {{"mlp.gate_proj.weight", t->ffn_width, t->width},
                                 {"mlp.up_proj.weight", t->ffn_width, t->width},
                                 {"mlp.down_proj.weight", t->width, t->ffn_width}};
    const weights_row biases[] = {{"self_attn.q_proj.bias", queries, 0},
                                  {"self_attn.k_proj.bias", keys, 0},
                                  {"self_attn.v_proj.bias", keys, 0}};
    const weights_row output_bias = {"self_attn.o_proj.bias", t->width, 0};
    const weights_row post_norms[] = {{"pre_feedforward_layernorm.weight", t->width, 0},
                                      {"post_feedforward_layernorm.weight", t->width, 0}};
    const weights_row head_norms[] = {{"self_attn.q_norm.weight", t->head_width, 0},
                                      {"self_attn.k_norm.weight", t->head_width, 0}};
    weights_add(w, t->vocab, t->width, "model.embed_tokens.weight");
    for (uint64_t block = 0; block < t->layers; block++) {
        weights_block(w, "model.layers", block, rows, 6);
        weights_block(w, "model.layers", block, biases,
                      (t->flags & ZERO_TRANSFORMER_QKV_BIASES) != 0 ? 3 : 0);
        weights_block(w, "model.layers", block, &output_bias,
                      (t->flags & ZERO_TRANSFORMER_OUTPUT_BIASES) != 0 ? 1 : 0);
        weights_block(w, "model.layers", block, head_norms, norms ? 2 : 0);
        weights_block(w, "model.layers", block, post_norms,
                      (t->flags & ZERO_TRANSFORMER_POST_NORMS) != 0 ? 2 : 0);
        weights_block(w, "model.layers", block, dense, t->experts == 0 ? 3 : 0);
        if (t->experts != 0) {
            weights_experts(w, t, block, norms ? "mlp" : "block_sparse_moe",
                            norms ? (const char *const[]){"gate_proj", "down_proj", "up_proj"}
                                  : (const char *const[]){"w1", "w2", "w3"});
        }
    }
    weights_add(w, t->width, 0, "model.norm.weight");
    if ((t->flags & ZERO_TRANSFORMER_TIED_HEAD) == 0) {
        weights_add(w, t->vocab, t->width, "lm_head.weight");
    }
}

/* Those below have all dimensions set. */
static inline void weights_phi3(weights_text *w, const zero_transformer *t)
{
    const uint64_t queries = t->heads * t->head_width;
    const weights_row rows[] = {
        {"input_layernorm.weight", t->width, 0},
        {"self_attn.qkv_proj.weight", queries + 2 * t->kv_heads * t->head_width, t->width},
        {"self_attn.o_proj.weight", t->width, queries},
        {"post_attention_layernorm.weight", t->width, 0},
        {"mlp.gate_up_proj.weight", 2 * t->ffn_width, t->width},
        {"mlp.down_proj.weight", t->width, t->ffn_width}};
    weights_add(w, t->vocab, t->width, "model.embed_tokens.weight");
    for (uint64_t block = 0; block < t->layers; block++) {
        weights_block(w, "model.layers", block, rows, sizeof rows / sizeof rows[0]);
    }
    weights_add(w, t->width, 0, "model.norm.weight");
    if ((t->flags & ZERO_TRANSFORMER_TIED_HEAD) == 0) {
        weights_add(w, t->vocab, t->width, "lm_head.weight");
    }
}

static inline void weights_neox(weights_text *w, const zero_transformer *t)
{
    const uint64_t width = t->width;
    const weights_row rows[] = {{"input_layernorm.weight", width, 0},
                                {"input_layernorm.bias", width, 0},
                                {"attention.bias", t->sequence, t->sequence}, /* a mask */
                                {"attention.query_key_value.weight", 3 * width, width},
                                {"attention.dense.weight", width, width},
                                {"post_attention_layernorm.weight", width, 0},
                                {"post_attention_layernorm.bias", width, 0},
                                {"mlp.dense_h_to_4h.weight", t->ffn_width, width},
                                {"mlp.dense_h_to_4h.bias", t->ffn_width, 0},
                                {"mlp.dense_4h_to_h.weight", width, t->ffn_width},
                                {"mlp.dense_4h_to_h.bias", width, 0}};
    const weights_row biases[] = {{"attention.query_key_value.bias", 3 * width, 0},
                                  {"attention.dense.bias", width, 0}};
    weights_add(w, t->vocab, width, "gpt_neox.embed_in.weight");
    for (uint64_t block = 0; block < t->layers; block++) {
        weights_block(w, "gpt_neox.layers", block, rows, sizeof rows / sizeof rows[0]);
        weights_block(w, "gpt_neox.layers", block, biases,
                      (t->flags & ZERO_TRANSFORMER_QKV_BIASES) != 0 ? 2 : 0);
    }
    weights_add(w, width, 0, "gpt_neox.final_layer_norm.weight");
    weights_add(w, width, 0, "gpt_neox.final_layer_norm.bias");
    if ((t->flags & ZERO_TRANSFORMER_TIED_HEAD) == 0) {
        weights_add(w, t->vocab, width, "embed_out.weight");
    }
}

static inline void weights_opt(weights_text *w, const zero_transformer *t)
{
    static const char *const heads[] = {"q_proj", "k_proj", "v_proj", "out_proj"};
    const uint64_t width = t->width;
    const bool biases = (t->flags & ZERO_TRANSFORMER_BIASES) != 0;
    const weights_row rows[] = {{"self_attn_layer_norm.weight", width, 0},
                                {"self_attn_layer_norm.bias", width, 0},
                                {"fc1.weight", t->ffn_width, width},
                                {"fc2.weight", width, t->ffn_width},
                                {"final_layer_norm.weight", width, 0},
                                {"final_layer_norm.bias", width, 0},
                                {"fc1.bias", t->ffn_width, 0},
                                {"fc2.bias", width, 0}};
    weights_add(w, t->vocab, width, "model.decoder.embed_tokens.weight");
    weights_add(w, t->positions, width, "model.decoder.embed_positions.weight");
    for (uint64_t block = 0; block < t->layers; block++) {
        weights_block(w, "model.decoder.layers", block, rows, biases ? 8 : 6);
        for (int i = 0; i < 4; i++) {
            const char *name =
                test_text("model.decoder.layers.%" PRIu64 ".self_attn.%s", block, heads[i]);
            weights_add(w, width, width, "%s.weight", name);
            if (biases) {
                weights_add(w, width, 0, "%s.bias", name);
            }
        }
    }
    weights_add(w, width, 0, "model.decoder.final_layer_norm.weight");
    weights_add(w, width, 0, "model.decoder.final_layer_norm.bias");
    if ((t->flags & ZERO_TRANSFORMER_TIED_HEAD) == 0) {
        weights_add(w, t->vocab, width, "lm_head.weight");
    }
}

/* The whole header of a transformer. The caller frees its text. */
static inline weights_text weights_of(const zero_transformer *t)
{
    weights_text w = {.dtype = "BF16", .element_bytes = 2};
    weights_open(&w);
    if ((t->flags & ZERO_TRANSFORMER_GATED) == 0) {
        weights_gpt2(&w, t);
    } else {
        weights_llama(&w, t);
    }
    weights_close(&w);
    return w;
}

/* The config.json of weights_of. */
static inline const char *weights_config(const zero_transformer *t)
{
    const bool gpt2 = (t->flags & ZERO_TRANSFORMER_GATED) == 0;
    const bool norms = (t->flags & ZERO_TRANSFORMER_HEAD_NORMS) != 0;
    if (gpt2) {
        return test_text("{\"model_type\": \"gpt2\", \"n_embd\": %" PRIu64 ", \"n_head\": %" PRIu64
                         ", \"n_layer\": %" PRIu64 ", \"n_positions\": %" PRIu64
                         ", \"vocab_size\": %" PRIu64 "}",
                         t->width, t->heads, t->layers, t->positions, t->vocab);
    }
    const char *type = norms             ? t->experts != 0 ? "qwen3_moe" : "qwen3"
                       : t->experts != 0 ? "mixtral"
                       : (t->flags & ZERO_TRANSFORMER_QKV_BIASES) != 0 ? "qwen2"
                                                                       : "llama";
    return test_text("{\"model_type\": \"%s\", \"hidden_size\": %" PRIu64
                     ", \"num_hidden_layers\": %" PRIu64 ", \"num_attention_heads\": %" PRIu64
                     ", \"num_key_value_heads\": %" PRIu64 ", \"head_dim\": %" PRIu64
                     ", \"intermediate_size\": %" PRIu64 ", \"moe_intermediate_size\": %" PRIu64
                     ", \"vocab_size\": %" PRIu64 ", \"max_position_embeddings\": %" PRIu64
                     ", \"num_local_experts\": %" PRIu64 ", \"num_experts\": %" PRIu64
                     ", \"num_experts_per_tok\": %" PRIu64 ", \"tie_word_embeddings\": %s}",
                     type, t->width, t->layers, t->heads, t->kv_heads != 0 ? t->kv_heads : t->heads,
                     t->head_width, t->ffn_width, t->ffn_width, t->vocab, t->sequence, t->experts,
                     t->experts, t->experts_used,
                     (t->flags & ZERO_TRANSFORMER_TIED_HEAD) != 0 ? "true" : "false");
}

#endif
