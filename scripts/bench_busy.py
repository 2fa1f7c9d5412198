#!/usr/bin/env python3
"""How long steps of the GPT take while other jobs keep the machine's cores busy.

Usage: scripts/bench_busy.py GPT2_TRAIN --data TEXT [--busy 0,2] [--rounds N] [--ranks N]
                             [--json FILE]

Other jobs are loops that compute for ever, as many as --busy says, each number in turn. Ranks (2)
are threads of one process, and processes, in turn: N rounds (5) of each. A row says the median step
of each round after the first five. Where n ranks and n loops share n cores fairly a step takes
twice as long."""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

STEPS, WARM = 25, 5
MODEL = ("--stage 3 --layers 4 --heads 8 --width 256 --seq 128 --batch 8 --val-every 0 "
         f"--threads 1 --steps {STEPS}").split()
LOOP = "while True: pass"


def start_ranks(arguments, how, report):
    """The processes of a run."""
    command = [arguments.program, "--data", arguments.data, *MODEL, "--csv", report]
    if how == "threads":
        command += ["--ranks", str(arguments.ranks)]
        return [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)]
    size = str(arguments.ranks)
    world = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": "29777"}
    return [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             env={**os.environ, **world, "RANK": str(rank),
                                  "LOCAL_RANK": str(rank)})
            for rank in range(arguments.ranks)]


def run(arguments, how, busy, report):
    """Median milliseconds of a step."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(busy)]
    try:
        for process in start_ranks(arguments, how, report):
            _, errors = process.communicate()
            if process.returncode != 0:
                sys.exit(f"{how}: exit {process.returncode}\n{errors.decode()}")
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    with open(report, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return statistics.median(float(row["ms"]) for row in rows[WARM:])


def measure(arguments, folder):
    ways = ("threads", "processes")
    counts = [int(count) for count in arguments.busy.split(",")]
    times = {(how, busy): [] for busy in counts for how in ways}
    for _ in range(arguments.rounds):
        for (how, busy), row in times.items():
            row.append(run(arguments, how, busy, os.path.join(folder, "steps.csv")))
    for (how, busy), row in times.items():
        print(f"{how:>9}, {busy} loops  {statistics.median(row):8.1f} ms "
              f"({min(row):.1f} to {max(row):.1f})", flush=True)
    return [{"ranks_are": how, "loops": busy, "ms": row} for (how, busy), row in times.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--data", required=True)
    parser.add_argument("--busy", default="0,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.program = os.path.abspath(arguments.program)
    arguments.data = os.path.abspath(arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(arguments, folder)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"model": " ".join(MODEL), "ranks": arguments.ranks,
                       "cores": os.cpu_count(), "rows": rows}, file, indent=2)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
