"""A literal detector small enough to be obviously right, and hosts that a test controls completely."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lettuceprevent.detectors import Evidence, TokenMask
from lettuceprevent.probe import HEADS, Probe, host_hash, weights_hash

torch.set_num_threads(1)  # tiny models: threads only wait for each other

CORPUS = [
    "Revenue was 2400 million in 2021 and 3100 million in 2022.",
    "The answer is 12, 17 or 2023; there were 24 cats, 31 dogs and 100 birds. It rose by 5 percent.",
    "No number here, only words: the quick brown fox jumps over the lazy dog and goes home.",
] * 20
DIGITS = frozenset(b"0123456789")


def make_tokenizer(vocab_size: int = 400) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with <pad>, <s>, </s>, trained in place."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )


def make_llama(vocab_size: int, *, seed: int = 0, peak: float = 6.0) -> LlamaForCausalLM:
    """A tiny Llama with random weights; `peak` scales its logits."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(peak * 8)
    return model


def make_probe(model: Any, *, layers: tuple[int, int] = (1, 2), threshold: float = 0.5) -> Probe:
    """A random probe of a host: its heads `before` and `after` read these layers."""
    made = torch.Generator().manual_seed(5)
    width = model.config.hidden_size
    card = {
        "host": {
            "id": "tiny",
            "hash": host_hash(model.config),
            "weights": weights_hash(model),
            "layers": model.config.num_hidden_layers,
            "width": width,
        },
        "heads": {
            head: {"layer": layer, "threshold": threshold} for head, layer in zip(HEADS, layers, strict=True)
        },
    }
    weights = {head: 3 * torch.randn(width, generator=made) for head in HEADS}
    return Probe(weights, dict.fromkeys(HEADS, 0.1), card)


class FakeState(NamedTuple):
    run: bytes = b""
    exempt: bool = False
    dead: bool = False


class DigitDetector:
    """A literal is a run of ASCII digits; `allowed` says which runs are supported.

    broken: called with each state and token that `advance` sees; may raise.
    """

    name = "digits"
    version = "test"
    kind = "literal"

    def __init__(
        self, vocabulary: Any, allowed: Iterable[str], broken: Callable[..., None] | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self.allowed = frozenset(text.encode() for text in allowed)
        self.prefixes = frozenset(text[:n] for text in self.allowed for n in range(1, len(text) + 1))
        self.broken = broken
        self.table = [vocabulary[i] for i in range(len(vocabulary))]
        self.digit_tokens = [i for i, piece in enumerate(self.table) if DIGITS & set(piece)]
        self._masks: dict[FakeState, TokenMask] = {}

    def start(self, prefix: bytes) -> FakeState:
        run = b""
        for byte in prefix:
            run = run + bytes([byte]) if byte in DIGITS else b""
        return FakeState(run, exempt=bool(run))

    def _feed(self, state: FakeState, piece: bytes) -> tuple[FakeState, bool]:
        run, exempt, dead = state
        violated = False
        for byte in piece:
            if byte in DIGITS:
                run += bytes([byte])
                if not exempt and not dead and run not in self.prefixes:
                    violated = dead = True
            else:
                if run and not exempt and not dead and run not in self.allowed:
                    violated = True
                run, exempt, dead = b"", False, False
        return FakeState(run, exempt, dead), violated

    def advance(self, state: FakeState, token_id: int) -> FakeState:
        if self.broken is not None:
            self.broken(state, token_id)
        return self._feed(state, self.vocabulary[token_id])[0]

    def mask(self, state: FakeState) -> TokenMask:
        mask = self._masks.get(state)
        if mask is None:
            mask = self._masks[state] = self._mask(state)
        return mask

    def _mask(self, state: FakeState) -> TokenMask:
        tokens = self.digit_tokens if not state.run else [i for i, piece in enumerate(self.table) if piece]
        if state.dead:
            tokens = []
        blocked = np.array([i for i in tokens if self._feed(state, self.table[i])[1]], dtype=np.int64)
        starts = np.array([] if state.run else self.digit_tokens, dtype=np.int64)
        inside = bool(state.run)
        allowed = None
        if len(blocked) > len(self.table) // 2:
            allowed = np.setdiff1d(np.array([i for i, piece in enumerate(self.table) if piece]), blocked)
        return TokenMask(
            blocked=blocked if allowed is None else None,
            starts=starts,
            may_end=self.finish(state),
            inside=inside,
            dead=state.dead,
            allowed=allowed,
        )

    def finish(self, state: FakeState) -> bool:
        return not state.run or state.exempt or state.dead or state.run in self.allowed

    def explain(self, state: FakeState, token_id: int) -> Evidence:
        return Evidence(literal=(state.run + self.vocabulary[token_id]).decode("utf-8", "replace").strip())


class ScriptedDetector:
    """A model detector whose probabilities come from a function of (history, candidate)."""

    name = "scripted"
    version = "test"
    kind = "model"

    def __init__(self, judge: Callable[[tuple[int, ...], int], float]) -> None:
        self.judge = judge
        self.requests: list[Any] = []

    def score(self, requests: Any) -> list[np.ndarray]:
        self.requests.extend(requests)
        return [
            np.array([self.judge(request.history, token) for token in request.candidates], dtype=np.float32)
            for request in requests
        ]

    def notes(self) -> dict[str, int]:
        return {"requests": len(self.requests)}


def digit_runs(text: str) -> list[str]:
    """Runs of ASCII digits in `text`."""
    return "".join(c if c in "0123456789" else " " for c in text).split()
