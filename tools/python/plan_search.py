"""The plans that a search of `zero plan` found, or what the nearest lacks; and a run's costs."""

import textwrap

from output import GIB, Lines, Report, plural
from plan_text import mesh_lines, offloaded, option_lines

TIERS = ("device", "host", "disk")
MASTERS = {"": "fp32 masters", "f32": "fp32 masters", "none": "no masters, parameters rounded",
           "remainder16": "16-bit remainders of masters, exact",
           "remainder8": "8-bit remainders of masters, rounded"}
MOMENTS = {"": "fp32 moments", "f32": "fp32 moments", "bf16": "bf16 moments, rounded",
           "i8": "8-bit moments, rounded"}
# Options that an axis of the search sets, whatever the line says.
AXES = ("stage", "shard_group", "tier")


def settings_of(report: Report, plan: Report) -> list[dict[str, str]]:
    """Options beside stage and tiers: those that the line sets, and those that were chosen."""
    names = {setting["name"].replace("-", "_") for setting in report["settings"]}
    given = [setting for setting in report["settings"]
             if setting["name"].replace("-", "_") not in AXES + tuple(plan["chosen"])]
    chosen = [{"name": name, "value": value or "default"} for name, value in plan["chosen"].items()
              if value or name in names]
    return given + chosen


def word_list(report: Report, plan: Report) -> list[str]:
    """The plan as words of a line of `zero plan --search`."""
    mesh = plan["mesh"]
    numbers = {"--tensor": mesh["tensor"], "--pipeline": mesh["pipeline"],
               "--interleave": mesh["interleave"], "--context": mesh["context"],
               "--samples": plan["samples"], "--micro-steps": plan["micro_steps"]}
    words = [f"{name} {number}" for name, number in numbers.items() if number != 1]
    words += ["--sequence-parallel"] if mesh["sequence_parallel"] else []
    words += ["--recompute"] if plan["recompute"] else []
    words += ["--recompute-selective"] if plan["recompute_selective"] else []
    words += [f"--units {plan['units']}"] if plan["units"] != "blocks" else []
    words.append(f"--set stage={plan['stage']}")
    words += [f"--set shard_group={plan['shard_group']}"] if plan["shard_group"] else []
    tiers = ",".join(f"{role}={tier}" for role, tier in offloaded(plan).items())
    words += [f"--set tier={tiers}"] if tiers else []
    return words + ["--set {name}={value}".format_map(setting)
                    for setting in settings_of(report, plan)]


def wrapped(text: str, indent: str) -> Lines:
    return textwrap.wrap(text, 79, initial_indent=indent, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def flag_lines(report: Report, plan: Report, indent: str) -> Lines:
    """Words in lines; none is parted from its value."""
    glue = "\0"
    text = " ".join(word.replace(" ", glue) for word in word_list(report, plan))
    yield from (line.replace(glue, " ") for line in wrapped(text, indent))


def room_text(plan: Report) -> str:
    """"device 70.1 of 80.0 (9.9 left)" for each tier that is needed."""
    rooms = []
    for tier in TIERS:
        need, have = plan["need_bytes"][tier] / GIB, plan["have_bytes"][tier] / GIB
        if need:
            rooms.append(f"{tier} {need:.1f} of {have:.1f} ({have - need:.1f} left)")
    return "GiB of a rank: " + ", ".join(rooms)


def states_text(plan: Report) -> str:
    chosen = plan["chosen"]
    return f"{MASTERS[chosen['master_dtype']]}; {MOMENTS[chosen['moment_dtype']]}"


def formats_text(plan: Report) -> str:
    """What the plan takes in other formats with which it fits; '' for none."""
    texts = [f"{other['master_dtype'] or 'f32'} + {other['moment_dtype'] or 'f32'} "
             f"{other['expected_ns'] / 1e9:.4g}, {other['need_bytes']['device'] / GIB:.1f}"
             for other in plan["formats"]]
    return f"Other states, s and GiB of the device: {'; '.join(texts)}." if texts else ""


def reason_text(plan: Report, after: Report | None) -> str:
    """What takes most of the step, and why the next plan is behind."""
    time = plan["time"]
    share = 100.0 * time["term_ns"][time["bound"]] / time["high_ns"]
    text = f"Most of it: {time['bound']}, {share:.0f} %."
    if after is None:
        return text
    losses = {term: after["time"]["term_ns"][term] - ns for term, ns in time["term_ns"].items()}
    term = max(losses, key=losses.__getitem__)
    longer = 100.0 * (after["time"]["expected_ns"] / time["expected_ns"] - 1)
    if after["coarseness"] > plan["coarseness"] and longer <= 0:
        return (f"{text} The next one is {-longer:.2f} % faster, and has coarser states, which "
                f"count as {after['coarseness'] - plan['coarseness']} % of the time.")
    if losses[term] <= 0:
        return f"{text} The next one takes as long."
    return f"{text} The next one loses {losses[term] / 1e9:.3g} s by {term}: {longer:.2f} % in all."


def run_lines(report: Report, cost: Report | None, indent: str) -> Lines:
    """Days, money, energy; and with failures what they take."""
    if cost is None:
        return
    run = report["run"]
    text = (f"{run['tokens']:.4g} tokens: {cost['steps']:.0f} step{plural(cost['steps'])}, "
            f"{cost['wall_seconds'] / 86400:.4g} days (at best "
            f"{cost['low_seconds'] / cost['goodput'] / 86400:.4g}), {cost['gpu_hours']:.4g} "
            "GPU-hours")
    text += f", a price of {cost['price']:.4g}" if run["gpu_hour_price"] else ""
    text += f", {cost['mwh']:.4g} MWh" if run["gpu_watts"] else ""
    yield from wrapped(text + ".", indent)
    if run["node_mtbf_hours"]:
        yield from wrapped(
            f"One of the nodes fails every {cost['mtbf_seconds'] / 3600:.3g} hours, "
            f"{cost['failures']:.3g} times in all. Save every "
            f"{cost['save_interval_seconds'] / 60:.3g} minutes: a checkpoint of "
            f"{cost['checkpoint_bytes'] / 1e9:.4g} GB takes {cost['save_seconds']:.3g} s, a "
            f"restart {cost['restart_seconds']:.3g} s. {100 * cost['goodput']:.1f} % of the time "
            "trains.",
            indent)


def plan_lines(report: Report, index: int, plan: Report, after: Report | None) -> Lines:
    time = plan["time"]
    seconds = time["expected_ns"] / 1e9
    yield ""
    low, high = (time[f"likely_{end}_ns"] / 1e9 for end in ("low", "high"))
    yield (f"{index}. {seconds:.4g} s a step ({low:.4g} to {high:.4g}), "
           f"{time['tokens'] / seconds:.4g} tokens/s, {time['flops'] / seconds / 1e12:.3g} "
           "TFLOP/s")
    yield from flag_lines(report, plan, "     ")
    yield from wrapped(room_text(plan), "   ")
    yield from wrapped(f"States: {states_text(plan)}.", "   ")
    yield from wrapped(formats_text(plan), "   ")
    yield from wrapped(reason_text(plan, after), "   ")
    yield from run_lines(report, plan["run"], "   ")
    adapted = report | {"mesh": plan["mesh"], "settings": settings_of(report, plan)}
    yield from (f"  {line.strip()}" for line in option_lines(adapted, plan))


def nearest_lines(report: Report, nearest: Report) -> Lines:
    """The miss, and what makes something fit."""
    lacks = {tier: nearest["need_bytes"][tier] - nearest["have_bytes"][tier] for tier in TIERS}
    words = ", ".join(f"{size / GIB:.1f} GiB ({size} bytes) of the {tier}"
                      for tier, size in lacks.items() if size > 0)
    yield ""
    yield from wrapped(f"Nothing fits. A rank of the nearest plan lacks {words}:", "")
    yield from flag_lines(report, nearest, "  ")
    remedies = report["search"]["remedies"]
    yield ""
    if not remedies:
        yield from wrapped("Neither more nodes, more disk nor shorter samples alone make it fit; "
                           "give fewer options that the search must hold, or a smaller model.", "")
        return
    yield "It fits with any of these, the fastest plan below each:"
    for remedy in remedies:
        yield f"  {remedy['words']}"
        yield from flag_lines(report, remedy["plan"], "      ")


def search_lines(report: Report) -> Lines:
    """Up to three plans, or the nearest miss."""
    search = report["search"]
    if search is None:
        yield from ("", *wrapped(f"Nothing fits as asked, and no search: {report['unsearched']}",
                                 ""))
        return
    if search["nearest"]:
        yield from nearest_lines(report, search["nearest"])
        return
    plans = search["plans"]
    tokens = plans[0]["time"]["tokens"]
    if report["mixes"]:
        yield from ("", "Nothing fits as asked. The same samples in another way:")
    yield from ("", f"The fastest that fit, with {tokens:.4g} tokens a step, by expected time")
    yield "(80 % of runs are within):"
    for index, plan in enumerate(plans):
        after = plans[index + 1] if index + 1 < len(plans) else None
        yield from plan_lines(report, index + 1, plan, after)
    if report["parameters_used"] != report["parameters"]:
        yield from ("", *wrapped("Plans with --expert, where ranks share the experts of a block, "
                                 "are not searched: ask for each E by itself.", ""))
    if any(plan["coarseness"] for plan in plans):
        yield from ("", *wrapped("States that are not fp32 round: losses of whole trainings are in "
                                 "docs/small-states.md.", ""))
