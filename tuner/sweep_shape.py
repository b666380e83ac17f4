"""What a recorded row says of its model and program: columns, config.json, Megatron arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from tuner.cost_model.activations import LOSS_BYTES_FUSED
from tuner.cost_model.software import Attention, Software
from tuner.errors import UserError
from tuner.hf_apart import read_here
from tuner.hf_file import hf_model
from tuner.model_shape import Experts, LatentAttention, ModelShape, ParamCounts
from tuner.units import MOST_COUNT, MOST_LAYERS

GATED_FAMILIES = ("llama", "mistral", "mixtral", "qwen", "deepseek", "gemma", "phi")
"""Models whose feed-forward is gated where no column says; others: gated unless ffn is 4 hidden."""
_MATERIALISED = ("no", "none", "0", "false", "unfused", "local", "eager", "math", "off")
_GPT2_VOCAB = 50257
_MOST_PARAMS = 2**53
"""Of any cell: the next whole number is no double any more."""
DEEPEST_PIPELINE = 4096
"""More stages than any model has layers; a table of stages is kept for every depth."""
_MOST_LAYOUT = MOST_LAYERS
"""Characters of a pipeline layout once its repetitions are written out."""


class RowProblem(ValueError):
    """Why a row cannot be answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """What a row's columns say of the model and the program."""

    shape: ModelShape
    software: Software


def row_facts(cells: Mapping[str, str], folder: Path) -> RowFacts:
    """The shape and the program of a row.

    Raises:
        RowProblem: a size is missing, with its name.
    """
    arguments = megatron_arguments(cells)
    if cells.get("config") and not _has_sizes(cells):
        shape = _shape_of_config(folder / cells["config"])
    else:
        shape = _shape_of_columns(cells, arguments)
    return RowFacts(shape=shape, software=_software(cells, arguments))


@lru_cache(maxsize=64)
def _shape_of_config(path: Path) -> ModelShape:
    """Of a file that many rows name; transformers takes its time over each."""
    read_here()
    try:
        return hf_model(path, named="column config", relative_to="table").shape
    except UserError as error:
        raise RowProblem(str(error)) from error


def whole(cells: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A cell as a whole number.

    Raises:
        RowProblem: blank without a default, or not a positive whole number.
    """
    text = (cells.get(name) or "").strip()
    if not text:
        if default is None:
            raise RowProblem(f"{name} is missing")
        return default
    try:
        value = float(text)
    except ValueError:
        raise RowProblem(f"{name} is not a number") from None
    if not isfinite(value) or value != int(value) or value < 0:
        raise RowProblem(f"{name} is not a whole number")
    if value > (MOST_LAYERS if name == "layers" else _MOST_PARAMS):
        raise RowProblem(f"{name} is too large")
    return int(value)


def _has_sizes(cells: Mapping[str, str]) -> bool:
    return all((cells.get(name) or "").strip() for name in ("hidden", "layers", "heads"))


def megatron_arguments(cells: Mapping[str, str]) -> Mapping[str, Any]:
    """Megatron's arguments in a row's ``megatron_args`` column; none where there is none."""
    text = cells.get("megatron_args") or ""
    if not text.strip():
        return {}
    try:
        values = json.loads(text)
    except ValueError:
        raise RowProblem("megatron_args is not JSON") from None
    return values if isinstance(values, dict) else {}


def whole_argument(arguments: Mapping[str, Any], name: str, default: int = 0) -> int:
    """A whole number of a row's Megatron arguments; the default where it is missing or null.

    Raises:
        RowProblem: it is something else, below 0, or out of all bounds.
    """
    value = arguments.get(name)
    if value is None:
        return default
    text = str(value).removesuffix(".0")
    if isinstance(value, bool) or not text.isdecimal():
        raise RowProblem(f"megatron_args: {name} is not a whole number")
    if len(text) > len(str(MOST_COUNT)) or int(text) > MOST_COUNT:
        raise RowProblem(f"megatron_args: {name} is too large")
    return int(text)


def _drops_out(arguments: Mapping[str, Any]) -> bool:
    try:
        return float(arguments.get("hidden-dropout", 0.1)) > 0
    except (TypeError, ValueError):
        raise RowProblem("megatron_args: hidden-dropout is not a number") from None


def _shape_of_columns(cells: Mapping[str, str], arguments: Mapping[str, Any]) -> ModelShape:
    hidden, layers = whole(cells, "hidden"), whole(cells, "layers")
    heads = whole(cells, "heads")
    if min(hidden, layers, heads) < 1:
        raise RowProblem("hidden, layers and heads must be at least 1")
    name = (cells.get("model") or "").lower()
    latent = _latent(arguments)
    ffn = whole(cells, "ffn", 0) or 4 * hidden
    if arguments:
        gated = "swiglu" in arguments
        tied = "untie-embeddings-and-output-weights" not in arguments
    else:
        known = any(word in name for word in GATED_FAMILIES)
        gated = known or ("gpt" not in name and ffn != 4 * hidden)
        tied = not known
    vocab = whole(cells, "vocab", 0) or _vocab(arguments, latent)
    if not vocab:
        raise RowProblem("vocab is missing")
    head_dim = whole_argument(arguments, "kv-channels") or max(hidden // heads, 1)
    shape = _counted(
        {
            "family": name or "unknown",
            "num_layers": layers,
            "hidden": hidden,
            "num_heads": heads,
            "num_kv_heads": whole(cells, "kv_heads", 0) or heads,
            "head_dim": head_dim,
            "ffn": ffn,
            "vocab": vocab,
            "max_positions": 0,
            "experts": _experts(arguments, layers, ffn),
            "latent_attention": latent,
        },
        gated=gated,
        tied=tied,
    )
    params = whole(cells, "params", 0)
    return _nearest(shape, params) if params and not arguments else shape


def _nearest(shape: ModelShape, params: int) -> ModelShape:
    """The same sizes, gated or not, tied or not, whichever count is nearest to the column's."""
    sizes = {name: getattr(shape, name) for name in _SIZE_NAMES}
    options = [
        _counted(sizes, gated=gated, tied=tied) for gated in (True, False) for tied in (True, False)
    ]
    return min(options, key=lambda option: abs(option.num_params - params))


_SIZE_NAMES = (
    "family",
    "num_layers",
    "hidden",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "ffn",
    "vocab",
    "max_positions",
    "experts",
    "latent_attention",
)


def _counted(sizes: Mapping[str, Any], *, gated: bool, tied: bool) -> ModelShape:
    """The shape with its weights counted; biases and norms of a layer as one in 2000."""
    hidden, wide = sizes["hidden"], 3 if gated else 2
    if hidden % sizes["num_heads"] and sizes["latent_attention"] is None and hidden < 1:
        raise RowProblem("heads must divide hidden")
    attention = _attention_params(sizes)
    experts: Experts | None = sizes["experts"]
    dense = attention + wide * hidden * sizes["ffn"] + 2 * hidden
    layers = [dense] * sizes["num_layers"]
    inactive = 0
    if experts is not None:
        each = wide * hidden * experts.ffn
        moe = attention + 2 * hidden + experts.num_experts * (each + hidden)
        moe += wide * hidden * experts.shared_ffn
        layers[experts.num_dense_layers :] = [moe] * (
            sizes["num_layers"] - experts.num_dense_layers
        )
        visited = experts.experts_per_token
        inactive = (experts.num_experts - visited) * each * layers.count(moe)
    embedding = sizes["vocab"] * hidden
    try:
        return ModelShape(
            gated_mlp=gated,
            tied_embeddings=tied,
            params=ParamCounts(
                embedding=embedding,
                head=0 if tied else embedding,
                layers=tuple(layers),
                other=hidden,
                inactive=inactive,
            ),
            **sizes,
        )
    except ValueError as error:
        raise RowProblem(str(error)) from None


def _attention_params(sizes: Mapping[str, Any]) -> int:
    hidden, heads = sizes["hidden"], sizes["num_heads"]
    latent: LatentAttention | None = sizes["latent_attention"]
    if latent is None:
        return int(2 * hidden * sizes["head_dim"] * (heads + sizes["num_kv_heads"]))
    head = latent.qk_nope_head_dim + latent.qk_rope_head_dim
    low = latent.q_lora_rank
    queries = low * (hidden + heads * head) if low else hidden * heads * head
    down = hidden * (latent.kv_lora_rank + latent.qk_rope_head_dim)
    up = latent.kv_lora_rank * heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    return int(queries + down + up + heads * latent.v_head_dim * hidden)


def _latent(arguments: Mapping[str, Any]) -> LatentAttention | None:
    if "multi-latent-attention" not in arguments:
        return None
    return LatentAttention(
        q_lora_rank=whole_argument(arguments, "q-lora-rank"),
        kv_lora_rank=whole_argument(arguments, "kv-lora-rank", 32),
        qk_nope_head_dim=whole_argument(arguments, "qk-head-dim", 128),
        qk_rope_head_dim=whole_argument(arguments, "qk-pos-emb-head-dim", 64),
        v_head_dim=whole_argument(arguments, "v-head-dim", 128),
    )


def _experts(arguments: Mapping[str, Any], layers: int, ffn: int) -> Experts | None:
    if "num-experts" not in arguments:
        return None
    return Experts(
        num_experts=whole_argument(arguments, "num-experts"),
        experts_per_token=whole_argument(arguments, "moe-router-topk", 2),
        ffn=whole_argument(arguments, "moe-ffn-hidden-size", ffn),
        shared_ffn=whole_argument(arguments, "moe-shared-expert-intermediate-size"),
        num_dense_layers=min(_num_dense_layers(arguments), layers - 1),
    )


def _num_dense_layers(arguments: Mapping[str, Any]) -> int:
    """From ``moe-layer-freq``, a list expression such as ``([0]*3+[1]*13)``."""
    text = str(arguments.get("moe-layer-freq", ""))
    head = text.strip("() ").split("+")[0]
    if head.startswith("[0]*") and head[4:].isdecimal():
        return int(head[4:])
    return 0


def _vocab(arguments: Mapping[str, Any], latent: LatentAttention | None) -> int:
    """Megatron's tokenizers where the arguments name no size: DeepSeek's, Llama's, GPT-2's."""
    if not arguments:
        return 0
    if "vocab-size" in arguments:
        return whole_argument(arguments, "vocab-size")
    if latent is not None and "swiglu" in arguments:
        return 129280
    return 32000 if "swiglu" in arguments else _GPT2_VOCAB


def _software(cells: Mapping[str, str], arguments: Mapping[str, Any]) -> Software:
    """What the columns tell of the program.

    ``flash_attn``: te = Transformer Engine's fused kernels; fa2 = the flash-attn package under an
    eager model whose pipeline hands over with the host waiting (nanotron); flash = that package's
    kernels throughout, the loss too; sdpa = PyTorch's own; no, unfused, local = scores are
    stored; so they are where the cell is blank and the model a GPT, which is older than flash
    attention. Blank otherwise = fused, with flash attention.
    """
    kernel = (cells.get("flash_attn") or "").strip().lower()
    gpt = "gpt" in (cells.get("model") or "").lower()
    materialised = kernel in _MATERIALISED or (gpt and not kernel)
    dropout = _drops_out(arguments) if arguments else gpt and materialised
    loss_bytes = _loss_bytes(kernel, arguments)
    return Software(
        attention=Attention.MATERIALISED if materialised else Attention.FLASH,
        fused=kernel not in ("fa2", "sdpa"),
        loss_bytes=loss_bytes,
        split_loss=True,
        dropout=dropout,
        layers_weighed=kernel == "fa2",
        blocking_exchange=kernel == "fa2",
        overlaps_data=kernel != "fa2",
        overlaps_tensor=kernel == "fa2",
        extra_gradients=kernel == "fa2",
        extra_last_layers=whole_argument(arguments, "mtp-num-layers"),
        expert_tp=whole_argument(arguments, "expert-tensor-parallel-size"),
        recomputed=_recomputed(arguments),
        stage_layers=_stage_layers(arguments),
        padded_vocab=128 if arguments or kernel == "te" else 1,
    )


def _loss_bytes(kernel: str, arguments: Mapping[str, Any]) -> float:
    """Bytes per logit where the program has a loss of its own; 0 = by the framework.

    Megatron's own fusion of the loss keeps one fp32 copy more than its separate kernels; the
    output layer's deferred weight gradients keep the logits' gradients of so many micro-batches.
    """
    if "cross-entropy-loss-fusion" in arguments:
        return LOSS_BYTES_FUSED + 4
    if "defer-embedding-wgrad-compute" in arguments:
        return LOSS_BYTES_FUSED + 2 * whole_argument(arguments, "wgrad-deferral-limit")
    return LOSS_BYTES_FUSED if kernel == "flash" and not arguments else 0.0


def pipeline_layout(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of every virtual stage of ``pipeline-model-parallel-layout``; empty without one.

    Its words: t a layer, E the embedding, m multi-token prediction, L the loss, | the next stage,
    ``x*3`` and ``(xy)*3`` repetition (Megatron's pipeline_parallel_layer_layout.py).
    """
    text = str(arguments.get("pipeline-model-parallel-layout", "")).replace(",", "")
    text = _written_out(r"\(([^()]*)\)\*(\d+)", text)
    text = _written_out(r"(\w)\*(\d+)", text)
    return tuple(stage.count("t") for stage in text.split("|")) if text else ()


def _written_out(pattern: str, text: str) -> str:
    """Every repetition of a layout as often as it says."""
    left = _MOST_LAYOUT

    def repeated(found: re.Match[str]) -> str:
        nonlocal left
        left -= len(found[1]) * int(found[2])
        if left < 0:
            raise RowProblem("megatron_args: pipeline-model-parallel-layout is too long")
        return found[1] * int(found[2])

    return re.sub(pattern, repeated, text)


def _stage_layers(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    depth = whole_argument(arguments, "pipeline-model-parallel-size", 1)
    if not 1 <= depth <= DEEPEST_PIPELINE:
        raise RowProblem(
            f"megatron_args: pipeline-model-parallel-size is not 1 to {DEEPEST_PIPELINE}"
        )
    virtual = pipeline_layout(arguments)
    if virtual and len(virtual) % depth == 0:
        return tuple(sum(virtual[stage::depth]) for stage in range(depth))
    first = whole_argument(arguments, "decoder-first-pipeline-num-layers")
    last = whole_argument(arguments, "decoder-last-pipeline-num-layers")
    layers = whole_argument(arguments, "num-layers")
    if depth < 3 or not (first and last):
        return ()
    middle = (layers - first - last) // (depth - 2)
    return (first, *([middle] * (depth - 2)), last)


def _recomputed(arguments: Mapping[str, Any]) -> frozenset[str]:
    words = re.findall(r"\w+", str(arguments.get("recompute-modules", "core_attn")))
    return frozenset(words)
