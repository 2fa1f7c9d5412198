"""Golden files: a folder for each version that wrote some, with a folder for each run in it. What
golden_run.c prints of a run stands in values.txt beside it, tensors as hashes of their bits."""

import hashlib
import os
import re
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
VALUES = "values.txt"
# The reports that are kept, and the commands that print them.
REPORTS = {"plan": ["plan", "gpt2", "workstation"], "bench": ["bench", "hooks", "memory", "--tiny"]}


def run(*command, refused=False):
    """What a program prints, or where it has to refuse, its complaint."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if (done.returncode != 0) != refused:
        raise AssertionError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stderr if refused else done.stdout


def hash_of(words):
    return hashlib.sha256("".join(words).encode()).hexdigest()


def first_value(words):
    return f"{struct.unpack('>f', bytes.fromhex(words[0]))[0]:.9g}" if words else "-"


def summed_up(text, weights):
    """The lines to keep of what golden_run prints. Weights alone have no moments and no state: what
    a new run begins with may change."""
    lines = []
    for line in text.splitlines():
        kind, *words = line.split()
        if kind == "tensor":
            name, role, *bits = words
            if not (weights and role.startswith("moment")):
                lines.append(f"{name} {role} {len(bits)} {first_value(bits)} {hash_of(bits)}")
        elif kind in ("load", "user") or not weights:
            lines.append(line)
    return lines


def versions():
    names = [name for name in os.listdir(HERE) if re.fullmatch(r"\d+\.\d+\.\d+", name)]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def saved_runs():
    """(version, run, its folder) of all checkpoints."""
    for version in versions():
        for name in sorted(os.listdir(os.path.join(HERE, version))):
            folder = os.path.join(HERE, version, name)
            if os.path.exists(os.path.join(folder, VALUES)):
                yield version, name, folder


def kept_lines(folder):
    with open(os.path.join(folder, VALUES), encoding="ascii") as file:
        return file.read().splitlines()
