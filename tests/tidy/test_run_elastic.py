#!/usr/bin/env python3
"""scripts/run-elastic must start a job again with the ranks that are left.

Usage: test_run_elastic.py FOLDER_OF_SCRIPTS"""

import os
import signal
import subprocess
import sys
import tempfile
import time

# A job that says how many ranks it has, and is killed once for each word in the file $LIVES.
MORTAL = 'echo {ranks}; if [ -s $LIVES ]; then sed -i 1d $LIVES; kill -9 $$; fi'
# name: (arguments, job, lives, exit status, what the job says, what run-elastic says)
CASES = {
    "a job that ends is not started again":
        ("--ranks 4", "echo {ranks}", 0, 0, "4", ""),
    "a rank less after each death, of those allowed":
        ("--ranks 1,4,2", MORTAL, 2, 0, "4 2 1", "with 2 ranks the job was ended by SIGKILL"),
    "as many ranks again where they are kept":
        ("--ranks 4,2 --keep-ranks", MORTAL, 2, 0, "4 4 4", "SIGKILL"),
    "nothing is left":
        ("--ranks 4,3", MORTAL, 9, 1, "4 3", "2 ranks are left, and --ranks allows 3 at least"),
    "as many ranks as the probe prints":
        ("--ranks 8,4,2 --probe 'echo 5'", MORTAL, 1, 0, "4 4", ""),
    "a failure loses no rank":
        ("--ranks 2,1 --restarts 1", "echo {ranks}; exit 3", 0, 3, "2 2",
         "ended with status 3, 2 times in a row within 60 s"),
    "a job that ran well for a while is always started again":
        ("--ranks 1 --restarts 0 --healthy 0 --keep-ranks", MORTAL, 3, 0, "1 1 1 1", ""),
    "no restart where none is allowed":
        ("--ranks 2,1 --restarts 0", MORTAL, 1, 137, "2", "it is not started again"),
    "numbers that are none":
        ("--ranks 4,x", "echo {ranks}", 0, 2, "", "--ranks 4,x is not a list of numbers"),
    "no ranks at all":
        ("--ranks 0", "echo {ranks}", 0, 2, "", "a job has at least one rank"),
    "a probe that prints no number":
        ("--ranks 2 --probe 'echo many'", "echo {ranks}", 0, 2, "", "printed 'many'"),
    "an option that is none":
        ("--rank 2", "echo {ranks}", 0, 2, "", "see --help"),
}  # fmt: skip


def started(scripts, arguments, job, folder, lives):
    with open(f"{folder}/lives", "w", encoding="utf-8") as file:
        file.write("x\n" * lives)
    return subprocess.Popen(
        ["sh", "-c", f'exec "$0" {arguments} -- sh -c "$1"', f"{scripts}/run-elastic", job],
        env={**os.environ, "LIVES": f"{folder}/lives"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def as_expected(scripts, case):
    arguments, job, lives, status, said, reported = case
    with tempfile.TemporaryDirectory() as folder:
        process = started(scripts, arguments, job, folder, lives)
        out, errors = process.communicate(timeout=60)
    good = process.returncode == status and out.split() == said.split() and reported in errors
    if not good:
        print(f"status {process.returncode}, output {out!r}, errors {errors!r}")
    return good


def passes_signals_on(scripts):
    """The job gets SIGTERM, ends in its own time with its own status, and is not started again."""
    job = "trap 'echo ends; exit 143' TERM; echo {ranks}; while :; do sleep 0.05; done"
    with tempfile.TemporaryDirectory() as folder:
        process = started(scripts, "--ranks 2,1", job, folder, 0)
        begun = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[0]
    return begun == "2\n" and rest == "ends\n" and process.returncode == 143


def pauses(scripts):
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        process = started(scripts, "--ranks 2,1 --pause 0.4", MORTAL, folder, 1)
        process.communicate(timeout=60)
    return time.monotonic() - begun >= 0.4


def main():
    scripts = sys.argv[1]
    cases = {name: as_expected(scripts, case) for name, case in CASES.items()}
    cases["signals are passed on"] = passes_signals_on(scripts)
    cases["it pauses"] = pauses(scripts)
    for name, good in cases.items():
        print(f"{'ok' if good else 'FAILED':8}{name}")
    failed = sum(not good for good in cases.values())
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
