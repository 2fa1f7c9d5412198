"""Element types, bfloat16 in numpy, and random values that depend only on where they are used."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _zero

# By zero_dtype. numpy has no bfloat16: its bits are uint16. Behind those of arrays come remainders
# and codes, which shards have.
DTYPES: dict[str, int] = {"default": 0, "f32": 1, "bf16": 2, "f16": 3}
_NUMPY: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32), 2: np.dtype(np.uint16), 3: np.dtype(np.float16),
    5: np.dtype(np.uint16), 6: np.dtype(np.uint8), 7: np.dtype(np.int8), 8: np.dtype(np.uint8),
    9: np.dtype(np.uint8)}


class Gradients(tuple[Any, ...]):
    """A unit's gradients, which are added to: `unit.grads[0] += g`. An assignment of another array
    would reach nobody, and is refused."""

    __slots__ = ()

    def __setitem__(self, index: int, value: Any) -> None:
        if value is not self[index]:
            raise TypeError("a gradient is assigned, which the library would not see; add to the "
                            "array: unit.grads[i] += g")


_zero.set_gradients(Gradients)


def dtype_number(name: str) -> int:
    """The library's number of "f32", "bf16" or "f16"."""
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is unknown; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def numpy_dtype(number: int) -> np.dtype[Any]:
    """The type of arrays that show a type of the library."""
    return _NUMPY[number]


def number_of_array(array: NDArray, dtype: int) -> int:
    """The library's number of an array's type, for a tensor of `dtype`."""
    if array.dtype == np.float32:
        return 1
    if array.dtype == np.float16:
        return 3
    if array.dtype == np.uint16 and dtype == 2:
        return 2
    raise ValueError(f"an array of {array.dtype} is given; give float32, float16 or, as the bits "
                     "of a bf16 tensor, uint16 (array.astype(numpy.float32))")


def to_f32(bits: NDArray) -> NDArray[np.float32]:
    """The values of bfloat16 bits (uint16, any shape), exactly. A new array."""
    wide = np.asarray(bits, np.uint16).astype(np.uint32) << 16
    return wide.view(np.float32)


def from_f32(values: NDArray) -> NDArray[np.uint16]:
    """Values as bfloat16 bits (uint16, any shape), rounded to nearest even. A new array."""
    values = np.ascontiguousarray(values, np.float32)
    wide = values.view(np.uint32)
    rounded = ((wide + np.uint32(0x7FFF) + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    quiet = (wide >> 16).astype(np.uint16) | np.uint16(0x40)
    return np.where(np.isnan(values), quiet, rounded).reshape(np.shape(values))


def random_normal(values: NDArray[np.float32], seed: int, stream: int, first: int = 0,
                  mean: float = 0.0, stddev: float = 1.0) -> NDArray[np.float32]:
    """Fill `values` (float32, contiguous) with normal values of elements [first, first + size) of
    `stream` under `seed`, the same ones in whatever range they are asked for. Returns `values`."""
    _zero.random_fill(values, True, seed, stream, first, mean, stddev)
    return values


def random_uniform(values: NDArray[np.float32], seed: int, stream: int, first: int = 0,
                   low: float = 0.0, high: float = 1.0) -> NDArray[np.float32]:
    """As random_normal, uniform in [low, high)."""
    _zero.random_fill(values, False, seed, stream, first, low, high)
    return values
