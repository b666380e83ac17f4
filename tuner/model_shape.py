"""The sizes of a decoder-only transformer, and how many parameters it has; no hardware."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture-of-experts part of a model."""

    num_experts: int
    """Routed experts of one layer."""
    experts_per_token: int
    """Routed experts that a token visits."""
    ffn: int
    """Inner size of one routed expert."""
    shared_ffn: int = 0
    """Inner size of the shared experts of a layer, all together; 0 = none."""
    num_dense_layers: int = 0
    """Layers that keep a plain feed-forward of ``ModelShape.ffn``; the others hold experts."""

    def __post_init__(self) -> None:
        for name in ("num_experts", "experts_per_token", "ffn"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token must be at most num_experts ({self.num_experts}), "
                f"got {self.experts_per_token}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): low-rank queries and keys."""

    q_lora_rank: int
    """0 = queries are not compressed."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCounts:
    """Weights and biases of a model, tied ones counted once; nothing is padded."""

    embedding: int
    """Of the first stage: token embeddings and learned positions."""
    head: int
    """Of the last stage: the output layer; 0 where it is tied to the embedding."""
    layers: tuple[int, ...]
    """Of every decoder layer, in order."""
    other: int
    """All the rest: the final norm above all."""
    inactive: int = 0
    """Of the routed experts that a token does not visit, summed over the layers."""
    frozen: int = 0
    """Not trained."""

    @property
    def total(self) -> int:
        """Of the whole model."""
        return self.embedding + self.head + sum(self.layers) + self.other

    @property
    def active_per_token(self) -> int:
        """That one token meets."""
        return self.total - self.inactive

    @property
    def trainable(self) -> int:
        """That the optimizer updates."""
        return self.total - self.frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder-only transformer."""

    family: str
    """The Hugging Face ``model_type``: ``llama``, ``gpt2``, ..."""
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    """Inner size of a plain feed-forward."""
    vocab: int
    max_positions: int
    """Longest sequence; 0 = unbounded."""
    gated_mlp: bool
    tied_embeddings: bool
    params: ParamCounts
    sliding_window: int = 0
    """Tokens that a query sees back in the windowed layers; 0 = all."""
    num_windowed_layers: int = 0
    """Layers that keep to ``sliding_window``; the others see everything."""
    experts: Experts | None = None
    """None = every layer is dense."""
    latent_attention: LatentAttention | None = None
    """None = queries, keys and values have heads of ``head_dim``."""

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "ffn",
            "vocab",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_key_value_heads ({self.num_kv_heads}) must divide "
                f"num_attention_heads ({self.num_heads})"
            )

    @property
    def num_params(self) -> int:
        """Weights and biases of the whole model, tied ones counted once."""
        return self.params.total
