#!/usr/bin/env python3
"""Compares two reports of `zero bench --json`, or prints what all of a directory say over time.

Usage: compare_results.py BEFORE AFTER
       compare_results.py --page DIRECTORY [--check FILE]

A ratio is reference / value, above 1 better than the reference, both measured in one run, so it
says more of two runs than their times do. A row has moved where the ranges of the two ratios, from
the smallest to the largest value measured, have nothing in common, and the ratios differ by half a
percent. --page prints a page of the rows that several reports of one processor have; with --check
it is compared with FILE. Exit status: 0; 1 where a row is worse, or FILE differs; 2 where a report
cannot be read."""

import argparse
import json
import sys
from pathlib import Path
from typing import Iterator, NamedTuple, Optional


class Row(NamedTuple):
    value: float
    unit: str
    ratio: float
    low: float  # of the ratio
    high: float


class Results(NamedTuple):
    name: str
    machine: str
    date: str
    rows: dict[tuple[str, str], Row]


def row_of(entry: dict) -> Row:
    ratio, value = entry["ratio"], entry["value"]
    reference = ratio * value
    ends = [reference / entry[end] if entry[end] else ratio for end in ("max", "min")]
    return Row(value, entry["unit"], ratio, min(ends), max(ends))


def read_results(path: Path) -> Optional[Results]:
    """None where it is JSON of another kind."""
    report = json.loads(path.read_text(encoding="utf-8"))
    machine = report.get("machine")
    if not isinstance(machine, dict) or "results" not in report:
        return None
    model = f", model {machine['cpu_model']}" if "cpu_model" in machine else ""
    rows = {(entry["metric"], entry["case"]): row_of(entry) for entry in report["results"]}
    return Results(path.name, f"{machine['cpu']}{model}, {machine['cores']} cores",
                   report.get("date", path.name)[:10], rows)


def moved(before: Row, after: Row) -> str:
    if abs(after.ratio - before.ratio) < 0.005 * before.ratio:
        return ""
    if after.low > before.high:
        return "better"
    return "worse" if after.high < before.low else ""


def compared(before: Results, after: Results) -> Iterator[tuple[str, str, Row, Row, str]]:
    for key, row in after.rows.items():
        if key in before.rows:
            yield (*key, before.rows[key], row, moved(before.rows[key], row))


def print_comparison(before: Results, after: Results) -> int:
    rows = list(compared(before, after))
    width = max([len(case) for _, case, *_ in rows] or [4])
    if before.machine != after.machine:
        print(f"Of two machines: {before.machine}; {after.machine}. Ratios alone compare.")
    for metric, case, old, new, word in rows:
        print(f"{metric:28} {case:{width}} {old.ratio:7.3f} ({old.low:.3f}..{old.high:.3f}) -> "
              f"{new.ratio:7.3f} ({new.low:.3f}..{new.high:.3f}) {word}".rstrip())
    words = [row[-1] for row in rows]
    print(f"{len(rows)} rows in both: {words.count('better')} better, "
          f"{words.count('worse')} worse, {words.count('')} within what was measured; "
          f"{len(before.rows) - len(rows)} only before, {len(after.rows) - len(rows)} only after")
    return 1 if "worse" in words else 0


def page(directory: Path) -> str:
    """By processor the rows that at least two days have; of a day the last report counts."""
    days: dict[tuple[str, str, str], dict[str, Row]] = {}
    for path in sorted(directory.glob("*.json")):
        results = read_results(path)
        for key, row in results.rows.items() if results else ():
            days.setdefault((results.machine, *key), {})[results.date] = row
    lines = [
        "# Ratios over time", "",
        "*For those who ask whether a figure has moved. Reference.*",
        "`scripts/compare_results.py --page bench/results` made this page of the reports in",
        "[results](results): a row that one processor has of several days, the ratio (above 1 is",
        "better than the reference of the same run) with its range. The name of a processor is",
        "what its machine says.", ""]
    last = ""
    for (machine, metric, case), by_date in sorted(days.items()):
        if len(by_date) < 2:
            continue
        if machine != last:
            lines += ["", f"## {machine}", "", "| metric | case | ratios |", "|---|---|---|"]
            last = machine
        ratios = "; ".join(f"{date}: {row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})"
                           for date, row in sorted(by_date.items()))
        lines.append(f"| `{metric}` | {case} | {ratios} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="DIRECTORY")
    parser.add_argument("--check", type=Path, metavar="FILE")
    given = parser.parse_args()
    if (given.page is None) != (len(given.files) == 2):
        parser.error("give two reports, or --page and a directory of them")
    try:
        if given.page is None:
            read = [read_results(path) for path in given.files]
            for path, results in zip(given.files, read):
                if results is None:
                    raise ValueError(f"{path} is no report of zero bench --json")
            return print_comparison(*read)
        text = page(given.page)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"compare_results.py: {error}", file=sys.stderr)
        return 2
    if given.check is None:
        print(text, end="")
        return 0
    same = given.check.read_text(encoding="utf-8") == text
    if not same:
        print(f"compare_results.py: {given.check} is not what --page {given.page} prints; write it "
              "anew", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
