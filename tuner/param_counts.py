"""How many weights and biases a causal language model has, counted on the meta device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.model_shape import ParamCounts

TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
)
"""How configurations call the routed experts that a token visits."""
NUM_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
"""How they call the routed experts of a layer."""
_LAYER_NAMES = ("layers", "layer", "h", "blocks")
_POSITION_WORDS = ("position", "wpe", "embed_pos")
_GATE_NAMES = {"gate_proj", "gate_up_proj", "w1", "v1", "fc_3", "input_linear", "Wi"}
"""First matrices of a gated feed-forward, as the model classes of transformers call them."""
_PLAIN_W1 = ("w2", "w3")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedModel:
    """What a model built on the meta device tells: its counts, and what its layers hold."""

    params: ParamCounts
    embedding_width: int
    """Columns of the token embedding; 0 = it has none."""
    routed: tuple[int, ...]
    """Parameters of the routed experts of every layer; 0 = a dense layer."""
    shared: tuple[int, ...]
    """Parameters of the shared experts of every layer."""
    gated: bool
    """A feed-forward has a gate beside its first matrix."""
    tied: bool
    """The output layer shares its matrix with the token embedding."""


def counted_model(config: Any) -> CountedModel:
    """The causal language model of a transformers configuration, counted.

    transformers builds it, on the meta device: nothing is allocated and nothing is computed.

    Raises:
        ValueError: transformers cannot build it.
    """
    model = _meta_model(config)
    lists = _layer_lists(model, config)
    num_layers = len(next(iter(lists.values()), ()))
    sums = _Sums(layers=[0] * num_layers, routed=[0] * num_layers, shared=[0] * num_layers)
    embedding = model.get_input_embeddings()
    tokens = {id(p) for p in embedding.parameters()} if embedding is not None else set()
    head = {id(p) for p in _head_params(model)}
    for name, param in model.named_parameters():  # tied weights once, under their first name
        count = param.numel()
        layer = _layer_of(name, lists)
        if not param.requires_grad:
            sums.frozen += count
        if layer is not None:
            sums.layers[layer] += count
            _count_experts(sums, name, param, config, layer)
        elif id(param) in tokens or _is_position(name):
            sums.embedding += count
        elif id(param) in head:
            sums.head += count
        else:
            sums.other += count
    return CountedModel(
        params=sums.counts(),
        embedding_width=int(getattr(embedding, "embedding_dim", 0) or 0),
        routed=tuple(sums.routed),
        shared=tuple(sums.shared),
        gated=_is_gated(model),
        tied=bool(tokens & head),
    )


@dataclass(slots=True, kw_only=True)
class _Sums:
    layers: list[int]
    routed: list[int]
    shared: list[int]
    embedding: int = 0
    head: int = 0
    other: int = 0
    inactive: int = 0
    frozen: int = 0

    def counts(self) -> ParamCounts:
        return ParamCounts(
            embedding=self.embedding,
            head=self.head,
            layers=tuple(self.layers),
            other=self.other,
            inactive=self.inactive,
            frozen=self.frozen,
        )


def _meta_model(config: Any) -> Any:
    from transformers import AutoModelForCausalLM, modeling_utils

    # transformers' own torch: the describing half imports none, and needs it for a device only.
    with modeling_utils.torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config)
        except Exception as error:  # what the model classes raise for sizes that do not go together
            said = " ".join(str(error).split())
            raise ValueError(f"transformers cannot build a model of these sizes: {said}") from error


def _layer_lists(model: Any, config: Any) -> dict[str, Sequence[Any]]:
    """The lists that hold the decoder layers, by name; XLM has four side by side.

    They are the outermost lists as long as the configuration says, or else the largest of one
    length: a few configurations count half layers, or the layers of an encoder.
    """
    lists = dict(_outermost_lists(model))
    num_params: dict[int, int] = {}
    for layers in lists.values():
        count = sum(p.numel() for p in layers.parameters())
        num_params[len(layers)] = num_params.get(len(layers), 0) + count
    if not num_params:
        return {}
    asked = setting_of(config.get_text_config(), ("num_hidden_layers",))
    length = max(num_params, key=lambda size: (size == asked, num_params[size]))
    found = {f"{name}.": layers for name, layers in lists.items() if len(layers) == length}
    usual = {name: layers for name, layers in found.items() if name.split(".")[-2] in _LAYER_NAMES}
    return usual or found


def _outermost_lists(model: Any) -> Iterator[tuple[str, Any]]:
    found: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if type(module).__name__ == "ModuleList" and len(module) and not inside:
            found.append(name)
            yield name, module


def _layer_of(name: str, lists: dict[str, Sequence[Any]]) -> int | None:
    for prefix in lists:
        if name.startswith(prefix):
            return int(name[len(prefix) :].split(".", 1)[0])
    return None


def _head_params(model: Any) -> list[Any]:
    try:
        head = model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        head = None
    return list(head.parameters()) if head is not None else []


def _is_position(name: str) -> bool:
    return any(word in part for part in name.split(".") for word in _POSITION_WORDS)


def _count_experts(sums: _Sums, name: str, param: Any, config: Any, layer: int) -> None:
    parts = name.split(".")
    if any("shared" in part for part in parts):
        if not any(part.endswith("_gate") for part in parts) and param.dim() > 1:
            sums.shared[layer] += param.numel()
        return
    if any(part in ("router", "gate") for part in parts) or param.dim() < 2:
        return
    num_experts = _of_layer(setting_of(config, NUM_EXPERTS), layer)
    stacked = param.dim() == 3 and param.shape[0] == num_experts
    if "experts" not in parts and not stacked:
        return
    size = param.shape[0] if param.dim() == 3 else num_experts
    visited = min(_of_layer(setting_of(config, TOP_K), layer) or size, size)
    sums.routed[layer] += param.numel()
    sums.inactive += param.numel() - param.numel() * visited // size


def setting_of(config: Any, names: Sequence[str]) -> Any:
    """The first of these that a configuration has set, in itself or its feed-forward's part."""
    for part in (config, getattr(config, "ffn_config", None)):
        for name in names:
            value = _attribute(part, name)
            if value is not None and not isinstance(value, bool):
                return value
    return None


def _attribute(config: Any, name: str) -> Any:
    """An attribute; a list where every layer has its own, which transformers refuses to give."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        layers = config.per_layer_config
        return [getattr(layers[i], name, None) for i in range(len(layers))]


def _of_layer(value: Any, layer: int) -> int:
    """A size, which some configurations give for every layer; 0 = not given."""
    if isinstance(value, (list, tuple)):
        return int(value[layer] or 0) if layer < len(value) else 0
    return int(value or 0)


def _is_gated(model: Any) -> bool:
    names = {part for name, _ in model.named_parameters() for part in name.split(".")}
    if "w1" in names:
        return all(name in names for name in _PLAIN_W1)
    return bool(names & _GATE_NAMES)
