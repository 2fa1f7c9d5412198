"""libzero for PyTorch: `model = zeroshard.torch.shard(module, world, stage=3)` shards a module's
parameters, gradients and optimizer state over ranks; docs/torch.md is the guide."""

from .sharded import Sharded, shard

__all__ = ["Sharded", "shard"]
