"""A small GPT in PyTorch that learns the bytes of a text, sharded over ranks.

Usage: torch_gpt.py [TEXT [STEPS]], or torchrun --nproc-per-node 4 torch_gpt.py [TEXT [STEPS]]

The lines that end in a mark are those that plain PyTorch on one process has not, or has in another
form; there are ten."""

import os
import sys

import torch
import zeroshard  # ours 1
import zeroshard.torch  # ours 2
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, LENGTH, BATCH = 4, 4, 64, 64, 16
TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/concepts.md")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x):
        x = self.tokens(x) + self.places.weight[:x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def sample(model, prompt, count):
    text = torch.tensor([list(prompt)])
    with torch.no_grad():
        for _ in range(count):
            logits = model(text[:, -LENGTH:])[0, -1]
            text = torch.cat([text, torch.multinomial(logits.softmax(-1), 1)[None]], 1)
    return bytes(text[0].tolist()).decode(errors="replace")


def train(world, path, steps):
    with open(path, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    torch.manual_seed(1)
    model = GPT()
    model = zeroshard.torch.shard(model, world, stage=3, units=[Block])  # ours 3
    torch.manual_seed(100 + world.rank)  # ours 4: each rank has batches of its own
    for step in range(steps):
        first = torch.randint(0, len(text) - LENGTH - 1, (BATCH,))
        window = text[first[:, None] + torch.arange(LENGTH + 1)]
        logits = model(window[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        model.step(lr=3e-3, weight_decay=0.1, max_norm=1.0)  # ours 5: also clips and zeroes
        mean = world.mean(loss.item())  # ours 6
        if world.rank == 0 and (step % 50 == 0 or step == steps - 1):  # ours 7
            print(f"step {step:4}  loss {mean:.4f}", flush=True)
    torch.manual_seed(2)  # ours 8: all ranks draw the same bytes
    said = sample(model, b"The ", 120)
    if world.rank == 0:  # ours 9
        print(said)
    model.close()


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else TEXT
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    with zeroshard.World.launched() as world:  # ours 10
        train(world, path, steps)


if __name__ == "__main__":
    main()
