#!/usr/bin/env python3
"""Man pages of the program `zero` and of its commands, from their --help.

Usage: man_program.py PROGRAM VERSION FOLDER   (FOLDER is made anew)"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from help_text import Command, Option, Unreadable, read_program
from roff import bold, escape, header, prose, references, verbatim, write_pages


def _synopsis(command: Command) -> list[str]:
    """Literal words bold, names of what stands for others in italics."""
    lines = []
    for usage in command.usage:
        words = []
        for word in usage.split():
            literal = re.fullmatch(r"[\[]?-*[a-z][\w-]*\]?", word) and not word.isupper()
            words.append(bold(word) if literal else f"\\fI{escape(word)}\\fR"
                         if word.strip("[].").isupper() else escape(word))
        lines += [".PP", " ".join(words)]
    return lines[1:]


def _block(lines: list[str]) -> list[str]:
    """A paragraph; a list of words and what each is; or lines as they are."""
    if re.match(r"\w+ {2,}\S", lines[0]) and any(line.startswith("  ") for line in lines):
        out = []
        for line in lines:
            match = re.match(r"(\w+) {2,}(.*)$", line)
            out += [".TP", bold(match[1]), prose(match[2])] if match else [prose(line)]
        return out
    return verbatim(lines) if lines[0].startswith("  ") else [".PP", prose(" ".join(lines))]


def _option(option: Option) -> list[str]:
    dashes = "-h, --help" if option.name == "help" else f"--{option.name}"
    value = f" \\fI{escape(option.value)}\\fR" if option.value else ""
    return [".TP", bold(dashes) + value, prose(option.text)]


def _page(command: Command, version: str, parents: list[Command]) -> list[str]:
    name = "-".join(command.words)
    summary = escape(" ".join(command.summary.split()))
    lines = [*header(name, "1", version), ".SH NAME", f"{escape(name)} \\- {summary}",
             ".SH SYNOPSIS", *_synopsis(command)]
    if command.blocks:
        body = [line for block in command.blocks for line in _block(block)]
        lines += [".SH DESCRIPTION", *(body[1:] if body[0] == ".PP" else body)]
    for heading, rows in command.rows.items():
        lines.append(f".SH {heading.upper()}")
        for row, text in rows:
            lines += [".TP", bold(row), prose(text)]
    lines.append(".SH OPTIONS")
    for option in command.options:
        lines += _option(option)
    status = command.exit_status or "0: done; 1: refused or failed, with a line on stderr."
    lines += [".SH EXIT STATUS", prose(status)]
    others = [("-".join(other.words), "1") for other in parents + command.subcommands]
    return lines + references(others + [("libzero", "3")])


def main() -> int:
    program, version, folder = sys.argv[1:]
    try:
        top = read_program(program)
    except Unreadable as reason:
        print(f"man_program.py: {reason}", file=sys.stderr)
        return 1
    everything = top.everything()
    pages = {}
    for command in everything:
        parents = [other for other in everything
                   if other.words == command.words[:len(other.words)] and other != command]
        pages["-".join(command.words)] = _page(command, version, parents)
    print(write_pages(folder, "1", pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
