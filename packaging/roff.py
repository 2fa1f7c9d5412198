"""Man pages as text of roff's man macros."""

import os
import re
import shutil

MANUALS = {"1": "Programs of libzero", "3": "Functions of libzero"}


def escape(text: str) -> str:
    """Plain text as roff reads it. Each hyphen is one that can be copied into a shell."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = text.replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def bold(text: str) -> str:
    return f"\\fB{escape(text)}\\fR"


def prose(text: str, pages: frozenset[str] = frozenset()) -> str:
    """A paragraph of the docs: `code` and **words** are bold, and so are the names of pages."""
    parts = re.split(r"(`[^`]+`|\*\*[^*]+\*\*)", " ".join(text.split()))
    out = ""
    for part in parts:
        if len(part) > 2 and part[0] in "`*":
            out += bold(part.strip("`*"))
        else:
            out += re.sub(r"\\fB\\fR", "", _with_pages(part, pages))
    return re.sub(r"^(?=[.'])", r"\\&", out)


def _with_pages(text: str, pages: frozenset[str]) -> str:
    out = ""
    for word in re.split(r"(\bzero_\w+(?:\(\))?)", text):
        name = word.removesuffix("()")
        out += f"{bold(name)}(3)" if name in pages else escape(word)
    return out


def verbatim(lines: list[str]) -> list[str]:
    return [".PP", ".nf", *(escape(line) if line else "\\&" for line in lines), ".fi"]


def header(name: str, section: str, version: str) -> list[str]:
    """Lines are neither stretched nor hyphenated: most long words are names."""
    return [f'.TH "{escape(name)}" {section} "" "libzero {escape(version)}" "{MANUALS[section]}"',
            ".nh", ".ad l"]


def references(names: list[tuple[str, str]]) -> list[str]:
    """SEE ALSO: names of pages and their sections."""
    last = len(names) - 1
    return [".SH SEE ALSO", *(f".BR {escape(name)} ({section}){'' if i == last else ','}"
                              for i, (name, section) in enumerate(names))]


def write_pages(folder: str, section: str, pages: dict[str, list[str]]) -> str:
    """The folder anew, with a page of this section for each name; returns what to print."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name, lines in pages.items():
        with open(f"{folder}/{name}.{section}", "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return f"{len(pages)} pages in {folder}"
