#!/usr/bin/env python3
"""Run a job whose ranks go while others wait for them, and see that the others came through.

Usage: mpi_departure.py SURVIVORS COMMAND...
mpirun's own exit status tells nothing here: a killed rank is a failure to it. The last line is "N
passed, N failed, 0 skipped", of the ranks that were to come through."""

import re
import subprocess
import sys


def main():
    survivors, command = int(sys.argv[1]), sys.argv[2:]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    fine = sorted({int(rank) for rank in re.findall(r"^(\d+) is fine$", done.stdout, re.MULTILINE)})
    if fine != list(range(survivors)):
        print(done.stdout + done.stderr)
        print(f"ranks {fine} came through, expected 0 to {survivors - 1}")
    missing = len(set(range(survivors)) - set(fine))
    print(f"{survivors - missing} passed, {missing} failed, 0 skipped")
    return 0 if fine == list(range(survivors)) else 1


if __name__ == "__main__":
    sys.exit(main())
