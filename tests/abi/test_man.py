#!/usr/bin/env python3
"""The man pages: none is missing, none has lost a word, and formatters have nothing to say of them.

Usage: test_man.py SOURCE CC FUNCTIONS [PROGRAMS PROGRAM]   (FUNCTIONS, PROGRAMS: folders of pages)

One line per check; the last line is "N passed, N failed, N skipped"."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from checks import Fail, Skip, Tally

# mandoc's words for what is so on purpose: pages have the release for a date, and types are links.
ON_PURPOSE = ("missing date, using", ".so is fragile")
# Headers that need those of others.
OPTIONAL = ("cuda.h", "mpi.h", "nccl.h")


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, **more)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def plain(text):
    """A page's text without roff's escapes and names of macros."""
    text = re.sub(r"\\f[BIR]|\\&", "", text)
    text = text.replace("\\-", "-").replace("\\(bu", "").replace("\\(ga", "`")
    text = text.replace("\\(ha", "^").replace("\\(ti", "~").replace("\\e", "\\")
    return re.sub(r"^\.\w+", "", text, flags=re.MULTILINE)


def words(text):
    return set(re.findall(r"\w+", text))


def comments(text):
    """(comment, the declaration below it) of each documentation block."""
    for block in re.finditer(r"/\*\*(?!<)(.*?)\*/\n?", text, re.DOTALL):
        below = text[block.end():block.end() + 200]
        if "##" not in below.split("\n")[0]:
            yield re.sub(r"^ \*", "", block[1], flags=re.MULTILINE), below


def exported(source):
    found = set()
    for name in ("zero.map", "zero_plan.map"):
        found |= set(re.findall(r"^    (zero_\w+);", read(f"{source}/src/{name}"), re.MULTILINE))
    return found


def is_complete(source, folder):
    """A page for each exported function, each function of the headers, each header and type."""
    expected = exported(source)
    for path in glob.glob(f"{source}/include/zero/*.h"):
        text, name = read(path), os.path.basename(path)
        expected |= set(re.findall(r"^static inline \w+ (zero_\w+)\(", text, re.MULTILINE))
        types = re.findall(r"^\} (zero_\w+);$|^typedef .*[ *](zero_\w+);$", text, re.MULTILINE)
        expected |= {brace or line for brace, line in types}
        expected |= {"libzero" if name == "zero.h" else f"zero_{name}"} - {"zero_export.h"}
    missing = sorted(name for name in expected if not os.path.exists(f"{folder}/{name}.3"))
    if missing or len(expected) < 200:
        raise Fail(f"of {len(expected)} pages there are not: {missing}")
    for path in glob.glob(f"{folder}/*.3"):
        text = read(path)
        link = re.match(r"\.so man3/(\S+)\n$", text)
        if link and not os.path.exists(f"{folder}/{link[1]}"):
            raise Fail(f"{path} is a link to nothing")
        shown = re.search(r"^\.SH NAME\n(.*) \\- \S", read(f"{folder}/{link[1]}") if link else text,
                          re.MULTILINE)
        name = os.path.basename(path).removesuffix(".3")
        if shown is None or name not in shown[1].replace("\\-", "-").split(", "):
            raise Fail(f"{name} is not among the names of {path}")


def loses_nothing(source, folder):
    """Each word of a comment is on the page of what it is about."""
    lost = []
    for path in glob.glob(f"{source}/include/zero/*.h"):
        name = os.path.basename(path)
        if name == "export.h":
            continue
        page = words(plain(read(f"{folder}/{'libzero' if name == 'zero.h' else 'zero_' + name}.3")))
        text = read(path)
        for comment, below in comments(text):
            said = words(comment) - {"file", "the", "a"}
            function = re.match(r"(?:ZERO|static inline)[^;{#]*?\b(zero_\w+)\(", below)
            if function and os.path.exists(f"{folder}/{function[1]}.3"):
                # Labels have become headings.
                there = words(plain(read(f"{folder}/{function[1]}.3")).lower())
                gone = {word for word in said if word.lower() not in there}
            else:
                gone = {word for word in said if not word.endswith("_")} - page
            if gone:
                lost.append(f"{name}: {below[:60]}: {sorted(gone)}")
        for member in re.findall(r"/\*\*<(.*?)\*/", text, re.DOTALL):
            if words(member) - page:
                lost.append(f"{name}: {sorted(words(member) - page)}")
    if lost:
        raise Fail("\n".join(lost))


def agrees_with_compiler(source, folder, compiler):
    """Prototypes of the pages, declared again beside the headers: no conflict."""
    lines, count = [], 0
    for path in sorted(glob.glob(f"{folder}/*.3")):
        synopsis = re.search(r"^\.SH SYNOPSIS\n\.nf\n(.*?)^\.fi", read(path),
                             re.DOTALL | re.MULTILINE)
        text = plain(synopsis[1]) if synopsis else ""
        if not text or any(f"<zero/{name}>" in text for name in OPTIONAL):
            continue
        count += "(" in text
        lines.append(text)
    if count < 100:
        raise Fail(f"{count} prototypes")
    with tempfile.TemporaryDirectory() as scratch:
        with open(f"{scratch}/pages.c", "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        done = run(*compiler, "-std=c11", "-fsyntax-only", "-Werror", f"-I{source}/include",
                   f"{scratch}/pages.c")
        if done.returncode != 0:
            raise Fail(done.stderr)
        with open(f"{scratch}/pages.c", "a", encoding="utf-8") as file:
            file.write("\nint zero_micro_end(zero_engine *engine, int more);\n")
        if run(*compiler, "-fsyntax-only", f"-I{source}/include",
               f"{scratch}/pages.c").returncode == 0:
            raise Fail("a wrong prototype was no conflict")


def formats(folders):
    """groff has no warning of any page, and mandoc none but those on purpose."""
    if shutil.which("groff") is None:
        raise Skip("groff is not installed (Debian: groff-base)")
    pages = [path for folder in folders for path in glob.glob(f"{folder}/*.[13]")
             if not read(path).startswith(".so ")]
    done = run("groff", "-man", "-Tutf8", "-ww", *pages)
    if done.returncode != 0 or done.stderr or "acquire" not in done.stdout:
        raise Fail(done.stderr[:3000])
    if shutil.which("mandoc") is not None:
        said = [line for line in run("mandoc", "-T", "lint", "-W", "warning", *pages).stdout
                .splitlines() if not any(words in line for words in ON_PURPOSE)]
        if said:
            raise Fail("\n".join(said[:20]))


def sections(folder):
    """The parts of a comment are where readers of man pages look for them."""
    text = read(f"{folder}/zero_unit_acquire.3")
    found = re.findall(r"^\.SH (.*)$", text, re.MULTILINE)
    if found != ["NAME", "LIBRARY", "SYNOPSIS", "DESCRIPTION", "ARGUMENTS", "RANKS", "STREAM",
                 "OWNERSHIP", "MEMORY", "RETURN VALUE", "ERRORS", "SEE ALSO"]:
        raise Fail(found)
    arguments = text[text.index(".SH ARGUMENTS"):text.index(".SH RANKS")]
    if re.findall(r"^\\fI(\w+)\\fR$", arguments, re.MULTILINE) != ["pass", "stream", "view"]:
        raise Fail(arguments)


def refuses(source):
    """A header that is not understood is named, and no page is made of it."""
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(f"{source}/include", f"{scratch}/include")
        with open(f"{scratch}/include/zero/log.h", "a", encoding="utf-8") as file:
            file.write("/** Half of a function. */\nint zero_half(\n")
        done = run("python3", "-B", f"{source}/packaging/man/man_headers.py", f"{scratch}/include",
                   "1", f"{scratch}/out", f"{source}/src/zero_plan.map")
        if done.returncode != 1 or "zero_half" not in done.stderr or os.path.exists(
                f"{scratch}/out"):
            raise Fail(f"exit {done.returncode}: {done.stderr}")


def program_pages(folder, program):
    """Of each command one, with every word of its help."""
    commands = [[]]
    for above in commands:
        text = run(program, *above, "--help").stdout
        listed = re.search(r"^commands:\n(.*?)\n\n", text, re.DOTALL | re.MULTILINE)
        names = re.findall(r"^  (\w+)", listed[1], re.MULTILINE) if listed else []
        commands += [[*above, name] for name in names]
        commands += [["bench", "calibrate"]] if above == ["bench"] else []
        page = f"{folder}/{'-'.join(['zero', *above])}.1"
        lost = words(text) - words(plain(read(page))) - {"usage", "options", "commands", "names",
                                                         "Exit", "status"}
        if lost:
            raise Fail(f"{page} lacks {sorted(lost)}")
        options = re.findall(r"^  (?:-h, )?(--[\w-]+)", text, re.MULTILINE)
        shown = re.findall(r"^\.TP\n\\fB(?:\\-h, )?(\\-\\-[^ ]*?)\\fR", read(page), re.MULTILINE)
        if [name for name in options if name not in [s.replace("\\", "") for s in shown]]:
            raise Fail(f"{page} has {shown}, not {options}")
    if len(commands) != 17 or len(os.listdir(folder)) != len(commands):
        raise Fail(f"{len(commands)} commands, {len(os.listdir(folder))} pages")


def main():
    source, compiler, functions, *programs = sys.argv[1:]
    tally = Tally()
    tally.run("every function, type and header has a page", is_complete, source, functions)
    tally.run("no word of the headers is lost", loses_nothing, source, functions)
    tally.run("prototypes are those of the headers", agrees_with_compiler, source, functions,
              compiler.split())
    tally.run("a comment's parts are sections", sections, functions)
    tally.run("a header that is not understood is refused", refuses, source)
    if programs:
        tally.run("every command has a page", program_pages, *programs)
    tally.run("formatters do not complain", formats, [functions, *programs[:1]])
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
