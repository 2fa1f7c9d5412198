#!/usr/bin/env python3
"""What one build compiles otherwise than another has: sources that the other leaves out, and those
that it compiles with other definitions.

Usage: compiled_otherwise.py BUILD OTHER
One target of ninja a line."""

import json
import re
import sys


def objects(build):
    """{(source, definitions): object}"""
    with open(f"{build}/compile_commands.json", encoding="utf-8") as file:
        listed = json.load(file)
    return {(entry["file"], *sorted(re.findall(r" -D\S+", entry["command"]))): entry["output"]
            for entry in listed if entry["file"].endswith(".c")}


def main():
    build, other = (objects(folder) for folder in sys.argv[1:])
    print("\n".join(sorted(build[key] for key in build.keys() - other.keys())))


if __name__ == "__main__":
    main()
