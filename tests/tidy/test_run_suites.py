#!/usr/bin/env python3
"""scripts/run_suites.py must count what dies, hangs or lies as a failure.

Usage: test_run_suites.py FOLDER_OF_SCRIPTS"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

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


def run_listed(scripts, folder, programs, *more, shell="sh", output=subprocess.DEVNULL,
               priorities=None):
    """run_suites.py over shell programs, by name, that a stand-in for meson lists; started."""
    listed = [
        {"name": name, "suite": ["x:y"], "cmd": [shell, "-c", program], "env": {}, "timeout": 30,
         "workdir": None, "is_parallel": False, "priority": (priorities or {}).get(name, 0)}
        for name, program in programs.items()
    ]  # fmt: skip
    with open(f"{folder}/listed", "w", encoding="utf-8") as file:
        json.dump(listed, file)
    with open(f"{folder}/meson", "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\ncat {folder}/listed\n")
    os.chmod(f"{folder}/meson", 0o755)
    return subprocess.Popen(
        [sys.executable, f"{scripts}/run_suites.py", folder, f"{folder}/tally", *more],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        stdout=output,
    )


def tally_of(folder):
    try:
        with open(f"{folder}/tally", encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def keeps_what_was_counted(scripts):
    """--limit ends a program that hangs; who ends the whole has the counts until then."""
    with tempfile.TemporaryDirectory() as folder:
        programs = {"0": CLEAN, "1": "sleep 60"}
        run_listed(scripts, folder, programs, "--limit", "0.3").wait(timeout=20)
        limited = tally_of(folder)
    with tempfile.TemporaryDirectory() as folder:
        process = run_listed(scripts, folder, programs)
        began = time.monotonic()
        while tally_of(folder) == "" and time.monotonic() < began + 20:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
        ended = tally_of(folder)
    return limited == "3 0 1\n0 1 0\n" and ended == "3 0 1\n"


def runs_elsewhere(scripts):
    """Another user's run: in a folder of that user, and without what only the builder can run."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/run")
        hidden = f"{folder}/hidden/sh"
        run_listed(scripts, folder, {"0": f"pwd > {folder}/where; {CLEAN}"}, "--folder",
                   f"{folder}/run", shell=hidden).wait(timeout=20)
        with open(f"{folder}/where", encoding="utf-8") as file:
            where = file.read().strip()
        return os.path.samefile(where, f"{folder}/run") and tally_of(folder) == "3 0 1\n"


def names_targets(scripts):
    """What ninja builds for the programs of some suites, and for no others."""
    with tempfile.TemporaryDirectory() as folder:
        tests = [{"name": name, "suite": [f"x:{name}"], "depends": depends}
                 for name, depends in {"a": ["3@p", "1@p"], "b": ["2@p"], "c": []}.items()]
        targets = [{"id": f"{i}@p", "filename": [f"{folder}/build/sub/t{i}"]} for i in range(5)]
        for what, listed in {"tests": tests, "targets": targets}.items():
            with open(f"{folder}/--{what}", "w", encoding="utf-8") as file:
                json.dump(listed, file)
        with open(f"{folder}/meson", "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\ncat "{folder}/$2"\n')
        os.chmod(f"{folder}/meson", 0o755)
        said = subprocess.run(
            [sys.executable, f"{scripts}/run_suites.py", f"{folder}/build", "--targets", "--skip",
             "b"],
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip
    return said == "sub/t1\nsub/t3\n"


def begins_with_the_longest(scripts):
    """The highest priority first, and else as meson lists them."""
    with tempfile.TemporaryDirectory() as folder:
        programs = {str(i): f"printf {i} >> {folder}/ran; {CLEAN}" for i in range(4)}
        priorities = {"2": 7, "3": 9}
        run_listed(scripts, folder, programs, priorities=priorities).wait(timeout=20)
        with open(f"{folder}/ran", encoding="utf-8") as file:
            return file.read() == "3201"


def takes_turns(scripts):
    """Turns that follow one another run every program, each once."""
    with tempfile.TemporaryDirectory() as folder:
        programs = {str(i): f"printf {i} >> {folder}/ran; {CLEAN}" for i in range(8)}
        for turn in range(7, 10):
            run_listed(scripts, folder, programs, "--share", f"{turn}/3").wait(timeout=20)
        with open(f"{folder}/ran", encoding="utf-8") as file:
            return file.read() == "14725036"


FAILS = "echo '3 passed, 2 failed, 0 skipped'; exit 1"


def runs_once(scripts):
    """What failed is counted as it was, and has no other try."""
    with tempfile.TemporaryDirectory() as folder:
        programs = {"fails": FAILS, "dies": "kill -SEGV $$", "clean": CLEAN}
        programs = {name: f"printf {name}. >> {folder}/ran; {text}"
                    for name, text in programs.items()}
        run_listed(scripts, folder, programs).wait(timeout=20)
        with open(f"{folder}/ran", encoding="utf-8") as file:
            ran = file.read()
        return ran == "fails.dies.clean." and tally_of(folder) == "3 2 0\n0 1 0\n3 0 1\n"


def main():
    sys.path.insert(0, sys.argv[1])
    import run_suites  # pylint: disable=import-outside-toplevel,import-error

    failed = 0

    def say(name, good):
        nonlocal failed
        failed += not good
        print(f"{'ok' if good else 'FAILED':8}{name}")

    for name, (program, limit_s, expected) in CASES.items():
        command = ["sh", "-c", program]
        status, output, _ = run_suites.run_program(command, {**os.environ}, None, limit_s)
        counts = run_suites.evaluate(status, output, "MUST" in name)[:3]
        say(name, counts == expected)
        if counts != expected:
            print(f"  {counts} instead of {expected}; status {status}, output {output!r}")
    absent = run_suites.evaluate(*run_suites.run_program(["/no/program"], {}, None, 20)[:2])
    say("a program that was not built", absent[:3] == (0, 1, 0))
    bad = subprocess.run(
        [sys.executable, f"{sys.argv[1]}/run_suites.py", "no-such-build", os.devnull],
        capture_output=True,
        check=False,
    )
    say("a build folder that is not there", bad.returncode != 0)
    say("a program cut short, and a run", keeps_what_was_counted(sys.argv[1]))
    say("another user's folder and programs", runs_elsewhere(sys.argv[1]))
    say("what is to be built for some suites", names_targets(sys.argv[1]))
    say("which program is first", begins_with_the_longest(sys.argv[1]))
    say("a share of all programs", takes_turns(sys.argv[1]))
    say("no second run", runs_once(sys.argv[1]))
    print(f"{len(CASES) + 8 - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
