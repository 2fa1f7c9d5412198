"""Ctrl-C while a call of zeroshard waits for a rank that does not come."""

import os
import signal
import socket
import subprocess
import sys
import time
import unittest

from cases import main

SECONDS_MAX = 20

LAUNCHED = """
from zeroshard import World
print("waiting", flush=True)
World.launched()
"""

# Rank 1 computes and never calls; rank 0 waits for it.
THREADS = """
import time
from zeroshard import World
def rank(world):
    if world.rank == 0:
        print("waiting", flush=True)
        world.barrier()
    while True:
        time.sleep(0.01)
World.run(2, rank)
"""

# The same as processes, in the hooks of an engine. Rank 1 is told to stay away.
PROCESSES = """
import os, sys, time
from zeroshard import Engine, FORWARD, Model, Tensor, World
model = Model()
model.add_unit("u", [Tensor("w", (64,))])
with World.launched() as world, Engine(world, model) as engine:
    print("waiting", flush=True)
    if world.rank == 1:
        time.sleep(3600)
    with engine.micro_step(), engine.unit(0, FORWARD) as unit:
        pass
    world.barrier()
"""

# A handler of the program's own decides; the wait goes on.
HANDLED = """
import signal, threading, time
from zeroshard import World
heard = threading.Event()
signal.signal(signal.SIGINT, lambda *_: heard.set())
def rank(world):
    if world.rank == 1:
        time.sleep(2)
    else:
        print("waiting", flush=True)
    world.barrier()
World.run(2, rank)
print("heard" if heard.is_set() else "lost", flush=True)
"""

# The wait is over; what is called in the handler of the exception waits undisturbed.
AFTER = """
import time
from zeroshard import World
world = World.self_()
try:
    print("waiting", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    World.run(2, lambda world: (time.sleep(world.rank), world.barrier()))
    print("went on", flush=True)
"""


def free_port():
    """A port whose neighbour is free too, mostly."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


class Interrupt(unittest.TestCase):
    def start(self, text, **variables):
        process = subprocess.Popen([sys.executable, "-c", text], env={**os.environ, **variables},
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def interrupt(self, process):
        """Its output after a SIGINT, and how long it took to end."""
        self.assertEqual(process.stdout.readline(), "waiting\n")
        time.sleep(0.5)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, said = process.communicate(timeout=SECONDS_MAX)
        return output, said, time.monotonic() - begun

    def launcher(self, rank, port):
        return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}

    def test_a_launched_rank_whose_peer_never_comes(self):
        process = self.start(LAUNCHED, **self.launcher(0, free_port()))
        _, said, seconds = self.interrupt(process)
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertLess(seconds, SECONDS_MAX)

    def test_threads_of_a_run(self):
        process = self.start(THREADS)
        _, said, _ = self.interrupt(process)
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_hooks_of_processes(self):
        port = free_port()
        ranks = [self.start(PROCESSES, **self.launcher(rank, port)) for rank in (0, 1)]
        self.assertEqual(ranks[1].stdout.readline(), "waiting\n")
        _, said, _ = self.interrupt(ranks[0])
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual(ranks[0].returncode, -signal.SIGINT)

    def test_a_handler_of_the_programs_own_is_left_alone(self):
        process = self.start(HANDLED)
        output, said, _ = self.interrupt(process)
        self.assertEqual((output, said, process.returncode), ("heard\n", "", 0))

    def test_waits_after_the_exception_are_undisturbed(self):
        process = self.start(AFTER)
        output, said, _ = self.interrupt(process)
        self.assertEqual((output, said, process.returncode), ("went on\n", "", 0))


if __name__ == "__main__":
    main()
