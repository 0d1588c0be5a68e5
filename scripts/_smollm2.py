"""SmolLM2 as somebody to ask: what comes after this prompt and this text, for a host of any tokenizer.

Contract: what is said depends on prompt and text alone. A prompt is read once, as long as it is the last one that was
asked about; of a text only what the last one did not begin with; an answer that was given is not worked out again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lettuceprevent.assets import host_id
from lettuceprevent.hosts import prompt_text
from lettuceprevent.retract import _cache_name, _cache_of
from lettuceprevent.vocabulary import Vocabulary

#: the score, below the best one's 0, of a token that SmolLM2 has no word for
FLOOR = -80.0


class SmolLM2:
    """The model, its tokenizer, and the prompt that was read last.

    asked: how often a host needed its scores; worked_out: forward passes, for what had not been asked before; read:
    tokens that went through them.
    """

    def __init__(self, dtype: str = "bfloat16") -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(host_id())
        self.model = AutoModelForCausalLM.from_pretrained(host_id(), dtype=getattr(torch, dtype)).eval()
        self.vocabulary = Vocabulary.for_tokenizer(self.tokenizer)
        self.asked = self.worked_out = self.read = 0
        self._prompt: str | None = None
        self._ids: list[int] = []  # of prompt and text, as far as they are in the cache
        self._base: list[int] = []
        self._cache: Any = None
        self._said: dict[str, NDArray[np.float32]] = {}

    def says(self, prompt: str, text: str) -> NDArray[np.float32]:
        """Its logits (its vocabulary,) after `text`, the best at 0."""
        if prompt != self._prompt:
            self._prompt, self._said, self._cache, self._ids = prompt, {}, None, []
            self._base = self._encoded(prompt_text(self.tokenizer, prompt))
        if text not in self._said:
            self._said[text] = self._work_out(text)
        return self._said[text]

    def ends(self, prompt: str, text: str) -> bool:
        """Whether it would end the answer after `text`."""
        return int(self.says(prompt, text).argmax()) in self.vocabulary.special_ids

    def _encoded(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _work_out(self, text: str) -> NDArray[np.float32]:
        ids = self._base + self._encoded(text)
        pairs = enumerate(zip(ids, self._ids, strict=False))
        same = next((at for at, (mine, old) in pairs if mine != old), min(len(ids), len(self._ids)))
        same = min(same, len(ids) - 1)
        if self._cache is not None and same < len(self._ids):
            self._cache.crop(same - len(self._ids))  # a negative count: so many off the end
        new = torch.tensor([ids[same:]])
        with torch.inference_mode():
            given = {} if self._cache is None else {_cache_name(self.model): self._cache}
            out = self.model(input_ids=new, use_cache=True, logits_to_keep=1, **given)
        self._cache, self._ids = _cache_of(out), ids
        self.worked_out += 1
        self.read += new.shape[1]
        logits: NDArray[np.float32] = out.logits[0, -1].float().numpy()
        return logits - logits.max()


class Interpreter:
    """SmolLM2's logits as scores of another tokenizer's tokens: a token with the same bytes gets its logit. What the
    other one does not have whole is said by what it begins with: " the" where there is no " therefore"."""

    def __init__(self, speaker: SmolLM2, vocabulary: Vocabulary, width: int) -> None:
        self.speaker, self.width = speaker, width
        # byte tokens come before pieces of the same bytes, and are not how a text is written: the last one counts
        same = {vocabulary[token]: token for token in range(len(vocabulary)) if vocabulary[token]}
        longest = max(map(len, same))
        said, heard = [], []
        for token in range(len(speaker.vocabulary)):
            whole = speaker.vocabulary[token]
            piece = whole[:longest]
            while piece and piece not in same:
                piece = piece[:-1]
            if piece and (piece == whole or piece.strip()):  # blanks alone begin too many things
                said.append(token)
                heard.append(same[piece])
        self._said, self._heard = np.array(said), np.array(heard)

    def scores(self, prompt: str, text: str) -> torch.Tensor:
        """Scores (width,) after `text`, 0 for the likeliest; FLOOR for what SmolLM2 has no token for."""
        self.speaker.asked += 1
        found = np.full(self.width, FLOOR, np.float32)
        np.maximum.at(found, self._heard, self.speaker.says(prompt, text)[self._said])
        return torch.from_numpy(found)
