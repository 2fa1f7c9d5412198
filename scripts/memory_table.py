#!/usr/bin/env python3
"""Draws the memory of a rank at stages 0 to 3, as bars and as numbers.

Usage: memory_table.py FOLDER TITLE

FOLDER holds stage0.json to stage3.json, each written by gpt2_train --json, after training or with
--plan. Lines have at most 79 characters."""

import json
import sys

STAGES = range(4)
BAR = 44
# letter, name, roles; what is in none of them is the last one's
PARTS = (
    ("p", "params", ("param",)),
    ("g", "grads", ("grad",)),
    ("o", "optimizer", ("master", "moment1", "moment2", "scale1", "scale2")),
    ("s", "slots, rest", ()),
)


def memory_of(path):
    with open(path, encoding="utf-8") as file:
        memory = json.load(file)["memory"]
    return {role: row for role, row in memory.items() if isinstance(row, dict)}


def parts_of(memory):
    """Bytes of each of PARTS."""
    known = [sum(memory[role]["planned"] for role in roles if role in memory)
             for _, _, roles in PARTS[:-1]]
    return known + [memory["total"]["planned"] - sum(known)]


def bar_of(parts, scale):
    """A letter for every 1 / BAR of `scale` bytes; ends are rounded, so that parts add up."""
    text, end = "", 0
    for (letter, _, _), part in zip(PARTS, parts):
        end += part
        text += letter * (round(end * BAR / scale) - len(text))
    return text


def size_of(count):
    unit = "MiB" if count < 1 << 30 else "GiB"
    return f"{count / (1 << (20 if unit == 'MiB' else 30)):.2f} {unit}"


def main():
    folder, title = sys.argv[1:]
    stages = [memory_of(f"{folder}/stage{stage}.json") for stage in STAGES]
    whole = max(memory["total"]["planned"] for memory in stages)
    first = stages[0]["total"]["planned"]
    print(f"\n{title}")
    for stage, memory in enumerate(stages):
        total = memory["total"]["planned"]
        bar = bar_of(parts_of(memory), whole)
        print(f"stage {stage} {size_of(total):>11}  {bar:{BAR}} {total / first:>5.0%}")
    columns = [f"{letter}: {name}" for letter, name, _ in PARTS]
    print(" " * 9 + "".join(f"{name:>16}" for name in columns))
    for stage, memory in enumerate(stages):
        cells = "".join(f"{size_of(part):>16}" for part in parts_of(memory))
        print(f"stage {stage}  {cells}")


if __name__ == "__main__":
    main()
