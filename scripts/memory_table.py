#!/usr/bin/env python3
"""Prints the memory of a rank at stages 0 to 3, planned beside measured.

Usage: memory_table.py FOLDER, which holds stage0.json to stage3.json, each written by
gpt2_train --json. Exit status 1 when a plan and a measurement differ."""

import json
import sys

STAGES = range(4)


def memory_of(path):
    with open(path, encoding="utf-8") as file:
        memory = json.load(file)["memory"]
    return {role: row for role, row in memory.items() if isinstance(row, dict)}


def main():
    stages = [memory_of(f"{sys.argv[1]}/stage{stage}.json") for stage in STAGES]
    print("\nmemory of a rank, in bytes: planned / measured by the allocator")
    print(f"{'':12}" + "".join(f"{f'stage {stage}':>24}" for stage in STAGES))
    different = 0
    for role in stages[0]:
        cells = [(memory[role]["planned"], memory[role]["measured"]) for memory in stages]
        different += sum(planned != measured for planned, measured in cells)
        print(f"{role:12}" + "".join(f"{f'{a} / {b}':>24}" for a, b in cells))
    whole = stages[0]["total"]["measured"]
    shares = [memory["total"]["measured"] / whole for memory in stages]
    print(f"{'of stage 0':12}" + "".join(f"{f'{share:.0%}':>24}" for share in shares))
    print("slots hold a few whole units: they weigh most where a model has few layers")
    print("planned and measured are equal" if not different else f"{different} rows differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
