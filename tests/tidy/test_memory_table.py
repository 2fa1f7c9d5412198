#!/usr/bin/env python3
"""What scripts/memory_table.py draws must be the numbers it was given, in 79 columns.

Usage: test_memory_table.py FOLDER_OF_SCRIPTS"""

import json
import re
import subprocess
import sys
import tempfile

MIB = 1 << 20
ROLES = ("param", "grad", "master", "moment1", "moment2", "param slots", "grad slots", "step")
# Bytes of ROLES at each stage; a power of two that the bars' letters can show.
STAGES = (
    (4, 8, 8, 8, 8, 0, 4, 4),
    (4, 8, 2, 2, 2, 0, 0, 0),
    (4, 2, 2, 2, 2, 0, 0, 0),
    (1, 2, 2, 2, 2, 2, 0, 0),
)


def table(scripts, scale):
    """(exit status, lines) over STAGES times scale."""
    with tempfile.TemporaryDirectory() as folder:
        for stage, sizes in enumerate(STAGES):
            memory = {role: {"planned": size * scale} for role, size in zip(ROLES, sizes)}
            memory["total"] = {"planned": sum(sizes) * scale}
            memory["activations"] = 5
            with open(f"{folder}/stage{stage}.json", "w", encoding="utf-8") as file:
                json.dump({"memory": memory}, file)
        done = subprocess.run(
            [sys.executable, f"{scripts}/memory_table.py", folder, "a title"],
            capture_output=True,
            text=True,
            check=False,
        )
    return done.returncode, done.stdout.splitlines()


def draws(scripts, scale):
    status, lines = table(scripts, scale)
    bars = [re.fullmatch(r"stage \d +\S+ [MG]iB  ([pgos]+) +(\d+)%", line) for line in lines[2:6]]
    shares = [sum(sizes) / sum(STAGES[0]) for sizes in STAGES]
    counts = [[round(44 * size / 44) for size in (s[0], s[1], sum(s[2:5]), sum(s[5:]))]
              for s in STAGES]  # fmt: skip
    return (
        status == 0
        and all(len(line) < 80 for line in lines)
        and all(bars)
        and [[bar[1].count(letter) for letter in "pgos"] for bar in bars] == counts
        and [int(bar[2]) for bar in bars] == [round(100 * share) for share in shares]
    )


def main():
    cases = {
        "bars and numbers in MiB": draws(sys.argv[1], MIB),
        "bars and numbers in GiB": draws(sys.argv[1], 1 << 32),
    }
    for name, good in cases.items():
        print(f"{'ok' if good else 'FAILED':8}{name}")
    failed = sum(not good for good in cases.values())
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
