#!/usr/bin/env python3
"""Checkpoints of PyTorch against `zero bench ckpt`, in turn, on one disk.

Usage: bench_torch_ckpt.py --zero PROGRAM --dir DIR [--json FILE] [--rounds N] [--quick]

All save and load the same state: parameters in bf16, masters and two moments in fp32, 14 bytes for
each parameter. A save ends when its bytes are on the disk (fsync), as ours does; a load begins with
files that are in no cache. A round measures peers at their best: torch.save without CRC, torch.load
by mmap to tensors that are there, torch.distributed.checkpoint with a thread for each core; then
ours in a process of its own. DeepSpeed's FastFileWriter is no peer here: 0.19.8 refuses a machine
without a GPU. Each row is a median over rounds. A ratio above 1 says that ours is faster.

Without PyTorch it says so and ends with status 0. The JSON is that of `zero bench`, and is written
anew after every round."""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

LAYERS = 12  # as tools/bench_ckpt.c
PARTS = {"qkv": 3, "proj": 1, "up": 4, "down": 4}
METRICS = {"save": "save_vs_torch", "load": "load_vs_torch"}
OURS = {"save": "save_vs_direct", "load": "load_vs_direct"}


def take_torch():
    """(torch or None, why not)"""
    try:
        import torch
        import torch.distributed.checkpoint
    except ImportError as reason:
        return None, f"no PyTorch in {sys.executable}: {reason}"
    return torch, ""


def make_state(torch, part):
    """{name: tensor}, as large as the state that ours saves."""
    torch.manual_seed(1)
    state = {}
    for layer in range(LAYERS):
        for name, parts in PARTS.items():
            master = torch.randn(parts * part)
            state[f"layer.{layer}.{name}"] = master.to(torch.bfloat16)
            state[f"master.{layer}.{name}"] = master
            for moment in ("moment1", "moment2"):
                state[f"{moment}.{layer}.{name}"] = torch.randn(parts * part)
    return state


def files_under(folder):
    return [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]


def put_on_disk(folder):
    for path in [folder, *files_under(folder)]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def forget(folder):
    for path in files_under(folder):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


class TorchSave:
    """One file, written by one thread, without its sums."""

    name = "torch.save without CRC"

    def __init__(self, torch, folder):
        self.torch = torch
        self.path = os.path.join(folder, "state.pt")

    def save(self, state):
        self.torch.serialization.set_crc32_options(False)
        self.torch.save(state, self.path)

    def load(self, state):
        return self.torch.load(self.path, weights_only=True)


class TorchMap(TorchSave):
    """A load that maps the file and copies to tensors that are there."""

    name = "torch.load by mmap"

    def load(self, state):
        loaded = self.torch.load(self.path, weights_only=True, mmap=True)
        for key, tensor in state.items():
            tensor.copy_(loaded[key])
        return state


class TorchDistributed:
    """Its own files, planned and written in this process by as many threads as there are cores;
    tensors that are there are loaded to."""

    name = "torch.distributed.checkpoint"

    def __init__(self, torch, folder):
        self.dcp = torch.distributed.checkpoint
        self.folder = folder

    def save(self, state):
        threads = len(os.sched_getaffinity(0))
        writer = self.dcp.FileSystemWriter(self.folder, thread_count=threads)
        self.dcp.save(state, storage_writer=writer)

    def load(self, state):
        self.dcp.load(state, checkpoint_id=self.folder)
        return state


def measure_torch(torch, kind, directory, state):
    """Seconds of a save and of a load."""
    folder = tempfile.mkdtemp(prefix="bench-torch-", dir=directory)
    side = kind(torch, folder)
    begin = time.monotonic()
    side.save(state)
    put_on_disk(folder)
    saved = time.monotonic() - begin
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    forget(folder)
    begin = time.monotonic()
    loaded = side.load(target)
    taken = {"save": saved, "load": time.monotonic() - begin}
    for name in list(state)[:: len(state) // 4]:
        if not torch.equal(loaded[name], state[name]):
            raise SystemExit(f"bench_torch_ckpt.py: {side.name}: {name} has other bits")
    shutil.rmtree(folder)
    return taken


def measure_ours(args):
    command = [args.zero, "bench", "ckpt", "--case", "1 rank", "--dir", args.dir, "--json", "-"]
    done = subprocess.run(command + (["--quick"] if args.quick else []), stdout=subprocess.PIPE,
                          text=True, timeout=1200, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench_torch_ckpt.py: {' '.join(command)} ended with {done.returncode}")
    report = json.loads(done.stdout)
    taken = {what: next(row["value"] / 1e3 for row in report["results"]
                        if row["metric"] == metric and row["case"].endswith(", 1 rank"))
             for what, metric in OURS.items()}
    return taken, report


def row_of(what, name, ours, theirs):
    value = statistics.median(ours) * 1e3
    reference = statistics.median(theirs) * 1e3
    return {"metric": METRICS[what], "case": f"{what}, against {name}", "value": value,
            "unit": "ms", "reference": reference, "ratio": reference / value,
            "min": min(ours) * 1e3, "max": max(ours) * 1e3, "repetitions": len(ours)}


def measure(args, torch):
    """After each round the rows so far, and ours, which names the machine and the commit."""
    kinds = (TorchSave, TorchMap, TorchDistributed)
    state = make_state(torch, 1 << 17 if args.quick else 1 << 20)
    ours = {what: [] for what in METRICS}
    theirs = {(kind.name, what): [] for kind in kinds for what in METRICS}
    for _ in range(args.rounds):
        for kind in kinds:
            for what, seconds in measure_torch(torch, kind, args.dir, state).items():
                theirs[kind.name, what].append(seconds)
        taken, report = measure_ours(args)
        for what, seconds in taken.items():
            ours[what].append(seconds)
        yield [row_of(what, name, ours[what], seconds)
               for (name, what), seconds in theirs.items()], report


def write(path, report):
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
            file.write("\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--zero", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    # Ends what is under way too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    warnings.simplefilter("ignore")
    torch, why = take_torch()
    report = {"machine": {}, "scale": "quick" if args.quick else "full", "results": [],
              "skipped": [] if torch else [{"metric": metric, "case": None, "reason": why}
                                           for metric in METRICS.values()],
              "failed": []}
    for rows, ours in measure(args, torch) if torch else ():
        report.update({key: ours[key] for key in ("machine", "date", "commit", "build")})
        report["machine"]["torch"] = torch.__version__
        report["results"] = rows
        write(args.json, report)
    for row in report["results"]:
        print(f"{row['metric']}  {row['case']}  {row['value']:.4g} ms  "
              f"torch {row['reference']:.4g} ms  ratio {row['ratio']:.3f}")
    for omission in report["skipped"]:
        print(f"skipped: {omission['metric']}: {omission['reason']}")
    write(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
