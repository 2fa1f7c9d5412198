#!/usr/bin/env python3
"""scripts/release on copies of what says the version: it names each place that says another one.

Usage: test_release.py SOURCE. The last line is "N passed, N failed, N skipped"."""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import expect, expect_equal, run_tests  # noqa: E402

SOURCE = sys.argv[1]
FILES = ("scripts/release", "include/zero/version.h", "src/zero.map", "src/zero_plan.map",
         "README.md", "CHANGELOG.md", "packaging/debian/libzero0.symbols",
         "packaging/debian/libzero-plan0.symbols")


def run(folder, *words):
    done = subprocess.run([sys.executable, f"{folder}/scripts/release", *words],
                          capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def copied(folder):
    """The files, and what else has to be there."""
    for path in FILES:
        os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
        shutil.copy(f"{SOURCE}/{path}", f"{folder}/{path}")
    for kind in ("abi", "golden"):
        os.makedirs(f"{folder}/tests/{kind}")
        for name in os.listdir(f"{SOURCE}/tests/{kind}"):
            if name.startswith("abi-") or name[0].isdigit():
                os.mkdir(f"{folder}/tests/{kind}/{name}")
    return folder


def edit(folder, path, old, new):
    with open(f"{folder}/{path}", encoding="utf-8") as file:
        text = file.read()
    expect(old in text, f"{path} has no {old}")
    with open(f"{folder}/{path}", "w", encoding="utf-8") as file:
        file.write(text.replace(old, new))


def version_of(folder):
    with open(f"{folder}/include/zero/version.h", encoding="utf-8") as file:
        return next(line.split('"')[1] for line in file if "ZERO_VERSION_TEXT" in line)


def test_the_repository_agrees(_folder):
    expect_equal(run(SOURCE, "--check", "--try"), (0, ""), "scripts/release --check --try")


def test_another_version_is_found_wherever_it_stands(folder):
    copied(folder)
    version = version_of(folder)
    minor = version.split(".")[1]
    places = {"include/zero/version.h": (f"VERSION_MINOR {minor}", "VERSION_MINOR 77"),
              "src/zero.map": (f"PRIVATE_{version}", "PRIVATE_7.7.7"),
              "README.md": (f"Version {version},", "Version 7.7.7,"),
              "CHANGELOG.md": (f"## {version} (", "## 7.7.7 (")}
    for path, (old, new) in places.items():
        edit(folder, path, old, new)
        status, said = run(folder, "--check", "--try")
        expect(status == 1 and path in said and "7" in said, f"{path} with {new}: {said}")
        edit(folder, path, new, old)
    expect_equal(run(folder, "--check", "--try"), (0, ""), "all as it was")


def test_packages_know_each_version_of_symbols(folder):
    copied(folder)
    for path, node, package in (("src/zero.map", "ZERO_7.7 {", "libzero0"),
                                ("src/zero_plan.map", "ZERO_PLAN_7.7 {", "libzero-plan0")):
        with open(f"{folder}/{path}", "a", encoding="utf-8") as file:
            file.write(f"{node}\n}};\n")
        status, said = run(folder, "--check", "--try")
        expect(status == 1 and f"{package}.symbols" in said and "7.7" in said, f"{path}: {said}")
        edit(folder, path, node, "")


def test_kept_files_of_the_version_are_wanted(folder):
    copied(folder)
    version = version_of(folder)
    for path in (f"tests/golden/{version}", f"tests/abi/abi-{version.rpartition('.')[0]}.txt"):
        os.rmdir(f"{folder}/{path}")
        status, said = run(folder, "--check", "--try")
        expect(status == 1 and path in said, f"without {path}: {said}")
        os.mkdir(f"{folder}/{path}")


def test_a_release_has_a_date(folder):
    copied(folder)
    version = version_of(folder)
    with open(f"{folder}/CHANGELOG.md", encoding="utf-8") as file:
        dated = f"## {version} (unreleased)" not in file.read()
    if not dated:
        status, said = run(folder, "--check")
        expect(status == 1 and "unreleased" in said, f"without a date: {said}")
        expect_equal(run(folder, "--date", "2030-02-03"), (0, ""), "--date")
    expect_equal(run(folder, "--check"), (0, ""), "with a date")
    status, said = run(folder, "--date", "tomorrow")
    expect(status == 1 and '"tomorrow" is no date' in said, said)


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
