#!/usr/bin/env python3
"""Has `zero` find and start a subcommand that is a Python script, `zero trace`: in a build tree, in
an installation that was moved, and where something that it needs is missing.

Usage: test_script.py ZERO SCRIPTS INSTALLED

SCRIPTS is the source's folder; INSTALLED is where an installation has it, from the program's own
folder. The last line is "N passed, N failed, N skipped"."""

import os
import shutil
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import Skip, expect, expect_equal, run_tests  # noqa: E402

ZERO, SCRIPTS, INSTALLED = sys.argv[1:4]
# Python 3.9, but for its number: the version is asked for before anything newer is read.
OLD_PYTHON = f"""#!/bin/sh
shift 2
exec {sys.executable} -c '
import runpy, sys
sys.version_info = (3, 9, 2)
sys.version = "3.9.2 (made up)"
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")' "$@"
"""


def run(*words, program=ZERO, stdout=subprocess.PIPE, **environment):
    return subprocess.run([program, *words], stdout=stdout, stderr=subprocess.PIPE, timeout=60,
                          env={**os.environ, **environment}, check=False)


def check_refused(result, *texts):
    expect_equal((result.returncode, result.stderr.count(b"\n")), (1, 1), f"{result.stderr!r}")
    expect(result.stderr.startswith(b"zero trace: "), f"{result.stderr!r}")
    for text in texts:
        expect(text.encode(errors="surrogateescape") in result.stderr,
               f"no {text!r} in {result.stderr!r}")


def install(folder):
    """The program at its place in an installation in the folder."""
    if INSTALLED.startswith("/"):
        raise Skip("configured with folders outside the prefix")
    program = os.path.join(folder, *["deep"] * INSTALLED.count(".."), "zero")
    os.makedirs(os.path.dirname(program))
    shutil.copy(ZERO, program)
    return program, os.path.normpath(os.path.join(os.path.dirname(program), INSTALLED))


def test_installation_that_was_moved(folder):
    program, scripts = install(folder)
    check_refused(run("trace", "--help", program=program), INSTALLED, "install it again")
    shutil.copytree(SCRIPTS, scripts)
    result = run("trace", "--help", program=program)
    expect_equal((result.returncode, result.stderr), (0, b""), "status")
    expect_equal(result.stdout, run("trace", "--help").stdout, "what it says")


def test_python_that_is_missing(folder):
    check_refused(run("trace", "--help", PATH=folder), "no python3", "Debian: python3")


def test_python_that_is_too_old(folder):
    path = os.path.join(folder, "python3")
    with open(path, "w", encoding="utf-8") as file:
        file.write(OLD_PYTHON)
    os.chmod(path, stat.S_IRWXU)
    check_refused(run("trace", "--help", PATH=f"{folder}:{os.environ['PATH']}"), "3.9.2", "3.11")


def test_settings_of_a_users_python_are_not_its(folder):
    with open(os.path.join(folder, "json.py"), "w", encoding="utf-8") as file:
        file.write("raise SystemExit(7)\n")
    result = run("trace", "--help", PYTHONPATH=folder, PYTHONHOME=folder, PYTHONSAFEPATH="1")
    expect_equal((result.returncode, result.stderr), (0, b""), "status")


def test_mistakes_are_told_as_by_programs(_):
    """Word for word as `zero plan`, whose line C reads, where both have the option."""
    for words in (["--jsno"], ["--json"], ["--help=3"], ["-x"], ["--a-name-of-nothing"],
                  ["--jsom=1"], ["--ehlp"], ["--" + "long" * 30]):
        result = run("trace", *words)
        check_refused(result)
        expect_equal(result.stderr.split(b": ", 1)[1],
                     run("plan", *words).stderr.split(b": ", 1)[1], f"{words}")
    for words in (["-hx"], ["--he", "-x"]):
        expect_equal(run("trace", *words).stdout, run("trace", "--help").stdout, f"{words}")


def test_words_come_in_any_order(folder):
    path = os.path.join(folder, "it")
    for words in (["--js", path, "hang", "/dev/null"], ["hang", f"--json={path}", "/dev/null"],
                  ["hang", "/dev/null", "--json", path],
                  ["--json", path, "--", "hang", "/dev/null"]):
        check_refused(run("trace", *words), "/dev/null is no regular file")
    check_refused(run("trace", "hang", "--", "--json"), "--json cannot be read: No such file")
    check_refused(run("trace", "hang", os.fsdecode(b"of no \xff code")), os.fsdecode(b"no \xff co"))


def test_stdout_that_takes_nothing(_):
    with open("/dev/full", "wb") as full:
        check_refused(run("trace", "--help", stdout=full), "stdout", "No space left on device")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as unread:
        check_refused(run("trace", "--help", stdout=unread), "stdout", "Broken pipe")
    closed = subprocess.run(["sh", "-c", 'exec "$0" trace --help >&-', ZERO],
                            stderr=subprocess.PIPE, check=False)
    check_refused(closed, "stdout", "closed")


if __name__ == "__main__":
    sys.exit(run_tests(globals(), sys.argv[4] if len(sys.argv) > 4 else ""))
