#!/usr/bin/env python3
"""Says how many parameters this machine can train, by the format of optimizer states.

Usage: largest_model.py FOLDER DISK [MEMORY_BYTES DISK_BYTES]

FOLDER holds plans of one rank as gpt2_train --plan --json writes them, of any model, in files named
N-MASTER-MOMENTS.json, which are rows in the order of their names. A row divides what memory is
available (MemAvailable), or is free on the file system of DISK, by the bytes that a parameter takes
of it: with all in memory; with masters and moments on disk, as far as both reach; and as far as
the disk does. G is 1e9 parameters. Activations are not in it. Lines have at most 79 characters."""

import json
import os
import sys

STATES = ("master", "moment1", "moment2", "scale1", "scale2")


def memory_available():
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":") for line in file)
    return int(lines["MemAvailable"].split()[0]) * 1024


def disk_free(path):
    at = os.statvfs(path)
    return at.f_bavail * at.f_frsize


def row_of(path):
    """Bytes of a parameter: all of it, and its states."""
    with open(path, encoding="utf-8") as file:
        plan = json.load(file)
    memory = {role: row["planned"] for role, row in plan["memory"].items()
              if isinstance(row, dict)}
    states = sum(memory.get(role, 0) for role in STATES)
    return memory["total"] / plan["parameters"], states / plan["parameters"]


def main():
    folder, disk = sys.argv[1:3]
    given = [int(word) for word in sys.argv[3:]]
    memory, free = given or (memory_available(), disk_free(disk))
    print(f"\nLargest model: {memory / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB of disk "
          "(without activations)")
    print(f"{'masters and moments':24}{'bytes':>8}{'all in memory':>16}{'states on disk':>17}"
          f"{'by disk':>12}")
    for name in sorted(os.listdir(folder)):
        _, master, moments = name.removesuffix(".json").split("-")
        whole, states = row_of(f"{folder}/{name}")
        on_disk = free / states
        both = min(memory / (whole - states), on_disk)
        print(f"{f'{master}, {moments}':24}{whole:8.2f}{memory / whole / 1e9:14.2f} G"
              f"{both / 1e9:15.2f} G{on_disk / 1e9:10.2f} G")


if __name__ == "__main__":
    main()
