"""A GPT-2 of the package transformers, made from a configuration, that learns the bytes of a text.

Usage: transformers_gpt2.py [TEXT [STEPS [FOLDER]]], under torchrun for several ranks. In FOLDER it
leaves config.json and model.safetensors, which GPT2LMHeadModel.from_pretrained(FOLDER) takes.

The lines that end in a mark are those that plain PyTorch on one process has not, or has in another
form; there are ten."""

import os
import sys

import torch
import zeroshard  # ours 1
import zeroshard.torch  # ours 2
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH, BATCH = 64, 8
TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/concepts.md")


def train(world, path, steps, folder):
    with open(path, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=4, n_head=4,
                        bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    model = zeroshard.torch.shard(model, world, stage=3,  # ours 3
                                  no_decay=lambda name, p: p.dim() < 2)  # ours 4
    torch.manual_seed(100 + world.rank)  # ours 5: each rank has batches of its own
    for step in range(steps):
        first = torch.randint(0, len(text) - LENGTH, (BATCH,))
        window = text[first[:, None] + torch.arange(LENGTH)]
        loss = model(input_ids=window, labels=window).loss
        loss.backward()
        model.step(lr=2e-3, weight_decay=0.1, max_norm=1.0)  # ours 6: also clips and zeroes
        mean = world.mean(loss.item())  # ours 7
        if world.rank == 0 and (step % 20 == 0 or step == steps - 1):  # ours 8
            print(f"step {step:4}  loss {mean:.4f}", flush=True)
    if folder:
        config.save_pretrained(folder)
        model.save_weights(folder)  # ours 9
    model.close()


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else TEXT
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    with zeroshard.World.launched() as world:  # ours 10
        train(world, path, steps, sys.argv[3] if len(sys.argv) > 3 else None)


if __name__ == "__main__":
    main()
