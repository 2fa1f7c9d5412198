#!/usr/bin/env python3
"""Writes the binary interface of this release, once: tests/abi/abi-MAJOR.MINOR.txt, with which
every later release is compared (test_kept.py).

Usage: keep_abi.py            in the source of the release; the compiler is $CC, or cc"""

import os
import re
import sys

from abi_list import abi_lines, read

HERE = os.path.dirname(os.path.abspath(__file__))
HEAD = """# The binary interface of libzero.so {version} on 64-bit machines, written by
# tests/abi/keep_abi.py. It stays as it is: programs were built against it.
"""


def main():
    source = os.path.dirname(os.path.dirname(HERE))
    version = re.search(r'ZERO_VERSION_TEXT "((\d+\.\d+)\.\d+)"',
                        read(os.path.join(source, "include/zero/version.h")))
    path = os.path.join(HERE, f"abi-{version.group(2)}.txt")
    if os.path.exists(path):
        sys.exit(f"{path} is there, and stays: programs were built against it. Only a release with "
                 "another minor number has one of its own.")
    lines = abi_lines(os.environ.get("CC", "cc"), source)
    with open(path, "x", encoding="ascii") as file:
        file.write(HEAD.format(version=version.group(1)) + "\n".join(lines) + "\n")
    print(f"{path}: {len(lines)} lines; commit it")


if __name__ == "__main__":
    main()
