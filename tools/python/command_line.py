"""Command lines in the manner of GNU programs, as tools/command_line.h reads them: --name value,
--name=value, names shortened while they are unique, `--` before words that look like options. And
files that are written, as the other subcommands write them."""

from __future__ import annotations

import errno
import getopt
import json
import os
import stat
from typing import Any, TextIO


class Refused(Exception):
    """Ends the script with its text on stderr and the exit status 1."""


# ---- names ----


def distance(left: str, right: str) -> int:
    """Letters to insert, remove, change or swap with their neighbour, none touched twice."""
    second: list[int] = []
    above = list(range(len(right) + 1))
    for i, letter in enumerate(left, start=1):
        row = [i]
        for k, other in enumerate(right, start=1):
            row.append(min(above[k - 1] + (letter != other), above[k] + 1, row[k - 1] + 1))
            if i > 1 and k > 1 and letter == right[k - 2] and left[i - 2] == other:
                row[k] = min(row[k], second[k - 2] + 1)
        second, above = above, row
    return above[-1]


def nearest(word: str, names: list[str]) -> str | None:
    """The name that the word most likely should have been; a third of the letters may be wrong."""
    found = min(names, key=lambda name: distance(word, name))
    return found if len(word) <= 40 and distance(word, found) <= (len(word) + 2) // 3 else None


def advice(word: str, names: list[str], prefix: str, help_line: str) -> str:
    close = nearest(word, names)
    return f'; did you mean "{prefix}{close}"?' if close else f"; {help_line} lists them all"


# ---- options ----


def _explain(error: getopt.GetoptError, names: list[str]) -> str:
    name = error.opt
    if "requires argument" in error.msg:
        return f"--{name} needs a value"
    if "must not have" in error.msg:
        return f"--{name} takes no value"
    if error.msg.startswith("option --"):
        return f'unknown option "--{name[:100]}"{advice(name, names, "--", "--help")}'
    return f'unknown option "-{name}"; --help lists them all'


def read_line(words: list[str], flags: str, valued: str) -> tuple[dict[str, str], list[str]]:
    """Options by name, and what is none. "help" may stand as -h too.

    flags, valued: names of options without and with a value, with blanks between them."""
    names = flags.split() + valued.split()
    try:
        found, rest = getopt.gnu_getopt(
            words, "h", flags.split() + [f"{name}=" for name in valued.split()])
    except getopt.GetoptError as error:
        raise Refused(_explain(error, names)) from None
    return {"help" if name == "-h" else name[2:]: value for name, value in found}, rest


# ---- files ----


def open_report(path: str) -> TextIO:
    """A file to be made anew, or stdout for "-". A pipe that nobody reads is refused at once."""
    try:
        if path == "-":
            file = os.dup(1)
        else:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666)
            os.set_blocking(file, True)
            if stat.S_ISREG(os.fstat(file).st_mode):
                os.ftruncate(file, 0)
        return os.fdopen(file, "w", encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        unread = error.errno == errno.ENXIO
        why = "it is a pipe that nobody reads" if unread else error.strerror
        raise Refused(f"cannot write {path}: {why}") from None


def unwritten(path: str, error: OSError) -> Refused:
    """What a file has come to that could not be written whole: half of it is of no use, and reads
    like a whole one."""
    if path != "-" and os.path.isfile(path) and not os.path.islink(path):
        os.unlink(path)
    return Refused(f"{path} cannot be written: {error.strerror}")


def write_json(value: Any, path: str) -> None:
    """Indented, to a file or to stdout for "-"."""
    file = open_report(path)
    try:
        with file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
    except OSError as error:
        raise unwritten(path, error) from None
