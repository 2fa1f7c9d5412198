"""Forward and backward of a sharded module: hooks that acquire and release its units.

Official interfaces of torch alone: hooks of modules, tensors and saved tensors. What autograd saves
of a parameter is not a tensor but its unit and its place there, since the memory is another unit's
by the time that backward wants it.

Autograd runs the nodes of one thread in the reverse order of their making. So when the gradient of
an input of a unit is computed, all nodes of that unit's forward have run."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..engine import FORWARD, Engine
from ..errors import Error, StateError
from .unit import Boundary, Unit, Use
from .units import SHARDED, UnitPlan

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
# Older versions of PyTorch do not tell: hooks around a model do not see its tensors there.
_outer_hooks: Callable[[bool], Any] | None = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """The tensors of arguments or of an output."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_of(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from tensors_of(value)
    elif values is not None and not isinstance(values, (str, int, float, bool)):
        leaves = pytree.tree_leaves(values)
        yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


class Run:
    """The units of a model, and where in a step they are."""

    def __init__(self, engine: Engine, plans: list[UnitPlan], grad_dtype: str) -> None:
        self.engine = engine
        self.live: dict[int, tuple[Unit, int]] = {}  # by address of a storage that is held
        self.low, self.high = 1 << 63, 0  # of all slots that were seen
        self.stack: list[Unit] = []  # modules whose forward runs
        self.saving: Any = None  # the hooks of saved tensors
        self.tasks: list[int] = []  # backwards that run, inner ones of checkpoints last
        self.serial = 0  # of backwards
        self.arrived = False  # a gradient came in this backward
        self.open = False  # a micro-step is
        self.explicit = False  # opened by micro_step()
        self.last = True  # of the open micro-step
        self.due = False  # a step is
        self.unset: str | None = None  # a parameter that has no values yet
        self.meta: set[str] = set()  # all of them
        self.units: list[Unit] = []
        self.handles: list[Any] = []
        indices = iter(range(len(plans)))
        for plan in plans:
            self.units.append(Unit(self, plan, next(indices) if plan.places else -1, grad_dtype))
        by_plan = dict(zip(map(id, plans), self.units))
        for plan, unit in zip(plans, self.units):
            unit.ties = [by_plan[id(tie)] for tie in plan.ties]
            setattr(unit.module, SHARDED, True)
            self.handles.append(unit.module.register_forward_pre_hook(
                partial(self.before, unit), prepend=True, with_kwargs=True))
            self.handles.append(unit.module.register_forward_hook(
                partial(self.after, unit), always_call=True))

    def widen(self, address: int, size: int) -> None:
        """Slots lie there."""
        if size != 0:
            self.low, self.high = min(self.low, address), max(self.high, address + size)

    # Forward

    @torch.compiler.disable
    def before(self, unit: Unit, module: Any, args: Any, kwargs: Any) -> None:
        """Before a unit's forward. Compiled graphs end here, and see parameters where they are."""
        if _graph_task() != -1 and not self.stack:
            self._recompute(unit)
            return
        graded = torch.is_grad_enabled()
        if not self.stack:
            self._enter(graded)
        unit.hold(0)
        self.stack.append(unit)
        if graded:
            self._watch_inputs(unit, args, kwargs)
        elif self.saving is not None:  # inside a forward with a graph: a reentrant checkpoint
            unit.ungraded += 1

    @torch.compiler.disable
    def after(self, unit: Unit, module: Any, args: Any, result: Any) -> None:
        """After it, or after an exception in it."""
        if not self.stack or self.stack[-1] is not unit:
            return  # recomputation, or `before` has failed
        self.stack.pop()
        if not self.stack:
            self._exit()
        if result is None:
            # After an exception, perhaps: what has failed then says so at the next call too.
            with suppress(Error):
                unit.drop()
            return
        try:
            unit.check_views()
            if torch.is_grad_enabled():
                for tensor in tensors_of(result):
                    if tensor.requires_grad:
                        Boundary.of(tensor, self).makers.append(unit)
        finally:
            unit.drop()

    def _watch_inputs(self, unit: Unit, args: Any, kwargs: Any) -> None:
        use: Use | None = None
        for tensor in tensors_of((args, kwargs) if kwargs else args):
            if tensor.requires_grad and tensor.grad_fn is not None:
                if use is None:
                    use = Use(unit)
                Boundary.of(tensor, self).uses.append(use)
        if use is None:
            unit.unwatched = True
        else:
            unit.uses += 1

    def _enter(self, graded: bool) -> None:
        """The outermost forward begins."""
        if self.tasks:
            raise StateError("the backward before has ended by an exception; call abandon() on all "
                             "ranks, or leave the world")
        if self.unset is not None:
            raise StateError(f"{self.unset} came from the meta device and has no values yet; call "
                             "load(), load_weights() or load_state_dict(), or give shard() init=")
        if not graded:
            return
        if not self.open:
            self.begin(True)
        self.saving = self._saved_tensors_hooks()
        self.saving.__enter__()

    def _exit(self) -> None:
        if self.saving is not None:
            self.saving.__exit__()
            self.saving = None

    def begin(self, last: bool) -> None:
        """Open a micro-step."""
        if self.due:
            raise StateError("a step is due: call step() after backward(), or before() it say "
                             "`with model.micro_step(last=False):` where more micro-batches of "
                             "the step follow. Evaluation belongs into torch.no_grad()")
        self.check_parameters()
        self.engine.micro_begin(last)
        self.open, self.last = True, last
        for unit in self.units:
            unit.begin()

    def end(self) -> None:
        """Close it."""
        self.open = self.explicit = False
        self.due = self.last
        self.engine.micro_end()

    def check_parameters(self) -> None:
        """Modules still have the parameters that were sharded, as they were."""
        for unit in self.units:
            for place, dtype, version in zip(unit.places, unit.dtypes, unit.versions):
                module, leaf = place.holders[0]
                parameter = place.parameter
                if module._parameters.get(leaf) is not parameter:
                    raise RuntimeError(f"{place.name} is another parameter than the one that was "
                                       "sharded; change the model before shard()")
                if parameter.requires_grad != place.trained or parameter.dtype != dtype:
                    raise RuntimeError(
                        f"{place.name} was sharded as {dtype} with requires_grad={place.trained} "
                        f"and is {parameter.dtype} with requires_grad={parameter.requires_grad} "
                        "now; change it before shard()")
                if parameter._version != version:
                    raise RuntimeError(
                        f"{place.name} was written to, and its values are the engine's; change "
                        "them before shard() or by load_state_dict()")

    # Saved tensors

    def _saved_tensors_hooks(self) -> Any:
        outer = _outer_hooks(True) if _outer_hooks is not None else None
        live, run = self.live, self

        def pack(tensor: torch.Tensor) -> Any:
            try:
                address = tensor.data_ptr()
            except RuntimeError:  # a tensor without memory of its own, such as a sparse one
                address = 0
            if run.low <= address < run.high:
                found = live.get(tensor.untyped_storage().data_ptr())
                if found is not None:
                    return _Saved(found[0], found[1], tensor)
            if outer is not None:
                return outer[0](tensor)
            # A node that kept its own output with its graph would keep itself.
            kept = tensor.detach() if tensor.requires_grad else tensor
            return kept, tensor._version

        def unpack(packed: Any) -> torch.Tensor:
            if type(packed) is _Saved:
                return run.unpack(packed)
            if outer is not None:
                tensor: torch.Tensor = outer[1](packed)
                return tensor
            tensor, version = packed
            if tensor._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: {tensor.type()} {list(tensor.shape)} is at version "
                    f"{tensor._version}; expected version {version} instead")
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def unpack(self, saved: "_Saved") -> torch.Tensor:
        """A parameter that autograd saved, for backward or for whoever looks at the graph."""
        unit = saved.unit
        if _graph_task() == -1:
            unit.hold(0)
            try:
                return saved.tensor().clone()
            finally:
                unit.drop()
        self.enter_backward()
        if not unit.back:
            unit.hold_backward(unit.reached)
        tensor = saved.tensor()
        # A graph of this backward would save the slot itself.
        return tensor.clone() if torch.is_grad_enabled() else tensor

    # Backward

    def enter_backward(self) -> None:
        """A hook of a backward runs: notice its end."""
        task = _graph_task()
        if self.tasks and self.tasks[-1] == task:
            return
        if task in self.tasks:
            return
        if not self.tasks:
            if not self.open:
                raise StateError("a backward comes outside a micro-step, which ended with its "
                                 "first backward; add up the losses and call backward() once")
            self.serial += 1
            self.arrived = False
        self.tasks.append(task)
        torch.autograd.Variable._execution_engine.queue_callback(partial(self._end_task, task))

    def _end_task(self, task: int) -> None:
        depth = self.tasks.index(task)
        del self.tasks[depth:]
        if depth > 0:
            self._end_inner(depth)
            return
        for unit in self.units:
            unit.end_backward()
        if self.arrived and self.open and not self.explicit:
            self.end()

    def _recompute(self, unit: Unit) -> None:
        """A checkpoint computes the unit again: it keeps views of parameters as they are, so the
        unit is held until backward has left it."""
        self.enter_backward()
        if not unit.back:
            unit.hold_backward(FORWARD)
        if unit.recomputed == 0:
            unit.recomputed = len(self.tasks)

    def _end_inner(self, depth: int) -> None:
        """The backward of a reentrant checkpoint is over, and so are the units that it recomputed
        whole, unless they have more uses."""
        for unit in self.units:
            watched = unit.uses or unit.unwatched
            if unit.recomputed == depth and not watched and unit.ungraded == 1:
                unit.declare_ready()
                unit.let_go()

    # Ways out

    def abandon(self) -> None:
        """Nothing is under way any more."""
        self._exit()
        self.tasks.clear()
        self.stack.clear()
        for unit in self.units:
            unit.grads, unit.back, unit.holds = None, False, 0
            unit.waiting.clear()
            unit.hide()
            unit.begin()
        self.open = self.explicit = self.due = False

    def close(self) -> None:
        """The module is sharded no more, and its parameters are NaN."""
        if not self.handles:
            return
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        for unit in self.units:
            unit.close()
        self.units[0].module.register_forward_pre_hook(_refuse)


def _refuse(module: Any, args: Any) -> None:
    raise StateError("the sharded model is closed, and its parameters are gone; take state_dict() "
                     "before close()")


class _Saved:
    """A tensor over a unit's slot, as autograd keeps it."""

    __slots__ = ("unit", "index", "view")

    def __init__(self, unit: Unit, index: int, tensor: torch.Tensor) -> None:
        self.unit, self.index = unit, index
        stride, offset = tensor.stride(), tensor.storage_offset()
        assert unit.slot is not None
        base = unit.slot.tensors[index]
        whole = (tensor.dtype == base.dtype and tensor.shape == base.shape and offset == 0
                 and stride == base.stride())
        self.view = None if whole else (tensor.dtype, tensor.shape, stride, offset)

    def tensor(self) -> torch.Tensor:
        """It again, where the unit is now."""
        assert self.unit.slot is not None
        base = self.unit.slot.tensors[self.index]
        if self.view is None:
            return base
        dtype, shape, stride, offset = self.view
        if dtype == base.dtype:
            return base.as_strided(shape, stride, offset)
        return torch.empty(0, dtype=dtype).set_(base.untyped_storage(), offset, shape, stride)
