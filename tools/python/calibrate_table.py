"""The table of `zero bench calibrate`: median and quartiles of each field of a cluster."""

from output import Lines, Report, plural, show

# By the end of a field's name, how its values are printed.
UNITS = {"_per_s": (" GB/s", 1e9), "_ns": (" us", 1e3), "_bytes": (" GiB", float(1 << 30)),
         "_flops": (" GFLOP/s", 1e9), "": ("", 1.0)}
ON_CPUS = (" Ranks compute on CPUs: products are in fp32",
           "by OpenBLAS, a GPU's memory is a rank's part of the node's, and its",
           "host link is a copy within it.")


def field_lines(field: Report) -> Lines:
    if field["missing"] is not None:
        yield f"{field['name']:<24} {field['missing']}"
    if field["samples"]:
        unit, size = next(UNITS[end] for end in UNITS if field["name"].endswith(end))
        low, median, high = (value / size for value in field["quartiles"])
        spread = f"{low:12.3f} {high:12.3f}" if field["samples"] > 1 else f"{'-':>12} {'-':>12}"
        yield f"{field['name']:<24} {median:12.3f} {spread}{unit}"


def table(report: Report) -> Lines:
    yield f"{'field':<24} {'median':>12} {'quartile':>12} {'quartile':>12}"
    for field in report["fields"]:
        yield from field_lines(field)
    ranks = report["ranks"]
    yield ""
    yield (f"Medians of {report['repetitions']} samples, of {ranks} rank{plural(ranks)} at the "
           "same time. The fabric, which needs a")
    first, *rest = ("",) if report["gpus"] else ON_CPUS
    yield f"second node, is left out.{first}"
    yield from rest


def main(words: list[str]) -> int:
    return show(table, words)
