"""zeroshard.torch against torch.optim.AdamW: the same training, at every stage and number of ranks.

Stages have the same bits. Against plain torch the difference is rounding: the gradients of ranks
are added in another order, and AdamW's formula is evaluated in another one. The bound is 1/2000 of
a step's length."""

import unittest

import nets
import torch
from nets import Net, distance, main, make, plain, same, sharded

import zeroshard
import zeroshard.torch as zt

STEPS, BOUND = 4, 5e-6


class Parity(unittest.TestCase):
    def test_stages_have_the_same_bits_and_torchs_values(self):
        for ranks in (1, 2, 4):
            wanted, losses = plain(make(), ranks, STEPS)
            first = None
            for stage in range(4):
                with self.subTest(ranks=ranks, stage=stage):
                    got = sharded(ranks, STEPS, stage=stage)
                    first = first or got
                    self.assertLess(distance(wanted, got[0][0]), BOUND)
                    for rank in range(ranks):
                        self.assertTrue(same(got[rank][0], first[0][0]))
                        self.assertEqual(got[rank][1], first[rank][1])
                        self.assertAlmostEqual(got[rank][1][-1], losses[-1][rank], places=4)

    def test_the_bound_is_not_wide(self):
        """One step less is far outside of it."""
        wanted, _ = plain(make(), 1, STEPS)
        self.assertGreater(distance(wanted, sharded(1, STEPS - 1)[0][0]), 100 * BOUND)

    def test_parameters_are_there_inside_alone(self):
        with zeroshard.World.self_() as world, zt.shard(make(), world) as model:
            weight = model.blocks[0].up.weight
            self.assertTrue(torch.isnan(weight).all())
            with self.assertRaisesRegex(RuntimeError, "more than one element"), torch.no_grad():
                weight.add_(1)
            loss = model(*nets.batch(0, 0))
            self.assertTrue(torch.isfinite(loss))
            self.assertTrue(torch.isnan(weight).all())
            loss.backward()
            self.assertTrue(torch.isnan(weight).all() and torch.isnan(weight.grad).all())
            model.discard()
            torch.nn.init.zeros_(weight)
            with self.assertRaisesRegex(RuntimeError, "up.weight was written to"):
                model(*nets.batch(0, 0))

    def test_units_are_gathered_and_freed(self):
        """Units are gathered in each pass, to fewer slots than units."""
        def rank(world):
            with zt.shard(make(Net, blocks=8), world, bucket_bytes=1) as model:
                nets.train(model, world.rank, 2)
                stats = model.engine.stats()
                return stats["gathers"], model.plan.memory.roles

        gathers, roles = zeroshard.World.run(2, rank)[0]
        self.assertGreater(gathers, 3 * 8)  # in both steps, and in backward again
        block = sum(p.numel() for p in nets.Block().parameters()) * 4
        self.assertLess(roles["param slots"], 8 * block)


if __name__ == "__main__":
    main()
