#!/usr/bin/env python3
"""The binary interface has all that each release has had: tests/abi/abi-*.txt. More may be there:
symbols, values, and fields at the end of structs that grow.

Usage: test_kept.py SOURCE CC

The last line is "N passed, N failed, N skipped"."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from abi_list import Broken, abi_lines, compile_c, includes, read  # noqa: E402
from each_test import Skip, expect, expect_equal, run_tests  # noqa: E402

SOURCE, CC = sys.argv[1:3]
HERE = os.path.dirname(os.path.abspath(__file__))


def kept_lists():
    for name in sorted(os.listdir(HERE)):
        if re.fullmatch(r"abi-\d+\.\d+\.txt", name):
            lines = read(os.path.join(HERE, name)).splitlines()
            yield name, [line for line in lines if not line.startswith("#")]


def by_name(lines):
    """{(kind, name): the rest}, of what has a name; declarations are the compiler's matter."""
    return {tuple(line.split()[:2]): line.split()[2:] for line in lines
            if not line.startswith(("function ", "callback "))}


def moved(kind, name, old, new):
    if new is None:
        texts = {"symbol": f"{name} is not in src/zero.map: programs that call it do not start. "
                           "Keep the function, or an alias of it",
                 "enum": f"{name} is gone; it was {old[0]}. Keep the name and the value"}
        return texts.get(kind, f"{name} is gone: a {kind} of {' '.join(old)}. Keep it there")
    if kind == "symbol":
        return f"{name} was in {old[0]} and is in {new[0]}. Put it back: programs name the version"
    if kind == "enum":
        return f"{name} was {old[0]} and is {new[0]}. New values come behind the others"
    if kind == "field":
        return (f"{name} was {old[1]} bytes at {old[0]} and is {new[1]} at {new[0]}. New fields "
                "come at the end of their struct, or instead of reserved ones")
    return (f"{name} was {old[0]} bytes ({old[1]}) and is {new[0]} ({new[1]}). Structs that grow "
            "only become longer, and the others stay")


def same(kind, old, new):
    if kind == "struct" and new is not None and old[1] == "grows":
        return int(new[0]) >= int(old[0]) and new[1] == "grows"
    return old == new


def complaints(kept, today):
    now = by_name(today)
    for (kind, name), old in by_name(kept).items():
        new = now.get((kind, name))
        if not same(kind, old, new):
            yield moved(kind, name, old, new)


def declared_again(kept):
    """C allows a declaration twice where both say the same."""
    lines = [line.split(" ", 1)[1] for line in kept
             if line.startswith(("function ", "callback "))]
    compile_c(CC, SOURCE, includes(SOURCE) + "".join(f"{line};\n" for line in lines), "-Werror",
              "-fsyntax-only")
    return len(lines)


def today_or_skip():
    if compile_c(CC, SOURCE, "int x = __LP64__;", "-E").count("__LP64__"):
        raise Skip("the lists are of machines whose pointers have 64 bits")
    return abi_lines(CC, SOURCE)


def test_symbols_values_and_fields_are_where_they_were(_folder):
    today = today_or_skip()
    names = []
    for name, kept in kept_lists():
        names.append(name)
        expect(len(by_name(kept)) > 500, f"{name} has {len(kept)} lines")
        found = list(complaints(kept, today))
        expect(not found, "\n  ".join([f"programs that were built against {name}:", *found]))
    expect(names, "tests/abi has no abi-*.txt; `git checkout` them")


def test_declarations_say_what_they_said(_folder):
    for name, kept in kept_lists():
        try:
            expect(declared_again(kept) > 100, f"{name} has few declarations")
        except Broken as said:
            expect(False, f"declarations of {name}, on which programs rely, are others:\n{said}")


def test_a_list_of_today_would_be_complete(_folder):
    """What is parsed is all that there is: each symbol of the map but experimental ones and NCCL's
    has a declaration."""
    today = today_or_skip()
    declared = {re.search(r"(zero_\w+)\(", line).group(1) for line in today
                if line.startswith("function ")}
    symbols = {line.split()[1] for line in today if line.startswith("symbol ")}
    expect_equal(symbols - declared, {"zero_world_create_nccl"}, "symbols without a declaration")
    expect_equal(declared - symbols, set(), "declarations without a symbol")


def test_each_kind_of_break_is_found(_folder):
    old = ["symbol zero_a ZERO_0.2", "enum ZERO_B 1", "struct zero_c 16 grows",
           "field zero_c.d 8 8", "struct zero_e 8 fixed"]
    expect_equal(list(complaints(old, old)), [], "complaints of nothing")
    longer = [*old[:2], "struct zero_c 24 grows", *old[3:], "field zero_c.f 16 8"]
    expect_equal(list(complaints(old, longer)), [], "complaints of a longer struct")
    breaks = {"symbol zero_a ZERO_0.3": "zero_a", "enum ZERO_B 2": "ZERO_B", "": "zero_a",
              "struct zero_c 8 grows": "zero_c", "struct zero_c 16 fixed": "zero_c",
              "field zero_c.d 12 8": "zero_c.d", "field zero_c.d 8 4": "zero_c.d",
              "struct zero_e 16 fixed": "zero_e"}
    for line, name in breaks.items():
        place = line.split()[:2] or old[0].split()[:2]
        new = [line if other.split()[:2] == place else other for other in old]
        found = list(complaints(old, [other for other in new if other]))
        expect(len(found) == 1 and found[0].startswith(name),
               f"{line or 'without ' + name}: {found}")


def test_another_signature_is_found(_folder):
    for line in ("function uint64_t zero_version_number(void)",
                 "function zero_status zero_step_wait(zero_engine *engine)",
                 "callback typedef void (*zero_rank_fn)(zero_world *world, void *user)"):
        try:
            declared_again([line])
        except Broken:
            continue
        expect(False, f"{line} is taken for what is declared")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
