"""SmolLM2 as somebody to ask: what comes after this prompt and this text, for a host of any tokenizer.

Contract: what is said depends on prompt and text alone. A prompt is read once, as long as it is the last one that was
asked about; of a text only what the last one did not begin with; an answer that was given is not worked out again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lettuceprevent.assets import host_id
from lettuceprevent.hosts import prompt_text
from lettuceprevent.retract import _cache_name, _cache_of
from lettuceprevent.vocabulary import Vocabulary

_KEPT = 32  # how many of the likeliest tokens are remembered
FLOOR = (
    -80.0
)  # the score, below the best one's 0, of a token that SmolLM2 lacks or finds no likelier than the rest


class SmolLM2:
    """The model, its tokenizer, and the prompt that was read last. asked: questions; read: tokens it went through."""

    def __init__(self, dtype: str = "bfloat16") -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(host_id())
        self.model = AutoModelForCausalLM.from_pretrained(host_id(), dtype=getattr(torch, dtype)).eval()
        self.vocabulary = Vocabulary.for_tokenizer(self.tokenizer)
        self.asked = self.read = 0
        self._prompt: str | None = None
        self._ids: list[int] = []  # of prompt and text, as far as they are in the cache
        self._base: list[int] = []
        self._cache: Any = None
        self._said: dict[str, list[tuple[int, float]]] = {}

    def says(self, prompt: str, text: str) -> list[tuple[int, float]]:
        """(id of SmolLM2's, score with the best at 0) of its likeliest tokens after `text`, in order."""
        if prompt != self._prompt:
            self._prompt, self._said, self._cache, self._ids = prompt, {}, None, []
            self._base = self.tokenizer(prompt_text(self.tokenizer, prompt), add_special_tokens=False)[
                "input_ids"
            ]
        self.asked += 1
        if text not in self._said:
            self._said[text] = self._work_out(text)
        return self._said[text]

    def _work_out(self, text: str) -> list[tuple[int, float]]:
        ids = self._base + self.tokenizer(text, add_special_tokens=False)["input_ids"]
        same = next(
            (at for at, (a, b) in enumerate(zip(ids, self._ids, strict=False)) if a != b), len(self._ids)
        )
        same = min(same, len(ids) - 1, len(self._ids))
        if self._cache is not None and same < len(self._ids):
            self._cache.crop(same - len(self._ids))  # a negative count: so many off the end
        new = torch.tensor([ids[same:]])
        with torch.inference_mode():
            given = {} if self._cache is None else {_cache_name(self.model): self._cache}
            out = self.model(input_ids=new, use_cache=True, logits_to_keep=1, **given)
        self._cache, self._ids = _cache_of(out), ids
        self.read += new.shape[1]
        top = out.logits[0, -1].float().topk(_KEPT)
        best = float(top.values[0])
        return [(int(i), float(v) - best) for i, v in zip(top.indices, top.values, strict=True)]


class Interpreter:
    """SmolLM2's wishes as scores of another tokenizer's tokens: those with the same bytes get its score."""

    def __init__(self, speaker: SmolLM2, vocabulary: Vocabulary, width: int) -> None:
        self.speaker, self.width = speaker, width
        self._same: dict[bytes, list[int]] = {}
        for token in range(len(vocabulary)):
            if vocabulary[token]:
                self._same.setdefault(vocabulary[token], []).append(token)
        # What neither has whole is said by what it begins with: " the" where there is no " therefore".
        self._longest = max(map(len, self._same))

    def scores(self, prompt: str, text: str) -> torch.Tensor:
        """Scores (width,) after `text`, 0 for the likeliest; FLOOR for a token that SmolLM2 does not name."""
        found = np.full(self.width, FLOOR, np.float32)
        for token, score in self.speaker.says(prompt, text):
            piece = self.speaker.vocabulary[token][: self._longest]
            while piece and piece not in self._same:
                piece = piece[:-1]
            for mine in self._same.get(piece, ()):
                found[mine] = max(found[mine], score)
        return torch.from_numpy(found)
