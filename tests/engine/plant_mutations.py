#!/usr/bin/env python3
"""Plants one mistake at a time in the library and shows which the random programs notice.

Usage: plant_mutations.py SOURCE FOLDER [--count N] [--seed N] [--all] [--again FILE]

SOURCE is the project; FOLDER is made and takes a copy and a build of it. A mistake is one line of
stage1 to 3, offload, layout, checkpoint or engine, drawn by the seed, in which an operator is
another one or a call is missing. Each is tried with the random programs of test_engine on the
deterministic machine; --all: what survives them meets the other tests of engines, checkpoints and
layouts too. One line a mistake, with the tests that noticed it or "survived"; the last line counts.
A survivor is a mistake that no test sees, or a line that means the same: it is to be looked at. A
test that is never named beside survivors of the random programs adds nothing to them here.
--again: the mistakes that FILE, what an earlier run printed, has; those whose lines are still there
once, wherever."""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys

FOLDERS = ("stage1", "stage2", "stage3", "offload", "layout", "checkpoint", "engine")
PROGRAMS = ("tests/engine/test_engine", "--machine")
PREFIXES = ("engine_programs.", "engine_faults.")
OTHERS = [PROGRAMS,
          ("tests/checkpoint/test_checkpoint",), ("tests/layout/test_layout",),
          ("tests/plan/test_plan_files",), ("tests/storage/test_storage",)]
SECONDS_MAX = 1200
TEST_SECONDS_MAX = 60
NAMES_MAX = 12
COMPILER = "the compiler"

# What stands in a line, and what stands there instead.
CHANGES = [(re.compile(pattern), instead) for pattern, instead in (
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "),
    (r" == ", " != "), (r" != ", " == "), (r" && ", " || "), (r" \|\| ", " && "),
    (r" \+ ", " - "), (r" - ", " + "), (r"\+ 1\b", "+ 2"), (r"- 1\b", "- 0"),
    (r"^    ZI_TRY\(.*\);$", "    ;"), (r"^    \(void\)\w+\(.*\);$", "    ;"),
    (r"^    zi_\w+\(.*\);$", "    ;"), (r"\+= ", "= "), (r"\btrue\b", "false"),
)]


def mistakes_of(path):
    """(path, number of the line, the line with a mistake in it), all that can be made in a file."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("*", "/*", "#", "//")) or '"' in line or "for (" in line:
            continue
        for pattern, instead in CHANGES:
            changed = pattern.sub(instead, line, count=1)
            if changed != line:
                yield path, number, changed


def draw(tree, count, seed):
    found = []
    for folder in FOLDERS:
        for name in sorted(os.listdir(f"{tree}/src/{folder}")):
            if name.endswith(".c"):
                found += mistakes_of(f"{tree}/src/{folder}/{name}")
    return random.Random(seed).sample(found, count)


def repeat(tree, file):
    """The mistakes that were printed, as draw returns them."""
    with open(file, encoding="utf-8") as told:
        lines = told.read().split("\n")
    for place, now in zip(lines, lines[1:]):
        found = re.match(r"(src/[^:]+):\d+: (.*)$", place)
        if not found or not now.startswith("    now "):
            continue
        path = f"{tree}/{found[1]}"
        with open(path, encoding="utf-8") as source:
            at = [i for i, line in enumerate(source.read().split("\n")) if line.strip() == found[2]]
        if len(at) == 1:
            yield path, at[0], now.removeprefix("    now ")


def not_source(folder, names):
    return [name for name in names
            if name == ".git" or os.path.exists(os.path.join(folder, name, "build.ninja"))]


def run(command, **options):
    """Exit status, or 124; output."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False, timeout=SECONDS_MAX, **options)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        return 124, ""


def noticed_by(build, program, *words):
    """The tests of one program that tell that something is wrong."""
    status, said = run([os.path.join(build, program), *words], cwd=build,
                       env={**os.environ, "TEST_TIMEOUT": str(TEST_SECONDS_MAX)})
    failed = re.findall(r"^(?:FAILED|TIMEOUT) +(\S+)", said, re.MULTILINE)
    return failed if failed or status == 0 else [f"{program}: {status}"]


def noticed_by_programs(build):
    """The first random program that does; most mistakes are noticed by all."""
    program, *words = PROGRAMS
    _, names = run([os.path.join(build, program), "--list"])
    tests = [name for name in names.split() if name.startswith(PREFIXES)]
    return next(filter(None, (noticed_by(build, program, *words, test) for test in tests)), [])


def try_one(tree, build, programs, mistake, others):
    """What noticed the mistake: names."""
    path, number, changed = mistake
    with open(path, encoding="utf-8") as file:
        whole = file.read()
    lines = whole.split("\n")
    print(f"{os.path.relpath(path, tree)}:{number + 1}: {lines[number].strip()}\n"
          f"    now {changed.strip()}", flush=True)
    lines[number] = changed
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    status, _ = run(["ninja", "-C", build, *programs])
    noticed = [COMPILER] if status != 0 else noticed_by_programs(build)
    if not noticed and others:
        noticed = [name for test in OTHERS for name in noticed_by(build, *test)]
    with open(path, "w", encoding="utf-8") as file:
        file.write(whole)
    return noticed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--again")
    args = parser.parse_args()
    tree = os.path.abspath(os.path.join(args.folder, "tree"))
    build = os.path.abspath(os.path.join(args.folder, "build"))
    if not os.path.exists(tree):
        shutil.copytree(args.source, tree, ignore=not_source)
        status, said = run(["meson", "setup", build, tree, "--buildtype=release", "-Dcuda=disabled",
                            "-Dmpi=disabled", "-Dwerror=false"])
        if status != 0:
            sys.exit(said)
    programs = sorted({test[0] for test in (OTHERS if args.all else [PROGRAMS])})
    subprocess.run(["ninja", "-C", build, *programs], check=True, stdout=subprocess.DEVNULL)
    if noticed_by_programs(build):
        sys.exit("the programs do not pass as the library is")
    survived = compiled = 0
    mistakes = (list(repeat(tree, args.again)) if args.again
                else draw(tree, args.count, args.seed))  # fmt: skip
    for mistake in mistakes:
        noticed = try_one(tree, build, programs, mistake, args.all)
        compiled += noticed != [COMPILER]
        survived += not noticed
        more = len(noticed) - NAMES_MAX
        print(f"    {' '.join(noticed[:NAMES_MAX]) or 'survived'}"
              f"{f' and {more} more' if more > 0 else ''}", flush=True)
    print(f"{compiled} mistakes compiled, {compiled - survived} were noticed, {survived} survived")


main()
