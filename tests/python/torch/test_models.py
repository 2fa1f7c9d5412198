"""zeroshard.torch on models and loops of every shape, against plain torch: ties, frozen and unused
parameters, modules used twice, checkpointing, in-place operations, gradients of gradients."""

import gc
import unittest
import weakref

import nets
import torch
from nets import BLOCKS, VOCAB, WIDTH, Block, Net, distance, main, make, plain, same, sharded
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import zeroshard
import zeroshard.torch as zt

STEPS, BOUND = 3, 5e-6


class Checkpointed(Net):
    """Each block, or pairs of blocks, computed again in backward."""

    def __init__(self, reentrant=False, together=1):
        super().__init__(blocks=4)
        self.reentrant, self.together = reentrant, together

    def features(self, x):
        x = self.tokens(x)
        for first in range(0, len(self.blocks), self.together):
            some = self.blocks[first:first + self.together]

            def run(x, some=some):
                for block in some:
                    x = block(x)
                return x

            x = checkpoint(run, x, use_reentrant=self.reentrant)
        return self.norm(x)


class InnerCheckpoint(Block):
    """A part of the block, without the block's own forward, is computed again."""

    reentrant = False

    def part(self, x):
        return self.down(functional.gelu(self.up(self.norm(x))))

    def forward(self, x):
        return x + checkpoint(self.part, x, use_reentrant=self.reentrant)


class InnerReentrant(InnerCheckpoint):
    reentrant = True


class Shared(Net):
    """The first block is used three times, with the others between."""

    def features(self, x):
        x = self.tokens(x)
        for block in (self.blocks[0], self.blocks[0], self.blocks[1], self.blocks[2],
                      self.blocks[0]):
            x = block(x)
        return self.norm(x)


class SharedFromTheEnd(Shared):
    """What is used in one order and defined in another."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([*list(self.blocks)[1:], self.blocks[0]])

    def features(self, x):
        x = self.tokens(x)
        for index in (2, 0, 1, 2):
            x = self.blocks[index](x)
        return self.norm(x)


class Extra(Block):
    """A block with parameters that no forward uses."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(3, 5)


class Half(Block):
    """A block that has an output which the loss does not use, and which passes None."""

    def forward(self, x, memory=None, flag=True):
        y = super().forward(x)
        if memory is not None:
            y = y + self.norm(memory)
        return {"x": y, "unused": self.down(self.up(x)), "none": None, "flag": flag}


class Halves(Net):
    """Blocks with keyword arguments and mappings, all of which see the first one's output."""

    def __init__(self):
        super().__init__(block=Half)

    def features(self, x):
        x = self.tokens(x)
        memory = None
        for block in self.blocks:
            x = block(x, memory=memory)["x"]
            memory = x if memory is None else memory
        return self.norm(x)


class TiedBlocks(Net):
    """Blocks that share a matrix, which the first one owns."""

    def __init__(self):
        super().__init__()
        for block in self.blocks[1:]:
            block.up.weight = self.blocks[0].up.weight


class Pre(nn.Module):
    """A unit that changes its input in place."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.line(functional.relu_(x)) + x


class Pres(Net):
    def __init__(self):
        super().__init__(block=Pre)

    def features(self, x):
        x = self.tokens(x) * 1
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Recurrent(nn.Module):
    """Layers of torch's own, with dimensions and layouts of their own."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mix = nn.Conv1d(5, 5, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, x, y):
        x, _ = self.lstm(self.tokens(x))
        x, _ = self.attend(x, x, x, need_weights=False)
        logits = self.head(self.mix(x) * self.scale)
        return functional.cross_entropy(logits.view(-1, VOCAB), y.view(-1))


class Case(unittest.TestCase):
    def like_torch(self, kind, ranks=2, loss_of=None, bound=BOUND, **options):
        """The same weights as plain torch trains, at stages 0 and 3 with the same bits."""
        made = options.pop("made", None) or (lambda: make(kind))
        wanted, losses = plain(made(), ranks, STEPS, loss_of=loss_of)
        got = [sharded(ranks, STEPS, made=made, loss_of=loss_of, stage=stage, **options)
               for stage in (0, 3)]
        names = got[0][0][0].keys()
        wanted = {name: wanted[name] for name in names}
        self.assertLess(distance(wanted, got[1][0][0]), bound)
        self.assertTrue(same(got[0][0][0], got[1][ranks - 1][0]))
        self.assertAlmostEqual(got[1][0][1][-1], losses[-1][0], places=4)
        # Something was learnt, so equal is not equal to the beginning.
        self.assertGreater(distance(dict(made().named_parameters()), got[1][0][0]), 100 * bound)


class Shapes(Case):
    def test_tied_blocks(self):
        self.like_torch(TiedBlocks)

    def test_a_module_used_three_times(self):
        self.like_torch(Shared)

    def test_a_module_used_at_both_ends(self):
        """The units of such a model are given in the order of their first use."""
        self.like_torch(SharedFromTheEnd, units=["blocks.2", "blocks.0", "blocks.1"],
                        bucket_bytes=1)

    def test_units_in_another_order_are_told(self):
        with self.assertRaisesRegex(zeroshard.StateError, "left out") as caught:
            sharded(2, made=lambda: make(SharedFromTheEnd), bucket_bytes=1, grad_slots=1)
        self.assertIn("units=[...]", " ".join(caught.exception.__notes__))

    def test_parameters_without_a_use(self):
        """Torch skips them. Here their gradient is zero, so weight decay alone changes them."""
        self.like_torch(None, made=lambda: make(Net, block=Extra), bucket_bytes=1,
                        no_decay=lambda name, parameter: "spare" in name)

    def test_outputs_without_a_use(self):
        self.like_torch(Halves, bucket_bytes=1)

    def test_inputs_changed_in_place(self):
        self.like_torch(Pres)

    def test_layers_of_torch(self):
        self.like_torch(Recurrent)
        self.like_torch(Recurrent, units=[nn.LSTM, nn.MultiheadAttention, "mix"])

    def test_units_in_units(self):
        self.like_torch(Net, units=[Block, nn.Linear], bucket_bytes=1)
        self.like_torch(Net, units=lambda name, module: name.endswith(("norm", "up", "blocks.1")))

    def test_one_unit(self):
        self.like_torch(Net, units=[])


class Frozen(Case):
    def partly(self, kind=Net, trained=("norm", "up")):
        def made():
            model = make(kind)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(any(part in name for part in trained))
            return model
        return made

    def test_parts_of_units(self):
        made = self.partly()
        self.like_torch(None, made=made)
        weights = sharded(2, made=made)[0][0]
        self.assertTrue(torch.equal(weights["blocks.0.down.weight"],
                                    made().blocks[0].down.weight))

    def test_whole_units(self):
        self.like_torch(None, made=self.partly(trained=("blocks.1", "tokens")))
        self.like_torch(None, made=self.partly(trained=("blocks.2",)))

    def test_with_checkpoints(self):
        for reentrant in (False, True):
            def made(reentrant=reentrant):
                model = make(Checkpointed, reentrant=reentrant, together=2)
                for name, parameter in model.named_parameters():
                    parameter.requires_grad_("down" not in name)
                return model
            self.like_torch(None, made=made, param_slots=6, grad_slots=4)


class Recomputed(Case):
    def test_blocks(self):
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                self.like_torch(None, made=lambda: make(Checkpointed, reentrant=reentrant),
                                bucket_bytes=1)

    def test_several_blocks_together(self):
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                self.like_torch(None, made=lambda: make(Checkpointed, reentrant=reentrant,
                                                        together=2), param_slots=6)

    def test_parts_of_blocks(self):
        for block in (InnerCheckpoint, InnerReentrant):
            with self.subTest(block=block):
                self.like_torch(None, made=lambda: make(Net, block=block))

    def test_blocks_used_twice(self):
        class Both(Checkpointed):
            def features(self, x):
                x = self.tokens(x)
                for block in [*self.blocks, *self.blocks]:
                    x = checkpoint(block, x, use_reentrant=self.reentrant)
                return self.norm(x)

        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                self.like_torch(None, made=lambda: make(Both, reentrant=reentrant),
                                param_slots=8, grad_slots=8)


class Graphs(Case):
    @unittest.skipUnless(hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
                         "this PyTorch does not tell which hooks are on top")
    def test_save_on_cpu_outside_and_inside(self):
        calls = []

        def loss_of(model, x, y):
            def pack(tensor):
                calls.append(tensor.shape)
                return tensor.clone()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                return model(x, y)

        def on_cpu(model, x, y):
            with torch.autograd.graph.save_on_cpu():
                return model(x, y)

        self.like_torch(Net, loss_of=loss_of)
        self.assertTrue(calls)
        self.like_torch(Net, loss_of=on_cpu)

    @unittest.skipUnless(hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
                         "this PyTorch does not tell which hooks are on top")
    def test_the_outer_hooks_get_no_parameter(self):
        seen = []

        def loss_of(model, x, y):
            with torch.autograd.graph.saved_tensors_hooks(
                    lambda tensor: seen.append(tuple(tensor.shape)) or tensor, lambda kept: kept):
                return model(x, y)

        sharded(1, loss_of=loss_of)
        self.assertTrue(seen)
        self.assertNotIn((2 * WIDTH, WIDTH), seen)
        self.assertNotIn((WIDTH, 2 * WIDTH), seen)

    def test_two_forwards_and_one_backward(self):
        self.like_torch(Net, loss_of=lambda model, x, y: model(x, y) + model(y, x) / 2)

    def test_gradients_of_gradients(self):
        class Smooth(nn.Module):
            """A loss with the norm of the gradient of its input in it."""

            def __init__(self):
                super().__init__()
                self.net = Net()

            def forward(self, x, y):
                tokens = self.net.tokens(x).detach().requires_grad_()
                h = tokens
                for block in self.net.blocks:
                    h = block(h)
                loss = functional.cross_entropy(self.net.head(self.net.norm(h)).view(-1, VOCAB),
                                                y.view(-1))
                grad, = torch.autograd.grad(loss, tokens, create_graph=True)
                return loss + grad.square().sum()

        self.like_torch(Smooth)

    def test_gradients_of_inputs_alone(self):
        def rank(world):
            with zt.shard(make(Net), world) as model:
                x, y = nets.batch(world.rank, 0)
                kept = model(x, y)
                scale = torch.ones((), requires_grad=True)
                found, = torch.autograd.grad(kept * scale, scale, retain_graph=True)
                kept.backward()
                norm = model.step(**nets.ADAMW).norm
                return found.item(), kept.item(), norm

        for found, kept, norm in zeroshard.World.run(2, rank):
            self.assertEqual(found, kept)
            self.assertGreater(norm, 0)

    def test_a_saved_tensor_that_is_changed_is_told(self):
        class Changed(Block):
            def forward(self, x):
                y = super().forward(x).exp()
                y.add_(1)
                return y

        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            sharded(1, made=lambda: make(Net, block=Changed))

    def test_graphs_without_a_backward_go(self):
        """Nothing keeps a graph, and through it the engine, but whoever has the loss."""
        with zeroshard.World.self_() as world:
            model = zt.shard(make(Net), world)
            loss = model(*nets.batch(0, 0))
            run = weakref.ref(model._run)
            model.close()
            del loss, model
            gc.collect()
            self.assertIsNone(run())

    @unittest.skipUnless(hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
                         "compiled graphs of this PyTorch do not run hooks in order")
    def test_compiled_blocks_and_models(self):
        """Graphs of torch.compile end at units; the backend runs their operations as they are."""
        wanted = sharded(1, STEPS)[0][0]

        def blocks(model, x, y):
            if not hasattr(model, "compiled"):
                model.module.compiled = True
                for block in model.blocks:
                    block.compile(backend="aot_eager")
            return model(x, y)

        def whole(model, x, y):
            if not hasattr(model, "compiled"):
                model.module.compiled = [torch.compile(model.module, backend="aot_eager")]
            return model.compiled[0](x, y)

        for loss_of in (blocks, whole):
            torch._dynamo.reset()
            counters.clear()
            self.assertTrue(same(wanted, sharded(1, STEPS, loss_of=loss_of)[0][0]))
            self.assertGreater(counters["stats"]["unique_graphs"], 0)

    def test_dropout_and_random_state(self):
        class Dropped(Block):
            def forward(self, x):
                return functional.dropout(super().forward(x), 0.25)

        torch.manual_seed(5)
        wanted, _ = plain(make(Net, block=Dropped, seed=5), 1, STEPS)
        got = sharded(1, STEPS, made=lambda: make(Net, block=Dropped, seed=5))
        self.assertLess(distance(wanted, got[0][0]), BOUND)


if __name__ == "__main__":
    main()
