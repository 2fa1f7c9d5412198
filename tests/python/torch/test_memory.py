"""Ten thousand steps of zeroshard.torch keep no memory, no tensor and no hook."""

import gc
import os
import unittest

import torch
from nets import ADAMW, Net, batch, main, make

import zeroshard
import zeroshard.torch as zt
from zeroshard.torch.unit import Unit

WARM, STEPS = 1000, 10000


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


class Memory(unittest.TestCase):
    def test_steps_do_not_grow(self):
        def rank(world):
            batches = [batch(world.rank, step) for step in range(7)]
            with zt.shard(make(Net, blocks=2), world) as model:
                for step in range(STEPS):
                    if step == WARM and world.rank == 0:
                        count = tensors()  # takes memory of its own
                        before = count, self.slots(model), resident()
                    if step % 10 == 3:
                        with torch.no_grad():
                            model(*batches[1])
                    model(*batches[step % 7]).backward()
                    _ = model.step(**ADAMW).norm
                if world.rank == 0:
                    held = resident()
                    after = tensors(), self.slots(model), held
                    return [b - a for a, b in zip(before, after)]

        made, slots, grown = zeroshard.World.run(1, rank)[0]
        self.assertLess(grown, 2 << 20)
        self.assertEqual((made, slots), (0, 0))

    @staticmethod
    def slots(model):
        units: list[Unit] = model._run.units
        return sum(len(unit.slots) + len(unit.grad_slots) for unit in units)

    def test_a_steady_state_makes_no_tensor(self):
        """Each unit's tensors are made once for each place that it comes to."""
        def rank(world):
            with zt.shard(make(Net, blocks=6), world, bucket_bytes=1) as model:
                for step in range(40):
                    model(*batch(world.rank, step)).backward()
                    model.step(**ADAMW)
                    if step == 20:
                        before = self.slots(model)
                return before, self.slots(model)

        before, after = zeroshard.World.run(2, rank)[0]
        self.assertEqual(before, after)


if __name__ == "__main__":
    main()
