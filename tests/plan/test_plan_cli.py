#!/usr/bin/env python3
"""`zero plan`, as a user types it: its figures agree with one another, and what it cannot plan is
refused with the word that is wrong.

Usage: test_plan_cli.py PROGRAM. One line per check; the last is "N passed, N failed,
N skipped"."""

import itertools
import json
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from html import unescape
from html.parser import HTMLParser

counts = {True: 0, False: 0}


def check(name, holds, detail=""):
    counts[bool(holds)] += 1
    print(f"{'ok' if holds else 'FAILED':8}{name}{'' if holds else ': ' + str(detail)}")


def run(program, *words):
    return subprocess.run([program, "plan", *words], capture_output=True, text=True, check=False)


def mixes(program, *words):
    done = run(program, *words, "--json", "-")
    report = json.loads(done.stdout)
    return report, {mix["name"]: mix for mix in report["mixes"]}


def check_table(program):
    done = run(program, "llama-70b", "dgx-h100", "--nodes", "4", "--recompute")
    check("a plan is made", done.returncode == 0, done.stderr)
    check("it fits in 80 columns", all(len(line) <= 80 for line in done.stdout.splitlines()),
          max(done.stdout.splitlines(), key=len))
    check("the first mix that fits is given as options",
          "options.stage = ZERO_STAGE_3;" in done.stdout)
    none = run(program, "1t", "workstation")
    check("that nothing fits is said, and is no failure",
          none.returncode == 0 and "Nothing fits" in none.stdout, none.stdout)


def check_python(program):
    """The table is made by Python, the figures are not."""
    for words, status, said in (((), 1, "there is no python3"), (("--json", "-"), 0, "")):
        done = subprocess.run([program, "plan", "gpt2", *words], capture_output=True, text=True,
                              check=False, env=os.environ | {"PATH": "/nowhere"})
        check(f"without python3: zero plan gpt2 {' '.join(words)}", done.returncode == status and
              said in done.stderr and (done.stdout == "") == (status == 1), done.stderr)


def check_names(program):
    """Of files, which need not be UTF-8."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (b"caf\xe9.json", "\uefe9\uef80.json".encode()):
            path = os.path.join(os.fsencode(folder), name)
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
                           "n_positions": 128, "vocab_size": 512}, file)
            done = subprocess.run([program, "plan", path], capture_output=True, check=False)
            check(f"a table has the name {name}", done.stdout.startswith(path + b": "), done)
        done = subprocess.run([program, "plan", os.path.join(os.fsencode(folder), b"caf\xe9.json"),
                               "--json", "-"], capture_output=True, check=False)
        check("JSON of such a name is refused whole", done.returncode == 1 and not done.stdout and
              b"not UTF-8" in done.stderr, done)


def check_words(program):
    line = ("gpt2-xl", "workstation", "--set", "param_slots=2")
    printed = run(program, *line).stdout.splitlines()
    words = [word for row in printed if row.startswith("  --set ") for word in row.split()]
    done = subprocess.run([program, "sim", *line[:2], *words, "--json", "-"],
                          capture_output=True, text=True, check=False)
    first = next(mix for mix in mixes(program, *line)[0]["mixes"] if mix["fits"])
    check("the first that fits is given as words of a command line", done.returncode == 0 and
          json.loads(done.stdout)["need_bytes"] == first["need_bytes"], (words, done.stderr))


def check_dimensions(program):
    named = mixes(program, "gpt2")[0]
    given = ("layers=12,width=768,heads=12,vocab=50257,positions=1024,sequence=1024,biases=1,"
             "tied_head=1")
    for words in (given, "gpt2", "gpt2,layers=12"):
        report = mixes(program, words)[0]
        check(f"{words}: dimensions describe the preset", report["mixes"] == named["mixes"] and
              report["parameters"] == 124439808, report["parameters"])
    for words, said in (("gpt2,layer=3", 'did you mean "layers"?'), ("layers=x", "layers=x"),
                        ("layers=3", "width of the transformer is 0"),
                        ("gpt2,biases=2", "0 or 1"), ("gpt2,", "NAME=VALUE"),
                        ("gpt9,layers=3", '"gpt9"'), ("gpt2,dtype=f8", "dtype=f8")):
        done = run(program, words)
        check(f"{words}: refused with what is wrong", done.returncode == 1 and said in done.stderr,
              done.stderr)


def check_left_out(program):
    """Llama 4 as a hub has it: its text model is planned, and the towers are named."""
    text = {"hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192,
            "intermediate_size_mlp": 16384, "num_local_experts": 16, "num_experts_per_tok": 1,
            "vocab_size": 202048, "max_position_embeddings": 8192}
    whole = {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"],
             "torch_dtype": "bfloat16", "text_config": text, "vision_config": {"hidden_size": 1408}}
    named = mixes(program, "llama-4-scout")[0]
    given = ("layers=48,width=5120,heads=40,kv_heads=8,head_width=128,ffn_width=8192,"
             "dense_ffn_width=16384,shared_ffn_width=8192,experts=16,experts_used=1,expert_every=1,"
             "vocab=202048,sequence=8192,window=8192,full_every=4,gated=1,chunked=1")
    report = mixes(program, given)[0]
    check("dimensions of experts and windows describe a preset", named["mixes"] == report["mixes"]
          and named["left_out"] == [], report["parameters"])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(whole, file)
        report = mixes(program, path)[0]
        page = os.path.join(folder, "page.html")
        done = run(program, path, "--html", page)
        with open(page, encoding="utf-8") as file:
            html = file.read()
    said = "planned without towers of images or sound"
    check("a file's text model is planned as the preset", report["mixes"] == named["mixes"] and
          report["left_out"] == ["towers of images or sound"], report["left_out"])
    check("the table and the page name what is not planned", said in done.stdout.splitlines() and
          said in html, done.stdout[:300])


def check_experts(program):
    line = ("deepseek-v3", "dgx-h200", "--nodes", "64", "--recompute", "--units", "layers")
    alone, rows = mixes(program, *line)
    shared, shared_rows = mixes(program, *line, "--expert", "64")
    check("ranks share experts", shared["mesh"]["expert"] == 64 and alone["mesh"]["expert"] == 1 and
          shared["parameters"] == alone["parameters"], shared["mesh"])
    check("groups within a node are of one engine", "3 in a node" in rows and
          "3 in a node" not in shared_rows, list(shared_rows))
    check("slots hold a 64th of a block's experts",
          shared_rows["3"]["role_bytes"]["param slots"] * 8 <
          rows["3"]["role_bytes"]["param slots"], shared_rows["3"]["role_bytes"])
    check("tokens travel", shared_rows["3"]["time"]["term_ns"]["activations"] > 0 and
          rows["3"]["time"]["term_ns"]["activations"] == 0)
    text = run(program, *line, "--expert", "64").stdout
    check("the table says which engines there are", "experts' of 8, 64 to a block" in text and
          "an engine of their own" in text, text[:400])
    for words, said in ((("llama-7b", "--expert", "2"), "does not divide experts, 0"),
                        (("deepseek-v3", "--expert", "64"), "does not divide the 8 ranks"),
                        (("mixtral-8x7b", "dgx-a100", "--expert", "8", "--search"),
                         "only plans of one engine are searched"),
                        (("mixtral-8x7b", "--expert", "8", "--wire", "zero++"), "ZeRO++")):
        done = run(program, *words)
        check(f"{' '.join(words)}: refused", done.returncode == 1 and said in done.stderr,
              done.stderr)


def check_figures(program):
    report, rows = mixes(program, "gpt3-175b", "dgx-a100", "--nodes", "16", "--recompute")
    parameters, ranks = report["parameters"], report["ranks"]
    check("ranks are nodes x ranks of a node", ranks == 128, ranks)
    states = ("param", "grad", "master", "moment1", "moment2")
    # Sums of gradients are in fp32: 18 bytes a parameter, not 16.
    expected = {"0": 18 * parameters, "1": 6 * parameters + 12 * parameters / ranks,
                "2": 2 * parameters + 16 * parameters / ranks, "3": 18 * parameters / ranks}
    for name, bytes_ in expected.items():
        have = sum(rows[name]["role_bytes"][role] for role in states)
        check(f"stage {name} holds what its formula says", abs(have / bytes_ - 1) < 1e-3,
              f"{have} and {bytes_}")
    for name, mix in rows.items():
        need, have = mix["need_bytes"], mix["have_bytes"]
        check(f"{name}: fits says whether needs are within", mix["fits"] ==
              all(need[tier] <= have[tier] for tier in need), mix)
        check(f"{name}: the deepest model is deeper exactly where it fits", mix["fits"] ==
              (mix["deepest_parameters"] >= parameters), mix)
    first = next((name for name, mix in rows.items() if mix["fits"]), None)
    check("the recommended mix is the first that fits", report["recommended"] == first, first)
    again, _ = mixes(program, "gpt3-175b", "dgx-a100", "--nodes", "16", "--recompute")
    check("the same line gives the same figures", again == report)


def check_options(program):
    less, fewer = mixes(program, "llama-13b", "--recompute")
    more, rows = mixes(program, "llama-13b")
    check("recomputation keeps fewer activations",
          less["mixes"][0]["activation_bytes"] < more["mixes"][0]["activation_bytes"] / 4)
    check("it leaves the engine's bytes as they are",
          fewer["3"]["role_bytes"] == rows["3"]["role_bytes"])
    _, layers = mixes(program, "llama-13b", "dgx-h100", "--units", "matrices")
    check("smaller units need smaller slots", layers["3"]["role_bytes"]["param slots"] <
          rows["3"]["role_bytes"]["param slots"])
    two, _ = mixes(program, "llama-13b", "--samples", "2", "--sequence", "2048")
    check("two halves of a sample have the activations of one",
          two["mixes"][0]["activation_bytes"] == more["mixes"][0]["activation_bytes"])


def check_times(program):
    line = ("gpt3-175b", "dgx-a100", "--nodes", "16", "--recompute")
    report, rows = mixes(program, *line)
    for name, mix in rows.items():
        time = mix["time"]
        check(f"{name}: terms add up to the interval's end", time["high_ns"] ==
              sum(time["term_ns"].values()) and 0 < time["low_ns"] < time["high_ns"], time)
        check(f"{name}: what to reckon with is between both ends",
              time["low_ns"] <= time["expected_ns"] <= time["high_ns"], time)
        check(f"{name}: so are published runs around it", time["low_ns"] <= time["likely_low_ns"]
              <= time["expected_ns"] < time["likely_high_ns"], time)
        likely, need = mix["likely_device_bytes"], mix["need_bytes"]["device"]
        check(f"{name}: and what trainers hold around its bytes",
              likely["low"] < need < likely["high"], likely)
        check(f"{name}: the largest term bounds it", time["term_ns"][time["bound"]] ==
              max(time["term_ns"].values()), time)
    _, more = mixes(program, *line, "--micro-steps", "4")
    check("micro-steps share an update", more["3"]["time"]["term_ns"]["update"] ==
          rows["3"]["time"]["term_ns"]["update"] and abs(
              more["3"]["time"]["term_ns"]["products"] -
              4 * rows["3"]["time"]["term_ns"]["products"]) < 4, more["3"]["time"])
    check("and nodes exchange less where parameters are split within them",
          more["3 in a node"]["time"]["fabric_bytes"] < more["3"]["time"]["fabric_bytes"] / 2)
    done = run(program, *line)
    check("the table says what bounds a step", "Seconds; stage" in done.stdout and
          "Its step, in seconds" in done.stdout and report["ranks"] == 128, done.stdout)
    with tempfile.TemporaryDirectory() as folder:
        cluster = os.path.join(folder, "cluster.json")
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump({"preset": "dgx-a100", "device_flops": 0}, file)
        done = run(program, "gpt2", cluster)
        check("without a rate there is no time, and it is said which", done.returncode == 0 and
              "No time of a step: device_flops" in done.stdout, done.stdout)
        _, rows = mixes(program, "gpt2", cluster)
        check("nor in JSON", all(mix["time"] is None for mix in rows.values()))


def check_trainer(program):
    line = ("llama-7b", "dgx-a100")
    plain, rows = mixes(program, *line)
    fused, quick = mixes(program, *line, "--fused")
    moved = [mix["3"]["time"]["term_ns"]["elements"] for mix in (quick, rows)]
    check("fused kernels move half", abs(2 * moved[0] - moved[1]) <= 1 and fused["fused"] and
          not plain["fused"], moved)
    check("and keep less", quick["3"]["activation_bytes"] < rows["3"]["activation_bytes"])
    half, _ = mixes(program, *line, "--recompute-selective")
    check("recomputation may be of every second block", half["recompute_selective"] and
          not half["recompute"], half["recompute"])
    stored, _ = mixes(program, *line, "--attention", "stored")
    check("scores may be stored", stored["attention"] == "stored" and
          stored["mixes"][0]["activation_bytes"] > plain["mixes"][0]["activation_bytes"])
    few, _ = mixes(program, *line, "--logit-rows", "128")
    check("a loss in parts keeps fewer logits", plain["mixes"][0]["activation_bytes"] -
          few["mixes"][0]["activation_bytes"] == (4096 - 128) * 32000 * 10)
    said = run(program, *line, "--fused", "--attention", "stored").stdout
    check("the table says how", "trainer: fused kernels, stored attention scores" in said, said)
    wrong = run(program, *line, "--attention", "ring")
    check("another attention is refused by name", wrong.returncode == 1 and
          "--attention ring: expected flash or stored" in wrong.stderr, wrong.stderr)


def searched(program, *words):
    done = run(program, *words, "--json", "-")
    return json.loads(done.stdout)["search"] if done.returncode == 0 else done.stderr


def flags_of(text):
    """Words of the first plan that is printed: the lines below its time."""
    lines = text.split("\n1. ")[1].splitlines()[1:]
    return [word for line in itertools.takewhile(lambda line: line.startswith("     "), lines)
            for word in line.split()]


def check_search(program):
    line = ("llama-70b", "dgx-h100", "--nodes", "8", "--search", "--tokens-per-step", "4194304")
    plans = searched(program, *line)["plans"]
    check("a search has three plans", len(plans) == 3, plans)
    check("in order of time, coarser states a percent behind", plans == sorted(
        plans, key=lambda plan: plan["time"]["expected_ns"] * (100 + plan["coarseness"])), plans)
    for plan in plans:
        need, have = plan["need_bytes"], plan["have_bytes"]
        check("each fits, and has the tokens of the step", all(
            need[tier] <= have[tier] for tier in need) and plan["time"]["tokens"] == 4194304, plan)
    ways = [(plan["stage"], plan["shard_group"], plan["recompute"], *plan["tiers"].items(),
             *(plan["mesh"][axis] for axis in ("tensor", "pipeline", "context")))
            for plan in plans]
    check("they differ in what a person chooses", len(set(ways)) == 3, ways)
    check("formats that fit stand beside each", all(
        other["need_bytes"]["device"] < plan["need_bytes"]["device"]
        for plan in plans for other in plan["formats"]
        if other["coarseness"] > plan["coarseness"]) and plans[0]["formats"], plans)
    moe = run(program, "mixtral-8x7b", "dgx-h100", "--nodes", "2", "--search").stdout
    check("experts that ranks share are not searched, by name", "--expert" in moe and
          "--expert" not in run(program, *line).stdout, moe)
    done = run(program, *line)
    check("it fits in 80 columns, and says why", all(len(row) <= 80 for row in
          done.stdout.splitlines()) and done.stdout.count("Most of it: ") == 3 and
          done.stdout.count("zero_engine_options_init()") == 3, done.stdout)
    again = searched(program, *line, *flags_of(done.stdout))
    check("its words give the best again", again["plans"][0] == plans[0], again)
    table, rows = mixes(program, "llama-70b", "dgx-h100", "--nodes", "8", "--recompute")
    best = searched(program, "llama-70b", "dgx-h100", "--nodes", "8", "--search")["plans"][0]
    check("no mix of the table is faster", table["recommended"] and best["time"]["expected_ns"] <=
          min(mix["time"]["expected_ns"] for mix in rows.values() if mix["fits"]), best["time"])
    held = searched(program, *line, "--tensor", "1", "--pipeline", "1", "--set", "stage=3",
                    "--recompute", "--set", "master_dtype=remainder16")["plans"]
    check("options are held", all(
        (plan["mesh"]["tensor"], plan["mesh"]["pipeline"], plan["stage"], plan["recompute"],
         plan["chosen"]["master_dtype"]) == (1, 1, 3, True, "remainder16") for plan in held), held)
    begin = time.process_time()
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    big = searched(program, "1t", "dgx-h100", "--nodes", "128", "--search")
    spent = (time.process_time() - begin +
             resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - child)
    check("a trillion on 1024 GPUs is searched in two seconds of a CPU", len(big["plans"]) == 3 and
          spent < 2, spent)


def check_nothing_fits(program):
    line = ("1t", "dgx-v100", "--recompute", "--sequence", "1024")
    report, _ = mixes(program, *line)
    check("where nothing fits as asked a search follows", report["recommended"] is None and
          len(report["search"]["plans"]) == 3, report["search"])
    done = run(program, *line)
    check("and is printed", "Nothing fits as asked. The same samples in another way:" in
          done.stdout, done.stdout)
    report, _ = mixes(program, *line, "--no-search")
    check("or not", report["recommended"] is None and report["search"] is None, report["search"])
    done = run(program, *line, "--no-search", "--search")
    check("and not both", done.returncode == 1 and "--search and --no-search" in done.stderr,
          done.stderr)
    line = ("llama-70b", "workstation")
    search = searched(program, *line, "--search", "--set", "tier=master=host")
    lacks = {tier: need - search["nearest"]["have_bytes"][tier]
             for tier, need in search["nearest"]["need_bytes"].items()}
    done = run(program, *line, "--search", "--set", "tier=master=host")
    check("the nearest miss is said to the byte", not search["plans"] and
          f"({max(lacks.values())} bytes)" in done.stdout, (lacks, done.stdout))
    for remedy in search["remedies"]:
        words = remedy["words"].split()
        if words[0] == "--nodes":
            again = searched(program, *line, "--search", "--set", "tier=master=host", *words)
            check("and what makes it fit does", again["plans"], again)
    with tempfile.TemporaryDirectory() as folder:
        cluster = os.path.join(folder, "cluster.json")
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump({"preset": "workstation", "disk_bytes": 0}, file)
        remedies = searched(program, "llama-70b", cluster, "--search")["remedies"]
        disk = next(remedy for remedy in remedies if "of disk a node" in remedy["words"])
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump({"preset": "workstation",
                       "disk_bytes": int(float(disk["words"].split()[0]) * 1e12)}, file)
        check("as much disk as is said makes it fit", searched(
            program, "llama-70b", cluster, "--search")["plans"], remedies)
    check("more nodes are among that", any(
        remedy["words"].startswith("--nodes") for remedy in search["remedies"]), search["remedies"])


def check_run(program):
    line = ("llama-70b", "dgx-h100", "--nodes", "64", "--recompute", "--tokens", "15e12",
            "--price", "2.5", "--watts", "1200")
    _, rows = mixes(program, *line)
    cost, step = rows["3"]["run"], rows["3"]["time"]
    steps = math.ceil(15e12 / step["tokens"])
    hours = 512 * steps * step["expected_ns"] / 1e9 / 3600
    check("a run has its steps, hours, price and energy", cost["steps"] == steps and all(
        math.isclose(cost[name], value, rel_tol=1e-9) for name, value in (
            ("gpu_hours", hours), ("price", 2.5 * hours), ("mwh", 1200 * hours / 1e6),
            ("goodput", 1))), cost)
    _, rows = mixes(program, *line, "--mtbf", "50000")
    failing = rows["3"]["run"]
    check("failures take their part", failing["goodput"] < 1 and math.isclose(
        failing["wall_seconds"] * failing["goodput"], cost["wall_seconds"], rel_tol=1e-9) and
        math.isclose(failing["mtbf_seconds"], 50000 * 3600 / 64) and
        failing["restart_seconds"] == 600, failing)
    _, rows = mixes(program, *line, "--mtbf", "50000", "--save-seconds", "900",
                    "--restart-seconds", "1800")
    check("and slow saves a larger one", rows["3"]["run"]["goodput"] < failing["goodput"] and
          rows["3"]["run"]["save_seconds"] == 900, rows["3"]["run"])
    done = run(program, *line, "--mtbf", "50000")
    text = " ".join(done.stdout.split())
    check("all of it is printed", all(word in text for word in (
        "Its run:", "GPU-hours", "MWh", "a price of", "Save every", "of the time trains")), text)
    best = searched(program, *line, "--search")["plans"][0]
    check("of a search too", best["run"]["steps"] == math.ceil(15e12 / best["time"]["tokens"]),
          best["run"])


def largest(program, *words):
    return json.loads(run(program, "--largest", *words, "--json", "-").stdout)


def check_largest(program):
    """A model that is the largest fits, and one layer more does not."""
    report = largest(program, "dgx-a100", "--nodes", "2")
    rows = {"all in memory": "3", "state on host": "3, state host", "state on disk":
            "3, state disk", "all on disk": "3, all disk"}
    check("each format has each mix", len(report["cells"]) == 16, report)
    for cell in report["cells"][::5]:
        for layers in (cell["layers"], cell["layers"] + 1):
            width = 128 * layers
            ffn = -(-width * 8 // 3 // 256) * 256 if width * 8 % 3 == 0 else (
                -(-(width * 8 // 3 + 1) // 256) * 256)
            model = (f"layers={layers},width={width},heads={layers},ffn_width={ffn},vocab=32000,"
                     "sequence=2048,gated=1")
            plan, mix = mixes(program, model, "dgx-a100", "--nodes", "2", "--recompute", "--units",
                              "matrices", "--set", f"master_dtype={cell['master']}", "--set",
                              f"moment_dtype={cell['moments']}")
            row = mix[rows[cell["mix"]]]
            check(f"{cell['mix']}, {cell['master']}: {layers} layers", row["fits"] == (
                layers == cell["layers"]), row)
            if row["fits"]:
                check("with its parameters and bytes", cell["need_bytes"] == row["need_bytes"] and
                      cell["parameters"] == plan["parameters"], (cell, row))
    alone = largest(program, "workstation", "--set", "device=cpu")
    check("without a GPU there is one memory", {cell["mix"] for cell in alone["cells"]} ==
          set(rows) - {"state on host"} and all(
              cell["need_bytes"]["host"] == 0 for cell in alone["cells"]), alone)
    done = run(program, "--largest", "dgx-h100")
    check("it fits in 80 columns", done.returncode == 0 and all(
        len(line) <= 80 for line in done.stdout.splitlines()) and "all on disk" in done.stdout,
        done.stdout)


def check_settings(program):
    _, plain = mixes(program, "llama-70b", "dgx-h100", "--nodes", "4")
    _, less = mixes(program, "llama-70b", "dgx-h100", "--nodes", "4", "--set", "param_slots=2")
    check("a setting is an option of the engine", less["3"]["role_bytes"]["param slots"] <
          plain["3"]["role_bytes"]["param slots"])
    done = run(program, "llama-70b", "dgx-h100", "--nodes", "4", "--recompute", "--set",
               "param-slots=2")
    check("and stands in the options that are recommended",
          '"param-slots", "2"' in done.stdout, done.stdout)


def check_rates_by_tensor(program):
    """Tiers that an optimizer does not go with are no rows, and no plans of a search."""
    lamb = ("gpt2", "dgx-h100", "--set", "optimizer=lamb")
    _, of_adamw = mixes(program, "gpt2", "dgx-h100")
    _, of_lamb = mixes(program, *lamb)
    left_out = set(of_adamw) - set(of_lamb)
    check("LAMB has no rows of tiers that it does not go with",
          "3, state host" in of_lamb and left_out == {
              name for name in of_adamw if "disk" in name or "grads host" in name
              or "all host" in name}, left_out)
    check("and its update takes longer",
          of_lamb["0"]["time"]["term_ns"]["update"] > 1.4 *
          of_adamw["0"]["time"]["term_ns"]["update"])
    done = run(program, *lamb, "--tensor", "2")
    check("a model in several parts is refused with it",
          done.returncode == 1 and "tensor_parallel 2" in done.stderr, done.stderr)
    check_refused_tiers(program, lamb, left_out)


def check_refused_tiers(program, lamb, left_out):
    """They are named, with the reason, by the table, the page, and a search."""
    def said(text, names):
        return f"planned without {'; '.join(names)}: tensor 0" in " ".join(text.split())

    refused = mixes(program, *lamb)[0]["refused"]
    names = [row["name"] for row in refused]
    check("rows that engines refuse are in JSON, each with its reason", set(names) == left_out and
          all("is updated by lamb" in row["why"] for row in refused) and
          "of grad is host" in refused[0]["why"] and "is disk" in refused[-1]["why"], refused)
    check("none is of AdamW", mixes(program, *lamb[:2])[0]["refused"] == [])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.html")
        done = run(program, *lamb, "--html", path)
        with open(path, encoding="utf-8") as file:
            page = unescape(file.read())
    check("the table and the page name them", said(done.stdout, names) and said(page, names),
          done.stdout)
    tiers = ["gradients host", "parameters host", "state disk", "gradients disk",
             "parameters disk"]
    done = run(program, *lamb, "--search")
    check("a search names tiers and meshes", said(
        done.stdout, [*tiers, "tensor and pipeline parallelism"]), done.stdout)
    check("both fit in 80 columns", all(
        len(row) <= 80 for text in (done.stdout, run(program, *lamb).stdout)
        for row in text.splitlines()), done.stdout)
    held = run(program, *lamb, "--search", "--pipeline", "1", "--set", "tier=moment2=host")
    check("and none that the line decides", held.returncode == 0 and
          "planned without" not in held.stdout, held.stdout)
    registered = mixes(program, *lamb[:2], "--set", "nccl_memory=registered")[0]["refused"]
    check("rows that NCCL's memory refuses are named too", [row["name"] for row in registered] == [
        name for name in names if "grads" in name or "all" in name] and all(
            "nccl_memory" in row["why"] for row in registered), registered)


def check_mesh(program):
    line = ("gpt3-175b", "dgx-a100", "--nodes", "24", "--recompute", "--micro-steps", "24")
    mesh = ("--tensor", "8", "--pipeline", "12", "--interleave", "2")
    report, rows = mixes(program, *line, *mesh)
    check("a mesh is in JSON", report["ranks"] == 192 and report["mesh"] == {
        "tensor": 8, "pipeline": 12, "interleave": 2, "context": 1, "expert": 1, "engine_ranks": 2,
        "sequence_parallel": False, "mesh_overlap": False, "fp8": False, "wire": "engine"},
          report["mesh"])
    # The first stage: a twelfth of the blocks and the embedding, an eighth of each; all positions.
    part = (report["parameters"] - 52307 * 12288) / 96 + (50257 / 8 + 2048) * 12288
    check("a rank holds its part", abs(rows["0"]["role_bytes"]["param"] / (2 * part) - 1) < 1e-3,
          rows["0"]["role_bytes"])
    terms = rows["1"]["time"]["term_ns"]
    check("a mesh has its terms", min(terms["activations"], terms["bubble"]) > 0, terms)
    check("no group of a node is left to split parameters in", "3 in a node" not in rows, rows)
    done = run(program, *line, *mesh)
    check("a mesh is printed", "mesh: tensor 8 x pipeline 12 (2 groups of blocks), engines of 2 "
          "ranks" in done.stdout and "options.model_parallel" in done.stdout, done.stdout)
    check("and no line of `zero sim`, which has no mesh", "`zero sim`" not in done.stdout)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.html")
        done = run(program, *line, *mesh, "--html", path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        check("and on the page", done.returncode == 0 and "mesh: tensor 8" in text and
              "bubble" in text, done.stderr)
    plain, _ = mixes(program, *line)
    same, _ = mixes(program, *line, "--tensor", "1", "--pipeline", "1", "--context", "1")
    check("a mesh of one is none", plain == same)
    peer = run(program, "gpt2", "--fp8", "--wire", "zero++")
    check("what a peer does is said", "as a peer does: matrices of blocks in fp8, ZeRO++ on the "
          "wire" in peer.stdout, peer.stdout)
    done = subprocess.run([program, "sim", "gpt2", "--tensor", "2"], capture_output=True, text=True,
                          check=False)
    check("`zero sim` refuses a mesh", done.returncode == 1 and "of `zero plan`" in done.stderr,
          done.stderr)


class Page(HTMLParser):
    """What a page loads, its open tags, and how many bars it has."""

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.bars, self.balanced = [], [], 0, True

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        self.bars += tag == "rect"
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        self.balanced &= bool(self.open) and self.open.pop() == tag


def check_page(program):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.html")
        model = os.path.join(folder, "a<b>&.json")
        with open(model, "w", encoding="utf-8") as file:
            json.dump({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
                       "n_positions": 128, "vocab_size": 512}, file)
        done = run(program, model, "--html", path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        page = Page()
        page.feed(text)
        check("a page is written", done.returncode == 0 and page.bars > 60 and
              "Time of a step" in text, done.stderr)
        check("its tags are closed", page.balanced and not page.open, page.open)
        check("it loads nothing", not page.loads and "http" not in text, page.loads)
        done = run(program, model, "--search", "--html", path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        check("a page of a search has its plans", done.returncode == 0 and
              text.count("Most of it: ") == 3, done.stderr)
        check("names are escaped", "a&lt;b&gt;&amp;.json" in text and "a<b>" not in text)


def check_files(program):
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "config.json")
        cluster = os.path.join(folder, "cluster.json")
        report = os.path.join(folder, "report.json")
        with open(model, "w", encoding="utf-8") as file:
            json.dump({"model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40,
                       "num_attention_heads": 40, "intermediate_size": 13824,
                       "vocab_size": 32000, "max_position_embeddings": 4096,
                       "torch_dtype": "bfloat16"}, file)
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump({"preset": "dgx-h100", "nodes": 2}, file)
        done = run(program, model, cluster, "--json", report)
        check("files of a model and a cluster are planned", done.returncode == 0, done.stderr)
        with open(report, encoding="utf-8") as file:
            read = json.load(file)
        preset, _ = mixes(program, "llama-13b", "dgx-h100", "--nodes", "2")
        check("with the figures of the presets they repeat", read["mixes"] == preset["mixes"])
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump({"preset": "dgx-h100", "nods": 2}, file)
        done = run(program, model, cluster)
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        for option in ("--json", "--html"):
            refused = run(program, model, option, pipe)
            check(f"a pipe that nobody reads is refused: {option}", refused.returncode == 1 and
                  "nobody reads" in refused.stderr, refused.stderr)
        check("a misspelt key is refused", done.returncode == 1 and '"nods"' in done.stderr,
              done.stderr)


def check_refusals(program):
    for words, said in ((["gpt5"], "gpt5"), ([], "which model"), (["gpt2", "tpu"], "tpu"),
                        (["gpt2", "--nodes", "0"], "--nodes 0"),
                        (["gpt2", "--nodes", "65536"], "65536"),
                        (["gpt2", "--samples", "x"], "--samples x"),
                        (["gpt2", "--sequence", "2048"], "2048 tokens"),
                        (["gpt2", "--units", "rows"], "--units rows"),
                        (["gpt2", "--tensor", "24"], "tensor_parallel 24"),
                        (["gpt2", "--tensor", "0"], "--tensor 0"),
                        (["gpt2", "--pipeline", "13"], "pipeline_parallel"),
                        (["gpt2", "--tensor", "4", "--pipeline", "4"], "does not divide"),
                        (["gpt2", "--interleave", "2"], "interleave"),
                        (["gpt2", "--context", "3"], "context_parallel"),
                        (["gpt2", "--wire", "int4"], "expected zero++"),
                        (["gpt2", "--micro-steps", "0"], "--micro-steps 0"),
                        (["gpt2", "--set", "param_slots"], "NAME=VALUE"),
                        (["gpt2", "--set", "param_slots=65"], "param_slots"),
                        (["gpt2", "--set", "slots=2"], "slots"),
                        (["gpt2", "--set", "stage=2"], "compares it"),
                        (["gpt2", "--search", "--set", "device=cpu"], "a GPU each"),
                        (["gpt2", "--search", "--tokens-per-step", "1000"], "0 and 1024"),
                        (["gpt2", "--search", "--tokens-per-step", "7168", "--tensor", "1",
                          "--pipeline", "1", "--context", "1"], "7 samples in a step"),
                        (["gpt2", "--tokens-per-step", "1024"], "for --search"),
                        (["--largest"], "which cluster"),
                        (["--largest", "gpt2", "dgx-h100"], "dgx-h100"),
                        (["--largest", "gpt2"], '"gpt2"'),
                        (["--largest", "dgx-h100", "--search"], "--search"),
                        (["--largest", "dgx-h100", "--tensor", "2"], "--tensor"),
                        (["--largest", "dgx-h100", "--set", "stage=2"], "stage=2"),
                        (["gpt2", "--tokens", "0"], "--tokens 0"),
                        (["gpt2", "--tokens", "-1"], "--tokens -1"),
                        (["gpt2", "--tokens", "nan"], "--tokens nan"),
                        (["gpt2", "--tokens", "inf"], "--tokens inf"),
                        (["gpt2", "--tokens", "1e19"], "at most 1e+18"),
                        (["gpt2", "--tokens", "1e9x"], "--tokens 1e9x"),
                        (["gpt2", "--price", "2"], "--tokens"),
                        (["gpt2", "--tokens", "1e9", "--save-seconds", "2"], "--mtbf"),
                        (["gpt2", "--tokens", "1e9", "--mtbf", "1e-5"], "does not end"),
                        (["nowhere.json"], "nowhere.json"), (["gpt2", "dgx-h100", "more"], "more"),
                        (["gpt2", "--jsn", "-"], "--jsn"),
                        (["gpt2", "--html", "/nowhere/x"], "/nowhere/x"),
                        (["gpt2", "--json", "/nowhere/x"], "/nowhere/x")):
        done = run(program, *words)
        refused = done.returncode == 1 and done.stderr.startswith("zero plan: ")
        check(f"refused: zero plan {' '.join(words)}", refused and said in done.stderr, done.stderr)


def gpt2_tensors():
    """Name and shape of each tensor of GPT-2's weights."""
    yield "wte.weight", (50257, 768)
    yield "wpe.weight", (1024, 768)
    for block in range(12):
        for name, shape in (("ln_1.weight", (768,)), ("ln_1.bias", (768,)),
                            ("attn.bias", (1, 1, 1024, 1024)),
                            ("attn.c_attn.weight", (768, 2304)), ("attn.c_attn.bias", (2304,)),
                            ("attn.c_proj.weight", (768, 768)), ("attn.c_proj.bias", (768,)),
                            ("ln_2.weight", (768,)), ("ln_2.bias", (768,)),
                            ("mlp.c_fc.weight", (768, 3072)), ("mlp.c_fc.bias", (3072,)),
                            ("mlp.c_proj.weight", (3072, 768)), ("mlp.c_proj.bias", (768,))):
            yield f"h.{block}.{name}", shape
    yield "ln_f.weight", (768,)
    yield "ln_f.bias", (768,)


def check_weights(program):
    header, offset = {}, 0
    for name, shape in gpt2_tensors():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
        report, rows = mixes(program, path, "workstation")
        preset, preset_rows = mixes(program, "gpt2", "workstation")
        check("weights are planned as the preset of their model",
              report["parameters"] == preset["parameters"] == 124439808 and
              rows["3"]["role_bytes"] == preset_rows["3"]["role_bytes"], report["parameters"])


def main():
    program = sys.argv[1]
    for part in (check_table, check_python, check_names, check_words, check_dimensions,
                 check_left_out, check_experts, check_figures, check_options, check_times,
                 check_trainer, check_settings, check_rates_by_tensor, check_search,
                 check_nothing_fits, check_run, check_largest, check_mesh, check_page, check_files,
                 check_weights, check_refusals):
        part(program)
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
