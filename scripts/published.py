"""Runs of scripts/published.csv beside what `zero plan` says of them: shares of presets, nothing
fitted. Sources are either "tuned", which the model may be tuned on, or "held-out"."""

import csv
import math
import os
import statistics

import spread

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
GB = 10**9
TERA = 10**12


def llama(layers, width, heads, kv_heads, ffn_width, vocab, more=""):
    """Words of a model with gated feed-forward layers and rotary positions."""
    return (f"layers={layers},width={width},heads={heads},kv_heads={kv_heads},"
            f"ffn_width={ffn_width},vocab={vocab},sequence=1048576,gated=1{more}")


def gpt(layers, width, heads, vocab):
    """Words of a model like GPT-3."""
    return (f"layers={layers},width={width},heads={heads},vocab={vocab},positions=2048,"
            "sequence=2048,tied_head=1,biases=1")


def nemotron(layers, width, heads, kv_heads, ffn_width):
    """Words of a model without gates and biases, with rotary positions."""
    return (f"layers={layers},width={width},heads={heads},kv_heads={kv_heads},"
            f"ffn_width={ffn_width},vocab=256000,sequence=4096")


QWEN = ",qkv_biases=1"
# Beside the presets of `zero plan`.
MODELS = {
    "llama3-8b": llama(32, 4096, 32, 8, 14336, 128256),
    "llama3-70b": llama(80, 8192, 64, 8, 28672, 128256),
    "llama-34b": llama(48, 8192, 64, 8, 22016, 32000),
    "llama-405b": llama(126, 16384, 128, 8, 53248, 128256),
    "internlm-7b": llama(32, 4096, 32, 32, 11008, 103168),
    "aquila2-7b": llama(32, 4096, 32, 32, 11008, 100008),
    "tinyllama": llama(22, 2048, 32, 4, 5632, 32000),
    "qwen2.5-0.5b": llama(24, 896, 14, 2, 4864, 151936, QWEN + ",tied_head=1"),
    "qwen2.5-1.5b": llama(28, 1536, 12, 2, 8960, 151936, QWEN + ",tied_head=1"),
    "qwen2.5-3b": llama(36, 2048, 16, 2, 11008, 151936, QWEN + ",tied_head=1"),
    "qwen2.5-7b": llama(28, 3584, 28, 4, 18944, 152064, QWEN),
    "gpt3-125m": gpt(12, 768, 12, 50264), "gpt3-355m": gpt(24, 1024, 16, 50264),
    "gpt3-760m": gpt(24, 1536, 16, 50264), "gpt3-1.3b": gpt(24, 2048, 16, 50264),
    "gpt3-2.7b": gpt(32, 2560, 20, 50264), "gpt3-5b": gpt(24, 4096, 32, 51200),
    "gpt3-20b": gpt(44, 6144, 48, 51200),
    "nemotron-8b": nemotron(32, 4096, 32, 32, 16384),
    "nemotron-15b": nemotron(32, 6144, 48, 8, 24576),
    "nemotron-22b": nemotron(40, 6144, 48, 48, 24576),
    "nemotron-340b": nemotron(96, 18432, 96, 8, 73728),
}
# Keys of a cluster's file that a preset lacks. A800 and H800 have less NVLink; the GPUs of 500 W
# have other memory too, and run slower by the root of their power. Of L40S and RTX PRO 6000 no
# preset exists: what products reach of data sheets was looked up in llmq's rows.
CLUSTERS = {
    "a100": {"preset": "dgx-a100"},
    "a100-400": {"preset": "dgx-a100", "fabric_bytes_per_s": 50 * GB},
    "a100-40": {"preset": "dgx-a100", "device_bytes": 40 * GIB, "device_bytes_per_s": 1555 * GB},
    "a800": {"preset": "dgx-a100", "local_bytes_per_s": 200 * GB},
    "h100": {"preset": "dgx-h100"},
    "h100-800": {"preset": "dgx-h100", "fabric_bytes_per_s": 100 * GB},
    "h100-500w": {"preset": "dgx-h100", "device_bytes": 96 * GB, "device_bytes_per_s": 2400 * GB,
                  "device_permille": 540, "device_fp8_permille": 456, "attention_permille": 507},
    "h200": {"preset": "dgx-h200"},
    "h800": {"preset": "dgx-h100", "local_bytes_per_s": 200 * GB},
    "rtx-4090": {"preset": "rtx-4090"},
    "rtx-5090": {"preset": "rtx-5090"},
    "l40s": {"preset": "rtx-4090", "device_bytes": 48 * GIB, "device_flops": 362 * TERA,
             "device_permille": 560, "device_bytes_per_s": 864 * GB,
             "device_fp8_flops": 733 * TERA, "device_fp8_permille": 450,
             "attention_permille": 800},
    "pro-6000": {"preset": "rtx-5090", "device_bytes": 96 * GIB, "device_flops": 504 * TERA,
                 "device_permille": 760, "device_fp8_flops": 1007 * TERA,
                 "device_fp8_permille": 550},
}
# What the sources count as memory: that of PyTorch's allocator, or the process's, which has CUDA's
# too.
OF_ALLOCATOR = ("torchtitan", "deepspeed-a800")
RECOMPUTE = {"none": [], "selective": ["--recompute-selective"], "full": ["--recompute"]}
NUMBERS = ("ranks", "sequence", "samples", "micro_steps")


def read_rows():
    with open(os.path.join(HERE, "published.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.update((key, int(row[key])) for key in NUMBERS)
        row["measured"] = float(row["measured"])
        row["memory_gib"] = float(row["memory_gib"]) if row["memory_gib"] else None
    return rows


def words_of(planner, row):
    """A row as words of `zero plan`."""
    name, *more = row["model"].split(",")
    per_node = min(8, row["ranks"])
    cluster = dict(CLUSTERS[row["cluster"]], nodes=row["ranks"] // per_node,
                   ranks_per_node=per_node)
    return [",".join((MODELS.get(name, name), *more)),
            planner.file(f"{row['cluster']}-{row['ranks']}", cluster),
            "--samples", str(row["samples"]), "--sequence", str(row["sequence"]),
            "--micro-steps", str(row["micro_steps"]), "--no-search",
            *RECOMPUTE[row["recompute"]],
            *row["words"].split()]


def rate_of(time, ranks, nanoseconds):
    """In tokens a second of a GPU."""
    return time["tokens"] / ranks / nanoseconds * 1e9


def measured_rate(row, time, ranks):
    """Likewise; sources give those of a GPU, of all, or seconds of a step."""
    return {"gpu": row["measured"], "all": row["measured"] / ranks,
            "step": time["tokens"] / ranks / row["measured"]}[row["unit"]]


def predict(planner, row):
    """The row with what `zero plan` says of it."""
    report = planner.plan(*words_of(planner, row))
    mix = next(mix for mix in report["mixes"] if mix["name"] == row["stage"])
    time, ranks = mix["time"], report["ranks"]
    rate = {key: rate_of(time, ranks, time[f"{key}_ns"])
            for key in ("expected", "likely_low", "likely_high")}
    measured = measured_rate(row, time, ranks)
    reserve = report["cluster"]["device_reserve_bytes"]
    less = reserve if row["source"] in OF_ALLOCATOR else 0
    need, likely = mix["need_bytes"]["device"] - less, mix["likely_device_bytes"]
    known = row["memory_gib"]
    return {**row, "rate": rate, "measured": measured, "off": rate["expected"] / measured - 1,
            "kind": spread.kind_of(row["words"], row["stage"]),
            "error": math.log(rate["expected"] / measured), "layer_ns": layer_ns(report, time),
            "within": rate["likely_high"] <= measured <= rate["likely_low"], "memory": need / GIB,
            "memory_off": need / GIB / known - 1 if known else None,
            "memory_within": known is None or likely["low"] - less <= known * GIB
            <= likely["high"] - less}


def layer_ns(report, time):
    """Of a block in a micro-step of a rank, as expected."""
    return (time["expected_ns"] / report["micro_steps"] * report["mesh"]["pipeline"]
            / report["layers"])


def percent(value):
    return f"{100 * value:+.0f} %"


def median_of(values):
    return f"{100 * statistics.median(map(abs, values)):.1f} %" if values else "-"


def share_of(flags):
    return f"{100 * sum(flags) / len(flags):.0f} %" if flags else "-"


def line_of(title, rows):
    """A line of the summary."""
    offs = sorted((row["off"] for row in rows), key=abs)
    memory = [row["memory_off"] for row in rows if row["memory_off"] is not None]
    worst = percent(max(memory, key=abs)) if memory else "-"
    memory_within = [row["memory_within"] for row in rows if row["memory_off"] is not None]
    return (f"| {title} | {len(rows)} | {median_of(offs)} | {percent(statistics.median(offs))} | "
            f"{percent(offs[-1])} | {share_of([abs(off) <= 0.15 for off in offs])} | "
            f"{share_of([row['within'] for row in rows])} | {len(memory)} | {median_of(memory)} | "
            f"{worst} | {share_of(memory_within)} |")


def summary(rows):
    yield ("| source | runs | median off | middle | worst | within 15 % | in the interval | with "
           "memory | median off | worst | in its interval |")
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for half in ("tuned", "held-out"):
        own = [row for row in rows if row["split"] == half]
        for source in dict.fromkeys(row["source"] for row in own):
            yield line_of(f"{source}, {half}", [row for row in own if row["source"] == source])
        if own:
            yield line_of(f"**all {half}**", own)


def table(rows):
    yield ("| source | model | cluster | GPUs | batch | stage | words | measured | expected | 80 % "
           "of runs | off | memory, GiB | planned | off |")
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        rate, known = row["rate"], row["memory_gib"]
        mark = "" if row["recompute"] == "none" else f", {row['recompute']}"
        memory = f"{known:g} | {row['memory']:.1f} | {percent(row['memory_off'])}" if known else (
            "- | - | -")
        yield (f"| {row['source']} | {row['model']} | {row['cluster']} | {row['ranks']} | "
               f"{row['samples']} x {row['sequence']} x {row['micro_steps']}{mark} | "
               f"{row['stage']} | {row['words'] or '-'} | {row['measured']:.0f} | "
               f"{rate['expected']:.0f} | {rate['likely_high']:.0f} to "
               f"{rate['likely_low']:.0f} | "
               f"{percent(row['off'])} | {memory} |")


def predicted(planner, halves=("tuned", "held-out")):
    return [predict(planner, row) for row in read_rows() if row["split"] in halves]
