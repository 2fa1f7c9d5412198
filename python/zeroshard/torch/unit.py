"""One unit at run time: where its tensors lie, who holds it, and which gradients have come."""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack
from torch import nn

from ..engine import BACKWARD, FORWARD, Engine
from ..errors import StateError
from .units import DTYPES, UnitPlan

if TYPE_CHECKING:
    from .run import Run

_GRADS: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPES.items()}
_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def tensor_at(engine: Engine, address: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over the engine's memory."""
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype)
    size = shape.numel() * dtype.itemsize
    # Tensors that are made under inference_mode could not be a parameter's data in training.
    with torch.inference_mode(False), torch.no_grad():
        flat: torch.Tensor = torch.utils.dlpack.from_dlpack(engine.memory_at(address, size))
        return flat.view(dtype).view(shape)


def placeholder_of(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """What a parameter is outside its unit: NaN to whoever reads it, and torch refuses writes."""
    with torch.inference_mode(False), torch.no_grad():
        return torch.full((), float("nan"), dtype=dtype).expand(shape)


class Slot:
    """A unit's parameters at one set of addresses."""

    __slots__ = ("tensors", "live", "storages", "expected", "_kept")

    def __init__(self, tensors: list[torch.Tensor], unit: "Unit") -> None:
        self.tensors = tensors
        kept = [tensor.untyped_storage() for tensor in tensors]
        self.live = {storage.data_ptr(): (unit, index)
                     for index, storage in enumerate(kept) if storage.data_ptr() != 0}
        self.storages = [storage._cdata for storage in kept]
        self.expected: list[int] = []
        self._kept = kept  # their numbers are good as long as they live

    def users(self) -> list[int]:
        """How many tensors share each storage."""
        return [] if _use_count is None else [_use_count(data) for data in self.storages]


class Use:
    """One forward of a unit that has inputs with gradients. Backward has left it when the gradient
    of one of these is computed."""

    __slots__ = ("unit", "serial")

    def __init__(self, unit: "Unit") -> None:
        self.unit = unit
        self.serial = -1

    def leave(self) -> None:
        """Backward has come to an input."""
        if self.serial != self.unit.run.serial:
            self.serial = self.unit.run.serial
            self.unit.leave_backward()


class Boundary:
    """A tensor between units, called when its gradient is computed: backward leaves the units that
    took it, and then comes to those that made it."""

    __slots__ = ("run", "uses", "makers", "version")

    def __init__(self, run: "Run", version: int) -> None:
        self.run, self.version = run, version
        self.uses: list[Use] = []
        self.makers: list[Unit] = []

    @staticmethod
    def of(tensor: torch.Tensor, run: "Run") -> "Boundary":
        """The tensor's, which is made and hooked where it has none as it is now."""
        found: Boundary | None = getattr(tensor, "_zeroshard_boundary", None)
        if found is None or found.version != tensor._version or found.run is not run:
            found = Boundary(run, tensor._version)
            tensor.register_hook(found)
            tensor._zeroshard_boundary = found  # type: ignore[attr-defined]
        return found

    def __call__(self, grad: torch.Tensor) -> None:
        self.run.enter_backward()
        for use in reversed(self.uses):
            use.leave()
        for unit in reversed(self.makers):
            unit.reach()


class Unit:
    """A unit's parameters and gradients, as torch sees them.

    While `holds` > 0 its parameters are acquired and each parameter's data is a tensor over its
    slot; otherwise it is the placeholder.
    """

    def __init__(self, run: "Run", plan: UnitPlan, index: int, grad_dtype: str) -> None:
        self.run = run
        self.engine = run.engine
        self.name, self.module, self.index = plan.name, plan.module, index
        self.ties: list[Unit] = []
        self.places = plan.places
        self.params: list[nn.Parameter] = [place.parameter for place in plan.places]
        self.shapes = [parameter.shape for parameter in self.params]
        self.dtypes = [parameter.dtype for parameter in self.params]
        # What the engine has gradients in; torch adds up in the parameter's own type.
        self.grad_dtypes = [_GRADS.get(grad_dtype, dtype) for dtype in self.dtypes]
        self.placeholders = [placeholder_of(shape, dtype)
                             for shape, dtype in zip(self.shapes, self.dtypes)]
        self.trained = sum(place.trained for place in plan.places)
        self.frozen = len(self.params) - self.trained
        self.slots: dict[tuple[int, ...], Slot] = {}
        self.grad_slots: dict[tuple[int, ...], list[torch.Tensor | None]] = {}
        self.holds = 0
        self.slot: Slot | None = None
        # Backward comes to a unit that others lie in before them, and leaves it after them. The
        # engine, which reduces in order, would take the others' gradients as left out. So it is
        # not told that the unit was reached, and gets its gradients once all have come.
        self.outer = plan.around
        self.reached = FORWARD if plan.around else BACKWARD
        self.waiting: dict[int, torch.Tensor] = {}  # gradients, of an outer unit
        self.versions = [parameter._version for parameter in self.params]
        self.grads: list[torch.Tensor | None] | None = None  # while they are acquired
        self.back = False  # backward holds it
        self.in_place = [a == b for a, b in zip(self.grad_dtypes, self.dtypes)]
        self.handles: list[Any] = []
        self.begin()
        self.hook_parameters()

    def begin(self) -> None:
        """Nothing of a micro-step has come yet."""
        self.uses = 0  # forwards whose end in backward a Use says
        self.unwatched = False  # a forward's end in backward is not said
        self.ungraded = 0  # forwards without a graph, of a reentrant checkpoint perhaps
        self.left = 0  # of uses, how many backward has left
        self.arrived = 0  # gradients
        self.ready = False  # the gradient was declared complete
        self.recomputed = 0  # depth of the backward that recomputes it

    @property
    def label(self) -> str:
        """For messages."""
        kind = type(self.module).__name__
        return f"{self.name} ({kind})" if self.name else f"the root ({kind})"

    # Parameters

    def hold(self, pass_: int) -> None:
        """Acquire the parameters, and let torch see them."""
        for tie in self.ties:
            tie.hold(FORWARD if pass_ == BACKWARD else pass_)
        if not self.params:
            return
        addresses = self.engine.params_acquire(self.index, pass_)
        self.holds += 1
        if self.holds > 1:
            return
        slot = self.slots.get(addresses)
        if slot is None:
            slot = self._slot_at(addresses)
        self.slot = slot
        for parameter, tensor in zip(self.params, slot.tensors):
            parameter.data = tensor
        self.run.live.update(slot.live)

    def _slot_at(self, addresses: tuple[int, ...]) -> Slot:
        tensors = [tensor_at(self.engine, address, shape, dtype)
                   for address, shape, dtype in zip(addresses, self.shapes, self.dtypes)]
        slot = Slot(tensors, self)
        for tensor in tensors:
            self.run.widen(tensor.data_ptr(), tensor.nbytes)
        for parameter, tensor in zip(self.params, tensors):
            parameter.data = tensor
        slot.expected = slot.users()
        self.slots[addresses] = slot
        return slot

    def drop(self) -> None:
        """Undo one hold()."""
        if self.params:
            self.holds -= 1
            if self.holds == 0:
                self.hide()
            self.engine.params_release(self.index)
        for tie in self.ties:
            tie.drop()

    def hide(self) -> None:
        slot, live = self.slot, self.run.live
        self.slot = None
        if slot is not None:
            for address in slot.live:
                live.pop(address, None)
        for parameter, placeholder in zip(self.params, self.placeholders):
            parameter.data = placeholder

    def check_views(self) -> None:
        """Refuse views of the parameters that outlive the forward: their memory is another unit's
        soon."""
        if self.holds != 1 or self.slot is None:
            return
        users = self.slot.users()
        if users == self.slot.expected:
            return
        index = next(i for i, count in enumerate(users) if count != self.slot.expected[i])
        name = self.places[index].name
        raise RuntimeError(
            f"a view of {name} outlives the forward of {self.label}: its memory is another unit's "
            "then. Return or keep a clone(), and let autograd functions keep parameters by "
            "save_for_backward()")

    # Backward

    def hold_backward(self, pass_: int) -> None:
        """Hold the parameters for backward, once."""
        if not self.back:
            self.hold(pass_)
            self.back = True

    def has_left(self) -> bool:
        """True once backward has left all uses of the unit in this micro-step."""
        return self.left >= self.uses > 0 and not self.unwatched and self.ungraded == 0

    def reach(self) -> None:
        """Backward has come to an output of the unit, or to an input that it has passed on."""
        if not self.back and not self.has_left():
            self.hold_backward(self.reached)

    def let_go(self) -> None:
        """Backward reads the parameters no more."""
        if self.back:
            self.back = False
            self.drop()

    def leave_backward(self) -> None:
        """Backward has left one use of the unit: all nodes of that forward have run."""
        self.left += 1
        if self.has_left():
            self.declare_ready()
            self.let_go()
        elif not self.recomputed:  # else a checkpoint has views of other uses
            self.let_go()

    def declare_ready(self) -> None:
        """No more gradients come in this micro-step."""
        if self.waiting:
            grads = self.take_grads()
            for index, grad in self.waiting.items():
                to = grads[index]
                assert to is not None
                to.add_(grad)
            self.waiting.clear()
        if self.grads is not None:
            self.grads = None
            self.ready = True
            self.engine.grads_ready(self.index)

    def end_backward(self) -> None:
        """Backward is over."""
        self.declare_ready()
        self.let_go()
        self.left = 0
        self.recomputed = 0

    # Gradients

    def _late(self) -> StateError:
        return StateError(
            f"a gradient of {self.label} comes after that unit's gradient was complete; add up the "
            "losses of a micro-step and call backward() once")

    def take_grads(self) -> list[torch.Tensor | None]:
        """Acquire the gradients."""
        if self.ready:
            raise self._late()
        try:
            addresses = self.engine.grads_acquire(self.index)
        except StateError as error:
            error.add_note("units are in the order in which the model defines them; where forward "
                           "uses them in another one, give shard() units=[...] in that order")
            raise
        grads = self.grad_slots.get(addresses)
        if grads is None:
            grads = [None if address == 0 else tensor_at(self.engine, address, shape, dtype)
                     for address, shape, dtype in zip(addresses, self.shapes, self.grad_dtypes)]
            self.grad_slots[addresses] = grads
        self.grads = grads
        return grads

    def came(self, index: int, grad: torch.Tensor | None) -> None:
        """Torch has added to what it found in the parameter's grad."""
        assert grad is not None
        if self.outer:
            if self.ready:
                raise self._late()
            self.waiting[index] = grad
            return
        assert self.grads is not None
        to = self.grads[index]
        assert to is not None
        if not self.in_place[index]:
            to.add_(grad)
        elif grad is not to and grad.data_ptr() != to.data_ptr():
            to.copy_(grad)  # create_graph: torch made a new sum

    def arrive(self) -> None:
        self.run.arrived = True
        self.arrived += 1
        forwards = (1 if self.uses or self.unwatched else 0) + self.ungraded
        if self.arrived == self.trained * max(forwards, 1):
            self.declare_ready()
            # Later nodes of the unit read frozen parameters; a Use says when they have run.
            if self.frozen == 0 and (self.unwatched or self.uses == 0) and not self.recomputed:
                self.let_go()

    def hook_parameters(self) -> None:
        """Let backward add each gradient to the engine's own."""
        for index, place in enumerate(self.places):
            if place.trained:
                before, after = _gradient_hooks(weakref.ref(self), index)
                self.handles.append(place.parameter.register_hook(before))
                self.handles.append(place.parameter.register_post_accumulate_grad_hook(after))

    def close(self) -> None:
        """No hook of a parameter is there any more, and no memory of the engine is kept."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.hide()
        self.slots.clear()
        self.grad_slots.clear()


def _gradient_hooks(of: "weakref.ref[Unit]", index: int) -> tuple[Callable[..., None], ...]:
    """The hooks of a parameter before and after its gradient is added up. They keep nothing: torch
    has them where Python's collector does not look."""

    def before(_: torch.Tensor) -> None:
        unit = of()
        if unit is not None:
            unit.run.enter_backward()
            if unit.outer:
                unit.params[index].grad = unit.waiting.get(index)
                return
            grads = unit.grads
            if grads is None:
                grads = unit.take_grads()
            unit.params[index].grad = grads[index] if unit.in_place[index] else None

    def after(parameter: torch.Tensor) -> None:
        unit = of()
        if unit is not None:
            unit.came(index, parameter.grad)
            parameter.grad = unit.placeholders[index]
            unit.arrive()

    return before, after
