#!/usr/bin/env python3
"""Runs the test programs of one build folder and adds up what they say.

Usage: run_suites.py BUILD TALLY [--only SUITE]... [--skip SUITE]... [--wrap COMMAND]
                     [--share TURN/N] [--limit SECONDS] [--folder FOLDER]
       run_suites.py BUILD --targets [--only SUITE]... [--skip SUITE]... [--share TURN/N]

Every program ends with "N passed, N failed, N skipped". One that dies without that line, or does
not end in its time, counts as one failure. A program of the suite should_fail (meson tells nobody
of its argument of that name) must end with another status than 0.

Two programs more than there are cores run at a time, at most four or a quarter of many cores:
programs wait for disks and for one another. Those of the highest priority (meson's argument of that
name) come first, and those that meson is told are not parallel, which start processes of their own,
last, one after the other.

On a terminal the last line says how many are done and which run, and how long the rest will take
where all of them have run before (BUILD/suite_seconds.json).

One line a program is printed, with the output of those that failed and the reasons of what was
skipped. Its counts are appended to the file TALLY, so that they are there when this is ended early.
--share runs every Nth of the chosen programs; which, the number TURN says: N turns that follow one
another run them all. --limit shortens the time of a program, three times what meson gives a test.
--folder: where programs run, else in BUILD. --targets runs nothing and prints what ninja must build
for the programs, one target a line."""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

CLOSING = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped\s*$", re.MULTILINE)
SHOWN_MAX = 300
RUNNING = set()  # processes, each the leader of its group


def introspect(build, what):
    return json.loads(subprocess.run(
        ["meson", "introspect", what, build], capture_output=True, text=True, check=True
    ).stdout)


def tests_of(build, only, skip):
    """The registered programs whose suites are wanted, with their own suite names."""
    # Long ones first: none of them is left alone at the end. sorted() keeps meson's order else.
    listed = introspect(build, "--tests")
    for test in sorted(listed, key=lambda test: -test.get("priority", 0)):
        # meson puts the project's name before the suite's.
        suites = {suite.split(":")[-1] for suite in test["suite"]}
        if suites & set(skip) or (only and not suites & set(only)):
            continue
        yield "/".join(sorted(suites)), suites, test


def share_of(tests, share):
    """The tests of one turn: "7/3" is those that every third turn has, and the seventh too."""
    turn, turns = (int(number) for number in share.split("/"))
    return tests[turn % turns :: turns]


def targets_of(build, tests):
    """The files, as ninja names them, that these programs are or need."""
    files = {target["id"]: target["filename"] for target in introspect(build, "--targets")}
    root = os.path.abspath(build)
    for target in sorted({target for _, _, test in tests for target in test["depends"]}):
        for file in files[target]:
            yield os.path.relpath(file, root)


SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def environment(suites, test):
    env = {**os.environ, **test["env"]}
    # OpenBLAS's threads spin for so long at the beginning of a process, while other programs run.
    env.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    for name, ours in SANITIZERS.items():
        if name == "ASAN_OPTIONS" and "mpi" in suites and "LSAN_OPTIONS" not in env:
            # Open MPI itself leaves memory behind at its end.
            ours += ":detect_leaks=0"
        env[name] = f"{ours}:{env[name]}" if env.get(name) else ours
    return env


def stop(*_):
    """Whoever ends this program wants nothing of it to go on."""
    for process in list(RUNNING):
        os.killpg(process.pid, signal.SIGKILL)
    os._exit(1)


class LiveLine:
    """The terminal's last line: how far this is. Without a terminal there is none."""

    def __init__(self, build, tests, workers):
        self.path = f"{build}/suite_seconds.json"
        self.left = {test["name"]: test.get("is_parallel", False) for _, _, test in tests}
        self.total = len(tests)
        self.workers = workers
        self.failed = 0
        self.running = {}  # when each began
        self.took = self.took_before()
        self.started = time.monotonic()
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.ticker = threading.Thread(target=self.tick, daemon=True)
        if sys.stdout.isatty():
            self.ticker.start()

    def took_before(self):
        try:
            with open(self.path, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return {}

    def eta(self):
        """ "" where a program has never run here."""
        if not set(self.left) <= set(self.took):
            return ""
        now, seconds = time.monotonic(), 0
        for name, is_parallel in self.left.items():
            rest = max(self.took[name] - (now - self.running.get(name, now)), 0)
            seconds += rest / (self.workers if is_parallel else 1)
        return f"  ETA {int(seconds) // 60}:{int(seconds) % 60:02}"

    def text(self):
        seconds = int(time.monotonic() - self.started)
        failed = f", {self.failed} failed" if self.failed else ""
        return (f"{self.total - len(self.left)} of {self.total} programs{failed}  "
                f"{seconds // 60}:{seconds % 60:02}{self.eta()}  "
                f"{', '.join(self.running)}")  # fmt: skip

    def tick(self):
        while not self.over.wait(0.5):
            with self.lock:
                # One column less than there are: a full line would wrap.
                width = os.get_terminal_size(sys.stdout.fileno()).columns - 1
                print("\r" + self.text()[: max(width, 1)], end="\033[K", flush=True)

    def run(self, args, label, suites, test):
        """run_test, and it is shown meanwhile."""
        with self.lock:
            self.running[test["name"]] = time.monotonic()
        return run_test(args, label, suites, test)

    def end(self, name, failed, lines):
        """Prints what is to be said of a program."""
        with self.lock:
            self.took[name] = time.monotonic() - self.running.pop(name, self.started)
            self.left.pop(name, None)
            self.failed += failed > 0
            clear = "\r\033[K" if self.ticker.is_alive() else ""
            print(clear + "\n".join(lines), flush=True)

    def close(self):
        self.over.set()
        if self.ticker.is_alive():
            self.ticker.join()
            print("\r\033[K", end="", flush=True)
        try:
            with open(self.path, "w", encoding="utf-8") as file:
                json.dump(self.took, file)
        except OSError:  # another user's folder: nobody will know how long it takes
            pass


def run_program(command, env, folder, limit_s):
    """(exit status or None when out of time, output, errors)"""
    try:
        return start_program(command, env, folder, limit_s)
    except OSError as reason:  # it was not built, say
        return 127, "", f"{reason}"


def start_program(command, env, folder, limit_s):
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        cwd=folder,
        start_new_session=True,
    ) as process:
        RUNNING.add(process)
        try:
            output, errors = process.communicate(timeout=limit_s)
            return process.returncode, output, errors
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            return None, output, errors
        finally:
            RUNNING.discard(process)


def evaluate(status, output, should_fail=False):
    """(passed, failed, skipped, what went wrong beyond the program's own count)"""
    closings = CLOSING.findall(output)
    passed, failed, skipped = (int(count) for count in closings[-1]) if closings else (0, 0, 0)
    trouble = ""
    if status is None:
        trouble = "did not end in its time"
    elif not closings:
        trouble = f"ended with status {status} and without its closing line"
    elif should_fail:
        trouble = "ended with status 0 and should not have" if status == 0 else ""
    elif status != 0 and failed == 0:
        trouble = f"ended with status {status} although nothing failed"
    elif status == 0 and failed > 0:
        trouble = "ended with status 0 although something failed"
    return passed, failed + (1 if trouble else 0), skipped, trouble


def shown(text):
    """The last lines of a text, indented."""
    lines = text.rstrip().split("\n")
    out = [f"    {line}" for line in lines[-SHOWN_MAX:]]
    left_out = len(lines) - SHOWN_MAX
    return ([f"    ({left_out} lines left out)"] if left_out > 0 else []) + out


def run_test(args, label, suites, test):
    """(passed, failed, skipped) of one program, and the lines to print about it"""
    start = time.monotonic()
    program, *arguments = test["cmd"]
    if not os.access(program, os.X_OK):
        # Of another user than the one who built: another python3, say.
        program = shutil.which(os.path.basename(program)) or program
    command = shlex.split(args.wrap) + [program, *arguments]
    limits = [seconds for seconds in (test["timeout"] * 3, args.limit) if seconds]
    limit_s = min(limits, default=None)
    folder = test["workdir"] or args.folder or args.build
    status, output, errors = run_program(command, environment(suites, test), folder, limit_s)
    passed, failed, skipped, trouble = evaluate(status, output, "should_fail" in suites)
    lines = [
        f"{'FAILED' if failed else 'ok':7} {args.build} {label}/{test['name']}: {passed} passed, "
        f"{failed} failed, {skipped} skipped ({time.monotonic() - start:.1f} s)"
    ]
    if failed:
        lines += [f"    {shlex.join(command)}: {trouble or 'failed'}"]
        lines += shown(output) + shown(errors)
    elif skipped:
        lines += shown("\n".join(ln.strip() for ln in output.split("\n") if "skipped: " in ln))
    return (passed, failed, skipped), lines


def run_all(args, live, tests, workers):
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(live.run, args, *test): test for test in tests}
        for done in concurrent.futures.as_completed(running):
            counts, lines = done.result()
            live.end(running[done][2]["name"], counts[1], lines)
            with open(args.tally, "a", encoding="utf-8") as file:
                file.write(" ".join(str(count) for count in counts) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("tally", nargs="?", default=os.devnull)
    parser.add_argument("--targets", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--skip", action="append", default=[])
    parser.add_argument("--wrap", default="")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--folder")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    tests = share_of(list(tests_of(args.build, args.only, args.skip)), args.share)
    if args.targets:
        print("\n".join(targets_of(args.build, tests)))
        return 0
    cores = len(os.sched_getaffinity(0))
    most = max(min(2, cores) + 2, cores // 4)
    live = LiveLine(args.build, tests, most)
    parallel = [test for test in tests if test[2].get("is_parallel", False)]
    run_all(args, live, parallel, most)
    run_all(args, live, [test for test in tests if test not in parallel], 1)
    live.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
