#!/usr/bin/env python3
"""What tools/python prints of reports that are given here: what a machine's own reports do not have
at will.

Usage: test_reports.py SCRIPTS. The last line is "N passed, N failed, N skipped"."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import expect, expect_equal, run_tests  # noqa: E402

SCRIPTS = sys.argv[1]
ROW = {"metric": "hook_ns", "case": "tensor_data, stage 0", "value": 7.2484, "unit": "ns",
       "reference": 123456.7, "ratio": 17032.271, "min": 7.0, "max": 10000.4, "repetitions": 7}
GPU = {"name": "a GPU", "sm_count": 132, "memory_bytes": 3 << 30, "l2_bytes": 50 << 20,
       "driver": "13.0", "runtime": "13.1", "pinned_to_gpu_gb_per_s": 55.04,
       "pinned_to_host_gb_per_s": 50.0, "pinned_both_gb_per_s": 80.5}


def printed(module, report, *words):
    done = subprocess.run([sys.executable, "-B", f"{SCRIPTS}/start.py", "zero", module, *words],
                          input=json.dumps(report).encode(), capture_output=True, check=False)
    expect_equal((done.returncode, done.stderr), (0, b""), module)
    return done.stdout


def bench(*rows, machine=None, skipped=(), failed=()):
    return {"machine": machine or {}, "scale": "tiny", "results": list(rows),
            "skipped": list(skipped), "failed": list(failed)}


def test_rows(_):
    expect_equal(printed("bench_table", bench(ROW), "0").decode().splitlines(), [
        "metric   case                         value unit      reference   ratio  min..max",
        "hook_ns  tensor_data, stage 0         7.248 ns           123457  17032.271  7..10000"],
        "rows")
    expect_equal(printed("bench_table", bench(), "80"), b"", "no rows")


def test_narrow_terminals(_):
    """Numbers have a line of their own; 99 columns hold these rows."""
    for columns in ("98", "99"):
        lines = printed("bench_table", bench(ROW), columns).decode().splitlines()
        expect_equal(len(lines), 4 if columns == "98" else 2, f"lines of {columns} columns")
    lines = printed("bench_table", bench(ROW), "80").decode().splitlines()
    expect_equal(lines[2], "hook_ns  tensor_data, stage 0", "narrow")
    expect(lines[3].startswith(" " * 10 + "7.248 ns "), lines[3])


def test_what_is_left_out(_):
    skipped = [{"metric": "a_vs_b", "case": None, "reason": "no a"},
               {"metric": "c", "case": "d", "reason": "no d"}]
    text = printed("bench_table", bench(skipped=skipped, failed=["gpu"]), "0").decode()
    expect_equal(text, "skipped: a_vs_b: no a\nskipped: c, d: no d\nfailed: gpu\n", "text")


def test_gpu(_):
    text = printed("bench_table", bench(machine={"gpu": GPU}), "0").decode()
    expect_equal(text.splitlines(), [
        "gpu: a GPU, 132 SMs, 3.0 GiB, L2 50 MiB, driver 13.0, runtime 13.1",
        "pinned copies in GB/s: 55.0 to the GPU, 50.0 back, 80.5 both at once"], "GPU")


def test_bytes_that_are_no_text(_):
    """Such a byte comes as a character that nobody uses, and goes as it was."""
    row = {**ROW, "case": "caf\uefe9, \u00e9"}
    expect(b"caf\xe9, \xc3\xa9 " in printed("bench_table", bench(row), "0"), "a byte is lost")


def test_amounts(_):
    def saved(size):
        row = {"name": "a", "step": 1, "kind": "full", "seconds": 0, "bytes": size, "world": 1,
               "latest": False}
        report = {"run": "r", "checkpoints": [row], "torn": [], "unread": 0}
        return printed("ckpt_list", report).decode().splitlines()[1][57:65].strip()

    for size, text in ((999, "999 B"), (1000, "1.0 kB"), (99940, "99.9 kB"), (99951, "100 kB"),
                       (999499, "999 kB"), (999500, "1.0 MB"), (10**18, "1.0 EB")):
        expect_equal(saved(size), text, f"{size} bytes")


sys.exit(run_tests(globals(), prefix="zero reports "))
