"""What moves weights from verl's workers into the servers of the tests."""

import os

import ray
from verl.workers.rollout.base import BaseRollout


class Adapter(BaseRollout):
    """Of one rank, whose weights go to the server of the same number."""

    async def resume(self, tags):
        return None

    async def release(self):
        return None

    async def update_weights(self, weights, **kwargs):
        state = {name: tensor.detach().cpu().float().clone() for name, tensor in _pairs(weights)}
        await ray.get_actor(f"tiny_{os.environ['RANK']}").load.remote(state, kwargs.get("global_steps") or 0)


def _pairs(weights):
    return weights.items() if hasattr(weights, "items") else weights
