#!/usr/bin/env python3
"""Simulated steps beside those of the GPT example on this machine.

Usage: sim_beside_gpt.py BUILD DATA [CASES]

BUILD is a build folder with the tools and the examples, DATA a text. For each number of ranks the
machine is calibrated (`zero bench calibrate --ranks`), the example trains with that many threads as
ranks, and `zero sim` simulates the same model on the calibrated machine. A line for each case: the
median of the example's steps, the simulated step and its compute, and how far the step is off. The
machine must have nothing else to do.

CASES: comma-separated WIDTHxLAYERSxRANKSxSTAGE; default: see the source."""

import json
import os
import statistics
import subprocess
import sys
import tempfile

SEQUENCE = 256
SAMPLES = 4  # of a rank
STEPS = 12
WARM = 4  # steps that are not counted
CASES = "512x4x2x3,768x4x2x3,768x4x2x0"


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def live(build, data, folder, case):
    width, layers, ranks, stage = case
    path = os.path.join(folder, "run.json")
    run(os.path.join(build, "examples/gpt2/gpt2_train"), "--data", data, "--ranks", str(ranks),
        "--layers", str(layers), "--width", str(width), "--heads",
        str(width // 64), "--seq", str(SEQUENCE), "--batch", str(SAMPLES * ranks), "--steps",
        str(STEPS), "--dtype", "f32", "--stage", str(stage), "--val-every", "0", "--json", path)
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    return statistics.median(step["ms"] for step in report["steps"][WARM:]), report["vocab"]


def simulated(build, folder, case, vocab):
    width, layers, ranks, stage = case
    config = os.path.join(folder, "config.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"model_type": "gpt2", "n_layer": layers, "n_embd": width,
                   "n_head": width // 64, "n_positions": SEQUENCE, "vocab_size": vocab,
                   "torch_dtype": "float32"}, file)
    cluster = os.path.join(folder, f"machine{ranks}.json")
    report = json.loads(run(os.path.join(build, "tools/zero"), "sim", config, cluster,
                            "--samples", str(SAMPLES), "--set", "device=cpu", "--set",
                            f"stage={stage}", "--json", "-"))
    return report["step_ns"] / 1e6, report["compute_ns"] / 1e6


def main():
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    build, data = sys.argv[1:3]
    cases = [tuple(int(part) for part in text.split("x"))
             for text in (sys.argv[3] if len(sys.argv) > 3 else CASES).split(",")]
    print("| width | layers | ranks | stage | live, ms | simulated, ms | compute, ms | off |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for ranks in sorted({case[2] for case in cases}):
            run(os.path.join(build, "tools/zero"), "bench", "calibrate", "--quick", "--ranks",
                str(ranks), "--dir", folder, "--out",
                os.path.join(folder, f"machine{ranks}.json"))
        for case in cases:
            step, vocab = live(build, data, folder, case)
            made, compute = simulated(build, folder, case, vocab)
            print(f"| {' | '.join(str(part) for part in case)} | {step:.1f} | {made:.1f} | "
                  f"{compute:.1f} | {100 * (made / step - 1):+.1f} % |", flush=True)


if __name__ == "__main__":
    main()
