"""LettucePrevent: stops a Hugging Face model from writing what its context does not support, while it writes.

Importing the package costs nothing: what needs torch or transformers is imported when its name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__

if TYPE_CHECKING:
    from .vocabulary import UnsupportedTokenizerError, Vocabulary

# Public name -> module that defines it.
_EXPORTS = {
    "Grounding": "grounding",
    "Intervention": "report",
    "PreventionLogitsProcessor": "processor",
    "PreventionReport": "report",
    "UnsupportedTokenizerError": "vocabulary",
    "Vocabulary": "vocabulary",
    "generate": "generation",
}

__all__ = ["UnsupportedTokenizerError", "Vocabulary", "__version__"]
__all__ += [name for name in _EXPORTS if name not in __all__]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
