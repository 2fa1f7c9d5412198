"""The table of `zero plan`: every mix of stage and tiers, with a bar for the device's memory, the
time of a step, and the first mix that fits."""

from output import GIB, Lines, Report, plural, show
from plan_search import run_lines, search_lines, wrapped
from plan_text import (find_recommended, kept_text, left_out_lines, mesh_lines, offloaded,
                       option_lines, trainer_text)

BAR = 12
TIERS = ("device", "host", "disk")


def count_text(count: float) -> str:
    """124 M, 1.01 T: three digits."""
    units = iter(" KMBT")
    unit = next(units)
    while count >= 999.5 and unit != "T":
        count, unit = count / 1000, next(units)
    digits = 0 if unit == " " or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {unit}"


def gib_text(size: int) -> str:
    """GiB in seven columns."""
    value = size / GIB
    return f"{value:7.{0 if value >= 999.95 else 1 if value >= 9.995 else 2}f}"


def bar_text(need: int, have: int) -> str:
    """'#' for each twelfth of what the rank has; what it lacks ends in '>'."""
    full = BAR if need >= have else int(need / have * BAR + 0.5)
    bar = ("#" * full).ljust(BAR, ".")
    return bar[:-1] + ">" if need > have else bar


def verdict(mix: Report) -> str:
    """"fits", or what the rank lacks most of, by its share."""
    need, have = mix["need_bytes"], mix["have_bytes"]
    lacks = {tier: need[tier] / (have[tier] + 1) for tier in TIERS if need[tier] > have[tier]}
    worst = max(lacks, key=lacks.__getitem__, default=None)
    if mix["fits"] or worst is None or lacks[worst] <= 1:
        return "fits" if mix["fits"] else "no"
    return f"{worst} +{gib_text(need[worst] - have[worst]).strip()}"


def head_lines(report: Report) -> Lines:
    cluster, ranks = report["cluster"], report["ranks"]
    line = f"{report['model']}: {count_text(report['parameters'])} parameters"
    if report["parameters_used"] != report["parameters"]:
        line += f", {count_text(report['parameters_used'])} used by a token"
    yield f"{line}, {report['dtype']}, {report['layers']} layers of width {report['width']}"
    for left_out in left_out_lines(report):
        yield from wrapped(left_out, "")
    yield (f"{report['cluster_name']}: {ranks} rank{plural(ranks)}, {cluster['nodes']} "
           f"node{plural(cluster['nodes'])} of {cluster['ranks_per_node']}")
    yield from mesh_lines(report)
    if report["mixes"]:
        yield (f"batch of a rank: {report['samples']} x {report['sequence']} tokens, activations "
               f"{kept_text(report)}: {report['mixes'][0]['activation_bytes'] / GIB:.2f} GiB")
        if trainer_text(report):
            yield f"trainer: {trainer_text(report)}"
        yield ""


def mix_line(mix: Report, layers_max: int) -> str:
    device, host, disk = (gib_text(mix["need_bytes"][tier]) for tier in TIERS)
    bar = bar_text(mix["need_bytes"]["device"], mix["have_bytes"]["device"])
    largest = count_text(mix["deepest_parameters"]) if mix["deepest_parameters"] else "-"
    more = "+" if mix["deepest_layers"] == layers_max else ""
    return f"{mix['name']:<20}{device} {bar} {host} {disk} {verdict(mix):<14}{largest:>6}{more}"


def memory_lines(report: Report) -> Lines:
    device, host, disk = (gib_text(report["mixes"][0]["have_bytes"][tier]) for tier in TIERS)
    yield (f"{'GiB of a rank; stage':<20}{'device':>7} {'':<12} {'host':>7} {'disk':>7} {'':<13}"
           f"{'deepest':>7}")
    yield f"{'it has':<20}{device} {'':<12} {host} {disk}"
    for mix in report["mixes"]:
        yield mix_line(mix, report["layers_max"])
    yield ""
    yield (f"Device counts activations and {report['cluster']['device_reserve_bytes'] / GIB:.1f} "
           "GiB of CUDA, NCCL and cuBLAS. Deepest: the")
    yield (f"parameters of this width with as many layers as fit (+: {report['layers_max']}, or "
           "more).")


def time_line(mix: Report) -> str:
    time = mix["time"]
    expected, low, high = (time[f"{key}_ns"] / 1e9
                           for key in ("expected", "likely_low", "likely_high"))
    share = 100.0 * time["term_ns"][time["bound"]] / time["high_ns"]
    return (f"{mix['name']:<20}{expected:9.4g} {low:10.4g} {high:10.4g} "
            f"{time['flops'] / (expected * 1e12):9.3g}  {time['bound']}, {share:.0f} %")


def time_lines(report: Report) -> Lines:
    yield ""
    if report["untimed"]:
        yield f"No time of a step: {report['untimed']}"
        return
    yield (f"{'Seconds; stage':<20}{'expected':>9} {'80 % from':>10} {'to':>10} "
           f"{'TFLOP/s':>9}  most of it")
    yield from (time_line(mix) for mix in report["mixes"])
    yield ""
    yield "Expected: rates as the cluster's permilles say, links beside compute at a cost."
    yield "80 %: where so many runs of any trainer are, as published ones differ; nearer"
    yield "with --fused, far away where something is offloaded. TFLOP/s of a GPU, without"
    yield "what is recomputed, in the time that is expected;"
    yield (f"a step has {report['micro_steps']} micro-step{plural(report['micro_steps'])} and "
           f"{report['mixes'][0]['time']['tokens']:.4g} tokens of all ranks.")


def word_lines(report: Report, mix: Report) -> Lines:
    """The options as words of a command line, which `zero sim` and others read."""
    yield from ("", "The same for `zero sim`:", "")
    group = f" --set shard_group={mix['shard_group']}" if mix["shard_group"] else ""
    yield f"  --set stage={mix['stage']}{group}"
    tiers = [f"{role}={tier}" for role, tier in offloaded(mix).items()]
    if tiers:
        yield f"  --set tier={','.join(tiers)}"
    for setting in report["settings"]:
        yield "  --set {name}={value}".format_map(setting)


def role_lines(mix: Report) -> Lines:
    yield from ("", "Its bytes on a rank, in GiB:", "")
    tiers = offloaded(mix)
    for role, size in mix["role_bytes"].items():
        if size:
            yield f"  {role:<12} {gib_text(size)}{' on ' + tiers[role] if role in tiers else ''}"
    yield f"  {'activations':<12} {gib_text(mix['activation_bytes'])}"
    likely = (gib_text(mix["likely_device_bytes"][end]).strip() for end in ("low", "high"))
    yield f"  {'device':<12} {gib_text(mix['need_bytes']['device'])} in all, with its reserve"
    yield f"  {'':<12} {' to '.join(likely)} for 8 of 10 runs of two trainers on PyTorch"


def term_lines(mix: Report) -> Lines:
    yield from ("", "Its step, in seconds, if nothing overlaps:", "")
    for term, ns in mix["time"]["term_ns"].items():
        if ns:
            share = 100.0 * ns / mix["time"]["high_ns"]
            bar = "" if share < 1.25 else " " + "#" * int(share / 2.5 + 0.5)
            yield f"  {term:<12} {ns / 1e9:9.4g} {share:3.0f} %{bar}"
    saved = mix["time"]["high_ns"] - mix["time"]["expected_ns"]
    if saved:
        yield (f"  {'overlap':<12} {-saved / 1e9:9.4g} "
               f"{-100.0 * saved / mix['time']['high_ns']:3.0f} %")
    yield (f"  {'at least':<12} {mix['time']['low_ns'] / 1e9:9.4g}: full rates, everything "
           "overlaps")


def table(report: Report) -> Lines:
    yield from head_lines(report)
    if not report["mixes"]:
        yield from search_lines(report)
        return
    yield from memory_lines(report)
    yield from time_lines(report)
    mix = find_recommended(report)
    if mix is None:
        yield from search_lines(report)
        return
    yield from ("", "The first that fits, as options of the engine:", "")
    yield from option_lines(report, mix)
    if report["mesh"]["engine_ranks"] == report["ranks"]:  # it simulates no mesh
        yield from word_lines(report, mix)
    yield from role_lines(mix)
    if not report["untimed"]:
        yield from term_lines(mix)
    if mix["run"]:
        yield from ("", "Its run:", "", *run_lines(report, mix["run"], "  "))


def main(words: list[str]) -> int:
    return show(table, words)
