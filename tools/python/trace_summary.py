"""The figures of `zero trace summary`. A step ends when the call zero_step returns on the caller's
stream; what it left to other streams overlaps the next. Names of figures are those of the JSON."""

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Sequence

from trace_read import Rank, Span
from trace_spans import Activity, Times, activity, covered

STEP = ("time_ns", "compute_ns", "exposed_ns", "exchange_ns", "exchange_hidden_ns", "disk_ns",
        "disk_hidden_ns")
UNIT = ("exposed_ns", "compute_ns", "gather_ns", "reduce_ns", "update_ns")
NOT_OF_UNITS = ("read", "write", "disk wait")

Figures = dict[str, int]


@dataclass
class Summary:
    ranks: list[Rank]
    steps: list[Figures]  # means over the ranks, but for the time, which is the longest's
    mean: Figures
    units: list[dict[str, Any]]  # those that are waited for longest first
    arrivals: list[Figures]  # of each rank
    collectives: int  # compared


# ---- steps ----


def _step_ends(rank: Rank) -> list[int]:
    return [s.end for s in rank.spans if s.track == rank.hooks and s.category == "step"]


def _common_steps(ranks: list[Rank]) -> int:
    """Steps of ranks are the same from the last one backwards: an earlier one may be overwritten.
    The first that is left in a ring that has lost some is not whole."""
    counts = ((len(_step_ends(rank)), rank.lost != 0) for rank in ranks)
    return min(count - (count != 0 and lost) for count, lost in counts)


def _step_times(rank: Rank, did: Activity, count: int) -> Times:
    """The rank's last steps, between the ends of calls."""
    ends = _step_ends(rank)
    return list(zip([did.waiting[0][0], *ends], ends))[-count:]


def _step(did: Activity, during: tuple[int, int]) -> Figures:
    exchange = covered(did.exchanges, during)
    disk = covered(did.transfers, during)
    return {"time_ns": during[1] - during[0], "compute_ns": covered(did.compute, during),
            "exposed_ns": covered(did.waiting, during), "exchange_ns": exchange,
            "exchange_hidden_ns": exchange - covered(did.exchanges_bare, during),
            "disk_ns": disk, "disk_hidden_ns": disk - covered(did.transfers_bare, during)}


def _mean(rows: Sequence[Figures]) -> Figures:
    return {name: sum(row[name] for row in rows) // max(len(rows), 1) for name in STEP}


# ---- units ----


def _is_of_unit(span: Span) -> bool:
    return span.of not in ("", "the step") and not span.category.startswith("micro")


def _term(span: Span, hook: bool) -> str | None:
    """What the span's time is of its unit."""
    if hook:
        return "exposed_ns"
    if span.group is not None:
        return "gather_ns" if span.category == "gather" else "reduce_ns"
    return "update_ns" if span.category == "update" else None


def _add_units(units: dict[str, Figures], rank: Rank, during: tuple[int, int]) -> None:
    """The spans that begin during the rank's counted steps; calls within a call are skipped."""

    def unit_of(span: Span) -> Figures:
        return units.setdefault(span.of, dict.fromkeys(UNIT, 0))

    last = None
    for span in rank.spans:
        hook = span.track == rank.hooks
        within = hook and last is not None and span.begin < last.end
        if within or not during[0] <= span.begin < during[1]:
            continue
        if hook:
            if last is not None and "acquire" in last.category and _is_of_unit(last):
                unit_of(last)["compute_ns"] += span.begin - last.end
            last = span
        if _is_of_unit(span) and span.category not in NOT_OF_UNITS:
            unit = unit_of(span)
            term = _term(span, hook)
            if term is not None:
                unit[term] += span.end - span.begin


def _bottleneck(unit: Figures) -> str:
    """The longest of what is done for a unit."""
    longest = max(UNIT[1:], key=lambda term: unit[term])
    return longest.removesuffix("_ns") if unit[longest] > 0 else "-"


def _finish_units(units: dict[str, Figures], by: int) -> list[dict[str, Any]]:
    """Means over steps and ranks."""
    rows = []
    for name, sums in units.items():
        unit = {term: time // by for term, time in sums.items()}
        rows.append({"name": name, **unit, "bottleneck": _bottleneck(unit)})
    return sorted(rows, key=lambda row: (-row["exposed_ns"], row["name"]))


# ---- collectives ----


def _list_comings(ranks: list[Rank]) -> list[tuple[tuple[str, int, int, int], int, int, int]]:
    """The collective, when a rank came to it, which, and how many are to come. Collectives between
    the parts of a model are of no part."""
    return sorted(((s.group, 0 if s.group == "mesh" else rank.part, s.leader, s.batch), s.begin, i,
                   s.ranks) for i, rank in enumerate(ranks) for s in rank.spans
                  if s.group is not None)


def _compare_arrivals(ranks: list[Rank]) -> tuple[list[Figures], int]:
    """Of collectives whose members are all there: to how many a rank came last, and how long the
    others waited for it then, in the mean of them."""
    arrivals = [{"last": 0, "others_waited_ns": 0} for _ in ranks]
    compared = 0
    for _, grouped in groupby(_list_comings(ranks), key=lambda coming: coming[0]):
        comings = list(grouped)
        if len(comings) > 1 and len(comings) == comings[0][3]:
            _, last, rank, _ = comings[-1]
            waited = sum(last - came for _, came, _, _ in comings)
            compared += 1
            arrivals[rank]["last"] += waited > 0
            arrivals[rank]["others_waited_ns"] += waited // (len(comings) - 1)
    return arrivals, compared


# ---- all of it ----


def summarize(ranks: list[Rank]) -> Summary:
    count = _common_steps(ranks)
    by_rank = []
    units: dict[str, Figures] = {}
    for rank in ranks if count else []:
        did = activity(rank)
        times = _step_times(rank, did, count)
        by_rank.append([_step(did, during) for during in times])
        _add_units(units, rank, (times[0][0], times[-1][1]))
    steps = [{**_mean(rows), "time_ns": max(0, *(row["time_ns"] for row in rows))}
             for rows in zip(*by_rank)]
    arrivals, compared = _compare_arrivals(ranks)
    return Summary(ranks, steps, _mean(steps), _finish_units(units, count * len(ranks)), arrivals,
                   compared)
