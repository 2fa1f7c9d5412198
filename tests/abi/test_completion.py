#!/usr/bin/env python3
"""Completion of `zero` in the shells that are installed: what TAB offers for lines.

Usage: test_completion.py PROGRAM BASH ZSH FISH   (the files that are installed)

One line per check; the last line is "N passed, N failed, N skipped"."""

import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from checks import Fail, Skip, Tally

BASH_COMPLETION = "/usr/share/bash-completion/bash_completion"
PATIENCE_S = 20
# Options of programs that `zero` itself starts.
HIDDEN = {"as-rank"}

# The folder has the files model.json and other.txt and the folder runs. A line, and its offers.
OFFERED = {
    "zero ": "bench ckpt io options plan sim trace",
    "zero pl": "plan",
    "zero --": "--help --version",
    "zero ckpt ": "diff export import ls prune reshard show verify",
    "zero ckpt export --d": "--dtype",
    "zero ckpt export --dtype ": "bf16 f16 f32",
    "zero ckpt export --role m": "master",
    "zero ckpt show r": "runs",
    "zero ckpt show m": "",
    "zero plan llama-40": "llama-405b",
    "zero plan gpt2 works": "workstation",
    "zero plan --nodes 4 llama-40": "llama-405b",
    "zero plan m": "mixtral-8x7b model.json",
    "zero plan gpt2 --json o": "other.txt",
    "zero plan gpt2 --nodes ": "",
    "zero plan gpt2 --units ": "blocks layers matrices",
    "zero plan gpt2 --wire ": "zero++",
    "zero sim gpt2 --tra": "--trace",
    "zero bench over": "overlap",
    "zero bench adam hoo": "hooks",
    "zero bench calib": "calibrate",
    "zero bench calibrate --device ": "cpu cuda",
    "zero bench calibrate --mo": "",
    "zero io r": "runs",
    "zero io runs r": "runs",
    "zero io runs --io-backend ": "fixed posix uring",
    "zero trace ": "hang merge summary",
    "zero trace merge o": "other.txt",
    "zero options --ma": "--markdown",
}

HARNESS = """
. {completion} || exit 1
. {file} || exit 1
compopt() {{ :; }}  # there is no readline here
while IFS= read -r line; do
    COMP_LINE=$line COMP_POINT=${{#line}} COMPREPLY=()
    spaced=${{line//=/ = }}
    read -ra COMP_WORDS <<< "$spaced"
    [[ $line != *' ' ]] || COMP_WORDS+=('')
    COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    _zero
    printf '%s\\n' "${{COMPREPLY[*]}}"
done
"""


def run(*command, text=None, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=text, **more)
    if done.returncode != 0 or done.stderr:
        raise Fail(f"{command}: exit {done.returncode}: {done.stderr}")
    return done.stdout


class Scratch:
    """A folder to complete names of, the program and the files for shells."""

    def __init__(self, folder, program, files):
        self.folder = folder
        self.program = program
        self.bash, self.zsh, self.fish = map(os.path.abspath, files)
        for name in ("model.json", "other.txt"):
            with open(f"{folder}/{name}", "w", encoding="utf-8"):
                pass
        os.mkdir(f"{folder}/runs")

    def in_bash(self, lines):
        if shutil.which("bash") is None or not os.path.exists(BASH_COMPLETION):
            raise Skip("bash-completion is not installed (Debian: bash-completion)")
        harness = HARNESS.format(completion=BASH_COMPLETION, file=shlex.quote(self.bash))
        said = run("bash", "--norc", "-c", harness, text="\n".join(lines) + "\n", cwd=self.folder)
        return [sorted(line.split()) for line in said.split("\n")[:-1]]

    def in_fish(self, lines):
        if shutil.which("fish") is None:
            raise Skip("fish is not installed (Debian: fish)")
        script = f"source {shlex.quote(self.fish)}\n" + "".join(
            f"complete -C {shlex.quote(line)} | cut -f1\necho ---\n" for line in lines)
        said = run("fish", "--no-config", text=script, cwd=self.folder,
                   env={**os.environ, "HOME": self.folder})
        return [sorted(part.rstrip("/") for part in offered.split())
                for offered in said.split("---\n")[:-1]]

    def options(self, words):
        """Of a command: its help's, each with the rest of the row."""
        return dict(re.findall(r"^  (?:-h, )?--([\w-]+)(.*)$", run(self.program, *words, "--help"),
                               re.MULTILINE))


def commands(scratch, above=()):
    """The words of every command."""
    text = run(scratch.program, *above, "--help")
    listed = re.search(r"^commands:\n(.*?)\n\n", text, re.DOTALL | re.MULTILINE)
    names = re.findall(r"^  (\w+)", listed[1], re.MULTILINE) if listed else []
    names += ["calibrate"] if above == ("bench",) else []
    return [above] + [found for name in names for found in commands(scratch, (*above, name))]


def offers(scratch, complete):
    for line, offered in zip(OFFERED, complete(list(OFFERED)), strict=True):
        if offered != sorted(OFFERED[line].split()):
            raise Fail(f'"{line}": {offered}, not {OFFERED[line]}')


def every_option(scratch, complete):
    """Each option of each command's help."""
    every = [words for words in commands(scratch) if words]
    lines = [f"zero {' '.join(words)} --" for words in every]
    if len(lines) != 16:
        raise Fail(f"commands: {every}")
    for words, offered in zip(every, complete(lines), strict=True):
        wanted = sorted("--" + name for name in {*scratch.options(words), "help"})
        if offered != wanted:
            raise Fail(f"{words}: {offered}, not {wanted}")


def helps_are_tables(scratch):
    """What a help lists is what the program reads. `plan` and `sim` share a table."""
    for words in commands(scratch):
        if not words or words == ("ckpt",):
            continue
        table = dict(line.split() for line in
                     run(scratch.program, *words, "--print-options").splitlines())
        others = ("plan", "sim") if words[0] in ("plan", "sim") else (words,)
        shown = {name for other in others for name in scratch.options(
            (other,) if isinstance(other, str) else other)} - {"help"}
        if set(table) - HIDDEN != shown:
            raise Fail(f"{words}: the table has {sorted(table)}, the help {sorted(shown)}")
        for name in scratch.options(words):
            done = subprocess.run([scratch.program, *words, f"--{name}"], capture_output=True,
                                  text=True, check=False) if table.get(name) == "value" else None
            if done is not None and f"--{name} needs a value" not in done.stderr:
                raise Fail(f"{words} --{name}: {done.stderr}")


def engine_options(scratch):
    """--set: the names of all options that text can give, and values of those that have few."""
    report = json.loads(run(scratch.program, "options", "--json", "-"))["options"]
    names = sorted(option["name"] for option in report if option["kind"] != "pointer")
    named, values, joined = scratch.in_bash(
        ["zero plan gpt2 --set ", "zero plan gpt2 --set reduction=", "zero sim --set=stage="])
    if named != [name + "=" for name in names] or len(names) < 30:
        raise Fail(f"{named}, not {names}")
    if values != ["default", "exact", "native"] or joined != ["0", "1", "2", "3"]:
        raise Fail(f"{values}, {joined}")


def typed(scratch, shell, setup, lines):
    """Lines with a TAB at their end, typed to a shell on a terminal, become others."""
    if shutil.which(shell[0]) is None:
        raise Skip(f"{shell[0]} is not installed (Debian: {shell[0]})")
    env = {**os.environ, "TERM": "dumb", "PS1": "> ", "HOME": scratch.folder}
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(scratch.folder)
        os.execvpe(shell[0], shell, env)
    try:
        # The shell prints the line as it is typed, which has no "ready" in one piece.
        ask(terminal, f"{setup}; echo re''ady\n", r"ready\r?\n(?s:.*)> ")
        for line, wanted in lines.items():
            ask(terminal, line + "\t", re.escape(wanted))
            os.write(terminal, b"\x15")
    finally:
        os.write(terminal, b"\x15exit\n")
        os.close(terminal)
        os.waitpid(child, 0)


def ask(terminal, text, wanted):
    """Types, and waits until the terminal shows what matches."""
    os.write(terminal, text.encode())
    shown, end = "", time.monotonic() + PATIENCE_S
    while not re.search(wanted, shown.replace("\x07", "")):
        left = end - time.monotonic()
        if left <= 0 or not select.select([terminal], [], [], left)[0]:
            raise Fail(f"{text!r} shows {shown!r}, without {wanted!r}")
        shown += os.read(terminal, 65536).decode(errors="replace")


TYPED = {
    "zero pl": "zero plan ",
    "zero plan --nod": "zero plan --nodes",
    "zero plan llama-40": "llama-405b ",
    "zero plan gpt2 works": "workstation ",
    "zero plan gpt2 --set redu": "--set reduction=",
    "zero plan gpt2 --set reduction=na": "--set reduction=native ",
    "zero plan gpt2 --set=reduction=na": "--set=reduction=native ",
    "zero ckpt export --dtype=b": "--dtype=bf16 ",
    "zero bench calibrate --ou": "--out",
    "zero bench adam hoo": "hooks ",
    "zero trace merge oth": "other.txt ",
    "zero io ru": "runs/",
}


def in_terminal_bash(scratch):
    if not os.path.exists(BASH_COMPLETION):
        raise Skip("bash-completion is not installed (Debian: bash-completion)")
    typed(scratch, ["bash", "--norc", "-i"],
          f". {BASH_COMPLETION}; . {shlex.quote(scratch.bash)}", TYPED)


def in_terminal_zsh(scratch):
    folder = shlex.quote(os.path.dirname(scratch.zsh))
    typed(scratch, ["zsh", "-f", "-i"], f"fpath=({folder} $fpath); autoload -U compinit; "
          "compinit -u -D; PS1='> '", TYPED)


def main():
    program, *files = sys.argv[1:]
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(folder, program, files)
        tally.run("helps are what the program reads", helps_are_tables, scratch)
        tally.run("bash: lines", offers, scratch, scratch.in_bash)
        tally.run("bash: every option", every_option, scratch, scratch.in_bash)
        tally.run("bash: options of the engine", engine_options, scratch)
        tally.run("bash on a terminal", in_terminal_bash, scratch)
        tally.run("zsh on a terminal", in_terminal_zsh, scratch)
        tally.run("fish: lines", offers, scratch, scratch.in_fish)
        tally.run("fish: every option", every_option, scratch, scratch.in_fish)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
