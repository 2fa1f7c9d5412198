#!/usr/bin/env python3
"""scripts/run_suites.py must count what dies, hangs or lies as a failure.

Usage: test_run_suites.py FOLDER_OF_SCRIPTS"""

import os
import subprocess
import sys

CLEAN = "echo 'x 1 passed'; echo '3 passed, 0 failed, 1 skipped'"
# name: (shell program, seconds it may take, what it counts for). MUST: of the suite should_fail.
CASES = {
    "a clean end": (CLEAN, 20, (3, 0, 1)),
    "failures that it counts": ("echo '3 passed, 2 failed, 0 skipped'; exit 1", 20, (3, 2, 0)),
    "no closing line": ("echo all is well", 20, (0, 1, 0)),
    "a closing line with more on it": ("echo '3 passed, 0 failed, 0 skipped or so'", 20, (0, 1, 0)),
    "a crash after the closing line": (CLEAN + "; kill -SEGV $$", 20, (3, 1, 1)),
    "an exit status without a failure": (CLEAN + "; exit 1", 20, (3, 1, 1)),
    "a failure without an exit status": ("echo '3 passed, 2 failed, 0 skipped'", 20, (3, 3, 0)),
    "a program that hangs": ("sleep 60", 0.3, (0, 1, 0)),
    "a child that outlives the hanging program": ("sleep 60 & sleep 60", 0.3, (0, 1, 0)),
    "MUST fail and does": (CLEAN + "; exit 1", 20, (3, 0, 1)),
    "MUST fail and does not": (CLEAN, 20, (3, 1, 1)),
    "MUST fail but not by a crash": ("kill -SEGV $$", 20, (0, 1, 0)),
    "several closing lines": ("echo '1 passed, 0 failed, 0 skipped';" + CLEAN, 20, (3, 0, 1)),
}


def main():
    sys.path.insert(0, sys.argv[1])
    import run_suites  # pylint: disable=import-outside-toplevel,import-error

    failed = 0
    for name, (program, limit_s, expected) in CASES.items():
        command = ["sh", "-c", program]
        status, output, _ = run_suites.run_program(command, {**os.environ}, None, limit_s)
        counts = run_suites.judge(status, output, "MUST" in name)[:3]
        good = counts == expected
        failed += not good
        print(f"{'ok' if good else 'FAILED':8}{name}")
        if not good:
            print(f"  {counts} instead of {expected}; status {status}, output {output!r}")
    bad = subprocess.run(
        [sys.executable, f"{sys.argv[1]}/run_suites.py", "no-such-build", os.devnull],
        capture_output=True,
        check=False,
    )
    failed += bad.returncode == 0
    print(f"{'ok' if bad.returncode else 'FAILED':8}a build folder that is not there")
    print(f"{len(CASES) + 1 - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
