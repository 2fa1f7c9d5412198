#!/usr/bin/env python3
"""The C++ headers in every way that they are compiled, and programs that must not compile.

Usage: test_headers.py SOURCE THROWS.cpp MISTAKES.cpp RETURNS.cpp PART.cpp. One line per check; the
last one has the sums. Nothing is linked: the programs of this folder's meson.build run."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../abi")

from checks import Fail, Skip, Tally  # pylint: disable=wrong-import-position,import-error

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wconversion", "-Wsign-conversion",
            "-Wshadow"]
MODES = {"throwing": [], "returning": ["-DZERO_NO_EXCEPTIONS"],
         "without exceptions": ["-fno-exceptions"]}

# What must not compile, and what the compiler says of it.
REFUSED = {
    "an engine is copied": (
        "zero::Engine a; zero::Engine b = a;", r"deleted|implicitly"),
    "a unit is copied": (
        "zero::Unit a; zero::Unit b = a;", r"deleted"),
    "values of double": (
        "std::vector<double> v(4); (void)zero::Array(v);", r"elements are float, zero::bf16"),
    "values that are gone before they are read": (
        "(void)zero::Tensor{\"w\", {4}, std::vector<float>(4)};", r"give the container a name"),
    "a parameter is written": (
        "zero::Unit u; u.param<float>(0)[0] = 1;", r"assign|read-only"),
    "counters are asked for and dropped": (
        "zero::Engine e; e.stats();", r"nodiscard"),
    "a unit is acquired and dropped": (
        "zero::Engine e; e.acquire(0, zero::Pass::forward);", r"nodiscard"),
    "a view of a unit that is gone": (
        "zero::Engine e; auto w = e.acquire(0, zero::Pass::eval).param<float>(0);", r"deleted"),
    "a number for a pass": (
        "zero::Engine e; (void)e.acquire(0, 1);", r"conver"),
    "a rank gives back a number": (
        "zero::World::run(1, [](zero::World &) { return 1.5; });",
        r"gives back nothing, a zero_status"),
    "ranks gather strings": (
        "zero::World w; (void)w.gather(std::string());", r"gather numbers"),
}
DROPPED = {
    "a failure is returned and dropped": (
        "zero::Engine e; e.micro_begin();", r"nodiscard"),
}


def compiled(command, text=None):
    done = subprocess.run([*command, "-fsyntax-only"] + (["-x", "c++", "-"] if text else []),
                          input=text, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode == 0, done.stdout + done.stderr


def must_compile(command, text=None):
    good, said = compiled(command, text)
    if not good:
        raise Fail(said)


def must_not_compile(command, body, wanted):
    names = "".join(f"#include <{name}>\n" for name in ("string", "vector", "zero/zero.hpp"))
    text = f"{names}void f();\nvoid f() {{ {body} }}\n"
    good, said = compiled(command, text)
    if good:
        raise Fail("it compiles")
    if not re.search(wanted, said):
        raise Fail(f"not for {wanted}:\n{said}")


def kernels_include_them(include, standard):
    """A file of CUDA C++, by nvcc and the compiler that it calls."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/trainer.cu"
        with open(path, "w", encoding="utf-8") as file:
            file.write("#include <zero/zero.hpp>\n__global__ void scale(float *x) { *x *= 2; }\n"
                       "zero::Model f();\nzero::Model f() { return zero::Model::create(); }\n")
        done = subprocess.run(["nvcc", f"-std=c++{standard}", include, "-Werror", "all-warnings",
                               "-c", path, "-o", f"{path}.o"],
                              capture_output=True, text=True, check=False, timeout=100)
        if done.returncode != 0:
            raise Fail(done.stdout + done.stderr)


def missing(name):
    raise Skip(f"{name} is not installed")


def main():
    source, throws, mistakes, returns, part = sys.argv[1:]
    base = [*WARNINGS, f"-I{source}/include"]
    tally = Tally()
    folder = f"{source}/include/zero"
    headers = sorted(name for name in os.listdir(folder) if name.endswith(".hpp")
                     and name != "torch.hpp")  # which needs libtorch: tests/torch_cpp
    programs = {"throwing": [throws, mistakes], "returning": [returns, part],
                "without exceptions": [returns, part]}
    found = [name for name in ("g++", "clang++") if shutil.which(name)]
    for name in ("g++", "clang++"):
        if name not in found:
            tally.run(f"{name} compiles the headers", missing, name)
    # Each header alone and twice; standard, compiler and mode in turn, so that each pair is met.
    turns = itertools.cycle(itertools.product(found, MODES.items()))
    for header, (compiler, (mode, flags)) in zip(headers, turns):
        text = f"#include <zero/{header}>\n" * 2
        tally.run(f"{header} alone, {compiler}, {mode}", must_compile,
                  [compiler, "-std=c++17", *base, *flags], text)
    # meson's programs are these in the other ways of its own compiler.
    for compiler, standard, mode in (
            ("clang++", "17", "throwing"), ("clang++", "20", "throwing"),
            ("clang++", "17", "returning"), ("clang++", "20", "without exceptions"),
            ("g++", "20", "returning"), ("g++", "20", "without exceptions")):
        if compiler in found:
            tally.run(f"programs, C++{standard}, {compiler}, {mode}", must_compile,
                      [compiler, f"-std=c++{standard}", *base, *MODES[mode], *programs[mode]])
    for standard in ("17", "20"):
        tally.run(f"a file for nvcc, C++{standard}",
                  *((kernels_include_them, f"-I{source}/include", standard)
                    if shutil.which("nvcc") else (missing, "nvcc")))
    for name, (body, wanted) in REFUSED.items():
        for compiler in found[:1]:
            tally.run(f"refused: {name}", must_not_compile,
                      [compiler, "-std=c++17", *base], body, wanted)
    for name, (body, wanted) in DROPPED.items():
        for compiler in found[:1]:
            tally.run(f"refused: {name}", must_not_compile,
                      [compiler, "-std=c++17", *base, "-fno-exceptions"], body, wanted)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
