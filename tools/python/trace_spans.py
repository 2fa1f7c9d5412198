"""Sets of times: lists of (begin, end) that are disjoint and ascending."""

from bisect import bisect_right
from typing import Iterable, NamedTuple

from trace_read import Rank

Times = list[tuple[int, int]]


def unite(times: Iterable[tuple[int, int]]) -> Times:
    united: Times = []
    for begin, end in sorted(times):
        if united and begin <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((begin, end))
    return united


def subtract(times: Times, cuts: Times) -> Times:
    """What the cuts leave."""
    left: Times = []
    first = 0
    for begin, end in times:
        while first < len(cuts) and cuts[first][1] <= begin:
            first += 1
        for cut in range(first, len(cuts)):
            cut_begin, cut_end = cuts[cut]
            if cut_begin >= end:
                break
            if cut_begin > begin:
                left.append((begin, cut_begin))
            begin = max(begin, cut_end)
        if begin < end:
            left.append((begin, end))
    return left


def covered(times: Times, during: tuple[int, int]) -> int:
    """How much of a time they are."""
    first, last = during
    total = 0
    for i in range(bisect_right(times, first, key=lambda time: time[1]), len(times)):
        begin, end = times[i]
        if begin >= last:
            break
        total += min(end, last) - max(begin, first)
    return total


class Activity(NamedTuple):
    """What a rank did when."""

    waiting: Times  # the caller's stream is in a call of the library
    compute: Times  # it is not, between the first call and the last
    exchanges: Times
    exchanges_bare: Times  # not hidden behind compute, or an update that does not wait for its disk
    transfers: Times
    transfers_bare: Times


def activity(rank: Rank) -> Activity:
    def of(*categories: str) -> Times:
        return unite((s.begin, s.end) for s in rank.spans if s.category in categories)

    waiting = unite((s.begin, s.end) for s in rank.spans if s.track == rank.hooks)
    compute = subtract([(waiting[0][0], waiting[-1][1])], waiting) if waiting else []
    busy = unite(compute + subtract(of("update"), of("disk wait")))
    exchanges = unite((s.begin, s.end) for s in rank.spans if s.group is not None)
    transfers = of("read", "write")
    return Activity(waiting, compute, exchanges, subtract(exchanges, busy), transfers,
                    subtract(transfers, busy))
