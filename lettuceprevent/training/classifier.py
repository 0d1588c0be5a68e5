"""A causal backbone with a head on its last layer, as it is trained, and the checkpoint made of it.

Contract: what `write` puts in a folder, `load_checkpoint` loads, with the scores of `TokenClassifier` (float32,
to rounding). With LoRA the base is frozen and kept in the precision asked for, factors and head are float32;
layers below the first adapted one have nothing to train and are run without a graph. Without, everything is
trained in float32 and computed in the precision asked for. With `answer_only` the factors act on the tokens of the
answer alone: what comes before it is read by the base as it is, once, and never again in training.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..assets import HOST_HUB_ID, host_id
from ..checkpoint import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    adapted_names,
    backbone,
    base_config,
    base_folder,
    base_weights,
    detector_tokenizer,
    weights_hash,
)
from ..host_cache import cache_name
from ..probe import host_hash

_ALPHA = 2.0  # the factors' product is added this many times


def base_name(base: str) -> str:
    """What is written of a base, so that it is found from any working directory: a folder's absolute path, but
    SmolLM2's hub id for where it was fetched to; any other id as it is."""
    if base == HOST_HUB_ID or not Path(base).expanduser().is_dir():
        return base
    path = os.path.abspath(Path(base).expanduser())
    return HOST_HUB_ID if path == os.path.abspath(host_id()) else path


class TokenClassifier(torch.nn.Module):
    """The first `keep_layers` layers (None: all) of the base model `base`, a folder or hub id.

    rank: of LoRA; 0 trains everything. lora_layers: the first and the last adapted layer, from 1; None: all kept.
    answer_only: the factors are not applied to what comes before the answer; see `read_prompt`.
    Raises CheckpointError for a base that cannot be read, ValueError for layers that it lacks and for answer_only
    without LoRA, ImportError for LoRA without peft.
    """

    def __init__(
        self,
        base: str,
        *,
        keep_layers: int | None = None,
        rank: int = 16,
        lora_layers: tuple[int, int] | None = None,
        answer_only: bool = False,
        dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if answer_only and not rank:
            raise ValueError("answer_only: expected LoRA, which can be left out of a pass, got rank 0")
        self.answer_only = answer_only
        self.base = base_name(base)
        self.folder = base_folder(self.base)
        self.config = base_config(self.folder, base, keep_layers)
        self.tokenizer, self.cls_id, self.sep_id = detector_tokenizer(self.folder, self.config, base)
        self.rank = rank
        self.layers = int(self.config.num_hidden_layers)
        self.lora_layers = lora_layers or (1, self.layers)
        first, last = self.lora_layers
        if rank and not 1 <= first <= last <= self.layers:
            raise ValueError(f"LoRA layers: expected A-B within 1-{self.layers}, got {first}-{last}")
        self.dtype = dtype
        torch.manual_seed(seed)
        self.backbone = backbone(self.config).eval()  # nothing is dropped in training
        self.backbone.load_state_dict(base_weights(self.folder, self.config, base))
        self.head = torch.nn.Linear(int(self.config.hidden_size), 2)
        for weight in self.head.parameters():
            torch.nn.init.zeros_(weight)
        # Outputs without a norm differ by orders of magnitude from feature to feature, and the optimiser takes
        # steps of one size: the head works on standardised ones.
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(int(self.config.hidden_size)))
        self.register_buffer("scale", torch.ones(int(self.config.hidden_size)))
        if rank:
            self._add_lora()

    def _add_lora(self) -> None:
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            raise ImportError(
                "expected the package peft for LoRA, found none; pip install 'lettuceprevent[train]'"
            ) from error
        for weight in self.backbone.parameters():
            weight.requires_grad_(False)
            weight.data = weight.data.to(self.dtype)  # not the rotation's buffers, which must stay exact
        inject_adapter_in_model(
            LoraConfig(
                r=self.rank,
                lora_alpha=_ALPHA * self.rank,
                target_modules=adapted_names(self.backbone.state_dict(), *self.lora_layers),
                bias="none",
            ),
            self.backbone,
        )
        for weight in self.trained().values():
            weight.data = weight.data.float()

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by name."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (R, T, 2), float32, of ids (R, T); rows are padded at their end, which causal layers do not see."""
        return self.classify(self.states(ids))

    def classify(self, states: Tensor) -> Tensor:
        """Logits (..., 2) of states (..., hidden)."""
        logits: Tensor = self.head((states - self.mean) / self.scale)
        return logits

    def states(self, ids: Tensor) -> Tensor:
        """What the head reads, before it is standardised: (R, T, hidden), float32. Factors act on all tokens."""
        with torch.autocast(ids.device.type, self.dtype, enabled=self.dtype != torch.float32):
            hidden: Tensor = self.backbone(input_ids=ids, use_cache=False).last_hidden_state
        return hidden.float()

    @torch.no_grad()
    def read_prompt(self, ids: Sequence[int]) -> Tensor:
        """Keys and values of what comes before an answer, by the base without factors: (layers, 2, kv heads, n, dim)."""
        from transformers import DynamicCache

        # Without a config: sliding layers keep all, and their mask leaves out what is far.
        cache: Any = DynamicCache()
        device = self.head.weight.device
        with (
            self._without_factors(),
            torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32),
        ):
            given = {cache_name(self.backbone): cache}
            self.backbone(input_ids=torch.tensor([list(ids)], device=device), use_cache=True, **given)
        return torch.stack([torch.stack((layer.keys[0], layer.values[0])) for layer in cache.layers])

    def answer_states(self, prompt: Tensor, ids: Sequence[int]) -> Tensor:
        """What the head reads of an answer's ids after `prompt`, as `read_prompt` gives it: (n, hidden), float32."""
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        for index, (keys, values) in enumerate(prompt):
            cache.update(keys[None], values[None], index)
        tensor = torch.tensor([list(ids)], device=prompt.device)
        with torch.autocast(prompt.device.type, self.dtype, enabled=self.dtype != torch.float32):
            given = {cache_name(self.backbone): cache}
            hidden: Tensor = self.backbone(input_ids=tensor, use_cache=True, **given).last_hidden_state
        return hidden[0].float()

    @contextmanager
    def _without_factors(self) -> Iterator[None]:
        adapted: list[Any] = [module for module in self.backbone.modules() if hasattr(module, "lora_A")]
        for module in adapted:
            module.enable_adapters(False)
        try:
            yield
        finally:
            for module in adapted:
                module.enable_adapters(True)

    @torch.no_grad()
    def begin_head(self, weight: Tensor, bias: float, mean: Tensor, scale: Tensor) -> None:
        """Set the head to the log odds `weight` · state + `bias`; mean and scale, (hidden,), standardise states."""
        self.mean.copy_(mean)
        # A feature that hardly varied so far may do so later.
        self.scale.copy_(scale.clamp(min=0.01 * float(scale.median())))
        self.head.weight[0].zero_()
        self.head.weight[1].copy_(weight * self.scale)
        self.head.bias[0] = 0.0
        self.head.bias[1] = bias + float(weight.double() @ mean.double())

    @torch.no_grad()
    def write(self, folder: Path) -> None:
        """Write weights, and config and tokenizer or what stands for them, to `folder`."""
        from safetensors.torch import save

        folder.mkdir(parents=True, exist_ok=True)
        weight = self.head.weight.double() / self.scale  # of states as they come
        bias = self.head.bias.double() - weight @ self.mean.double()
        head = {"classifier.weight": weight.float(), "classifier.bias": bias.float()}
        if not self.rank:
            for name in (
                ADAPTER,
                ADAPTER_WEIGHTS,
            ):  # of an earlier training: an adapter is what is loaded first
                (folder / name).unlink(missing_ok=True)
            state = {f"backbone.{name}": tensor for name, tensor in self.backbone.state_dict().items()}
            weights = {name: tensor.float().cpu().contiguous() for name, tensor in (state | head).items()}
            (folder / "model.safetensors").write_bytes(save(weights, {"format": "pt"}))
            self.config.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            return
        tensors = {}
        for name, module in self.backbone.named_modules():
            if hasattr(module, "lora_A"):
                tensors[f"{name}.lora_A"] = module.lora_A["default"].weight
                tensors[f"{name}.lora_B"] = module.lora_B["default"].weight
        small = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()} | head
        small = {name: tensor.cpu().contiguous() for name, tensor in small.items()}
        (folder / ADAPTER_WEIGHTS).write_bytes(save(small, {"format": "pt"}))
        card = {
            "format": 2 if self.answer_only else 1,
            "base": {
                "id": self.base,
                "shape": host_hash(base_config(self.folder, self.base)),
                "weights": weights_hash(self.folder),
            },
            "layers": self.layers,
            "rank": self.rank,
            "scale": _ALPHA,
            "lora_layers": list(self.lora_layers),
        } | ({"adapted": "answer"} if self.answer_only else {})
        (folder / ADAPTER).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")

    def as_written(self) -> dict[str, Tensor]:
        """Copies of what is trained, rounded to what `write` keeps of it."""
        kept = {}
        for name, weight in self.trained().items():
            short = self.rank and not name.startswith("head.")
            kept[name] = weight.detach().to(torch.bfloat16 if short else torch.float32).float().clone()
        return kept

    @torch.no_grad()
    def take(self, values: dict[str, Tensor]) -> None:
        """Put `values`, all that is trained, in place. Raises KeyError for other names."""
        mine: dict[str, Any] = dict(self.trained())
        if set(mine) != set(values):
            raise KeyError(f"expected {len(mine)} trained tensors of the same names, got {len(values)}")
        for name, value in values.items():
            mine[name].copy_(value)
