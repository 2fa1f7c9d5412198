"""The table of `zero sim`: how long a step takes, what it waits for, what each link carries, and
what a rank's memory holds."""

from output import GB, Lines, Report, percent, show


def time_line(name: str, ns: int, whole: int) -> str:
    return f"{name:<20} {ns / 1e9:12.6f} {percent(ns, whole):6.1f} %"


def link_lines(report: Report) -> Lines:
    yield f"{'link of a rank':<20} {'GB a step':>12} {'busy s':>12} {'busy':>8}"
    for link, size in report["link_bytes"].items():
        busy = report["link_busy_ns"][link]
        yield (f"  {link:<18} {size / GB:12.3f} {busy / 1e9:12.6f} "
               f"{percent(busy, report['step_ns']):6.1f} %")


def memory_lines(report: Report) -> Lines:
    """What the engine takes, beside what a rank needs with activations and reserves, and has."""
    columns = {"engine's": "peak_bytes", "planned": "planned_bytes", "it needs": "need_bytes",
               "it has": "have_bytes"}
    yield f"{'memory of a rank, GB':<20}" + "".join(f" {name:>12}" for name in columns)
    for tier in report["peak_bytes"]:
        sizes = [report[key][tier] / GB for key in columns.values()]
        yield f"  {tier:<18}" + "".join(f" {size:12.3f}" for size in sizes)


def miss_lines(report: Report) -> Lines:
    """That it does not fit comes first: the times are those of a machine that has more."""
    lacks = [f"{(need - report['have_bytes'][tier]) / GB:.3f} GB of the {tier}"
             for tier, need in report["need_bytes"].items() if need > report["have_bytes"][tier]]
    if not report["fits"]:
        yield f"It does not fit: a rank lacks {', '.join(lacks)}. All times below"
        yield "are those of a machine with that much more; `zero plan` says what fits."


def table(report: Report) -> Lines:
    step = report["step_ns"]
    yield (f"{report['model']} on {report['nodes']} x {report['ranks_per_node']} ranks of "
           f"{report['cluster']}")
    yield from miss_lines(report)
    yield ""
    yield f"a step     {step / 1e9:12.6f} s"
    yield f"tokens/s   {report['tokens_per_s']:12.6g} of all ranks"
    yield (f"TFLOP/s    {report['flops_per_s'] / 1e12:12.1f} of a rank, without what is "
           "recomputed")
    yield ""
    yield f"{'what takes it':<20} {'s':>12} {'of it':>8}"
    yield time_line("compute", report["compute_ns"], step)
    for cause, ns in report["wait_ns"].items():
        yield time_line(f"  wait: {cause:<12}", ns, step)
    yield ""
    yield from link_lines(report)
    yield ""
    yield from memory_lines(report)


def main(words: list[str]) -> int:
    return show(table, words)
