"""What a base makes of contexts and queries, kept on disk: with `answer_only` that never changes in training.

Contract: a prompt is read by the model once per training, whatever the number of its answers and epochs, and after
a kill not again. A file is there whole or not at all. Cost on disk: layers x 2 x kv heads x head size numbers a token,
in the precision of the products: 15 KB for 20 layers of SmolLM2 in bfloat16.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .classifier import TokenClassifier

_NAME = "prompts-"


class Prompts:
    """Keys and values of prompts, by their ids. key: of base, precision and data; what another key left is removed."""

    def __init__(self, model: TokenClassifier, folder: Path, key: str) -> None:
        self.model = model
        self.folder = folder / f"{_NAME}{key}"
        for other in folder.glob(f"{_NAME}*"):
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)  # another process of this training may be at it, too
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """(layers, 2, kv heads, n, dim) of n ids, on the model's device."""
        path = self.folder / f"{hashlib.sha256(repr(tuple(ids)).encode()).hexdigest()[:32]}.pt"
        if not path.is_file():
            aside = path.with_suffix(f".{os.getpid()}.new")
            torch.save(self.model.read_prompt(ids).cpu(), aside)
            os.replace(aside, path)
        found: Tensor = torch.load(path, mmap=True, map_location="cpu", weights_only=True)
        return found.to(self.model.head.weight.device)

    def remove(self) -> None:
        """Remove the files; the training is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
