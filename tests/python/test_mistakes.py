"""Mistakes that beginners make with zeroshard: each gets an exception that names the value and the
remedy. docs/python.md has the table, which is compared with the messages here."""

import os
import re
import sys
import unittest

import numpy as np
import zeroshard
from cases import main
from zeroshard import BACKWARD, EVAL, FORWARD, Engine, Model, Tensor, World


def describe(**changes):
    model = Model()
    model.add_unit("layer", [Tensor("weight", (4, 4), **changes)])
    return model


def with_engine(act):
    def run():
        with World.self_() as world, Engine(world, describe()) as engine:
            act(engine)

    return run


def step_without_micro_step(engine):
    engine.step(lr=0.1)


def writes_parameters(engine):
    with engine.unit(0, EVAL) as unit:
        unit.params[0][...] = 0


def unit_that_is_not_there(engine):
    with engine.unit(1, EVAL):
        pass


def gradients_in_forward(engine):
    with engine.micro_step(), engine.unit(0, FORWARD) as unit:
        unit.grads[0] += 1


def keeps_gradients(engine):
    with engine.micro_step():
        with engine.unit(0, BACKWARD) as unit:
            grad = unit.grads[0]
        grad += 1


def assigns_gradients(engine):
    with engine.micro_step(), engine.unit(0, BACKWARD) as unit:
        unit.grads[0] = np.ones((4, 4), np.float32)


def other_optimizers_number(engine):
    engine.step(lr=0.1, momentum=0.9)


def different_stages():
    World.run(2, lambda world: Engine(world, describe(), stage=world.rank))


def returns_early():
    World.run(2, lambda world: world.barrier() if world.rank == 0 else None)


# what is done; the exception; a part of its message
MISTAKES = [
    (lambda: zeroshard.plan(describe(), 1, look_ahed=2), TypeError, "look_ahed is no option"),
    (lambda: zeroshard.plan(describe(), 1, stage=4), zeroshard.InvalidArgumentError,
     'stage "4" is not one of 0, 1, 2, 3'),
    (lambda: describe(initial=np.zeros((4, 4))), ValueError, "an array of float64 is given"),
    (lambda: describe(initial=np.zeros(16, np.float32)), ValueError, "has the shape (16,)"),
    (with_engine(step_without_micro_step), zeroshard.StateError, "zero_micro_begin"),
    (with_engine(writes_parameters), ValueError, "read-only"),
    (with_engine(unit_that_is_not_there), IndexError, "unit 1 is not one"),
    (with_engine(gradients_in_forward), ValueError, "engine.unit(index, zeroshard.BACKWARD)"),
    (with_engine(keeps_gradients), ValueError, "read-only"),
    (with_engine(assigns_gradients), TypeError, "add to the array: unit.grads[i] += g"),
    (with_engine(other_optimizers_number), TypeError, "momentum is no hyper-parameter"),
    (different_stages, zeroshard.MismatchError, "stage"),
    (returns_early, zeroshard.CommError, "rank 1"),
]


def read_page():
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../../docs/python.md"), encoding="utf-8") as file:
        return file.read()


class Page(unittest.TestCase):
    def test_its_trainer_learns(self):
        names = {}
        exec(re.search(r"```python\n(.*?)```", read_page(), re.DOTALL)[1], names)
        self.assertAlmostEqual(float(names["weights"]["slope"][0]), 3, places=2)
        self.assertAlmostEqual(float(names["weights"]["height"][0]), 2, places=2)


class Mistakes(unittest.TestCase):
    def test_each_says_what_to_do(self):
        for number, (act, kind, part) in enumerate(MISTAKES):
            with self.subTest(number), self.assertRaises(kind) as caught:
                act()
            with self.subTest(number):
                self.assertIn(part, str(caught.exception))

    def test_the_page_has_them(self):
        page = read_page()
        for _, kind, part in MISTAKES:
            with self.subTest(part):
                name = kind.__name__
                rows = [row for row in page.split("\n") if part in row and f"`{name}`" in row]
                self.assertTrue(rows, f"no row has {part} and {name}")


if __name__ == "__main__":
    if "--print" in sys.argv:
        for number, (act, _, _) in enumerate(MISTAKES):
            try:
                act()
            except Exception as error:
                print(number, type(error).__name__, error)
    else:
        main()
