#!/usr/bin/env python3
"""AdamW on the CPU: PyTorch's fused one and DeepSpeed's against `zero bench adam`, in turn.

Usage: bench_torch_adam.py --zero PROGRAM [--json FILE] [--threads N] [--rounds N] [--quick]

PyTorch and DeepSpeed update fp32 parameters from fp32 gradients with fp32 moments; DeepSpeed also
bf16 parameters from bf16 gradients with fp32 moments and no master, which is none of our formats.
Formats differ in bytes, so times are nanoseconds for each parameter, medians over the rounds'
medians. A round measures the peers, each in a process of its own, then ours. The JSON is that of
`zero bench`: value is ours, reference a peer's. A peer that is not installed is skipped."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import bench_torch

METRIC = "adamw_vs_peers"
TENSORS = 16
REPETITIONS = 7
PEERS = ("torch fused, f32", "deepspeed, f32", "deepspeed, bf16 parameters")


def make_optimizer(peer, params):
    """Their AdamW, at the numbers of `zero bench adam`."""
    import torch

    numbers = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    if peer.startswith("torch"):
        return torch.optim.AdamW(params, fused=True, **numbers)
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    # Its default keeps moments in fp32, whatever the parameters are.
    return DeepSpeedCPUAdam(params, adamw_mode=True, **numbers)


def peer_ns(peer, count, threads):
    """Nanoseconds for each parameter, of a peer's update in this process."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    dtype = torch.bfloat16 if "bf16" in peer else torch.float32
    params = [
        torch.nn.Parameter((torch.randn(count // TENSORS) * 0.02).to(dtype))
        for _ in range(TENSORS)
    ]
    for param in params:
        param.grad = (torch.randn(count // TENSORS) * 0.02).to(dtype)
    optimizer = make_optimizer(peer, params)
    times = []
    for repetition in range(REPETITIONS + 1):
        begun = time.perf_counter()
        optimizer.step()
        if repetition > 0:
            times.append((time.perf_counter() - begun) * 1e9 / count)
    if not all(bool(torch.isfinite(param).all()) for param in params):
        raise SystemExit("bench_torch_adam.py: a peer's parameters are not finite")
    return statistics.median(times)


def ask_peer(args, peer):
    """(nanoseconds or None, why not), from a process of its own."""
    command = [sys.executable, __file__, "--zero", "", "--peer", peer]
    command += ["--threads", str(args.threads)] + (["--quick"] if args.quick else [])
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = lines[-1] if lines else "it said nothing"
    return (float(last), "") if done.returncode == 0 else (None, last)


def ask_ours(args):
    """Rows of nanoseconds for each parameter, and the whole report."""
    command = [args.zero, "bench", "adam", "--threads", str(args.threads), "--json", "-"]
    done = subprocess.run(
        command + (["--quick"] if args.quick else []),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"bench_torch_adam.py: {' '.join(command)} ended with {done.returncode}")
    report = json.loads(done.stdout)
    rows = [row for row in report["results"] if row["metric"] == "adamw_ns_per_parameter"]
    return rows, report


def row_of(peer, reference, case, ours):
    value = statistics.median(ours)
    return {
        "metric": METRIC,
        "case": f"{case}, against {peer}",
        "value": value,
        "unit": "ns",
        "reference": reference,
        "ratio": reference / value,
        "min": min(ours),
        "max": max(ours),
        "repetitions": len(ours),
    }


def measure(args):
    theirs, ours, why, report = {peer: [] for peer in PEERS}, {}, {}, {}
    for _ in range(args.rounds):
        for peer in PEERS:
            if peer in why:
                continue
            found, reason = ask_peer(args, peer)
            theirs[peer] += [found] if found is not None else []
            if found is None:
                why[peer] = reason
        rows, report = ask_ours(args)
        for row in rows:
            ours.setdefault(row["case"], []).append(row["value"])
    report["results"] = [
        row_of(peer, statistics.median(values), case, own)
        for peer, values in theirs.items()
        if values
        for case, own in ours.items()
    ]
    report["skipped"] = [{"metric": METRIC, "case": peer, "reason": why[peer]} for peer in why]
    return report


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--zero", required=True)
    parser.add_argument("--json")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        print(peer_ns(args.peer, 1 << 24 if args.quick else 1 << 27, args.threads))
        return 0
    report = measure(args)
    for row in report["results"]:
        print(
            f"{row['case']}: {row['value']:.3f} ns, theirs {row['reference']:.3f} ns, "
            f"ratio {row['ratio']:.2f}"
        )
    for omission in report["skipped"]:
        print(f"skipped: {omission['case']}: {omission['reason']}")
    bench_torch.write(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
