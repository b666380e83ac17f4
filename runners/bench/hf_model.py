"""The model to train: from the launch folder's ``config.json``, or the user's own factory.

Whatever it is, ``model(tokens)`` gives logits (a tensor, or an object that has them as
``.logits``) of shape (sequences, tokens, vocabulary); the loss is ours.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from runners.bench.launch_folder import LaunchFolder
from runners.bench.weights import initial_weight


def import_model(launch: LaunchFolder) -> None:
    """Imports what defines the model: its code is no part of what a plan's memory is.

    Raises:
        ValueError: the user's factory cannot be imported.
    """
    factory = launch.training.factory
    if factory is None:
        # A type without such a model is refused with all others' names when it is built.
        MODEL_FOR_CAUSAL_LM_MAPPING.get(type(_hf_config(launch)), None)
    else:
        _imported(factory)


def model_on_meta(launch: LaunchFolder) -> nn.Module:
    """The model with its parameters on the meta device (no bytes), its buffers real."""
    with _parameters_on_meta():
        return unfilled_model(launch)


def unfilled_model(launch: LaunchFolder) -> nn.Module:
    """The model as its class builds it, with whatever weights that gives."""
    factory = launch.training.factory
    return _hf_model(launch) if factory is None else _own_model(factory)


def built_model(launch: LaunchFolder, device: torch.device) -> nn.Module:
    """The whole model on a device, with its initial weights in fp32."""
    model = model_on_meta(launch)
    fill_whole_parameters(model, seed=launch.training.seed, device=device)
    return move_buffers(model, device)


def move_buffers(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with its buffers on a device; parameters are left where they are."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
    return model


def fill_whole_parameters(model: nn.Module, *, seed: int, device: torch.device) -> None:
    """Replaces meta parameters by their initial weights, one at a time; ties stay ties."""
    fill_parameters(model.named_modules(), seed=seed, device=device)


def fill_parameters(
    named_modules: Iterable[tuple[str, nn.Module]], *, seed: int, device: torch.device
) -> None:
    """Fills the parameters that these modules own themselves; names are those in the model."""
    made: dict[int, nn.Parameter] = {}
    for prefix, module in named_modules:
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in made:
                full_name = f"{prefix}.{name}" if prefix else name
                value = initial_weight(full_name, parameter.shape, seed=seed, device=device)
                made[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
            module._parameters[name] = made[id(parameter)]


def logits_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of shape (sequences, tokens, vocabulary) for ids of shape (sequences, tokens)."""
    output: Any = model(tokens)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    assert isinstance(logits, torch.Tensor)
    return logits


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in fp32 over all targets, shape ()."""
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1)
    )


def decoder_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The model's layers by name: its longest module list; empty where it has none."""
    lists = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
    ]
    if not lists:
        return {}
    path, longest = max(lists, key=lambda item: len(item[1]))
    return {f"{path}.{index}": layer for index, layer in enumerate(longest)}


def _hf_model(launch: LaunchFolder) -> nn.Module:
    config = _hf_config(launch)
    config.use_cache = False
    _switch_dropout_off(config)
    # The attention is left to transformers: sdpa where the model has it, else its own.
    model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.train()


def _hf_config(launch: LaunchFolder) -> Any:
    return AutoConfig.for_model(**json.loads(launch.model_config_path.read_text()))


def _switch_dropout_off(config: Any) -> None:
    """Losses of different layouts are compared, so nothing may be drawn at random in them."""
    for name, value in config.to_dict().items():
        if ("drop" in name or name == "router_jitter_noise") and isinstance(value, float):
            setattr(config, name, 0.0)


def _imported(factory: str) -> Callable[[], object]:
    module_name, _, name = factory.partition(":")
    try:
        make: Callable[[], object] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"workload.model must name a factory that can be imported, got {factory}: {error}; "
            "install its package on every node"
        ) from error
    return make


def _own_model(factory: str) -> nn.Module:
    model = _imported(factory)()
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"workload.model: {factory}() must return a torch.nn.Module, got {type(model).__name__}"
        )
    return model.train()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Moves every parameter to the meta device as it is registered; buffers are left alone.

    A model that fits only when sharded can so be described on every rank. Building under
    ``torch.device("meta")`` would lose the buffers (rotary frequencies), which no file holds.
    """
    original = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        original(module, name, parameter)
        if parameter is not None and not parameter.is_meta:
            module._parameters[name] = nn.Parameter(
                parameter.detach().to("meta"), requires_grad=parameter.requires_grad
            )

    nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]
