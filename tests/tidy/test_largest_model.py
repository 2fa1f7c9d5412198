#!/usr/bin/env python3
"""Numbers of scripts/largest_model.py must be those of its plans, in 79 columns.

Usage: test_largest_model.py FOLDER_OF_SCRIPTS"""

import json
import re
import subprocess
import sys
import tempfile

PARAMETERS = 1000
PLANS = {
    "1-f32-f32": {"param": 2, "grad": 4, "master": 4, "moment1": 4, "moment2": 4},
    "2-remainder16-i8": {"param": 2, "grad": 4, "master": 2, "moment1": 1, "moment2": 1,
                         "scale1": 0.0625, "scale2": 0.0625},
}
MEMORY = 18 * 10**9
DISK = 24 * 10**9


def lines_of(scripts):
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in PLANS.items():
            memory = {role: {"planned": size * PARAMETERS} for role, size in sizes.items()}
            memory["total"] = {"planned": sum(sizes.values()) * PARAMETERS}
            memory["activations"] = 5
            with open(f"{folder}/{name}.json", "w", encoding="utf-8") as file:
                json.dump({"parameters": PARAMETERS, "memory": memory}, file)
        done = subprocess.run([sys.executable, f"{scripts}/largest_model.py", folder, "/",
                               str(MEMORY), str(DISK)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def numbers(line):
    return [float(word) for word in re.findall(r" (\d+\.\d+)", line)]


def main():
    status, lines = lines_of(sys.argv[1])
    cases = {
        "it ends well, in 79 columns": status == 0 and all(len(line) < 80 for line in lines),
        "fp32 states": numbers(lines[3]) == [18.0, 1.0, 2.0, 2.0],
        "small states": numbers(lines[4]) == [10.12, 1.78, 3.0, 5.82],
    }
    for name, good in cases.items():
        print(f"{'ok' if good else 'FAILED':8}{name}")
    failed = sum(not good for good in cases.values())
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
