"""README's lines of PyTorch, word for word, and the table of docs/concepts.md, which has every
option of FSDP."""

import contextlib
import importlib.util
import inspect
import os
import re
import tempfile
import unittest

import torch
from nets import main
from torch.nn import functional

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")


def text_of(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return file.read()


def example():
    spec = importlib.util.spec_from_file_location(
        "torch_gpt", os.path.join(ROOT, "examples/python/torch_gpt.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pages(unittest.TestCase):
    def test_readme_s_lines_train_and_write_weights(self):
        blocks = re.findall(r"^```python\n(.*?)^```$", text_of("README.md"),
                            re.DOTALL | re.MULTILINE)
        self.assertEqual(len(blocks), 1)
        gpt = example()
        losses = []

        def batches(rank, size):
            self.assertEqual((rank, size), (0, 1))
            generator = torch.Generator().manual_seed(1)
            for _ in range(12):
                window = torch.randint(32, 64, (8, 33), generator=generator)
                yield window[:, :-1], window[:, 1:]

        class Functional:
            @staticmethod
            def cross_entropy(logits, targets):
                loss = functional.cross_entropy(logits, targets)
                losses.append(loss.item())
                return loss

        torch.manual_seed(1)
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            exec(blocks[0], {"GPT": gpt.GPT, "batches": batches, "functional": Functional})
            self.assertTrue(any(name.endswith(".safetensors") for name in os.listdir("out")))
        self.assertLess(losses[-1], losses[0] - 0.2)

    def test_every_option_of_fsdp_is_in_the_table(self):
        try:
            from torch.distributed.fsdp import (CPUOffloadPolicy, FSDPModule,
                                                FullyShardedDataParallel, MixedPrecisionPolicy,
                                                fully_shard)
        except ImportError:
            self.skipTest("this PyTorch has no fully_shard")
        page = text_of("docs/concepts.md")
        names = [name for name in dir(FSDPModule) if not name.startswith("_")]
        for called in (fully_shard, MixedPrecisionPolicy, CPUOffloadPolicy,
                       FullyShardedDataParallel):
            names += inspect.signature(called).parameters
        names += ["no_sync", "summon_full_params", "clip_grad_norm_", "register_comm_hook"]
        common = {"module", "process_group", "device_mesh", "mixed_precision"}
        missing = [name for name in names if name not in common and name not in page]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    main()
