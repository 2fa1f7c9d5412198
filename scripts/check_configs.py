#!/usr/bin/env python3
"""Holds what `zero plan` reads of a config.json against transformers: for each model type and for
variations of each key that may change what tensors there are, the number of parameters of the model
that transformers makes of the file, on the meta device.

Usage: check_configs.py PROGRAM. It needs transformers 5 and torch, which no test has; the cases of
tests/plan/counted_files.h are of its --table. One line per case that differs; the last is
"N alike, N refused by either, N wrong". Exit status 1 where a count is wrong. Of a model with
towers for images the parameters of its text model count; kimi_k2, which transformers knows by the
name deepseek_v3 alone, is made as such.
  --table    print the cases as C too
  --type T   of model type T alone; more than one may be given
  --presets  instead: the presets of `zero plan` whose dimensions are in PRESETS"""

import json
import os
import subprocess
import sys
import tempfile

NEW = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 12,
       "intermediate_size": 80, "vocab_size": 97, "max_position_embeddings": 32}
WITH_KEYS = {**NEW, "num_key_value_heads": 4}
EXPERTS = {"num_experts_per_tok": 2}
MOE = {**WITH_KEYS, **EXPERTS, "moe_intermediate_size": 24, "n_routed_experts": 4,
       "n_shared_experts": 1, "first_k_dense_replace": 1}
LATENT = {**MOE, "num_key_value_heads": 12, "q_lora_rank": 20, "kv_lora_rank": 16,
          "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "n_group": 2,
          "topk_group": 1}
LLAMA4 = {**WITH_KEYS, "num_experts_per_tok": 1, "num_local_experts": 4,
          "intermediate_size_mlp": 112}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
          "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
# Heads that the defaults of num_key_value_heads divide.
MANY = {**NEW, "hidden_size": 64, "num_attention_heads": 32}

BASES = {
    "gpt2": [{"n_embd": 48, "n_layer": 3, "n_head": 12, "vocab_size": 97, "n_positions": 32}],
    "llama": [WITH_KEYS, MANY],
    "mistral": [WITH_KEYS, MANY],
    "mixtral": [{**base, **EXPERTS, "num_local_experts": 4} for base in (WITH_KEYS, MANY)],
    "qwen2": [WITH_KEYS, MANY],
    "qwen3": [WITH_KEYS, MANY],
    "qwen3_moe": [{**base, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 24}
                  for base in (WITH_KEYS, MANY)],
    "deepseek_v3": [LATENT],
    "kimi_k2": [LATENT],
    "llama4_text": [LLAMA4, {**LLAMA4, "num_hidden_layers": 9, "interleave_moe_layer_step": 2}],
    "llama4": [{"text_config": LLAMA4, "vision_config": VISION},
               {"text_config": LLAMA4, "vision_config": VISION, "tie_word_embeddings": True}],
    "gemma2": [WITH_KEYS, MANY],
    "gemma3_text": [WITH_KEYS, {key: MANY[key] for key in ("hidden_size", "num_hidden_layers",
                                                           "intermediate_size")}],
    "gemma3": [{"text_config": WITH_KEYS, "vision_config": VISION, "mm_tokens_per_image": 4},
               {"text_config": WITH_KEYS, "vision_config": VISION, "mm_tokens_per_image": 4,
                "tie_word_embeddings": False}],
    "phi3": [{**WITH_KEYS, "pad_token_id": 0}, {**MANY, "pad_token_id": 0}],
    "gpt_oss": [{**base, **EXPERTS, "num_local_experts": 4} for base in (WITH_KEYS, MANY)],
    "gpt_neox": [NEW],
    "opt": [{**{key: NEW[key] for key in NEW if key != "intermediate_size"}, "ffn_dim": 80}],
    "falcon": [{key: NEW[key] for key in NEW if key != "intermediate_size"},
               {**{key: NEW[key] for key in NEW if key != "intermediate_size"},
                "new_decoder_architecture": True, "num_kv_heads": 4}],
    "glm4_moe": [MOE],
}

# What the hub's files of the presets say.
PRESETS = {
    "deepseek-v3": {"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
                    "num_attention_heads": 128, "num_key_value_heads": 128,
                    "intermediate_size": 18432, "moe_intermediate_size": 2048,
                    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
                    "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
                    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
                    "vocab_size": 129280, "max_position_embeddings": 163840},
    "llama-4-scout": {"model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120,
                      "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
                      "intermediate_size": 8192, "intermediate_size_mlp": 16384,
                      "num_local_experts": 16, "num_experts_per_tok": 1,
                      "interleave_moe_layer_step": 1, "vocab_size": 202048,
                      "max_position_embeddings": 10485760},
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880,
                    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
                    "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4,
                    "sliding_window": 128, "vocab_size": 201088,
                    "max_position_embeddings": 131072},
    "gemma-3-27b": {"model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376,
                    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
                    "intermediate_size": 21504, "sliding_window": 1024, "vocab_size": 262208,
                    "max_position_embeddings": 131072},
    "phi-4": {"model_type": "phi3", "num_hidden_layers": 40, "hidden_size": 5120,
              "num_attention_heads": 40, "num_key_value_heads": 10, "intermediate_size": 17920,
              "vocab_size": 100352, "max_position_embeddings": 16384, "pad_token_id": 0},
}
PRESETS["kimi-k2"] = {**PRESETS["deepseek-v3"], "model_type": "kimi_k2", "vocab_size": 163840,
                      "num_attention_heads": 64, "num_key_value_heads": 64,
                      "n_routed_experts": 384, "first_k_dense_replace": 1,
                      "max_position_embeddings": 131072}
PRESETS["llama-4-maverick"] = {**PRESETS["llama-4-scout"], "num_local_experts": 128,
                               "interleave_moe_layer_step": 2,
                               "max_position_embeddings": 1048576}
PRESETS["gpt-oss-120b"] = {**PRESETS["gpt-oss-20b"], "num_hidden_layers": 36,
                           "num_local_experts": 128}

VARIATIONS = [
    {}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}, {"head_dim": 16},
    {"num_key_value_heads": None}, {"attention_bias": True}, {"attention_bias": False},
    {"mlp_bias": True}, {"n_inner": None}, {"n_inner": 40}, {"add_cross_attention": True},
    {"decoder_sparse_step": 2}, {"mlp_only_layers": [1]}, {"mlp_only_layers": []},
    {"num_experts": 0}, {"num_local_experts": 6, "num_experts": None},
    {"num_experts": 6, "num_local_experts": None}, {"use_sliding_window": True},
    {"sliding_window": 8}, {"max_window_layers": 1}, {"pad_token_id": 0}, {"partial_rotary_factor":
     0.5}, {"rope_scaling": None}, {"scale_attn_weights": False}, {"summary_use_proj": False},
    {"reorder_and_upcast_attn": True}, {"pretraining_tp": 2}, {"shared_expert_intermediate_size":
     16}, {"n_shared_experts": 1}, {"first_k_dense_replace": 1}, {"q_lora_rank": 8},
    {"type_vocab_size": 2}, {"use_qk_norm": True}, {"qkv_bias": True}, {"use_bias": True},
    {"is_decoder": True}, {"num_labels": 5}, {"architectures": ["LlamaForSequenceClassification"]},
    {"architectures": ["MistralModel"]}, {"q_lora_rank": None}, {"n_shared_experts": 2},
    {"n_shared_experts": 0}, {"first_k_dense_replace": 0}, {"first_k_dense_replace": 5},
    {"num_nextn_predict_layers": 1}, {"v_head_dim": 12}, {"interleave_moe_layer_step": 2},
    {"interleave_moe_layer_step": 3}, {"moe_layers": [1]}, {"moe_layers": []},
    {"moe_layers": [0, 1, 2]}, {"attention_chunk_size": 8}, {"attention_chunk_size": None},
    {"no_rope_layers": [1, 1, 0]}, {"layer_types": ["sliding_attention", "full_attention",
                                                    "sliding_attention"]},
    {"sliding_window": None}, {"sliding_window_pattern": 2}, {"use_qk_norm": False},
    {"use_parallel_residual": False}, {"enable_bias": False}, {"do_layer_norm_before": False},
    {"_remove_final_layer_norm": True}, {"word_embed_proj_dim": 24},
    {"layer_norm_elementwise_affine": False}, {"multi_query": False}, {"parallel_attn": False},
    {"bias": True}, {"new_decoder_architecture": True}, {"num_ln_in_parallel_attn": 1},
    {"num_ln_in_parallel_attn": 2}, {"num_kv_heads": 2}, {"ffn_hidden_size": 40}, {"alibi": True},
    {"quantization_config": {"quant_method": "fp8"}},
]
# They do not change what transformers makes on the meta device, or it asks for other packages.
NOT_OF_TRUTH = ("quantization_config",)
TOWERS = ("vision_tower.", "vision_model.", "multi_modal_projector.")


def truth(config):
    """Parameters of the model; None where transformers does not make one."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
    from transformers import AutoModelForImageTextToText, AutoModelForSequenceClassification
    values = {key: value for key, value in config.items()
              if key != "model_type" and key not in NOT_OF_TRUTH}
    name = (config.get("architectures") or ["ForCausalLM"])[0]
    wrapped = "text_config" in config
    make = (AutoModelForImageTextToText if wrapped else
            AutoModelForCausalLM if name.endswith("ForCausalLM") else
            AutoModel if name.endswith("Model") else AutoModelForSequenceClassification)
    try:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump({"model_type": config["model_type"].replace("kimi_k2", "deepseek_v3"),
                           **values}, file)
            loaded = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = make.from_config(loaded)
        model.tie_weights()
        text = {id(p): p for name, p in model.named_parameters()
                if not any(tower in name for tower in TOWERS)}
        return sum(p.numel() for p in text.values())
    except Exception as error:  # any refusal of theirs is one
        print(f"  (transformers: {type(error).__name__}: {str(error).splitlines()[0][:90]})")
        return None


def planned_of(program, model):
    """Parameters, or what the refusal says."""
    done = subprocess.run([program, "plan", model, "dgx-h100", "--json", "-"],
                          capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["parameters"] if done.returncode == 0 else done.stderr.strip()


def planned(program, config):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        return planned_of(program, path)


def varied(base, variation):
    if "text_config" in base and "architectures" not in variation:
        return {**base, "text_config": varied(base["text_config"], variation)}
    return {key: value for key, value in {**base, **variation}.items()
            if not (key in ("num_experts", "num_local_experts") and value is None)}


def cases(types):
    for model_type, bases in BASES.items():
        for number, base in enumerate(bases):
            for variation in VARIATIONS:
                if (number == 0 or not variation) and model_type in types:
                    yield {"model_type": model_type, **varied(base, variation)}


def check_presets(program):
    wrong = 0
    for name, config in PRESETS.items():
        ours, theirs = planned_of(program, name), truth(config)
        wrong += ours != theirs
        print(f"{name}: {ours}" + ("" if ours == theirs else f", and transformers has {theirs}"))
    return wrong != 0


def main():
    program = sys.argv[1]
    if "--presets" in sys.argv[2:]:
        return check_presets(program)
    types = [value for option, value in zip(sys.argv[2:], sys.argv[3:])
             if option == "--type"] or list(BASES)
    counts = {"alike": 0, "refused": 0, "wrong": 0}
    rows = []
    for config in cases(types):
        ours, theirs = planned(program, config), truth(config)
        if isinstance(ours, str):
            counts["refused"] += 1
            print(f"refused  {json.dumps(config)}: {theirs}\n         {ours[-120:]}")
        elif theirs is None:
            counts["refused"] += 1
        else:
            counts["alike" if ours == theirs else "wrong"] += 1
            if ours != theirs:
                print(f"WRONG    {json.dumps(config)}: {ours}, and transformers has {theirs}")
            rows.append((config, theirs))
    if "--table" in sys.argv[2:]:
        for config, theirs in rows:
            text = json.dumps(config).replace('"', '\\"')
            print(f'    {{"{text}", {theirs}}},')
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return counts["wrong"] != 0


if __name__ == "__main__":
    sys.exit(main())
