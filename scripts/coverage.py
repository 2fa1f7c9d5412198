#!/usr/bin/env python3
"""Counts the branches of the library that its tests take, with gcov.

Usage: coverage.py [--builddir build-coverage] [--missed FILE] [--again] [SUITE...]

Builds without optimisation for gcov, runs the suites named (meson's; all without a name) in full
length, and prints for each folder how many branches were taken at least once. The branch of a
zi_assert that only a defect takes stands in a column of its own. --missed: a file for the lines
with another branch that was not taken. --again: runs nothing and adds up what the last run has
left. Each test writes counts of its own, which are added up here: what a killed process had begun
to write would spoil those of all."""

import argparse
import collections
import glob
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("engine", "stage1", "stage2", "stage3", "offload", "layout", "checkpoint")
OPTIONS = ("--buildtype=plain", "-Doptimization=0", "-Db_coverage=true", "-Dmpi=enabled",
           "-Dtests=enabled", "-Dtools=enabled", "-Dexamples=enabled",
           "-Dc_args=-fprofile-update=atomic")  # threads count at once


def run_as_a_test(counts, command):
    """In place of a test's process, as meson's wrapper."""
    os.environ["GCOV_PREFIX"] = os.path.join(counts, str(os.getpid()))
    os.execvp(command[0], command)


def build(folder):
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        subprocess.run(["meson", "setup", folder, *OPTIONS], cwd=ROOT, check=True)
    subprocess.run(["ninja", "-C", folder], check=True)


def run_suites(folder, counts, suites):
    wrapper = f"{sys.executable} {os.path.abspath(__file__)} --as-a-test {counts}"
    chosen = [word for suite in suites for word in ("--suite", suite)]
    subprocess.run(["meson", "test", "-C", folder, "--no-rebuild", "--timeout-multiplier", "10",
                    "--wrap", wrapper, *chosen], env={**os.environ, "TEST_LONG": "1"}, check=False)


def ask_gcov(folder, data):
    told = subprocess.run(["gcov", "-b", "-c", "--json-format", "--stdout", *data], cwd=folder,
                          capture_output=True, text=True, check=True)
    for line in told.stdout.splitlines():
        yield from json.loads(line)["files"]


def records(folder, counts, part):
    """What gcov says of each source file of a folder of src: that it did not run, which is what
    notes alone tell it, and what each test has counted in it."""
    yield from ask_gcov(folder, glob.glob(f"{folder}/src/{part}/*.p/*.gcno"))
    for test in sorted(glob.glob(os.path.join(counts, "*"))):
        data = glob.glob(f"{test}{folder}/src/{part}/*.p/*.gcda")
        for file in data:
            notes = file[:-len("gcda")] + "gcno"
            if not os.path.exists(notes):
                shutil.copy(notes[len(test):], notes)
        if data:
            yield from ask_gcov(folder, data)


def branches(folder, counts, part):
    """Tests that take each branch, by file, line and place in the line."""
    taken = collections.Counter()
    for file in records(folder, counts, part):
        name = os.path.relpath(os.path.normpath(os.path.join(folder, file["file"])), ROOT)
        if name.startswith(f"src/{part}/"):
            for line in file["lines"]:
                where = (name, line["line_number"], line.get("function_name"))
                for place, branch in enumerate(line.get("branches", [])):
                    taken[where + (place,)] += branch["count"] > 0
    return taken


def source_line(name, number):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read().split("\n")[number - 1].strip()


def report(folder, counts, missed):
    total = collections.Counter()
    print(f"{'':12}{'branches':>10}{'taken':>8}{'':>8}{'asserts':>9}")
    for part in FOLDERS:
        row = collections.Counter()
        for (name, number, _, _), times in sorted(branches(folder, counts, part).items(), key=str):
            line = source_line(name, number)
            kind = "taken" if times else "asserts" if "zi_assert" in line else "missed"
            row[kind] += 1
            if kind == "missed" and missed:
                missed.write(f"{name}:{number}: {line}\n")
        total += row
        print_row(part, row)
    print_row("all", total)


def print_row(name, row):
    count = row["taken"] + row["missed"] + row["asserts"]
    percent = 100 * row["taken"] / max(count, 1)
    print(f"{name:12}{count:10}{row['taken']:8}{percent:7.1f}%{row['asserts']:9}")


def main():
    if sys.argv[1:2] == ["--as-a-test"]:
        run_as_a_test(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--builddir", default="build-coverage", help="default: build-coverage")
    parser.add_argument("--missed", help="a file for the lines with a branch that was not taken")
    parser.add_argument("--again", action="store_true", help="add up what the last run has left")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="meson's; default: all")
    args = parser.parse_args()
    folder = os.path.abspath(args.builddir)
    counts = os.path.join(folder, "counts")
    if not args.again:
        build(folder)
        shutil.rmtree(counts, ignore_errors=True)
        os.mkdir(counts)
        run_suites(folder, counts, args.suites)
    missed = open(args.missed, "w", encoding="utf-8") if args.missed else None
    report(folder, counts, missed)


if __name__ == "__main__":
    main()
