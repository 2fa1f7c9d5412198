"""The options of plans and engines, by the library's own names (docs/options.md)."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import _zero
from .world import World

_NAMES: dict[str, tuple[str, str, int, bool]] = {row[0]: row[1:] for row in _zero.options_table()}
_POINTER = 8
_BOUND = ("disk_directories", "disk_weights", "model_parallel")


def _text(value: Any) -> str:
    """A value as the table of options reads it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={what}" for key, what in value.items())
    return str(value)


class Options:
    """How a model is sharded, in which types and with how much memory: stage=3, grad_dtype="bf16",
    tier={"moment1": "disk"}, look_ahead=2, and so on.

    - Names are those of zero_engine_options and zero_tuning; docs/options.md lists both with their
      values and defaults. What is not given has its default, and stage is 3.
    - Numbers of bytes may be text with K, M or G. disk_directories is a list of paths, disk_weights
      a list of numbers, model_parallel a World. An optimizer of the caller's own has no binding.
    - Errors: TypeError for a name that is no option; InvalidArgumentError for a value, with what
      would do. What fits together is checked where the options are used.
    """

    def __init__(self, **values: Any) -> None:
        self._options = _zero.Options()
        for name, value in values.items():
            self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        if name not in _NAMES:
            raise TypeError(f"{name} is no option; docs/options.md lists them, and so does "
                            "zeroshard.Options.names()")
        if name == "disk_directories":
            paths: Iterable[Any] = [value] if isinstance(value, (str, os.PathLike)) else value
            self._options.set_directories([os.fspath(path) for path in paths])
        elif name == "disk_weights":
            self._options.set_weights(list(value))
        elif name == "model_parallel":
            if not isinstance(value, World):
                raise TypeError(f"model_parallel is {value!r}; give a zeroshard.World")
            self._options.set_model_parallel(value._world)
        elif _NAMES[name][2] == _POINTER and name not in _BOUND:
            raise TypeError(f"{name} is a pointer of C, which Python cannot give")
        else:
            self._options.set(name, _text(value))

    def as_dict(self) -> dict[str, str]:
        """Every option that is no pointer, as text."""
        return dict(self._options.values())

    @staticmethod
    def names() -> dict[str, str]:
        """Every option's name and effect."""
        return {name: row[0] for name, row in _NAMES.items()}


def options_of(options: Options | None, values: Mapping[str, Any]) -> Options:
    """One set of options of two ways to give them."""
    if options is None:
        return Options(**values)
    if values:
        raise TypeError(f"options and {', '.join(values)} are given; put all of them into options")
    return options
