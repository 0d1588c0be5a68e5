"""The names under which a model takes and gives its key-value cache: transformers 5 renamed them."""

from __future__ import annotations

import inspect
from typing import Any


def cache_name(model: Any) -> str:
    """What `model.forward` calls its cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def cache_of(out: Any) -> Any:
    """The cache in what a forward pass returns; None where there is none."""
    return out["cache"] if "cache" in out else out.get("past_key_values")
