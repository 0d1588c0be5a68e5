"""A causal transformer computed over cached keys and values, one call for any set of new tree nodes.

Contract: `Decoder.forward` returns the hidden states that the backbone itself would give for the same tokens
at the same positions with the same visible ancestors. Keys and values of the new tokens are written in place
into buffers of the caller, which are read as views. Nothing here knows about groundings, histories or
tokenizers.

What a step costs is its skinny matrix products, so: weights are packed once for few rows (oneDNN, where torch
has it), query, key and value are one product, gate and up are one product, the attention scale lives in the
query weights, and each head's channels are stored in pairs, so that the rotation is one complex
multiplication.

Other backbones enter through `_READERS`, one function per `model_type`, which says where a layer's weights
are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]

_FEW_ROWS = 16  # the number of rows that weights are packed for; any other number works too
_MANY_ROWS = 64  # from here on the fused attention kernel is faster than three plain operations
_EXACT = 3  # with bfloat16 on a CPU, one layer in so many, the first ones, stays float32: its errors go through the rest
_BLOCK = 128  # rows of a sliding layer that share one window of keys in a long chain
_NO = float("-inf")


# -- building blocks ------------------------------------------------------------------------------------


class Linear:
    """One matrix product with fixed weights: (R, in) -> (R, out), in the weights' dtype."""

    __slots__ = ("bias", "features", "packed", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.features = tuple(weight.shape)
        self.bias = bias
        self.packed = _pack(weight)
        self.weight: Tensor | None = None if self.packed is not None else weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return product
        assert self.weight is not None
        return F.linear(x, self.weight, self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + self(x), in the residual's dtype; the residual may be overwritten."""
        if self.packed is not None and residual.dtype == x.dtype:
            total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                x, residual, self.packed, self.bias, "add"
            )
            return total
        return residual.add_(self(x))


def _pack(weight: Tensor) -> Tensor | None:
    """The weights in oneDNN's layout for few rows, or None where this torch, dtype or machine has no such
    product.
    """
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        if not torch.backends.mkldnn.is_available():
            return None
        with torch.inference_mode():
            packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _FEW_ROWS)
            probe = torch.ones(2, weight.shape[1], dtype=weight.dtype)
            got = torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
            zero = torch.zeros(2, weight.shape[0], dtype=weight.dtype)
            torch.ops.mkldnn._linear_pointwise.binary(probe, zero, packed, None, "add")
            expected = weight.float().sum(1)
            scale = weight.float().abs().sum(1).max().clamp_min(1e-6)
            good = float(((got[0].float() - expected).abs() / scale).max()) < 2e-2
        return packed if good else None
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return None


@dataclass(frozen=True)
class Norm:
    """Layer norm, or root mean square norm; computed in float32."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    rms: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        if self.rms:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass
class Layer:
    """The weights of one layer, as `_READERS` deliver them: float32, in the backbone's own order of channels."""

    attn_norm: Norm | None
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    mlp_norm: Norm
    gate: Tensor  # goes through the activation
    up: Tensor
    down: Tensor
    window: int | None  # a token sees itself and window - 1 tokens before it; None: all before it
    rope: str  # key into Parts.rope
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    glu_bias: Tensor | None = None
    down_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


@dataclass
class Parts:
    """A backbone taken apart."""

    embedding: Tensor
    embedding_norm: Norm | None
    layers: list[Layer]
    final_norm: Norm
    rope: dict[str, Callable[[int], tuple[Tensor, Tensor]]]  # length -> cos, sin of shape (length, head_dim)
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    activation: Callable[[Tensor], Tensor]
    qk_eps: float = 1e-6


@dataclass(frozen=True)
class Mask:
    """Which cached slots the new rows see, over the slots [start, end of the new rows).

    start: the first slot that is read at all.
    tail: the first slot from which `bias` applies; every row sees every slot in [start, tail).
    bias: (rows, slots from tail on), 0 where visible and -inf elsewhere; None where the rows are one chain
        that goes on from the last slot (then it is causal, and windowed in layers that have a window).
    """

    start: int
    tail: int
    bias: Tensor | None


@dataclass(frozen=True)
class Segment:
    """The new rows of one buffer: rows [begin, begin + count) of the call, written to the slots from `slot` on."""

    cache: Tensor  # (layers, 2, capacity, kv_heads, head_dim)
    begin: int
    count: int
    slot: int
    full: Mask
    sliding: Mask


@dataclass
class _Packed:
    attn_norm: Norm | None
    qkv: Linear
    o: Linear
    mlp_norm: Norm
    glu: Linear
    down: Linear
    window: int | None
    rope: str
    dtype: torch.dtype
    qk_norm: Tensor | None = None


# -- the decoder ----------------------------------------------------------------------------------------


@dataclass
class Decoder:
    """A backbone that is ready to be stepped. Build it with `Decoder.build`."""

    layers: list[_Packed]
    embedding: Tensor
    embedding_norm: Norm | None
    final_norm: Norm
    rope: dict[str, Callable[[int], tuple[Tensor, Tensor]]]
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    activation: Callable[[Tensor], Tensor]
    qk_eps: float
    window: int | None
    dtype: torch.dtype
    device: torch.device
    _tables: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def build(cls, parts: Parts, *, device: torch.device, dtype: torch.dtype) -> Decoder:
        """Pack `parts`. All layers that have a window must have the same one; ValueError otherwise."""
        windows = {layer.window for layer in parts.layers if layer.window is not None}
        if len(windows) > 1:
            raise ValueError(f"expected one window size for all sliding layers, got {sorted(windows)}")
        if parts.head_dim % 2:
            raise ValueError(f"expected an even head dimension, got {parts.head_dim}")
        pairs = _pair_order(parts.head_dim)
        exact = -(-len(parts.layers) // _EXACT) if device.type == "cpu" else 0
        return cls(
            layers=[
                _pack_layer(layer, parts, pairs, device, torch.float32 if index < exact else dtype)
                for index, layer in enumerate(parts.layers)
            ],
            # A look-up costs no more in float32, and a rounding here would go through every layer.
            embedding=parts.embedding.to(device, torch.float32 if device.type == "cpu" else dtype),
            embedding_norm=_norm_to(parts.embedding_norm, device),
            final_norm=_move(parts.final_norm, device),
            rope=parts.rope,
            heads=parts.heads,
            kv_heads=parts.kv_heads,
            head_dim=parts.head_dim,
            max_positions=parts.max_positions,
            activation=parts.activation,
            qk_eps=parts.qk_eps,
            window=next(iter(windows), None),
            dtype=dtype,
            device=device,
        )

    @property
    def cache_dtype(self) -> torch.dtype:
        """What keys and values are kept in. On a CPU float32: its small products are faster and exact there."""
        return torch.float32 if self.device.type == "cpu" else self.dtype

    @property
    def bytes_per_node(self) -> int:
        """Memory of one token's keys and values."""
        size = torch.empty(0, dtype=self.cache_dtype).element_size()
        return len(self.layers) * 2 * self.kv_heads * self.head_dim * size

    def weight_bytes(self) -> int:
        """What one step has to read: the bytes of the weights of all products."""
        return sum(
            math.prod(product.features) * torch.empty(0, dtype=layer.dtype).element_size()
            for layer in self.layers
            for product in (layer.qkv, layer.o, layer.glu, layer.down)
        )

    def new_cache(self, capacity: int) -> Tensor:
        """Room for the keys and values of `capacity` tokens: (layers, 2, capacity, kv_heads, head_dim)."""
        shape = (len(self.layers), 2, capacity, self.kv_heads, self.head_dim)
        return torch.empty(shape, dtype=self.cache_dtype, device=self.device)

    @torch.inference_mode()
    def forward(self, ids: Tensor, positions: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Hidden states after the final norm, float32 (R, hidden), of new tokens at `positions`, both of
        shape (R,).

        The segments cover the R rows in order. Their keys and values are written before they are read.
        """
        rows, heads, kv_heads, dim = ids.shape[0], self.heads, self.kv_heads, self.head_dim
        both = heads + kv_heads
        x = F.embedding(ids, self.embedding)
        if x.dtype != torch.float32:
            x = x.float()
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        turns = {name: self._turns(name, positions) for name in self.rope}
        for index, layer in enumerate(self.layers):
            work = layer.dtype
            reduced = work != torch.float32
            h = x if layer.attn_norm is None else layer.attn_norm(x)
            qkv = layer.qkv(h.to(work) if reduced else h)
            if reduced:
                qkv = qkv.float()
            split = qkv.view(rows, both + kv_heads, dim)
            if layer.qk_norm is not None:
                qk = split[:, :both]
                qk.mul_(torch.rsqrt(qk.square().mean(-1, keepdim=True) + self.qk_eps)).mul_(layer.qk_norm)
            torch.view_as_complex(split.view(rows, both + kv_heads, dim // 2, 2))[:, :both].mul_(
                turns[layer.rope]
            )
            mixed = self._attend(index, layer, split, segments)
            x = layer.o.add_to(x, mixed.to(work) if reduced else mixed)
            h = layer.mlp_norm(x)
            gate, up = layer.glu(h.to(work) if reduced else h).chunk(2, -1)
            x = layer.down.add_to(x, self.activation(gate).mul_(up))
        return self.final_norm(x)

    def _turns(self, name: str, positions: Tensor) -> Tensor:
        """Unit complex numbers (R, 1, head_dim / 2) that rotate the rows of one kind of layer."""
        table = self._tables.get(name)
        if table is None:
            cos, sin = self.rope[name](self.max_positions)
            half = self.head_dim // 2
            table = torch.complex(cos[:, :half].float(), sin[:, :half].float()).to(self.device)
            self._tables[name] = table
        return table[positions].unsqueeze(1)

    def _attend(self, index: int, layer: _Packed, split: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Attention of all rows, (R, heads * head_dim) float32. Writes the new keys and values first."""
        heads, kv_heads, dim = self.heads, self.kv_heads, self.head_dim
        mixed = []
        for segment in segments:
            mine = split[segment.begin : segment.begin + segment.count]
            cache = segment.cache[index]
            end = segment.slot + segment.count
            fresh = mine[:, heads:].view(segment.count, 2, kv_heads, dim).transpose(0, 1)
            cache[:, segment.slot : end].copy_(fresh)
            query = mine[:, :heads].transpose(0, 1)
            if cache.dtype != query.dtype:
                query = query.to(cache.dtype)
            mask = segment.full if layer.window is None else segment.sliding
            if mask.bias is None:
                out = _chain(query, cache, segment.slot, layer.window)
            else:
                out = _tree(query, cache[:, mask.start : end], mask.tail - mask.start, mask.bias)
            mixed.append(out.transpose(0, 1).reshape(segment.count, heads * dim))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _tree(query: Tensor, cache: Tensor, tail: int, bias: Tensor) -> Tensor:
    """Attention of a few rows with any mask: (heads, r, dim). The first `tail` keys are visible to all rows."""
    keys, values = cache.transpose(1, 2)
    heads, rows, dim = query.shape
    groups = heads // keys.shape[0]
    if rows >= _MANY_ROWS:
        full = F.pad(bias, (tail, 0)).to(query.dtype)
        return _fused(query, keys, values, groups, full)
    if groups > 1:
        query = query.reshape(keys.shape[0], groups * rows, dim)
        bias = bias.repeat(groups, 1)
    scores = torch.bmm(query, keys.transpose(1, 2))
    if scores.dtype != torch.float32:
        scores = scores.float()
    scores[:, :, tail:] += bias
    out = torch.bmm(torch.softmax(scores, -1).to(values.dtype), values)
    return out.view(heads, rows, dim) if groups > 1 else out


def _chain(query: Tensor, cache: Tensor, slot: int, window: int | None) -> Tensor:
    """Causal attention of rows that go on from slot `slot` in one chain: (heads, r, dim)."""
    heads, rows, _ = query.shape
    groups = heads // cache.shape[2]
    # A window needs no more keys than a block's own and window - 1 before it.
    step = rows if window is None else max(_BLOCK, window)
    blocks = []
    for first in range(0, rows, step):
        last = min(first + step, rows)
        end = slot + last
        start = 0 if window is None else max(0, slot + first - window + 1)
        seen = None
        if slot + first > 0 or (window is not None and end > window):
            at = torch.arange(start, end, device=query.device)[None]
            row = torch.arange(slot + first, end, device=query.device)[:, None]
            seen = at <= row if window is None else (at <= row) & (at > row - window)
        keys, values = cache[:, start:end].transpose(1, 2)
        blocks.append(_fused(query[:, first:last], keys, values, groups, seen))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)


def _fused(query: Tensor, keys: Tensor, values: Tensor, groups: int, mask: Tensor | None) -> Tensor:
    """torch's attention kernel, causal where `mask` is None: (heads, r, dim)."""
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
    out: Tensor = F.scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None, scale=1.0
    )
    return out[0]


def _pair_order(dim: int) -> Tensor:
    """Channel order that puts each rotation's two halves side by side: 0, d/2, 1, d/2 + 1, ..."""
    return torch.arange(dim).view(2, dim // 2).t().reshape(-1)


def _paired(weight: Tensor, dim: int, pairs: Tensor) -> Tensor:
    """Rows (or entries of a bias) of a query or key projection, each head's channels in pair order."""
    return weight.view(-1, dim, *weight.shape[1:])[:, pairs].reshape(weight.shape)


def _pack_layer(
    layer: Layer, parts: Parts, pairs: Tensor, device: torch.device, dtype: torch.dtype
) -> _Packed:
    dim, scale = parts.head_dim, parts.head_dim**-0.5
    normed = layer.q_norm is not None and layer.k_norm is not None
    q_scale = 1.0 if normed else scale  # a norm after the projection would undo it
    q = _paired(layer.q, dim, pairs) * q_scale
    k = _paired(layer.k, dim, pairs)
    bias = layer.qkv_bias
    if bias is not None:
        q_size, k_size = layer.q.shape[0], layer.k.shape[0]
        bias = torch.cat(
            [
                _paired(bias[:q_size], dim, pairs) * q_scale,
                _paired(bias[q_size : q_size + k_size], dim, pairs),
                bias[q_size + k_size :],
            ]
        )
    qk_norm = None
    if layer.q_norm is not None and layer.k_norm is not None:
        q_row, k_row = layer.q_norm[pairs] * scale, layer.k_norm[pairs]
        qk_norm = torch.cat([q_row.expand(parts.heads, -1), k_row.expand(parts.kv_heads, -1)]).to(
            device, torch.float32
        )

    def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
        return Linear(weight.to(device, dtype), None if bias is None else bias.to(device, dtype))

    return _Packed(
        attn_norm=_norm_to(layer.attn_norm, device),
        qkv=linear(torch.cat([q, k, layer.v]), bias),
        o=linear(layer.o, layer.o_bias),
        mlp_norm=_move(layer.mlp_norm, device),
        glu=linear(torch.cat([layer.gate, layer.up]), layer.glu_bias),
        down=linear(layer.down, layer.down_bias),
        window=layer.window,
        rope=layer.rope,
        dtype=dtype,
        qk_norm=qk_norm,
    )


def _move(norm: Norm, device: torch.device) -> Norm:
    bias = None if norm.bias is None else norm.bias.to(device, torch.float32)
    return Norm(norm.weight.to(device, torch.float32), bias, norm.eps, norm.rms)


def _norm_to(norm: Norm | None, device: torch.device) -> Norm | None:
    return None if norm is None else _move(norm, device)


# -- architectures --------------------------------------------------------------------------------------


def take_apart(config: Any, weights: dict[str, Tensor], rotary: Any = None) -> Parts:
    """The parts of the backbone that `config` (a transformers config) describes; `weights` as its state dict
    names them.

    rotary: the backbone's own rotary module, for kinds whose rotation may be scaled. An unknown `model_type`
    raises ValueError with the known ones.
    """
    reader = _READERS.get(config.model_type)
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise ValueError(f"expected a detector backbone of type {known}; got {config.model_type!r}")
    return reader(config, {name: weight.float() for name, weight in weights.items()}, rotary)


def known_backbones() -> list[str]:
    """The values of `model_type` that can be read."""
    return sorted(_READERS)


def _plain_rope(theta: float, dim: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    def tables(length: int) -> tuple[Tensor, Tensor]:
        inverse = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))
        angles = torch.arange(length).float()[:, None] * inverse[None]
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()

    return tables


def _own_rope(rotary: Any) -> Callable[[int], tuple[Tensor, Tensor]]:
    def tables(length: int) -> tuple[Tensor, Tensor]:
        cos, sin = rotary(torch.zeros(1), torch.arange(length)[None])
        return cos[0], sin[0]

    return tables


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name == "gelu":
        return F.gelu
    if name in ("silu", "swish"):
        return F.silu
    from transformers.activations import ACT2FN

    function: Callable[[Tensor], Tensor] = ACT2FN[name]
    return function


def _read_modernbert(config: Any, weights: dict[str, Tensor], rotary: Any) -> Parts:
    dim = config.hidden_size // config.num_attention_heads

    def norm(name: str) -> Norm:
        return Norm(weights[f"{name}.weight"], weights.get(f"{name}.bias"), config.norm_eps)

    kinds = list(config.layer_types)
    # The config's local_attention counts both sides; a causal layer has half of it, as transformers computes
    # it.
    window = int(config.sliding_window)
    layers = []
    for index, kind in enumerate(kinds):
        at = f"layers.{index}"
        gate, up = weights[f"{at}.mlp.Wi.weight"].chunk(2)
        layers.append(
            Layer(
                attn_norm=norm(f"{at}.attn_norm") if index else None,
                q=weights[f"{at}.attn.q_proj.weight"],
                k=weights[f"{at}.attn.k_proj.weight"],
                v=weights[f"{at}.attn.v_proj.weight"],
                o=weights[f"{at}.attn.Wo.weight"],
                mlp_norm=norm(f"{at}.mlp_norm"),
                gate=gate,
                up=up,
                down=weights[f"{at}.mlp.Wo.weight"],
                window=window if kind == "sliding_attention" else None,
                rope=kind,
                qkv_bias=_joined_bias(weights, f"{at}.attn"),
                o_bias=weights.get(f"{at}.attn.Wo.bias"),
                glu_bias=weights.get(f"{at}.mlp.Wi.bias"),
                down_bias=weights.get(f"{at}.mlp.Wo.bias"),
            )
        )
    return Parts(
        embedding=weights["embeddings.tok_embeddings.weight"],
        embedding_norm=norm("embeddings.norm"),
        layers=layers,
        final_norm=norm("final_norm"),
        rope={kind: _plain_rope(_modernbert_theta(config, kind), dim) for kind in sorted(set(kinds))},
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        head_dim=dim,
        max_positions=config.max_position_embeddings,
        activation=_activation(config.hidden_activation),
    )


def _modernbert_theta(config: Any, kind: str) -> float:
    parameters = getattr(config, "rope_parameters", None)
    if parameters:
        mine = parameters[kind]
        if mine.get("rope_type", "default") != "default":
            raise ValueError(
                f"expected an unscaled rotation (rope_type 'default'), got {mine['rope_type']!r}"
            )
        return float(mine["rope_theta"])
    # transformers 4 keeps the two bases as plain fields
    name = "global_rope_theta" if kind == "full_attention" else "local_rope_theta"
    theta = getattr(config, name, None)
    return float(config.global_rope_theta if theta is None else theta)


def _joined_bias(weights: dict[str, Tensor], at: str) -> Tensor | None:
    if f"{at}.q_proj.bias" not in weights:
        return None
    return torch.cat([weights[f"{at}.{name}_proj.bias"] for name in "qkv"])


def _read_llama(config: Any, weights: dict[str, Tensor], rotary: Any) -> Parts:
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def norm(name: str) -> Norm:
        return Norm(weights[f"{name}.weight"], None, config.rms_norm_eps, rms=True)

    kinds = (
        getattr(config, "layer_types", None)
        or ["sliding_attention" if _always_slides(config) else "full_attention"] * config.num_hidden_layers
    )
    layers = []
    for index, kind in enumerate(kinds):
        at = f"layers.{index}"
        attn, mlp = f"{at}.self_attn", f"{at}.mlp"
        glu_bias = None
        if f"{mlp}.gate_proj.bias" in weights:
            glu_bias = torch.cat([weights[f"{mlp}.gate_proj.bias"], weights[f"{mlp}.up_proj.bias"]])
        layers.append(
            Layer(
                attn_norm=norm(f"{at}.input_layernorm"),
                q=weights[f"{attn}.q_proj.weight"],
                k=weights[f"{attn}.k_proj.weight"],
                v=weights[f"{attn}.v_proj.weight"],
                o=weights[f"{attn}.o_proj.weight"],
                mlp_norm=norm(f"{at}.post_attention_layernorm"),
                gate=weights[f"{mlp}.gate_proj.weight"],
                up=weights[f"{mlp}.up_proj.weight"],
                down=weights[f"{mlp}.down_proj.weight"],
                window=int(config.sliding_window) if kind == "sliding_attention" else None,
                rope="all",
                qkv_bias=_joined_bias(weights, attn),
                o_bias=weights.get(f"{attn}.o_proj.bias"),
                glu_bias=glu_bias,
                down_bias=weights.get(f"{mlp}.down_proj.bias"),
                q_norm=weights.get(f"{attn}.q_norm.weight"),
                k_norm=weights.get(f"{attn}.k_norm.weight"),
            )
        )
    if rotary is None:
        raise ValueError("expected the backbone's rotary module for a Llama-type model, got None")
    return Parts(
        embedding=weights["embed_tokens.weight"],
        embedding_norm=None,
        layers=layers,
        final_norm=norm("norm"),
        rope={"all": _own_rope(rotary)},
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=dim,
        max_positions=config.max_position_embeddings,
        activation=_activation(config.hidden_act),
        qk_eps=config.rms_norm_eps,
    )


def _always_slides(config: Any) -> bool:
    # Mistral's window holds for every layer; Llama has none; Qwen says so per layer, in layer_types.
    return config.model_type == "mistral" and getattr(config, "sliding_window", None) is not None


_READERS: dict[str, Callable[[Any, dict[str, Tensor], Any], Parts]] = {
    "modernbert-decoder": _read_modernbert,
    "llama": _read_llama,
    "mistral": _read_llama,
    "qwen2": _read_llama,
    "qwen3": _read_llama,
}
