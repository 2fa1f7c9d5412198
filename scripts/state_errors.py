#!/usr/bin/env python3
"""Errors of the formats of moments over those of a real run.

Usage: state_errors.py TRAIN DATA [--write] [-- WORDS]

The GPT example (TRAIN, on the text DATA) trains with fp32 moments and saves after 10 and 1000
steps, once with beta2 0.95 and once with 0.999. Each moment is then coded as each format codes it,
to nearest, and decoded. Of a first moment: the error in parts of its block's greatest magnitude,
mean and largest, and how many that were not 0 became 0. Of a second moment: the same of its root,
which is what an update divides by. Last, the error of an update's direction m / (root v + eps) with
both moments in the format, in parts of its root mean square. The rows of the embedding that no text
has seen are in it: their moments are 0, and must stay so.

With --write the table goes into docs/small-states.md. Needs numpy. WORDS go to the example."""

import glob
import json
import subprocess
import sys
import tempfile

import numpy as np

import state_quality

BLOCK = 32
EPS = 1e-8


def read_tensors(path):
    """Arrays of a safetensors file of F32 by name."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = file.read()
    return {name: np.frombuffer(data[slice(*at["data_offsets"])], np.float32)
            for name, at in header.items() if name != "__metadata__"}


def blocks_of(values):
    padded = np.zeros(-(-len(values) // BLOCK) * BLOCK, np.float32)
    padded[:len(values)] = values
    return padded.reshape(-1, BLOCK)


def up_to_bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0xFFFF) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def to_bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def scales_of(blocks):
    scale = up_to_bf16(np.abs(blocks).max(axis=1, keepdims=True))
    return scale, np.where(scale > 0, scale, 1)


def linear(blocks):
    scale, divisor = scales_of(blocks)
    return np.floor(np.abs(blocks) / divisor * 127 + 0.5) / 127 * scale * np.sign(blocks)


def companded(blocks):
    """companded8: the upper bits of an fp32 number from 2 on, so four segments of 32 steps."""
    scale, divisor = scales_of(blocks)
    level = (2 + 29.5 * np.abs(blocks) / divisor).astype(np.float32).view(np.uint32)
    code = np.minimum(level + (1 << 17), np.float32(31.5).view(np.uint32)) >> 18 << 18
    return (code.view(np.float32) - 2) / 29.5 * scale * np.sign(blocks)


def root(blocks, most=127):
    """With 255 and blocks of second moments u8root."""
    scale, divisor = scales_of(blocks)
    code = np.floor(np.sqrt(np.abs(blocks) / divisor) * most + 0.5)
    if most == 255:
        code = np.maximum(code, blocks > 0)
    return (code / most) ** 2 * scale * np.sign(blocks)


def flash(blocks):
    """y = 2x / (1 + |x|) in 8 bits, as FlashOptim (arXiv 2602.23349) codes first moments."""
    scale, divisor = scales_of(blocks)
    x = blocks / divisor
    y = np.floor(127 * 2 * np.abs(x) / (1 + np.abs(x)) + 0.5) / 127
    return y / (2 - y) * scale * np.sign(blocks)


FORMATS = (
    ("bf16", to_bf16, to_bf16),
    ("companded8, u8root", companded, lambda blocks: root(blocks, 255)),
    ("FlashOptim's, u8root", flash, lambda blocks: root(blocks, 255)),
    ("root, u8root", root, lambda blocks: root(blocks, 255)),
    ("linear, linear", linear, linear),
)


def errors(values, coded):
    """Mean and largest error in parts of the block's greatest, and the share that became 0."""
    most = np.abs(values).max(axis=1, keepdims=True)
    off = np.abs(coded - values) / np.where(most > 0, most, 1)
    lost = np.count_nonzero((coded == 0) & (values != 0)) / max(1, np.count_nonzero(values))
    assert np.all(coded[values == 0] == 0)
    return off.mean(), off.max(), lost


def rows_of(folder, step, what):
    first = read_tensors(glob.glob(f"{folder}/*{step}/moment1.safetensors")[0])
    second = read_tensors(glob.glob(f"{folder}/*{step}/moment2.safetensors")[0])
    m = np.concatenate([blocks_of(values) for values in first.values()])
    v = np.concatenate([blocks_of(values) for values in second.values()])
    direction = m / (np.sqrt(v) + EPS)
    size = np.sqrt(np.mean(direction[v > 0] ** 2))
    for name, code_m, code_v in FORMATS:
        of_m = code_m(m)
        of_v = code_v(v)
        m_mean, m_most, m_lost = errors(m, of_m)
        v_mean, v_most, v_lost = errors(np.sqrt(v), np.sqrt(of_v))
        off = np.abs(of_m / (np.sqrt(of_v) + EPS) - direction)[v > 0] / size
        yield (f"| {what}, step {step} | {name} | {m_mean:.2%} | {m_most:.2%} | {m_lost:.2%} | "
               f"{v_mean:.2%} | {v_most:.2%} | {v_lost:.2%} | {off.mean():.2%} |")


def main():
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    program, data = words[:2]
    lines = ["| moments of | format | m: mean | largest | became 0 | root v: mean | largest | "
             "became 0 | direction: mean |", "|" + "---|" * 9]
    for beta2 in ("0.95", "0.999"):
        for step in (10, 1000):
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [program, "--data", data, "--dtype", "bf16", "--steps", str(step), "--beta2",
                     beta2, "--warmup", "5", "--val-every", "0", "--log-every", str(step), "--save",
                     folder, *words[cut + 1:]], capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    sys.exit(done.stderr.strip())
                lines += rows_of(folder, step, f"beta2 {beta2}")
    print("\n".join(lines))
    if "--write" in words[:cut]:
        state_quality.put_into_page(os.path.join(state_quality.DOCS, "small-states.md"), lines,
                                    "errors")


if __name__ == "__main__":
    main()
