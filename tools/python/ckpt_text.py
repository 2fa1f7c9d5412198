"""What the texts of `zero ckpt` share: names, amounts and times as a terminal has them."""

import re
import time

from output import Report

NAME_BYTES_MAX = 511
UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


def printable(name: str) -> str:
    """Control characters are '?', and what is too long ends in ".."."""
    name = re.sub(r"[\x00-\x1f\x7f]", "?", name)
    return name if len(name) <= NAME_BYTES_MAX else name[:NAME_BYTES_MAX - 2] + ".."


def amount(size: float) -> str:
    """"1.5 GB", in powers of 1000."""
    if size < 1000:
        return f"{size} B"
    unit = 0
    size /= 1e3
    while size >= 999.5 and unit < 5:
        size, unit = size / 1e3, unit + 1
    return f"{size:.{1 if size < 99.95 else 0}f} {UNITS[unit]}"


def moment(seconds: int) -> str:
    """When it was committed, as this machine's clocks say it; "-" where that is not known."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def product(extents: list[int]) -> str:
    return "x".join(map(str, extents)) or "scalar"


def box_text(tensor: Report) -> str:
    """Which part of the model has a tensor and, if it is a box, which."""
    text = f"  part {tensor['part']}" if "part" in tensor else ""
    if text and "box_first" in tensor:
        text += f", {tensor['shape']}"
        if tensor["shape"] != tensor["global_shape"]:
            text += f" at {tensor['box_first']} of {tensor['global_shape']}"
    return text
