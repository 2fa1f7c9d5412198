"""Tensors in safetensors files and in bytes of that format."""

import json
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

# By the format's name; those of parameters have the engine's name too.
_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_HEADER_MAX = 100 << 20  # as the format's own library has it


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """The format's name of a type."""
    if dtype not in _NAMES:
        raise ValueError(f"{name} is {dtype}, which safetensors files have no name for")
    return _NAMES[dtype]


def header_of(tensors: Iterable[tuple[str, torch.Size, torch.dtype]],
              note: Mapping[str, str]) -> bytes:
    """What is ahead of the tensors' bytes, which follow in this order without gaps."""
    rows: dict[str, Any] = {"__metadata__": dict(note)}
    end = 0
    for name, shape, dtype in tensors:
        begin, end = end, end + shape.numel() * dtype.itemsize
        rows[name] = {"dtype": dtype_name(name, dtype), "shape": list(shape),
                      "data_offsets": [begin, end]}
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's elements in their order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


@dataclass(frozen=True)
class Stored:
    """A tensor in a file or in bytes."""

    source: str
    shape: torch.Size
    dtype: torch.dtype
    memory: Any
    begin: int

    def tensor(self) -> torch.Tensor:
        """It, over the file's memory."""
        count = self.shape.numel()
        if count == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(self.memory, dtype=self.dtype, count=count,
                                offset=self.begin).view(self.shape)


def _entry(name: str, row: Any, source: str, memory: Any, first: int) -> Stored:
    begin, end = row["data_offsets"]
    if row["dtype"] not in _DTYPES:
        raise ValueError(f"{source}: {name} is {row['dtype']}, which is none of "
                         f"{', '.join(_DTYPES)}")
    stored = Stored(source, torch.Size(row["shape"]), _DTYPES[row["dtype"]], memory, first + begin)
    wanted = stored.shape.numel() * stored.dtype.itemsize
    if not 0 <= begin <= end <= len(memory) - first or end - begin != wanted:
        raise ValueError(f"{source}: {name} has bytes {begin} to {end} of the file's "
                         f"{len(memory) - first}, and needs {wanted}; the file is damaged")
    return stored


def parse(memory: Any, source: str) -> dict[str, Stored]:
    """The tensors of bytes in the format, by name."""
    size = int.from_bytes(memory[:8], "little") if len(memory) >= 8 else len(memory)
    if size > min(len(memory) - 8, _HEADER_MAX):
        raise ValueError(f"{source} is no safetensors file: its header would have {size} bytes, "
                         f"and it has {len(memory)} in all")
    try:
        rows = json.loads(bytes(memory[8:8 + size]))
        return {name: _entry(name, row, source, memory, 8 + size)
                for name, row in rows.items() if name != "__metadata__"}
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{source} is no safetensors file: its header is not understood "
                         f"({error!r})") from error


def _parse_file(path: Path) -> dict[str, Stored]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ValueError(f"{path} is empty")
        # A private copy of pages that are written to, which none is: torch wants writable memory.
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return parse(memory, str(path))


def read(path: str | os.PathLike[str]) -> dict[str, Stored]:
    """The tensors of a safetensors file, of the files of an index, or of a folder with either."""
    at = Path(path)
    if at.is_dir():
        for name in ("model.safetensors", "model.safetensors.index.json"):
            if (at / name).exists():
                return read(at / name)
        single = sorted(at.glob("*.safetensors"))
        if len(single) != 1:
            raise ValueError(f"{at} has no model.safetensors, no index of one, and "
                             f"{len(single)} other safetensors files; name the file")
        return _parse_file(single[0])
    if at.suffix != ".json":
        return _parse_file(at)
    names = json.loads(at.read_text(encoding="utf-8")).get("weight_map", {})
    found: dict[str, Stored] = {}
    for name in sorted(set(names.values())):
        found |= _parse_file(at.parent / name)
    missing = sorted(set(names) - set(found))
    if missing:
        raise ValueError(f"{at} names {missing[0]}, which {names[missing[0]]} does not have")
    return found


def packed(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as bytes of the format."""
    rows = [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
    return b"".join([header_of(rows, {}), *(bytes_of(tensor) for tensor in tensors.values())])


class Writer:
    """A file that has its name once all of it is on the disk."""

    def __init__(self, path: Path, header: bytes) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self.file: BinaryIO = open(self.part, "wb")
        self.file.write(header)

    def add(self, tensor: torch.Tensor) -> None:
        """The next tensor's bytes."""
        self.file.write(bytes_of(tensor))

    def commit(self) -> None:
        """The file is there."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.part, self.path)

    def drop(self) -> None:
        """It is not, and the one before is as it was."""
        self.file.close()
        self.part.unlink(missing_ok=True)
