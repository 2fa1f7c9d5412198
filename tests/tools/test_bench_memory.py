#!/usr/bin/env python3
"""`zero bench memory`, as a user types it: its figures are the plan's and the paper's, its pictures
are whole, README's is what its command makes, and what it cannot do is refused.

Usage: test_bench_memory.py PROGRAM SOURCE [PROGRAM_OVER_A_DOUBLE_OF_CUDA]. One line per check; the
last is "N passed, N failed, N skipped"."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from html.parser import HTMLParser

counts = {True: 0, False: 0}


def check(name, holds, detail=""):
    counts[bool(holds)] += 1
    print(f"{'ok' if holds else 'FAILED':8}{name}{'' if holds else ': ' + str(detail)}")


def run(program, *words):
    return subprocess.run([program, "bench", *words], capture_output=True, text=True, check=False)


def rows_of(program, *words):
    done = run(program, "memory", "--json", "-", *words)
    if done.returncode != 0:
        print(done.stderr)
        return []
    return json.loads(done.stdout)["results"]


def planned_is_measured(program, *words):
    rows = rows_of(program, "--tiny", *words)
    compared = [row for row in rows if row["metric"] in ("memory_role_vs_plan",
                                                         "memory_tier_vs_plan")]
    check(f"every role and tier is measured as planned {' '.join(words)}",
          len(compared) > 30 and all(row["value"] == row["reference"] for row in compared),
          [row for row in compared if row["value"] != row["reference"]])
    disks = [row["case"] for row in compared if row["case"].endswith(", disk")]
    check("four mixes have files", len(disks) == 4, disks)
    return rows


def check_formulas(program):
    words = ("--tiny", "--model", "4x256x5000", "--shrink", "1")
    told = float(re.search(r"([\d.]+) million", run(program, "memory", *words).stdout)[1]) * 1e6
    for ranks in (1, 2, 8):
        expected = [16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks]
        for sums, more in (("f32", [2, 2, 2 / ranks, 2 / ranks]), ("bf16", [0] * 4)):
            rows = [row for row in rows_of(program, *words, "--ranks", str(ranks), "--sums", sums)
                    if row["metric"] == "memory_vs_paper"]
            formulas = [row["reference"] / told for row in rows]
            shards = [row["value"] / told for row in rows]
            # Padding takes a few percent of a model as small as this.
            holds = len(rows) == 4 and all(
                abs(formula / want - 1) < 1e-3 and 0.999 < shard / (want + extra) < 1.05
                for formula, shard, want, extra in zip(formulas, shards, expected, more))
            check(f"{ranks} ranks, sums in {sums}: the paper's formulas, and shards beside them",
                  holds, (formulas, shards))


def check_text(program):
    for words in ((), ("--quick",)):
        done = run(program, "memory", *words, "--shrink", "16", "--ranks", "3")
        lines = done.stdout.splitlines()
        check(f"79 columns hold it {' '.join(words)}", all(len(line) < 80 for line in lines),
              max(lines, key=len))
        check("every mix has a bar", len(re.findall(r"^\S.* [pgos|]{3,}$", done.stdout, re.M)) == 9,
              done.stdout)
        check("all is as planned", "all as planned, to the byte" in done.stdout, done.stdout)
    grown = [float(row["ratio"]) for row in rows_of(program, "--quick")
             if row["metric"] == "memory_used_vs_plan"]
    check("the process grows by no less than the plan", len(grown) in (0, 9) and
          all(ratio < 1.001 for ratio in grown), grown)


def check_report(program):
    """The report has what the text is made of, and needs no Python."""
    done = subprocess.run([program, "bench", "memory", "--tiny", "--json", "-"],
                          capture_output=True, text=True, check=False,
                          env=os.environ | {"PATH": "/nowhere"})
    memory = json.loads(done.stdout)["memory"]
    shown = [sum(role["planned"] for role in mix["roles"].values() if role["tier"] != "disk")
             for mix in memory["mixes"]]
    check("roles add up to their tiers", shown == [
        mix["planned"]["device"] + mix["planned"]["host"] for mix in memory["mixes"]], memory)
    done = subprocess.run([program, "bench", "memory", "--tiny"], capture_output=True, text=True,
                          check=False, env=os.environ | {"PATH": "/nowhere"})
    check("what cannot be printed is not measured", done.returncode == 1 and
          "there is no python3" in done.stderr, done.stderr)


def check_differences(source):
    """What differs from the plan is drawn as it was measured."""
    role = {"tier": "device", "planned": 1 << 20, "measured": 3 << 20}
    memory = {"model": "a<b>", "parameters": 10, "dtype": "bf16", "ranks": 1, "bf16_sums": False,
              "used": "resident pages", "figures": 5, "differ": 2, "mixes": [{
                  "name": "3, all disk", "stage": 3, "roles": {"param": role},
                  "planned": {"device": 1 << 20, "host": 0, "disk": 1 << 20},
                  "measured": {"device": 3 << 20, "host": 0, "disk": 1 << 20},
                  "file_bytes": None, "used_bytes": None, "paper": 0.0}]}
    report = {"machine": {}, "scale": "full", "results": [], "skipped": [], "failed": [],
              "memory": memory}

    def text_of(*words):
        return subprocess.run([sys.executable, f"{source}/tools/python/start.py", "zero", *words],
                              input=json.dumps(report), capture_output=True, text=True,
                              check=True).stdout

    text = text_of("bench_table")
    check("figures that differ are counted", "2 differ from the plan." in text, text)
    check("what the system does not tell is a dash", re.search(
        r"^3, all disk +1.00 +3.00 +-  p{31}$", text, re.M) and re.search(
            r"^    on disk +1.00 +-  ", text, re.M), text)
    svg = text_of("memory_chart", "svg")
    check("the measured bar is as much longer", "3.00 MiB measured" in svg and
          "param: 3145728 bytes" in svg and "a&lt;b&gt;" in svg, svg)


class Page(HTMLParser):
    """Names of elements, and whatever would be loaded."""

    def __init__(self, text):
        super().__init__()
        self.names = []
        self.loaded = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.loaded += [value for key, value in attrs if key in ("src", "href", "xlink:href")]


def check_pictures(program, folder):
    svg, html = f"{folder}/a.svg", f"{folder}/a.html"
    done = run(program, "memory", "--tiny", "--svg", svg, "--html", html)
    check("both pictures are written", done.returncode == 0, done.stderr)
    text = open(svg, encoding="utf-8").read()
    root = xml.fromstring(text)
    fonts = set(re.findall(r'font-family="([^"]*)"', text))
    bars = [part for part in root.iter() if part.tag.endswith("rect") and len(part)]
    check("the chart is XML without scripts, links and named fonts",
          root.tag.endswith("svg") and fonts == {"sans-serif"}
          and not re.search(r"<script|href|url\(|@import", text), fonts)
    check("bars have titles and lengths", len(bars) > 60
          and all(float(bar.get("width")) >= 0 and bar[0].text for bar in bars), len(bars))
    edge = float(root.get("viewBox").split()[2])
    check("and end within it",
          all(float(bar.get("x")) + float(bar.get("width")) < edge for bar in bars))
    page = Page(open(html, encoding="utf-8").read())
    check("the page has the chart, tables, and loads nothing",
          "svg" in page.names and page.names.count("table") == 9 and not page.loaded
          and "script" not in page.names, page.loaded)


def check_readme(program, source, folder):
    """The picture is what the command that stands under it makes."""
    readme = open(f"{source}/README.md", encoding="utf-8").read()
    command = re.search(r"`build/tools/zero (bench memory [^`]*--svg docs/memory.svg)`", readme)
    check("README shows the picture and its command", command and "(docs/memory.svg)" in readme)
    if command:
        made = f"{folder}/memory.svg"
        words = shlex.split(command[1].replace("docs/memory.svg", shlex.quote(made)))
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        kept = open(f"{source}/docs/memory.svg", encoding="utf-8").read()
        check("README's picture is up to date",
              done.returncode == 0 and open(made, encoding="utf-8").read() == kept,
              done.stderr + f"make it again: build/tools/zero {command[1]}")


REFUSED = (
    ("memory --model nope", "llama-70b"),
    ("memory --model 2x64", "2x64"),
    ("memory --model 0x64x100", "layers"),
    ("memory --model /nonexistent/config.json", "/nonexistent/config.json"),
    ("memory --shrink 0", "--shrink 0: expected a whole number in [1, 65536]"),
    ("memory --shrink 1 --model llama-405b", "bytes of memory wanted"),
    ("memory --sums f16", "--sums f16: expected f32 or bf16"),
    ("memory --device tpu", "--device tpu: expected cpu or cuda"),
    ("memory --svg -", "--svg -: name a file"),
    ("memory --tiny --svg /nonexistent/a.svg", "/nonexistent/a.svg"),
    ("memory --tiny --dir /nonexistent", "--dir /nonexistent"),
    ("memory --layers 2", "--layers is for `offload`"),
    ("hooks --svg a.svg", "--svg is for `memory`"),
)


def check_refusals(program):
    for line, words in REFUSED:
        done = run(program, *line.split())
        check(f"refused: {line}", done.returncode == 1 and words in done.stderr, done.stderr)


def main():
    program, source, *double = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        planned_is_measured(program)
        planned_is_measured(program, "--ranks", "3", "--model", "mixtral-8x7b", "--sums", "bf16")
        check_formulas(program)
        check_text(program)
        check_report(program)
        check_differences(source)
        check_pictures(program, folder)
        check_readme(program, source, folder)
        check_refusals(program)
        if double:
            rows = planned_is_measured(double[0], "--device", "cuda")
            check("a GPU has a mix with state on the host",
                  any("state host, host" in row["case"] for row in rows))
        left = sorted(os.listdir(folder))
        check("no file stays behind", left == ["a.html", "a.svg", "memory.svg"], left)
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
