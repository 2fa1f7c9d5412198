"""A rank of scripts/bench_torch_fsdp2.py: one side's trainer, which does as that program says.
torchrun starts it with the settings as JSON; the model, the batches and the optimizer's numbers are
the same on both sides.

What is sent back is in seconds and bytes."""

import json
import os
import sys
import time
from multiprocessing.connection import Client

import torch
from torch import nn
from torch.nn import functional

VOCAB, POSITIONS = 256, 256  # bytes
ADAMW = {"lr": 6e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, positions, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, positions, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(batch, positions, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, width), nn.Embedding(POSITIONS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Embedding, nn.Linear)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, inputs):
        x = self.tokens(inputs) + self.places.weight[:inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_model(settings):
    """Parameters in fp32. Where bf16 is computed in, it has their values too: so both sides begin
    with the same masters."""
    torch.manual_seed(1)
    model = Gpt(settings["layers"], settings["width"], settings["heads"])
    return model.bfloat16().float() if settings["dtype"] == "bf16" else model


class Fsdp2:
    """fully_shard of each block and of the model, over gloo."""

    def __init__(self):
        import torch.distributed.fsdp

        self.dist = torch.distributed

    def make(self, settings):
        fsdp = self.dist.fsdp
        self.dist.init_process_group("gloo")
        self.rank = self.dist.get_rank()
        options = {}
        if settings["dtype"] == "bf16":
            options["mp_policy"] = fsdp.MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, settings["reduce"]))
        self.model = make_model(settings)
        for block in self.model.blocks:
            fsdp.fully_shard(block, reshard_after_forward=settings["stage"] == 3, **options)
        fsdp.fully_shard(self.model, **options)
        if settings["prefetch"]:
            for block, following in zip(self.model.blocks, self.model.blocks[1:]):
                block.set_modules_to_forward_prefetch([following])
        how = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW,
                                           **how[settings["adamw"]])

    def barrier(self):
        self.dist.barrier()

    def step(self, inputs, targets):
        loss = loss_of(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def settle(self):
        """All that a step does is done when it returns."""

    def close(self):
        self.dist.destroy_process_group()


class Zero:
    """zeroshard.torch at the stage that does the same."""

    def __init__(self):
        import zeroshard.torch

        self.zeroshard = zeroshard

    def make(self, settings):
        self.world = self.zeroshard.World.launched()
        self.rank = self.world.rank
        model = make_model(settings)
        if settings["dtype"] == "bf16":
            model = model.bfloat16()
        self.model = self.zeroshard.torch.shard(model, self.world, stage=settings["stage"],
                                                threads=1, **settings["options"])
        beta1, beta2 = ADAMW["betas"]
        self.numbers = {"lr": ADAMW["lr"], "beta1": beta1, "beta2": beta2, "eps": ADAMW["eps"],
                        "weight_decay": ADAMW["weight_decay"]}

    def barrier(self):
        self.world.barrier()

    def step(self, inputs, targets):
        loss = loss_of(self.model(inputs), targets)
        loss.backward()
        self.result = self.model.step(**self.numbers)
        return loss

    def settle(self):
        """A step returns before its update is over; its result is known afterwards."""
        if self.result.skipped:
            raise SystemExit(f"bench_torch_fsdp2.py: step {self.result.step} was skipped")

    def close(self):
        self.model.close()
        self.world.close()


def loss_of(logits, targets):
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def clocks():
    """The world's, and that of all threads of this process on CPUs."""
    return time.perf_counter(), time.process_time()


class Text:
    """Samples of a text's bytes, chosen by the step and the rank."""

    def __init__(self, settings):
        with open(settings["text"], "rb") as file:
            self.bytes = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        self.batch, self.length = settings["batch"], settings["length"]

    def sample(self, step, rank):
        chosen = torch.Generator().manual_seed(step * 1024 + rank)
        begins = torch.randint(len(self.bytes) - self.length, (self.batch, 1), generator=chosen)
        taken = self.bytes[begins + torch.arange(self.length + 1)].long()
        return taken[:, :-1].contiguous(), taken[:, 1:].contiguous()


class Trainer:
    def __init__(self, settings):
        self.side = {"fsdp2": Fsdp2, "zero": Zero}[settings["side"]]()
        self.settings = settings
        self.steps_done = 0

    def make(self):
        self.side.make(self.settings)
        self.text = Text(self.settings)

    def steps(self, count):
        """Loss, seconds and CPU seconds of each. The first begins when all ranks are there; the
        last ends when nothing of it is left to do."""
        batches = [self.text.sample(self.steps_done + i, self.side.rank) for i in range(count)]
        taken = []
        self.side.barrier()
        begun = clocks()
        for number, batch in enumerate(batches):
            loss = self.side.step(*batch).item()
            if number == count - 1:
                self.side.settle()
            ended = clocks()
            taken.append((loss, *(end - begin for begin, end in zip(begun, ended))))
            begun = ended
        self.steps_done += count
        return taken

    def forget_peak(self):
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")

    def peak(self):
        """The most that was resident since the start or since it was forgotten."""
        with open("/proc/self/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024


def main():
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    with Client(settings["address"], "AF_UNIX") as program:
        trainer = Trainer(settings)
        program.send(os.getpid())
        while (order := program.recv()) is not None:
            name, *words = order
            program.send(getattr(trainer, name)(*words))
        trainer.side.close()


if __name__ == "__main__":
    main()
