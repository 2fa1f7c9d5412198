#!/usr/bin/env python3
"""examples/embed: how little of an ordinary trainer changes, and that it trains as it did.

Usage: test_embed.py SOURCE PLAIN SHARDED. One line per check; the last is "N passed, N failed"."""

import array
import difflib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile

from checks import Tally

# Changed or new lines of code, as a diff has them, without blank ones, comments and
# lone braces.
LINES_MAX = 60
# Sums are in another order: with several ranks, and in AdamW's formula.
LOSS_BOUND = 1e-4
PARAMETER_BOUND = 1e-3  # one step of one parameter


def code_lines(path):
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
    lines = [line.rstrip() for line in text.split("\n")]
    return [line for line in lines if line.strip() not in ("", "{", "}")]


def changed_lines(plain, sharded):
    matcher = difflib.SequenceMatcher(None, code_lines(plain), code_lines(sharded), False)
    return sum(j2 - j1 for tag, _, _, j1, j2 in matcher.get_opcodes() if tag != "equal")


def start(command, rank, ranks):
    """A process as torchrun starts it."""
    launcher = {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 20000 + os.getpid() % 40000,
        "TORCHELASTIC_RUN_ID": f"embed-{os.getpid()}",
    }
    env = dict(os.environ, **{name: str(value) for name, value in launcher.items()})
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def train(command, checkpoint, ranks=1):
    """The mean of the ranks' losses at each step, the parameters saved, and what went wrong."""
    processes = [start(command, rank, ranks) for rank in range(ranks)]
    losses, wrong = [], ""
    for process in processes:
        output, said = process.communicate(timeout=200)
        wrong += said if process.returncode == 0 else f"exit {process.returncode}: {said}"
        found = re.findall(r"^step \d+  loss (\S+)$", output, re.MULTILINE)
        losses.append([float(loss) for loss in found])
    parameters = array.array("f")
    if not wrong:
        with open(checkpoint, "rb") as file:
            parameters.frombytes(file.read())
    return [sum(each) / ranks for each in zip(*losses)], parameters, wrong


def furthest(left, right):
    if len(left) != len(right) or not left:
        return float("inf")
    return max(abs(x - y) for x, y in zip(left, right))


def check_full_disk(check, command, checkpoint):
    """The checkpoint of a run before stays whole where the next does not fit."""
    with open(checkpoint, "rb") as file:
        before = file.read()

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))

    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    with open(checkpoint, "rb") as file:
        after = file.read()
    check("a checkpoint that does not fit is said so",
          done.returncode == 1 and f"{checkpoint}: File too large" in done.stderr, done.stderr)
    check("and the one before stays", after == before, f"{len(after)} bytes")
    check("and nothing is beside it", not os.path.exists(f"{checkpoint}.part"), checkpoint)


def main():
    source, plain, sharded, *sample = sys.argv[1:]
    text = f"{source}/LICENSE"
    tally = Tally()
    check = tally.check
    folder = f"{source}/examples/embed"
    changed = changed_lines(f"{folder}/plain_trainer.c", f"{folder}/sharded_trainer.c")
    check(f"at most {LINES_MAX} lines change", 30 < changed <= LINES_MAX, f"{changed} lines")
    with tempfile.TemporaryDirectory(dir=".") as scratch:
        checkpoint = f"{scratch}/checkpoint"
        losses, parameters, wrong = train([plain, text, checkpoint], checkpoint)
        check("the plain trainer runs", not wrong and len(losses) == 60, wrong)
        check("and learns", losses and losses[-1] < 0.6 * losses[0], losses[-1:])
        check_full_disk(check, [plain, text, checkpoint], checkpoint)
        ways = [("0", []), ("1", []), ("2", []), ("3", []), ("3", [scratch])]
        for ranks in (1, 2) if not sample else (2,):
            first = None
            for stage, disk in ways if not sample else ways[::4]:
                name = f"{ranks} ranks, stage {stage}{', all on disk' if disk else ''}"
                os.remove(checkpoint)
                command = [sharded, text, checkpoint, stage, *disk]
                own, trained, wrong = train(command, checkpoint, ranks)
                check(f"{name} runs", not wrong, wrong)
                apart = furthest(own, losses)
                check(f"{name}: the plain losses", apart <= LOSS_BOUND, apart)
                apart = furthest(trained, parameters)
                check(f"{name}: the plain checkpoint", apart <= PARAMETER_BOUND, apart)
                first = first or (own, trained)
                check(f"{name}: the same bits as stage 0", (own, trained) == first, "others")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
