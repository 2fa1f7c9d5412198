"""zeroshard: libzero for Python. Parameters, gradients and optimizer state of a training job,
sharded over ranks as ZeRO stages 0 to 3 do. Your code computes forward and backward, in numpy or
whatever takes its arrays; docs/python.md is the guide."""

from . import _zero
from .arrays import from_f32, random_normal, random_uniform, to_f32
from .engine import BACKWARD, EVAL, FORWARD, Engine, LoadReport, StepResult, Unit
from .errors import (CommError, CorruptError, DeadlineError, DeviceError, Error,
                     InvalidArgumentError, IoError, MismatchError, OutOfMemoryError, PoisonedError,
                     StateError, UnsupportedError)
from .model import Memory, Model, Plan, Tensor, plan
from .options import Options
from .world import World

__version__: str = _zero.version()

__all__ = [
    "BACKWARD", "EVAL", "FORWARD", "CommError", "CorruptError", "DeadlineError", "DeviceError",
    "Engine", "Error", "InvalidArgumentError", "IoError", "LoadReport", "Memory", "MismatchError",
    "Model", "Options", "OutOfMemoryError", "Plan", "PoisonedError", "StateError", "StepResult",
    "Tensor", "Unit", "UnsupportedError", "World", "from_f32", "plan", "random_normal",
    "random_uniform", "to_f32",
]
