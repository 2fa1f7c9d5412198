"""The table of `zero io`: the way to the directories, every setting beside fio, and the recommended
one."""

from output import GIB, Lines, Report, show


def rate_lines(directories: list[Report]) -> Lines:
    for directory in directories:
        shared = (f"; a part of what its disk gives {directory['sharers']} of them"
                  if directory["sharers"] > 1 else "")
        yield (f"directory {directory['name']}: {directory['mb_per_s']} MB/s, as many bytes each "
               f"way{shared}")
    weights = ", ".join(str(directory["mb_per_s"]) for directory in directories)
    yield (f"as options of an engine: disk_weights {{{weights}}}, which it finds itself where they "
           "are NULL")
    yield ""


def fact_lines(io: Report) -> Lines:
    directories = io["directories"]
    names = ", ".join(directory["name"] for directory in directories)
    cut = "" if io["filled"] else " (there was no time to fill more)"
    yield (f"director{'ies' if len(directories) > 1 else 'y'}: {names}, {io['bytes'] / GIB:.2f} "
           f"GiB in use{cut}")
    yield f"I/O backend: {io['backend']}" + (f" ({io['flags']})" if io["flags"] else "")
    if io["refusals"]:
        yield f"refused: {io['refusals']}"
    for directory in directories:
        if directory["note"]:
            yield f"note: {directory['name']}: {directory['note']}"
    if not io["direct"]:
        yield "note: O_DIRECT is not in effect; the page cache is emptied before each"
        yield "measurement and what was written is flushed within it"
    if io["in_memory"]:
        yield "note: this file system is in memory; these are no figures of a disk"


def sample_text(sample: Report | None) -> str:
    if sample is None:
        return f"  {'-':>6} {'-':>6}"
    return f"  {1.0 / sample['seconds']:6.2f} {sample['cpu_ms']:6.1f}"


def grid_lines(grid: list[Report]) -> Lines:
    yield ""
    yield (f"{'mix':<7} {'segment':>9} {'depth':>5}  {'GB/s':>6} {'ms/GB':>6}  {'fio':>6} "
           f"{'ms/GB':>6}  {'ratio':>6}")
    for row in grid:
        ours, fio = row["ours"], row["fio"]
        ratio = f"  {fio['seconds'] / ours['seconds']:6.2f}" if fio else ""
        yield (f"{row['mix']:<7} {row['segment_bytes'] >> 10:>5} KiB {row['depth']:>5}"
               f"{sample_text(ours)}{sample_text(fio)}{ratio}")
    missing = "" if grid[0]["fio"] else "; fio was not measured at every setting"
    yield f"(ms/GB: CPU time{missing})"


def recommended_lines(io: Report) -> Lines:
    setting = io["recommended"]
    each = " for each directory" if len(io["directories"]) > 1 else ""
    yield ""
    yield (f"recommended: segments of {setting['segment_bytes'] >> 10} KiB, {setting['depth']} in "
           f"flight{each}")
    yield (f"as options of an engine: io_depth {setting['depth']}, extent_bytes "
           f"{setting['extent_bytes']}, io_window {setting['io_window']}")


def peer_lines(rows: list[Report]) -> Lines:
    for row in rows:
        if row["metric"] == "storage_vs_fio":
            yield (f"  {row['case']}: {1e3 / row['value']:.2f} GB/s, fio "
                   f"{1e3 / row['reference']:.2f}, ratio {row['ratio']:.3f} (medians of "
                   f"{row['repetitions']})")
        elif row["metric"] == "storage_cpu_ms_per_gb":
            yield (f"  {row['case']}: {row['value']:.1f} CPU-ms per GB, fio "
                   f"{row['reference']:.1f}")


def table(report: Report, _: str) -> Lines:
    io = report["io"]
    if io["directories"][0]["mb_per_s"] is not None:
        yield from rate_lines(io["directories"])
    yield from fact_lines(io)
    yield from grid_lines(io["grid"])
    yield from recommended_lines(io)
    yield from peer_lines(report["results"])
    yield from (f"skipped: {entry['metric']}: {entry['reason']}" for entry in report["skipped"])


def main(words: list[str]) -> int:
    return show(table, words)
