#!/usr/bin/env python3
"""GPT-2 124M on one GPU: PyTorch's training step against that of gpt2_train, in turn.

Usage: bench_torch_gpt.py --train PROGRAM --text FILE [--json FILE] [--seconds N]

Both train 12 layers of width 768 on 16 samples of 1024 tokens a step, in bfloat16 with fp32 master
parameters and moments, clip the norm to 1 and update by AdamW. PyTorch has what makes it fast:
fused attention, torch.compile, a vocabulary padded to 50304, fused AdamW, and no host wait between
steps. Its parameters are fp32 under autocast. Ours is gpt2_train at stage 3, before and after; it
reads back every step's loss. A ratio above 1 says that ours is faster.

Without PyTorch or a GPU it says so and ends with status 0. The JSON is that of `zero bench`."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from bench_torch import take_torch, write  # beside this file

LAYERS, HEADS, WIDTH, POSITIONS, VOCAB, PADDED, BATCH = 12, 12, 768, 1024, 50257, 50304, 16
WARM_STEPS, STEPS = 5, 20


def make_model(torch):
    """GPT-2 as its paper has it, with the head tied to the embedding."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            batch, positions, _ = x.shape
            heads = self.qkv(self.norm1(x)).view(batch, positions, 3, HEADS, WIDTH // HEADS)
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.mix(y.transpose(1, 2).reshape(batch, positions, WIDTH))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(PADDED, WIDTH), nn.Embedding(POSITIONS, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(WIDTH)
            for embedding in (self.tokens, self.places):
                nn.init.normal_(embedding.weight, std=0.02)

        def forward(self, inputs, targets):
            x = self.tokens(inputs) + self.places.weight
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)
            return functional.cross_entropy(logits.view(-1, PADDED).float(), targets.view(-1))

    return Model().cuda()


def train_theirs(torch):
    """Tokens a second, each step's by the GPU's events."""
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = make_model(torch)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    compiled = torch.compile(model)
    batch = torch.randint(0, VOCAB, (BATCH, POSITIONS + 1), device="cuda")
    inputs, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    for step in range(WARM_STEPS + STEPS + 1):
        if step >= WARM_STEPS:
            marks[step - WARM_STEPS].record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    last = float(loss)
    if not 0 < last < 11:
        raise SystemExit(f"bench_torch_gpt.py: PyTorch's loss is {last} after {step + 1} steps")
    times = [marks[i].elapsed_time(marks[i + 1]) / 1e3 for i in range(STEPS)]
    return [BATCH * POSITIONS / seconds for seconds in times]


def train_ours(program, text):
    """(tokens a second of each step, the run's report)"""
    handle, path = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        command = [program, "--device", "cuda", "--data", text, "--val-every", "0"]
        command += ["--preset", "gpt2-124m", "--vocab", str(VOCAB), "--dtype", "bf16"]
        command += ["--batch", str(BATCH), "--ranks", "1", "--stage", "3"]
        command += ["--steps", str(WARM_STEPS + STEPS), "--json", path]
        subprocess.run(command, stdout=subprocess.DEVNULL, timeout=120, check=True)
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    finally:
        os.unlink(path)
    return [step["tokens_per_second"] for step in report["steps"][WARM_STEPS:]], report


def row_of(ours, theirs):
    value, reference = statistics.median(ours), statistics.median(theirs)
    return {
        "metric": "gpt_vs_torch",
        "case": "GPT-2 124M, bf16, 16 x 1024 tokens, 1 rank, against torch.compile",
        "value": value,
        "unit": "tokens/s",
        "reference": reference,
        "ratio": value / reference,
        "min": min(ours),
        "max": max(ours),
        "repetitions": len(ours),
    }


class Late(Exception):
    """PyTorch's part takes longer than it may."""


def be_late(*_):
    raise Late


def compare(args, torch, report):
    """Fills in the report, which is written as soon as ours is measured."""
    report["machine"] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    report["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ours, run = train_ours(args.train, args.text)
    report["ours"] = {key: run[key] for key in ("version", "commit", "settings") if key in run}
    report["ours"]["tokens_per_second"] = statistics.median(ours)
    write(args.json, report)
    signal.signal(signal.SIGALRM, be_late)
    signal.alarm(args.seconds)
    try:
        theirs = train_theirs(torch)
    except Late:
        why = f"PyTorch took more than {args.seconds} s; raise --seconds"
        report["skipped"] = [{"metric": "gpt_vs_torch", "case": None, "reason": why}]
        return
    finally:
        signal.alarm(0)
    torch.cuda.empty_cache()
    report["results"] = [row_of(ours + train_ours(args.train, args.text)[0], theirs)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--json")
    parser.add_argument(
        "--seconds", type=int, default=150, help="for PyTorch's part, compiling included"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    torch, why = take_torch()
    report = {"machine": {}, "scale": "full", "results": [], "failed": []}
    report["skipped"] = [] if torch else [{"metric": "gpt_vs_torch", "case": None, "reason": why}]
    if torch:
        compare(args, torch, report)
    for row in report["results"]:
        print(
            f"{row['metric']}  {row['case']}  {row['value']:.0f} tokens/s  "
            f"torch {row['reference']:.0f}  ratio {row['ratio']:.3f}"
        )
    for row in report["skipped"]:
        print(f"skipped: {row['metric']}: {row['reason']}")
    write(args.json, report)


if __name__ == "__main__":
    main()
