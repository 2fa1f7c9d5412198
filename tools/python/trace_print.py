"""What `zero trace summary` prints: tables of at most 80 columns, and JSON."""

from typing import Any

from trace_json import printable
from trace_summary import Figures, Summary

# Rows of a table; the JSON has them all.
STEPS_SHOWN = 10
UNITS_SHOWN = 12
RANKS_SHOWN = 16


def _share(part: int, of: int) -> str:
    return f"{100.0 * part / of:3.0f} %" if of > 0 else "-"


def _print_step(name: str, step: Figures) -> None:
    time, exchange, disk = step["time_ns"], step["exchange_ns"], step["disk_ns"]
    print(f"{name:<8} {time / 1e6:9.2f} {_share(step['compute_ns'], time):>8} "
          f"{step['exposed_ns'] / 1e6:10.2f} {exchange / 1e6:10.2f} "
          f"{_share(step['exchange_hidden_ns'], exchange):>7} {disk / 1e6:9.2f} "
          f"{_share(step['disk_hidden_ns'], disk):>7}")


def _print_steps(summary: Summary) -> None:
    print(f"{'step':<8} {'ms':>9} {'compute':>8} {'exposed':>10} {'exchange':>10} {'hidden':>7} "
          f"{'disk':>9} {'hidden':>7}")
    steps = list(enumerate(summary.steps, start=1))
    for number, step in steps[-STEPS_SHOWN:]:
        _print_step(str(number), step)
    if len(steps) > 1:
        _print_step("mean", summary.mean)


def _print_units(units: list[dict[str, Any]]) -> None:
    if not units:
        return
    print(f"\n{'unit, ms a step':<20} {'exposed':>9} {'compute':>9} {'gather':>9} {'reduce':>9} "
          f"{'update':>9} {'longest':>8}")
    for unit in units[:UNITS_SHOWN]:
        times = " ".join(f"{time / 1e6:9.2f}" for time in unit.values() if isinstance(time, int))
        print(f"{printable(unit['name']):<20.20} {times} {unit['bottleneck']:>8}")
    if len(units) > UNITS_SHOWN:
        print(f"and {len(units) - UNITS_SHOWN} more that were waited for less")


def _print_ranks(summary: Summary) -> None:
    print(f"\n{'rank':<6} {'last at':>18} {'others waited, ms':>22} {'clock +- us':>14} "
          f"{'lost':>9}")
    for rank, arrival in list(zip(summary.ranks, summary.arrivals))[:RANKS_SHOWN]:
        last = f"{arrival['last']} of {summary.collectives}"
        print(f"{rank.process:<6} {last:>18} {arrival['others_waited_ns'] / 1e6:22.2f} "
              f"{rank.error / 1e3:14.1f} {rank.lost:9}")
    if len(summary.ranks) > RANKS_SHOWN:
        print(f"and {len(summary.ranks) - RANKS_SHOWN} more ranks; --json has them")


def print_summary(summary: Summary) -> None:
    first = summary.ranks[0]
    print(f"{len(summary.ranks)} of {first.world * first.parts} ranks, {len(summary.steps)} whole "
          "steps\n")
    if summary.steps:
        _print_steps(summary)
        _print_units(summary.units)
    _print_ranks(summary)


def as_json(summary: Summary) -> dict[str, Any]:
    ranks = [{"rank": rank.rank, "part": rank.part, **arrival, "clock_offset_ns": rank.offset,
              "clock_error_ns": rank.error, "lost": rank.lost}
             for rank, arrival in zip(summary.ranks, summary.arrivals)]
    return {"steps": summary.steps, "mean": summary.mean, "units": summary.units, "ranks": ranks,
            "collectives": summary.collectives}
