"""How far runs are from what is planned: intervals made of the errors of tuned sources alone.

An error is the logarithm of measured over planned. Errors of one source are alike, because its
trainer, its machine and whoever configured them are. So a run of a stranger is one of another
source, and what counts is how sources differ: each has the same weight, however many runs it has.

The interval of a kind of runs is from the 10 % to the 90 % quantile of the errors, widened alike at
both ends by what leaving out each source in turn says is missing: the error of each of its runs
beyond the quantiles of the other sources. Of these the 80 % quantile is taken, with a source that
was not seen as one more, of errors without limit (conformalised quantiles, Romano et al., 2019;
weights of groups, Lee et al., "Distribution-free inference with hierarchical data", 2023)."""

import collections
import math

COVERAGE = 0.8
# Kinds of runs, as `zero plan` tells them apart (src/plan/spread.c).
KINDS = ("fused", "not fused", "offloaded")


def kind_of(words, stage):
    """words: those of the line of `zero plan`."""
    if "host" in stage or "disk" in stage:
        return "offloaded"
    return "fused" if "--fused" in words else "not fused"


def weighted(rows):
    """(error, weight) of each row: sources weigh alike, together 1."""
    runs = collections.Counter(source for source, _ in rows)
    return [(error, 1 / runs[source] / len(runs)) for source, error in rows]


def quantile(pairs, share):
    """The least value up to which the weights come to `share`; infinite where they never do."""
    total = 0.0
    for value, weight in sorted(pairs):
        total += weight
        if total > share - 1e-9:
            return value
    return math.inf


def ends(rows):
    """The quantiles between which COVERAGE of the weight lies."""
    tail = (1 - COVERAGE) / 2
    pairs = weighted(rows)
    return (-quantile([(-value, weight) for value, weight in pairs], 1 - tail),
            quantile(pairs, 1 - tail))


def missing(rows):
    """By how much quantiles that were made without a source have to be widened."""
    sources = sorted({source for source, _ in rows})
    pairs = []
    for left_out in sources:
        own = [error for source, error in rows if source == left_out]
        low, high = ends([row for row in rows if row[0] != left_out])
        pairs += [(max(low - error, error - high), 1 / len(own) / (len(sources) + 1))
                  for error in own]
    return quantile(pairs, COVERAGE)


def percents(low, high):
    """Of what is planned, in whole percent, outwards."""
    return math.floor(100 * math.exp(low) + 1e-9), math.ceil(100 * math.exp(high) - 1e-9)


def interval(rows):
    """(low, high) in percent of what is planned, for (source, error) pairs."""
    more = missing(rows)
    low, high = ends(rows)
    return percents(low - more, high + more)


def range_of(rows):
    """Likewise of too few sources to leave one out: as their runs spread, for no other source."""
    return percents(*ends(rows))
