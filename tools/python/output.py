"""What scripts that print a report share: the report, as `zero` writes it with --json, is on stdin,
and their text goes to stdout.

So a report that was kept can be printed again:
python3 start.py zero plan_page < plan.json > plan.html"""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

Report = dict[str, Any]
Lines = Iterable[str]

GIB = float(1 << 30)
MIB = float(1 << 20)
GB = 1e9

# `zero` has no JSON for bytes that are no UTF-8, and sends each as a character of this range.
RAW_BYTES = {0xEF00 + byte: 0xDC00 + byte for byte in range(0x80, 0x100)}


def print_lines(lines: Lines) -> None:
    text = "".join(f"{line}\n" for line in lines).translate(RAW_BYTES)
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()


def show(view: Callable[..., Lines], words: list[str]) -> int:
    """Prints the lines of view(report, *words), of the report on stdin."""
    print_lines(view(json.load(sys.stdin.buffer), *words))
    return 0


def plural(count: int) -> str:
    return "" if count == 1 else "s"


def percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0
