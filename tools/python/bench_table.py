"""The table of `zero bench`: the GPU, the picture of memory, one line a row, then what was left out
and why.

Usage: bench_table.py [COLUMNS of the terminal] < REPORT"""

from memory_text import picture
from output import Lines, Report, show

NUMBERS_WIDTH = 72  # behind metric and case: 46 columns and the range


def number(value: float) -> str:
    """Large numbers whole, small ones with four significant digits."""
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def gpu_lines(gpu: Report) -> Lines:
    yield (f"gpu: {gpu['name']}, {gpu['sm_count']:.0f} SMs, {gpu['memory_bytes'] / 2**30:.1f} GiB, "
           f"L2 {gpu['l2_bytes'] / 2**20:.0f} MiB, driver {gpu['driver']}, "
           f"runtime {gpu['runtime']}")
    yield (f"pinned copies in GB/s: {gpu['pinned_to_gpu_gb_per_s']:.1f} to the GPU, "
           f"{gpu['pinned_to_host_gb_per_s']:.1f} back, {gpu['pinned_both_gb_per_s']:.1f} both at "
           "once")


def width_of(rows: list[Report], key: str) -> int:
    return max(len(key), *(min(len(row[key]), 100) for row in rows))


def row_lines(rows: list[Report], columns: int) -> Lines:
    metric, case = width_of(rows, "metric"), width_of(rows, "case")
    # The numbers have a line of their own on terminals that are too narrow.
    narrow = 0 < columns < metric + case + NUMBERS_WIDTH
    metric, case, turn = (0, 0, "\n ") if narrow else (metric, case, "")
    yield (f"{'metric':<{metric}}  {'case':<{case}}{turn}  {'value':>12} {'unit':<5}  "
           f"{'reference':>12}  {'ratio':>6}  min..max")
    for row in rows:
        yield (f"{row['metric']:<{metric}}  {row['case']:<{case}}{turn}  "
               f"{number(row['value']):>12} {row['unit']:<5}  {number(row['reference']):>12}  "
               f"{row['ratio']:6.3f}  {number(row['min'])}..{number(row['max'])}")


def table(report: Report, columns: str = "0") -> Lines:
    rows = report["results"]
    if "gpu" in report["machine"]:
        yield from gpu_lines(report["machine"]["gpu"])
    if "memory" in report:
        yield from picture(report["memory"], report["scale"] == "full")
        rows = [row for row in rows if not row["metric"].startswith("memory_")]
    if rows:
        yield from row_lines(rows, int(columns))
    for entry in report["skipped"]:
        case = f", {entry['case']}" if entry["case"] is not None else ""
        yield f"skipped: {entry['metric']}{case}: {entry['reason']}"
    yield from (f"failed: {name}" for name in report["failed"])


def main(words: list[str]) -> int:
    return show(table, words)
