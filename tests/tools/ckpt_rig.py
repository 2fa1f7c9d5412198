"""Runs `zero ckpt`, has checkpoints made, and reads safetensors as the format is described by those
who made it. The line of a test that imports it begins with ZERO WRITE_CHECKPOINT."""

import json
import os
import re
import resource
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import expect, expect_equal  # noqa: E402

ZERO, WRITE = sys.argv[1:3]
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U16": 2, "U8": 1, "I8": 1}
COLUMNS = 80
PIECE = 262144  # elements of one sum at most


def run(*words, file_bytes=None):
    """file_bytes: no file may become larger, as on a disk that is full."""
    def limit():
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    return subprocess.run([ZERO, "ckpt", *words], capture_output=True, text=True, timeout=60,
                          check=False, preexec_fn=limit)


def done(*words):
    """What a run that must succeed prints."""
    ran = run(*words)
    expect_equal((ran.returncode, ran.stderr), (0, ""), " ".join(words))
    return ran.stdout


def refused(status, *words):
    """The line on stderr of a run that must not."""
    ran = run(*words)
    expect_equal(ran.returncode, status, f"{' '.join(words)}: {ran.stdout}{ran.stderr}")
    expect(ran.stderr.startswith("zero ckpt"), f"no reason on stderr: {ran.stderr!r}")
    return ran.stderr


def make(folder, name, world=2, step=10, seed=1, parts=(), scaler=None):
    """parts: how many the model is in, and the second one's own betas. scaler: --static, say, or
    --small, for states in remainders and codes."""
    run_folder = os.path.join(folder, "run")
    scalers = [scaler] if scaler else []
    subprocess.run([WRITE, *scalers, run_folder, name, str(world), str(step), str(seed),
                    *map(str, parts)], check=True)
    return os.path.join(run_folder, name)


def flip(path, at, bit=0):
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        at = file.tell()
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


# ---- safetensors, as the format is described by those who made it ----


def read_header(data):
    """{name: (type, shape, begin, end)} in the order of their bytes, and where the first begins."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], *entry["data_offsets"]) for name, entry in
            sorted(header.items(), key=lambda item: item[1]["data_offsets"])}, 8 + length


def read_tensors(path):
    """{name: (type, shape, bytes)}; every byte is some tensor's."""
    with open(path, "rb") as file:
        data = file.read()
    header, data_at = read_header(data)
    tensors = {}
    end = 0
    for name, (kind, shape, begin, stop) in header.items():
        expect_equal(begin, end, f"{path}: {name} begins")
        end = stop
        tensors[name] = (kind, shape, data[data_at + begin:data_at + stop])
    expect_equal(data_at + end, len(data), f"{path}: its end")
    return tensors


def tensor_at(path, at):
    """(name, bytes of an element, where it begins and ends) of the tensor that has a byte of a file
    that is whole; None where it is no tensor's."""
    if not path.endswith(".safetensors"):
        return None
    with open(path, "rb") as file:
        header, data_at = read_header(file.read())
    for name, (kind, _, begin, end) in header.items():
        if data_at + begin <= at < data_at + end:
            return name, BYTES[kind], data_at + begin, data_at + end
    return None


def expect_located(text, path, tensor, at):
    """A line of text names file and tensor, and the elements that it names have the byte and begin
    at the byte that it says. tensor: what tensor_at said before the damage."""
    name, width, begin, end = tensor
    start = f'{os.path.basename(path)}, tensor "{name}": elements '
    found = re.search(re.escape(start) + r"\[(\d+), (\d+)\) at byte (\d+) differ", text)
    expect(found, f"byte {at}: no {start!r} in: {text}")
    first, stop, offset = map(int, found.groups())
    expect_equal(offset, begin + first * width, f"byte {at}, where it begins: {text}")
    expect(offset <= at < offset + (stop - first) * width, f"byte {at} is not in: {text}")
    expect(stop - first <= PIECE and begin + stop * width <= end, f"byte {at}, too long: {text}")
