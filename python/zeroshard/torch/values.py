"""Whole values of a sharded module: to dictionaries and files, and from them."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..engine import Engine
from ..errors import IoError
from ..world import World
from . import files
from .files import Stored
from .unit import Unit
from .units import DTYPES, Place

Names = Callable[[str], str | None] | Mapping[str, str] | None
_USER = "user"
_BUFFER = "buffer:"
USER_MAX = 1 << 20  # bytes that a checkpoint has room for beside its tensors


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """An array over a tensor's memory where it can be, bfloat16 as its bits."""
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def tensor_of(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over an array's memory, from bits where it is bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(dtype) if dtype == torch.bfloat16 else tensor


class Values:
    """The names of a module's parameters and persistent buffers, and their values."""

    def __init__(self, module: nn.Module, engine: Engine, world: World, units: list[Unit]) -> None:
        self.engine, self.world = engine, world
        places = {id(place.parameter): place for unit in units for place in unit.places}
        self.places: dict[str, Place] = {  # tied ones under each of their names
            name: places[id(parameter)]
            for name, parameter in module.named_parameters(remove_duplicate=False)}
        self.shapes = {place.name: place.parameter.shape for place in places.values()}
        self.dtypes = {place.name: place.parameter.dtype for place in places.values()}
        self._module = module

    def buffers(self) -> dict[str, torch.Tensor]:
        """Persistent buffers by name, as they are on this rank."""
        found = {}
        for path, module in self._module.named_modules():
            for leaf, buffer in module._buffers.items():
                if buffer is not None and leaf not in module._non_persistent_buffers_set:
                    found[f"{path}.{leaf}" if path else leaf] = buffer
        return found

    # Out

    def whole(self, name: str, wanted: bool, exact: bool = False) -> torch.Tensor | None:
        """A parameter, or None where this rank wants none. exact: from its fp32 master. Collective.
        """
        dtype = torch.float32 if exact else self.dtypes[name]
        array = self.engine.export(name, "master" if exact else "param", DTYPES[dtype], wanted)
        return None if array is None else tensor_of(array, dtype)

    def state_dict(self, wanted: bool, exact: bool) -> dict[str, torch.Tensor]:
        """All values under all names, as torch's own. Collective."""
        parameters = {name: self.whole(name, wanted, exact) for name in self.shapes}
        if not wanted:
            return {}
        found = {name: parameters[place.name] for name, place in self.places.items()}
        return {**{name: value for name, value in found.items() if value is not None},
                **{name: buffer.detach().clone() for name, buffer in self.buffers().items()}}

    def save(self, path: str | os.PathLike[str], exact: bool) -> None:
        """Write a safetensors file on rank 0, one parameter in memory at a time. Collective."""
        writer: files.Writer | None = None
        failure: Exception | None = None
        first = self.world.rank == 0
        try:
            writer = self._writer(Path(path), exact) if first else None
        except (OSError, ValueError) as error:
            failure = error
        for name in self.shapes:
            # A rank that cannot write takes part all the same: others wait for it.
            value = self.whole(name, writer is not None and failure is None, exact)
            if writer is not None and value is not None:
                failure = failure or _tried(lambda: writer.add(value))
        if writer is not None:
            failure = failure or _tried(lambda: self._finish(writer))
            if failure is not None:
                writer.drop()
        self._agree(failure, Path(path))

    def _finish(self, writer: files.Writer) -> None:
        for buffer in self.buffers().values():
            writer.add(buffer)
        writer.commit()

    def _agree(self, failure: Exception | None, path: Path) -> None:
        """Rank 0's failure is one of all ranks."""
        text = str(failure).encode()[:255] if failure else b""
        said = self.world.gather(text.ljust(255, b"\0"))[0].rstrip(b"\0")
        if failure is not None:
            raise failure
        if said:
            raise IoError(f"rank 0 could not write {path}: {said.decode(errors='replace')}")

    def _writer(self, path: Path, exact: bool) -> files.Writer:
        if path.suffix != ".safetensors":
            path.mkdir(parents=True, exist_ok=True)
            path = path / "model.safetensors"
        rows = [(name, shape, torch.float32 if exact else self.dtypes[name])
                for name, shape in self.shapes.items()]
        rows += [(name, buffer.shape, buffer.dtype) for name, buffer in self.buffers().items()]
        return files.Writer(path, files.header_of(rows, {"format": "pt"}))

    # In

    def set_all(self, values: Mapping[str, Stored | torch.Tensor], names: Names, partial: bool,
                source: str) -> list[str]:
        """Set this rank's shards, and buffers. Nothing is set where anything does not fit.

        - Returns the names of parameters that were not there, which partial allows.
        """
        given = dict(_renamed(values, names))
        buffers = self.buffers()
        here = {self.places[name].name for name in given if name in self.places}
        missing = [name for name in self.shapes if name not in here]
        unknown = [name for name in given if name not in self.places and name not in buffers]
        shapes = {name: tuple(value.shape) for name, value in given.items()}
        other = [f"{name} {shapes[name]}, the model's {tuple(wanted.shape)}"
                 for name, wanted in {**buffers, **self._parameters()}.items()
                 if name in given and shapes[name] != tuple(wanted.shape)]
        if other or not partial and (missing or unknown):
            raise ValueError(_misfit(source, missing, unknown, other))
        for name, value in given.items():
            if name in self.places or name in buffers:
                tensor = value.tensor() if isinstance(value, Stored) else value
                self._set(name, tensor, buffers)
        return missing

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {name: place.parameter for name, place in self.places.items()}

    def _set(self, name: str, tensor: torch.Tensor, buffers: Mapping[str, torch.Tensor]) -> None:
        if name not in self.places:
            with torch.no_grad():
                buffers[name].copy_(tensor)
            return
        own = self.places[name].name
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name} is given as {tensor.dtype}; give float32, bfloat16 or "
                             "float16")
        array, bf16 = array_of(tensor.cpu()), tensor.dtype == torch.bfloat16
        self.engine.set_tensor(own, array, "param", bf16)
        if self.dtypes[own] != torch.float32:
            self.engine.set_tensor(own, array, "master", bf16)

    # Beside a checkpoint's tensors

    def user_bytes(self, user: bytes) -> bytes:
        """The caller's bytes and the persistent buffers, as a checkpoint keeps them."""
        kept = {_BUFFER + name: buffer for name, buffer in self.buffers().items()}
        if user:
            kept[_USER] = torch.frombuffer(bytearray(user), dtype=torch.uint8)
        made = files.packed(kept) if kept else b""
        if len(made) > USER_MAX:
            raise ValueError(f"persistent buffers and user have {len(made)} bytes, and a "
                             f"checkpoint keeps {USER_MAX} of them; save them in a file of your "
                             "own and give save() buffers=False")
        return made

    def take_user_bytes(self, made: bytes, partial: bool) -> bytes:
        """Set the buffers from such bytes; partial: those that fit. Returns the caller's."""
        if not made:
            return b""
        kept = files.parse(bytearray(made), "the checkpoint's buffers")
        buffers = self.buffers()
        for name, stored in kept.items():
            buffer = buffers.get(name.removeprefix(_BUFFER))
            fits = buffer is not None and buffer.shape == stored.shape
            if name == _USER or partial and not fits:
                continue
            if buffer is None or not fits:
                raise ValueError(f"the checkpoint has {name} {tuple(stored.shape)}, which the "
                                 "model has not; parameters are loaded, partial=True leaves it")
            with torch.no_grad():
                buffer.copy_(stored.tensor())
        return bytes(files.bytes_of(kept[_USER].tensor())) if _USER in kept else b""


def _tried(call: Callable[[], None]) -> Exception | None:
    try:
        call()
    except (OSError, ValueError) as error:
        return error
    return None


def _renamed(values: Mapping[str, Stored | torch.Tensor],
             names: Names) -> Iterator[tuple[str, Stored | torch.Tensor]]:
    for name, value in values.items():
        to = name if names is None else names(name) if callable(names) else names.get(name, name)
        if to is not None:
            yield to, value


def _misfit(source: str, missing: list[str], unknown: list[str], other: list[str]) -> str:
    def some(kind: str, names: list[str]) -> list[str]:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        return [f"{kind}: {', '.join(names[:5])}{more}"] if names else []

    parts = (some("missing", missing) + some("not the model's", unknown)
             + some("of another shape", other))
    return (f"{source} does not fit the model, and nothing is loaded; {'; '.join(parts)}. names= "
            "says which name of the file is which of the model, partial=True takes what fits")
