#!/usr/bin/env python3
"""The library's sources with another C library's headers, those of musl.

Usage: test_musl.py SOURCE BUILD

BUILD has nothing that is optional: what it compiles needs a C library, Linux, xxhash and jansson.
The last line is "N passed, N failed, N skipped"."""

import concurrent.futures
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

from checks import Fail, Skip, Tally


def headers(folder):
    """A folder of headers that come from elsewhere: those of Linux, xxhash and jansson."""
    triple = subprocess.run(["gcc", "-print-multiarch"], check=False, capture_output=True,
                            text=True).stdout.strip()
    needed = {"libxxhash": ["xxhash.h"], "jansson": ["jansson.h", "jansson_config.h"]}
    for module, names in needed.items():
        place = subprocess.run(["pkg-config", "--variable=includedir", module], check=False,
                               capture_output=True, text=True).stdout.strip() or "/usr/include"
        for name in names:
            folders = [place, f"/usr/include/{triple}"]
            shutil.copy(next(f"{at}/{name}" for at in folders if os.path.exists(f"{at}/{name}")),
                        folder)
    for name in ("linux", "asm-generic", "asm"):
        places = [f"/usr/include/{triple}/{name}", f"/usr/include/{name}"]
        os.symlink(next(filter(os.path.isdir, places), places[-1]), f"{folder}/{name}")


def library(build):
    """Sources of the library, with the definitions that they are compiled with."""
    with open(f"{build}/compile_commands.json", encoding="utf-8") as file:
        listed = json.load(file)
    sources = {}
    for entry in listed:
        path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
        words = shlex.split(entry["command"])
        if entry["output"].startswith("src/") and path.endswith(".c"):
            sources[path] = [word for word in words if word.startswith("-DZI_")]
    return sources


def compiles(source, build):
    if shutil.which("musl-gcc") is None:
        raise Skip("musl-gcc is not installed (Debian: musl-tools)")
    with tempfile.TemporaryDirectory() as folder:
        headers(folder)
        common = ["musl-gcc", "-std=c11", "-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Wextra",
                  "-Werror", f"-I{source}/include", f"-I{source}/src", "-idirafter", folder]

        def compile_one(item):
            path, definitions = item
            done = subprocess.run([*common, *definitions, path], check=False,
                                  stderr=subprocess.PIPE, text=True)
            return done.stderr if done.returncode != 0 else ""

        sources = library(build)
        if len(sources) < 100:
            raise Fail(f"{build} compiles {len(sources)} sources of the library")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            said = "".join(pool.map(compile_one, sources.items()))
    if said:
        raise Fail(said)


def main():
    tally = Tally()
    tally.run("the library's sources compile with musl's headers", compiles, *sys.argv[1:3])
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
