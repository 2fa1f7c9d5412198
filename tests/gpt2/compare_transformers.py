#!/usr/bin/env python3
"""Logits of a GPT-2 as transformers computes them, for the tests.

Usage: compare_transformers.py save FOLDER L H W SEQ VOCAB    a random model, saved by transformers
       compare_transformers.py logits FOLDER TOKEN...         of the model in a folder, as JSON
       compare_transformers.py names FILE                     a safetensors file's, as JSON
"""
import json
import sys

import torch
import transformers
from safetensors import safe_open


def save(folder, layers, heads, width, seq, vocab):
    torch.manual_seed(2)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=int(layers), n_head=int(heads), n_embd=int(width), n_positions=int(seq),
        vocab_size=int(vocab), bos_token_id=None, eos_token_id=None))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.normal_(1.0 if ".ln_" in name and "weight" in name else 0.0, 0.2)
    model.save_pretrained(folder, max_shard_size="20KB")


def logits(folder, *tokens):
    model, report = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    bad = {key: sorted(map(str, names)) for key, names in report.items() if names}
    with torch.no_grad():
        rows = model.eval()(torch.tensor([[int(t) for t in tokens]])).logits[0]
    print(json.dumps({"logits": rows.tolist(), "bad": bad}))


def names(path):
    with safe_open(path, "pt") as file:
        print(json.dumps({key: [list(file.get_tensor(key).shape), str(file.get_tensor(key).dtype)]
                          for key in file.keys()}))


torch.set_num_threads(1)
{"save": save, "logits": logits, "names": names}[sys.argv[1]](*sys.argv[2:])
