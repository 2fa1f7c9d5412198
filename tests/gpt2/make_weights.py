#!/usr/bin/env python3
"""Writes weights/: a small GPT-2 with random weights, as transformers saves it, and its logits.

Usage: python3 make_weights.py FOLDER    (needs torch and transformers; written with 5.23.0)

The weights are larger than a new model's, so that a matrix that is read the wrong way round or
another GELU changes logits by far more than rounding does.
"""
import json
import os
import sys

import torch
import transformers

TOKENS = [3, 15, 0, 7, 7, 12, 1, 9]
SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 8, "vocab_size": 16}


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = transformers.GPT2Config(**SIZES, bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.normal_(1.0 if ".ln_" in name and "weight" in name else 0.0, 0.3)
        logits = model(torch.tensor([TOKENS])).logits[0]
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    with open(os.path.join(folder, "logits.json"), "w", encoding="utf-8") as file:
        rows = ",\n  ".join(json.dumps([float(f"{v:.9g}") for v in row]) for row in logits.tolist())
        file.write(f'{{"transformers": "{transformers.__version__}", "tokens": {TOKENS},\n'
                   f' "logits": [\n  {rows}]}}\n')


main()
