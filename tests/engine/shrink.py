#!/usr/bin/env python3
"""Looks for a smaller random case that fails in the same way.

Usage: shrink.py [--any] [--minutes N] [--program FILE] COMMAND...

COMMAND is what a failing test prints behind "again:", with --case in it. A case is a list of
choices (tests/engine/random_choices.h), and 0 is the simplest of each. Choices become 0, all at
once, then halves, quarters and so on down to single ones; of units and tensors one is left out; a
choice that has to stay becomes smaller. Each try is a process of its own with a time limit, in an
empty folder. What fails at another check or with another status counts as another failure; with
--any it counts too. It prints the smallest case, what it does as a C program of the library's
users, what the test says of it, and the command that repeats it. --program FILE: the whole of that
program, to be compiled."""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_MIN_S = 10
SLACK_S = 5  # a test ends by itself at its limit, else it is ended so much later
SMALL = 16  # up to it every smaller value of a choice is tried, else those without one bit
LOOP = os.path.join(HERE, "printed_loop.c")


class Case:
    """What one run of a case has chosen."""

    def __init__(self, told, said="", failure=None):
        self.said = said
        self.failure = failure
        self.values = {}
        self.items = []
        for line in told.split("\n"):
            kind, *numbers = line.split() or [""]
            if kind == "choice":
                number, value, _ = map(int, numbers)
                self.values[number] = value
            elif kind == "item":
                self.items.append(tuple(map(int, numbers)))

    def chosen(self):
        return {number: value for number, value in sorted(self.values.items()) if value != 0}

    def size(self):
        chosen = self.chosen()
        return len(chosen), sum(chosen.values())


def as_list(chosen):
    return ",".join(f"{number}:{value}" for number, value in sorted(chosen.items()))


def failure_of(said):
    """How a test has failed: its exit status, the check, and the status in its message; or
    nothing."""
    ended = re.search(r"^(?:FAILED|TIMEOUT) .*\((exit \d+)", said, re.MULTILINE)
    if ended is None:
        return None if re.search(r"^\d+ passed, 0 failed", said, re.MULTILINE) else ("no result",)
    check = re.search(r"^  (\S+:\d+): (.*)$", said, re.MULTILINE)
    if check is None:
        return (ended.group(1),)
    statuses = re.findall(r"\b[A-Z]+(?:_[A-Z]+)*(?=: )", check.group(2))
    return ended.group(1), check.group(1), *statuses


class Runner:
    """Runs cases of one command."""

    def __init__(self, command, limit_s):
        self.command = command
        self.limit_s = limit_s
        self.slack_s = SLACK_S
        self.runs = 0

    def run(self, chosen, program=None):
        self.runs += 1
        with tempfile.TemporaryDirectory(dir=".", prefix="zero-storage-") as folder:
            told = os.path.join(folder, "chosen")
            command = [*self.command, "--chosen", os.path.abspath(told)]
            command += ["--choices", as_list(chosen)] if chosen is not None else []
            command += ["--program", os.path.abspath(program)] if program else []
            said = self.said_by(command, folder)
            text = ""
            if os.path.exists(told):
                with open(told, encoding="utf-8") as file:
                    text = file.read()
        return Case(text, said, failure_of(said))

    def said_by(self, command, folder):
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
            env={**os.environ, "TEST_TIMEOUT": str(self.limit_s)},
        ) as process:  # fmt: skip
            try:
                return process.communicate(timeout=self.limit_s + self.slack_s)[0]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return process.communicate()[0]


class Reducer:
    """Makes a case smaller as long as `attempt`, given its choices, returns one that is wanted, and
    None for others."""

    def __init__(self, case, attempt, seconds=3600):
        self.case = case
        self.attempt = attempt
        self.seen = set()
        self.end = time.monotonic() + seconds

    def tried(self, chosen):
        """Whether the case with these choices is wanted and smaller; it is the case then."""
        text = as_list(chosen)
        if text in self.seen or time.monotonic() > self.end:
            return False
        self.seen.add(text)
        found = self.attempt(chosen)
        if found is None or found.size() >= self.case.size():
            return False
        self.case = found
        return True

    def zero_blocks(self):
        size = len(self.case.chosen())
        while size > 0:
            at = 0
            while at < len(self.case.chosen()):
                chosen = self.case.chosen()
                gone = sorted(chosen)[at : at + size]
                if not self.tried({n: v for n, v in chosen.items() if n not in gone}):
                    at += size
            size //= 2

    def without(self, item):
        """The choices without one item: those behind it take its place."""
        number, size, count = item
        end = max(n for n, s, c in self.case.items if (s, c) == (size, count)) + size
        left = {}
        for n, value in self.case.chosen().items():
            if n < number or n >= end:
                left[n] = value
            elif n >= number + size:
                left[n - size] = value
        left[count] = self.case.values[count] - 1
        return {n: v for n, v in left.items() if v > 0}

    def drop_items(self):
        at = 0
        while at < len(self.case.items):
            item = self.case.items[at]
            if self.case.values[item[2]] == 0 or not self.tried(self.without(item)):
                at += 1

    def lower(self):
        for number in sorted(self.case.chosen()):
            value = self.case.values.get(number, 0)
            bits = [1 << i for i in reversed(range(value.bit_length())) if value >> i & 1]
            smaller = range(1, value) if value <= SMALL else [value - bit for bit in bits]
            for less in smaller:
                chosen = self.case.chosen()
                if number in chosen and self.tried({**chosen, number: less}):
                    break

    def run(self):
        before = None
        while before != self.case.size():
            before = self.case.size()
            self.zero_blocks()
            self.drop_items()
            self.lower()
        return self.case


def whole_program(text):
    """A printed program with what it includes of this folder in it, each file once."""
    had = set()

    def included(name):
        if name in had:
            return ""
        had.add(name)
        with open(os.path.join(HERE, name), encoding="utf-8") as file:
            return expand(file.read())

    def expand(part):
        return re.sub(r'^#include "(.*)"\n', lambda line: included(line[1]), part, flags=re.M)

    return expand(text)


def program_of(runner, case):
    """The case as a program, without what it includes; nothing where the test prints none."""
    with tempfile.TemporaryDirectory(dir=".", prefix="zero-storage-") as folder:
        path = os.path.join(folder, "case.c")
        runner.run(case.chosen(), path)
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--any", action="store_true")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--program")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if "--case" not in args.command:
        parser.error("the command names no --case")
    command = [os.path.abspath(args.command[0]), *args.command[1:]]
    begun = time.monotonic()
    runner = Runner(command, 120)
    first = runner.run(None)
    if first.failure is None:
        sys.exit(f"shrink.py: this case does not fail:\n{first.said}")
    runner.limit_s = LIMIT_MIN_S + int(3 * (time.monotonic() - begun))

    def attempt(chosen):
        case = runner.run(chosen)
        same = case.failure == first.failure or (args.any and case.failure is not None)
        return case if same else None

    case = Reducer(first, attempt, 60 * args.minutes).run()
    text = program_of(runner, case)
    print(text + case.said.rstrip())
    print(f"{first.size()[0]} choices were not the simplest, {case.size()[0]} are; "
          f"{runner.runs} runs, {time.monotonic() - begun:.0f} s; again:\n"
          f"    {shlex.join(args.command)} --choices {as_list(case.chosen()) or '0:0'}")
    if args.program:
        with open(args.program, "w", encoding="utf-8") as file:
            file.write(whole_program(text))


if __name__ == "__main__":
    main()
