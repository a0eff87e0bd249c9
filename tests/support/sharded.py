"""Shard a tiny model on CPUs, and look at all of it: FSDP2 by a shim, DeepSpeed as it is."""

import os

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState, DistributedType, GradientState
from torch.distributed.tensor import DTensor

LAYER = "LlamaDecoderLayer"
ENVIRONMENT = ("ACCELERATE_USE_FSDP", "FSDP_VERSION", "ACCELERATE_USE_DEEPSPEED", "FSDP_CPU_RAM_EFFICIENT_LOADING")


def options(backend: str) -> dict:
    """Options of a trainer that shards: `fsdp full`, `fsdp sharded` (how checkpoints are saved), `zero 1`, `2` or `3`."""
    kind, what = backend.split()
    if kind == "fsdp":
        state = f"{what.upper()}_STATE_DICT"
        return {
            "fsdp": True,
            "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": [LAYER], "state_dict_type": state},
        }
    zero = {"stage": int(what), "stage3_gather_16bit_weights_on_model_save": True}
    auto = dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
        "auto",
    )
    return {"deepspeed": {"zero_optimization": zero, "zero_allow_untested_optimizer": True, **auto}}


def fsdp_on_cpus() -> None:
    """Let accelerate shard on CPUs: it leaves them out, and trains with DDP in silence (accelerate/state.py)."""
    inner = AcceleratorState.__init__

    def init(self, *args, **kwargs):
        inner(self, *args, **kwargs)
        plugin = kwargs.get("fsdp_plugin")
        if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            if self._mixed_precision != "no":
                plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = plugin

    AcceleratorState.__init__ = init


def forget() -> None:
    """Let the next trainer of this process shard otherwise."""
    if PartialState._shared_state:
        AcceleratorState._reset_state()
        GradientState._reset_state()
        if PartialState._shared_state.get("distributed_type") == DistributedType.FSDP:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_CPU
    for name in ENVIRONMENT:
        os.environ.pop(name, None)


def whole(value: torch.Tensor) -> torch.Tensor:
    """A parameter or a state of the optimizer with all its parts; on all ranks at once."""
    if isinstance(value, DTensor):
        return value.full_tensor().detach()
    if hasattr(value, "ds_id"):  # ZeRO 3
        import deepspeed

        with deepspeed.zero.GatheredParameters([value]):
            return value.detach().clone()
    return value.detach()


def sharded_by(trainer) -> str:
    """What holds the model's parameters: `DTensor`, `ZeRO n`, or `whole`."""
    parameters = list(trainer.model.parameters())
    if all(isinstance(p, DTensor) for p in parameters):
        return "DTensor"
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if plugin is not None:
        held = all(hasattr(p, "ds_id") for p in parameters)
        return f"ZeRO {plugin.zero_stage}" if held == (plugin.zero_stage == 3) else "ZeRO without parts"
    return "whole"
