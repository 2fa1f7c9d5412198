"""The engine: one rank's shards, slots and threads for one model."""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import _zero
from .arrays import Gradients, dtype_number, number_of_array, numpy_dtype
from .model import Memory, Model, Plan, plan_of
from .options import Options, options_of
from .world import World

FORWARD, BACKWARD, EVAL = 1, 2, 3
_ROLES = {"param": 0, "grad": 1, "master": 2, "moment1": 3, "moment2": 4,
          "scale1": 5, "scale2": 6, "grad_slot": 17, "io_window": 20}
_TIERS = {"host": 2, "disk": 3}


def _one_of(name: str, value: str, known: Mapping[str, int]) -> int:
    if value not in known:
        raise ValueError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")
    return known[value]


def _floats(hyper: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in hyper.items()}


class StepResult:
    """The result of one step. It is known once the gradients of all ranks are reduced; reading a
    property waits for that. An engine keeps its last step's result alone, so a result that is still
    held when the next step begins is read then.

    - Errors of every property: the step's own failure.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._known: tuple | None = None

    def _read(self) -> tuple:
        if self._known is None:
            self._known = self._engine.result()
        return self._known

    @property
    def step(self) -> int:
        """Steps so far, this one included."""
        return self._read()[0]

    @property
    def updates(self) -> int:
        """Of these, not skipped."""
        return self._read()[1]

    @property
    def norm(self) -> float:
        """L2 norm of the mean gradient before clipping; inf or NaN when not finite."""
        return self._read()[2]

    @property
    def clip(self) -> float:
        """Factor that the gradient was multiplied by; 1 when not clipped."""
        return self._read()[3]

    @property
    def loss_scale(self) -> float:
        """Of the next step's loss."""
        return self._read()[4]

    @property
    def skipped(self) -> bool:
        """True: gradients were not finite, and nothing was changed."""
        return self._read()[5]

    @property
    def skipped_in_a_row(self) -> int:
        """Steps skipped in a row up to this one."""
        return self._read()[6]

    @property
    def stalled(self) -> int:
        """Elements of this rank's optimizer shards that the update before this step left as they
        were although they had a gradient."""
        return self._read()[7]

    def __repr__(self) -> str:
        if self._known is None:
            return "StepResult(not read yet)"
        return f"StepResult(step={self.step}, norm={self.norm}, skipped={self.skipped})"


@dataclass(frozen=True)
class LoadReport:
    """What a load found; zero_load_report of zero/checkpoint.h says more. `user` is what save() was
    given; `tensors` lists missing, unexpected and mismatching ones, a line each."""

    step: int
    read_bytes: int
    world: int
    loaded: int
    missing: int
    unexpected: int
    mismatching: int
    data_position: int
    random_seed: int
    random_position: int
    user: bytes
    tensors: str
    folder: str
    passed_over: str
    overflowed: int


class Unit(Protocol):
    """A unit that Engine.unit() uses; see there."""

    @property
    def params(self) -> tuple[NDArray[Any], ...]:
        """Its parameters: arrays that cannot be written to. None with the option encoded_views."""

    @property
    def grads(self) -> Gradients:
        """Its gradients, to be added to; None for a frozen tensor."""

    @property
    def encoded(self) -> tuple[tuple[NDArray[Any], NDArray[Any]], ...]:
        """With the option encoded_views: of each tensor its codes and their scales, in one
        dimension. With gather_dtype="mxfp8" both are uint8: bits of E4M3, and of a power of two for
        each 32. With "int8" they are int8, and uint16 for each 128, the bits of bfloat16."""

    @property
    def params_dlpack(self) -> tuple[Any, ...]:
        """As params, for from_dlpack."""

    @property
    def grads_dlpack(self) -> tuple[Any, ...]:
        """As grads, for from_dlpack."""

    def __enter__(self) -> "Unit": ...

    def __exit__(self, *reason: Any) -> bool: ...


class _MicroStep:
    """with engine.micro_step(): closed at its end, left open where an exception leaves it."""

    def __init__(self, engine: Any, last: bool) -> None:
        self._engine = engine
        self._last = last

    def __enter__(self) -> None:
        self._engine.micro_begin(self._last)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self._engine.micro_end()


class Engine:
    """One rank's engine: `with Engine(world, model, stage=3) as engine:`.

    - world, model: every rank gives the same model and options.
    - options, or the same by keyword: see Options. device="cuda" is refused: views are arrays of
      numpy.
    - Collective over the world. It allocates exactly what plan() says.
    - Memory: arrays over the engine's memory keep it: close() gives it back when the last is gone.
    - Errors of every call: PoisonedError after a failure that left ranks out of step; ValueError
      after close(); StateError for a call at the wrong time, which says what comes first.
    - Threads: one at a time calls it. The GIL is released while a call waits or works. Ctrl-C on
      the main thread ends a wait: the world is aborted, and KeyboardInterrupt is raised.
    """

    def __init__(self, world: World, model: Model, options: Options | None = None,
                 **values: Any) -> None:
        if not isinstance(world, World) or not isinstance(model, Model):
            raise TypeError(f"Engine takes a World and a Model, not {world!r} and {model!r}")
        native = options_of(options, values)._options
        self._engine = _zero.engine_create(world._world, model._model, native)
        self._plan = plan_of(self._engine.plan())
        self._names = {name: index for index, name in enumerate(model.tensor_names)}
        self._last: Callable[[], StepResult | None] = lambda: None
        # Calls of every unit, with nothing in between.
        self._unit = self._engine.unit

    # Hooks

    def unit(self, index: int, pass_: int = 0) -> Unit:
        """Use a unit: `with engine.unit(i, BACKWARD) as unit:`.

        - pass_: FORWARD or BACKWARD inside a micro-step, EVAL outside; 0: FORWARD or EVAL, as a
          micro-step is open or not.
        - unit.params: tuple of arrays over the library's memory, in the order of the unit's
          tensors, then those that it ties to. They cannot be written to. bf16 is uint16 (to_f32).
        - unit.grads, in BACKWARD: likewise, None for a frozen tensor. *Add* to them
          (`unit.grads[0] += g`), never assign. No division: step() divides.
        - unit.params_dlpack, unit.grads_dlpack: the same for `from_dlpack`, with bf16 as bfloat16.
        - Lifetime: the memory is this unit's until the block ends. Then another unit's values come
          there. Arrays of unit.grads that are still held are made read-only at that moment, and
          arrays derived from them are not: do not write there. Reading later gives other values;
          with the option poison_released it gives NaN.
        - Collective over the ranks that share the unit. It waits for the gather.
        - Errors: IndexError, ValueError; StateError for a pass on the wrong side of a micro-step.
        """
        unit: Unit = self._unit(index, pass_)
        return unit

    def params_acquire(self, index: int, pass_: int = 0) -> tuple[int, ...]:
        """Acquire a unit's parameters alone, for callers with an order of their own (the split
        calls of zero/unit.h): the addresses of its tensors, which hold until params_release().
        Collective over the ranks that share the unit."""
        addresses: tuple[int, ...] = self._engine.params_acquire(index, pass_)
        return addresses

    def params_release(self, index: int) -> None:
        """Close the last open params_acquire(). Local call."""
        self._engine.params_release(index)

    def grads_acquire(self, index: int) -> tuple[int, ...]:
        """Acquire a unit's gradients alone: their addresses, 0 for a frozen tensor, which hold
        until grads_ready(). Add to them. Local call."""
        addresses: tuple[int, ...] = self._engine.grads_acquire(index)
        return addresses

    def grads_ready(self, index: int) -> None:
        """Close grads_acquire(): the unit's gradients are complete. Local call."""
        self._engine.grads_ready(index)

    def memory_at(self, address: int, size: int) -> Any:
        """`size` bytes at an address that a call above gave, as uint8 for from_dlpack. They keep
        the engine's memory, and are the unit's no longer than the address."""
        return self._engine.memory_at(address, size)

    def micro_step(self, last: bool = True) -> _MicroStep:
        """One forward and one backward on one micro-batch: `with engine.micro_step():`.

        - last: True: step() follows. False: more micro-steps of the same step do.
        - Where an exception leaves the block the micro-step stays open. If all ranks go on, all
          call abandon(). Otherwise leave the world.
        - Collective; every rank makes as many in a step.
        """
        return _MicroStep(self._engine, last)

    def micro_begin(self, last: bool = True) -> None:
        """Open a micro-step without a block."""
        self._engine.micro_begin(last)

    def micro_end(self) -> None:
        """Close it."""
        self._engine.micro_end()

    def abandon(self) -> None:
        """Drop the step under way, wherever in it this rank is. Collective: all ranks do, in the
        same micro-step. All views are invalid."""
        self._engine.micro_abandon()

    # Steps

    def _params(self, groups: Sequence[Mapping[str, float]] | None, max_norm: float,
                grad_divisor: float, grad_weight: float | None, hyper: Mapping[str, float]) -> Any:
        if groups is None:
            given = [_floats(hyper)]
        else:
            given = [_floats({**hyper, **group}) for group in groups]
        kinds = self._plan._optimizers[:len(given)]
        if len(given) > len(self._plan._optimizers) or not given:
            raise ValueError(f"groups has {len(given)} entries; give 1 to "
                             f"{len(self._plan._optimizers)}")
        return _zero.Params(kinds, given, max_norm, grad_divisor, grad_weight)

    def step(self, *, groups: Sequence[Mapping[str, float]] | None = None, max_norm: float = 0.0,
             grad_divisor: float = 0.0, grad_weight: float | None = None,
             **hyper: float) -> StepResult:
        """Update the shards with the mean gradient: `engine.step(lr=1e-3, max_norm=1.0)`.

        - hyper: numbers of the optimizer. AdamW: lr, beta1, beta2, eps, weight_decay; Lion: lr,
          beta1, beta2, weight_decay; SGD: lr, momentum, weight_decay, nesterov; LAMB: AdamW's,
          min_ratio, max_ratio, adapt_undecayed; LARS: lr, momentum, weight_decay, trust, eps,
          adapt_undecayed. What is not given has its default.
        - groups: one mapping for each hyper-parameter group, which `hyper` completes.
        - max_norm: clip the mean gradient's global L2 norm to this; 0: no clipping.
        - grad_divisor: divides the sum over ranks and micro-steps; 0: ranks x micro-steps.
        - grad_weight: this rank's weight, such as its number of tokens: the ranks' sum divides.
        - Collective: every rank gives the same numbers, but for grad_weight. Returns once enqueued.
        - Errors: TypeError for a number that the optimizer does not have; InvalidArgumentError
          naming the number; MismatchError, where ranks differ, with the result.
        """
        params = self._params(groups, max_norm, grad_divisor, grad_weight, hyper)
        before = self._last()
        if before is not None:
            before._read()
        self._engine.step(params)
        result = StepResult(self._engine)
        self._last = weakref.ref(result)
        return result

    def predict(self, *, groups: Sequence[Mapping[str, float]] | None = None,
                max_norm: float = 0.0, grad_divisor: float = 0.0, **hyper: float) -> None:
        """Give the next step()'s numbers ahead, so that it is computed during backward. Needs the
        option speculative_step. Local call."""
        self._engine.predict(self._params(groups, max_norm, grad_divisor, None, hyper))

    def grad_norm(self, *, grad_divisor: float = 0.0, grad_weight: float | None = None) -> float:
        """The norm of the step that is due, before it is taken. Collective."""
        return self._engine.grad_norm(self._params(None, 0.0, grad_divisor, grad_weight, {}))

    def discard(self) -> None:
        """Drop the step that is due instead of taking it. Collective."""
        self._engine.discard()

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in the next micro-step; 1 unless loss scaling is on."""
        return self._engine.loss_scale()

    # Memory

    @property
    def plan(self) -> Plan:
        """The plan that the engine was made from."""
        return self._plan

    def stats(self) -> dict[str, int]:
        """Counters since create, by zero_stats's names (zero/engine.h). Local call."""
        return self._engine.stats()

    def memory(self) -> Memory:
        """The bytes that the engine holds now, as counted by allocators. Local call."""
        return Memory(**self._engine.memory())

    def evict(self, roles: Sequence[str] | None = None, tier: str = "disk") -> None:
        """Give memory back between steps, until restore().

        - roles: of "master", "moment1", "moment2", "grad", "grad_slot", "io_window"; None: all.
        - tier: where masters and moments are kept: "disk" (disk_directories), or "host" on a GPU.
        - Local call.
        """
        bits = _zero.EVICT_ALL
        if roles is not None:
            bits = sum(1 << _one_of("role", role, _ROLES) for role in set(roles))
        self._engine.evict(bits, _one_of("tier", tier, _TIERS))

    def restore(self) -> None:
        """Take the memory again, with what was in it. Local call."""
        self._engine.restore()

    # Tensors between steps

    def fill(self, fn: Callable[[int, int, NDArray[np.float32]], Any]) -> None:
        """Set every tensor's initial values: `fn(tensor, first, values)` writes the values of
        elements [first, first + values.size) of the tensor into `values`.

        - fn: gives an element the same value in whatever range and on whatever rank it is asked for
          (random_normal does). What it raises is raised here; ranks then have no agreed values.
          `values` is valid during the call only.
        - Collective. Memory: 256 KiB.
        """
        self._engine.fill(fn)

    def _tensor(self, tensor: int | str) -> int:
        if isinstance(tensor, str):
            if tensor not in self._names:
                raise KeyError(f"the model has no tensor {tensor!r}")
            return self._names[tensor]
        return tensor

    def export(self, tensor: int | str, role: str = "param", dtype: str = "f32",
               wanted: bool = True) -> NDArray | None:
        """A whole tensor as a new array, by name or index.

        - role: "param", "master", "moment1", "moment2" or "grad".
        - dtype: of the array, bf16 as uint16.
        - wanted: False: this rank only takes part, and gets None.
        - Collective.
        """
        index, number = self._tensor(tensor), dtype_number(dtype)
        shape = self._engine.tensor_shape(index)
        array = np.empty(shape, numpy_dtype(number or 1)) if wanted else None
        address = array.ctypes.data if array is not None else 0
        self._engine.tensor_move(index, _one_of("role", role, _ROLES), address, number or 1, False)
        return array

    def weights(self, dtype: str = "f32") -> dict[str, NDArray]:
        """Every parameter by its name, whole, from the most exact copy there is. Collective."""
        whole = ((name, self.export(name, "master", dtype)) for name in self._names)
        return {name: array for name, array in whole if array is not None}

    def set_tensor(self, tensor: int | str, array: NDArray, role: str = "param",
                   bf16: bool = False) -> None:
        """Set this rank's shard of a tensor from an array of the whole tensor. To replace
        parameters of 16 bits set "param" and "master". bf16: an array of uint16 is bits of bf16.
        Every rank makes the call. Local call."""
        index = self._tensor(tensor)
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        if list(array.shape) != list(self._engine.tensor_shape(index)):
            raise ValueError(f"the array has the shape {array.shape}; the tensor has "
                             f"{tuple(self._engine.tensor_shape(index))}")
        number = number_of_array(array, 2 if bf16 else 0)
        self._engine.tensor_move(index, _one_of("role", role, _ROLES), array.ctypes.data, number,
                                 True)

    def shard(self, tensor: int | str, role: str = "param") -> tuple[int, NDArray]:
        """This rank's shard of a tensor on any tier: its first element's index, and a copy of its
        elements. Local call."""
        index, number = self._tensor(tensor), _one_of("role", role, _ROLES)
        first, count, dtype = self._engine.shard_range(index, number)
        values = np.empty(count, numpy_dtype(dtype))
        self._engine.shard_move(index, number, first, count, values.ctypes.data, False)
        return first, values

    def set_shard(self, tensor: int | str, first: int, values: NDArray[Any],
                  role: str = "param") -> None:
        """Set elements [first, first + size) of a tensor, inside this rank's shard, on any tier.

        - values: of the role's type, as shard() gives them. Of "param" every rank makes the call
          before the next unit, with an empty array where it has nothing to write.
        - Local call.
        """
        index, number = self._tensor(tensor), _one_of("role", role, _ROLES)
        wanted = numpy_dtype(self._engine.shard_range(index, number)[2])
        if values.dtype != wanted:
            raise ValueError(f"values are {values.dtype}; this role of the tensor is {wanted}")
        values = np.ascontiguousarray(values)
        self._engine.shard_move(index, number, first, values.size, values.ctypes.data, True)

    # Checkpoints

    def save_begin(self, directory: str | os.PathLike, *, name: str | None = None,
                   replace: bool = False, refuse_busy: bool = False, keep: int = 0,
                   params_only: bool = False, data_position: int = 0, random_seed: int = 0,
                   random_position: int = 0, user: bytes = b"", reflink: bool = False) -> None:
        """Begin to save the state after the last step; training goes on. save_end() follows.

        - directory: of the run; name: of the checkpoint, None: "step-" and the number of steps.
        - replace, refuse_busy, keep, params_only, reflink: as in zero/checkpoint.h.
        - data_position, random_seed, random_position, user: the caller's own; load() gives them
          back.
        - Collective: every rank gives the same, but for `user`.
        """
        self._engine.save_begin(os.fspath(directory), name, replace, refuse_busy, keep, params_only,
                                data_position, random_seed, random_position, user, reflink)

    def save_end(self) -> None:
        """Wait until the save is durable. Collective. IoError: it is not there; the ones before
        are."""
        self._engine.save_end()

    def save_poll(self) -> dict[str, int]:
        """How far the save is, on this rank. Local call."""
        return self._engine.save_poll()

    def save(self, directory: str | os.PathLike, **options: Any) -> None:
        """save_begin() and save_end()."""
        self.save_begin(directory, **options)
        self.save_end()

    def load(self, path: str | os.PathLike, *, name: str | None = None, prefix: str | None = None,
             params_only: bool = False, partial: bool = False, reflink: bool = False,
             refuse_overflow: bool = False, if_any: bool = False) -> LoadReport:
        """Set the engine's state from a checkpoint, of whatever ranks, stage, types and tiers.

        - path: a run's directory (its newest whole checkpoint, or `name`), a checkpoint's folder,
          or with params_only a safetensors file.
        - if_any: where there is none yet nothing changes, and report.folder is empty.
        - Collective. Errors: InvalidArgumentError that lists tensors; CorruptError; IoError.
        """
        return LoadReport(**self._engine.load(os.fspath(path), name, prefix, params_only, partial,
                                              reflink, refuse_overflow, if_any))

    def close(self) -> None:
        """End the engine, once; at once if no array over its memory is held, else with the last of
        them. Local call."""
        self._engine.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.close()
