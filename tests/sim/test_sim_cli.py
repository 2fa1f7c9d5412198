#!/usr/bin/env python3
"""`zero sim`, as a user types it: its figures agree with one another, and what it cannot simulate
is refused with the word that is wrong.

Usage: test_sim_cli.py PROGRAM. One line per check; the last is "N passed, N failed,
N skipped"."""

import json
import os
import subprocess
import sys
import tempfile

ALL_ON_DISK = "tier=" + ",".join(
    f"{role}=disk" for role in ("param", "grad", "master", "moment1", "moment2"))

counts = {True: 0, False: 0}


def check(name, holds, detail=""):
    counts[bool(holds)] += 1
    print(f"{'ok' if holds else 'FAILED':8}{name}{'' if holds else ': ' + str(detail)}")


def run(program, *words):
    return subprocess.run([program, "sim", *words], capture_output=True, text=True, check=False)


def report(program, *words):
    return json.loads(run(program, *words, "--json", "-").stdout)


def check_table(program):
    done = run(program, "1t", "dgx-h100", "--nodes", "128", "--recompute", "--set", ALL_ON_DISK)
    check("a step is simulated", done.returncode == 0, done.stderr)
    check("it fits in 80 columns", all(len(line) <= 80 for line in done.stdout.splitlines()),
          max(done.stdout.splitlines(), key=len, default=""))
    for word in ("a step", "wait: disk", "fabric", "it needs"):
        check(f"it says {word}", word in done.stdout, done.stdout)
    for word in ("--help", "-h"):
        done = run(program, word)
        check(f"{word} explains it", done.returncode == 0 and "usage: zero sim" in done.stdout)


def check_fit(program):
    large = report(program, "gpt3-175b", "workstation", "--sequence", "128")
    small = report(program, "gpt2", "workstation")
    check("what does not fit says so", large["fits"] is False and
          large["need_bytes"]["device"] > large["have_bytes"]["device"], large)
    check("what fits does", small["fits"] is True, small)
    lines = run(program, "gpt3-175b", "workstation", "--sequence", "128").stdout.splitlines()
    lacks = large["need_bytes"]["device"] - large["have_bytes"]["device"]
    check("and in words, above all times", lines[1].startswith(
        f"It does not fit: a rank lacks {lacks / 1e9:.3f} GB of the device"), lines[:4])


def check_meshes(program):
    """No part of a model is simulated: which option says so, and what to do."""
    for words in (["--tensor", "2"], ["--pipeline", "2"], ["--context", "2"], ["--interleave", "2"],
                  ["--sequence-parallel"], ["--fp8"], ["--wire", "zero++"]):
        done = run(program, "gpt2", "dgx-h100", *words)
        check(f"refused: zero sim {' '.join(words)}", done.returncode == 1 and
              done.stderr.startswith(f"zero sim: {words[0]} is an option of `zero plan`") and
              "leave it out" in done.stderr, done.stderr)


def check_figures(program):
    words = ("llama-7b", "dgx-a100", "--nodes", "2", "--micro-steps", "2")
    plain = report(program, *words)
    check("ranks are nodes x ranks of a node", plain["ranks"] == 16, plain)
    check("a step is compute and waits",
          plain["step_ns"] == plain["compute_ns"] + sum(plain["wait_ns"].values()), plain)
    check("no rank is late", plain["wait_ns"]["other ranks"] == 0, plain)
    check("memory of the device is the planned one",
          plain["peak_bytes"]["device"] == plain["planned_bytes"]["device"], plain)
    late = [report(program, *words, "--jitter-ns", "1000000", "--seed", seed) for seed in "112"]
    check("ranks that are late make a step longer", late[0]["step_ns"] > plain["step_ns"], late[0])
    check("the same seed makes the same step", late[0] == late[1], late)
    check("another seed another one", late[0] != late[2], late)
    steps = report(program, *words, "--steps", "8")
    check("more steps have the same mean",
          abs(steps["step_ns"] / plain["step_ns"] - 1) < 1e-3, (steps, plain))
    host = report(program, *words, "--set", "tier=master=host,moment1=host,moment2=host")
    check("state in host memory goes over the host link",
          host["link_bytes"]["host to device"] > 100 * plain["link_bytes"]["host to device"], host)


def check_timeline(program):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rank.json")
        told = report(program, "llama-7b", "dgx-h100", "--nodes", "4", "--set", ALL_ON_DISK,
                      "--trace", path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        last = max(event["ts"] + event["dur"] for event in spans)
        first = min(event["ts"] for event in spans)
        check("a timeline is as long as its four steps", 0.7 < (last - first) * 1e3 /
              (4 * told["step_ns"]) < 1.2, (last - first, told["step_ns"]))
        check("it has spans", len(spans) > 1000, len(spans))
        done = subprocess.run([program, "trace", "summary", path], capture_output=True, text=True,
                              check=False)
        check("`zero trace summary` reads it", done.returncode == 0, done)


def check_refusals(program):
    lines = {
        "--nodes 0": ("gpt2", "--nodes", "0"),
        "shard_group": ("gpt2", "dgx-h100", "--set", "shard_group=3"),
        "no_such": ("gpt2", "--set", "no_such=3"),
        "--html": ("gpt2", "--html", "page.html"),
        "speculative_step": ("gpt2", "--set", "speculative_step=1", "--set",
                             "tier=master=disk,moment1=disk,moment2=disk"),
        "which model": (),
        "gpt9": ("gpt9",),
        "--steps 1025": ("gpt2", "--steps", "1025"),
    }
    for word, words in lines.items():
        done = run(program, *words)
        check(f"{' '.join(words) or 'an empty line'} is refused by name",
              done.returncode == 1 and word in done.stderr and done.stdout == "", done)
    done = subprocess.run([program, "plan", "gpt2", "--steps", "2"], capture_output=True, text=True,
                          check=False)
    check("zero plan has no steps", done.returncode == 1 and "zero sim" in done.stderr, done)


def main():
    program = sys.argv[1]
    check_table(program)
    check_fit(program)
    check_meshes(program)
    check_figures(program)
    check_timeline(program)
    check_refusals(program)
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 0 if counts[False] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
