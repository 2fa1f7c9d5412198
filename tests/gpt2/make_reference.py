#!/usr/bin/env python3
"""Writes reference.txt: losses and gradient norms of a small GPT-2 trained by PyTorch.

Usage: python3 make_reference.py > reference.txt        (needs torch; written with 2.0.1)

Weights and tokens come from the integer hashes of gpt2_case.h. The model is written with PyTorch's
own layer_norm, gelu(approximate="tanh"), softmax and cross_entropy, differentiated by autograd and
updated by torch.optim.AdamW, in float64 and again in float32.
"""
import math
import sys

import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, SEQ, VOCAB = 2, 4, 32, 48, 64
SAMPLES, STEPS = 4, 12
LR, BETA1, BETA2, EPS, DECAY, CLIP = 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0
MASK32 = 0xFFFFFFFF


def case_hash(value):
    value &= MASK32
    value ^= value >> 16
    value = value * 0x7FEB352D & MASK32
    value ^= value >> 15
    value = value * 0x846CA68B & MASK32
    return value ^ (value >> 16)


def tensor(index, shape, mean, dtype):
    count = math.prod(shape)
    hashes = [case_hash((index + 1) * 0x9E3779B9 + i) for i in range(count)]
    values = [mean + 0.25 * ((h >> 16) / 65536.0 - 0.5) for h in hashes]
    return torch.tensor(values, dtype=dtype).reshape(shape).requires_grad_()


def make_params(dtype):
    c = WIDTH
    block = [
        ("ln_1.weight", (c,), 1), ("ln_1.bias", (c,), 0),
        ("attn.c_attn.weight", (c, 3 * c), 0), ("attn.c_attn.bias", (3 * c,), 0),
        ("attn.c_proj.weight", (c, c), 0), ("attn.c_proj.bias", (c,), 0),
        ("ln_2.weight", (c,), 1), ("ln_2.bias", (c,), 0),
        ("mlp.c_fc.weight", (c, 4 * c), 0), ("mlp.c_fc.bias", (4 * c,), 0),
        ("mlp.c_proj.weight", (4 * c, c), 0), ("mlp.c_proj.bias", (c,), 0),
    ]
    names = [("wte.weight", (VOCAB, c), 0), ("wpe.weight", (SEQ, c), 0)]
    for layer in range(LAYERS):
        names += [(f"h.{layer}.{name}", shape, mean) for name, shape, mean in block]
    names += [("ln_f.weight", (c,), 1), ("ln_f.bias", (c,), 0)]
    return {name: tensor(i, shape, mean, dtype) for i, (name, shape, mean) in enumerate(names)}


def make_tokens(step):
    rows = []
    for s in range(SAMPLES):
        row = []
        for t in range(SEQ + 1):
            h = case_hash(((step * 64 + s) * 1024 + t) * 2654435761 + 12345)
            row.append(row[t - 2] if t >= 2 and h % 4 != 0 else h // 4 % VOCAB)
        rows.append(row)
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


def forward(p, tokens, targets):
    batch, length = tokens.shape
    depth = WIDTH // HEADS
    x = p["wte.weight"][tokens] + p["wpe.weight"][:length]
    causal = torch.tril(torch.ones(length, length, dtype=torch.bool))
    for layer in range(LAYERS):
        prefix = f"h.{layer}."
        w = {name[len(prefix):]: v for name, v in p.items() if name.startswith(prefix)}
        y = F.layer_norm(x, (WIDTH,), w["ln_1.weight"], w["ln_1.bias"])
        qkv = y @ w["attn.c_attn.weight"] + w["attn.c_attn.bias"]
        heads = (part.reshape(batch, length, HEADS, depth) for part in qkv.split(WIDTH, dim=2))
        q, k, v = (part.transpose(1, 2) for part in heads)
        scores = (q @ k.transpose(2, 3)) / math.sqrt(depth)
        mixed = torch.softmax(scores.masked_fill(~causal, float("-inf")), dim=3) @ v
        mixed = mixed.transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + mixed @ w["attn.c_proj.weight"] + w["attn.c_proj.bias"]
        y = F.layer_norm(x, (WIDTH,), w["ln_2.weight"], w["ln_2.bias"])
        y = F.gelu(y @ w["mlp.c_fc.weight"] + w["mlp.c_fc.bias"], approximate="tanh")
        x = x + y @ w["mlp.c_proj.weight"] + w["mlp.c_proj.bias"]
    logits = F.layer_norm(x, (WIDTH,), p["ln_f.weight"], p["ln_f.bias"]) @ p["wte.weight"].T
    return F.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))


def train(dtype):
    p = make_params(dtype)
    groups = [
        {"params": [v for v in p.values() if v.dim() == 2], "weight_decay": DECAY},
        {"params": [v for v in p.values() if v.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(BETA1, BETA2), eps=EPS)
    rows = []
    for step in range(STEPS):
        loss = forward(p, *make_tokens(step))
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float((v.grad.double() ** 2).sum()) for v in p.values()))
        for v in p.values():
            v.grad *= min(1.0, CLIP / norm)
        optimizer.step()
        rows.append((loss.item(), norm))
    return rows


def main():
    torch.set_num_threads(1)
    exact, single = train(torch.float64), train(torch.float32)
    version = torch.__version__.split("+")[0]
    print(f"# PyTorch {version}: step, loss and gradient norm in float64, the same in float32")
    for step, (a, b) in enumerate(zip(exact, single)):
        print(f"{step} {a[0]:.17g} {a[1]:.17g} {b[0]:.9g} {b[1]:.9g}")
    worst = max(abs(a[0] - b[0]) for a, b in zip(exact, single))
    print(f"largest difference of losses between float64 and float32: {worst:.3g}", file=sys.stderr)


main()
