"""What may stand in a command line, for any shell."""

import dataclasses
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from help_text import Option, Words

NOTICE = "# Made by packaging/completion/completion.py from zero --help and zero options."


@dataclasses.dataclass
class Value:
    """Of an option or a word."""

    kind: str  # file, folder, choice, engine (an engine's option), none (a number or a text)
    names: list[str] = dataclasses.field(default_factory=list)  # of a file: names beside files


@dataclasses.dataclass
class Word:
    """One that is no option."""

    name: str
    value: Value
    many: bool


@dataclasses.dataclass
class EngineOption:
    """A NAME of --set NAME=VALUE."""

    name: str
    text: str
    values: list[str]


@dataclasses.dataclass
class Line:
    """The part of a line behind a command's words."""

    words: Words
    subcommands: list[tuple[str, str]]
    options: list[tuple[Option, Value | None]]
    positions: list[Word]

    @property
    def function(self) -> str:
        return "_".join(self.words)
