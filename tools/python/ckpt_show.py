"""The text of `zero ckpt show`: step, model, files and hyper-parameters of a checkpoint."""

from ckpt_text import amount, box_text, moment, printable, product
from output import Lines, Report, show

ROLES = ("param", "moment1", "moment2")
CALLER = "caller's"


def state_lines(report: Report) -> Lines:
    yield f"{'steps':<16}{report['step']}, of which {report['skipped']} skipped"
    lasts = (f"unchanged for {report['good_steps']} steps" if report["loss_scale_dynamic"] else
             "which never changes")
    yield f"{'loss scale':<16}{report['loss_scale']:.9g}, {lasts}"
    yield f"{CALLER:<16}data position {report['data_position']}"
    yield (f"{'':<16}random seed {report['random_seed']}, position "
           f"{report['random_position']}")
    yield f"{'':<16}{report['user_bytes']} bytes"
    yield f"{'seed':<16}{report['seed']}, of stochastic rounding"


def group_lines(groups: list[Report]) -> Lines:
    if groups:
        yield f"{'group':<6}  {'optimizer':<9}  numbers"
    for i, group in enumerate(groups):
        numbers = [f"{name} {value:.6g}" for name, value in group.items() if name != "optimizer"]
        gap = "  " if numbers else ""
        yield f"{i:<6}  {group['optimizer']:<9}{gap}{', '.join(numbers)}"


def all_group_lines(report: Report) -> Lines:
    """Of each part its own."""
    if "parts" not in report:
        groups = list(group_lines(report["hyper_parameters"]))
        yield from ([""] if groups else []) + groups
        return
    yield ""
    for i, part in enumerate(report["parts"]):
        yield f"part {i}:{'' if part else ' no hyper-parameters'}"
        yield from group_lines(part)


def file_lines(report: Report) -> Lines:
    types = [" ".join(file["types"]) or "-" for file in report["files"]]
    width = max([12, *map(len, types)])

    def line(name: str, types: str, tensors: int | str, size: int | str) -> str:
        return f"{name:<{52 - width}}  {types:<{width}}  {tensors:>8}  {size:>10}"

    yield ""
    yield line("file", "types", "tensors", "bytes")
    for file, names in zip(report["files"], types):
        yield line(printable(file["name"]), names, file["tensors"], amount(file["bytes"]))
    if report["sums_bytes"] is not None:
        yield line(report["sums_file"], "-", "-", amount(report["sums_bytes"]))
    yield line("all", "", report["tensor_count"], amount(report["bytes"]))


def tensor_lines(tensors: list[Report]) -> Lines:
    yield ""
    masters = ["frozen" if tensor["frozen"] else tensor["types"].get("master", "-")
               for tensor in tensors]
    width = max(map(len, ["master", *masters]))
    left = 36 - width
    yield (f"{'tensor':<{left}}  {'shape':<14}  {'param':<5}  {'master':<{width}}  {'moment1':<7}  "
           "moment2")
    for tensor, master in zip(tensors, masters):
        param, moment1, moment2 = (tensor["types"].get(role, "-") for role in ROLES)
        yield (f"{printable(tensor['name']):<{left}}  {product(tensor['shape']):<14}  {param:<5}  "
               f"{master:<{width}}  {moment1:<7}  {moment2}{box_text(tensor)}")


def text(report: Report) -> Lines:
    yield report["folder"]
    yield ""
    yield f"{'model':<16}{report['tensor_count']} tensors, {report['parameters']} parameters"
    if "model_hash" in report:
        yield f"{'':<16}hash {report['model_hash']}"
        yield f"{'saved':<16}{moment(report['seconds'])}, by {report['world']} ranks"
        if "parts" in report:
            parts = len(report["parts"])
            yield f"{'parts':<16}{parts}, of {report['part_world']} ranks each"
        yield from state_lines(report)
        yield from all_group_lines(report)
    else:
        yield f"{'':<16}no checkpoint: these are weights alone, without sums"
    yield from file_lines(report)
    if "tensors" in report:
        yield from tensor_lines(report["tensors"])


def main(words: list[str]) -> int:
    return show(text, words)
