#!/usr/bin/env python3
"""docs/options.md is what `zero options --markdown` prints.

Usage: test_options_page.py PROGRAM PAGE"""

import difflib
import subprocess
import sys


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def finish(failed):
    """The closing line that every test ends with; returns the exit status."""
    print(f"{1 - failed} passed, {failed} failed, 0 skipped")
    return failed


def main():
    program, page = sys.argv[1:]
    printed = run(program, "options", "--markdown")
    with open(page, encoding="utf-8") as file:
        kept = file.read()
    if printed != kept:
        sys.stdout.writelines(difflib.unified_diff(
            kept.splitlines(True), printed.splitlines(True), page, "printed"))
        print(f"{page} is out of date: {program} options --markdown > {page}")
        return finish(1)
    listed = run(program, "options")
    missing = [line.split("`")[1] for line in printed.splitlines()
               if line.startswith("| `") and f"\n  {line.split('`')[1]} " not in listed]
    if missing:
        print("`zero options` does not list " + " ".join(missing))
    return finish(1 if missing else 0)


if __name__ == "__main__":
    sys.exit(main())
