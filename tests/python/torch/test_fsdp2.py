"""A sharded module beside the same module under PyTorch's FSDP2, as processes of torchrun: losses
are the same, and scripts/bench_torch_fsdp2.py, which compares them, reports what it has seen."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import cases  # noqa: E402

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "scripts",
                      "bench_torch_fsdp2.py")


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True,
                          timeout=280, check=False)


class Fsdp2(unittest.TestCase):
    def test_losses(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            done = run("--quick", "--text", SCRIPT, "--case", "f32, stage 3", "--case",
                       "stage 3, against reshard_after_forward=True, reduce_dtype=float32",
                       "--json", path)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
        self.assertEqual((report["failed"], report["skipped"]), ([], []))
        for losses, bound in zip(report["losses"], (1e-5, 1e-3), strict=True):
            self.assertLess(losses["ours"][-1], losses["ours"][0] - 0.5)
            self.assertEqual(len(losses["ours"]), len(losses["fsdp2"]))
            self.assertLess(losses["largest_difference"], bound)
        self.assertEqual([row["metric"] for row in report["results"]],
                         ["step_vs_fsdp2", "step_cpu_vs_fsdp2", "pss_vs_fsdp2",
                          "pss_grown_vs_fsdp2", "rss_vs_fsdp2"] * 2)
        for row in report["results"]:
            self.assertGreater(min(row["value"], row["reference"]), 0)

    def test_refusals(self):
        for words, said in (((), "--text"), (("--text", "/nowhere"), "/nowhere is no file"),
                            (("--text", SCRIPT, "--case", "x y"), "no case has \"x y\""),
                            (("--text", SCRIPT, "--length", "300"), "256 positions"),
                            (("--text", SCRIPT, "--ranks", "0"), "--ranks is 0")):
            done = run(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    cases.main()
