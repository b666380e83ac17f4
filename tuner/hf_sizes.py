"""The sizes of a transformers configuration in our own words, whatever its class calls them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tuner.model_shape import Experts, LatentAttention, ModelShape
from tuner.param_counts import NUM_EXPERTS, TOP_K, CountedModel, counted_model, setting_of

_HIDDEN = ("hidden_size", "d_model", "n_embd", "dim", "embedding_size")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
_FFN = (
    "intermediate_size_mlp",  # Llama 4: its intermediate_size is that of an expert
    "intermediate_size",
    "ffn_hidden_size",
    "decoder_ffn_dim",
    "ffn_dim",
    "n_inner",
    "feed_forward_size",
    "d_inner",
    "dff",
)
_EXPERT_FFN = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")


def shape_of(config: Any) -> ModelShape:
    """The shape of the causal language model that a transformers configuration describes.

    Counts are exact. Where an architecture has no such size (attention heads of a state-space
    model), the nearest is given: one head as wide as the model.

    Raises:
        ValueError: sizes contradict each other, or transformers cannot build the model.
    """
    whole, config = config, config.get_text_config()
    _refuse_uneven_heads(config)
    counted = counted_model(whole)
    hidden = _size(config, _HIDDEN) or counted.embedding_width
    num_heads = _size(config, _HEADS) or 1
    latent = _latent_attention(config)
    window, num_windowed = _window(config, len(counted.params.layers))
    return ModelShape(
        family=str(config.model_type),
        num_layers=max(1, len(counted.params.layers)),
        hidden=hidden,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, num_heads),
        head_dim=_head_dim(config, hidden, num_heads, latent),
        ffn=_ffn(config, hidden),
        vocab=int(config.vocab_size),
        max_positions=_max_positions(config),
        gated_mlp=counted.gated,
        tied_embeddings=counted.tied,
        params=counted.params,
        sliding_window=window,
        num_windowed_layers=num_windowed,
        experts=_experts(config, counted, hidden),
        latent_attention=latent,
    )


def _refuse_uneven_heads(config: Any) -> None:
    hidden, heads = _size(config, _HIDDEN), _size(config, _HEADS)
    if not hidden or not heads:
        return
    if hidden % heads and not _has_own_head_dim(config):
        raise ValueError(
            f"num_attention_heads ({heads}) must divide hidden_size ({hidden}); or give head_dim"
        )
    groups = _num_kv_heads(config, heads)
    if heads % groups:
        raise ValueError(
            f"num_key_value_heads ({groups}) must divide num_attention_heads ({heads})"
        )


def _has_own_head_dim(config: Any) -> bool:
    names = ("head_dim", "d_kv", "attention_head_size", "kv_lora_rank", "attention_hidden_size")
    return any(setting_of(config, (name,)) for name in names)


def _size(config: Any, names: tuple[str, ...]) -> int:
    """The first of these that is set, the largest where it is given by layer; 0 = none is."""
    value = setting_of(config, names)
    if isinstance(value, (list, tuple)):
        numbers = [item for item in value if isinstance(item, int)]
        return max(numbers, default=0)
    return int(value) if isinstance(value, (int, float)) else 0


def _num_kv_heads(config: Any, num_heads: int) -> int:
    if getattr(config, "multi_query", False) and not getattr(
        config, "new_decoder_architecture", False
    ):
        return 1  # Falcon and GPT-BigCode, whatever their other fields say
    if config.model_type == "falcon" and not getattr(config, "new_decoder_architecture", False):
        return num_heads
    attention = getattr(config, "attn_config", None)
    value = getattr(attention, "kv_n_heads", None)
    return int(value or _size(config, ("num_key_value_heads", "num_kv_heads")) or num_heads)


def _head_dim(config: Any, hidden: int, num_heads: int, latent: LatentAttention | None) -> int:
    if latent is not None:
        return latent.qk_nope_head_dim + latent.qk_rope_head_dim
    own = _size(config, ("head_dim", "attention_head_size"))
    return own or max(1, hidden // num_heads)


def _ffn(config: Any, hidden: int) -> int:
    ratio = getattr(config, "expansion_ratio", None)
    if isinstance(ratio, (int, float)) and config.model_type == "mpt":
        return int(ratio * hidden)
    return _size(config, _FFN) or _size(config, _EXPERT_FFN) or 4 * hidden


def _max_positions(config: Any) -> int:
    alibi = getattr(config, "alibi", False)
    alibi = alibi or getattr(getattr(config, "attn_config", None), "alibi", False)
    return 0 if alibi else max(0, _size(config, _POSITIONS))


def _window(config: Any, num_layers: int) -> tuple[int, int]:
    """Tokens that windowed layers see back, and how many such layers there are."""
    window = _size(config, ("sliding_window",))
    if window < 1 or getattr(config, "use_sliding_window", True) is False:
        return 0, 0
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return window, num_layers
    num_windowed = sum("sliding" in str(kind) for kind in kinds)
    return (window, num_windowed) if num_windowed else (0, 0)


def _latent_attention(config: Any) -> LatentAttention | None:
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes = {name: _size(config, (name,)) for name in names}
    if not all(sizes.values()):
        return None
    return LatentAttention(q_lora_rank=_size(config, ("q_lora_rank",)), **sizes)


def _experts(config: Any, counted: CountedModel, hidden: int) -> Experts | None:
    num_experts = _size(config, NUM_EXPERTS)
    if not num_experts or not any(counted.routed):
        return None
    matrices = 3 if counted.gated else 2
    shared = Counter(count for count in counted.shared if count).most_common(1)
    return Experts(
        num_experts=num_experts,
        experts_per_token=min(_size(config, TOP_K) or num_experts, num_experts),
        ffn=_expert_ffn(config),
        shared_ffn=shared[0][0] // (matrices * hidden) if shared else 0,
        num_dense_layers=sum(not count for count in counted.routed),
    )


def _expert_ffn(config: Any) -> int:
    own = _size(config, _EXPERT_FFN)
    return own or _size(config, ("intermediate_size", "ffn_hidden_size", "ffn_dim"))
