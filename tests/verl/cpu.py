"""verl on a CPU: a platform, a rollout engine and its servers, loaded in every process by `VERL_USE_EXTERNAL_MODULES`.

Loaded while verl is being imported, so it imports of verl only what is there by then. The server is in `server`, which imports
no verl: Ray unpickles it first.
"""

import asyncio
import contextlib
import importlib
import os
import time
from types import SimpleNamespace

import torch
from ray._private import services
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Device:
    """`torch.cpu` with what an accelerator's module has beside it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(torch.cpu, name, None)
        return found if found is not None else lambda *args, **kwargs: 0

    def current_device(self):
        return "cpu"

    def get_device_name(self, *args):
        return "cpu"

    def get_rng_state(self, *args):
        return torch.get_rng_state()

    def set_rng_state(self, state, *args):
        torch.set_rng_state(state)

    def get_device_properties(self, *args):
        return SimpleNamespace(total_memory=1 << 33, name="cpu")

    def mem_get_info(self, *args):
        return 1 << 33, 1 << 33


@PlatformRegistry.register(platform="cpu")
class Platform(PlatformBase):
    """An accelerator that is none: gloo, and devices that Ray counts as GPUs."""

    device_name, vendor_name, device_module = "cpu", "none", _Device()

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return int(os.environ.get("EXGRPO_TEST_RANKS", "1"))

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        yield

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def _nothing(self, *args, **kwargs):
        return None

    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing


_init = torch.distributed.init_process_group


def _gloo_once(*args, backend=None, **kwargs):
    """verl asks for `cpu:gloo,cpu:gloo`, which torch refuses."""
    return _init(*args, backend="gloo" if backend and "gloo" in backend else backend, **kwargs)


torch.distributed.init_process_group = _gloo_once


def _patient(get_node):
    """Ray gives its node 30 seconds to start, which are too few on a busy machine; other limits are in `support.PATIENT`."""

    def found(*args, **kwargs):
        until = time.monotonic() + 900
        while True:
            try:
                return get_node(*args, **kwargs)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(1)

    return found


services.get_node = _patient(services.get_node)


def _replica():
    import ray
    from verl.workers.rollout.replica import RolloutReplica

    from tests.verl.server import Server

    class Replica(RolloutReplica):
        """One server a rank, an actor of Ray."""

        async def launch_servers(self):
            name, path = f"tiny_{self.replica_rank}", self.model_config.path
            actor = ray.remote(Server).options(name=name, num_cpus=0, max_concurrency=64)
            self._server_handle = actor.remote(path, self.replica_rank)
            self.servers = [self._server_handle]
            await asyncio.gather(*[server.ready.remote() for server in self.servers])
            self._server_address = name

    return Replica


def register_rollout():
    """Register the engine, once verl's registries are there."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("tiny", _replica)
    base._ROLLOUT_REGISTRY["tiny", "async"] = "tests.verl.adapter.Adapter"


from exgrpo.verl.plugin import after  # noqa: E402

after("verl.workers.rollout.replica", register_rollout)
after("verl.experimental.agent_loop", lambda: importlib.import_module("tests.verl.agent"))
