"""A model from Megatron-LM arguments, as the Hugging Face model nearest to it, family by family.

The options and their defaults are those of ``pretrain_gpt.py``, core 0.16.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tuner.errors import UserError
from tuner.hf_file import hf_model_of
from tuner.megatron_arguments import MegatronArguments, megatron_options
from tuner.workload import HfModel

_TOKENIZER_VOCABS = {"GPT2BPETokenizer": 50257}
"""Vocabularies that follow from the tokenizer's type alone."""
_NULLS = ("q_lora_rank", "sliding_window")
"""Fields that say "none" by null; any other null is a field that the family does not have."""


def megatron_model(text: str, *, name: str, named: str) -> HfModel:
    """The model of an argument list or a script.

    Args:
        text: arguments, or a shell script that holds them, with its variables.
        name: for reports.
        named: the file and key that asked for it, for messages.

    Raises:
        UserError: an argument is missing or wrong, or no Hugging Face model is like it.
    """
    try:
        values = hf_values(megatron_options(text))
    except ValueError as error:
        raise UserError(f"{named}: {error}") from error
    return hf_model_of(values, name=name, named=named)


def hf_values(options: Mapping[str, str]) -> dict[str, Any]:
    """The ``config.json`` of the Hugging Face model of these options.

    Raises:
        ValueError: an option is missing or wrong, or no Hugging Face model is like it.
    """
    arguments = MegatronArguments(options)
    values = _sizes(arguments)
    _refuse_inexpressible(arguments)
    family = _family_builder(arguments)(arguments, values)
    kept = values | family
    return {name: value for name, value in kept.items() if value is not None or name in _NULLS}


def _sizes(arguments: MegatronArguments) -> dict[str, Any]:
    hidden = arguments.whole("--hidden-size")
    heads = arguments.whole("--num-attention-heads")
    channels = arguments.whole("--kv-channels", hidden // heads or 1)
    gated = arguments.has("--swiglu")
    # Megatron's own default: 4 h, and two thirds of it to a multiple of 64 with a gate.
    ffn = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    # Megatron wants both; an argument list of the model alone may lack the sequence length.
    lengths = [
        name for name in ("--max-position-embeddings", "--seq-length") if arguments.has(name)
    ]
    return {
        "num_hidden_layers": arguments.whole("--num-layers"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": arguments.whole("--num-query-groups", 1)
        if arguments.has("--group-query-attention")
        else heads,
        "head_dim": channels,
        "intermediate_size": arguments.whole("--ffn-hidden-size", max(ffn, 1)),
        "vocab_size": _vocab(arguments),
        "max_position_embeddings": arguments.whole((*lengths, "--max-position-embeddings")[0]),
        "tie_word_embeddings": not arguments.has("--untie-embeddings-and-output-weights"),
    }


def _vocab(arguments: MegatronArguments) -> int:
    tokenizer = arguments.word("--tokenizer-type", "")
    if not arguments.has("--vocab-size") and tokenizer in _TOKENIZER_VOCABS:
        return _TOKENIZER_VOCABS[tokenizer]
    if not arguments.has("--vocab-size"):
        raise ValueError(
            f"--vocab-size must be given unless the tokenizer is {', '.join(_TOKENIZER_VOCABS)}, "
            f"got tokenizer {tokenizer or 'none'}; add --vocab-size"
        )
    return arguments.whole("--vocab-size")


def _refuse_inexpressible(arguments: MegatronArguments) -> None:
    for option, why in (
        ("--mtp-num-layers", "heads that predict several tokens"),
        ("--hybrid-override-pattern", "state-space layers"),
        ("--is-hybrid-model", "state-space layers"),
        ("--experimental-attention-variant", "that kind of attention"),
        ("--spec", "layers of your own"),
        ("--yaml-cfg", "a configuration in another file"),
    ):
        if arguments.has(option):
            raise ValueError(
                f"{option} must be absent, because {why} cannot be read from Megatron-LM "
                "arguments here; give the model's config.json instead"
            )


_Builder = Callable[[MegatronArguments, Mapping[str, Any]], dict[str, Any]]


def _family_builder(arguments: MegatronArguments) -> _Builder:
    kind = arguments.word("--position-embedding-type", "learned_absolute")
    if arguments.has("--use-rotary-position-embeddings"):
        kind = "rope"
    if kind == "learned_absolute":
        return _gpt2
    if kind != "rope":
        raise ValueError(
            f"--position-embedding-type must be learned_absolute or rope, got {kind}; no Hugging "
            "Face model that is known here has it"
        )
    if arguments.has("--multi-latent-attention"):
        return _deepseek
    if arguments.has("--num-experts"):
        return _mixture
    return _gated if arguments.has("--swiglu") else _ungated


def _gpt2(arguments: MegatronArguments, sizes: Mapping[str, Any]) -> dict[str, Any]:
    broken = [
        option
        for option in (
            *("--swiglu", "--squared-relu", "--num-experts", "--disable-bias-linear"),
            *("--qk-layernorm", "--multi-latent-attention"),
        )
        if arguments.has(option)
    ]
    if arguments.word("--normalization", "LayerNorm") != "LayerNorm":
        broken.append("--normalization RMSNorm")
    if sizes["num_key_value_heads"] != sizes["num_attention_heads"]:
        broken.append("--group-query-attention")
    if sizes["head_dim"] * sizes["num_attention_heads"] != sizes["hidden_size"]:
        broken.append("--kv-channels")
    if broken:
        raise ValueError(
            "--position-embedding-type must be rope with " + ", ".join(broken) + ", got "
            "learned_absolute (the default): only GPT-2 is like that in Hugging Face, without "
            "these options"
        )
    return {
        "model_type": "gpt2",
        **{name: None for name in sizes if name not in ("vocab_size", "tie_word_embeddings")},
        "n_layer": sizes["num_hidden_layers"],
        "n_embd": sizes["hidden_size"],
        "n_head": sizes["num_attention_heads"],
        "n_inner": sizes["intermediate_size"],
        "n_positions": sizes["max_position_embeddings"],
        "layer_norm_epsilon": _epsilon(arguments),
        "activation_function": "gelu_new",
    }


def _epsilon(arguments: MegatronArguments) -> float:
    return arguments.number("--norm-epsilon", arguments.number("--layernorm-epsilon", 1e-5))


def _rope(arguments: MegatronArguments) -> dict[str, Any]:
    values: dict[str, Any] = {"rope_theta": arguments.number("--rotary-base", 10000.0)}
    if arguments.has("--use-rope-scaling"):
        values["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": arguments.number("--rope-scaling-factor", 8.0),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return values


def _gated(arguments: MegatronArguments, sizes: Mapping[str, Any]) -> dict[str, Any]:
    has_bias = not arguments.has("--disable-bias-linear")
    qkv_bias, qk_norm = arguments.has("--add-qkv-bias"), arguments.has("--qk-layernorm")
    values = _rope(arguments) | {"hidden_act": "silu", "rms_norm_eps": _epsilon(arguments)}
    if arguments.word("--normalization", "LayerNorm") == "LayerNorm":
        return _stablelm(arguments, values, sizes)
    window = _window(arguments)
    wanted = (has_bias, qkv_bias and not has_bias, qk_norm, window is not None)
    families: dict[tuple[bool, ...], dict[str, Any]] = {
        (False, False, False, False): {"model_type": "llama"},
        (True, False, False, False): {
            "model_type": "llama",
            "attention_bias": True,
            "mlp_bias": True,
        },
        (False, True, False, False): {"model_type": "qwen2"},
        (False, False, True, False): {"model_type": "qwen3"},
        (False, False, False, True): {"model_type": "mistral", "sliding_window": window},
    }
    if wanted not in families:
        raise ValueError(
            "at most one of linear biases, --add-qkv-bias, --qk-layernorm and --window-size must "
            "be used with --swiglu, got several, which no Hugging Face model known here has; add "
            "--disable-bias-linear or give a config.json"
        )
    return values | families[wanted]


def _window(arguments: MegatronArguments) -> int | None:
    if not arguments.has("--window-size"):
        return None
    text = arguments.options["--window-size"].split(",")[0].strip("()[] ")
    if not text.isdigit():
        raise ValueError(f"--window-size must be two numbers such as 4095,0, got {text!r}")
    return int(text) + 1  # Megatron counts the tokens before the query, Hugging Face it too


def _stablelm(
    arguments: MegatronArguments, values: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    even = sizes["head_dim"] * sizes["num_attention_heads"] == sizes["hidden_size"]
    options = ("--qk-layernorm", "--window-size")
    if not arguments.has("--disable-bias-linear") or any(map(arguments.has, options)) or not even:
        raise ValueError(
            "--normalization must be RMSNorm with --swiglu and rope unless --disable-bias-linear "
            "is given alone (StableLM), got LayerNorm (the default); add --normalization RMSNorm"
        )
    return {
        **values,
        "model_type": "stablelm",
        "use_qkv_bias": arguments.has("--add-qkv-bias"),
        "partial_rotary_factor": arguments.number("--rotary-percent", 1.0),
        "layer_norm_eps": _epsilon(arguments),
        "rms_norm_eps": None,
        "head_dim": None,
    }


def _ungated(arguments: MegatronArguments, sizes: Mapping[str, Any]) -> dict[str, Any]:
    act = "relu2" if arguments.has("--squared-relu") else "gelu"
    rms = arguments.word("--normalization", "LayerNorm") == "RMSNorm"
    has_bias = not arguments.has("--disable-bias-linear")
    if arguments.has("--qk-layernorm") or (arguments.has("--add-qkv-bias") and not has_bias):
        raise ValueError(
            "--swiglu must be given with --qk-layernorm or --add-qkv-bias, got neither a gate nor "
            "a Hugging Face model that is like it; give a config.json"
        )
    values = _rope(arguments) | {"hidden_act": act}
    if rms:
        bias = {"attention_bias": has_bias, "mlp_bias": has_bias}
        return values | {"model_type": "arcee", "rms_norm_eps": _epsilon(arguments), **bias}
    if not has_bias:
        rotary = {"partial_rotary_factor": arguments.number("--rotary-percent", 1.0)}
        return values | {"model_type": "nemotron", "norm_eps": _epsilon(arguments), **rotary}
    if sizes["head_dim"] * sizes["num_attention_heads"] != sizes["hidden_size"]:
        raise ValueError(
            "--kv-channels must be hidden size / heads with LayerNorm and biases, "
            f"got {sizes['head_dim']}; leave it out"
        )
    return values | {
        "model_type": "starcoder2",
        "norm_epsilon": _epsilon(arguments),
        "use_bias": True,
        "sliding_window": _window(arguments),
        "head_dim": None,
    }


def _mixture(arguments: MegatronArguments, sizes: Mapping[str, Any]) -> dict[str, Any]:
    _must_be_modern(arguments)
    ffn = arguments.whole("--moe-ffn-hidden-size", sizes["intermediate_size"])
    shared = arguments.whole("--moe-shared-expert-intermediate-size", 1)
    has_shared = arguments.has("--moe-shared-expert-intermediate-size")
    values = _rope(arguments) | {
        "rms_norm_eps": _epsilon(arguments),
        "num_experts_per_tok": arguments.whole("--moe-router-topk", 2),
    }
    experts = arguments.whole("--num-experts")
    qkv_bias, qk_norm = arguments.has("--add-qkv-bias"), arguments.has("--qk-layernorm")
    frequency = arguments.word("--moe-layer-freq", "1")
    if frequency != "1":
        raise ValueError(
            f"--moe-layer-freq must be 1 without --multi-latent-attention, got {frequency}; give "
            "a config.json"
        )
    if has_shared and not qk_norm:
        return values | {
            "model_type": "qwen2_moe",
            "num_experts": experts,
            "moe_intermediate_size": ffn,
            "shared_expert_intermediate_size": shared,
            "qkv_bias": qkv_bias,
            "sliding_window": None,
        }
    if qk_norm and not has_shared and not qkv_bias:
        return values | {
            "model_type": "qwen3_moe",
            "num_experts": experts,
            "moe_intermediate_size": ffn,
        }
    if qkv_bias or qk_norm:
        raise ValueError(
            "--add-qkv-bias or --qk-layernorm must go with the experts of Qwen 2 (shared) or "
            "Qwen 3 (none shared), got another mixture, which no Hugging Face model known here "
            "has; give a config.json"
        )
    mixtral = {"model_type": "mixtral", "num_local_experts": experts, "intermediate_size": ffn}
    return values | mixtral | {"sliding_window": _window(arguments)}


def _must_be_modern(arguments: MegatronArguments) -> None:
    missing = [
        option for option in ("--swiglu", "--disable-bias-linear") if not arguments.has(option)
    ]
    if arguments.word("--normalization", "LayerNorm") != "RMSNorm":
        missing.append("--normalization RMSNorm")
    if missing:
        raise ValueError(
            f"{', '.join(missing)} must be given with experts or latent attention, got none: every "
            "Hugging Face mixture known here has it; add it or give a config.json"
        )


def _deepseek(arguments: MegatronArguments, sizes: Mapping[str, Any]) -> dict[str, Any]:
    _must_be_modern(arguments)
    layers = int(sizes["num_hidden_layers"])
    shared = arguments.whole("--moe-shared-expert-intermediate-size", 1)
    experts = {}
    dense = layers
    if arguments.has("--num-experts"):
        dense = _num_dense(arguments.word("--moe-layer-freq", "1"), layers)
        ffn = arguments.whole("--moe-ffn-hidden-size", sizes["intermediate_size"])
        if shared % ffn or not arguments.has("--moe-shared-expert-intermediate-size"):
            raise ValueError(
                "--moe-shared-expert-intermediate-size must be a multiple of the experts' width "
                f"({ffn}) with --multi-latent-attention, got "
                f"{arguments.word('--moe-shared-expert-intermediate-size', 'none')}"
            )
        experts = {
            "n_routed_experts": arguments.whole("--num-experts"),
            "num_experts_per_tok": arguments.whole("--moe-router-topk", 2),
            "moe_intermediate_size": ffn,
            "n_shared_experts": shared // ffn,
            "n_group": arguments.whole("--moe-router-num-groups", 1),
            "topk_group": arguments.whole("--moe-router-group-topk", 1),
        }
    lora = arguments.options.get("--q-lora-rank")
    return {
        **_rope(arguments),
        **experts,
        "model_type": "deepseek_v3",
        "head_dim": None,
        "rms_norm_eps": _epsilon(arguments),
        "num_key_value_heads": sizes["num_attention_heads"],
        "first_k_dense_replace": dense,
        "q_lora_rank": arguments.whole("--q-lora-rank") if lora else None,
        "kv_lora_rank": arguments.whole("--kv-lora-rank", 32),
        "qk_nope_head_dim": arguments.whole("--qk-head-dim", 128),
        "qk_rope_head_dim": arguments.whole("--qk-pos-emb-head-dim", 64),
        "v_head_dim": arguments.whole("--v-head-dim", 128),
    }


def _num_dense(frequency: str, layers: int) -> int:
    """Dense first layers of ``--moe-layer-freq``: ``1`` or a list such as ``([0]*3+[1]*58)``."""
    if frequency == "1":
        return 0
    pattern: list[int] = []
    for digit, times in re.findall(r"\[\s*([01])\s*\]\s*(?:\*\s*(\d+))?", frequency):
        pattern += [int(digit)] * min(int(times or 1), layers + 1)
        if len(pattern) > layers:
            break
    dense = pattern.count(0)
    if len(pattern) != layers or pattern != [0] * dense + [1] * (layers - dense):
        raise ValueError(
            "--moe-layer-freq must be 1 or dense layers first, as [0]*3+[1]*58 for "
            f"{layers} layers, got {frequency}"
        )
    return dense
