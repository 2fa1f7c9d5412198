"""Command lines in the manner of GNU programs, as tools/command_line.h reads them: --name value,
--name=value, names shortened while they are unique, `--` before words that look like options. And
files that are written, as the other subcommands write them."""

import contextlib
import errno
import json
import os
import stat
from typing import Any, Iterator, TextIO


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


def _full_name(name: str, names: list[str]) -> str:
    """Of an option, which may be shortened."""
    begun = [name] if name in names else [other for other in names if other.startswith(name)]
    if len(begun) != 1:
        raise Refused(f'unknown option "--{name[:41]}"{advice(name, names, "--", "--help")}')
    return begun[0]


def _value(name: str, word: str, valued: bool, rest: Iterator[str]) -> str:
    _, given, value = word.partition("=")
    if given and not valued:
        raise Refused(f"--{name} takes no value")
    if valued and not given:
        try:
            value = next(rest)
        except StopIteration:
            raise Refused(f"--{name} needs a value") from None
    return value


def read_line(line: list[str], flags: str, valued: str) -> tuple[dict[str, str], list[str]]:
    """Options by name, and what is none. "help" may stand as -h too, and ends the line.

    flags, valued: names of options without and with a value, with blanks between them. A line that
    is --print-options alone prints them and ends the script, as tools/line_table.h says."""
    if line == ["--print-options"]:
        for name in flags.split() + valued.split():
            if name != "help":
                print(name, "value" if name in valued.split() else "flag")
        raise SystemExit(0)
    options: dict[str, str] = {}
    words: list[str] = []
    rest = iter(line)
    for word in rest:
        if word == "--":
            words += rest
        elif word.startswith("--"):
            name = _full_name(word[2:].partition("=")[0], flags.split() + valued.split())
            options[name] = _value(name, word, name in valued.split(), rest)
        elif word.startswith("-h"):
            options["help"] = ""
        elif word.startswith("-") and word != "-":
            raise Refused(f'unknown option "{word[:2]}"; --help lists them all')
        else:
            words.append(word)
        if "help" in options:
            break
    return options, words


# ---- files ----


def open_report(path: str, new: bool = False) -> TextIO:
    """A file to be made anew, or stdout for "-". A pipe that nobody reads is refused at once.

    new: what exists is not written over."""
    how = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_EXCL if new else 0)
    try:
        file = os.dup(1) if path == "-" else os.open(path, how, 0o666)
        if path != "-":
            os.set_blocking(file, True)
        if path != "-" and stat.S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, 0)
    except OSError as error:
        why = error.strerror
        if error.errno == errno.ENXIO:
            why = "it is a pipe that nobody reads"
        elif error.errno == errno.EEXIST:
            why = f"{why}; the first file is made anew, name another"
        raise Refused(f"cannot write {path}: {why}") from None
    return os.fdopen(file, "w", encoding="utf-8", errors="surrogateescape")


def unwritten(path: str, error: OSError) -> Refused:
    """What a file has come to that could not be written whole: half of it is of no use, and reads
    like a whole one."""
    if path != "-" and os.path.isfile(path) and not os.path.islink(path):
        os.unlink(path)
    return Refused(f"{path} cannot be written: {error.strerror}")


@contextlib.contextmanager
def written(path: str, new: bool = False) -> Iterator[TextIO]:
    """A file of open_report's, which is there in whole or not at all."""
    file = open_report(path, new)
    try:
        with file:
            yield file
    except OSError as error:
        raise unwritten(path, error) from None


def write_json(value: Any, path: str) -> None:
    """Indented, to a file or to stdout for "-"."""
    with written(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")
