#!/usr/bin/env python3
"""What doxygen reads in a file's place (INPUT_FILTER of the Doxyfile). A header says how it is
included, functions that a text names become links, and links lead to pages of the site."""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def functions():
    names = set()
    for name in ("zero.map", "zero_plan.map"):
        with open(f"{ROOT}/src/{name}", encoding="utf-8") as file:
            names |= set(re.findall(r"^ +(zero_\w+);", file.read(), re.MULTILINE))
    return names


def decision_id(path):
    """Of a decision's page: doxygen's own differ between its versions."""
    return "decision_" + os.path.basename(path)[:3]


def link(match):
    """A link as the site has it. What the site has no page for is text; so are anchors in pages."""
    text, target = match.groups()
    path = target.partition("#")[0]
    if "://" in target or target.startswith("#"):
        return match.group(0)
    if path.endswith(".md"):
        decision = re.match(r"\d{3}-", os.path.basename(path))
        return f"[{text}]({f'@ref {decision_id(path)}' if decision else path})"
    if path.endswith(".svg"):
        return f"[{text}]({os.path.basename(path)})"  # a picture, behind a "!"
    if path.endswith((".h", ".hpp")) and "include/" in path:
        return f"[{text}](@ref {os.path.basename(path)})"
    return text


def header(text, path, known):
    name = path[path.rindex("zero/") :]
    name_pattern = re.compile(r"(?<![\w#\"./])(zero_\w+)(?![\w(])")
    # The names of C++ that programs write.
    mode = r"^inline namespace ZERO_CPP_MODE\n\{$|^\} // namespace ZERO_CPP_MODE$"
    lines = []
    for line in re.sub(mode, "", text, flags=re.MULTILINE).split("\n"):
        if re.match(r" ?(/\*\*| \*|\*) ? ?(?! {4})", line):
            line = name_pattern.sub(
                lambda m: m.group(1) + "()" if m.group(1) in known else m.group(1), line
            )
        lines.append(line)
    return f"/** @file\n<tt>\\#include <zero/{name[5:]}></tt> */ " + "\n".join(lines)


def decisions():
    """Children of ARCHITECTURE.md's page, so that the tree of pages begins with the guides."""
    names = sorted(os.listdir(f"{ROOT}/docs/decisions"))
    return "\n" + "".join(f"- @subpage {decision_id(name)}\n" for name in names)


def page(text, path, known):
    if path.endswith("ARCHITECTURE.md"):
        text += decisions()
    if "docs/decisions/" in path:
        text = re.sub(r"\A(# .*)", rf"\1 {{#{decision_id(path)}}}", text)
    blocks = re.split(r"(^ *```.*?^ *```$)", text, flags=re.MULTILINE | re.DOTALL)
    for i in range(0, len(blocks), 2):
        blocks[i] = re.sub(r"\[([^\]]*)\]\(([^)\s]*)\)", link, blocks[i])
        blocks[i] = re.sub(
            r"`(zero_\w+)(\(\))?`",
            lambda m: f"<tt>{m.group(1)}()</tt>" if m.group(1) in known else m.group(0),
            blocks[i],
        )
    return "".join(blocks)


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        text = file.read()
    known = functions()
    read = header if path.endswith((".h", ".hpp")) else page
    sys.stdout.write(read(text, path, known))


if __name__ == "__main__":
    main()
