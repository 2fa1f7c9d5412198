#!/usr/bin/env python3
"""Intervals of scripts/spread.py hold as many runs of a new source as they say, whatever sources
differ in.

Usage: test_spread.py FOLDER_OF_SCRIPTS"""

import math
import random
import statistics
import sys

sys.path.insert(0, sys.argv[1])
import spread  # noqa: E402

TRIALS = 100
counts = {True: 0, False: 0}


def check(name, holds, detail):
    counts[bool(holds)] += 1
    print(f"{'ok' if holds else 'FAILED':8}{name}{'' if holds else ': ' + str(detail)}")


def draw(rng, source, between, within):
    """Runs of a source, which has a bias of its own."""
    bias = rng.gauss(0.1, between)
    return [(source, bias + rng.gauss(0, within)) for _ in range(rng.choice((1, 2, 8, 20)))]


def coverage(sources, between, within):
    """Of the runs of a source that no interval was made of, and how wide intervals are."""
    rng = random.Random(1)
    held, widths = [], []
    for _ in range(TRIALS):
        rows = [row for i in range(sources) for row in draw(rng, str(i), between, within)]
        low, high = spread.interval(rows)
        own = [low <= 100 * math.exp(error) <= high for _, error in draw(rng, "", between, within)]
        held.append(sum(own) / len(own))
        widths.append(high - low)
    return statistics.mean(held), statistics.median(widths)


def main():
    for sources in (4, 6, 12):
        for between, within in ((0.3, 0.02), (0.05, 0.2)):
            share, _ = coverage(sources, between, within)
            check(f"{sources} sources that differ by {between}, runs by {within}: {share:.2f}",
                  0.78 < share < 0.99, share)
    same = [("a", 0.01 * i) for i in range(100)]
    rows = [*same, ("b", -0.5), ("c", 0.2), ("d", 0.3), ("e", 0.8)]
    many = [*(pair for pair in same for _ in range(5)), *rows[100:]]
    check("the number of a source's runs is no weight", spread.interval(rows) ==
          spread.interval(many), (spread.interval(rows), spread.interval(many)))
    few = coverage(5, 0.3, 0.02)[1], coverage(20, 0.3, 0.02)[1]
    check("few sources make it wider", few[0] > 1.2 * few[1], few)
    none = spread.missing([("a", 0.0), ("b", 0.1), ("c", 0.2)])
    check("three sources are too few for one", math.isinf(none), none)
    kinds = [spread.kind_of(*words) for words in (("--fused", "3"), ("", "3"),
                                                  ("--fused", "3, all host"))]
    check("kinds follow from a line", kinds == list(spread.KINDS), kinds)
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
