#!/usr/bin/env python3
"""Simulated steps beside those of the GPT example on this machine.

BUILD is a build folder with the tools and the examples, DATA a text. In each round and for each
case the machine is calibrated for the model (`zero bench calibrate --ranks --width --tokens`), the
example trains with that many threads as ranks, and `zero sim` simulates the same model on what was
just calibrated, so that what changes the machine's rates meanwhile changes both. A line for each
case: medians over the rounds of the example's median step, of the simulated step and its compute,
and how far the simulated step of a round is off, its median and its range. The machine must have
nothing else to do; all cases take about seven minutes on two CPUs.

CASES: comma-separated WIDTHxLAYERSxRANKSxSTAGE; default: see the source. --write: put the table
into docs/feasibility.md."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import feasibility

SEQUENCE = 256
SAMPLES = 4  # of a rank
STEPS = 10
WARM = 3  # steps that are not counted
CASES = "256x4x2x3,512x4x2x3,512x4x4x3,768x4x1x3,768x4x2x3,768x4x2x0"
PAGE = os.path.join(feasibility.HERE, "..", "docs", "feasibility.md")


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def calibrate(build, folder, case):
    width, _, ranks, _ = case
    # Memory is no disk, and these steps need none.
    run(os.path.join(build, "tools/zero"), "bench", "calibrate", "--quick", "--ranks", str(ranks),
        "--width", str(width), "--tokens", str(SAMPLES * SEQUENCE), "--dir", "/dev/shm", "--out",
        os.path.join(folder, "machine.json"))


def live(build, data, folder, case):
    """The median step in milliseconds, and the vocabulary of the data."""
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
    """The step and its compute in milliseconds."""
    width, layers, _, stage = case
    config = os.path.join(folder, "config.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"model_type": "gpt2", "n_layer": layers, "n_embd": width,
                   "n_head": width // 64, "n_positions": SEQUENCE, "vocab_size": vocab,
                   "torch_dtype": "float32"}, file)
    report = json.loads(run(os.path.join(build, "tools/zero"), "sim", config,
                            os.path.join(folder, "machine.json"), "--samples", str(SAMPLES),
                            "--set", "device=cpu", "--set", f"stage={stage}", "--json", "-"))
    return report["step_ns"] / 1e6, report["compute_ns"] / 1e6


def measure(build, data, folder, case):
    """One round of a case: live, simulated, compute, and how far off in percent."""
    calibrate(build, folder, case)
    step, vocab = live(build, data, folder, case)
    made, compute = simulated(build, folder, case, vocab)
    return step, made, compute, 100 * (made / step - 1)


def line(case, rounds):
    step, made, compute, off = (statistics.median(values) for values in zip(*rounds))
    low, high = (pick(values[3] for values in rounds) for pick in (min, max))
    return (f"| {' | '.join(str(part) for part in case)} | {step:.1f} | {made:.1f} | "
            f"{compute:.1f} | {off:+.1f} % | {low:+.1f} to {high:+.1f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD")
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--write", action="store_true")
    words = parser.parse_args()
    cases = [tuple(int(part) for part in text.split("x")) for text in words.cases.split(",")]
    rounds = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(words.rounds):
            for case in cases:
                rounds[case].append(measure(words.build, words.data, folder, case))
                print(line(case, rounds[case][-1:]), file=sys.stderr, flush=True)
    table = ["| width | layers | ranks | stage | live, ms | simulated, ms | compute, ms | off | "
             "of a round |", "|---|---|---|---|---|---|---|---|---|",
             *(line(case, rounds[case]) for case in cases)]
    print("\n".join(table))
    if words.write:
        with open(PAGE, encoding="utf-8") as file:
            text = feasibility.rewritten(file.read(), {"live-steps": table})
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
