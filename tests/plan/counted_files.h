/* Files of model hubs and how many parameters their models have. */
#ifndef TESTS_PLAN_COUNTED_FILES_H
#define TESTS_PLAN_COUNTED_FILES_H

#include <stdint.h>

/* The parameters that transformers 5 makes of such files, counted by scripts/check_configs.py: each
 * type as it writes its files, without keys that have defaults, and with those that change the
 * count. */
#define SMALL                                                                  \
    "\"hidden_size\": 48, \"num_hidden_layers\": 3, \"num_attention_heads\": " \
    "12, " COMMON_DIMENSIONS
#define WIDE                                                                   \
    "\"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": " \
    "32, " COMMON_DIMENSIONS
#define COMMON_DIMENSIONS \
    "\"intermediate_size\": 80, \"vocab_size\": 97, \"max_position_embeddings\": 32"

/* Latents, shared experts and a block without experts. */
#define LATENT                                                                                   \
    ", \"num_key_value_heads\": 12, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, " \
    "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, "           \
    "\"q_lora_rank\": 20, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, "                       \
    "\"qk_rope_head_dim\": 4, \"v_head_dim\": 6, \"n_group\": 2, \"topk_group\": 1"
#define INTERLEAVED                                                                        \
    ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 1, \"num_local_experts\": 4, " \
    "\"intermediate_size_mlp\": 112"
#define TOWER                                                                    \
    ", \"vision_config\": {\"hidden_size\": 16, \"intermediate_size\": 24, "     \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"image_size\": 28, " \
    "\"patch_size\": 14}"

static const struct {
    const char *text;
    uint64_t total;
} counted_files[] = {
    {"{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_layer\": 3, \"n_head\": 12, \"vocab_size\": "
     "97, \"n_positions\": 32}",
     91104},
    {"{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_layer\": 3, \"n_head\": 12, \"vocab_size\": "
     "97, \"n_positions\": 32, \"tie_word_embeddings\": false}",
     95760},
    {"{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_layer\": 3, \"n_head\": 12, \"vocab_size\": "
     "97, \"n_positions\": 32, \"n_inner\": null}",
     91104},
    {"{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_layer\": 3, \"n_head\": 12, \"vocab_size\": "
     "97, \"n_positions\": 32, \"n_inner\": 40}",
     46872},
    {"{\"model_type\": \"llama\", " SMALL ", \"num_key_value_heads\": 4}", 62640},
    {"{\"model_type\": \"llama\", " SMALL
     ", \"num_key_value_heads\": 4, \"tie_word_embeddings\": true}",
     57984},
    {"{\"model_type\": \"llama\", " SMALL ", \"num_key_value_heads\": 4, \"head_dim\": 16}",
     117936},
    {"{\"model_type\": \"llama\", " SMALL ", \"num_key_value_heads\": null}", 71856},
    {"{\"model_type\": \"llama\", " SMALL ", \"num_key_value_heads\": 4, \"num_experts\": 0}",
     62640},
    {"{\"model_type\": \"llama\", " SMALL ", \"num_key_value_heads\": 4, \"num_local_experts\": 6}",
     62640},
    {"{\"model_type\": \"llama\", " SMALL ", \"num_key_value_heads\": 4, \"num_experts\": 6}",
     62640},
    {"{\"model_type\": \"llama\", " WIDE "}", 108096},
    {"{\"model_type\": \"mistral\", " SMALL ", \"num_key_value_heads\": 4}", 62640},
    {"{\"model_type\": \"mistral\", " SMALL
     ", \"num_key_value_heads\": 4, \"tie_word_embeddings\": true}",
     57984},
    {"{\"model_type\": \"mistral\", " SMALL ", \"num_key_value_heads\": 4, \"head_dim\": 16}",
     117936},
    {"{\"model_type\": \"mistral\", " SMALL ", \"num_key_value_heads\": 4, \"num_experts\": 0}",
     62640},
    {"{\"model_type\": \"mistral\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_local_experts\": 6}",
     62640},
    {"{\"model_type\": \"mistral\", " SMALL ", \"num_key_value_heads\": 4, \"num_experts\": 6}",
     62640},
    {"{\"model_type\": \"mistral\", " WIDE "}", 89664},
    {"{\"model_type\": \"mixtral\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_local_experts\": 4}",
     166896},
    {"{\"model_type\": \"mixtral\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_local_experts\": 4, "
     "\"tie_word_embeddings\": true}",
     162240},
    {"{\"model_type\": \"mixtral\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_local_experts\": 4, "
     "\"head_dim\": 16}",
     222192},
    {"{\"model_type\": \"mixtral\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_local_experts\": 6}",
     236304},
    {"{\"model_type\": \"mixtral\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_experts\": 6}",
     236304},
    {"{\"model_type\": \"mixtral\", " WIDE
     ", \"num_experts_per_tok\": 2, \"num_local_experts\": 4}",
     228672},
    {"{\"model_type\": \"qwen2\", " SMALL ", \"num_key_value_heads\": 4}", 62880},
    {"{\"model_type\": \"qwen2\", " SMALL
     ", \"num_key_value_heads\": 4, \"tie_word_embeddings\": true}",
     58224},
    {"{\"model_type\": \"qwen2\", " SMALL ", \"num_key_value_heads\": 4, \"head_dim\": 16}",
     118896},
    {"{\"model_type\": \"qwen2\", " SMALL ", \"num_key_value_heads\": null}", 72288},
    {"{\"model_type\": \"qwen2\", " SMALL ", \"num_key_value_heads\": 4, \"num_experts\": 0}",
     62880},
    {"{\"model_type\": \"qwen2\", " SMALL ", \"num_key_value_heads\": 4, \"num_local_experts\": 6}",
     62880},
    {"{\"model_type\": \"qwen2\", " SMALL ", \"num_key_value_heads\": 4, \"num_experts\": 6}",
     62880},
    {"{\"model_type\": \"qwen2\", " WIDE "}", 108672},
    {"{\"model_type\": \"qwen3\", " SMALL ", \"num_key_value_heads\": 4}", 634800},
    {"{\"model_type\": \"qwen3\", " SMALL
     ", \"num_key_value_heads\": 4, \"tie_word_embeddings\": true}",
     630144},
    {"{\"model_type\": \"qwen3\", " SMALL ", \"num_key_value_heads\": 4, \"head_dim\": 16}",
     118032},
    {"{\"model_type\": \"qwen3\", " SMALL ", \"num_key_value_heads\": null}", 929712},
    {"{\"model_type\": \"qwen3\", " SMALL ", \"num_key_value_heads\": 4, \"num_experts\": 0}",
     634800},
    {"{\"model_type\": \"qwen3\", " SMALL ", \"num_key_value_heads\": 4, \"num_local_experts\": 6}",
     634800},
    {"{\"model_type\": \"qwen3\", " SMALL ", \"num_key_value_heads\": 4, \"num_experts\": 6}",
     634800},
    {"{\"model_type\": \"qwen3\", " WIDE "}", 3205440},
    {"{\"model_type\": \"qwen3_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_experts\": 4, "
     "\"moe_intermediate_size\": 24}",
     70152},
    {"{\"model_type\": \"qwen3_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_experts\": 4, "
     "\"moe_intermediate_size\": 24, \"tie_word_embeddings\": true}",
     65496},
    {"{\"model_type\": \"qwen3_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_experts\": 4, "
     "\"moe_intermediate_size\": 24, \"head_dim\": 16}",
     125520},
    {"{\"model_type\": \"qwen3_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"num_local_experts\": 6}",
     91176},
    {"{\"model_type\": \"qwen3_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_experts\": 6, "
     "\"moe_intermediate_size\": 24}",
     91176},
    {"{\"model_type\": \"qwen3_moe\", " WIDE
     ", \"num_experts_per_tok\": 2, \"num_experts\": 4, \"moe_intermediate_size\": 24}",
     96588},
    {"{\"model_type\": \"deepseek_v3\", " SMALL LATENT "}", 89052},
    {"{\"model_type\": \"deepseek_v3\", " SMALL LATENT ", \"tie_word_embeddings\": true}", 84396},
    {"{\"model_type\": \"deepseek_v3\", " SMALL
     ", \"num_key_value_heads\": 12, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, "
     "\"q_lora_rank\": 8, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "
     "\"v_head_dim\": 6, \"n_group\": 2, \"topk_group\": 1}",
     82104},
    {"{\"model_type\": \"deepseek_v3\", " SMALL
     ", \"num_key_value_heads\": 12, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, "
     "\"q_lora_rank\": null, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": "
     "4, \"v_head_dim\": 6, \"n_group\": 2, \"topk_group\": 1}",
     98208},
    {"{\"model_type\": \"deepseek_v3\", " SMALL
     ", \"num_key_value_heads\": 12, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 2, \"first_k_dense_replace\": 1, "
     "\"q_lora_rank\": 20, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "
     "\"v_head_dim\": 6, \"n_group\": 2, \"topk_group\": 1}",
     95964},
    {"{\"model_type\": \"deepseek_v3\", " SMALL
     ", \"num_key_value_heads\": 12, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 0, \"first_k_dense_replace\": 1, "
     "\"q_lora_rank\": 20, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "
     "\"v_head_dim\": 6, \"n_group\": 2, \"topk_group\": 1}",
     82140},
    {"{\"model_type\": \"deepseek_v3\", " SMALL
     ", \"num_key_value_heads\": 12, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 0, "
     "\"q_lora_rank\": 20, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "
     "\"v_head_dim\": 6, \"n_group\": 2, \"topk_group\": 1}",
     95004},
    {"{\"model_type\": \"deepseek_v3\", " SMALL
     ", \"num_key_value_heads\": 12, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 5, "
     "\"q_lora_rank\": 20, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "
     "\"v_head_dim\": 6, \"n_group\": 2, \"topk_group\": 1}",
     77148},
    {"{\"model_type\": \"deepseek_v3\", " SMALL
     ", \"num_key_value_heads\": 12, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, "
     "\"q_lora_rank\": 20, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "
     "\"v_head_dim\": 12, \"n_group\": 2, \"topk_group\": 1}",
     102876},
    {"{\"model_type\": \"kimi_k2\", " SMALL LATENT "}", 89052},
    {"{\"model_type\": \"kimi_k2\", " SMALL LATENT ", \"tie_word_embeddings\": true}", 84396},
    {"{\"model_type\": \"llama4_text\", " SMALL INTERLEAVED "}", 772848},
    {"{\"model_type\": \"llama4_text\", " SMALL INTERLEAVED ", \"tie_word_embeddings\": true}",
     768192},
    {"{\"model_type\": \"llama4_text\", " SMALL INTERLEAVED ", \"head_dim\": 16}", 256752},
    {"{\"model_type\": \"llama4_text\", " SMALL INTERLEAVED ", \"attention_bias\": true}", 780672},
    {"{\"model_type\": \"llama4_text\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 1, \"num_local_experts\": 6, "
     "\"intermediate_size_mlp\": 112}",
     842256},
    {"{\"model_type\": \"llama4_text\", " SMALL INTERLEAVED ", \"interleave_moe_layer_step\": 2}",
     689520},
    {"{\"model_type\": \"llama4_text\", \"hidden_size\": 48, \"num_hidden_layers\": 9, "
     "\"num_attention_heads\": 12, \"intermediate_size\": 80, \"vocab_size\": 97, "
     "\"max_position_embeddings\": 32" INTERLEAVED ", \"interleave_moe_layer_step\": 2}",
     2091504},
    {"{\"model_type\": \"llama4\", \"text_config\": {" SMALL INTERLEAVED "}" TOWER "}", 772848},
    {"{\"model_type\": \"llama4\", \"text_config\": {" SMALL INTERLEAVED
     ", \"tie_word_embeddings\": true}" TOWER "}",
     768192},
    {"{\"model_type\": \"llama4\", \"text_config\": {" SMALL INTERLEAVED ", \"head_dim\": 16}" TOWER
     "}",
     256752},
    {"{\"model_type\": \"llama4\", \"text_config\": {" SMALL INTERLEAVED
     ", \"attention_bias\": true}" TOWER "}",
     780672},
    {"{\"model_type\": \"llama4\", \"text_config\": {" SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 1, \"num_local_experts\": 6, "
     "\"intermediate_size_mlp\": 112}" TOWER "}",
     842256},
    {"{\"model_type\": \"llama4\", \"text_config\": {" SMALL INTERLEAVED
     ", \"interleave_moe_layer_step\": 2}" TOWER "}",
     689520},
    {"{\"model_type\": \"gemma2\", " SMALL ", \"num_key_value_heads\": 4}", 1219488},
    {"{\"model_type\": \"gemma2\", " SMALL
     ", \"num_key_value_heads\": 4, \"tie_word_embeddings\": false}",
     1224144},
    {"{\"model_type\": \"gemma2\", " SMALL ", \"num_key_value_heads\": 4, \"head_dim\": 16}",
     113568},
    {"{\"model_type\": \"gemma2\", " SMALL
     ", \"num_key_value_heads\": 4, \"attention_bias\": true}",
     1234992},
    {"{\"model_type\": \"gemma2\", " WIDE "}", 3592064},
    {"{\"model_type\": \"gemma3_text\", " SMALL ", \"num_key_value_heads\": 4}", 1221024},
    {"{\"model_type\": \"gemma3_text\", " SMALL
     ", \"num_key_value_heads\": 4, \"tie_word_embeddings\": false}",
     1225680},
    {"{\"model_type\": \"gemma3_text\", " SMALL ", \"num_key_value_heads\": 4, \"head_dim\": 16}",
     113664},
    {"{\"model_type\": \"gemma3_text\", " SMALL
     ", \"num_key_value_heads\": 4, \"attention_bias\": true}",
     1236528},
    {"{\"model_type\": \"gemma3_text\", \"hidden_size\": 64, \"num_hidden_layers\": 3, "
     "\"intermediate_size\": 80}",
     18009408},
    {"{\"model_type\": \"gemma3\", \"text_config\": {" SMALL ", \"num_key_value_heads\": 4}" TOWER
     ", \"mm_tokens_per_image\": 4}",
     1221024},
    {"{\"model_type\": \"gemma3\", \"text_config\": {" SMALL
     ", \"num_key_value_heads\": 4, \"head_dim\": 16}" TOWER ", \"mm_tokens_per_image\": 4}",
     113664},
    {"{\"model_type\": \"gemma3\", \"text_config\": {" SMALL
     ", \"num_key_value_heads\": 4, \"attention_bias\": true}" TOWER
     ", \"mm_tokens_per_image\": 4}",
     1236528},
    {"{\"model_type\": \"gemma3\", \"text_config\": {" SMALL ", \"num_key_value_heads\": 4}" TOWER
     ", \"mm_tokens_per_image\": 4, \"tie_word_embeddings\": false}",
     1225680},
    {"{\"model_type\": \"phi3\", " SMALL ", \"num_key_value_heads\": 4, \"pad_token_id\": 0}",
     62640},
    {"{\"model_type\": \"phi3\", " SMALL
     ", \"num_key_value_heads\": 4, \"pad_token_id\": 0, \"tie_word_embeddings\": true}",
     57984},
    {"{\"model_type\": \"phi3\", " SMALL
     ", \"num_key_value_heads\": 4, \"pad_token_id\": 0, \"head_dim\": 16}",
     117936},
    {"{\"model_type\": \"phi3\", " SMALL ", \"num_key_value_heads\": null, \"pad_token_id\": 0}",
     71856},
    {"{\"model_type\": \"phi3\", " WIDE ", \"pad_token_id\": 0}", 108096},
    {"{\"model_type\": \"gpt_oss\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_local_experts\": 4}",
     449904},
    {"{\"model_type\": \"gpt_oss\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_local_experts\": 4, "
     "\"tie_word_embeddings\": true}",
     445248},
    {"{\"model_type\": \"gpt_oss\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_local_experts\": 4, "
     "\"head_dim\": 16}",
     225840},
    {"{\"model_type\": \"gpt_oss\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_local_experts\": 4, "
     "\"attention_bias\": false}",
     445920},
    {"{\"model_type\": \"gpt_oss\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"num_local_experts\": 6}",
     520566},
    {"{\"model_type\": \"gpt_oss\", " WIDE
     ", \"num_experts_per_tok\": 2, \"num_local_experts\": 4}",
     1193196},
    {"{\"model_type\": \"gpt_neox\", " SMALL "}", 61632},
    {"{\"model_type\": \"gpt_neox\", " SMALL ", \"tie_word_embeddings\": true}", 56976},
    {"{\"model_type\": \"gpt_neox\", " SMALL ", \"attention_bias\": false}", 61056},
    {"{\"model_type\": \"opt\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, "
     "\"ffn_dim\": 80}",
     58608},
    {"{\"model_type\": \"opt\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, "
     "\"ffn_dim\": 80, \"tie_word_embeddings\": false}",
     63264},
    {"{\"model_type\": \"opt\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, "
     "\"ffn_dim\": 80, \"enable_bias\": false}",
     57648},
    {"{\"model_type\": \"falcon\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32}",
     75312},
    {"{\"model_type\": \"falcon\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, "
     "\"tie_word_embeddings\": false}",
     79968},
    {"{\"model_type\": \"falcon\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, "
     "\"multi_query\": false}",
     87984},
    {"{\"model_type\": \"falcon\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, "
     "\"parallel_attn\": false}",
     75600},
    {"{\"model_type\": \"falcon\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, \"bias\": "
     "true}",
     76344},
    {"{\"model_type\": \"falcon\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, "
     "\"new_decoder_architecture\": true}",
     88272},
    {"{\"model_type\": \"falcon\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, "
     "\"ffn_hidden_size\": 40}",
     31536},
    {"{\"model_type\": \"falcon\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
     "\"num_attention_heads\": 12, \"vocab_size\": 97, \"max_position_embeddings\": 32, "
     "\"new_decoder_architecture\": true, \"num_kv_heads\": 4}",
     79056},
    {"{\"model_type\": \"glm4_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1}",
     74544},
    {"{\"model_type\": \"glm4_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, "
     "\"tie_word_embeddings\": true}",
     69888},
    {"{\"model_type\": \"glm4_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, "
     "\"head_dim\": 16}",
     129840},
    {"{\"model_type\": \"glm4_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, "
     "\"attention_bias\": true}",
     74784},
    {"{\"model_type\": \"glm4_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, "
     "\"use_qk_norm\": true}",
     74568},
    {"{\"model_type\": \"glm4_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 2, \"first_k_dense_replace\": 1}",
     81456},
    {"{\"model_type\": \"glm4_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 0, \"first_k_dense_replace\": 1}",
     67632},
    {"{\"model_type\": \"glm4_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 0}",
     80496},
    {"{\"model_type\": \"glm4_moe\", " SMALL
     ", \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
     "\"n_routed_experts\": 4, \"n_shared_experts\": 1, \"first_k_dense_replace\": 5}",
     62640},
};

#endif
