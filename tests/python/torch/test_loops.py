"""Training loops around zeroshard.torch: accumulation, clipping, evaluation, types, exceptions,
checkpoints and weights."""

import os
import tempfile
import unittest

import nets
import numpy as np
import torch
from nets import ADAMW, Net, batch, distance, main, make, plain, same, sharded, train, weights
from torch import nn

import zeroshard
import zeroshard.torch as zt
from zeroshard import World

STEPS, BOUND = 3, 5e-6


class Normed(Net):
    """A model with persistent buffers."""

    def __init__(self):
        super().__init__()
        self.batch = nn.BatchNorm1d(nets.WIDTH)
        self.register_buffer("fixed", torch.arange(3.0), persistent=False)

    def features(self, x):
        return self.batch(super().features(x).transpose(1, 2)).transpose(1, 2)


def with_masters(ranks, steps):
    """The masters that plain torch trains of a model in bfloat16."""
    module = make().to(torch.bfloat16)
    masters = {name: p.detach().float() for name, p in module.named_parameters()}
    optimizer = torch.optim.AdamW(masters.values(), lr=ADAMW["lr"], eps=ADAMW["eps"],
                                  betas=(ADAMW["beta1"], ADAMW["beta2"]),
                                  weight_decay=ADAMW["weight_decay"])
    for step in range(steps):
        for name in masters:
            masters[name].grad = torch.zeros_like(masters[name])
        for rank in range(ranks):
            module(*batch(rank, step)).backward()
            for name, p in module.named_parameters():
                masters[name].grad += p.grad.float() / ranks
                p.grad = None
        optimizer.step()
        with torch.no_grad():
            for name, p in module.named_parameters():
                p.copy_(masters[name])
    return masters


class Steps(unittest.TestCase):
    def test_micro_steps_are_added_up(self):
        for ranks in (1, 2):
            wanted, _ = plain(make(), ranks, STEPS, micros=3)

            def rank(world):
                with zt.shard(make(), world) as model:
                    for step in range(STEPS):
                        for micro in range(3):
                            with model.micro_step(last=micro == 2):
                                model(*batch(world.rank, step * 3 + micro)).backward()
                        model.step(**ADAMW)
                    return weights(model)

            self.assertLess(distance(wanted, World.run(ranks, rank)[0]), BOUND)

    def test_clipping_and_the_norm(self):
        wanted, _ = plain(make(), 2, STEPS, max_norm=0.05)
        got = sharded(2, STEPS, numbers={"max_norm": 0.05})
        self.assertLess(distance(wanted, got[0][0]), BOUND)
        self.assertGreater(distance(sharded(2, STEPS)[0][0], got[0][0]), 100 * BOUND)

        def rank(world):
            with zt.shard(make(), world) as model:
                model(*batch(world.rank, 0)).backward()
                before = model.grad_norm()
                return before, model.step(**ADAMW).norm

        module = make()
        (sum(module(*batch(rank, 0)) for rank in range(2)) / 2).backward()
        norm = nn.utils.get_total_norm([p.grad for p in module.parameters()]).item()
        for before, after in World.run(2, rank):
            self.assertEqual(before, after)
            self.assertAlmostEqual(after, norm, places=5)

    def test_weight_decay_and_groups_by_name(self):
        wanted, _ = plain(make(), 1, STEPS, decays=lambda name: "norm" not in name)
        got = sharded(1, STEPS, no_decay=lambda name, p: "norm" in name)
        self.assertLess(distance(wanted, got[0][0]), BOUND)
        with World.self_() as world, zt.shard(
                make(), world, groups=lambda name, p: 1 if p.dim() == 1 else 0) as model:
            model(*batch(0, 0)).backward()
            model.step(groups=[{"lr": 0.0}, {"lr": 1e-2}], weight_decay=0.0)
            for name, value in weights(model).items():
                moved = not torch.equal(value, dict(make().named_parameters())[name])
                self.assertEqual(moved, value.dim() == 1, name)

    def test_discard_and_abandon_leave_no_trace(self):
        wanted = sharded(2, STEPS)[0][0]

        def rank(world):
            with zt.shard(make(), world) as model:
                model(*batch(world.rank, 7)).backward()
                model.discard()
                losses = train(model, world.rank, 1)
                model(*batch(world.rank, 8))
                model.abandon()
                return losses + train(model, world.rank, STEPS - 1, first=1), weights(model)

        self.assertTrue(same(wanted, World.run(2, rank)[0][1]))

    def test_bfloat16_with_fp32_masters(self):
        wanted = with_masters(2, STEPS)

        def made():
            return make().to(torch.bfloat16)

        got = [sharded(2, STEPS, made=made, stage=stage)[0][0] for stage in (0, 3)]
        self.assertTrue(same(*got))
        self.assertLess(distance(wanted, got[0]), BOUND)
        sums = sharded(2, STEPS, made=made, grad_dtype="f32")[1][0]
        self.assertLess(distance(wanted, sums), BOUND)

    def test_float16_has_a_loss_scale(self):
        def rank(world):
            with zt.shard(make().half(), world) as model:
                scales, losses = [], []
                for step in range(30):
                    loss = model(*batch(world.rank, 0))
                    scales.append(model.loss_scale)
                    (loss * model.loss_scale).backward()
                    result = model.step(**ADAMW)
                    losses.append(loss.item())
                return scales, losses, result.updates

        for scales, losses, updates in World.run(2, rank):
            self.assertEqual(scales[0], 65536)
            self.assertGreater(updates, 5)
            self.assertLess(losses[-1], losses[0])

    def test_autocast(self):
        def loss_of(model, x, y):
            with torch.autocast("cpu", torch.bfloat16):
                return model(x, y)

        wanted, _ = plain(make(), 1, STEPS, loss_of=loss_of)
        self.assertLess(distance(wanted, sharded(1, STEPS, loss_of=loss_of)[0][0]), 1e-3)

    def test_other_optimizers(self):
        got = sharded(2, STEPS, numbers={"eps": 1e-8}, optimizer="adamw")
        self.assertTrue(same(got[0][0], sharded(2, STEPS)[0][0]))

        def rank(world):
            with zt.shard(make(), world, optimizer="sgd") as model:
                for step in range(STEPS):
                    model(*batch(world.rank, step)).backward()
                    model.step(lr=0.1, weight_decay=0.0)
                return weights(model)

        module = make()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(STEPS):
            (sum(module(*batch(rank, step)) for rank in range(2)) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        wanted = {name: p.detach() for name, p in module.named_parameters()}
        self.assertLess(distance(wanted, World.run(2, rank)[1]), BOUND)


class Evaluation(unittest.TestCase):
    def test_without_gradients(self):
        def rank(world):
            with zt.shard(make(), world) as model:
                losses = train(model, world.rank, 2)
                for context in (torch.no_grad, torch.inference_mode):
                    with context():
                        losses.append(model(*batch(9, 9)).item())
                model.eval()
                losses += train(model, world.rank, 1, first=2)
                return losses, weights(model)

        module = make()
        got = World.run(2, rank)
        self.assertTrue(same(got[0][1], sharded(2, 3)[0][0]))
        module.load_state_dict({**got[0][1], "head.weight": got[0][1]["tokens.weight"]})
        self.assertEqual(got[0][0][2], got[1][0][3])
        self.assertNotAlmostEqual(got[0][0][2], module(*batch(9, 9)).item(), places=4)

    def test_between_forward_and_backward(self):
        def loss_of(model, x, y):
            loss = model(x, y)
            with torch.no_grad():
                model(y, x)
            return loss

        self.assertTrue(same(sharded(2, loss_of=loss_of)[0][0], sharded(2)[0][0]))

    def test_a_forward_whose_backward_never_comes(self):
        """It is dropped with its graph, and the next one's gradients are alone in the step."""
        def loss_of(model, x, y):
            model(y, x)
            return model(x, y)

        self.assertTrue(same(sharded(2, loss_of=loss_of)[0][0], sharded(2)[0][0]))


class Failures(unittest.TestCase):
    def failing(self, where):
        class Failing(nets.Block):
            armed = False

            def forward(self, x):
                x = super().forward(x)
                if Failing.armed and where == "forward":
                    raise LookupError("forward")
                if Failing.armed and where == "backward" and x.requires_grad:
                    def fail(grad):
                        raise LookupError("backward")
                    x.register_hook(fail)
                return x

        return Failing

    def test_exceptions_and_going_on(self):
        for where in ("forward", "backward"):
            for ranks in (1, 2):
                with self.subTest(where=where, ranks=ranks):
                    kind = self.failing(where)
                    wanted = sharded(ranks, STEPS)[0][0]

                    def rank(world):
                        with zt.shard(make(Net, block=kind), world) as model:
                            train(model, world.rank, 1)
                            world.barrier()
                            kind.armed = True
                            world.barrier()
                            with self.assertRaisesRegex(LookupError, where):
                                model(*batch(world.rank, 5)).backward()
                            world.barrier()
                            kind.armed = False
                            world.barrier()
                            if where == "backward":
                                with self.assertRaisesRegex(zeroshard.StateError, "abandon"):
                                    model.step(**ADAMW)
                                with self.assertRaisesRegex(zeroshard.StateError, "abandon"):
                                    model(*batch(0, 0))
                            model.abandon()
                            self.assertTrue(model.tokens.weight.isnan().all())
                            train(model, world.rank, STEPS - 1, first=1)
                            return weights(model)

                    self.assertTrue(same(wanted, World.run(ranks, rank)[0]))

    def test_one_rank_fails(self):
        kind = self.failing("forward")

        def rank(world):
            with zt.shard(make(), world) as model:
                train(model, world.rank, 1)
                if world.rank == 1:
                    raise LookupError("the data of rank 1")
                train(model, world.rank, 1)

        del kind
        with self.assertRaisesRegex(LookupError, "rank 1"):
            World.run(3, rank, deadline_ms=20000)


class Saved(unittest.TestCase):
    def test_checkpoints_at_other_ranks_and_stages(self):
        with tempfile.TemporaryDirectory() as folder:
            def saves(world):
                with zt.shard(make(Normed), world, stage=3) as model:
                    train(model, world.rank, 2)
                    model.save(folder, user=b"mine", data_position=12)
                    train(model, world.rank, 1, first=2)
                    return weights(model), model.batch.running_mean.clone()

            wanted, mean = World.run(2, saves)[0]
            for ranks, stage in ((2, 3), (2, 0), (1, 3), (4, 1)):
                with self.subTest(ranks=ranks, stage=stage):
                    def goes_on(world, stage=stage):
                        with zt.shard(make(Normed, seed=9), world, stage=stage) as model:
                            report = model.load(folder)
                            self.assertEqual((report.step, report.user, report.data_position),
                                             (2, b"mine", 12))
                            seen = model.batch.running_mean.clone()
                            train(model, world.rank, 1, first=2)
                            return weights(model), seen, model.batch.running_mean.clone()

                    got = World.run(ranks, goes_on)[0]
                    if ranks == 2:
                        self.assertTrue(same(wanted, got[0]))
                        self.assertTrue(torch.equal(mean, got[2]))
                    else:
                        self.assertGreater(got[1].abs().max(), 0)

    def test_state_dicts(self):
        for kind in (Net, Normed):
            module = make(kind)
            wanted = {name: value.clone() for name, value in module.state_dict().items()}

            def rank(world):
                with zt.shard(make(kind), world) as model:
                    first = model.state_dict(rank0_only=True)
                    train(model, world.rank, 1)
                    model.load_state_dict(wanted)
                    second = model.state_dict()
                    model.module.eval()
                    with torch.no_grad():
                        return first, second, model(*batch(0, 0)).item()

            got = World.run(2, rank)
            self.assertTrue(same(wanted, got[0][0]))
            self.assertEqual(got[1][0], {})
            self.assertTrue(same(wanted, got[1][1]))
            module.load_state_dict(got[1][1])
            self.assertAlmostEqual(got[0][2], module.eval()(*batch(0, 0)).item(), places=6)

    def test_weights_of_safetensors(self):
        for dtype in (torch.float32, torch.bfloat16):
            with tempfile.TemporaryDirectory() as folder:
                def out(world):
                    with zt.shard(make(Normed).to(dtype), world) as model:
                        train(model, world.rank, 2)
                        model.save_weights(folder)
                        return model.state_dict()

                def back(world):
                    with zt.shard(make(Normed, seed=3).to(dtype), world, stage=1) as model:
                        model.load_weights(folder)
                        return model.state_dict()

                wanted = World.run(2, out)[1]
                got = World.run(3, back)[2]
                self.assertTrue(same({k: v for k, v in wanted.items() if "running" not in k and
                                      "tracked" not in k}, {
                    k: v for k, v in got.items() if "running" not in k and "tracked" not in k}))
                self.assertEqual(os.listdir(folder), ["model.safetensors"])

    def test_names_of_other_files(self):
        with tempfile.TemporaryDirectory() as folder, World.self_() as world:
            with zt.shard(make(), world) as model:
                model.save_weights(os.path.join(folder, "a.safetensors"))
                wanted = model.state_dict()
            with zt.shard(make(Normed, seed=4), world) as model:
                path = os.path.join(folder, "a.safetensors")
                with self.assertRaisesRegex(ValueError, "missing: batch.weight, batch.bias"):
                    model.load_weights(path)
                missing = model.load_weights(path, partial=True)
                self.assertEqual(missing, ["batch.weight", "batch.bias"])
                got = model.state_dict()
                self.assertTrue(all(torch.equal(got[name], wanted[name]) for name in wanted))
                with self.assertRaisesRegex(ValueError, "not the model's: x.tokens.weight"):
                    model.load_weights(path, names=lambda name: "x." + name)
                model.load_weights(path, partial=True,
                                   names={"blocks.0.up.bias": "blocks.1.up.bias",
                                          "blocks.1.up.bias": None})
                got = model.state_dict()
                self.assertTrue(torch.equal(got["blocks.1.up.bias"], wanted["blocks.0.up.bias"]))

    def test_damaged_files_are_refused(self):
        with tempfile.TemporaryDirectory() as folder, World.self_() as world:
            path = os.path.join(folder, "a.safetensors")
            with zt.shard(make(), world) as model:
                model.save_weights(path)
                with open(path, "rb") as file:
                    whole = file.read()
                before = model.state_dict()
                for damaged in (whole[:-4], whole[:100], b"", b"\xff" * 64,
                                whole.replace(b'"F32"', b'"F99"', 1),
                                whole.replace(b'[16,32]', b'[16,31]', 1)):
                    with open(path, "wb") as file:
                        file.write(damaged)
                    with self.assertRaisesRegex(ValueError, "a.safetensors"):
                        model.load_weights(path)
                self.assertTrue(same(before, model.state_dict()))

    def test_a_disk_that_cannot_be_written(self):
        def rank(world):
            with zt.shard(make(), world) as model:
                with self.assertRaisesRegex(OSError if world.rank == 0 else zeroshard.IoError,
                                            "/proc"):
                    model.save_weights("/proc/nowhere")
                return train(model, world.rank, 1)

        self.assertEqual(len(World.run(2, rank)), 2)


class Meta(unittest.TestCase):
    def test_values_come_later(self):
        with tempfile.TemporaryDirectory() as folder:
            def rank(world):
                with zt.shard(make(), world) as model:
                    train(model, world.rank, 1)
                    if world.rank == 0:
                        os.makedirs(folder, exist_ok=True)
                    model.save_weights(folder)
                    wanted = train(model, world.rank, 1, first=5)
                with torch.device("meta"):
                    module = Net()
                with zt.shard(module, world) as model:
                    with self.assertRaisesRegex(zeroshard.StateError, "tokens.weight .*meta"):
                        model(*batch(0, 0))
                    model.load_weights(folder)
                    self.assertIs(model.head.weight, model.tokens.weight)
                    return wanted, train(model, world.rank, 1, first=5)

            for wanted, got in World.run(2, rank):
                self.assertEqual(wanted, got)

    def test_an_init_function(self):
        calls = []

        def init(name, tensor):
            calls.append(name)
            tensor.fill_(0.5) if tensor.dim() == 1 else nn.init.normal_(tensor, std=0.1)

        def rank(world):
            with torch.device("meta"):
                module = Net()
            with zt.shard(module, world, init=init) as model:
                losses = train(model, world.rank, 1)
                return losses, model.state_dict()["blocks.2.up.bias"]

        got = World.run(2, rank)
        self.assertEqual(sorted(calls), sorted(set(calls)))
        self.assertEqual(len(calls), len(list(Net().named_parameters())))
        self.assertTrue(np.isfinite(got[0][0]).all())
        self.assertLess((got[0][1] - 0.5).abs().max(), 0.02)

    def test_ranks_begin_with_rank_0(self):
        def rank(world):
            with zt.shard(make(seed=world.rank), world) as model:
                return model.state_dict()

        got = World.run(2, rank)
        self.assertTrue(same(got[1], make().state_dict()))


if __name__ == "__main__":
    main()
