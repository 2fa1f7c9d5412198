"""Mistakes that are usual with zeroshard.torch, and what is said: the table of docs/torch.md."""

import os
import unittest

import nets
import torch
from nets import ADAMW, VOCAB, WIDTH, Net, batch, main, make
from torch import nn

import zeroshard
import zeroshard.torch as zt

DOC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../docs/torch.md")


def model_of(world, kind=Net, **options):
    return zt.shard(make(kind), world, **options)


class Returning(nets.Block):
    """A unit that gives its parameter away."""

    def forward(self, x):
        return super().forward(x), self.up.weight[:2]


class Tables(Net):
    def __init__(self):
        super().__init__(block=Returning)

    def features(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x, _ = block(x)
        return self.norm(x)


class Keeping(torch.autograd.Function):
    """A function that keeps a parameter as an attribute."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight.detach()
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.weight, None


class KeepingBlock(nets.Block):
    def forward(self, x):
        return Keeping.apply(super().forward(x), self.norm.weight)


def optimizer_of_torch(world):
    with model_of(world) as model:
        optimizer = torch.optim.AdamW(model.parameters())
        model(*batch(0, 0)).backward()
        optimizer.step()


def clipping_of_torch(world):
    with model_of(world) as model:
        model(*batch(0, 0)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def no_step(world):
    with model_of(world) as model:
        model(*batch(0, 0)).backward()
        model(*batch(0, 1)).backward()


def no_backward(world):
    with model_of(world) as model:
        model(*batch(0, 0))
        model.step()


def two_backwards(world):
    with model_of(world) as model:
        first, second = model(*batch(0, 0)), model(*batch(0, 1))
        first.backward()
        second.backward()


def state_dict_of_the_module(world):
    with model_of(world) as model:
        torch.save(model.module.state_dict(), "/dev/null")


def initial_values_afterwards(world):
    with model_of(world) as model:
        nn.init.zeros_(model.tokens.weight)
        model(*batch(0, 0))


def frozen_afterwards(world):
    with model_of(world) as model:
        model.tokens.weight.requires_grad_(False)
        model(*batch(0, 0))


def head_afterwards(world):
    with model_of(world) as model:
        model.module.head = nn.Linear(WIDTH, VOCAB)
        model.module.tokens.weight = nn.Parameter(torch.zeros(VOCAB, WIDTH))
        model(*batch(0, 0))


def double(world):
    zt.shard(make().double(), world)


def on_meta_without_values(world):
    with torch.device("meta"):
        module = Net()
    with zt.shard(module, world) as model:
        model(*batch(0, 0))


def unknown_unit(world):
    model_of(world, units=["blocks.7"])


def a_list_as_unit(world):
    model_of(world, units=[nn.ModuleList])


def a_view_given_away(world):
    with model_of(world, Tables) as model:
        model(*batch(0, 0))


def a_view_kept(world):
    with zt.shard(make(Net, block=KeepingBlock), world) as model:
        model(*batch(0, 0))


def sharded_twice(world):
    module = make()
    with zt.shard(module, world):
        zt.shard(module, world)


def another_type_afterwards(world):
    with model_of(world) as model:
        model.bfloat16()


def another_type_of_the_module(world):
    with model_of(world) as model:
        model.module.bfloat16()
        model(*batch(0, 0))


def closed(world):
    model = model_of(world)
    model.close()
    model(*batch(0, 0))


def an_option_that_is_none(world):
    model_of(world, look_ahed=2)


MISTAKES = [
    (optimizer_of_torch, RuntimeError, "more than one element of the written-to tensor"),
    (clipping_of_torch, RuntimeError, "more than one element of the written-to tensor"),
    (no_step, zeroshard.StateError, "a step is due: call step() after backward()"),
    (no_backward, zeroshard.StateError, "step() comes while a forward waits for its backward"),
    (two_backwards, zeroshard.StateError, "a backward comes outside a micro-step, which ended "
     "with its first backward; add up the losses"),
    (state_dict_of_the_module, RuntimeError, "call state_dict() or save_weights() of what shard() "
     "returned"),
    (initial_values_afterwards, RuntimeError, "tokens.weight was written to"),
    (frozen_afterwards, RuntimeError, "tokens.weight was sharded as torch.float32 with "
     "requires_grad=True"),
    (head_afterwards, RuntimeError, "tokens.weight is another parameter than the one that was "
     "sharded"),
    (double, ValueError, "tokens.weight is torch.float64; parameters are float32, bfloat16 or "
     "float16"),
    (on_meta_without_values, zeroshard.StateError, "came from the meta device and has no values"),
    (unknown_unit, ValueError, "units names 'blocks.7', and the model has no such module"),
    (a_list_as_unit, ValueError, "a ModuleList: it is never called"),
    (a_view_given_away, RuntimeError, "a view of blocks.0.up.weight outlives the forward of "
     "blocks.0 (Returning)"),
    (a_view_kept, RuntimeError, "a view of blocks.0.norm.weight outlives the forward of blocks.0"),
    (sharded_twice, ValueError, "the module (Net) is sharded already"),
    (another_type_afterwards, RuntimeError, "bfloat16() of a sharded module would change "
     "placeholders alone"),
    (another_type_of_the_module, RuntimeError, "tokens.weight was sharded as torch.float32 with "
     "requires_grad=True and is torch.bfloat16"),
    (closed, zeroshard.StateError, "the sharded model is closed"),
    (an_option_that_is_none, TypeError, "look_ahed is no option"),
]


class Mistakes(unittest.TestCase):
    def test_what_is_said(self):
        with open(DOC, encoding="utf-8") as file:
            doc = " ".join(file.read().split())
        for mistake, kind, says in MISTAKES:
            with self.subTest(mistake=mistake.__name__):
                with zeroshard.World.self_() as world, self.assertRaises(kind) as caught:
                    mistake(world)
                self.assertIn(says, " ".join(str(caught.exception).split()))
                self.assertIn(says[:40], doc)

    def test_the_right_way_says_nothing(self):
        with zeroshard.World.self_() as world, model_of(world) as model:
            for step in range(2):
                model(*batch(0, step)).backward()
                self.assertFalse(model.step(**ADAMW, max_norm=1.0).skipped)
            with torch.no_grad():
                self.assertIs(model.eval(), model)
                self.assertFalse(model.module.training)
                model(*batch(0, 2))


if __name__ == "__main__":
    main()
