#!/usr/bin/env python3
"""Holds what `zero plan` reads of a config.json against transformers: for each model type and for
variations of each key that may change what tensors there are, the number of parameters of the model
that transformers makes of the file, on the meta device.

Usage: check_configs.py PROGRAM. It needs transformers 5 and torch, which no test has; the cases of
tests/plan/test_transformer.c are of its --table. One line per case that differs; the last is
"N alike, N refused by either, N wrong". Exit status 1 where a count is wrong.
  --table  print the cases as C too"""

import json
import os
import subprocess
import sys
import tempfile

NEW = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 12,
       "intermediate_size": 80, "vocab_size": 97, "max_position_embeddings": 32}
WITH_KEYS = {**NEW, "num_key_value_heads": 4}
EXPERTS = {"num_experts_per_tok": 2}
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
}

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
    {"architectures": ["MistralModel"]},
]


def truth(config):
    """Parameters of the model; None where transformers does not make one."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
    from transformers import AutoModelForSequenceClassification
    values = {key: value for key, value in config.items() if key != "model_type"}
    name = (config.get("architectures") or ["ForCausalLM"])[0]
    make = (AutoModelForCausalLM if name.endswith("ForCausalLM") else
            AutoModel if name.endswith("Model") else AutoModelForSequenceClassification)
    try:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump({"model_type": config["model_type"], **values}, file)
            loaded = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = make.from_config(loaded)
        model.tie_weights()
        return sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    except Exception as error:  # any refusal of theirs is one
        print(f"  (transformers: {type(error).__name__}: {str(error).splitlines()[0][:90]})")
        return None


def planned(program, config):
    """Parameters, or what the refusal says."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        done = subprocess.run([program, "plan", path, "dgx-h100", "--json", "-"],
                              capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["parameters"] if done.returncode == 0 else done.stderr.strip()


def cases():
    for model_type, bases in BASES.items():
        for number, base in enumerate(bases):
            for variation in VARIATIONS:
                if number == 0 or not variation:
                    yield {"model_type": model_type, **{key: value for key, value in
                                                        {**base, **variation}.items()
                                                        if not (key in ("num_experts",
                                                                        "num_local_experts") and
                                                                value is None)}}


def main():
    program = sys.argv[1]
    counts = {"alike": 0, "refused": 0, "wrong": 0}
    rows = []
    for config in cases():
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
