#!/usr/bin/env python3
"""Reads timelines of real runs against the rules of Chrome's trace event format, and has `zero
trace` read timelines that are made up, so that the right answer is known by hand.

Usage: test_trace_files.py ZERO [GPT2_TRAIN]

The last line is "N passed, N failed, N skipped"."""

import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import Skip, expect, expect_equal, run_tests  # noqa: E402

ZERO = sys.argv[1]
TRAINER = sys.argv[2] if len(sys.argv) > 2 else None
METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index",
            "thread_sort_index": "sort_index"}


def run(*words):
    return subprocess.run([ZERO, "trace", *words], capture_output=True, text=True, timeout=60,
                          check=False)


# ---- the format ----


def is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_metadata(event):
    expect(event.get("name") in METADATA, f"metadata of no known name: {event}")
    kind = str if METADATA[event["name"]] == "name" else int
    expect(isinstance(event.get("args", {}).get(METADATA[event["name"]]), kind), f"args: {event}")


def check_span(event):
    for key in ("ts", "dur"):
        expect(isinstance(event.get(key), (int, float)) and event[key] >= 0, f"{key}: {event}")
    for key in ("name", "cat"):
        expect(isinstance(event.get(key), str) and event[key], f"{key}: {event}")
    expect(is_whole(event.get("tid")) and isinstance(event.get("args", {}), dict), f"{event}")


def check_format(path):
    """The file's object; its spans are in order on each track, and nest."""
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    expect(isinstance(trace.get("traceEvents"), list), "no traceEvents")
    expect_equal(trace.get("displayTimeUnit"), "ms", "displayTimeUnit")
    open_ends = {}
    last = {}
    for event in trace["traceEvents"]:
        expect(event.get("ph") in ("X", "M") and is_whole(event.get("pid")), f"{event}")
        expect(event["pid"] != 0 and event.get("tid") != 0, f"the kernel's, to Perfetto: {event}")
        if event["ph"] == "M":
            check_metadata(event)
            continue
        check_span(event)
        track = (event["pid"], event["tid"])
        begin = round(event["ts"] * 1000)
        end = begin + round(event["dur"] * 1000)
        expect(begin >= last.get(track, 0), f"out of order: {event}")
        last[track] = begin
        ends = open_ends.setdefault(track, [])
        while ends and ends[-1] <= begin:
            ends.pop()
        expect(not ends or end <= ends[-1], f"does not nest: {event}")
        ends.append(end)
    return trace


# ---- made up ----


def span(track, begin, end, category, of="", **args):
    name = f"{category} {of}".strip()
    args.update({"of": of} if of else {})
    return {"ph": "X", "pid": 1, "tid": track + 1, "ts": begin, "dur": end - begin, "cat": category,
            "name": name, "args": args}


def collective(track, begin, end, category, of, group, batch):
    return span(track, begin, end, category, of, group=group, leader=0, ranks=2, batch=batch)


def made_up(rank, gather_b, reduce_b):
    """A step from 0 to 400 us. The caller computes from 30 to 130 and from 200 to 300; the rank
    updates from 330 to 390, and waits for its disk from 340 to 360."""
    return [span(0, 0, 10, "micro begin", "last"),
            span(0, 10, 30, "acquire", "a"), span(0, 130, 140, "release", "a"),
            span(0, 140, 200, "acquire", "b"), span(0, 300, 310, "release", "b"),
            span(0, 310, 320, "micro end"), span(0, 320, 400, "step"),
            collective(1, 5, 25, "gather", "a", "gather", 0),
            collective(1, gather_b, 190, "gather", "b", "gather", 1),
            collective(2, reduce_b, 350, "reduce", "b", "reduce", 0),
            span(3, 330, 390, "update", "a"),
            span(4, 320, 380, "read", "optimizer state"),
            span(5, 340, 360, "disk wait", "optimizer state"),
            {"ph": "M", "pid": rank + 1, "tid": 1, "name": "thread_name",
             "args": {"name": "calling thread"}}]


def write(folder, name, events, rank=0, offset_us=0, **head):
    """A file; its clock is ahead of rank 0's by so much."""
    for event in events:
        if "ts" in event:
            event["ts"] += 5000 + offset_us
    other = {"rank": rank, "world": 2, "clock_offset_ns": offset_us * 1000, "clock_error_ns": 7,
             "lost": 0}
    other.update(head)
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ms", "otherData": other, "traceEvents": events}, file)
    return path


def write_both(folder):
    return [write(folder, "0.json", made_up(0, 100, 250)),
            write(folder, "1.json", made_up(1, 120, 240), 1, 1000)]


def summary(*paths):
    result = run("summary", *paths, "--json", "-")
    expect_equal(result.returncode, 0, result.stderr)
    return json.loads(result.stdout)


def test_summary_by_hand(folder):
    """Of rank 0's exchange, 20 + 90 + 100 us, computing hides 30 of the second gather and 50 of the
    reduction, and the update 10 more; of rank 1's, 20 + 70 + 110, it is 10, 60 and 10."""
    figures = summary(*write_both(folder))
    step = {"time_ns": 400000, "compute_ns": 200000, "exposed_ns": 200000, "exchange_ns": 205000,
            "exchange_hidden_ns": 85000, "disk_ns": 60000, "disk_hidden_ns": 30000}
    expect_equal(figures["steps"], [step], "steps")
    expect_equal(figures["mean"], step, "mean")
    expect_equal(figures["units"], [
        {"name": "b", "exposed_ns": 70000, "compute_ns": 100000, "gather_ns": 80000,
         "reduce_ns": 105000, "update_ns": 0, "bottleneck": "reduce"},
        {"name": "a", "exposed_ns": 30000, "compute_ns": 100000, "gather_ns": 20000,
         "reduce_ns": 0, "update_ns": 60000, "bottleneck": "compute"}], "units")
    expect_equal(figures["collectives"], 3, "collectives")
    ranks = [(r["rank"], r["last"], r["others_waited_ns"]) for r in figures["ranks"]]
    expect_equal(ranks, [(0, 1, 10000), (1, 1, 20000)], "ranks")


def test_summary_is_a_table(folder):
    result = run("summary", *write_both(folder))
    expect_equal(result.returncode, 0, result.stderr)
    lines = result.stdout.splitlines()
    expect(all(len(line) <= 80 for line in lines), "longer than 80 columns")
    expect_equal(lines[0], "2 of 2 ranks, 1 whole steps", "head")
    expect(["1", "0.40", "50", "%", "0.20", "0.20", "41", "%", "0.06", "50", "%"] in
           [line.split() for line in lines], result.stdout)


def test_first_step_is_left_out_where_spans_are_lost(folder):
    events = made_up(0, 100, 250) + [span(0, 400, 410, "micro begin", "last"),
                                     span(0, 460, 500, "step")]
    path = write(folder, "0.json", events, lost=3)
    figures = summary(path)
    expect_equal([s["time_ns"] for s in figures["steps"]], [100000], "steps")
    expect_equal(figures["mean"]["compute_ns"], 50000, "compute")
    expect_equal(figures["collectives"], 0, "collectives of ranks that are not there")


def test_hooks_of_a_gpu_wait_on_its_stream(folder):
    """The calling thread returns at once; the caller's stream waits."""
    events = [span(0, 0, 1, "acquire", "a"), span(0, 2, 3, "release", "a"), span(0, 3, 4, "step"),
              span(6, 10, 110, "acquire", "a"), span(6, 210, 211, "release", "a"),
              span(6, 211, 310, "step"),
              {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name",
               "args": {"name": "caller's stream"}}]
    figures = summary(write(folder, "0.json", events))
    expect_equal(figures["mean"]["time_ns"], 300000, "time")
    expect_equal(figures["units"][0]["exposed_ns"], 101000, "exposed")
    expect_equal(figures["units"][0]["compute_ns"], 100000, "compute")


def test_merge_by_hand(folder):
    out = os.path.join(folder, "all.json")
    paths = write_both(folder)
    result = run("merge", out, *paths)
    expect_equal(result.returncode, 0, result.stderr)
    trace = check_format(out)
    expect_equal([head["rank"] for head in trace["otherData"]["ranks"]], [0, 1], "ranks")
    begins = {(e["pid"], e["name"]): e["ts"] for e in trace["traceEvents"] if e["ph"] == "X"}
    expect_equal(begins[1, "micro begin last"], 0, "rank 0 begins")
    expect_equal(begins[2, "micro begin last"], 0, "rank 1 begins")
    expect_equal((begins[1, "reduce b"], begins[2, "reduce b"]), (250, 240), "reduce b")
    again = run("merge", out, *paths)
    expect_equal(again.returncode, 1, "over a file that exists")
    expect(out in again.stderr and "exists" in again.stderr, again.stderr)


def test_events_of_others_are_merged_as_they_are(folder):
    """Whatever they have as their time and names."""
    events = [{"ph": "M", "name": "thread_name", "args": ["caf\u00e9"], "tid": "1", "pid": 1}]
    events += [{"ph": "i", "ts": ts, "pid": 1} for ts in (1e306, -1e306, 10**400)]
    path = write(folder, "0.json", [])
    with open(path, "r+", encoding="utf-8") as file:
        trace = json.load(file)
        file.seek(0)
        json.dump({**trace, "traceEvents": events}, file)
    result = run("merge", "-", path)
    expect_equal((result.returncode, result.stderr), (0, ""), "merge")
    expect_equal(json.loads(result.stdout)["traceEvents"], events, "events")
    expect_equal(run("summary", path).returncode, 0, "summary")


def test_a_report_that_cannot_be_written_is_named(folder):
    path = write(folder, "0.json", made_up(0, 100, 250))
    result = run("summary", path, "--json", "/dev/full")
    expect_equal((result.returncode, result.stdout), (1, run("summary", path).stdout), "table")
    expect_equal(result.stderr.partition(": ")[2],
                 "/dev/full cannot be written: No space left on device\n", "what it says")


# ---- what is refused ----


def change(folder, name, **fields):
    """A file whose second event has these fields; None: it lacks it."""
    events = made_up(0, 100, 250)
    for key, value in fields.items():
        events[1][key] = value
        if value is None:
            del events[1][key]
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"otherData": {"rank": 0, "world": 2}, "traceEvents": events}, file)
    return path


REFUSED = [({"ts": None}, "traceEvents[1].ts is missing"),
           ({"ts": "1"}, "traceEvents[1].ts is no time"),
           ({"ts": -1}, "traceEvents[1].ts is no time"),
           ({"dur": 1e300}, "traceEvents[1].dur is no time"),
           ({"tid": 1.5}, "traceEvents[1].tid is no whole number"),
           ({"ph": 7}, "traceEvents[1].ph is no text"),
           ({"cat": None}, "traceEvents[1].cat is missing"),
           ({"args": []}, "traceEvents[1].args is no object"),
           ({"args": {"group": "g"}}, "traceEvents[1].leader is missing")]

TEXTS = [("", "no JSON"), ("[1]", "otherData"), ('{"otherData":{}}', "otherData.rank is missing"),
         ('{"otherData":{"rank":2,"world":2},"traceEvents":[]}', "rank 2 is not one of a world"),
         ('{"otherData":{"rank":0,"world":1}}', "traceEvents is missing"),
         ('{"otherData":{"rank":0,"world":1},"traceEvents":{}}', "traceEvents is no array"),
         ('{"otherData":{"rank":0,"world":1},"traceEvents":[3]}', "traceEvents[0] is no object"),
         ('{"otherData":{"rank":0,"world":1},\n\n"traceEvents":[}', ":3: no JSON"),
         ('{"otherData":{"rank":0,"world":1,"rank":1}}', "duplicate"),
         ('{"otherData":NaN}', "no JSON"), ('{"otherData":-1e999}', "no JSON"),
         ('{"otherData":"\\ud800"}', "no JSON"), ("[" * 100000, "no JSON")]


def expect_refused(words, *texts):
    result = run(*words)
    expect_equal(result.returncode, 1, " ".join(words))
    for text in texts:
        expect(text in result.stderr, f"{words}: no {text!r} in {result.stderr!r}")
    expect_equal(result.stderr.count("\n"), 1, f"lines of {result.stderr!r}")


def test_bad_files_are_refused_by_name(folder):
    for number, (fields, text) in enumerate(REFUSED):
        path = change(folder, f"{number}.json", **fields)
        expect_refused(["summary", path], path, text)
    for number, (content, text) in enumerate(TEXTS):
        path = os.path.join(folder, f"text{number}.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        expect_refused(["summary", path], path, text)
    expect_refused(["summary", folder], folder, "no regular file")
    expect_refused(["summary", os.path.join(folder, "none")], "No such file")


def test_files_must_fit_together(folder):
    first, second = write_both(folder)
    other = write(folder, "other.json", made_up(0, 100, 250), world=4, rank=3)
    expect_refused(["summary", first, first], "both of rank 0")
    expect_refused(["summary", first, second, other], other, "4")
    expect_refused(["merge", os.path.join(folder, "out.json")], "which files")
    expect_refused(["split", first], "merge, summary or hang")
    expect_refused([], "merge, summary or hang")
    expect_refused(["merge", "-", first, "--json", "-"], "--json")


def test_empty_timelines_are_fine(folder):
    path = write(folder, "0.json", [])
    figures = summary(path)
    expect_equal((figures["steps"], figures["units"]), ([], []), "figures")
    expect_equal(run("summary", path).returncode, 0, "table")
    out = os.path.join(folder, "all.json")
    expect_equal(run("merge", out, path).returncode, 0, "merge")
    check_format(out)


def damaged(text, draw):
    """The text with bytes changed, cut out, repeated or exchanged for what readers trip over."""
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(text))
        end = min(len(text), at + draw.randint(1, 40))
        piece = draw.choice([b"", text[at:end] * 2, b"-1", b"1e999", b"null", b"[", b"{}", b'"',
                             b"99999999999999999999", b"\xff", b"0", bytes([draw.randrange(256)])])
        text = text[:at] + piece + text[end:]
    return text


def test_damaged_files_are_read_or_refused(folder):
    draw = random.Random(int(os.environ.get("TEST_SEED", "1")))
    with open(write_both(folder)[0], "rb") as file:
        text = file.read()
    path = os.path.join(folder, "damaged.json")
    refused = 0
    for number in range(int(os.environ.get("TRACE_FUZZ", "150"))):
        with open(path, "wb") as file:
            file.write(damaged(text, draw))
        words = ["merge", "-"] if number % 3 == 0 else ["summary"]
        result = subprocess.run([ZERO, "trace", *words, path], capture_output=True, timeout=60,
                                check=False)
        refused += result.returncode == 1
        said = path.encode() in result.stderr
        expect(result.returncode == 0 or (result.returncode == 1 and said),
               f"number {number}: {result.returncode}, {result.stderr!r}")
    expect(refused > 20, f"only {refused} were refused")


# ---- real ----


def train(folder, *words):
    if TRAINER is None:
        raise Skip("the example is not built")
    data = os.path.join(folder, "data.txt")
    with open(data, "w", encoding="utf-8") as file:
        file.write("to be or not to be, that is the question\n" * 200)
    line = [TRAINER, "--data", data, "--ranks", "2", "--layers", "2", "--heads", "2", "--width",
            "32", "--seq", "32", "--batch", "4", "--steps", "6", "--threads", "1", "--trace",
            os.path.join(folder, "run.json"), *words]
    result = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    expect_equal(result.returncode, 0, result.stderr)
    return [os.path.join(folder, f"run.{rank}.json") for rank in range(2)]


def check_run(folder, *words):
    paths = train(folder, *words)
    for rank, path in enumerate(paths):
        head = check_format(path)["otherData"]
        expect_equal((head["rank"], head["world"], head["clock_offset_ns"]), (rank, 2, 0), "head")
    figures = summary(*paths)
    expect_equal(len(figures["steps"]), 6, "steps")
    expect({"h.0", "h.1"} <= {unit["name"] for unit in figures["units"]}, "units")
    for step in figures["steps"]:
        expect(0 < step["compute_ns"] < step["time_ns"], f"{step}")
        expect(step["exchange_hidden_ns"] <= step["exchange_ns"], f"{step}")
    out = os.path.join(folder, "all.json")
    expect_equal(run("merge", out, *paths).returncode, 0, "merge")
    merged = check_format(out)
    expect_equal({e["pid"] for e in merged["traceEvents"]}, {1, 2}, "processes")
    return figures


def test_a_run(folder):
    figures = check_run(folder)
    expect(figures["collectives"] >= 36, f"collectives: {figures['collectives']}")
    expect_equal([rank["lost"] for rank in figures["ranks"]], [0, 0], "lost")


def test_a_run_from_disk(folder):
    disk = os.path.join(folder, "disk")
    os.mkdir(disk)
    figures = check_run(folder, "--disk", disk, "--master-tier", "disk", "--moment-tier", "disk",
                        "--param-tier", "disk", "--extent-bytes", "4K")
    expect(all(step["disk_ns"] > 0 for step in figures["steps"]), "no transfers")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
