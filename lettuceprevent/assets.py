"""Where the real model and tokenizers used by the demo, the tests and the measurements lie.

`scripts/get_assets.py` fetches them once into ``${LETTUCEPREVENT_CACHE:-~/.cache/lettuceprevent}``; nothing
of it is part of the package. This module only looks: it downloads nothing and imports neither torch nor
transformers. A folder is put in place by one rename, so one that exists is complete.
"""

from __future__ import annotations

import os
from pathlib import Path

TOKENIZERS = ("smollm2", "mistral", "llama31", "llama2", "qwen3", "gptoss", "gemma3", "modernbert")
HOST = "smollm2-135m-instruct"
HOST_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


def cache_dir() -> Path:
    """The folder everything fetched or derived is kept in. It need not exist yet, and may not be writable."""
    chosen = os.environ.get("LETTUCEPREVENT_CACHE")
    return Path(chosen).expanduser() if chosen else Path("~/.cache/lettuceprevent").expanduser()


def asset_path(name: str) -> Path | None:
    """The folder of an asset, or None where it has not been fetched.

    ``name`` is ``smollm2-135m-instruct`` (model and tokenizer), a tokenizer (``mistral`` or
    ``tokenizers/mistral``), or ``tokenizers`` for the folder of them all (None unless every one is there).
    An unknown name raises ValueError.
    """
    short = name.removeprefix("tokenizers/")
    if name == "tokenizers":
        return cache_dir() / name if all(asset_path(each) for each in TOKENIZERS) else None
    if name != HOST and short not in TOKENIZERS:
        raise ValueError(
            f"expected an asset among {', '.join((HOST, 'tokenizers', *TOKENIZERS))}, got {name!r}"
        )
    folder = cache_dir() / name if name == HOST else cache_dir() / "tokenizers" / short
    return folder if (folder / "asset.json").is_file() else None


def local_name(name: str) -> str:
    """What ``from_pretrained`` takes for ``name``: for the hub id of SmolLM2-135M-Instruct the folder it was
    fetched to, where there is one; any other name as it is."""
    folder = asset_path(HOST) if name == HOST_HUB_ID else None
    return name if folder is None else str(folder)


def host_id() -> str:
    """What ``from_pretrained`` takes for SmolLM2-135M-Instruct: the local folder, else the hub's id."""
    return local_name(HOST_HUB_ID)
