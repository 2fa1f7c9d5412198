"""Microseconds that zeroshard.torch adds to plain torch for a unit and a step, of a model whose
computation is next to nothing.

Usage: bench_hooks.py [UNITS [LAYERS [FREE]]]: LAYERS Linear layers in each of UNITS units, so twice
as many parameters. All run forward and backward, in turn, without an optimizer; the fastest of many
short runs counts. The last line is of the root alone as a unit."""

import sys
import time

import torch
from torch import nn

import zeroshard
import zeroshard.torch as zt

REPEAT, STEPS = 300, 1


class Unit(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Stack(nn.Module):
    def __init__(self, units, layers):
        super().__init__()
        self.units = nn.ModuleList(Unit(layers) for _ in range(units))

    def forward(self, x):
        for unit in self.units:
            x = unit(x)
        return x.sum()


def seconds(step):
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - began) / STEPS


def main():
    units = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else 6
    torch.set_num_threads(1)
    x = torch.ones(2, 8)
    plain = Stack(units, layers)

    def theirs():
        plain(x).backward()
        plain.zero_grad()

    def step_of(model):
        def ours():
            model(x).backward()
            model.discard()
        return ours

    with zeroshard.World.self_() as world, \
            zt.shard(Stack(units, layers), world, units=[Unit]) as model, \
            zt.shard(Stack(units, layers), world, units=[]) as one:
        steps = {"plain": theirs, "units": step_of(model), "root": step_of(one)}
        took = {name: [] for name in steps}
        for step in steps.values():
            seconds(step)
        for _ in range(REPEAT):
            for name, step in steps.items():
                took[name].append(seconds(step))
    fastest = {name: min(times) * 1e6 for name, times in took.items()}
    each = {name: (fastest[name] - fastest["plain"]) / units for name in ("units", "root")}
    print(f"torch {torch.__version__}, {units} units of {2 * layers} parameters, 1 rank, stage 3")
    print(f"plain torch            {fastest['plain'] / units:8.1f} us for a unit and a step")
    print(f"added with units       {each['units']:8.1f} us")
    print(f"added with one unit    {each['root']:8.1f} us")


if __name__ == "__main__":
    main()
