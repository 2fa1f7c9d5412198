#!/usr/bin/env python3
"""On a terminal scripts/run_suites.py must say how far it is, in a line that fits and leaves
nothing behind; elsewhere it must print lines only.

Usage: test_live_suites.py FOLDER_OF_SCRIPTS"""

import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import termios

from test_run_suites import run_listed

COLUMNS = 50
CLEAN = "echo '3 passed, 0 failed, 0 skipped'"
BAD = "echo '3 passed, 2 failed, 0 skipped'"  # and status 0: it does not run a second time


def started(scripts, folder, output):
    """Two programs, the first of which takes longer, and fails."""
    programs = {"slow" * 20: "sleep 1.2;" + BAD, "quick": "sleep 0.7;" + CLEAN}
    return run_listed(scripts, folder, programs, output=output)


def drawn_on_a_terminal(scripts, runs_before=0):
    screen, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    drawn = b""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs_before):
            started(scripts, folder, subprocess.DEVNULL).wait(timeout=20)
        process = started(scripts, folder, end)
        os.close(end)
        try:
            while part := os.read(screen, 65536):
                drawn += part
        except OSError:  # nobody has the terminal open any more
            pass
        process.wait(timeout=20)
    os.close(screen)
    return drawn.decode()


def main():
    drawn = drawn_on_a_terminal(sys.argv[1])
    frames = [part.removesuffix("\033[K") for part in drawn.split("\r") if part.endswith("\033[K")]
    rows = [row.split("\r")[-1].removeprefix("\033[K") for row in drawn.split("\r\n")]
    again = drawn_on_a_terminal(sys.argv[1], runs_before=1)
    with tempfile.TemporaryDirectory() as folder:
        plain = started(sys.argv[1], folder, subprocess.PIPE).communicate()[0].decode()
    cases = {
        "what runs, and for how long": any(f.startswith("0 of 2 programs  0:0") for f in frames),
        "what is done and has failed": any(
            f.startswith("1 of 2 programs, 1 failed  0:0") and f.endswith("  quick")
            for f in frames
        ),
        "the rest's time where it is known": "ETA" not in drawn and "  ETA 0:0" in again,
        "no line as long as the terminal is wide": all(len(f) < COLUMNS for f in frames),
        "nothing of it is left": not any("of 2 programs" in row for row in rows),
        "a row for each program": sum(row.startswith(("ok", "FAILED")) for row in rows) == 2,
        "plain lines elsewhere": "\r" not in plain and "\033" not in plain and "ok" in plain,
    }
    for name, good in cases.items():
        print(f"{'ok' if good else 'FAILED':8}{name}")
    failed = sum(not good for good in cases.values())
    if failed:
        print(repr(drawn))
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
