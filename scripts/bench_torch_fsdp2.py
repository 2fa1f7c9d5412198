#!/usr/bin/env python3
"""Training steps of a GPT on the CPU: FSDP2 (PyTorch's fully_shard over gloo) against
zeroshard.torch, in turn.

Usage: bench_torch_fsdp2.py --text FILE [--json FILE] [--rounds N] [--quick] [--curve STEPS]
       bench_torch_fsdp2.py --table REPORT     (prints the table of bench/benchmarks.md)

Each case is one model, type and way of sharding. torchrun starts two processes for each side; both
sides have the same module, initial values, batches and numbers of AdamW, one thread of computing
for each process, and the same allocator. They are alive at once and take turns: one step that is
not counted, then some that are. Losses of all steps must agree within the case's bound.

In bf16 FSDP2 keeps fp32 parameters and moments, 12 bytes for each parameter, and computes on casts
of them. Ours keeps bf16 parameters, fp32 masters and moments, 14 bytes. Gradients are computed in
bf16 and added up over ranks in fp32 on both sides; FSDP2 sends them in fp32 then. In cases that say
so it sends and adds them in bf16, its default.

The time of a step is that of the slower process. CPU time, which other programs disturb less, is
that of all threads of a side.

Memory is that of the steps after the first. The proportional set size (PSS) of a side's processes,
added up, is looked at every few milliseconds in a turn that is not timed: all of it, and what it is
more than when all was imported, pages of files left out. The resident set (RSS) is the kernel's own
mark (VmHWM) of the larger process.

A ratio above 1 says that ours is faster or smaller. Without PyTorch or zeroshard it says so and
ends with status 0. The JSON is that of `zero bench`, with the losses; it is written anew after each
case. PYTHONPATH=build/python/package takes zeroshard from a build."""

import argparse
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Listener

HERE = os.path.dirname(os.path.abspath(__file__))
RANK = "bench_torch_fsdp2_rank.py"
POSITIONS = 256  # as in RANK
MODELS = {"22M": {"layers": 12, "width": 384, "heads": 6},
          "85M": {"layers": 12, "width": 768, "heads": 12}}
# What FSDP2 does at each stage.
STAGES = {3: "reshard_after_forward=True", 2: "reshard_after_forward=False"}
# A difference of losses that rounding explains, in tens of steps and in a curve of hundreds, where
# it has grown from step to step: FSDP2 with another form of AdamW differs as much from itself.
BOUNDS = {"f32": 1e-4, "bf16": 1e-2}
CURVE_BOUNDS = {"f32": 1e-1, "bf16": 1e-1}
START_SECONDS, TURN_SECONDS = 180, 600


class Side:
    """One side's processes."""

    def __init__(self, name, settings, ranks, preload):
        self.name = name
        self.folder = tempfile.TemporaryDirectory(prefix="bench-fsdp2-")
        address = os.path.join(self.folder.name, "program")
        self.listener = Listener(address, "AF_UNIX", backlog=ranks)
        given = json.dumps({**settings, "address": address})
        environment = {**os.environ, "OMP_NUM_THREADS": str(settings["threads"])}
        if preload:
            environment["LD_PRELOAD"] = preload
        self.said = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--monitor-interval",
             "2", "--nproc-per-node", str(ranks), os.path.join(HERE, RANK), given],
            env=environment, stdout=self.said, stderr=subprocess.STDOUT, start_new_session=True)

    def meet(self, ranks):
        """Wait for the processes: all is imported then, and no model is made."""
        self.ranks = self.accept(ranks)
        self.pids = self.hear(START_SECONDS)
        self.imported = self.memory()[1]

    def fail(self, what):
        self.said.seek(0)
        tail = "".join(self.said.readlines()[-30:])
        raise SystemExit(f"bench_torch_fsdp2.py: {self.name}: {what}\n{tail}")

    def accept(self, ranks):
        """Connections, as they come."""
        met = []
        thread = threading.Thread(daemon=True, target=lambda: met.extend(
            self.listener.accept() for _ in range(ranks)))
        thread.start()
        deadline = time.monotonic() + START_SECONDS
        while thread.is_alive():
            thread.join(0.2)
            if self.launcher.poll() is not None or time.monotonic() > deadline:
                self.fail(f"{len(met)} of {ranks} processes have come")
        return met

    def hear(self, seconds):
        """Of each process, what it sends; by rank."""
        answers = []
        deadline = time.monotonic() + seconds
        for rank in self.ranks:
            while not rank.poll(0.2):
                if self.launcher.poll() is not None or time.monotonic() > deadline:
                    self.fail("a process has ended, or says nothing")
            try:
                answers.append(rank.recv())
            except EOFError:
                self.launcher.wait(60)
                self.fail("a process has ended")
        return answers

    def tell(self, *order):
        for rank in self.ranks:
            rank.send(order)

    def ask(self, *order):
        self.tell(*order)
        return self.hear(TURN_SECONDS)

    def steps(self, count):
        """(mean loss over the ranks, seconds of the slowest, CPU seconds of all) of each step."""
        return list(self.joined(self.ask("steps", count)))

    @staticmethod
    def joined(answers):
        for step in zip(*answers):
            losses, seconds, cpu_seconds = zip(*step)
            yield statistics.fmean(losses), max(seconds), sum(cpu_seconds)

    def steps_watched(self, count):
        """Likewise, and the most memory of the processes meanwhile: (in all, since the imports)."""
        self.tell("steps", count)
        seen = [self.memory()]
        while not all(rank.poll() for rank in self.ranks):
            seen.append(self.memory())
            time.sleep(0.005)
        whole, own = map(max, zip(*seen))
        return list(self.joined(self.hear(TURN_SECONDS))), (whole, own - self.imported)

    def memory(self):
        """PSS of the processes: (all, without pages of files)."""
        return [sum(sizes) for sizes in zip(*map(proportional_bytes, self.pids))]

    def close(self):
        for rank in self.ranks:
            rank.send(None)
        try:
            if self.launcher.wait(60) != 0:
                self.fail(f"torchrun ended with {self.launcher.returncode}")
        except subprocess.TimeoutExpired:
            self.kill()
            self.fail("torchrun does not end")
        self.listener.close()
        self.folder.cleanup()

    def kill(self):
        if self.launcher.poll() is None:
            os.killpg(self.launcher.pid, signal.SIGTERM)
            self.launcher.wait(30)


def proportional_bytes(pid):
    """(all, without pages of files)"""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        kib = {line.split()[0]: int(line.split()[1]) for line in file if line.startswith("Pss")}
    return kib["Pss:"] * 1024, (kib["Pss_Anon:"] + kib["Pss_Shmem:"]) * 1024


class Pair:
    """Both sides of a case, alive at once, and a third where rounding is looked at: FSDP2 with
    another form of AdamW."""

    def __init__(self, args, case, control=False):
        shared = {"text": os.path.abspath(args.text), "threads": args.threads, **case}
        self.case = case
        self.sides = []
        fsdp2 = {"side": "fsdp2", "adamw": args.adamw, "prefetch": not args.no_prefetch}
        options = dict(option.split("=", 1) for option in args.option)
        given = {"fsdp2": fsdp2, "zero": {"side": "zero", "options": options}}
        if control:
            other = "loop" if args.adamw == "fused" else "fused"
            given["control"] = {**fsdp2, "adamw": other}
        try:
            for name, own in given.items():
                self.sides.append(Side(name, {**shared, **own}, args.ranks, args.preload))
            for side in self.sides:
                side.meet(args.ranks)
            for side in self.sides:
                side.ask("make")
        except BaseException:
            self.kill()
            raise
        self.losses = {side.name: [] for side in self.sides}
        self.times = {"step_vs_fsdp2": {side.name: [] for side in self.sides},
                      "step_cpu_vs_fsdp2": {side.name: [] for side in self.sides}}
        self.memory = {"pss_vs_fsdp2": {}, "pss_grown_vs_fsdp2": {}, "rss_vs_fsdp2": {}}

    def turn(self, side, count):
        """Steps of one side; the first, after the other side's, is not counted."""
        taken = side.steps(count + 1)
        self.losses[side.name] += [loss for loss, *_ in taken]
        return taken[1:]

    def warm(self):
        """Nothing is allocated for the first time in what follows."""
        for side in self.sides:
            self.turn(side, 2)
            side.ask("forget_peak")

    def round(self, number, count):
        for side in self.sides[::-1] if number % 2 else self.sides:
            for _, *seconds in self.turn(side, count):
                for metric, one in zip(self.times, seconds):
                    self.times[metric][side.name].append(one)

    def watch(self, count):
        for side in self.sides:
            taken, most = side.steps_watched(count)
            self.losses[side.name] += [loss for loss, *_ in taken]
            for metric, size in zip(self.memory, (*most, max(side.ask("peak")))):
                self.memory[metric][side.name] = [size]

    def close(self):
        for side in self.sides:
            side.close()

    def kill(self):
        for side in self.sides:
            side.kill()


def losses_of(case, losses, bounds):
    """What a report has of them."""
    ours, theirs, control = losses["zero"], losses["fsdp2"], losses.get("control")
    made = {"case": name_of(case), "steps": len(ours), "bound": bounds[case["dtype"]],
            "largest_difference": largest_difference(ours, theirs), "ours": ours, "fsdp2": theirs}
    if control:
        made |= {"control": control, "control_difference": largest_difference(control, theirs)}
    return made


def largest_difference(some, others):
    return max(abs(a - b) for a, b in zip(some, others))


def name_of(case):
    reduced = f", reduce_dtype={case['reduce']}" if case["dtype"] == "bf16" else ""
    return (f"GPT {case['model']}, {case['dtype']}, stage {case['stage']}, "
            f"against {STAGES[case['stage']]}{reduced}")


def row_of(metric, case, unit, ours, theirs):
    value, reference = statistics.median(ours), statistics.median(theirs)
    return {"metric": metric, "case": name_of(case), "value": value, "unit": unit,
            "reference": reference, "ratio": reference / value, "min": min(ours), "max": max(ours),
            "reference_min": min(theirs), "reference_max": max(theirs), "repetitions": len(ours)}


def rows_of(pair):
    def row(metric, unit, taken, factor):
        return row_of(metric, pair.case, unit, *([one * factor for one in taken[name]]
                                                 for name in ("zero", "fsdp2")))

    for metric, taken in pair.times.items():
        yield row(metric, "ms", taken, 1e3)
    for metric, taken in pair.memory.items():
        yield row(metric, "MiB", taken, 2**-20)


def measure(args, case):
    """(rows, losses) of a case."""
    pair = Pair(args, case)
    try:
        pair.warm()
        for number in range(args.rounds):
            pair.round(number, args.steps)
        pair.watch(3)
        pair.close()
    finally:
        pair.kill()
    return list(rows_of(pair)), losses_of(case, pair.losses, BOUNDS)


def follow(args, case):
    """Losses of a run of --curve steps on both sides."""
    pair = Pair(args, case, control=True)
    try:
        for first in range(0, args.curve, 20):
            for side in pair.sides:
                pair.turn(side, min(20, args.curve - first) - 1)
        pair.close()
    finally:
        pair.kill()
    return losses_of(case, pair.losses, CURVE_BOUNDS)


def cases(args):
    models = {"tiny": {"layers": 2, "width": 128, "heads": 2}} if args.quick else MODELS
    for model, sizes in models.items():
        for dtype, stage, reduce in (("f32", 3, "float32"), ("f32", 2, "float32"),
                                     ("bf16", 3, "float32"), ("bf16", 2, "float32"),
                                     ("bf16", 3, "bfloat16")):
            case = {"model": model, **sizes, "dtype": dtype, "stage": stage, "reduce": reduce,
                    "batch": args.batch, "length": args.length}
            if any(part in name_of(case) for part in args.case or [""]):
                yield case


def first_line(path, begin):
    with open(path, encoding="utf-8") as file:
        line = next((line for line in file if line.startswith(begin)), ":")
    return line.split(":", 1)[1].strip()


def commit():
    """Of the repository; unknown outside of one."""
    done = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty", "--abbrev=12",
                           "--exclude=*"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def about_machine(args, torch):
    allocator = os.path.basename(args.preload) if args.preload else "the C library's"
    return {"cpu": first_line("/proc/cpuinfo", "model name"), "architecture": platform.machine(),
            "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "load_1min": os.getloadavg()[0], "python": platform.python_version(),
            "torch": torch.__version__, "allocator": allocator}


def take_both():
    """(torch or None, why not)"""
    try:
        import torch
        from torch.distributed.fsdp import fully_shard  # noqa: F401 # since 2.6
        import zeroshard.torch  # noqa: F401
    except ImportError as reason:
        return None, f"{sys.executable}: {reason}"
    return torch, ""


def write(path, report):
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")


def table(report):
    """Lines of Markdown: a case is a line."""
    rows = {(row["case"], row["metric"]): row for row in report["results"]}
    yield ("| case | step, ms: ours, FSDP2 | ratio (n) | of CPU time | memory, MiB: ours, FSDP2 "
           "| ratio | losses differ by |")
    yield "|---|---|---|---|---|---|---|"
    for losses in report["losses"]:
        step, cpu, grown = (rows[losses["case"], metric] for metric in
                            ("step_vs_fsdp2", "step_cpu_vs_fsdp2", "pss_grown_vs_fsdp2"))
        differ = f"{losses['largest_difference']:.1e} in {losses['steps']} steps"
        yield (f"| {losses['case']} | {spread(step)} | {step['ratio']:.2f} ({step['repetitions']}) "
               f"| {cpu['ratio']:.2f} | {grown['value']:.0f}, {grown['reference']:.0f} "
               f"| {grown['ratio']:.2f} | {differ} |")


def spread(row):
    """Medians, and from which to which value."""
    ours = f"{row['value']:.0f} ({row['min']:.0f} to {row['max']:.0f})"
    theirs = f"{row['reference']:.0f} ({row['reference_min']:.0f} to {row['reference_max']:.0f})"
    return f"{ours}, {theirs}"


def print_table(path):
    try:
        with open(path, encoding="utf-8") as file:
            lines = list(table(json.load(file)))
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"bench_torch_fsdp2.py: {path} is no report of this program: {error!r}"
                         ) from None
    print("\n".join(lines))


def show_row(row):
    print(f"{row['metric']}  {row['case']}  {row['value']:.4g} {row['unit']}  "
          f"({row['min']:.4g}..{row['max']:.4g})  fsdp2 {row['reference']:.4g} "
          f"({row['reference_min']:.4g}..{row['reference_max']:.4g})  ratio {row['ratio']:.3f}",
          flush=True)


def take_losses(report, losses):
    """Into the report; a difference beyond the bound is a failure."""
    report["losses"].append(losses)
    said = (f"losses  {losses['case']}  {losses['steps']} steps, {losses['ours'][0]:.4f} to "
            f"{losses['ours'][-1]:.4f}, differ by {losses['largest_difference']:.2e} at most")
    if "control" in losses:
        said += f"; FSDP2's own with another AdamW by {losses['control_difference']:.2e}"
    print(said, flush=True)
    if not losses["largest_difference"] <= losses["bound"]:
        report["failed"].append(f"{said}, which is more than {losses['bound']}")


def compare(args, report):
    for case in cases(args):
        if args.curve:
            take_losses(report, follow(args, case))
        else:
            rows, losses = measure(args, case)
            report["results"] += rows
            for row in rows:
                show_row(row)
            take_losses(report, losses)
        write(args.json, report)


def read_line():
    parser = argparse.ArgumentParser()
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--text", help="its bytes are the tokens")
    wanted.add_argument("--table", metavar="REPORT", help="of a report that was written by --json")
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="that are timed in a turn")
    parser.add_argument("--case", action="append", help="only cases with this in their names")
    parser.add_argument("--curve", type=int, metavar="STEPS", help="losses alone, of a longer run")
    parser.add_argument("--quick", action="store_true", help="a tiny model, two rounds")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    parser.add_argument("--batch", type=int, default=4, help="samples of a rank in a step")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--adamw", choices=("fused", "foreach", "loop"), default="fused")
    parser.add_argument("--no-prefetch", action="store_true", help="FSDP2's default in forward")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE",
                        help="of our engine (docs/options.md)")
    parser.add_argument("--preload", help="an allocator's library, for both sides")
    args = parser.parse_args()
    if args.table is None:
        check_line(parser, args)
    return args


def check_line(parser, args):
    for name in ("rounds", "steps", "ranks", "threads", "batch", "length", "curve"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it is 1 at least")
    if args.length > POSITIONS:
        parser.error(f"--length is {args.length}; the model has {POSITIONS} positions")
    for option in args.option:
        if "=" not in option:
            parser.error(f"--option {option} is no NAME=VALUE")
    for path in filter(None, (args.text, args.preload)):
        if not os.path.isfile(path):
            parser.error(f"{path} is no file")
    if os.path.getsize(args.text) <= args.length:
        parser.error(f"{args.text} has {os.path.getsize(args.text)} bytes; a sample needs more "
                     f"than --length {args.length}")
    if args.quick:
        args.rounds = 2
    if not list(cases(args)):
        parser.error(f"no case has \"{' or '.join(args.case)}\" in its name")


def main():
    args = read_line()
    if args.table is not None:
        print_table(args.table)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    torch, why = take_both()
    report = {"machine": about_machine(args, torch) if torch else {},
              "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit(),
              "command": shlex.join(os.path.basename(word) for word in sys.argv),
              "scale": "quick" if args.quick else "full", "results": [], "losses": [],
              "skipped": [], "failed": []}
    if torch:
        compare(args, report)
    else:
        report["skipped"].append({"metric": "step_vs_fsdp2", "case": None, "reason": why})
    for row in report["skipped"]:
        print(f"skipped: {row['metric']}: {row['reason']}")
    for what in report["failed"]:
        print(f"failed: {what}")
    write(args.json, report)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
