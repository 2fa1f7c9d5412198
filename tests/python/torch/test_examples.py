"""The examples of PyTorch, which have to learn: alone, and on two ranks of torchrun."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from nets import main
from test_processes import free_port

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")


def losses(name, ranks, *arguments):
    """What rank 0 printed, by step."""
    path = os.path.join(ROOT, "examples/python", name)
    launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
                                      "--master-port", str(free_port())]
    done = subprocess.run([sys.executable, *launcher, path, os.path.join(ROOT, "README.md"),
                           *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", done.stdout)], done.stdout


class Examples(unittest.TestCase):
    def test_the_gpt(self):
        for ranks in (1, 2):
            found, said = losses("torch_gpt.py", ranks, "61")
            self.assertLess(found[-1], 3.8)
            self.assertGreater(found[0], 5)
            self.assertIn("The ", said)

    def test_ten_lines_are_marked(self):
        for name in ("torch_gpt.py", "transformers_gpt2.py"):
            with open(os.path.join(ROOT, "examples/python", name), encoding="utf-8") as file:
                text = file.read()
            marked = [int(mark) for mark in re.findall(r"# ours (\d+)", text)]
            self.assertEqual(marked, list(range(1, 11)))
            plain = [line for line in text.split('"""', 2)[2].splitlines() if "# ours" not in line]
            self.assertEqual([line for line in plain if "zeroshard" in line], [])

    def test_the_gpt2(self):
        try:
            import transformers
        except ImportError:
            self.skipTest("there is no package transformers")
        with tempfile.TemporaryDirectory() as folder:
            found, _ = losses("transformers_gpt2.py", 2, "41", folder)
            self.assertLess(found[-1], 3.6)
            self.assertGreater(found[0], 5)
            model = transformers.GPT2LMHeadModel.from_pretrained(folder)
            self.assertEqual(model.config.vocab_size, 256)


if __name__ == "__main__":
    main()
