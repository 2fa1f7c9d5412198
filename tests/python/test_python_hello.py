"""examples/python/numpy_hello.py beside examples/01_hello: the same losses, bit for bit, as threads
and as processes with a launcher's variables. ZERO_HELLO is the program in C."""

import os
import socket
import subprocess
import sys
import unittest

from cases import main

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(HERE, "../../examples/python/numpy_hello.py")
HELLO = os.environ.get("ZERO_HELLO", "")


def output_of(command, **variables):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, **variables})
    return done.returncode, done.stdout, done.stderr


def launch(stage):
    """Two processes with the variables that torchrun sets; rank 0's output."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
              "MASTER_PORT": str(port)}
    ranks = [subprocess.Popen([sys.executable, EXAMPLE, str(stage)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True,
                              env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
             for rank in range(2)]
    said = [process.communicate(timeout=60) for process in ranks]
    return [process.returncode for process in ranks], said


@unittest.skipUnless(HELLO, "ZERO_HELLO does not name the program of examples/01_hello")
class Hello(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wanted = output_of([HELLO, "3"])[1]

    def test_the_program_in_c_has_losses(self):
        self.assertEqual(self.wanted.count("loss"), 500)

    def test_threads(self):
        for stage in range(4):
            with self.subTest(stage):
                got = output_of([sys.executable, EXAMPLE, str(stage)])
                self.assertEqual(got, (0, self.wanted, ""))

    def test_processes(self):
        codes, said = launch(3)
        self.assertEqual((codes, said), ([0, 0], [(self.wanted, ""), ("", "")]))

    def test_a_stage_that_is_none(self):
        code, output, said = output_of([sys.executable, EXAMPLE, "7"])
        self.assertEqual((code, output), (1, ""))
        self.assertIn('stage "7"', said)


if __name__ == "__main__":
    main()
