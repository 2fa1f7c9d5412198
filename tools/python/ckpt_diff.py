"""What `zero ckpt diff` says: what differs between two checkpoints, by their manifests, which
docs/checkpoint-format.md describes, and by which values the program found to differ.

Words: [FILE for JSON; - for stdout, without the text]"""

import json
import sys

from ckpt_text import printable, product
from command_line import Refused, write_json
from output import RAW_BYTES, Lines, Report, print_lines

LISTED_MAX = 20
SAME, DIFFERS = 10, 11  # what the program reads as exit status 0 and 1
ROLES = ("param", "master", "moment1", "moment2", "scale1", "scale2")


# ---- what is no tensor ----


def number(group: Report, name: str) -> float:
    return group.get(name, 0.0)


def numbers_of(group: Report) -> dict[str, float]:
    return {name: value for name, value in group.items() if name not in ("optimizer", "carried")}


def scalars(manifest: Report) -> dict[str, str]:
    """As texts with so many digits that two numbers have one only where they are equal."""
    return {
        "steps": str(int(manifest["updates"]) + int(manifest["skipped"])),
        "skipped": manifest["skipped"],
        "loss scale": f"{manifest['loss_scale']:.9g}",
        "loss scale is": "dynamic" if manifest["loss_scale_dynamic"] else "static",
        "good steps": str(manifest["good_steps"]),
        "overflows": str(manifest["overflows"]),
        "data position": manifest["data_position"],
        "random seed": manifest["random_seed"],
        "random position": manifest["random_position"],
        "seed": manifest["seed"],
    }


def group_rows(sides: list[Report]) -> list[tuple[str, str, str]]:
    counts = [side["groups_given"] for side in sides]
    rows = [("groups", str(counts[0]), str(counts[1]))]
    for i, (a, b) in enumerate(zip(*(side["manifest"]["groups"] for side in sides))):
        rows.append((f"optimizer, group {i}", a["optimizer"], b["optimizer"]))
        if i < min(counts) and a["optimizer"] == b["optimizer"]:
            rows += [(f"{name}, group {i}", f"{value:.9g}", f"{number(b, name):.9g}")
                     for name, value in numbers_of(a).items()]
    return rows


def user_rows(a: Report, b: Report) -> list[tuple[str, str, str]]:
    if a["user"] == b["user"]:
        return []
    sizes = [str(len(manifest["user"]) // 2) for manifest in (a, b)]
    texts = sizes if sizes[0] != sizes[1] else ["A's", "B's"]
    return [("user bytes", texts[0], texts[1])]


def state_rows(sides: list[Report], parts: bool) -> list[tuple[str, str, str]]:
    """What differs: name, A's and B's. Of parts each tensor's groups are compared instead."""
    a, b = (side["manifest"] for side in sides)
    texts = scalars(b)
    rows = [(name, text, texts[name]) for name, text in scalars(a).items()]
    if not parts:
        rows += group_rows(sides)
        carried = [[group["carried"] for group in manifest["groups"]] for manifest in (a, b)]
        if carried[0] != carried[1]:
            rows.append(("beta products", "A's", "B's"))
    return [row for row in rows + user_rows(a, b) if row[1] != row[2]]


# ---- tensors ----


def wholes_of(manifest: Report) -> dict[str, list[Report]]:
    """The boxes of each tensor."""
    wholes: dict[str, list[Report]] = {}
    for tensor in manifest["tensors"]:
        wholes.setdefault(tensor["name"], []).append(tensor)
    return wholes


def shape_of(boxes: list[Report]) -> list[int]:
    return boxes[0].get("global_shape", boxes[0]["shape"])


def type_of(boxes: list[Report], role: str) -> str:
    """fp32 where those of boxes differ."""
    types = {box["places"][role][0] if role in box["places"] else "none" for box in boxes}
    return types.pop() if len(types) == 1 else "f32"


def group_of(manifest: Report, box: Report) -> Report:
    """What its part's steps had of a box's group."""
    holder = manifest["parts"][box["part"]] if "parts" in manifest else manifest
    return holder["groups"][box["group"]]


def alike_in_numbers(groups: list[Report]) -> bool:
    first = groups[0]
    return all(group["optimizer"] == first["optimizer"] and group["carried"] == first["carried"] and
               all(number(group, name) == number(first, name)
                   for name in numbers_of(group) | numbers_of(first)) for group in groups)


def role_texts(pair: list[list[Report]], same: dict[str, bool]) -> Lines:
    for role in ROLES:
        left, right = (type_of(boxes, role) for boxes in pair)
        if left != right and not role.startswith("scale"):  # there are such of codes alone
            yield f"{role} {left} and {right}{', of the same values' if same.get(role) else ''}"
        elif not same.get(role, True):
            yield role


def difference(pair: list[list[Report]], same: dict[str, bool], manifests: list[Report],
               parts: bool) -> str:
    """In what a tensor differs; empty: in nothing."""
    shapes = [shape_of(boxes) for boxes in pair]
    if shapes[0] != shapes[1]:
        return f"shapes {product(shapes[0])} and {product(shapes[1])}"
    texts = list(role_texts(pair, same))
    kinds = [(boxes[0]["flags"], boxes[0]["group"]) for boxes in pair]
    groups = [group_of(manifest, box) for manifest, boxes in zip(manifests, pair) for box in boxes]
    if kinds[0] != kinds[1]:
        texts.append("flags or group")
    elif parts and not kinds[0][0] & 2 and not alike_in_numbers(groups):
        texts.append("hyper-parameters or beta products")
    return "; ".join(texts)


def tensor_rows(report: Report, wholes: list[dict[str, list[Report]]],
                parts: bool) -> list[tuple[str, str]]:
    manifests = [side["manifest"] for side in report["sides"]]
    rows = [(name, difference([boxes, wholes[1][name]], report["same_values"].get(name, {}),
                              manifests, parts) if name in wholes[1] else "only in A")
            for name, boxes in wholes[0].items()]
    rows += [(name, "only in B") for name in wholes[1] if name not in wholes[0]]
    return [row for row in rows if row[1]]


# ---- the report ----


def compare(report: Report) -> Report:
    sides = report["sides"]
    wholes = [wholes_of(side["manifest"]) for side in sides]
    parts = any("parts" in side["manifest"] for side in sides)
    values = list(report["same_values"].values())
    compared = {role: [same[role] for same in values if role in same] for role in ROLES}
    state, tensors = state_rows(sides, parts), tensor_rows(report, wholes, parts)
    return {
        "same": not state and not tensors,
        "a": sides[0]["folder"],
        "b": sides[1]["folder"],
        "worlds": [side["ranks"] for side in sides],
        "tensor_counts": [len(side) for side in wholes],
        "state": state,
        "values_that_differ": {role: same.count(False) for role, same in compared.items() if same},
        "values_compared": {role: len(same) for role, same in compared.items() if same},
        "tensors": tensors,
    }


def difference_lines(found: Report) -> Lines:
    if found["state"]:
        yield from ("", f"{'state':<26}  {'A':>24}  {'B':>24}")
    for what, left, right in found["state"]:
        yield f"{what:<26}  {left:>24}  {right:>24}"
    tensors = found["tensors"]
    if not tensors:
        return
    yield from ("", f"{'values':<26}  {'tensors that differ':>24}  {'of':>24}")
    for role, count in found["values_compared"].items():
        yield f"{role:<26}  {found['values_that_differ'][role]:>24}  {count:>24}"
    yield from ("", f"{'tensor':<44}  differs in")
    for name, what in tensors[:LISTED_MAX]:
        yield f"{printable(name):<44}  {what}"
    if len(tensors) > LISTED_MAX:
        yield f"and {len(tensors) - LISTED_MAX} more; --json has all"


def text(found: Report) -> Lines:
    for side, count, world in zip("ab", found["tensor_counts"], found["worlds"]):
        yield f"{side.upper()}  {found[side]}, {count} tensors, saved by {world} ranks"
    yield from ["the same state"] if found["same"] else difference_lines(found)


def check_names(found: Report, path: str) -> None:
    try:
        (found["a"] + found["b"]).translate(RAW_BYTES).encode()
    except UnicodeEncodeError:
        raise Refused(f"{path} cannot be written: a name is not UTF-8") from None


def main(words: list[str]) -> int:
    found = compare(json.load(sys.stdin.buffer))
    if words[:1] != ["-"]:
        print_lines(text(found))
    if words:
        check_names(found, words[0])
        write_json(found, words[0])
    return SAME if found["same"] else DIFFERS
