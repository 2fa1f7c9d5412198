#!/usr/bin/env python3
"""Trains the GPT example with a small batch and with one 16 times as large, and compares losses.

TRAIN is build/examples/gpt2/gpt2_train. A run with the large batch has a sixteenth of the steps, so
all runs see as many tokens. The question is that of LAMB's paper (You et al., 2020, arXiv
1904.00962): which optimizer comes to the loss of AdamW with the small batch? Each one is tried with
some learning rates from the first seed, and with the best of these from the others. Of AdamW with
the large batch the rate of the square-root rule, the best small one times the square root of 16,
has a row of its own.

With --json FILE each run is written there when it ends, and one that FILE has is not made again;
with --svg FILE the curves are drawn; with --write the tables go to their places in the page."""

import argparse
import concurrent.futures
import math
import os
import statistics

import state_quality

PAGE = os.path.join(state_quality.HERE, "..", "docs", "decisions", "133-rates-by-tensor.md")
TIMES = 16
BATCH = 8
SEQUENCE = 64
MODEL = ["--ranks", "1", "--threads", "1", "--layers", "4", "--width", "64", "--heads", "4",
         "--seq", str(SEQUENCE), "--skips-max", "0"]
# Decay as the papers have it: 0.01 of LAMB and of AdamW beside it, 0.0005 of LARS and SGD.
ADAMW = ["--optimizer", "adamw", "--weight-decay", "0.01"]
LAMB = ["--optimizer", "lamb", "--weight-decay", "0.01"]
LARS = ["--optimizer", "lars", "--weight-decay", "0.0005", "--trust", "0.1"]
SGD = ["--optimizer", "sgd", "--weight-decay", "0.0005"]
# name, times the batch, options, learning rates
SMALL_ADAMW = ("AdamW, small batch", 1, ADAMW, (2e-3, 4e-3, 8e-3))
WAYS = (
    SMALL_ADAMW,
    ("AdamW", TIMES, ADAMW, (1e-3, 2e-3, 4e-3, 8e-3)),
    ("LAMB", TIMES, LAMB, (4e-2, 8e-2)),
    ("LAMB, adapted everywhere", TIMES, [*LAMB, "--adapt-undecayed"], (2e-2, 4e-2, 8e-2)),
    ("LARS", TIMES, LARS, (1e-1, 2e-1, 4e-1)),
    ("SGD with momentum", TIMES, SGD, (0.1, 0.2, 0.4, 0.8)),
    ("LAMB, small batch", 1, LAMB, (5e-3, 1e-2, 2e-2)),
)
ROOT_RULE = f"AdamW, rate x {math.isqrt(TIMES)}"
COLOURS = ("#444444", "#8c564b", "#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#17becf",
           "#ff7f0e")


def key_of(way, rate):
    return f"{way[0]}, {rate:g}"


def train(options, way, rate, seed):
    """Validation losses by step."""
    _, times, words, _ = way
    steps = options.steps // times
    more = [*MODEL, *words, "--lr", f"{rate:g}", "--batch", str(BATCH * times), "--micro-steps",
            str(times), "--warmup", str(steps // 10)]
    return state_quality.train(lambda _: [options.train], options.data, seed, steps, more)


def make(options, runs, wanted):
    """Those runs that are not there yet, some at a time."""
    words = [*MODEL, "--batch", str(BATCH), "--steps", str(options.steps)]
    missing = [(way, rate, seed) for way, rate, seed in wanted
               if seed not in runs.get(key_of(way, rate), {})]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        made = {pool.submit(train, options, *run): run for run in missing}
        for future in concurrent.futures.as_completed(made):
            way, rate, seed = made[future]
            losses = runs.setdefault(key_of(way, rate), {})
            losses[seed] = future.result()
            print(f"seed {seed}, {key_of(way, rate)}: {last_of(losses[seed]):.4f}", flush=True)
            if options.json:
                state_quality.write_runs(options.json, words, runs)


def last_of(losses):
    """Of a run; infinite where it has diverged."""
    last = losses.get(max(losses), math.inf) if losses else math.inf
    return last if math.isfinite(last) else math.inf


def best_of(runs, way):
    """The learning rate with which the first seed ends lowest."""
    return min(way[3], key=lambda rate: last_of(runs[key_of(way, rate)][1]))


def all_runs(options, runs):
    """Rows of the table: a name, its way, its learning rate."""
    make(options, runs, [(way, rate, 1) for way in WAYS for rate in way[3]])
    rows = [(way[0], way, best_of(runs, way)) for way in WAYS]
    large = next(way for way in WAYS if way[0] == "AdamW")
    root = best_of(runs, SMALL_ADAMW) * math.sqrt(TIMES)
    rows.insert(1, (ROOT_RULE, large, root))
    make(options, runs, [(way, rate, seed) for _, way, rate in rows
                         for seed in range(1, options.seeds + 1)])
    return rows


def row_table(options, runs, rows):
    """Means over the seeds that there are; a report of before may have more than are asked for."""
    ends = {name: [last_of(losses) for losses in runs[key_of(way, rate)].values()]
            for name, way, rate in rows}
    base = statistics.mean(ends[SMALL_ADAMW[0]])
    lines = ["| optimizer | samples a step, steps | learning rate | seeds | validation loss, mean "
             f"| lowest to highest | beside {SMALL_ADAMW[0]} |", "|---|---|---|---|---|---|---|"]
    for name, way, rate in rows:
        mean = statistics.mean(ends[name])
        lines.append(f"| {name} | {BATCH * way[1]}, {options.steps // way[1]} | {rate:g} | "
                     f"{len(ends[name])} | {mean:.4f} | {min(ends[name]):.4f} to "
                     f"{max(ends[name]):.4f} | {mean - base:+.4f} |")
    return lines


def rate_table(runs):
    """All that was tried from the first seed."""
    lines = ["| optimizer | learning rate: validation loss of the first seed |", "|---|---|"]
    for way in WAYS:
        tried = ", ".join(f"{rate:g}: {last_of(runs[key_of(way, rate)][1]):.4f}" for rate in way[3])
        lines.append(f"| {way[0]} | {tried} |")
    return lines


def curves(runs, rows):
    """By thousands of tokens, in which all runs are alike."""
    by_tokens = {}
    for name, way, rate in rows:
        tokens = BATCH * way[1] * SEQUENCE
        by_tokens[name] = {seed: {step * tokens // 1000: loss for step, loss in losses.items()}
                           for seed, losses in runs[key_of(way, rate)].items()}
    return state_quality.curves(by_tokens, "thousands of tokens", COLOURS)


def read_line():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("--data", required=True, help="a text")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=960,
                        help=f"with the small batch; a multiple of {10 * TIMES} (960)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time (CPUs)")
    parser.add_argument("--json", help="write all losses here, and begin with those that are there")
    parser.add_argument("--svg", help="draw the curves here")
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    options = parser.parse_args()
    if options.seeds < 1 or options.steps < 1 or options.steps % (10 * TIMES) != 0:
        parser.error(f"--seeds {options.seeds} --steps {options.steps}: give a seed at least, and "
                     f"a multiple of {10 * TIMES} steps, of which a tenth warms up")
    return options


def main():
    options = read_line()
    words = [*MODEL, "--batch", str(BATCH), "--steps", str(options.steps)]
    runs = state_quality.read_runs(options.json, words)
    rows = all_runs(options, runs)
    tables = {"large batch": row_table(options, runs, rows), "rates": rate_table(runs)}
    for key, lines in tables.items():
        print("\n" + "\n".join(lines))
        if options.write:
            state_quality.put_into_page(PAGE, lines, key)
    if options.svg:
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(curves(runs, rows))


if __name__ == "__main__":
    main()
