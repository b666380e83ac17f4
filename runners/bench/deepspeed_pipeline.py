"""Trains with DeepSpeed's pipeline engine: the model as a list of layers, cut into stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn
from torch.utils.checkpoint import checkpoint

from runners.bench.data import microbatch
from runners.bench.deepspeed_facts import engine_facts
from runners.bench.deepspeed_recompute import core_recompute_of, recompute_in
from runners.bench.hf_model import fill_parameters, model_on_meta, move_buffers, token_loss
from runners.bench.launch_folder import LaunchFolder
from runners.bench.pytorch_stage import refuse_short_window
from tuner.plan import Recompute


class PipelineEnd(nn.Module):
    """A part before the first or after the last decoder layer."""

    def __init__(self, name: str, part: nn.Module, seed: int, device: torch.device) -> None:
        super().__init__()
        _fill(name, part, seed, device)
        self.part = part

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Whatever the part makes of tokens or hidden states."""
        outputs: torch.Tensor = self.part(inputs)
        return outputs


class PipelineLayer(nn.Module):
    """One decoder layer; rotary embeddings are made anew in each, only hidden states travel."""

    def __init__(
        self, name: str, layer: nn.Module, rotary: nn.Module, seed: int, device: torch.device
    ) -> None:
        super().__init__()
        _fill(name, layer, seed, device)
        self.layer = layer
        self.rotary = move_buffers(rotary, device)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Hidden states of shape (sequences, tokens, hidden), in and out."""
        positions = torch.arange(states.shape[1], device=states.device).unsqueeze(0)
        rotary = self.rotary(states, position_ids=positions)
        # Without a mask, scaled_dot_product_attention is causal.
        outputs: torch.Tensor = self.layer(
            states, attention_mask=None, position_ids=positions, position_embeddings=rotary
        )
        return outputs


def _fill(name: str, part: nn.Module, seed: int, device: torch.device) -> None:
    inner = [(f"{name}.{n}" if n else name, module) for n, module in part.named_modules()]
    fill_parameters(inner, seed=seed, device=device)


def _layer_specs(launch: LaunchFolder, device: torch.device) -> list[LayerSpec]:
    """Layers that only the stage which owns them fills with weights."""
    whole: Any = model_on_meta(launch)
    refuse_short_window(whole.config, launch.training.seq_len)
    recompute_in(whole, launch.training.recompute)
    seed = launch.training.seed
    ends = {
        "model.embed_tokens": whole.model.embed_tokens,
        "model.norm": whole.model.norm,
        "lm_head": whole.lm_head,
    }
    spec = {name: LayerSpec(PipelineEnd, name, part, seed, device) for name, part in ends.items()}
    layers = [
        LayerSpec(
            PipelineLayer, f"model.layers.{index}", layer, whole.model.rotary_emb, seed, device
        )
        for index, layer in enumerate(whole.model.layers)
    ]
    return [spec["model.embed_tokens"], *layers, spec["model.norm"], spec["lm_head"]]


def _recomputed(function: Any, *inputs: torch.Tensor) -> Any:
    return checkpoint(function, *inputs, use_reentrant=False)


class DeepSpeedPipelineTraining:
    """Whole optimizer steps of DeepSpeed's pipeline engine."""

    def __init__(
        self, launch: LaunchFolder, config: Mapping[str, Any], device: torch.device
    ) -> None:
        self._training = launch.training
        self._device = device
        pipeline = config["pipeline"]
        module = PipelineModule(
            layers=_layer_specs(launch, device),
            num_stages=pipeline["stages"],
            partition_method=pipeline["partition"],
            activation_checkpoint_interval=pipeline["activation_checkpoint_interval"],
            activation_checkpoint_func=_recomputed,
            checkpointable_layers=["PipelineLayer"],
            loss_fn=token_loss,
        )
        self._engine, _, _, _ = deepspeed.initialize(model=module, config=dict(config))
        self._loss = torch.zeros((), device=device)

    def step(self, index: int) -> None:
        """One optimizer step over global batch ``index``."""
        self._loss = self._engine.train_batch(data_iter=self._microbatches(index))

    def _microbatches(self, index: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This data-parallel rank's micro-batches, the same on its first and last stage."""
        size = self._engine.train_micro_batch_size_per_gpu()
        count = self._engine.gradient_accumulation_steps()
        data_rank = self._engine.grid.get_data_parallel_rank()
        for number in range(count):
            inputs, targets = microbatch(
                seed=self._training.seed,
                step=index,
                first_sample=(data_rank * count + number) * size,
                num_samples=size,
                seq_len=self._training.seq_len,
                vocab=self._training.vocab,
            )
            yield inputs.to(self._device), targets.to(self._device)

    def run_microbatches(self, count: int) -> None:
        """The engine makes a schedule of so many for every step."""
        size = self._engine.train_micro_batch_size_per_gpu()
        self._engine.set_train_batch_size(count * size * self._engine.dp_world_size)

    def bytes_of_microbatch(self) -> int:
        """Its buffers are as many as micro-batches are under way at once."""
        return 0

    def loss(self) -> float:
        """Mean over the global batch, which the engine has sent to all ranks."""
        return float(self._loss)

    def effective(self) -> dict[str, Any]:
        """Read from the engine and its grid."""
        grid = self._engine.grid
        interval = self._engine.module.activation_checkpoint_interval
        return {
            **engine_facts(self._engine),
            "pp": int(grid.get_pipe_parallel_world_size()),
            "num_microbatches": int(self._engine.gradient_accumulation_steps()),
            "data_parallel": int(grid.get_data_parallel_world_size()),
            "recompute": str(
                Recompute.FULL if interval else core_recompute_of(self._engine.module)
            ),
        }
