#!/usr/bin/env python3
"""Man pages of the public functions, and of each header with its types, from their comments.

Usage: man_headers.py INCLUDE VERSION FOLDER PLANNER   (FOLDER is made anew; PLANNER: the symbol map
of libzero-plan, which says what is in that library)

A function's page has its comment by parts: items that begin with a parameter's name are ARGUMENTS,
`Collective` and `Local call` are RANKS, and `Errors:`, `Threads:` and the like are sections."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from header_docs import Declaration, Header, Unreadable, read_header
from roff import bold, escape, header, prose, references, verbatim, write_pages

SECTIONS = ("Ranks", "Stream", "Ownership", "Memory", "Network", "Errors", "Threads")
COLUMNS = 76
# Macros for declarations, which programs do not use.
LEFT_OUT = ("zero/export.h",)

Pages = frozenset[str]


def _summary(text: str) -> str:
    """The first sentence, as NAME has it."""
    first = re.split(r"[.:](?:\s|$)", " ".join(text.split()), maxsplit=1)[0]
    first = first.replace("`", "").replace("**", "")
    small = first[:1].lower() + first[1:] if first[1:2].islower() or first[1:2] == " " else first
    return escape(small)


def _paragraphs(text: str) -> list[list[str]]:
    """Lines of paragraphs, items and pictures apart."""
    parts: list[list[str]] = []
    for line in text.split("\n"):
        begins = not parts or not line or line.startswith("- ") or (
            line.startswith("    ") and parts[-1] and not parts[-1][-1].startswith(("    ", "- "))
            and not parts[-1][-1].startswith("  "))
        if begins:
            parts.append([])
        if line:
            parts[-1].append(line)
    return [part for part in parts if part]


def _pictured(part: list[str]) -> bool:
    return part[0].startswith("    ")


def _body(text: str, pages: Pages) -> list[str]:
    """Paragraphs, lists and pictures."""
    out: list[str] = []
    for part in _paragraphs(text):
        if _pictured(part):
            out += verbatim([line.removeprefix("  ") for line in part])
        elif part[0].startswith("- "):
            out += [".IP \\(bu 2", prose(" ".join(part)[2:], pages)]
        else:
            out += [".PP", prose(" ".join(part), pages)]
    return out


def _section(title: str, body: list[str]) -> list[str]:
    """Its heading is the first paragraph's own break."""
    return [f".SH {title.upper()}", *(body[1:] if body[:1] == [".PP"] else body)] if body else []


def _wrapped(code: str) -> list[str]:
    """A prototype in lines that fit, broken behind commas."""
    if len(code) <= COLUMNS:
        return [code]
    head, _, rest = code.partition("(")
    indent = " " * (len(head) + 1) if len(head) < 36 else " " * 8
    lines = [head + "("]
    for part in re.split(r"(?<=,) ", rest):
        joined = lines[-1] + ("" if lines[-1].endswith("(") else " ") + part
        if len(joined) <= COLUMNS:
            lines[-1] = joined
        else:
            lines.append(indent + part)
    return lines


def _synopsis(path: str, prototypes: list[str]) -> list[str]:
    lines = [f"#include <{path}>"]
    for code in prototypes:
        lines += ["", *_wrapped(code + ";")]
    return [".SH SYNOPSIS", ".nf", *(bold(line) if line else "" for line in lines), ".fi"]


def _library(planner: bool) -> list[str]:
    text = ("libzero-plan (pkg-config zero-plan, -lzero-plan -lzero)" if planner
            else "libzero (pkg-config zero, -lzero)")
    return [".SH LIBRARY", escape(text)]


def _split(function: Declaration) -> tuple[str, list[tuple[str, str]], dict[str, list[str]]]:
    """A function's comment: its prose, its arguments, and its sections."""
    before, arguments, sections = [], [], {name: [] for name in SECTIONS}
    for part in _paragraphs(function.text):
        item = re.match(r"- ([\w, ]+)(?:: |$)", part[0])
        label = item[1] if item else ""
        text = " ".join(line.strip() for line in part).removeprefix("- ")
        if label and all(name.strip() in function.parameters for name in label.split(",")):
            arguments.append((label, text.removeprefix(label + ":").strip()))
        elif label in SECTIONS:
            sections[label].append(text.removeprefix(label + ":").strip())
        elif re.match(r"- (Collective|Local call)\b", part[0]):
            sections["Ranks"].append(text)
        else:
            before.append("\n".join(part))
    return "\n\n".join(before), arguments, sections


def _mentioned(text: str, pages: Pages, but: str) -> list[str]:
    return sorted(set(re.findall(r"\bzero_\w+", text)) & pages - {but})


def _texts(title: str, texts: list[str], pages: Pages) -> list[str]:
    """A section of items, whose labels have become its heading."""
    body = []
    for text in texts:
        plain = re.match("[a-z]+ ", text)
        body += [".PP", prose(text[0].upper() + text[1:] if plain else text, pages)]
    return _section(title, body)


def _function(function: Declaration, path: str, home: str, version: str, planner: bool,
              pages: Pages) -> list[str]:
    text, arguments, sections = _split(function)
    lines = [*header(function.name, "3", version), ".SH NAME",
             f"{escape(function.name)} \\- {_summary(function.text)}",
             *_library(planner), *_synopsis(path, [function.code]),
             *_section("Description", _body(text, pages))]
    if arguments:
        lines.append(".SH ARGUMENTS")
        for name, said in arguments:
            lines += [".TP", f"\\fI{escape(name)}\\fR", prose(said, pages)]
    for name in SECTIONS[:5]:
        lines += _texts(name, sections[name], pages)
    if function.code.startswith("zero_status "):
        lines += [".SH RETURN VALUE",
                  "ZERO_OK, or the kind of failure; then \\fBzero_last_error\\fR(3) says more."]
    for name in SECTIONS[5:]:
        lines += _texts(name, sections[name], pages)
    others = [home, "libzero", *_mentioned(function.text, pages, function.name)]
    return lines + references([(name, "3") for name in others])


def _declared(code: str) -> list[str]:
    """A type or macro as it is written, bodies left to the list of members."""
    if code.startswith("#define"):
        return code.split("\n")
    return _wrapped(re.sub(r"\{.*\}", "{ ... }", code))


def _type(found: Declaration, pages: Pages) -> list[str]:
    lines = [f".SS {escape(found.name)}", ".nf", *(bold(line) for line in _declared(found.code)),
             ".fi", *_body(found.text, pages)]
    for member in found.members:
        lines += [".TP", bold(member.declaration), prose(member.text, pages)]
    return lines


def _header(head: Header, version: str, planner: bool, pages: Pages) -> list[str]:
    types = [found for found in head.declarations if found.kind == "type"]
    macros = [found for found in head.declarations if found.kind == "macro"]
    functions = [found for found in head.declarations if found.kind == "function"]
    names = ", ".join(escape(name) for name in [head.page, *(found.name for found in types)])
    lines = [*header(head.page, "3", version), ".SH NAME", f"{names} \\- {_summary(head.text)}",
             *_library(planner), *_synopsis(head.path, []),
             *_section("Description", _body(head.text, pages))]
    for title, group in (("Types", types), ("Macros", macros)):
        if group:
            lines += [f".SH {title.upper()}", *(line for found in group
                                                for line in _type(found, pages))]
    if functions:
        lines.append(".SH FUNCTIONS")
        for found in functions:
            lines += [".TP", f".BR {escape(found.name)} (3)", _summary(found.text)]
    return lines


def _see_also(head: Header, heads: list[Header], pages: Pages) -> list[str]:
    """The map of all is the page libzero."""
    if head.page == "libzero":
        return references([(other.page, "3") for other in heads if other != head] + [("zero", "1")])
    own = {found.name for found in head.declarations}
    others = [name for name in _mentioned(head.text, pages, "") if name not in own]
    return references([(name, "3") for name in ["libzero", *others]])


def make_pages(include: str, version: str, planner_map: str) -> dict[str, list[str]]:
    """Lines of each page by its name."""
    with open(planner_map, encoding="utf-8") as file:
        planned = set(re.findall(r"\bzero_\w+", file.read()))
    names = (name for name in sorted(os.listdir(f"{include}/zero")) if name.endswith(".h"))
    paths = (f"zero/{name}" for name in names)
    heads = [read_header(include, path) for path in paths if path not in LEFT_OUT]
    pages = frozenset(found.name for head in heads for found in head.declarations
                      if found.kind == "function")
    out: dict[str, list[str]] = {}
    for head in heads:
        planner = head.path == "zero/planner.h" or any(
            found.name in planned for found in head.declarations)
        out[head.page] = [*_header(head, version, planner, pages), *_see_also(head, heads, pages)]
        for found in head.declarations:
            if found.name in out:
                raise Unreadable(f"{found.name} is declared twice")
            if found.kind == "type":
                out[found.name] = [f".so man3/{head.page}.3"]
            elif found.kind == "function":
                out[found.name] = _function(found, head.path, head.page, version, planner, pages)
    return out


def main() -> int:
    include, version, folder, planner_map = sys.argv[1:]
    try:
        print(write_pages(folder, "3", make_pages(include, version, planner_map)))
    except Unreadable as reason:
        print(f"man_headers.py: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
