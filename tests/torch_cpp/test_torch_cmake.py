#!/usr/bin/env python3
"""The lines of docs/torch-cpp.md for CMake: a project that finds libtorch and libzero, installed.

Usage: test_torch_cmake.py SOURCE BUILD PREFIX LIBDIR. One line per check; the last one has the
sums."""

import os
import re
import sys
import tempfile

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../abi")

from checks import Fail, Tally  # pylint: disable=wrong-import-position,import-error
from test_cmake import Scratch  # pylint: disable=wrong-import-position,import-error

TRAINER = """#include <cstdio>
#include <zero/torch.hpp>
int main()
{
    zero::World world = zero::World::self();
    torch::nn::Linear net(4, 1);
    zero::torch::Sharded model(net, world);
    model.micro(zero::Micro::last, [&] {
        model.backward(zero::torch::call(net, torch::ones({2, 4})).sum());
    });
    model.step(zero::StepParams());
    std::printf("norm %.1f\\n", model.step_wait().norm);
}
"""


def page_block(source):
    with open(f"{source}/docs/torch-cpp.md", encoding="utf-8") as file:
        return re.search(r"^```cmake\n(.*?)^```$", file.read(), re.DOTALL | re.MULTILINE)[1]


def trains(scratch, source):
    folder = scratch.project(page_block(source), trainer_cpp=TRAINER)
    scratch.build(folder)
    said = scratch.run([f"{folder}/out/trainer"])
    if said != "norm 4.5\n":  # of (2, 2, 2, 2) and 2
        raise Fail(said)


def main():
    source, build, prefix, libdir = sys.argv[1:]
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(folder, source, build, prefix, libdir)
        tally.run("find_package of Torch and zero, as on the page", trains, scratch, source)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
