"""A linear probe: how likely a frozen host is to write what its context does not support, read from its state.

Contract: two heads, each on the output of one decoder layer (counted from 1): `before` judges the token that
comes next, `after` the token just read. A probe is one safetensors file and a JSON card beside it; one made for
another host, layer count or width is refused. `watch` reads a host as it runs: no forward pass of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

HEADS = ("before", "after")
_SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)


def host_hash(config: Any) -> str:
    """A hash of a host's architecture, the same under every transformers release and dtype."""
    shape = {name: getattr(config, name, None) for name in _SHAPE}
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def weights_hash(model: Any) -> str:
    """A hash of the signs in the first rows of each matrix of the decoder layers: the same in every dtype, another
    for another fine-tune. Empty where it cannot be told: quantised weights, or none in memory."""
    matrices = [each for layer in decoder_layers(model) for each in layer.parameters() if each.dim() == 2]
    if not matrices or any(each.is_meta or not each.is_floating_point() for each in matrices):
        return ""
    signs = [torch.signbit(each.detach()[:4]).flatten().cpu() for each in matrices]
    return hashlib.sha256(torch.cat(signs).numpy().tobytes()).hexdigest()[:16]


def decoder_layers(model: Any) -> Any:
    """The decoder layers of a host. Raises TypeError where there are none to be found."""
    base = model.get_decoder() if hasattr(model, "get_decoder") else model
    for name in ("layers", "h"):
        found = getattr(base, name, None)
        if found is not None:
            return found
    raise TypeError(f"expected a host with decoder layers, got {type(model).__name__}")


@dataclass(frozen=True)
class Probe:
    """weights, biases: per head (width,) and a scalar, float32, such that P = sigmoid(weight · state + bias).

    card: host (id, hash, weights, layers, width), heads (layer, threshold, metrics), data.
    """

    weights: dict[str, torch.Tensor]
    biases: dict[str, float]
    card: dict[str, Any]

    def layer(self, head: str) -> int:
        """Which layer's output the head reads, from 1."""
        return int(self.card["heads"][head]["layer"])

    def risk(self, head: str, states: torch.Tensor) -> torch.Tensor:
        """P(unsupported), float32 (...,), for states (..., width)."""
        weight = self.weights[head].to(states.device)
        return torch.sigmoid(states.float() @ weight + self.biases[head])

    def check_host(self, model: Any) -> None:
        """Raise ValueError where this is not the host that the probe was made for: its architecture, and its
        weights where the card has their hash. Given a config alone, only the architecture."""
        host = self.card["host"]
        config = getattr(model, "config", model)
        got = {
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "hash": host_hash(config),
        }
        for name, value in got.items():
            if host[name] != value:
                raise ValueError(f"probe of {host['id']}: expected {name} {host[name]}, got {value}")
        weights = host.get("weights") and config is not model and weights_hash(model)
        if weights and weights != host["weights"]:
            raise ValueError(f"probe of {host['id']}: expected weights {host['weights']}, got {weights}")

    def save(self, folder: str | Path) -> None:
        """Write probe.safetensors and probe.json."""
        from safetensors.torch import save_file

        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        tensors = {f"{head}.weight": self.weights[head].contiguous() for head in HEADS}
        tensors |= {f"{head}.bias": torch.tensor([self.biases[head]]) for head in HEADS}
        save_file(tensors, str(out / "probe.safetensors"))
        (out / "probe.json").write_text(json.dumps(self.card, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Probe:
        """Read what `save` wrote. Raises ValueError where a tensor is missing or has another width."""
        from safetensors.torch import load_file

        card = json.loads((Path(folder) / "probe.json").read_text(encoding="utf-8"))
        found = load_file(str(Path(folder) / "probe.safetensors"))
        for name in (f"{head}.{part}" for head in HEADS for part in ("weight", "bias")):
            shape = (card["host"]["width"] if name.endswith("weight") else 1,)
            if name not in found or tuple(found[name].shape) != shape:
                got = tuple(found[name].shape) if name in found else "none"
                raise ValueError(f"{folder}: expected {name} of shape {shape}, got {got}")
        return cls(
            {head: found[f"{head}.weight"].float() for head in HEADS},
            {head: float(found[f"{head}.bias"]) for head in HEADS},
            card,
        )


@dataclass
class Watched:
    """risks: P(unsupported) of what comes next, float32 (rows,), of the host's last forward pass."""

    risks: torch.Tensor | None = None
    calls: int = field(default=0)


@contextmanager
def watch(model: Any, probe: Probe, head: str = "before") -> Iterator[Watched]:
    """Read the host's last state at each forward pass, rows in their order of that pass.

    The rows of a step (beams included) are those whose scores the logits processors see next.
    """
    probe.check_host(model)
    seen = Watched()

    def read(module: Any, inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        seen.risks = probe.risk(head, states[:, -1].detach())
        seen.calls += 1

    handle = decoder_layers(model)[probe.layer(head) - 1].register_forward_hook(read)
    try:
        yield seen
    finally:
        handle.remove()
