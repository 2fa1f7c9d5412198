"""Models, batches and training loops that the tests of zeroshard.torch share."""

import os
import sys
import threading

import torch
from torch import nn
from torch.nn import functional

import zeroshard
import zeroshard.torch as zt

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from cases import main  # noqa: E402, F401: of the tests beside this folder

VOCAB, WIDTH, BLOCKS = 11, 16, 3
ADAMW = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
_seeded = threading.Lock()  # torch's seed is the process's

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """An embedding that is the head too, and blocks."""

    def __init__(self, block=Block, blocks=BLOCKS):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def features(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, x, y):
        logits = self.head(self.features(x)).view(-1, VOCAB).float()
        return functional.cross_entropy(logits, y.view(-1))


def make(kind=Net, seed=0, **given):
    """A module with the same values on every rank."""
    with _seeded:
        torch.manual_seed(seed)
        return kind(**given)


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x, y = torch.randint(0, VOCAB, (2, 4, 5), generator=generator)
    return x, y


def plain(module, ranks, steps, loss_of=None, micros=1, max_norm=0.0, decays=lambda name: True):
    """The weights that plain torch trains on the batches of all ranks, and their losses."""
    loss_of = loss_of or (lambda model, x, y: model(x, y))
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    chosen = [[p for name, p in module.named_parameters() if name in names
               and decays(name) == decay] for decay in (True, False)]
    optimizer = torch.optim.AdamW(
        [{"params": chosen[0]}, {"params": chosen[1], "weight_decay": 0.0}], lr=ADAMW["lr"],
        betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"])
    losses = []
    for step in range(steps):
        all_of = [loss_of(module, *batch(rank, step * micros + micro))
                  for rank in range(ranks) for micro in range(micros)]
        (sum(all_of) / len(all_of)).backward()
        if max_norm:
            nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item() for loss in all_of])
    return {name: p.detach().clone() for name, p in module.named_parameters()}, losses


def train(model, rank, steps, first=0, loss_of=None, **numbers):
    """The losses of steps [first, first + steps) of a sharded model."""
    loss_of = loss_of or (lambda model, x, y: model(x, y))
    losses = []
    for step in range(first, first + steps):
        loss = loss_of(model, *batch(rank, step))
        loss.backward()
        model.step(**{**ADAMW, **numbers})
        losses.append(loss.item())
    return losses


def weights(model):
    return {name: torch.from_numpy(array) for name, array in model.engine.weights().items()}


def sharded(ranks, steps=3, kind=Net, made=None, loss_of=None, numbers=None, **options):
    """Weights and losses of every rank of a model that is trained by zeroshard."""
    def rank(world):
        with zt.shard(made() if made else make(kind), world, **options) as model:
            losses = train(model, world.rank, steps, loss_of=loss_of, **(numbers or {}))
            return weights(model), losses

    return zeroshard.World.run(ranks, rank)


def distance(a, b):
    """The largest difference of two sets of weights of the same names."""
    assert a.keys() == b.keys(), (a.keys(), b.keys())
    return max((a[name].float() - b[name].float()).abs().max().item() for name in a)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
