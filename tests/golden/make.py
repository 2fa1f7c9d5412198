#!/usr/bin/env python3
"""Writes the golden files of this version, once. Those that are there stay as they are.

Usage: make.py GOLDEN_RUN ZERO        (programs of build/: tests/golden/golden_run, tools/zero)"""

import os
import shutil
import sys

from golden import HERE, REPORTS, VALUES, run, summed_up


def write_text(path, text):
    with open(path, "x", encoding="ascii") as file:
        file.write(text)


def write_run(program, name, folder):
    os.mkdir(folder)
    run(program, "write", name, folder)
    read = run(program, "read", name, folder, "1", "0", "-")
    lines = summed_up(read, name.startswith("weights"))
    write_text(os.path.join(folder, VALUES), "\n".join(lines) + "\n")


def write_traces(program, zero, name, folder):
    os.mkdir(folder)
    run(program, "write", name, folder)
    for command, kind in (("summary", "timeline"), ("hang", "collectives")):
        files = [os.path.join(folder, f"{kind}.{rank}.json") for rank in (0, 1)]
        said = run(zero, "trace", command, *files, "--json", "-")
        write_text(os.path.join(folder, f"{command}.json"), said)


def write_all(program, zero, folder):
    os.mkdir(folder)
    for line in run(program, "list").splitlines():
        name, *traced = line.split()
        if traced:
            write_traces(program, zero, name, os.path.join(folder, name))
        else:
            write_run(program, name, os.path.join(folder, name))
    for name, words in REPORTS.items():
        write_text(os.path.join(folder, f"{name}.json"), run(zero, *words, "--json", "-"))


def main():
    program, zero = sys.argv[1:]
    version = run(zero, "--version").split()[1]
    folder = os.path.join(HERE, version)
    if os.path.exists(folder):
        sys.exit(f"{folder} is there, and golden files stay as they are: they are what users of "
                 f"{version} have. Set another version in include/zero/version.h first.")
    part = folder + ".part"
    shutil.rmtree(part, ignore_errors=True)
    write_all(program, zero, part)
    os.rename(part, folder)
    print(f"{folder} is written; commit it")


if __name__ == "__main__":
    main()
