#!/usr/bin/env python3
"""How long steps of the GPT take over a slow link, by what parameters and gradients cross it in.

Usage: scripts/bench_link.py GPT2_TRAIN --data TEXT [--rates 1gbit,10gbit] [--rounds N]
                             [--formats LIST] [--ranks N] [--json FILE]

Two network namespaces of this machine stand for two hosts, joined by a pair of interfaces that the
kernel's token bucket filter holds to each rate; mpirun starts N ranks in each (1). Formats of LIST
(all of FORMATS below) take turns, N rounds (5). A row says the median step of each round after the
first five, and the loss of the last step. It needs root, iproute2 and Open MPI, and changes nothing
that outlives it."""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

HOSTS = {"zero-link-a": "10.77.0.1", "zero-link-b": "10.77.0.2"}
STEPS, WARM = 20, 5
MODEL = ("--stage 3 --dtype bf16 --layers 4 --heads 8 --width 512 --seq 64 --val-every 0 "
         f"--threads 1 --steps {STEPS}").split()
FORMATS = {
    "own": [],
    "mxfp8": ["--gather-dtype", "mxfp8"],
    "int8": ["--gather-dtype", "int8"],
    "int8-sums": ["--host-wire-dtype", "int8"],
    "int4-sums": ["--host-wire-dtype", "int4"],
    "int8-int4": ["--gather-dtype", "int8", "--host-wire-dtype", "int4"],
}
# What mpirun starts on another host: ssh in other places.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare -u sh -c "hostname $host; $*"
"""


def call(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def close_link():
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)


def open_link(rate):
    close_link()
    ends = dict(zip(HOSTS, ("zlink0", "zlink1")))
    for host in HOSTS:
        call("ip", "netns", "add", host)
    (a, b), (end_a, end_b) = HOSTS, ends.values()
    call("ip", "link", "add", end_a, "netns", a, "type", "veth", "peer", "name", end_b, "netns", b)
    for host, address in HOSTS.items():
        call("ip", "-n", host, "addr", "add", f"{address}/24", "dev", ends[host])
        call("ip", "-n", host, "link", "set", ends[host], "up")
        call("ip", "-n", host, "link", "set", "lo", "up")
        call("ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", ends[host], "root", "tbf",
             "rate", rate, "burst", "256kb", "latency", "50ms")


def run(arguments, folder, words):
    """(median milliseconds of a step, last loss)"""
    first = next(iter(HOSTS))
    report = os.path.join(folder, "steps.csv")
    slots = ",".join(f"{host}:{arguments.ranks}" for host in HOSTS)
    command = [
        "ip", "netns", "exec", first, "unshare", "-u", "sh", "-c", f'hostname {first}; exec "$@"',
        "sh", "mpirun", "--oversubscribe", "--host", slots, "-np", str(2 * arguments.ranks),
        "--map-by", f"ppr:{arguments.ranks}:node", "--mca", "plm_rsh_agent",
        os.path.join(folder, "agent"), "--mca", "oob_tcp_if_include", "10.77.0.0/24", "--mca",
        "btl_tcp_if_include", "10.77.0.0/24", "--mca", "btl", "tcp,self,vader", "--mca", "pml",
        "ob1", arguments.program, "--data", arguments.data, *MODEL,
        "--batch", str(2 * arguments.ranks), "--csv", report,
        *words,
    ]  # fmt: skip
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    with open(report, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return statistics.median(float(row["ms"]) for row in rows[WARM:]), float(rows[-1]["loss"])


def measure(arguments, folder):
    rows = []
    for rate in arguments.rates.split(","):
        open_link(rate)
        formats = arguments.formats.split(",")
        times, losses = {name: [] for name in formats}, {}
        for _ in range(arguments.rounds):
            for name in formats:
                milliseconds, losses[name] = run(arguments, folder, FORMATS[name])
                times[name].append(milliseconds)
        for name in formats:
            rows.append({"rate": rate, "format": name, "ms": times[name], "loss": losses[name]})
            print(f"{rate:>8} {name:>9}  {statistics.median(times[name]):8.1f} ms "
                  f"({min(times[name]):.1f} to {max(times[name]):.1f})  loss "
                  f"{losses[name]:.5f}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--data", required=True)
    parser.add_argument("--rates", default="1gbit,10gbit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.program = os.path.abspath(arguments.program)
    arguments.data = os.path.abspath(arguments.data)
    for name in arguments.formats.split(","):
        if name not in FORMATS:
            sys.exit(f"--formats {name} is none of {', '.join(FORMATS)}")
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    with tempfile.TemporaryDirectory() as folder:
        agent = os.path.join(folder, "agent")
        with open(agent, "w", encoding="utf-8") as file:
            file.write(AGENT)
        os.chmod(agent, 0o755)
        try:
            rows = measure(arguments, folder)
        finally:
            close_link()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"model": " ".join(MODEL), "ranks_per_host": arguments.ranks, "rows": rows},
                      file, indent=2)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
