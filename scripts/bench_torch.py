#!/usr/bin/env python3
"""AdamW on a GPU: PyTorch's against `zero bench gpu`, in turn.

Usage: bench_torch.py --zero PROGRAM [--json FILE] [--rounds N] [--quick]

Both update fp32 parameters from fp32 gradients with fp32 moments: 4 arrays are read and 3 are
written, 28 bytes for each parameter. PyTorch writes no bf16 copy, so ours leaves it out too (its
case "f32 throughout"). A round measures PyTorch, then ours in a process of its own; after the last
round PyTorch is measured once more. Times are the GPU's own (CUDA events); each is a median over
the rounds' medians. A ratio above 1 says that ours is faster.

Without PyTorch or a GPU it says so and ends with status 0. The JSON is that of `zero bench`, and is
written anew after every round."""

import argparse
import json
import signal
import statistics
import subprocess
import sys

METRIC = "adamw_vs_torch"
CASE = "f32 throughout, GPU"
TENSORS = 16
REPETITIONS = 7
LAUNCHES = 4


def take_torch():
    """(torch or None, why not)"""
    try:
        import torch
    except ImportError as reason:
        return None, f"no PyTorch in {sys.executable}: {reason}"
    if not torch.cuda.is_available():
        return None, f"PyTorch {torch.__version__} finds no GPU"
    return torch, ""


class TorchSide:
    """One form of torch.optim.AdamW over tensors of `count` elements in all."""

    def __init__(self, torch, count, form):
        self.torch = torch
        torch.manual_seed(1)
        self.params = [
            torch.nn.Parameter(torch.randn(count // TENSORS, device="cuda") * 0.02)
            for _ in range(TENSORS)
        ]
        for param in self.params:
            param.grad = torch.randn_like(param) * 0.02
        self.optimizer = torch.optim.AdamW(
            self.params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, **{form: True}
        )

    def milliseconds(self):
        """Times of one update, by events around several."""
        torch = self.torch
        times = []
        for repetition in range(REPETITIONS + 1):
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            # The GPU is still busy with this one when Python has put the next ones on its queue, so
            # that none of Python's own time lies between the events.
            self.optimizer.step()
            begin.record()
            for _ in range(LAUNCHES):
                self.optimizer.step()
            end.record()
            end.synchronize()
            if repetition > 0:
                times.append(begin.elapsed_time(end) / LAUNCHES)
        return times

    def check(self):
        """It did update, and to numbers."""
        for param in self.params:
            if not bool(self.torch.isfinite(param).all()):
                raise SystemExit("bench_torch.py: PyTorch's parameters are not finite")


def measure_ours(zero, quick):
    """The row of `zero bench gpu` for the same update."""
    command = [zero, "bench", "gpu", "--case", CASE, "--json", "-"]
    done = subprocess.run(
        command + (["--quick"] if quick else []),
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"bench_torch.py: {' '.join(command)} ended with {done.returncode}")
    report = json.loads(done.stdout)
    rows = [
        row
        for row in report["results"]
        if row["metric"] == "adamw_vs_copy" and row["case"] == CASE
    ]
    if len(rows) != 1:
        raise SystemExit(f"bench_torch.py: {' '.join(command)} gave {len(rows)} rows")
    return rows[0], report


def row_of(form, ours, theirs):
    value = statistics.median(ours)
    reference = statistics.median(theirs)
    return {
        "metric": METRIC,
        "case": f"f32 throughout, against torch.optim.AdamW({form}=True)",
        "value": value,
        "unit": "ms",
        "reference": reference,
        "ratio": reference / value,
        "min": min(ours),
        "max": max(ours),
        "repetitions": len(ours),
    }


def measure(args, torch):
    """After each round the rows so far, and ours, which names the machine and the commit."""
    count = 1 << 24 if args.quick else 1 << 28  # as tools/bench_gpu_rig.c
    ours = []
    report = {}
    theirs = {"fused": [], "foreach": []}
    for turn in range(args.rounds + 1):
        for form, medians in theirs.items():
            side = TorchSide(torch, count, form)
            medians.append(statistics.median(side.milliseconds()))
            side.check()
            del side
            # Ours needs the memory next.
            torch.cuda.empty_cache()
        if turn < args.rounds:
            row, report = measure_ours(args.zero, args.quick)
            ours.append(row["value"])
        yield [row_of(form, ours, medians) for form, medians in theirs.items()], report


def write(path, report):
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
            file.write("\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--zero", required=True)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    # Ends what is under way too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    torch, why = take_torch()
    report = {
        "machine": {},
        "scale": "quick" if args.quick else "full",
        "results": [],
        "skipped": [] if torch else [{"metric": METRIC, "case": None, "reason": why}],
        "failed": [],
    }
    for rows, ours in measure(args, torch) if torch else ():
        report.update({key: ours[key] for key in ("machine", "date", "commit", "build")})
        report["machine"]["torch"] = torch.__version__
        report["results"] = rows
        write(args.json, report)
    for row in report["results"]:
        print(
            f"{row['metric']}  {row['case']}  {row['value']:.4g} ms  "
            f"torch {row['reference']:.4g} ms  ratio {row['ratio']:.3f}"
        )
    for omission in report["skipped"]:
        print(f"skipped: {omission['metric']}: {omission['reason']}")
    write(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
