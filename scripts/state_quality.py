#!/usr/bin/env python3
"""Trains the GPT example with each format of a set, and compares the losses.

TRAIN is build/examples/gpt2/gpt2_train, DATA a text. Each seed is a run of each format over the
same samples, from the same first weights. The report has the validation losses of all runs; of the
last ones each format's mean over the seeds, how far that is from the first format's, and the
largest difference of one seed. With --write KEY the table goes to the place that the set's page has
for KEY, and the curves to its picture.

--set states: masters and moments, from f32; docs/small-states.md, docs/state-quality.svg. --set
wires: parameters and gradients between ranks, from bf16; docs/tuning.md, docs/wire-quality.svg.
With --hosts H mpirun starts --ranks processes, in equal shares under H names of hosts, so that
gradients go as between hosts; without it ranks are threads.

What is behind `--` goes to every run: -- --width 256 --beta2 0.999. With --json FILE each run is
written there when it ends, and one that FILE has, of the same words, is not made again."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
DOCS = os.path.join(HERE, "..", "docs")
# name, words of a run, what it takes
STATES = (
    ("f32 master, f32 moments", "--master f32 --moments f32", "14"),
    ("remainder16, bf16", "--master remainder16 --moments bf16", "8"),
    ("remainder16, i8", "--master remainder16 --moments i8", "6.125"),
    ("remainder8, i8", "--master remainder8 --moments i8", "5.125"),
)
WIRES = (
    ("bf16", "", "2, 2"),
    ("MXFP8 gathers", "--gather-dtype mxfp8", "1.03, 2"),
    ("int8 gathers", "--gather-dtype int8", "1.02, 2"),
    ("int8 gradients", "--wire-dtype int8", "2, 1.02"),
    ("int8 between hosts", "--host-wire-dtype int8", "2, 1.02"),
    ("int4 between hosts", "--host-wire-dtype int4", "2, 0.52"),
    ("int8 gathers and gradients, int4 between hosts",
     "--gather-dtype int8 --wire-dtype int8 --host-wire-dtype int4", "1.02, 0.52"),
)
# formats, page, picture, heads of the first columns and of the difference
SETS = {
    "states": (STATES, "small-states.md", "state-quality.svg", "masters and moments | bytes",
               "of f32 states"),
    "wires": (WIRES, "tuning.md", "wire-quality.svg",
              "between ranks | bytes of a parameter, of a gradient between hosts", "of bf16"),
}
COLOURS = ("#444444", "#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#ff7f0e", "#17becf")
# mpirun's daemon of another host, which is this one under another name.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec unshare -u sh -c "hostname $host; $*"
"""
LOCAL = ("--mca oob_tcp_if_include lo --mca btl_tcp_if_include lo --mca btl tcp,self,vader "
         "--mca pml ob1").split()


def launch(program, ranks, hosts, folder):
    """The words that start a run. folder: for what they need."""
    if not hosts:
        return [program, *(["--ranks", str(ranks)] if ranks else [])]
    agent = os.path.join(folder, "agent")
    with open(agent, "w", encoding="utf-8") as file:
        file.write(AGENT)
    os.chmod(agent, 0o755)
    each = ranks // hosts
    slots = ",".join(f"zero-host-{host}:{each}" for host in range(hosts))
    return ["unshare", "-u", "sh", "-c", 'hostname zero-host-0; exec "$@"', "sh", "mpirun",
            "--oversubscribe", "--host", slots, "-np", str(ranks), "--map-by", f"ppr:{each}:node",
            "--mca", "plm_rsh_agent", agent, *LOCAL, program]


def train(start, data, seed, steps, more):
    """Validation losses of a run by step. start: words that begin it, given a folder."""
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "run.json")
        words = [*start(folder), "--data", data, "--dtype", "bf16", "--steps", str(steps), "--seed",
                 str(seed), "--val-every", str(max(1, steps // 10)), "--val-batches", "32",
                 "--log-every", str(steps), "--json", report, *more]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
        with open(report, encoding="utf-8") as file:
            result = json.load(file)
    return {step["step"]: step["val_loss"] for step in result["steps"]
            if step.get("val_loss") is not None}


def read_runs(path, more):
    """What an earlier call has left in a report; nothing if there is none."""
    if not path or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        kept = json.load(file)
    if kept["words"] != more:
        sys.exit(f"{path} has runs of {kept['words']}, not of {more}: name another file")
    return {name: {int(seed): {int(step): loss for step, loss in losses.items()}
                   for seed, losses in of_seeds.items()} for name, of_seeds in kept["runs"].items()}


def write_runs(path, more, runs):
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump({"words": more, "runs": runs}, file, indent=1)
        file.write("\n")
    os.replace(path + ".part", path)


def summary(formats, runs):
    """A row for each format: mean of the last losses, difference of the mean, largest of a seed."""
    last = {name: {seed: losses[max(losses)] for seed, losses in of_seeds.items()}
            for name, of_seeds in runs.items()}
    base = last[formats[0][0]]
    rows = []
    for name, _, size in formats:
        if name not in last:
            continue
        differences = [last[name][seed] / base[seed] - 1 for seed in base]
        mean = statistics.mean(last[name].values())
        spread = statistics.stdev(last[name].values()) if len(base) > 1 else 0.0
        rows.append((name, size, mean, spread, mean / statistics.mean(base.values()) - 1,
                     max(differences, key=abs)))
    return rows


def table(rows, heads="masters and moments | bytes", of="of f32 states"):
    lines = [f"| {heads} | validation loss | spread of seeds | {of} | largest of a seed |",
             "|---|---|---|---|---|---|"]
    for name, size, mean, spread, off, worst in rows:
        lines.append(f"| {name} | {size} | {mean:.4f} | {spread:.4f} | {off:+.3%} | "
                     f"{worst:+.3%} |")
    return lines


def curves(runs, by="step", colours=COLOURS):
    """An SVG of the mean validation loss, by what the losses of a run are given for."""
    means = {name: [(step, statistics.mean(losses[step] for losses in of_seeds.values()))
                    for step in sorted(next(iter(of_seeds.values())))]
             for name, of_seeds in runs.items()}
    points = [point for line in means.values() for point in line]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    width, height, edge = 640, 360, 50

    def place(x, y):
        return (edge + (x - left) / max(right - left, 1) * (width - 2 * edge),
                height - edge - (y - low) / max(high - low, 1e-9) * (height - 2 * edge))

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
             f'<text x="{edge}" y="20">validation loss by {by}, mean of the seeds</text>']
    for value in (low, high):
        lines.append(f'<text x="8" y="{place(left, value)[1]:.0f}">{value:.2f}</text>')
    for value in (left, right):
        lines.append(f'<text x="{place(value, low)[0] - 12:.0f}" y="{height - 28}">{value}</text>')
    for index, (name, line) in enumerate(means.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colours[index]}" '
                     f'stroke-width="{6 - 4.5 * index / max(len(means) - 1, 1):.1f}" '
                     'stroke-opacity="0.8"/>')
        lines.append(f'<text x="{width - 260}" y="{40 + 18 * index}" fill="{colours[index]}">'
                     f'{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def put_into_page(path, lines, key):
    """Replace what is between the marks of a key."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    begin, end = f"<!-- {key}: begin -->\n", f"<!-- {key}: end -->"
    if begin not in text:
        sys.exit(f"{path} has no place {begin.strip()}")
    before, rest = text.split(begin)
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("data")
    parser.add_argument("--set", choices=sorted(SETS), default="states")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--formats", default="", help="indices, comma-separated (all)")
    parser.add_argument("--ranks", type=int, default=0, help="of each run (the example's own)")
    parser.add_argument("--hosts", type=int, default=0, help="a divisor of --ranks (threads)")
    parser.add_argument("--json", help="write all losses here")
    parser.add_argument("--write", metavar="KEY", help="put the table at KEY's place in the page")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    if options.hosts and (options.ranks == 0 or options.ranks % options.hosts != 0):
        sys.exit(f"--hosts {options.hosts} is no divisor of --ranks {options.ranks}")
    formats, page, picture, heads, of = SETS[options.set]
    chosen = [formats[int(i)] for i in options.formats.split(",") if i] or list(formats)
    program = os.path.abspath(options.train)

    def start(folder):
        return launch(program, options.ranks, options.hosts, folder)

    of_ranks = ["--ranks", str(options.ranks), "--hosts", str(options.hosts)]
    more = ["--steps", str(options.steps), *(of_ranks if options.ranks else []), *words[cut + 1:]]
    runs = read_runs(options.json, more)
    for seed in range(1, options.seeds + 1):
        for name, own, _ in chosen:
            of_seeds = runs.setdefault(name, {})
            if seed not in of_seeds:
                of_seeds[seed] = train(start, options.data, seed, options.steps,
                                       [*own.split(), *words[cut + 1:]])
            losses = of_seeds[seed]
            print(f"seed {seed}, {name}: {losses[max(losses)]:.5f}", flush=True)
            if options.json:
                write_runs(options.json, more, runs)
    if formats[0][0] not in runs:
        return  # nothing to compare with yet
    rows = summary(formats, runs)
    print("\n".join(table(rows, heads, of)))
    if options.write:
        put_into_page(os.path.join(DOCS, page), table(rows, heads, of), options.write)
        with open(os.path.join(DOCS, picture), "w", encoding="utf-8") as file:
            file.write(curves(runs))


if __name__ == "__main__":
    main()
