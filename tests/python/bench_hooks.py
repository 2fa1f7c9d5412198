#!/usr/bin/env python3
"""Microseconds that zeroshard adds: a unit's hooks, its views, and a step, on one rank with nothing
to gather and nothing to compute. Usage: bench_hooks.py [TENSORS]"""

import sys
import time

from zeroshard import BACKWARD, FORWARD, Engine, Model, Tensor, World

UNITS, STEPS = 32, 300


def describe(tensors):
    model = Model()
    for unit in range(UNITS):
        model.add_unit(f"u{unit}", [Tensor(f"w{unit}.{i}", (64,)) for i in range(tensors)])
    return model


def steps(engine, units, views):
    """Seconds of all steps, of which each uses `units` units in both passes."""
    begun = time.perf_counter()
    for _ in range(STEPS):
        with engine.micro_step():
            for index in range(units):
                with engine.unit(index, FORWARD) as unit:
                    _ = unit.params if views else None
            for index in reversed(range(units)):
                with engine.unit(index, BACKWARD) as unit:
                    _ = (unit.params, unit.grads) if views else None
        engine.step(lr=0.0)
    return time.perf_counter() - begun


def main():
    tensors = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with World.self_() as world, Engine(world, describe(tensors), stage=0, threads=1) as engine:
        steps(engine, UNITS, True)
        none = min(steps(engine, 0, False) for _ in range(5))
        hooks = min(steps(engine, UNITS, False) for _ in range(5))
        views = min(steps(engine, UNITS, True) for _ in range(5))
    uses = STEPS * UNITS * 2
    print(f"a use of a unit, acquire and release: {(hooks - none) / uses * 1e6:.2f} us")
    print(f"the arrays of a use, {tensors} tensors:     {(views - hooks) / uses * 1e6:.2f} us")
    print(f"a step, its update included:          {none / STEPS * 1e6:.1f} us")


if __name__ == "__main__":
    main()
