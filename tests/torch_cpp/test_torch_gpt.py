#!/usr/bin/env python3
"""examples/torch_cpp: its losses at every stage, launched in every way, beside libtorch's own.

Usage: test_torch_gpt.py TORCH_GPT SOURCE [MPIRUN ARGUMENT...]. One line per check; the last one has
the sums."""

import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../abi")

from checks import Tally  # pylint: disable=wrong-import-position,import-error

# Of a loss that is printed with five decimals: sums are in another order, nothing else differs.
BOUND = 2e-4
STEPS = "5"


def rank_of(rank, size):
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "localhost",
            "ZERO_JOB_TOKEN": f"torch_gpt {os.getpid()} {size}"}


def start(line, environment=None):
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})


def ended(processes):
    """Status, output and errors of each."""
    found = []
    for process in processes:
        output, errors = process.communicate(timeout=120)
        found.append((process.returncode, output, errors))
    return found


def run(*line):
    return ended([start(line)])[0]


def losses(text):
    return [float(line.split()[-1]) for line in text.splitlines() if "loss" in line]


def close(found, wanted):
    return len(found) == len(wanted) and all(
        abs(one - other) <= BOUND for one, other in zip(found, wanted))


def check_stages(tally, gpt, text):
    """Gives the losses of 2 ranks at stage 3."""
    processes = [start([gpt, text, "--steps", STEPS, "--plain"])]
    processes += [start([gpt, text, "--steps", STEPS, "--stage", stage]) for stage in "0123"]
    plain, *stages = ended(processes)
    wanted = losses(plain[1])
    tally.check("libtorch alone trains", plain[0] == 0 and len(wanted) == int(STEPS), plain)
    for stage, found in enumerate(stages):
        tally.check(f"stage {stage} has its losses",
                    found[0] == 0 and close(losses(found[1]), wanted), (found, wanted))
    tally.check("stages have the same", len({found[1] for found in stages}) == 1, stages)
    return stages[3][1]


def check_launches(tally, gpt, text, mpirun):
    line = [gpt, text, "--steps", STEPS]
    threads = run(*line, "--ranks", "4")
    tally.check("4 ranks as threads", threads[0] == 0 and threads[1], threads)
    processes = ended([start(line, rank_of(rank, 4)) for rank in range(4)])
    tally.check("4 launched processes have the losses of threads",
                [found[0] for found in processes] == [0] * 4 and processes[0][1] == threads[1],
                processes)
    if not mpirun:
        tally.note("mpirun", "skip", "skipped: no MPI was built in")
        return
    found = run(*mpirun, "-n", "4", *line)
    tally.check("so has mpirun -n 4", found[0] == 0 and found[1] == threads[1], found)


def check_resumed(tally, gpt, text, wanted, folder):
    half = run(gpt, text, "--steps", "3", "--save", folder, "--ranks", "2")
    rest = run(gpt, text, "--steps", STEPS, "--load", folder, "--ranks", "2", "--stage", "1")
    tally.check("a run that is saved and loaded at another stage is the same",
                half[0] == 0 and rest[0] == 0 and half[1] + rest[1] == wanted,
                (half, rest, wanted))


def check_killed(tally, gpt, text):
    processes = [start([gpt, text, "--steps", "1000000"], rank_of(rank, 4)) for rank in range(4)]
    try:
        while "step    2" not in processes[0].stdout.readline():
            pass
        processes[2].send_signal(signal.SIGKILL)
        begun = time.monotonic()
        found = ended(processes)
        took = time.monotonic() - begun
    finally:
        for process in processes:
            process.kill()
    others = [found[rank] for rank in (0, 1, 3)]
    tally.check("a rank that is killed is an error on all others, with its number",
                all(status == 1 and "rank 2" in errors for status, _, errors in others), others)
    tally.check("it is soon", took < 20, took)


def main():
    gpt, source, *mpirun = sys.argv[1:]
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        text = f"{folder}/text"
        with open(text, "w", encoding="utf-8") as file:
            for name in ("README.md", "ARCHITECTURE.md"):
                with open(f"{source}/{name}", encoding="utf-8") as page:
                    file.write(page.read())
        wanted = check_stages(tally, gpt, text)
        check_launches(tally, gpt, text, mpirun)
        check_resumed(tally, gpt, text, wanted, f"{folder}/run")
        check_killed(tally, gpt, text)
        status, _, said = run(gpt, text, "--stage", "7")
        tally.check("stage 7 is refused with a reason", status == 1 and "stage" in said, said)
        status, _, said = run(gpt, f"{folder}/none")
        tally.check("a text that is not there is refused",
                    status == 1 and "0 bytes" in said, said)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
