#!/usr/bin/env python3
"""`zero bench calibrate`, as a user types it: what it writes is a cluster that `zero plan` reads,
every field that can be measured has a value of some sense, and nothing is left behind. Speed is
never judged: two runs may differ by what else runs.

Usage: test_calibrate.py PROGRAM [PROGRAM OVER THE DOUBLE OF CUDA]. One line per check; the last is
"N passed, N failed, N skipped"."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

counts = {True: 0, False: 0}

KNOWN = ("nodes", "ranks_per_node", "device_bytes", "host_bytes")
TIMED = ("device_bytes_per_s", "host_bytes_per_s", "host_link_bytes_per_s",
         "host_link_latency_ns", "local_bytes_per_s", "local_latency_ns")
DISK = ("disk_bytes", "disk_read_bytes_per_s", "disk_write_bytes_per_s", "disk_latency_ns")
PRODUCTS = ("device_flops", "device_permille", "attention_permille")
FABRIC = ("fabric_bytes_per_s", "fabric_permille", "fabric_latency_ns")


def check(name, holds, detail=""):
    counts[bool(holds)] += 1
    print(f"{'ok' if holds else 'FAILED':8}{name}{'' if holds else ': ' + str(detail)}")


def run(program, *words):
    return subprocess.run([program, "bench", "calibrate", *words], capture_output=True, text=True,
                          check=False)


def in_memory(folder):
    done = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() in ("tmpfs", "ramfs")


def check_cluster(program, folder):
    path = os.path.join(folder, "cluster.json")
    words = ("--tiny", "--device", "cpu", "--ranks", "2", "--dir", folder, "--out")
    done = run(program, *words, path)
    check("a machine is measured", done.returncode == 0, done.stderr)
    with open(path, encoding="utf-8") as file:
        first = json.load(file)
    second = json.loads(run(program, *words, "-").stdout)
    on_disk = () if in_memory(folder) else DISK
    products = PRODUCTS if "built without OpenBLAS" not in done.stdout else ()
    for name in KNOWN + TIMED + on_disk + products:
        check(f"{name} has a value", first.get(name, 0) > 0, first)
        if name in TIMED + on_disk + products:
            # A wait is short where ranks spin on CPUs of their own, and long where they lose them.
            bound = 1e5 if name.endswith("_ns") else 100
            ratio = first[name] / second[name]
            check(f"{name} is of the same order when it is measured again",
                  1 / bound < ratio < bound, f"{first[name]} and {second[name]}")
    check("it is one node of as many ranks as were asked for",
          (first["nodes"], first["ranks_per_node"]) == (1, 2), first)
    check("a node has at most the memory of the system",
          first["host_bytes"] <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), first)
    check("what cannot be measured is left out", not set(FABRIC) & set(first), first)
    check("the table fits in 80 columns",
          all(len(line) <= 80 for line in done.stdout.splitlines()),
          max(done.stdout.splitlines(), key=len))
    check("each field of the file is in the table", all(name in done.stdout for name in first))
    shaped = run(program, *words, "-", "--width", "192", "--tokens", "80")
    check("products of a model's own size are measured",
          set(products) <= set(json.loads(shaped.stdout or "{}")), shaped.stderr)
    plan = subprocess.run([program, "plan", "gpt2", path], capture_output=True, text=True,
                          check=False)
    check("zero plan reads the file", plan.returncode == 0, plan.stderr)
    os.unlink(path)


def check_missing(program, folder):
    words = ("--tiny", "--device", "cpu", "--ranks", "1", "--dir", "/dev/shm")
    cluster = json.loads(run(program, *words, "--out", "-").stdout)
    check("one rank has no collectives, and memory is no disk",
          not {"local_bytes_per_s", *DISK} & set(cluster), cluster)
    said = run(program, *words).stdout
    check("why is said", "nothing to send" in said and "in memory" in said, said)
    check("nothing is left in the folder", not os.listdir(folder), os.listdir(folder))


def check_gpus(program, folder):
    """Two ranks that share the double's GPU."""
    done = run(program, "--tiny", "--device", "cuda", "--ranks", "2", "--dir", folder, "--out", "-")
    cluster = json.loads(done.stdout or "{}")
    check("GPUs are measured", done.returncode == 0, done.stderr)
    for name in KNOWN + TIMED:
        check(f"{name} of GPUs has a value", cluster.get(name, 0) > 0, cluster)
    check("products of GPUs are left to who has them", not set(PRODUCTS) & set(cluster), cluster)


def check_refused(program, folder):
    for words, said in ((("--ranks", "0"), "--ranks 0: expected a whole number in [1, 256]"),
                        (("--ranks", "257"), "--ranks 257"), (("--ranks", "two"), "--ranks two"),
                        (("--device", "tpu"), "--device tpu: expected cpu or cuda"),
                        (("--width", "100"), "--width 100: expected a multiple of 64"),
                        (("--width", "0"), "--width 0: expected a whole number in [64, 16384]"),
                        (("--tokens", "15"), "--tokens 15: expected a whole number in [16,"),
                        (("--fast",), "--fast"), (("adam",), "adam is no option"),
                        (("--out", "/nowhere/x"), "cannot write /nowhere/x"),
                        (("--out", folder), f"cannot write {folder}"),
                        (("--tiny", "--dir", "/nowhere"), "/nowhere"),
                        (("--tiny", "--dir", folder, "--out", "/dev/full"),
                         "cannot write /dev/full: No space left")):
        done = run(program, *words)
        check(f"refused: {' '.join(words)}",
              done.returncode == 1 and said in done.stderr and done.stderr.startswith("zero bench"),
              (done.returncode, done.stderr))
    pipe = os.path.join(folder, "pipe")
    os.mkfifo(pipe)
    done = run(program, "--out", pipe)
    check("a pipe that nobody reads is refused at once", "nobody reads" in done.stderr, done.stderr)
    os.unlink(pipe)


def check_replaced(program, folder):
    """A file is replaced, not written over: who reads the old one reads all of it."""
    old = os.path.join(folder, "old.json")
    text = '{"preset": "dgx-h100"}'
    with open(old, "w", encoding="utf-8") as file:
        file.write(text)
    with open(old, encoding="utf-8") as before:
        done = run(program, "--tiny", "--device", "cpu", "--ranks", "1", "--dir", folder, "--out",
                   old)
        check("a file that is there is replaced", done.returncode == 0, done.stderr)
        kept = before.read()
        check("and stays whole for who reads it", kept == text, kept)
    with open(old, encoding="utf-8") as file:
        check("the new one is there", "device_bytes" in json.load(file))
    os.unlink(old)
    check("and nothing is beside it", not os.listdir(folder), os.listdir(folder))


def check_interrupt(program, folder):
    """A run that is interrupted leaves what was there as it was, and nothing new."""
    old = os.path.join(folder, "old.json")
    with open(old, "w", encoding="utf-8") as file:
        file.write('{"preset": "dgx-h100"}')
    for path in (old, os.path.join(folder, "new.json")):
        # pylint: disable-next=consider-using-with
        child = subprocess.Popen([program, "bench", "calibrate", "--dir", folder, "--out", path],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.5)
        child.send_signal(signal.SIGTERM)
        child.communicate()
        check("an interrupt ends it", child.returncode == -signal.SIGTERM, child.returncode)
    with open(old, encoding="utf-8") as file:
        check("and leaves a file as it was", file.read() == '{"preset": "dgx-h100"}')
    os.unlink(old)
    check("and no other", not os.listdir(folder), os.listdir(folder))


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for part in (check_cluster, check_missing, check_refused, check_replaced, check_interrupt):
            part(program, folder)
        if len(sys.argv) > 2:
            check_gpus(sys.argv[2], folder)
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
