"""examples/01_hello in numpy: ranks teach three linear layers to swap neighbouring values, with the
same bits as the program in C. Usage: numpy_hello.py [STAGE]

Two ranks are threads of this process; under torchrun, or with its variables, each is a process."""

import sys

import numpy as np
import zeroshard
from zeroshard import BACKWARD, FORWARD, Engine, Model, Tensor, World, random_normal

RANKS, LAYERS, WIDTH, STEPS = 2, 3, 16, 500


def times(weight, x):
    """weight @ x, added up in the order of C's loop."""
    y = np.zeros(WIDTH, np.float32)
    for column in range(WIDTH):
        y += weight[:, column] * x[column]
    return y


def describe():
    model = Model()
    for layer, name in enumerate(("first", "second", "third")):
        initial = random_normal(np.empty((WIDTH, WIDTH), np.float32), 1, layer, stddev=0.25)
        model.add_unit(name, [Tensor(name, (WIDTH, WIDTH), initial=initial)])
    return model


def train(world, stage):
    with Engine(world, describe(), stage=stage) as engine:
        for step in range(STEPS):
            sample = np.empty(WIDTH, np.float32)
            x = [random_normal(sample, 2, world.rank, first=step * WIDTH)]
            with engine.micro_step():
                for layer in range(LAYERS):
                    with engine.unit(layer, FORWARD) as unit:
                        x.append(times(unit.params[0], x[layer]))
                wanted = x[0].reshape(-1, 2)[:, ::-1].ravel()
                d = (x[LAYERS] - wanted) * 2 / WIDTH
                loss = np.add.accumulate(d * d * WIDTH / 4)[-1]
                for layer in reversed(range(LAYERS)):
                    with engine.unit(layer, BACKWARD) as unit:
                        unit.grads[0] += np.outer(d, x[layer])
                        d = times(unit.params[0].T, d)
            engine.step(lr=0.01)
            if world.rank == 0:
                print(f"step {step:3}  loss {loss:.8e}")


def main():
    stage = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    try:
        if World.is_launched():
            with World.launched() as world:
                train(world, stage)
        else:
            World.run(RANKS, lambda world: train(world, stage))
    except zeroshard.Error as error:
        sys.exit(f"numpy_hello: {error}")


if __name__ == "__main__":
    main()
