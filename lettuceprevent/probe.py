"""A linear probe: how likely a frozen host is to write what its context does not support, read from its state.

Contract: two heads, each on the output of one decoder layer (counted from 1): `before` judges the token that
comes next, `after` the token just read. A probe is one safetensors file and a JSON card beside it; one made for
another host, layer count or width is refused. `watch` reads a host as it runs: no forward pass of its own, one
matrix-vector product per layer that is read.
"""

from __future__ import annotations

import hashlib
import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch

HEADS = ("before", "after")
#: the probes that come with the package, one folder each
SHIPPED = Path(__file__).parent / "probes"
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
    signs = [torch.signbit(each.detach()[:4]).flatten() for each in matrices]
    together = torch.cat([each.to(signs[0].device) for each in signs])  # one transfer, not one per matrix
    return hashlib.sha256(together.cpu().numpy().tobytes()).hexdigest()[:16]


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

    name = "probe"

    @cached_property
    def version(self) -> str:
        """A hash of weights and biases."""
        held = [torch.cat([self.weights[head], torch.tensor([self.biases[head]])]) for head in HEADS]
        return hashlib.sha256(torch.cat(held).numpy().tobytes()).hexdigest()[:12]

    def threshold(self, head: str) -> float:
        """The risk above which the head flags a token, as its training found it."""
        return float(self.card["heads"][head]["threshold"])

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
            "layers": getattr(config, "num_hidden_layers", None),
            "width": getattr(config, "hidden_size", None),
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
        from safetensors.torch import save

        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        tensors = {f"{head}.weight": self.weights[head].contiguous() for head in HEADS}
        tensors |= {f"{head}.bias": torch.tensor([self.biases[head]]) for head in HEADS}
        # not save_file, whose files only their owner may read
        (out / "probe.safetensors").write_bytes(save(tensors))
        (out / "probe.json").write_text(json.dumps(self.card, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, source: str | Path) -> Probe:
        """Read what `save` wrote: its folder, or either file. Raises ValueError where a tensor is missing or has
        another width, and OSError where there is no such file."""
        path = Path(source) / "probe.json" if Path(source).is_dir() else Path(source)
        for file in (path.with_suffix(suffix) for suffix in (".json", ".safetensors")):
            if not file.is_file():
                raise FileNotFoundError(
                    f"probe: expected a folder written by `save`, got no file {str(file)!r}"
                )
        card = path.with_suffix(".json").read_text(encoding="utf-8")
        return cls.read(card, path.with_suffix(".safetensors").read_bytes(), str(source))

    @classmethod
    def read(cls, text: str, tensors: bytes, source: str) -> Probe:
        """A probe from the content of its two files; `source` is what an error calls them."""
        from safetensors.torch import load

        card, found = json.loads(text), load(tensors)
        for name in (f"{head}.{part}" for head in HEADS for part in ("weight", "bias")):
            shape = (card["host"]["width"] if name.endswith("weight") else 1,)
            if name not in found or tuple(found[name].shape) != shape:
                got = tuple(found[name].shape) if name in found else "none"
                raise ValueError(f"{source}: expected {name} of shape {shape}, got {got}")
        return cls(
            {head: found[f"{head}.weight"].float() for head in HEADS},
            {head: float(found[f"{head}.bias"]) for head in HEADS},
            card,
        )

    @classmethod
    def for_host(cls, model: Any, source: Probe | str | Path | None = None) -> Probe:
        """A probe that reads `model`: the given one (a Probe, a folder, a file), else the one that comes with the
        package. Raises ValueError where it was made for another host, or where none of the package's fits."""
        if source is not None:
            # one of an exported copy is of another class
            found = cast(Probe, source) if hasattr(source, "check_host") else cls.load(cast(Path, source))
            found.check_host(model)
            return found
        reasons = []
        for found in shipped():
            try:
                found.check_host(model)
            except ValueError as error:
                reasons.append(str(error))
            else:
                return found
        host = getattr(model.config, "_name_or_path", "") or type(model).__name__
        raise ValueError(
            f"probe: expected one made for the host {Path(str(host)).name}; got "
            f"{'; '.join(reasons) or 'none with this package'}. Train one with `lettuceprevent train probe` and pass "
            "it as probe="
        )


def shipped() -> Iterator[Probe]:
    """The probes that come with the package, or with its export, which has no data files but a module `probe_data`."""
    for card in sorted(SHIPPED.glob("*/probe.json")):
        yield Probe.load(card)
    try:
        data = import_module(".probe_data", __package__)
    except ImportError:
        return
    for name, (card, tensors) in data.PROBES.items():
        yield Probe.read(card, b64decode(tensors), name)


class Watched:
    """Reads a host's last state at each forward pass, in a `with` block; `watch` makes one.

    calls: forward passes seen. Passes of other threads on the same host are not.
    """

    def __init__(self, model: Any, probe: Probe) -> None:
        self.probe = probe
        self.calls = 0
        self._model = model
        self._handles: list[Any] = []
        self._taken = 0
        self._thread = 0
        self._logits: dict[str, torch.Tensor] = {}
        self._deepest = max(HEADS, key=probe.layer)

    def __enter__(self) -> Watched:
        self._thread = threading.get_ident()
        layers = decoder_layers(self._model)
        for layer in sorted({self.probe.layer(head) for head in HEADS}):
            heads = tuple(head for head in HEADS if self.probe.layer(head) == layer)
            self._handles.append(layers[layer - 1].register_forward_hook(self._reader(heads)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _reader(self, heads: tuple[str, ...]) -> Any:
        weight = torch.stack([self.probe.weights[head] for head in heads])
        bias = torch.tensor([self.probe.biases[head] for head in heads])
        counts = self._deepest in heads

        def read(module: Any, inputs: Any, output: Any) -> None:
            nonlocal weight, bias
            if threading.get_ident() != self._thread:
                return
            states = (output[0] if isinstance(output, tuple) else output)[:, -1].detach()
            if weight.device != states.device:
                weight, bias = weight.to(states.device), bias.to(states.device)
            logits = torch.nn.functional.linear(states.float(), weight, bias)
            for at, head in enumerate(heads):
                self._logits[head] = logits[:, at]
            self.calls += counts

        return read

    def risks(self, head: str = "before") -> torch.Tensor:
        """P(unsupported), float32 (rows,), of what comes next ("before") or of the token just read ("after"), rows
        in their order of the last forward pass, beams included. Raises RuntimeError before the first one."""
        if not self.calls:
            raise RuntimeError("probe: expected a forward pass of the host, got none yet")
        return torch.sigmoid(self._logits[head])

    def take(self, rows: int, device: torch.device) -> torch.Tensor:
        """The risks of the pass since the last call, float32 (rows, 2): before, after. Raises RuntimeError where
        there was none, or one of other rows: then nobody knows what the risks are of."""
        if self.calls == self._taken:
            raise RuntimeError(
                "probe: expected a forward pass of the watched host before each step, got none; a host that was "
                "compiled earlier, or runs in another thread than the `with` block, cannot be read"
            )
        self._taken = self.calls
        found = torch.stack([self._logits[head].to(device) for head in HEADS], dim=1)
        if len(found) != rows:
            raise RuntimeError(f"probe: expected a forward pass of {rows} rows, got {len(found)}")
        return found.sigmoid_()


def watch(model: Any, probe: Probe) -> Watched:
    """A context manager that reads the host's states while it runs. Raises ValueError where the probe was made for
    another host.

    The rows of a step (beams included) are those whose scores the logits processors see next.
    """
    probe.check_host(model)
    return Watched(model, probe)
