#!/usr/bin/env python3
"""docs/options.md is what `zero options --markdown` prints, and its JSON has the same options.

Usage: test_options_page.py PROGRAM PAGE"""

import difflib
import json
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
    report = json.loads(run(program, "options", "--json", "-"))
    told = [option["name"] for option in report["options"]]
    same = told == [line.split("`")[1] for line in printed.splitlines() if line.startswith("| `")]
    if not same:
        print("the JSON has other options: " + " ".join(told))
    return finish(0 if same and not missing else 1)


if __name__ == "__main__":
    sys.exit(main())
