#!/usr/bin/env python3
"""Style rules as tests. Usage: tidy.py ROOT [part of a check's name]

Each check first proves itself on made-up trees (fixtures.py): it must stay silent on the clean ones
and fire on every other one. Then it reads the repository."""

import sys

from fixtures import FIXTURES
from rules import CHECKS, Skipped
from source_tree import SourceTree, read_tree

SHOWN_MAX = 20


def prove(check):
    """Complaints about the check itself."""
    clean, bad = FIXTURES[check.__name__]
    for number, texts in enumerate(clean):
        for path, line, what in check(SourceTree(texts)):
            yield f"fires on clean fixture {number}: {path}:{line}: {what}"
    for number, texts in enumerate(bad):
        if not list(check(SourceTree(texts))):
            yield f"is silent on bad fixture {number}: {texts}"


def main():
    root = sys.argv[1]
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    tree = read_tree(root)
    counts = {"ok": 0, "FAILED": 0, "skip": 0}
    for check in CHECKS:
        name = check.__name__
        if wanted not in name:
            continue
        for label, run in (("proves itself", prove), ("repository", None)):
            try:
                found = list(run(check)) if run else [f"{p}:{n}: {w}" for p, n, w in check(tree)]
                verdict = "FAILED" if found else "ok"
            except Skipped as reason:
                found, verdict = [f"skipped: {reason}"], "skip"
            counts[verdict] += 1
            print(f"{verdict:8}{name}, {label}")
            for line in found[:SHOWN_MAX]:
                print(f"  {line}")
            if len(found) > SHOWN_MAX:
                print(f"  and {len(found) - SHOWN_MAX} more")
    if not any(counts.values()):
        print(f'FAILED  no check has "{wanted}" in its name')
        counts["FAILED"] += 1
    if not tree.texts:
        print(f"FAILED  no file under {root}")
        counts["FAILED"] += 1
    print(f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['skip']} skipped")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
