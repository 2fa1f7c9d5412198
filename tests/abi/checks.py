"""Checks that are told of a line each, and the line that every test ends with."""

import os


class Skip(Exception):
    """The check cannot be made on this machine; the text says why."""


class Fail(Exception):
    """What was found instead."""


class Tally:
    """What was checked so far."""

    def __init__(self):
        self.counts = {"ok": 0, "FAILED": 0, "skip": 0}

    def note(self, name, verdict, said=""):
        self.counts[verdict] += 1
        print(f"{verdict:8}{name}")
        for line in said.splitlines():
            print(f"  {line}")

    def check(self, name, good, detail):
        self.note(name, "ok" if good else "FAILED", "" if good else str(detail))

    def run(self, name, check, *arguments):
        """A check that raises Fail or Skip where it does not hold."""
        try:
            check(*arguments)
            self.note(name, "ok")
        except Skip as reason:
            self.note(name, "skip", f"skipped: {reason}")
        except (Fail, OSError) as reason:
            self.note(name, "FAILED", str(reason))

    def close(self):
        """The exit status."""
        counts = self.counts
        print(f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['skip']} skipped")
        return 1 if counts["FAILED"] else 0


def hasty_compiler(folder, compiler):
    """A command like `compiler` that neither optimises nor copies inline, whatever it is asked: the
    library's inner loops are optimised in every build, and take longest to compile."""
    path = f"{folder}/hasty-cc"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {compiler} "$@" -O0 -Dalways_inline=unused\n')
    os.chmod(path, 0o755)
    return path
