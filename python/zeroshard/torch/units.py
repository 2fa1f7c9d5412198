"""Which modules are units, and which unit owns which parameter."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

Units = (type | Callable[[str, nn.Module], bool] |
         Iterable[type | nn.Module | str] | None)

DTYPES: dict[torch.dtype, str] = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
SHARDED = "_zeroshard_sharded"  # an attribute of modules that are units
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass(eq=False)
class Place:
    """A parameter and the unit that owns it."""

    name: str
    parameter: nn.Parameter
    holders: list[tuple[nn.Module, str]]  # where modules have it, tied ones too
    trained: bool


@dataclass(eq=False)
class UnitPlan:
    """A module whose parameters are gathered at once."""

    name: str
    module: nn.Module
    places: list[Place] = field(default_factory=list)
    ties: list["UnitPlan"] = field(default_factory=list)  # units that own parameters of it too
    depth: int = 1  # units that are held while this one is
    around: bool = False  # other units lie in it


def _is_container(module: nn.Module) -> bool:
    """True for a module that no forward is ever called of."""
    return isinstance(module, _CONTAINERS)


def _default_units(root: nn.Module) -> list[nn.Module]:
    """The children of the longest ModuleList that lies in no other, and all modules of their
    classes."""
    longest: list[nn.Module] = []
    inner: set[int] = set()
    for module in root.modules():
        children = list(module.children()) if isinstance(module, nn.ModuleList) else []
        if id(module) in inner or not children or any(map(_is_container, children)):
            continue
        inner.update(id(below) for below in module.modules())
        if len(children) > max(len(longest), 1):
            longest = children
    if not longest and isinstance(root, nn.Sequential):
        return [child for child in root.children() if not _is_container(child)]
    kinds = tuple({type(child) for child in longest})
    return [module for module in root.modules() if kinds and isinstance(module, kinds)]


def _named(root: nn.Module, name: str) -> nn.Module:
    try:
        return root.get_submodule(name)
    except AttributeError:
        raise ValueError(f"units names {name!r}, and the model has no such module; "
                         "named_modules() lists them") from None


def _modules_of(root: nn.Module, units: Units) -> list[nn.Module]:
    """What `units` means: names and modules in their order, and else as the model defines them."""
    if units is None:
        return _default_units(root)
    if isinstance(units, type):
        units = [units]
    if callable(units):
        return [module for name, module in root.named_modules() if units(name, module)]
    units, chosen = list(units), []
    for entry in units:
        if isinstance(entry, type):
            found = [module for module in root.modules() if isinstance(module, entry)]
        else:
            found = [_named(root, entry) if isinstance(entry, str) else entry]
        if not found:
            raise ValueError(f"units has {entry!r}, of which the model has no module")
        chosen += found
    if any(isinstance(entry, type) for entry in units):
        wanted = set(map(id, chosen))
        return [module for module in root.modules() if id(module) in wanted]
    return chosen


def choose(root: nn.Module, units: Units) -> list[tuple[str, nn.Module]]:
    """Names and modules of the units, the root first, the others as they are chosen."""
    wanted = {id(module): module for module in _modules_of(root, units)}
    names = {id(module): name for name, module in root.named_modules()}
    for key, module in wanted.items():
        if key not in names:
            raise ValueError(f"units has a {type(module).__name__} that is no part of the model")
        if _is_container(module):
            raise ValueError(f"units has {names[key]!r}, a {type(module).__name__}: it is never "
                             "called, so nothing would gather its parameters; give its children")
    inner = [(names[key], module) for key, module in wanted.items() if module is not root]
    return [("", root), *inner]


def _check(name: str, parameter: nn.Parameter) -> None:
    if nn.parameter.is_lazy(parameter):
        raise ValueError(f"{name} has no shape yet, as its module is lazy; run the model once on "
                         "a batch before shard()")
    if parameter.dtype not in DTYPES:
        raise ValueError(f"{name} is {parameter.dtype}; parameters are float32, bfloat16 or "
                         f"float16 (module.to(torch.float32))")
    if type(parameter.data) is not torch.Tensor or parameter.layout is not torch.strided:
        raise ValueError(f"{name} is a {type(parameter.data).__name__} of layout "
                         f"{parameter.layout}; parameters are plain dense tensors")
    if parameter.device.type not in ("cpu", "meta"):
        raise ValueError(f"{name} is on {parameter.device}; views are host memory for now, so "
                         "call module.cpu() before shard()")


def _nest(plans: list[UnitPlan]) -> None:
    """Which units are held while others are: those that a unit lies in, and those it ties to."""
    for plan in plans:
        around = [other for other in plans if other is not plan
                  and any(plan.module is inner for inner in other.module.modules())]
        for other in around:
            other.around = True
        plan.depth = 1 + sum(bool(other.places) for other in around) + len(plan.ties)


def plan_units(root: nn.Module, units: Units) -> list[UnitPlan]:
    """The units with the parameters that each owns, without those that have none: a parameter
    belongs to the innermost unit that has it, a tied one to the first of these."""
    for name, module in root.named_modules():
        if SHARDED in module.__dict__:
            raise ValueError(f"{name or 'the module'} ({type(module).__name__}) is sharded "
                             "already, and its parameters are gone; make another one")
    plans = [UnitPlan(name, module) for name, module in choose(root, units)]
    by_module = {id(plan.module): plan for plan in plans}
    owned: dict[int, tuple[UnitPlan, Place]] = {}
    seen: set[tuple[int, int]] = set()  # modules, by unit that they were met in

    def visit(module: nn.Module, path: str, plan: UnitPlan) -> None:
        plan = by_module.get(id(module), plan)
        for leaf, parameter in module._parameters.items():
            if parameter is None:
                continue
            owner, place = owned.get(id(parameter), (plan, None))
            if place is None:
                name = path + leaf
                _check(name, parameter)
                place = Place(name, parameter, [], parameter.requires_grad)
                owned[id(parameter)] = (plan, place)
                plan.places.append(place)
            elif owner is not plan and owner not in plan.ties:
                plan.ties.append(owner)
            if (module, leaf) not in place.holders:
                place.holders.append((module, leaf))
        for leaf, child in module._modules.items():
            if child is not None and (id(child), id(plan)) not in seen:
                seen.add((id(child), id(plan)))
                visit(child, f"{path}{leaf}.", plan)

    visit(root, "", plans[0])
    plans = [plan for plan in plans if plan.places or plan.ties or plan.module is root]
    _nest(plans)
    return plans
