"""Hosts whose logits a script computes itself: what generate() needs of a model, and no more.

Contract: a subclass says what follows each history (`following`); there are no keys and values worth keeping, so that
every call gets all ids. Works with the names of the cache argument in transformers 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

NEW = "cache" in CausalLMOutputWithPast.__dataclass_fields__


class HostConfig(PretrainedConfig):  # type: ignore[misc]
    """Size and character of a host."""

    model_type = "random-host"

    def __init__(
        self, vocab_size: int = 8, seed: int = 0, peak: float = 4.0, copy: float = 0.3, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.vocab_size, self.seed, self.peak, self.copy = vocab_size, seed, peak, copy
        self.num_hidden_layers = self.num_attention_heads = 1
        self.hidden_size = 8


@dataclass
class Output(ModelOutput):  # type: ignore[misc]
    """Logits and an empty cache; the newer releases of transformers call it `cache`."""

    logits: Any = None
    cache: Any = None


@dataclass
class OldOutput(ModelOutput):  # type: ignore[misc]
    """Logits and an empty cache, for older releases."""

    logits: Any = None
    past_key_values: Any = None


class Host(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A model for generate() without layers and without a cache."""

    config_class = HostConfig
    _supports_cache_class = True

    def __init__(self, config: HostConfig):
        super().__init__(config)
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def following(self, ids: list[list[int]], keep: int) -> torch.Tensor:
        """Logits (rows, keep, vocabulary) after each of the last `keep` ids of every row."""
        raise NotImplementedError

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        """Always all ids: the logits need them, and there is nothing to cache."""
        keep = {key: kwargs[key] for key in ("past_key_values", "cache", "logits_to_keep") if key in kwargs}
        return {"input_ids": input_ids, **keep}

    def forward(
        self,
        input_ids: torch.Tensor,
        past_key_values: Any = None,
        cache: Any = None,
        attention_mask: Any = None,
        logits_to_keep: int = 1,
        return_dict: bool = True,
        **_: Any,
    ) -> ModelOutput:
        logits = self.following(input_ids.tolist(), max(1, int(logits_to_keep)))
        cache = cache if cache is not None else past_key_values
        cache = cache if cache is not None else DynamicCache()
        return Output(logits, cache) if NEW else OldOutput(logits, cache)
