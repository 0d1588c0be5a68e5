"""A host that insists on an answer and otherwise follows SmolLM2, for the replay of going back.

Contract: the rule of `replay_retract.py`. Where the answer's token is refused, the host follows SmolLM2 until AWAY tokens
have come since it left the answer, or one that ends a sentence; then it insists again on the answer, from where the
refused number ends. SmolLM2 is asked only where its logits can matter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from _hosts import Host, HostConfig
from _smollm2 import FLOOR, Interpreter, SmolLM2
from replay_numbers import spans

from lettuceprevent.evaluation.numbers import find_literals
from lettuceprevent.retract import NEAR

AWAY = 8  # tokens for which the host follows SmolLM2 before it insists on the answer again


class Place(NamedTuple):
    """Where a host stands: at the answer's token `at`, or `away` tokens off it. left: the tokens of the answer at
    which it left; off: how many tokens it wrote off the answer."""

    at: int
    away: int
    left: list[int]
    off: int


class Script:
    """What an insisting host wants after any history: a function of the ids alone."""

    def __init__(self, encoder: Any, vocabulary: Any, text: str, eos: int, ends: frozenset[int]) -> None:
        found = list(spans(encoder, vocabulary, text))
        self.tokens = [token for _, _, token in found]
        self.eos, self.ends = eos, ends
        literals = [(literal.start, literal.end) for literal in find_literals(text)]
        self.resume = []  # for each token: where the answer goes on after the literal that it belongs to
        self.literal: list[int | None] = []  # and where in the text that literal begins
        for at, (start, end, _) in enumerate(found):
            over = [span for span in literals if span[0] < end and span[1] > start]
            stop = max((span[1] for span in over), default=start)
            self.resume.append(next((n for n in range(at, len(found)) if found[n][0] >= stop), len(found)))
            self.literal.append(over[0][0] if over else None)
        for at in range(len(found) - 2, -1, -1):  # a blank that is a token of its own goes with its number
            if not text[found[at][0] : found[at][1]].strip(" ") and self.literal[at + 1] is not None:
                self.resume[at], self.literal[at] = self.resume[at + 1], self.literal[at + 1]

    def place(self, history: list[int]) -> Place:
        at = away = off = 0
        left = []
        for token in history:
            if not away and token == self.token(at):
                at += 1
                continue
            if not away:
                left.append(at)
                at = self.resume[at] if at < len(self.tokens) else at
            off += 1
            away = 0 if away + 1 >= AWAY or token in self.ends else away + 1
        return Place(at, away, left, off)

    def token(self, at: int) -> int:
        return self.tokens[at] if at < len(self.tokens) else self.eos


class ScriptedHost(Host):
    """A host whose logits are a script's wishes and SmolLM2's; no keys and values are worth keeping."""

    def __init__(self, vocabulary: Any, eos: int, speaker: SmolLM2) -> None:
        config = HostConfig(64 * (-(-len(vocabulary) // 64)))
        config.eos_token_id = config.pad_token_id = eos
        super().__init__(config)
        self.generation_config.eos_token_id = self.generation_config.pad_token_id = eos
        self.vocabulary, self.eos = vocabulary, eos
        self.speaker, self.interpreter = speaker, Interpreter(speaker, vocabulary, config.vocab_size)

    def begin(self, script: Script, detector: Any, prompt: str) -> None:
        """What the next answer is about."""
        self.script, self.detector, self.prompt = script, detector, prompt
        self.seen, self.back = 0, -4 * NEAR  # how long the history was; where it last went back to
        self.would_end = 0
        self.sure: int | None = None  # what it said last, where SmolLM2 was not asked

    def logits(self, history: list[int]) -> torch.Tensor:
        """Logits (1, width) after `history`. RuntimeError: a token was refused that was thought to be safe."""
        if len(history) < self.seen:
            self.back = len(history)
        elif history and self.sure not in (None, history[-1]):
            raise RuntimeError(f"expected token {self.sure}, got {history[-1]}: SmolLM2 was not asked there")
        self.seen = len(history) + 1
        place = self.script.place(history)
        wish = None if place.away else self.script.token(place.at)
        if wish is not None and not self._may_be_refused(history, wish):
            scores, self.sure = torch.full((self.config.vocab_size,), FLOOR), wish
        else:
            self.sure = None
            # some tokenizers put a blank before a text, which is none of it
            text = self.vocabulary.join(history).decode("utf-8", "ignore").removeprefix(" ")
            scores = self.interpreter.scores(self.prompt, text)
            scores[self.eos] = FLOOR
            self.would_end += wish is None and self.speaker.ends(self.prompt, text)
        if wish is not None:
            scores[wish] = 100.0
        return scores[None]

    def _may_be_refused(self, history: list[int], wish: int) -> bool:
        """Whether the token is blocked, or may begin a number within reach of a place that was gone back to."""
        state = self.detector.start(b"")
        for token in history:
            state = self.detector.advance(state, token)
        mask = self.detector.mask(state)
        if wish == self.eos:
            return not mask.may_end
        piece = self.vocabulary[wish]
        begins = piece.lstrip(b" ")[:1].isdigit() or not piece.strip(b" ") or bool(np.isin(wish, mask.starts))
        return mask.is_blocked(wish) or (begins and len(history) <= self.back + 2 * NEAR)

    def following(self, ids: list[list[int]], keep: int) -> torch.Tensor:
        """Logits (1, 1, vocabulary) after the one row's answer so far; its prompt is one token."""
        return self.logits(ids[0][1:])[:, None]
