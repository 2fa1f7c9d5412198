#!/usr/bin/env python3
"""scripts/run-elastic must start a job again with the ranks that are left.

Usage: test_run_elastic.py FOLDER_OF_SCRIPTS"""

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time

# A job that says how many ranks it has, and is killed once for each word in the file $LIVES.
MORTAL = 'echo {ranks}; if [ -s $LIVES ]; then sed -i 1d $LIVES; kill -9 $$; fi'
# name: (arguments, job, lives, exit status, what the job says, what run-elastic says)
CASES = {
    "a job that ends is not started again":
        ("--ranks 4", "echo {ranks}", 0, 0, "4", ""),
    "a rank less after each death, of those allowed":
        ("--ranks 1,4,2", MORTAL, 2, 0, "4 2 1", "with 2 ranks the job was ended by SIGKILL"),
    "as many ranks again where they are kept":
        ("--ranks 4,2 --keep-ranks", MORTAL, 2, 0, "4 4 4", "SIGKILL"),
    "nothing is left":
        ("--ranks 4,3", MORTAL, 9, 1, "4 3", "2 ranks are left, and --ranks allows 3 at least"),
    "as many ranks as the probe prints":
        ("--ranks 8,4,2 --probe 'echo 5'", MORTAL, 1, 0, "4 4", ""),
    "a failure loses no rank":
        ("--ranks 2,1 --restarts 1", "echo {ranks}; exit 3", 0, 3, "2 2",
         "ended with status 3, 2 times in a row within 60 s"),
    "a job that ran well for a while is always started again":
        ("--ranks 1 --restarts 0 --healthy 0 --keep-ranks", MORTAL, 3, 0, "1 1 1 1", ""),
    "no restart where none is allowed":
        ("--ranks 2,1 --restarts 0", MORTAL, 1, 137, "2", "it is not started again"),
    "numbers that are none":
        ("--ranks 4,x", "echo {ranks}", 0, 2, "", "--ranks 4,x is not a list of numbers"),
    "no ranks at all":
        ("--ranks 0", "echo {ranks}", 0, 2, "", "a job has at least one rank"),
    "a probe that prints no number":
        ("--ranks 2 --probe 'echo many'", "echo {ranks}", 0, 2, "", "printed 'many'"),
    "an option that is none":
        ("--rank 2", "echo {ranks}", 0, 2, "", "see --help"),
}  # fmt: skip


# Says each SIGINT, and ends a second after the last one.
COUNTS = ("left=1000; trap 'echo INT; left=20' INT; echo {ranks}; "
          "while [ $left -gt 0 ]; do sleep 0.05; left=$((left - 1)); done; exit 7")


def started(scripts, arguments, job, folder, lives):
    with open(f"{folder}/lives", "w", encoding="utf-8") as file:
        file.write("x\n" * lives)
    return subprocess.Popen(
        ["sh", "-c", f'exec "$0" {arguments} -- sh -c "$1"', f"{scripts}/run-elastic", job],
        env={**os.environ, "LIVES": f"{folder}/lives"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def as_expected(scripts, case):
    arguments, job, lives, status, said, reported = case
    with tempfile.TemporaryDirectory() as folder:
        process = started(scripts, arguments, job, folder, lives)
        out, errors = process.communicate(timeout=60)
    good = process.returncode == status and out.split() == said.split() and reported in errors
    if not good:
        print(f"status {process.returncode}, output {out!r}, errors {errors!r}")
    return good


def passes_signals_on(scripts):
    """The job gets SIGTERM, ends in its own time with its own status, and is not started again."""
    job = "trap 'echo ends; exit 143' TERM; echo {ranks}; while :; do sleep 0.05; done"
    with tempfile.TemporaryDirectory() as folder:
        process = started(scripts, "--ranks 2,1", job, folder, 0)
        begun = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[0]
    return begun == "2\n" and rest == "ends\n" and process.returncode == 143


def interrupted_once(scripts, send):
    """The job gets one SIGINT of what `send` does. run-elastic stands still for a while, so that a
    second one could not merge with the first."""
    with tempfile.TemporaryDirectory() as folder:
        process = started(scripts, "--ranks 2,1", COUNTS, folder, 0)
        begun = process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        send(process.pid, signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGCONT)
        rest = process.communicate(timeout=60)[0]
    good = begun == "2\n" and rest == "INT\n" and process.returncode == 7
    if not good:
        print(f"status {process.returncode}, output {begun + rest!r}")
    return good


def state(pid):
    """Of a process, the letter that ps prints."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().split(")")[-1].split()[0]


def becomes(reached):
    until = time.monotonic() + 10
    while not reached() and time.monotonic() < until:
        time.sleep(0.01)
    return reached()


def suspends(scripts):
    """The job stops with run-elastic, and goes on with it."""
    job = "echo $$; exec sleep 60"
    with tempfile.TemporaryDirectory() as folder:
        process = started(scripts, "--ranks 2,1", job, folder, 0)
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGTSTP)
        stopped = becomes(lambda: state(pid) == state(process.pid) == "T")
        process.send_signal(signal.SIGCONT)
        continued = becomes(lambda: state(pid) != "T")
        process.send_signal(signal.SIGTERM)
        if not continued:
            os.kill(pid, signal.SIGCONT)  # so that it ends
        process.communicate(timeout=60)
    return stopped and continued and process.returncode == 128 + signal.SIGTERM


def read_until(terminal, text):
    said = ""
    try:
        while text not in said and select.select([terminal], [], [], 10)[0]:
            said += os.read(terminal, 4096).decode()
    except OSError:  # there is no process left that has the terminal
        pass
    return said


def at_a_terminal(scripts):
    """Ctrl-C reaches the job once, which may write to the terminal but not read it."""
    job = "stty tostop <&1; cat; " + COUNTS
    command = [f"{scripts}/run-elastic", "--ranks", "2,1", "--", "sh", "-c", job]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(command[0], command)
    said = read_until(terminal, "2\r\n")
    os.write(terminal, b"\x03")
    said += read_until(terminal, "nothing says this")
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    good = said.replace("^C", "").split() == ["2", "INT"] and status == 7
    if not good:
        print(f"status {status}, output {said!r}")
    return good


def pauses(scripts):
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        process = started(scripts, "--ranks 2,1 --pause 0.4", MORTAL, folder, 1)
        process.communicate(timeout=60)
    return time.monotonic() - begun >= 0.4


def main():
    scripts = sys.argv[1]
    cases = {name: as_expected(scripts, case) for name, case in CASES.items()}
    cases["signals are passed on"] = passes_signals_on(scripts)
    cases["one SIGINT where the group gets it"] = interrupted_once(scripts, os.killpg)
    cases["one SIGINT where run-elastic alone gets it"] = interrupted_once(scripts, os.kill)
    cases["one SIGINT of a terminal's Ctrl-C"] = at_a_terminal(scripts)
    cases["the job stops with it"] = suspends(scripts)
    cases["it pauses"] = pauses(scripts)
    for name, good in cases.items():
        print(f"{'ok' if good else 'FAILED':8}{name}")
    failed = sum(not good for good in cases.values())
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
