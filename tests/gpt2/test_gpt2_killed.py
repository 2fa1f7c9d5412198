#!/usr/bin/env python3
"""Training with saves that is killed at random moments must find a whole checkpoint each time, and
its losses must be those of a run that nobody killed. It must go on from the newest checkpoint: who
begins anew has the same losses.

Usage: test_gpt2_killed.py GPT2_TRAIN RUN_ELASTIC [MPIRUN...]

ZERO_KILLS says how often each case kills (8); ZERO_KILLS_SEED repeats a run. torchrun is that on
the path, or beside the python that ZERO_TEST_PYTHON names."""

import csv
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

KILLS = int(os.environ.get("ZERO_KILLS", "8"))
SEED = int(os.environ.get("ZERO_KILLS_SEED", str(time.time_ns() % 1000000)))
STEPS = 60
SAVE_EVERY = 3
DEADLINE = 120  # seconds for a run that ends by itself
SMALL = ["--layers", "2", "--heads", "2", "--width", "32", "--seq", "32", "--batch", "4", "--steps",
         str(STEPS), "--val-every", "0", "--sample", "0", "--losses-exact", "--threads", "1"]
ON_DISK = ["--master-tier", "disk", "--moment-tier", "disk"]


class Failure(Exception):
    pass


class Skip(Exception):
    """Why a case cannot run here."""


class Job:
    """A training, alone and with checkpoints."""

    def __init__(self, launcher, program, extra, folder):
        self.launcher = launcher
        self.command = [*launcher, program, "--data", f"{folder}/text", *SMALL, *extra]
        self.full = False  # the last save, which has to succeed, cannot
        if ON_DISK[0] in extra:
            self.command += ["--disk", folder]

    def saving(self, folder):
        run = f"{folder}/run/checkpoints"
        return [*self.command, "--csv", f"{folder}/parts.csv", "--save", run, "--save-every",
                str(SAVE_EVERY), "--resume-if-any", run]


def walk(folder):
    for entry in os.scandir(folder):
        yield from walk(entry.path) if entry.is_dir() else [entry]


def write_text(path, choose):
    words = "in the beginning was light and earth and water and a voice over them all".split()
    with open(path, "w", encoding="utf-8") as file:
        file.write(" ".join(choose.choice(words) for _ in range(4000)))


def losses(path):
    """By step; a step that was trained twice must have had the same loss both times."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if found.setdefault(row["step"], row["loss"]) != row["loss"]:
                raise Failure(f"step {row['step']}: losses {found[row['step']]}, {row['loss']}")
    return found


def ended(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def ranks_of(parent):
    """Processes of the job below `parent`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                    text = file.read()
            except OSError:
                continue
            state, its_parent = text.split(")")[-1].split()[:2]
            if its_parent == str(parent) and state != "Z":
                found.append(int(name))
    return found


def kill_one(process, launcher, choose):
    """The whole process, or under a launcher one of its ranks. Returns whether there was one."""
    ranks = ranks_of(process.pid) if launcher else [process.pid]
    if not ranks:
        return False
    try:
        os.kill(choose.choice(ranks), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def newest_whole(run):
    """The name of the newest checkpoint in the directory `run`, or None."""
    names = os.listdir(run) if os.path.isdir(run) else []
    return max((name for name in names if re.fullmatch("step-[0-9]+", name) and
                os.path.exists(f"{run}/{name}/manifest.json")), default=None)


def check_goes_on(newest, path):
    """Each start that the log tells of is from `newest`, where there was one, or a newer one."""
    with open(path, encoding="utf-8") as file:
        found = re.findall(r"goes on from \S*/(\S+):", file.read())
    if newest and (not found or min(found) < newest):
        raise Failure(f"went on from {found or 'nothing'}, and the newest was {newest}")


def has_trained(path):
    with open(path, encoding="utf-8") as file:
        return "\nexact " in file.read()


def waits_of(pid):
    """What the threads of a process wait for in the kernel."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/wchan", encoding="utf-8") as file:
            found.append(file.read() or "runs")
    return f"{pid}: {', '.join(found)}"


def errors_of(process, launcher):
    """What it has said on stderr when it has ended. Of a launcher that hangs when all its ranks are
    gone nobody is to blame here."""
    try:
        return process.communicate(timeout=DEADLINE)[1]
    except subprocess.TimeoutExpired:
        left = ranks_of(process.pid) if launcher else [process.pid]
        told = [waits_of(pid) for pid in left]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        process.kill()
        if left:
            raise Failure(f"{DEADLINE} s after a death there were {told}") from None
        return process.communicate()[1]


def killed_once(job, folder, longest, choose):
    """Start, and kill after a while. Returns whether it had ended before."""
    newest, log = newest_whole(f"{folder}/run/checkpoints"), f"{folder}/log"
    killed = False
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(job.saving(folder), stdout=file, stderr=subprocess.PIPE,
                                   text=True)
    try:
        process.wait(timeout=choose.uniform(0, longest))
    except subprocess.TimeoutExpired:
        killed = kill_one(process, job.launcher, choose)
    errors = errors_of(process, job.launcher)
    if process.returncode == 0 or has_trained(log):
        check_goes_on(newest, log)
    if process.returncode == 0 or (job.full and "No space left on device" in errors and
                                   process.returncode == 1):
        return True
    if not killed or (process.returncode != -signal.SIGKILL and not job.launcher):
        raise Failure(f"ended with {process.returncode} on its own: {errors[-2000:]}")
    return False


def survives(job, choose, folder):
    """Losses after many deaths are those of a run without one."""
    begun = time.monotonic()
    ended([*job.command, "--csv", f"{folder}/whole.csv"])
    longest = 1.2 * (time.monotonic() - begun)
    whole = losses(f"{folder}/whole.csv")
    killed = 0
    while killed < KILLS:
        patience = longest
        while not killed_once(job, folder, patience, choose):
            killed += 1
            patience *= 1.1  # on a busy machine a run may take longer than the one before
        if losses(f"{folder}/parts.csv") != whole:
            raise Failure(f"after {killed} kills the losses are others")
        shutil.rmtree(f"{folder}/run/checkpoints")
        os.unlink(f"{folder}/parts.csv")
    return f"{killed} kills"


def full(job, choose, folder):
    """The same where the file system has no room for a second checkpoint."""
    ended(job.saving(folder))
    room = 1.5 * sum(entry.stat().st_blocks * 512 for entry in walk(f"{folder}/run/checkpoints"))
    shutil.rmtree(f"{folder}/run/checkpoints")
    os.unlink(f"{folder}/parts.csv")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={int(room)}", "tmpfs",
                              f"{folder}/run"], capture_output=True, check=False)
    if mounted.returncode != 0:
        raise Skip("tmpfs cannot be mounted")
    try:
        job.full = True
        return survives(job, choose, folder)
    finally:
        subprocess.run(["umount", f"{folder}/run"], check=True)


def elastic(program, run_elastic, mpirun, choose, folder):
    """run-elastic goes on with fewer ranks; the batch stays, and so do losses but for rounding."""
    job = Job([*mpirun, "-n", "{ranks}"], program, [], folder)
    ended([word.replace("{ranks}", "4") for word in [*job.command, "--csv", f"{folder}/whole.csv"]])
    with open(f"{folder}/log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([run_elastic, "--ranks", "4,2,1", "--", *job.saving(folder)],
                                   stdout=log, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: os.path.exists(f"{folder}/run/checkpoints/latest"), process)
    newest = newest_whole(f"{folder}/run/checkpoints")
    launcher = ranks_of(process.pid)[0]
    begun = time.monotonic()
    os.kill(choose.choice(ranks_of(launcher)), signal.SIGKILL)
    wait_until(lambda: ranks_of(process.pid) not in ([], [launcher]), process)
    cut = time.monotonic() - begun
    rows = len(losses(f"{folder}/parts.csv"))
    wait_until(lambda: len(losses(f"{folder}/parts.csv")) > rows, process)
    recovered = time.monotonic() - begun
    errors = process.communicate(timeout=DEADLINE)[1]
    if process.returncode != 0 or "with 4 ranks the job was ended by SIGKILL" not in errors:
        raise Failure(f"run-elastic ended with {process.returncode}: {errors[-2000:]}")
    check_goes_on(newest, f"{folder}/log")
    whole, parts = losses(f"{folder}/whole.csv"), losses(f"{folder}/parts.csv")
    if whole.keys() != parts.keys():
        raise Failure(f"{len(whole)} steps without a death, {len(parts)} with one")
    # Other ranks add gradients in another order, and steps make more of that: two runs that nobody
    # kills, of 4 and of 2 ranks, end up to 0.03 apart. At first they are nearly the same, and one
    # step makes up to a hundred times as much of it.
    off = [abs(float.fromhex(whole[step]) - float.fromhex(parts[step])) for step in whole]
    first = next((i for i, value in enumerate(off) if value > 0), len(off))
    grown = max(off[first + 1:first + 2], default=0)
    if first < SAVE_EVERY or max(off[first:first + 1], default=0) > 1e-4 or grown > 1e-3 or max(
            off) > 0.1:
        raise Failure(f"losses differ from row {first} on by {off[first:first + 3]}, {max(off)}")
    if recovered > cut + 10:
        raise Failure(f"the job trained again {recovered - cut:.1f} s after its restart")
    return f"trained again {recovered:.1f} s after the death, {cut:.1f} s of them the launcher's"


def find_torchrun():
    python = os.environ.get("ZERO_TEST_PYTHON")
    beside = os.path.dirname(python) if python else None
    return shutil.which("torchrun") or (beside and shutil.which("torchrun", path=beside))


def restarted(program, choose, folder):
    """torchrun starts all its ranks again when one dies; the losses are those of no death."""
    torchrun = find_torchrun()
    if not torchrun:
        raise Skip("there is no torchrun")
    launcher = [torchrun, "--max-restarts", "1", "--no-python", "--nproc-per-node", "3"]
    job = Job(launcher, program, ["--batch", "6"], folder)
    ended([*job.command, "--csv", f"{folder}/whole.csv"])
    with open(f"{folder}/log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(job.saving(folder), stdout=log, stderr=subprocess.PIPE,
                                   text=True)
    wait_until(lambda: os.path.exists(f"{folder}/run/checkpoints/latest"), process)
    newest = newest_whole(f"{folder}/run/checkpoints")
    ranks = ranks_of(process.pid)
    begun = time.monotonic()
    os.kill(choose.choice(ranks), signal.SIGKILL)
    wait_until(lambda: not set(ranks) & set(ranks_of(process.pid)), process)
    cut = time.monotonic() - begun
    steps = len(losses(f"{folder}/parts.csv"))
    wait_until(lambda: len(losses(f"{folder}/parts.csv")) > steps, process)
    recovered = time.monotonic() - begun
    errors = process.communicate(timeout=DEADLINE)[1]
    if process.returncode != 0:
        raise Failure(f"torchrun ended with {process.returncode}: {errors[-2000:]}")
    check_goes_on(newest, f"{folder}/log")
    if losses(f"{folder}/whole.csv") != losses(f"{folder}/parts.csv"):
        raise Failure("the losses are others")
    return f"trained again {recovered:.1f} s after the death, {cut:.1f} s of them torchrun's"


def wait_until(reached, process):
    until = time.monotonic() + DEADLINE
    while not reached():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise Failure(f"ended with {process.returncode}: {process.communicate()[1][-2000:]}")
        time.sleep(0.005)


def main():
    program, run_elastic, *mpirun = sys.argv[1:]
    choose = random.Random(SEED)
    threads = ["--ranks", "2"]
    cases = {
        "ranks as threads":
            lambda folder: survives(Job([], program, threads, folder), choose, folder),
        "state on disk":
            lambda folder: survives(Job([], program, threads + ON_DISK, folder), choose, folder),
        "no room for a second checkpoint":
            lambda folder: full(Job([], program, threads, folder), choose, folder),
        "torchrun's restart": lambda folder: restarted(program, choose, folder),
    }  # fmt: skip
    if mpirun:
        cases["one rank of three processes"] = lambda folder: survives(
            Job([*mpirun, "-n", "3"], program, ["--batch", "6"], folder), choose, folder)
        cases["with the ranks that are left"] = lambda folder: elastic(
            program, run_elastic, mpirun, choose, folder)
    passed = skipped = 0
    for name, case in cases.items():
        try:
            with tempfile.TemporaryDirectory() as folder:
                said = run_case(case, folder, choose)
            passed += 1
            print(f"ok      {name}: {said}")
        except Skip as reason:
            skipped += 1
            print(f"skipped {name}: {reason}")
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAILED  {name}, seed {SEED}: {failure}")
    failed = len(cases) - passed - skipped
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def run_case(case, folder, choose):
    write_text(f"{folder}/text", choose)
    os.mkdir(f"{folder}/run")
    return case(folder)


if __name__ == "__main__":
    sys.exit(main())
