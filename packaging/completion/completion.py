#!/usr/bin/env python3
"""Completion of the command line of `zero`, for a shell, from its --help and `zero options --json`.

Usage: completion.py PROGRAM SHELL   (bash, zsh or fish; prints the file)"""

import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import bash
import fish
import zsh
from help_text import Command, Unreadable, read_program
from line import EngineOption, Line, Value, Word

SHELLS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}


def engine_options(program: str) -> list[EngineOption]:
    """Names for --set, with the values of those that have a few."""
    text = subprocess.run([program, "options", "--json", "-"], capture_output=True, text=True,
                          check=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}).stdout
    found = []
    for option in json.loads(text)["options"]:
        values = {"choice": option["choices"], "flag": ["0", "1"]}.get(option["kind"], [])
        if option["kind"] != "pointer":
            found.append(EngineOption(option["name"], option["text"], values))
    return found


def _value(name: str, choices: list[str], models: list[str]) -> Value:
    """By the word that a help has for it."""
    if name == "NAME=VALUE":
        return Value("engine")
    if choices:
        return Value("choice", choices)
    if name in ("FILE", "OUT", "IN"):
        return Value("file")
    if name in ("DIR", "DIRECTORY", "RUN", "CKPT", "A", "B"):
        return Value("folder")
    return Value("file", models) if name == "MODEL" else Value("none")


def _words(command: Command, models: list[str]) -> list[Word]:
    """What is no option, in order; the last one is repeated where the usage has dots."""
    kinds = {"CLUSTER": Value("file", command.presets("clusters")),
             "NAME": Value("choice", [row for row, _ in command.rows.get("names", [])])}
    words: list[Word] = []
    for usage in command.usage:
        rest = usage.split()[len(command.words):]
        for place, word in enumerate(rest):
            name = word.strip("[].")
            if word == "[OPTIONS]" or not re.fullmatch("[A-Z]+", name):
                break
            many = word.endswith("...") or rest[place + 1:place + 2] == ["...]"]
            value = kinds.get(name) or _value(name, [], models)
            words += [Word(name, value, many)] if value.kind != "none" else []
    return words or _choice_and_files(command)


def _choice_and_files(command: Command) -> list[Word]:
    """Of usages that each begin with another word, behind which there are files."""
    heads = [usage.split()[len(command.words):][0] for usage in command.usage
             if usage.endswith("...") or "... " in usage]
    heads = [head for head in heads if re.fullmatch("[a-z]+", head)]
    return [Word("COMMAND", Value("choice", heads), False),
            Word("FILE", Value("file"), True)] if heads else []


def lines(command: Command) -> list[Line]:
    """Of the program and of each command."""
    models = next(sub.presets("models") for sub in command.subcommands
                  if sub.words[-1] == "plan")
    found = []
    for one in command.everything():
        options = [(option, _value(option.value, option.choices, models) if option.value else None)
                   for option in one.options]
        found.append(Line(one.words, [(sub.words[-1], sub.summary) for sub in one.subcommands],
                          options, _words(one, models)))
    return found


def main() -> int:
    program, shell = sys.argv[1:]
    try:
        print(SHELLS[shell](lines(read_program(program)), engine_options(program)), end="")
    except (Unreadable, subprocess.CalledProcessError) as reason:
        print(f"completion.py: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
