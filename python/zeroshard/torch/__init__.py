"""libzero for PyTorch: `model = zeroshard.torch.shard(module, world, stage=3)` shards a module's
parameters, gradients and optimizer state over ranks; docs/torch.md is the guide."""

import torch as _torch

if not hasattr(_torch._C._autograd, "_top_saved_tensors_default_hooks"):
    raise ImportError(f"zeroshard.torch needs PyTorch 2.7 or newer, and {_torch.__version__} is "
                      "installed; pip install -U torch")

from .sharded import Sharded, shard  # noqa: E402

__all__ = ["Sharded", "shard"]
