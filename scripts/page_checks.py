#!/usr/bin/env python3
"""The blocks of README.md and docs/*.md that a stranger would run, as scripts, word for word.

Usage: page_checks.py --list            NAME AFTER PAGE, a line for each check; AFTER may be -
       page_checks.py --script NAME     a script of bash that runs the check
       page_checks.py --marks           says what is wrong with the marks, and fails if anything is

A block is marked by an HTML comment on the line above its fence:

    <!-- strangers: NAME [after=CHECK] [has=PACKAGES] [in=FOLDER] [files=TO:FROM,...] [as=FILE]
         [then=COMMANDS] -->    (on one line)
    <!-- strangers: - why this block is not run -->

Blocks of the same NAME in a page are one check: they run in one shell, in the order of the page,
and any line that fails ends it.

after   begins where that check ended, with its files, packages and exported variables, and in no
        case before it has passed; else in a bare system
has     packages of Debian that the reader has already, as CMake for a project of CMake's; what the
        page itself asks for is installed by its own lines
in      the folder below the home folder where the block runs: that of the block before it, else one
        with the check's name
files   copied there first, each from the repository, which is in the home folder as libzero
as      the block is the content of this file, and not run
then    what shows that the block did what the page says, in the same shell. "! COMMAND" shows
        nothing there: write "COMMAND && exit 1"

In a page that has marks each block of LANGUAGES has one."""

import argparse
import os
import re
import shlex
import sys

LANGUAGES = ("sh", "cmake", "meson", "python")
MARK = re.compile(r"^<!-- strangers: (.*) -->$")
FENCE = re.compile(r"^```(\w*)$")
KEYS = ("after", "has", "in", "files", "as", "then")
SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Step:
    """A block, and what its mark says of it."""

    def __init__(self, page, line, settings, text):
        self.place = f"{page}:{line}"
        self.settings = settings
        self.text = text

    def files(self):
        """Pairs: the name there, the path in the repository."""
        listed = self.settings.get("files", "")
        return [entry.partition(":")[::2] for entry in listed.split(",") if entry]


class Check:
    """Blocks of one page that run in one shell."""

    def __init__(self, name, page):
        self.name = name
        self.page = page
        self.steps = []

    @property
    def after(self):
        return self.steps[0].settings.get("after", "-")


def parse_mark(text):
    """The name, or - for a block that is not run, and the settings. ValueError: what is wrong."""
    if text.startswith("- ") and len(text) > 10:
        return "-", {}
    words = shlex.split(text)
    settings = dict(word.partition("=")[::2] for word in words[1:])
    if re.search(r"(^|; *)! ", settings.get("then", "")):
        raise ValueError("! COMMAND in then cannot fail; write COMMAND && exit 1")
    unknown = [key for key in settings if key not in KEYS]
    if not words or not re.fullmatch(r"[\w-]+", words[0]) or words[0] == "-":
        raise ValueError(f'a mark begins with a name, or with "- " and a reason: "{text}"')
    if unknown:
        raise ValueError(f"{unknown[0]} is not one of {', '.join(KEYS)}")
    return words[0], settings


def blocks_of(text):
    """(line, language, block, mark or None) of each fenced block, and a mark above none."""
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        mark = MARK.match(lines[i - 1]) if i else None
        fence = FENCE.match(lines[i])
        if fence:
            end = lines.index("```", i + 1)
            yield i + 1, fence[1], "\n".join(lines[i + 1 : end]), mark and mark[1]
            i = end
        elif mark or (lines[i].startswith("<!-- strangers") and not MARK.match(lines[i])):
            yield i + 1, "", None, mark and mark[1]
        i += 1


def read_pages(pages):
    """Checks by name, and a line for each thing that is wrong. pages: texts by path."""
    checks, wrong = {}, []
    for page, text in pages.items():
        has_marks = "<!-- strangers" in text
        for line, language, block, mark in blocks_of(text):
            if block is None:
                wrong.append(f"{page}:{line}: a mark is a line of its own right above a block")
            elif mark is None:
                if has_marks and language in LANGUAGES:
                    wrong.append(f"{page}:{line}: this block of {language} has no mark")
            else:
                try:
                    name, settings = parse_mark(mark)
                except ValueError as reason:
                    wrong.append(f"{page}:{line - 1}: {reason}")
                    continue
                if name != "-":
                    check = checks.setdefault(name, Check(name, page))
                    check.steps.append(Step(page, line, settings, block))
                    if check.page != page:
                        wrong.append(f"{page}:{line - 1}: {name} is a check of {check.page}")
    return checks, wrong


def faults(checks, exists):
    """What is wrong between checks and with the files that they name."""
    for check in checks.values():
        if check.after != "-" and check.after not in checks:
            yield f"{check.steps[0].place}: {check.name} is after {check.after}, which is no check"
        for step in check.steps[1:]:
            if "after" in step.settings:
                yield f"{step.place}: after belongs to the first block of {check.name}"
        for step in check.steps:
            for name, path in step.files():
                if not name or not exists(path):
                    yield f'{step.place}: files has "{name}:{path}", which is not in the repository'
    try:
        in_order(checks)
    except ValueError as reason:
        yield str(reason)


def in_order(checks):
    """Each check behind the one that it is after."""
    done = []
    waiting = list(checks.values())
    while waiting:
        names = {check.name for check in done}
        ready = [check for check in waiting if check.after in names or check.after not in checks]
        if not ready:
            raise ValueError(f"{waiting[0].name} is after itself")
        done += ready
        waiting = [check for check in waiting if check not in ready]
    return done


def lines_of(step, folder):
    """bash, for one block. folder: where, or None where the one before it was."""
    settings = step.settings
    lines = []
    if "has" in settings:
        packages = " ".join(map(shlex.quote, settings["has"].split(",")))
        lines.append(f"sudo apt-get install -q {packages}")
    if folder:
        lines += [f"mkdir -p ~/{shlex.quote(folder)}", f"cd ~/{shlex.quote(folder)}"]
    for name, path in step.files():
        lines.append(f"cp -rT ~/libzero/{shlex.quote(path)} {shlex.quote(name)}")
    lines.append(f"printf '\\n# %s\\n' {shlex.quote(step.place)}")
    if "as" in settings:
        lines += [f"cat > {shlex.quote(settings['as'])} <<'END_OF_BLOCK'", step.text,
                  "END_OF_BLOCK"]
    lines.append("set -x")
    if "as" not in settings:
        lines.append(step.text)
    if "then" in settings:
        lines.append(settings["then"])
    return [*lines, "{ set +x; } 2> /dev/null"]


def script_of(check):
    """bash. What the check exports is left in ~/.exports for those after it."""
    lines = ["set -e -o pipefail", "[ ! -e ~/.exports ] || . ~/.exports",
             "trap 'export -p > ~/.exports' EXIT"]
    for number, step in enumerate(check.steps):
        lines += lines_of(step, step.settings.get("in", None if number else check.name))
    return "\n".join(lines) + "\n"


def pages_of(source):
    """README.md and the pages of docs."""
    paths = ["README.md"] + sorted(f"docs/{name}" for name in os.listdir(f"{source}/docs")
                                   if name.endswith(".md"))
    texts = {}
    for path in paths:
        with open(f"{source}/{path}", encoding="utf-8") as file:
            texts[path] = file.read()
    return texts


def main():
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--list", action="store_true")
    group.add_argument("--script")
    group.add_argument("--marks", action="store_true")
    group.add_argument("-h", "--help", action="store_true")
    args = parser.parse_args()
    if args.help:
        print(__doc__)
        return
    checks, wrong = read_pages(pages_of(SOURCE))
    wrong += faults(checks, lambda path: os.path.exists(f"{SOURCE}/{path}"))
    if wrong:
        sys.exit("\n".join(wrong))
    if args.list:
        for check in in_order(checks):
            print(check.name, check.after, check.page)
    elif args.script is not None:
        if args.script not in checks:
            sys.exit(f'no page has a check "{args.script}"; there are {", ".join(checks)}')
        print(script_of(checks[args.script]), end="")


if __name__ == "__main__":
    main()
