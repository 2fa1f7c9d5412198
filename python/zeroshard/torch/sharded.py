"""A module whose parameters are shards: shard() and what it returns."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..engine import Engine, LoadReport, StepResult
from ..errors import StateError
from ..model import Model, Plan, Tensor
from ..options import Options
from ..world import World
from . import files
from .run import Run
from .unit import placeholder_of
from .units import DTYPES, Place, UnitPlan, Units, plan_units
from .values import Names, Values, array_of

Choice = Callable[[str, nn.Parameter], Any]
Init = Callable[[str, torch.Tensor], Any]


def _describe(plans: list[UnitPlan], no_decay: Choice | None, groups: Choice | None) -> Model:
    model = Model()
    for plan in plans:
        tensors = []
        for place in plan.places:
            name, parameter = place.name, place.parameter
            meta = parameter.is_meta
            tensors.append(Tensor(
                name, tuple(parameter.shape), DTYPES[parameter.dtype],
                no_decay=bool(no_decay(name, parameter)) if no_decay else False,
                frozen=not place.trained, group=int(groups(name, parameter)) if groups else 0,
                initial=None if meta else array_of(parameter)))
        if tensors:
            model.add_unit(plan.name or "root", tensors)
    return model


def _replace_meta(place: Place) -> None:
    """Let modules have a parameter of host memory for one of the meta device: torch does not give
    the one the other's data."""
    old = place.parameter
    data = placeholder_of(old.shape, old.dtype)
    place.parameter = nn.Parameter(data, requires_grad=old.requires_grad)
    for module, leaf in place.holders:
        module._parameters[leaf] = place.parameter


def _check_buffers(module: nn.Module) -> None:
    for name, buffer in module.named_buffers():
        if buffer.device.type != "cpu":
            raise ValueError(f"buffer {name} is on {buffer.device}; buffers stay as they are, so "
                             "give it values in host memory before shard()")


def shard(module: nn.Module, world: World, *, units: Units = None, no_decay: Choice | None = None,
          groups: Choice | None = None, init: Init | None = None, **options: Any) -> "Sharded":
    """Shard a module's parameters, gradients and optimizer state over the ranks of `world`.

    - module: on the CPU, or on the meta device. Its parameters are the engine's from now on: inside
      a unit's forward and backward they are there, and elsewhere they are NaN.
    - units: the modules whose parameters are gathered at once, as fully_shard'ed ones: classes,
      names, modules, or a predicate of (name, module). None: the children of the longest
      ModuleList and all modules of their classes. Parameters of no unit are the root's, which are
      there during the root's whole forward.
    - no_decay: of (name, parameter), True: weight decay does not apply. None: it applies to all.
    - groups: of (name, parameter), the number of its hyper-parameter group.
    - init: of (name, tensor), fills a whole parameter's initial values in place. It is called on
      rank 0 alone, once for each parameter in the order of the units, instead of the module's
      values. Parameters of the meta device need it, or a load before the first forward.
    - options: as for zeroshard.Engine (stage=3, ...). broadcast_initial is on: all ranks begin with
      rank 0's values. param_slots and grad_slots are as many as units that lie in one another need.
    - Collective over the world.
    - Errors: ValueError naming the parameter, buffer or module; those of Engine.
    """
    if not isinstance(module, nn.Module) or not isinstance(world, World):
        raise TypeError(f"shard takes a Module and a World, not {module!r} and {world!r}")
    plans = plan_units(module, units)
    _check_buffers(module)
    places = [place for plan in plans for place in plan.places]
    if not places:
        raise ValueError(f"{type(module).__name__} has no parameters")
    depth = max(plan.depth for plan in plans)
    defaults = {"broadcast_initial": True, "param_slots": max(3, depth + 1),
                "grad_slots": max(2, depth + 1)}
    chosen = Options(**{**defaults, **options})
    meta = [place for place in places if place.parameter.is_meta]
    engine = Engine(world, _describe(plans, no_decay, groups), chosen)
    for place in meta:
        _replace_meta(place)
    run = Run(engine, plans, chosen.as_dict()["grad_dtype"])
    for unit in run.units:
        unit.hide()
    sharded = Sharded(module, world, engine, run)
    if init is not None:
        sharded._fill(init)
    elif meta:
        run.unset, run.meta = meta[0].name, {place.name for place in meta}
    return sharded


def _refuse_state_dict(*_: Any) -> None:
    raise RuntimeError("the module's own parameters are NaN, as they are sharded; call state_dict()"
                       " or save_weights() of what shard() returned, on all ranks")


def _refuse_load_state_dict(*_: Any) -> None:
    raise RuntimeError("the module's own parameters are sharded; call load_state_dict() or "
                       "load_weights() of what shard() returned, on all ranks")


# Methods of a module that change parameters' types and places.
_BEFORE = {"to", "to_empty", "cpu", "cuda", "xpu", "half", "bfloat16", "float", "double", "type"}


class Sharded:
    """A sharded module: called as the module is, and other attributes are the module's.

        loss = model(x, y)
        loss.backward()
        model.step(lr=1e-3, max_norm=1.0)

    - Every forward with gradients and its backward are a micro-step, after which step() comes. To
      add up several micro-batches put forward and backward into `with model.micro_step(last=...)`.
    - Collective: every rank makes the same calls in the same order.
    - Threads: one at a time.
    """

    def __init__(self, module: nn.Module, world: World, engine: Engine, run: Run) -> None:
        """Callers use shard()."""
        self.module = module
        self.world = world
        self.engine = engine
        self._run = run
        self._values = Values(module, engine, world, run.units)
        run.handles += [module.register_state_dict_pre_hook(_refuse_state_dict),
                        module.register_load_state_dict_pre_hook(_refuse_load_state_dict)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "module":
            raise AttributeError(name)
        if name in _BEFORE:
            raise RuntimeError(f"{name}() of a sharded module would change placeholders alone; "
                               "call it before shard()")
        return getattr(self.module, name)

    def train(self, mode: bool = True) -> "Sharded":
        """As the module's. Returns this."""
        self.module.train(mode)
        return self

    def eval(self) -> "Sharded":
        """As the module's. Returns this."""
        return self.train(False)

    def __repr__(self) -> str:
        names = [unit.label for unit in self._run.units]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return f"Sharded({type(self.module).__name__}, units: {shown}, {self.world.size} ranks)"

    @property
    def plan(self) -> Plan:
        """Every byte of this rank: str() of it is a table."""
        return self.engine.plan

    @property
    def loss_scale(self) -> float:
        """Factor of the loss: `(loss * model.loss_scale).backward()`; 1 unless parameters are fp16.
        """
        return self.engine.loss_scale

    # Steps

    @contextmanager
    def micro_step(self, last: bool = True) -> Iterator[None]:
        """One forward and one backward of several whose gradients are added up.

        - last: True: step() follows. False: more micro-steps of the same step do.
        - An exception leaves it open: call abandon() on all ranks, or leave the world.
        """
        run = self._run
        run.begin(last)
        run.explicit = True
        yield
        run.end()

    def step(self, **numbers: Any) -> StepResult:
        """Update the parameters with the mean gradient over ranks and micro-steps, and begin anew:
        `model.step(lr=1e-3, weight_decay=0.1, max_norm=1.0)`. There is no zero_grad().

        - numbers: as of Engine.step: those of the optimizer, max_norm, groups, grad_divisor and
          grad_weight.
        - Errors: StateError where no backward has come.
        """
        self._between("step")
        result = self.engine.step(**numbers)
        self._run.due = False
        return result

    def grad_norm(self) -> float:
        """The norm of the mean gradient, between backward() and step(). Collective."""
        self._between("grad_norm")
        return self.engine.grad_norm()

    def discard(self) -> None:
        """Drop the step that is due instead of taking it. Collective."""
        self._between("discard")
        self.engine.discard()
        self._run.due = False

    def abandon(self) -> None:
        """Drop the step under way, after an exception in forward or backward that all ranks got and
        go on from. Collective."""
        run = self._run
        under_way = run.open or run.due
        run.abandon()
        if under_way:
            self.engine.abandon()

    def _between(self, call: str) -> None:
        """Refuse a call while a backward is missing, or has failed."""
        run = self._run
        if run.tasks:
            raise StateError(f"{call}() comes after a backward that has ended by an exception; "
                             "call abandon() on all ranks, or leave the world")
        if run.open:
            raise StateError(
                f"{call}() comes while a forward waits for its backward; call loss.backward(), "
                "evaluate under torch.no_grad(), or drop the forward by abandon()")

    # Values

    def state_dict(self, *, rank0_only: bool = False,
                   exact: bool = False) -> dict[str, torch.Tensor]:
        """Whole parameters and persistent buffers by name, as the module had them.

        - rank0_only: other ranks get an empty dict and hold no whole parameter.
        - exact: fp32 values of the masters.
        - Collective.
        """
        return self._values.state_dict(self.world.rank == 0 or not rank0_only, exact)

    def load_state_dict(self, values: Mapping[str, torch.Tensor], strict: bool = True) -> list[str]:
        """Set parameters and buffers from whole tensors, which every rank gives. Moments stay.

        - strict: names that are missing or unknown are an error. False: they are left.
        - Returns the parameters that were missing.
        """
        missing = self._values.set_all(values, None, not strict, "the state dict")
        self._has_values(missing)
        return missing

    def load_weights(self, path: str | os.PathLike[str], *, names: Names = None,
                     partial: bool = False) -> list[str]:
        """Set parameters and buffers from a safetensors file, an index of files or a folder with
        either, such as Hugging Face's. Each rank reads what its shards have of it. Moments stay.

        - names: from a name of the file to the module's, or to None: it is ignored; a mapping or a
          function.
        - partial: what is missing or unknown is left; otherwise it is an error that lists it.
        - Returns the parameters that were missing.
        - Errors: ValueError, OSError. Nothing is loaded then.
        """
        missing = self._values.set_all(files.read(path), names, partial, os.fspath(path))
        self._has_values(missing)
        return missing

    def save_weights(self, path: str | os.PathLike[str], *, exact: bool = False) -> None:
        """Write parameters and persistent buffers to a safetensors file: `path` with the ending
        .safetensors, or model.safetensors in the folder `path`. Rank 0 writes, and has one whole
        parameter in memory at a time. Tied parameters have their first name. Collective.

        - exact: fp32 values of the masters.
        - Errors: OSError on rank 0, IoError on the others; a file that was there is as it was.
        """
        self._values.save(path, exact)

    def _has_values(self, missing: list[str]) -> None:
        run = self._run
        run.unset = next((name for name in missing if name in run.meta), None)
        run.meta.intersection_update(missing)

    # Checkpoints

    def save(self, folder: str | os.PathLike[str], *, user: bytes = b"", buffers: bool = True,
             **options: Any) -> None:
        """Save the run's whole state, which any number of ranks loads at any stage: parameters,
        moments, the step's state and rank 0's persistent buffers. Collective.

        - user: the caller's own bytes; with the buffers at most 1 MiB.
        - buffers: False: without them.
        - options: as of Engine.save_begin: name, keep, data_position and so on.
        """
        kept = self._values.user_bytes(user) if buffers else self._user_alone(user)
        self.engine.save(folder, user=kept, **options)

    @staticmethod
    def _user_alone(user: bytes) -> bytes:
        return files.packed({"user": torch.frombuffer(bytearray(user), dtype=torch.uint8)}
                            ) if user else b""

    def load(self, path: str | os.PathLike[str], **options: Any) -> LoadReport:
        """Go on from a checkpoint that save() made. Collective.

        - options: as of Engine.load: name, partial, if_any and so on.
        - Returns the report, whose `user` is what save() was given.
        """
        report = self.engine.load(path, **options)
        if report.loaded and not report.missing:
            self._has_values([])
        if report.folder and report.world:
            user = self._values.take_user_bytes(report.user, bool(options.get("partial")))
            return replace(report, user=user)
        return report

    def _fill(self, init: Init) -> None:
        """Initial values by a function of whole parameters, for the engine's ranges."""
        places = [place for unit in self._run.units for place in unit.places]
        whole = (-1, np.empty(0, np.float32))

        def fill(tensor: int, first: int, values: np.ndarray) -> None:
            nonlocal whole
            if whole[0] != tensor:
                made = torch.empty(places[tensor].parameter.shape)
                with torch.no_grad():
                    init(places[tensor].name, made)
                whole = (tensor, made.numpy().reshape(-1))
            values[:] = whole[1][first:first + values.size]

        self.engine.fill(fill)

    def close(self) -> None:
        """End the engine, once: parameters are gone from then on. Local call."""
        self._run.close()
        self.engine.close()

    def __enter__(self) -> "Sharded":
        return self

    def __exit__(self, *reason: Any) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):  # of an interpreter that ends
            self.close()
