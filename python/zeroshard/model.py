"""The description of a model, and plans of what a rank will hold."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _zero
from .arrays import dtype_number, number_of_array
from .options import Options, options_of


@dataclass
class Tensor:
    """One parameter of the model.

    - name: unique in the model, 1 to 127 bytes.
    - shape: extents, outermost first; at most 8.
    - dtype: "f32", "bf16" or "f16".
    - no_decay: weight decay does not apply. frozen: never trained.
    - group: hyper-parameter group, below 64.
    - initial: the whole tensor, or None for zeros: float32, float16, or uint16 as bits of bf16. The
      model keeps it; Engine reads it.
    - global_shape, box_first, replica: with model parallelism, as in zero/model.h.
    """

    name: str
    shape: Sequence[int] = ()
    dtype: str = "f32"
    no_decay: bool = False
    frozen: bool = False
    group: int = 0
    initial: NDArray | None = None
    global_shape: Sequence[int] = ()
    box_first: Sequence[int] = ()
    replica: int = 0

    def _described(self, layers: int, kept: list[NDArray]) -> tuple:
        """What the extension takes; the array that it points to goes to `kept`."""
        dtype = dtype_number(self.dtype)
        if any(extent < 0 for extent in self.shape):
            raise ValueError(f"{self.name} has the shape {tuple(self.shape)}; extents are >= 0")
        address, given = 0, 0
        if self.initial is not None:
            wanted = (layers, *self.shape) if layers else tuple(self.shape)
            array = np.ascontiguousarray(self.initial).reshape(np.shape(self.initial))
            if array.shape != wanted:
                raise ValueError(f"initial of {self.name} has the shape {array.shape}; the tensor "
                                 f"needs {wanted}")
            given = number_of_array(array, dtype)
            address = array.ctypes.data
            kept.append(array)
        flags = (1 if self.no_decay else 0) | (2 if self.frozen else 0)
        return (self.name, list(self.shape), dtype, flags, self.group, address, given,
                list(self.global_shape), list(self.box_first), self.replica)


class Model:
    """Units in the order forward first uses them, and their tensors. Every rank describes the same
    model in the same order. A unit is what is gathered at once, usually a layer.

    - Ownership: the model keeps `initial` arrays as long as it lives.
    """

    def __init__(self) -> None:
        self._model = _zero.Model()

    def add_unit(self, name: str, tensors: Iterable[Tensor], layers: int = 0,
                 shard_group: int = 0) -> int:
        """Append a unit with its tensors, or with `layers` as many units that are alike: "name.0",
        "name.1" and so on, whose `initial` arrays have the layers as their first dimension.

        - shard_group: ranks that the unit is split over; 0: as options.shard_group.
        - Returns the (first) unit's index. Its tensors are the next indices of the model.
        - Errors: ValueError for an array's shape or type; InvalidArgumentError naming the field.
          The model is then as it was.
        """
        kept: list[NDArray] = []
        described = [tensor._described(layers, kept) for tensor in tensors]
        return self._model.add_unit(name, described, layers, shard_group, kept)[0]

    def tie(self, unit: int, tensor: int) -> None:
        """Let `unit` use `tensor`, which belongs to another unit (a tied head). It comes behind the
        unit's own tensors in params and grads."""
        self._model.tie(unit, tensor)

    @property
    def unit_count(self) -> int:
        """Number of units."""
        return self._model.unit_count()

    @property
    def tensor_count(self) -> int:
        """Number of tensors."""
        return self._model.tensor_count()

    @property
    def element_count(self) -> int:
        """Elements of all tensors, without padding."""
        return self._model.element_count()

    @property
    def tensor_names(self) -> list[str]:
        """By index."""
        return [self._model.tensor_name(i) for i in range(self.tensor_count)]


@dataclass(frozen=True)
class Memory:
    """One rank's bytes: by role ("param", "grad", "master", ...), by tier, and in all."""

    roles: dict[str, int]
    tiers: dict[str, int]
    total: int


@dataclass(frozen=True)
class Plan:
    """Every byte on a rank, before it is allocated. print() shows it as a table."""

    memory: Memory
    table: str
    options: str  # every option as it will be used, a line each
    _optimizers: list[int] = field(repr=False, default_factory=list)  # by group

    def __str__(self) -> str:
        return self.table


def plan_of(made: tuple) -> Plan:
    """A plan of what the extension says of one."""
    return Plan(Memory(**made[0]), *made[1:])


def plan(model: Model, ranks: int, options: Options | None = None, **values: Any) -> Plan:
    """The plan of `model` for `ranks` ranks, which need not exist: would it fit?

    - options, or the same by keyword: as for Engine.
    - Errors: InvalidArgumentError naming the option; OutOfMemoryError with the exact shortfall
      where a budget is too small.
    """
    return plan_of(_zero.plan_create(model._model, options_of(options, values)._options, ranks))
