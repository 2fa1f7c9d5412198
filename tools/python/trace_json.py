"""Reads JSON that a rank has written. Invariant: whatever a file holds, it is read or refused by
name, with the place of what is wrong in it."""

import json
import math
import os
import stat
from contextlib import contextmanager
from typing import Any, Callable, Iterator, TypeGuard, TypeVar

from command_line import Refused

COUNT_MAX = 1 << 53
NS_MAX = (1 << 62) - 1

Read = TypeVar("Read")


class Wrong(Exception):
    """What is wrong with a field. It gets its place in the file from who knows that."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field} {what}")
        self.field = field
        self.what = what


@contextmanager
def placed(place: str | Callable[[], str]) -> Iterator[None]:
    """What is wrong is wrong with a field in that place."""
    try:
        yield
    except Wrong as wrong:
        where = place if isinstance(place, str) else place()
        raise Wrong(f"{where}.{wrong.field}" if wrong.field else where, wrong.what) from None


# ---- files ----


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {next(n for n in names if names.count(n) > 1)!r}")
    return result


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is no number of JSON")
    return value


def parse(data: bytes) -> Any:
    """What JSON's rules allow and no more. A ValueError for all else."""
    content = data.decode()
    value = json.loads(content, object_pairs_hook=_object, parse_float=_real, parse_constant=_real)
    if "\\u" in content:  # half of a pair can be no text of a file
        json.dumps(value, ensure_ascii=False).encode()
    return value


def load(path: str, writer: str) -> dict[str, Any]:
    """The file's object. A pipe is refused: it would be read for ever.

    writer: the function whose files are wanted."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise Refused(f"{path} is no regular file; name files of {writer}")
        with open(path, "rb") as file:
            value = parse(file.read())
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise Refused(f"{path}:{error.lineno}: no JSON: {error.msg}") from None
    except RecursionError:
        raise Refused(f"{path}: no JSON: it is nested too deeply") from None
    except ValueError as error:
        raise Refused(f"{path}: no JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def each(items: list[Any], name: str, read: Callable[[Any], Read]) -> list[Read]:
    """What is read of each; name: of the list, for messages."""
    found: list[Read] = []
    with placed(lambda: f"{name}[{len(found)}]"):
        for item in items:
            found.append(read(item))
    return found


# ---- fields ----


def _refuse(parent: dict[str, Any], field: str, what: str) -> Wrong:
    return Wrong(field, what if field in parent else "is missing")


def is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, float) or is_integer(value)


def whole(parent: dict[str, Any], field: str, default: int | None = None) -> int:
    """default: where it need not be there."""
    value = parent.get(field, default)
    if not is_integer(value) or not 0 <= value <= COUNT_MAX:
        raise _refuse(parent, field, "is no whole number")
    return value


def text(parent: dict[str, Any], field: str) -> str:
    value = parent.get(field)
    if not isinstance(value, str):
        raise _refuse(parent, field, "is no text")
    return value


def optional_text(parent: dict[str, Any], field: str) -> str | None:
    return text(parent, field) if field in parent else None


def nanoseconds(parent: dict[str, Any], field: str) -> int:
    """Which may need all bits but one; null: 0."""
    value = parent.get(field)
    if value is None and field in parent:
        return 0
    if not is_integer(value) or not 0 <= value <= NS_MAX:
        raise _refuse(parent, field, "is no time in nanoseconds")
    return value


_UNSEEN = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "?")


def printable(said: str) -> str:
    """What a file says, without what a terminal would obey."""
    return said.translate(_UNSEEN)
