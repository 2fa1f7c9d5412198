#!/usr/bin/env python3
"""Rewrites the tables of docs/feasibility.md and feasibility-rows.md beside it: every figure is of
`zero plan` or `zero sim`.

Usage: feasibility.py PROGRAM [PAGE]          rewrite the blocks between the page's markers
       feasibility.py PROGRAM [PAGE] --check  exit status 1 where the page is not what is printed,
                                              with the efficiencies that stand on it
       feasibility.py PROGRAM --spread        print the intervals around what is expected, which
                                              src/plan/spread.c has

scripts/measured.csv holds what others measured. Efficiencies of a cluster are fitted to the
middle one of every five rows of a table, in its published order, and hold for all of its rows."""

import csv
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

import published
import spread

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
FIT_FIRST, FIT_EVERY = 2, 5
BEYOND = 0.10
PRODUCTS = range(400, 951, 10)
ATTENTION = range(60, 1001, 20)
FABRIC = range(100, 1001, 50)
FIT_ROUNDS = 3

PERMILLES = ("device_permille", "attention_permille", "fabric_permille")

# Of the models that were measured: layers, width, heads, vocabulary.
MODELS = {
    "mpt-125m": (12, 768, 12, 50368), "mpt-350m": (24, 1024, 16, 50368),
    "mpt-760m": (24, 1536, 12, 50368), "mpt-1b": (24, 2048, 16, 50368),
    "mpt-3b": (32, 2560, 20, 50368), "mpt-7b": (32, 4096, 32, 50368),
    "mpt-13b": (40, 5120, 40, 50368), "mpt-30b": (48, 7168, 56, 50368),
    "mpt-70b": (80, 8192, 64, 50368),
    "gpt-1.7b": (24, 2304, 24, 51200), "gpt-3.6b": (30, 3072, 32, 51200),
    "gpt-7.5b": (36, 4096, 32, 51200), "gpt-18.4b": (40, 6144, 48, 51200),
    "gpt-39.1b": (48, 8192, 64, 51200), "gpt-76.1b": (60, 10240, 80, 51200),
    "gpt-145.6b": (80, 12288, 96, 51200), "gpt-174.6b": (96, 12288, 96, 51200),
    "gpt-310.1b": (96, 16384, 128, 51200), "gpt-529.6b": (105, 20480, 128, 51200),
    "gpt-1008b": (128, 25600, 160, 51200),
    "mcore-1.7b": (24, 2048, 16, 131072), "mcore-177b": (96, 12288, 96, 131072),
    "mcore-462b": (112, 18432, 144, 131072),
    "gpt-18b": (40, 6144, 48, 50257), "gpt-49b": (60, 8192, 64, 50257),
    "gpt-91b": (72, 10240, 80, 50257), "gpt-138b": (76, 12288, 96, 50257),
    "inf-1.4b": (48, 1536, 16, 50257), "inf-13b": (64, 4096, 32, 50257),
    "inf-20b": (25, 8192, 64, 50257), "inf-70b": (87, 8192, 64, 50257),
    "inf-400b": (124, 16384, 128, 50257), "inf-1t": (128, 25600, 256, 50257),
    "inf-2t": (160, 32768, 256, 50257), "inf-10t": (200, 65536, 512, 50257),
    "inf-20t": (205, 90112, 704, 50257),
}
# Llama 3's config.json, but for the longest sample.
LLAMA = {"model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126,
         "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248,
         "vocab_size": 128256, "torch_dtype": "bfloat16"}

A100 = {"preset": "dgx-a100"}
A100_40 = {**A100, "device_bytes": 40 * GIB, "device_bytes_per_s": 1555 * 10**9}
H100 = {"preset": "dgx-h100", "device_fp8_permille": 0}  # as products in 16 bits
V100 = {"preset": "dgx-v100"}
V100_400 = {**V100, "fabric_bytes_per_s": 50 * 10**9}
V100_100 = {**V100, "fabric_bytes_per_s": 125 * 10**8}
ALL = ("products", "attention", "fabric")
# Of each set of rows: its cluster, which of the three efficiencies are fitted, and whose the others
# are ("as"). Without "as", attention's is that of products, and the fabric's is the preset's; the
# latter too where the fabric is another one than that of "as".
SETS = {
    "foundry-a100-80": {"cluster": A100, "fits": ALL},
    "foundry-a100-40": {"cluster": A100_40, "fits": ALL},
    "foundry-h100": {"cluster": H100, "fits": ("products", "attention")},
    "foundry-h100-fp8": {"cluster": H100, "fits": ("products",), "as": "foundry-h100"},
    "zero3-v100-400": {"cluster": V100_400, "fits": ("products", "fabric")},
    "zero3-v100-100": {"cluster": V100_100, "fits": ("products", "fabric")},
    "zeropp-v100-400": {"cluster": V100_400, "fits": ("fabric",), "as": "zero3-v100-400"},
    "zeropp-v100-100": {"cluster": V100_100, "fits": ("fabric",), "as": "zero3-v100-100"},
    "selene-a100": {"cluster": A100, "fits": ("products", "attention")},
    "zero3-selene": {"cluster": A100, "fits": ("fabric",), "as": "selene-a100"},
    "mt-nlg-a100": {"cluster": A100, "fits": (), "as": "selene-a100"},
    "megatron-h100": {"cluster": H100, "fits": (), "as": "foundry-h100", "fabric": "preset"},
    "llama3-h100": {"cluster": H100, "fits": ("attention",), "as": "foundry-h100",
                    "fabric": "preset"},
    "infinity-v100": {"cluster": V100, "fits": (), "as": "zero3-v100-400"},
    "offload-v100": {"cluster": V100, "fits": (), "as": "zero3-v100-400"},
    "fsdp-aws-a100": {"cluster": {**A100_40, "fabric_bytes_per_s": 50 * 10**9}, "fits": (),
                      "as": "foundry-a100-40", "fabric": "preset"},
}
# Who published several sets.
SOURCES = {"foundry": "llm-foundry", "zero3-v100": "ZeRO++", "zeropp-v100": "ZeRO++",
           "selene": "Narayanan et al.", "zero3-selene": "Narayanan et al."}
NODE = {"dgx-a100": 8, "dgx-h100": 8, "dgx-v100": 16, "dgx-h200": 8}


class Planner:
    """`zero plan` and `zero sim` on models and clusters that are files of a folder; each line is
    run once."""

    def __init__(self, program, folder):
        self.program, self.folder, self.known = program, folder, {}

    def file(self, name, content):
        path = os.path.join(self.folder, name + ".json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
        return path

    def model(self, name, sequence):
        if name == "llama-405b":
            return self.file(f"{name}-{sequence}", {**LLAMA, "max_position_embeddings": sequence})
        layers, width, heads, vocab = MODELS[name]
        return self.file(f"{name}-{sequence}", {
            "model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads,
            "n_positions": sequence, "vocab_size": vocab, "torch_dtype": "bfloat16"})

    def run(self, *words):
        if words not in self.known:
            done = subprocess.run([self.program, *words, "--json", "-"],
                                  capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"zero {' '.join(words)}: {done.stderr.strip()}")
            self.known[words] = json.loads(done.stdout)
        return self.known[words]

    def plan(self, *words):
        return self.run("plan", *words)

    def sim(self, *words):
        return self.run("sim", *words)

    def row(self, row, cluster, permilles, more=()):
        """The time of a measured row, on a cluster with these three permilles. more: words of a
        line that replace the row's."""
        content = dict(cluster, nodes=row["ranks"] // NODE[cluster["preset"]])
        content.update((key, value) for key, value in zip(PERMILLES, permilles)
                       if value is not None)
        name = "-".join(str(value) for value in content.values())
        words = [self.model(row["model"], row["sequence"]), self.file(name, content),
                 "--samples", str(row["samples"]), "--micro-steps", str(row["micro_steps"]),
                 "--no-search"]
        report = self.plan(*words, *(["--recompute"] if row["recompute"] else []), *row["words"],
                           *more)
        mix = mix_of(report, row["stage"])
        share = mix["need_bytes"]["device"] / mix["have_bytes"]["device"]
        return {**mix["time"], "ranks": report["ranks"], "memory": share,
                "layer_ns": published.layer_ns(report, mix["time"])}


def mix_of(report, name):
    return next(mix for mix in report["mixes"] if mix["name"] == name)


def read_rows():
    with open(os.path.join(HERE, "measured.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for key in ("sequence", "ranks", "samples", "micro_steps", "recompute"):
            row[key] = int(row[key])
        row["measured"] = float(row["measured"])
        row["words"] = (row["words"] or "").split()
        row["or"] = [words.split() for words in (row["or"] or "").split("|") if words]
    return rows


# ---- against what others measured ----

def rate_of(time, row, nanoseconds):
    """Tokens a second of a GPU, steps an hour, or 10^12 operations a second of a GPU: with those
    of a second forward where there is one, as their publishers count."""
    if row["set"].startswith("foundry"):
        return time["tokens"] / time["ranks"] / nanoseconds * 1e9
    if row["set"].startswith("mt-nlg"):
        return 3600 / nanoseconds * 1e9
    return time["flops"] * (4 / 3 if row["recompute"] else 1) / nanoseconds / 1e3


def leaves_node(row, cluster):
    return row["ranks"] > NODE[cluster["preset"]]


def nearest(values, cost, near):
    """Of an ascending range, the value of least cost: by ever smaller steps from the one that is
    nearest to `near`."""
    at = min(range(len(values)), key=lambda i: abs(values[i] - near))
    step = 8
    while step:
        around = [i for i in (at, at - step, at + step) if 0 <= i < len(values)]
        best = min(around, key=lambda i: cost(values[i]))
        step = step if best != at else step // 2
        at = best
    return values[at]


def fit(planner, rows, setup, base):
    """The efficiencies with the least sum of the rows' deviations, each in turn; those that the set
    does not fit are base's. Beyond a tenth a deviation counts a hundredth as much, so that what no
    efficiency explains does not bend them. The fabric's is the preset's, None, where no row leaves
    its node."""
    cluster = setup["cluster"]
    left = any(leaves_node(row, cluster) for row in rows)
    fits = [name for name in setup["fits"] if name != "fabric" or left]
    shares = [base[0] or 700, base[1], base[2]]
    if "fabric" in fits:
        shares[2] = 700
    if "attention" in fits:
        shares[1] = 500

    def cost(row):
        time = planner.row(row, cluster, shares)
        off = abs(math.log(rate_of(time, row, time["expected_ns"]) / row["measured"]))
        return min(off, BEYOND) + off / 100

    def cost_with(i, value):
        kept, shares[i] = shares[i], value
        found = sum(map(cost, rows))
        shares[i] = kept
        return found

    for _ in range(FIT_ROUNDS):
        for i, (name, values) in enumerate(zip(ALL, (PRODUCTS, ATTENTION, FABRIC))):
            if name in fits:
                shares[i] = nearest(values, lambda value, i=i: cost_with(i, value), shares[i])
            if i == 0 and "attention" not in fits and base[1] is None:
                shares[1] = shares[0]  # attention's is that of products
    return tuple(shares)


def known_of(page):
    """The efficiencies that stand on a page, by set."""
    found = re.findall(r"^\| (\S+) \| (\d+) %, (\d+) %, (?:(\d+) %|preset)", page, re.M)
    return {name: tuple(10 * int(value) if value else None for value in values)
            for name, *values in found}


def residuals(planner, rows, known):
    """Of each set: its efficiencies, known or fitted, and its rows with predictions."""
    results = {}
    for name, setup in SETS.items():
        own = [row for row in rows if row["set"] == name]
        used = own[FIT_FIRST::FIT_EVERY] if setup["fits"] else []
        base = results[setup["as"]][0] if "as" in setup else (None, None, None)
        if "fabric" in setup:
            base = (*base[:2], None)
        if name in known:
            permilles = known[name]
        else:
            permilles = fit(planner, used, setup, base) if used else base
        for row in own:
            time = planner.row(row, setup["cluster"], permilles)
            others = [planner.row(row, setup["cluster"], permilles, words) for words in row["or"]]
            row["fitted"] = row in used
            row["assumed"] = bool(others)
            row["predicted"] = rate_of(time, row, time["expected_ns"])
            row["span"] = [rate_of(other, row, other["expected_ns"]) for other in (time, *others)]
            row["best"] = rate_of(time, row, time["low_ns"])
            row["memory"] = time["memory"]
            row["off"] = row["predicted"] / row["measured"] - 1
        results[name] = (permilles, own)
    return results


def percent(value):
    return f"{100 * value:+.1f} %"


def shares(permilles):
    return ", ".join("preset" if value is None else f"{value // 10} %" for value in permilles)


def deviations(rows):
    """Their median, the worst, and how many are beyond a tenth."""
    if not rows:
        return "- | - | -"
    offs = sorted((row["off"] for row in rows), key=abs)
    return (f"{100 * statistics.median(map(abs, offs)):.1f} % | {percent(offs[-1])} | "
            f"{sum(abs(off) > BEYOND for off in offs)}")


def measured_summary(results):
    yield ("| set | products, attention, fabric | fitted shares | rows | fitted | assumed | "
           "median | worst held out | beyond |")
    yield "|---|---|---|---|---|---|---|---|---|"
    held = []
    for name, (permilles, rows) in results.items():
        out = [row for row in rows if not row["fitted"] and not row["assumed"]]
        held += out
        setup = SETS[name]
        taken = f" (others of {setup['as']})" if "as" in setup else ""
        fitted, assumed = (sum(row[key] for row in rows) for key in ("fitted", "assumed"))
        yield (f"| {name} | {shares(permilles)} | {', '.join(setup['fits']) or 'none'}{taken} | "
               f"{len(rows)} | {fitted} | {assumed} | {deviations(out)} |")
    yield f"| all held out | | | {len(held)} | 0 | 0 | {deviations(held)} |"


def mesh_of(row):
    """", T 8 P 16": what the words say of the mesh around the engine."""
    keys = {"--tensor": "T", "--pipeline": "P", "--interleave": "V", "--context": "C"}
    pairs = zip(row["words"], row["words"][1:])
    named = [f"{keys[word]} {value}" for word, value in pairs if word in keys]
    return ", " + " ".join(named) if named else ""


def measured_rows(results):
    yield ("| set | model | tokens | GPUs | batch | stage | memory | measured | predicted | off | "
           "at best |")
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for name, (_, rows) in results.items():
        for row in rows:
            mark = "fitted" if row["fitted"] else percent(row["off"])
            if abs(row["off"]) > BEYOND:
                mark = f"**{percent(row['off'])}**"
            predicted = f"{row['predicted']:.0f}"
            if row["assumed"]:
                mark = f"assumed, {mark}"
                predicted += f" ({min(row['span']):.0f} to {max(row['span']):.0f})"
            yield (f"| {name} | {row['model']} | {row['sequence']} | {row['ranks']} | "
                   f"{row['samples']} x {row['micro_steps']}"
                   f"{' r' if row['recompute'] else ''}{mesh_of(row)} | {row['stage']} | "
                   f"{100 * row['memory']:.0f} % | {row['measured']:.0f} | "
                   f"{predicted} | {mark} | {row['best']:.0f} |")


# ---- intervals ----

SPREADS = os.path.join(HERE, "..", "src", "plan", "spread.c")
OF_MEMORY = "memory"


def source_of(name):
    """Of a set."""
    return next((source for begin, source in SOURCES.items() if name.startswith(begin)), name)


def preset_errors(planner, rows):
    """The rows of measured.csv, none of which is assumed, with shares of the presets: as published
    ones."""
    made = []
    for row in rows:
        if not row["or"]:
            time = planner.row(row, SETS[row["set"]]["cluster"], (None, None, None))
            made.append({"source": source_of(row["set"]), "model": row["model"],
                         "kind": spread.kind_of(row["words"], row["stage"]),
                         "layer_ns": time["layer_ns"], "error": math.log(
                             rate_of(time, row, time["expected_ns"]) / row["measured"])})
    return made


def spreads_in_code():
    with open(SPREADS, encoding="utf-8") as file:
        found = re.findall(r"^static const zi_spread (\w+) = \{(\d+), (\d+)\};", file.read(), re.M)
    names = dict(zip(("fused_time", "not_fused_time", "offloaded_time", "allocated"),
                     (*spread.KINDS, OF_MEMORY)))
    return {names[name]: (int(low), int(high)) for name, low, high in found}


def coverage_cells(flags):
    """flags: (source, whether its run is within), of each run. Counted by runs, and with sources of
    equal weight."""
    pairs = spread.weighted(flags)
    by_source = f"{100 * sum(weight for within, weight in pairs if within):.0f} %" if pairs else "-"
    return f"{len(flags)} | {published.share_of([within for _, within in flags])} | {by_source}"


def spread_line(kind, made, tuned, held):
    """tuned: (source, error) of each run; held: (source, whether it is within)."""
    if spreads_in_code()[kind] != made:
        sys.exit(f"src/plan/spread.c has {spreads_in_code()[kind]} of {kind}, and the rows give "
                 f"{made}; write these")
    low, high = made
    inside = [(source, low <= 100 * math.exp(error) <= high) for source, error in tuned]
    return (f"| {kind} | {len({source for source, _ in tuned})} | {low / 100:.2f} to "
            f"{high / 100:.2f} | {coverage_cells(inside)} | {coverage_cells(held)} |")


def spreads(planner, rows, others):
    """The intervals of each kind, of tuned rows alone, and how many held-out runs lie in them."""
    own = [row for row in others if row["split"] == "tuned"]
    held = [row for row in others if row["split"] == "held-out"]
    tuned = own + preset_errors(planner, rows)
    yield ("| kind | tuned sources | interval | tuned runs | within | by sources | held-out runs | "
           "within | by sources |")
    yield "|---|---|---|---|---|---|---|---|---|"
    for kind in spread.KINDS:
        pairs = [(row["source"], row["error"]) for row in tuned if row["kind"] == kind]
        yield spread_line(kind, spread.interval(pairs), pairs,
                          [(row["source"], row["within"]) for row in held if row["kind"] == kind])
    yield (f"| all times | | | | | | "
           f"{coverage_cells([(row['source'], row['within']) for row in held])} |")
    pairs = [(row["source"], -math.log(1 + row["memory_off"])) for row in own
             if row["memory_off"] is not None]
    yield spread_line(OF_MEMORY, spread.range_of(pairs), pairs, [
        (row["source"], row["memory_within"]) for row in held if row["memory_off"] is not None])
    least = min(tuned, key=lambda row: row["layer_ns"])
    yield ""
    yield (f"The shortest block of a tuned run is one of {least['source']}, {least['model']}: "
           f"{least['layer_ns'] / 1e6:.2f} ms in a micro-step.")


# ---- capacity ----

# Rajbhandari et al., "ZeRO-Infinity", 2021, figure 6a: billions of parameters on one DGX-2.
CAPACITY = (
    ("data parallelism", 1.4, "inf-1.4b", "0"),
    ("ZeRO-Offload", 13, "inf-13b", "2, state, grads host"), ("ZeRO-3", 20, "inf-20b", "3"),
    ("ZeRO-Infinity, CPU", 70, "inf-70b", "3, all host"),
    ("ZeRO-Infinity, NVMe", 1000, "inf-1t", "3, all disk"),
)
CAPACITY_LINES = ((), ("--units", "matrices", "--set", "param_slots=1", "--set", "grad_slots=1"))


def capacity(planner):
    yield "| strategy | published | here | blocks | matrices and one slot |"
    yield "|---|---|---|---|---|"
    for title, published, model, name in CAPACITY:
        path = planner.model(model, 1024)
        figures = []
        for words in CAPACITY_LINES:
            mix = mix_of(planner.plan(path, "dgx-v100", "--recompute", *words), name)
            most = mix["deepest_parameters"]
            figures.append(f"{most / 1e9:.1f} B" if most else "none")
        yield f"| {title} | {published} B | stage {name} | {' | '.join(figures)} |"


SLOTS = ("--units blocks", "--units layers", "--units matrices",
         "--units matrices --set param_slots=1",
         "--units matrices --set param_slots=1 --set grad_slots=1",
         "--units matrices --set param_slots=1 --set grad_slots=1 --sequence 1024")


def slots(planner):
    """What shrinks the slots of a trillion parameters, with everything else on disk."""
    line = "1t dgx-v100 --recompute"
    yield f"    zero plan {line} ..."
    yield ""
    yield "| ... | param slots | grad slots | activations | the device needs, GiB |"
    yield "|---|---|---|---|---|"
    for words in SLOTS:
        mix = mix_of(planner.plan(*line.split(), *words.split()), "3, all disk")
        figures = (mix["role_bytes"]["param slots"], mix["role_bytes"]["grad slots"],
                   mix["activation_bytes"], mix["need_bytes"]["device"])
        yield f"| `{words}` | {' | '.join(f'{figure / GIB:.1f}' for figure in figures)} |"


# ---- commands ----

def cells(mix):
    """One mix's figures: memory of a rank, traffic of a rank and step, time."""
    time, need = mix["time"], mix["need_bytes"]
    memory = " / ".join(f"{need[tier] / GIB:.0f}" for tier in ("device", "host", "disk"))
    moved = " / ".join(f"{time[key] / 1e9:.0f}" for key in (
        "local_bytes", "fabric_bytes", "host_link_bytes", "disk_read_bytes", "disk_write_bytes"))
    share = time["term_ns"][time["bound"]] / time["high_ns"]
    expected, low, high = (time[f"{key}_ns"] / 1e9
                           for key in ("expected", "likely_low", "likely_high"))
    fits = "yes" if mix["fits"] else "no"
    return (f"| {mix['name']} | {fits} | {memory} | {moved} | {expected:.4g} ({low:.4g} to "
            f"{high:.4g}) | {time['flops'] / expected / 1e12:.0f} | "
            f"{time['bound']}, {100 * share:.0f} % |")


def commands(planner, lines):
    """Each command above its figures: the mixes that fit."""
    for line in lines:
        report = planner.plan(*line.split())
        have = report["mixes"][0]["have_bytes"]
        yield f"    zero plan {line}"
        yield ""
        yield (f"A rank has {' / '.join(f'{have[tier] / GIB:.0f}' for tier in have)} GiB. A step "
               f"has {report['mixes'][0]['time']['tokens'] / 1e6:.3g} million tokens.")
        yield ""
        yield ("| stage | fits | device / host / disk, GiB | node / fabric / host link / read / "
               "written, GB | seconds | TFLOP/s | most of it |")
        yield "|---|---|---|---|---|---|---|"
        fitting = [mix for mix in report["mixes"] if mix["fits"]]
        yield from (cells(mix) for mix in fitting or report["mixes"][-1:])
        yield ""


TRILLION = {
    "trillion-1": (
        "1t dgx-v100 --recompute --sequence 1024 --units matrices --set param_slots=1 "
        "--set grad_slots=1",
        "1t dgx-h200 --units matrices --recompute --samples 4 --micro-steps 64 --set updater=cpu",
    ),
    "trillion-64": (
        "1t dgx-h100 --nodes 8 --units layers --recompute --micro-steps 32",
        "1t dgx-h100 --nodes 8 --units matrices --recompute --samples 2 --micro-steps 16",),
    "trillion-512": (
        "1t dgx-h100 --nodes 64 --units layers --recompute --micro-steps 4",
        "1t dgx-h100 --nodes 64 --units matrices --recompute --samples 2 --micro-steps 2",),
    "trillion-4096": (
        "1t dgx-h100 --nodes 512 --units layers --recompute",
        "1t dgx-h100 --nodes 512 --units matrices --recompute --samples 2",),
}


# ---- simulated ----

ON_DISK = "tier=param=disk,grad=disk,master=disk,moment1=disk,moment2=disk"
WAITS = ("gather", "reduction", "copy", "disk", "update", "other")


def simulated(planner, lines):
    """What a step of each command takes, what it waits for, and the busiest link."""
    for line in lines:
        yield f"    zero sim {line}"
    yield ""
    yield ("| GPUs | seconds | TFLOP/s | compute | waits: gather / reduction / copy / disk / "
           "update / other | busiest link |")
    yield "|---|---|---|---|---|---|"
    for line in lines:
        report = planner.sim(*line.split())
        step = report["step_ns"]
        waits = " / ".join(f"{100 * report['wait_ns'][name] / step:.0f}" for name in WAITS)
        link, busy = max(report["link_busy_ns"].items(), key=lambda item: item[1])
        yield (f"| {report['ranks']} | {step / 1e9:.4g} | {report['flops_per_s'] / 1e12:.0f} | "
               f"{100 * report['compute_ns'] / step:.0f} % | {waits} % | "
               f"{link}, {100 * busy / step:.0f} % |")


TRILLION_SIM = (
    "1t dgx-v100 --recompute --sequence 1024 --units matrices --set param_slots=1 "
    f"--set grad_slots=1 --set {ON_DISK}",
    "1t dgx-h100 --nodes 8 --units matrices --recompute --samples 2 --micro-steps 16 "
    f"--set {ON_DISK}",
    "1t dgx-h100 --nodes 64 --units matrices --recompute --samples 2 --micro-steps 2 "
    "--set tier=master=host,moment1=host,moment2=host",
    "1t dgx-h100 --nodes 64 --units matrices --recompute --samples 2 --micro-steps 2 "
    "--set tier=master=disk,moment1=disk,moment2=disk",
    "1t dgx-h100 --nodes 512 --units matrices --recompute --samples 2",
)

QUOTED = {8: 95, 64: 85, 512: 75, 1000: 70, 1024: 70}
SCALED = "llama-13b dgx-h100 --recompute"
SLOW = "llama-13b slow.json --recompute"
# The cluster slow.json: one card of 400 Gb/s a node.
SLOW_CLUSTER = {"preset": "dgx-h100", "fabric_bytes_per_s": 50 * 10**9}
WAYS = (("as by default", SCALED), ("nothing gathered ahead", SCALED + " --set no_prefetch=1"),
        ("buckets of 256 MiB", SCALED + " --set bucket_bytes=256M"),
        ("parameters split within a node", SCALED + " --set shard_group=8"),
        ("ranks late by 1 ms on average", SCALED + " --jitter-ns 1000000"),
        ("an eighth of the fabric", SLOW),
        ("an eighth, split within a node", SLOW + " --set shard_group=8"))


def scaling(planner, batch):
    """Of each way and number of GPUs, the share of a step that is compute. batch: the words that
    give a rank's, by GPUs."""
    slow = planner.file("slow", SLOW_CLUSTER)
    yield f"| `zero sim` ... `--nodes` N/8 | {' | '.join(f'{n} GPUs' for n in batch)} |"
    yield "|---|" + "---|" * len(batch)
    for title, line in WAYS:
        shares = []
        for ranks, words in batch.items():
            all_words = f"{line} --nodes {ranks // 8} {words}".replace("slow.json", slow).split()
            report = planner.sim(*all_words)
            shares.append(f"{100 * report['compute_ns'] / report['step_ns']:.1f} %")
        yield f"| {title}: `{line}` | {' | '.join(shares)} |"
    yield f"| often quoted | {' | '.join(f'{QUOTED[n]} %' for n in batch)} |"


# ---- one rank's part, measured ----

RESULTS = os.path.join(HERE, "..", "bench", "results")
MEASURED_PART = "2026-11-22-offload-part.json"
MEASURED_MACHINE = "2026-11-22-machine.json"
# A rank of 512, each with such a machine, and nothing to wait for but its memory and disk.
ENDLESS = 10**15
PART_CLUSTER = {"nodes": 512, "ranks_per_node": 1, "device_bytes": ENDLESS, "host_bytes": ENDLESS,
                "device_flops": ENDLESS, "device_bytes_per_s": ENDLESS,
                "host_link_bytes_per_s": ENDLESS, "host_link_latency_ns": 0,
                "fabric_bytes_per_s": ENDLESS, "fabric_permille": 1000}
PART_WORDS = "--units matrices --samples 1 --sequence 1".split()
STATE_ON_DISK = "tier=master=disk,moment1=disk,moment2=disk"


def read_result(name):
    with open(os.path.join(RESULTS, name), encoding="utf-8") as file:
        return json.load(file)


def part(planner):
    """A step of one rank of 512 of a trillion parameters with its state on disk: measured by
    `zero bench offload --slice`, and predicted from what `zero bench calibrate` says."""
    rows = {row["metric"]: row for row in read_result(MEASURED_PART)["results"]
            if row["metric"] in ("offload_ms_per_gb", "peak_memory_vs_plan")}
    step = next(row for row in read_result(MEASURED_PART)["results"]
                if row["metric"] == "offload_step_vs_io")
    cluster = planner.file("part", {**read_result(MEASURED_MACHINE), **PART_CLUSTER})
    mix = mix_of(planner.plan("1t", cluster, *PART_WORDS), "3, state disk")
    sim = planner.sim("1t", cluster, *PART_WORDS, "--set", STATE_ON_DISK)
    time = mix["time"]
    peak = rows["peak_memory_vs_plan"]
    moved = step["value"] / rows["offload_ms_per_gb"]["value"]
    planned = (time["disk_read_bytes"] + time["disk_write_bytes"]) / 1e9
    yield "| | measured | predicted |"
    yield "|---|---|---|"
    yield f"| memory, GB | {peak['value'] / 1e9:.3f} | {peak['reference'] / 1e9:.3f} |"
    yield f"| read and written, GB | {moved:.2f} | {planned:.2f} |"
    low, expected, high = (time[f"{key}_ns"] / 1e9 for key in ("low", "expected", "high"))
    yield (f"| seconds | {step['value'] / 1e3:.2f} ({step['min'] / 1e3:.2f} to "
           f"{step['max'] / 1e3:.2f}) | `zero plan` {expected:.2f} ({low:.2f} to {high:.2f}), "
           f"`zero sim` {sim['step_ns'] / 1e9:.2f} |")


WEAK = {ranks: "--micro-steps 1" for ranks in (8, 64, 512, 1000)}
STRONG = {ranks: f"--micro-steps {1024 // ranks}" for ranks in (8, 64, 512, 1024)}


# ---- the page ----

def blocks_of(program, known):
    """{name of a block: its lines}"""
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(program, folder)
        results = residuals(planner, read_rows(), known)
        others = published.predicted(planner)
        made = {"measured-summary": measured_summary(results),
                "measured-rows": measured_rows(results),
                "spreads": spreads(planner, read_rows(), others),
                "published-summary": published.summary(others),
                "published-rows": published.table(others),
                "capacity": capacity(planner), "slots": slots(planner)}
        made.update({name: commands(planner, lines) for name, lines in TRILLION.items()})
        made.update({"trillion-sim": simulated(planner, TRILLION_SIM),
                     "part": part(planner), "weak": scaling(planner, WEAK),
                     "strong": scaling(planner, STRONG)})
        return {name: list(lines) for name, lines in made.items()}


def rewritten(text, blocks):
    """A page with these blocks between `<!-- NAME -->` and `<!-- end of NAME -->` replaced."""
    for name, lines in blocks.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            sys.exit(f"the page has no block {begin} to {end}")
        body = "\n".join(lines).strip("\n")
        text = text[:text.index(begin) + len(begin)] + f"\n\n{body}\n\n" + text[text.index(end):]
    return text


ROWS = ("measured-rows", "published-rows")  # the blocks of the second page


def differs(text, made):
    """Says where a page is not what is printed."""
    if made == text:
        return False
    pairs = zip(text.splitlines(), made.splitlines())
    old, new = next(((a, b) for a, b in pairs if a != b), ("its end", "more"))
    print(f"the page says:       {old}\nthe script gives:    {new}")
    return True


def print_spreads(program):
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(program, folder)
        print("\n".join(spreads(planner, read_rows(), published.predicted(planner))))
    return 0


def main():
    words = [word for word in sys.argv[1:] if word not in ("--check", "--spread")]
    if len(words) == 1 and "--spread" in sys.argv:
        return print_spreads(words[0])
    if not 1 <= len(words) <= 2:
        sys.exit(__doc__)
    page = words[1] if len(words) > 1 else os.path.join(HERE, "..", "docs", "feasibility.md")
    pages = (page, page.removesuffix(".md") + "-rows.md")
    texts = []
    for path in pages:
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    check = "--check" in sys.argv
    blocks = blocks_of(words[0], known_of(texts[0]) if check else {})
    rows = {name: blocks.pop(name) for name in ROWS}
    made = [rewritten(text, of) for text, of in zip(texts, (blocks, rows))]
    if check:
        failed = sum([differs(*pair) for pair in zip(texts, made)])
        print(f"{len(pages) - failed} passed, {failed} failed, 0 skipped")
        return 1 if failed else 0
    for path, text in zip(pages, made):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
