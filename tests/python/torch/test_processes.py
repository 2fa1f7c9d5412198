"""zeroshard.torch in processes: torchrun, and a rank that is killed."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import nets
import torch
from nets import main, make, same, sharded, train, weights

import zeroshard
import zeroshard.torch as zt

STEPS = 3


class Killed(nets.Block):
    """The second rank's process dies in backward."""

    def forward(self, x):
        x = super().forward(x)
        if os.environ["RANK"] == "1" and x.requires_grad:
            x.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
        return x


def rank_of(mode, path):
    """A process's part."""
    with zeroshard.World.launched(deadline_ms=60000) as world:
        module = make(nets.Net, block=Killed if mode == "killed" else nets.Block)
        with zt.shard(module, world) as model:
            train(model, world.rank, STEPS)
            values = weights(model)
        if world.rank == 0:
            torch.save(values, path)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Processes(unittest.TestCase):
    def test_torchrun(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "weights.pt")
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4",
                 "--master-port", str(free_port()), os.path.abspath(__file__), "rank", "trains",
                 path], capture_output=True, text=True, timeout=240, check=False)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            self.assertTrue(same(torch.load(path), sharded(4, STEPS)[0][0]))

    def test_a_killed_rank_is_named_on_all_others(self):
        port = free_port()
        ranks = []
        for rank in range(3):
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3",
                         "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": str(port)}
            ranks.append(subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "rank", "killed", "/dev/null"],
                env=os.environ | variables, stderr=subprocess.PIPE, text=True))
        said = [rank.communicate(timeout=120)[1] for rank in ranks]
        died = time.monotonic()
        self.assertEqual(ranks[1].returncode, -signal.SIGKILL)
        for rank in (0, 2):
            self.assertEqual(ranks[rank].returncode, 1)
            self.assertRegex(said[rank], r"zeroshard\.errors\.CommError: .*rank 1")
        self.assertLess(time.monotonic() - died, 20)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_of(*sys.argv[2:])
    else:
        main()
